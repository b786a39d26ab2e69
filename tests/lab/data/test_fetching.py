"""Fetching: only right bytes get in, nothing is left half done, and the errors say what to do."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_set import CONTENT, NAME, Shelf

from ibpwf.downloads import cache
from ibpwf.downloads.sources import Mirror
from ibpwf.errors import DataError
from ibpwf.lab.data import sets
from ibpwf.lab.data.fetching import fetch, is_cached, verify

FILES = sorted(CONTENT)
IMAGES = "train-images-idx3-ubyte"
forks = pytest.mark.skipif(sys.platform == "win32", reason="uses fork and POSIX signals")


def test_fetched_files_are_the_sources_bytes(tiny, left, root: Path) -> None:
    tiny(Shelf())
    assert not is_cached(NAME)
    folder = fetch(NAME)
    assert folder == root / NAME
    assert left() == FILES
    assert {name: (folder / name).read_bytes() for name in FILES} == CONTENT
    assert is_cached(NAME)


def test_what_is_cached_is_not_fetched_again_unless_asked(tiny) -> None:
    shelf = Shelf()
    tiny(shelf)
    fetch(NAME)
    fetch(NAME)
    assert shelf.asked == 1
    fetch(NAME, again=True)
    assert shelf.asked == 2


def test_a_wrong_digest_is_refused_by_name_and_nothing_is_kept(tiny, left) -> None:
    wrong = bytes(len(CONTENT[IMAGES]))
    tiny(Shelf({IMAGES: wrong}))
    with pytest.raises(DataError) as caught:
        fetch(NAME)
    message = str(caught.value)
    assert IMAGES in message
    assert hashlib.md5(wrong).hexdigest() in message
    assert hashlib.md5(CONTENT[IMAGES]).hexdigest() in message
    assert left() == []


def test_right_files_beside_a_wrong_one_are_kept_and_the_next_source_gives_the_rest(tiny, left) -> None:
    second = Shelf()
    tiny(Shelf(CONTENT | {IMAGES: b"wrong"}, label="bad mirror"), second)
    fetch(NAME)
    assert left() == FILES
    assert second.asked == 1


def test_when_every_source_fails_each_is_listed_with_its_reason_and_a_remedy(tiny, left) -> None:
    tiny(Shelf({}, label="first"), Shelf({IMAGES: b"short"}, label="second"))
    with pytest.raises(DataError) as caught:
        fetch(NAME)
    message = str(caught.value)
    assert "first: has no" in message
    assert "second: md5" in message
    assert "5 bytes, expected 336" in message
    assert f"ibpwf data fetch {NAME} --from PATH" in message
    assert "IBPWF_DATA" in message
    assert left() == []


def test_a_failed_refetch_leaves_the_good_files_alone(tiny, left) -> None:
    shelf = Shelf()
    tiny(shelf)
    fetch(NAME)
    shelf.content = dict.fromkeys(CONTENT, b"rubbish")
    with pytest.raises(DataError):
        fetch(NAME, again=True)
    assert all(check.ok for check in verify(NAME))
    assert left() == FILES


def test_a_damaged_cached_file_is_replaced_with_a_warning(tiny, root: Path) -> None:
    shelf = Shelf()
    tiny(shelf)
    fetch(NAME)
    path = root / NAME / IMAGES
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    assert [check.name for check in verify(NAME) if not check.ok] == [IMAGES]
    with pytest.warns(UserWarning, match=f"{IMAGES}.*damaged"):
        data = sets.load(NAME)
    assert path.read_bytes() == CONTENT[IMAGES]
    assert data.train_x.flatten().tolist() == list(CONTENT[IMAGES][16:])


@pytest.mark.parametrize("damage", [b"", b"\0" * 10, CONTENT[IMAGES] + b"\0"])
def test_a_damaged_cached_file_is_never_used_when_no_source_has_a_good_one(tiny, root: Path, damage: bytes) -> None:
    shelf = Shelf()
    tiny(shelf)
    fetch(NAME)
    shelf.content = {}
    (root / NAME / IMAGES).write_bytes(damage)
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(DataError, match=f"{IMAGES}: md5"):
        sets.load(NAME)


def test_an_exception_in_the_progress_callback_comes_through_and_leaves_nothing(tiny, left, server) -> None:
    server.serve_all()
    tiny(Mirror(server.url))

    def impatient(label: str, done: int, total: int | None) -> None:
        if done:
            raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        fetch(NAME, progress=impatient)
    assert left() == []


@pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_between_files_leaves_only_whole_files(tiny, left, stop: type[BaseException]) -> None:
    def third_time(name: str, scratch: Path) -> None:
        (scratch / "half").write_bytes(b"downloaded so far")
        if name == FILES[0]:
            raise stop

    tiny(Shelf(before=third_time))
    with pytest.raises(stop):
        fetch(NAME)
    assert left() == ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"]
    assert all(check.ok for check in verify(NAME) if check.found)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_interrupt_while_writing_leaves_no_part_of_the_file(
    tiny, left, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    tiny(Shelf())

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch(NAME)
    assert left() == []


@contextlib.contextmanager
def small_disk(largest: int) -> Iterator[None]:
    """The system refuses to make any file larger than this."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_said_in_a_sentence_and_leaves_nothing(tiny, left) -> None:
    second = Shelf()
    tiny(Shelf(), second)
    with small_disk(100), pytest.raises(DataError, match=r"cannot write to .*the disk is full.*IBPWF_DATA"):
        fetch(NAME)
    assert left() == []
    assert second.asked == 0, "another source does not make the disk larger"


