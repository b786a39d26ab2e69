"""Another method's accuracy beside a run's, for one that trains in seconds: the same tasks, scored once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from ibpwf.device import choose_device
from ibpwf.errors import IBPWFError, InputError
from ibpwf.lab.evaluation.evaluate import score
from ibpwf.lab.evaluation.metrics import average_accuracy, spread
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.lab.experiments.seed_training import new_learner
from ibpwf.lab.methods import method_named
from ibpwf.training.environment import prepared_to_train


def meanwhile(config: RunConfig, name: str) -> Callable[[], dict[str, Any]]:
    """`beside`, begun now in a process of its own where a run leaves cores idle, as small networks do; what is
    returned waits for it. On a GPU, or a single core, it is done when it is asked for."""
    if choose_device(config.device).type != "cpu" or (os.cpu_count() or 1) < 2:
        return lambda: beside(config, name)
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_in_a_process, args=(send, config, name), daemon=True)  # ends with this one
    process.start()
    send.close()

    def result() -> dict[str, Any]:
        try:
            found = receive.recv()
        except EOFError:  # killed, for lack of memory perhaps
            return beside(config, name)
        finally:
            process.join()
        if isinstance(found, IBPWFError):
            raise found
        return dict(found)

    return result


def _in_a_process(send: Connection, config: RunConfig, name: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run
    try:
        send.send(beside(config, name))
    except IBPWFError as error:
        send.send(error)


def beside(config: RunConfig, name: str) -> dict[str, Any]:
    """What method `name` answers with the task inferred once it has learned what `config` asks for, with the settings
    of the same preset."""
    other = beside_config(config, name)
    started, found = time.perf_counter(), []
    for seed in other.seeds:
        stream = other.stream(seed)
        learner = new_learner(other, seed, stream, ("class",))
        for task in stream:
            learner.learn(task.train.x, task.train.y, task=task.name)
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
