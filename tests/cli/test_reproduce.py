"""`ibpwf reproduce`: what it prints and writes, and how it fails."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ibpwf.lab.experiments.reproduction import registry
from ibpwf.lab.experiments.reproduction.experiment import RunSpec
from ibpwf.storage.files import read_json
from processes import Finished

Invoke = Callable[..., Finished]
QUICK = ("--budget", "quick", "--device", "cpu")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two experiments of one small run each, the second of which fails."""
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
def test_an_experiment_is_run_printed_written_and_reported_and_one_that_fails_does_not_stop_it(
    invoke: Invoke, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    planned = invoke("reproduce", "table4", *QUICK, "--out", out, "--plan", "--json")
    assert [(one["seeds"], one["state"]) for one in json.loads(planned.out)] == [(1, "to do")]
    assert not out.exists()
    done = invoke("reproduce", "all", *QUICK, "--out", out)
    assert done.code == 2
    assert "table1" in done.err
    result = read_json(out / "table4" / "result.json")
    measured = result["measured"]["rows"]
    assert [(row["method"], row["setting"]) for row in measured] == [("sgd", "task"), ("sgd", "class")]
    assert measured[0]["reproduces"] is None
    assert f"{measured[0]['ours']['mean']:.2f}" in done.out
    assert "split-digits" in (out / "report.html").read_text()
    again = invoke("reproduce", "table4", *QUICK, "--out", out, "--json")
    assert [one["measured"] for one in json.loads(again.out)] == [result["measured"]]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("table5",), "'table5'"),
        (("table1", "--budget", "fast"), "'fast'"),
        (("table1", "--seeds", "0"), "--seeds is 0"),
        (("table1", "--device", "abacus"), "'abacus'"),
    ],
)
def test_mistakes_are_named_before_anything_runs(
    invoke: Invoke, words: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    done = invoke("reproduce", *words, "--out", tmp_path / "out")
    assert done.code == 2
    assert named in done.err
    assert not (tmp_path / "out").exists()
