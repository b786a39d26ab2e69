"""What a run is asked for, and the settings that follow from it."""

from __future__ import annotations

from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.settings import Settings


def test_a_backbone_is_told_how_a_scenario_was_made_from_pixels() -> None:
    asked = RunConfig("split-cifar10", preset="default", changes={"inference.features": "backbone"}).settings()
    assert isinstance(asked, Settings)
    assert asked.input.mean == (0.4914, 0.4822, 0.4465)
    assert asked.input.std == (0.2470, 0.2435, 0.2616)
    own = {"inference.features": "backbone", "input.mean": [0.5], "input.std": [0.5]}
    told = RunConfig("split-cifar10", preset="default", changes=own).settings()
    assert isinstance(told, Settings)
    assert told.input.mean == (0.5,)
    usual = RunConfig("split-cifar10", preset="default").settings()
    assert isinstance(usual, Settings)
    assert usual.input.mean == "auto"
