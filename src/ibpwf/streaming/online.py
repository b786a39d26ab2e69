"""The part that adapts at once: ridge regression on the classes, from sums that forget.

    A ← λA + ff',   C ← λC + fy',   scores = f' (A + ρI)⁻¹ C

f are the standardized inputs (many of them as random sums), a layer of random ReLU features, a constant, and the
labels that came last: many streams say the same for a while. Rows are not kept; with λ = 0.999 a row counts half
after 700 others.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

Numbers = NDArray[np.float64]

MOST_INPUTS = 128
"""More inputs than this are read as so many random sums of them."""
RANDOM_UNITS = 100
LINEAR_TO = 5.0
RIDGE = 1.0
REMEMBERED = 20
"""Of so many classes the last labels are read; with more of them a label says too little about the next."""
FADING = (0.0, 0.8)
"""How much of the memory of labels is left one row later: the last label, and about the last five."""
LEAST = 1e-3


@dataclass(frozen=True, eq=False)
class OnlineRidge:
    """An online classifier of class numbers; learning gives another one."""

    seed: int
    forgetting: float
    rows: int
    mean: Numbers
    squares: Numbers
    products: Numbers  # A
    sums: Numbers  # C, a column per class number
    labels: Numbers  # the memory of labels, one line per fading

    @classmethod
    def new(cls, inputs: int, forgetting: float, seed: int) -> Self:
        width = min(inputs, MOST_INPUTS) + RANDOM_UNITS + 1 + len(FADING) * REMEMBERED
        return cls(
            seed=seed,
            forgetting=forgetting,
            rows=0,
            mean=np.zeros(inputs),
            squares=np.zeros(inputs),
            products=np.zeros((width, width)),
            sums=np.zeros((width, 0)),
            labels=np.zeros((len(FADING), REMEMBERED)),
        )

    @property
    def classes(self) -> int:
        return int(self.sums.shape[1])

    def _layers(self) -> tuple[Numbers | None, Numbers, Numbers]:
        """The random sums of inputs (None where there are few), and the random layer; always the same."""
        found = self.__dict__.get("_drawn")
        if found is None:
            chance, inputs = np.random.default_rng(self.seed), len(self.mean)
            narrow = min(inputs, MOST_INPUTS)
            into = chance.normal(size=(inputs, narrow)) / np.sqrt(narrow) if inputs > narrow else None
            layer = chance.normal(size=(narrow, RANDOM_UNITS)) / np.sqrt(narrow)
            found = into, layer, 0.5 * chance.normal(size=RANDOM_UNITS)
            object.__setattr__(self, "_drawn", found)
        return found

    def _features(self, x: NDArray[Any]) -> Numbers:
        into, layer, bias = self._layers()
        spread = np.sqrt(self.squares / max(self.rows, 1))
        with np.errstate(over="ignore", invalid="ignore"):
            z = np.where(spread > 0, (x - self.mean) / np.where(spread > 0, spread, 1.0), 0.0)
        z = np.clip(np.nan_to_num(z), -LINEAR_TO, LINEAR_TO)
        if into is not None:
            z = z @ into
        parts = [z, np.maximum(z @ layer + bias, 0.0), np.ones((len(z), 1))]
        return np.hstack([*parts, np.broadcast_to(self.labels.ravel(), (len(z), self.labels.size))])

    def probabilities(self, x: NDArray[Any]) -> Numbers:
        """Of every class number met so far, a column each."""
        if not self.classes:
            return np.zeros((len(x), 0))
        weights = self.__dict__.get("_weights")
        if weights is None:
            factor = cho_factor(self.products + RIDGE * np.eye(len(self.products)), check_finite=False)
            weights = cho_solve(factor, self.sums, check_finite=False)
            object.__setattr__(self, "_weights", weights)
        scores = np.clip(self._features(x) @ weights, LEAST, None)
        found: Numbers = scores / scores.sum(1, keepdims=True)
        return found

    def learned(self, x: NDArray[Any], y: NDArray[np.int64]) -> OnlineRidge:
        """One that has seen these rows as well. All of them are read with the labels known before the first, as
        they are when a batch of that size is to be answered."""
        classes = max(self.classes, int(y.max()) + 1)
        now = self._scaled(np.asarray(x, dtype=np.float64))
        features = now._features(x)
        fade = self.forgetting ** np.arange(len(y) - 1, -1, -1.0)
        weighted = features * fade[:, None]
        sums = np.zeros((len(self.products), classes))
        left = self.forgetting ** len(y)
        sums[:, : self.classes] = self.sums * left
        np.add.at(sums.T, y, weighted)
        labels = self.labels
        for number in y[-64:]:  # what came before has faded
            one = np.zeros(REMEMBERED)
            if number < REMEMBERED:
                one[number] = 1.0
            labels = np.stack([f * old + (1 - f) * one for f, old in zip(FADING, labels, strict=True)])
        return now._with(products=self.products * left + weighted.T @ features, sums=sums, labels=labels)

    def without(self, classes: Collection[int]) -> OnlineRidge:
        """One that would never answer with these classes."""
        sums = self.sums.copy()
        sums[:, [number for number in classes if number < self.classes]] = 0.0
        return self._with(sums=sums)

    def _scaled(self, x: Numbers) -> OnlineRidge:
        """Means and spreads with these rows."""
        count, mean = len(x), x.mean(0)
        rows = self.rows + count
        apart = mean - self.mean
        squares = self.squares + np.square(x - mean).sum(0) + np.square(apart) * (self.rows * count / rows)
        return self._with(rows=rows, mean=self.mean + apart * (count / rows), squares=squares)

    def _with(self, **changed: Any) -> OnlineRidge:
        other = replace(self, **changed)
        object.__setattr__(other, "_drawn", self._layers())
        return other
