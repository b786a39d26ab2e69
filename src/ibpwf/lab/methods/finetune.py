"""Fine-tuning, one task after another: where catastrophic forgetting was first seen."""

from __future__ import annotations

from typing import ClassVar

from ibpwf.lab.methods.dense import DenseMethod, DenseSettings, Optimizer
from ibpwf.parts import Positive


class SGDSettings(DenseSettings):
    learning_rate: Positive = 1e-2
    optimizer: Optimizer = "sgd"


class SGD(DenseMethod):
    name: ClassVar[str] = "sgd"
    summary: ClassVar[str] = "fine-tuning with stochastic gradient descent"
    settings_type: ClassVar[type[DenseSettings]] = SGDSettings


class Adam(DenseMethod):
    name: ClassVar[str] = "adam"
    summary: ClassVar[str] = "fine-tuning with Adam"


class AdagradSettings(DenseSettings):
    optimizer: Optimizer = "adagrad"


class Adagrad(DenseMethod):
    name: ClassVar[str] = "adagrad"
    summary: ClassVar[str] = "fine-tuning with Adagrad"
    settings_type: ClassVar[type[DenseSettings]] = AdagradSettings
