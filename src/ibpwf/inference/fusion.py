"""Router and experts as one answer: how likely is each class of each task, and does the input look like any of them?

    log P(t, c | x) = α r_c(x) + β e_c(x) + const                     over the classes of the tasks that are asked

r is what task inference says of every class of every task (the router's regression, `inference.router`); e are the
class scores of the task's own expert (of one that learned turns, the mean over them: `turns`). The router has
looked at all classes together; an expert knows its own far better, and by how small its scores are also what is not
its own.

α and β are fitted to rows of a task that nothing was learned from, when the task has been learned: they maximize the
likelihood of the rows' own classes among all that are known then. Experts stay as they are, so answers use one β for
all tasks, the likeliest given the rows that each of them held out: rows are not kept, but how likely they were for
every β of `GRID` is. The router is another one after every task, and the more classes there are the less r differs
between them: its α is the newest task's, fitted once more with that β given. What a forgotten task said goes with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ibpwf.errors import InputError
from ibpwf.inference.opinion import EXPERT, REGRESSION

Expert = Callable[[Tensor, int], Tensor | None]
"""Class scores of rows under a task; None of one that has nothing to tell apart, neither classes nor turns."""
Experts = int | Literal["all", "likely"]

ROUTER_WEIGHT, EXPERT_WEIGHT = 1.0, 0.5
"""α and β where no rows were held out; about what held-out training images of CIFAR-10 gave."""

DOUBT = 0.01
"""With experts="likely", those tasks are asked that the router gives this probability or more."""

PRIOR_ROWS = 1.0
"""α and β are drawn towards the above as by so many rows: where the held-out rows are all told apart with ease, their
likelihood alone has no end."""

GRID = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)
"""Values of β for which a task remembers how likely its held-out rows were."""

RATES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Shares of a task's own rows below a limit that are kept; a limit for any other share lies between."""

NOTHING_IS_NEW = -1e300
"""The limit where a single row was held out, which tells nothing of how far others lie apart."""


@dataclass(frozen=True)
class Scores:
    """r and e of rows, N×ΣC; e is −∞ for tasks that were not asked, and None if none was. `widths` has the number of
    classes per task; `levels`, where they are known, what r is on average for the rows of each class that were
    learned from: the more classes there are, the lower; `distances`, N×T, how far rows lie from every task. `silent`
    are the tasks whose expert has nothing to tell: it scores as the best of the others that were asked, so that the
    router decides between them."""

    router: Tensor
    experts: Tensor | None
    widths: tuple[int, ...]
    levels: Tensor | None = None
    distances: Tensor | None = None
    silent: tuple[int, ...] = ()

    def joint(self, router: float, experts: float) -> Tensor:
        """log P(t, c | x) up to a constant, N×ΣC."""
        if self.experts is None or not experts:
            return router * self.router
        return router * self.router + experts * self.experts

    def best_of_task(self, task: int, router: float, experts: float) -> Tensor:
        """The best joint score among a task's classes, N, where r counts from its level: what is usual for a task
        must not change with the tasks that follow."""
        joint = self.joint(router, experts).double()
        joint = joint if self.levels is None else joint - router * self.levels
        return joint[:, self.of_task(task)].amax(1)

    def of_task(self, task: int) -> slice:
        first = [0, *accumulate(self.widths)]
        return slice(first[task], first[task + 1])


def asked(scores: Tensor, widths: Sequence[int], experts: Experts) -> Tensor:
    """Which tasks' experts are asked about a row, N×T, given the router's scores: all, so many of the likeliest, or
    those that are likely at all and always the likeliest."""
    best = torch.stack([part.amax(1) for part in torch.split(scores, list(widths), 1)], 1)
    if experts == "all":
        return torch.ones_like(best, dtype=torch.bool)
    most = len(widths) if experts == "likely" else min(experts, len(widths))
    mask = torch.zeros_like(best, dtype=torch.bool)
    mask.scatter_(1, best.topk(most, 1).indices, True)
    if experts == "likely":
        mask = by_task(scores, widths) >= DOUBT
        mask.scatter_(1, best.argmax(1, keepdim=True), True)
    return mask


