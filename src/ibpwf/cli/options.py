"""Options of a command as one object: a dataclass whose fields are options, spelled once and handed on whole."""

from __future__ import annotations

import inspect
import shlex
import sys
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ibpwf.cli.output import say
from ibpwf.device import check_device
from ibpwf.errors import InputError, printable
from ibpwf.lab import names
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.parts import parse_assignment

if TYPE_CHECKING:
    from ibpwf.lab.experiments.cluster import Cluster

T = TypeVar("T")


def command_with(options: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Make a command of a function that takes such options."""
    hints = typing.get_type_hints(options, include_extras=True)
    last = {one.name for one in fields(options) if one.kw_only}  # type: ignore[arg-type]
    parameters = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if one.default is MISSING else one.default,
            annotation=hints[one.name],
        )
        for one in sorted(fields(options), key=lambda one: one.name in last)  # type: ignore[arg-type]
    ]

    def decorate(function: Callable[[T], None]) -> Callable[..., None]:
        def command(**given: Any) -> None:
            function(options(**given))

        command.__doc__ = function.__doc__
        command.__annotations__ = hints
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def of_run(name: str, *flags: str, **more: Any) -> Any:
    """An option that is a field of `RunConfig`, with its description."""
    return typer.Option(*flags, help=RunConfig.model_fields[name].description, **more)


@dataclass
class RunChoices:
    """What `run` and `compare` have in common."""

    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help=RunConfig.model_fields["scenario"].description)]
    preset: Annotated[str, of_run("preset")] = "paper"
    tasks: Annotated[int | None, of_run("tasks", show_default=False)] = None
    examples: Annotated[int | None, of_run("examples", show_default=False)] = None
    device: Annotated[str, of_run("device")] = "auto"
    set_: Annotated[list[str] | None, of_run("changes", "--set", metavar="NAME=VALUE")] = None
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the last finished task.")] = False
    no_models: Annotated[
        bool, typer.Option("--no-models", help="Store results only: saves disk, but an interrupted seed starts anew.")
    ] = False

    def check(self, *methods: str, fallback: str | None = None) -> None:
        """Refuse mistyped names now, before seconds are spent on importing torch."""
        for scenario in (self.scenario, fallback):
            if scenario is not None:
                names.check_scenario(scenario)
        for method in methods:
            names.check_method(method)
        names.check_preset(self.preset)
        check_device(self.device)
        self.changes()

    def changes(self) -> dict[str, Any]:
        return dict(parse_assignment(text) for text in self.set_ or [])

    def config(self, scenario: str, **more: Any) -> RunConfig:
        """What these options ask for, of a scenario that may be another."""
        same = {name: getattr(self, name) for name in ("preset", "tasks", "examples", "device")}
        return RunConfig(scenario, **same, models=not self.no_models, **more)


@dataclass(kw_only=True)
class ClusterChoices:
    """Where workers train, what `run`, `compare` and `reproduce` have in common; listed last."""

    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Train in the workers of a Dask scheduler, such as tls://host:8786, or its scheduler file; local:N "
            "starts N workers here.",
            show_default=False,
        ),
    ] = None
    tls_ca_file: Annotated[
        Path | None, typer.Option(help="Certificate authority of the cluster (PEM).", show_default="Dask's own")
    ] = None
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate to show to the cluster (PEM).", show_default="Dask's own")
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(help="Private key of that certificate (PEM).", show_default="Dask's own")
    ] = None
    cluster_insecure: Annotated[
        bool, typer.Option("--cluster-insecure", help="Allow another machine without encryption.")
    ] = False

    def engine(self, say: Callable[[str], None] = lambda text: None) -> Cluster | None:
        """Who trains, if not this process; refused here if that cannot be."""
        from ibpwf.lab.experiments.cluster import Certificates, Cluster

        certificates = Certificates(self.tls_ca_file, self.tls_cert, self.tls_key)
        if self.cluster is None:
            if certificates.given() or self.cluster_insecure:
                raise InputError("--tls-... and --cluster-insecure are for --cluster, which is not given.")
            return None
        return Cluster(self.cluster, certificates, self.cluster_insecure, say)


def at_least_one(**options: int | None) -> None:
    for name, value in options.items():
        if value is not None and value < 1:
            raise InputError(f"--{name} is {value}; give at least 1.")


def command_typed() -> str:
    """The command line as it was given."""
    return "ibpwf " + shlex.join(sys.argv[1:])


def flush_denormals() -> None:
    """Denormal numbers in Adam's moments halve the speed of a long run. Training flushes them by itself, in its own
    thread; the further threads of a wide network take that over only if it is said before they start."""
    import torch

    torch.set_flush_denormal(True)


def interrupted(folder: Path, what: str = "runs", how: str = "--resume") -> typer.Exit:
    """Say what Ctrl-C has left, and end with its exit code."""
    where = printable(str(folder))
    say(f"Interrupted. Finished {what} are kept in {where}; the same command with {how} goes on.", err=True)
    return typer.Exit(130)
