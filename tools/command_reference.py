"""docs/cli.md from the program: `python -m tools.command_reference docs/cli.md` (or `make docs`)."""

from __future__ import annotations

import inspect
import sys

from ibpwf.cli.parsing import Option, options_of, usage
from ibpwf.cli.program import PLACES, command_named
from ibpwf.storage.files import write_text

HEAD = """\
# The command line

Made from the program by `make docs`. Every command prints its part with `--help` or `-h`. `ibpwf --version` prints \
the version; `--debug`, anywhere on the line, shows the traceback of an error. `--json` prints the same content as \
JSON, and nothing else, to stdout.

| exit code | meaning |
|---:|---|
| 0 | done |
| 1 | `verify`: the folder is corrupt; `learn --update`: the update was rejected because predictions got worse |
| 2 | an error: one sentence on stderr |
| 130, 143 | interrupted by Ctrl-C, by SIGTERM |
| 141 | the reader of the output closed it |
"""


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def row(one: Option) -> str:
    words = [*one.on, *one.off]
    written = ", ".join(f"`{word}`" for word in words) + ("" if one.kind is bool else f" `{one.metavar}`")
    return f"| {cell(written)} | {cell(one.about)} | {cell(one.by_default)} |"


def section(name: str) -> str:
    """One command: how it is called, what it does, its arguments and options."""
    command = command_named(name)
    lines = [f"## ibpwf {name}", "", f"```\n{usage(command, f'ibpwf {name}')}\n```", ""]
    lines += [inspect.cleandoc(command.__doc__ or ""), ""]
    arguments = [one for one in options_of(command) if one.place]
    options = [one for one in options_of(command) if not one.place]
    if arguments:
        lines += [
            "| argument | |",
            "|---|---|",
            *(f"| `{one.written}` | {cell(one.about)} |" for one in arguments),
            "",
        ]
    if options:
        lines += ["| option | | default |", "|---|---|---|", *map(row, options), ""]
    return "\n".join(lines)


def page() -> str:
    """The whole of docs/cli.md."""
    return "\n".join([HEAD, *map(section, PLACES)])


if __name__ == "__main__":
    write_text(sys.argv[1], page())
