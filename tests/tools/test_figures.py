"""The figures are drawn from the result files."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from ibpwf.errors import InputError
from tools import figures

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
IMAGES = RESULTS.parent / "images"
SVG = "{http://www.w3.org/2000/svg}"


def test_the_committed_figures_are_drawn_from_the_committed_results(tmp_path: Path) -> None:
    drawn = ("comparison", "expert-weight", "method")
    assert figures.main([*drawn, "--out", str(tmp_path)]) == 0
    for name in drawn:
        assert (tmp_path / f"{name}.svg").read_bytes() == (IMAGES / f"{name}.svg").read_bytes(), "run `make results`"


def test_the_method_has_its_tasks_factors_and_command_inside_its_sheet() -> None:
    found = json.loads((RESULTS / "reproduction" / "figure-factors.json").read_text())["measured"]["panels"]
    (panel,) = [panel for panel in found if panel["ran"] == "split-mnist"]
    root = ET.parse(IMAGES / "method.svg").getroot()
    words = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert any("ibpwf" in word and "split-mnist" in word for word in words)
    for opened in panel["opened"]:
        assert (f"{len(opened)} new" if opened else "none") in words
    left, top, width, height = map(float, root.get("viewBox", "").split())
    for rect in root.iter(f"{SVG}rect"):
        assert left <= float(rect.get("x", "")) <= width
        assert float(rect.get("x", "")) + float(rect.get("width", "")) <= width + 1
        assert top <= float(rect.get("y", "")) + float(rect.get("height", "")) <= height + 1


def test_results_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    for draw in (figures.comparison, figures.expert_weight):
        with pytest.raises(InputError):
            draw(tmp_path, tmp_path / "out.svg")


def test_layers_have_their_stage_and_block() -> None:
    names = (
        "backbone.net.stem.conv",
        "backbone.net.levels.0.0.layers.1.conv",
        "backbone.net.levels.4.1.layers.0.conv",
    )
    assert [figures.layer_title(name) for name in names] == ["stem", "1.1 project", "5.2 expand"]
    assert figures.layer_title("backbone.net.levels.7.conv") == "last"


def test_ranks_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "trained-networks").mkdir()
    shutil.copy(RESULTS / "trained-networks" / "cifar10.json", tmp_path / "trained-networks")
    figures.ranks(tmp_path, tmp_path / "ranks.png")
    assert (tmp_path / "ranks.png").read_bytes().startswith(b"\x89PNG")
