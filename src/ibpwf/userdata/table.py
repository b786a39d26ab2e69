"""Tables: which column is the label, what each of the others holds, and the numbers a model gets of them."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ibpwf.errors import DataError, InputError
from ibpwf.userdata.examples import Examples, Floats, Origins
from ibpwf.userdata.labels import clean_label, clean_labels
from ibpwf.userdata.layout import Column, Layout
from ibpwf.userdata.numbers import NotANumber, Parser, has_decimal_comma, is_number
from ibpwf.userdata.opening import check_room, listed, quoted, shown
from ibpwf.userdata.request import Request

LABEL_NAMES = ("label", "class", "target", "y")
"""Columns taken for the label if none is named, in any case."""

MOST_CATEGORIES = 100
"""More different texts in one column are names of rows, not categories."""

_TRUTH = {"true": 1.0, "false": 0.0}
_DIGITS = {"1": 1.0, "1.0": 1.0, "0": 0.0, "0.0": 0.0}
_ABSENT = ("nan", "-nan", "+nan", "null")


@dataclass(frozen=True)
class Cells:
    """One column as the file has it: numbers, or text still to be understood."""

    name: str
    values: Floats | list[str]
    boolean: bool = False


class Table(Protocol):
    """A file that has rows and named columns."""

    path: Path
    names: list[str]

    @property
    def headless(self) -> bool: ...

    def read(self, texts: Collection[str], leave_out: Collection[str]) -> tuple[list[Cells], Origins]:
        """The columns that are not left out, in their order; those in `texts` as text."""
        ...


def read_table(table: Table, request: Request) -> Examples:
    """The examples in a table: a row each, in the order of the file."""
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
    wanted = label is not None and request.wants_labels
    leave_out = {*ignored} if wanted or label is None else {*ignored, label}
    cells, origins = table.read({*texts, label} if wanted and label else texts, leave_out)
    by_name = {column.name: column for column in cells}
    y = _labels(by_name.pop(label), origins, request) if wanted and label else None
    if like is None:
        columns = tuple(_column(by_name[name], origins, name in request.categories) for name in features)
        shape = (sum(len(column.feature_names) for column in columns),)
        layout = Layout("table", shape, columns, label, tuple(name for name in table.names if name in ignored))
    else:
        layout = like
    check_room(request.path, (len(origins), *layout.shape))
    x = np.zeros((len(origins), *layout.shape), dtype=np.float32)
    place = 0
    for column in layout.columns:
        width = len(column.feature_names)
        _encode(x[:, place : place + width], column, by_name[column.name], origins, request)
        place += width
    return Examples(str(request.path), x, y, layout, origins)


# ------------------------------------------------------------------------------------------- the columns


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


# ---------------------------------------------------------------------------------------------- the cells


def _fault(origins: Origins, row: int, column: str, sentence: str) -> DataError:
    return DataError(f"{origins[row]}, column {quoted(column)}: {sentence}.")


def _column(cells: Cells, origins: Origins, as_category: bool) -> Column:
    """What a column of the first file holds, which later files must hold too."""
    if not isinstance(cells.values, list):
        return Column(cells.name, "boolean" if cells.boolean else "number")
    row = cells.values.index
    meanings = {word: clean_label(word) for word in dict.fromkeys(cells.values)}
    for word, meaning in meanings.items():
        if not meaning:
            raise _fault(origins, row(word), cells.name, "the cell is blank; fill it in or remove the row")
    if not as_category:
        if all(meaning.lower() in _TRUTH for meaning in meanings.values()):
            return Column(cells.name, "boolean")
        if all(map(is_number, meanings.values())):
            return Column(cells.name, "number")
        for word, meaning in meanings.items():
            if has_decimal_comma(meaning):
                sentence = f"{quoted(meaning)} has a decimal comma; write decimal points"
                raise _fault(origins, row(word), cells.name, sentence)
            if meaning.lower() in _ABSENT:
                sentence = f"{quoted(meaning)} stands for a missing value; fill it in or remove the row"
                raise _fault(origins, row(word), cells.name, sentence)
            if is_number(meaning):
                other = next(text for text in meanings.values() if not is_number(text))
                raise _fault(
                    origins,
                    row(word),
                    cells.name,
                    f"{quoted(meaning)} is a number among text such as {quoted(other)}; correct it, or name the "
                    "column in the option categories if it holds categories",
                )
    categories = sorted(set(meanings.values()))
    if len(categories) > MOST_CATEGORIES:
        raise DataError(
            f"{shown(origins.files[0])}: column {quoted(cells.name)} holds {len(categories):,} different texts "
            f"such as {quoted(categories[0])}, more than {MOST_CATEGORIES}, so it looks like an identifier; name it "
            "in "
            "the option ignore to leave it out, or write it as numbers."
        )
    return Column(cells.name, "category", tuple(categories))


def _encode(into: npt.NDArray[np.float32], column: Column, cells: Cells, origins: Origins, request: Request) -> None:
    """Writes a column's features, after checking that it holds what its column should."""
    if column.kind == "category":
        _encode_categories(into, column, cells, origins, request)
    elif column.kind == "boolean":
        into[:, 0] = _truths(column, cells, origins)
    else:
        values = cells.values
        if isinstance(values, list):
            try:
                values = Parser().parse(values)
            except NotANumber as fault:
                raise _fault(origins, fault.index, column.name, f"{fault.why}; {fault.remedy}") from None
        into[:, 0] = values


def _truths(column: Column, cells: Cells, origins: Origins) -> Floats:
    if not isinstance(cells.values, list):
        wrong = ~np.isin(cells.values, (0.0, 1.0))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            sentence = f"{float(cells.values[row]):g} is neither true nor false, as that column was; correct it"
            raise _fault(origins, row, column.name, sentence)
        return cells.values
    truths = np.empty(len(cells.values), dtype=np.float32)
    for row, word in enumerate(cells.values):
        text = word.strip().lower()
        truth = _TRUTH.get(text, _DIGITS.get(text))
        if truth is None:
            why = f"{quoted(word)} is neither true nor false, as that column was" if text else "the cell is blank"
            raise _fault(origins, row, column.name, f"{why}; correct it or remove the row")
        truths[row] = truth
    return truths


def _encode_categories(
    into: npt.NDArray[np.float32], column: Column, cells: Cells, origins: Origins, request: Request
) -> None:
    assert isinstance(cells.values, list)  # it was asked for as text
    places = {category: place for place, category in enumerate(column.categories)}
    known: dict[str, int] = {}
    for row, word in enumerate(cells.values):
        place = known.get(word)
        if place is None:
            text = clean_label(word)
            if not text:
                raise _fault(origins, row, column.name, "the cell is blank; fill it in or remove the row")
            place = places.get(text, -1)
            if place < 0 and request.unknown == "error":
                raise _fault(
                    origins,
                    row,
                    column.name,
                    f"{quoted(text)} is not among the categories of earlier files ({listed(column.categories)}); "
                    "correct it, or give the option unknown 'zeros' to let it stand for none of them",
                )
            known[word] = place
        if place >= 0:
            into[row, place] = 1.0
