"""What commands print: lines, tables, progress bars and JSON.

Foreign text (labels, paths, names) is shown with escapes in place of what could steer a terminal, in whatever
encoding the terminal has. rich is imported with the first `Screen`.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ibpwf.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_PLAIN = str.maketrans({"–": "-", "—": "-", "−": "-", "×": "x", "±": "+-", "·": "*", "≥": ">=", "≤": "<="})
_PLAIN |= str.maketrans({"…": "...", "→": "->", "█": "#", "░": ".", "✅": "yes", "❌": "no"})

_STEERING = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
"""Control characters that JSON lets through."""

NARROWEST = 20
"""Columns that a table needs; a terminal that says it has fewer (some say 0) is not believed."""


def _in_plain_words(error: UnicodeError) -> tuple[str, int]:
    """For characters that an encoding lacks: something like them, or their escape."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return text.encode("ascii", "backslashreplace").decode("ascii"), error.end


codecs.register_error("ibpwf-plain", _in_plain_words)


def prepare_streams() -> None:
    """Make standard input, output and error safe to use: open, whoever started us, and able to take any text.

    Where one is closed, the next file to be opened would take its number, and be written to by whoever prints.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="ibpwf-plain")
    warnings.showwarning = _show_warning


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    say(f"warning: {message}", err=True)


def drop_output() -> None:
    """Let what is still to be written go nowhere: Python would try, and complain, once more when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str = "", *, err: bool = False) -> None:
    """Print a line, on standard output or error."""
    stream = sys.stderr if err else sys.stdout
    stream.write(printable(text, keep="\n\t") + "\n")
    stream.flush()


def json_text(value: object, encoding: str = "utf-8") -> str:
    """JSON to read: characters as they are where the encoding has them all, as escapes otherwise."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=os.fspath).translate(_STEERING)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:  # a terminal of another age, or a path that is no UTF-8
        return json.dumps(value, indent=2, default=os.fspath)
    return text


def print_json(value: object) -> None:
    """Print JSON on standard output; what it holds cannot steer a terminal, since control characters are escaped."""
    sys.stdout.write(json_text(value, sys.stdout.encoding or "ascii") + "\n")
    sys.stdout.flush()


@functools.cache
def _console_type() -> type[Console]:
    from rich.console import Console
    from rich.text import Text

    class SafeConsole(Console):
        """Takes every text as it is: no markup, no emoji codes, no colored numbers, no control characters."""

        def render_str(self, text: str, **options: Any) -> Text:  # of everything printed, cells of tables too
            return super().render_str(printable(text, keep="\n\t"), **options)

        def on_broken_pipe(self) -> None:  # as of any other output: the program ends as it should
            raise BrokenPipeError

    return SafeConsole


class Screen:
    """Lines and tables on standard output, or standard error; `console` is rich's, for progress bars."""

    def __init__(self, *, stderr: bool = False, width: int | None = None, **options: Any) -> None:
        plain: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
        self.console = _console_type()(stderr=stderr, width=width, **plain, **options)
        self.console.width = max(self.console.width, NARROWEST)

    @property
    def width(self) -> int:
        return self.console.width

    @property
    def is_terminal(self) -> bool:
        return self.console.is_terminal

    def say(self, text: str = "", style: str = "", *, wrap: bool = False) -> None:
        """Print a line, as long as it is."""
        self.console.print(text, style=style, soft_wrap=not wrap)

    def table(
        self,
        heads: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        right: Sequence[str] = (),
        whole: Sequence[str] = (),
        show_heads: bool = True,
    ) -> None:
        """Print a table; columns in `right` are aligned there, those in `whole` never break a line."""
        self.console.print(table(heads, rows, right=right, whole=whole, show_heads=show_heads))


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[str] = (),
    whole: Sequence[str] = (),
    show_heads: bool = True,
) -> Table:
    """A plain table; a head in `right` or `whole` stands for all columns that are called so."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, show_header=show_heads)
    for head in heads:
        cut = head in whole
        made.add_column(
            head, justify="right" if head in right else "left", no_wrap=cut, overflow="ellipsis" if cut else "fold"
        )
    for row in rows:
        made.add_row(*map(printable, row))
    return made


@contextlib.contextmanager
def fetch_bar() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar that shows how far a download is, on standard error, so that the output can be piped."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
    with Progress(*columns, console=Screen(stderr=True).console, transient=True) as bars:
        bar = bars.add_task("", amount="")

        def show(label: str, done: int, total: int | None) -> None:
            bars.update(bar, description=printable(label), completed=done, total=total, amount=_amount(done, total))

        yield show


def _amount(done: int, total: int | None) -> str:
    """Bytes as megabytes, a handful of steps as they are."""
    if total is None:
        return f"{done / 1e6:.1f} MB" if done else ""
    return f"{done}/{total}" if total < 1000 else f"{done / 1e6:.1f}/{total / 1e6:.1f} MB"


def counted(count: int, what: str) -> str:
    """1 task, 2 tasks."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def size(count: float) -> str:
    """Bytes in a readable unit."""
    units = iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while count >= 1000 and unit != "TB":
        count, unit = count / 1000, next(units)
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} %"
