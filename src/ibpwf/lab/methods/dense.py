"""What the baselines share: one plain network with an output for every class of every task.

Incremental task: the loss and the answer look only at the outputs of the task at hand (a head per task).
Incremental class: they look at the outputs of all classes seen so far (one head for all). A baseline is trained
anew for each of the two settings. Children override what makes them different, usually one or two functions: what
they add to the loss (`penalty`), what they set up before a task (`prepare`) and keep after it (`consolidate`).
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.data.rows import ROWS_PER_PASS
from ibpwf.errors import InputError
from ibpwf.inference.prediction import Prediction
from ibpwf.inference.uncertainty import entropy
from ibpwf.models import mlp, resnet20
from ibpwf.parts import Count, FrozenSettings, Positive, require
from ibpwf.training.method import Method, TaskData
from ibpwf.training.objective import Loss, batch_accuracy
from ibpwf.training.phase import Phase

Optimizer = Literal["adam", "sgd", "adagrad"]
Widths = tuple[Count, ...]


class DenseSettings(FrozenSettings):
    """Settings of every baseline, with the paper's defaults for Split MNIST (appendix 'Experiment Setup')."""

    hidden: Widths = Field((400, 400), description="widths of the hidden layers, where the network is an mlp")
    network: Literal["mlp", "resnet20", "resnet9"] = Field(
        "mlp", description="a multilayer perceptron, or a ResNet for images; not every method trains each"
    )
    epochs: Count = Field(10, description="passes over a task's rows")
    batch_size: Count = Field(128, description="rows in a mini-batch")
    learning_rate: Positive = Field(1e-3, description="the optimizer's")
    optimizer: Optimizer = Field("adam", description="torch's optimizer of that name")
    augment: Literal["none", "crop-flip"] = Field(
        "none", description="crop-flip: images are moved by up to four pixels and mirrored at random"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="of a GPU's products and convolutions in training"
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """A child that only changes a default keeps the field's description."""
        parent = cls.__mro__[1]
        for name, field in cls.model_fields.items():
            if field.description is None and issubclass(parent, DenseSettings) and name in parent.model_fields:
                field.description = parent.model_fields[name].description

    def check_settings(self) -> None:
        require(bool(self.hidden), "hidden", [], "give the width of each hidden layer, such as [400,400]")


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

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Channels, height and width, also of square gray images that come as flat rows; None of anything else."""
        if len(self.input_shape) == 3:
            return self.input_shape[0], self.input_shape[1], self.input_shape[2]
        side = math.isqrt(self.inputs)
        return (1, side, side) if len(self.input_shape) == 1 and side * side == self.inputs else None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return cls(tuple(values["input_shape"]), values["outputs"], values["setting"])

    def to_json(self) -> dict[str, Any]:
        return {"input_shape": list(self.input_shape), "outputs": self.outputs, "setting": self.setting}


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A context in which torch's own initializers draw from `seed` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class DenseMethod(Method):
    """A plain network trained on one task after another: the base of all baselines."""

    settings_type: ClassVar[type[DenseSettings]] = DenseSettings
    stores: ClassVar[str] = "nothing"
    keeps: ClassVar[tuple[str, ...]] = ()  # attributes, tensors or None, that must survive between tasks
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
        self._device = torch.empty(0, device=device, dtype=torch.float32).device
        with seeded(seed):
            self.net = self.build().to(device)
        self.classes: list[tuple[int, ...]] = []
        self.current: TaskData | None = None
        self.previous: nn.Module | None = None  # while a task is learned, the network as it was before, frozen

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

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def template(self) -> nn.Module:
        return self.net

    # Which outputs count

    @property
    def known(self) -> list[tuple[int, ...]]:
        """Classes of all tasks, the one being learned included."""
        return self.classes if self.current is None else [*self.classes, self.current.classes]

    @property
    def learned(self) -> int:
        """How many outputs the finished tasks have."""
        return sum(map(len, self.classes))

    def own_columns(self, task: int) -> slice:
        """The outputs of a task's own classes."""
        first = sum(map(len, self.known[:task]))
        return slice(first, first + len(self.known[task]))

    def columns(self, task: int) -> slice:
        """The outputs that compete in training and answering task `task` in this setting."""
        return self.own_columns(task) if self.problem.setting == "task" else slice(0, sum(map(len, self.known)))

    def target(self, y: Tensor, task: int) -> Tensor:
        """Labels counted from 0 within the task, as positions among `columns(task)`."""
        first: int = self.own_columns(task).start - self.columns(task).start
        return y + first

    def silent(self, width: int) -> Tensor:
        """Which of the first `width` outputs (columns) do not compete with an example's own class (rows)."""
        silent = torch.ones(width, width, dtype=torch.bool, device=self.device)
        for task in range(len(self.known)):
            silent[self.own_columns(task), self.columns(task)] = False
        return silent

    # Learning

    def begin_task(self, data: TaskData) -> Sequence[Phase]:
        if self.learned + len(data.classes) > self.problem.outputs:
            raise InputError(
                f"task '{data.name}' brings more classes than the {self.problem.outputs} the network has outputs "
                "for; build the method for more classes."
            )
        self.current = data
        self.previous = copy.deepcopy(self.net).eval().requires_grad_(False)
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

    def buffers(self) -> Sequence[Tensor]:
        return list(self.net.buffers())

    def loss(self, x: Tensor, y: Tensor) -> Loss:
        """Cross-entropy on the task plus the child's penalty."""
        outputs = self.outputs(x)
        logits, target = self.competing(outputs, y)
        penalty = self.penalty(x, outputs)
        return Loss(F.cross_entropy(logits, target) + penalty, penalty, batch_accuracy(logits, target))

    def outputs(self, x: Tensor) -> Tensor:
        """What the network gives in training."""
        out: Tensor = self.net(x)
        return out

    def competing(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs that compete for a label, and the label's position among them."""
        task = self.task.index
        return outputs[:, self.columns(task)], self.target(y, task)

    def penalty(self, x: Tensor, outputs: Tensor) -> Tensor:
        """What a child adds to the loss; `outputs` are the network's for the mini-batch `x`."""
        return torch.zeros((), device=x.device, dtype=torch.float32)

    def end_task(self, data: TaskData) -> None:
        self.consolidate(data)
        self.classes.append(data.classes)
        self.current = self.previous = None
        self.net.eval()

    def consolidate(self, data: TaskData) -> None:
        """What a child keeps of a finished task."""

    # Answering

    def trial(self, x: Tensor) -> object:
        if tuple(x.shape[1:]) != self.problem.input_shape:
            raise ValueError(f"it was built for {self.problem.input_shape}")
        return x.new_zeros(len(x), self.problem.outputs)

    def logits(self, x: Tensor, task: int) -> Tensor:
        """Outputs of the task's own classes."""
        self.net.eval()
        with torch.no_grad():
            return torch.cat([self.net(rows) for rows in torch.split(x, ROWS_PER_PASS)])[:, self.own_columns(task)]

    def class_log_probabilities(self, x: Tensor) -> Tensor:
        """log p over all classes seen so far, N×C (incremental class)."""
        self.net.eval()
        with torch.no_grad():
            parts = [self.net(rows)[:, : self.learned].double() for rows in torch.split(x, ROWS_PER_PASS)]
        return torch.cat(parts).log_softmax(1)

    def predict(
        self, x: Tensor, task: Tensor | None, *, marginal: bool, posterior_samples: int, seed: int
    ) -> Prediction:
        if task is None and self.problem.setting == "task" and not self.serves_both:
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
                probabilities[rows, self.own_columns(t)] = self.logits(x[rows], t).double().softmax(1)
        return class_prediction(probabilities, columns, len(self.classes), task)

    # Storing

    def configuration(self) -> dict[str, Any]:
        """What `create` needs to make the same untrained method again."""
        return {**self.problem.to_json(), "settings": self.settings.to_json(), "seed": self.seed}

    @classmethod
    def create(cls, configuration: Mapping[str, Any], device: str | torch.device = "cpu") -> Self:
        settings = cls.settings_type.from_json(configuration["settings"])
        return cls(Problem.from_json(configuration), settings, seed=configuration["seed"], device=device)

    def state(self) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
        content: dict[str, Any] = {"classes": [list(classes) for classes in self.classes]}
        return content, {"network": dict(self.net.state_dict()), "kept": self.kept()}

    def kept(self) -> dict[str, Tensor]:
        """The child's own tensors that must survive between tasks, by name."""
        found = {name: getattr(self, name) for name in self.keeps}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def load_kept(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `kept`; tensors are on the method's device, `self.classes` is in place."""
        for name in self.keeps:
            setattr(self, name, tensors.get(name))

    def load_state(self, content: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.net.load_state_dict(dict(files["network"]))
        self.classes = [tuple(classes) for classes in content["classes"]]
        self.net.eval()
        self.load_kept({name: tensor.to(self.device) for name, tensor in files["kept"].items()})

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.net.parameters())

    def memory(self) -> dict[str, int]:
        """Bytes kept between tasks, by kind; the network itself is `network`."""
        return {"network": total_bytes(self.net.state_dict().values())} | {
            name: tensor.nbytes for name, tensor in self.kept().items()
        }


def total_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def class_prediction(
    probabilities: Tensor, columns: tuple[tuple[int, int], ...], tasks: int, task: Tensor | None
) -> Prediction:
    """A `Prediction` from class probabilities; the task of a row is its best class's where none was given."""
    owner, label = torch.tensor(columns, device=probabilities.device).unbind(1)
    best = probabilities.argmax(1)
    task = None if task is None else task.to(probabilities.device)
    per_task = torch.stack([probabilities[:, owner == t].sum(1) for t in range(tasks)], 1)
    return Prediction(
        labels=label[best],
        probabilities=probabilities,
        classes=columns,
        task=owner[best] if task is None else task,
        task_probabilities=per_task if task is None else F.one_hot(task, tasks).double(),
        entropy=entropy(probabilities),
    )
