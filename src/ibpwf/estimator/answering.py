"""What a classifier says of rows: labels and their probabilities, tasks, how sure it is, and what is new."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ibpwf.concurrency import at_one_moment
from ibpwf.estimator.building import told_by_router
from ibpwf.estimator.preparing import Preparation, checked_rows
from ibpwf.estimator.recipes import Plan
from ibpwf.inference.novelty import Novelty
from ibpwf.inference.prediction import Prediction, rows_by_value
from ibpwf.labels import LabelBook, before_scikit_learn
from ibpwf.learner import Learner
from ibpwf.plain_arrays import numbers, plain
from ibpwf.torch_state import pinned

ROWS_AT_ONCE = 4096

MOST_NOVEL = 1e6
"""What is further from everything than this is told as this: the number may have hundreds of digits."""


P = ParamSpec("P")
R = TypeVar("R")


def asks(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A predicting method: from one state of the classifier, in torch's default state."""
    return at_one_moment(pinned()(method))


@dataclass(frozen=True)
class Answers:
    """What `ContinualClassifier.answers` says of each row. `tasks` has the task that each label was answered for,
    which always has that label; `predict_task` has the likeliest, by `task_probabilities` (a column per task).
    `entropy` and `mutual_information` are in nats."""

    labels: NDArray[Any]
    probability: NDArray[np.float64]
    tasks: NDArray[Any]
    entropy: NDArray[np.float64]
    novelty: NDArray[np.float64]
    mutual_information: NDArray[np.float64] | None = None
    task_probabilities: NDArray[np.float64] | None = None  # None before there is a task

    @property
    def is_novel(self) -> NDArray[np.bool_]:
        return self.novelty > 1


