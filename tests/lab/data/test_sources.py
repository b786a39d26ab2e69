"""Each kind of source: the user's files in all their shapes, and mirrors that misbehave."""

from __future__ import annotations

import gzip
import io
import socket
import sys
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from tiny_set import CONTENT, NAME, Server, Shelf

from ibpwf.downloads import sources
from ibpwf.downloads.sources import LocalFiles, Mirror
from ibpwf.errors import DataError
from ibpwf.lab.data.fetching import fetch, verify

IMAGES = "train-images-idx3-ubyte"


def raw(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    return folder


def gzipped(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, content in CONTENT.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
    return folder


def nested(folder: Path) -> Path:
    raw(folder / "MNIST" / "raw")
    return folder


def one_file_of_several(folder: Path) -> Path:
    return gzipped(folder) / "t10k-labels-idx1-ubyte.gz"


def tar(folder: Path) -> Path:
    folder.mkdir()
    path = folder / "all.tar.gz"
    with tarfile.open(path, "w:gz") as tape:
        for name, content in CONTENT.items():
            info = tarfile.TarInfo(f"package/data/{name}.gz")
            packed = gzip.compress(content, mtime=0)
            info.size = len(packed)
            tape.addfile(info, io.BytesIO(packed))
    return path


def zipped(folder: Path) -> Path:
    folder.mkdir()
    path = folder / "all.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("archive/", "")
        for name, content in CONTENT.items():
            bundle.writestr(f"archive/{name}", content)
    return path


@pytest.mark.parametrize("make", [raw, gzipped, nested, one_file_of_several, tar, zipped])
def test_the_users_files_are_taken_in_every_usual_shape(tiny, left, tmp_path: Path, make) -> None:
    shelf = Shelf()
    tiny(shelf)
    path = make(tmp_path / "mine")
    folder = fetch(NAME, source=path)
    assert {name: (folder / name).read_bytes() for name in left()} == CONTENT
    assert shelf.asked == 0
    assert all(check.ok for check in verify(NAME, source=path))


def test_of_two_files_with_one_name_the_right_one_is_taken(tiny, tmp_path: Path) -> None:
    raw(tmp_path / "mine" / "other")
    for name in CONTENT:
        (tmp_path / "mine" / "other" / name).write_bytes(b"another data set with the same file names")
    raw(tmp_path / "mine" / "zz")
    tiny()
    fetch(NAME, source=tmp_path / "mine")
    assert all(check.ok for check in verify(NAME))


def test_a_missing_path_is_an_error_and_no_other_source_is_asked(tiny, tmp_path: Path) -> None:
    shelf = Shelf()
    tiny(shelf)
    with pytest.raises(DataError, match="there is no such file or folder"):
        fetch(NAME, source=tmp_path / "nowhere")
    assert shelf.asked == 0


def test_a_wrong_file_is_named_with_both_digests(tiny, left, tmp_path: Path) -> None:
    mine = raw(tmp_path / "mine")
    (mine / IMAGES).write_bytes(CONTENT["t10k-images-idx3-ubyte"])
    tiny()
    with pytest.raises(DataError, match=rf"md5 of {IMAGES} is [0-9a-f]{{32}}, expected [0-9a-f]{{32}}"):
        fetch(NAME, source=mine)
    assert IMAGES not in left()
    assert [check.name for check in verify(NAME, source=mine) if not check.ok] == [IMAGES]


def test_a_file_of_another_kind_is_refused(tiny, left, tmp_path: Path) -> None:
    path = tmp_path / "holiday.jpg"
    path.write_bytes(b"\xff\xd8\xff" + bytes(100))
    tiny()
    with pytest.raises(DataError, match=f"nothing there is called {IMAGES}"):
        fetch(NAME, source=path)
    assert left() == []


@pytest.mark.parametrize("keep", [1, 5, 30, -9, -1])
def test_a_gzip_file_cut_short_is_refused(tiny, left, tmp_path: Path, keep: int) -> None:
    mine = gzipped(tmp_path / "mine")
    path = mine / f"{IMAGES}.gz"
    path.write_bytes(path.read_bytes()[:keep])
    tiny()
    with pytest.raises(DataError, match=IMAGES):
        fetch(NAME, source=mine)
    assert IMAGES not in left()


def test_a_gzip_file_that_never_ends_is_read_no_further_than_needed(tiny, tmp_path: Path) -> None:
    mine = gzipped(tmp_path / "mine")
    (mine / f"{IMAGES}.gz").write_bytes(gzip.compress(bytes(200_000_000), 1))
    tiny()
    tracemalloc.start()
    with pytest.raises(DataError, match="more than the expected 336 bytes"):
        fetch(NAME, source=mine)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()


def test_an_archive_cut_short_is_refused(tiny, left, tmp_path: Path) -> None:
    path = tar(tmp_path / "mine")
    path.write_bytes(path.read_bytes()[:-200])
    tiny()
    with pytest.raises(DataError, match="could not be had"):
        fetch(NAME, source=path)
    assert len(left()) < len(CONTENT)


def test_an_archive_cannot_write_outside(tiny, tmp_path: Path) -> None:
    path = tmp_path / "evil.tar"
    with tarfile.open(path, "w") as tape:
        info = tarfile.TarInfo(f"../../{IMAGES}")
        info.size = 4
        tape.addfile(info, io.BytesIO(b"evil"))
        link = tarfile.TarInfo("train-labels-idx1-ubyte")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tape.addfile(link)
    tiny()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match=f"md5 of {IMAGES}"):
        fetch(NAME, source=path)
    made = set(tmp_path.rglob("*")) - set(before)
    assert {file.name for file in made} == {"cache", NAME, ".lock"}


def test_pickled_cifar_is_refused_with_the_reason(root: Path, tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"\x80\x02}q\x01.")
    with pytest.raises(DataError, match=r"pickled version.*binary version"):
        fetch("cifar10", source=tmp_path / "cifar-10-batches-py")


def test_an_installed_package_is_used_and_its_absence_said(tiny, tmp_path: Path) -> None:
    tiny(LocalFiles(tmp_path / "share"))
    with pytest.raises(DataError, match=r"share: there is no such file or folder"):
        fetch(NAME)
    gzipped(tmp_path / "share")
    fetch(NAME)
    assert all(check.ok for check in verify(NAME))


def test_a_mirror_is_downloaded_with_progress(tiny, left, server: Server) -> None:
    server.serve_all()
    tiny(Mirror(server.url))
    seen: dict[str, list[tuple[int, int | None]]] = {}
    fetch(NAME, progress=lambda label, done, total: seen.setdefault(label, []).append((done, total)))
    assert left() == sorted(CONTENT)
    for name in CONTENT:
        steps = seen[f"{name}.gz"]
        assert steps[0][0] == 0
        assert steps[-1][0] == steps[-1][1]


def test_a_mirror_without_the_files_gives_way_to_the_next(tiny, server: Server) -> None:
    server.serve_all()
    tiny(Mirror(f"{server.url}/nothing-here"), Mirror(server.url))
    fetch(NAME)
    assert all(check.ok for check in verify(NAME))


@pytest.mark.parametrize(
    ("body", "length", "reason"),
    [
        (gzip.compress(CONTENT[IMAGES], mtime=0)[:40], 80, "the connection ended after 40 of 80 bytes"),
        (gzip.compress(CONTENT[IMAGES], mtime=0)[:40], 40, "ended before"),
        (b"<html>please log in</html>", None, "md5 of"),
        (b"", None, "md5 of"),
    ],
)
def test_a_mirror_that_sends_rubbish_is_refused(
    tiny, left, server: Server, body: bytes, length: int | None, reason: str
) -> None:
    server.serve_all()
    server.serve(f"{IMAGES}.gz", body, length=length)
    tiny(Mirror(server.url))
    with pytest.raises(DataError, match=reason):
        fetch(NAME)
    assert IMAGES not in left()


def test_unreachable_mirrors_are_listed_with_reasons(tiny, left) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = probe.getsockname()[1]
    tiny(Mirror(f"http://127.0.0.1:{closed}"), Mirror("http://host.invalid/mnist"))
    with pytest.raises(DataError) as caught:
        fetch(NAME)
    lines = [line for line in str(caught.value).splitlines() if "http://" in line]
    assert "refused" in lines[0]
    assert "host.invalid" in lines[1]
    assert len(lines) == 2
    assert left() == []


def test_a_mirror_that_never_answers_is_given_up(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "ANSWER_SECONDS", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        shelf = Shelf()
        tiny(Mirror(f"http://127.0.0.1:{silent.getsockname()[1]}"), shelf)
        fetch(NAME)
    assert shelf.asked == 1


def test_a_mirrored_archive_is_unpacked(tiny, server: Server, tmp_path: Path) -> None:
    server.serve("all.tar.gz", tar(tmp_path / "mine").read_bytes())
    tiny(Mirror(server.url, archive="all.tar.gz"))
    fetch(NAME)
    assert all(check.ok for check in verify(NAME))


def test_without_pooch_a_mirror_names_the_extra_and_the_next_source_is_asked(
    tiny, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.serve_all()
    monkeypatch.setitem(sys.modules, "pooch", None)
    tiny(Mirror(server.url))
    with pytest.raises(DataError, match=r"downloading needs pooch; run pip install 'ibpwf\[lab\]'"):
        fetch(NAME)
    assert server.requests == []
    tiny(Mirror(server.url), Shelf())
    fetch(NAME)
    assert all(check.ok for check in verify(NAME))
