"""What many tasks cost: does the hundredth take longer to learn than the tenth, and to answer than the first?"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ibpwf.lab.bench.measure import Row, Setup, milliseconds, ratio, take_turns
from ibpwf.lab.data.scenarios import scenario
from ibpwf.lab.experiments.network import build_network
from ibpwf.lab.experiments.presets import preset
from ibpwf.learner import Learner
from ibpwf.models import mlp
from ibpwf.settings import Settings

ROUNDS = 5


def cost_of_late_tasks(setup: Setup) -> list[Row]:
    """Permuted digits with the preset `quick` as it is, a dictionary that grows freely. Its epochs are not shortened:
    after a few steps a task has learnt nothing, and takes no factors whether it would need them or not."""
    early, late = (3, 12) if setup.quick else (10, 100)
    stream = scenario("permuted-digits", tasks=late)
    chosen = preset("permuted-digits", "quick")
    settings = chosen.make_settings()
    assert isinstance(settings, Settings)
    learner = Learner(build_network(chosen.network, stream, 0), settings, device=setup.device)
    before, right = {}, []
    for number in range(late):
        if number + 1 in (early, late):
            before[number + 1] = copy.deepcopy(learner)
        task = stream[number]
        learner.learn(task.train.x, task.train.y, task=task.name)
        told = learner.predict(task.test.x, task=number).labels.cpu()
        right.append(float((told == task.test.y).double().mean()))

    # A learner for every round, made beforehand: copying one is no training.
    ready = {number: [copy.deepcopy(one) for _ in range(ROUNDS + 1)] for number, one in before.items()}

    def learn(number: int) -> None:
        task = stream[number - 1]
        ready[number].pop().learn(task.train.x, task.train.y, task=task.name)

    sides = {"early": lambda: learn(early), "late": lambda: learn(late)}
    times = take_turns(sides, setup, rounds=ROUNDS)
    uses = [learner.method.use(t).values() for t in range(late)]
    new, used = ([sum(use[key] for use in layers) for layers in uses] for key in ("new", "active"))
    tenth = max(late // 10, 1)
    parts = [sum(new[start : start + tenth]) / tenth for start in range(1, late - tenth, tenth)]
    first, last = parts[0], sum(new[-tenth:]) / tenth
    words = (
        f"{used[early - 1]} and {used[late - 1]} factors used; new ones a task, tenth by tenth after task 1: "
        f"{', '.join(f'{part:.1f}' for part in [*parts, last])}; mean accuracy {100 * sum(right) / late:.1f} %"
    )
    part = last / max(first, 1e-9)
    return [
        ratio(
            "late-tasks",
            f"training, task {late} ÷ task {early}, permuted digits",
            times["late"],
            times["early"],
            1.5,
            detail=f"{milliseconds(times)}; {words}",
        ),
        Row("late-tasks", "new factors a task, last tenth of tasks ÷ tenth after task 1", part, part, part, 1.0),
    ]


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
        learner.learn(*images(number, 256, 0), task=f"task {number + 1}")
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
