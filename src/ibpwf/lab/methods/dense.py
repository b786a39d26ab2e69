"""What the baselines share: one plain network with an output for every class of every task.

Incremental task: the loss and the answer look only at the outputs of the task at hand (a head per task).
Incremental class: they look at the outputs of all classes seen so far (one head for all). A baseline is trained
anew for each of the two settings. Children override what makes them different, usually one or two functions.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.errors import InputError
from ibpwf.inference.prediction import Prediction
from ibpwf.inference.uncertainty import entropy
from ibpwf.models import mlp, resnet20
from ibpwf.settings import FrozenSettings, require
from ibpwf.training.method import Loss, Method, TaskData
from ibpwf.training.phase import Phase

ROWS_AT_ONCE = 4096


class DenseSettings(FrozenSettings):
    """The paper's defaults for baselines on Split MNIST (appendix 'Experiment Setup').

    `network`: "mlp" with `hidden` layers, or "resnet20" for images; `augment`: "crop-flip" moves and mirrors them;
    `precision` of products and convolutions in training on a GPU.
    """

    hidden: tuple[int, ...] = (400, 400)
    network: Literal["mlp", "resnet20"] = "mlp"
    epochs: int = 10
    batch_size: int = 128
    learning_rate: float = 1e-3
    optimizer: Literal["adam", "sgd", "adagrad"] = "adam"
    augment: Literal["none", "crop-flip"] = "none"
    precision: Literal["float32", "bfloat16"] = "float32"

    def check(self) -> None:
        super().check()
        for name in ("epochs", "batch_size"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "give at least 1")
        require(self.learning_rate > 0, "learning_rate", self.learning_rate, "it must be above 0")
        require(
            len(self.hidden) >= 1 and min(self.hidden, default=0) >= 1,
            "hidden",
            list(self.hidden),
            "give the width of each hidden layer, such as [400,400]",
        )


@dataclass(frozen=True)
class Problem:
    """What a baseline must know beforehand: the shape of an example, how many classes will come in all, and in
    which setting ('task' or 'class') it is to answer."""

    input_shape: tuple[int, ...]
    outputs: int
    setting: str

    @property
    def inputs(self) -> int:
        return int(torch.Size(self.input_shape).numel())


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A context in which torch's own initialisers draw from `seed` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class DenseMethod(Method):
    """A plain network trained on one task after another: the base of all baselines."""

    settings_type: ClassVar[type[DenseSettings]] = DenseSettings
    stores: ClassVar[str] = "nothing"
    networks: ClassVar[tuple[str, ...]] = ("mlp", "resnet20")  # those it can train

    def __init__(
        self,
        problem: Problem,
        settings: DenseSettings | None = None,
        *,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        if problem.setting not in self.answers:
            raise InputError(
                f"method '{self.name}' has no incremental-{problem.setting} setting; "
                f"it answers: {', '.join(self.answers)}."
            )
        self.problem, self.seed = problem, seed
        self.settings = settings or self.settings_type()
        self.bfloat16 = self.settings.precision == "bfloat16"
        if self.settings.network not in self.networks:
            raise InputError(
                f"network is {self.settings.network}, which method '{self.name}' does not train; "
                f"it trains: {', '.join(self.networks)}."
            )
        with seeded(seed):
            self.net = self.build().to(device)
        self.classes: list[tuple[int, ...]] = []
        self.current: TaskData | None = None
        self._before: dict[str, Tensor] | None = None

    def build(self) -> nn.Module:
        """The network; called with torch's random numbers seeded."""
        if self.settings.network == "resnet20":
            if len(self.problem.input_shape) != 3:
                raise InputError(
                    f"network is resnet20, which needs images (channels, height, width), but examples have shape "
                    f"{self.problem.input_shape}; set network=mlp."
                )
            return resnet20(classes=self.problem.outputs, in_channels=self.problem.input_shape[0])
        return mlp(self.problem.inputs, self.settings.hidden, self.problem.outputs)

    def buffers(self) -> Sequence[Tensor]:
        return list(self.net.buffers())

    @property
    def device(self) -> torch.device:
        return next(self.net.parameters()).device

    # Which outputs count

    def first_column(self, task: int) -> int:
        return sum(len(classes) for classes in self.known[:task])

    @property
    def known(self) -> list[tuple[int, ...]]:
        """Classes of all tasks, the one being learnt included."""
        return self.classes if self.current is None else [*self.classes, self.current.classes]

    def columns(self, task: int) -> slice:
        """The outputs that compete in training and answering task `task` in this setting."""
        end = self.first_column(task) + len(self.known[task])
        if self.problem.setting == "class":
            return slice(0, sum(len(classes) for classes in self.known))
        return slice(self.first_column(task), end)

    def target(self, y: Tensor, task: int) -> Tensor:
        """Labels counted from 0 within the task, as positions among `columns(task)`."""
        return y + self.first_column(task) - (self.columns(task).start or 0)

    # Learning

    def begin_task(self, data: TaskData) -> Sequence[Phase]:
        if sum(map(len, self.classes)) + len(data.classes) > self.problem.outputs:
            raise InputError(
                f"task '{data.name}' brings more classes than the {self.problem.outputs} the network has outputs "
                "for; build the method for more classes."
            )
        self.current = data
        self._before = copy.deepcopy(self.net.state_dict())
        self.net.train()
        self.prepare(data)
        s = self.settings
        return [Phase("train", s.epochs, s.batch_size, s.learning_rate, s.optimizer, augment=s.augment)]

    def prepare(self, data: TaskData) -> None:
        """What a child sets up before a task."""

    @property
    def task(self) -> TaskData:
        if self.current is None:
            raise RuntimeError("no task has begun")
        return self.current

    def parameters(self, phase: Phase) -> Sequence[nn.Parameter]:
        return [p for p in self.net.parameters() if p.requires_grad]

    @property
    def template(self) -> nn.Module:
        return self.net

    def loss(self, x: Tensor, y: Tensor) -> Loss:
        """Cross-entropy on the task plus the child's penalty."""
        fit = self.fit(x, y)
        penalty = self.penalty(x)
        return Loss(fit + penalty, penalty)

    def fit(self, x: Tensor, y: Tensor) -> Tensor:
        task = self.task.index
        return F.cross_entropy(self.net(x)[:, self.columns(task)], self.target(y, task))

    def penalty(self, x: Tensor) -> Tensor:
        """What a child adds to the loss; `x` is the mini-batch."""
        return torch.zeros((), device=x.device)

    def end_task(self, data: TaskData) -> None:
        self.consolidate(data)
        self.classes.append(data.classes)
        self.current = self._before = None
        self.net.eval()

    def consolidate(self, data: TaskData) -> None:
        """What a child keeps of a finished task. Must leave the method as it was if it fails."""

    def abandon_task(self) -> None:
        if self._before is not None:
            self.net.load_state_dict(self._before)
        self.current = self._before = None
        self.net.eval()

    # Answering

    def trial(self, x: Tensor) -> object:
        if tuple(x.shape[1:]) != self.problem.input_shape:
            raise ValueError(f"it was built for {self.problem.input_shape}")
        return x.new_zeros(len(x), self.problem.outputs)

    def logits(self, x: Tensor, task: int) -> Tensor:
        """Outputs of the task's own classes."""
        self.net.eval()
        with torch.no_grad():
            out = torch.cat([self.net(rows) for rows in torch.split(x, ROWS_AT_ONCE)])
        first = self.first_column(task)
        return out[:, first : first + len(self.classes[task])]

    def class_log_probabilities(self, x: Tensor) -> Tensor:
        """log p over all classes seen so far, N×C (incremental class)."""
        self.net.eval()
        seen = sum(map(len, self.classes))
        with torch.no_grad():
            parts = [self.net(rows)[:, :seen].double().log_softmax(1) for rows in torch.split(x, ROWS_AT_ONCE)]
        return torch.cat(parts)

    def predict(self, x: Tensor, task: Tensor | None, *, marginal: bool, draws: int, seed: int) -> Prediction:
        if task is None and self.problem.setting == "task":
            raise InputError(
                f"this '{self.name}' was trained for the incremental-task setting and cannot infer the task; "
                "give task=…, or train it for the class setting."
            )
        columns = tuple((t, label) for t, labels in enumerate(self.classes) for label in labels)
        if task is None:
            probabilities = self.class_log_probabilities(x).exp()
        else:
            probabilities = torch.zeros(len(x), len(columns), dtype=torch.float64, device=x.device)
            for t in torch.unique(task).tolist():
                rows = (task == t).nonzero().flatten()
                first = self.first_column(t)
                here = slice(first, first + len(self.classes[t]))
                probabilities[rows, here] = self.logits(x[rows], t).double().softmax(1)
        return class_prediction(probabilities, columns, len(self.classes), task)

    # Storing

    def configuration(self) -> dict[str, Any]:
        """What `create` needs to make the same untrained method again."""
        return {
            "input_shape": list(self.problem.input_shape),
            "outputs": self.problem.outputs,
            "setting": self.problem.setting,
            "settings": self.settings.to_json(),
            "seed": self.seed,
        }

    @classmethod
    def create(cls, configuration: Mapping[str, Any], device: str | torch.device = "cpu") -> Self:
        problem = Problem(tuple(configuration["input_shape"]), configuration["outputs"], configuration["setting"])
        settings = cls.settings_type.from_json(configuration["settings"])
        return cls(problem, settings, seed=configuration["seed"], device=device)

    def state(self) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
        content: dict[str, Any] = {"classes": [list(classes) for classes in self.classes]}
        return content, {"network": dict(self.net.state_dict()), "kept": self.kept()}

    def kept(self) -> dict[str, Tensor]:
        """The child's own tensors that must survive between tasks, by name."""
        return {}

    def load_kept(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `kept`; tensors are on the method's device, `self.classes` is in place."""

    def load_state(self, content: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.net.load_state_dict(dict(files["network"]))
        self.classes = [tuple(classes) for classes in content["classes"]]
        self.net.eval()
        self.load_kept({name: tensor.to(self.device) for name, tensor in files["kept"].items()})

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.net.parameters())

    def memory(self) -> dict[str, int]:
        """Bytes kept between tasks, by kind; the network itself is `network`."""
        sizes = {"network": sum(t.numel() * t.element_size() for t in self.net.state_dict().values())}
        kept = sum(t.numel() * t.element_size() for t in self.kept().values())
        return {**sizes, "kept": kept} if kept else sizes


def class_prediction(
    probabilities: Tensor, columns: tuple[tuple[int, int], ...], tasks: int, task: Tensor | None
) -> Prediction:
    """A `Prediction` from class probabilities; the task of a row is its best class's where none was given."""
    owner = torch.tensor([t for t, _ in columns], device=probabilities.device)
    best = probabilities.argmax(1)
    labels = torch.tensor([label for _, label in columns], device=probabilities.device)[best]
    per_task = torch.stack([probabilities[:, owner == t].sum(1) for t in range(tasks)], 1)
    return Prediction(
        labels=labels,
        probabilities=probabilities,
        classes=columns,
        task=owner[best] if task is None else task,
        task_probabilities=per_task if task is None else F.one_hot(task, tasks).double(),
        entropy=entropy(probabilities),
    )
