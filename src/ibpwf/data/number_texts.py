"""Numbers as text: what is read as one, what only looks like one to a person, and which values are rejected.

The rules for values are the same for every format: CSV, Parquet, NPZ, and tensors of a request.
"""

from __future__ import annotations

import re
import unicodedata

import numpy as np

from ibpwf.limits import EXACT

ABSENT = ("nan", "-nan", "+nan", "null")
"""What stands for a missing value, in any case."""

BLANKS = "".join(one for one in map(chr, range(0x3001)) if one.isspace())
"""What may stand around a number or a label: all that `str.strip` removes."""

_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf|infinity)", re.IGNORECASE | re.ASCII)
_DASHES = dict.fromkeys(map(ord, "\u2010\u2011−‒–—﹣－"), "-")
_UNITS = re.compile(r"(?P<sign>[+-]?)\s*(?P<digits>[^%‰]*?)\s*[%‰]?", re.ASCII)
_BASED = re.compile(r"[+-]?0(x[0-9a-f]+|o[0-7]+|b[01]+)", re.IGNORECASE | re.ASCII)
_GROUPS = re.compile(r"\d{1,3}([ ,]\d{3})+(\.\d*)?|\d+([_'’]\d+)+(\.\d*)?", re.ASCII)
_CONTINENTAL = re.compile(r"(\d+|\d{1,3}([. ]\d{3})+),\d+", re.ASCII)


def is_number(text: str) -> bool:
    """Whether a cell holds a number as pyarrow reads one between blanks: no `1_000`, no digits of other scripts."""
    return bool(_NUMBER.fullmatch(text.strip()))


def plain_number(text: str) -> str | None:
    """A number that is written for people as programs read it; None for what is no number, or is one already.

    Percent and currency signs, separators of thousands, decimal commas, hexadecimal, octal and binary digits, digits
    of other scripts, and typographic hyphens and minus signs are understood. Such cells are reported and never read
    as numbers: what 5 % stands for, or 1,234, is for the user to say.

    Examples
    --------
    >>> plain_number("$1,234.50"), plain_number("5%"), plain_number("0x12"), plain_number("5"), plain_number("red")
    ('1234.50', '5', '18', None, None)
    """
    if is_number(text) or len(text) > 64 or any(unicodedata.category(one) == "No" for one in text):  # no 5²
        return None
    folded = unicodedata.normalize("NFKC", text.translate(_DASHES)).translate(_DASHES).strip()
    digits = "".join(_plain_character(character) for character in folded).strip()
    if digits.startswith("(") and digits.endswith(")"):  # as accountants write what is below zero
        digits = f"-{digits[1:-1].strip()}"
    if _BASED.fullmatch(digits):
        return str(int(digits, 0))
    found = _UNITS.fullmatch(digits)
    if found is None:
        return None
    number = found["digits"]
    if _CONTINENTAL.fullmatch(number) and not _GROUPS.fullmatch(number):
        number = re.sub("[. ]", "", number).replace(",", ".")
    elif _GROUPS.fullmatch(number):
        number = re.sub("[ ,_'’]", "", number)
    return found["sign"] + number if number[:1] in "0123456789." and is_number(number) else None


def _plain_character(character: str) -> str:
    """A decimal digit of any script as one of ASCII; nothing for a currency sign."""
    if unicodedata.category(character) == "Sc":
        return ""
    digit = unicodedata.decimal(character, None)
    return character if digit is None else str(digit)


def fault_of(said: str, value: float, *, is_whole: bool, fill_in: str, leave_out: str) -> str | None:
    """Why a number cannot be learnt from, with what to do; None for one that can.

    Parameters
    ----------
    said
        The value as it was written.
    is_whole
        Whether it was an integer, of which every digit may count.
    fill_in, leave_out
        What to do about a missing value, and about a column of identifiers.
    """
    if np.isnan(value):
        return f"{said} is not a finite number; {fill_in}"
    if np.isinf(value):
        return f"{said} is not a finite number; fill in the value or remove the row"
    with np.errstate(over="ignore"):
        if not np.isfinite(np.float32(value)):
            return f"{said} is beyond the range of float32 (3.4e38); scale the column"
    if is_whole and abs(value) >= EXACT:
        return f"{said} has more digits than a number keeps, so it looks like an identifier; {leave_out}"
    return None
