"""The names that are known without torch are those that there are."""

from __future__ import annotations

import pytest

from ibpwf.errors import InputError
from ibpwf.lab import names
from ibpwf.lab.bench import NAMES
from ibpwf.lab.bench.registry import MEASUREMENTS
from ibpwf.lab.data.scenarios import scenario_names
from ibpwf.lab.experiments.reproduction.registry import EXPERIMENTS
from ibpwf.lab.methods import own_methods


def test_every_name_is_known_and_no_other() -> None:
    assert list(names.METHODS) == list(own_methods())
    assert list(names.EXPERIMENTS) == list(EXPERIMENTS)
    assert names.scenarios() == scenario_names()
    assert list(NAMES) == [measurement.name for measurement in MEASUREMENTS]


def test_a_name_of_ones_own_is_looked_for_later() -> None:
    names.check_method("mine:Method")
    names.check_scenario("mine:scenario")
    with pytest.raises(InputError, match=r"unknown method 'ibpf'\. Did you mean 'ibpwf'"):
        names.check_method("ibpf")
