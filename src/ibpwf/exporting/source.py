"""What is to be exported: a classifier, a learner or a model folder, and what is known of its inputs and labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ibpwf import __version__
from ibpwf.errors import InputError, unknown
from ibpwf.estimator import ContinualClassifier
from ibpwf.exporting.graph import TaskGraph, WholeGraph, prepare
from ibpwf.files.layout import Layout
from ibpwf.learner import load
from ibpwf.method import IBPWF
from ibpwf.preprocessing import LINEAR_TO
from ibpwf.storage.network_json import describe, signature
from ibpwf.task_learner import TaskLearner

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

Model = ContinualClassifier | TaskLearner | str | Path


@dataclass(frozen=True)
class Source:
    """A learner, the classifier it belongs to if any, and the folder it was read from if any."""

    learner: TaskLearner
    method: IBPWF
    classifier: ContinualClassifier | None
    folder: Path | None

    @classmethod
    def of(cls, model: Model) -> Source:
        folder = None
        if isinstance(model, (str, Path)):
            folder = Path(model)
            model = load(folder, device="cpu")
        classifier = None
        if isinstance(model, ContinualClassifier):
            if not hasattr(model, "learner_"):
                raise InputError("this ContinualClassifier has learnt nothing yet; call learn(X, y) first.")
            classifier, model = model, model.learner_
        if not isinstance(model, TaskLearner):
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
        names = [task.name for task in self.learner.tasks]
        if name is None or (name == WHOLE and WHOLE not in names):
            return None
        if isinstance(name, str) and name not in names:
            raise unknown("task", name, [*names, WHOLE])
        return self.learner.task_number(name)

    # Labels

    def labels(self, task: int | None) -> list[Any]:
        """The label of each output column, as JSON has it."""
        if task is None and self.classifier is not None:
            return list(self.classifier.classes_.tolist())
        if task is None:
            return sorted({label for one in self.learner.tasks for label in one.classes})
        if self.classifier is None:
            return list(self.learner.tasks[task].classes)
        return self.classifier.labels_of(task)

    def network(self, task: int) -> nn.Module:
        """A task's own network, its outputs in the order of `labels(task)`."""
        return self.method.model.merge(task).cpu()

    def graph(self, task: int | None) -> TaskGraph | WholeGraph:
        first = prepare(self.classifier._standardizer if self.classifier else None)
        if task is not None:
            return TaskGraph(first, self.network(task)).eval()
        labels = self.labels(None)
        tasks = range(len(self.learner.tasks))
        columns = [torch.tensor([labels.index(label) for label in self.labels(t)]) for t in tasks]
        return WholeGraph(first, self.method, [self.network(t) for t in tasks], columns, len(labels)).eval()

    # Inputs

    @property
    def shape(self) -> tuple[int, ...]:
        assert self.learner.input_shape is not None
        return self.learner.input_shape

    def examples(self, rows: int) -> Tensor:
        """Inputs to trace and to check with: about where the training data were, some of them far out."""
        drawn = np.random.default_rng(0).standard_normal((rows, *self.shape))
        if self.classifier is None:
            return torch.from_numpy(drawn).float()
        scaler = self.classifier._standardizer
        drawn[::4] *= 4
        return torch.from_numpy(scaler.mean + scaler.scale * drawn)

    def answers(self, x: Tensor, task: int | None) -> list[Tensor]:
        """What the model itself answers, column by column as its graph does."""
        inputs = x if self.classifier is None else torch.from_numpy(self.classifier._standardizer(x.numpy()))
        told = self.learner.predict(inputs, task, marginal=True)
        labels = self.labels(task)
        out = torch.zeros(len(x), len(labels), dtype=torch.float64)
        known = [label for t in range(len(self.learner.tasks)) for label in self.labels(t)]
        for column, (owner, _) in enumerate(told.classes):
            if task is None or owner == task:
                out[:, labels.index(known[column])] += told.probabilities[:, column].cpu()
        return [out] if task is not None else [out, told.task_probabilities.cpu()]

    def features(self) -> list[dict[str, Any]] | None:
        """How each input is read from a table: a column's number, or whether it is one of some of its words."""
        if self.classifier is None:
            return None
        layout = self.layout()
        if layout is not None and layout.kind == "table":
            found: list[dict[str, Any]] = []
            for column in layout.columns:
                wanted = {"category": [[word] for word in column.categories], "boolean": [TRUE]}.get(column.kind)
                if wanted is None:
                    found.append({"column": column.name})
                    continue
                words = TRUE + FALSE if column.kind == "boolean" else list(column.categories)
                found += [{"column": column.name, "equals": equals, "words": words} for equals in wanted]
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
            scaler = self.classifier._standardizer
            return {"included": True, "words": INCLUDED, "linear_to": LINEAR_TO, **scaler.to_json()}
        kept = self.learner.extra.get(PREPROCESSING)
        noted: dict[str, Any] = dict(kept) if isinstance(kept, dict) else {}
        words = f"{NOT_INCLUDED}: {noted['words']}" if "words" in noted else NOT_INCLUDED
        return {**noted, "included": False, "words": words}

    def about(self, task: int | None, net: nn.Module | None = None) -> dict[str, Any]:
        """Everything one must know to use the exported file, as JSON; with `net`, its architecture too."""
        preprocessing = self.preprocessing()
        inside = {"mean", "scale", "linear_to"} if preprocessing["included"] and net is None else set()
        layout = self.layout()
        found: dict[str, Any] = {
            "schema": SCHEMA,
            "ibpwf": __version__,
            "task": None if task is None else self.learner.tasks[task].name,
            "tasks": [one.name for one in self.learner.tasks],
            "labels": self.labels(task),
            "input": {"shape": list(self.shape), "dtype": "float64" if self.classifier else "float32"},
            "features": self.features(),
            "preprocessing": {key: value for key, value in preprocessing.items() if key not in inside},
            "layout": None if layout is None else layout.to_json(),
        }
        if net is not None:
            found["network"] = {"class": type(net).__name__, "architecture": describe(net), "tensors": signature(net)}
        return found
