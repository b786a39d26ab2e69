"""Settings of every baseline per scenario, read from `baselines.toml` beside this file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

_TABLES = tomllib.loads(resources.files(__package__).joinpath("baselines.toml").read_text(encoding="utf-8"))
FOUND_FOR: dict[str, dict[str, dict[str, dict[str, Any]]]] = _TABLES["found_for"]


@dataclass(frozen=True)
class Baseline:
    """Changes to a method's own defaults: for both settings, and beyond them for one."""

    changes: dict[str, Any]
    changes_for: dict[str, dict[str, Any]]
    note: str


def baseline_settings(method: str, scenario: str, preset: str) -> Baseline:
    """What a baseline runs with in a scenario and preset."""
    like = _TABLES["like"].get(scenario, scenario)
    ours, paper, found = (_TABLES[part].get(like, {}).get(method, {}) for part in ("ours", "paper", "found"))
    if like != scenario:
        ours = {**ours, **_TABLES["ours"].get(scenario, {}).get(method, {})}
    changes: dict[str, Any] = {**_TABLES["common"].get(like, {}), **ours, **paper, **found}
    special = FOUND_FOR.get(like, {}).get(method, {})
    words = [str(found)] if found else []
    words += [f"{values} in the {setting} setting" for setting, values in special.items()]
    note = ""
    if words:
        note = f"found to come nearest to the paper's number: {', '.join(words)} (the paper's own: {paper or 'none'})"
    if scenario.endswith("digits"):
        changes |= {"hidden": [100, 100], "epochs": 40, "batch_size": 32}
        changes |= {"memory_size": 100} if "memory_size" in changes else {}
    if preset == "default" and like in _TABLES["short"] and not ours:
        short = _TABLES["short"][like]
        note = f"{short['epochs']} epochs a task instead of the paper's {changes['epochs']}"
        changes |= short
    if preset == "quick":
        changes |= {"epochs": 10 if scenario.endswith("digits") else 1}
    return Baseline(changes, {setting: dict(values) for setting, values in special.items()}, note)
