"""Options that `ibpwf learn`, `predict` and `evaluate` share, and how they are read."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ibpwf.errors import IBPWFError, InputError

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The model folder.")]
Data = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="A .csv, .tsv, .parquet, .npz or IDX file, an image, or a folder of images (with a folder per class).",
    ),
]
Label = Annotated[
    str | None,
    typer.Option(
        "--label",
        metavar="COLUMN",
        help="The column that holds the labels.",
        show_default="as before, or the one called label, class, target or y",
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="COLUMN", help="A column to leave out, such as an identifier. Repeatable."),
]
Unknown = Annotated[
    bool,
    typer.Option("--unknown-as-zeros", help="Let a category never seen before stand for none of the known ones."),
]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu or cuda.")]
Task = Annotated[
    str | None,
    typer.Option("--task", metavar="NAME", help="The task of all rows.", show_default="inferred for each row"),
]


class OnMissing(StrEnum):
    """What to do with a missing value in a table."""

    error = "error"
    mean = "mean"


Missing = Annotated[
    OnMissing | None,
    typer.Option(
        "--missing",
        help="A missing value in a table is an error, or takes the mean of its column in the first file.",
        show_default="as for the first file: error",
    ),
]


_OPTION = re.compile(
    r"the option (?:(label|ignore|categories|task|channels \d)\b|(missing|unknown) '(\w+)'|size \((\d+), (\d+)\))"
)


def _spelled(found: re.Match[str]) -> str:
    plain, name, value, height, width = found.groups()
    if height:
        return f"--size {height}x{width}"
    if name:
        return "--unknown-as-zeros" if name == "unknown" else f"--{name} {value}"
    return f"--{plain}"


@contextlib.contextmanager
def options_named() -> Iterator[None]:
    """What the library calls 'the option label' is `--label` here, and what it asks to leave out is an option."""
    try:
        yield
    except IBPWFError as error:
        text = _OPTION.sub(_spelled, str(error))
        text = text.replace("; leave it out.", "; leave that option out.")
        if text == str(error):
            raise
        raise type(error)(text) from error


def pixels(text: str | None) -> tuple[int, int] | None:
    """`32x24` as height and width."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,6})[x×,](\d{1,6})", text.replace(" ", ""))
    if found is None:
        raise InputError(f"--size is '{text}'; give height and width in pixels, such as 32x32.")
    return int(found[1]), int(found[2])


def task_name(data: Path) -> str:
    """A task's name from its file's: `photos/`, `spring.csv` and `spring.tar.csv` give photos, spring, spring.tar."""
    plain = Path(data).absolute()
    name = plain.name if plain.is_dir() else plain.stem
    return name or plain.name
