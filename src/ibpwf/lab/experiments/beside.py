"""Another method's accuracy beside a run's, for one that trains in seconds: the same tasks, scored once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ibpwf.errors import InputError
from ibpwf.lab.evaluation.evaluate import score
from ibpwf.lab.evaluation.metrics import average_accuracy, spread
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.lab.experiments.seed_training import new_learner
from ibpwf.lab.methods import method_named
from ibpwf.training.environment import prepared_to_train


def beside(config: RunConfig, name: str, tell: Callable[[str, int, int], None]) -> dict[str, Any]:
    """What method `name` answers with the task inferred once it has learned what `config` asks for, with the settings
    of the same preset. `tell` hears how many tasks are done."""
    other = beside_config(config, name)
    started, found, tasks = time.perf_counter(), [], 0
    for seed in other.seeds:
        stream = other.stream(seed)
        learner = new_learner(other, seed, stream, ("class",))
        for task in stream:
            tell(f"{name}: {task.name}", tasks, len(stream) * len(other.seeds))
            learner.learn(task.train.x, task.train.y, name=task.name)
            tasks += 1
        with prepared_to_train(learner.method.template, learner.method.device):
            scores = [score(learner, task.index, task.test.x, task.test.y, ("class",)).class_ for task in stream]
        found.append(average_accuracy([scores]))
    seconds = time.perf_counter() - started
    return {"method": name, "class": spread(found), "settings": other.settings().to_json(), "seconds": seconds}


def beside_config(config: RunConfig, name: str) -> RunConfig:
    """The same run with another method."""
    if "class" not in method_named(name).answers:
        raise InputError(f"--beside is {name}, which does not infer tasks; choose router, ridge or slda.")
    preset = "default" if config.preset == "best" else config.preset
    return config.replace(method=name, changes={}, network=None, preset=preset)
