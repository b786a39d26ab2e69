"""Presets: which network and settings a scenario runs with, read from `presets.toml` beside this file, and what a
scenario that has none runs with."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from ibpwf import registry
from ibpwf.errors import InputError, unknown
from ibpwf.lab.data.catalog import DATA_SETS
from ibpwf.lab.data.scenarios import scenario as make_scenario
from ibpwf.lab.data.scenarios import scenario_names
from ibpwf.lab.experiments.baselines import baseline_settings
from ibpwf.lab.experiments.network import network_text
from ibpwf.lab.methods import method_named, methods
from ibpwf.lab.names import NO_PRESET, PRESETS
from ibpwf.method import IBPWF
from ibpwf.parts import FrozenSettings
from ibpwf.settings import Settings


@dataclass(frozen=True)
class Preset:
    """A network (a builder of `ibpwf.models` and its arguments) and settings."""

    network: dict[str, Any]
    settings: dict[str, Any]
    note: str = ""
    settings_for: dict[str, dict[str, Any]] = field(default_factory=dict)  # beyond those, for one setting alone

    def make_settings(self, method: str = "ibpwf", setting: str | None = None) -> FrozenSettings:
        """The method's own kind of settings; one this method does not have is left out."""
        kind = settings_type(method)
        layers = (self.settings, self.settings_for.get(setting, {}) if setting else {})
        known = [{n: v for n, v in layer.items() if n.partition(".")[0] in kind.model_fields} for layer in layers]
        return kind(**kind.merged(*known))


def _read() -> dict[str, dict[str, Preset]]:
    """The presets of every scenario that has some, by their names."""
    text = resources.files(__package__).joinpath("presets.toml").read_text(encoding="utf-8")
    families = tomllib.loads(text)
    found: dict[str, dict[str, Preset]] = {}
    for scenario, family in families.items():
        base = families[family["like"]]["paper"] if "like" in family else {}
        paper = {**base, **family["paper"]}
        presets = {}
        for name in PRESETS:
            if name not in family:
                continue
            alone = name in ("paper", "best")
            mine = paper if name == "paper" else {**({} if alone else paper), "note": "", **family[name]}
            network, note = mine.get("network", family["network"]), mine["note"]
            plain = {key: None if value == "none" else value for key, value in mine.items()}
            presets[name] = Preset(network, {k: v for k, v in plain.items() if k not in ("network", "note")}, note)
        found |= dict.fromkeys((scenario, *family.get("also", ())), presets)
    return found


BY_SCENARIO = _read()


def preset_name(scenario: str, asked: str) -> str:
    """The preset that a scenario runs with: the one asked for, or `NO_PRESET` where it has none."""
    if scenario in BY_SCENARIO:
        if asked in PRESETS and asked not in BY_SCENARIO[scenario]:
            raise InputError(
                f"{scenario} has no preset '{asked}'; it has {', '.join(BY_SCENARIO[scenario])}. With '{asked}' run: "
                f"{', '.join(name for name, presets in BY_SCENARIO.items() if asked in presets)}."
            )
        if asked not in PRESETS:
            raise unknown("preset", asked, BY_SCENARIO[scenario])
        return asked
    registry.find(registry.SCENARIOS, scenario, dict.fromkeys(scenario_names()))
    if asked not in (*PRESETS, NO_PRESET):
        raise unknown("preset", asked, PRESETS)
    return NO_PRESET


def settings_type(method: str) -> type[FrozenSettings]:
    """The settings of a method."""
    found = method_named(method)
    return Settings if found is IBPWF else found.settings_type


def _inner(method: str) -> str:
    """The method within `NAME+turns`, whose settings it has."""
    return registry.unwrapped(registry.METHODS, method)[0]


@cache
def example_shape(scenario: str) -> tuple[int, ...]:
    """The shape of an example, flat where images are gray; a scenario from outside is made for it."""
    known = DATA_SETS.get(scenario.partition("-")[2]) if scenario in scenario_names() else None
    if known is None:
        return make_scenario(scenario).input_shape
    return known.shape if known.shape[0] > 1 else (math.prod(known.shape),)


def _trains(method: str, scenario: str) -> str:
    """The network that a method which builds its own needs for the examples of a scenario."""
    if scenario in BY_SCENARIO:
        network: str = baseline_settings(_inner(method), scenario, "paper").changes.get("network", "mlp")
        return network
    return "resnet20" if len(example_shape(scenario)) == 3 else "mlp"


def supports(method: str, scenario: str) -> bool:
    """Whether a method has a network for the examples of a scenario; one from outside must see to that itself."""
    found = method_named(method)
    if found is IBPWF or _inner(method) not in methods():
        return True
    return _trains(method, scenario) in getattr(found, "networks", ("mlp",))


def preset(scenario: str, name: str, method: str = "ibpwf") -> Preset:
    """The preset `name` of a scenario for a method."""
    name = preset_name(scenario, name)
    if method_named(method) is IBPWF:
        if name == NO_PRESET:
            return _without_preset(scenario)
        return BY_SCENARIO[scenario][name]
    if not supports(method, scenario):
        raise InputError(
            f"method '{method}' has no network for the images of {scenario} yet; these have: "
            f"{', '.join(other for other in methods() if supports(other, scenario))}."
        )
    if name == NO_PRESET:
        network = {"network": "resnet20"} if _trains(method, scenario) == "resnet20" else {}
        return Preset({}, network, f"none for {scenario}, so the default settings of {method}")
    found = baseline_settings(_inner(method), scenario, name)
    return Preset({}, found.changes, found.note, found.changes_for)


def _without_preset(scenario: str) -> Preset:
    """Default settings, and a network by the shape of the examples."""
    images = len(example_shape(scenario)) == 3
    network = {"builder": "resnet", "depth": 8} if images else {"builder": "mlp", "hidden": [400]}
    return Preset(network, {}, f"none for {scenario}, so default settings and the network {network_text(network)}")
