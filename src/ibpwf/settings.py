"""Every setting of IBP-WF in one place: described, checked once, frozen, and the same in Python, JSON and on the
command line (`--set name=value`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from ibpwf.factors.prior import IBP, Prior
from ibpwf.images import Images
from ibpwf.inference.kinds import Gaussian, TaskInference
from ibpwf.likelihoods import Categorical, Likelihood
from ibpwf.parts import Auto, Count, FrozenSettings, NotNegative, OfGroup, Positive, Probability, require

SHORTHAND = frozenset(IBP.model_fields)
"""Settings that stand for those of `prior=IBP(...)`."""


class Factorization(FrozenSettings):
    """How a network is factorized: what `factorize` takes."""

    alpha: Positive | Auto | dict[str, Positive] = Field(
        "auto",
        description="the IBP's expected number of factors per task and layer: a number, a mapping from layer-name or "
        "type patterns to numbers, or 'auto' for half of what each weight's rank allows, or 4 beside a "
        "frozen base",
    )
    max_factors: Count | dict[str, Count] | None = Field(
        None, description="cap on a layer's dictionary (the paper's truncation K); none lets it grow as needed"
    )
    heads: Literal["shared", "per-task"] = Field(
        "shared", description="one head factorized like any other layer, or a dense one of its own for every task"
    )
    strength_std: Positive = Field(
        0.316, description="spread of the initial strengths r; beside a frozen base they start at 1"
    )
    init: Literal["random", "pretrained", "anew"] = Field(
        "random",
        description="factors drawn at random, or fitted to the network's own weights, which later tasks go on from "
        "('pretrained'); 'anew': those of later tasks are fitted to weights newly drawn",
    )
    base: Literal["none", "frozen"] = Field(
        "none",
        description="frozen: the network's own weights stay as they are, and a task's factors are its difference "
        "from them",
    )
    length: Count | None = Field(
        None,
        description="tokens that every example of a network of token ids is filled up to; none: the longest of the "
        "first task",
    )
    prior: Annotated[Prior, OfGroup("prior")] | None = Field(
        None,
        description="which factors tasks use and how many: 'ibp', or 'constant-growth' with as many new factors for "
        "every task; none: the IBP with the settings alpha, max_factors, strength_std, kappa, temperature and "
        "kl_terms, which are for that alone",
    )


class Schedule(NamedTuple):
    """How long and how fast a task is trained."""

    epochs: int
    finetune_epochs: int
    batch_size: int
    learning_rate: float


def automatic_schedule(rows: int) -> Schedule:
    """What "auto" stands for in a task of so many rows.

    What counts is steps, not passes: few rows are learned in some hundred small, bold steps, more of them in about
    600, a great many in 10 or 5 passes. Half as many epochs again fine-tune.
    """
    if rows < 500:
        epochs, batch, rate = min(math.ceil(400 / max(1, rows // 16)), 100), 16, 3e-3
    else:
        batch = 32 if rows < 4_000 else 64 if rows < 40_000 else 128 if rows < 400_000 else 256
        epochs, rate = max(math.ceil(600 / (rows // batch)), 10 if rows < 40_000 else 5), 1e-3
    return Schedule(epochs, (epochs + 1) // 2, batch, rate)


def longest_schedule(rows: int) -> Schedule:
    """What "auto" stands for where held-out rows end the training: as long as it may take at most. Some 300 steps
    choose factors, 2,500 fine-tune."""
    sizes = ((2_000, 64, 2e-3), (4_000, 128, 3e-3), (128_000, 256, 4e-3))
    batch, rate = next(((batch, rate) for most, batch, rate in sizes if rows < most), (1024, 4e-3))
    steps = max(rows // batch, 1)
    return Schedule(min(max(math.ceil(300 / steps), 2), 30), min(max(math.ceil(2_500 / steps), 7), 120), batch, rate)


class Settings(Factorization):
    """How IBP-WF factorizes, trains and infers. Names follow the paper.

    Examples
    --------
    >>> from ibpwf import Patches, Router
    >>> settings = Settings(epochs=20, inference=Router(ridge=0.01, features=Patches(filters="large")))
    >>> settings == Settings(**{"epochs": 20, "inference": "router", "inference.ridge": 0.01,
    ...                         "inference.features": "patches", "inference.features.filters": "large"})
    True
    """

    fixed: ClassVar[frozenset[str]] = frozenset(
        {*Factorization.model_fields, "inference", "input", "likelihood", "mirror"}
    )
    at_prediction: ClassVar[frozenset[str]] = frozenset({"views", "accelerate"})

    epochs: Count | Auto = Field("auto", description="passes over a task's rows in the ELBO phase; 'auto': by rows")
    finetune_epochs: Annotated[int, Field(ge=0)] | Auto = Field(
        "auto", description="passes with the selection fixed and no KL; 'auto': half of epochs, rounded up"
    )
    batch_size: Count | Auto = Field("auto", description="rows in a mini-batch; 'auto': by rows")
    learning_rate: Positive | Auto = Field("auto", description="'auto': by rows")
    early_stopping: bool = Field(
        False,
        description="the validation split, at most 2,000 rows of a task, ends each phase once it is answered no "
        "better; epochs and finetune_epochs are then the most it takes. Without effect where there are "
        "fewer than 30 such rows, or batch normalization",
    )
    selection_rate: Positive = Field(1.0, description="how many times as fast as all else π̄, c and d are learned")
    schedule: Literal["constant", "cosine"] = Field(
        "constant", description="of the learning rate: constant, or half a cosine over each phase"
    )
    optimizer: Literal["adam", "sgd", "adagrad"] = Field("adam", description="torch's optimizer of that name")
    weight_decay: NotNegative = Field(0.0, description="the optimizer's")
    augment: Literal["none", "crop-flip"] = Field(
        "none", description="crop-flip: images are moved by up to four pixels and mirrored at random"
    )
    turns: Literal[1, 4] = Field(
        1,
        description="4: each task also learns by how many quarter turns an image was turned, and so what is not its "
        "own; for square images",
    )
    precision: Literal["float32", "tfloat32", "bfloat16"] = Field(
        "float32",
        description="of a GPU's products in training: tfloat32 rounds their numbers to 10 bits; bfloat16 "
        "convolutions and layers to 8, weights composed from 10; parameters are kept, and answers given, in float32",
    )
    clip: Annotated[float, Field(gt=0, le=1e30)] | None = Field(
        None, description="gradients are cut to this value either way; none: not at all"
    )
    temperature: Positive = Field(2 / 3, description="of the Concrete distribution")
    temperature_start: Positive | None = Field(
        None, description="where the temperature starts, to fall by temperature_decay a step; none: at temperature"
    )
    temperature_decay: Annotated[float, Field(gt=0, le=1)] = Field(0.99, description="see temperature_start")
    kl_terms: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="terms of the series in appendix B (the paper takes 10); none sums it exactly"
    )
    kappa: Probability = Field(0.5, description="factors with π̄ ≥ κ are locked when a task ends, and read by it")
    selection_loss: Annotated[float, Field(ge=0, le=100)] = Field(
        10.0,
        description="percentage points of accuracy that dropping the factors with π̄ < κ may cost a task; where it "
        "would cost more, the most probable of them are kept (100: never, as in the paper)",
    )
    inference: Annotated[TaskInference, OfGroup("inference")] = Field(
        Gaussian(), description="how the task of an input is inferred from its features φ(x)"
    )
    input: Annotated[Images, OfGroup("input")] = Field(Images(), description="what inputs are like")
    mirror: bool = Field(
        False,
        description="an image and its mirror image mean the same: tasks learned with turns answer for both; for "
        "photographs, not for digits",
    )
    validation_fraction: Annotated[float, Field(ge=0, le=0.5)] = Field(
        0.0,
        description="share of each class's rows, at most 500 in a task, that nothing is learned from, and which then "
        "tell how sure answers may be, how much router and experts count, and what is usual for the task",
    )
    views: Literal["all", "plain"] = Field(
        "all",
        description="a task learned with turns answers by the mean over all turns (and mirror images), or by the "
        "image as it is ('plain'), which is up to eight times as fast",
    )
    likelihood: Annotated[Likelihood, OfGroup("likelihood")] = Field(
        Categorical(), description="log p(y | x, t): what targets are, and what training minimizes"
    )
    accelerate: bool = Field(
        True,
        description="use the faster stand-ins of ibpwf.fast; false runs the reference functions alone "
        "(as IBPWF_ACCELERATE=0 in the environment does)",
    )

    def check_settings(self) -> None:
        if self.prior is not None:
            for name in SHORTHAND:
                value = getattr(self, name)
                remedy = f"prior is {self.prior.kind_name()}, which has its own settings; leave one of the two out"
                require(value == type(self).model_fields[name].default, name, value, remedy)

    @property
    def faster(self) -> dict[str, Any]:
        """What makes predictions faster, and a little less accurate: few experts, each asked once."""
        inner = {f"inference.{name}": value for name, value in self.inference.faster().items()}
        return {"views": "plain", **inner}

    @property
    def factorization(self) -> dict[str, Any]:
        """What `factorize` takes of these."""
        names = {*Factorization.model_fields} - ({"prior"} if self.prior is None else SHORTHAND)
        return {name: getattr(self, name) for name in names}

    @property
    def full_prior(self) -> Prior:
        """The prior, also where only its settings were given."""
        return IBP(**{name: getattr(self, name) for name in SHORTHAND}) if self.prior is None else self.prior

    @classmethod
    def merged(cls, *layers: Mapping[str, Any]) -> dict[str, Any]:
        """As of all settings; a prior drops what earlier layers say of the IBP by shorthand."""
        found: dict[str, Any] = {}
        for layer in layers:
            refined = [name for name in layer if name.startswith("prior.")]
            if "prior" in layer or refined:
                found = {name: value for name, value in found.items() if name not in SHORTHAND}
                if found.get("prior") is None and "prior" not in layer:
                    layer = {"prior": IBP.kind, **layer}
            if found.get("prior") is None:
                found.pop("prior", None)
            found = super().merged(found, layer)
        return found

    def schedule_for(self, rows: int, *, stopped: bool = False) -> Schedule:
        """How long and how fast a task of so many rows is trained; at most, where held-out rows stop it."""
        few = rows < 1_000 and self.epochs != "auto"  # so many passes in large batches would be few steps
        auto = longest_schedule(rows) if stopped and not few else automatic_schedule(rows)
        epochs = auto.epochs if self.epochs == "auto" else self.epochs
        finetune = auto.finetune_epochs if self.epochs == "auto" and stopped else (epochs + 1) // 2
        return Schedule(
            epochs,
            finetune if self.finetune_epochs == "auto" else self.finetune_epochs,
            auto.batch_size if self.batch_size == "auto" else self.batch_size,
            auto.learning_rate if self.learning_rate == "auto" else self.learning_rate,
        )
