"""What to run: a scenario, a method, a preset and what is changed of it, seeds. Checked before anything is done.

What takes seconds to import is imported where it is used: the command line shows the fields' descriptions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field

from ibpwf.errors import InputError
from ibpwf.parts import FrozenSettings

if TYPE_CHECKING:
    from pathlib import Path

    from ibpwf.lab.data.tasks import Scenario
    from ibpwf.lab.experiments.presets import Preset


class RunConfig(FrozenSettings):
    """A scenario, a method and how it is set up: what a run folder is made from."""

    scenario: str = Field(
        description="What to learn, such as split-mnist, permuted-mnist or split-digits (which needs no download), a "
        "name that a package has registered, or module:function."
    )
    method: str = Field("ibpwf", description="How to learn it: a name that `ibpwf methods` lists, or module:Class.")
    preset: str = Field(
        "paper",
        description="Settings to start from: paper, default, quick or, where there is one, best; scenarios of your "
        "own have none.",
    )
    seeds: tuple[int, ...] = Field((0,), description="Each seed is a training of its own.")
    changes: dict[str, Any] = Field({}, description="Change a setting, such as --set alpha=300. Repeatable.")
    tasks: int | None = Field(None, description="Only the first N tasks.")
    order: tuple[int, ...] | Literal["random"] | None = Field(
        None,
        description="In which order the classes of a split scenario are dealt out to tasks, such as 3,1,0,2, or "
        "'random', drawn by the seed.",
    )
    validation: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="Measure on this share of the training examples, which are then not learned from, instead of the "
        "test examples: to choose settings by.",
    )
    device: str = Field("auto", description="auto, cpu or cuda.")
    models: bool = Field(True, description="Store the models; without them an interrupted seed starts anew.")
    examples: int | None = Field(None, description="Only the first N examples of each class, of training and test.")
    network: dict[str, Any] | None = Field(
        None,
        description="Another network than the preset's: mlp, resnet9, resnet20, resnet or vit_tiny, with arguments "
        "as in 'resnet;depth=32;width=32'.",
    )

    def __init__(self, scenario: str, **values: Any) -> None:
        from ibpwf.lab.experiments.presets import preset_name

        preset = preset_name(scenario, values.get("preset", "paper"))
        super().__init__(scenario=scenario, **{**values, "preset": preset})

    def check_settings(self) -> None:
        from ibpwf.device import choose_device
        from ibpwf.lab.experiments.presets import settings_type
        from ibpwf.settings import Settings

        if self.network is not None and settings_type(self.method) is not Settings:
            raise InputError(
                f"--network is {self.network['builder']}, but method '{self.method}' builds its own; "
                "see its settings network and hidden (--set), or use --method ibpwf."
            )
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise InputError(f"seeds are {list(self.seeds)}; give different whole numbers from 0.")
        self.settings()
        choose_device(self.device)

    def stream(self, seed: int, fetched: Callable[[str, int, int | None], None] | None = None) -> Scenario:
        """The tasks as a seed sees them."""
        from ibpwf.lab import scenario

        asked = {name: getattr(self, name) for name in ("order", "validation") if getattr(self, name) is not None}
        asked |= {"tasks": self.tasks, "examples": self.examples}
        made = scenario(self.scenario, seed=seed, progress=fetched, **asked)
        if self.validation is None:
            return made
        return replace(made, tasks=tuple(replace(task, test=task.validation or task.test) for task in made))

    def stream_key(self, seed: int) -> tuple[Any, ...]:
        """What tells its tasks from others'."""
        return self.scenario, self.tasks, self.examples, self.order, self.validation, seed

    def chosen(self) -> Preset:
        from ibpwf.lab.experiments.presets import preset

        return preset(self.scenario, self.preset, self.method)

    def settings(self, setting: str | None = None) -> FrozenSettings:
        """Of the method, and for one setting where that has its own; `changes` hold in both. A backbone is told how
        our scenarios make inputs from pixels."""
        from ibpwf.settings import Settings

        settings = self.chosen().make_settings(self.method, setting).replace(**self.changes)
        if (
            isinstance(settings, Settings)
            and settings.inference.features.reads_pixels
            and settings.input.scale is None
        ):
            from ibpwf.lab.data.catalog import preprocessing

            made = preprocessing(self.scenario)
            told = {f"input.{name}": made[name] for name in ("mean", "std") if name in made}
            settings = settings.replace(**told)
        return settings

    def settings_for(self) -> dict[str, dict[str, Any]]:
        """What is not as in `settings()` where a method is trained for one setting alone."""
        common = self.settings().to_json()
        special = {}
        for setting in self.chosen().settings_for:
            own = self.settings(setting).to_json()
            special[setting] = {name: value for name, value in own.items() if value != common[name]}
        return {setting: values for setting, values in special.items() if values}

    def epochs(self, rows: int) -> int:
        """Passes over the rows of a task of that many, all phases together; 1 for a method that counts otherwise."""
        from ibpwf.settings import Settings

        settings = self.settings()
        if isinstance(settings, Settings):
            schedule = settings.schedule_for(rows)
            return schedule.epochs + schedule.finetune_epochs
        epochs = getattr(settings, "epochs", 1)
        return epochs if isinstance(epochs, int) else 1

    def trainings(self) -> tuple[tuple[str, ...], ...]:
        """What each training of a seed answers: one for both settings, or one for each the method can do."""
        from ibpwf.lab.methods import method_named

        method = method_named(self.method)
        return (method.answers,) if method.serves_both else tuple((setting,) for setting in method.answers)

    def network_spec(self) -> dict[str, Any]:
        """A builder of `ibpwf.models` and its arguments; empty for methods that build their own."""
        return self.chosen().network if self.network is None else self.network

    def note(self) -> str:
        """What the preset says of itself, and what this run has otherwise."""
        said = self.chosen().note
        changed = ", ".join(f"{name}={value}" for name, value in self.changes.items())
        return f"{said}; changed in this run: {changed}" if said and changed else said

    def digest(self) -> str:
        """Of all that decides what a seed's training gives."""
        others = ("seeds", "device", "models", "note")
        own = {key: value for key, value in self.to_json().items() if key not in others}
        return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()

    def folder_name(self) -> str:
        """Of the method, as part of a path; a name from outside has a colon, which not every system takes."""
        return self.method.replace(":", ".")

    def command_line(self, folder: Path) -> list[str]:
        """The `ibpwf run …` that runs this in a folder."""
        from ibpwf.lab.experiments.network import network_text

        line = ["run", self.scenario, "--method", self.method, "--preset", self.preset, "--device", self.device]
        contiguous = self.seeds == tuple(range(len(self.seeds)))
        line += ["--seeds", str(len(self.seeds))] if contiguous else ["--seed", str(self.seeds[0])]
        line += ["--tasks", str(self.tasks)] if self.tasks is not None else []
        line += ["--examples", str(self.examples)] if self.examples is not None else []
        line += ["--network", network_text(self.network)] if self.network is not None else []
        if self.order is not None:
            line += ["--order", self.order if isinstance(self.order, str) else ",".join(map(str, self.order))]
        line += ["--validation", str(self.validation)] if self.validation is not None else []
        for name, value in self.changes.items():
            line += ["--set", f"{name}={json.dumps(value)}"]
        line += [] if self.models else ["--no-models"]
        return [*line, "--out", str(folder)]

    def to_json(self) -> dict[str, Any]:
        return {
            **super().to_json(),
            "network": self.network_spec(),
            "settings": self.settings().to_json(),
            "settings_for": self.settings_for(),
            "note": self.note(),
        }

    def same_settings(self, stored: Mapping[str, Any]) -> bool:
        """Whether a stored result was made with these settings and this network."""
        mine = {
            "settings": self.settings().to_json(),
            "network": self.network_spec(),
            "settings_for": self.settings_for(),
        }
        return all(stored.get(key) == value for key, value in mine.items())

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any], changes: Mapping[str, Any], **others: Any) -> Self:
        """The configuration in a run folder, with more changes."""
        names = ("scenario", "method", "preset", "tasks", "examples")
        order = stored.get("order")
        if order is not None:
            others["order"] = order if isinstance(order, str) else tuple(order)
        others["validation"] = stored.get("validation")
        plain = cls(**{name: stored[name] for name in names}, seeds=tuple(stored["seeds"]), **others)
        usual, then = plain.settings().to_json(), stored["settings"]
        made = plain.replace(changes={k: v for k, v in then.items() if usual[k] != v} | dict(changes))
        return made if stored["network"] == made.network_spec() else made.replace(network=stored["network"])
