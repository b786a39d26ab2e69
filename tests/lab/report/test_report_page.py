"""The page of a finished run: whole, self-contained, escaped, and every number the record's own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_reader import Reader, drawings, tips

from ibpwf.errors import InputError
from ibpwf.lab.report.page import make_page, write_report
from ibpwf.lab.report.records import Spread
from ibpwf.learner import Learner


@pytest.fixture(scope="module")
def html(finished: Path) -> str:
    page = make_page([finished])
    assert page.problems == []
    return page.html


@pytest.fixture(scope="module")
def result(finished: Path) -> dict[str, Any]:
    return json.loads((finished / "result.json").read_text())


def change_result(folder: Path, **changes: Any) -> None:
    path = folder / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_page_is_well_formed_and_needs_nothing_from_outside(html: str) -> None:
    page = Reader(html)
    assert page.faults == []
    assert html.startswith('<!doctype html>\n<html lang="en">')
    assert "http://" not in html
    assert "https://" not in html
    assert not [tag for tag, _ in page.elements if tag in ("link", "img", "iframe", "object")]
    assert not [attributes for _, attributes in page.elements if "src" in attributes]


def test_every_figure_is_a_drawing_with_words_for_those_who_cannot_see_it(html: str) -> None:
    page, found = Reader(html), drawings(html)
    assert len(page.all("figure")) == len(found) > 5
    for drawing in found:
        assert drawing.get("role") == "img"
        assert len(drawing.get("aria-label", "")) > 20
        assert tips(drawing)
        labels = {text.text for text in drawing.iter("text")}
        assert len(labels) > 3


def test_headings_do_not_skip_a_level_and_ids_are_unique(html: str) -> None:
    page = Reader(html)
    levels = [int(tag[1]) for tag, _ in page.elements if tag in ("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert all(attributes.get("scope") in ("col", "row") for attributes in page.all("th"))


def test_every_number_of_the_result_table_is_the_records(html: str, result: dict[str, Any]) -> None:
    rows = {row[0]: row[1] for row in Reader(html).table("measure")[1:]}
    expected = {
        "accuracy, task given (incremental task), %": result["accuracy"]["task"],
        "accuracy, task inferred (incremental class), %": result["accuracy"]["class"],
        "task inference, %": result["task_inference"],
        "forgetting, points": result["forgetting"],
        "backward transfer, points": result["backward_transfer"],
        "forward transfer, points": result["forward_transfer"],
    }
    assert rows == {name: f"{s['mean']:.2f} ± {s['std']:.2f}" for name, s in expected.items()}
    values = Reader(html).values
    for spread in expected.values():
        assert spread["mean"] in values
        assert spread["std"] in values


def test_the_matrix_shows_the_mean_over_seeds(html: str, result: dict[str, Any]) -> None:
    tables = [table for table in Reader(html).tables if table[0][0] == "after task"][:2]
    for key, table in zip(("task", "class"), tables, strict=True):
        seeds = [seed[key] for seed in result["matrix"]]
        for i, row in enumerate(table[1:]):
            means = [sum(seed[i][j] for seed in seeds) / len(seeds) for j in range(i + 1)]
            assert row[1:] == [f"{mean:.2f}" for mean in means] + [""] * (len(table) - 2 - i)


def test_the_factor_tables_agree_with_the_record_and_the_ibp(html: str, result: dict[str, Any]) -> None:
    tables = [table for table in Reader(html).tables if table[0][0] == "task"]
    for layer, table in zip(("hidden1", "head"), tables, strict=True):
        harmonic = 0.0
        for t, row in enumerate(table[1:]):
            harmonic += 1 / (t + 1)
            uses = [seed["per_task"][t][layer] for seed in result["factors"]]
            parts = ("reused", "new", "active", "total")
            means = [sum(use[part] for use in uses) / len(uses) for part in parts]
            assert row[1:] == [f"{mean:g}" for mean in means] + [f"{20 * harmonic:.1f}"]


def test_the_score_map_shows_each_task_the_factors_its_model_selects(html: str, finished: Path) -> None:
    found = tips(drawings(html)[-2])
    learner = Learner.load(finished / "seed-0" / "model")
    for t, task in enumerate(learner.model.tasks):
        name = learner.tasks[t].name
        mine = [tip for tip in found if tip.startswith(f"task {name}, factor ")]
        shown = {
            int(tip.split("factor ")[1].split(":")[0]): float(tip.split("λ = ")[1].split(",")[0]) for tip in mine
        }
        chosen = task.selected["hidden1"].nonzero().flatten().tolist()
        assert shown == {k + 1: pytest.approx(float(task.vectors["hidden1"].strength[k]), rel=5e-3) for k in chosen}
        assert sum("new" in tip for tip in mine) == learner.model.use(t)["hidden1"].new


def test_learning_curves_have_a_mark_for_every_epoch_of_the_record(html: str, finished: Path) -> None:
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    epochs = {(e["task_number"], e["phase"], e["epoch"]) for e in lines if "finished" not in e}
    loss, kl = drawings(html)[2:4]
    assert len(tips(loss)) == len(epochs)
    assert len(tips(kl)) == len([key for key in epochs if key[1] == "elbo"])
    first = [e["loss"] for e in lines if e.get("phase") == "elbo" and e["task_number"] == 0 and e["epoch"] == 1]
    assert f"{sum(first) / len(first):.4g} (mean of 2 seeds)" in tips(loss)[0]


def test_the_summary_says_in_words_that_nothing_was_forgotten(html: str) -> None:
    words = Reader(html).text
    assert "split-digits: 3 tasks of 2 classes each" in words
    assert "It forgot nothing" in words
    assert "guessing gives 50 %" in words.replace("\u00a0", " ")


def test_numbers_carry_command_commit_versions_and_machine(html: str, result: dict[str, Any]) -> None:
    words = Reader(html).text
    assert words.count(result["command"]) >= 5
    assert f"torch {result['environment']['torch']}" in words
    assert f"python {result['environment']['python']}" in words
    if result["commit"]:
        assert result["commit"] in words


@pytest.mark.parametrize(
    ("ours", "paper", "std", "good"),
    [(99.0, 99.9, 0.05, True), (98.8, 99.9, 0.05, False), (98.8, 99.9, 0.5, True), (99.99, 90.0, None, True)],
)
def test_reached_means_within_a_point_or_three_deviations_or_better(
    ours: float, paper: float, std: float | None, good: bool
) -> None:
    assert Spread(mean=ours).reaches(Spread(mean=paper, std=std)) is good


def test_better_is_said_only_of_what_is_above_the_paper_by_more_than_the_tolerance() -> None:
    assert Spread(mean=52.7).beats(Spread(mean=41.0))
    assert not Spread(mean=41.9).beats(Spread(mean=41.0))
    assert not Spread(mean=42.4).beats(Spread(mean=41.0, std=0.5))


def test_the_papers_figures_are_judged(copied: Callable[..., Path], result: dict[str, Any]) -> None:
    folder = copied()
    given, inferred = result["accuracy"]["task"]["mean"], result["accuracy"]["class"]["mean"]
    paper = {"task": {"mean": given + 0.9, "std": 0.1}, "class": {"mean": inferred + 2, "std": 0.5}}
    change_result(folder, paper={**paper, "task-inference": None})
    rows = Reader(make_page([folder]).html).table("measure")
    assert rows[0] == ["measure", "ours", "paper", "difference", "verdict"]
    assert rows[1][2:] == [f"{given + 0.9:.2f} ± 0.10", "-0.90", "✅ reached"]
    assert rows[2][2:] == [f"{inferred + 2:.2f} ± 0.50", "-2.00", "❌ below"]
    assert rows[3][2:] == ["–", "", ""]


def test_forgetting_is_said_when_there_is_some(copied: Callable[..., Path]) -> None:
    folder = copied()
    change_result(folder, forgetting={"mean": 12.345, "std": None, "per_seed": [12.345]})
    words = Reader(make_page([folder]).html).text
    assert "It forgot 12.35 points" in words or "It forgot 12.34 points" in words
    assert "forgot nothing" not in words


HOSTILE = [
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "]]></svg><style>*{display:none}</style>\x00\ud800 'x' & <b>",
]


def test_hostile_names_are_shown_and_never_become_markup(copied: Callable[..., Path]) -> None:
    folder = copied()
    tasks = [{"name": name, "classes": [0, 1]} for name in HOSTILE]
    change_result(folder, tasks=tasks, scenario=HOSTILE[0], command=HOSTILE[1], note=HOSTILE[2], commit=HOSTILE[0])
    out = folder / "report.html"
    write_report([folder], out)
    html = out.read_text(encoding="utf-8")
    page = Reader(html)
    assert page.faults == []
    assert len(page.all("script")) == 1
    assert len(page.all("style")) == 1
    assert not page.all("img")
    assert not page.all("b")
    assert drawings(html)
    assert HOSTILE[0] in page.text
    assert HOSTILE[1] in page.text


def test_several_runs_share_a_page_with_an_overview(copied: Callable[..., Path]) -> None:
    first, second = copied("first"), copied("second")
    page = make_page([first, second])
    reader = Reader(page.html)
    assert reader.faults == []
    assert len(reader.table("run")) == 3
    links = [attributes["href"] for attributes in reader.all("a")]
    ids = {attributes["id"] for _, attributes in reader.elements if "id" in attributes}
    assert links == ["#overview", "#run1", "#run2", "#run1", "#run2"]  # the contents, then the table
    assert {link[1:] for link in links if link} <= ids
    assert make_page([first.parent]).html == page.html  # a folder of run folders means all of them
    assert len(make_page([first, first]).runs) == 1


def test_no_folder_at_all_is_refused() -> None:
    with pytest.raises(InputError, match="no run folder"):
        make_page([])


def test_uncertainty_is_drawn_for_learnt_tasks_and_those_to_come(
    finished: Path, copied: Callable[[str], Path]
) -> None:
    result = json.loads((finished / "result.json").read_text())
    per_seed = [[row["entropy"] for row in seed["per_task"]] for seed in result["uncertainty"]]
    mean = sum(seed[0][2] for seed in per_seed) / len(per_seed)
    html = make_page([finished]).html
    told = [tip for drawing in drawings(html) for tip in tips(drawing)]
    assert f"task to come, 4/5, after task 0/1: {mean:.3f} nats" in told
    assert sum(tip.endswith("nats") for tip in told) == 9
    rows = Reader(html).table("after task")
    assert rows
    folder = copied("cut")
    result["uncertainty"][0]["per_task"][0]["entropy"] = [0.1]
    (folder / "result.json").write_text(json.dumps(result))
    page = make_page([folder])
    assert "Uncertainty" in page.problems[0]
