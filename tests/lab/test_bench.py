"""`ibpwf bench`: what it measures with, what it skips and what it writes. No test looks at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ibpwf.cli import program
from ibpwf.errors import InputError
from ibpwf.lab.bench import measure, memory, page, registry, steps
from ibpwf.lab.bench.measure import Row, Setup
from ibpwf.learner import Learner
from ibpwf.models import mlp
from ibpwf.settings import Settings
from ibpwf.training.method import TaskData

CPU = Setup(torch.device("cpu"), quick=True)


def test_sides_take_turns_and_the_first_round_does_not_count() -> None:
    calls: list[str] = []
    sides = {name: lambda name=name: calls.append(name) for name in "abc"}
    times = measure.take_turns(sides, CPU, rounds=4)
    assert {name: len(values) for name, values in times.items()} == {"a": 4, "b": 4, "c": 4}
    assert ["".join(calls[k : k + 3]) for k in range(0, 15, 3)] == ["abc", "bca", "cab", "abc", "bca"]


def test_a_ratio_is_taken_within_rounds() -> None:
    row = measure.ratio("x", "x", [2.0, 40.0, 6.0], [1.0, 10.0, 2.0], limit=2.9)
    assert (row.value, row.met) == (3.0, False)
    five = measure.ratio("x", "x", [5.0], [2.0], limit=0.5, per=5)
    assert (five.value, five.met) == (0.5, True)
    assert Row("x", "x", 0.7, 0.7, 0.7, 0.6, at_least=True).met
    assert Row("x", "x", 0.7, 0.7, 0.7).met is None


def test_what_needs_a_gpu_is_skipped_with_a_word() -> None:
    for measurement in registry.MEASUREMENTS:
        if measurement.device == "cuda":
            assert registry.measured(measurement, CPU)["skipped"] == "needs a GPU"


def test_bytes_of_a_task_are_those_of_its_tensors() -> None:
    learner = Learner(mlp(6, [5], 2), Settings(alpha=3.0, epochs=1, finetune_epochs=1), device="cpu")
    x = torch.rand(40, 6, generator=torch.Generator().manual_seed(0))
    learner.learn(x, (x[:, 0] > 0.5).long())
    found = memory.bytes_of_task(learner.method, 0)
    _, files = learner.method.state()
    tensors = [*files["task-0000"].values(), *files["factors-0000"].values()]
    assert sum(found.values()) == sum(t.numel() * t.element_size() for t in tensors)
    use = learner.method.use(0)
    assert found["factors"] == use["hidden1"]["new"] * (4 * (6 + 5) + 8) + use["head"]["new"] * (4 * (5 + 2) + 8)
    assert found["feature statistics"] == 8 * (5 + 5 * 5)


def test_optimiser_bytes_count_two_averages_and_a_counter_per_parameter() -> None:
    weight = torch.nn.Parameter(torch.zeros(3, 4))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    assert memory.optimizer_bytes(optimizer) == 2 * 3 * 4 * 4 + 4


def test_the_command_writes_json_and_the_page_made_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["ibpwf", "bench", "--only", "memory", "--only", "step-gpu"])
    arguments = ["bench", "--quick", "--device", "cpu", "--only", "memory", "--only", "step-gpu"]
    assert program.call([*arguments, "--out", str(tmp_path / "bench")]) == 0
    content = json.loads((tmp_path / "bench" / "bench.json").read_text(encoding="utf-8"))
    assert (tmp_path / "bench" / "README.md").read_text(encoding="utf-8") == page.markdown(content)
    assert [entry["name"] for entry in content["measurements"]] == ["memory", "step-gpu"]
    assert content["command"] == "ibpwf bench --only memory --only step-gpu"
    assert "bytes that task 1 added" in page.markdown(content)
    assert "needs a GPU" in page.markdown(content)
    assert "Other programs" in page.markdown({**content, "load": 3.0})
    assert "Other programs" not in page.markdown({**content, "load": 0.1})


def measurement(name: str, command: str, **more: object) -> dict[str, object]:
    return {"name": name, "summary": name, "rows": [], "command": command, "commit": "c", **more}


def test_measurements_of_several_commands_stand_side_by_side() -> None:
    machine = {"words": "a machine"}
    old = {"machine": machine, "measurements": [measurement("step", "old"), measurement("memory", "old")]}
    now = [measurement("memory", "new"), measurement("step", "new", skipped="needs a CPU")]
    content = page.joined(old, {"machine": machine, "command": "new", "commit": "c", "measurements": now})
    assert [(entry["name"], entry["command"]) for entry in content["measurements"]] == [
        ("step", "old"),
        ("memory", "new"),
    ]
    with pytest.raises(InputError, match="another machine"):
        page.joined(old, {"machine": {"words": "another"}, "measurements": []})


@pytest.mark.parametrize("task", [0, 1])
def test_the_bare_products_of_a_step_are_those_that_the_step_makes(task: int) -> None:
    x, y = steps.examples(32, 784, 2, torch.device("cpu"))
    method = steps.method_of("split-mnist", mlp(784, [400], 10), torch.device("cpu"))
    step = steps.elbo_step(method, TaskData("task", 0, (0, 1), x, y, 0), task)
    products = steps.bare_steps(method, 32, 1)
    with FlopCounterMode(display=False) as bare:
        products()
    with FlopCounterMode(display=False) as whole:
        steps.repeat(step, 1)()
    assert bare.get_total_flops() == 2 * steps.multiplications(method, 32)
    assert whole.get_total_flops() == bare.get_total_flops()
