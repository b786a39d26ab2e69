"""Where a step's time goes: its parts, each timed alone, and the operations torch spends most time in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from ibpwf.lab.bench.measure import Setup, middle, take_turns
from ibpwf.lab.bench.steps import STEPS, elbo_step, examples, method_of, repeat
from ibpwf.models import mlp
from ibpwf.training.method import TaskData


def step_profile(setup: Setup) -> dict[str, Any]:
    """For a later task of Split MNIST's network: milliseconds of each part of a step, and of the ten dearest
    operations."""
    with setup.one_thread():
        x, y = examples(32 * STEPS, 784, 2, setup.device)
        method = method_of("split-mnist", mlp(784, [400], 10), setup.device)
        step = elbo_step(method, TaskData("task", 0, (0, 1), x, y, 0), 1)
        network = method.network
        assert network is not None
        rows, labels = x[:32], y[:32]
        sides: dict[str, Callable[[], object]] = {
            "whole step": repeat(step, 1),
            "KL, value and slopes": network.kl,
            "scores λ": lambda: network.posterior.sample_scores(network.noise),
            "forward pass, with scores": lambda: network(rows),
            "loss: KL and forward pass": lambda: method.loss(rows, labels),
            "optimiser": step.optimizer.step,
        }
        times = take_turns(sides, setup, rounds=60)
        activities = [ProfilerActivity.CPU]
        if setup.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities) as record:
            repeat(step, STEPS)()
    gpu = setup.device.type == "cuda"
    found = [
        (event.key, (event.self_device_time_total if gpu else event.self_cpu_time_total) / STEPS / 1e3)
        for event in record.key_averages()
    ]
    found.sort(key=lambda pair: -pair[1])
    return {
        "parts": {name: 1e3 * middle(values)[0] for name, values in times.items()},
        "operations": dict(found[:10]),
        "threads": torch.get_num_threads(),
    }
