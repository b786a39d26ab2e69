"""Tables: which column is the label, what each of the others holds, and the numbers a model gets of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ibpwf.data.columns import Cells, column_of, encode, read_together
from ibpwf.data.examples import Examples, Floats, Origins
from ibpwf.data.layout import Column, Layout
from ibpwf.data.opening import check_room, listed, quoted, shown
from ibpwf.data.options import ReadOptions
from ibpwf.data.texts import ENCODER, encode_texts, text_column
from ibpwf.errors import DataError, InputError

LABEL_NAMES = ("label", "class", "target", "y")
"""Columns taken for the label if none is named, in any case."""


class Table(Protocol):
    """A file that has rows and named columns."""

    path: Path
    names: list[str]

    @property
    def headless(self) -> bool: ...

    def parts(self, wanted: Sequence[int], rows: int | None = None) -> Iterator[Any]:
        """The columns with these numbers as tables of pyarrow's, some rows at a time; about `rows` if it can."""
        ...

    def origins(self, rows: range) -> Origins:
        """Where the rows with these numbers, from 0, come from."""
        ...


class TableFile(Table, Protocol):
    """A table by itself."""

    @property
    def bytes(self) -> int:
        """About what its rows take in memory, without reading them."""


@dataclass(frozen=True)
class Plan:
    """Which columns of a file are there, and which of them are read: the features, then the label if it is wanted."""

    label: str | None
    ignored: set[str]
    features: list[str]
    read: list[str]


def plan_of(table: Table, options: ReadOptions) -> Plan:
    options.expect("table", table.path)
    _check_names(table, options)
    file, like = shown(table.path), options.like
    ignored = {*options.ignore, *(like.ignored if like else ())}
    for name in options.ignore:
        if name not in table.names and like is None:
            raise _no_column(file, "to ignore", name, table.names)
    label = _label_column(file, [name for name in table.names if name not in ignored], options)
    features = [name for name in table.names if name != label and name not in ignored]
    if like is not None:
        _check_columns(file, features, like, options)
    for name, what in [
        *((name, "with categories") for name in options.categories),
        *((name, "with texts") for name in options.text),
    ]:
        if name not in features:
            raise _no_column(file, what, name, features)
    if both := {*options.categories} & {*options.text}:
        say = options.naming
        raise InputError(f"{say('categories')} and {say('text')} both name {listed(sorted(both))}; choose one.")
    if options.encoder is not None and like is None and not options.text:
        raise InputError(f"{options.naming('encoder')} was given without {options.naming('text')}; name the column.")
    if not features:
        raise DataError(f"{file} has no column besides its label; add the features to learn from.")
    return Plan(label, ignored, features, [*features, label] if label and options.wants_labels else features)


def parts_of(table: Table, plan: Plan, rows: int | None = None) -> Iterator[Any]:
    places = {name: place for place, name in enumerate(table.names)}
    return table.parts([places[name] for name in plan.read], rows)


def _counted(table: Table, plan: Plan) -> Iterator[Any]:
    """All rows, as long as they are not too many for memory."""
    rows = 0
    for part in parts_of(table, plan):
        rows += part.num_rows
        check_room(table.path, (rows, len(plan.features)))
        yield part


def read_table(table: Table, options: ReadOptions) -> Examples:
    """The examples in a table: a row each, in the order of the file."""
    import pyarrow

    plan = plan_of(table, options)
    whole = pyarrow.concat_tables(_counted(table, plan))
    cells = cells_of(table, whole, 0, plan, options)
    layout = options.like
    if layout is None:
        columns = tuple(
            text_column(cells[name], options.encoder or ENCODER)
            if name in options.text
            else column_of(cells[name], name in options.categories)
            for name in plan.features
        )
        layout = new_layout(table, columns, plan, options)
    return _examples(table, cells, layout, plan, options)


def new_layout(table: Table, columns: tuple[Column, ...], plan: Plan, options: ReadOptions) -> Layout:
    """The layout of a first file, whose means are still to be found."""
    return Layout(
        "table",
        (sum(len(column.feature_names) for column in columns),),
        columns,
        plan.label,
        tuple(name for name in table.names if name in plan.ignored),
        missing=options.missing or "error",
        unknown=options.unknown or "error",
    )


def table_batches(table: Table, options: ReadOptions, rows: int) -> Iterator[Examples]:
    """The same, `rows` examples at a time, of a file that is like an earlier one."""
    import pyarrow

    assert options.like is not None
    plan = plan_of(table, options)
    waiting, start = None, 0
    for part in parts_of(table, plan, rows):
        waiting = part if waiting is None else pyarrow.concat_tables([waiting, part])
        while waiting.num_rows >= rows:
            cells = cells_of(table, waiting.slice(0, rows), start, plan, options)
            yield _examples(table, cells, options.like, plan, options)
            waiting, start = waiting.slice(rows), start + rows
    if waiting is not None and waiting.num_rows:
        yield _examples(table, cells_of(table, waiting, start, plan, options), options.like, plan, options)


def cells_of(table: Table, values: Any, start: int, plan: Plan, options: ReadOptions) -> dict[str, Cells]:
    """The columns that were read, by their names; `start` is the number of the first row."""
    origins = table.origins(range(start, start + values.num_rows))
    columns = zip(plan.read, values.columns, strict=True)
    cells = {name: Cells(name, column, origins, options) for name, column in columns}
    if values.num_rows < len(cells):  # so wide that what is done once for each column would take longest
        read_together([cells[name] for name in plan.features if name not in (*options.categories, *options.text)])
    return cells


