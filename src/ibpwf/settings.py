"""Every setting of IBP-WF in one place: checked once, frozen, and the same in Python, JSON and on the command
line (`--set name=value`)."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from ibpwf.errors import InputError, unknown


def check_fields(settings: object) -> None:
    """Refuse a dataclass field whose value is not of its declared type."""
    hints = typing.get_type_hints(type(settings))
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        value = getattr(settings, field.name)
        if not _fits(value, hints[field.name]):
            raise InputError(f"{field.name} is {value!r}; expected {_spell(hints[field.name])}.")


def _fits(value: object, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin is Literal:
        return value in typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if origin in (dict, Mapping) or hint is dict:
        options = typing.get_args(hint)
        return isinstance(value, dict) and all(
            isinstance(key, str) and _fits(item, options[1]) for key, item in value.items()
        )
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(v, typing.get_args(hint)[0]) for v in value)
    if hint is type(None):
        return value is None
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _spell(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin is Literal:
        return " or ".join(repr(option) for option in typing.get_args(hint))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_spell(option) for option in typing.get_args(hint))
    if origin is dict:
        return "a mapping from layer patterns to numbers"
    if origin is tuple:
        return f"a list of {_spell(typing.get_args(hint)[0])}"
    names = {type(None): "none", float: "a number", int: "a whole number", str: "text", bool: "true or false"}
    return names.get(hint, str(hint))


def require(ok: bool, field: str, value: object, remedy: str) -> None:
    if not ok:
        raise InputError(f"{field} is {value}; {remedy}.")


@dataclass(frozen=True)
class FrozenSettings:
    """A frozen dataclass whose fields are checked against their types and that goes to JSON and back."""

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None and "none" in typing.get_args(hints[field.name]):  # as `--set augment=none` says it
                object.__setattr__(self, field.name, "none")
            elif isinstance(value, np.generic):  # a sweep over a NumPy array hands in NumPy's numbers
                object.__setattr__(self, field.name, value.item())
            elif isinstance(value, list):
                object.__setattr__(self, field.name, tuple(value))
        check_fields(self)

    def to_json(self) -> dict[str, Any]:
        return {
            field.name: list(value) if isinstance(value := getattr(self, field.name), tuple) else value
            for field in dataclasses.fields(self)
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return cls().replace(**values)

    def replace(self, **changes: Any) -> Self:
        """A copy with some settings changed; an unknown name is refused with the nearest one suggested."""
        names = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in names:
                raise unknown("setting", name, names)
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class Settings(FrozenSettings):
    """How IBP-WF factorises, trains and infers. Names follow the paper.

    Factorisation: `alpha` (IBP's expected factors per task, per layer pattern if a mapping, "auto" for half of
    what each weight's rank allows), `max_factors` (the paper's truncation K; none lets the dictionary grow),
    `heads` ("shared" factorised head or a dense one "per-task"), `strength_std` (spread of the initial r), `init`
    ("random" factors, or "pretrained": fitted to the network's own weights).
    ELBO phase: `epochs`, `batch_size`, `learning_rate`, `temperature` (of the Concrete distribution, reached
    from `temperature_start` by a factor `temperature_decay` a step), `kl_weight`, `kl_terms` (of the series in
    appendix B; none for its exact sum), `clip` (gradient values), `weight_decay`, `schedule`, `augment`
    ("crop-flip": images are moved and mirrored at random), `precision` of a GPU's products in training ("tfloat32":
    of numbers rounded to 10 bits; "bfloat16": convolutions and layers to 8, weights composed from 10; parameters
    are kept, and answers given, in float32).
    End of a task: `kappa` (factors with π̄ ≥ κ are locked), `finetune_epochs` with the selection fixed.
    Task inference: `gaussians` per "task" (the paper), per "class", or per class with one "shared" covariance;
    `inference_layers` ("auto": the first layer before its activation; "random": a fixed random layer of
    `random_features` units, "auto" for 2,000 where the first task has 1,000 rows or more and 1,000 otherwise; what a
    task stores is 8 bytes times the square); `inference_features` (a layer's "outputs", or what its single
    "factors" make of the input: more than the outputs tell, where a layer has more factors than outputs); `ridge`
    (relative to the first task's variance, the same for all tasks; of a shared covariance it is a prior that fades
    with the rows seen); `shrinkage` (how far, from 0 to 1, each Gaussian's covariance goes towards the mean of all).
    """

    alpha: float | Literal["auto"] | dict[str, float] = "auto"
    max_factors: int | dict[str, int] | None = None
    heads: Literal["shared", "per-task"] = "shared"
    strength_std: float = 0.316
    init: Literal["random", "pretrained"] = "random"
    epochs: int = 10
    finetune_epochs: int = 5
    batch_size: int = 32
    learning_rate: float = 1e-3
    finetune_learning_rate: float | None = None
    schedule: Literal["constant", "cosine"] = "constant"
    weight_decay: float = 0.0
    augment: Literal["none", "crop-flip"] = "none"
    precision: Literal["float32", "tfloat32", "bfloat16"] = "float32"
    clip: float | None = None
    temperature: float = 2 / 3
    temperature_start: float | None = None
    temperature_decay: float = 0.99
    kl_weight: float = 1.0
    kl_terms: int | None = None
    kappa: float = 0.5
    gaussians: Literal["task", "class", "shared"] = "task"
    inference_layers: Literal["auto", "random"] | tuple[str, ...] = "auto"
    inference_features: Literal["outputs", "factors"] = "outputs"
    random_features: int | Literal["auto"] = "auto"
    ridge: float = 1e-4
    shrinkage: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for number in self.alpha.values() if isinstance(self.alpha, dict) else [self.alpha]:
            require(number == "auto" or number > 0, "alpha", number, "it must be above 0")
        caps = self.max_factors.values() if isinstance(self.max_factors, dict) else [self.max_factors]
        for cap in caps:
            require(cap is None or cap >= 1, "max_factors", cap, "give at least 1, or none to grow freely")
        require(0 <= self.shrinkage <= 1, "shrinkage", self.shrinkage, "it is a share from 0 to 1")
        require(
            self.shrinkage == 0 or self.gaussians != "shared",
            "shrinkage",
            self.shrinkage,
            "with gaussians=shared all have one covariance already; leave it at 0",
        )
        require(0 < self.kappa < 1, "kappa", self.kappa, "it is a probability strictly between 0 and 1")
        for name in ("strength_std", "learning_rate", "temperature", "ridge"):
            require(getattr(self, name) > 0, name, getattr(self, name), "it must be above 0")
        for name in ("finetune_learning_rate", "clip", "temperature_start", "kl_terms"):
            value = getattr(self, name)
            require(value is None or value > 0, name, value, "it must be above 0, or none")
        for name in ("epochs", "batch_size", "random_features"):
            value = getattr(self, name)
            require(value == "auto" or value >= 1, name, value, "give at least 1")
        for name in ("finetune_epochs", "weight_decay", "kl_weight"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "it cannot be negative")
        require(
            0 < self.temperature_decay <= 1,
            "temperature_decay",
            self.temperature_decay,
            "give more than 0 and at most 1",
        )


def parse_assignment(text: str) -> tuple[str, Any]:
    """`name=value` from the command line; values are JSON where they can be, text otherwise."""
    name, sign, raw = text.partition("=")
    if not sign or not name.strip():
        raise InputError(f"'{text}' is not a setting; write --set name=value, such as --set alpha=300.")
    try:
        value = json.loads(raw)
    except json.JSONDecodeError:
        value = None if raw.strip().lower() == "none" else raw.strip()
    return name.strip().replace("-", "_"), value
