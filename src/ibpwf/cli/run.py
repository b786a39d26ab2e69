"""`ibpwf run`: one method over one scenario, with progress, tables and a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ibpwf.cli.options import (
    ClusterChoices,
    RunChoices,
    at_least_one,
    command_typed,
    command_with,
    flush_denormals,
    interrupted,
    of_run,
)
from ibpwf.cli.output import print_json, say
from ibpwf.errors import DataError, InputError, printable
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.launched import started_as

if TYPE_CHECKING:
    from ibpwf.cli.screen import Screen


@dataclass
class RunOptions(RunChoices, ClusterChoices):
    """What is asked of `ibpwf run`."""

    method: Annotated[str, of_run("method")] = "ibpwf"
    seed: Annotated[int | None, typer.Option(help="Run this one seed.", show_default="0")] = None
    seeds: Annotated[int | None, typer.Option(help="Run seeds 0 to N-1.", show_default=False)] = None
    network: Annotated[str | None, of_run("network", show_default=False)] = None
    order: Annotated[str | None, of_run("order", show_default=False)] = None
    validation: Annotated[float | None, of_run("validation", show_default=False)] = None
    fast: Annotated[
        bool, typer.Option("--fast", help="Ask few experts, each once: --set experts=likely --set views=plain.")
    ] = False
    beside: Annotated[
        str | None,
        typer.Option(
            help="Show beside it how another method, one that trains in seconds such as router, does with the task "
            "inferred.",
            show_default=False,
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            help="The run folder.", show_default="runs/SCENARIO-METHOD-PRESET, with --cluster a digest after it"
        ),
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")] = False
    fallback: Annotated[
        str | None, typer.Option(help="Scenario to run if the data cannot be fetched.", show_default=False)
    ] = None
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard events too.")] = False
    json_: Annotated[bool, typer.Option("--json", help="Print result.json, and nothing else, on stdout.")] = False

    def configs(self) -> list[RunConfig]:
        """Of the scenario and, checked now rather than when it is needed, of the fallback."""
        if self.seed is not None and self.seeds is not None:
            raise InputError("--seed and --seeds were both given; choose one.")
        at_least_one(seeds=self.seeds)
        if self.engine() is not None and self.tensorboard:
            raise InputError("--tensorboard writes where the training is; leave it out with --cluster.")
        self.check(self.method, *([] if self.beside is None else [self.beside]), fallback=self.fallback)
        if self.order is not None:
            parse_order(self.order)
        from ibpwf.lab.experiments.network import parse_network

        chosen = tuple(range(self.seeds)) if self.seeds is not None else (self.seed or 0,)
        network = None if self.network is None else parse_network(self.network)
        from ibpwf.settings import FAST

        fast = FAST if self.fast else {}
        more: dict[str, Any] = {"method": self.method, "seeds": chosen, "network": network}
        more |= {"changes": {**fast, **self.changes()}, "validation": self.validation}
        more["order"] = None if self.order is None else parse_order(self.order)
        names = [self.scenario] if self.fallback is None else [self.scenario, self.fallback]
        return [self.config(name, **more) for name in names]

    def folder(self, config: RunConfig) -> Path:
        name = f"{config.scenario.replace(':', '.')}-{config.folder_name()}-{config.preset}"
        content = "" if self.cluster is None else f"-{config.digest()[:8]}"
        return self.out or Path("runs") / f"{name}{content}"

    @property
    def goes_on(self) -> bool:
        """Whether what is in the folder is taken as begun: also where the folder's name says that it is the same."""
        return self.resume or (self.cluster is not None and self.out is None and not self.overwrite)


def parse_order(text: str) -> tuple[int, ...] | str:
    """`random`, or class numbers with commas between them."""
    if text == "random":
        return text
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--order is '{text}'; give 'random', or all classes in order, such as 3,1,0,2.") from None


@command_with(RunOptions)
def run_command(asked: RunOptions) -> None:
    """Learn a scenario task by task and print the accuracies beside the paper's."""
    config, *others = asked.configs()
    flush_denormals()
    from ibpwf.cli.screen import Screen

    screen = Screen(stderr=asked.json_)
    try:
        try:
            result = _run(config, asked, screen)
        except DataError as error:
            if not others:
                raise
            screen.say(f"{error}\n", "dim")
            screen.say(f"{asked.scenario} cannot be had here; running {asked.fallback} instead.", "yellow")
            config = others[0]
            result = _run(config, asked, screen)
    except KeyboardInterrupt:
        folder = asked.folder(config)
        if (folder / "config.json").exists():
            how = "--resume instead of --overwrite" if asked.overwrite else "--resume"
            raise interrupted(folder, "tasks", how) from None
        say("Interrupted. Nothing has been written yet.", err=True)
        raise typer.Exit(130) from None
    if asked.json_:
        print_json(result)


def _run(config: RunConfig, asked: RunOptions, screen: Screen) -> dict[str, Any]:
    from ibpwf.cli.run_display import Display, summary
    from ibpwf.cli.run_table import RunTable
    from ibpwf.lab.experiments.beside import beside_config, meanwhile
    from ibpwf.lab.experiments.run import run
    from ibpwf.lab.report import need_jinja2, write_report
    from ibpwf.storage.files import write_json

    need_jinja2()  # the report comes last
    if asked.beside is not None:
        beside_config(config, asked.beside)  # refused now or not at all
    display, folder = Display(screen, len(config.seeds) * len(config.trainings())), asked.folder(config)
    display.say_preset(config)
    engine, table = asked.engine(display.say), RunTable(screen)
    elsewhere = engine is not None
    with table if elsewhere else display.bar:
        if asked.beside is not None:
            config.stream(config.seeds[0], display.fetched)  # fetched once, before two want it
            other = meanwhile(config, asked.beside)
        result = run(
            config,
            folder,
            command=command_typed(),
            watch=table.watch(config.scenario, display) if elsewhere else display,
            resume=asked.goes_on,
            overwrite=asked.overwrite,
            **({"engine": engine} if elsewhere else {"tensorboard": asked.tensorboard}),
        )
        if started_as():
            return result  # one of several processes, of which the first writes and speaks
        if asked.beside is not None:
            result = {**result, "beside": other()}
            write_json(folder / "result.json", result)
    summary(screen, result)
    page = write_report([folder], folder / "report.html")
    for line in (f"Run folder: {folder}", f"Report: {page}"):
        screen.say(printable(line))
    return result
