"""Options that `ibpwf learn`, `predict` and `evaluate` share, and how they are read."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ibpwf.data.naming import check_data
from ibpwf.data.opening import check_there
from ibpwf.data.options import ReadOptions
from ibpwf.errors import InputError

HELP = ReadOptions.described()

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The model folder.")]
Data = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="A .csv, .tsv, .parquet, .npz or IDX file, an image, a folder of images (with a folder per class), or "
        "the shards of one table: a folder of them, or a pattern in quotes.",
    ),
]
Label = Annotated[
    str | None,
    typer.Option(
        "--label",
        metavar="COLUMN",
        help=HELP["label"],
        show_default="as before, or the one called label, class, target or y",
    ),
]
Ignore = Annotated[list[str] | None, typer.Option("--ignore", metavar="COLUMN", help=f"{HELP['ignore']} Repeatable.")]
Unknown = Annotated[bool, typer.Option("--unknown-as-zeros", help=HELP["unknown"])]
Size = Annotated[str | None, typer.Option("--size", metavar="HxW", help=HELP["size"], show_default=False)]
Channels = Annotated[int | None, typer.Option("--channels", help=HELP["channels"], show_default=False)]
Fast = Annotated[
    bool,
    typer.Option("--fast", help="A model with a router asks only the networks of likely tasks, each once."),
]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu or cuda.")]


class OnMissing(StrEnum):
    """What to do with a missing value in a table."""

    error = "error"
    mean = "mean"


Missing = Annotated[
    OnMissing | None, typer.Option("--missing", help=HELP["missing"], show_default="as for the first file: error")
]


def option(name: str, value: object = None) -> str:
    """What the library calls an argument, as it is written on the command line."""
    if name == "unknown":
        return "--unknown-as-zeros"
    flag = "--seed" if name == "random_state" else f"--{name.replace('_', '-')}"
    if value is None:
        return flag
    return f"{flag} {'x'.join(map(str, value)) if isinstance(value, tuple) else value}"


def read_options(*, unknown: bool, missing: OnMissing | None, size: str | None, **others: Any) -> ReadOptions:
    """The options as the library takes them; `others` are called the same there."""
    return ReadOptions(
        unknown="zeros" if unknown else None,
        missing=None if missing is None else missing.value,
        size=pixels(size),
        naming=option,
        **others,
    )


def pixels(text: str | None) -> tuple[int, int] | None:
    """`32x24` as height and width."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,6})[x×,](\d{1,6})", text.replace(" ", ""))
    if found is None:
        raise InputError(f"--size is '{text}'; give height and width in pixels, such as 32x32.")
    return int(found[1]), int(found[2])


def check_paths(model: Path, data: Path) -> None:
    """Says at once that a path was mistyped, before seconds are spent on importing torch."""
    check_there(model)
    check_data(data)


def task_name(data: Path) -> str:
    """A task's name from its file's: `photos/`, `spring.csv` and `spring.tar.csv` give photos, spring, spring.tar."""
    plain = Path(data).absolute()
    name = plain.name if plain.is_dir() else plain.stem
    return name or plain.name
