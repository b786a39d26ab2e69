"""Labels of one kind (text, whole numbers, floats, truth values) as the numbers a learner takes, and back.

A label keeps its type and its value for ever: labels of different kinds are never brought to a common one, which
would change some of them (2⁵³ + 1 is no float).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ibpwf.errors import InputError
from ibpwf.plain_arrays import as_array, plain

Labels = NDArray[Any]

MOST_CLASSES = 30_000
"""More different labels in one task are names of rows, not classes; each would have an output of its own."""

_KINDS = {"i": "whole numbers", "u": "whole numbers", "f": "floats", "b": "truth values", "U": "text", "O": "text"}
_REFUSED = {
    "M": "dates; write them as text, such as y.astype(str)",
    "m": "time spans; write them as text, such as y.astype(str)",
    "S": "bytes; decode them to text, such as y.astype(str)",
    "c": "complex numbers; give text or whole numbers",
    "V": "records; give one column of text or whole numbers",
}
_PYTHON = {bool: "truth values", int: "whole numbers", float: "floats", str: "text", bytes: "bytes"}


def _kind(labels: Labels) -> str:
    return _KINDS[labels.dtype.kind]


def label_array(labels: Any, name: str = "y") -> Labels:
    """Labels as an array of one kind that JSON keeps exactly, or an `InputError` that says why not."""
    labels = plain(name, labels)
    if isinstance(labels, Tensor):
        labels = as_array(name, labels)
    if isinstance(labels, (list, tuple)):  # of which NumPy would make text of 1 and a float of 2⁵³ + 1
        as_objects = np.empty(len(labels), dtype=object)
        as_objects[:] = labels
        checked = label_array(as_objects, name)
        ends = checked.dtype == object and any(label.endswith("\0") for label in checked)  # which NumPy cuts off
        return checked if ends else np.array(checked.tolist())
    is_numpy = isinstance(getattr(labels, "dtype", None), (np.dtype, type(None)))
    given = np.asarray(labels, dtype=None if is_numpy else object)  # pandas' integers would become floats
    if given.dtype.kind in _REFUSED:
        raise InputError(f"{name} holds {_REFUSED[given.dtype.kind]}.")
    if given.dtype.kind not in _KINDS:  # NumPy's newer text
        given = given.astype(object)
    if given.dtype.kind == "O":
        given = _of_one_kind(given, name)
    if given.dtype.kind in "UO":
        _check_text(given, name)
    if given.dtype.kind == "u" and given.size and int(given.max()) > np.iinfo(np.int64).max:
        raise InputError(f"{name} holds {given.max()}, beyond 64-bit integers; give such labels as text.")
    if given.dtype.kind == "f":
        if not np.isfinite(given).all():
            raise InputError(f"{name} holds {given[~np.isfinite(given)][0]}; remove rows without a label.")
        if given.dtype.itemsize > 8:
            given = _narrowed(given, name)
        given = given + given.dtype.type(0)  # -0.0 is the label 0.0
    return given


def _of_one_kind(labels: Labels, name: str) -> Labels:
    """An array of Python objects as the kind all of them are."""
    values = [value.item() if isinstance(value, np.generic) else value for value in labels.ravel().tolist()]
    kinds: dict[str, Any] = {}
    for value in values:
        absent = value is None or (isinstance(value, float) and math.isnan(value)) or str(value) in ("<NA>", "NaT")
        if absent:
            raise InputError(f"{name} holds {value}, which is no label; remove rows without a label.")
        kinds.setdefault(_PYTHON.get(type(value), f"objects of type {type(value).__name__}"), value)
    if len(kinds) > 1:
        (one, such), (other, as_well) = list(kinds.items())[:2]
        raise InputError(f"{name} mixes {one} (such as {such!r}) and {other} (such as {as_well!r}); give one kind.")
    kind = next(iter(kinds), "text")
    if kind not in _KINDS.values():
        raise InputError(f"{name} holds {kind}; give text, whole numbers or truth values.")
    if kind == "text":
        return np.array([*map(str, values)], dtype=object).reshape(labels.shape)
    if kind == "whole numbers":
        large = next((value for value in values if not -(2**63) <= value < 2**63), None)
        if large is not None:
            raise InputError(f"{name} holds {large}, beyond 64-bit integers; give such labels as text.")
    return np.array(values).reshape(labels.shape)


def _check_text(labels: Labels, name: str) -> None:
    for label in np.unique(labels).tolist():
        try:
            label.encode("utf-8")
        except UnicodeEncodeError:
            raise InputError(f"{name} holds {label!r}, which is not Unicode; correct that label.") from None


def _narrowed(labels: Labels, name: str) -> Labels:
    narrow = labels.astype(np.float64)
    if not np.array_equal(narrow.astype(labels.dtype), labels):
        raise InputError(f"{name} holds floats beyond 64 bits; give such labels as text.")
    return narrow


def before_scikit_learn(labels: Any) -> Any:
    """Labels whose type scikit-learn would change, as `label_array` has them; all others as they are."""
    labels = plain("y", labels)
    if labels is None or (isinstance(labels, np.ndarray) and labels.dtype.kind not in "TSMmV"):
        return labels
    return label_array(labels)


class LabelBook:
    """Every label met so far, each with a number that never changes; `classes` has them sorted.

    A label that is forgotten leaves its number behind, without a name: nobody else gets it.
    """

    def __init__(self, names: Sequence[Any] = (), dtype: np.dtype[Any] | None = None) -> None:
        """`names` has the label of each number, None for one that was forgotten."""
        self.names, self.dtype = tuple(names), dtype
        self._numbers = {label: number for number, label in enumerate(self.names) if label is not None}

    @property
    def classes(self) -> Labels:
        return np.unique(self._array(self._numbers))

    def _array(self, labels: Collection[Any]) -> Labels:
        assert self.dtype is not None
        plain = self.dtype.kind == "U" and not any(label.endswith("\0") for label in labels)  # NumPy would cut it
        kept = self.dtype if self.dtype.kind not in "UO" else np.dtype("U" if plain else object)
        return np.array(list(labels), dtype=kept)

    def with_labels(self, labels: Labels) -> LabelBook:
        """A book that has these labels as well, numbered on in sorted order; this one stays as it is."""
        found = np.unique(label_array(labels))
        if len(found) > MOST_CLASSES:
            raise InputError(
                f"y has {len(found):,} different labels, more than the {MOST_CLASSES:,} that one task may have; it "
                "looks like a measurement or an identifier."
            )
        if self.dtype is None:
            return LabelBook(found.tolist(), found.dtype)
        known = self._array(self._numbers)
        if _kind(found) != _kind(known):
            such = next(iter(self._numbers), None)
            raise InputError(
                f"y holds {_kind(found)}, earlier tasks had {_kind(known)} (such as {such!r}); "
                "give labels of one kind, or call fit to start anew."
            )
        new = [label for label in found.tolist() if label not in self._numbers]
        return LabelBook([*self.names, *new], self._wide_enough(found)) if new else self

    def _wide_enough(self, found: Labels) -> np.dtype[Any]:
        """The type these labels have so far, or the widest of its kind where it does not hold the new ones."""
        assert self.dtype is not None
        if self.dtype.kind in "UOb":
            return self.dtype
        with np.errstate(over="ignore"):
            same = found.astype(self.dtype).tolist() == found.tolist()
        return self.dtype if same else np.dtype(np.float64 if self.dtype.kind == "f" else np.int64)

    def without(self, numbers: Collection[int]) -> LabelBook:
        """A book in which these numbers have no name any more; all others keep theirs."""
        gone = set(numbers)
        return LabelBook([None if n in gone else name for n, name in enumerate(self.names)], self.dtype)

    def numbers(self, labels: Labels) -> NDArray[np.int64]:
        return np.array([self._numbers[label] for label in label_array(labels).tolist()], dtype=np.int64)

    def columns(self) -> NDArray[np.int64]:
        """For each number, its label's place in `classes`; -1 for one without a name."""
        places = {label: place for place, label in enumerate(self.classes.tolist())}
        return np.array([places.get(name, -1) for name in self.names], dtype=np.int64)

    def to_json(self) -> dict[str, Any]:
        """The labels, null for forgotten ones, and their type; that of text without its length, which would tell of
        forgotten ones."""
        assert self.dtype is not None
        return {"dtype": self.dtype.kind if self.dtype.kind in "UO" else self.dtype.str, "labels": list(self.names)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        dtype, names = np.dtype(values["dtype"]), values["labels"]
        if dtype.kind not in _KINDS:
            raise InputError(f"labels are of type {values['dtype']!r}, which they cannot be.")
        wanted = next(kind for kind, word in _PYTHON.items() if word == _KINDS[dtype.kind])
        wrong = next((name for name in names if name is not None and type(name) is not wanted), None)
        if wrong is not None or len({name for name in names if name is not None}) < sum(n is not None for n in names):
            raise InputError(f"labels hold {wrong!r} among {_KINDS[dtype.kind]}, or one of them twice.")
        return cls(names, dtype)
