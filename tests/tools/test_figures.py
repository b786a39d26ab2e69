"""The figures are drawn from the result files."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from ibpwf.errors import InputError
from tools import figures

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
IMAGES = RESULTS.parent / "images"
SVG = "{http://www.w3.org/2000/svg}"


def words(path: Path) -> list[str]:
    return [element.text or "" for element in ET.parse(path).getroot().iter(f"{SVG}text")]


def test_the_committed_figures_say_what_the_committed_results_say(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = ("comparison", "expert-weight", "method")
    assert figures.main([*drawn, "--out", str(tmp_path)]) == 0
    for name in drawn:
        assert words(tmp_path / f"{name}.svg") == words(IMAGES / f"{name}.svg"), "run `make results`"


def test_the_method_has_its_tasks_factors_and_command() -> None:
    found = json.loads((RESULTS / "reproduction" / "figure-factors.json").read_text())["measured"]["panels"]
    (panel,) = [panel for panel in found if panel["ran"] == "split-mnist"]
    shown = words(IMAGES / "method.svg")
    assert any("ibpwf" in word and "split-mnist" in word for word in shown)
    for opened in panel["opened"]:
        assert (f"{len(opened)} new" if opened else "none") in shown


@pytest.mark.parametrize("name", figures.FIGURES)
def test_results_that_are_not_there_are_an_error(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(InputError):
        figures.draw(name, tmp_path, tmp_path)


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
    figures.draw("ranks", RESULTS, tmp_path)
    assert (tmp_path / "ranks.png").read_bytes().startswith(b"\x89PNG")
