"""`ibpwf reproduce`: what it prints and writes, and how it fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ibpwf.cli import program as cli
from ibpwf.errors import InputError
from ibpwf.lab.experiments.reproduction import registry
from ibpwf.lab.experiments.reproduction.experiment import RunSpec
from ibpwf.storage.files import read_json


@pytest.fixture(scope="module")
def reproduce() -> Callable[..., object]:
    return lambda *words: CliRunner().invoke(cli.app, ["reproduce", *words])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two experiments of one small run each, the second of which cannot be had."""
    changes = {"epochs": 1, "hidden": [16], "batch_size": 64}
    spec = RunSpec("split-digits", "sgd", "quick", changes, 2, stands_for="split-mnist")
    table = registry.EXPERIMENTS["table4"]
    bad = dataclasses.replace(spec, method="rehearsal", changes={**changes, "memory_size": 100_000})
    monkeypatch.setattr(
        registry,
        "EXPERIMENTS",
        {
            "table4": dataclasses.replace(table, runs={"quick": (spec,), "full": (spec,)}),
            "table1": dataclasses.replace(table, name="table1", runs={"quick": (bad,), "full": (bad,)}),
        },
    )


@pytest.mark.usefixtures("small")
def test_a_table_is_run_printed_written_and_reported(reproduce: Callable[..., object], tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = reproduce("table4", "--budget", "quick", "--device", "cpu", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert "quick, not the paper's size" in done.output
    result = read_json(out / "table4" / "result.json")
    assert [(row["method"], row["setting"]) for row in result["measured"]["rows"]] == [
        ("sgd", "task"),
        ("sgd", "class"),
    ]
    assert result["measured"]["rows"][0]["reproduces"] is None
    assert "split-digits" in (out / "report.html").read_text()


@pytest.mark.usefixtures("small")
def test_one_that_fails_does_not_stop_the_others_and_is_an_error(
    reproduce: Callable[..., object], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = reproduce("all", "--budget", "quick", "--device", "cpu", "--out", str(out))
    assert (out / "table4" / "result.json").exists()
    assert (out / "report.html").exists()
    assert isinstance(done.exception, InputError)
    assert "1 of 2 experiments failed: table1" in str(done.exception)


@pytest.mark.usefixtures("small")
def test_a_plan_runs_nothing(reproduce: Callable[..., object], tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = reproduce("table4", "--budget", "quick", "--device", "cpu", "--out", str(out), "--plan")
    assert done.exit_code == 0, done.output
    assert "1 runs, 1 of them not finished (2 trainings)." in done.output
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("table5",), "Did you mean 'table"),
        (("table1", "--budget", "fast"), "unknown budget 'fast'"),
        (("table1", "--seeds", "0"), "--seeds is 0"),
        (("table1", "--device", "abacus"), "device is 'abacus'"),
    ],
)
def test_mistakes_are_named_before_anything_runs(
    reproduce: Callable[..., object], words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = reproduce(*words, "--out", str(tmp_path / "out"))
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)
    assert not (tmp_path / "out").exists()
