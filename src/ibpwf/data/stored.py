"""A user's files as rows in a scratch file, read in one pass: what `read_examples` gives, without needing the memory.

A first table is read once more before that, where its columns are text, to find out what they hold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ibpwf.data.examples import Examples, Origins, check_counts, in_order
from ibpwf.data.labels import check_alike
from ibpwf.data.layout import Layout
from ibpwf.data.naming import PARQUET, Paths, table_files
from ibpwf.data.opening import shown, unreadable
from ibpwf.data.options import ReadOptions
from ibpwf.data.reading import is_image_folder, only_path, read_examples, table_in
from ibpwf.data.scanning import NUMBERS_AT_ONCE, ROWS_AT_ONCE, WordOrigins, first_layout
from ibpwf.data.table import Table, means_of, table_batches
from ibpwf.errors import DataError, InputError
from ibpwf.storage.scratch import Array, ScratchFile

LARGE = 512_000_000
"""Bytes of rows, four for each number, above which a file is not learnt from memory unless that is asked for."""


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Examples in a scratch file. `codes` has the label of each, as a place in `names`; `chosen` are the rows of the
    file that these are, None for all of them."""

    path: str
    x: ScratchFile
    codes: NDArray[np.int32]
    names: Sequence[Any]
    layout: Layout | None = None
    chosen: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def shape(self) -> tuple[int, ...]:
        """As rows of numbers: an image is a row of its pixels."""
        return (len(self), int(np.prod(self.x.example)))

    @property
    def size(self) -> int:
        return len(self) * self.shape[1]

    @property
    def rows_at_once(self) -> int:
        return self.x.rows_at_once

    @property
    def image(self) -> tuple[int, int, int] | None:
        """Channels, height and width, where they are images."""
        example = self.x.example
        return (example[0], example[1], example[2]) if len(example) == 3 else None

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> Array:
        where = rows if self.chosen is None else self.chosen[rows]
        return self.x[where].reshape(-1, self.shape[1])

    def _parts(self) -> Iterator[Array]:
        for start in range(0, len(self), self.rows_at_once):
            yield self[start : start + self.rows_at_once]

    def min(self) -> float:
        return min(float(part.min()) for part in self._parts())

    def max(self) -> float:
        return max(float(part.max()) for part in self._parts())

    def rows(self, chosen: NDArray[np.int64]) -> StoredRows:
        """Those with these numbers."""
        places = chosen if self.chosen is None else self.chosen[chosen]
        return replace(self, codes=self.codes[chosen], chosen=places)

    def sample(self, most: int, seed: int = 0) -> StoredRows:
        """No more than so many of them, drawn at random, in their order."""
        if len(self) <= most:
            return self
        return self.rows(np.sort(np.random.default_rng(seed).choice(len(self), most, replace=False)))

    def by_class(self) -> Iterator[tuple[Any, NDArray[np.intp]]]:
        """Every label, sorted, with the numbers of its rows."""
        for name in sorted(self.names):
            yield name, np.flatnonzero(self.codes == self.names.index(name))

    @property
    def classes(self) -> tuple[str, ...]:
        """As `Examples.classes`."""
        return tuple(in_order(map(str, self.names)))

    def labels(self, rows: slice | NDArray[np.int64] = slice(None)) -> list[Any]:
        return [self.names[code] for code in self.codes[rows].tolist()]

    def batches(self, rows: int) -> Iterator[Examples]:
        """In their order, `rows` of them at a time."""
        assert self.layout is not None
        for start in range(0, len(self), rows):
            here = slice(start, start + rows)
            x = self[here].reshape(-1, *self.x.example)
            numbers = range(start + 1, start + len(x) + 1)
            yield Examples(self.path, x, self.labels(here), self.layout, Origins([self.path], "row", numbers))

    def in_memory(self) -> Examples:
        return next(self.batches(max(len(self), 1)))

    def digest(self) -> str:
        """That of the same `Examples` in memory."""
        found = hashlib.sha256(f"[{json.dumps([len(self), *self.x.example])}, [".encode())
        for start in range(0, len(self), self.rows_at_once):
            words = ", ".join(map(json.dumps, self.labels(slice(start, start + self.rows_at_once))))
            found.update((", " * (start > 0) + words).encode())
        found.update(b"]]")
        for part in self._parts():
            found.update(np.ascontiguousarray(part).data)
        return found.hexdigest()

    def check_learnable(self) -> None:
        """As `Examples.check_learnable`."""
        counts = dict(zip(self.names, np.bincount(self.codes, minlength=len(self.names)).tolist(), strict=True))
        column = None if self.layout is None else self.layout.label
        check_counts(counts, self.path, column, lambda _: shown(self.path))


