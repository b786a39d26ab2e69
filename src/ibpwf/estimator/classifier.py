"""Continual learning as a scikit-learn classifier: your own table in, class names out, task after task."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin

from ibpwf.concurrency import SingleWriter, finish, moment_of
from ibpwf.errors import InputError
from ibpwf.estimator.answering import ROWS_AT_ONCE, features_of
from ibpwf.estimator.building import (
    check_as_before,
    gaussians,
    make_learner,
    make_settings,
    plain_weights,
    settings_of_next_task,
    told_by_router,
)
from ibpwf.estimator.preparing import Preparation, checked_rows
from ibpwf.estimator.recipes import AUTO, Plan
from ibpwf.estimator.storing import Columns, Face, read_classifier
from ibpwf.estimator.streamed import Streamed
from ibpwf.estimator.task_rows import first_task, task_rows
from ibpwf.inference.novelty import Novelty
from ibpwf.labels import LabelBook, label_array
from ibpwf.learner import Learner
from ibpwf.learner_state import Learned
from ibpwf.limits import check_rate
from ibpwf.more_rows import HELD_OUT, Keep, MoreRows, known_task, unknown_label
from ibpwf.settings import Settings
from ibpwf.storage.folder import lock_folder
from ibpwf.storage.model_folder import whole_folder
from ibpwf.streaming.options import StreamOptions
from ibpwf.torch_state import pinned, pinned_steps
from ibpwf.training.callbacks import Callback
from ibpwf.training.method import Forgotten

ROWS = "rows"
"""Under this name `extra_` may keep, by task, a digest of the rows it was learnt from; it goes when the task goes."""

COLUMNS = ("n_features_in_", "feature_names_in_")

LEARNED = (
    *COLUMNS,
    *("learner_", "classes_", "tasks_", "_standardizer", "_labels", "_novelty", "_parameters", "_plan", "_stream"),
)
"""What learning and forgetting replace, all of it at once; every other attribute is the user's."""


