"""A network of its own for every task that also learns by how much an image was turned, and so what is not its own.

What IBP-WF's experts learn with `turns=4` (`ibpwf.views`), without factors: with the task given, the largest
mean logit of its network answers; with the task inferred, the largest of all networks, raw as they are. With
`turns=1` they are plain networks, which know nothing of what is not theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.errors import InputError
from ibpwf.lab.methods.dense import DenseSettings
from ibpwf.lab.methods.expansion import Separate
from ibpwf.models import resnet9, resnet20
from ibpwf.parts import Count, Positive
from ibpwf.training.method import TaskData
from ibpwf.training.objective import Loss, batch_accuracy
from ibpwf.training.phase import Phase
from ibpwf.views import views_of

IMAGES_AT_ONCE = 512
SMALLEST_IMAGE = 8
"""Pixels across that resnet9, which halves an image three times, can read."""


class SeparateTurnsSettings(DenseSettings):
    network: Literal["mlp", "resnet20", "resnet9"] = Field(
        "resnet9", description="resnet20 or resnet9; square gray images may come as flat rows"
    )
    width: Count | None = Field(
        None, description="channels of the network's first convolution; none: the usual 16 of resnet20, 64 of resnet9"
    )
    learning_rate: Positive = Field(1e-3, description="at the start; it falls along half a cosine")
    turns: Literal[1, 4] = Field(
        4, description="4: a network also learns by how many quarter turns an image was turned"
    )
    mirror: bool = Field(
        False,
        description="an image and its mirror image mean the same: half of those learned from are mirrored, and an "
        "answer is about both",
    )


class SeparateTurns(Separate):
    """A task's network has an output for each of its classes in each turn."""

    networks: ClassVar[tuple[str, ...]] = ("resnet20", "resnet9")
    name: ClassVar[str] = "separate-turns"
    summary: ClassVar[str] = "a network per task that also learns how images were turned; the largest logit of all"
    answers: ClassVar[tuple[str, ...]] = ("task", "class")
    serves_both: ClassVar[bool] = True
    settings_type: ClassVar[type[DenseSettings]] = SeparateTurnsSettings
    settings: SeparateTurnsSettings

    def build(self) -> nn.ModuleList:
        self.images(torch.empty(0, *self.problem.input_shape, dtype=torch.float32))
        return super().build()

    def images(self, x: Tensor) -> Tensor:
        """Rows as images, if they are such that this network and these turns can read."""
        shape, s = self.problem.image_shape, self.settings
        given = f"but examples have shape {self.problem.input_shape}"
        if shape is None:
            raise InputError(
                f"network is {s.network}, which needs images (channels, height, width) or square gray ones in flat "
                f"rows, {given}; method '{self.name}' has no other, 'separate' learns any rows."
            )
        if s.turns > 1 and shape[1] != shape[2]:
            raise InputError(f"turns is {s.turns}, which needs square images, {given}; set turns=1, or crop them.")
        if s.network == "resnet9" and min(shape[1:]) < SMALLEST_IMAGE:
            raise InputError(f"network is resnet9, which needs images from 8×8, {given}; set network=resnet20.")
        return x.reshape(len(x), *shape)

    @property
    def template(self) -> nn.Module:
        """A convolution: all threads are of use, whatever its size."""
        return nn.Conv2d(1, 1, 3, device="meta", dtype=torch.float32)

    def module(self, task: int, outputs: int) -> nn.Module:
        s, shape = self.settings, self.problem.image_shape
        assert shape is not None
        if s.network == "resnet20":
            return resnet20(width=s.width or 16, classes=s.turns * outputs, in_channels=shape[0])
        return resnet9(width=s.width or 64, classes=s.turns * outputs, in_channels=shape[0])

    def begin_task(self, data: TaskData) -> Sequence[Phase]:
        return [replace(phase, schedule="cosine") for phase in super().begin_task(data)]

    def loss(self, x: Tensor, y: Tensor) -> Loss:
        """Cross-entropy on class and turn; the share of unturned images whose class is found."""
        s, classes = self.settings, len(self.task.classes)
        views, x = views_of(s.turns), self.images(x)
        if s.mirror:  # rows come in random order, so every other one is a random half
            every_other = torch.arange(len(x), device=x.device).view(-1, 1, 1, 1) % 2 == 0
            x = torch.where(every_other, x.flip(-1), x)
        out = self.net[self.task.index](views.train(x))
        fit = F.cross_entropy(out, views.labels(y, classes))
        return Loss(fit, accuracy=batch_accuracy(out[: len(y), :classes], y))

    def forward(self, x: Tensor, task: int) -> Tensor:
        """The mean of the matching outputs over turns and mirrorings."""
        s, classes = self.settings, len(self.known[task])
        parts = torch.split(self.images(x), IMAGES_AT_ONCE)
        views = views_of(s.turns, mirror=s.mirror)
        return torch.cat([views.scores(self.net[task], part, classes) for part in parts])

    def class_log_probabilities(self, x: Tensor) -> Tensor:
        """Whatever each network takes for likely, raw outputs decide between them."""
        scores = torch.cat([self.logits(x, task) for task in range(len(self.classes))], 1)
        return scores.double().log_softmax(1)
