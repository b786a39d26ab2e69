"""The command line: finds a command, parses its options, calls it. Errors are one sentence and exit code 2.

A command's module is imported when the command is asked for, and what takes seconds to import (torch, scikit-learn)
only once the request has been checked: help and mistakes are answered at once.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ibpwf.cli.output import drop_output, prepare_streams, say
from ibpwf.cli.parsing import Command, described, help_text, parse, wrapped
from ibpwf.errors import IBPWFError, InputError, printable, unknown
from ibpwf.launched import started_as


class Place(NamedTuple):
    """Where a command is found, and what it is for."""

    where: str
    summary: str


COMMANDS: Mapping[str, Mapping[str, Place]] = {
    "Your own data": {
        "learn": Place("learn:Learn", "Learn a file as a new task of a model, or update a task."),
        "predict": Place("predict:Predict", "Predict every row of a file."),
        "evaluate": Place("evaluate:Evaluate", "Measure accuracy on a labeled file."),
        "watch": Place("watch:Watch", "Learn files as they arrive in a folder."),
    },
    "Model folders": {
        "inspect": Place("inspect:Inspect", "Show what a model folder holds."),
        "verify": Place("verify:Verify", "Check every file of a model folder."),
        "forget": Place("forget:Forget", "Delete a task and every factor that only it uses."),
        "export": Place("export:Export", "Export a model to ONNX, torch.export, peft and others."),
        "serve": Place("serve:Serve", "Serve models over HTTP: predict, learn, every version."),
    },
    "Pretrained backbones": {
        "backbones list": Place("backbones:List", "List the pretrained backbones."),
        "backbones fetch": Place("backbones:Fetch", "Download a pretrained backbone."),
    },
    "Benchmark suite": {
        "run": Place("run:Run", "Run a method on a scenario; compare with the paper."),
        "compare": Place("compare:Compare", "Run several methods on one scenario."),
        "methods": Place("methods:Methods", "List the methods."),
        "reproduce": Place("reproduce:Reproduce", "Reproduce a table or figure of the paper."),
        "report": Place("report:Report", "Write an HTML report of results and figures."),
        "data list": Place("data:List", "List the data sets."),
        "data fetch": Place("data:Fetch", "Download a data set."),
        "data verify": Place("data:Verify", "Check the files of a data set."),
        "bench": Place("bench:Bench", "Measure speed and memory."),
    },
}
PLACES = {name: place for group in COMMANDS.values() for name, place in group.items()}
GROUPS = {name.split()[0] for name in PLACES if " " in name}
"""First words that need a second one; alone they list."""

EPILOG = """
Options:
  -h, --help  Show this message, or a command's arguments and options.
  --version   Show the version.
  --debug     Show the full traceback of an error."""


def command_named(name: str) -> type[Command]:
    module, _, attribute = PLACES[name].where.partition(":")
    found: type[Command] = getattr(importlib.import_module(f"ibpwf.cli.{module}"), attribute)
    return found


def split(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """A command's name and the words after it; the name of a group alone is that of its list."""
    name, *rest = words
    if name in GROUPS:
        if not rest or (rest[0].startswith("-") and rest[0] not in ("-h", "--help")):
            return f"{name} list", rest
        if not rest[0].startswith("-"):
            name, *rest = f"{name} {rest[0]}", *rest[1:]
    if name not in PLACES and name not in GROUPS:
        raise unknown("command", name, PLACES)
    return name, rest


def call(words: Sequence[str]) -> int:
    """Run a command line, without the program's name, and return the exit code."""
    if words[:1] in ([], ["-h"], ["--help"]):
        say(overview())
        return 0 if words else 2
    if words[0] == "--version":
        from ibpwf import __version__

        say(f"ibpwf {__version__}")
        return 0
    if words[0].startswith("-"):
        raise unknown("option of `ibpwf`", words[0], ("--help", "--version", "--debug"))
    try:
        os.getcwd()
    except FileNotFoundError:  # torch would end the process
        raise InputError("the current directory has been removed; change to another one.") from None
    name, rest = split(words)
    if {"-h", "--help"} & set(rest):
        say(help_text(command_named(name), f"ibpwf {name}") if name in PLACES else overview(name))
        return 0
    return parse(command_named(name), rest, f"ibpwf {name}").run() or 0


def overview(group: str = "") -> str:
    """Every command in a line, or those of a group."""
    lines = [f"Usage: ibpwf {group or 'COMMAND'} ...".replace("COMMAND ...", "COMMAND [arguments] [options]"), ""]
    if not group:
        about = "Continual learning without forgetting: tasks share a growing dictionary of weight factors (IBP-WF)."
        lines += [*wrapped(about, "  ", "  "), ""]
    width = max(map(len, PLACES))
    for title, places in COMMANDS.items():
        rows = [(name.ljust(width), place.summary) for name, place in places.items() if name.startswith(group)]
        if rows:
            lines += [f"{title}:", *described(rows), ""]
    return "\n".join(lines).rstrip() + ("" if group else f"\n{EPILOG}")


def main() -> None:
    """Entry point of `ibpwf` and `python -m ibpwf`."""
    prepare_streams()
    words = sys.argv[1:]
    debug = "--debug" in words
    if debug:
        words.remove("--debug")  # accepted anywhere on the line
    if (number := started_as()) and words[:1] in (["learn"], ["run"]):  # the first process speaks for all
        spoken, sys.stdout, sys.stderr = sys.stderr, open(os.devnull, "w"), open(os.devnull, "w")  # noqa: SIM115
    try:
        code = call(words)
        sys.stdout.flush()  # while there is someone to tell that it could not be written
        sys.exit(code)
    except BrokenPipeError:  # the reader of our output has seen enough
        drop_output()
        sys.exit(141)
    except KeyboardInterrupt as error:
        say(str(error) or "Interrupted.", err=True)
        sys.exit(getattr(error, "code", 130))
    except (IBPWFError, OSError, MemoryError, RuntimeError) as error:
        sentence = _sentence(error)
        if debug or sentence is None:
            raise
        if isinstance(error, OSError):
            drop_output()  # it may be standard output that cannot be written
        if number:
            sys.stderr = spoken
        say(f"{f'process {number}: ' if number else ''}error: {sentence}", err=True)
        sys.exit(2)


def _sentence(error: Exception) -> str | None:
    """What went wrong, in words; None for a bug of ours, whose traceback is worth having."""
    if isinstance(error, IBPWFError):
        return str(error)
    if isinstance(error, OSError):
        where = f"'{printable(os.fsdecode(error.filename))}': " if isinstance(error.filename, (str, bytes)) else ""
        return f"{where}{error.strerror or error}. Check the path, its permissions and the disk."
    told = next(iter(str(error).splitlines()), "")
    if isinstance(error, MemoryError) or "out of memory" in told or "t allocate memory" in told:  # torch's
        return f"out of memory ({told or 'no memory left'}). Ask for less, or use smaller data."
    return None
