"""Folders of images: one folder per class, or images alone where there is nothing to learn from them.

Nothing outside the folder is read: links that lead out of it, and links to folders, are refused.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ibpwf.data.examples import Examples, Origins
from ibpwf.data.image_file import MOST_BYTES, SUFFIXES, read_image
from ibpwf.data.labels import check_alike, clean_label
from ibpwf.data.layout import Layout
from ibpwf.data.opening import check_room, quoted, shown, spelled, whole_file
from ibpwf.data.options import ReadOptions
from ibpwf.errors import DataError, InputError

LARGE = 128
"""A side in pixels above which images are to be made smaller, rather than all as large as the first."""

_JUNK = {"thumbs.db", "desktop.ini", "__macosx", "@eadir", "icon\r"}
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def is_junk(name: str) -> bool:
    """Hidden files, and those that systems leave behind in folders of pictures."""
    return name.startswith(".") or name.lower() in _JUNK


def read_image_folder(folder: Path, options: ReadOptions) -> Examples:
    """The images in a folder, in the order of their names; their folders are their labels."""
    return _read(folder, *_images(folder, options), options)


def image_batches(folder: Path, options: ReadOptions, rows: int) -> Iterator[Examples]:
    """The same, `rows` images at a time."""
    files, y = _images(folder, options)
    for start in range(0, len(files), rows):
        here = slice(start, start + rows)
        yield _read(folder, files[here], None if y is None else y[here], options)


def images_in_batches(
    folder: Path, options: ReadOptions, at_once: Callable[[tuple[int, ...]], int]
) -> Iterator[Examples]:
    """The same of a folder that may be the first: its first image says what the others are like, and `at_once` how
    many of that shape are read together."""
    files, y = _images(folder, options)
    layout = options.like or _read(folder, files[:1], None, options).layout
    rows, like = at_once(layout.shape), replace(options, like=layout)
    for start in range(0, len(files), rows):
        here = slice(start, start + rows)
        yield _read(folder, files[here], None if y is None else y[here], like)
        if options.progress is not None:
            options.progress("reading", min(start + rows, len(files)), len(files))


def bytes_of_images(folder: Path, options: ReadOptions) -> int:
    """What the images of a folder take in memory."""
    files, _ = _images(folder, options)
    return 4 * len(files) * math.prod(_read(folder, files[:1], None, options).layout.shape)


def _images(folder: Path, options: ReadOptions) -> tuple[list[Path], list[str] | None]:
    """The files to read, and their labels if they have any."""
    options.expect("images", folder, pictures=True)
    root = folder.resolve()
    classes, loose = _entries(folder, root)
    if classes and loose:
        raise DataError(
            f"{shown(folder)} holds folders and, beside them, {shown(loose[0].name)}; put every image into the "
            "folder of its class, and remove other files."
        )
    if not classes and not loose:
        raise DataError(f"{shown(folder)} is empty; give a folder of images, or of a folder per class.")
    if loose:
        _check_suffix(loose)
        if options.needs_labels:
            raise DataError(
                f"{shown(folder)} holds images but no folders; put them into a folder per class, such as "
                f"cat/{shown(loose[0].name)}."
            )
        return loose, None
    files: list[Path] = []
    y: list[str] = []
    for one in classes:
        inside, images = _entries(one, root)
        if inside:
            raise DataError(
                f"{shown(one)} holds the folder {quoted(inside[0].name)}; give the folder whose folders are the "
                "classes, with images in them."
            )
        if not images:
            raise DataError(f"{shown(one)} holds no images; add some, or remove the folder.")
        _check_suffix(images)
        files += images
        y += [_class_name(one)] * len(images)
    first = {clean_label(one.name): place for place, one in enumerate(classes)}
    check_alike(first, Origins([str(one) for one in classes]), letters=False)
    return files, y if options.wants_labels else None


def read_one_image(path: Path, options: ReadOptions) -> Examples:
    """A single image file, which has no label."""
    options.expect("images", path, pictures=True)
    if options.needs_labels:
        raise InputError(
            f"{shown(path)} is one image without a label; give a folder with a folder of images per class."
        )
    return _read(path, [path], None, options)


def _entries(folder: Path, root: Path) -> tuple[list[Path], list[Path]]:
    """The folders and the files in a folder, by name, without junk."""
    folders: list[Path] = []
    files: list[Path] = []
    with os.scandir(folder) as entries:
        found = sorted((entry for entry in entries if not is_junk(entry.name)), key=lambda entry: entry.name)
    for entry in found:
        path = folder / entry.name
        if entry.is_symlink():
            try:
                target = path.resolve(strict=True)
            except (OSError, RuntimeError):  # Python before 3.13 calls a loop a RuntimeError
                raise DataError(f"{shown(path)} is a link that leads nowhere or in a loop; remove it.") from None
            if target.is_dir() or not target.is_relative_to(root):
                raise DataError(
                    f"{shown(path)} is a link to {shown(target)}, and links to folders or out of {shown(root)} are "
                    "not followed; copy what it links to."
                )
        (folders if entry.is_dir() else files).append(path)
    return folders, files


def _check_suffix(files: list[Path]) -> None:
    for path in files:
        if path.suffix.lower() not in SUFFIXES:
            raise DataError(
                f"{shown(path)} is no image by its name; remove it, or convert it to one of {', '.join(SUFFIXES)}."
            )


def _class_name(folder: Path) -> str:
    name = clean_label(folder.name)
    try:
        folder.name.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"{shown(folder)}: the folder's name is not UTF-8; rename it.") from None
    if not name or not name.isprintable():
        raise DataError(f"{shown(folder)}: the folder's name is no class name; rename it.")
    if _DEVICE.fullmatch(name):
        raise DataError(f"{shown(folder)} has a name that Windows keeps for a device; rename the class.")
    return name


def _read(path: Path, files: list[Path], y: list[str] | None, options: ReadOptions) -> Examples:
    """All images, brought to one shape or refused: the first file's, the earlier files', or what was asked for."""
    like = options.like
    shape = like.shape if like else None
    size, channels = options.size, options.channels
    if like is not None and len(like.shape) == 3:
        size = size or ((like.shape[1], like.shape[2]) if like.resize else None)
        channels = channels or (like.shape[0] if like.convert else None)
    x = None
    for row, file in enumerate(files):
        pixels = read_image(whole_file(file, MOST_BYTES), shown(file), size, channels)
        shape = shape or pixels.shape
        if pixels.shape != shape:
            others = "earlier images are" if like else f"{shown(files[0])} is"
            raise _odd_one(file, pixels.shape, shape, others, options)
        if x is None:
            check_room(path, (len(files), *shape))
            x = np.empty((len(files), *shape), dtype=np.float32)
        np.divide(pixels, np.float32(255), out=x[row], dtype=np.float32)
    assert x is not None  # there is at least one file
    assert shape is not None
    layout = like or Layout("images", shape, resize=size is not None, convert=channels is not None, pixels="bytes")
    layout.expect_pixels("bytes", 0, 1, shown(path))
    return Examples(str(path), x, y, layout, Origins([str(file) for file in files]))


def _odd_one(
    path: Path, shape: tuple[int, ...], expected: tuple[int, ...], others: str, options: ReadOptions
) -> DataError:
    if shape[1:] != expected[1:]:
        here, there = spelled(shape[1:]), spelled(expected[1:])
        # Photos are of many sizes, and larger than what is learnt from.
        large = options.like is None and max(expected[1:]) > LARGE
        wanted = (LARGE, LARGE) if large else (expected[1], expected[2])
        return DataError(
            f"{shown(path)} is {here} pixels (height×width), {others} {there}; make all images one size, or give "
            f"{options.naming('size', wanted)} to resize them."
        )
    kinds = {1: "greyscale", 3: "colour"}
    here, there = kinds[shape[0]], kinds.get(expected[0], f"{expected[0]} channels")
    return DataError(
        f"{shown(path)} is {here}, {others} {there}; convert it, or give "
        f"{options.naming('channels', expected[0])} to convert all images."
    )
