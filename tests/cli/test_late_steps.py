"""What a command needs at its end is asked for at its beginning."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ibpwf.cli import program
from ibpwf.errors import IBPWFError
from ibpwf.lab.report import rendering


def refused(monkeypatch: pytest.MonkeyPatch, place: str, words: list[str], match: str) -> None:
    """The command line is refused before the function at `place`, which does the long work, is called."""

    def work(*_: Any, **__: Any) -> None:
        pytest.fail(f"{place} was called")

    monkeypatch.setattr(place, work)
    with pytest.raises(IBPWFError, match=match):
        program.call(words)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("ibpwf.lab.experiments.run.run", ["run", "split-digits", "--preset", "quick"]),
        ("ibpwf.cli.reproduce.reproduce_all", ["reproduce", "table1", "--budget", "quick"]),
    ],
)
def test_without_jinja2_nothing_is_trained(
    place: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendering.environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    refused(monkeypatch, place, [*words, "--out", str(tmp_path / "out")], r"jinja2.*ibpwf\[lab\]")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["none/out", "taken"])
def test_a_file_that_cannot_be_written_is_named_before_the_work(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").mkdir()
    out = str(tmp_path / name)
    words = ["report", str(tmp_path), "-o", out]
    refused(monkeypatch, "ibpwf.lab.report.page.make_page", words, name.split("/")[0])


def test_without_tensorboard_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(IBPWFError, match=r"ibpwf\[tensorboard\]"):
        program.call(["run", "split-digits", "--tensorboard"])
    assert list(tmp_path.iterdir()) == []
