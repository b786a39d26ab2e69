"""What the columns of a table hold, checked against what they should, and as numbers.

Columns come from pyarrow, as text or typed. Whatever is said of text is said of each different word once.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ibpwf.data import dates
from ibpwf.data.examples import Floats, Origins
from ibpwf.data.labels import clean_label, clean_labels
from ibpwf.data.layout import Column
from ibpwf.data.number_texts import ABSENT, BLANKS, fault_of, is_number, plain_number
from ibpwf.data.opening import listed, quoted, shown
from ibpwf.data.options import ReadOptions
from ibpwf.errors import DataError
from ibpwf.limits import EXACT

MOST_CATEGORIES = 100
"""More different texts in one column are names of rows, not categories."""

NOTHING = ("", *ABSENT)
NO_NUMBER = (*NOTHING, "na", "n/a")  # what stands for a missing number, in any case
_TRUTH = {"true": 1.0, "false": 0.0}
_DIGITS = {"1": 1.0, "1.0": 1.0, "0": 0.0, "0.0": 0.0}
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
_LONG_DIGITS = re.compile(r"\s*[+-]?\d{16,}\s*")


@dataclass
class Cells:
    """One column of some rows: as pyarrow has it, and where the rows came from."""

    name: str
    values: Any
    origins: Origins
    options: ReadOptions

    def fault(self, row: int, sentence: str) -> DataError:
        return DataError(f"{self.origins[row]}, column {quoted(self.name)}: {sentence}.")

    @cached_property
    def is_text(self) -> bool:
        return str(self.values.type) in ("string", "large_string")

    @cached_property
    def _encoded(self) -> tuple[list[str], npt.NDArray[np.intp]]:
        chunks = self.values.dictionary_encode(null_encoding="encode").chunks
        codes = np.concatenate([chunk.indices.to_numpy() for chunk in chunks]).astype(np.intp)
        return [_text(value) for value in chunks[-1].dictionary.to_pylist()], codes

    @property
    def words(self) -> list[str]:
        """The different texts there are, by their first row; a missing value is a blank."""
        return self._encoded[0]

    @property
    def codes(self) -> npt.NDArray[np.intp]:
        """Which word each row has."""
        return self._encoded[1]

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """How many rows have each word."""
        return np.bincount(self.codes, minlength=len(self.words))

    def row_of(self, word: int) -> int:
        return int(np.argmax(self.codes == word))

    def labels(self) -> list[str] | None:
        """The column as labels; None for one that is there to be filled in."""
        if not self.options.needs_labels and not any(word.strip() for word in self.words):
            return None
        return clean_labels([self.words[code] for code in self.codes], self.origins, self.name)

    @cached_property
    def numbers(self) -> Floats | None:
        """The column as float32, missing values as NaN; None for text that is not all numbers."""
        missing = self.options.fills_in
        if self.is_text:
            wide = self._parsed(missing)
            if wide is None:
                return None
        else:
            if self.values.null_count and not missing:
                row = self.values.is_null().to_pylist().index(True)
                raise self.fault(row, f"the value is missing; {self.options.fill_in}")
            wide = self.values.cast("float64", safe=False).to_numpy()
        with np.errstate(over="ignore"):
            narrow = wide.astype(np.float32)
        odd = ~np.isfinite(narrow) | (np.abs(wide) >= EXACT)
        for row in np.flatnonzero(odd & ~(missing & np.isnan(wide))).tolist():
            self._check_value(row, float(wide[row]))
        return narrow

    def _parsed(self, missing: bool) -> npt.NDArray[np.float64] | None:
        import pyarrow
        import pyarrow.compute as compute

        texts = self.values.fill_null("") if self.values.null_count else self.values
        try:
            if not missing:
                return np.asarray(texts.cast("float64").to_numpy())
        except pyarrow.ArrowInvalid:
            pass  # blanks around a number, or no number at all
        texts = compute.utf8_trim(texts, BLANKS)
        if missing:
            absent = compute.is_in(compute.ascii_lower(texts), value_set=pyarrow.array(NO_NUMBER))
            texts = compute.if_else(absent, pyarrow.scalar(None, texts.type), texts)
        try:
            wide = np.asarray(texts.cast("float64").to_numpy())
        except pyarrow.ArrowInvalid:
            return None
        return wide if not missing or np.isnan(wide).sum() == texts.null_count else None

    def _check_value(self, row: int, wide: float) -> None:
        value = self.values[row].as_py()
        said = quoted(value.strip()) if self.is_text else str(value)
        fault = fault_of(
            said,
            wide,
            is_whole=bool(_LONG_DIGITS.fullmatch(str(value))) and not isinstance(value, float),
            fill_in=self.options.fill_in,
            leave_out=f"name the column in {self.options.naming('ignore')} to leave it out, or scale it",
        )
        if fault is not None:
            raise self.fault(row, fault)

    def check_present(self, row: int, meaning: str) -> None:
        """Rejects a cell that stands for a missing value; what it means has no blanks around it."""
        if not meaning:
            raise self.fault(row, f"the cell is blank; {self.options.fill_in}")
        if meaning.lower() in ABSENT:
            raise self.fault(row, f"{quoted(meaning)} stands for a missing value; {self.options.fill_in}")

    def not_a_number(self) -> DataError:
        """The first cell that is none, and why; there is one."""
        absent = NO_NUMBER if self.options.fills_in else ()
        meanings = [word.strip() for word in self.words]
        wrong = next(at for at, word in enumerate(meanings) if not is_number(word) and word.lower() not in absent)
        row, word = self.row_of(wrong), meanings[wrong]
        self.check_present(row, word)
        if _DECIMAL_COMMA.fullmatch(word):
            return self.fault(row, _comma(word))
        plain = plain_number(word)
        remedy = "correct it or remove the row" if plain is None else f"write {plain}"
        if self.options.like is None:
            remedy += f", or name the column in {self.options.naming('categories')} if it holds categories"
        return self.fault(row, f"{quoted(word)} is not a number, as others in that column are; {remedy}")


def read_together(columns: list[Cells]) -> None:
    """Reads text in many columns as numbers at once, if all of it is ordinary numbers."""
    import pyarrow

    if not columns or not all(cells.is_text for cells in columns):
        return
    try:
        wide = pyarrow.chunked_array([chunk for cells in columns for chunk in cells.values.chunks]).cast("float64")
    except pyarrow.ArrowInvalid:
        return
    numbers = wide.to_numpy().reshape(len(columns), -1)
    if (np.abs(numbers) < EXACT).all():
        for cells, row in zip(columns, numbers.astype(np.float32), strict=True):
            cells.__dict__["numbers"] = row


def _text(value: object) -> str:
    return "" if value is None or value != value else str(value)  # a missing number is not equal to itself


def column_of(cells: Cells, as_category: bool) -> Column:
    """What a column of the first file holds, which later files must hold too."""
    if not as_category:
        if not cells.is_text:
            return Column(cells.name, "boolean" if str(cells.values.type) == "bool" else "number")
        if cells.numbers is not None:
            return Column(cells.name, "number")
    meanings = [clean_label(word) for word in cells.words]
    missing = cells.options.fills_in
    filled = [at for at, meaning in enumerate(meanings) if not (missing and meaning.lower() in NOTHING)]
    if not as_category:
        if all(meanings[at].lower() in _TRUTH for at in filled):
            return Column(cells.name, "boolean")
        written = dates.order_of([meanings[at] for at in filled])
        if written is not None:
            return Column(cells.name, "date", order=written)
        _check_text(cells, meanings, filled)
    for at in filled:
        if not meanings[at]:
            raise cells.fault(cells.row_of(at), f"the cell is blank; {cells.options.fill_in}")
    categories = sorted({meanings[at] for at in filled})
    if not as_category:
        _report_numbers(cells, meanings, filled)
    if len(categories) > MOST_CATEGORIES:
        raise DataError(
            f"{shown(cells.origins.files[0])}: column {quoted(cells.name)} holds {len(categories):,} different texts "
            f"such as {quoted(categories[0])}, more than {MOST_CATEGORIES}, so it looks like an identifier; name it "
            f"in {cells.options.naming('ignore')} to leave it out, in {cells.options.naming('text')} if it holds "
            "texts to read, or write it as numbers."
        )
    return Column(cells.name, "category", tuple(categories))


def _comma(word: str) -> str:
    if _THOUSANDS.fullmatch(word):
        return f"{quoted(word)} has a comma, of decimals or thousands; write a decimal point, or no comma"
    return f"{quoted(word)} has a decimal comma; write decimal points"


def _check_text(cells: Cells, meanings: list[str], filled: list[int]) -> None:
    """Refuses a column of dates that nobody can read, or one that mixes words and numbers. It is meant as text if
    half of its cells or more are no numbers, and as dates if more than half are."""
    odd = dates.odd_one([meanings[at] for at in filled], cells.counts[filled].tolist())
    if odd is not None:
        at, order = filled[odd[0]], odd[1]
        cells.check_present(cells.row_of(at), meanings[at])
        or_categories = f", or name the column in {cells.options.naming('categories')} if it holds categories"
        raise cells.fault(cells.row_of(at), _no_date(meanings[at], order) + or_categories)
    if dates.are_dates([meanings[at] for at in filled]):
        raise cells.fault(
            cells.row_of(filled[0]),
            f"{quoted(meanings[filled[0]])} is a date, as all of that column are, and nothing tells how they are "
            f"written; write them year first (2026-01-31), or name the column in {cells.options.naming('ignore')} to "
            f"leave it out, or in {cells.options.naming('categories')}",
        )
    counts = cells.counts
    numeric = {at for at in filled if is_number(meanings[at])}
    cells_there = sum(counts[at] for at in filled if meanings[at])
    if 2 * sum(counts[at] for at in numeric) > cells_there:
        raise cells.not_a_number()
    for at in filled:
        meaning, row = meanings[at], cells.row_of(at)
        if _DECIMAL_COMMA.fullmatch(meaning):
            raise cells.fault(row, _comma(meaning))
        if meaning:
            cells.check_present(row, meaning)
        if at in numeric:
            other = next(meanings[word] for word in filled if meanings[word] and word not in numeric)
            raise cells.fault(
                row,
                f"{quoted(meaning)} is a number among text such as {quoted(other)}; correct it, or name the "
                f"column in {cells.options.naming('categories')} if it holds categories",
            )


def _report_numbers(cells: Cells, meanings: list[str], filled: list[int]) -> None:
    """Warns of a column that becomes categories though half of its cells or more are numbers to a person."""
    counts = cells.counts
    found = {at: plain for at in filled if (plain := plain_number(meanings[at])) is not None}
    numeric, there = (int(counts[list(some)].sum()) for some in (found, filled))
    if not found or 2 * numeric < there:
        return
    at, plain = next(iter(found.items()))
    say, where = cells.options.naming, cells.origins[cells.row_of(at)]
    warnings.warn(
        f"{where}, column {quoted(cells.name)}: {quoted(meanings[at])} looks like a number and is not read as one; "
        f"the column becomes categories ({numeric:,} of {there:,} cells are such). Write {plain} if it holds "
        f"numbers, or name it in {say('categories')} if it holds categories.",
        stacklevel=2,
    )


def encode(into: Floats, column: Column, cells: Cells) -> None:
    """Writes a column's features, after checking that it holds what its column should."""
    if column.kind == "category":
        _encode_categories(into, column, cells)
    elif column.kind == "date":
        _encode_dates(into, column, cells)
    elif column.kind == "boolean" and cells.is_text:
        into[:, 0] = _truths(cells)
    elif cells.numbers is None:
        raise cells.not_a_number()
    else:
        into[:, 0] = cells.numbers
        if column.kind == "boolean":
            wrong = ~np.isin(cells.numbers, (0.0, 1.0)) & ~np.isnan(cells.numbers)
            if wrong.any():
                row = int(np.argmax(wrong))
                said = f"{cells.numbers[row]:g} is neither true nor false, as that column was; correct it"
                raise cells.fault(row, said)


