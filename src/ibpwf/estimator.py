"""Continual learning as a scikit-learn classifier: your own table in, class names out, task after task."""

from __future__ import annotations

import copy
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from ibpwf.concurrency import OneAtATime, at_one_moment, moment_of
from ibpwf.errors import InputError, StoreError
from ibpwf.inference.fusion import ClassScores
from ibpwf.inference.gaussian import GaussianTaskInference
from ibpwf.inference.novelty import Novelty
from ibpwf.inference.prediction import Prediction, rows_by_value
from ibpwf.labels import LabelBook, before_scikit_learn, label_array
from ibpwf.learner import Learner
from ibpwf.limits import check_rate
from ibpwf.method import BUILT_WITH
from ibpwf.models import mlp
from ibpwf.preprocessing import PIXEL_MEAN, PIXEL_STD, Standardizer
from ibpwf.settings import Settings, renamed
from ibpwf.storage.folder import open_folder
from ibpwf.storage.model_folder import KIND as MODEL
from ibpwf.storage.model_folder import face_of, whole_folder
from ibpwf.storage.model_record import ClassifierFace, manifest_of, read_content
from ibpwf.storage.records import read_record
from ibpwf.storage.tensor_checks import NotWhole
from ibpwf.task_learner import run_steps
from ibpwf.training.callbacks import Callback
from ibpwf.training.method import Forgotten

KIND = "continual-classifier"
ROWS = "rows"
"""Under this name `extra_` may keep, by task, a digest of the rows it was learnt from; it goes when the task goes."""
ROWS_AT_ONCE = 4096

DEFAULTS: dict[str, Any] = {
    "heads": "per-task",  # nobody knows how many classes a later task will have
    "init": "pretrained",  # from torch's own initial weights: at full rank, few rows are learnt in few steps
    "inference": "shared-gaussian",
    "features": "random",
    "ridge": 0.2,
}
"""What the estimator sets other than `Settings`, whose defaults follow the paper (see benchmarks/defaults.py)."""


BACKBONE = "backbone"
"""Features that must know what pixels an input was made from."""

HELD_OUT = 0.1
"""Share of rows that nothing is learnt from where a router tells tasks: they say what is usual for a task."""

COLUMNS = ("n_features_in_", "feature_names_in_")


@dataclass(frozen=True)
class Answers:
    """What `ContinualClassifier.answers` says of each row. `tasks` has the task that each label was answered for,
    which always has that label; `predict_task` has the likeliest. `entropy` and `mutual_information` are in nats."""

    labels: NDArray[Any]
    probability: NDArray[np.float64]
    tasks: NDArray[Any]
    entropy: NDArray[np.float64]
    novelty: NDArray[np.float64]
    mutual_information: NDArray[np.float64] | None = None

    @property
    def is_novel(self) -> NDArray[np.bool_]:
        return self.novelty > 1


class ContinualClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Learns task after task, forgets nothing, and infers the task of an input by itself.

    `fit(X, y)` learns one task and starts anew. `learn(X, y, task="name")` and `partial_fit(X, y)` learn the next
    one: each call is a task of its own, with the classes it brings, and answers for earlier tasks with the task given
    stay the same to the last bit. A task needs at least two classes. A label may return in a later task; its
    probability is then the sum over tasks.

    `task=` of the predicting methods is a task's name or number, or one per row. Without it the task is inferred, and
    probabilities are mixed over tasks: P(c|x) = Σ_t P(t|x) P(c|x,t).

    Parameters: `hidden` layer widths; `alpha`, the expected factors per task and layer ("auto": half of each weight's
    rank); `epochs`, `batch_size`, `learning_rate` ("auto": by the task's rows, see `settings.automatic_schedule`;
    half as many epochs again are for fine-tuning); `settings`, a mapping of any other field of `ibpwf.Settings`;
    `false_alarm_rate` of `is_novel`; `random_state`; `device` ("auto": the GPU where there is one).

    Attributes: `classes_`, `tasks_`, `n_features_in_`, `feature_names_in_`, `learner_` (the `Learner` inside).
    """

    classes_: NDArray[Any]
    tasks_: list[str]
    n_features_in_: int
    learner_: Learner
    extra_: dict[str, Any]
    _labels: LabelBook
    _standardizer: Standardizer
    _novelty: Novelty | None  # None where router and experts tell it
    _parameters: dict[str, Any]  # those the last task was learned with

    def __init__(
        self,
        hidden: Sequence[int] = (400,),
        *,
        alpha: float | str = "auto",
        epochs: int | str = "auto",
        batch_size: int | str = "auto",
        learning_rate: float | str = "auto",
        settings: Mapping[str, Any] | None = None,
        false_alarm_rate: float = 0.01,
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
    ) -> None:
        self.hidden = hidden
        self.alpha = alpha
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.settings = settings
        self.false_alarm_rate = false_alarm_rate
        self.random_state = random_state
        self.device = device

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # Learning

    def fit(self, X: Any, y: Any) -> Self:
        """Learn one task from nothing; what was learnt before is dropped."""
        return self._learn(X, y, None, anew=True)

    def learn(
        self,
        X: Any,
        y: Any,
        task: str | None = None,
        *,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Learn the next task, under a name of its own ("task-1", "task-2", ... if none is given); `callbacks` as in
        `Learner.learn`."""
        return self._learn(X, y, task, anew=not self.__sklearn_is_fitted__(), callbacks=callbacks)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn the next task, as scikit-learn names it.

        Every call is a whole task, not a batch of one: give all rows that belong together at once. `classes`
        announces labels that later tasks will bring, so that `predict_proba` has their columns from the start.
        """
        return self._learn(X, y, None, anew=not self.__sklearn_is_fitted__(), classes=classes)

    def _learn(self, X: Any, y: Any, task: str | None, **how: Any) -> Self:
        steps = self._learn_steps(X, y, task, **how)
        self._changes().claim(steps, "learnt")
        run_steps(steps)
        self.learner_.warn_if_hardly_learned()
        return self

    def _changes(self) -> OneAtATime:
        changes: OneAtATime = self.__dict__.setdefault("_changing", OneAtATime())
        return changes

    def _learn_steps(
        self,
        X: Any,
        y: Any,
        task: str | None,
        *,
        anew: bool,
        classes: Any = None,
        callbacks: Sequence[Callback] = (),
    ) -> Generator[None, None, None]:
        seen = copy.copy(self)  # scikit-learn writes to it what columns there are, before anything is learnt
        X, y = validate_data(
            seen, X, before_scikit_learn(y), accept_sparse="csr", dtype=[np.float64, np.float32], reset=anew
        )
        y = label_array(y)
        check_classification_targets(y)
        present = np.unique(y)
        if len(present) < 2:
            raise InputError(
                f"y has one class only ({present.tolist()[0]!r}); a task needs at least two classes to tell apart."
            )
        labels = LabelBook() if anew else self._labels
        if classes is not None:
            labels = labels.with_labels(label_array(classes, "classes"))
        labels = labels.with_labels(y)
        standardizer = self._new_standardizer(X) if anew else self._standardizer
        rate = self.false_alarm_rate
        check_rate(rate)
        learner = self._new_learner(len(present), X.shape[1]) if anew else self._next_learner()
        told_by_router(learner)
        x, numbers = torch.from_numpy(standardizer(X)), torch.from_numpy(labels.numbers(y))
        yield from learner.learn_steps(x, numbers, name=task, callbacks=callbacks)
        novelty = None
        if not told_by_router(learner):
            old = None if anew else self._novelty
            novelty = Novelty(_gaussians(learner), rate) if old is None else old.fork(_gaussians(learner), rate)
            local = torch.unique(numbers, return_inverse=True)[1].to(learner.device)
            novelty.calibrate(zip(_features(learner, x), torch.split(local, ROWS_AT_ONCE), strict=True))
        self._become(seen, learner, standardizer, labels, novelty, _parameters=self._plain_parameters(learner))

    def _become(
        self,
        seen: Self,
        learner: Learner,
        standardizer: Standardizer,
        labels: LabelBook,
        novelty: Novelty | None,
        **others: Any,
    ) -> None:
        """Know what these know, from one moment to the next: whoever is answering meanwhile goes on with what was
        (see `at_one_moment`). `seen` has what scikit-learn keeps of the columns."""
        learner.owner = type(self).__name__
        columns = {name: value for name, value in vars(seen).items() if name in COLUMNS}
        rest = {name: value for name, value in vars(self).items() if name not in COLUMNS}
        self.__dict__ = {
            **rest,
            **columns,
            "learner_": learner,
            "classes_": labels.classes,
            "tasks_": [task.name for task in learner.tasks],
            "_standardizer": standardizer,
            "_labels": labels,
            "_novelty": novelty,
            **others,
        }

    def _plain_parameters(self, learner: Learner) -> dict[str, Any]:
        """The parameters as they are now, as JSON."""
        seed = self.random_state
        return {
            **self.get_params(deep=False),
            "hidden": list(self.hidden),
            "settings": None if self.settings is None else dict(self.settings),
            "random_state": int(seed) if isinstance(seed, (int, np.integer)) else learner.seed,
        }

    def _next_learner(self) -> Learner:
        """The learner for another task, with the parameters as they are now; those it was built with must be as they
        were."""
        learner = self.learner_.fork()
        was, now = self._parameters, self._plain_parameters(learner)
        begun, wanted = type(self)(**was).make_settings(), self.make_settings()
        pairs = [(name, was[name], now[name]) for name in ("hidden", "random_state", "device")]
        pairs += [(name, getattr(begun, name), getattr(wanted, name)) for name in BUILT_WITH]
        for name, old, new in pairs:
            if old != new:
                raise InputError(
                    f"{name} is {new!r}, but the first task was learnt with {old!r}, which every task reads; set it "
                    "back, or call fit to start anew."
                )
        built = {name: getattr(learner.settings, name) for name in BUILT_WITH}
        learner.settings = wanted.replace(**built)
        return learner

    def make_settings(self) -> Settings:
        """The settings that tasks are learned with."""
        asked = {name: getattr(self, name) for name in ("alpha", "epochs", "batch_size", "learning_rate")}
        given = renamed(self.settings or {})
        if given.get("base") == "frozen":
            raise InputError(
                "base is 'frozen', but a classifier's network is new and knows nothing worth keeping; leave it out, "
                "or use Learner with a trained network."
            )
        kept: dict[str, Any] = {"held_out": HELD_OUT} if given.get("inference") == "router" else {}
        if given.get("features") == BACKBONE:
            kept |= {"image_mean": (PIXEL_MEAN,), "image_std": (PIXEL_STD,)}
        return Settings(**{**DEFAULTS, **kept, **asked, **given})

    def _new_standardizer(self, X: Any) -> Standardizer:
        return (Standardizer.of_pixels if self.make_settings().features == BACKBONE else Standardizer.fit)(X)

    def _new_learner(self, outputs: int, inputs: int) -> Learner:
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = int(check_random_state(seed).randint(np.iinfo(np.int32).max))
        with torch.random.fork_rng(devices=[]):  # torch's own random numbers go on as if nothing had been drawn
            torch.manual_seed(int(seed))
            net = mlp(inputs, list(self.hidden), outputs)
        return Learner(net, self.make_settings(), seed=int(seed), device=self.device)

    def labels_of(self, task: str | int) -> list[Any]:
        """The labels of a task, in the order of its network's outputs."""
        return [self._labels.names[number] for number in self.learner_.tasks[self.learner_.task_number(task)].classes]

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "learner_")

    # Answering

    def _inputs(self, X: Any) -> Tensor:
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        return torch.from_numpy(self._standardizer(X))

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

    @at_one_moment
    def answers(self, X: Any, task: Any = None, draws: int = 0) -> Answers:
        """All there is to say of each row at once: label, probability, task, entropy, novelty, and with `draws` the
        mutual information."""
        prediction = self._prediction(X, task, draws)
        probabilities = self._class_probabilities(prediction)
        best = probabilities.argmax(1)
        spread = prediction.mutual_information
        return Answers(
            self.classes_[best],
            probabilities[np.arange(len(best)), best],
            np.array(self.tasks_)[self._task_of_label(prediction, best)],
            _entropy(probabilities),
            self.novelty(X),
            None if spread is None else spread.cpu().numpy(),
        )

    @at_one_moment
    def predict_proba(self, X: Any, task: Any = None) -> NDArray[np.float64]:
        """P(c|x) for every label of `classes_`; 0 for those that a given task does not have."""
        return self._class_probabilities(self._prediction(X, task))

    @at_one_moment
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

    @at_one_moment
    def predict_task(self, X: Any) -> NDArray[Any]:
        """The name of the task each row most likely belongs to."""
        x = self._inputs(X).to(self.learner_.device)
        likeliest = self.learner_.method.task_probabilities(x).argmax(1)
        names: NDArray[Any] = np.array(self.tasks_)[likeliest.cpu().numpy()]
        return names

    @at_one_moment
    def score(self, X: Any, y: Any, sample_weight: Any = None, task: Any = None) -> float:
        """Accuracy, with the task given or inferred."""
        return float(accuracy_score(y, self.predict(X, task), sample_weight=sample_weight))

    @at_one_moment
    def uncertainty(self, X: Any, task: Any = None, draws: int = 0) -> NDArray[np.float64]:
        """How unsure each answer is, in nats: the entropy of `predict_proba`; with `draws`, the mutual information
        over so many posterior samples, the part that comes from not knowing the weights (and the task)."""
        prediction = self._prediction(X, task, draws)
        if prediction.mutual_information is not None:
            return prediction.mutual_information.cpu().numpy()
        return _entropy(self._class_probabilities(prediction))

    @at_one_moment
    def novelty(self, X: Any) -> NDArray[np.float64]:
        """How unlike everything learnt each row is: its distance from the nearest class in units of what is usual.
        Above 1 it is farther out than all but `false_alarm_rate` of the rows of any task."""
        inputs = self._inputs(X)
        if self._novelty is None:
            parts = torch.split(inputs.to(self.learner_.device), ROWS_AT_ONCE)
            found = [self.learner_.method.novelty(rows, self._parameters["false_alarm_rate"]) for rows in parts]
            return torch.cat(found).cpu().numpy() if found else np.zeros(0)
        return self._novelty(_features(self.learner_, inputs)).cpu().numpy()

    @at_one_moment
    def is_novel(self, X: Any) -> NDArray[np.bool_]:
        """Whether a row looks like nothing learnt, at the false-alarm rate stated when it was."""
        return self.novelty(X) > 1

    def fast(self) -> Self:
        """A classifier that knows the same and answers faster, a little less well, where a router tells tasks (see
        `Learner.fast`)."""
        check_is_fitted(self)
        other = copy.copy(self)
        other.__dict__.pop("_changing", None)
        other.learner_ = self.learner_.fast()
        other.learner_.owner = type(self).__name__
        return other

    def forget(self, task: str | int) -> Forgotten:
        """Remove a task and every factor that only it used; all others answer with the same bits as before, given the
        task. Labels that no other task has go with it, and their columns. The only task cannot be forgotten."""
        check_is_fitted(self)
        self._changes().check("forgotten")
        learner, name = self.learner_.fork(), self.tasks_[self.learner_.task_number(task)]
        number = learner.task_number(name)
        if len(learner.tasks) == 1:
            raise InputError(f"task '{name}' is the only one; call fit to start anew.")
        gone = set(learner.tasks[number].classes)
        forgotten = learner.forget(number)
        labels = self._labels.without(gone.difference(*(one.classes for one in learner.tasks)))
        novelty = self._novelty
        if novelty is not None:
            limits = [limit for place, limit in enumerate(novelty.limits) if place != number]
            novelty = Novelty(_gaussians(learner), novelty.rate, limits)
        kept = getattr(self, "extra_", {})
        if name in kept.get(ROWS, {}):
            kept = {**kept, ROWS: {other: digest for other, digest in kept[ROWS].items() if other != name}}
        self._become(self, learner, self._standardizer, labels, novelty, _parameters=self._parameters, extra_=kept)
        return forgotten

    # Storing

    def save(self, path: str | Path, *, extra: Mapping[str, Any] | None = None, overwrite: bool = False) -> None:
        """Write the model folder, with class and feature names, scales and parameters; nothing is pickled.

        A folder that holds another model is refused unless `overwrite` is True. `extra` is JSON of your own to keep
        beside it. A loaded classifier has it as `extra_`, and keeps it in later saves that give none.
        """
        check_is_fitted(self)
        kept = dict(getattr(self, "extra_", {}) if extra is None else extra)
        now = moment_of(self)
        now.learner_.store(path, extra=kept, face=now._face(), overwrite=overwrite)
        self.extra_ = kept

    def _face(self) -> dict[str, Any]:
        """What is kept around the learner, as JSON."""
        names = getattr(self, "feature_names_in_", None)
        return {
            "kind": KIND,
            "parameters": self._parameters,
            "labels": self._labels.to_json(),
            "features": {"count": self.n_features_in_, "names": None if names is None else names.tolist()},
            "standardizer": self._standardizer.to_json(),
            "novelty": None
            if self._novelty is None
            else {"rate": self._novelty.rate, "limits": _finite(self._novelty.limits)},
        }

    @classmethod
    def load(cls, path: str | Path, *, device: str = "auto") -> Self:
        """Read a folder that `save` wrote; goes on with the next task to the same bits."""
        opened = open_folder(path, kind=MODEL)
        face = face_of(opened.content)
        if face is None or face.get("kind") != KIND:
            raise StoreError(f"{path} holds no ContinualClassifier; read it with ibpwf.load(path).")
        with whole_folder(path):
            read_record(ClassifierFace, face, f"{manifest_of(opened)} content.face").check_fits(read_content(opened))
        learner = Learner.restored(opened, None, device)
        with whole_folder(path):
            loaded = cls(**{**face["parameters"], "hidden": tuple(face["parameters"]["hidden"]), "device": device})
            loaded.extra_ = dict(face.get("own", {}) if learner.extra.get("kind") == KIND else learner.extra)
            loaded.n_features_in_ = int(face["features"]["count"])
            if face["features"]["names"] is not None:
                loaded.feature_names_in_ = np.array(face["features"]["names"], dtype=object)
            labels = LabelBook.from_json(face["labels"])
            standardizer = Standardizer.from_json(face["standardizer"])
            novelty = None
            if (face["novelty"] is None) != told_by_router(learner):
                raise NotWhole("field 'face.novelty' does not belong to the task inference")
            if face["novelty"] is not None:
                limits = [math.inf if limit is None else limit for limit in face["novelty"]["limits"]]
                novelty = Novelty(_gaussians(learner), face["novelty"]["rate"], limits)
            parameters = loaded._plain_parameters(learner)
            loaded._become(loaded, learner, standardizer, labels, novelty, _parameters=parameters)
        return loaded


