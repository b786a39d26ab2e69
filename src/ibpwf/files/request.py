"""What the user asks of a file, checked before the file is touched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ibpwf.errors import InputError
from ibpwf.files.layout import Kind, Layout, spelled
from ibpwf.files.opening import listed, shown

Unknown = Literal["error", "zeros"]
Missing = Literal["error", "mean"]
LARGEST_SIDE = 1 << 14


@dataclass(frozen=True)
class Request:
    """The arguments of `read_examples`."""

    path: Path
    label: str | None = None
    labelled: bool | None = None
    like: Layout | None = None
    ignore: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    unknown: Unknown = "error"
    size: tuple[int, int] | None = None
    channels: int | None = None
    missing: Missing | None = None

    def __post_init__(self) -> None:
        if self.unknown not in ("error", "zeros"):
            raise InputError(f"unknown is {self.unknown!r}; give 'error' or 'zeros'.")
        if self.missing not in (None, "error", "mean"):
            raise InputError(f"missing is {self.missing!r}; give 'error' or 'mean'.")
        if self.channels not in (None, 1, 3):
            raise InputError(f"channels is {self.channels!r}; give 1 for greyscale or 3 for colour.")
        size = self.size
        if size is not None and not (
            isinstance(size, tuple)
            and len(size) == 2
            and all(isinstance(side, int) and 1 <= side <= LARGEST_SIDE for side in size)
        ):
            raise InputError(f"size is {size!r}; give height and width in pixels, such as (32, 32).")

    @property
    def file(self) -> str:
        return shown(self.path)

    @property
    def needs_labels(self) -> bool:
        """Without an earlier layout a file is there to be learnt from, so it must have labels."""
        return self.labelled if self.labelled is not None else self.like is None

    @property
    def wants_labels(self) -> bool:
        return self.labelled is not False

    @property
    def fills_in(self) -> bool:
        """Whether missing values take the first file's means: as asked, or as for the first file."""
        return (self.missing or (self.like.missing if self.like else "error")) == "mean"

    def expect(self, kind: Kind, *, pictures: bool = False) -> None:
        """Refuses options that mean nothing for this kind of file, and files that earlier ones do not fit.

        `pictures` are image files, which can be resized; arrays of images cannot.
        """
        for name, given, meant in (
            ("ignore", bool(self.ignore), kind == "table"),
            ("categories", bool(self.categories), kind == "table"),
            ("missing", self.missing == "mean", kind == "table"),
            ("size", self.size is not None, pictures),
            ("channels", self.channels is not None, pictures),
        ):
            if given and not meant:
                what = "image files" if name in ("size", "channels") else "tables"
                raise InputError(f"{name} is for {what}, and {self.file} holds none; leave it out.")
        if self.like is None:
            return
        self.like.expect(kind, self.file)
        if self.size is not None and self.size != self.like.shape[1:]:
            had = spelled(self.like.shape[1:])
            raise InputError(
                f"size is {spelled(self.size)}, but earlier images were {had}; give {had} or leave it out."
            )
        if self.channels is not None and self.channels != self.like.shape[0]:
            had = str(self.like.shape[0])
            raise InputError(
                f"channels is {self.channels}, but earlier images had {had}; give {had} or leave it out."
            )
        known = {column.name for column in self.like.columns if column.kind == "category"}
        strange = [name for name in self.categories if name not in known]
        if strange:
            raise InputError(
                f"categories names {listed(strange)}, which earlier files did not hold as categories; leave it out."
            )
