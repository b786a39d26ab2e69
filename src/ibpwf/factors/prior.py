"""Which factors a task uses and how many: the prior over the selection, and the posterior that a task learns.

`IBP` is the paper's, the stick-breaking Indian buffet process (`factors.sticks`, appendix A); `ConstantGrowth` has
nothing to learn. Another prior is a subclass of `Prior` (docs/extending.md).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from ibpwf.errors import InputError
from ibpwf.factors.distributions import kumaraswamy_log_mean
from ibpwf.factors.posterior import LayerVectors, StickPosterior, StickVectors, TaskPosterior
from ibpwf.factors.sticks import expected_probabilities, logit_from_log
from ibpwf.factors.weights import Weight, adapter_alpha, automatic_alpha, per_layer
from ibpwf.parts import Auto, Count, Part, Positive, Probability, register

V = TypeVar("V", bound=LayerVectors)

CERTAIN = 30.0
"""The logit of a factor that every task uses: its probability rounds to 1 in float32."""

SURE, UNLIKELY = 0.99, 0.25
"""The least π̄ of a factor that a task starts with as good as selected, but may still switch off; and the most of one
that it does not use: below every usual κ, and within the next task's reach."""

UNBROKEN = 1000.0
"""Of a stick v ~ Kumaraswamy(c, 1) that next to nothing is broken off: its mean is c / (c + 1)."""

MOST_FACTORS = 10_000
"""The largest α of any layer, unless its weight has a tenth of that rank or more: ten times the rank then."""


class LayerShape(NamedTuple):
    """A factorized layer: its name, and its weight as a matrix of inputs × outputs."""

    name: str
    inputs: int
    outputs: int

    @property
    def rank(self) -> int:
        return min(self.inputs, self.outputs)


class Prior(Part, ABC):
    """p and q over the factors that tasks use, by layer.

    Positions are places in the order of factors that a layer has, from 0: locked ones, which some task uses, and free
    ones that the next task may use. A subclass must have `width` and `start`.
    """

    group: ClassVar[str] = "prior"
    fixed: ClassVar[frozenset[str]] = frozenset({"strength_std"})
    vectors: ClassVar[type[LayerVectors]] = LayerVectors
    """What is stored of a task for each layer."""
    has_kl: ClassVar[bool] = True
    """Whether there is a selection to learn; without one, tasks have no ELBO phase."""
    can_forget: ClassVar[bool] = True

    strength_std: Positive = Field(
        0.316, description="spread of the initial strengths r; beside a frozen base they start at 1"
    )

    def for_layers(self, weights: Mapping[str, Weight], shapes: Sequence[LayerShape], *, beside_base: bool) -> Self:
        """The same prior with a number for every layer where settings have patterns or 'auto'."""
        return self

    @abstractmethod
    def width(self, layer: LayerShape, task: int, locked: int, used: int) -> int:
        """How many positions a task is offered before it starts, locked ones included.

        Parameters
        ----------
        layer
            The layer.
        task
            The number of the task, from 1; always 1 beside a frozen base, where tasks have little in common.
        locked
            How many factors earlier tasks have locked.
        used
            How many positions were offered to any task so far.
        """

    @abstractmethod
    def start(self, layer: LayerShape, strength: Tensor, previous: LayerVectors | None) -> LayerVectors:
        """Where q of a task starts, with these strengths; it is also p. `previous` has the vectors of the task
        before, or in the middle of a task its own; there may be fewer of them than strengths."""

    def posterior(self, start: Sequence[Any], prior: Sequence[Any]) -> TaskPosterior:
        """q, to be trained: a row per layer, from where it starts and from p."""
        return TaskPosterior(start, prior)

    def shortage(self, layer: LayerShape, active: int, free: int, locked: int) -> int:
        """How many positions to add in the middle of a task that uses `active` of its `free` ones."""
        return 0

    def capped(self, layer: LayerShape, width: int, locked: int) -> int:
        """At most so many of these positions may be offered, but never fewer than are locked."""
        return width

    def check_room(self, layer: LayerShape, factors: int) -> None:
        """Reject more factors in a layer than it may have."""

    def logit(self, vectors: Any) -> Tensor:
        """logit of q(b = 1), the probability that a task uses a factor."""
        return torch.full_like(vectors.strength, CERTAIN)

    def selected(self, vectors: Any) -> Tensor:
        """Which factors the task uses when it ends."""
        return self.logit(vectors) >= 0

    def sure(self, vectors: V, at: Tensor) -> V:
        """The same, but with these positions as good as selected."""
        return vectors

    def unlikely(self, vectors: V, at: Tensor) -> V:
        """The same, but with these positions not selected."""
        return vectors

    def beside_base(self, layer: LayerShape, vectors: V, locked_at: Tensor, free_at: Tensor) -> V:
        """The same for a task that starts as a frozen base, from which factors are its steps away."""
        return vectors

    def problem(self, vectors: Any) -> str | None:
        """What is wrong with vectors that were read from a file; None if nothing is."""
        return None


