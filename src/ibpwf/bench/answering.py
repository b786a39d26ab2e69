"""Prediction after 1, 10 and 100 tasks: with the task known it costs what a plain network costs."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from ibpwf.bench.measure import Row, Setup, milliseconds, ratio, take_turns
from ibpwf.bench.steps import examples
from ibpwf.learner import Learner
from ibpwf.models import mlp
from ibpwf.settings import Settings

BATCH, TIMES = 256, 20


def learners(counts: tuple[int, ...], device: torch.device) -> dict[int, Learner]:
    """The same learner after so many tasks of a few random examples: answering does not care how well it learnt."""
    settings = Settings(alpha=200.0, max_factors=400, epochs=1, finetune_epochs=1, batch_size=32, kl_terms=10)
    learner = Learner(mlp(784, [400], 10), settings, device=device)
    kept = {}
    for number in range(max(counts)):
        x, y = examples(64, 784, 2, torch.device("cpu"))
        learner.learn(x, y, name=f"task {number + 1}")
        if number + 1 in counts:
            kept[number + 1] = copy.deepcopy(learner)
    return kept


def prediction(setup: Setup) -> list[Row]:
    most = 20 if setup.quick else 100
    counts = (1, 10, most)
    kept = learners(counts, setup.device)
    x, _ = examples(BATCH, 784, 2, setup.device)
    dense = mlp(784, [400], 10).to(setup.device).eval()

    def plain() -> None:
        with torch.no_grad():
            for _ in range(TIMES):
                dense(x)

    def outputs(learner: Learner) -> Tensor:
        for _ in range(TIMES):
            out = learner.method.logits(x, len(learner.tasks) - 1)
        return out

    def known(learner: Learner) -> None:
        for _ in range(TIMES):
            learner.predict(x, task=len(learner.tasks) - 1)

    def inferred(learner: Learner) -> None:
        learner.predict(x)

    sides = {"dense": plain}
    sides |= {f"outputs, {t} tasks": lambda t=t: outputs(kept[t]) for t in counts}  # type: ignore[misc]
    sides |= {f"predict, {t} tasks": lambda t=t: known(kept[t]) for t in counts}  # type: ignore[misc]
    times = take_turns(sides, setup)
    detail = milliseconds(times, TIMES)
    rows = [
        ratio("prediction", f"outputs, task known, {most} tasks ÷ dense network, batch {BATCH}",
              times[f"outputs, {most} tasks"], times["dense"], 1.05, detail=detail),
        *(ratio("prediction", f"{kind}, task known, {most} tasks ÷ 1 task",
                times[f"{kind}, {most} tasks"], times[f"{kind}, 1 tasks"], 1.10) for kind in ("outputs", "predict")),
    ]  # fmt: skip
    last = kept[most]
    sides = {"known": lambda: known(last), "inferred": lambda: inferred(last)}
    times = take_turns(sides, setup, rounds=7)
    times["known"] = [seconds / TIMES for seconds in times["known"]]
    what = f"predict, task inferred ÷ task known, {most} tasks, batch {BATCH}"
    return [*rows, ratio("prediction", what, times["inferred"], times["known"], 3.0, detail=milliseconds(times))]
