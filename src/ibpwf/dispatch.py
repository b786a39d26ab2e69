"""Reference functions and their faster stand-ins: one switch between the two.

What is written plainly here and in other rooms may have a stand-in in `ibpwf.fast` that gives the same answer
sooner. The plain function is the truth; a stand-in names it (`stands_for`), says when it applies, and is tested
against it. With acceleration off (`accelerate=False`, or IBPWF_ACCELERATE=0 in the environment) only reference
functions run.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

_accelerated: ContextVar[bool] = ContextVar("accelerated", default=True)
_stand_ins: dict[Any, list[tuple[Callable[..., bool], Callable[..., Any]]]] = {}


def accelerates() -> bool:
    """Whether stand-ins may be used now. torch's compiler reads plain functions, and makes its own of them."""
    if torch.compiler.is_compiling():
        return False
    return _accelerated.get() and os.environ.get("IBPWF_ACCELERATE", "1") != "0"


@contextlib.contextmanager
def accelerated(wanted: bool) -> Iterator[None]:
    """Inside, stand-ins are used where they apply, or not at all."""
    before = _accelerated.get()
    _accelerated.set(wanted)
    try:
        yield
    finally:
        _accelerated.set(before)


def reference(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function that may have stand-ins; calling it calls the first that applies, or itself."""
    stand_ins: list[tuple[Callable[..., bool], Callable[..., Any]]] = []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if stand_ins and accelerates():
            for applies, stand_in in stand_ins:
                if applies(*args, **kwargs):
                    result: R = stand_in(*args, **kwargs)
                    return result
        return function(*args, **kwargs)

    _stand_ins[call] = stand_ins
    return call


def stands_for(function: Callable[P, R], when: Callable[..., bool]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a faster function for a reference function, used where `when` says so of the same arguments."""

    def register(stand_in: Callable[P, R]) -> Callable[P, R]:
        _stand_ins[function].insert(0, (when, stand_in))
        return stand_in

    return register


def stand_ins(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The stand-ins of a reference function, those tried first first."""
    return [stand_in for _, stand_in in _stand_ins[function]]