class Answering:
    """The predicting methods of a classifier, from what it knows. Each answers from one moment's state."""

    classes_: NDArray[Any]
    tasks_: list[str]
    learner_: Learner
    _labels: LabelBook
    _standardizer: Preparation
    _plan: Plan
    _novelty: Novelty | None  # None where router and experts tell it
    _parameters: dict[str, Any]  # those the last task was learned with

    def _inputs(self, X: Any) -> Tensor:
        check_is_fitted(self)
        rows, _, _ = checked_rows(self, X, like=self._plan.first.image)
        return torch.from_numpy(self._standardizer(rows))

    def _prediction(self, X: Any, task: Any, draws: int = 0) -> Prediction:
        inputs = self._inputs(X)
        return self.learner_.predict(inputs, _plain(task), marginal=True, draws=draws, seed=self.learner_.seed)

    def _class_probabilities(self, prediction: Prediction) -> NDArray[np.float64]:
        """One column per label: a label that several tasks have gets the sum."""
        columns = self._labels.columns()
        out = np.zeros((len(prediction), len(self.classes_)))
        found = prediction.probabilities.cpu().numpy()
        for source, (_, number) in enumerate(prediction.classes):
            out[:, columns[number]] += found[:, source]
        return out

    def _task_of_label(self, prediction: Prediction, best: NDArray[np.intp]) -> NDArray[np.intp]:
        """The task that adds most to each row's label. The likeliest task need not even have that label, where
        another's answer is the more certain one."""
        columns = self._labels.columns()[[number for _, number in prediction.classes]]
        shares = np.where(columns == best[:, None], prediction.probabilities.cpu().numpy(), -1.0)
        tasks: NDArray[np.intp] = np.array([task for task, _ in prediction.classes])[shares.argmax(1)]
        return tasks

    @asks
    def answers(self, X: Any, task: Any = None, draws: int = 0, *, novelty: bool = True) -> Answers:
        """All there is to say of each row at once: label, probability, task, entropy, novelty, and with `draws` the
        mutual information. Without `novelty`, which takes longest, that is NaN."""
        prediction = self._prediction(X, task, draws)
        probabilities = self._class_probabilities(prediction)
        best = probabilities.argmax(1)
        spread = prediction.mutual_information
        return Answers(
            self.classes_[best],
            probabilities[np.arange(len(best)), best],
            np.array(self.tasks_)[self._task_of_label(prediction, best)],
            self._entropy(prediction, probabilities, task),
            self.novelty(X) if novelty else np.full(len(best), np.nan),
            None if spread is None else spread.cpu().numpy(),
            prediction.task_probabilities.cpu().numpy(),
        )

    @asks
    def predict_proba(self, X: Any, task: Any = None) -> NDArray[np.float64]:
        """P(c|x) for every label of `classes_`; 0 for those that a given task does not have."""
        return self._class_probabilities(self._prediction(X, task))

    @asks
    def predict(self, X: Any, task: Any = None) -> NDArray[Any]:
        """The likeliest label of each row, as `predict_proba` would have it.

        Tasks are asked in the order of P(t|x), and only until what is left of it cannot change the answer any more:
        one pass through one task's network for all rows whose task is clear.
        """
        check_is_fitted(self)
        if task is not None or told_by_router(self.learner_):
            likeliest = self.predict_proba(X, task).argmax(1)
        else:
            x = self._inputs(X).to(self.learner_.device)
            parts = [self._best_columns(rows) for rows in torch.split(x, ROWS_AT_ONCE)]
            likeliest = torch.cat(parts).cpu().numpy() if parts else np.zeros(0, dtype=np.int64)
        chosen: NDArray[Any] = self.classes_[likeliest]
        return chosen

    def _best_columns(self, x: Tensor) -> Tensor:
        """The column of the likeliest label of every row."""
        method = self.learner_.method
        columns = torch.from_numpy(self._labels.columns()).to(x.device)
        likely, order = method.task_probabilities(x).sort(dim=1, descending=True, stable=True)
        left = 1 - likely.cumsum(1)  # what the tasks not asked yet can still add to any one label
        found = torch.zeros(len(x), len(self.classes_), dtype=torch.float64, device=x.device)
        open_rows = torch.arange(len(x), device=x.device)
        for turn in range(order.shape[1]):
            for number, rows in rows_by_value(order[open_rows, turn]):
                at = open_rows[rows]
                p, _ = method.class_probabilities(x[at], number)
                own = columns[torch.tensor(method.classes[number], device=x.device)]
                found[at.unsqueeze(1), own] += p * likely[at, turn].unsqueeze(1)
            if found.shape[1] < 2 or turn + 1 == order.shape[1]:
                break
            best = found[open_rows].topk(2, dim=1).values
            open_rows = open_rows[best[:, 0] - best[:, 1] <= left[open_rows, turn] + 1e-12]
            if not len(open_rows):
                break
        return found.argmax(1)

    @asks
    def predict_task(self, X: Any) -> NDArray[Any]:
        """The name of the task each row most likely belongs to."""
        x = self._inputs(X).to(self.learner_.device)
        likeliest = self.learner_.method.task_probabilities(x).argmax(1)
        names: NDArray[Any] = np.array(self.tasks_)[likeliest.cpu().numpy()]
        return names

    @asks
    def score(self, X: Any, y: Any, sample_weight: Any = None, task: Any = None) -> float:
        """Accuracy, with the task given or inferred."""
        weights = None if sample_weight is None else numbers("sample_weight", sample_weight)
        return float(accuracy_score(before_scikit_learn(y), self.predict(X, task), sample_weight=weights))

    @asks
    def uncertainty(self, X: Any, task: Any = None, draws: int = 0) -> NDArray[np.float64]:
        """How unsure each answer is, in nats: the entropy of `predict_proba`; with `draws`, the mutual information
        over so many posterior samples, the part that comes from not knowing the weights (and the task)."""
        prediction = self._prediction(X, task, draws)
        if prediction.mutual_information is not None:
            return prediction.mutual_information.cpu().numpy()
        return self._entropy(prediction, self._class_probabilities(prediction), task)

    @staticmethod
    def _entropy(prediction: Prediction, probabilities: NDArray[np.float64], task: Any) -> NDArray[np.float64]:
        """The entropy of `probabilities`; of a given task that of its own classes, which later tasks do not change by
        a bit as they would a sum over the columns of all."""
        return entropy(probabilities) if task is None else prediction.entropy.cpu().numpy()

    @asks
    def novelty(self, X: Any) -> NDArray[np.float64]:
        """How unlike everything learnt each row is: its distance from the nearest class in units of what is usual.
        Above 1 it is farther out than all but `false_alarm_rate` of the rows of any task; it is at most a million."""
        inputs = self._inputs(X)
        if self._novelty is None:
            parts = torch.split(inputs.to(self.learner_.device), ROWS_AT_ONCE)
            found = [self.learner_.method.novelty(rows, self._parameters["false_alarm_rate"]) for rows in parts]
            return torch.cat(found).clamp(max=MOST_NOVEL).cpu().numpy() if found else np.zeros(0)
        return self._novelty(features_of(self.learner_, inputs)).clamp(max=MOST_NOVEL).cpu().numpy()

    @asks
    def is_novel(self, X: Any) -> NDArray[np.bool_]:
        """Whether a row looks like nothing learnt, at the false-alarm rate stated when it was."""
        return self.novelty(X) > 1


def entropy(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """−Σ p log p of each row, in nats."""
    entropy: NDArray[np.float64] = -np.sum(p * np.log(np.where(p > 0, p, 1.0)), axis=1) + 0.0
    return entropy


def features_of(learner: Learner, x: Tensor) -> Iterator[Tensor]:
    """φ of some rows at a time."""
    for rows in torch.split(x, ROWS_AT_ONCE):
        yield learner.method.features(rows.to(learner.device))


def _plain(task: Any) -> Any:
    """A task, or one per row, without NumPy's and pandas' own types."""
    task = plain("task", task)
    return task.tolist() if hasattr(task, "tolist") else task
