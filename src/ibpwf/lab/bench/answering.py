"""Prediction after 1, 10 and 100 tasks: with the task known it costs what a plain network costs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ibpwf.lab.bench.measure import Row, Setup, milliseconds, ratio, take_turns
from ibpwf.learner import Learner
from ibpwf.models import mlp
from ibpwf.settings import Settings

BATCH, TIMES = 256, 20


def images(task: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """What a task is asked about: made-up images of forty causes whose pixels each task has in another order, as in
    Permuted MNIST. Tasks with the same inputs could not be told apart, at any price."""
    mixing = torch.randn(40, 784, generator=torch.Generator().manual_seed(1)) * 0.5
    order = torch.randperm(784, generator=torch.Generator().manual_seed(100 + task))
    causes = torch.randn(count, 40, generator=torch.Generator().manual_seed(1000 * seed + task))
    return torch.sigmoid(causes @ mixing - 1)[:, order], (causes[:, 0] > 0).long()


def learners(counts: tuple[int, ...], device: torch.device) -> dict[int, Learner]:
    """The same learner after so many tasks, trained for a moment: answering does not care how well it learnt."""
    settings = Settings(alpha=200.0, max_factors=400, epochs=1, finetune_epochs=0, batch_size=128, kl_terms=10)
    learner = Learner(mlp(784, [400], 10), settings, device=device)
    kept = {}
    for number in range(max(counts)):
        learner.learn(*images(number, 256, 0), name=f"task {number + 1}")
        if number + 1 in counts:
            kept[number + 1] = copy.deepcopy(learner)
    return kept


def prediction(setup: Setup) -> list[Row]:
    most = 20 if setup.quick else 100
    counts = (1, 10, most)
    kept = learners(counts, setup.device)
    dense = mlp(784, [400], 10).to(setup.device).eval()
    batches = {count: images(count - 1, BATCH, 1)[0].to(setup.device) for count in counts}
    x = batches[most]

    def plain() -> None:
        with torch.no_grad():
            for _ in range(TIMES):
                dense(x)

    def outputs(count: int) -> None:
        for _ in range(TIMES):
            kept[count].method.logits(batches[count], count - 1)

    def known(count: int) -> None:
        for _ in range(TIMES):
            kept[count].predict(batches[count], task=count - 1)

    sides: dict[str, Callable[[], None]] = {"dense": plain}
    sides |= {f"outputs, {count} tasks": partial(outputs, count) for count in counts}
    sides |= {f"predict, {count} tasks": partial(known, count) for count in counts}
    times = take_turns(sides, setup)
    detail = milliseconds(times, TIMES)
    rows = [
        ratio("prediction", f"outputs, task known, {most} tasks ÷ dense network, batch {BATCH}",
              times[f"outputs, {most} tasks"], times["dense"], 1.05, detail=detail),
        *(ratio("prediction", f"{kind}, task known, {most} tasks ÷ 1 task",
                times[f"{kind}, {most} tasks"], times[f"{kind}, 1 tasks"], 1.10) for kind in ("outputs", "predict")),
    ]  # fmt: skip
    return [*rows, *inferred(kept, batches, setup)]


def inferred(kept: dict[int, Learner], batches: dict[int, Tensor], setup: Setup) -> list[Row]:
    """The task inferred beside the task given: all rows of one task, and rows of all tasks in one batch."""
    rows, most = [], max(kept)
    owner = torch.arange(BATCH) % most
    mixed = torch.cat([images(int(t), 1, 2 + place)[0] for place, t in enumerate(owner)]).to(setup.device)
    cases: dict[str, tuple[Learner, Tensor, int | Tensor]] = {
        f"{count} tasks, batch {BATCH}": (kept[count], batches[count], count - 1) for count in kept if count > 1
    }
    cases[f"{most} tasks, batch {BATCH} of rows of all of them"] = (kept[most], mixed, owner)
    for words, (learner, x, task) in cases.items():
        sides = {"known": partial(learner.predict, x, task=task), "inferred": partial(learner.predict, x)}
        times = take_turns(sides, setup, rounds=25)
        limit = 3.0 if words.startswith(f"{most} ") else None
        what = f"predict, task inferred ÷ task known, {words}"
        rows.append(ratio("prediction", what, times["inferred"], times["known"], limit, detail=milliseconds(times)))
    return rows
