"""Detectors: silent on what does not change, quick on what does."""

from __future__ import annotations

import numpy as np
import pytest

from ibpwf.streaming.detectors import DETECTORS, make_detector


def alarms(name: str, values: np.ndarray) -> list[tuple[int, int]]:
    """At which row an alarm came, and how many rows ago it put the change; each starts a fresh detector."""
    detector, found = make_detector(name), []
    for row, value in enumerate(values.tolist()):
        ago = detector.update(value)
        if ago is not None:
            found.append((row, ago))
            detector = make_detector(name)
    return found


@pytest.fixture(params=DETECTORS)
def name(request: pytest.FixtureRequest) -> str:
    if request.param.startswith("river"):
        pytest.importorskip("river")
    return str(request.param)


@pytest.mark.parametrize("rate", [0.02, 0.25])
def test_errors_at_a_constant_rate_raise_at_most_one_alarm_in_20000(name: str, rate: float) -> None:
    if name == "river-kswin" and rate > 0.02:
        pytest.skip("it looks at samples of 30 rows again and again, and is known to cry wolf")
    values = (np.random.default_rng(0).random(20_000) < rate).astype(float)
    assert len(alarms(name, values)) <= 1


def test_a_rise_of_surprise_is_found_and_placed(name: str) -> None:
    chance = np.random.default_rng(1)
    values = np.concatenate([chance.random(2000) < 0.05, chance.random(500) < 0.9]).astype(float)
    row, ago = alarms(name, values)[0]
    assert 2000 <= row < 2100
    if not name.startswith("river"):
        assert abs(row - ago - 2000) < 30


@pytest.mark.parametrize("name", ["page-hinkley", "two-windows"])
def test_a_fall_is_no_border(name: str) -> None:
    chance = np.random.default_rng(1)
    values = np.concatenate([chance.random(2000) < 0.9, chance.random(2000) < 0.05]).astype(float)
    assert not alarms(name, values)


@pytest.mark.parametrize("name", ["page-hinkley", "two-windows"])
def test_a_stored_detector_goes_on_where_it_was(name: str) -> None:
    values = np.random.default_rng(2).random(500)
    one, other = make_detector(name), make_detector(name)
    for value in values.tolist():
        one.update(value)
    other.load_state(one.state())
    assert other.state() == one.state()