def _examples(table: Table, cells: dict[str, Cells], layout: Layout, plan: Plan, options: ReadOptions) -> Examples:
    """What the columns hold, as numbers; the means of a first file are added to its layout."""
    path, origins = table.path, cells[plan.read[0]].origins
    y = cells[plan.label].labels() if plan.label in cells else None
    check_room(path, (len(origins), *layout.shape))
    x = np.zeros((len(origins), *layout.shape), dtype=np.float32)
    place = 0
    for column in layout.columns:
        width = len(column.feature_names)
        if column.name in cells and column.kind == "text":
            encode_texts(x[:, place : place + width], column, cells[column.name])
        elif column.name in cells:
            encode(x[:, place : place + width], column, cells[column.name])
        else:
            x[:, place : place + width] = np.nan  # asked to be left out of a later file
        place += width
    if options.like is None:
        layout = replace(layout, means=_means(x, layout, path, options))
    absent = np.isnan(x)
    if absent.any():
        x[absent] = np.broadcast_to(np.asarray(layout.means, dtype=np.float32), x.shape)[absent]
    return Examples(str(path), x, y, layout, origins)


def _means(x: Floats, layout: Layout, path: Path, options: ReadOptions) -> tuple[float, ...]:
    """The mean of every feature, of the rows that have it."""
    there = ~np.isnan(x)
    return means_of(np.where(there, x, 0).sum(0, dtype=np.float64), there.sum(0), layout, path, options)


def means_of(sums: Any, counts: Any, layout: Layout, path: Path, options: ReadOptions) -> tuple[float, ...]:
    """The same, of sums and of how many rows have each feature."""
    if not counts.all():
        names = layout.feature_names or ()
        name = names[int(np.flatnonzero(counts == 0)[0])]
        raise DataError(
            f"{shown(path)}: column {quoted(name)} has no value at all; name it in {options.naming('ignore')}."
        )
    means: list[float] = (sums / counts).astype(np.float32).tolist()
    return tuple(means)


def _check_names(table: Table, options: ReadOptions) -> None:
    file = shown(table.path)
    first: dict[str, int] = {}
    for place, name in enumerate(table.names):
        if not name:
            hint = " (pandas writes its index so: use to_csv(index=False))" if place == 0 else ""
            raise DataError(f"{file}: column {place + 1} has no name{hint}; name it or remove it.")
        if first.setdefault(name, place) != place:
            raise DataError(
                f"{file}: columns {first[name] + 1} and {place + 1} are both called {quoted(name)}; rename "
                "one of them."
            )
    known = {column.name for column in options.like.columns} if options.like else set()
    if table.headless and not known.intersection(table.names):
        raise DataError(
            f"{file}, line 1 holds only numbers ({listed(table.names, 3)}); add a header line with the "
            "columns' names."
        )


def _label_column(file: str, names: Sequence[str], options: ReadOptions) -> str | None:
    """The column with the labels: as asked, as in earlier files, or the one that is called so."""
    like, say_which = options.like, options.naming("label")
    if options.label is not None:
        if options.label not in names and options.needs_labels:
            raise _no_column(file, "with the labels", options.label, names)
        return options.label if options.label in names else None
    if like is not None:
        if like.label in names:
            return like.label
        if options.needs_labels and like.label is not None:
            raise InputError(
                f"{file} has no column {quoted(like.label)}, which held the labels of earlier files; add it, "
                f"or say which column holds them with {say_which}."
            )
        if not options.needs_labels:
            return None
    found = [name for name in names if name.lower() in LABEL_NAMES]
    if len(found) > 1:
        raise InputError(
            f"{file}: columns {listed(found)} could each hold the labels; say which one with {say_which}."
        )
    if not found and options.needs_labels:
        raise InputError(
            f"{file} has no column called {', '.join(LABEL_NAMES[:-1])} or {LABEL_NAMES[-1]}; say which one "
            f"holds the labels with {say_which}, such as {quoted(names[-1])}."
        )
    return found[0] if found else None


def _no_column(file: str, what: str, name: str, names: Sequence[str]) -> InputError:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" did you mean {quoted(near[0])}?" if near else f" it has {listed(names)}."
    return InputError(f"{file} has no column {quoted(name)} {what};{hint}")


def _check_columns(file: str, features: Sequence[str], like: Layout, options: ReadOptions) -> None:
    there = {*features, *options.ignore}  # one that is left out takes the first file's mean
    expected = {column.name for column in like.columns}
    missing = [column.name for column in like.columns if column.name not in there]
    extra = [name for name in features if name not in expected]
    faults = []
    if missing:
        faults.append(f"lacks {_columns(missing)}, which earlier files had")
    if extra:
        faults.append(f"has {_columns(extra)}, which earlier files had not")
    if faults:
        them = "it" if len(missing) + len(extra) == 1 else "them"
        remedy = (
            "rename or add columns" if missing else f"remove {them}, or name {them} in {options.naming('ignore')}"
        )
        raise InputError(f"{file} {' and '.join(faults)}; {remedy}.")


def _columns(names: Sequence[str]) -> str:
    return f"column{'s' * (len(names) > 1)} {listed(names)}"
