"""Published results are those of today's presets, whatever their settings were called when they were recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.storage.files import read_json
from tools.recorded_command import present_changes, present_command, present_settings

RESULTS = Path(__file__).parents[2] / "docs" / "results"
RECORDED = sorted(path.relative_to(RESULTS).as_posix() for path in RESULTS.glob("compare-*/*.json"))


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_result_has_the_settings_of_its_preset(name: str) -> None:
    result = read_json(RESULTS / name)
    changed = bool(result["changes"]) or "paper-settings" in name
    network = result["network"] if result["method"] == "ibpwf" else None
    config = RunConfig(result["scenario"], method=result["method"], preset=result["preset"], network=network)
    now, recorded = config.settings().to_json(), present_settings(result["settings"])
    same = all(recorded[key] == value for key, value in now.items() if key in recorded)
    assert (same and result["network"] == config.network_spec()) is not changed


def test_recorded_commands_and_changes_are_shown_as_they_are_typed_today() -> None:
    assert present_command("ibpwf run a --set gaussians=class --seeds 5") == (
        "ibpwf run a --set inference=class-gaussian --seeds 5"
    )
    assert present_changes({"changes": {"gaussians": "class", "epochs": 3}}) == [
        "epochs=3",
        "inference=class-gaussian",
    ]
