"""Labels as text: cleaned the same way whatever file they come from."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from ibpwf.data.examples import Origins
from ibpwf.data.number_texts import ABSENT, is_number
from ibpwf.data.opening import quoted
from ibpwf.errors import DataError

_WHOLE = re.compile(r"([+-]?\d+)\.0*")


def clean_label(text: str) -> str:
    """The label without blanks around it, in one Unicode form. 3.0 is 3, since files with gaps say so; -0 is 0."""
    label = unicodedata.normalize("NFC", text.strip())
    whole = _WHOLE.fullmatch(label)
    label = whole[1] if whole else label
    return "0" if label in ("-0", "+0") else label


def clean_labels(given: Sequence[str], origins: Origins, column: str | None = None) -> list[str]:
    """Every label cleaned; a missing one, or two that only a typing slip tells apart, are refused by row."""
    place = "" if column is None else f", column {quoted(column)}"
    cleaned: dict[str, str] = {}
    first: dict[str, int] = {}
    labels = []
    for row, text in enumerate(given):
        label = cleaned.get(text)
        if label is None:
            label = cleaned[text] = clean_label(text)
            if not label:
                raise DataError(f"{origins[row]}{place}: the label is missing; fill it in or remove the example.")
            if not label.isprintable():
                raise DataError(
                    f"{origins[row]}{place}: the label {quoted(label)} holds control characters; remove them."
                )
            first.setdefault(label, row)
        labels.append(label)
    check_alike(first, origins)
    return labels


def check_alike(first: dict[str, int], origins: Origins, *, letters: bool = True) -> None:
    """Refuses two labels that differ by case, blanks or how a sign is written alone, and a missing value among
    numbers; `first` is where each was seen first.

    With `letters`, single letters may differ by case: they are the classes of letter recognition.
    """
    absent = next((label for label in first if label.lower() in ABSENT), None)
    if absent is not None and len(first) > 1 and all(is_number(label) for label in first if label != absent):
        raise DataError(
            f"{origins[first[absent]]}: the label {quoted(absent)} among numbers stands for a missing one; fill it "
            "in or remove the example."
        )
    seen: dict[str, str] = {}
    for label, row in first.items():
        other = seen.setdefault(folded(label), label)
        if other != label and not (letters and len(label) == 1 and label.isalpha()):
            raise DataError(
                f"{origins[row]}: class {quoted(label)} and class {quoted(other)} ({origins[first[other]]}) differ "
                "only by case or blanks, or in how their sign is written; write them alike, or rename one."
            )


def folded(label: str) -> str:
    plain = " ".join(unicodedata.normalize("NFKC", label).casefold().split()).replace("\u2212", "-")
    return plain.removeprefix("+") if is_number(plain) else plain
