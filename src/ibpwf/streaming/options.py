"""How a stream is watched: sizes and the detector, checked when they are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field

from ibpwf.errors import InputError
from ibpwf.parts import FrozenSettings, require
from ibpwf.streaming.detectors import check_detector


class StreamOptions(FrozenSettings):
    """What `stream=` of a classifier may say beside True."""

    buffer: Annotated[int, Field(ge=20, le=10_000_000)] = Field(
        10_000, description="rows kept at most until they are learned as a task; then they are dropped"
    )
    least: Annotated[int, Field(ge=10)] = Field(
        500, description="rows between two borders that are worth a task of their own"
    )
    window: Annotated[int, Field(ge=20)] = Field(
        500, description="rows that count as recent, for weighing answers, and kept while nothing changes"
    )
    detector: str = Field(
        "page-hinkley",
        description="what tells that surprise has risen: page-hinkley, two-windows, or with river installed "
        "river-adwin, river-page-hinkley or river-kswin",
    )
    forgetting: Annotated[float, Field(gt=0.5, le=1)] = Field(
        0.999, description="what an observation of the online part counts one row later"
    )
    update: bool = Field(
        False, description="rows that turn out to be an old task's are learned as more of it, instead of counted"
    )

    def check_settings(self) -> None:
        require(self.least <= self.buffer, "least", self.least, f"the buffer holds {self.buffer} rows; give fewer")
        require(self.window <= self.buffer, "window", self.window, f"the buffer holds {self.buffer} rows; give fewer")
        check_detector(self.detector)

    @classmethod
    def of(cls, given: object) -> Self | None:
        """What `stream` says: None for False, the defaults for True, or a mapping of some of these."""
        if given is None or given is False:
            return None
        if given is True:
            return cls()
        if isinstance(given, Mapping):
            return cls.fitting(given)
        raise InputError(f"stream is {given!r}; give True, False, or a mapping such as {{'buffer': 10000}}.")

    @classmethod
    def fitting(cls, given: Mapping[str, Any]) -> Self:
        """A small buffer makes the other sizes smaller, where they were not given."""
        buffer = given.get("buffer")
        if isinstance(buffer, int):
            sizes = {name: min(cls.model_fields[name].default, buffer) for name in ("least", "window")}
            given = {**sizes, **given}
        return cls(**given)