class Gathering:
    """Rows on their way into a scratch file: labels numbered as they come, sums for the means."""

    def __init__(self, *, as_bytes: bool = False) -> None:
        self.as_bytes = as_bytes
        self.x: ScratchFile | None = None
        self.codes: list[NDArray[np.int32]] = []
        self.book: dict[Any, int] = {}
        self.places: list[tuple[Origins, int]] = []
        self.sums: Any = 0.0
        self.counts: Any = 0

    def add(self, x: Array, labels: Sequence[Any]) -> None:
        if self.x is None:
            self.x = ScratchFile(x.shape[1:], as_bytes=self.as_bytes)
        self.x.append(x)
        book = self.book
        self.codes.append(np.fromiter((book.setdefault(one, len(book)) for one in labels), np.int32, len(labels)))

    def add_examples(self, batch: Examples) -> None:
        assert batch.y is not None
        known = len(self.book)
        self.add(batch.x, batch.y)
        new = list(self.book)[known:]
        self.places += [(batch.origins, batch.y.index(label)) for label in new]
        if batch.layout.kind == "table":
            there = ~np.isnan(batch.x)
            self.sums = self.sums + np.where(there, batch.x, 0).sum(0, dtype=np.float64)
            self.counts = self.counts + there.sum(0)

    def check_labels(self) -> None:
        """Refuse two that only a typing slip tells apart."""
        check_alike(dict(zip(self.book, range(len(self.book)), strict=True)), WordOrigins((), places=self.places))

    def fill_in(self, means: tuple[float, ...]) -> None:
        """Put means in the place of missing numbers."""
        assert self.x is not None
        if np.all(self.counts == len(self.x)):
            return
        filling = np.asarray(means, dtype=np.float32)
        for start in range(0, len(self.x), self.x.rows_at_once):
            part = self.x[start : start + self.x.rows_at_once]
            absent = np.isnan(part)
            part[absent] = np.broadcast_to(filling, part.shape)[absent]
            self.x.put(start, part)

    def finish(self, path: str, layout: Layout | None) -> StoredRows:
        assert self.x is not None
        return StoredRows(path, self.x, np.concatenate(self.codes), list(self.book), layout)


def read_stored(path: Paths, options: ReadOptions | None = None) -> StoredRows:
    """The same examples as `read_examples` gives, in a scratch file. They must have labels."""
    how = replace(options or ReadOptions(), with_labels=True)
    shards = table_files(path)
    place = only_path(shards or path)
    try:
        if shards is not None:
            return _stored_table([_table(one, how) for one in shards], place if len(shards) == 1 else path, how)
        if is_image_folder(place):
            from ibpwf.data.image_folder import images_in_batches

            return _stored_images(place, images_in_batches(place, how, _images_at_once))
        return _stored_images(place, read_examples(place, how).batches(ROWS_AT_ONCE))
    except OSError as error:
        raise unreadable(place, error) from error


def _table(path: Path, options: ReadOptions) -> Table:
    found = table_in(path, options)
    assert found is not None
    return found


def _stored_table(tables: list[Table], path: Paths, options: ReadOptions) -> StoredRows:
    layout = options.like or first_layout(tables, options)
    like, rows = replace(options, like=layout), Gathering()
    at_once = max(64, min(ROWS_AT_ONCE, NUMBERS_AT_ONCE // layout.shape[0]))
    for table in tables:
        for batch in table_batches(table, like, at_once):
            rows.add_examples(batch)
            if options.progress is not None and rows.x is not None:
                options.progress("reading", len(rows.x), None)
    rows.check_labels()
    if options.like is None:
        layout = replace(layout, means=means_of(rows.sums, rows.counts, layout, tables[0].path, options))
        rows.fill_in(layout.means)
    named = path if not isinstance(path, (list, tuple)) else tables[0].path.parent
    return rows.finish(str(named), layout)


def _images_at_once(shape: tuple[int, ...]) -> int:
    return max(1, NUMBERS_AT_ONCE // int(np.prod(shape)))


def _stored_images(path: Path, batches: Iterable[Examples]) -> StoredRows:
    rows, layout = None, None
    for batch in batches:
        rows = rows or Gathering(as_bytes=batch.layout.pixels == "bytes")
        rows.add_examples(batch)
        layout = batch.layout
    if rows is None:
        raise DataError(f"{shown(path)} has no examples; give at least one.")
    return rows.finish(str(path), layout)


def is_large(path: Paths, options: ReadOptions) -> bool:
    """Whether the rows take so many bytes that they are better not held in memory, as far as can be told without
    reading them: by what a Parquet file says of itself, by the size of a text file, by the first of some images."""
    shards = table_files(path)
    if shards is None:
        place = only_path(path)
        if not is_image_folder(place):
            return False
        from ibpwf.data.image_folder import bytes_of_images

        try:
            return bytes_of_images(place, options) > LARGE
        except OSError as error:
            raise unreadable(place, error) from error
    return sum(map(_bytes_of, shards)) > LARGE


def _bytes_of(path: Path) -> int:
    if path.suffix.lower() not in PARQUET:
        return path.stat().st_size
    from ibpwf.data.parquet_file import ParquetFile

    table = ParquetFile(path, str)
    return 4 * table.rows * len(table.names)


def numbered(rows: StoredRows) -> NDArray[np.int64]:
    """The label of every row as a whole number, where all of them are such."""
    try:
        numbers = [int(name) for name in rows.names]
    except ValueError:
        strange = in_order(map(str, rows.names))[-1]
        raise InputError(
            f"{shown(rows.path)} has the label {strange!r}, and a Learner takes whole numbers; number the classes, "
            "or use ContinualClassifier, which takes any labels."
        ) from None
    return np.array(numbers, dtype=np.int64)[rows.codes]
