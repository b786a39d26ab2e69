"""The learner: any continual-learning method with named tasks, checks, predictions and a model folder.

What has been learned is one `LearnerState`, which never changes. A task is learned, updated or deleted on a fork of
the method; one assignment then replaces the state. So an interrupt leaves the learner as before or as after, and a
prediction in another thread keeps the state it began with.
"""

from __future__ import annotations

import copy
import operator
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Self, overload

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from ibpwf import __version__
from ibpwf.backbones.backbone import word_pieces_of
from ibpwf.concurrency import SingleWriter, finish
from ibpwf.data.rows import Batches, IndexedRows, TaskRows, rows_of
from ibpwf.distributed import Distributed
from ibpwf.errors import InputError, StoreError
from ibpwf.factors.model import FactorModel
from ibpwf.inference.prediction import Prediction
from ibpwf.learner.building import build_ibpwf, read_method
from ibpwf.learner.state import Data, LearnerState, TaskChoice, TaskInfo
from ibpwf.learner.update import VALIDATION_FRACTION, Keep, Trial, Update, class_numbers, known_task, try_version
from ibpwf.linear import CLEARLY
from ibpwf.method import IBPWF, Parts
from ibpwf.packing import packing_of
from ibpwf.parts import FrozenSettings
from ibpwf.settings import Settings
from ibpwf.storage.checkpoint_folder import (
    Identity,
    check_place,
    digest_of,
    discard,
    discard_finished,
    has_checkpoint,
)
from ibpwf.storage.folder import OpenedFolder, lock_folder, open_folder, parts_at, save_folder
from ibpwf.storage.model_folder import KIND, SavedParts, face_of, storable, whole_folder
from ibpwf.storage.model_record import read_content
from ibpwf.storage.scratch import ScratchFile
from ibpwf.storage.tensor_checks import BOUNDED, FINITE, NOT_NAN, buffer_rules, check_parts
from ibpwf.torch_state import pinned, pinned_steps
from ibpwf.training.callbacks import Callback, TaskEnd
from ibpwf.training.fitting import check_fits
from ibpwf.training.loop import Training
from ibpwf.training.method import Forgotten, Method, TaskData

M = TypeVar("M", bound=Method, default=IBPWF)

Examples = Data | Batches | torch.utils.data.Dataset[Any] | ScratchFile


