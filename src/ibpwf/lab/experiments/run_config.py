"""What to run: a scenario, a method, a preset and what is changed of it, seeds. Checked before anything is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from ibpwf.errors import InputError
from ibpwf.lab.data.scenarios import scenario as make_scenario
from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.experiments.presets import Preset, preset, settings_type
from ibpwf.lab.methods import method_named
from ibpwf.learner import choose_device
from ibpwf.settings import FrozenSettings, Settings

NARROW = 512
"""Hidden units up to which a run on a CPU keeps to one thread; for wider layers more threads pay."""


@dataclass(frozen=True)
class RunConfig:
    """What to run. `changes` override the preset's settings; `tasks` shortens the scenario, and `examples` keeps
    the first so many of each class."""

    scenario: str
    method: str = "ibpwf"
    preset: str = "paper"
    seeds: tuple[int, ...] = (0,)
    changes: dict[str, Any] = field(default_factory=dict)
    tasks: int | None = None
    device: str = "auto"
    models: bool = True  # whether to store the models; without them a resumed seed starts anew
    examples: int | None = None
    network: dict[str, Any] | None = None  # instead of the preset's

    def __post_init__(self) -> None:
        method = method_named(self.method)
        if self.network is not None and settings_type(method.name) is not Settings:
            raise InputError(
                f"--network is {self.network['builder']}, but method '{method.name}' builds its own; "
                "see its settings network and hidden (--set), or use --method ibpwf."
            )
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise InputError(f"seeds are {list(self.seeds)}; give different whole numbers from 0.")
        self.settings()
        choose_device(self.device)

    def stream(self, seed: int, fetched: Callable[[str, int, int | None], None] | None = None) -> Scenario:
        """The tasks as a seed sees them."""
        return make_scenario(self.scenario, tasks=self.tasks, examples=self.examples, seed=seed, progress=fetched)

    def chosen(self) -> Preset:
        return preset(self.scenario, self.preset, self.method)

    def settings(self, setting: str | None = None) -> FrozenSettings:
        """Of the method, and for one setting where that has its own; `changes` hold in both."""
        return self.chosen().make_settings(self.method, setting).replace(**self.changes)

    def settings_for(self) -> dict[str, dict[str, Any]]:
        """What is not as in `settings()` where a method is trained for one setting alone."""
        common = self.settings().to_json()
        special = {}
        for setting in self.chosen().settings_for:
            own = self.settings(setting).to_json()
            special[setting] = {name: value for name, value in own.items() if value != common[name]}
        return {setting: values for setting, values in special.items() if values}

    def trainings(self) -> tuple[tuple[str, ...], ...]:
        """What each training of a seed answers: one for both settings, or one for each the method can do."""
        method = method_named(self.method)
        return (method.answers,) if method.serves_both else tuple((setting,) for setting in method.answers)

    def network_spec(self) -> dict[str, Any]:
        """A builder of `ibpwf.models` and its arguments; empty for methods that build their own."""
        return self.chosen().network if self.network is None else self.network

    def is_small(self) -> bool:
        """Whether the network is a perceptron so narrow that more than one thread hardly speeds a step up."""
        network, settings = self.network_spec(), self.settings()
        builder = network.get("builder", getattr(settings, "network", "mlp"))
        hidden = network.get("hidden", getattr(settings, "hidden", ()))
        return builder == "mlp" and max(hidden, default=0) <= NARROW

    def note(self) -> str:
        """What the preset says of itself, and what this run has otherwise."""
        said = self.chosen().note
        changed = ", ".join(f"{name}={value}" for name, value in self.changes.items())
        return f"{said}; changed in this run: {changed}" if said and changed else said

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "seeds": list(self.seeds),
            "network": self.network_spec(),
            "settings": self.settings().to_json(),
            "settings_for": self.settings_for(),
            "note": self.note(),
        }
