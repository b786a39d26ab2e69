"""What is to be exported: a classifier, a learner or a model folder, and what is known of its inputs and labels."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ibpwf import __version__
from ibpwf.data.arrays import array_numbers
from ibpwf.data.columns import NO_NUMBER, NOTHING
from ibpwf.data.layout import Layout
from ibpwf.errors import InputError, unknown
from ibpwf.estimator import ContinualClassifier
from ibpwf.estimator.preparing import BackbonePreparation, PixelPreparation
from ibpwf.exporting.base import trained_network
from ibpwf.exporting.graph import Expert, TaskGraph, WholeGraph, joint_of, prepare
from ibpwf.learner import Learner, load
from ibpwf.method import IBPWF
from ibpwf.preprocessing import LINEAR_TO, Standardizer
from ibpwf.storage.network_json import describe, signature

SCHEMA = 1
WHOLE = "all"
TRUE, FALSE = ["true", "True", "TRUE", "1", "1.0"], ["false", "False", "FALSE", "0", "0.0"]
INCLUDED = (
    "included: inputs are standardised inside, (x - mean) / scale, linear up to 5 and logarithmic beyond: "
    "sign(z) * 5 * (1 + log(|z| / 5))"
)
NOT_INCLUDED = "not included: give inputs as the learner was given them"
PREPROCESSING = "preprocessing"
"""Under this name `learner.save(path, extra=...)` may keep what was done to the inputs, as JSON; `words` say it."""

Model = ContinualClassifier | Learner[Any] | str | Path
Base = nn.Module | str | Path


@dataclass(frozen=True)
class Source:
    """A learner, the classifier it belongs to if any, and the folder it was read from if any."""

    learner: Learner[Any]
    method: IBPWF
    classifier: ContinualClassifier | None
    folder: Path | None

    @classmethod
    def of(cls, model: Model, base: Base | None = None) -> Source:
        folder = None
        if isinstance(model, (str, Path)):
            folder = Path(model)
            net = trained_network(base, folder) if isinstance(base, (str, Path)) else base
            model = load(folder, net=net, device="cpu")
        elif base is not None:
            raise InputError(f"base is for model folders, and model is a {type(model).__name__}, which has its own.")
        classifier = None
        if isinstance(model, ContinualClassifier):
            if not hasattr(model, "learner_"):
                raise InputError("this ContinualClassifier has learnt nothing yet; call learn(X, y) first.")
            classifier, model = model, model.learner_
        if not isinstance(model, Learner):
            raise InputError(
                f"model is a {type(model).__name__}; give a ContinualClassifier, a Learner or a model folder."
            )
        if not isinstance(model.method, IBPWF):
            raise InputError(
                f"the model is of method '{model.method.name}', whose tasks have no networks of their own to export; "
                "only IBP-WF's have."
            )
        if not model.tasks:
            raise InputError("nothing has been learnt yet, so there is nothing to export; learn a task first.")
        return cls(model, model.method, classifier, folder)

    def task(self, name: str | int | None) -> int | None:
        """The number of a task; None for all of them (no name, or "all" where no task is called so)."""
        names = self.learner.names()
        if name is None or (name == WHOLE and WHOLE not in names):
            return None
        if isinstance(name, str) and name not in names:
            raise unknown("task", name, [*(one.name for one in self.learner.tasks), WHOLE])
        return self.learner.task_number(name)

    # Labels

    def labels(self, task: int | None) -> list[Any]:
        """The label of each output column, as JSON has it."""
        if task is None and self.classifier is not None:
            return list(self.classifier.classes_.tolist())
        if task is None:
            return sorted({label for one in self.learner.tasks for label in one.classes})
        if self.classifier is None:
            return list(self.learner.info(task).classes)
        return self.classifier.labels_of(task)

    def network(self, task: int) -> nn.Module:
        """A task's own network, its outputs in the order of `labels(task)`."""
        return self.method.model.merge(self.method.place(task)).cpu()

    def graph(self, task: int | None) -> TaskGraph | WholeGraph:
        self._check_one_array()
        self.method.likelihood.require_classes(
            "a graph of probabilities", "export a task's plain weights (safetensors)"
        )
        first = prepare(self.classifier._standardizer if self.classifier else None, self.layout())
        if task is not None:
            return TaskGraph(first, Expert.of(self.method, task), self.method.temperature(task)).eval()
        labels = self.labels(None)
        columns = [labels.index(label) for t in range(len(self.learner.tasks)) for label in self.labels(t)]
        return WholeGraph(first, joint_of(self.method), columns, len(labels)).eval()

    # Inputs

    def _check_one_array(self) -> None:
        """A graph takes one array of numbers; an image that has a name is one."""
        packing = self.method.model.packing
        if packing is None or (len(packing.fields) == 1 and packing.fields[0].kind == "float32"):
            return
        names = ", ".join(f"'{field.name}'" for field in packing.fields)
        adapter = "export the task to peft, or " if self.method.model.base == "frozen" else ""
        raise InputError(
            f"the network takes inputs by name ({names}), and a graph of ours takes one array of real numbers; "
            f"{adapter}merge the task (learner.merge(task)) into a network of its own class, for the exporters "
            "that know such networks."
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example as the graph takes it: an image as files hold it, height×width×channels."""
        assert self.learner.input_shape is not None
        layout = self.layout()
        if layout is None or layout.kind != "images":
            return self.learner.input_shape
        channels, height, width = layout.shape
        return height, width, channels

    @property
    def dtype(self) -> str:
        layout = self.layout()
        if self.classifier is None:
            return "float32"
        return "uint8" if layout is not None and layout.pixels == "bytes" else "float64"

    def examples(self, rows: int) -> Tensor:
        """Inputs to trace and to check with: about where the training data were, some of them far out."""
        if self.classifier is None:
            return torch.from_numpy(np.random.default_rng(0).standard_normal((rows, *self.shape))).float()
        scaler, layout = self._columns(), self.layout()
        drawn = np.random.default_rng(0).standard_normal((rows, len(scaler.mean)))
        drawn[::4] *= 4
        drawn = scaler.mean + scaler.scale * drawn
        if layout is not None and layout.kind == "images":
            drawn = drawn.reshape(rows, *layout.shape).transpose(0, 2, 3, 1)
        elif not isinstance(self.classifier._standardizer, Standardizer):  # pixels alone can be looked at
            drawn = np.clip(drawn, scaler.low, scaler.high)
        if layout is not None and layout.missing == "mean":
            drawn[1::3, ::2] = np.nan
        if self.dtype == "uint8":
            drawn = np.clip(drawn * 255, 0, 255).astype(np.uint8)
        return torch.from_numpy(np.ascontiguousarray(drawn))

    def _rows(self, x: Tensor) -> NDArray[Any]:
        """Inputs of the graph as the reader of files gives them to the classifier."""
        given, layout = x.numpy(), self.layout()
        if layout is not None and layout.kind == "images":
            return array_numbers(given.transpose(0, 3, 1, 2)).reshape(len(x), -1)
        means = layout.means if layout is not None and layout.missing == "mean" else 0.0
        return np.where(np.isnan(given), means, given)

    def answers(self, x: Tensor, task: int | None) -> list[Tensor]:
        """What the model itself answers, column by column as its graph does."""
        inputs = x if self.classifier is None else torch.from_numpy(self._standardized(self._rows(x)))
        told = self.learner.predict(inputs, task, marginal=True)
        labels = self.labels(task)
        out = torch.zeros(len(x), len(labels), dtype=torch.float64)
        known = [label for t in range(len(self.learner.tasks)) for label in self.labels(t)]
        asked = None if task is None else self.method.version(task)[0]
        for column, (owner, _) in enumerate(told.classes):
            if asked is None or owner == asked:
                out[:, labels.index(known[column])] += told.probabilities[:, column].cpu()
        return [out] if task is not None else [out, told.task_probabilities.cpu()]

    def _standardized(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        assert self.classifier is not None
        with warnings.catch_warnings():  # of inputs on another scale, which some of those to check with are
            warnings.simplefilter("ignore")
            return self.classifier._standardizer(rows)

    def features(self) -> list[dict[str, Any]] | None:
        """How each input is read from a table: a column's number, or whether it is one of some of its words."""
        if self.classifier is None:
            return None
        layout = self.layout()
        if layout is not None and layout.kind == "table":
            found: list[dict[str, Any]] = []
            fills = layout.missing == "mean"
            for column in layout.columns:
                missing = {"missing": list(NO_NUMBER if column.kind == "number" else NOTHING)} if fills else {}
                wanted = {"category": [[word] for word in column.categories], "boolean": [TRUE]}.get(column.kind)
                if wanted is None:
                    found.append({"column": column.name, **missing})
                    continue
                words = TRUE + FALSE if column.kind == "boolean" else list(column.categories)
                known = {} if column.kind == "category" and layout.unknown == "zeros" else {"words": words}
                found += [{"column": column.name, "equals": equals, **known, **missing} for equals in wanted]
            if len(found) == self.classifier.n_features_in_:
                return found
        names = getattr(self.classifier, "feature_names_in_", None)
        return None if names is None else [{"column": str(name)} for name in names]

    def layout(self) -> Layout | None:
        """How the files were laid out that the model was taught from, if it was taught from files."""
        kept = getattr(self.classifier, "extra_", {})
        return Layout.from_json(kept["layout"]) if "layout" in kept else None

    def preprocessing(self) -> dict[str, Any]:
        """What is done to inputs before the network, with its numbers where they are not in the graph."""
        if self.classifier is not None:
            scaler, layout = self.classifier._standardizer, self.layout()
            words = INCLUDED
            if layout is not None and layout.kind == "images":
                bytes_ = ", bytes become 0 to 1 (x / 255)" if layout.pixels == "bytes" else ""
                words = words.replace("inputs are", f"channels are put first{bytes_}, then inputs are")
            filled = {"fill_in": list(layout.means)} if layout is not None and layout.missing == "mean" else {}
            if filled:
                words = words.replace("inputs are", "missing values (NaN) become fill_in, then inputs are")
            return {"included": True, "words": words, "linear_to": LINEAR_TO, **filled, **scaler.to_json()}
        kept = self.learner.extra.get(PREPROCESSING)
        noted: dict[str, Any] = dict(kept) if isinstance(kept, dict) else {}
        words = f"{NOT_INCLUDED}: {noted['words']}" if "words" in noted else NOT_INCLUDED
        return {**noted, "included": False, "words": words}

    def _columns(self) -> Standardizer:
        """The scale of each number of a row."""
        assert self.classifier is not None
        preparation = self.classifier._standardizer
        if isinstance(preparation, Standardizer):
            return preparation
        assert isinstance(preparation, (PixelPreparation, BackbonePreparation))
        return preparation.columns

    def _range(self) -> list[float] | None:
        """The least and the largest number of the first task, as the graph takes them; None where not known."""
        if self.classifier is None or self.dtype == "uint8":
            return None
        scaler = self._columns()
        return [scaler.low, scaler.high] if math.isfinite(scaler.low) and math.isfinite(scaler.high) else None

    def _outputs(self, task: int) -> dict[str, Any]:
        """What the outputs of a task's network are, beside the answers of the model itself."""
        views, classes = self.method.views(task), self.method.model.tasks[self.method.place(task)].classes
        words = "class scores as the model has them; its probabilities are softmax(scores / temperature)"
        if views.copies > 1:
            mirrored = ", each also mirrored" if views.mirrors else ""
            words = (
                "class scores of the image as it is, unturned; the model itself, and its export to onnx or pt2, "
                f"takes the mean over {views.copies} quarter turns{mirrored}, and divides it by the temperature"
            )
        if self.method.versions[task].opinion is not None:
            words += "; the model itself asks its second opinion beside them, which is not in this file"
        numbers = {"temperature": self.method.temperature(task), "turns": views.copies, "mirror": views.mirrors}
        return {"classes": classes, **numbers, "words": words}

    def about(self, task: int | None, net: nn.Module | None = None) -> dict[str, Any]:
        """Everything one must know to use the exported file, as JSON; with `net`, its architecture too."""
        preprocessing = self.preprocessing()
        inside = {"mean", "scale", "linear_to", "fill_in"} if preprocessing["included"] and net is None else set()
        layout = self.layout()
        found: dict[str, Any] = {
            "schema": SCHEMA,
            "ibpwf": __version__,
            "task": None if task is None else self.learner.info(task).name,
            "tasks": [one.name for one in self.learner.tasks],
            "labels": self.labels(task),
            "input": {
                "shape": list(self.shape),
                "dtype": self.dtype,
                "range": self._range(),
                "missing": layout is not None and layout.missing == "mean",
            },
            "features": self.features(),
            "preprocessing": {key: value for key, value in preprocessing.items() if key not in inside},
            "layout": None if layout is None else layout.to_json(),
        }
        if net is not None:
            assert task is not None
            made = {"class": type(net).__name__, "architecture": describe(net), "tensors": signature(net)}
            found["network"] = {**made, **self._outputs(task)}
        return found
