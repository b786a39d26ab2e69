"""Any method as a learner: tasks in one after another, answers out, to disk and back."""

from __future__ import annotations

import contextlib
import operator
import time
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ibpwf import __version__, registry
from ibpwf.errors import IBPWFError, InputError, StoreError, unknown
from ibpwf.inference.prediction import Prediction
from ibpwf.inputs import check_inputs, check_labels
from ibpwf.settings import FrozenSettings
from ibpwf.storage.checkpoint_folder import Identity, check_place, digest_of, discard_finished
from ibpwf.storage.folder import SCHEMA, OpenedFolder, lock_folder, open_folder, save_folder
from ibpwf.storage.model_folder import KIND, SavedParts, face_of
from ibpwf.storage.model_record import read_content
from ibpwf.storage.network_json import NeedsParts
from ibpwf.storage.tensor_checks import BOUNDED, FINITE, NOT_NAN, NotWhole, at_most, buffer_rules, check_numbers
from ibpwf.training.callbacks import Callback, TaskEnd
from ibpwf.training.loop import Training
from ibpwf.training.method import Forgotten, Method, TaskData
from ibpwf.training.rows import Batches, Rows, StreamedRows, TensorRows

Data = Tensor | np.ndarray[Any, Any] | Sequence[Any]
TaskChoice = int | str | Sequence[int] | Sequence[str] | Tensor | None


@dataclass(frozen=True)
class TaskInfo:
    """A task that has been learnt."""

    name: str
    number: int
    classes: tuple[int, ...]
    examples: int
    accuracy: float | None = None  # per cent, as measured when it was learned (see `note_accuracy`)
    training_accuracy: float | None = None  # per cent of its own rows, over the last pass of its training


def choose_device(device: str | torch.device) -> torch.device:
    """'auto' is the GPU where there is one, else the CPU."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise InputError(f"device is '{device}'; give 'auto', 'cpu' or 'cuda'.") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device is '{device}' but this machine has no CUDA GPU; use 'auto' or 'cpu'.")
    return chosen


def _whole(field: str, value: int) -> int:
    """A whole number from 0, NumPy's included."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 63:
        raise InputError(f"{field} is {value!r}; give a whole number from 0.")
    return number


NEAR_CHANCE = 0.1
"""How much of the way from guessing to perfection must have been gone not to be warned."""


def _gives_batches(x: Any, y: Data | None) -> bool:
    """Whether `x` is no array but something to iterate over; a list is, where no y is given and it holds pairs."""
    if isinstance(x, Sequence):
        return y is None and len(x) > 0 and isinstance(x[0], (tuple, list)) and len(x[0]) == 2
    return isinstance(x, Batches) and not isinstance(x, (Tensor, np.ndarray))


def near_chance(accuracy: float | None, guessing: float) -> bool:
    """Whether a task was hardly learned: said when it happens, instead of being found out later."""
    return accuracy is not None and accuracy <= guessing + NEAR_CHANCE * (100 - guessing)


