"""Bad files by the hundred: every kind of damage in every format that can have it. Each has a name of its own."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_files import Cases, text
from bad_images import X, Y
from sample_files import SIGNATURE, chunk, idx, idx_pair, picture, png, two_classes

BAD = Cases()

# Tables, with each delimiter; `|` stands for it

TABLES: dict[str, str | bytes] = {
    "a header that is not UTF-8": b"caf\xe9|y\n1|u\n2|v\n",
    "a cell that is not UTF-8": b"a|b|y\n1|\xff\xfe|u\n",
    "UTF-16": "a|y\n1|u\n".encode("utf-16"),
    "UTF-16 without a mark": "a|y\n1|u\n2|v\n".encode("utf-16-le"),
    "NUL in the header": b"a\0|y\n1|u\n",
    "NUL in the last line": b"a|y\n1|u\n2|v\n\0",
    "a quote open in the header": '"a|y\n1|u\n2|v\n',
    "a quote open in the last line": 'a|y\n1|u\n2|"v\n',
    "text after a quote": 'a|y\n1|"u"x\n2|v\n',
    "a short line": "a|b|y\n1|2|u\n3|v\n",
    "a long line": "a|b|y\n1|2|u\n3|4|5|v\n",
    "a column twice": "a|a|y\n1|2|u\n",
    "a column without a name": "a||y\n1|2|u\n",
    "no bytes": "",
    "blanks alone": " \n\n \n",
    "a header alone": "a|b|y\n",
    "no header": "1|2|3\n4|5|6\n",
    "no label": "a|b\n1|2\n",
    "two labels": "a|label|class\n1|u|v\n",
    "a label alone": "y\nu\nv\n",
    "a label missing": "a|y\n1|u\n2|\n",
    "a gap": "a|b|y\n1||u\n3|4|v\n",
    "nan": "a|y\n1|u\nnan|v\n",
    "-nan": "a|y\n1|u\n-nan|v\n",
    "inf": "a|y\n1|u\ninf|v\n",
    "beyond float32": "a|y\n1|u\n-4e38|v\n",
    "beyond float64": "a|y\n1|u\n1e400|v\n",
    "an identifier of digits": "a|y\n1|u\n9007199254740993|v\n",
    "a word among numbers": "a|y\n1|u\n2|v\nx|u\n",
    "a number among words": "a|y\nx|u\nz|v\n3|u\n",
    "hexadecimal": "a|y\n1|u\n2|u\n0x1F|v\n",
    "a thousands mark": "a|y\n1|u\n2|u\n1'000|v\n",
    "a currency": "a|y\n1|u\n2|u\n$5|v\n",
    "a formula": "a|y\n1|u\n2|u\n=A1+1|v\n",
    "dates": "a|y\n2024-01-05|u\n2024-02-05|v\n",
    "dates of another country": "a|y\n5.1.2024|u\n6.2.2024|v\n",
    "times": "a|y\n12:30|u\n18:05|v\n",
    "moments": "a|y\n2024-01-05T12:30:00Z|u\n2024-01-06T12:30:00Z|v\n",
    "control characters in a label": "a|y\n1|u\x1b[31m\n2|v\n",
    "a direction mark in a label": "a|y\n1|u\u202ev\n2|v\n",
    "classes that differ by case": "a|y\n1|Cat\n2|CAT\n",
    "classes that differ by blanks": "a|y\n1|a b\n2|a  b\n",
    "a field too long": f"a|y\n1|{'u' * 140_000}\n",
    "names of rows": "a|y\n" + "".join(f"row {n}|u\n" for n in range(150)),
    "a class of one row": "a|y\n1|u\n2|u\n3|v\n",
    "a measurement as the label": "a|y\n" + "".join(f"1|{n / 7:.3f}\n" for n in range(40)),
    "a Parquet file by another name": b"PAR1" + bytes(40),
    "a gzip file by another name": gzip.compress(b"a|y\n1|u\n"),
    "a spreadsheet by another name": b"PK\x03\x04" + bytes(40),
}

for ending, mark in ((".csv", ","), (";.csv", ";"), (".tsv", "\t")):
    for what, content in TABLES.items():
        raw = content.encode() if isinstance(content, str) else content
        words = ""
        if ending == ".tsv" and what.endswith("by another name"):
            words = "NUL byte|not UTF-8|has no column|header and no rows"
        BAD.text(f"{what} ({mark!r})", raw.replace(b"|", mark.encode()), words, f"a{ending}")


# NPZ


def npz_of(name: str, **arrays: Any) -> None:
    def make(folder: Path) -> Path:
        np.savez(folder / "a.npz", **arrays)
        return folder / "a.npz"

    BAD[f"npz: {name}"] = (make, {}, "")


for kind in ("complex64", "complex128", "U3", "S3", "M8[D]", "m8[s]", "V4", "i4,f4", "O"):
    npz_of(f"x of {kind}", x=np.zeros((4, 3), kind), y=Y)
    npz_of(f"y of {kind}", x=X, y=np.zeros(4, kind)) if kind not in ("U3", "S3") else None
for shape in ((), (4,), (0, 3), (4, 0), (4, 3, 0), (2, 2, 2, 2, 2), (4, 0, 5, 5)):
    npz_of(f"x of shape {shape}", x=np.zeros(shape), y=Y)
for value in (np.nan, np.inf, -np.inf, 0.5):
    npz_of(f"a label that is {value}", x=X, y=np.array([0, 1, 0, value]))
    if value != 0.5:
        npz_of(f"an input that is {value}", x=np.where(np.eye(4, 3) > 0, value, X), y=Y)
npz_of("a number beyond float32", x=X * 1e300, y=Y)
npz_of("more labels than rows", x=X, y=np.zeros(5, int))
npz_of("labels in two columns", x=X, y=np.zeros((4, 2), int))
npz_of("no y", x=X)
npz_of("no x", y=Y)
npz_of("other names", first=X, second=Y)
npz_of("blank labels", x=X, y=np.array(["", "u", "v", "w"]))


def npy(header: bytes, version: tuple[int, int] = (1, 0), length: int | None = None, body: bytes = b"") -> bytes:
    size = len(header) if length is None else length
    packed = struct.pack("<H" if version == (1, 0) else "<I", size)
    return b"\x93NUMPY" + bytes(version) + packed + header + body


def described(shape: str = "(4, 3)", descr: str = "'<f8'", order: str = "False") -> bytes:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}\n".encode()


def zipped(name: str, *members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED, words: str = "") -> None:
    def make(folder: Path) -> Path:
        with zipfile.ZipFile(folder / "a.npz", "w", method) as bundle:
            for member, data in members:
                bundle.writestr(member, data)
        return folder / "a.npz"

    BAD[f"npz: {name}"] = (make, {}, words)


FORGED: dict[str, bytes] = {
    "a shape of 10^18": npy(described("(1000000000, 1000000000)"), body=bytes(96)),
    "a shape beyond 64 bits": npy(described("(4611686018427387904, 16)"), body=bytes(96)),
    "a shape of 10^4000": npy(described(f"({'9' * 4000}, 2)"), body=bytes(96)),
    "a negative shape": npy(described("(-4, 3)"), body=bytes(96)),
    "two negatives": npy(described("(-4, -3)"), body=bytes(96)),
    "a shape that is text": npy(described("'4, 3'"), body=bytes(96)),
    "a shape of floats": npy(described("(4.0, 3.0)"), body=bytes(96)),
    "a shape of truth values": npy(described("(True, False)"), body=bytes(96)),
    "text of two billion letters": npy(described(descr="'<U2000000000'"), body=bytes(96)),
    "no type": npy(described(descr="'nonsense'"), body=bytes(96)),
    "objects": npy(described(descr="'|O'"), body=bytes(96)),
    "no order": npy(described(order="'maybe'"), body=bytes(96)),
    "a key too few": npy(b"{'descr': '<f8', 'shape': (4, 3)}\n", body=bytes(96)),
    "no dictionary": npy(b"[1, 2, 3]\n", body=bytes(96)),
    "no Python": npy(b"\xff\xfe{{{{\n", body=bytes(96)),
    "a call": npy(b"__import__('os').system('true')\n", body=bytes(96)),
    "brackets without end": npy(b"(" * 9000, body=bytes(96)),
    "brackets within brackets": npy(b"(" * 2000 + b")" * 2000, body=bytes(96)),
    "a header longer than the file": npy(described(), length=60_000),
    "a header of 4 GB": npy(described(), (2, 0), length=2**32 - 1),
    "a header of spaces": npy(described() + b" " * 50_000, (2, 0), body=bytes(96)),
    "a version to come": npy(described(), (9, 9), body=bytes(96)),
    "another magic": b"NOTNUMPY" + bytes(100),
    "nothing": b"",
    "five bytes": b"\x93NUMP",
    "less than announced": npy(described(), body=bytes(95)),
    "more than announced": npy(described(), body=bytes(97)),
}
LABELS = npy(described("(4,)", "'<i8'"), body=np.arange(4).tobytes())
for what, data in FORGED.items():
    zipped(f"x announces {what}", ("x.npy", data), ("y.npy", LABELS))
zipped("a bomb of zeros", ("x.npy", npy(described("(40000, 40000)"), body=bytes(10**6))), ("y.npy", LABELS))
zipped("a header bomb", ("x.npy", npy(b" " * (1 << 26), (2, 0))), ("y.npy", LABELS), words="header of 67,108,864")
zipped("members without .npy", ("x", b"1,2,3"), ("y", b"1"))
zipped("a path out of it", ("../x.npy", b""), ("/y.npy", b""))
zipped("nothing in it")


def damaged(name: str, make: Callable[[Path], Path], change: Callable[[bytes], bytes], **options: Any) -> None:
    def made(folder: Path) -> Path:
        path = make(folder)
        path.write_bytes(change(path.read_bytes()))
        return path

    BAD[name] = (made, options, "")


def whole_npz(method: int = zipfile.ZIP_STORED) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        with zipfile.ZipFile(folder / "a.npz", "w", method) as bundle:
            for name, array in (("x", X), ("y", Y)):
                held = io.BytesIO()
                np.save(held, array)
                bundle.writestr(f"{name}.npy", held.getvalue())
        return folder / "a.npz"

    return make


for share in range(1, 10):
    damaged(f"npz: cut at {share}0 %", whole_npz(), lambda data, share=share: data[: len(data) * share // 10])  # type: ignore[misc]
for method, name in ((8, "deflate"), (12, "bzip2"), (14, "lzma")):
    damaged(f"npz: damaged {name}", whole_npz(method), lambda data: data[:45] + bytes(30) + data[75:])
damaged(
    "npz: an unknown compression",
    whole_npz(),
    lambda d: d.replace(b"PK\1\2\x14\3\x14\0\0\0\0\0", b"PK\1\2\x14\3\x14\0\0\0\x63\0"),
)
damaged("npz: encrypted", whole_npz(), lambda d: d.replace(b"PK\1\2\x14\3\x14\0\0\0", b"PK\1\2\x14\3\x14\0\1\0"))


# IDX


def idx_damage(name: str, change: Callable[[bytes], bytes]) -> None:
    damaged(f"idx: {name}", idx_pair, change)


for size in range(16):
    idx_damage(f"cut to {size} bytes", lambda data, size=size: data[:size])  # type: ignore[misc]
for code in (0, 7, 9, 11, 12, 13, 14, 255):
    idx_damage(f"numbers of type {code}", lambda data, code=code: data[:2] + bytes([code]) + data[3:])  # type: ignore[misc]
for rank in (0, 1, 5, 255):
    idx_damage(f"of rank {rank}", lambda data, rank=rank: data[:3] + bytes([rank]) + data[4:])  # type: ignore[misc]
for place in (4, 8, 12):
    idx_damage(f"an extent of 2^32 - 1 at {place}", lambda d, at=place: d[:at] + b"\xff" * 4 + d[at + 4 :])  # type: ignore[misc]
    idx_damage(f"an extent of 0 at {place}", lambda d, at=place: d[:at] + bytes(4) + d[at + 4 :])  # type: ignore[misc]
idx_damage("a byte less", lambda data: data[:-1])
idx_damage("a byte more", lambda data: data + b"\0")
idx_damage("900 MB announced", lambda data: data[:4] + struct.pack(">3I", 1000, 1000, 900) + data[16:])


def idx_gz(name: str, data: bytes) -> None:
    def make(folder: Path) -> Path:
        path = idx_pair(folder)
        path.unlink()
        packed = path.with_name(path.name + ".gz")
        packed.write_bytes(data)
        return packed

    BAD[f"idx.gz: {name}"] = (make, {}, "")


PACKED = gzip.compress(idx(np.zeros((6, 4, 5), np.uint8)))
for share in range(1, 9):
    idx_gz(f"cut at {share}0 %", PACKED[: len(PACKED) * share // 10])
idx_gz("a wrong checksum", PACKED[:-8] + bytes(8))
idx_gz("garbage after the header", PACKED[:12] + bytes(40))
idx_gz("a bomb", gzip.compress(b"\0\0\x08\x03" + struct.pack(">3I", 3000, 3000, 3000) + bytes(50_000_000)))
idx_gz("more than announced", gzip.compress(idx(np.zeros((6, 4, 5), np.uint8)) + bytes(50_000_000)))


# Images


def image_bytes(kind: str) -> bytes:
    image = pytest.importorskip("PIL.Image")
    held = io.BytesIO()
    image.fromarray(picture(height=40, width=40)).save(held, kind)
    return held.getvalue()


ENDINGS = {"PNG": "png", "JPEG": "jpg", "GIF": "gif", "BMP": "bmp", "TIFF": "tif", "WEBP": "webp"}


def among_images(name: str, ending: str, data: Callable[[], bytes]) -> None:
    def make(folder: Path) -> Path:
        two_classes(folder / "set")
        (folder / "set" / "dog" / f"9.{ending}").write_bytes(data())
        return folder / "set"

    BAD[f"image: {name}"] = (make, {}, "")


def first_bytes(kind: str, share: float) -> bytes:
    whole = image_bytes(kind)
    return whole[: int(len(whole) * share)]


for kind, ending in ENDINGS.items():
    for share in (0.02, 0.1, 0.3, 0.5, 0.7):
        among_images(f"{kind} cut at {share:.0%}", ending, lambda kind=kind, share=share: first_bytes(kind, share))  # type: ignore[misc]
    among_images(f"{kind} of text", ending, lambda: b"these are not pixels\n" * 20)
    among_images(f"{kind} of no bytes", ending, lambda: b"")
    among_images(f"{kind} with zeros for a header", ending, lambda kind=kind: bytes(16) + image_bytes(kind)[16:])  # type: ignore[misc]
    among_images(f"{kind} larger than the others", ending, lambda kind=kind: image_bytes(kind))  # type: ignore[misc]


def announcing(width: int, height: int, depth: int = 8, color: int = 2) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")


for width, height in ((2**31 - 1, 2**31 - 1), (2**32 - 1, 1), (1, 2**27), (8193, 8192), (0, 0), (5, 0)):
    among_images(f"PNG of {width}×{height}", "png", lambda w=width, h=height: announcing(w, h))  # type: ignore[misc]
for depth, color in ((16, 2), (16, 0), (3, 2), (8, 7), (255, 255)):
    among_images(f"PNG of depth {depth}, type {color}", "png", lambda d=depth, c=color: announcing(5, 4, d, c))  # type: ignore[misc]
BOMB = chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(200_000_000)))
among_images("PNG with a bomb of text", "png", lambda: png(picture(), between=BOMB))
among_images("PNG without an end", "png", lambda: png(picture())[:-40])
among_images(
    "BMP of 60,000×60,000", "bmp", lambda: image_bytes("BMP")[:18] + struct.pack("<ii", 60_000, 60_000) + bytes(60)
)
among_images("GIF of 65,535×65,535", "gif", lambda: b"GIF89a\xff\xff\xff\xff" + image_bytes("GIF")[10:])


# Parquet


def parquet_of(name: str, column: Callable[[Any], Any], label: Any = None) -> None:
    def make(folder: Path) -> Path:
        arrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        y = arrow.array(["u", "v"] * 2) if label is None else label(arrow)
        writer.write_table(arrow.table({"a": column(arrow), "y": y}), folder / "a.parquet")
        return folder / "a.parquet"

    BAD[f"parquet: {name}"] = (make, {}, "")


parquet_of("lists", lambda pa: pa.array([[1], [2], [3], [4]]))
parquet_of("structures", lambda pa: pa.array([{"p": 1}] * 4))
parquet_of("maps", lambda pa: pa.array([[("k", 1)]] * 4, pa.map_(pa.string(), pa.int64())))
for unit in ("s", "ms", "us", "ns"):
    parquet_of(f"spans in {unit}", lambda pa, unit=unit: pa.array([1, 2, 3, 4], pa.duration(unit)))
parquet_of("a gap among moments", lambda pa: pa.array([1, None, 3, 4], pa.timestamp("s")))
parquet_of("bytes", lambda pa: pa.array([b"a", b"b"] * 2))
parquet_of("bytes of one length", lambda pa: pa.array([b"a", b"b"] * 2, pa.binary(1)))
parquet_of("nothing at all", lambda pa: pa.nulls(4))
parquet_of("a gap", lambda pa: pa.array([1.0, None, 2.0, 3.0]))
parquet_of("a gap among words", lambda pa: pa.array(["a", None, "b", "c"]))
parquet_of("nan", lambda pa: pa.array([1.0, float("nan"), 2.0, 3.0]))
parquet_of("infinity", lambda pa: pa.array([1.0, float("inf"), 2.0, 3.0]))
parquet_of("beyond float32", lambda pa: pa.array([1.0, 1e39, 2.0, 3.0]))
parquet_of("identifiers", lambda pa: pa.array([1, 2**60, 2, 3]))
parquet_of("dates that nobody can tell", lambda pa: pa.array(["01/02/2024", "02/01/2024"] * 2))
parquet_of("a label missing", lambda pa: pa.array([1, 2, 3, 4]), lambda pa: pa.array(["u", None, "v", "v"]))
parquet_of(
    "labels that are spans", lambda pa: pa.array([1, 2, 3, 4]), lambda pa: pa.array([1, 2] * 2, pa.duration("s"))
)


def whole_parquet(folder: Path) -> Path:
    arrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    writer.write_table(arrow.table({"a": list(range(500)), "y": ["u", "v"] * 250}), folder / "a.parquet")
    return folder / "a.parquet"


for share in range(1, 10):
    damaged(f"parquet: cut at {share}0 %", whole_parquet, lambda data, share=share: data[: len(data) * share // 10])  # type: ignore[misc]
damaged("parquet: zeros for a footer", whole_parquet, lambda data: data[:-60] + bytes(52) + data[-8:])
damaged("parquet: a footer of 2 GB", whole_parquet, lambda data: data[:-8] + struct.pack("<I", 2**31 - 1) + b"PAR1")
damaged("parquet: zeros for pages", whole_parquet, lambda data: data[:4] + bytes(200) + data[204:])
damaged("parquet: four bytes", whole_parquet, lambda data: data[:4])
damaged("parquet: no bytes", whole_parquet, lambda data: b"")

# By their names

for ending in [
    ".json",
    ".jsonl",
    ".txt",
    ".pkl",
    ".pt",
    ".h5",
    ".mat",
    ".feather",
    ".npy",
    ".svg",
    ".pdf",
    ".zip",
    ".tar",
    ".tgz",
    ".csv.gz",
    ".bz2",
    ".xz",
    ".zst",
    ".7z",
    ".rar",
    ".xls",
    ".xlsx",
    ".ods",
]:
    BAD[f"a file called a{ending}"] = (text("a,y\n1,u\n2,v\n", f"a{ending}"), {}, "")
BAD["a file called a"] = (text("a,y\n1,u\n2,v\n", "a"), {}, "")


def rows_of(cells: bytes, times: int, folder: Path) -> Path:
    """A table whose second row goes on and on."""
    with (folder / "a.csv").open("wb") as file:
        file.write(b"a,y\n1,u\n")
        for _ in range(times):
            file.write(cells)
    return folder / "a.csv"


@BAD.file("67,108,864 characters")
def a_line_without_end(folder: Path) -> Path:
    return rows_of(b"1," * (1 << 20), 100, folder)


@BAD.file("67,108,864 characters")
def quoted_lines_without_end(folder: Path) -> Path:
    return rows_of(b'"a\nb",' * (1 << 18), 80, folder)


@BAD.file("1,000,001 columns.*100,000")
def a_million_columns(folder: Path) -> Path:
    names = ",".join(f"c{number}" for number in range(1_000_000))
    (folder / "a.csv").write_text(f"{names},y\n{'1,' * 1_000_000}u\n")
    return folder / "a.csv"


@BAD.file("NUL byte|longer than")
def a_hole_of_five_gigabytes(folder: Path) -> Path:
    with (folder / "a.csv").open("wb") as file:
        file.write(b"a,y\n1,u\n")
        file.truncate(5_000_000_000)
    return folder / "a.csv"
