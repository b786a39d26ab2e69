"""Any method that also learns by how much an image was turned: `ewc+turns` is `ewc` on tasks of 4C classes.

The method itself is as it was. It is given every image in all four quarter turns, class c turned k times being class
kC + c of the task, and an answer is about the outputs that match, over all turns (`ibpwf.views`):

    log p(c | x) = mean over k of log p(kC + c | turn_k(x)) + const

What it costs is four times the rows to learn from, and four passes to answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ibpwf.data.rows import Rows
from ibpwf.errors import InputError
from ibpwf.inference.prediction import Prediction
from ibpwf.lab.methods.dense import Problem, class_prediction
from ibpwf.method import IBPWF
from ibpwf.training.method import Loss, Method, TaskData
from ibpwf.training.phase import Phase
from ibpwf.views import Rotations

TURNS = Rotations.copies
SMALLEST = 1e-300
"""Of a probability whose logarithm is taken."""


class Turned(Method):
    """A method, `plain`, which knows of turned classes alone. `kind` is its class."""

    kind: ClassVar[type[Method]]

    def __init__(self, plain: Method, problem: Problem) -> None:
        self.plain, self.problem = plain, problem
        self.classes: list[tuple[int, ...]] = []
        self._data: TaskData | None = None
        shape = problem.image_shape
        if shape is None or shape[1] != shape[2]:
            raise InputError(
                f"method '{self.name}' turns images, which must be square, but examples have shape "
                f"{problem.input_shape}; give square images, or run '{self.kind.name}'."
            )
        if getattr(getattr(plain, "settings", None), "augment", "none") != "none":
            raise InputError(
                f"augment mirrors images that method '{self.name}' has turned, and a mirrored quarter turn is "
                "another one; set augment=none."
            )
        self.tf32, self.bfloat16, self.capturable = plain.tf32, plain.bfloat16, plain.capturable
        self.decides_on_host, self.sets_rate = plain.decides_on_host, plain.sets_rate
        self.views = Rotations().of_images(shape if len(problem.input_shape) == 1 else None)

    # Learning

    def begin_task(self, data: TaskData) -> Sequence[Phase]:
        classes = len(data.classes)
        first = TURNS * sum(map(len, self.classes))
        self._data = TaskData(
            data.name,
            data.index,
            tuple(range(first, first + TURNS * classes)),
            self.views.train(data.x),
            self.views.labels(data.y, classes),
            data.seed,
            data.serial,
        )
        return self.plain.begin_task(self._data)

    def rows_to_train(self, data: TaskData) -> Rows:
        return self.plain.rows_to_train(self._turned_data)

    def end_task(self, data: TaskData) -> None:
        self.plain.end_task(self._turned_data)
        self.classes.append(data.classes)
        self._data = None

    @property
    def _turned_data(self) -> TaskData:
        assert self._data is not None, "no task has begun"
        return self._data

    @property
    def least_classes(self) -> int:
        """A class in four turns is four."""
        return math.ceil(self.plain.least_classes / TURNS)

    # Answering

    def logits(self, x: Tensor, task: int) -> Tensor:
        return self.views.scores(lambda rows: self.plain.logits(rows, task), x, len(self.classes[task]))

    def predict(
        self, x: Tensor, task: Tensor | None, *, marginal: bool, posterior_samples: int, seed: int
    ) -> Prediction:
        columns = tuple((t, label) for t, labels in enumerate(self.classes) for label in labels)
        widths = [len(labels) for labels in self.classes]
        total = torch.zeros(len(x), len(columns), dtype=torch.float64, device=x.device)
        for turn, rows in self.views(x):
            said = self.plain.predict(
                rows, task, marginal=marginal, posterior_samples=posterior_samples, seed=seed
            ).probabilities
            of_tasks = torch.split(said.double(), [TURNS * width for width in widths], 1)
            matching = [p[:, turn * width : (turn + 1) * width] for p, width in zip(of_tasks, widths, strict=True)]
            total += torch.cat(matching, 1).clamp(min=SMALLEST).log()
        if task is not None:
            owner = torch.repeat_interleave(torch.arange(len(widths)), torch.tensor(widths)).to(x.device)
            total = total.masked_fill(owner != task.to(x.device).unsqueeze(1), -torch.inf)
        return class_prediction((total / TURNS).softmax(1), columns, len(widths), task)

    def trial(self, x: Tensor) -> object:
        return self.plain.trial(x)

    # Storing

    def configuration(self) -> dict[str, Any]:
        return {**self.plain.configuration(), "outputs": self.problem.outputs}

    @classmethod
    def create(cls, configuration: Mapping[str, Any], device: str | torch.device = "cpu") -> Self:
        problem = Problem.from_json(configuration)
        return cls(cls.kind.create({**configuration, "outputs": TURNS * problem.outputs}, device), problem)

    def state(self) -> tuple[dict[str, Any], Mapping[str, Mapping[str, Tensor]]]:
        content, files = self.plain.state()
        return {"classes": [list(labels) for labels in self.classes], "plain": content}, files

    def load_state(self, content: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.plain.load_state(content["plain"], files)
        self.classes = [tuple(labels) for labels in content["classes"]]

    # As the method has it

    @property
    def device(self) -> torch.device:
        return self.plain.device

    @property
    def template(self) -> nn.Module:
        return self.plain.template

    def parameters(self, phase: Phase) -> Sequence[nn.Parameter]:
        return self.plain.parameters(phase)

    def loss(self, x: Tensor, y: Tensor) -> Loss:
        return self.plain.loss(x, y)

    def make_optimizer(self, phase: Phase, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        return self.plain.make_optimizer(phase, parameters)

    def generators(self) -> Sequence[torch.Generator]:
        return self.plain.generators()

    def buffers(self) -> Sequence[Tensor]:
        return self.plain.buffers()

    def after_backward(self) -> None:
        self.plain.after_backward()

    def on_host(self) -> None:
        self.plain.on_host()

    def after_step(self) -> None:
        self.plain.after_step()

    def after_epoch(self, phase: Phase, epoch: int) -> bool:
        return self.plain.after_epoch(phase, epoch)

    def memory(self) -> dict[str, int]:
        return self.plain.memory()

    def parameter_count(self) -> int:
        return self.plain.parameter_count()


def with_turns(kind: type[Method], name: str) -> type[Turned]:
    """The method `name`, which is `kind` with turns."""
    if kind is IBPWF or "turns" in kind.settings_type.model_fields:
        raise InputError(f"method '{kind.name}' learns turns by itself: set turns=4 (--set turns=4) instead.")
    if issubclass(kind, Turned):
        raise InputError(f"method '{name}' has turns twice; run '{kind.name}'.")
    told = {
        "kind": kind,
        "name": name,
        "summary": f"{kind.name} that also learns how images were turned",
        "stores": kind.stores,
        "answers": kind.answers,
        "serves_both": kind.serves_both,
        "settings_type": kind.settings_type,
        "networks": getattr(kind, "networks", ("mlp",)),
    }
    return type(f"{kind.__name__}WithTurns", (Turned,), {**told, "__module__": __name__})
