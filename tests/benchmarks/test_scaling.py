"""What `make bench` and `make bench-scale` ask of the benchmark of growing cost."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import scaling


def test_without_a_name_all_axes_are_measured() -> None:
    assert scaling.options([]).axes == scaling.options(["--small"]).axes == list(scaling.AXES)
    assert scaling.options(["rows", "--add"]).axes == ["rows"]


def test_an_axis_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        scaling.options(["nothing"])
    assert "invalid choice: 'nothing'" in capsys.readouterr().err
