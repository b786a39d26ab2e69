"""The README's pictures are drawn from runs and result files."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tools import comparison_figure, expert_weight_figure, method_figure

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
IMAGES = RESULTS.parent / "images"
SVG = "{http://www.w3.org/2000/svg}"


def test_the_committed_comparison_is_made_from_the_committed_results(tmp_path: Path) -> None:
    out = tmp_path / "comparison.svg"
    assert comparison_figure.main([str(RESULTS / "compare-split-mnist"), "-o", str(out)]) == 0
    assert out.read_bytes() == (IMAGES / "comparison.svg").read_bytes(), "run `make results`"


def test_the_committed_figure_of_weights_is_made_from_the_committed_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "weight.svg"
    assert expert_weight_figure.main([str(RESULTS), "-o", str(out)]) == 0
    assert out.read_bytes() == (IMAGES / "expert-weight.svg").read_bytes(), "run `make results`"
    assert expert_weight_figure.main([str(tmp_path), "-o", str(tmp_path / "none.svg")]) == 2
    assert "has no class-incremental" in capsys.readouterr().err


def test_the_readme_figure_is_drawn_from_the_run(finished_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "method.svg"
    assert method_figure.main([str(finished_run), "-o", str(out)]) == 0
    root = ET.parse(out).getroot()
    assert root.tag == f"{SVG}svg"
    words = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert "Nothing is forgotten" in words
    assert any(word.endswith(" reused") for word in words)
    assert any("ibpwf run split-digits" in word for word in words)
    left, top, width, height = map(float, root.get("viewBox", "").split())
    for rect in root.iter(f"{SVG}rect"):
        assert left <= float(rect.get("x", "")) <= width
        assert float(rect.get("x", "")) + float(rect.get("width", "")) <= width + 1
        assert top <= float(rect.get("y", "")) + float(rect.get("height", "")) <= height + 1


def test_the_readme_figure_needs_factor_scores(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(finished_run, tmp_path / "copy"))
    for seed in ("seed-0", "seed-1"):
        shutil.rmtree(folder / seed)
    assert method_figure.main([str(folder), "-o", str(tmp_path / "method.svg")]) == 2
    assert "no factor scores" in capsys.readouterr().err
    assert not (tmp_path / "method.svg").exists()


def test_the_readmes_method_picture_comes_from_the_result_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, out = tmp_path / "results", tmp_path / "method.svg"
    (results / "reproduction").mkdir(parents=True)
    shutil.copytree(RESULTS / "compare-split-mnist", results / "compare-split-mnist")
    shutil.copy(RESULTS / "split-mnist-paper.json", results)
    assert method_figure.main([str(results), "-o", str(out)]) == 0
    assert "is left as it is" in capsys.readouterr().out
    assert not out.exists()
    shutil.copy(RESULTS / "reproduction" / "figure-factors.json", results / "reproduction")
    assert method_figure.main([str(results), "-o", str(out)]) == 0
    measured = json.loads((RESULTS / "reproduction" / "figure-factors.json").read_text())["measured"]
    (panel,) = [panel for panel in measured["panels"] if panel["ran"] == "split-mnist"]
    drawn = out.read_text()
    assert f"IBP-WF on split-mnist: {len(panel['tasks'])} tasks" in drawn
    assert all(f"{len(opened) or 'none'}" in drawn for opened in panel["opened"])
    assert f"{len(panel['opened'][0])} new" in drawn
