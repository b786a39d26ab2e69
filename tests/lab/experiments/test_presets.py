"""Presets are sound, hold the paper's numbers, and mistyped names are answered with the right ones."""

from __future__ import annotations

import pytest

from ibpwf.errors import InputError
from ibpwf.inference.gaussian import Gaussian
from ibpwf.lab.data.scenarios import scenario_names
from ibpwf.lab.experiments.paper import target, targets
from ibpwf.lab.experiments.presets import BY_SCENARIO, NO_PRESET, example_shape, preset, preset_name
from ibpwf.settings import Settings

WITH_PRESETS = list(BY_SCENARIO)


@pytest.mark.parametrize(("scenario", "name"), [(s, name) for s, presets in BY_SCENARIO.items() for name in presets])
def test_every_preset_makes_settings_and_names_a_network(scenario: str, name: str) -> None:
    chosen = preset(scenario, name)
    settings = chosen.make_settings()
    assert scenario in scenario_names()
    assert settings.replace(**chosen.settings) == settings
    assert chosen.network["builder"] in ("mlp", "resnet20", "resnet9")


def test_the_papers_experiments_have_the_papers_numbers() -> None:
    split, permuted = (preset(name, "paper") for name in ("split-mnist", "permuted-mnist"))
    assert split.network["hidden"] == [400]
    assert permuted.network["hidden"] == [1000, 1000]
    one, other = split.make_settings(), permuted.make_settings()
    assert (one.alpha, one.max_factors, one.epochs, one.finetune_epochs, one.batch_size) == (200, 400, 10, 5, 32)
    assert (other.alpha, other.max_factors, other.finetune_epochs, other.batch_size) == (700, None, 5, 64)
    assert (one.heads, other.heads) == ("shared", "per-task")
    assert one.learning_rate == other.learning_rate == 1e-3
    assert one.kl_terms == other.kl_terms == 10
    assert one.inference == other.inference == Gaussian()


def test_mistyped_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(
        InputError, match=r"unknown preset 'papre'\. Did you mean 'paper'\? Known: paper, default, quick"
    ):
        preset("split-mnist", "papre")
    with pytest.raises(InputError, match=r"unknown scenario 'split-minst'\. Did you mean 'split-mnist'\?"):
        preset("split-minst", "paper")


def test_a_scenario_without_presets_has_default_settings_and_a_network_for_its_examples() -> None:
    for name in sorted(set(scenario_names()) - set(WITH_PRESETS)):
        chosen = preset(name, "paper")
        assert preset_name(name, "paper") == NO_PRESET
        assert chosen.make_settings() == Settings()
        images = len(example_shape(name)) == 3
        assert chosen.network["builder"] == ("resnet" if images else "mlp")
        assert f"none for {name}" in chosen.note
        assert preset(name, "paper", "ewc").make_settings("ewc").network == ("resnet20" if images else "mlp")
    with pytest.raises(InputError, match="unknown preset 'papre'"):
        preset_name(name, "papre")


def test_the_papers_tables_are_read_as_printed() -> None:
    found = target("split-mnist", "task-inference", "ibpwf")
    assert found is not None
    assert found.mean == 92.63
    assert target("split-mnist", "task", "no-such-method") is None
    assert len({(t.table, t.benchmark, t.setting, t.method, t.note) for t in targets()}) == len(targets())


def test_baselines_on_cifar_have_the_papers_length_and_a_short_one_that_says_so() -> None:
    paper, short = (preset("split-cifar10", name, "ewc") for name in ("paper", "default"))
    assert paper.make_settings("ewc").epochs == 160
    assert short.make_settings("ewc").epochs == 20
    assert "instead of the paper's 160" in short.note
    assert paper.make_settings("ewc").coefficient == short.make_settings("ewc").coefficient
