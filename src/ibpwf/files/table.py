"""Tables: which column is the label, what each of the others holds, and the numbers a model gets of them."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np

from ibpwf.errors import DataError, InputError
from ibpwf.files.cells import Cells, column_of, encode
from ibpwf.files.examples import Examples, Floats, Origins
from ibpwf.files.labels import clean_labels
from ibpwf.files.layout import Layout
from ibpwf.files.opening import check_room, listed, quoted
from ibpwf.files.request import Request

LABEL_NAMES = ("label", "class", "target", "y")
"""Columns taken for the label if none is named, in any case."""


Part = tuple[list[Cells], Origins]
"""Some rows of a table, column by column, and where they came from."""


class Table(Protocol):
    """A file that has rows and named columns."""

    path: Path
    names: list[str]

    @property
    def headless(self) -> bool: ...

    def parts(
        self, texts: Collection[str], leave_out: Collection[str], missing: bool = False, rows: int | None = None
    ) -> Iterator[Part]:
        """The columns that are not left out, in their order, those in `texts` as text; some rows at a time, about
        `rows` where it says so. With `missing`, a missing number is NaN."""
        ...


@dataclass(frozen=True)
class _Plan:
    """Which columns of a file are read, and as what."""

    label: str | None
    features: list[str]
    texts: set[str]
    ignored: set[str]


def _plan(table: Table, request: Request) -> _Plan:
    request.expect("table")
    _check_names(table, request)
    like = request.like
    ignored = {*request.ignore, *(like.ignored if like else ())}
    for name in request.ignore:
        if name not in table.names and like is None:
            raise _no_column(request, "to ignore", name, table.names)
    label = _label_column([name for name in table.names if name not in ignored], request)
    features = [name for name in table.names if name != label and name not in ignored]
    if like is None:
        texts = set(request.categories)
        for name in request.categories:
            if name not in features:
                raise _no_column(request, "with categories", name, features)
    else:
        _check_columns(features, like, request)
        texts = {column.name for column in like.columns if column.kind != "number"}
    if not features:
        raise DataError(f"{request.file} has no column besides its label; add the features to learn from.")
    return _Plan(label, features, texts, ignored)


def _parts(table: Table, plan: _Plan, request: Request, rows: int | None = None) -> Iterator[Part]:
    texts, leave_out = set(plan.texts), set(plan.ignored)
    if plan.label is not None:
        (texts if request.wants_labels else leave_out).add(plan.label)
    return table.parts(texts, leave_out, request.fills_in, rows)


def read_table(table: Table, request: Request) -> Examples:
    """The examples in a table: a row each, in the order of the file."""
    plan = _plan(table, request)
    cells, origins = _joined(list(_parts(table, plan, request)))
    if request.like is not None:
        return _examples(cells, origins, request.like, plan, request)
    by_name = {column.name: column for column in cells}
    columns = tuple(
        column_of(by_name[name], origins, name in request.categories, request.fills_in) for name in plan.features
    )
    layout = Layout(
        "table",
        (sum(len(column.feature_names) for column in columns),),
        columns,
        plan.label,
        tuple(name for name in table.names if name in plan.ignored),
        missing=request.missing or "error",
    )
    return _examples(cells, origins, layout, plan, request)


def table_batches(table: Table, request: Request, rows: int) -> Iterator[Examples]:
    """The same, `rows` examples or more at a time, of a file that is like an earlier one."""
    assert request.like is not None
    plan = _plan(table, request)
    waiting: list[Part] = []
    for part in _parts(table, plan, request, rows):
        waiting.append(part)
        if sum(len(origins) for _, origins in waiting) >= rows:
            yield _examples(*_joined(waiting), request.like, plan, request)
            waiting = []
    if waiting:
        yield _examples(*_joined(waiting), request.like, plan, request)


def _joined(parts: Sequence[Part]) -> Part:
    """Several parts as one."""
    if len(parts) == 1:
        return parts[0]
    cells = []
    for columns in zip(*(cells for cells, _ in parts), strict=True):
        values = [column.values for column in columns]
        whole = list(chain.from_iterable(values)) if isinstance(values[0], list) else np.concatenate(values)
        cells.append(replace(columns[0], values=whole))
    first = parts[0][1]
    return cells, replace(first, numbers=[number for _, origins in parts for number in origins.numbers or ()])


def _examples(cells: list[Cells], origins: Origins, layout: Layout, plan: _Plan, request: Request) -> Examples:
    """What the columns hold, as numbers; the means of a first file are added to its layout."""
    by_name = {column.name: column for column in cells}
    wanted = plan.label is not None and request.wants_labels
    y = _labels(by_name[plan.label], origins, request) if wanted and plan.label else None
    check_room(request.path, (len(origins), *layout.shape))
    x = np.zeros((len(origins), *layout.shape), dtype=np.float32)
    place = 0
    for column in layout.columns:
        width = len(column.feature_names)
        encode(x[:, place : place + width], column, by_name[column.name], origins, request)
        place += width
    if request.like is None:
        layout = replace(layout, means=_means(x, layout, request))
    if request.fills_in:
        absent = np.isnan(x)
        x[absent] = np.broadcast_to(np.asarray(layout.means, dtype=np.float32), x.shape)[absent]
    return Examples(str(request.path), x, y, layout, origins)


def _means(x: Floats, layout: Layout, request: Request) -> tuple[float, ...]:
    """The mean of every feature, of the rows that have it."""
    there = ~np.isnan(x)
    counts = there.sum(0)
    if not counts.all():
        names = layout.feature_names or ()
        name = names[int(np.flatnonzero(counts == 0)[0])]
        raise DataError(f"{request.file}: column {quoted(name)} has no value at all; name it in the option ignore.")
    means: list[float] = (np.where(there, x, 0).sum(0, dtype=np.float64) / counts).astype(np.float32).tolist()
    return tuple(means)


def _check_names(table: Table, request: Request) -> None:
    first: dict[str, int] = {}
    for place, name in enumerate(table.names):
        if not name:
            hint = " (pandas writes its index so: use to_csv(index=False))" if place == 0 else ""
            raise DataError(f"{request.file}: column {place + 1} has no name{hint}; name it or remove it.")
        if first.setdefault(name, place) != place:
            raise DataError(
                f"{request.file}: columns {first[name] + 1} and {place + 1} are both called {quoted(name)}; rename "
                "one of them."
            )
    known = {column.name for column in request.like.columns} if request.like else set()
    if table.headless and not known.intersection(table.names):
        raise DataError(
            f"{request.file}, line 1 holds only numbers ({listed(table.names, 3)}); add a header line with the "
            "columns' names."
        )


def _label_column(names: Sequence[str], request: Request) -> str | None:
    """The column with the labels: as asked, as in earlier files, or the one that is called so."""
    like = request.like
    if request.label is not None:
        if request.label not in names and request.needs_labels:
            raise _no_column(request, "with the labels", request.label, names)
        return request.label if request.label in names else None
    if like is not None:
        if like.label in names:
            return like.label
        if request.needs_labels and like.label is not None:
            raise InputError(
                f"{request.file} has no column {quoted(like.label)}, which held the labels of earlier files; add it, "
                "or say which column holds them with the option label."
            )
        if not request.needs_labels:
            return None
    found = [name for name in names if name.lower() in LABEL_NAMES]
    if len(found) > 1:
        raise InputError(
            f"{request.file}: columns {listed(found)} could each hold the labels; say which one with the option "
            "label."
        )
    if not found and request.needs_labels:
        raise InputError(
            f"{request.file} has no column called {', '.join(LABEL_NAMES[:-1])} or {LABEL_NAMES[-1]}; say which one "
            f"holds the labels with the option label, such as {quoted(names[-1])}."
        )
    return found[0] if found else None


def _no_column(request: Request, what: str, name: str, names: Sequence[str]) -> InputError:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" did you mean {quoted(near[0])}?" if near else f" it has {listed(names)}."
    return InputError(f"{request.file} has no column {quoted(name)} {what};{hint}")


def _check_columns(features: Sequence[str], like: Layout, request: Request) -> None:
    there = set(features)
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
        remedy = "rename or add columns" if missing else f"remove {them}, or name {them} in the option ignore"
        raise InputError(f"{request.file} {' and '.join(faults)}; {remedy}.")


def _columns(names: Sequence[str]) -> str:
    return f"column{'s' * (len(names) > 1)} {listed(names)}"


def _labels(cells: Cells, origins: Origins, request: Request) -> list[str] | None:
    assert isinstance(cells.values, list)  # it was asked for as text
    if not request.needs_labels and not any(text.strip() for text in cells.values):
        return None  # a column that is there to be filled in
    return clean_labels(cells.values, origins, cells.name)
