"""Numbers from text, strictly: what a person would call a number, and nothing that float() takes besides."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ibpwf.files.examples import Floats
from ibpwf.files.opening import quoted

EXACT = 1 << 53
"""Whole numbers from here on are not all kept by a double; so long a number is a name."""

_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_LONG_DIGITS = re.compile(r"\s*[+-]?\d{16,}\s*")
_KNOWN = 1 << 16
ABSENT = frozenset(("", "nan", "-nan", "+nan", "null", "na", "n/a"))
"""What stands for a missing number, in any case."""

FILL_IN = "fill it in or remove the row, or give the option missing 'mean'"
_SAMPLE = 4096


class NotANumber(ValueError):
    """Cell `index` of a column cannot be taken; `why` says so, and `remedy` what to do."""

    def __init__(self, index: int, why: str, remedy: str) -> None:
        super().__init__(why)
        self.index, self.why, self.remedy = index, why, remedy


def number(text: str) -> float:
    """The number a cell holds, or ValueError. `1_000` and digits of other scripts are not numbers here."""
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return float(text)


def is_number(text: str) -> bool:
    try:
        number(text)
    except ValueError:
        return False
    return True


def has_decimal_comma(text: str) -> bool:
    return bool(_DECIMAL_COMMA.fullmatch(text))


class Parser:
    """Turns columns of text into float32. Tables repeat themselves, so a number once read is remembered.

    With `missing`, what stands for a missing number becomes NaN."""

    def __init__(self, missing: bool = False) -> None:
        self._known = _Known()
        self.missing = missing

    def parse(self, cells: Sequence[str]) -> Floats:
        """The cells as numbers; the first that is none is a `NotANumber`."""
        if self.missing:
            cells = ["nan" if cell.strip().lower() in ABSENT else cell for cell in cells]
        # Looking a number up is several times faster than reading it, if it has been read before.
        sample = cells[:_SAMPLE]
        repeats = len(set(sample)) <= len(sample) // 4
        try:
            if repeats:
                wide = np.fromiter(map(self._known.__getitem__, cells), np.float64, len(cells))
                if len(self._known) > _KNOWN:
                    self._known.clear()
            else:
                whole = "".join(cells)
                if "_" in whole or not whole.isascii():
                    raise ValueError
                wide = np.fromiter(map(float, cells), np.float64, len(cells))
        except ValueError:
            raise first_fault(cells) from None
        with np.errstate(over="ignore"):
            narrow = wide.astype(np.float32)
        if not np.isfinite(narrow).all() or (len(wide) and float(np.abs(wide).max()) >= EXACT):
            fault = _first_extreme(cells, wide, narrow, self.missing)
            if fault is not None:
                raise fault
        return narrow


class _Known(dict[str, float]):
    def __missing__(self, text: str) -> float:
        value = self[text] = number(text)
        return value


def first_fault(cells: Sequence[str]) -> NotANumber:
    """Which cell is no number, and why; there is one."""
    index = next(index for index, cell in enumerate(cells) if not is_number(cell))
    cell = cells[index].strip()
    if not cell:
        return NotANumber(index, "the cell is blank", FILL_IN)
    if has_decimal_comma(cell):
        return NotANumber(index, f"{quoted(cell)} has a decimal comma", "write decimal points")
    return NotANumber(
        index,
        f"{quoted(cell)} is not a number, as others in that column are",
        "correct it or remove the row, or name the column in the option categories if it holds categories",
    )


def _first_extreme(cells: Sequence[str], wide: np.ndarray, narrow: Floats, missing: bool) -> NotANumber | None:
    for index in np.flatnonzero(~np.isfinite(narrow) | (np.abs(wide) >= EXACT)).tolist():
        cell = cells[index].strip()
        if np.isnan(wide[index]):
            if missing:
                continue
            return NotANumber(index, f"{quoted(cell)} is not a finite number", FILL_IN)
        if not np.isfinite(wide[index]):
            return NotANumber(index, f"{quoted(cell)} is not a finite number", "fill in the value or remove the row")
        if not np.isfinite(narrow[index]):
            return NotANumber(index, f"{quoted(cell)} is beyond the range of float32 (3.4e38)", "scale the column")
        if _LONG_DIGITS.fullmatch(cell):
            return NotANumber(
                index,
                f"{quoted(cell)} has more digits than a number keeps, so it looks like an identifier",
                "name the column in the option ignore to leave it out, or scale it",
            )
    return None
