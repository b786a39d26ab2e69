"""Bad images and arrays, and paths that lead nowhere good."""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_files import Cases, text
from sample_files import IRIS, SIGNATURE, chunk, idx, idx_pair, picture, pictures, png, two_classes

BAD = Cases()

# Files and folders


@BAD.file(r"gone\.csv.*no such file")
def no_such_file(folder: Path) -> Path:
    return folder / "gone.csv"


@BAD.file(r"a\.csv .*notes\.txt")
def a_folder_of_tables_and_other_things(folder: Path) -> Path:
    text(IRIS)(folder)
    (folder / "notes.txt").write_text("mine")
    return folder


@BAD.file(r"a\.csv/b\.csv")
def a_file_where_a_folder_is_expected(folder: Path) -> Path:
    return text(IRIS)(folder) / "b.csv"


@BAD.file(r"a\.csv is empty")
def a_folder_called_like_a_table(folder: Path) -> Path:
    (folder / "a.csv").mkdir()
    return folder / "a.csv"


@BAD.file(r"a\.csv is a pipe")
def a_pipe(folder: Path) -> Path:
    if not hasattr(os, "mkfifo"):
        pytest.skip("no pipes here")
    os.mkfifo(folder / "a.csv")
    return folder / "a.csv"


@BAD.file(r"loop\.csv")
def a_link_to_itself(folder: Path) -> Path:
    (folder / "loop.csv").symlink_to(folder / "loop.csv")
    return folder / "loop.csv"


@BAD.file(r"a\.zip is an archive")
def a_zip_that_would_write_outside(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "a.zip", "w") as bundle:
        bundle.writestr("../../escaped.png", b"")
    return folder / "a.zip"


@BAD.file(r"a\.tar\.gz is an archive")
def a_tar_that_would_write_outside(folder: Path) -> Path:
    with tarfile.open(folder / "a.tar.gz", "w:gz") as tape:
        tape.addfile(tarfile.TarInfo("/etc/escaped.png"))
    return folder / "a.tar.gz"


# NPZ


def npz(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "a.npz", **arrays)
    return folder / "a.npz"


X, Y = np.arange(12.0).reshape(4, 3), np.arange(4) % 2


WITH_NAN = np.where(np.arange(12).reshape(4, 3) == 7, np.nan, X)
ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "an npz with pickles": (
        {"x": X, "y": np.array(["u", None, 3, {}], dtype=object)},
        r"a\.npz: array 'y' .*unpickled",
    ),
    "an npz with fewer labels": ({"x": X, "y": Y[:3]}, r"a\.npz .*4 .*3"),
    "an npz with one-hot labels": ({"x": X, "y": np.eye(2)[Y]}, r"a\.npz .*4 .*\(4, 2\)"),
    "an npz with other names": (
        {"inputs": X, "classes": Y, "more": Y},
        r"a\.npz .*'inputs', 'classes', 'more'",
    ),
    "an npz without arrays": ({}, r"a\.npz .*no arrays"),
    "an npz with nan": ({"x": WITH_NAN, "y": Y}, r"a\.npz, example 2, column 1: nan"),
    "an npz of one dimension": ({"x": X[:, 0], "y": Y}, r"array 'x' .*\(4,\)"),
    "an npz of no rows": ({"x": X[:0], "y": Y[:0]}, r"array 'x' .*\(0, 3\)"),
    "an npz of words": ({"x": np.full((4, 3), "a"), "y": Y}, "array 'x' .*<U1"),
    "an npz with fractions as labels": ({"x": X, "y": Y / 2}, r"a\.npz, example 1.*0\.5"),
}
for _name, (_arrays, _named) in ARRAYS.items():
    BAD[_name] = (lambda folder, arrays=_arrays: npz(folder, **arrays), {}, _named)  # type: ignore[misc]


