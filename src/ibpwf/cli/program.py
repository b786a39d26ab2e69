"""The command line: parses, calls, prints. Errors are one sentence and exit code 2.

A command's module is imported when the command is asked for, and what takes seconds to import (torch, scikit-learn)
only once the request has been checked: help and mistakes are answered at once.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command

from ibpwf.cli.output import prepare_streams, say
from ibpwf.errors import IBPWFError, InputError, printable
from ibpwf.launched import started_as


class Place(NamedTuple):
    """Where a command is to be found, and what it is for."""

    where: str
    summary: str


COMMANDS: Mapping[str, Mapping[str, Place]] = {
    "Your own data": {
        "learn": Place("ibpwf.cli.learn:learn_command", "Learn a file as the next task of a model folder."),
        "predict": Place("ibpwf.cli.predict:predict_command", "Answer every row of a file."),
        "watch": Place("ibpwf.cli.watch:watch_command", "Learn files as they arrive in a folder."),
        "evaluate": Place("ibpwf.cli.evaluate:evaluate_command", "Compare the answers with a file's labels."),
    },
    "Model folders": {
        "inspect": Place("ibpwf.cli.model:inspect_command", "Show what a model folder holds."),
        "verify": Place("ibpwf.cli.model:verify_command", "Check every file of a model folder."),
        "forget": Place("ibpwf.cli.model:forget_command", "Remove a task and all that only it used."),
        "export": Place("ibpwf.cli.export:export_command", "Write a network for use without ibpwf."),
        "serve": Place("ibpwf.cli.serve:serve_command", "Answer and learn over HTTP, every version of a model."),
    },
    "Trained networks": {
        "backbones": Place("ibpwf.cli.backbones:app", "List and fetch the trained networks known by name."),
    },
    "The laboratory": {
        "run": Place("ibpwf.cli.run:run_command", "Learn a scenario task by task, beside the paper's."),
        "compare": Place("ibpwf.cli.compare:compare_command", "Run several methods on one scenario."),
        "methods": Place("ibpwf.cli.compare:methods_command", "List every method."),
        "reproduce": Place("ibpwf.cli.reproduce:reproduce_command", "Reproduce a table or figure."),
        "report": Place("ibpwf.cli.report:report_command", "Write one HTML page of results and figures."),
        "data": Place("ibpwf.cli.data:app", "List, fetch and check the data sets."),
        "bench": Place("ibpwf.cli.bench:bench_command", "Measure speed and memory, as ratios."),
    },
}


def typer_of(name: str) -> typer.Typer | None:
    """A command, or a group of them, as an app of its own."""
    place = next((group[name] for group in COMMANDS.values() if name in group), None)
    if place is None:
        return None
    module, _, attribute = place.where.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if isinstance(found, typer.Typer):
        return found
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    single.command(name)(found)
    return single


class Commands(TyperGroup):
    """The commands by name; listed in groups, without importing any of them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for group in COMMANDS.values() for name in group]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        try:
            os.getcwd()
        except FileNotFoundError:  # torch would end the process
            raise InputError("the folder you are in has been removed; change to another one.") from None
        found = typer_of(cmd_name)
        return None if found is None else get_command(found)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.commands: Any = dict.fromkeys(self.list_commands(ctx))  # of which the nearest is suggested
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        longest = max(map(len, self.list_commands(ctx)))
        for title, group in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(longest), place.summary) for name, place in group.items()])


app = typer.Typer(
    name="ibpwf",
    cls=Commands,
    help="Continual learning that forgets nothing: tasks share a growing dictionary of weight factors (IBP-WF).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from ibpwf import __version__

        say(f"ibpwf {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    debug: bool = typer.Option(False, "--debug", help="Show the whole traceback of an error."),
) -> None:
    pass


USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[2]
"""What the parser raises for words that it does not understand; its module has another name in older versions."""


def call(words: list[str]) -> int:
    """Run a command line, without the program's name; the exit code, where the command has one."""
    command = get_command(app)
    try:
        with command.make_context("ibpwf", words) as context:
            command.invoke(context)
    except typer.Exit as ended:
        return int(ended.exit_code)
    return 0


def main() -> None:
    """Entry point of `ibpwf` and `python -m ibpwf`."""
    prepare_streams()
    words = sys.argv[1:]
    debug = "--debug" in words
    if debug:
        words.remove("--debug")  # accepted anywhere on the line
    if (number := started_as()) and words[:1] in (["learn"], ["run"]):  # the first speaks for all
        spoken, sys.stdout, sys.stderr = sys.stderr, nowhere(), nowhere()
    try:
        code = call(words)
        sys.stdout.flush()  # while there is someone to tell that it could not be written
        sys.exit(code)
    except BrokenPipeError:  # whoever read our output has seen enough
        _drop_output()
        sys.exit(141)
    except USAGE_ERROR as error:
        written = io.StringIO()
        error.show(file=written)
        say(written.getvalue().rstrip("\n"), err=True)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        say("Interrupted.", err=True)
        sys.exit(130)
    except (IBPWFError, OSError, MemoryError, RuntimeError) as error:
        sentence = _sentence(error)
        if debug or sentence is None:
            raise
        if isinstance(error, OSError):
            _drop_output()  # it may be standard output that cannot be written
        if number:
            sys.stderr = spoken
        say(f"{f'process {number}: ' if number else ''}error: {sentence}", err=True)
        sys.exit(2)


def nowhere() -> io.TextIOWrapper:
    """What is written to it is gone."""
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _sentence(error: Exception) -> str | None:
    """What went wrong, in words; None for a fault of ours, whose traceback is worth having."""
    if isinstance(error, IBPWFError):
        return str(error)
    if isinstance(error, OSError):
        where = f"'{printable(os.fsdecode(error.filename))}': " if isinstance(error.filename, (str, bytes)) else ""
        return f"{where}{error.strerror or error}. Check the path, its rights and the disk."
    told = next(iter(str(error).splitlines()), "")
    if isinstance(error, MemoryError) or "out of memory" in told or "t allocate memory" in told:  # torch's
        return f"there is not enough memory for this ({told or 'out of memory'}). Ask for less, or use smaller data."
    return None


def _drop_output() -> None:
    """Let what is still to be written go nowhere: Python would try, and complain, once more when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