def _truths(cells: Cells) -> Floats:
    truths = np.empty(len(cells.words), dtype=np.float32)
    for at, word in enumerate(cells.words):
        text = word.strip().lower()
        truth = np.nan if cells.options.fills_in and text in NOTHING else _TRUTH.get(text, _DIGITS.get(text))
        if truth is None:
            blank = f"the cell is blank; {cells.options.fill_in}"
            why = f"{quoted(word)} is neither true nor false, as that column was; correct it or remove the row"
            raise cells.fault(cells.row_of(at), why if text else blank)
        truths[at] = truth
    return truths[cells.codes]


def _no_date(text: str, order: dates.Order) -> str:
    kind = f"a date, {order}" if order else "a time of day"
    return f"{quoted(text)} is not {kind}, as others in that column are; correct it"


def _encode_dates(into: Floats, column: Column, cells: Cells) -> None:
    options = cells.options
    features = np.full((len(cells.words), into.shape[1]), np.nan, dtype=np.float32)
    for at, word in enumerate(cells.words):
        text = clean_label(word)
        found = dates.features(text, column.order)
        if found is not None:
            features[at] = found
        elif not text and not options.fills_in:
            raise cells.fault(cells.row_of(at), f"the cell is blank; {options.fill_in}")
        elif not (options.fills_in and text.lower() in NOTHING):
            raise cells.fault(cells.row_of(at), _no_date(text, column.order))
    into[:] = features[cells.codes]


def _encode_categories(into: Floats, column: Column, cells: Cells) -> None:
    places = {category: place for place, category in enumerate(column.categories)}
    options = cells.options
    features = np.zeros((len(cells.words), into.shape[1]), dtype=np.float32)
    for at, word in enumerate(cells.words):
        text = clean_label(word)
        if text in places:
            features[at, places[text]] = 1.0
        elif options.fills_in and text.lower() in NOTHING:
            features[at] = np.nan
        elif not text:
            raise cells.fault(cells.row_of(at), f"the cell is blank; {options.fill_in}")
        elif not options.takes_unknown:
            raise cells.fault(
                cells.row_of(at),
                f"{quoted(text)} is not among the categories of earlier files ({listed(column.categories)}); "
                f"correct it, or give {options.naming('unknown', 'zeros')} to let it stand for none of them",
            )
    into[:] = features[cells.codes]
