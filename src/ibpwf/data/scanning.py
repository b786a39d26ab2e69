"""What the columns of a table hold that does not fit into memory: found in one pass, some rows at a time.

The rules are those of a table that is read whole. Of a column of text its different words are kept, as long as there
are few enough of them to be categories; a column whose numbers are too many for that can only be one of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ibpwf.data.columns import Cells, column_of
from ibpwf.data.examples import Floats, Origin, Origins
from ibpwf.data.layout import Column, Layout
from ibpwf.data.opening import listed, shown
from ibpwf.data.options import ReadOptions
from ibpwf.data.table import Plan, Table, cells_of, new_layout, parts_of, plan_of
from ibpwf.data.texts import ENCODER, text_column
from ibpwf.errors import InputError

MOST_WORDS = 2_000
"""Different texts of a column that are remembered."""

ROWS_AT_ONCE = 1 << 15
NUMBERS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class WordOrigins(Origins):
    """Where each word was seen first: the rows of a part of a file, and which of them."""

    places: Sequence[tuple[Origins, int]] = ()

    def __getitem__(self, index: int) -> Origin:
        rows, row = self.places[index]
        return rows[row]


@dataclass
class SeenCells(Cells):
    """The words of a column, as if each were a row that came so often."""

    often: dict[str, int] = field(default_factory=dict)

    @cached_property
    def is_text(self) -> bool:
        return True

    @cached_property
    def numbers(self) -> Floats | None:
        return None

    @cached_property
    def _encoded(self) -> tuple[list[str], npt.NDArray[np.intp]]:
        return list(self.often), np.arange(len(self.often))

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        return np.array(list(self.often.values()))


class SeenColumn:
    """What was seen of a column so far."""

    def __init__(self, name: str, options: ReadOptions) -> None:
        self.name, self.options = name, options
        self.as_category = name in options.categories
        self.found: Column | None = None  # once nothing that follows can change it
        self.numeric, self.countless = True, False
        self.often: dict[str, int] = {}
        self.places: list[tuple[Origins, int]] = []

    def add(self, cells: Cells) -> None:
        if self.found is None and self.name in self.options.text:
            self.found = text_column(cells, self.options.encoder or ENCODER)
        if self.found is None and not self.as_category and not cells.is_text:
            self.found = column_of(cells, False)
        if self.found is not None:
            return
        self.numeric = self.numeric and cells.numbers is not None and not self.as_category
        if self.countless:
            if not self.numeric:
                raise cells.not_a_number()
            return
        for at, (word, count) in enumerate(zip(cells.words, cells.counts.tolist(), strict=True)):
            if word not in self.often:
                self.places.append((cells.origins, cells.row_of(at)))
            self.often[word] = self.often.get(word, 0) + count
        self.countless = len(self.often) > MOST_WORDS
        if self.countless and not self.numeric:
            self.found = self.column()  # dates, or a column that has too many words and is named

    def column(self) -> Column:
        if self.found is not None:
            return self.found
        if self.numeric:
            return Column(self.name, "number")
        origins = WordOrigins(self.places[0][0].files, places=self.places)
        return column_of(SeenCells(self.name, None, origins, self.options, self.often), self.as_category)


def first_layout(tables: Sequence[Table], options: ReadOptions) -> Layout:
    """The layout of a first table, in as many files as it has; the means of its columns are not known yet."""
    plan = plan_of(tables[0], options)
    seen = {name: SeenColumn(name, options) for name in plan.features}
    for table in tables:
        here = plan_of(table, options)
        check_same_columns(tables[0], plan, table, here)
        start = 0
        for part in _until(parts_of(table, here, rows_of(plan)), seen):
            cells = cells_of(table, part, start, here, options)
            for name, column in seen.items():
                column.add(cells[name])
            start += part.num_rows
    layout = new_layout(tables[0], tuple(column.column() for column in seen.values()), plan, options)
    return replace(layout, means=(float("nan"),) * layout.shape[0])


def _until(parts: Iterator[Any], seen: dict[str, SeenColumn]) -> Iterator[Any]:
    """Parts as long as there is something left to find out: typed columns are known by the first."""
    for part in parts:
        yield part
        if all(column.found is not None for column in seen.values()):
            return


def rows_of(plan: Plan) -> int:
    """How many rows of so many columns are read together."""
    return max(64, min(ROWS_AT_ONCE, NUMBERS_AT_ONCE // len(plan.read)))


def check_same_columns(first: Table, plan: Plan, table: Table, here: Plan) -> None:
    """Refuse a shard that has other columns than the first; their order may differ."""
    lacks = [name for name in plan.read if name not in here.read]
    extra = [name for name in here.read if name not in plan.read]
    if lacks or extra:
        faults = [f"lacks {listed(lacks)}"] if lacks else []
        faults += [f"has {listed(extra)}"] if extra else []
        raise InputError(
            f"{shown(table.path)} {' and '.join(faults)}, unlike {shown(first.path)}, though both are shards of one "
            "table; give all shards the same columns."
        )