def look(router: Tensor, x: Tensor, widths: Sequence[int], expert: Expert, experts: Experts) -> Scores:
    """What router and experts say of rows."""
    if experts == 0:
        return Scores(router, None, tuple(widths))
    found = torch.full_like(router, -torch.inf)
    mask = asked(router, widths, experts)
    silent = []
    for task, (start, end) in enumerate(pairwise([0, *accumulate(widths)])):
        rows = mask[:, task].nonzero().flatten()
        if not len(rows):
            continue
        scores = expert(x if len(rows) == len(x) else x[rows], task)
        if scores is None:
            silent.append(task)
        else:
            found[rows, start:end] = scores.to(router)
    return Scores(router, spoken_for(found, mask, widths, silent), tuple(widths), silent=tuple(silent))


def spoken_for(found: Tensor, mask: Tensor, widths: Sequence[int], silent: Sequence[int]) -> Tensor:
    """The experts' scores, where those of `silent` tasks that were asked (`mask`, N×T) are the best of the others."""
    if not silent:
        return found
    best = found.amax(1)
    best = torch.where(best.isfinite(), best, 0.0)
    first = [0, *accumulate(widths)]
    columns = list(found.unbind(1))
    for task in silent:
        columns[first[task]] = torch.where(mask[:, task], best, -torch.inf)
    return torch.stack(columns, 1)


def by_task(joint: Tensor, widths: Sequence[int]) -> Tensor:
    """P(t | x), N×T."""
    p = joint.softmax(1)
    return torch.stack([part.sum(1) for part in torch.split(p, list(widths), 1)], 1)


@dataclass(frozen=True)
class Calibration:
    """What the rows that were held out of a task say: its own β, and α beside the β of all until then, among how
    many `classes`, α `alone`, without any expert, and `losses`, minus the log-likelihood of all rows for every β of
    `GRID` with the best α beside it, from its least; the `temperature` by which the task's own class scores are to
    be divided where the task is given; `limits`, below which the best joint score of any of its classes, from its
    level, lies for a share `RATES` of its rows; and `nearness`, below which minus their distance from the task does.
    None where there is no router, or none that knows distances. Of a task with an `opinion` the weights w of its own
    class scores and v of that (`inference.opinion`)."""

    temperature: float
    router: float | None = None
    experts: float | None = None
    classes: int = 0
    limits: tuple[float, ...] | None = None
    alone: float | None = None
    nearness: tuple[float, ...] | None = None
    losses: tuple[float, ...] | None = None
    opinion: tuple[float, float] | None = None


def limit(table: Sequence[float], rate: float) -> float:
    """For any share of rows; beyond the table that of its end."""
    return float(np.interp(math.log(rate), np.log(RATES), table))


def beyond(table: Sequence[float], values: Tensor, rate: float) -> Tensor:
    """How far values lie below their limit, as a multiple of how far that is from the median; above 0 if below."""
    here, usual = limit(table, rate), limit(table, 0.5)
    return (here - values.double()) / max(usual - here, 1e-9 * (1 + abs(usual)))


def given(own: Tensor, y: Tensor, opinion: Tensor | None) -> Calibration:
    """From held-out rows of a task, what answers with the task given need: its own class scores, the numbers of the
    rows' classes within it, and what its opinion says of them."""
    temperature = 1 / _fit([own], y, [1.0])[0]
    if opinion is None:
        return Calibration(temperature)
    expert, regression = _fit([own, opinion], y, [EXPERT, REGRESSION])
    return Calibration(temperature, opinion=(expert, regression))