class TaskLearner:
    """Any method as a learner: checks what comes in, names tasks, trains, answers, stores."""

    def __init__(self, method: Method, *, seed: int = 0) -> None:
        self.method: Method = method
        self.seed = _whole("seed", seed)
        self.tasks: list[TaskInfo] = []
        self.extra: dict[str, Any] = {}
        self.face: dict[str, Any] | None = None  # what stands around it, such as a classifier with labels of its own
        self.history: list[dict[str, Any]] = []
        self._input_shape: tuple[int, ...] | None = None
        self._guessing = 0.0  # per cent that always giving the largest class of the last task would be right for
        self._saved = SavedParts()

    def __repr__(self) -> str:
        names = ", ".join(task.name for task in self.tasks[:6]) + (", …" if len(self.tasks) > 6 else "")
        tasks = f"{len(self.tasks)} task{'s' * (len(self.tasks) != 1)}" + (f": {names}" if names else "")
        return f"{type(self).__name__}({self.method.name}, {tasks}, seed={self.seed}, device='{self.device}')"

    @property
    def device(self) -> torch.device:
        return self.method.device

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """Of one example; None before the first task."""
        return self._input_shape

    def learn(
        self,
        x: Data | Batches | torch.utils.data.Dataset[Any],
        y: Data | None = None,
        name: str | None = None,
        *,
        callbacks: Sequence[Callback] = (),
    ) -> TaskInfo:
        """Learn one task from examples `x` and integer labels `y`, from a Dataset of pairs, or from anything that
        gives batches (x, y) anew whenever it is iterated, such as a DataLoader.

        Earlier tasks do not change. If anything goes wrong, or is interrupted, the learner is as before. `callbacks`
        see every step, epoch and task; `Checkpoint` is one, and keeps a long task on disk while it is learned.
        """
        for _ in self.learn_steps(x, y, name, callbacks=callbacks):
            pass
        task = self.tasks[-1]
        if near_chance(task.training_accuracy, self._guessing):
            warnings.warn(
                f"task '{task.name}' was hardly learned: {task.training_accuracy:.1f} % of its own rows are answered "
                f"rightly, and always giving its largest class would be right for {self._guessing:.1f} %. Train "
                "longer (epochs), raise learning_rate, start from the network's own weights (init='pretrained'), or "
                "put the inputs on one scale.",
                stacklevel=2,
            )
        return task

    def learn_steps(
        self,
        x: Data | Batches | torch.utils.data.Dataset[Any],
        y: Data | None = None,
        name: str | None = None,
        *,
        callbacks: Sequence[Callback] = (),
    ) -> Generator[None, None, None]:
        """`learn`, pausing after every optimization step; the task counts once the last step is done."""
        started = time.perf_counter()
        name = self._task_name(name)
        rows, classes, counts = self._rows(x, y)
        if len(classes) < 2:
            raise InputError(
                f"task '{name}' has one class only ({classes[0]}); a task needs at least two to tell apart."
            )
        first = next(rows.in_order(1))[0]
        self._check_fits(first)
        number = len(self.tasks)
        data = TaskData(name, number, classes, seed=self.seed, serial=self.method.serial(number), rows=rows)
        training = Training(self.method, data, callbacks)
        training.identity = lambda: self._identity(data)
        yield from training.run()
        self._input_shape = tuple(first.shape[1:])
        self.tasks.append(TaskInfo(name, number, classes, len(rows), training_accuracy=training.accuracy))
        self.history.append({"event": "learnt", "serial": data.serial, "version": __version__})
        seconds = time.perf_counter() - started
        use = self.method.use(number)
        training.callbacks.task_end(TaskEnd(name, number, len(rows), training.accuracy, seconds, use))
        self._guessing = 100 * float(counts.max() / counts.sum())

    def _task_name(self, name: str | None) -> str:
        name = name if name is not None else f"task-{len(self.tasks) + 1}"
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"name is {name!r}; give the task a name, such as 'left camera'.")
        if any(task.name == name for task in self.tasks):
            raise InputError(f"a task named '{name}' has been learnt already; choose another name.")
        return name

    def _rows(self, x: Any, y: Data | None) -> tuple[Rows, tuple[int, ...], Tensor]:
        """The task's rows, its classes in order, and how many rows each has."""
        if isinstance(x, torch.utils.data.Dataset) or _gives_batches(x, y):
            if y is not None:
                raise InputError(
                    f"y was given beside a {type(x).__name__}, which brings its own labels; leave y out."
                )
            stream = StreamedRows(x, self.device, self._input_shape)
            return stream, stream.classes, torch.unique(stream.labels, return_counts=True)[1]
        if y is None:
            raise InputError("y is missing; give one integer label per example.")
        inputs = check_inputs(x, self._input_shape)
        labels = check_labels(y, len(inputs))
        classes, local, counts = torch.unique(labels, return_inverse=True, return_counts=True)
        rows = TensorRows(inputs.to(self.device), local.to(self.device))
        return rows, tuple(int(label) for label in classes), counts

    def _identity(self, data: TaskData) -> Identity:
        """What a checkpoint of this task belongs to: the task, its data, and the model as it is now."""
        self.method.check_resumable()
        configuration, fixed = self._configuration()
        state, parts = self.method.state()
        settings = getattr(self.method, "settings", None)  # some may differ from task to task
        chosen = settings.to_json() if isinstance(settings, FrozenSettings) else None
        model = digest_of([configuration, self.seed, state, chosen], {**fixed, **parts})
        rows = digest_of([data.name, list(data.classes)], {"data": data.rows.identity()})
        return Identity(task=data.name, serial=self.method.serial(data.index), data=rows, model=model)

    def note_accuracy(self, task: int | str, accuracy: float) -> None:
        """Keep a task's accuracy (per cent, on data of your choice) with the model, for `ibpwf inspect`."""
        if not (isinstance(accuracy, (int, float, np.number)) and 0 <= float(accuracy) <= 100):
            raise InputError(f"accuracy is {accuracy!r}; give per cent, from 0 to 100.")
        number = self.task_number(task)
        self.tasks[number] = replace(self.tasks[number], accuracy=float(accuracy))

    def forget(self, task: int | str) -> Forgotten:
        """Remove a task and every factor that only it used; all other tasks answer with the same bits.

        Later tasks move up by one number, names stay. docs/model-format.md says what is kept and why.
        """
        if not self.tasks:
            raise InputError("nothing has been learnt yet, so there is no task to forget.")
        number = self.task_number(task)
        serial = self.method.serial(number)
        forgotten = self.method.forget(number)
        del self.tasks[number]
        self.tasks = [replace(known, number=place) for place, known in enumerate(self.tasks)]
        if self.tasks:
            self.history.append({"event": "forgot", "serial": serial, "version": __version__})
        else:  # as new
            self.history, self._input_shape = [], None
        return forgotten

    def _check_fits(self, x: Tensor) -> None:
        """Run one example through the network, so that a wrong shape is named here and not deep inside torch."""
        if self._input_shape is not None:
            return
        try:
            out = self.method.trial(x[:1].to(self.device))
        except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
            raise InputError(
                f"x has examples of shape {tuple(x.shape[1:])}, which does not fit the network: "
                f"{next(iter(str(error).splitlines()), type(error).__name__)}. "
                "Reshape x or change the network's first layer."
            ) from error
        if not isinstance(out, Tensor) or out.ndim != 2:
            what = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
            raise InputError(f"the network gives {what} for one example; it must give one row of class scores.")

    def task_number(self, task: int | str) -> int:
        """A task's number from its name or number."""
        if isinstance(task, str):
            names = [known.name for known in self.tasks]
            if task not in names:
                raise unknown("task", task, names)
            return names.index(task)
        try:
            number = operator.index(task)
        except TypeError:
            raise InputError(f"task is {task!r}; give a task's name or number.") from None
        if not -len(self.tasks) <= number < len(self.tasks):
            raise InputError(
                f"task is {number}, but {len(self.tasks)} tasks have been learnt; "
                f"give a number from 0 to {len(self.tasks) - 1}, or a name."
            )
        return number % len(self.tasks)

    def _task_rows(self, task: TaskChoice, rows: int) -> Tensor | None:
        if task is None:
            return None
        given: Any = task.tolist() if isinstance(task, (Tensor, np.ndarray)) else task
        if isinstance(given, str) or not isinstance(given, Iterable):
            return torch.full((rows,), self.task_number(given), device=self.device)
        given = list(given)
        if len(given) != rows:
            raise InputError(f"task has {len(given)} entries for {rows} inputs; give one, or one per input.")
        numbers = [self.task_number(t) for t in given]
        return torch.tensor(numbers, dtype=torch.long, device=self.device)

    def predict(
        self,
        x: Data,
        task: TaskChoice = None,
        *,
        marginal: bool = False,
        draws: int = 0,
        seed: int = 0,
    ) -> Prediction:
        """Answer inputs: for a task given by name or number (or one per row), or inferring it.

        `marginal=True` mixes all tasks' answers by P(t|φ(x)) instead of taking the likeliest task's.
        `draws=100` averages over that many posterior samples and adds the mutual information.
        """
        if not self.tasks:
            raise InputError("nothing has been learnt yet; call learn(x, y) first.")
        draws, seed = _whole("draws", draws), _whole("seed", seed)
        inputs = check_inputs(x, self._input_shape, empty_ok=True).to(self.device)
        rows = self._task_rows(task, len(inputs))
        return self.method.predict(inputs, rows, marginal=marginal, draws=draws, seed=seed)

    def logits(self, x: Data, task: int | str) -> Tensor:
        """The raw outputs for one task, a column per class of the task."""
        if not self.tasks:
            raise InputError("nothing has been learnt yet; call learn(x, y) first.")
        inputs = check_inputs(x, self._input_shape, empty_ok=True).to(self.device)
        return self.method.logits(inputs, self.task_number(task))

    def save(self, path: str | Path, *, extra: Mapping[str, Any] | None = None, overwrite: bool = False) -> None:
        """Write the model folder; what an earlier save wrote of older tasks is left as it is.

        A folder that holds another model, one that this learner was neither loaded from nor saved to, is refused
        unless `overwrite` is True. `extra` is JSON of your own (class names, how inputs are prepared) to keep beside
        the model; a loaded learner has it as `extra`, and keeps it in later saves that give none.
        """
        configuration, fixed = self._configuration()
        state, files = self.method.state()
        files = {**fixed, **files}
        content = {
            "method": self.method.name,
            "configuration": configuration,
            "seed": self.seed,
            "input_shape": None if self._input_shape is None else list(self._input_shape),
            "tasks": [
                {
                    "name": t.name,
                    "classes": list(t.classes),
                    "examples": t.examples,
                    "accuracy": t.accuracy,
                    "training_accuracy": t.training_accuracy,
                }
                for t in self.tasks
            ],
            "state": state,
            "history": self.history,
            "face": self.face,
            "extra": self.extra if extra is None else dict(extra),
        }
        with lock_folder(path):
            check_place(path)
            if not overwrite:
                self._saved.check_own(path)
            unchanged = self._saved.unchanged(path, files) if self.method.locks else {}
            self._check_storable(path, {name: part for name, part in files.items() if name not in unchanged})
            opened = save_folder(path, kind=KIND, schema=SCHEMA, content=content, files=files, unchanged=unchanged)
            discard_finished(path, self.method.serial(len(self.tasks)))
        self._saved.remember(opened, files if self.method.locks else {})
        self.extra = opened.content["extra"]

    def _check_storable(self, path: str | Path, files: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Refuse to write what would not be read again."""
        rules = {f"own/{name}": rule for name, rule in buffer_rules(self.method.template).items()}
        rules |= {name: NOT_NAN for name, _ in self.method.template.named_buffers()}  # in the template itself
        usual = BOUNDED if self.method.locks else FINITE
        try:
            for part, tensors in files.items():
                for name, tensor in tensors.items():
                    check_numbers(part, name, tensor, rules.get(name, usual))
        except NotWhole as error:
            remedy = "Forget the last task, put its inputs on one scale, and learn it anew with a lower learning_rate"
            raise StoreError(f"cannot save to {str(path)!r}: {error}. {remedy}; nothing was written.") from None

    def _configuration(self) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
        """What makes the untrained method again: JSON, and tensors."""
        return self.method.configuration(), self._fixed_parts()

    def _fixed_parts(self) -> dict[str, dict[str, Tensor]]:
        """The tensors among it."""
        return {}

    @classmethod
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
        content = read_content(opened)
        parts = opened.all_tensors() if parts is None else parts
        if not self.method.locks:  # a method that locks knows each of its tensors
            rules = {name: NOT_NAN for name, _ in self.method.template.named_buffers()}
            for part, tensors in parts.items():
                for name, tensor in tensors.items():
                    check_numbers(part, name, tensor, rules.get(name, FINITE))
        self.method.load_state(content.state, parts)
        self._input_shape = None if content.input_shape is None else tuple(content.input_shape)
        self.tasks = [
            TaskInfo(task.name, number, tuple(task.classes), task.examples, task.accuracy, task.training_accuracy)
            for number, task in enumerate(content.tasks)
        ]
        known = getattr(self.method, "classes", None)
        if known is not None and [tuple(classes) for classes in known] != [task.classes for task in self.tasks]:
            raise NotWhole("the tasks' classes are not those of the method's state")
        learned = [{"event": "learnt", "serial": number, "version": None} for number in range(len(self.tasks))]
        self.history = learned if content.history is None else [event.model_dump() for event in content.history]
        self.extra, self.face = dict(content.extra), face_of(opened.content)
        same_layout = opened.schema == SCHEMA and self.method.locks  # an older folder is written anew when saved
        self._saved.remember(opened, {**self._fixed_parts(), **self.method.state()[1]} if same_layout else {})
        return self


MOST_UNSTORED = 1 << 26
"""Numbers that an untrained method may make beyond a few times those that are stored."""
DAMAGE: tuple[type[Exception], ...] = (
    IBPWFError,
    *(LookupError, TypeError, AttributeError, ValueError, RuntimeError),
    *(ArithmeticError, AssertionError, MemoryError),
)
"""What content of the right form but of a wrong kind runs into."""


@contextlib.contextmanager
def whole_folder(path: str | Path) -> Iterator[None]:
    """What a manifest of the right form but wrong content runs into, as one clear error."""
    try:
        yield
    except StoreError:
        raise
    except DAMAGE as error:
        what = str(error) if isinstance(error, NotWhole) else f"{type(error).__name__}: {error}"
        what = " ".join(what.split())
        raise StoreError(f"{path} is not a whole model folder ({what}); restore it from a copy.") from None