class ContinualClassifier(Streamed, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Learns task after task, forgets nothing, and infers the task of an input by itself.

    `fit(X, y)` learns one task and starts anew. `learn(X, y, task="name")` and `partial_fit(X, y)` learn the next
    one: each call is a task of its own, with the classes it brings, and answers for earlier tasks with the task given
    stay the same to the last bit. A task may have a single class. A label may return in
    a later task; its probability is then the sum over tasks.

    X has a row of numbers for each example, or images, N×H×W, N×H×W×channels or N×channels×H×W. What they are decides
    the recipe, which is kept for all tasks: how inputs are prepared, which network learns them, and settings.

    `task=` of the predicting methods is a task's name or number, or one per row. Without it the task is inferred, and
    probabilities are mixed over tasks: P(c|x) = Σ_t P(t|x) P(c|x,t).

    Parameters: `recipe` ("auto": by the data, or a name of `ibpwf.estimator.recipes.RECIPES`); `hidden` layer widths
    of a perceptron ("auto": the recipe's); `alpha`, the expected factors per task and layer ("auto": half of each
    weight's rank); `epochs`, `batch_size`, `learning_rate` ("auto": the recipe's, or by the task's rows, see
    `settings.automatic_schedule`; half as many epochs again are for fine-tuning); `settings`, a mapping of any other
    field of `ibpwf.Settings`; `false_alarm_rate` of `is_novel`; `random_state`; `device` ("auto": the GPU where there
    is one); `stream`, True or a mapping of `StreamOptions`: `partial_fit` takes batches of any size and finds the
    tasks itself (docs/streams.md); `class_weight`, "balanced" for classes that are rare, or a mapping of labels to
    how often their rows come beside others.

    Attributes: `classes_`, `tasks_`, `n_features_in_`, `feature_names_in_`, `learner_` (the `Learner` inside), and of
    a stream `stream_log_`.
    """

    n_features_in_: int
    extra_: dict[str, Any]
    _plan: Plan

    def __init__(
        self,
        hidden: Sequence[int] | str = "auto",
        *,
        recipe: str = AUTO,
        alpha: float | str = "auto",
        epochs: int | str = "auto",
        batch_size: int | str = "auto",
        learning_rate: float | str = "auto",
        settings: Mapping[str, Any] | None = None,
        false_alarm_rate: float = 0.01,
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
        stream: bool | Mapping[str, Any] = False,
        class_weight: str | Mapping[Any, float] | None = None,
    ) -> None:
        self.hidden = hidden
        self.recipe = recipe
        self.alpha = alpha
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.settings = settings
        self.false_alarm_rate = false_alarm_rate
        self.random_state = random_state
        self.device = device
        self.stream = stream
        self.class_weight = class_weight

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # Learning

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn one task from nothing; what was learnt before is dropped."""
        return self._learn(X, y, None, anew=True, sample_weight=sample_weight)

    def learn(
        self,
        X: Any,
        y: Any = None,
        task: str | None = None,
        *,
        sample_weight: Any = None,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Learn the next task, under a name of its own ("task-1", "task-2", ... if none is given). A row of
        `sample_weight` 2 comes twice as often as one of 1; `callbacks` as in `Learner.learn`.

        Without y, X may be rows that need not fit into memory: the path of a table or of a folder of images, a list
        or a folder of a table's shards, a DataLoader or a Dataset. They are read once, into a scratch file."""
        how = {"sample_weight": sample_weight, "callbacks": callbacks}
        return self._learn(X, y, task, **how)

    def more(
        self,
        X: Any,
        y: Any,
        task: str | int,
        *,
        keep: Keep = "better",
        held_out: float = HELD_OUT,
        callbacks: Sequence[Callback] = (),
    ) -> MoreRows:
        """Learn more rows of a task that is known, as a new version of it; the old one stays, and answers to
        task="name@1". `keep` and `held_out` say when it is kept, and a version that is kept and answers clearly
        worse is a warning (see `Learner.more`); the result, what changed."""
        result, doubt = self._update(X, y, task, keep, held_out, callbacks, warns=True)
        if doubt is not None:
            warnings.warn(doubt, stacklevel=2)
        return result

    def _update(
        self,
        X: Any,
        y: Any,
        task: str | int,
        keep: Keep = "better",
        held_out: float = HELD_OUT,
        callbacks: Sequence[Callback] = (),
        *,
        warns: bool = False,
    ) -> tuple[MoreRows, str | None]:
        """`more`, with what is to be said of the new version, where it `warns`."""
        self._check_tasks("updated")
        steps = pinned_steps(self._more_steps(X, y, task, keep, held_out, callbacks, warns))
        self._writes().claim(steps, "learned")
        return finish(steps)

    def _more_steps(
        self,
        X: Any,
        y: Any,
        task: str | int,
        keep: Keep,
        held_out: float,
        callbacks: Sequence[Callback],
        warns: bool,
    ) -> Generator[None, None, tuple[MoreRows, str | None]]:
        name = known_task(self.learner_.known, task).name
        learner = self._next_learner(self.learner_.info(name).examples)
        rows, y, _ = checked_rows(self, X, y, like=self._plan.first.image)
        y = label_array(y)
        self._labels.with_labels(y)  # of another kind than before: refused
        classes = self.labels_of(name)
        for label in np.unique(y).tolist():
            if label not in classes:
                raise unknown_label(label, name, classes)
        x, numbers = torch.from_numpy(self._standardizer(rows)), torch.from_numpy(self._labels.numbers(y))
        trial = yield from learner.try_more(x, numbers, name, keep, held_out, callbacks)
        after = self._fork()
        learner.know(trial.learned)
        after._novelty = self._novelty_of_more(learner, trial.task, x, numbers)
        after.learner_ = learner
        both = [(model.predict(X, name), model.predict(X)) for model in (self, after)]
        result, doubt = trial.judged(y, *both), None
        if result.kept:
            doubt = trial.doubt(y, *both) if warns else None
            after.learner_ = learner = learner.fork()
            learner.know(trial.finished())
            after._novelty = self._novelty_of_more(learner, trial.task, x, numbers)
            after._parameters = self._plain_parameters(learner)
            self._commit(after)
        return result, doubt

    def _novelty_of_more(self, learner: Learner, task: int, x: torch.Tensor, numbers: torch.Tensor) -> Novelty | None:
        """What is new beside more rows of a task."""
        if self._novelty is None:
            return None
        novelty = self._novelty.fork(gaussians(learner), self._novelty.rate)
        classes = torch.tensor(learner.tasks[task].classes)
        local = torch.searchsorted(classes, numbers).to(learner.device)
        novelty.calibrate_more(task, zip(features_of(learner, x), torch.split(local, ROWS_AT_ONCE), strict=True))
        return novelty

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn the next task, as scikit-learn names it.

        Every call is a whole task, not a batch of one: give all rows that belong together at once. With `stream` it
        is the reverse: a batch of any size, also a single row, and what is a task is found out. `classes` announces
        labels that later rows will bring, so that `predict_proba` has their columns from the start.
        """
        if StreamOptions.of(self.stream) is not None:
            if sample_weight is not None:
                raise InputError("sample_weight was given, but rows of a stream all count the same; leave it out.")
            self._writes().run("learned", lambda: self._take(X, y, classes))
            return self
        how = {"classes": classes, "sample_weight": sample_weight}
        return self._learn(X, y, None, **how)

    def _learn(self, X: Any, y: Any, task: str | None, **how: Any) -> Self:
        steps = pinned_steps(self._learn_steps(X, y, task, **how))
        self._writes().claim(steps, "learned")
        finish(steps).warn_if_hardly_learned()
        return self

    def _writes(self) -> SingleWriter:
        writer: SingleWriter = self.__dict__.setdefault("_writer", SingleWriter(self))
        return writer

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        writer = self.__dict__.get("_writer")
        if writer is not None and writer.holder is None:  # copied together with the learner, which shares it
            writer.hold_for(self)
        else:  # a shallow copy's original goes on with it
            self.__dict__.pop("_writer", None)

    def _fork(self) -> Self:
        """A copy to change, which takes the place of the original by `_commit`, or stays apart."""
        return copy.copy(self)

    def _commit(self, other: Self, **own: Any) -> None:
        """Know what `other` knows, by one assignment: predictions under way keep the state they began with (see
        `at_one_moment`). `own` are attributes of the user's that change with it."""
        if other._has_tasks():
            other.learner_.owned_by(type(self).__name__, self._writes())
        learned = {name: value for name, value in vars(other).items() if name in LEARNED}
        old = self.__dict__
        users = {name: value for name, value in dict(old).items() if name not in LEARNED}
        new = {**users, **learned, **own}
        self.__dict__ = new
        for name, value in dict(old).items():  # a thread may have set an attribute since it was copied
            if name not in LEARNED and name not in own and (name not in users or users[name] is not value):
                new[name] = value

    def _learn_steps(
        self,
        X: Any,
        y: Any,
        task: str | None,
        *,
        anew: bool = False,
        classes: Any = None,
        known: LabelBook | None = None,
        sample_weight: Any = None,
        callbacks: Sequence[Callback] = (),
    ) -> Generator[None, None, Learned]:
        anew = anew or not self._has_tasks()  # after the claim: another thread may have learned the first task
        other = self._fork()  # scikit-learn writes to it what columns there are, before anything is learned
        rows = task_rows(other, X, y, anew=anew)
        plan = Plan.choose(self.recipe, rows.first) if anew else self._plan
        labels = known or (LabelBook() if anew else self._labels)
        if classes is not None:
            labels = labels.with_labels(label_array(classes, "classes"))
        labels = labels.with_labels(rows.present)
        rate = self.false_alarm_rate
        check_rate(rate)
        learner = None if anew else self._next_learner(rows.first.rows)
        settings = self.make_settings(plan) if learner is None else learner.settings
        standardizer = plan.recipe.prepare(rows.x, plan.first, settings) if anew else self._standardizer
        x, numbers = rows.numbered(standardizer, labels)
        if learner is None:
            learner = self._new_learner(plan, settings, tuple(x.shape[1:]), len(rows.present))
        told_by_router(learner)
        weights = rows.weights(self.class_weight, sample_weight)
        learned = yield from learner.learn_steps(x, numbers, name=task, weights=weights, callbacks=callbacks)
        novelty = None
        if not told_by_router(learner):
            old = None if anew else self._novelty
            novelty = Novelty(gaussians(learner), rate) if old is None else old.fork(gaussians(learner), rate)
            novelty.calibrate(rows.features(learner))
        other._know(learner, standardizer, labels, novelty)
        other._plan = plan
        self._commit(other)
        return learned

    def _know(self, learner: Learner, standardizer: Preparation, labels: LabelBook, novelty: Novelty | None) -> None:
        """Take these up, in a copy that nobody else reads yet."""
        self.learner_, self._standardizer, self._labels, self._novelty = learner, standardizer, labels, novelty
        self.classes_, self.tasks_ = labels.classes, [task.name for task in learner.tasks]
        self._parameters = self._plain_parameters(learner)

    def _plain_parameters(self, learner: Learner) -> dict[str, Any]:
        """The parameters as they are now, as JSON."""
        seed = self.random_state
        return {
            **self.get_params(deep=False),
            "stream": self.stream if isinstance(self.stream, bool) else dict(self.stream),
            "hidden": self.hidden if isinstance(self.hidden, str) else list(self.hidden),
            "settings": None if self.settings is None else dict(self.settings),
            "class_weight": plain_weights(self.class_weight),
            "random_state": int(seed) if isinstance(seed, (int, np.integer)) else learner.seed,
        }

    def _next_learner(self, rows: int) -> Learner:
        """The learner for another task of so many rows, with the parameters as they are now; those it was built with
        must be as they were."""
        learner = self.learner_.fork()
        was, now = self._parameters, self._plain_parameters(learner)
        begun, wanted = type(self)(**was).make_settings(self._plan), self.make_settings(rows=rows)
        for name in ("recipe", "hidden", "random_state", "device"):
            check_as_before(name, was[name], now[name])
        learner.settings = settings_of_next_task(learner.settings, begun, wanted)
        return learner

    def plan_for(self, X: Any) -> Plan:
        """What a first task of such examples, an array or rows in a file, is learned by."""
        return Plan.choose(self.recipe, first_task(X))

    @property
    def recipe_(self) -> str:
        """The name of the recipe that tasks are learned by."""
        self._check_tasks("asked for its recipe")
        return self._plan.recipe.name

    def make_settings(self, plan: Plan | None = None, rows: int | None = None) -> Settings:
        """The settings that a task of so many rows is learned with, or the first one: by a plan, or by that of the
        tasks so far, if there are any."""
        own = {name: getattr(self, name) for name in ("alpha", "epochs", "batch_size", "learning_rate")}
        plan = plan or getattr(self, "_plan", None)
        return make_settings(self.settings, {} if plan is None else plan.settings(rows), **own)

    def _new_learner(self, plan: Plan, settings: Settings, shape: tuple[int, ...], outputs: int) -> Learner:
        hidden = None if isinstance(self.hidden, str) else self.hidden
        return make_learner(settings, lambda: plan.network(shape, outputs, hidden), self.random_state, self.device)

    def labels_of(self, task: str | int) -> list[Any]:
        """The labels of a task, in the order of its network's outputs."""
        now = moment_of(self)
        return [now._labels.names[number] for number in now.learner_.info(task).classes]

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "learner_") or "_stream" in vars(self)

    def fast(self) -> Self:
        """A classifier that knows the same and answers faster, a little less well, where a router tells tasks (see
        `Learner.fast`)."""
        now = moment_of(self)
        now._check_tasks("made faster")
        other = now._fork()
        other.learner_ = now.learner_.fast()
        other.learner_.owned_by(type(self).__name__, other._writes())
        return other

    def first_tasks(self, count: int) -> Self:
        """The classifier as it was after its first `count` tasks, to the bit, as long as none of them has had more
        rows since. They share every tensor. A router that keeps one sum for all tasks cannot look back."""
        now = moment_of(self)
        now._check_tasks("looked back at")
        if not 1 <= count <= len(now.tasks_):
            raise InputError(f"count is {count!r}; {len(now.tasks_)} tasks have been learnt, give 1 to that many.")
        other = now._fork()
        for name in reversed(now.tasks_[count:]):
            other.forget(name)
        if now._novelty is not None:  # what was prepared of the tasks that both have need not be made again
            other._novelty = now._novelty.fork(gaussians(other.learner_), now._novelty.rate)
            other._novelty.limits = other._novelty.limits[:count]
        return other

    def forget(self, task: str | int) -> Forgotten:
        """Remove a task, or an older version ("name@1"), and every factor that nothing else used; all others answer
        with the same bits as before, given the task. Labels that no other task has go with it, and their columns. The
        only task cannot be forgotten."""
        return self._writes().run("forgotten", lambda: self._forget(task))

    @pinned()
    def _forget(self, task: str | int) -> Forgotten:
        self._check_tasks("forgotten")
        learner, found = self.learner_.fork(), self.learner_.info(task)
        name, number = found.name, found.number
        if learner.tasks == (found,):
            raise InputError(f"task '{name}' is the only one; call fit to start anew.")
        gone = set(found.classes)
        forgotten = learner.forget(task)
        lost = gone.difference(*(one.classes for one in learner.tasks))
        labels = self._labels.without(lost)
        novelty = self._novelty
        if novelty is not None:
            limits = [limit for place, limit in enumerate(novelty.limits) if place != number]
            novelty = Novelty(gaussians(learner), novelty.rate, limits)
        kept, own = getattr(self, "extra_", {}), {}
        if ROWS in kept:  # otherwise it stays the user's, who may set it meanwhile
            left = learner.names()
            own["extra_"] = {**kept, ROWS: {one: digest for one, digest in kept[ROWS].items() if one in left}}
        other = self._fork()
        other._know(learner, self._standardizer, labels, novelty)
        other._parameters = self._parameters
        if self.stream_rows_:
            other._stream = self._stream.without(lost)
        self._commit(other, **own)
        return forgotten

    # Storing

    def save(self, path: str | Path, *, extra: Mapping[str, Any] | None = None, overwrite: bool = False) -> None:
        """Write the model folder, with class and feature names, scales and parameters; nothing is pickled.

        A folder that holds another model is refused unless `overwrite` is True. `extra` is JSON of your own to keep
        beside it. A loaded classifier has it as `extra_`, and keeps it in later saves that give none.
        """
        self._check_tasks("saved")
        with lock_folder(path):  # and only then look at the state: a save that waits must not undo a later one
            now = moment_of(self)
            kept = dict(getattr(now, "extra_", {}) if extra is None else extra)
            now.learner_.store(path, extra=kept, face=now._face(), overwrite=overwrite)
        if extra is not None or not hasattr(self, "extra_"):
            self.extra_ = kept

    def _face(self) -> dict[str, Any]:
        """What is kept around the learner, as JSON."""
        names = getattr(self, "feature_names_in_", None)
        columns, stream = Columns(self.n_features_in_, names), getattr(self, "_stream", None)
        parameters = {**self._parameters, "stream": self._plain_parameters(self.learner_)["stream"]}
        face = Face(parameters, self._plan, columns, self._labels, self._standardizer, self._novelty, stream)
        return face.to_json()

    @classmethod
    def load(cls, path: str | Path, *, device: str = "auto") -> Self:
        """Read a folder that `save` wrote; goes on with the next task to the same bits."""
        face, learner, extra = read_classifier(path, device)
        with whole_folder(path):
            loaded = cls(**{**face.parameters, "device": device})
            loaded.extra_ = extra
            loaded.n_features_in_ = face.columns.count
            if face.columns.names is not None:
                loaded.feature_names_in_ = face.columns.names
            loaded._know(learner, face.standardizer, face.labels, face.novelty)
            loaded._plan = face.plan
            if face.stream is not None:
                loaded._stream = face.stream
            learner.owned_by(cls.__name__, loaded._writes())
        return loaded