def test_a_forbidden_folder_is_said_in_a_sentence(tiny, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny(Shelf())

    def forbidden(*args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", forbidden)
    with pytest.raises(DataError, match=r"cannot write to .*tiny: permission denied.*IBPWF_DATA"):
        fetch(NAME)


def test_a_forbidden_file_is_said_in_a_sentence(tiny, left, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny(Shelf())

    def forbidden(*args: object) -> None:
        raise PermissionError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", forbidden)
        with pytest.raises(DataError, match="permission denied"):
            fetch(NAME)
    assert left() == []


def test_a_cache_path_that_is_a_file_is_said_in_a_sentence(tiny, root: Path) -> None:
    tiny(Shelf())
    root.write_text("not a folder")
    with pytest.raises(DataError, match=r"cannot .*tiny.*IBPWF_DATA"):
        fetch(NAME)


def test_a_cache_that_is_complete_needs_no_right_to_write(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny(Shelf())
    fetch(NAME)

    def forbidden(*args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", forbidden)
    monkeypatch.setattr(Path, "mkdir", forbidden)
    fetch(NAME)
    assert len(sets.load(NAME).train_y) == 20


def run_forked(job: Callable[[], None]) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=job)
    process.start()
    return process


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


@forks
def test_of_two_processes_one_fetches_and_the_other_waits(tiny, left, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def slowly(name: str, scratch: Path) -> None:
        with open(log, "a") as out:
            out.write(f"{name}\n")
        time.sleep(0.1)

    tiny(Shelf(before=slowly))
    processes = [run_forked(lambda: fetch(NAME) and None) for _ in range(3)]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert sorted(log.read_text().split()) == FILES, "every file was asked for exactly once"
    assert left() == FILES


@forks
def test_the_one_who_waits_is_told_so(tiny, root: Path) -> None:
    tiny(Shelf())
    labels: list[str] = []
    (root / NAME).mkdir(parents=True)

    def hold() -> None:
        with cache.locked(root / NAME, lambda: None):
            (root / "held").touch()
            wait_for((root / "told").exists)

    def tell(label: str, done: int, total: int | None) -> None:
        labels.append(label)
        (root / "told").touch()

    holder = run_forked(hold)
    wait_for((root / "held").exists)
    fetch(NAME, progress=tell)
    holder.join(60)
    assert labels
    assert labels[0].startswith("waiting for another process")


@forks
def test_ctrl_c_in_the_middle_of_a_download_leaves_nothing(tiny, left, root: Path) -> None:
    def hang(name: str, scratch: Path) -> None:
        (scratch / "half").write_bytes(b"x" * 1000)
        time.sleep(600)

    tiny(Shelf(before=hang))

    def job() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        fetch(NAME)

    process = run_forked(job)
    wait_for(lambda: any(root.glob("*/.fetch-*/half")))
    os.kill(process.pid or 0, signal.SIGINT)
    process.join(120)
    assert process.exitcode == 1
    assert left() == []
    assert sorted(path.name for path in (root / NAME).iterdir()) == [".lock"]


@forks
def test_what_a_killed_process_left_is_swept_by_the_next_and_its_lock_is_free(tiny, left, root: Path) -> None:
    def hang(name: str, scratch: Path) -> None:
        (scratch / "half").write_bytes(b"x" * 1000)
        time.sleep(600)

    shelf = Shelf(before=hang)
    tiny(shelf)
    process = run_forked(lambda: fetch(NAME) and None)
    wait_for(lambda: any(root.glob("*/.fetch-*/half")))
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join(120)
    shelf.before = None
    fetch(NAME)
    assert sorted(path.name for path in (root / NAME).iterdir()) == [".lock", *FILES]


@forks
def test_a_file_system_without_locks_still_works(tiny, left, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def none(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    tiny(Shelf())
    fetch(NAME)
    assert left() == FILES


def test_the_cache_folder_follows_argument_then_environment_then_platform(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("IBPWF_DATA", str(tmp_path / "env"))
    assert cache.cache_folder(tmp_path / "given") == tmp_path / "given"
    assert cache.cache_folder() == tmp_path / "env"
    monkeypatch.delenv("IBPWF_DATA")
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache.cache_folder() == tmp_path / "xdg" / "ibpwf"
        monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    places = {"linux": ".cache", "darwin": "Library/Caches"}
    if sys.platform in places:
        assert cache.cache_folder() == tmp_path / places[sys.platform] / "ibpwf"


def test_a_disk_too_small_is_said_before_anything_is_downloaded(tiny, left, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf()
    tiny(shelf)
    usage = type("Usage", (), {"total": 10**9, "used": 10**9, "free": 100})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(DataError, match="the disk is full"):
        fetch(NAME)
    assert shelf.asked == 0
    assert left() == []
