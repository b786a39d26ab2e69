"""Another method beside a run: the same tasks, in a process of its own, and what the command shows of it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest

from ibpwf.errors import InputError
from ibpwf.lab.experiments import beside as module
from ibpwf.lab.experiments import run as experiments
from ibpwf.lab.experiments.beside import beside, meanwhile
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.storage.files import read_json
from processes import Finished

CONFIG = RunConfig("split-digits", preset="quick", tasks=2, seeds=(0, 1), device="cpu", changes={"epochs": 1})


def test_it_says_what_a_run_of_that_method_says(tmp_path: Path) -> None:
    alone = experiments.run(CONFIG.replace(method="router", changes={}), tmp_path / "run")
    for found in (beside(CONFIG, "router"), meanwhile(CONFIG, "router")()):
        assert found["method"] == "router"
        assert found["settings"] == alone["settings"]
        assert found["class"]["per_seed"] == pytest.approx(alone["accuracy"]["class"]["per_seed"], abs=1e-9)
    assert not multiprocessing.active_children()


def test_a_process_that_dies_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = meanwhile(CONFIG.replace(seeds=(0,)), "router")
    for child in multiprocessing.active_children():
        child.kill()
    monkeypatch.setattr(module, "beside", lambda config, name: {"made": "here"})
    assert wait() == {"made": "here"}


def test_a_method_that_infers_no_task_is_refused_before_anything_is_run() -> None:
    with pytest.raises(InputError, match="--beside is pnn, which does not infer tasks"):
        beside(CONFIG, "pnn")


def test_the_command_shows_it_and_keeps_it(command: Callable[..., Finished], tmp_path: Path) -> None:
    words = ("run", "split-digits", "--preset", "quick", "--tasks", "2", "--set", "epochs=1", "--device", "cpu")
    done = command(*words, "--beside", "router", "--out", "r")
    assert done.code == 0
    kept = read_json(tmp_path / "r" / "result.json")["beside"]
    assert kept["class"]["mean"] == pytest.approx(fmean(kept["class"]["per_seed"]))
    assert f"… by the method router  {kept['class']['mean']:.2f}".split() == next(
        line.split() for line in done.out.splitlines() if "by the method router" in line
    )
    page = (tmp_path / "r" / "report.html").read_text(encoding="utf-8")
    assert "… by the method router, %" in page
    assert f"{kept['class']['mean']:.2f}" in page.partition("… by the method router, %")[2][:300]
