"""`ibpwf run`: one method on one scenario, with progress, tables and a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ibpwf.cli.interrupts import Interrupted, interrupted
from ibpwf.cli.options import (
    AsJson,
    OfScenario,
    OnCluster,
    command_typed,
    flush_denormals,
)
from ibpwf.cli.output import Screen, print_json
from ibpwf.cli.parsing import Fraction, option
from ibpwf.errors import DataError, InputError, printable
from ibpwf.launched import started_as

if TYPE_CHECKING:
    from ibpwf.lab.experiments.run_config import RunConfig


def read_order(text: str, flag: str) -> tuple[int, ...] | Literal["random"]:
    """`random`, or comma-separated class numbers."""
    if text == "random":
        return "random"
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{flag} is '{text}'; give random, or all classes in order, such as 3,1,0,2.") from None


@dataclass(kw_only=True)
class Run(OfScenario, AsJson, OnCluster):
    """Learn a scenario task by task and print the accuracies next to the paper's."""

    method: str = option(
        "ibpwf",
        "The method (see `ibpwf methods`), or module:Class.",
        metavar="NAME",
        check="ibpwf.lab.names:check_method",
    )
    seed: int | None = option(None, "Run this one seed.", usual="0", least=0)
    seeds: int | None = option(None, "Run seeds 0 to N-1.", least=1)
    network: str | None = option(
        None,
        "Another network than the preset's: mlp, resnet9, resnet20, resnet or vit_tiny, with arguments as in "
        "'resnet;depth=32;width=32'.",
    )
    order: tuple[int, ...] | str | None = option(
        None,
        "The order of classes in a split scenario, such as 3,1,0,2, or random (drawn by the seed).",
        metavar="N,N|random",
        read=read_order,
    )
    validation: Fraction | None = option(
        None,
        "Hold out this fraction of the training examples and measure on it instead of on the test examples, to "
        "choose settings by.",
    )
    fast: bool = option(False, "Evaluate few experts, each once: --set inference.experts=likely --set views=plain.")
    beside: str | None = option(
        None,
        "Show next to it how another method that trains in seconds, such as router, does with the task inferred.",
        metavar="METHOD",
        check="ibpwf.lab.names:check_method",
    )
    out: Path | None = option(
        None,
        "The run folder.",
        "-o",
        "--out",
        metavar="DIR",
        usual="runs/SCENARIO-METHOD-PRESET, with --cluster plus a digest",
    )
    overwrite: bool = option(False, "Replace the run in the folder.")
    fallback: str | None = option(
        None,
        "The scenario to run if the data cannot be downloaded.",
        metavar="SCENARIO",
        check="ibpwf.lab.names:check_scenario",
    )
    tensorboard: bool = option(False, "Write TensorBoard events, too.")

    def configs(self) -> list[RunConfig]:
        """Of the scenario and, checked now rather than when it is needed, of the fallback."""
        if self.seed is not None and self.seeds is not None:
            raise InputError("--seed and --seeds were both given; choose one.")
        changes = self.changes()
        if self.engine() is not None and self.tensorboard:
            raise InputError("--tensorboard writes where the training is; leave it out with --cluster.")
        from ibpwf.lab.experiments.network import parse_network

        names = [self.scenario] if self.fallback is None else [self.scenario, self.fallback]
        more: dict[str, Any] = {
            "method": self.method,
            "seeds": tuple(range(self.seeds)) if self.seeds is not None else (self.seed or 0,),
            "network": None if self.network is None else parse_network(self.network),
            "changes": changes,
            "validation": self.validation,
            "order": self.order,
        }
        return [self.faster(self.config(name, **more)) for name in names]

    def faster(self, config: RunConfig) -> RunConfig:
        """With --fast, as the settings say how predictions are made faster."""
        from ibpwf.settings import Settings

        settings = config.settings()
        if not self.fast or not isinstance(settings, Settings):
            return config
        return config.replace(changes={**settings.faster, **config.changes})

    def folder(self, config: RunConfig) -> Path:
        name = f"{config.scenario.replace(':', '.')}-{config.folder_name()}-{config.preset}"
        content = "" if self.cluster is None else f"-{config.digest()[:8]}"
        return self.out or Path("runs") / f"{name}{content}"

    @property
    def resumes(self) -> bool:
        """Whether what is in the folder is continued: also where the folder's name says that it is the same run."""
        return self.resume or (self.cluster is not None and self.out is None and not self.overwrite)

    def run(self) -> None:
        config, *others = self.configs()
        flush_denormals()
        screen = Screen(stderr=self.json)
        try:
            try:
                result = self._run(config, screen)
            except DataError as error:
                if not others:
                    raise
                screen.say(f"{error}\n", "dim")
                screen.say(f"{self.scenario} is unavailable; running {self.fallback} instead.", "yellow")
                config = others[0]
                result = self._run(config, screen)
        except KeyboardInterrupt:
            folder = self.folder(config)
            if (folder / "config.json").exists():
                how = "--resume instead of --overwrite" if self.overwrite else "--resume"
                raise interrupted(folder, "tasks", how) from None
            raise Interrupted("Interrupted. Nothing has been written yet.") from None
        if self.json:
            print_json(result)

    def _run(self, config: RunConfig, screen: Screen) -> dict[str, Any]:
        from ibpwf.cli.run_display import Display, summary
        from ibpwf.cli.run_table import RunTable
        from ibpwf.lab.experiments.beside import beside_config, meanwhile
        from ibpwf.lab.experiments.run import run
        from ibpwf.lab.report import need_jinja2, write_report
        from ibpwf.storage.files import write_json

        need_jinja2()  # the report comes last
        if self.beside is not None:
            beside_config(config, self.beside)  # rejected now or not at all
        display, folder = Display(screen, len(config.seeds) * len(config.trainings())), self.folder(config)
        display.say_preset(config)
        engine, table = self.engine(display.say), RunTable(screen)
        elsewhere = engine is not None
        with table if elsewhere else display.bar:
            if self.beside is not None:
                config.stream(config.seeds[0], display.fetched)  # downloaded once, before two want it
                other = meanwhile(config, self.beside)
            result = run(
                config,
                folder,
                command=command_typed(),
                watch=table.watch(config.scenario, display) if elsewhere else display,
                resume=self.resumes,
                overwrite=self.overwrite,
                **({"engine": engine} if elsewhere else {"tensorboard": self.tensorboard}),
            )
            if started_as():
                return result  # one of several processes, of which the first writes and speaks
            if self.beside is not None:
                result = {**result, "beside": other()}
                write_json(folder / "result.json", result)
        summary(screen, result)
        page = write_report([folder], folder / "report.html")
        for line in (f"Run folder: {folder}", f"Report: {page}"):
            screen.say(printable(line))
        return result
