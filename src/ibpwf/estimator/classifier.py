"""Continual learning as a scikit-learn classifier: your own table in, class names out, task after task."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ibpwf.concurrency import SingleWriter, finish, moment_of
from ibpwf.data.rows import ROWS_PER_PASS
from ibpwf.errors import InputError
from ibpwf.estimator.answering import MOST_NOVEL, asks, entropy, features_of, plain_task
from ibpwf.estimator.building import (
    check_as_before,
    gaussians,
    has_class_scores,
    make_learner,
    make_settings,
    plain_weights,
    settings_of_next_task,
)
from ibpwf.estimator.preparing import Preparation, checked_rows
from ibpwf.estimator.recipes import AUTO, Plan
from ibpwf.estimator.storing import Columns, Face, read_classifier
from ibpwf.estimator.stream_controller import StreamController, task_answers
from ibpwf.estimator.task_rows import TaskRows, first_task
from ibpwf.inference.novelty import Novelty
from ibpwf.inference.prediction import Prediction, rows_by_value
from ibpwf.labels import LabelBook, before_scikit_learn, label_array
from ibpwf.learner import Learner
from ibpwf.learner.state import LearnerState
from ibpwf.learner.update import VALIDATION_FRACTION, Keep, Update, known_task, unknown_label
from ibpwf.limits import check_rate
from ibpwf.plain_arrays import numbers, plain
from ibpwf.settings import Settings
from ibpwf.storage.folder import lock_folder
from ibpwf.storage.model_folder import whole_folder
from ibpwf.streaming.options import StreamOptions
from ibpwf.streaming.stream import Stream
from ibpwf.torch_state import pinned, pinned_steps
from ibpwf.training.callbacks import Callback
from ibpwf.training.method import Forgotten

ROWS = "rows"
"""Under this name `extra_` may keep, by task, a digest of the rows it was learnt from; it goes when the task goes."""

NO_TASK = "none yet"
"""What answers call the task while there is none."""

COLUMNS = ("n_features_in_", "feature_names_in_")

LEARNED = (
    *COLUMNS,
    *("learner_", "classes_", "tasks_", "_standardizer", "_labels", "_novelty", "_parameters", "_plan", "_stream"),
)
"""What learning and forgetting replace, all of it at once; every other attribute is the user's."""


class NoStream(InputError, AttributeError):
    """An attribute that only a stream has: for `hasattr` it is not there."""


class ContinualClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
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
    classes_: NDArray[Any]
    tasks_: list[str]
    learner_: Learner
    extra_: dict[str, Any]
    _labels: LabelBook
    _standardizer: Preparation
    _plan: Plan
    _novelty: Novelty | None  # None where router and experts tell it
    _parameters: dict[str, Any]  # those the last task was learned with
    _stream: Stream  # once the first batch was taken

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

    def update(
        self,
        X: Any,
        y: Any,
        task: str | int,
        *,
        keep: Keep = "better",
        validation_fraction: float = VALIDATION_FRACTION,
        callbacks: Sequence[Callback] = (),
    ) -> Update:
        """Learn more rows of a task that is known, as a new version of it; the old one stays, and answers to
        task="name@1". `keep` and `validation_fraction` say when it is kept, and a version that is kept and answers
        clearly worse is a warning (see `Learner.update`); the result, what changed."""
        result, doubt = self._update(X, y, task, keep, validation_fraction, callbacks, warns=True)
        if doubt is not None:
            warnings.warn(doubt, stacklevel=2)
        return result

    def _update(
        self,
        X: Any,
        y: Any,
        task: str | int,
        keep: Keep = "better",
        validation_fraction: float = VALIDATION_FRACTION,
        callbacks: Sequence[Callback] = (),
        *,
        warns: bool = False,
    ) -> tuple[Update, str | None]:
        """`update`, with what is to be said of the new version, where it `warns`."""
        self._check_tasks("updated")
        steps = pinned_steps(self._update_steps(X, y, task, keep, validation_fraction, callbacks, warns))
        self._writes().claim(steps, "learned")
        return finish(steps)

    def _update_steps(
        self,
        X: Any,
        y: Any,
        task: str | int,
        keep: Keep,
        validation_fraction: float,
        callbacks: Sequence[Callback],
        warns: bool,
    ) -> Generator[None, None, tuple[Update, str | None]]:
        name = known_task(self.learner_.state, task).name
        learner = self._next_learner(self.learner_.info(name).examples)
        rows, y, _ = checked_rows(self, X, y, like=self._plan.first.image)
        y = label_array(y)
        self._labels.with_labels(y)  # of another kind than before: refused
        classes = self.labels_of(name)
        for label in np.unique(y).tolist():
            if label not in classes:
                raise unknown_label(label, name, classes)
        x, numbers = torch.from_numpy(self._standardizer(rows)), torch.from_numpy(self._labels.numbers(y))
        trial = yield from learner.try_update(x, numbers, name, keep, validation_fraction, callbacks)
        after = self._fork()
        learner.commit(trial.state)
        after._novelty = self._novelty_of_update(learner, trial.task, x, numbers)
        after.learner_ = learner
        both = [(model.predict(X, name), model.predict(X)) for model in (self, after)]
        result, doubt = trial.judged(y, *both), None
        if result.kept:
            doubt = trial.problem(y, *both) if warns else None
            after.learner_ = learner = learner.fork()
            learner.commit(trial.finished())
            after._novelty = self._novelty_of_update(learner, trial.task, x, numbers)
            after._parameters = self._plain_parameters(learner)
            self._commit(after)
        return result, doubt

    def _novelty_of_update(
        self, learner: Learner, task: int, x: torch.Tensor, numbers: torch.Tensor
    ) -> Novelty | None:
        """What is new beside more rows of a task."""
        if self._novelty is None:
            return None
        novelty = self._novelty.fork(gaussians(learner), self._novelty.rate)
        classes = torch.tensor(learner.tasks[task].classes)
        local = torch.searchsorted(classes, numbers).to(learner.device)
        novelty.calibrate_update(task, zip(features_of(learner, x), torch.split(local, ROWS_PER_PASS), strict=True))
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
        finish(steps).warn_of_poor_fit()
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
    ) -> Generator[None, None, LearnerState]:
        anew = anew or not self._has_tasks()  # after the claim: another thread may have learned the first task
        other = self._fork()  # scikit-learn writes to it what columns there are, before anything is learned
        rows = TaskRows(other, X, y, anew=anew)
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
        has_class_scores(learner)
        weights = rows.weights(self.class_weight, sample_weight)
        learned = yield from learner.learn_steps(x, numbers, task=task, weights=weights, callbacks=callbacks)
        novelty = None
        if not has_class_scores(learner):
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

    # Streams

    @property
    def stream_log_(self) -> list[dict[str, Any]]:
        """Every decision about the stream with its reason, the last 1,000 of them."""
        return [dict(line) for line in self._streamed().log]

    @property
    def stream_rows_(self) -> int:
        """How many rows the stream has brought; 0 before the first."""
        return self._stream.rows if "_stream" in vars(self) else 0

    def _streamed(self) -> Stream:
        if "_stream" not in vars(self):
            raise NoStream("no stream has been seen yet; make the classifier with stream=True, then partial_fit.")
        return self._stream

    def _has_tasks(self) -> bool:
        return hasattr(self, "learner_")

    def _check_tasks(self, doing: str) -> None:
        check_is_fitted(self)
        if not self._has_tasks():
            raise InputError(
                f"the stream has brought {self._stream.rows:,} rows and no task has been learned yet, so nothing can "
                f"be {doing}; go on with partial_fit, or call finish() to learn what is in the buffer."
            )

    # Taking batches

    @pinned()
    def _take(self, X: Any, y: Any, classes: Any) -> None:
        """A batch of any size, all of it or, if anything goes wrong, nothing."""
        options = StreamOptions.of(self.stream)
        assert options is not None
        other = self._fork()
        X, y = other._stream_rows(X, y)
        book = getattr(self, "_labels", None) or LabelBook()
        if classes is not None:
            book = book.with_labels(label_array(classes, "classes"))
        other._labels = book = book.with_labels(y)
        other.classes_ = book.classes
        if "_stream" not in vars(other):
            seed = self.random_state if isinstance(self.random_state, (int, np.integer)) else 0
            other._stream = Stream(options, X.shape[1], int(seed), watching=self._has_tasks())
        stream = other._stream.fork()
        stream.options = options
        StreamController(other, stream).take(X, book.numbers(y))
        self._commit(other)

    def _stream_rows(self, X: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Checked rows and labels; columns must be those of the first batch."""
        if y is None:
            raise InputError("y is missing; partial_fit learns from labels. Keep rows until theirs have come.")
        X = plain("X", X)
        if getattr(X, "shape", (len(X),))[0] == 0:
            raise InputError("the batch is empty; give at least one row, or leave the call out.")
        first = "_stream" not in vars(self) and not self._has_tasks()
        X, y, image = checked_rows(self, X, y, reset=first)
        if image is not None:
            raise InputError("X holds images, and a stream takes rows of numbers; give N×features.")
        y = label_array(y)
        check_classification_targets(y)
        return (X.toarray() if hasattr(X, "toarray") else X), y

    def _by_tasks(self, x: NDArray[Any], *, novelty: bool = False) -> Prediction | None:
        if not self._has_tasks():
            return None
        return self._by_learner(torch.from_numpy(self._standardizer(x)), None, novelty=novelty)

    def finish(self) -> Self:
        """Settle what the buffer holds now instead of when it is full: at the end of a stream, say."""
        self._writes().run("learned", self._finish)
        return self

    @pinned()
    def _finish(self) -> None:
        other, stream = self._fork(), self._streamed().fork()
        segment = stream.rest("the stream was said to be finished")
        if segment is not None:
            StreamController(other, stream).settle(segment)
            self._commit(other)

    def last_decision(self) -> dict[str, Any]:
        """The one that `undo` would take back."""
        log = self._streamed().log
        undone = {line["undone"] for line in log if line["decision"] == "undo"}
        kinds = ("new task", "old task")
        last = next((e for e in reversed(log) if e["decision"] in kinds and e["number"] not in undone), None)
        if last is None:
            raise InputError("the stream's log has no decision to undo.")
        return dict(last)

    def undo(self) -> Self:
        """Take back the last decision about rows. A task that was learned is forgotten, its rows are gone; rows
        counted to an old task are counted no more. Of a task that was forgotten before nothing is left to take back:
        that is noted, and the next `undo` goes on before it. What more rows have changed is not undone here."""
        self._writes().run("undone", self._undo)
        return self

    @pinned()
    def _undo(self) -> None:
        other, last = self._fork(), self.last_decision()
        kept = vars(other).get("extra_")
        StreamController(other, self._streamed().fork()).undo(last)
        self._commit(other, **({} if vars(other).get("extra_") is kept else {"extra_": vars(other)["extra_"]}))

    def _forget_all(self) -> None:
        """As before the first task; labels and the online part stay."""
        for name in ("learner_", "tasks_", "_standardizer", "_novelty", "_parameters"):
            del self.__dict__[name]

    # Predicting

    def _inputs(self, X: Any) -> Tensor:
        check_is_fitted(self)
        rows, _, _ = checked_rows(self, X, like=self._plan.first.image)
        return torch.from_numpy(self._standardizer(rows))

    def _by_learner(
        self, inputs: Tensor, task: Any, posterior_samples: int = 0, *, novelty: bool = False
    ) -> Prediction:
        """The learner's prediction for prepared inputs, averaged over tasks where none is given."""
        rate = self._parameters["false_alarm_rate"] if novelty and self._novelty is None else None
        found = self.learner_.predict(
            inputs,
            plain_task(task),
            marginal=True,
            posterior_samples=posterior_samples,
            seed=self.learner_.seed,
            novelty_rate=rate,
        )
        return found.with_novelty(self._gaussian_novelty(inputs)) if novelty and self._novelty is not None else found

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
    def prediction(
        self, X: Any, task: Any = None, posterior_samples: int = 0, *, novelty: bool = True
    ) -> Prediction[NDArray[Any]]:
        """Labels, probabilities, tasks, entropy and novelty of each row at once, with labels and tasks by name.

        Parameters
        ----------
        X
            Rows as for `learn`.
        task
            A task's name or number, or one per row; None infers it.
        posterior_samples
            Average over so many samples of the weights, which adds the mutual information.
        novelty
            Whether to compute `novelty`, which takes longest.
        """
        if self._asked_of_stream(task):
            p, found = self._mixed(X, novelty=novelty)
            return self._named(p, found, entropy(p))
        found = self._by_learner(self._inputs(X), task, posterior_samples, novelty=novelty)
        p = self._class_probabilities(found)
        return self._named(p, found, self._entropy(found, p, task))

    def _named(
        self, p: NDArray[np.float64], found: Prediction | None, total: NDArray[np.float64]
    ) -> Prediction[NDArray[Any]]:
        """A prediction by the names of labels and tasks; `found` is the learner's, if there is a task."""
        best, classes = p.argmax(1), tuple(self.classes_)
        if found is None:
            task, none = np.full(len(p), NO_TASK, dtype=object), np.zeros((len(p), 0))
            return Prediction(self.classes_[best], p, classes, task, none, total, novelty=np.zeros(len(p)))
        task = np.array(self.tasks_)[self._task_of_label(found, best)]
        spread, novelty = found.mutual_information, found.novelty
        return Prediction(
            self.classes_[best],
            p,
            classes,
            task,
            found.task_probabilities.cpu().numpy(),
            total,
            None if spread is None else spread.cpu().numpy(),
            None if novelty is None else novelty.clamp(max=MOST_NOVEL).cpu().numpy(),
        )

    @asks
    def predict_proba(self, X: Any, task: Any = None) -> NDArray[np.float64]:
        """P(c|x) for every label of `classes_`; 0 for those that a given task does not have. In a stream, of tasks
        and the online part (docs/streams.md)."""
        if self._asked_of_stream(task):
            return self._mixed(X)[0]
        return self._class_probabilities(self._by_learner(self._inputs(X), task))

    @asks
    def predict(self, X: Any, task: Any = None) -> NDArray[Any]:
        """The likeliest label of each row, as `predict_proba` would have it.

        Tasks are asked in the order of P(t|x), and only until what is left of it cannot change the answer any more:
        one pass through one task's network for all rows whose task is clear.
        """
        if self._asked_of_stream(task):
            likeliest = self._mixed(X)[0].argmax(1)
        elif task is not None or has_class_scores(self.learner_):
            likeliest = self.predict_proba(X, task).argmax(1)
        else:
            x = self._inputs(X).to(self.learner_.device)
            parts = [self._best_columns(rows) for rows in torch.split(x, ROWS_PER_PASS)]
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
    def uncertainty(self, X: Any, task: Any = None, posterior_samples: int = 0) -> NDArray[np.float64]:
        """How unsure each answer is, in nats: the entropy of `predict_proba`; with `posterior_samples`, the mutual
        information over so many of them, the part that comes from not knowing the weights (and the task)."""
        if not posterior_samples and self._asked_of_stream(task):
            return entropy(self._mixed(X)[0])
        prediction = self._by_learner(self._inputs(X), task, posterior_samples)
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
            found = self.learner_.novelty(inputs, self._parameters["false_alarm_rate"])
        else:
            found = self._gaussian_novelty(inputs)
        return found.clamp(max=MOST_NOVEL).cpu().numpy()

    def _gaussian_novelty(self, inputs: Tensor) -> Tensor:
        assert self._novelty is not None
        return self._novelty(features_of(self.learner_, inputs))

    @asks
    def is_novel(self, X: Any) -> NDArray[np.bool_]:
        """Whether a row looks like nothing learnt, at the false-alarm rate stated when it was."""
        return self.novelty(X) > 1

    def _asked_of_stream(self, task: Any) -> bool:
        check_is_fitted(self)
        if "_stream" not in vars(self):
            return False
        if task is not None:
            self._check_tasks("asked of a task")
        return task is None

    def _mixed(self, X: Any, *, novelty: bool = False) -> tuple[NDArray[np.float64], Prediction | None]:
        """P(c|x) of all labels of `classes_`, and what the tasks alone predict."""
        X, _, _ = checked_rows(self, X)
        x = X.toarray() if hasattr(X, "toarray") else X
        found = self._by_tasks(x, novelty=novelty)
        told, stream = None if found is None else task_answers(self, found), self._stream
        mixed = stream.recent.mixed(stream.online.probabilities(x), told, len(self._labels.names))
        out = np.zeros((len(x), len(self.classes_)))
        columns = self._labels.columns()
        out[:, columns[columns >= 0]] = mixed[:, columns >= 0]
        return out / np.maximum(out.sum(1, keepdims=True), 1e-300), found

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