def forged(folder: Path, shape: tuple[int, ...], body: bytes) -> Path:
    """An .npz file whose x announces this shape, whatever it holds."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("x.npy", header.getvalue() + body)
        bundle.writestr("y.npy", b"")
    return folder / "a.npz"


@BAD.file(r"a\.npz .*1,000,000×1,000,000")
def an_npz_bomb(folder: Path) -> Path:
    return forged(folder, (10**6, 10**6), bytes(1000))


@BAD.file(r"array 'x' .*1000×1000")
def an_npz_that_announces_more_than_it_has(folder: Path) -> Path:
    return forged(folder, (1000, 1000), bytes(4000))


@BAD.file(r"a\.npz .*damaged")
def an_npz_cut_short(folder: Path) -> Path:
    path = npz(folder, x=X, y=Y)
    path.write_bytes(path.read_bytes()[:-40])
    return path


# IDX


def idx_changed(name: str, named: str, change: Callable[[bytes], bytes], labels: int | None = 6) -> None:
    """A pair of files of which that with the images is changed; with other labels than images, or none."""

    def make(folder: Path) -> Path:
        path = idx_pair(folder, labels=labels or 6)
        path.write_bytes(change(path.read_bytes()))
        if labels is None:
            (folder / "train-labels-idx1-ubyte").unlink()
        return path

    BAD[name] = (make, {}, f"train-images-idx3-ubyte .*{named}")


idx_changed("idx labels of another length", "6 .*train-labels-idx1-ubyte .*5", bytes, labels=5)
idx_changed("idx of another type", "00 00 0d 03", lambda data: idx(np.zeros((6, 4, 5), dtype=">f4"), kind=13))
idx_changed("idx cut short", "6×4×5 .*110", lambda data: data[:-10])
idx_changed("idx cut in its header", "header", lambda data: data[:9])
idx_changed("idx without labels", "train-labels-idx1-ubyte", bytes, labels=None)


@BAD.file(r"4,294,967,295×4,294,967,295×4,294,967,295")
def idx_bomb(folder: Path) -> Path:
    path = idx_pair(folder)
    path.unlink()
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12 + bytes(10_000)))
    return packed


@BAD.file(r"train-images-idx3-ubyte\.gz .*damaged")
def idx_in_a_gzip_cut_short(folder: Path) -> Path:
    path = idx_pair(folder)
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes())[:-30])
    path.unlink()
    return packed


@BAD.file(r"'t10k-images-idx3-ubyte', 'train-images-idx3-ubyte'")
def a_folder_of_two_idx_pairs(folder: Path) -> Path:
    idx_pair(folder)
    (folder / "t10k-images-idx3-ubyte").write_bytes(b"")
    return folder


@BAD.file(r"train-labels-idx1-ubyte .*images")
def idx_labels_instead_of_images(folder: Path) -> Path:
    return idx_pair(folder).with_name("train-labels-idx1-ubyte")


# Images


def spoilt(words: str, name: str, data: bytes, file_name: str = "1.png", **options: Any) -> None:
    """A folder of good images of which one is bad."""

    def make(folder: Path) -> Path:
        two_classes(folder / "set")
        (folder / "set" / "dog" / file_name).write_bytes(data)
        return folder / "set"

    BAD[name] = (make, options, words)


WHOLE = png(picture())
BOMB = SIGNATURE + chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
BOMB += chunk(b"IDAT", zlib.compress(bytes(100_000))) + chunk(b"IEND", b"")
SEEN_THROUGH = np.concatenate([picture(), np.full((4, 5, 1), 9, np.uint8)], axis=2)

spoilt(r"dog/1\.png .*'hello world'", "a text file called .png", b"hello world")
spoilt(r"dog/1\.png is empty", "an image of no bytes", b"")
spoilt(r"dog/1\.png", "a PNG cut short", WHOLE[:-30])
spoilt(r"dog/1\.png .*header", "a PNG cut in its header", WHOLE[:20])
spoilt(r"dog/1\.png", "a PNG with a wrong bit", WHOLE[:50] + b"\x55" + WHOLE[51:])
spoilt(r"dog/1\.png .*60,000×60,000 .*67,108,864", "an image bomb", BOMB)
spoilt(
    r"dog/1\.png .*3×2 .*cat/0\.png .*4×5.*size=\(4, 5\)", "an image of another size", png(picture(height=3, width=2))
)
spoilt(r"dog/1\.png .*cat/0\.png .*channels=3", "greyscale among colour", png(picture(1)))
spoilt(r"dog/1\.png .*16 bits", "a 16-bit PNG", png(picture().astype(np.uint16) * 256, depth=16))
spoilt(r"dog/1\.png .*transparent", "transparent pixels", png(SEEN_THROUGH))
spoilt(r"dog/2\.txt", "another file among images", b"notes", "2.txt")
spoilt(r"dog/1\.png .*0×4", "an image without pixels", WHOLE[:16] + bytes(4) + WHOLE[20:])
spoilt(r"size is \(0, 3\)", "a size of nothing", WHOLE, size=(0, 3))
spoilt(r"ignore .*tables.*set", "an option of tables", WHOLE, ignore=["a"])


@BAD.file(r"dog holds no images")
def an_empty_class(folder: Path) -> Path:
    return pictures(folder, cat=[WHOLE], dog=[])


@BAD.file(r"stray\.png")
def an_image_beside_the_classes(folder: Path) -> Path:
    two_classes(folder)
    (folder / "stray.png").write_bytes(WHOLE)
    return folder


@BAD.file(r"train .*'cat'")
def classes_one_level_too_deep(folder: Path) -> Path:
    two_classes(folder / "train")
    return folder


@BAD.file(r"cat/0\.png")
def images_without_classes(folder: Path) -> Path:
    return pictures(folder, cat=[WHOLE]) / "cat"


@BAD.file(r"cat/0\.png .*label")
def one_image_to_learn_from(folder: Path) -> Path:
    return pictures(folder, cat=[WHOLE]) / "cat" / "0.png"


@BAD.file(r"is empty")
def a_folder_of_junk_alone(folder: Path) -> Path:
    for name in (".DS_Store", "Thumbs.db", ".hidden.png"):
        (folder / name).write_bytes(b"junk")
    return folder


@BAD.file(r"cat: class 'cat' and class 'Cat' .*Cat\)", name="two class folders that differ by case")
def two_cases(folder: Path) -> Path:
    pictures(folder, Cat=[WHOLE])
    if (folder / "cat").exists():
        pytest.skip("this file system does not tell them apart")
    return pictures(folder, cat=[WHOLE])


@BAD.file(r"nul .*device")
def a_class_called_like_a_device(folder: Path) -> Path:
    return pictures(folder, cat=[WHOLE], nul=[WHOLE])


@BAD.file(r"\\udcff.*UTF-8")
def a_class_whose_name_is_not_UTF_8(folder: Path) -> Path:
    two_classes(folder)
    try:
        os.mkdir(os.fsencode(folder) + b"/\xff")
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff/0.png")).write_bytes(WHOLE)
    return folder


@BAD.file(r"cat/out\.png .*secret\.png.*set")
def a_link_out_of_the_folder(folder: Path) -> Path:
    two_classes(folder / "set")
    (folder / "secret.png").write_bytes(WHOLE)
    (folder / "set" / "cat" / "out.png").symlink_to(folder / "secret.png")
    return folder / "set"


@BAD.file(r"set/again is a link")
def a_link_that_makes_a_loop_of_folders(folder: Path) -> Path:
    two_classes(folder / "set")
    (folder / "set" / "again").symlink_to(folder / "set")
    return folder / "set"


@BAD.file(r"cat/loop\.png is a link")
def a_link_to_itself_among_images(folder: Path) -> Path:
    two_classes(folder)
    (folder / "cat" / "loop.png").symlink_to(folder / "cat" / "loop.png")
    return folder


@BAD.file(r"cat/2\.png is a pipe")
def a_pipe_among_images(folder: Path) -> Path:
    two_classes(folder)
    if not hasattr(os, "mkfifo"):
        pytest.skip("no pipes here")
    os.mkfifo(folder / "cat" / "2.png")
    return folder


@BAD.file(r"a\.gif .*2 frames", name="a moving image")
def moving(folder: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    two_classes(folder)
    frames = [image.fromarray(picture(seed=seed)) for seed in range(2)]
    frames[0].save(folder / "cat" / "a.gif", save_all=True, append_images=frames[1:])
    return folder


@BAD.file(r"cat/a\.jpg .*damaged")
def a_JPEG_cut_short(folder: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    two_classes(folder)
    image.fromarray(picture(height=64, width=64)).save(folder / "cat" / "a.jpg")
    whole = (folder / "cat" / "a.jpg").read_bytes()
    (folder / "cat" / "a.jpg").write_bytes(whole[: len(whole) // 2])
    return folder
