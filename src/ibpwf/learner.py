"""The learner: tasks in one after another, answers out, to disk and back."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from ibpwf import store
from ibpwf.architecture import build, check_same, describe, signature
from ibpwf.errors import IBPWFError, InputError, StoreError, unknown
from ibpwf.factors.model import FactorModel, factorize
from ibpwf.factors.weights import load_tensors
from ibpwf.inference.prediction import Prediction
from ibpwf.inputs import check_inputs, check_labels, from_dataset
from ibpwf.methods import method_named
from ibpwf.methods.base import Method, TaskData
from ibpwf.methods.ibpwf import IBPWF
from ibpwf.settings import Settings
from ibpwf.training.loop import Progress, task_steps

KIND = "ibpwf-model"
SCHEMA = 1

Data = Tensor | np.ndarray[Any, Any] | Sequence[Any]
TaskChoice = int | str | Sequence[int] | Sequence[str] | Tensor | None


@dataclass(frozen=True)
class TaskInfo:
    """A task that has been learnt."""

    name: str
    number: int
    classes: tuple[int, ...]
    examples: int


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


class TaskLearner:
    """Any method as a learner: checks what comes in, names tasks, trains, answers, stores."""

    def __init__(self, method: Method, *, seed: int = 0) -> None:
        self.method: Method = method
        self.seed = _whole("seed", seed)
        self.tasks: list[TaskInfo] = []
        self.extra: dict[str, Any] = {}
        self._input_shape: tuple[int, ...] | None = None

    @property
    def device(self) -> torch.device:
        return self.method.device

    def learn(
        self,
        x: Data | torch.utils.data.Dataset[Any],
        y: Data | None = None,
        name: str | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> TaskInfo:
        """Learn one task from examples `x` and integer labels `y` (or from a Dataset of pairs).

        Earlier tasks do not change. If anything goes wrong, or is interrupted, the learner is as before.
        """
        for _ in self.learn_steps(x, y, name, progress):
            pass
        return self.tasks[-1]

    def learn_steps(
        self,
        x: Data | torch.utils.data.Dataset[Any],
        y: Data | None = None,
        name: str | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Generator[None, None, None]:
        """`learn`, pausing after every optimisation step; the task counts once the last step is done."""
        if isinstance(x, torch.utils.data.Dataset):
            if y is not None:
                raise InputError("y was given beside a Dataset, which brings its own labels; leave y out.")
            x, y = from_dataset(x)
        if y is None:
            raise InputError("y is missing; give one integer label per example.")
        name = name if name is not None else f"task-{len(self.tasks) + 1}"
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"name is {name!r}; give the task a name, such as 'left camera'.")
        if any(task.name == name for task in self.tasks):
            raise InputError(f"a task named '{name}' has been learnt already; choose another name.")
        inputs = check_inputs(x, self._input_shape)
        labels = check_labels(y, len(inputs))
        classes, local = torch.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise InputError(
                f"task '{name}' has one class only ({int(classes[0])}); a task needs at least two to tell apart."
            )
        self._check_fits(inputs)
        data = TaskData(
            name=name,
            index=len(self.tasks),
            classes=tuple(int(label) for label in classes),
            x=inputs.to(self.device),
            y=local.to(self.device),
            seed=self.seed,
        )
        yield from task_steps(self.method, data, progress)
        self._input_shape = tuple(inputs.shape[1:])
        self.tasks.append(TaskInfo(name, data.index, data.classes, len(inputs)))

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
            numbers = [self.task_number(given)] * rows
        else:
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

    def save(self, path: str | Path, *, extra: Mapping[str, Any] | None = None) -> None:
        """Write the model folder; what an earlier save wrote of older tasks is left as it is. `extra` is JSON of your
        own to keep beside the model, to be found as `load(path).extra`."""
        configuration, fixed = self._configuration()
        state, files = self.method.state()
        content = {
            "method": self.method.name,
            "configuration": configuration,
            "seed": self.seed,
            "input_shape": None if self._input_shape is None else list(self._input_shape),
            "tasks": [{"name": t.name, "classes": list(t.classes), "examples": t.examples} for t in self.tasks],
            "state": state,
            "extra": dict(self.extra if extra is None else extra),
        }
        store.save_folder(path, kind=KIND, schema=SCHEMA, content=content, files={**fixed, **files})

    def _configuration(self) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
        """What makes the untrained method again: JSON, and tensors."""
        return self.method.configuration(), {}

    @classmethod
    def load(cls, path: str | Path, *, device: str | torch.device = "auto") -> TaskLearner:
        """Read a model folder of any method but IBP-WF (see `Learner.load`)."""
        opened = store.open_folder(path, kind=KIND)
        with _whole_folder(path):
            method = method_named(opened.content["method"]).create(
                opened.content["configuration"], choose_device(device)
            )
            return cls(method, seed=opened.content["seed"])._restored(opened)

    def _restored(self, opened: store.Opened) -> Self:
        """Take up the state of an opened folder."""
        content = opened.content
        parts = {name: opened.tensors(name) for name in opened.files}
        self.method.load_state(content["state"], parts)
        self.extra = dict(content.get("extra", {}))
        shape = content["input_shape"]
        self._input_shape = None if shape is None else tuple(shape)
        self.tasks = [
            TaskInfo(t["name"], number, tuple(t["classes"]), t["examples"])
            for number, t in enumerate(content["tasks"])
        ]
        return self


@contextlib.contextmanager
def _whole_folder(path: str | Path) -> Iterator[None]:
    """What a manifest of the right form but wrong content runs into, as one clear error."""
    try:
        yield
    except StoreError:
        raise
    except (IBPWFError, LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise StoreError(
            f"{path} is not a whole model folder ({type(error).__name__}: {error}); restore it from a copy."
        ) from None


class Learner(TaskLearner):
    """Learns task after task, forgets nothing, and infers the task of an input by itself.

    Given a plain network, it is factorised with the settings' `alpha`, `max_factors`, `heads`, `strength_std` and
    `init`; given the result of `factorize`, that keeps its own. The same seed on the same machine gives
    the same bits, whether or not the learner was stored and loaded between tasks.
    """

    def __init__(
        self,
        model: FactorModel | nn.Module,
        settings: Settings | None = None,
        *,
        seed: int = 0,
        device: str | torch.device = "auto",
    ) -> None:
        settings = settings or Settings()
        if isinstance(model, nn.Module):
            model = factorize(
                model,
                alpha=settings.alpha,
                max_factors=settings.max_factors,
                heads=settings.heads,
                strength_std=settings.strength_std,
                init=settings.init,
            )
        if not isinstance(model, FactorModel):
            raise InputError(
                f"model is a {type(model).__name__}; give a torch.nn.Module or the result of ibpwf.factorize."
            )
        if model.tasks:
            raise InputError("this factorised model already belongs to a learner; factorize the network again.")
        caps = {n: d.max_factors for n, d in model.layers.items() if d.max_factors is not None}
        self.settings = settings.replace(
            alpha={name: dictionary.alpha for name, dictionary in model.layers.items()},
            max_factors=caps or None,
            heads=model.heads,
            strength_std=model.strength_std,
            init=model.init,
        )
        self.model = model.to(choose_device(device))
        super().__init__(IBPWF(model, self.settings), seed=seed)

    def merge(self, task: int | str) -> nn.Module:
        """One task as an ordinary network of the original class, its outputs in the order of the task's classes.

        Its state dict loads into your own network, unless `heads` is "per-task" and the task has another number of
        classes (see `FactorModel.merge`).
        """
        if not self.tasks:
            raise InputError("nothing has been learnt yet; call learn(x, y) first.")
        return self.model.merge(self.task_number(task))

    def _configuration(self) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
        configuration = {
            "settings": self.settings.to_json(),
            "network": describe(self.model.net),
            "signature": signature(self.model.net),
            "head": self.model.head,
            "layers": list(self.model.layers),
            "frozen": sorted(self.model.frozen),
        }
        return configuration, {"template": dict(self.model.net.state_dict())}

    @classmethod
    def load(cls, path: str | Path, *, net: nn.Module | None = None, device: str | torch.device = "auto") -> Learner:
        """Read a model folder. A network of your own class must be given again as `net` (its weights do not
        matter); networks from `ibpwf.models` and `nn.Sequential` ones are rebuilt from the folder."""
        opened = store.open_folder(path, kind=KIND)
        with _whole_folder(path):
            if opened.content["method"] != IBPWF.name:
                raise StoreError(f"{path} holds a '{opened.content['method']}' model; read it with ibpwf.load(path).")
            configuration = opened.content["configuration"]
            if net is None:
                if configuration["network"] is None:
                    raise StoreError(
                        f"{path} holds a network of your own class; pass it again: Learner.load(path, net=MyNet())."
                    )
                net = build(configuration["network"])
            check_same(net, configuration["signature"])
            load_tensors(net, opened.tensors("template"))
            settings = Settings.from_json(configuration["settings"])
            model = factorize(
                net,
                alpha=settings.alpha,
                max_factors=settings.max_factors,
                heads=settings.heads,
                head=configuration["head"],
                include=list(configuration["layers"]),
                strength_std=settings.strength_std,
                init=settings.init,
            )
            model.frozen = frozenset(configuration.get("frozen", ()))  # as it was, whatever the given network has
            return cls(model, settings, seed=opened.content["seed"], device=device)._restored(opened)


def load(path: str | Path, *, net: nn.Module | None = None, device: str | torch.device = "auto") -> TaskLearner:
    """Read the model folder of any method; `net` is for IBP-WF on a network of your own class."""
    if store.open_folder(path, kind=KIND).content.get("method") == IBPWF.name:
        return Learner.load(path, net=net, device=device)
    return TaskLearner.load(path, device=device)