@register
class IBP(Prior):
    """The stick-breaking Indian buffet process with parameter α (the paper's prior).

    Tasks use few factors, share what earlier tasks have locked, and the dictionary grows ever more slowly.
    """

    kind: ClassVar[str] = "ibp"
    fixed: ClassVar[frozenset[str]] = frozenset({"strength_std", "alpha", "max_factors"})
    vectors: ClassVar[type[LayerVectors]] = StickVectors

    alpha: Positive | Auto | dict[str, Positive | Auto] = Field(
        "auto",
        description="the IBP's expected number of factors per task and layer: a number, a mapping from layer-name or "
        "type patterns to numbers, or 'auto' for half of what each weight's rank allows, or 4 beside a "
        "frozen base",
    )
    max_factors: Count | dict[str, Count] | None = Field(
        None, description="cap on a layer's dictionary (the paper's truncation K); none lets it grow as needed"
    )
    kappa: Probability = Field(0.5, description="factors with π̄ ≥ κ are locked when a task ends, and read by it")
    temperature: Positive = Field(2 / 3, description="of the Concrete distribution")
    temperature_start: Positive | None = Field(
        None, description="where the temperature starts, to fall by temperature_decay a step; none: at temperature"
    )
    temperature_decay: Annotated[float, Field(gt=0, le=1)] = Field(0.99, description="see temperature_start")
    kl_terms: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="terms of the series in appendix B (the paper takes 10); none sums it exactly"
    )

    def for_layers(self, weights: Mapping[str, Weight], shapes: Sequence[LayerShape], *, beside_base: bool) -> Self:
        automatic = adapter_alpha if beside_base else automatic_alpha
        alphas, caps = dict[str, float](), dict[str, int]()
        for layer in shapes:
            weight = weights[layer.name]
            alpha = per_layer("alpha", self.alpha, weight, automatic(layer.inputs, layer.outputs)) or 0.0
            most = max(MOST_FACTORS, 10 * layer.rank)
            if alpha > most:
                raise InputError(
                    f"alpha is {alpha:g}; a task cannot use so many factors in a layer of "
                    f"{layer.inputs}×{layer.outputs}. Give at most {most:,}; half of the layer's rank is usual."
                )
            alphas[layer.name] = alpha
            cap = per_layer("max_factors", self.max_factors, weight, None)
            if cap is not None:
                caps[layer.name] = int(cap)
        return self.replace(alpha=alphas, max_factors=caps or None)

    def alpha_of(self, layer: LayerShape) -> float:
        """α of a layer, once `for_layers` has given each its own."""
        alpha = self.alpha[layer.name] if isinstance(self.alpha, Mapping) else self.alpha
        return automatic_alpha(layer.inputs, layer.outputs) if alpha == "auto" else float(alpha)

    def cap_of(self, layer: LayerShape) -> int | None:
        """How many factors a layer may have; None: any number."""
        return self.max_factors.get(layer.name) if isinstance(self.max_factors, Mapping) else self.max_factors

    def width(self, layer: LayerShape, task: int, locked: int, used: int) -> int:
        """Stick positions to offer a task before it starts.

        The IBP's t-th customer tries Poisson(α/t) new dishes (appendix A): offer its mean plus three
        standard deviations, but at least half of what the prior expects a task to use in all, so that a
        task unlike its forerunners finds room at once. The first task gets 2α sticks (the paper's K=400 for
        α=200), after which the prior's probability has fallen to e^-2. More follow during the task if it
        uses up what it was offered (`shortage`).
        """
        alpha = self.alpha_of(layer)
        if task == 1:
            free = math.ceil(2 * alpha)
        else:
            expected = alpha / task
            free = math.ceil(max(expected + 3 * math.sqrt(expected), 0.5 * alpha))
        return self.capped(layer, max(used, locked + max(free, 4)), locked)

    def shortage(self, layer: LayerShape, active: int, free: int, locked: int) -> int:
        """0 while a tenth of α (at least 2) of the free factors still lies idle, else half of α, as far as the cap
        allows."""
        alpha = self.alpha_of(layer)
        if free - active >= max(2, math.ceil(0.1 * alpha)):
            return 0
        width = locked + free
        return self.capped(layer, width + max(4, math.ceil(0.5 * alpha)), locked) - width

    def capped(self, layer: LayerShape, width: int, locked: int) -> int:
        cap = self.cap_of(layer)
        return width if cap is None else max(min(width, cap), locked)

    def check_room(self, layer: LayerShape, factors: int) -> None:
        cap = self.cap_of(layer)
        if cap is not None and factors > cap:
            raise InputError(
                f"layer '{layer.name}' would hold {factors} factors, and max_factors is {cap}; raise it, or bring "
                "fewer."
            )

    def start(self, layer: LayerShape, strength: Tensor, previous: LayerVectors | None) -> StickVectors:
        """q(v) starts at its prior, and π̄ at the previous task's π̄.

        Sticks beyond the previous task's continue the prior: v ~ Beta(α, 1), and π̄ at the mean of π there, which
        is the last known stick's mean times (α/(α+1))^j. For the first task that is (α/(α+1))^k.
        """
        alpha, width = self.alpha_of(layer), len(strength)
        known = 0 if previous is None else len(previous)
        extra = max(width - known, 0)
        c = torch.full((extra,), alpha, dtype=torch.float32)
        d = torch.ones(extra, dtype=torch.float32)
        log_mean = expected_probabilities(alpha, extra).log()
        if previous is None:
            return StickVectors(strength, logit_from_log(log_mean), c, d)
        assert isinstance(previous, StickVectors)
        prior_c, prior_d = previous.c.cpu(), previous.d.cpu()
        start = float(kumaraswamy_log_mean(prior_c.double(), prior_d.double()).sum()) if known else 0.0
        logit = torch.cat([previous.logit.cpu(), logit_from_log(log_mean + start)])
        c, d = torch.cat([prior_c, c]), torch.cat([prior_d, d])
        return StickVectors(strength, logit[:width], c[:width], d[:width])

    def posterior(self, start: Sequence[StickVectors], prior: Sequence[StickVectors]) -> StickPosterior:
        decay = None if self.temperature_start is None else self.temperature_decay
        first = self.temperature_start or self.temperature
        return StickPosterior(start, prior, first, self.kl_terms, decay, self.temperature)

    def logit(self, vectors: StickVectors) -> Tensor:
        return vectors.logit

    def selected(self, vectors: StickVectors) -> Tensor:
        """The factors with π̄ ≥ κ, and at least the likeliest one (section 2.3)."""
        threshold = math.log(self.kappa) - math.log1p(-self.kappa)
        chosen = vectors.logit >= threshold
        if not bool(chosen.any()):
            chosen = torch.zeros_like(chosen)
            chosen[vectors.logit.argmax()] = True
        return chosen

    def sure(self, vectors: Any, at: Tensor) -> Any:
        logit = vectors.logit.clone()
        logit[at] = logit[at].clamp(min=_logit(SURE))
        return replace(vectors, logit=logit)

    def unlikely(self, vectors: Any, at: Tensor) -> Any:
        logit = vectors.logit.clone()
        logit[at] = logit[at].clamp(max=_logit(UNLIKELY))
        return replace(vectors, logit=logit)

    def beside_base(self, layer: LayerShape, vectors: Any, locked_at: Tensor, free_at: Tensor) -> Any:
        """How many steps of its own a task needs does not follow from what others took, or were offered and left:
        sticks of new factors are Beta(α, 1) as a first task finds them, π̄ is at their mean, and the sticks of locked
        factors, which every task may read, take nothing away from them."""
        alpha = self.alpha_of(layer)
        logit, c, d = (part.clone() for part in (vectors.logit, vectors.c, vectors.d))
        c[locked_at], d[locked_at] = UNBROKEN, 1
        logit[free_at] = logit_from_log(expected_probabilities(alpha, len(free_at)).log())
        c[free_at], d[free_at] = alpha, 1
        return replace(vectors, logit=logit, c=c, d=d)

    def problem(self, vectors: StickVectors) -> str | None:
        for name in ("c", "d"):
            values = getattr(vectors, name)
            if len(values) and not float(values.min()) > 0:
                return f"{name} is not above 0"
        return None


@register
class ConstantGrowth(Prior):
    """The same number of new factors for every task, all of which it uses along with all earlier ones (Const-WF).

    W_t = W_a diag(r_t) W_b over all ν + (t - 1) ω factors so far (Mehta et al., 2021, section 'IBP Ablation Study').
    """

    kind: ClassVar[str] = "constant-growth"
    fixed: ClassVar[frozenset[str]] = frozenset({"strength_std", "nu", "omega"})
    has_kl: ClassVar[bool] = False
    can_forget: ClassVar[bool] = False

    nu: Count = Field(200, description="ν, factors per layer of the first task")
    omega: Annotated[int, Field(ge=0)] = Field(40, description="ω, new factors per layer of every later task")

    def width(self, layer: LayerShape, task: int, locked: int, used: int) -> int:
        return locked + (self.nu if task == 1 else self.omega)

    def start(self, layer: LayerShape, strength: Tensor, previous: LayerVectors | None) -> LayerVectors:
        return LayerVectors(strength)


def _logit(p: float) -> float:
    return math.log(p) - math.log1p(-p)
