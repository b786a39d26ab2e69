"""What a classifier says of rows: labels and their probabilities, tasks, how sure it is, and what is new."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ibpwf.concurrency import at_one_moment
from ibpwf.data.rows import ROWS_PER_PASS
from ibpwf.learner import Learner
from ibpwf.plain_arrays import plain
from ibpwf.torch_state import pinned

MOST_NOVEL = 1e6
"""What is further from everything than this is told as this: the number may have hundreds of digits."""


P = ParamSpec("P")
R = TypeVar("R")


def asks(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A predicting method: from one state of the classifier, in torch's default state."""
    return at_one_moment(pinned()(method))


def entropy(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """−Σ p log p of each row, in nats."""
    entropy: NDArray[np.float64] = -np.sum(p * np.log(np.where(p > 0, p, 1.0)), axis=1) + 0.0
    return entropy


def features_of(learner: Learner, x: Tensor) -> Iterator[Tensor]:
    """φ of some rows at a time."""
    for rows in torch.split(x, ROWS_PER_PASS):
        yield learner.method.features(rows.to(learner.device))


def plain_task(task: Any) -> Any:
    """A task, or one per row, without NumPy's and pandas' own types."""
    task = plain("task", task)
    return task.tolist() if hasattr(task, "tolist") else task
