"""The pages of measured results say what the result files say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ibpwf.errors import InputError
from ibpwf.lab.report import result_files
from ibpwf.storage.files import read_json
from tools import choosing_page, results_page
from tools.recorded_command import present_settings

ROOT = Path(__file__).parents[2]


def test_the_committed_pages_agree_with_the_committed_result_files():
    assert results_page.main(["--check", str(ROOT / "docs"), str(ROOT / "README.md")]) == 0


def test_a_number_changed_by_hand_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    docs = tmp_path / "docs"
    shutil.copytree(ROOT / "docs" / "results", docs / "results")
    shutil.copy(ROOT / "docs" / "choosing.md", docs)
    readme = tmp_path / "README.md"
    readme.write_text((ROOT / "README.md").read_text())
    assert results_page.main(["--check", str(docs), str(readme)]) == 0
    page = docs / "results" / "README.md"
    measured = read_json(docs / "results" / "permuted-mnist-paper.json")["accuracy"]["task"]["mean"]
    assert f"{measured:.2f}" in page.read_text()
    page.write_text(page.read_text().replace(f"{measured:.2f}", "98.87"))
    assert results_page.main(["--check", str(docs), str(readme)]) == 1
    assert "make results" in capsys.readouterr().err
    assert results_page.main([str(docs), str(readme)]) == 0
    assert "98.87" not in page.read_text()


def test_the_page_on_choosing_has_the_best_of_each_kind_and_says_who_is_better(tmp_path: Path):
    comparisons = results_page.read_comparisons(ROOT / "docs" / "results")
    text = choosing_page.with_tables(f"a\n{choosing_page.BEGIN}\nold{choosing_page.END}\nb", comparisons)
    assert text.startswith("a\n")
    assert text.endswith("\nb")
    assert "old" not in text
    outcomes = comparisons["compare-split-mnist"]
    found = {row["method"]: row for row in results_page.rows(outcomes)}
    table = choosing_page.comparison_table("split-mnist", outcomes)
    kind = choosing_page.KINDS["closed form, or a model per class"]
    closed = max((name for name in kind if name in found), key=lambda name: found[name]["class_mean"])
    assert f"| closed form, or a model per class | {closed} | {found[closed]['task_mean']:.2f} ±" in table
    better = [name for name, row in found.items() if (row["class_mean"] or 0) > found["ibpwf"]["class_mean"] + 1]
    (line,) = (line for line in table.splitlines() if line.startswith("- Task inferred: better"))
    for name in found:
        told = f" {name} {found[name]['class_mean']:.2f}" if found[name]["class_mean"] else f" {name} "
        assert (told in line) == (name in better and not name.startswith("ibpwf")), name
    listed = {method for methods in choosing_page.KINDS.values() for method in methods}
    assert set(found) - listed <= {"const-wf", "ibnn", "ibpwf-vit-tiny"}  # variants of ours, and an ancestor
    with pytest.raises(InputError, match="no lines"):
        choosing_page.with_tables("nothing here", {})


def test_the_page_on_choosing_says_each_tables_settings_and_lengths_by_the_records_of_its_rows():
    comparisons = results_page.read_comparisons(ROOT / "docs" / "results")
    for name, outcomes in comparisons.items():
        first = outcomes[0].result
        if first is None or name != f"compare-{first['scenario']}":
            continue
        table = choosing_page.comparison_table(first["scenario"], outcomes)
        shown = {line.split(" | ")[1] for line in table.splitlines() if line.startswith("| ") and "±" in line}
        records = {o.variant or o.method: o.result for o in outcomes if (o.variant or o.method) in shown}
        (settings,) = [line for line in table.splitlines() if line.startswith("- Settings: ")]
        presets = {result["preset"] for result in records.values() if result}
        assert presets == {preset for preset in ("paper", "default", "quick") if f"preset `{preset}`" in settings}
        for method, result in records.items():
            for key, value in present_settings((result or {}).get("changes", {})).items():
                assert f"{method} with {key}={value}" in settings
        lengths = [line for line in table.splitlines() if line.startswith("- Trained for another time")]
        if first["scenario"] == "split-mnist":  # the variant that was trained longer is not in the table
            assert "ibpwf-vit-tiny" not in shown
            assert not lengths
        if first["scenario"] == "split-cifar10":
            assert "ours, not the paper's) in every row" in settings
            assert "ibpwf 40 + 40 epochs a task instead of the paper's 160" in lengths[0]
            assert "10 + 10" not in lengths[0]


def test_every_result_file_names_its_command_commit_and_hardware():
    results = result_files.read_results(ROOT / "docs" / "results")
    assert len(results) >= 3
    for name, result in results:
        assert result["command"].startswith("ibpwf "), name
        assert len(result["commit"]) >= 40, name
        assert result["environment"]["device"], name
        assert result["seeds"], name


def test_a_readme_without_marks_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="no lines"):
        results_page.with_table("# nothing here", [])


def test_the_table_rows_are_the_means_of_the_file():
    path = ROOT / "docs" / "results" / "split-mnist-paper.json"
    result = read_json(path)
    mean = sum(result["accuracy"]["task"]["per_seed"]) / len(result["seeds"])
    assert f"{mean:.2f} ±" in results_page.table([(path.name, result)])


def test_a_file_of_another_name_is_a_variant_that_is_not_judged_by_the_papers_figure(tmp_path: Path):
    source = ROOT / "docs" / "results" / "compare-split-mnist" / "adam.json"
    folder = tmp_path / "compare-split-mnist"
    folder.mkdir()
    for name in ("adam", "adam-again"):
        (folder / f"{name}.json").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    outcomes = results_page.read_comparisons(tmp_path)["compare-split-mnist"]
    main_row, variant = results_page.rows(outcomes)
    assert (main_row["method"], variant["method"]) == ("adam", "adam-again")
    assert main_row["task_reproduces"] is True
    assert variant["task_reproduces"] is None
    assert variant["task_mean"] == main_row["task_mean"]


def test_a_comparison_with_the_papers_settings_says_so_in_its_title():
    assert result_files.title("compare-split-mnist", "split-mnist") == "split-mnist: methods side by side"
    text = result_files.title("compare-split-mnist-paper-settings", "split-mnist")
    assert text == "split-mnist: methods side by side (paper settings)"


@pytest.mark.parametrize("given", [[], ["docs"], ["nowhere", "README.md"]])
def test_paths_that_are_not_there_are_named(given: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(InputError, match=r"give (two, )?the folder of documents and the README"):
        results_page.main(given)
