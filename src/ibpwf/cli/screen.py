"""Tables, bars and styled lines of a command, by rich."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.text import Text

from ibpwf.errors import printable

NARROWEST = 20
"""Columns that a table needs; a terminal that says it has fewer (some say 0) is not believed."""


class Screen(Console):
    """A console that takes every text as it is: no markup, no smileys, no colored numbers, no control characters."""

    def __init__(self, *, width: int | None = None, **options: Any) -> None:
        options = {"markup": False, "emoji": False, "highlight": False, **options}
        super().__init__(width=width, **options)
        if self.width < NARROWEST:
            self.width = NARROWEST

    def render_str(self, text: str, **options: Any) -> Text:  # of everything that is printed, cells of tables too
        return super().render_str(printable(text, keep="\n\t"), **options)

    def on_broken_pipe(self) -> None:  # as of any other output: the program ends as it should
        raise BrokenPipeError

    def say(self, text: str = "", style: str = "") -> None:
        """Print a line, as long as it is."""
        self.print(text, style=style, soft_wrap=True)


@contextmanager
def fetch_bar() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar that shows how far a download is, on standard error, so that the output can be piped."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
    with Progress(*columns, console=Screen(stderr=True), transient=True) as bars:
        bar = bars.add_task("", amount="")

        def show(label: str, done: int, total: int | None) -> None:
            bars.update(bar, description=printable(label), completed=done, total=total, amount=_amount(done, total))

        yield show


def _amount(done: int, total: int | None) -> str:
    """Bytes as megabytes, a handful of steps as they are."""
    if total is None:
        return f"{done / 1e6:.1f} MB" if done else ""
    return f"{done}/{total}" if total < 1000 else f"{done / 1e6:.1f}/{total / 1e6:.1f} MB"
