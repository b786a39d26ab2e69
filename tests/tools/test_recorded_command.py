"""Published results are those of today's presets, whatever their settings were called when they were recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.storage.files import read_json
from tools.recorded_command import present_changes, present_command, present_settings

RESULTS = Path(__file__).parents[2] / "docs" / "results"
RECORDED = sorted(path.relative_to(RESULTS).as_posix() for path in RESULTS.glob("compare-*/*.json"))


def dotted(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their dotted names; a part by its kind."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict) and "kind" in value:
            inner = {key: one for key, one in value.items() if key != "kind"}
            found |= {prefix + name: value["kind"]} | dotted(inner, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_result_has_the_settings_of_its_preset(name: str) -> None:
    result = read_json(RESULTS / name)
    changed = bool(result["changes"]) or "paper-settings" in name
    network = result["network"] if result["method"] == "ibpwf" else None
    config = RunConfig(result["scenario"], method=result["method"], preset=result["preset"], network=network)
    now, recorded = dotted(config.settings().to_json()), present_settings(result["settings"], result["method"])
    same = all(recorded[key] == value for key, value in now.items() if key in recorded)
    assert (same and result["network"] == config.network_spec()) is not changed


def test_recorded_commands_and_changes_are_shown_as_they_are_typed_today() -> None:
    assert present_command("ibpwf run a --set gaussians=class --seeds 5") == (
        "ibpwf run a --set inference.per=class --seeds 5"
    )
    assert present_changes({"changes": {"gaussians": "class", "epochs": 3}}) == [
        "epochs=3",
        "inference.per=class",
    ]