def _entropy(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """−Σ p log p of each row, in nats."""
    entropy: NDArray[np.float64] = -np.sum(p * np.log(np.where(p > 0, p, 1.0)), axis=1) + 0.0
    return entropy


def told_by_router(learner: Learner) -> bool:
    """Whether every class of every task is looked at to infer a task, by a router, or by Gaussians of tasks and
    classes; anything else cannot tell what is new."""
    inference = learner.method.inference
    if isinstance(inference, ClassScores):
        if not learner.settings.held_out:
            raise InputError(
                "held_out is 0, but a classifier with a router tells what is new by rows it did not learn from; give "
                f"a share, such as {HELD_OUT}."
            )
        return True
    if not isinstance(inference, GaussianTaskInference):
        raise InputError(
            f"inference is {learner.settings.inference}, which has nothing to tell novelty by; a classifier needs "
            "router, gaussian, class-gaussian or shared-gaussian. Use Learner for any other."
        )
    return False


def _gaussians(learner: Learner) -> GaussianTaskInference:
    inference = learner.method.inference
    assert isinstance(inference, GaussianTaskInference)
    return inference


def _features(learner: Learner, x: Tensor) -> Iterator[Tensor]:
    """φ of some rows at a time."""
    for rows in torch.split(x, ROWS_AT_ONCE):
        yield learner.method.features(rows.to(learner.device))


def _plain(task: Any) -> Any:
    """A task, or one per row, without NumPy's and pandas' own types."""
    return task.tolist() if hasattr(task, "tolist") else task


def _finite(limits: Sequence[float]) -> list[float | None]:
    """JSON has no infinity."""
    return [limit if math.isfinite(limit) else None for limit in limits]
