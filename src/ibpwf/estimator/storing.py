"""What is kept around the learner in a classifier's model folder, as JSON, and read again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ibpwf.errors import StoreError
from ibpwf.estimator.building import gaussians, has_class_scores
from ibpwf.estimator.preparing import Preparation, read_preparation
from ibpwf.estimator.recipes import Plan
from ibpwf.estimator.records import ClassifierFace
from ibpwf.inference.novelty import Novelty
from ibpwf.labels import LabelBook
from ibpwf.learner import Learner
from ibpwf.storage.folder import open_folder
from ibpwf.storage.model_folder import KIND as MODEL
from ibpwf.storage.model_folder import face_of, whole_folder
from ibpwf.storage.model_record import manifest_of, read_content
from ibpwf.storage.records import read_record
from ibpwf.storage.tensor_checks import CorruptModelError
from ibpwf.streaming.storing import stream_from_json, stream_to_json
from ibpwf.streaming.stream import Stream

KIND = "continual-classifier"


@dataclass(frozen=True)
class Columns:
    """Of a classifier's rows: how many, and their names where they have any."""

    count: int
    names: NDArray[Any] | None


@dataclass(frozen=True)
class Face:
    """All that a classifier knows beside its learner: its parameters as JSON, the recipe and what it was chosen for,
    the columns of its rows, labels, scales, what is new (None where router and experts tell it), and the stream that
    rows come in, if they do."""

    parameters: Mapping[str, Any]
    plan: Plan
    columns: Columns
    labels: LabelBook
    standardizer: Preparation
    novelty: Novelty | None
    stream: Stream | None = None

    def to_json(self) -> dict[str, Any]:
        novelty, names = self.novelty, self.columns.names
        stream = {} if self.stream is None else {"stream": stream_to_json(self.stream)}
        return {
            "kind": KIND,
            "parameters": self.parameters,
            "recipe": self.plan.to_json(),
            "labels": self.labels.to_json(),
            "features": {"count": self.columns.count, "names": None if names is None else names.tolist()},
            "standardizer": self.standardizer.to_json(),
            "novelty": None if novelty is None else {"rate": novelty.rate, "limits": _finite(novelty.limits)},
            **stream,
        }

    @classmethod
    def from_json(cls, face: Mapping[str, Any], learner: Learner) -> Self:
        novelty, names = face["novelty"], face["features"]["names"]
        if (novelty is None) != has_class_scores(learner):
            raise CorruptModelError("field 'face.novelty' does not belong to the task inference")
        if novelty is not None:
            limits = [math.inf if limit is None else limit for limit in novelty["limits"]]
            novelty = Novelty(gaussians(learner), novelty["rate"], limits)
        count, hidden = int(face["features"]["count"]), face["parameters"]["hidden"]
        hidden = hidden if isinstance(hidden, str) else tuple(hidden)
        return cls(
            parameters={**face["parameters"], "hidden": hidden},
            plan=Plan.from_json(face["recipe"]),
            columns=Columns(count, None if names is None else np.array(names, dtype=object)),
            labels=LabelBook.from_json(face["labels"]),
            standardizer=read_preparation(face["standardizer"]),
            novelty=novelty,
            stream=None if face.get("stream") is None else stream_from_json(face["stream"]),
        )


def read_classifier(path: str | Path, device: str) -> tuple[Face, Learner, dict[str, Any]]:
    """What a folder holds of a classifier, the learner in it, and the JSON that the user keeps beside them."""
    opened = open_folder(path, kind=MODEL)
    face = face_of(opened.content)
    if face is None or face.get("kind") != KIND:
        raise StoreError(f"{path} holds no ContinualClassifier; read it with ibpwf.load(path).")
    with whole_folder(path):
        read_record(ClassifierFace, face, f"{manifest_of(opened)} content.face").check_fits(read_content(opened))
    learner = Learner.restored(opened, None, device, distributed="auto")
    with whole_folder(path):
        return Face.from_json(face, learner), learner, dict(learner.extra)


def _finite(limits: Sequence[float]) -> list[float | None]:
    """JSON has no infinity."""
    return [limit if math.isfinite(limit) else None for limit in limits]
