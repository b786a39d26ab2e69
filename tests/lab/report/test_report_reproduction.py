"""Comparisons and reproductions on the page: every kind of figure drawn, numbers as in the files, damage survived."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_reader import Reader, drawings, tips

from ibpwf.errors import InputError
from ibpwf.lab.experiments.compare import Outcome, write_tables
from ibpwf.lab.experiments.reproduction.responses import png
from ibpwf.lab.report.page import make_page


def spread(mean: float, std: float | None = 0.5) -> dict[str, Any]:
    return {"mean": mean, "std": std, "per_seed": [mean]}


def table_measured() -> dict[str, Any]:
    row = {"benchmark": "split-mnist", "ran": "split-mnist", "seeds": 5, "command": "ibpwf run split-mnist"}
    paper = {"mean": 92.4, "std": 0.15, "note": ""}
    ours = {"setting": "class", "method": "ibpwf", "ours": spread(92.62), "difference": 0.22, "reproduces": True}
    none = {"setting": "task", "method": "ewc", "ours": None, "difference": None, "reproduces": None}
    return {"rows": [{**row, **ours, "paper": paper}, {**row, **none, "paper": paper}]}


def uncertainty_measured() -> dict[str, Any]:
    def one(name: str, kind: str, mean: float) -> dict[str, Any]:
        marks = [mean - 0.1, mean - 0.05, mean, mean + 0.05, mean + 0.1]
        return {"name": name, "kind": kind, "mean": mean, "quantiles": marks, "histogram": [5, 3, 1, 0]}

    sets = [one("0/1", "seen", 0.1), one("2/3", "unseen", 0.4), one("Fashion-MNIST", "foreign", 0.5)]
    panel = {"task": "0/1", "sets": sets, "auroc": {"unseen tasks": 91.5, "noise": 99.0}}
    return {"highest": 0.69, "per_task": False, "draws": 100, "panels": [panel]}


def factors_measured() -> dict[str, Any]:
    use = [
        {"active": 2, "new": 2, "reused": 0, "total": 2},
        {"active": 2, "new": 1, "reused": 1, "total": 3},
    ]
    return {
        "panels": [
            {
                "ran": "split-mnist",
                "tasks": ["0/1", "2/3"],
                "seed": 0,
                "layer": "hidden1",
                "scores": [[0.5, 0.2], [0.4, 0.01, 0.3]],
                "selected": [[0, 1], [0, 2]],
                "opened": [[0, 1], [2]],
                "layers": {"hidden1": {"alpha": 2.0, "per_task": use, "harmonic": [2.0, 3.0]}},
            }
        ]
    }


def growth_measured() -> dict[str, Any]:
    def line(label: str, size: float) -> dict[str, Any]:
        return {"label": label, "parameters": [size, 1.5 * size], "task": [spread(99.0), spread(98.5, None)]}

    return {"panels": [{"ran": "split-mnist", "lines": [line("IBP-WF", 1000), line("Const-WF(200, 40)", 1500)]}]}


def sweep_measured() -> dict[str, Any]:
    points = [{"value": v, "task": spread(99.0), "class": spread(a)} for v, a in ((10.0, 70.0), (100.0, 92.125))]
    return {"setting": "alpha", "panels": [{"ran": "split-mnist", "points": points}]}


def scatter_measured() -> dict[str, Any]:
    points = [[0.0, 0.0, 0], [1.0, 0.5, 0], [9.0, 8.0, 1], [10.0, 9.0, 1]]
    return {"ran": "permuted-mnist", "tasks": ["permutation-0", "permutation-1"], "points": points}


def pictures_measured() -> dict[str, Any]:
    import torch

    picture = {"task": "airplane/automobile", "class": 0, "active": 7, "png": png(torch.rand(20, 20))}
    return {"layer": "stem", "pictures": [picture], "tasks": [{"task": "airplane/automobile", "similarity": 0.5}]}


MEASURED: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "table1": ("table", table_measured),
    "figure-uncertainty-class": ("uncertainty", uncertainty_measured),
    "figure-factors": ("factors", factors_measured),
    "figure-const-wf": ("growth", growth_measured),
    "figure-alpha": ("sweep", sweep_measured),
    "figure-tsne": ("scatter", scatter_measured),
    "figure-filters": ("pictures", pictures_measured),
}


def write(folder: Path, name: str, budget: str = "full", **changes: Any) -> Path:
    shows, measured = MEASURED[name]
    result = {
        "schema": 1,
        "kind": "reproduction",
        "name": name,
        "title": f"Title of {name}",
        "paper": "What the paper found.",
        "shows": shows,
        "budget": budget,
        "note": "quick: a stand-in" if budget == "quick" else "",
        "seeds": [0, 1],
        "measured": measured(),
        "claims": [{"statement": "This holds.", "held": True}, {"statement": "This does not.", "held": False}],
        "runs": [{"name": "a run", "command": "ibpwf run split-mnist --seeds 2"}],
        "failed": [{"name": "another run", "error": "no data"}],
        "command": f"ibpwf reproduce {name}",
        "commit": "0123456789abcdef",
        "environment": {"device": "cpu"},
    }
    out = folder / name
    out.mkdir(parents=True)
    (out / "result.json").write_text(json.dumps({**result, **changes}))
    return out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in MEASURED:
        write(tmp_path / "reproduction", name)
    return tmp_path / "reproduction"


def test_every_experiment_is_on_the_page_in_the_papers_order(folder: Path) -> None:
    page = make_page([folder])
    assert page.problems == []
    assert [one.about.name for one in page.experiments] == [
        *("table1", "figure-uncertainty-class", "figure-factors", "figure-filters"),
        *("figure-const-wf", "figure-alpha", "figure-tsne"),
    ]
    reader = Reader(page.html)
    assert reader.faults == []
    assert len(reader.all("img")) == 1
    for name in MEASURED:
        assert f"ibpwf reproduce {name}" in reader.text
    assert "another run failed and is left out: no data" in reader.text
    assert "7 of 14 claims hold" in reader.text


def test_numbers_stand_beside_the_papers_with_the_files_verdict(folder: Path) -> None:
    reader = Reader(make_page([folder / "table1"]).html)
    rows = reader.table("method, setting")
    assert rows[1] == ["ibpwf, task inferred", "92.62 ± 0.50", "92.40 ± 0.15", "+0.22", "✅ reached", "5"]
    assert rows[2][1] == "–"


@pytest.mark.parametrize(("vae", "word"), [(52.67, "not borne out here"), (40.0, "no better here either")])
def test_what_the_paper_says_of_vaes_is_held_against_our_own(tmp_path: Path, vae: float, word: str) -> None:
    row = {"benchmark": "split-cifar10", "ran": "split-cifar10", "setting": "task-inference", "seeds": 3}
    paper = {"mean": 41.0, "std": None, "note": "one VAE per task"}
    rows = [
        {**row, "method": "ibpwf", "ours": spread(44.2), "paper": {"mean": 43.62, "std": 0.16}, "reproduces": True},
        {**row, "method": "vae", "ours": spread(vae), "paper": paper, "difference": vae - 41, "reproduces": True},
    ]
    write(tmp_path, "table1", measured={"rows": rows})
    reader = Reader(make_page([tmp_path / "table1"]).html)
    assert word in reader.text
    ours, theirs = reader.table("method, setting")[1:]
    assert ours[4] == "✅ reached"
    assert theirs[4] == ("✅ better" if vae > 42 else "✅ reached")
    assert f"{vae:.2f} ± 0.50" in reader.text.replace("  ", " ")


def test_figures_tell_their_numbers_when_pointed_at(folder: Path) -> None:
    html = make_page([folder]).html
    told = [tip for drawing in drawings(html) for tip in tips(drawing)]
    assert "task inferred, α = 100: 92.12 ± 0.50 %" in told
    assert "Const-WF(200, 40), task 2: 2,250 numbers" in told
    assert any(tip.startswith("0/1 (known): mean 0.100") for tip in told)
    assert "task 2/3, factor 3: λ = 0.3, new" in told
    assert "permutation-1: 2 images" in told


def test_a_quick_table_has_no_columns_of_verdicts(tmp_path: Path) -> None:
    write(tmp_path, "table1", "quick")
    rows = Reader(make_page([tmp_path / "table1"]).html).table("method, setting")
    assert rows[0] == ["method, setting", "ours, %", "paper, %", "seeds"]
    assert len(rows[1]) == 4


def test_a_quick_run_says_so_in_title_text_and_overview(tmp_path: Path) -> None:
    write(tmp_path, "table1", "quick")
    write(tmp_path, "figure-alpha", "quick")
    reader = Reader(make_page([tmp_path]).html)
    assert "The paper, reproduced (quick)" in reader.text
    assert reader.text.count("Quick run.") == 2
    assert "none of their numbers stands for the paper's" in reader.text
    assert "not judged" in reader.text


@pytest.mark.parametrize("name", MEASURED)
def test_a_file_with_wrong_content_is_named_and_the_rest_is_shown(folder: Path, name: str) -> None:
    broken = {"a": 1, "panels": [{"ran": 3, "task": None}], "rows": [7], "points": ["x"], "pictures": [{}]}
    shutil.rmtree(folder / name)
    write(folder, name, measured=broken)
    page = make_page([folder])
    assert len(page.experiments) == len(MEASURED) - 1
    assert len(page.problems) == 1
    assert name in page.problems[0]
    assert Reader(page.html).faults == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"kind": "reproduction"}', '{"kind": "reproduction", "schema": 99}']
)
def test_a_cut_or_foreign_file_is_named_and_the_rest_is_shown(folder: Path, text: str) -> None:
    (folder / "table1" / "result.json").write_text(text)
    page = make_page([folder])
    assert len(page.experiments) == len(MEASURED) - 1
    assert "table1" in page.problems[0]
    with pytest.raises(InputError, match="nothing to report"):
        make_page([folder / "table1"])


def test_a_missing_result_is_named_with_the_command_that_makes_it(folder: Path) -> None:
    (folder / "figure-alpha" / "result.json").unlink()
    page = make_page([folder])
    assert len(page.experiments) == len(MEASURED) - 1
    (problem,) = page.problems
    assert "figure-alpha" in problem
    assert "ibpwf reproduce figure-alpha --resume" in problem


@pytest.fixture
def compared(finished: Path, tmp_path: Path) -> Path:
    out = tmp_path / "compared"
    shutil.copytree(finished, out / "ibpwf")
    result = json.loads((finished / "result.json").read_text())
    write_tables(out, [Outcome("ibpwf", result), Outcome("ewc", None, "it would not start")])
    return out


def test_a_comparison_has_its_table_and_the_runs_behind_it(compared: Path) -> None:
    page = make_page([compared])
    assert page.problems == []
    assert len(page.comparisons) == len(page.runs) == 1
    reader = Reader(page.html)
    assert reader.faults == []
    rows = reader.table("method")
    result = json.loads((compared / "ibpwf" / "result.json").read_text())
    assert rows[1][0] == "ibpwf"
    assert rows[1][1].startswith(f"{result['accuracy']['task']['mean']:.2f}")
    assert rows[2][:2] == ["ewc", "failed: it would not start"]
    told = [tip for drawing in drawings(page.html) for tip in tips(drawing)]
    shown = result["accuracy"]["class"]
    assert f"ibpwf: {shown['mean']:.2f} ± {shown['std']:.2f} %" in told
    assert result["command"] in reader.text


@pytest.mark.parametrize("text", ["", "[1]", '{"rows": "x"}'])
def test_a_damaged_comparison_is_named_and_its_runs_are_shown(compared: Path, text: str) -> None:
    (compared / "comparison.json").write_text(text)
    page = make_page([compared])
    assert len(page.runs) == 1
    assert "comparison.json is left out" in page.problems[0]
