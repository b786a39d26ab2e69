"""Tables that many have measured on, in the order in which their rows came: forest cover, electricity, weather."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ibpwf.downloads.cache import cache_folder
from ibpwf.downloads.fetch import fetch_into
from ibpwf.downloads.files import DataFile, Progress
from ibpwf.downloads.index import IndexedArchive
from ibpwf.downloads.sources import Source
from ibpwf.errors import unknown

SOURCE = IndexedArchive(
    "scikit-multiflow",
    "scikit-multiflow-0.4.1.tar.gz",
    sha256="ed4f791107cb7f789f0bb0620c50e743a4d397905146a4d06c62eb98607aa101",
)


@dataclass(frozen=True)
class Table:
    """A CSV file of numbers, the last column of which is the label."""

    name: str
    title: str
    file: DataFile
    sources: tuple[Source, ...] = (SOURCE,)
    archives: tuple[str, ...] = (SOURCE.archive,)
    refused: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[DataFile, ...]:
        return (self.file,)

    @property
    def place(self) -> str:
        """Of its folder in the cache."""
        return f"tables/{self.name}"

    @property
    def command(self) -> str:
        return f"ibpwf.lab.data.tables.load_table({self.name!r}, source=PATH)"


TABLES = {
    table.name: table
    for table in (
        Table(
            "covertype",
            "forest cover of 581,012 places, 7 kinds (Blackard and Dean 1999)",
            DataFile("covtype.csv", "e88c3c209db2e8982e07c43462d67c87", 75_170_064),
        ),
        Table(
            "electricity",
            "whether the price of electricity rose, 45,312 half hours (Harries 1999)",
            DataFile("elec.csv", "db404248f662b199eeedb50660a2251b", 3_200_575),
        ),
        Table(
            "weather",
            "whether it rained, 18,159 days (NOAA; Elwell and Polikar 2011)",
            DataFile("weather.csv", "923b0061d576dfb7ae5b3b0af113e227", 772_138),
        ),
    )
}


def load_table(
    name: str,
    *,
    source: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Rows and labels, in their order; fetched when first asked for, or taken from `source`."""
    import pyarrow.csv

    if name not in TABLES:
        raise unknown("table", name, TABLES)
    chosen = TABLES[name]
    folder: Path = fetch_into(cache_folder(data_dir), chosen, source=source, progress=progress)
    table = pyarrow.csv.read_csv(folder / chosen.file.name)
    columns = [column.to_numpy() for column in table.columns]
    return np.stack(columns[:-1], axis=1).astype(np.float32), columns[-1].astype(np.int64)
