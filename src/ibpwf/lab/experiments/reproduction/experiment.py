"""What an experiment of the paper is: runs, a measure over them, and the paper's findings as claims on numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ibpwf.errors import InputError, unknown
from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.experiments.run_config import RunConfig

Budget = Literal["quick", "full"]
BUDGETS: tuple[Budget, ...] = ("quick", "full")
QUICK_NOTE = "quick: a shrunken stand-in that shows that everything runs; its numbers are not the paper's experiment"


@dataclass(frozen=True)
class RunSpec:
    """One run, whatever its seeds. Experiments that share a spec share its run.

    `stands_for` is the paper's benchmark where a smaller scenario takes its place. `models` keeps the models, for
    measures that ask them something. `seeds` is how many an experiment wants of it, where not as of its other runs.
    """

    scenario: str
    method: str = "ibpwf"
    preset: str = "paper"
    changes: Mapping[str, Any] = field(default_factory=dict)
    tasks: int | None = None
    models: bool = False
    examples: int | None = None
    stands_for: str | None = None
    seeds: int | None = field(default=None, compare=False)

    @property
    def benchmark(self) -> str:
        return self.stands_for or self.scenario

    @property
    def name(self) -> str:
        """The name of its folder: everything that tells it from other runs."""
        parts = [self.scenario, self.method, self.preset]
        parts += [f"{self.tasks}-tasks"] if self.tasks is not None else []
        parts += [f"{self.examples}-examples"] if self.examples is not None else []
        for key, value in self.changes.items():
            shown = "-".join(map(str, value)) if isinstance(value, list) else str(value)
            parts.append(f"{key}={shown}".lower())
        return "_".join(parts)

    @property
    def shortened(self) -> str:
        """In words, where the run is shorter than the paper's; empty where it is not."""
        papers = RunConfig(self.scenario, method=self.method)
        usual, mine = (config.settings().to_json() for config in (papers, self.config((0,))))
        parts = [f"the first {self.tasks} tasks"] if self.tasks is not None else []
        parts += [f"{self.examples} examples of each class"] if self.examples is not None else []
        lengths = [name for name in ("epochs", "finetune_epochs") if usual.get(name) or mine.get(name)]
        if sum(mine[name] for name in lengths) < sum(usual[name] for name in lengths):
            now, then = (" + ".join(str(one[name]) for name in lengths) for one in (mine, usual))
            parts.append(f"{now} epochs instead of {then}")
        return ", ".join(parts)

    def config(self, seeds: Sequence[int], device: str = "auto") -> RunConfig:
        names = ("scenario", "method", "preset", "tasks", "models", "examples")
        mine = {name: getattr(self, name) for name in names}
        return RunConfig(**mine, seeds=tuple(seeds), changes=dict(self.changes), device=device)


@dataclass(frozen=True)
class FinishedRun:
    """A spec with its result and folder."""

    spec: RunSpec
    result: dict[str, Any]
    folder: Path

    def stream(self, seed: int) -> Scenario:
        """The tasks as a seed of it has learnt them."""
        return self.spec.config((seed,)).stream(seed)


@dataclass(frozen=True)
class Request:
    """What is asked of a reproduction: the folder, the size, how many seeds where not the usual, and the device."""

    out: Path
    budget: Budget = "full"
    seeds: int | None = None
    device: str = "auto"
    command: str = ""
    resume: bool = False


@dataclass(frozen=True)
class Conditions:
    """What a measure may want to know besides the runs. `folder` is the experiment's own, for what takes long."""

    budget: Budget
    seeds: tuple[int, ...]
    device: str = "auto"
    command: str = ""
    folder: Path | None = None


@dataclass(frozen=True)
class Claim:
    """A finding of the paper in plain words, the numbers it rests on, and whether they bear it out."""

    statement: str
    numbers: dict[str, Any]
    held: bool

    def to_json(self) -> dict[str, Any]:
        return {"statement": self.statement, "numbers": self.numbers, "held": self.held}


def shortened_note(specs: Sequence[RunSpec]) -> str:
    """What a reader must know of full-size runs that are shorter than the paper's."""
    found = dict.fromkeys(f"{spec.method} on {spec.scenario}: {spec.shortened}" for spec in specs if spec.shortened)
    return f"shortened: {'; '.join(found)}" if found else ""


Measure = Callable[[Sequence[FinishedRun], Conditions], dict[str, Any]]


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper. `found` is what the paper says of it; `shows` names the drawing in a report."""

    name: str
    title: str
    found: str
    shows: str
    runs: Mapping[Budget, tuple[RunSpec, ...]]
    measure: Measure
    claims: tuple[Callable[[dict[str, Any]], Claim], ...] = ()
    seeds: Mapping[Budget, int] = field(default_factory=lambda: {"quick": 1, "full": 5})

    def chosen_seeds(self, budget: Budget, asked: int | None, spec: RunSpec | None = None) -> tuple[int, ...]:
        """Those of the experiment, or of one of its runs."""
        if asked is not None and asked < 1:
            raise InputError(f"--seeds is {asked}; give at least 1.")
        own = spec.seeds if spec is not None else None
        return tuple(range(asked or own or self.seeds[budget]))


def checked_budget(text: str) -> Budget:
    for budget in BUDGETS:
        if text == budget:
            return budget
    raise unknown("budget", text, BUDGETS)
