"""How a file is to be read: one object, checked before the file is touched, that every reader takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ibpwf.data.opening import listed, shown, spelled
from ibpwf.errors import InputError

if TYPE_CHECKING:
    from ibpwf.data.layout import Kind, Layout

Unknown = Literal["error", "zeros"]
Missing = Literal["error", "mean"]
Progress = Callable[[str, int, "int | None"], None]
Naming = Callable[..., str]
"""How errors call an option, by its field's name and maybe a value for it."""

LARGEST_SIDE = 1 << 14


def argument(name: str, value: object = None) -> str:
    """An option as Python calls it; the command line names it its own way."""
    return f"the argument {name}" if value is None else f"{name}={value!r}"


def _says(description: str) -> dict[str, str]:
    return {"description": description}


@dataclass(frozen=True)
class ReadOptions:
    """What `read_examples` and `read_batches` are asked for beside the path."""

    label: str | None = field(
        default=None, metadata=_says("The column (or the array of an .npz file) that holds the labels.")
    )
    with_labels: bool | None = field(
        default=None,
        metadata=_says("True requires labels, False leaves them out; a first file needs them."),
    )
    like: Layout | None = field(
        default=None, metadata=_says("The layout of an earlier file, which this one must fit.")
    )
    ignore: tuple[str, ...] = field(default=(), metadata=_says("A column to leave out, such as an identifier."))
    categories: tuple[str, ...] = field(default=(), metadata=_says("A column of categories that look like numbers."))
    text: tuple[str, ...] = field(
        default=(), metadata=_says("A column of texts, read by a trained sentence encoder.")
    )
    encoder: str | None = field(default=None, metadata=_says("The sentence encoder, by a name of `ibpwf backbones`."))
    unknown: Unknown | None = field(
        default=None,
        metadata=_says("Let a category never seen before stand for none of the known ones, in later files too."),
    )
    size: tuple[int, int] | None = field(default=None, metadata=_says("Resize images to this height and width."))
    channels: int | None = field(default=None, metadata=_says("Make images grey (1) or coloured (3)."))
    missing: Missing | None = field(
        default=None,
        metadata=_says("A missing value in a table is an error, or takes the mean of its column in the first file."),
    )
    naming: Naming = field(default=argument, metadata=_says("How errors call these options."))
    progress: Progress | None = field(
        default=None, metadata=_says("Called with what is being done, how much of it is done, and of how much.")
    )

    def __post_init__(self) -> None:
        for name in ("ignore", "categories", "text"):
            given = getattr(self, name)
            if isinstance(given, str):
                raise InputError(f"{name} is {given!r}; give a list of column names, such as [{given!r}].")
            object.__setattr__(self, name, tuple(given or ()))
        if self.unknown not in (None, "error", "zeros"):
            raise InputError(f"unknown is {self.unknown!r}; give 'error' or 'zeros'.")
        if self.missing not in (None, "error", "mean"):
            raise InputError(f"missing is {self.missing!r}; give 'error' or 'mean'.")
        if self.channels not in (None, 1, 3):
            raise InputError(f"{self.naming('channels')} is {self.channels!r}; give 1 for grey or 3 for colour.")
        if self.size is not None:
            sides = tuple(self.size)
            if len(sides) != 2 or not all(isinstance(side, int) and 1 <= side <= LARGEST_SIDE for side in sides):
                such = self.naming("size", (32, 32))
                raise InputError(f"size is {sides!r}; give height and width in pixels, such as {such}.")
            object.__setattr__(self, "size", sides)

    @classmethod
    def described(cls) -> dict[str, str]:
        """What each option is for."""
        return {option.name: option.metadata["description"] for option in fields(cls)}

    @property
    def needs_labels(self) -> bool:
        """Without an earlier layout a file is there to be learnt from, so it must have labels."""
        return self.with_labels if self.with_labels is not None else self.like is None

    @property
    def wants_labels(self) -> bool:
        return self.with_labels is not False

    @property
    def fills_in(self) -> bool:
        """Whether missing values take the first file's means: as asked, or as for the first file."""
        return (self.missing or (self.like.missing if self.like else "error")) == "mean"

    @property
    def takes_unknown(self) -> bool:
        """Whether a category never seen stands for none of the known ones: as asked, or as for earlier files."""
        return (self.unknown or (self.like.unknown if self.like else "error")) == "zeros"

    @property
    def fill_in(self) -> str:
        """What to do about a missing value."""
        return f"fill it in or remove the row, or give {self.naming('missing', 'mean')}"

    def expect(self, kind: Kind, path: Path, *, pictures: bool = False) -> None:
        """Refuses options that mean nothing for this kind of file, and files that earlier ones do not fit.

        `pictures` are image files, which can be resized; arrays of images cannot.
        """
        say, table = self.naming, kind == "table"
        for name, given, meant in (
            ("ignore", self.ignore, table),
            ("categories", self.categories, table),
            ("text", self.text, table),
            ("encoder", self.encoder, table),
            ("missing", self.missing == "mean", table),
            ("size", self.size, pictures),
            ("channels", self.channels, pictures),
        ):
            if given and not meant:
                what = "image files" if name in ("size", "channels") else "tables"
                raise InputError(f"{say(name)} is for {what}, and {shown(path)} holds none; leave it out.")
        if self.like is None:
            return
        self.like.expect(kind, shown(path))
        if self.size is not None and self.size != self.like.shape[1:]:
            here, had = spelled(self.size), spelled(self.like.shape[1:])
            raise InputError(f"{say('size')} is {here}, but earlier images were {had}; give {had} or leave it out.")
        if self.channels is not None and self.channels != self.like.shape[0]:
            here, had = str(self.channels), str(self.like.shape[0])
            raise InputError(
                f"{say('channels')} is {here}, but earlier images had {had}; give {had} or leave it out."
            )
        for option, columns, held in (("categories", self.categories, "category"), ("text", self.text, "text")):
            known = {column.name for column in self.like.columns if column.kind == held}
            strange = [name for name in columns if name not in known]
            if strange:
                what = "categories" if held == "category" else "texts"
                raise InputError(
                    f"{say(option)} names {listed(strange)}, which earlier files did not hold as {what}; leave it "
                    "out."
                )
        encoders = {column.encoder for column in self.like.columns if column.kind == "text"}
        if self.encoder is not None and encoders and self.encoder not in encoders:
            had = listed(sorted(encoders))
            raise InputError(f"{say('encoder')} is {self.encoder!r}, but earlier files had {had}; leave it out.")
