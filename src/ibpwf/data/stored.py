"""A user's files as rows in a scratch file, read in one pass: what `read_examples` gives, without needing the memory.

A first table is read once more before that, where its columns are text, to find out what they hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ibpwf.data.examples import CodedLabels, Examples, Origins
from ibpwf.data.labels import check_alike
from ibpwf.data.layout import Layout
from ibpwf.data.naming import Paths, table_files
from ibpwf.data.opening import shown, unreadable
from ibpwf.data.options import ReadOptions
from ibpwf.data.reading import is_image_folder, only_path, read_examples, table_in
from ibpwf.data.scanning import NUMBERS_AT_ONCE, ROWS_AT_ONCE, WordOrigins, first_layout
from ibpwf.data.table import TableFile, means_of, table_batches
from ibpwf.errors import DataError, InputError
from ibpwf.storage.scratch import ScratchFile

LARGE = 512_000_000
"""Bytes of rows, four for each number, above which a file is not learnt from memory unless that is asked for."""


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

    def add(self, x: Any, labels: Sequence[Any]) -> None:
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
            there = ~np.isnan(batch.inputs)
            self.sums = self.sums + np.where(there, batch.inputs, 0).sum(0, dtype=np.float64)
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

    def finish(self, path: str, layout: Layout) -> Examples:
        assert self.x is not None
        labels = CodedLabels(np.concatenate(self.codes), list(self.book))
        return Examples(path, self.x, labels, layout, Origins([path], "row", range(1, len(self.x) + 1)))


def read_stored(path: Paths, options: ReadOptions | None = None) -> Examples:
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


def _table(path: Path, options: ReadOptions) -> TableFile:
    found = table_in(path, options)
    assert found is not None
    return found


def _stored_table(tables: list[TableFile], path: Paths, options: ReadOptions) -> Examples:
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


def _stored_images(path: Path, batches: Iterable[Examples]) -> Examples:
    rows = None
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
    return sum(_table(path, options).bytes for path in shards) > LARGE


def numbered(rows: Examples) -> NDArray[np.int64]:
    """The label of every row as a whole number, where all of them are such."""
    assert isinstance(rows.y, CodedLabels)
    try:
        numbers = [int(name) for name in rows.y.names]
    except ValueError:
        raise InputError(
            f"{shown(rows.path)} has the label {rows.classes[-1]!r}, and a Learner takes whole numbers; number the "
            "classes, or use ContinualClassifier, which takes any labels."
        ) from None
    found: NDArray[np.int64] = np.array(numbers, dtype=np.int64)[rows.y.codes]
    return found
