"""Values of which some fields are known, and the others are read from a folder when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self


class Deferred:
    """Base of frozen dataclasses whose values may lie in a folder.

    `part` is where a deferred value lies, also once it has been read, so that storing it anew takes neither reading
    nor writing; None for any other. What is copied or pickled is read.
    """

    part: object = None

    @classmethod
    def deferred(cls, part: object, read: Callable[[], Self], **known: object) -> Self:
        """A value with these fields; `read` gives a whole one."""
        value = object.__new__(cls)
        value.__dict__.update(known, part=part, _read=read)
        return value

    if not TYPE_CHECKING:  # so that unknown attributes stay mistakes

        def __getattr__(self, name: str) -> Any:
            read = self.__dict__.get("_read")
            if read is None or name not in type(self).__dataclass_fields__:
                raise AttributeError(name)
            self.__dict__.update(vars(read()))
            return self.__dict__[name]

        def __getstate__(self) -> dict[str, Any]:
            return {name: getattr(self, name) for name in type(self).__dataclass_fields__}
