"""Tables, bars and styled lines of a command, by rich."""

from __future__ import annotations

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
