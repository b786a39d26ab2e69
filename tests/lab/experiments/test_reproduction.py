"""The paper's tables and figures: what would be run, what claims say of numbers, and a small one end to end."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ibpwf.errors import InputError, StoreError
from ibpwf.lab import scenario
from ibpwf.lab.experiments.paper import targets
from ibpwf.lab.experiments.reproduction import embedding, factor_usage, growth, responses, tables, uncertainty
from ibpwf.lab.experiments.reproduction import reproduce as engine
from ibpwf.lab.experiments.reproduction.experiment import (
    BUDGETS,
    Conditions,
    Experiment,
    Request,
    RunSpec,
    shortened_note,
)
from ibpwf.lab.experiments.reproduction.registry import EXPERIMENTS, chosen_experiments, experiment_named
from ibpwf.learner import Learner
from ibpwf.settings import Settings
from ibpwf.storage.files import read_json, write_json

TINY = RunSpec(
    "split-digits",
    preset="quick",
    changes={"epochs": 2, "finetune_epochs": 1, "alpha": 16.0},
    tasks=3,
    models=True,
    stands_for="split-mnist",
)


def quick(out: Path, **more: Any) -> Request:
    return Request(out, "quick", device="cpu", **more)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_run_of_every_experiment_is_one_that_can_be_built(name: str, budget: str) -> None:
    specs = experiment_named(name).runs[budget]
    assert len({(spec.benchmark, spec.name) for spec in specs}) == len(specs)
    for spec in specs:
        config = spec.config((0, 1))
        assert config.to_json()["settings"]
        if budget == "full":
            cifar = spec.scenario == "split-cifar10"
            assert (spec.preset, spec.stands_for) == ("default" if cifar else "paper", None)
            assert name.startswith("figure-") or bool(spec.shortened) == cifar


def test_the_tables_runs_stand_for_every_number_of_the_paper() -> None:
    runs = {
        (spec.benchmark, spec.method): name
        for name in ("table1", "table2", "table3", "table4")
        for spec in EXPERIMENTS[name].runs["full"]
    }
    assert {(t.benchmark, t.method) for t in targets() if t.method != "vae"} == set(runs)


def test_figures_that_ask_a_model_keep_it_and_share_the_tables_run() -> None:
    table = {spec.name: spec for spec in EXPERIMENTS["table1"].runs["full"]}
    for spec in EXPERIMENTS["figure-uncertainty-class"].runs["full"]:
        assert spec.models
        assert table[spec.name] == spec
    assert EXPERIMENTS["figure-filters"].runs["full"][0] in EXPERIMENTS["figure-factors"].runs["full"]


def test_sweeps_of_alpha_and_kappa_share_their_middle() -> None:
    for budget in BUDGETS:
        alpha, kappa = ({spec.name for spec in EXPERIMENTS[f"figure-{s}"].runs[budget]} for s in ("alpha", "kappa"))
        assert len(alpha & kappa) == 2  # one per scenario
    quick = {spec.name for spec in EXPERIMENTS["table1"].runs["quick"]}
    assert {spec.name for spec in EXPERIMENTS["figure-alpha"].runs["quick"]} & quick


def test_tables_want_ten_seeds_of_ibpwf_and_fewer_on_cifar() -> None:
    def seeds(table: str, method: str, benchmark: str, asked: int | None = None) -> int:
        experiment = EXPERIMENTS[table]
        (spec,) = [s for s in experiment.runs["full"] if (s.method, s.benchmark) == (method, benchmark)]
        return len(experiment.chosen_seeds("full", asked, spec))

    assert seeds("table1", "ibpwf", "split-mnist") == 10
    assert seeds("table3", "ibpwf", "permuted-mnist") == 10
    assert seeds("table1", "ewc", "split-mnist") == 5
    assert seeds("table2", "ibpwf", "split-cifar10") == 5
    assert seeds("table2", "ewc", "split-cifar10") == 3
    assert seeds("table1", "ibpwf", "split-mnist", asked=2) == 2


def test_a_plan_names_every_run_once_with_the_most_seeds_and_its_state(tmp_path: Path) -> None:
    chosen = [EXPERIMENTS[name] for name in ("figure-uncertainty-class", "table3", "figure-factors")]
    runs = engine.plan(chosen, Request(tmp_path, device="cpu"))
    assert len({job.spec.name for job, _ in runs}) == len(runs) == 3
    first, experiments = runs[0]
    assert experiments == ("figure-uncertainty-class", "table3", "figure-factors")
    assert (len(first.config.seeds), first.trainings, first.length, first.state) == (
        10,
        10,
        "10 + 5 epochs",
        "to do",
    )
    first.folder.mkdir(parents=True)
    write_json(first.folder / "config.json", {})
    assert first.state == "begun"


def test_a_run_shorter_than_the_papers_says_how() -> None:
    spec = RunSpec("permuted-mnist", changes={"epochs": 6, "finetune_epochs": 3}, tasks=5)
    assert spec.shortened == "the first 5 tasks, 6 + 3 epochs instead of 15 + 5"
    assert RunSpec("permuted-mnist", changes={"max_factors": None}).shortened == ""
    assert RunSpec("split-cifar10", changes={"epochs": 30}).shortened == "30 epochs instead of 160"
    ours = RunSpec("split-cifar10", preset="default")
    assert ours.shortened == "40 + 40 epochs instead of 160 + 0"
    few = RunSpec("split-cifar10", tasks=2, examples=200)
    assert few.shortened == "the first 2 tasks, 200 examples of each class"
    assert few.name == "split-cifar10_ibpwf_paper_2-tasks_200-examples"
    assert shortened_note([spec, spec]) == f"shortened: ibpwf on permuted-mnist: {spec.shortened}"


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="Did you mean 'figure-alpha'"):
        experiment_named("figure-alfa")
    assert len(chosen_experiments("all")) == len(EXPERIMENTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduction")


@pytest.fixture(scope="module")
def tiny() -> Experiment:
    return Experiment(
        "figure-factors",
        "Factors",
        "Tasks reuse factors.",
        "factors",
        {"quick": (TINY,), "full": (TINY,)},
        factor_usage.factor_usage,
        (factor_usage.new_factors_fall,),
    )


@pytest.fixture(scope="module")
def result(tiny: Experiment, folder: Path) -> dict:
    return engine.reproduce(tiny, quick(folder, command="ibpwf reproduce figure-factors"))


def test_the_result_file_says_what_was_run_and_what_holds(result: dict, folder: Path) -> None:
    assert read_json(folder / "figure-factors" / "result.json") == result
    assert result["note"].startswith("quick")
    assert result["runs"][0]["command"].startswith("ibpwf run split-digits")
    assert (folder / result["runs"][0]["folder"] / "result.json").exists()
    (panel,) = result["measured"]["panels"]
    assert panel["benchmark"] == "split-mnist"
    use = panel["layers"][panel["layer"]]["per_task"]
    assert [len(chosen) for chosen in panel["selected"]] == [entry["active"] for entry in use]
    assert panel["layers"][panel["layer"]]["harmonic"] == pytest.approx([16.0, 24.0, 16 * (1 + 1 / 2 + 1 / 3)])
    assert isinstance(result["claims"][0]["held"], bool)


def test_a_finished_run_is_not_run_again_and_an_unfinished_one_needs_resume(
    result: dict, tiny: Experiment, folder: Path
) -> None:
    run = folder / result["runs"][0]["folder"]
    stamp = (run / "result.json").stat().st_mtime_ns
    again = engine.reproduce(tiny, quick(folder))
    assert again["measured"] == result["measured"]
    assert (run / "result.json").stat().st_mtime_ns == stamp
    whole = (run / "result.json").read_bytes()
    (run / "result.json").unlink()
    with pytest.raises(InputError, match="--resume"):
        engine.reproduce(tiny, quick(folder))
    resumed = engine.reproduce(tiny, quick(folder, resume=True))
    assert resumed["measured"] == result["measured"]
    (run / "result.json").write_bytes(whole)


def test_a_finished_run_with_more_seeds_serves_an_experiment_that_wants_fewer(
    tiny: Experiment, tmp_path: Path
) -> None:
    wide = engine.reproduce(tiny, quick(tmp_path, seeds=2))
    run = tmp_path / wide["runs"][0]["folder"]
    stored = (run / "result.json").read_bytes()
    narrow = engine.reproduce(tiny, quick(tmp_path, seeds=1))  # without --resume
    assert narrow["seeds"] == narrow["runs"][0]["seeds"] == [0, 1]
    assert narrow["measured"] == wide["measured"]
    assert (run / "result.json").read_bytes() == stored
    with pytest.raises(InputError, match="--resume"):
        engine.reproduce(tiny, quick(tmp_path, seeds=3))
    assert engine.reproduce(tiny, quick(tmp_path, seeds=3, resume=True))["seeds"] == [0, 1, 2]


def test_after_a_task_the_last_model_without_later_tasks_answers_as_the_model_did_then() -> None:
    stream = scenario("split-digits", tasks=3)
    settings = Settings(alpha=16.0, epochs=2, finetune_epochs=1)
    learner = Learner(
        torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)), settings
    )
    x = stream[1].test.x
    then = []
    for task in stream:
        learner.learn(task.train.x, task.train.y, task=task.name)
        then.append(learner.predict(x, marginal=True, posterior_samples=8).entropy)
    rho = uncertainty.class_probabilities(learner, x, 8)
    for t, entropy in enumerate(then):
        torch.testing.assert_close(uncertainty.entropies_after(learner, x, rho, t + 1), entropy)


def test_auroc_counts_how_often_the_high_are_above_the_low_ties_half() -> None:
    generator = torch.Generator().manual_seed(0)
    low = torch.randint(0, 6, (200,), generator=generator).double()
    high = torch.randint(2, 9, (70,), generator=generator).double()
    above, level = (high[:, None] > low).double().mean(), (high[:, None] == low).double().mean()
    assert uncertainty.auroc(low, high) == pytest.approx(100 * float(above + level / 2))


def test_neighbours_of_two_far_heaps_are_all_alike() -> None:
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(size=(30, 2)), 100 + rng.normal(size=(30, 2))])
    tasks = np.repeat([0, 1], 30)
    assert embedding.neighbors_alike(points, tasks, 5) == 100
    assert 30 < embedding.neighbors_alike(points[rng.permutation(60)], tasks, 5) < 70


def test_a_picture_of_responses_can_be_read_by_another_library(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    import base64
    import io

    maps = torch.rand(16, 5, 6)
    shown = np.asarray(image.open(io.BytesIO(base64.b64decode(responses.png(responses.grid(maps))))))
    assert shown.shape == (4 * 7 - 2, 4 * 8 - 2)
    first = (maps[0] - maps[0].min()) / (maps[0].max() - maps[0].min())
    np.testing.assert_allclose(shown[:5, :6] / 255, first, atol=1 / 255)
    alike = torch.stack([maps[0], 2 * maps[0] + 1])
    assert responses.similarity(alike) == pytest.approx(1.0)


def test_a_figure_with_a_failed_run_is_refused_and_a_table_leaves_it_out(tmp_path: Path) -> None:
    small = {"epochs": 1, "hidden": [8], "batch_size": 64}
    good = RunSpec("split-digits", "sgd", "quick", small, 2, stands_for="split-mnist")
    bad = RunSpec("split-digits", "rehearsal", "quick", {**small, "memory_size": 10**6}, 2, stands_for="split-mnist")
    runs = {"quick": (good, bad), "full": (good, bad)}
    table = Experiment("table4", "T", "", "table", runs, tables.table_measure("table4"), (tables.reproduced,))
    result = engine.reproduce(table, quick(tmp_path))
    assert [run["name"] for run in result["failed"]] == [bad.name]
    assert {row["method"] for row in result["measured"]["rows"]} == {"sgd"}
    drawn = Experiment("figure-const-wf", "F", "", "growth", runs, growth.growth)
    with pytest.raises(InputError, match="needs all its runs"):
        engine.reproduce(drawn, quick(tmp_path, resume=True))


@pytest.mark.parametrize("text", ["", "[]", '{"rows": 3}', '{"rows": [{"parameters": "many"}]}', '{"rows": []}'])
def test_rows_that_are_cut_or_foreign_are_named_with_the_remedy(tiny: Experiment, tmp_path: Path, text: str) -> None:
    spec = dataclasses.replace(TINY, changes={**TINY.changes, "epochs": 1}, models=False, tasks=1)
    drawn = dataclasses.replace(tiny, runs={"quick": (spec,), "full": (spec,)}, measure=growth.growth, claims=())
    result = engine.reproduce(drawn, quick(tmp_path))
    run = tmp_path / result["runs"][0]["folder"]
    (run / "seed-0" / "rows.json").write_text(text)
    with pytest.raises(StoreError, match=r"rows\.json"):
        engine.reproduce(drawn, quick(tmp_path))


def test_a_result_that_lacks_what_measures_read_is_not_taken_for_finished(tiny: Experiment, tmp_path: Path) -> None:
    spec = dataclasses.replace(TINY, changes={**TINY.changes, "epochs": 1}, models=False, tasks=1)
    (job,) = engine.jobs_of(dataclasses.replace(tiny, runs={"quick": (spec,), "full": (spec,)}), quick(tmp_path))
    result = engine.finished_run(job).result
    assert job.finished() == result
    del result["accuracy"]
    write_json(job.folder / "result.json", result)
    assert job.finished() is None


def test_the_vaes_of_table_3_are_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def once(scenario: str, seeds: int, settings: object, device: str, command: str) -> dict:
        calls.append(scenario)
        kept = tables.VAESettings(hidden=(64,), latent=8, epochs=2).to_json()
        found = {"task_inference": {"mean": 30.0, "std": None}, "scenario": scenario, "settings": kept}
        return {**found, "seeds": list(range(seeds)), "command": command, "commit": None}

    monkeypatch.setattr(tables, "run_vae", once)
    conditions = Conditions("quick", (0,), "cpu", "ibpwf reproduce table3", tmp_path)
    for _ in range(2):
        (row,) = tables.task_inference_table([], conditions)["rows"]
        assert (row["method"], row["ours"]["mean"], row["reproduces"]) == ("vae", 30.0, None)
    assert calls == ["split-digits"]
