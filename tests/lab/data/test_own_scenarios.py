"""Scenarios from outside the package: `module:name`, and entry points of installed packages."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest
import torch

from ibpwf.errors import InputError
from ibpwf.lab.data import Scenario, scenario, scenario_names

MODULE = '''
import torch
from ibpwf.lab.data import Scenario, Task


def stream(*, tasks=None, examples=None, seed=0, progress=None, noise=0.5):
    """Two clouds of points per task, which turn around the origin from task to task."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for number in range(tasks or 4):
        angle = torch.tensor(number * 0.4)
        center = torch.stack([angle.cos(), angle.sin()])

        def cloud(count):
            y = torch.arange(count) % 2
            return (2 * y[:, None] - 1) * center + noise * torch.randn(count, 2, generator=generator), y

        made.append(Task(f"turn-{number}", train=cloud(examples or 400), test=cloud(200)))
    return Scenario("turning-clouds", made, seed=seed)


number = 3


def wrong(**options):
    return [1, 2]


def short(tasks):
    return Scenario("short", [])
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that lies in the folder one is in."""
    (tmp_path / "own_stream.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_stream", raising=False)
    return "own_stream"


def test_a_scenario_is_imported_as_module_and_name(module: str) -> None:
    made = scenario(f"{module}:stream", tasks=3, examples=50, seed=4)
    assert isinstance(made, Scenario)
    assert [task.name for task in made] == ["turn-0", "turn-1", "turn-2"]
    assert len(made[2].train) == 50
    assert made.n_classes == 2
    again = scenario(f"{module}:stream", tasks=3, examples=50, seed=4)
    assert torch.equal(made[1].train.x, again[1].train.x)
    exact = scenario(f"{module}:stream", noise=0.0)[0].train
    assert torch.equal(exact.x.unique(dim=0), torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))


def test_a_registered_scenario_is_known_by_its_name(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("clouds", f"{module}:stream", "ibpwf.scenarios")
    monkeypatch.setattr("ibpwf.registry.entry_points", lambda group: [entry] if group == entry.group else [])
    monkeypatch.syspath_prepend(".")
    assert scenario_names()[-1] == "clouds"
    assert len(scenario("clouds", tasks=2)) == 2
    with pytest.raises(InputError, match=r"unknown scenario 'cluods'\. Did you mean 'clouds'"):
        scenario("cluods")


def test_what_is_no_scenario_is_refused(module: str) -> None:
    with pytest.raises(InputError, match=r"own_stream:number' is a int; name a function"):
        scenario(f"{module}:number")
    with pytest.raises(InputError, match=r"own_stream:wrong' gave a list; return an ibpwf.lab.data.Scenario"):
        scenario(f"{module}:wrong")
    with pytest.raises(
        InputError, match=r"own_stream:short' must take tasks, examples, seed and progress.*'examples'"
    ):
        scenario(f"{module}:short")
    with pytest.raises(InputError, match="cannot be imported"):
        scenario("no_such_module:stream")