def calibrate(
    scores: Scores | None,
    own: Tensor,
    y: Tensor,
    before: Sequence[Calibration | None] = (),
    opinion: Tensor | None = None,
) -> Calibration:
    """From held-out rows of the newest task: the scores of all classes, if a router gives any, those of the task's
    own expert, and the numbers of the rows' classes within the task; `before` is what other tasks' rows said."""
    found = given(own, y, opinion)
    temperature = found.temperature
    if scores is None:
        return found
    last = len(scores.widths) - 1
    here = scores.of_task(last)
    y = y + here.start
    (alone,) = _fit([scores.router], y, [ROUTER_WEIGHT])
    router, experts, classes, losses = alone, 0.0, sum(scores.widths), None
    if scores.experts is not None:
        experts = expert_weight(before)
        if last not in scores.silent:
            _, experts = _fit([scores.router, scores.experts], y, [ROUTER_WEIGHT, EXPERT_WEIGHT])
            losses = _losses(scores.router, scores.experts, y)
        of_all = expert_weight([*before, Calibration(temperature, alone, experts, classes, losses=losses)])
        (router,) = _fit([scores.router], y, [ROUTER_WEIGHT], beside=of_all * scores.experts)
    limits = _limits(scores.best_of_task(last, router, experts))
    nearness = None if scores.distances is None else _limits(-scores.distances[:, last])
    return Calibration(temperature, router, experts, classes, limits, alone, nearness, losses, found.opinion)


def recalibrated(
    old: Calibration, scores: Scores | None, own: Tensor, y: Tensor, task: int, opinion: Tensor | None = None
) -> Calibration:
    """A task's calibration for a new version of it, from held-out rows like those that the version was learned from.
    What was usual stays so, and the limits move out as far as these rows take them: rows like the old ones are not
    there to ask. Their weights stay those that the limits were made with."""
    found = given(own, y, opinion)
    new = replace(old, temperature=found.temperature, opinion=found.opinion)
    if scores is None or old.limits is None or old.router is None or old.experts is None:
        return new
    best = scores.best_of_task(task, old.router, old.experts)
    new = replace(new, limits=tuple(map(min, old.limits, _limits(best))))
    if scores.distances is None or old.nearness is None:
        return new
    return replace(new, nearness=tuple(map(min, old.nearness, _limits(-scores.distances[:, task]))))


def _fit(parts: Sequence[Tensor], y: Tensor, usual: Sequence[float], beside: Tensor | None = None) -> list[float]:
    """Weights, none below 0, whose sum of `parts`, and of what stands `beside` them as it is, gives the classes `y`
    the largest likelihood; its logarithm is concave in them, so there is one answer."""
    from scipy.optimize import minimize

    stacked = torch.stack([part.double() for part in parts])
    start, rows = torch.tensor(usual, dtype=torch.float64), len(y)

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        w = torch.from_numpy(weights)
        joint = torch.einsum("k,knc->nc", w.to(stacked), stacked)
        log_p = (joint if beside is None else joint + beside.double()).log_softmax(1)
        picked = stacked[:, torch.arange(rows), y]
        expected = (stacked * log_p.exp()).sum(2)
        slope = (expected - picked).mean(1).cpu()
        pull = PRIOR_ROWS / rows * (w / start - 1)
        value = -float(log_p[torch.arange(rows), y].mean()) + 0.5 * rows / PRIOR_ROWS * float(pull.square().sum())
        return value, (slope + pull / start).numpy()

    found = minimize(loss, np.array(usual), jac=True, bounds=[(1e-3, 1e3), *[(0.0, 1e3)] * (len(usual) - 1)])
    return [float(value) for value in found.x]


def _losses(router: Tensor, experts: Tensor, y: Tensor) -> tuple[float, ...]:
    """Minus the log-likelihood of the classes `y` for every β of `GRID`, each with its own best α, from the least."""
    rows, found = torch.arange(len(y)), []
    for experts_weight in GRID:
        beside = experts_weight * experts
        (weight,) = _fit([router], y, [ROUTER_WEIGHT], beside=beside)
        log_p = (weight * router.double() + beside.double()).log_softmax(1)
        found.append(-float(log_p[rows, y].sum()))
    return tuple(loss - min(found) for loss in found)


