"""How a bad file is described: what makes it, how it is read, and what must be said about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Case = tuple[Callable[[Path], Path], dict[str, Any], str]
"""Makes the file, the options it is read with, and the words that must be said."""


class Cases(dict[str, Case]):
    """Bad files by name."""

    def file(self, words: str, name: str | None = None, **options: Any) -> Callable[[Callable[[Path], Path]], Any]:
        """Registers a function that makes a bad file; its name says what is wrong."""

        def register(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
            self[name or make.__name__.replace("_", " ")] = (make, options, words)
            return make

        return register

    def text(self, name: str, content: str | bytes, words: str, file: str = "a.csv", **options: Any) -> None:
        """Registers a file with this content."""
        self[name] = (text(content, file), options, words)


def text(content: str | bytes, name: str = "a.csv") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return make
