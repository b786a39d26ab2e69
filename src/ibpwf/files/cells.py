"""What the cells of a column hold, checked against what the column should, and as numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ibpwf.errors import DataError
from ibpwf.files.examples import Floats, Origins
from ibpwf.files.labels import clean_label
from ibpwf.files.layout import Column
from ibpwf.files.numbers import FILL_IN, NotANumber, Parser, has_decimal_comma, is_number
from ibpwf.files.opening import listed, quoted, shown
from ibpwf.files.request import Request

MOST_CATEGORIES = 100
"""More different texts in one column are names of rows, not categories."""

_TRUTH = {"true": 1.0, "false": 0.0}
_DIGITS = {"1": 1.0, "1.0": 1.0, "0": 0.0, "0.0": 0.0}
_ABSENT = ("nan", "-nan", "+nan", "null")
_NOTHING = ("", *_ABSENT)
_MISSING = -2


@dataclass(frozen=True)
class Cells:
    """One column as the file has it: numbers, or text still to be understood."""

    name: str
    values: Floats | list[str]
    boolean: bool = False


def _fault(origins: Origins, row: int, column: str, sentence: str) -> DataError:
    return DataError(f"{origins[row]}, column {quoted(column)}: {sentence}.")


def column_of(cells: Cells, origins: Origins, as_category: bool, missing: bool) -> Column:
    """What a column of the first file holds, which later files must hold too."""
    if not isinstance(cells.values, list):
        return Column(cells.name, "boolean" if cells.boolean else "number")
    row = cells.values.index
    meanings = {word: clean_label(word) for word in dict.fromkeys(cells.values)}
    if missing:
        meanings = {word: meaning for word, meaning in meanings.items() if meaning.lower() not in _NOTHING}
    for word, meaning in meanings.items():
        if not meaning:
            raise _fault(origins, row(word), cells.name, f"the cell is blank; {FILL_IN}")
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
                sentence = f"{quoted(meaning)} stands for a missing value; {FILL_IN}"
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


def encode(into: npt.NDArray[np.float32], column: Column, cells: Cells, origins: Origins, request: Request) -> None:
    """Writes a column's features, after checking that it holds what its column should."""
    if column.kind == "category":
        _encode_categories(into, column, cells, origins, request)
    elif column.kind == "boolean":
        into[:, 0] = _truths(column, cells, origins, request.fills_in)
    else:
        values = cells.values
        if isinstance(values, list):
            try:
                values = Parser(request.fills_in).parse(values)
            except NotANumber as fault:
                raise _fault(origins, fault.index, column.name, f"{fault.why}; {fault.remedy}") from None
        into[:, 0] = values


def _truths(column: Column, cells: Cells, origins: Origins, missing: bool) -> Floats:
    if not isinstance(cells.values, list):
        wrong = ~np.isin(cells.values, (0.0, 1.0)) & ~(missing & np.isnan(cells.values))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            sentence = f"{float(cells.values[row]):g} is neither true nor false, as that column was; correct it"
            raise _fault(origins, row, column.name, sentence)
        return cells.values
    truths = np.empty(len(cells.values), dtype=np.float32)
    for row, word in enumerate(cells.values):
        text = word.strip().lower()
        truth = np.nan if missing and text in _NOTHING else _TRUTH.get(text, _DIGITS.get(text))
        if truth is None:
            if not text:
                raise _fault(origins, row, column.name, f"the cell is blank; {FILL_IN}")
            why = f"{quoted(word)} is neither true nor false, as that column was"
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
            absent = request.fills_in and text not in places and text.lower() in _NOTHING
            if not text and not absent:
                raise _fault(origins, row, column.name, f"the cell is blank; {FILL_IN}")
            place = _MISSING if absent else places.get(text, -1)
            if place == -1 and request.unknown == "error":
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
        elif place == _MISSING:
            into[row] = np.nan