class Learner(Generic[M]):
    """Learns one task after another without forgetting, and infers the task of an input.

    The same seed on the same machine gives the same bits, whether or not the learner was saved and loaded between
    tasks.

    Parameters
    ----------
    net
        A network, which is factorized by the settings' `alpha`, `max_factors`, `heads`, `strength_std` and `init`;
        the result of `ibpwf.factorize`, whose own factorization the settings must not contradict; or another
        `Method`, which brings its own network and settings.
    settings
        What tasks are learned with; `learner.settings = learner.settings.replace(epochs=20)` changes it for the next.
    seed
        Every random number depends on it.
    device
        "auto" takes the GPU where there is one.
    optimizer
        A function that makes an optimizer of parameters, in the place of the one that the settings name.
    distributed
        "auto" trains together with the other processes that torchrun has started.

    Examples
    --------
    >>> learner = Learner(net, Settings(epochs=20))
    >>> learner.learn(x, y, task="night")
    >>> learner.predict(x).labels
    """

    @overload
    def __init__(
        self: Learner[IBPWF],
        net: nn.Module,
        settings: Settings | None = None,
        *,
        seed: int = 0,
        device: str | torch.device = "auto",
        optimizer: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer] | None = None,
        distributed: Distributed = "off",
    ) -> None: ...

    @overload
    def __init__(self, net: M, *, seed: int = 0) -> None: ...

    @pinned()
    def __init__(
        self,
        net: nn.Module | Method,
        settings: Settings | None = None,
        *,
        seed: int = 0,
        device: str | torch.device = "auto",
        optimizer: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer] | None = None,
        distributed: Distributed = "off",
    ) -> None:
        parts = Parts(optimizer)
        if not isinstance(net, Method):
            net = build_ibpwf(net, settings, parts, device, distributed)
        elif settings is not None or device != "auto" or distributed != "off" or parts.names():
            raise InputError(
                f"net is the method '{net.name}', which has its own settings, device and parts; give only seed with "
                "it."
            )
        self._state = LearnerState(net)
        self.seed = _whole("seed", seed)
        self.extra: dict[str, Any] = {}
        self.owner: str | None = None  # what it is part of and must be used instead, such as a classifier
        self._saved = SavedParts()
        self._writer = SingleWriter()

    def __repr__(self) -> str:
        names = ", ".join(task.name for task in self.tasks[:6]) + (", …" if len(self.tasks) > 6 else "")
        tasks = f"{len(self.tasks)} task{'s' * (len(self.tasks) != 1)}" + (f": {names}" if names else "")
        return f"{type(self).__name__}({self.method.name}, {tasks}, seed={self.seed}, device='{self.device}')"

    @property
    def state(self) -> LearnerState:
        """All that has been learned; it never changes, the next task replaces it."""
        return self._state

    @property
    def method(self) -> M:
        """As it is now; the next task makes another."""
        method: M = self._state.method  # type: ignore[assignment]
        return method

    @property
    def model(self) -> FactorModel:
        """The factorized network with every task so far; the next task makes another."""
        return self._state.method.factor_model

    @property
    def tasks(self) -> tuple[TaskInfo, ...]:
        return self._state.tasks

    @property
    def older(self) -> tuple[TaskInfo, ...]:
        """Older versions of tasks, by the names they can be asked for with (see `update`)."""
        return self._state.older

    @property
    def history(self) -> tuple[dict[str, Any], ...]:
        """What was learned, updated and deleted, in order."""
        return self._state.history

    @property
    def device(self) -> torch.device:
        return self._state.method.device

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """Of one example; None before the first task."""
        return self._state.input_shape

    @property
    def settings(self) -> Settings:
        """What the next task is learned with; of another method than IBP-WF, that method's own settings."""
        settings: Settings = self._state.method.settings
        return settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self._check_owner("changed")
        self._writer.run("changed", lambda: self._change_settings(settings))

    @pinned()
    def _change_settings(self, settings: Settings) -> None:
        state = self._state
        self._state = replace(state, method=state.method.with_settings(settings))

    # Copies, and who may change it

    def fork(self) -> Self:
        """A learner that knows the same and goes on by itself; they share every tensor."""
        other = copy.copy(self)
        other.owner, other._writer = None, SingleWriter()
        return other

    def fast(self) -> Self:
        """A learner that knows the same and predicts faster, slightly less accurately: a router asks the experts of
        likely tasks only, without test-time augmentation. docs/class-incremental.md says what that costs."""
        other = self.fork()
        other.settings = other.settings.replace(**other.settings.faster)
        return other

    def owned_by(self, owner: str, writer: SingleWriter) -> None:
        """Belong to an object that changes it; a change of either excludes one of the other."""
        self.owner, self._writer = owner, writer

    def _check_owner(self, doing: str) -> None:
        if self.owner is not None:
            raise InputError(
                f"this learner is inside a {self.owner}, which would not know what it has {doing}; use the "
                f"{self.owner}'s own method, or go on with a copy: learner.fork()."
            )

    def commit(self, state: LearnerState) -> None:
        """Replace the state, by one of a `Trial`, say."""
        self._check_owner("changed")
        self._writer.run("changed", lambda: setattr(self, "_state", state))

    # Learning

    def learn(
        self,
        x: Examples,
        y: Data | None = None,
        task: str | None = None,
        *,
        weights: Data | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> TaskInfo:
        """Learn one task. Earlier tasks do not change; if anything fails, or is interrupted, nothing does.

        Parameters
        ----------
        x, y
            Examples and integer labels, a Dataset of pairs, or anything that gives batches (x, y) anew whenever it is
            iterated, such as a DataLoader. Examples are dicts where the network's inputs have names; batches and
            items may then hold "labels" among them.
        task
            A name of its own; "task-1", "task-2", … if none is given.
        weights
            One for each example of x and y: how often it comes beside others. 1 where none are given.
        callbacks
            They see every step, epoch and task; a `Checkpoint` keeps a long task on disk while it is learned.
        """
        state = finish(self.learn_steps(x, y, task, weights=weights, callbacks=callbacks))
        state.warn_of_poor_fit()
        return state.tasks[-1]

    def learn_steps(
        self,
        x: Examples,
        y: Data | None = None,
        task: str | None = None,
        *,
        weights: Data | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Generator[None, None, LearnerState]:
        """`learn`, pausing after every optimization step; the task counts once the last step is done.

        Until then, or if it is closed early, the learner is as before: it predicts, in other threads too, and rejects
        a second change. The result is the state with the task, its last; another thread may have changed the learner
        since.
        """
        self._check_owner("learned")
        steps = pinned_steps(self._learn_steps(x, y, task, weights, callbacks))
        self._writer.claim(steps, "learned")
        return steps

    def _learn_steps(
        self, x: Examples, y: Data | None, task: str | None, weights: Data | None, callbacks: Sequence[Callback]
    ) -> Generator[None, None, LearnerState]:
        started = time.perf_counter()
        state, name = self._state, self._task_name(task)
        state.method.check_complete()
        given = self._rows(x, y)
        if weights is not None:
            given = given._replace(rows=given.rows.with_weights(weights))
        if len(given.classes) < state.method.least_classes:
            raise InputError(
                f"task '{name}' has one class only ({given.classes[0]}); this method needs at least two classes."
            )
        method, data, shape = self._begun(name, given)
        training = Training(method, data, callbacks)
        training.identity = lambda: self._identity(data)
        yield from training.run()
        with training.telling_failure():
            if not method.group.alone:
                method.group.check_same(digest_of(*method.state()), f"what was learned of task '{name}'")
            info = TaskInfo(
                name,
                data.index,
                data.classes,
                len(data.rows),
                training_accuracy=training.accuracy,
                held_out=method.outcome,
                further_factors=dict(method.further_factors) or None,
            )
            use, seconds = method.use(info.number), time.perf_counter() - started
            rows = data.rows
            comparison, measured = None, training.accuracy if method.trains_what_it_keeps else 0.0
            if method.outcome is None and measured is not None and measured < 100 - CLEARLY:
                asked = method.fork()  # the weights that it composes to predict go with it
                comparison = method.likelihood.compared_on_own_rows(
                    rows, lambda x: asked.logits(x, info.number), data.generator("linear")
                )
            self._state = learned = state.with_task(
                method, info, data.serial, shape, method.likelihood.majority(rows), comparison
            )
        training.callbacks.task_end(TaskEnd(name, info.number, info.examples, training.accuracy, seconds, use))
        return learned

    def learn_adapter(
        self,
        path: str | Path,
        x: Examples,
        y: Data | None = None,
        task: str | None = None,
        *,
        classes: Sequence[int] | None = None,
    ) -> TaskInfo:
        """Make a LoRA adapter a task like any other, without training it further.

        The model must have been factorized with base="frozen", on the adapter's own base.

        Parameters
        ----------
        path
            A folder that peft has saved.
        x, y, task
            As for `learn`: examples of the task, for task inference; `training_accuracy` is the adapter's accuracy on
            them. The labels of y in rising order are the adapter's outputs.
        classes
            The labels of the adapter's first outputs, where it has more outputs than y has labels.
        """
        self._check_owner("learned")
        return self._writer.run("learned", lambda: self._learn_adapter(path, x, y, task, classes))

    @pinned()
    def _learn_adapter(
        self, path: str | Path, x: Examples, y: Data | None, task: str | None, classes: Sequence[int] | None
    ) -> TaskInfo:
        state, name = self._state, self._task_name(task)
        state.method.check_complete()
        given = self._rows(x, y)
        method, data, shape = self._begun(name, given)
        method.learn_adapter(path, data, classes)
        answers = ((method.logits(inputs, data.index).argmax(1), labels) for inputs, labels in data.rows.in_order())
        right = sum(int((answer == labels).sum()) for answer, labels in answers)
        rows = data.rows
        info = TaskInfo(name, data.index, data.classes, len(rows), training_accuracy=100 * right / len(rows))
        self._state = state.with_task(method, info, data.serial, shape, method.likelihood.majority(rows))
        return info

    def update(
        self,
        x: Examples,
        y: Data | None = None,
        *,
        task: int | str,
        keep: Keep = "better",
        validation_fraction: float = VALIDATION_FRACTION,
        callbacks: Sequence[Callback] = (),
    ) -> Update:
        """Update a task with more rows of its classes, some of which may have none.

        Task inference takes them as if they had come with the task's first rows. The task's expert is trained on as a
        new version, which `task="name"` and task inference use from then on. The old one stays bit-identical:
        `task="name@1"` asks for it, `forget("name@1")` drops it. A kept version that is clearly worse than the one
        before, or than a linear model, is a warning. If anything fails, or is interrupted, the learner is as before.

        Parameters
        ----------
        x, y
            As for `learn`. Everything is read into memory.
        task
            The task's name or number.
        keep
            "better" keeps the new version if accuracy on the validation rows is not lower, with the task known and
            inferred; "always" keeps it in any case; "never" only returns what would change.
        validation_fraction
            Fraction of the rows that is not trained on. Once a version is kept they go to task inference as well.
        callbacks
            As for `learn`.
        """
        self._check_owner("learned")
        steps = pinned_steps(self._update_steps(x, y, task, keep, validation_fraction, callbacks))
        self._writer.claim(steps, "learned")
        result, problem = finish(steps)
        if problem is not None:
            warnings.warn(problem, stacklevel=2)
        return result

    def _update_steps(
        self,
        x: Examples,
        y: Data | None,
        task: int | str,
        keep: Keep,
        validation_fraction: float,
        callbacks: Sequence[Callback],
    ) -> Generator[None, None, tuple[Update, str | None]]:
        """The result, and what to warn of."""
        state = self._state
        trial = yield from self.try_update(x, y, task, keep, validation_fraction, callbacks)
        seen = trial.labels, trial.answers(state), trial.answers(trial.state)
        result = trial.judged(*seen)
        if not result.kept:
            return result, None
        problem = trial.problem(*seen)
        self._state = trial.finished()
        return result, problem

    def try_update(
        self,
        x: Examples,
        y: Data | None,
        task: int | str,
        keep: Keep,
        validation_fraction: float,
        callbacks: Sequence[Callback] = (),
    ) -> Generator[None, None, Trial]:
        """Train a new version of a task, pausing after every step; it is not the learner's until it is committed."""
        state = self._state
        state.method.check_complete()
        info = known_task(state, task)
        given = self._rows(x, y)
        numbers = class_numbers(given.classes, info)
        inputs, labels = given.rows.tensors()
        rows = IndexedRows(inputs, torch.tensor(numbers, device=labels.device)[labels])
        return (
            yield from try_version(state, info, rows, keep, validation_fraction, self.seed, self._identity, callbacks)
        )

    def _task_name(self, task: str | None) -> str:
        name = task if task is not None else f"task-{len(self.tasks) + 1}"
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"task is {name!r}; give it a name, such as 'left camera'.")
        if name in self._state.names:
            raise InputError(f"a task named '{name}' has been learnt already; choose another name.")
        return name

    def _rows(self, x: Any, y: Data | None) -> TaskRows:
        """What was given, as the task's rows."""
        state = self._state
        packing, pieces = packing_of(state.method.template), word_pieces_of(state.method.template)
        finding = state.method.find_packing if state.input_shape is None else None
        return rows_of(x, y, state.method.likelihood, self.device, state.input_shape, packing, finding, pieces)

    def _begun(self, name: str, given: TaskRows) -> tuple[Method, TaskData, tuple[int, ...]]:
        """A fork of the method to learn a task with, the task's data, and the shape of an example."""
        state = self._state
        first = next(given.rows.in_order(1))[0]
        method = state.method.fork()
        if state.input_shape is None:
            if given.packing is not None:
                method.take_packing(given.packing)
            check_fits(method, first)
        number = len(state.tasks)
        serial = state.method.next_serial(number)
        data = TaskData(name, number, given.classes, seed=self.seed, serial=serial, rows=given.rows)
        return method, data, tuple(first.shape[1:])

    def _identity(self, data: TaskData) -> Identity:
        """What a checkpoint of this task belongs to: the task, its data, and the model as it is now."""
        method = self._state.method
        method.check_resumable()
        state, parts = method.state()
        settings = method.settings  # some may differ from task to task
        chosen = settings.to_json() if isinstance(settings, FrozenSettings) else None
        model = digest_of([method.configuration(), self.seed, state, chosen], {**method.fixed_files(), **parts})
        rows = digest_of([data.name, list(data.classes), data.rows.digest()], {})
        return Identity(task=data.name, serial=data.serial, data=rows, model=model)

    # Tasks

    def task_number(self, task: int | str) -> int:
        """A task's number from its name or number."""
        return self._state.task_number(task)

    def names(self) -> list[str]:
        """The names by which tasks and their versions can be asked for."""
        return list(self._state.names)

    def info(self, task: int | str) -> TaskInfo:
        """The record of a task, or of an older version."""
        return self._state.info(task)

    def note_accuracy(self, task: int | str, accuracy: float) -> None:
        """Keep a task's accuracy (per cent, on data of your choice) with the model, for `ibpwf inspect`."""
        if not (isinstance(accuracy, (int, float, np.number)) and 0 <= float(accuracy) <= 100):
            raise InputError(f"accuracy is {accuracy!r}; give per cent, from 0 to 100.")
        self._writer.run("noted", lambda: self._note_accuracy(task, float(accuracy)))

    def _note_accuracy(self, task: int | str, accuracy: float) -> None:
        holder = self._writer.holder
        if holder is not None and getattr(holder, "learner_", self) is not self:
            raise InputError(
                f"this learner is no longer the one inside its {self.owner}, which has changed since, so what is "
                "noted here would be lost; use its present learner_, or go on with a copy: learner.fork()."
            )
        state = self._state
        found = state.info(task)
        measured = replace(found, accuracy=accuracy)
        self._state = state.numbered(measured if one is found else one for one in (*state.tasks, *state.older))

    def forget(self, task: int | str) -> Forgotten:
        """Delete a task with all its versions, or an older version ("name@1"), and every factor that nothing else
        uses. All other tasks stay bit-identical.

        Later tasks move up by one number, names stay. docs/model-format.md says what is kept and why.
        """
        self._check_owner("forgotten")
        return self._writer.run("forgotten", lambda: self._forget(task))

    @pinned()
    def _forget(self, task: int | str) -> Forgotten:
        state = self._state
        if not state.tasks:
            raise InputError("nothing has been learnt yet, so there is no task to forget.")
        number = state.task_number(task)
        state.check_forgettable(task)
        method = state.method.fork()
        left, gone = state.without(number)
        forgotten = method.forget(number)
        events = [{"event": "forgot", "serial": state.method.serial(one), "version": __version__} for one in gone]
        if left.tasks:
            self._state = replace(left, method=method, history=(*state.history, *events))
        else:
            self._state = LearnerState(method)  # as new
        return forgotten

    # Predicting

    @pinned()
    def predict(
        self,
        x: Data,
        task: TaskChoice = None,
        *,
        marginal: bool = False,
        posterior_samples: int = 0,
        seed: int = 0,
        novelty_rate: float | None = None,
    ) -> Prediction:
        """Predict labels with probabilities, tasks and entropy.

        Parameters
        ----------
        x
            Examples, as for `learn`.
        task
            A task's name or number, or one per row; None infers it.
        marginal
            Average the predictions of all tasks, weighted by P(t|φ(x)), instead of taking the likeliest task's.
        posterior_samples
            Average over so many samples of the weights, which adds the mutual information.
        seed
            Of the posterior samples.
        novelty_rate
            Adds `novelty`, as `novelty(x, novelty_rate)` gives it, without computing class scores twice.
        """
        posterior_samples, seed = _whole("posterior_samples", posterior_samples), _whole("seed", seed)
        state = self._state
        inputs = state.inputs(x)
        rows = state.task_rows(task, len(inputs))
        how: dict[str, Any] = {"marginal": marginal, "posterior_samples": posterior_samples, "seed": seed}
        if novelty_rate is not None:
            return state.method.predict_with_novelty(inputs, rows, novelty_rate, **how)
        return state.method.predict(inputs, rows, **how)

    @pinned()
    def logits(self, x: Data, task: int | str) -> Tensor:
        """The raw outputs for one task, a column per class of the task."""
        state = self._state
        return state.method.logits(state.inputs(x), state.task_number(task))

    @pinned()
    def novelty(self, x: Data, false_alarm_rate: float = 0.01) -> Tensor:
        """The novelty score of each input, by router and experts (inference="router", validation_fraction above 0).

        Above 1, an input is less like any task than all but `false_alarm_rate` of the tasks' own inputs.
        """
        state = self._state
        return state.method.novelty(state.inputs(x), false_alarm_rate)

    @pinned()
    def merge(self, task: int | str) -> nn.Module:
        """One task as an ordinary network of the original class, its outputs in the order of the task's classes.

        Its state dict loads into your own network, unless `heads` is "per-task" and the task has another number of
        classes (see `FactorModel.merge`).
        """
        state = self._state
        state.check_learned()
        return state.method.merge(state.task_number(task))

    # Saving and loading

    def save(self, path: str | Path, *, extra: Mapping[str, Any] | None = None, overwrite: bool = False) -> None:
        """Write the model folder; files of older tasks that have not changed are left as they are.

        Parameters
        ----------
        path
            The folder.
        extra
            JSON of your own (class names, how inputs are prepared) to keep with the model; a loaded learner has it as
            `extra`, and keeps it in later saves that give none.
        overwrite
            Replace another model, one that this learner was neither loaded from nor saved to.
        """
        self._check_owner("saved")
        self.store(path, extra=extra, overwrite=overwrite)

    @pinned()
    def store(
        self,
        path: str | Path,
        *,
        extra: Mapping[str, Any] | None = None,
        face: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        """`save`, with the content of the object that the learner is part of."""
        with lock_folder(path):  # and only then look at the state: a save that waits must not undo a later one
            known, method = self._state, self._state.method
            state, files = method.state()
            files = {**method.fixed_files(), **files}
            content = {
                "method": method.name,
                "configuration": method.configuration(),
                "seed": self.seed,
                "input_shape": None if known.input_shape is None else list(known.input_shape),
                "tasks": [info.to_json() for info in known.as_learned()],
                "state": state,
                "history": known.history,
                "face": None if face is None else dict(face),
                "extra": self.extra if extra is None else dict(extra),
            }
            check_place(path)
            if not overwrite:
                self._saved.check_own(path)
            unchanged = self._saved.unchanged(path, files) if method.locks else {}
            fresh = {name: part for name, part in files.items() if name not in unchanged}
            with storable(path):
                check_parts(fresh, *_rules(method, own=True))
            gone = parts_at(path) - {*files} if has_checkpoint(path) else set()
            deletes_task = any(name.startswith("task-") for name in gone)

            def announce(sha256: str) -> None:
                self._saved.announce(path, sha256)
                if deletes_task:  # its prior may be the posterior of the deleted task, so it cannot be resumed
                    discard(path)

            opened = save_folder(
                path, kind=KIND, content=content, files=files, unchanged=unchanged, announce=announce
            )
            discard_finished(path, method.next_serial(len(known.tasks)))
        self._saved.remember(opened, files if method.locks else {})
        if extra is not None:
            self.extra = opened.content["extra"]

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        net: nn.Module | None = None,
        device: str | torch.device = "auto",
        distributed: Distributed = "off",
        **parts: Any,
    ) -> Learner[Any]:
        """Read a model folder of any method; one from another package is found if that has registered it.

        Parameters
        ----------
        path
            The model folder.
        net
            A network of your own class must be given again (its weights do not matter), and so must the pretrained
            network of a frozen base. Networks of `ibpwf.models` and `nn.Sequential` are rebuilt from the folder.
        device, distributed
            As for a new learner.
        parts
            Parts of your own that are not registered must be given again: parts of the settings by their names, such
            as `inference`, to predict; an `optimizer` to learn.
        """
        opened = open_folder(path, kind=KIND)
        with whole_folder(opened.path):
            if face_of(opened.content) is not None:
                raise StoreError(f"{path} holds a ContinualClassifier; read it with ibpwf.load(path).")
        return cls.restored(opened, net, device, distributed=distributed, **parts)

    @classmethod
    @pinned()
    def restored(
        cls, opened: OpenedFolder, net: nn.Module | None, device: str | torch.device = "auto", **parts: Any
    ) -> Learner[Any]:
        """The learner of an opened folder, whatever it is part of there."""
        method, files = read_method(opened, net, device, **parts)
        with whole_folder(opened.path):
            learner = Learner[Any](method, seed=read_content(opened).seed).restore(opened, files)
            if net is None and learner.input_shape is not None:
                method.check_input_shape(learner.input_shape)
            return learner

    def restore(self, opened: OpenedFolder, files: Mapping[str, Mapping[str, Tensor]] | None = None) -> Self:
        """Take up the state of an opened folder, whose `files` may have been read already."""
        content, method = read_content(opened), self._state.method
        files = opened.all_tensors() if files is None else files
        if not method.locks:  # a method that locks knows each of its tensors
            check_parts(files, *_rules(method))
        method.load_state(content.state, files)
        stored = [TaskInfo.from_json(task.model_dump()) for task in content.tasks]
        history = [event.model_dump() for event in content.history]
        shape = None if content.input_shape is None else tuple(content.input_shape)
        self._state = LearnerState(method, (), tuple(history), shape).numbered(method.by_number(stored))
        self._state.check_complete()
        self.extra = dict(content.extra)
        self._saved.remember(opened, {**method.fixed_files(), **method.state()[1]} if method.locks else {})
        return self


def _rules(method: Method, *, own: bool = False) -> tuple[dict[str, str], str]:
    """What the numbers of single tensors of a method must be, with `own` those that each task has of them too, and
    what all others must."""
    rules = {f"own/{name}": rule for name, rule in buffer_rules(method.template).items()} if own else {}
    rules |= {name: NOT_NAN for name, _ in method.template.named_buffers()}  # in the template itself
    return rules, BOUNDED if method.locks else FINITE


def _whole(field: str, value: int) -> int:
    """A whole number from 0, NumPy's included."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 63:
        raise InputError(f"{field} is {value!r}; give a whole number from 0.")
    return number
