"""Tables out of a source archive on a package index: found on its page, checked, and read in their order."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from ibpwf.downloads import index
from ibpwf.downloads.files import DataFile
from ibpwf.downloads.index import IndexedArchive
from ibpwf.errors import DataError, InputError
from ibpwf.lab.data import tables

CSV = b"a,b,target\n1.5,2,0\n3,-4,1\n"


def archive() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tape:
        member = tarfile.TarInfo("made-1.0/src/made/small.csv")
        member.size = len(CSV)
        tape.addfile(member, io.BytesIO(CSV))
    return out.getvalue()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Addresses and what they give; a table that is to be found there."""
    packed = archive()
    pages = {
        "https://index.example/simple/made/": b'<a href="../../files/made-0.9.tar.gz">old</a>'
        b'<a href="../../files/made-1.0.tar.gz#sha256=x">new</a>',
        "https://index.example/files/made-1.0.tar.gz": packed,
    }

    def download(url: str, target: Path, progress: object) -> None:
        target.write_bytes(pages[url])

    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple")
    monkeypatch.setattr(index, "download", download)
    source = IndexedArchive("made", "made-1.0.tar.gz", hashlib.sha256(packed).hexdigest())
    file = DataFile("small.csv", hashlib.md5(CSV, usedforsecurity=False).hexdigest(), len(CSV))
    monkeypatch.setitem(tables.TABLES, "small", tables.Table("small", "two rows", file, (source,)))
    return pages


def test_a_table_is_fetched_once_and_read_in_its_order(served: dict[str, bytes], tmp_path: Path) -> None:
    x, y = tables.load_table("small", data_dir=tmp_path)
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    assert (x.tolist(), y.tolist()) == ([[1.5, 2.0], [3.0, -4.0]], [0, 1])
    served.clear()
    assert tables.load_table("small", data_dir=tmp_path)[1].tolist() == [0, 1]


def test_an_archive_with_another_digest_is_not_opened(served: dict[str, bytes], tmp_path: Path) -> None:
    served["https://index.example/files/made-1.0.tar.gz"] = archive() + b"\0"
    with pytest.raises(DataError, match=r"sha256 of made-1\.0\.tar\.gz is"):
        tables.load_table("small", data_dir=tmp_path)


def test_a_page_without_the_archive_says_so(served: dict[str, bytes], tmp_path: Path) -> None:
    served["https://index.example/simple/made/"] = b"<html></html>"
    with pytest.raises(DataError, match=r"the index has no made-1\.0\.tar\.gz"):
        tables.load_table("small", data_dir=tmp_path)


def test_an_unknown_table_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="Did you mean 'covertype'"):
        tables.load_table("covertyp")
