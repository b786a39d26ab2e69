"""Any method as a learner: tasks in one after another, answers out, to disk and back."""

from __future__ import annotations

import copy
import operator
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from ibpwf import __version__, registry
from ibpwf.backbones.backbone import word_pieces_of
from ibpwf.concurrency import SingleWriter, finish
from ibpwf.data.rows import Batches, TaskRows, rows_of
from ibpwf.device import choose_device
from ibpwf.errors import InputError
from ibpwf.factors.packing import Packing, packing_of
from ibpwf.inference.prediction import Prediction
from ibpwf.learner_state import Data, Learned, TaskChoice, TaskInfo
from ibpwf.linear import CLEARLY
from ibpwf.parts import FrozenSettings
from ibpwf.storage.checkpoint_folder import (
    Identity,
    check_place,
    digest_of,
    discard,
    discard_finished,
    has_checkpoint,
)
from ibpwf.storage.folder import OpenedFolder, lock_folder, open_folder, parts_at, save_folder
from ibpwf.storage.model_folder import KIND, SavedParts, storable, whole_folder
from ibpwf.storage.model_record import read_content
from ibpwf.storage.network_json import NeedsParts
from ibpwf.storage.tensor_checks import BOUNDED, FINITE, NOT_NAN, at_most, buffer_rules, check_parts
from ibpwf.torch_state import pinned, pinned_steps
from ibpwf.training.callbacks import Callback, TaskEnd
from ibpwf.training.fitting import check_fits
from ibpwf.training.loop import Training
from ibpwf.training.method import Forgotten, Method, TaskData

T = TypeVar("T")


