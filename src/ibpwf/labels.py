"""Labels of any kind (text, numbers, truth values) as the whole numbers a learner takes, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ibpwf.errors import InputError

Labels = NDArray[Any]


def _kind(labels: Labels) -> str:
    if labels.dtype.kind == "O":
        return "text" if all(isinstance(label, str) for label in labels) else "objects"
    return {"U": "text", "S": "text", "T": "text", "b": "truth values"}.get(labels.dtype.kind, "numbers")


class LabelBook:
    """Every label met so far, each with a number that never changes; `classes` has them sorted."""

    def __init__(self, known: Labels | None = None) -> None:
        self.known = known
        self._numbers: dict[Any, int] = {} if known is None else {v: i for i, v in enumerate(known.tolist())}

    @property
    def classes(self) -> Labels:
        assert self.known is not None
        return np.unique(self.known)

    def with_labels(self, labels: Labels) -> LabelBook:
        """A book that has these labels as well, numbered on in sorted order; this one stays as it is."""
        found = np.unique(labels)
        if self.known is None:
            return LabelBook(found)
        if _kind(found) != _kind(self.known):
            raise InputError(
                f"y holds {_kind(found)}, earlier tasks had {_kind(self.known)} (such as {self.known[0]!r}); "
                "give labels of one kind, or call fit to start anew."
            )
        new = found[~np.isin(found, self.known)]
        return LabelBook(np.concatenate([self.known, new])) if len(new) else self

    def numbers(self, labels: Labels) -> NDArray[np.int64]:
        return np.array([self._numbers[label] for label in labels.tolist()], dtype=np.int64)

    def columns(self) -> NDArray[np.int64]:
        """For each label's number, its place in `classes`."""
        assert self.known is not None
        return np.searchsorted(self.classes, self.known).astype(np.int64)

    def to_json(self) -> dict[str, Any]:
        assert self.known is not None
        return {"dtype": "O" if self.known.dtype.kind == "O" else self.known.dtype.str, "labels": self.known.tolist()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return cls(np.array(values["labels"], dtype=np.dtype(values["dtype"])))
