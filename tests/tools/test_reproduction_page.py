"""The page of all the paper's numbers: a row each, from result files, and nothing from a quick run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ibpwf.lab.experiments.paper import target, targets
from ibpwf.lab.report.result_files import read_measured, row_for
from tools.reproduction_page import reproduction_page

ROOT = Path(__file__).parents[2]


def row_of(page: str, *words: str) -> str:
    (line,) = [line for line in page.splitlines() if line.startswith("| ") and all(f"| {w} |" in line for w in words)]
    return line


def reproduction(budget: str, ours: float) -> dict[str, Any]:
    row = {
        "benchmark": "split-cifar10",
        "setting": "task",
        "method": "ewc",
        "ours": {"mean": ours, "std": 0.5},
        "difference": ours - 75.91,
        "reproduces": True,
        "seeds": 5,
        "command": "ibpwf run split-cifar10 --method ewc",
    }
    claims: list[Any] = []
    return {"kind": "reproduction", "name": "table2", "budget": budget, "measured": {"rows": [row]}, "claims": claims}


def test_there_is_a_row_for_every_number_of_the_paper(tmp_path: Path) -> None:
    page = reproduction_page(tmp_path)
    assert page.count("not measured yet") == len(targets()) + 8  # and the figures
    assert f"0 of {len(targets())} numbers are measured" in page


def test_the_committed_files_fill_rows_with_their_own_numbers() -> None:
    result = json.loads((ROOT / "docs/results/compare-split-mnist/ewc.json").read_text())
    line = row_of(reproduction_page(ROOT / "docs" / "results"), "1", "split-mnist", "ewc", "task given")
    assert f"{result['accuracy']['task']['mean']:.2f} ±" in line
    assert result["command"] in line
    assert "✅" in line


def test_a_full_reproduction_is_taken_and_a_quick_one_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "reproduction"
    folder.mkdir()
    (folder / "table2.json").write_text(json.dumps(reproduction("quick", 80.0)))
    assert "not measured yet" in row_of(reproduction_page(tmp_path), "2", "ewc", "task given")
    (folder / "table2.json").write_text(json.dumps(reproduction("full", 76.0)))
    assert "| 76.00 ± 0.50 | 75.91 ± 1.64 | +0.09 | ✅ | 5 |" in row_of(
        reproduction_page(tmp_path), "2", "ewc", "task given"
    )


def test_a_figures_claims_have_a_row_each(tmp_path: Path) -> None:
    (tmp_path / "reproduction").mkdir()
    claims = [{"statement": "It holds.", "held": True}, {"statement": "It does not, |r| is low.", "held": False}]
    found = {"kind": "reproduction", "name": "figure-alpha", "budget": "full", "claims": claims, "seeds": [0, 1]}
    (tmp_path / "reproduction" / "figure-alpha.json").write_text(json.dumps({**found, "command": "ibpwf reproduce"}))
    page = reproduction_page(tmp_path)
    assert "| It holds. | ✅ | 2 |" in page
    assert r"| It does not, \|r\| is low. | ❌ | 2 |" in page


def test_a_variant_does_not_stand_for_the_papers_run(tmp_path: Path) -> None:
    source = json.loads((ROOT / "docs/results/split-mnist-paper-class-gaussians.json").read_text())
    (tmp_path / "a.json").write_text(json.dumps(source))
    paper = target("split-mnist", "class", "ibpwf")
    assert paper is not None
    assert row_for(paper, read_measured(tmp_path)) is None
    (tmp_path / "b.json").write_text(json.dumps({**source, "changes": {}}))
    row = row_for(paper, read_measured(tmp_path))
    assert row is not None
    assert row["ours"]["mean"] == pytest.approx(source["accuracy"]["class"]["mean"])


def test_one_vae_per_task_has_its_row(tmp_path: Path) -> None:
    vae = {"kind": "vae-inference", "scenario": "split-cifar10", "task_inference": {"mean": 40.5, "std": 0.1}}
    (tmp_path / "vae.json").write_text(json.dumps({**vae, "seeds": [0, 1, 2], "command": "python -m x"}))
    assert "| 40.50 ± 0.10 |" in row_of(reproduction_page(tmp_path), "3", "vae", "task inference")


def test_every_file_that_is_used_is_listed_with_its_seeds_commit_and_machine(tmp_path: Path) -> None:
    (tmp_path / "reproduction").mkdir()
    env = {"device": "NVIDIA H200", "cores": 16, "torch": "2.11.0", "python": "3.11.9", "ibpwf": "0.1"}
    runs = [{"seeds": [0, 1, 2]}, {"seeds": list(range(10))}]
    full = {**reproduction("full", 76.0), "commit": "0123456789abcdef-dirty", "environment": env, "runs": runs}
    (tmp_path / "reproduction" / "table2.json").write_text(json.dumps(full))
    (tmp_path / "reproduction" / "table1.json").write_text(json.dumps({**full, "budget": "quick", "name": "table1"}))
    lines = [line for line in reproduction_page(tmp_path).splitlines() if line.startswith("| `")]
    wanted = "| 3 to 10 | 0123456789-dirty | NVIDIA H200, 16 cores | ibpwf 0.1, torch 2.11.0, Python 3.11.9 |"
    assert lines == [f"| `reproduction/table2.json` {wanted}"]