def _whole(field: str, value: int) -> int:
    """A whole number from 0, NumPy's included."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 63:
        raise InputError(f"{field} is {value!r}; give a whole number from 0.")
    return number


class TaskLearner:
    """Any method as a learner: checks what comes in, names tasks, trains, answers, stores."""

    def __init__(self, method: Method, *, seed: int = 0) -> None:
        self._learned = Learned(method)
        self.seed = _whole("seed", seed)
        self.extra: dict[str, Any] = {}
        self.owner: str | None = None  # what stands around it and must be asked instead, such as a classifier
        self._saved = SavedParts()
        self._writer = SingleWriter()

    def __repr__(self) -> str:
        names = ", ".join(task.name for task in self.tasks[:6]) + (", …" if len(self.tasks) > 6 else "")
        tasks = f"{len(self.tasks)} task{'s' * (len(self.tasks) != 1)}" + (f": {names}" if names else "")
        return f"{type(self).__name__}({self.method.name}, {tasks}, seed={self.seed}, device='{self.device}')"

    @property
    def method(self) -> Method:
        """As it is now; the next task makes another."""
        return self._learned.method

    @property
    def tasks(self) -> tuple[TaskInfo, ...]:
        return self._learned.tasks

    @property
    def older(self) -> tuple[TaskInfo, ...]:
        """Versions of tasks that have newer ones, by the names that they can be asked for with (see `update`)."""
        return self._learned.older

    @property
    def history(self) -> tuple[dict[str, Any], ...]:
        """What was learnt and forgotten, in order."""
        return self._learned.history

    @property
    def device(self) -> torch.device:
        return self.method.device

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """Of one example; None before the first task."""
        return self._learned.input_shape

    def fork(self) -> Self:
        """A learner that knows the same and goes on by itself; they share every tensor."""
        other = copy.copy(self)
        other.owner, other._writer = None, SingleWriter()
        return other

    def owned_by(self, owner: str, writer: SingleWriter) -> None:
        """Belong to an object that learns and forgets in its stead; a change of either excludes one of the other."""
        self.owner, self._writer = owner, writer

    def _check_owner(self, doing: str) -> None:
        if self.owner is not None:
            raise InputError(
                f"this learner is inside a {self.owner}, which would not know what it has {doing}; use the "
                f"{self.owner}'s own method, or go on with a copy: learner.fork()."
            )

    def learn(
        self,
        x: Data | Batches | torch.utils.data.Dataset[Any],
        y: Data | None = None,
        task: str | None = None,
        *,
        weights: Data | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> TaskInfo:
        """Learn one task from examples `x` and integer labels `y`, from a Dataset of pairs, or from anything that
        gives batches (x, y) anew whenever it is iterated, such as a DataLoader. Examples may be dicts where the
        network's inputs have names; batches and items may then hold "labels" among them.

        `weights`, one for each example of x and y, say how often it comes beside others: 1 where none are given.
        Earlier tasks do not change. If anything goes wrong, or is interrupted, the learner is as before. `callbacks`
        see every step, epoch and task; `Checkpoint` is one, and keeps a long task on disk while it is learned.
        """
        known = finish(self.learn_steps(x, y, task, weights=weights, callbacks=callbacks))
        known.warn_if_hardly_learned()
        return known.tasks[-1]

    def learn_steps(
        self,
        x: Data | Batches | torch.utils.data.Dataset[Any],
        y: Data | None = None,
        task: str | None = None,
        *,
        weights: Data | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Generator[None, None, Learned]:
        """`learn`, pausing after every optimization step; the task counts once the last step is done. Until then, and
        if it is broken off, the learner is as before; it answers whoever asks, in other threads too, and takes on no
        second task. The result is what is known with the task, which is its last; another thread may have changed
        the learner since."""
        self._check_owner("learned")
        steps = pinned_steps(self._steps(x, y, task, weights, callbacks))
        self._writer.claim(steps, "learned")
        return steps

    def _steps(
        self,
        x: Data | Batches | torch.utils.data.Dataset[Any],
        y: Data | None,
        task: str | None,
        weights: Data | None,
        callbacks: Sequence[Callback],
    ) -> Generator[None, None, Learned]:
        started = time.perf_counter()
        known = self._learned
        name = self._task_name(task)
        rows, classes, packing = self._rows(x, y)
        if weights is not None:
            rows = rows.with_weights(weights)
        if len(classes) < known.method.least_classes:
            raise InputError(
                f"task '{name}' has one class only ({classes[0]}); this method needs at least two to tell apart."
            )
        first = next(rows.in_order(1))[0]
        method = known.method.fork()
        if self.input_shape is None:
            self._take_packing(method, packing)
            check_fits(method, first)
        number = len(known.tasks)
        data = TaskData(name, number, classes, seed=self.seed, serial=known.method.next_serial(number), rows=rows)
        training = Training(method, data, callbacks)
        training.identity = lambda: self._identity(data)
        yield from training.run()
        with training.telling_failure():
            if not method.group.alone:
                method.group.check_same(digest_of(*method.state()), f"what was learned of task '{name}'")
            info = TaskInfo(
                name,
                number,
                classes,
                len(rows),
                training_accuracy=training.accuracy,
                held_out=method.outcome,
                further_factors=dict(method.further_factors) or None,
            )
            event = {"event": "learnt", "serial": data.serial, "version": __version__}
            use, seconds = method.use(number), time.perf_counter() - started
            guessing = method.likelihood.majority(rows)
            beside, measured = None, training.accuracy if method.trains_what_it_keeps else 0.0
            if method.outcome is None and measured is not None and measured < 100 - CLEARLY:
                asked = method.fork()  # the weights that it composes to answer go with it
                beside = method.likelihood.compared_on_own_rows(
                    rows, lambda x: asked.logits(x, number), data.generator("linear")
                )
            now = Learned(method, (), (*known.history, event), tuple(first.shape[1:]), guessing, beside)
            self._learned = learned = now.numbered([*known.tasks, info, *known.older])
        training.callbacks.task_end(TaskEnd(name, number, len(rows), training.accuracy, seconds, use))
        return learned

    def update(self, *rows: Any, **options: Any) -> Any:
        """More rows of a task that is known; only of IBP-WF (see `Learner.update`)."""
        raise InputError(
            f"method '{self.method.name}' keeps no versions of a task, so it cannot learn more rows of one; learn "
            "them as another task, or use IBP-WF."
        )

    def _task_name(self, task: str | None) -> str:
        name = task if task is not None else f"task-{len(self.tasks) + 1}"
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"task is {name!r}; give it a name, such as 'left camera'.")
        if name in self._learned.names:
            raise InputError(f"a task named '{name}' has been learnt already; choose another name.")
        return name

    def _find_packing(self, x: object, before: Packing | None) -> Packing | None:
        """How inputs of a first task become one tensor, where they have names."""
        return None

    def _take_packing(self, method: Method, packing: Packing | None) -> None:
        """Let a method that has learned nothing yet take inputs that are packed so."""

    def _rows(self, x: Any, y: Data | None) -> TaskRows:
        """What was given, as the task's rows."""
        packing, first = packing_of(self.method.template), self.input_shape is None
        finding, pieces = self._find_packing if first else None, word_pieces_of(self.method.template)
        return rows_of(x, y, self.method.likelihood, self.device, self.input_shape, packing, finding, pieces)

    def _identity(self, data: TaskData) -> Identity:
        """What a checkpoint of this task belongs to: the task, its data, and the model as it is now."""
        method = self.method
        method.check_resumable()
        configuration, fixed = self._configuration(method)
        state, parts = method.state()
        settings = getattr(method, "settings", None)  # some may differ from task to task
        chosen = settings.to_json() if isinstance(settings, FrozenSettings) else None
        model = digest_of([configuration, self.seed, state, chosen], {**fixed, **parts})
        rows = digest_of([data.name, list(data.classes), data.rows.digest()], {})
        return Identity(task=data.name, serial=data.serial, data=rows, model=model)

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
        known = self._learned
        found = known.info(task)
        measured = replace(found, accuracy=accuracy)
        self._learned = known.numbered(measured if one is found else one for one in (*known.tasks, *known.older))

    def forget(self, task: int | str) -> Forgotten:
        """Remove a task with all its versions, or an older version ("name@1"), and every factor that nothing else
        uses; all other tasks answer with the same bits.

        Later tasks move up by one number, names stay. docs/model-format.md says what is kept and why.
        """
        self._check_owner("forgotten")
        return self._writer.run("forgotten", lambda: self._forget(task))

    @pinned()
    def _forget(self, task: int | str) -> Forgotten:
        known = self._learned
        if not known.tasks:
            raise InputError("nothing has been learnt yet, so there is no task to forget.")
        number = known.task_number(task)
        known.check_forgettable(task)
        method = known.method.fork()
        left, gone = known.without(number)
        forgotten = method.forget(number)
        serials = map(known.method.serial, gone)
        events = [{"event": "forgot", "serial": serial, "version": __version__} for serial in serials]
        if left.tasks:
            self._learned = replace(left, method=method, history=(*known.history, *events))
        else:
            self._learned = Learned(method)  # as new
        return forgotten

    def task_number(self, task: int | str) -> int:
        """A task's number from its name or number."""
        return self._learned.task_number(task)

    def names(self) -> list[str]:
        """By which tasks and versions of them can be asked for."""
        return list(self._learned.names)

    def info(self, task: int | str) -> TaskInfo:
        """What is known of a task, or of an older version."""
        return self._learned.info(task)

    @pinned()
    def predict(
        self,
        x: Data,
        task: TaskChoice = None,
        *,
        marginal: bool = False,
        posterior_samples: int = 0,
        seed: int = 0,
    ) -> Prediction:
        """Answer inputs: for a task given by name or number (or one per row), or inferring it.

        `marginal=True` mixes all tasks' answers by P(t|φ(x)) instead of taking the likeliest task's.
        `posterior_samples=100` averages over that many posterior samples and adds the mutual information.
        """
        posterior_samples, seed = _whole("posterior_samples", posterior_samples), _whole("seed", seed)
        known = self._learned
        inputs = known.inputs(x)
        rows = known.task_rows(task, len(inputs))
        return known.method.predict(inputs, rows, marginal=marginal, posterior_samples=posterior_samples, seed=seed)

    @pinned()
    def logits(self, x: Data, task: int | str) -> Tensor:
        """The raw outputs for one task, a column per class of the task."""
        known = self._learned
        return known.method.logits(known.inputs(x), known.task_number(task))

    def save(self, path: str | Path, *, extra: Mapping[str, Any] | None = None, overwrite: bool = False) -> None:
        """Write the model folder; what an earlier save wrote of older tasks is left as it is.

        A folder that holds another model, one that this learner was neither loaded from nor saved to, is refused
        unless `overwrite` is True. `extra` is JSON of your own (class names, how inputs are prepared) to keep beside
        the model; a loaded learner has it as `extra`, and keeps it in later saves that give none.
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
        """`save`, with what the object around the learner needs to know of itself."""
        with lock_folder(path):  # and only then look at the state: a save that waits must not undo a later one
            known = self._learned
            configuration, fixed = self._configuration(known.method)
            state, files = known.method.state()
            files = {**fixed, **files}
            content = {
                "method": known.method.name,
                "configuration": configuration,
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
            unchanged = self._saved.unchanged(path, files) if known.method.locks else {}
            fresh = {name: part for name, part in files.items() if name not in unchanged}
            with storable(path):
                check_parts(fresh, *_rules(known.method, own=True))
            gone = parts_at(path) - {*files} if has_checkpoint(path) else set()
            deletes_task = any(name.startswith("task-") for name in gone)

            def announce(sha256: str) -> None:
                self._saved.announce(path, sha256)
                if deletes_task:  # its prior may be the posterior of the deleted task, so it cannot be resumed
                    discard(path)

            opened = save_folder(
                path,
                kind=KIND,
                content=content,
                files=files,
                unchanged=unchanged,
                announce=announce,
            )
            discard_finished(path, known.method.next_serial(len(known.tasks)))
        self._saved.remember(opened, files if known.method.locks else {})
        if extra is not None:
            self.extra = opened.content["extra"]

    def _configuration(self, method: Method) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
        """What makes the untrained method again: JSON, and tensors."""
        return method.configuration(), self._fixed_parts(method)

    def _fixed_parts(self, method: Method) -> dict[str, dict[str, Tensor]]:
        """The tensors among it."""
        return {}

    @classmethod
    @pinned()
    def load(cls, path: str | Path, *, device: str | torch.device = "auto") -> TaskLearner:
        """Read a model folder of any method but IBP-WF (see `Learner.load`). A method from another package is found
        if that has registered it."""
        opened = open_folder(path, kind=KIND)
        content = read_content(opened)
        try:
            kind = registry.find(registry.METHODS, content.method, {}, imports=False)
        except InputError as error:
            raise NeedsParts(f"{path} holds a model of an {error}") from None
        device = choose_device(device)
        stored = sum(entry.bytes for entry in opened.files.values())
        with whole_folder(path):
            with at_most(MOST_UNSTORED + 4 * stored):
                method = kind.create(content.configuration, device)
            return cls(method, seed=content.seed).restore(opened)

    def restore(self, opened: OpenedFolder, parts: Mapping[str, Mapping[str, Tensor]] | None = None) -> Self:
        """Take up the state of an opened folder, whose `parts` may have been read already."""
        content, method = read_content(opened), self.method
        parts = opened.all_tensors() if parts is None else parts
        if not method.locks:  # a method that locks knows each of its tensors
            check_parts(parts, *_rules(method))
        method.load_state(content.state, parts)
        stored = [TaskInfo.from_json(task.model_dump()) for task in content.tasks]
        history = [event.model_dump() for event in content.history]
        shape = None if content.input_shape is None else tuple(content.input_shape)
        self._learned = Learned(method, (), tuple(history), shape).numbered(method.by_number(stored))
        self._learned.check_whole()
        self.extra = dict(content.extra)
        self._saved.remember(opened, {**self._fixed_parts(method), **method.state()[1]} if method.locks else {})
        return self


MOST_UNSTORED = 1 << 26
"""Numbers that an untrained method may make beyond a few times those that are stored."""


def _rules(method: Method, *, own: bool = False) -> tuple[dict[str, str], str]:
    """What the numbers of single tensors of a method must be, with `own` those that each task has of them too, and
    what all others must."""
    rules = {f"own/{name}": rule for name, rule in buffer_rules(method.template).items()} if own else {}
    rules |= {name: NOT_NAN for name, _ in method.template.named_buffers()}  # in the template itself
    return rules, BOUNDED if method.locks else FINITE
