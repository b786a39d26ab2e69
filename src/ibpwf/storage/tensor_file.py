"""Parts of a folder that are read when they are first looked into, so that a model of a thousand tasks can answer for
one of them at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from ibpwf.storage.folder import OpenedFolder
from ibpwf.storage.model_folder import whole_folder

T = TypeVar("T")

FEW = 100
"""Parts that are all read, and compared with their digests, when a folder is opened."""


class TensorFile(Mapping[str, Tensor]):
    """The tensors of one part; its digest is compared when they are read.

    `content` is what the manifest says of it, for whoever stores it unread. `source` is the part itself of what was
    `derived` from it.
    """

    content: object = None

    def __init__(self, folder: Path, read: Callable[[], dict[str, Tensor]], source: TensorFile | None = None) -> None:
        self.folder, self._read, self.source = folder, read, self if source is None else source

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        return self.later(self._read)()

    def __getitem__(self, key: str) -> Tensor:
        return self.tensors[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def derived(self, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> TensorFile:
        """What is made of the tensors, once they are read."""
        return TensorFile(self.folder, lambda: change(self.tensors), self.source)

    def later(self, read: Callable[[], T]) -> Callable[[], T]:
        """`read` this part at some later time, when what is wrong with it must still be told as of its folder."""

        def whole() -> T:
            with whole_folder(self.folder):
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
    return {name: TensorFile(opened.path, partial(opened.tensors, name)) for name in opened.files}
