"""Fine-tuning, one task after another: where catastrophic forgetting was first seen."""

from __future__ import annotations

from typing import ClassVar, Literal

from ibpwf.lab.methods.dense import DenseMethod, DenseSettings


class SGDSettings(DenseSettings):
    learning_rate: float = 1e-2
    optimizer: Literal["adam", "sgd", "adagrad"] = "sgd"


class AdagradSettings(DenseSettings):
    optimizer: Literal["adam", "sgd", "adagrad"] = "adagrad"


class SGD(DenseMethod):
    name: ClassVar[str] = "sgd"
    summary: ClassVar[str] = "fine-tuning with stochastic gradient descent"
    settings_type: ClassVar[type[DenseSettings]] = SGDSettings


class Adam(DenseMethod):
    name: ClassVar[str] = "adam"
    summary: ClassVar[str] = "fine-tuning with Adam"


class Adagrad(DenseMethod):
    name: ClassVar[str] = "adagrad"
    summary: ClassVar[str] = "fine-tuning with Adagrad"
    settings_type: ClassVar[type[DenseSettings]] = AdagradSettings
