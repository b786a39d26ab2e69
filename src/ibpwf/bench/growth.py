"""Does the hundredth task cost more than the tenth, and does the dictionary stop growing?"""

from __future__ import annotations

import copy

from ibpwf.bench.measure import Row, Setup, milliseconds, ratio, take_turns
from ibpwf.data.scenarios import scenario
from ibpwf.experiments.network import build_network
from ibpwf.experiments.presets import preset
from ibpwf.learner import Learner
from ibpwf.settings import Settings


def cost_of_late_tasks(setup: Setup) -> list[Row]:
    """Permuted digits, a dictionary that grows freely; few epochs, so that it takes a minute."""
    early, late = (3, 12) if setup.quick else (10, 100)
    stream = scenario("permuted-digits", tasks=late)
    chosen = preset("permuted-digits", "quick")
    settings = chosen.make_settings()
    assert isinstance(settings, Settings)
    learner = Learner(
        build_network(chosen.network, stream, 0),
        settings.replace(epochs=3, finetune_epochs=1),
        device=setup.device,
    )
    before = {}
    for number in range(late):
        if number + 1 in (early, late):
            before[number + 1] = copy.deepcopy(learner)
        task = stream[number]
        learner.learn(task.train.x, task.train.y, name=task.name)

    def learn(number: int) -> None:
        task = stream[number - 1]
        copy.deepcopy(before[number]).learn(task.train.x, task.train.y, name=task.name)

    sides = {"early": lambda: learn(early), "late": lambda: learn(late)}
    times = take_turns(sides, setup, rounds=7)
    new = [sum(use["new"] for use in learner.method.use(t).values()) for t in range(late)]
    tenth = max(late // 10, 1)
    first, last = (sum(part) / tenth for part in (new[1 : 1 + tenth], new[-tenth:]))
    words = f"new factors a task: {first:.1f} at first (after task 1), {last:.1f} at the end"
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
