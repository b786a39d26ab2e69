"""Parts of a folder that are read when they are first looked into, so that a model of a thousand tasks can answer for
one of them at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cached_property
from typing import TypeVar

from torch import Tensor

from ibpwf.storage.folder import OpenedFolder
from ibpwf.storage.model_folder import whole_folder

T = TypeVar("T")

FEW = 100
"""Parts that are all read, and compared with their digests, when a folder is opened."""


class StoredPart(Mapping[str, Tensor]):
    """The tensors of one part; its digest is compared when they are read."""

    def __init__(self, opened: OpenedFolder, name: str) -> None:
        self.opened, self.name = opened, name
        self.inferred = True  # of a task's part: whether it has what is known of the task's inputs

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        return self.opened.tensors(self.name)

    def __getitem__(self, key: str) -> Tensor:
        return self.tensors[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def later(self, read: Callable[[], T]) -> Callable[[], T]:
        """`read` this part at some later time, when what is wrong with it must still be told as of its folder."""

        def whole() -> T:
            with whole_folder(self.opened.path):
                return read()

        return whole


_all: ContextVar[bool] = ContextVar("all parts", default=False)


@contextlib.contextmanager
def everything_now() -> Iterator[None]:
    """In this block every part of a folder is read and checked when it is opened: for who verifies it, or goes on
    answering when the folder is gone."""
    before = _all.set(True)
    try:
        yield
    finally:
        _all.reset(before)


def parts_of(opened: OpenedFolder) -> Mapping[str, Mapping[str, Tensor]]:
    """All parts of a folder. Many of them are read when they are asked for; that each is there, and as long as it
    should be, is checked before."""
    if len(opened.files) <= FEW or _all.get():
        return opened.all_tensors()
    opened.check_sizes()
    return {name: StoredPart(opened, name) for name in opened.files}
