"""docs/cli.md from the program: `python -m tools.command_reference docs/cli.md` (or `make docs`).

Read from the functions behind the commands and the options in their signatures, so that the page depends neither on
the width of a terminal nor on how a version of typer draws its help.
"""

from __future__ import annotations

import enum
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from typer.models import ArgumentInfo, OptionInfo

from ibpwf.cli import program as cli
from ibpwf.storage.files import write_text

HEAD = """\
# The command line

Made from the program by `make docs`. Every command also says this with `--help` or `-h`. `ibpwf --version` prints \
the version; `--debug`, anywhere on the line, shows the traceback of an error.

Exit codes: 0 done, 2 an error (one sentence on standard error), 130 interrupted with Ctrl-C, 141 whoever read \
the output has closed it, 143 ended by SIGTERM; \
`verify` has 1 for a damaged folder, `learn --update` where answers got worse and nothing was kept.
"""
TYPES: dict[object, str] = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}


def all_commands() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every command of the program, in the order of its help."""
    for group in cli.COMMANDS.values():
        for name in group:
            app = cli.typer_of(name)
            assert app is not None
            single = app.registered_commands[0].name == name
            yield from commands(app, "ibpwf" if single else f"ibpwf {name}")


def commands(app: typer.Typer, prefix: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every command's whole name and the function behind it, in the order they are registered."""
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__.replace("_", "-")
        yield f"{prefix} {name}", command.callback


def parameters(function: Callable[..., Any]) -> Iterator[tuple[str, object, object, ArgumentInfo | OptionInfo]]:
    """Name, type, default and what typer knows of each parameter."""
    hints = typing.get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, *more = (
            typing.get_args(hints[name]) if typing.get_origin(hints[name]) is typing.Annotated else (hints[name],)
        )
        info = next((extra for extra in more if isinstance(extra, (ArgumentInfo, OptionInfo))), None)
        default = parameter.default
        if isinstance(default, (ArgumentInfo, OptionInfo)):
            info, default = default, default.default
        if info is None:
            info = ArgumentInfo(default=...) if default is inspect.Parameter.empty else OptionInfo(default=default)
        yield name, _plain(kind), default, info


def _plain(kind: object) -> object:
    """The type without None and without the list around it."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kind = next(option for option in typing.get_args(kind) if option is not type(None))
    return typing.get_args(kind)[0] if typing.get_origin(kind) is list else kind


def _value(kind: object, info: ArgumentInfo | OptionInfo) -> str:
    if info.metavar:
        return info.metavar
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "|".join(str(choice.value) for choice in kind)
    return TYPES.get(kind, "TEXT")


def _option(name: str, kind: object, default: object, info: OptionInfo) -> tuple[str, str]:
    """An option as it is written, and what it is by default."""
    plain = name.strip("_").replace("_", "-")
    given = [info.default, *(info.param_decls or ())]  # in an annotation, typer takes the first name for a default
    names = [one for one in given if isinstance(one, str) and one.startswith("-")] or [f"--{plain}"]
    written = ", ".join(f"`{one}`" for one in names)
    if kind is not bool:
        written = f"{written} `{_value(kind, info)}`"
    if isinstance(info.show_default, str):
        return written, info.show_default
    if default in (inspect.Parameter.empty, ...):
        return written, "must be given"
    hidden = info.show_default is False or default is None or isinstance(default, bool)
    return written, "" if hidden else f"{default}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def section(name: str, function: Callable[..., Any]) -> str:
    """One command: how it is called, what it does, its arguments and options."""
    arguments, options = [], []
    for parameter, kind, default, info in parameters(function):
        if info.hidden:
            continue
        text = _cell(" ".join((info.help or "").split()))
        if isinstance(info, OptionInfo):
            written, usual = _option(parameter, kind, default, info)
            options.append(
                f"| {written.replace('|', chr(92) + '|')} | {text} | {usual.replace('|', chr(92) + '|')} |"
            )
        else:
            shown = info.metavar or parameter.strip("_").upper()
            needed = default in (inspect.Parameter.empty, ...)
            arguments.append((shown if needed else f"[{shown}]", text))
    usage = " ".join([name, *(shown for shown, _ in arguments), *(["[options]"] if options else [])])
    lines = [f"## {name}", "", f"```\n{usage}\n```", "", inspect.cleandoc(function.__doc__ or ""), ""]
    if arguments:
        lines += ["| argument | |", "|---|---|", *(f"| `{shown}` | {text} |" for shown, text in arguments), ""]
    if options:
        lines += ["| option | | by default |", "|---|---|---|", *options, ""]
    return "\n".join(lines)


def page() -> str:
    """The whole of docs/cli.md."""
    return "\n".join([HEAD, *(section(*command) for command in all_commands())])


if __name__ == "__main__":
    write_text(sys.argv[1], page())
