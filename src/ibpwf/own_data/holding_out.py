"""Some rows of every class set aside, to measure a task on what it was not learnt from."""

from __future__ import annotations

import numpy as np

from ibpwf.errors import DataError, InputError
from ibpwf.files import Examples


def held_out(examples: Examples, share: float) -> tuple[Examples, Examples]:
    """The examples to learn from and those to measure on: the same share of every class, at least one, the same every
    time. Both keep the order of the file."""
    if not 0 < share < 1:
        raise InputError(f"validate is {share}; give the share of the rows to hold out, such as 0.1.")
    assert examples.y is not None
    y = np.array(examples.y)
    chance = np.random.default_rng(0)
    out = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        count = max(1, round(share * len(rows)))
        if len(rows) - count < 2:
            raise DataError(
                f"{examples.path}: class {str(label)!r} has {len(rows)} examples, too few to hold {share:.0%} of "
                "them out and learn from the rest; add more, or leave validate out."
            )
        out[chance.permutation(rows)[:count]] = True
    return examples.rows(np.flatnonzero(~out)), examples.rows(np.flatnonzero(out))
