"""Scenarios, methods and parts of IBP-WF from outside the package: run, compared and resumed by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ibpwf.errors import InputError
from ibpwf.lab.experiments.run_config import RunConfig
from processes import Finished

MODULE = """
import torch

from ibpwf.lab.data import split_by_class
from ibpwf.lab.methods.finetune import Adam


def stream(*, tasks=None, examples=None, seed=0, progress=None):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(180) % 6
    x = torch.randn(180, 5, generator=generator) + 4 * torch.randn(6, 5, generator=generator)[y]
    return split_by_class(x[:120], y[:120], x[120:], y[120:], name="heaps", tasks=tasks)


def pictures(*, tasks=None, examples=None, seed=0, progress=None):
    y = torch.arange(40) % 2
    x = torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) + y.view(-1, 1, 1, 1)
    return split_by_class(x, y, x, y, name="pictures")


class Mine(Adam):
    name, summary = "mine", "as adam"
"""


@pytest.fixture
def outside(tmp_path: Path) -> str:
    """A module in the folder that commands run in."""
    name = f"outside_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    return name


def test_a_scenario_and_a_method_from_outside_are_compared_with_ours(
    outside: str, command: Callable[..., Finished], tmp_path: Path
) -> None:
    words = ("compare", f"{outside}:stream", "--methods", f"ibpwf,{outside}:Mine", "--seeds", "1", "--tasks", "2")
    done = command(*words, "--set", "epochs=2", "--out", "c")
    assert done.code == 0, done.err
    said = [line for line in done.out.splitlines() if line.startswith("Preset: none")]
    assert len(said) == 1
    assert "default settings and the network mlp;hidden=[400]" in said[0]
    rows = json.loads((tmp_path / "c" / "comparison.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["ibpwf", f"{outside}:Mine"]
    assert all(row["task_mean"] is not None and row["error"] is None for row in rows)
    assert (tmp_path / "c" / f"{outside}.Mine" / "result.json").exists()


def test_a_run_of_parts_from_outside_goes_on_where_it_was(
    outside: str, command: Callable[..., Finished], tmp_path: Path
) -> None:
    words = ("run", f"{outside}:stream", "--method", f"{outside}:Mine", "--set", "epochs=2", "--out", "r")
    assert command(*words, "--seed", "0").code == 0
    more = command(*words, "--seeds", "2", "--resume")
    assert more.code == 0, more.err
    assert json.loads((tmp_path / "r" / "result.json").read_text())["seeds"] == [0, 1]


def test_images_without_a_preset_have_a_small_convolution_network(
    outside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = RunConfig(f"{outside}:pictures", preset="quick")
    assert config.preset == "none"
    assert config.network_spec() == {"builder": "resnet", "depth": 8}
    assert RunConfig(f"{outside}:pictures", method="ewc").settings().to_json()["network"] == "resnet20"
    with pytest.raises(InputError, match="cannot be imported"):
        RunConfig(f"{outside}:nothing")
    with pytest.raises(InputError, match="unknown preset 'papre'"):
        RunConfig(f"{outside}:stream", preset="papre")
