"""The learner: tasks in one after another, answers out, to disk and back."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ibpwf import store
from ibpwf.architecture import build, check_same, describe, signature
from ibpwf.errors import InputError, StoreError, unknown
from ibpwf.factors.model import FactorModel, factorize
from ibpwf.inference.prediction import Prediction
from ibpwf.inputs import check_inputs, check_labels, from_dataset
from ibpwf.methods.base import TaskData
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


class Learner:
    """Learns task after task, forgets nothing, and infers the task of an input by itself.

    Given a plain network, it is factorised with the settings' `alpha`, `max_factors`, `heads` and
    `strength_std`; given the result of `factorize`, that keeps its own. The same seed on the same machine gives
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
        )
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise InputError(f"seed is {seed!r}; give a whole number from 0.")
        self.seed = seed
        self.model = model.to(choose_device(device))
        self.method = IBPWF(model, self.settings)
        self.tasks: list[TaskInfo] = []
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
        net = self.model.net.eval()
        try:
            with torch.no_grad():
                net(x[:1].to(self.device))
        except (RuntimeError, ValueError, IndexError) as error:
            raise InputError(
                f"x has examples of shape {tuple(x.shape[1:])}, which does not fit the network: "
                f"{str(error).splitlines()[0]}. Reshape x or change the network's first layer."
            ) from None

    def task_number(self, task: int | str) -> int:
        """A task's number from its name or number."""
        if isinstance(task, str):
            names = [known.name for known in self.tasks]
            if task not in names:
                raise unknown("task", task, names)
            return names.index(task)
        number = int(task)
        if not -len(self.tasks) <= number < len(self.tasks):
            raise InputError(
                f"task is {number}, but {len(self.tasks)} tasks have been learnt; "
                f"give a number from 0 to {len(self.tasks) - 1}, or a name."
            )
        return number % len(self.tasks)

    def _task_rows(self, task: TaskChoice, rows: int) -> Tensor | None:
        if task is None:
            return None
        if isinstance(task, (str, int, np.integer)):
            numbers = [self.task_number(task)] * rows
        else:
            given: list[Any] = task.tolist() if isinstance(task, Tensor) else list(task)
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
        if draws < 0:
            raise InputError(f"draws is {draws}; give 0 for the point estimate or a number such as 100.")
        inputs = check_inputs(x, self._input_shape, empty_ok=True).to(self.device)
        rows = self._task_rows(task, len(inputs))
        return self.method.predict(inputs, rows, marginal=marginal, draws=draws, seed=seed)

    def logits(self, x: Data, task: int | str) -> Tensor:
        """The raw outputs for one task, a column per class of the task."""
        if not self.tasks:
            raise InputError("nothing has been learnt yet; call learn(x, y) first.")
        inputs = check_inputs(x, self._input_shape, empty_ok=True).to(self.device)
        return self.model.logits(inputs, self.task_number(task))

    def merge(self, task: int | str) -> nn.Module:
        """One task as an ordinary network, its outputs in the order of the task's classes."""
        if not self.tasks:
            raise InputError("nothing has been learnt yet; call learn(x, y) first.")
        return self.model.merge(self.task_number(task))

    def save(self, path: str | Path) -> None:
        """Write the model folder; what an earlier save wrote of older tasks is left as it is."""
        method, files = self.method.state()
        content = {
            "method": self.method.name,
            "settings": self.settings.to_json(),
            "seed": self.seed,
            "network": describe(self.model.net),
            "signature": signature(self.model.net),
            "head": self.model.head,
            "layers": list(self.model.layers),
            "input_shape": None if self._input_shape is None else list(self._input_shape),
            "tasks": [{"name": t.name, "classes": list(t.classes), "examples": t.examples} for t in self.tasks],
            "state": method,
        }
        template = {"template": dict(self.model.net.state_dict())}
        store.save_folder(path, kind=KIND, schema=SCHEMA, content=content, files={**template, **files})

    @classmethod
    def load(cls, path: str | Path, *, net: nn.Module | None = None, device: str | torch.device = "auto") -> Learner:
        """Read a model folder. A network of your own class must be given again as `net` (its weights do not
        matter); networks from `ibpwf.models` and `nn.Sequential` ones are rebuilt from the folder."""
        opened = store.open_folder(path, kind=KIND)
        content = opened.content
        try:
            if net is None:
                if content["network"] is None:
                    raise StoreError(
                        f"{path} holds a network of your own class; pass it again: Learner.load(path, net=MyNet())."
                    )
                net = build(content["network"])
            check_same(net, content["signature"])
            net.load_state_dict(opened.tensors("template"))
            settings = Settings.from_json(content["settings"])
            model = factorize(
                net,
                alpha=settings.alpha,
                max_factors=settings.max_factors,
                heads=settings.heads,
                head=content["head"],
                include=list(content["layers"]),
                strength_std=settings.strength_std,
            )
            learner = cls(model, settings, seed=content["seed"], device=device)
            names = [f"task-{t:04d}" for t in range(len(content["tasks"]))]
            learner.method.load_state(content["state"], {name: opened.tensors(name) for name in names})
            shape = content["input_shape"]
            learner._input_shape = None if shape is None else tuple(shape)
            learner.tasks = [
                TaskInfo(t["name"], number, tuple(t["classes"]), t["examples"])
                for number, t in enumerate(content["tasks"])
            ]
        except (KeyError, TypeError, AttributeError) as error:
            raise StoreError(
                f"{path} is not a whole model folder ({type(error).__name__}: {error}); restore it from a copy."
            ) from None
        return learner