def _limits(best: Tensor) -> tuple[float, ...]:
    """The score below which a share of unseen rows lies, for every share of `RATES`: the conformal quantile, which
    errs on the side of fewer; with too few rows to have it, Student's prediction limit, which so many rows of a
    normal distribution would give, and no more than the smallest."""
    from scipy.special import stdtrit

    known = best.double().sort().values.cpu()
    rows = len(known)

    def below_all(rate: float) -> float:
        if rows == 1:
            return NOTHING_IS_NEW
        spread = float(known.std()) * math.sqrt(1 + 1 / rows)
        return min(float(known.mean() + stdtrit(rows - 1, rate) * spread), float(known[0]))

    ranks = [(rate, math.floor((rows + 1) * rate)) for rate in RATES]
    return tuple(float(known[rank - 1]) if rank else below_all(rate) for rate, rank in ranks)


def expert_weight(calibrations: Sequence[Calibration | None]) -> float:
    """β: the likeliest, given the rows that all tasks held out and a prior worth `PRIOR_ROWS` of them; on a parabola
    through the best of `GRID` and its neighbors."""
    known = [one for one in calibrations if one is not None and one.losses is not None]
    if not known:
        return EXPERT_WEIGHT
    if len(known) == 1:
        return known[0].experts or 0.0
    grid = np.array(GRID)
    loss = np.sum([one.losses or () for one in known], axis=0) + 0.5 * PRIOR_ROWS * (grid / EXPERT_WEIGHT - 1) ** 2
    middle = int(np.clip(loss.argmin(), 1, len(grid) - 2))
    around = slice(middle - 1, middle + 2)
    bend, slope, _ = np.polyfit(grid[around], loss[around], 2)
    if bend <= 0:
        return float(grid[loss.argmin()])
    return float(np.clip(-slope / (2 * bend), *grid[around][[0, -1]]))


def weights(calibrations: Sequence[Calibration | None], *, alone: bool = False) -> tuple[float, float]:
    """α, the newest task's, and β; of a router `alone` its own α and no β."""
    newest = next((one for one in reversed(calibrations) if one is not None and one.router is not None), None)
    if newest is None:
        return ROUTER_WEIGHT, 0.0 if alone else EXPERT_WEIGHT
    if alone:
        return newest.alone or ROUTER_WEIGHT, 0.0
    return newest.router or ROUTER_WEIGHT, expert_weight(calibrations)


def novelty(scores: Scores, calibrations: Sequence[Calibration | None], rate: float) -> Tensor:
    """How unlike everything learned each row is: above 1 if no task is left for which neither its joint score nor its
    distance lies beyond what all but a share `rate` of the task's own rows keep to,

        exp min_t max( (l_t − s_t)/(m_t − l_t), (d_t − l'_t)/(l'_t − m'_t) )

    s_t being max_c (α_t r_c + β_t e_c), m medians and l the limits of half the share each."""
    apart = []
    for task, one in enumerate(calibrations):
        if one is None or one.limits is None or one.router is None or one.experts is None:
            raise InputError(
                f"task number {task} was learned without held-out rows, so nobody knows what is usual for it; learn "
                "with validation_fraction above 0 (0.03, say) to tell what is new."
            )
        best = scores.best_of_task(task, one.router, one.experts)
        if scores.distances is None or one.nearness is None:
            apart.append(beyond(one.limits, best, rate))
            continue
        both = beyond(one.limits, best, rate / 2), beyond(one.nearness, -scores.distances[:, task], rate / 2)
        apart.append(torch.maximum(*both))
    return torch.stack(apart).amin(0).clamp(max=700).exp()
