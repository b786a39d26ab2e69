"""Pages say what the result files say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jinja2
import pytest

from ibpwf.errors import InputError
from ibpwf.lab.experiments.paper import target, targets
from ibpwf.lab.experiments.results_folder import read_measured, read_results, row_for
from ibpwf.storage.files import read_json, write_json
from tools import measured, pages

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    write_json(path, content)


def row_of(page: str, *cells: str) -> str:
    found = [line for line in page.splitlines() if line.startswith("| ") and all(f"| {c} |" in line for c in cells)]
    (line,) = found
    return line


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The documents and the README, to be changed."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("images", "*.html"))
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


def test_the_committed_pages_agree_with_the_committed_result_files() -> None:
    assert pages.main(["--check"]) == 0, "run `make results`"


def test_a_number_changed_by_hand_is_found_and_replaced(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = copy / "docs" / "results" / "README.md"
    accuracy = f"{read_json(RESULTS / 'permuted-mnist-paper.json')['accuracy']['task']['mean']:.2f}"
    before = page.read_text()
    assert accuracy in before
    page.write_text(before.replace(accuracy, "98.87"))
    chosen = ["results", "readme", "--root", str(copy)]
    assert pages.main(["--check", *chosen]) == 1
    assert str(page) in capsys.readouterr().err
    assert pages.main(chosen) == 0
    assert page.read_text() == before


def test_new_measurements_reach_a_page_between_its_marks(copy: Path) -> None:
    file, page = copy / "docs" / "results" / "serving" / "serving.json", copy / "docs" / "serving.md"
    found = read_json(file)
    found["sides"]["ibpwf serve"]["256"]["per_second"] = 1234.0
    found["sides"]["ibpwf serve, one at a time"]["256"]["per_second"] = 100.0
    write(file, found)
    before = page.read_text()
    pages.main(["serving", "--root", str(copy)])
    assert "answered 12.3 times" in page.read_text()
    head = before.index("<!-- measured:")
    assert page.read_text()[:head] == before[:head]
    assert page.read_text()[-500:] == before[-500:]


@pytest.mark.parametrize(
    "text", ["nothing", "<!-- a: made by `b` -->\n", "<!-- a: made by `b` -->\n\n<!-- end of c -->"]
)
def test_a_page_without_marks_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        pages.replaced(text, "a", "part")


def test_a_field_that_is_not_there_is_no_empty_cell(tmp_path: Path) -> None:
    made = pages.templates(tmp_path)
    assert made.from_string("{{ row.a.b|f('.2f') }} {{ row.a|spread }}").render(row={}) == "– –"
    assert made.from_string("{{ 'x' if row.a }}").render(row={}) == ""
    with pytest.raises(jinja2.UndefinedError):
        made.from_string("{{ row.a }}").render(row={})


def test_every_result_file_names_its_command_commit_and_hardware() -> None:
    results = read_results(RESULTS)
    assert results
    for name, result in results:
        assert result["command"].startswith("ibpwf "), name
        assert len(result["commit"]) >= 40, name
        assert result["environment"]["device"], name
        assert result["seeds"], name


def test_choosing_has_the_best_of_each_kind_and_all_that_are_better() -> None:
    outcomes = measured.comparisons(RESULTS)["compare-split-mnist"]
    accuracy = {o.variant or o.method: o.result["accuracy"] for o in outcomes if o.result}
    inferred = {name: found["class"]["mean"] for name, found in accuracy.items() if found["class"]}
    found = measured.choices(outcomes)
    closed = measured.KINDS["closed form, or a model per class"]
    assert found["best"]["closed form, or a model per class"]["method"] == max(
        (name for name in closed if name in inferred), key=inferred.__getitem__
    )
    (better,) = (those for words, _, those in found["better"] if words == "Task inferred")
    ahead = {name for name, value in inferred.items() if value > inferred["ibpwf"] + 1}
    assert {name for name, _ in better} == {name for name in ahead if not name.startswith("ibpwf")}
    listed = {method for methods in measured.KINDS.values() for method in methods}
    assert set(accuracy) - listed <= {"const-wf", "ibnn", "ibpwf-vit-tiny"}  # variants of ours, and an ancestor


def test_choosing_says_the_settings_of_the_rows_it_shows() -> None:
    found = measured.choices(measured.comparisons(RESULTS)["compare-split-mnist"])
    assert found["changed"] == {"ibpwf-class-gaussians": ["inference.per=class"]}
    assert not found["lengths"]  # the variant that was trained longer is not shown
    found = measured.choices(measured.comparisons(RESULTS)["compare-split-cifar10"])
    assert set(found["presets"]) == {"default"}
    assert "ibpwf 40 + 40 epochs a task instead of the paper's 160" in found["lengths"]


def test_a_file_of_another_name_is_a_variant_that_is_not_judged(tmp_path: Path) -> None:
    folder = tmp_path / "compare-split-mnist"
    folder.mkdir()
    for name in ("adam", "adam-again"):
        shutil.copy(RESULTS / "compare-split-mnist" / "adam.json", folder / f"{name}.json")
    (outcomes,) = measured.comparisons(tmp_path).values()
    main_row, variant = measured.rows(outcomes)
    assert (main_row["method"], variant["method"]) == ("adam", "adam-again")
    assert main_row["task_reproduces"] is True
    assert variant["task_reproduces"] is None


def reproduced(budget: str, ours: float) -> dict[str, Any]:
    row = {"benchmark": "split-cifar10", "setting": "task", "method": "ewc", "ours": {"mean": ours, "std": 0.5}}
    row |= {"difference": ours - 75.91, "reproduces": True, "seeds": 5, "command": "ibpwf run split-cifar10"}
    about = {"kind": "reproduction", "name": "table2", "budget": budget, "claims": []}
    return {**about, "measured": {"rows": [row]}}


def test_the_reproduction_has_a_row_for_every_number_of_the_paper(tmp_path: Path) -> None:
    found = measured.reproduction(tmp_path)
    assert [paper for paper, _ in found["rows"]] == list(targets())
    assert f"0 of {len(targets())} numbers are measured" in pages.rendered("reproduction", tmp_path)
    result = read_json(RESULTS / "compare-split-mnist" / "ewc.json")
    line = row_of(pages.rendered("reproduction", RESULTS), "1", "split-mnist", "ewc", "task given")
    assert f"{result['accuracy']['task']['mean']:.2f} ±" in line
    assert "✅" in line


def test_a_full_reproduction_is_taken_and_a_quick_one_is_not(tmp_path: Path) -> None:
    write(tmp_path / "reproduction" / "table2.json", reproduced("quick", 80.0))
    assert "not measured yet" in row_of(pages.rendered("reproduction", tmp_path), "2", "ewc", "task given")
    write(tmp_path / "reproduction" / "table2.json", reproduced("full", 76.0))
    line = row_of(pages.rendered("reproduction", tmp_path), "2", "ewc", "task given")
    assert "| 76.00 ± 0.50 | 75.91 ± 1.64 | +0.09 | ✅ | 5 |" in line


def test_a_figures_claims_have_a_row_each_and_their_file_its_seeds_and_machine(tmp_path: Path) -> None:
    claims = [{"statement": "It holds.", "held": True}, {"statement": "It doesn't, |r| is low.", "held": False}]
    has = {"device": "NVIDIA H200", "cores": 16, "torch": "2.11.0", "python": "3.11.9", "ibpwf": "0.1"}
    found = {"kind": "reproduction", "name": "figure-alpha", "budget": "full", "claims": claims, "environment": has}
    found |= {
        "runs": [{"seeds": [0, 1, 2]}, {"seeds": [0] * 10}],
        "command": "ibpwf reproduce",
        "commit": "0123456789abcd",
    }
    write(tmp_path / "reproduction" / "figure-alpha.json", found)
    page = pages.rendered("reproduction", tmp_path)
    assert "| It holds. | ✅ | 3 to 10 |" in page
    assert r"| It doesn't, \|r\| is low. | ❌ | 3 to 10 |" in page
    assert "| 3 to 10 | 0123456789 | NVIDIA H200, 16 cores | ibpwf 0.1, torch 2.11.0, Python 3.11.9 |" in page


def test_a_variant_does_not_stand_for_the_papers_run(tmp_path: Path) -> None:
    source = read_json(RESULTS / "split-mnist-paper-class-gaussians.json")
    write(tmp_path / "a.json", source)
    paper = target("split-mnist", "class", "ibpwf")
    assert paper is not None
    assert row_for(paper, read_measured(tmp_path)) is None
    write(tmp_path / "b.json", {**source, "changes": {}})
    row = row_for(paper, read_measured(tmp_path))
    assert row is not None
    assert row["ours"]["mean"] == pytest.approx(source["accuracy"]["class"]["mean"])


def test_the_exponent_is_that_of_the_power_law_at_large_sizes() -> None:
    sizes, values = [1, 10, 100, 300, 1_000], [7.0, 9.0, *(2 * size**1.5 for size in (100, 300, 1_000))]
    rows = [{"size": size, "cost": value} for size, value in zip(sizes, values, strict=True)]
    assert measured.exponent(rows, "cost") == pytest.approx(1.5)
    assert measured.exponent(rows[:1], "cost") is None


def test_cells_of_class_incremental_say_what_their_files_say(tmp_path: Path) -> None:
    folder = tmp_path / "class-incremental"
    accuracy = {"class": {"mean": 98.456, "std": 0.051}, "task": {"mean": 99.9, "std": None}}
    told = [{"new": 50.0, "known": 4.0, "auroc": 90.0 + seed} for seed in (0, 1)]
    best = {"accuracy": accuracy, "calibration_error": {"class": {"mean": 0.61}}, "novelty": []}
    best["novelty"] = [{"seed": seed, "per_task": [told[seed], None]} for seed in (0, 1)]
    write(folder / "split-mnist-best.json", best)
    ways = [{"ways": [{"class": value}], "experts alone, largest score": 90.0 + value} for value in (1.0, 2.0)]
    write(folder / "split-fashion-mnist-parts.json", {"seeds": ways})
    found = measured.class_incremental(tmp_path)
    assert found["scenarios"] == ["split-mnist", "split-fashion-mnist"]
    assert found["rows"] == {
        "router alone, as in preset best": ["–", "1.50 ± 0.71"],
        "turned experts alone, largest score": ["–", "91.50 ± 0.71"],
        "router and turned experts (preset best)": ["98.46 ± 0.05 (99.90, ECE 0.6)", "–"],
    }
    assert found["novelty"] == [("split-mnist, 1 task learned, images of the others", told)]


def test_a_run_that_was_cut_short_says_how_far_it_came() -> None:
    about = {"command": "python b.py --seeds 3", "seeds": [0, 1]}
    assert measured.cut_short(about) == " (2 of them done)"
    assert measured.cut_short({**about, "seeds": [0, 1, 2]}) == ""


@pytest.mark.parametrize("record", ["reliability/faults.json", "serving/faults.json"])
def test_no_fault_was_found(record: str) -> None:
    rows = json.loads((RESULTS / record).read_text())["faults"]
    assert rows
    assert not any(any(row["found"].values()) for row in rows)
