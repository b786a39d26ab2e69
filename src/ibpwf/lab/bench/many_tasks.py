"""Does the hundredth task cost more than the tenth, and does the dictionary stop growing?"""

from __future__ import annotations

import copy

from ibpwf.lab.bench.measure import Row, Setup, milliseconds, ratio, take_turns
from ibpwf.lab.data.scenarios import scenario
from ibpwf.lab.experiments.network import build_network
from ibpwf.lab.experiments.presets import preset
from ibpwf.learner import Learner
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
        learner.learn(task.train.x, task.train.y, name=task.name)
        told = learner.predict(task.test.x, task=number).labels.cpu()
        right.append(float((told == task.test.y).double().mean()))

    # A learner for every round, made beforehand: copying one is no training.
    ready = {number: [copy.deepcopy(one) for _ in range(ROUNDS + 1)] for number, one in before.items()}

    def learn(number: int) -> None:
        task = stream[number - 1]
        ready[number].pop().learn(task.train.x, task.train.y, name=task.name)

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
