"""Folders keep what they were given, through crashes, full disks and damaged files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock, Timeout

from disk_faults import Killed, calls_of, fault
from ibpwf.errors import StoreError
from ibpwf.storage.files import append_jsonl, read_json, write_text
from ibpwf.storage.folder import LOCK, MOST_ENTRIES, lock_folder, open_folder, save_folder, verify_folder

KIND = "model"
OLD = {"base": {"w": torch.arange(6.0).reshape(2, 3)}, "task-0001": {"s": torch.tensor(1.5)}}
NEW = {
    "base": {"w": torch.arange(6.0).reshape(2, 3) + 1},  # a part that changes
    "task-0002": {"s": torch.tensor(2.5), "none": torch.zeros(0, 4)},  # one that comes; task-0001 goes
}


def save(path: Path, parts: Any, tasks: int) -> None:
    save_folder(path, kind=KIND, content={"tasks": tasks}, files=parts)


def whole(path: Path) -> tuple[int, dict[str, dict[str, torch.Tensor]]]:
    """What a reader gets, every part read and checked."""
    opened = open_folder(path, kind=KIND)
    return opened.content["tasks"], {name: opened.tensors(name) for name in opened.files}


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(left, right)


def files_of(path: Path) -> dict[str, bytes]:
    return {item.name: item.read_bytes() for item in path.iterdir() if item.name != LOCK}


@pytest.mark.parametrize("after", [False, True])
def test_a_save_killed_at_any_call_leaves_the_old_or_the_new_model(tmp_path: Path, after: bool) -> None:
    save(tmp_path / "count", OLD, 1)
    calls = calls_of(lambda: save(tmp_path / "count", NEW, 2))
    assert calls > 15
    seen = set()
    for at in range(1, calls + 1):
        path = tmp_path / str(at)
        save(path, OLD, 1)
        with contextlib.suppress(Killed), fault(at, Killed, True, after):
            save(path, NEW, 2)
        tasks, parts = whole(path)
        assert same(parts, OLD if tasks == 1 else NEW)
        assert verify_folder(path) == []
        seen.add(tasks)
        save(path, NEW, 2)  # and the next save works, and clears what the killed one left
        assert same(whole(path)[1], NEW)
        assert len(files_of(path)) == 3
    assert seen == {1, 2}


def test_a_first_save_killed_at_any_call_can_be_done_again(tmp_path: Path) -> None:
    calls = calls_of(lambda: save(tmp_path / "count", OLD, 1))
    for at in range(1, calls + 1):
        path = tmp_path / str(at)
        with contextlib.suppress(Killed), fault(at, Killed, True):
            save(path, OLD, 1)
        save(path, OLD, 1)
        assert same(whole(path)[1], OLD)
        assert len(files_of(path)) == 3


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "disk is full"), (errno.EACCES, "permission")])
def test_a_system_error_at_any_call_is_a_store_error_and_loses_nothing(
    tmp_path: Path, number: int, words: str
) -> None:
    save(tmp_path / "count", OLD, 1)
    calls = calls_of(lambda: save(tmp_path / "count", NEW, 2))
    refused = 0
    for at in range(1, calls + 1):
        path = tmp_path / str(at)
        save(path, OLD, 1)
        message = None
        try:
            with fault(at, lambda: OSError(number, os.strerror(number)), False):
                save(path, NEW, 2)
        except StoreError as error:
            message = str(error)
        tasks, parts = whole(path)
        assert same(parts, OLD if tasks == 1 else NEW)
        if message is not None:
            assert words in message
            assert str(path) in message
            left = [name for name in files_of(path) if ".tmp-" in name]
            # Where only the last sync failed, the old files stay, and the old manifest tells the next save.
            assert left == [] or (tasks == 2 and [name.partition(".tmp-")[0] for name in left] == ["manifest.json"])
            save(path, NEW, 2)
            assert len(files_of(path)) == 3
            refused += 1
    assert refused > calls // 2


def test_paths_that_cannot_be_are_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    cases = [
        (read_json, tmp_path / "none.json", "no such file"),
        (read_json, tmp_path, "it is a folder"),
        (read_json, tmp_path / "pipe", "not a plain file"),
        (read_json, tmp_path / "file" / "x", "is a file, not a folder"),
        (read_json, "a\0b", "null"),
        (lambda path: write_text(path, ""), tmp_path, "it is a folder"),
        (lambda path: write_text(path, ""), tmp_path / ("x" * 300), "too long"),
        (lambda path: write_text(path, ""), tmp_path / "no" / "x", "no such file or folder"),
        (lambda path: append_jsonl(path, {}), tmp_path / "no" / "x", "no such file or folder"),
        (lambda path: save(path, OLD, 1), tmp_path / "file", "in the way"),
        (lambda path: save(path, OLD, 1), tmp_path / "file" / "x", "is a file, not a folder"),
        (open_folder, tmp_path / "none", "no such file or folder"),
        (open_folder, tmp_path / "file", "is a file, not a folder"),
        (open_folder, tmp_path, "not a model folder"),
    ]
    for call, path, words in cases:
        with pytest.raises(StoreError, match=words):
            call(path)  # type: ignore[operator]


def test_a_file_that_may_not_be_read_is_a_store_error(tmp_path: Path) -> None:
    save(tmp_path, OLD, 1)
    opened = open_folder(tmp_path, kind=KIND)
    for read in (lambda: open_folder(tmp_path, kind=KIND), lambda: opened.tensors("base")):
        with (
            fault(1, lambda: PermissionError(errno.EACCES, "denied"), True),
            pytest.raises(StoreError, match="permission denied"),
        ):
            read()


def test_learning_a_task_adds_files_and_rewrites_none(tmp_path: Path) -> None:
    parts: dict[str, dict[str, torch.Tensor]] = {"base": {"w": torch.randn(3)}}
    save(tmp_path, parts, 0)
    for task in range(1, 4):
        before = {item: (item.stat().st_ino, item.stat().st_mtime_ns) for item in tmp_path.glob("*.safetensors")}
        parts[f"task-{task:04}"] = {"s": torch.randn(2)}
        save(tmp_path, parts, task)
        for item, stamp in before.items():
            assert (item.stat().st_ino, item.stat().st_mtime_ns) == stamp
        assert len(list(tmp_path.glob("*.safetensors"))) == task + 1
    assert same(whole(tmp_path)[1], parts)


def test_the_manifest_lists_the_size_and_digest_of_each_file(tmp_path: Path) -> None:
    save(tmp_path, OLD, 1)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["schema"], manifest["kind"], manifest["content"]) == (3, KIND, {"tasks": 1})
    for entry in manifest["files"].values():
        data = (tmp_path / entry["file"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["bytes"], entry["sha256"])


def test_a_save_removes_only_files_of_ours(tmp_path: Path) -> None:
    mine = ["notes.txt", "weights.safetensors", "a.tmp-file", "B.0123456789ab.safetensors"]
    mine += [
        "x.tmp-0123456789abcdef",
        "base.0123456789ab.safetensors",
    ]  # called like ours, but no manifest names them
    for name in mine:
        (tmp_path / name).write_text("mine")
    left = ["base.safetensors.tmp-0123456789abcdef", "manifest.json.tmp-0123456789abcdef"]
    for name in left:
        (tmp_path / name).write_text("left by a crash")
    save(tmp_path, OLD, 1)
    assert set(mine) <= set(files_of(tmp_path))
    assert not set(left) & set(files_of(tmp_path))


def test_any_flipped_or_missing_byte_is_noticed(tmp_path: Path) -> None:
    save(tmp_path, OLD, 1)
    chance = random.Random(0)
    for name, data in files_of(tmp_path).items():
        for _ in range(80):
            bad = bytearray(data)
            place = chance.randrange(len(bad))
            bad[place] ^= 1 << chance.randrange(8)
            if chance.random() < 0.3:
                bad = bad[:place]
            (tmp_path / name).write_bytes(bad)
            try:
                tasks, parts = whole(tmp_path)
            except StoreError:
                assert verify_folder(tmp_path)
            else:  # one blank for another between two fields of the manifest
                assert name == "manifest.json"
                assert json.loads(bad) == json.loads(data)
                assert tasks == 1
                assert same(parts, OLD)
        (tmp_path / name).write_bytes(data)
    assert verify_folder(tmp_path) == []


def test_verify_names_every_bad_file_and_a_save_puts_lost_ones_back(tmp_path: Path) -> None:
    save(tmp_path, OLD, 1)
    base, task = sorted(tmp_path.glob("*.safetensors"))
    base.unlink()
    task.write_bytes(task.read_bytes()[:-1])
    problems = verify_folder(tmp_path)
    assert [problem.file for problem in problems] == [base.name, task.name]
    assert "missing" in problems[0].message
    assert "bytes instead of" in problems[1].message
    save(tmp_path, OLD, 1)
    assert verify_folder(tmp_path) == []
    assert [problem.file for problem in verify_folder(tmp_path / "none")] == ["manifest.json"]


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes the manifest as somebody would who also knows how to renew its digest."""
    manifest = json.loads((path / "manifest.json").read_text())
    manifest = change(manifest) or manifest
    if isinstance(manifest, dict) and "sha256" in manifest:
        body = {key: value for key, value in manifest.items() if key != "sha256"}
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
        manifest["sha256"] = hashlib.sha256(canonical).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update(schema=4), "schema version 4, and this ibpwf reads 3.* newer ibpwf; upgrade"),
        (lambda m: m.update(schema=2), "schema version 2, and this ibpwf reads 3.* older ibpwf; read it with that"),
        (lambda m: m.update(schema=True), "'schema' is True"),
        (lambda m: m.update(schema=0), "'schema' is 0"),
        (lambda m: m.pop("schema") and None, "field 'schema' is missing"),
        (lambda m: m.pop("content") and None, "field 'content' is missing"),
        (lambda m: m.update(more=1), "field 'more' is unknown"),
        (lambda m: m.update(content=[]), r"field 'content' is \[\]; it should be an object"),
        (lambda m: m.update(kind=3), "field 'kind' is 3; it should be a valid string"),
        (lambda m: m.update(kind="data"), "holds a 'data', not a 'model'"),
        (lambda m: m.update(files=[]), r"field 'files' is \[\]; it should be an object"),
        (lambda m: [1, 2], "a list instead of an object"),
        (lambda m: m["files"]["base"].update(file="../x.safetensors"), r"'../x.safetensors'.*refused"),
        (lambda m: m["files"]["base"].update(file="/etc/passwd"), "'/etc/passwd'.*refused"),
        (lambda m: m["files"].update({"../base": m["files"].pop("base")}), "refused"),
        (
            lambda m: m["files"]["base"].update(sha256="0"),
            "'files.base.sha256' is '0'; it should match",
        ),
        (
            lambda m: m["files"]["base"].update(bytes=-1),
            "'files.base.bytes' is -1; it should be greater than",
        ),
        (lambda m: m["files"]["base"].update(extra=1), "field 'files.base.extra' is unknown"),
        (lambda m: m["files"].update(base=None), "field 'files.base' is None; it should be an object"),
    ],
)
def test_a_manifest_that_is_not_ours_is_refused(tmp_path: Path, change: Any, words: str) -> None:
    save(tmp_path, OLD, 1)
    rewrite(tmp_path, change)
    with pytest.raises(StoreError, match=words):
        open_folder(tmp_path, kind=KIND)
    before = files_of(tmp_path)
    with pytest.raises(StoreError, match=words):  # nor is it written over
        save(tmp_path, NEW, 2)
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("name", ["../x", "/x", "", "A", "a/b", "a" * 101, ".lock"])
def test_a_part_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="cannot name a part"):
        save(tmp_path / "m", {name: {}}, 1)
    assert files_of(tmp_path / "m") == {}


def test_an_unknown_part_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    save(tmp_path, OLD, 1)
    with pytest.raises(StoreError, match=r"no part 'tusk'\. It has: base, task-0001"):
        open_folder(tmp_path, kind=KIND).tensors("tusk")


def test_a_second_process_is_refused_while_the_first_writes_and_let_in_after(tmp_path: Path) -> None:
    hold = "import fcntl,sys; f=open(sys.argv[1],'w'); fcntl.flock(f,2); print('held',flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path / LOCK)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(StoreError, match="being written by another process"):
            save(tmp_path, OLD, 1)
        other.kill()
    save(tmp_path, OLD, 1)


def test_the_thread_that_holds_the_lock_may_save_and_another_may_not(tmp_path: Path) -> None:
    refused: list[str] = []

    def other() -> None:
        try:
            save(tmp_path, NEW, 2)
        except StoreError as error:
            refused.append(str(error))

    with lock_folder(tmp_path):
        save(tmp_path, OLD, 1)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        save(tmp_path, OLD, 1)  # the refused one did not take the lock away
    assert len(refused) == 1
    assert whole(tmp_path)[0] == 1
    other()
    assert whole(tmp_path)[0] == 2


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP])
def test_a_disk_without_locks_warns_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    fcntl = pytest.importorskip("fcntl")

    def no_locks(*_: object) -> None:
        raise OSError(number, "no locks")

    save(tmp_path / "copied", OLD, 1)  # from a disk with locks
    (tmp_path / "copied" / LOCK).touch()
    monkeypatch.setattr(fcntl, "flock", no_locks)
    for name in ("copied", "new"):
        with pytest.warns(UserWarning, match="no locks|flock not supported"):
            save(tmp_path / name, NEW, 2)
        assert same(whole(tmp_path / name)[1], NEW)


def test_a_process_that_was_forked_off_does_not_hold_the_lock(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        child = os.fork()
        if child == 0:
            try:
                save(tmp_path, NEW, 2)
            except StoreError:
                os._exit(3)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        save(tmp_path, OLD, 1)
    assert whole(tmp_path)[0] == 1


# Links, pipes and folders where a file of ours should be


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder beside the model, with a file of each kind that a save removes."""
    folder = tmp_path / "precious"
    folder.mkdir()
    for name in ("letter.txt", "manifest.json", "base.0123456789ab.safetensors", ".lock"):
        (folder / name).write_text("mine")
    return folder


def stand_in(kind: str, place: Path, precious: Path) -> None:
    if kind == "link":
        place.symlink_to(precious / "letter.txt")
    elif kind == "link to nothing":
        place.symlink_to(precious / "new")
    elif kind == "folder":
        place.mkdir()
    else:
        os.mkfifo(place)


STANDING = ["link", "link to nothing", "folder", "pipe"]


@pytest.mark.parametrize("field", ["tasks", "history"])
def test_as_many_tasks_are_saved_as_are_read_and_no_more(tmp_path: Path, field: str) -> None:
    most = [0] * MOST_ENTRIES
    saved = save_folder(tmp_path, kind=KIND, content={field: most}, files={})
    assert open_folder(tmp_path).content == {field: most}
    for content in ({field: [*most, 0]}, {"state": {field: [*most, 0]}}):
        with pytest.raises(
            StoreError, match=f"'{field}' has 100001 entries; at most 100000 are read.*another folder"
        ):
            save_folder(tmp_path, kind=KIND, content=content, files={"other": {"x": torch.zeros(1)}})
    assert open_folder(tmp_path).sha256 == saved.sha256
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOCK, "manifest.json"]


@pytest.mark.parametrize("kind", STANDING)
@pytest.mark.parametrize("name", [LOCK, "manifest.json", "base"])
def test_what_stands_where_our_files_do_is_refused_named_and_left_alone(
    tmp_path: Path, precious: Path, name: str, kind: str
) -> None:
    folder = tmp_path / "model"
    save(folder, OLD, 1)
    before = files_of(precious) | {LOCK: (precious / LOCK).read_bytes()}
    place = next(folder.glob("base.*")) if name == "base" else folder / name
    place.unlink()
    stand_in(kind, place, precious)
    words = f"{place.name}' is a .* instead of a file.* move it elsewhere, or restore"
    if name != LOCK:
        with pytest.raises(StoreError, match=words):
            whole(folder)
    if name != "base" or kind == "folder":
        with pytest.raises(StoreError, match=words if name != "base" else "it is a folder"):
            save(folder, OLD, 1)
        assert [problem.file for problem in verify_folder(folder)] == [place.name]
    else:  # a part is put back
        assert [problem.file for problem in verify_folder(folder)] == [place.name]
        save(folder, OLD, 1)
        assert verify_folder(folder) == []
    assert files_of(precious) | {LOCK: (precious / LOCK).read_bytes()} == before


def test_a_model_folder_may_itself_be_reached_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "model").symlink_to(tmp_path / "disk")
    save(tmp_path / "model", OLD, 1)
    assert same(whole(tmp_path / "model")[1], OLD)


def test_what_a_killed_save_has_removed_or_not_yet_named_is_cleared_by_the_next(tmp_path: Path) -> None:
    calls = calls_of(lambda: save(tmp_path / "count", NEW, 2))
    for at in range(1, calls + 6):
        path = tmp_path / str(at)
        save(path, OLD, 1)
        with contextlib.suppress(Killed), fault(at, Killed, True):
            save(path, NEW, 2)
        save(path, {"other": {}}, 3)  # neither the old parts nor the new ones
        assert sorted(name.split(".")[0] for name in files_of(path)) == ["manifest", "other"]


def test_an_error_of_the_disk_is_not_taken_for_another_process(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fcntl, "flock", broken)
        with pytest.raises(StoreError, match=r"cannot lock .*Input/output error. Check the disk"):
            save(tmp_path, OLD, 1)
        patch.setattr(FileLock, "acquire", lambda *_, **__: (_ for _ in ()).throw(Timeout("")))
        with pytest.raises(StoreError, match=r"cannot lock .*Input/output error. Check the disk"):
            save(tmp_path, OLD, 1)


def orders_of(work: Callable[[], None]) -> list[str]:
    """What is removed, renamed and synced, in its order."""
    done: list[str] = []

    def noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            done.append(f"{name} {args[-1].split('.')[0] if name == 'unlink' else ''}".strip())
            return result

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for name in ("unlink", "fsync", "replace"):
            patch.setattr(os, name, noting(name, getattr(os, name)))
        work()
    return done


def left_by_a_kill(path: Path) -> set[str]:
    """A folder whose save was killed right after the manifest's rename; the names of the parts that it replaced."""
    save(path, OLD, 1)
    parts = {*files_of(path)} - {"manifest.json"}
    for at in range(1, calls_of(lambda: save(path, NEW, 2)) + 1):
        for file in path.iterdir():
            file.unlink()
        save(path, OLD, 1)
        with contextlib.suppress(Killed), fault(at, Killed, True, True):
            save(path, NEW, 2)
        if whole(path)[0] == 2:
            return parts
    raise AssertionError("never renamed")


def test_whoever_takes_the_lock_removes_what_a_killed_save_left_for_good_before_what_names_it(tmp_path: Path) -> None:
    gone = left_by_a_kill(tmp_path)
    assert gone <= {*files_of(tmp_path)}

    def hold() -> None:
        with lock_folder(tmp_path):
            pass

    done = orders_of(hold)
    first, note = done.index("unlink base"), done.index("unlink manifest")
    assert "fsync" in done[:first], "the manifest's rename is on the disk first"
    assert "fsync" in done[done.index("unlink task-0001") : note]
    assert done[-1] == "fsync"
    assert len(files_of(tmp_path)) == 3
    assert same(whole(tmp_path)[1], NEW)


def test_an_interrupt_right_after_the_rename_of_the_manifest_leaves_no_deleted_part(tmp_path: Path) -> None:
    replace, interrupted = os.replace, []

    def interrupting(*args: Any, **kwargs: Any) -> None:
        replace(*args, **kwargs)
        if args[1] == "manifest.json":
            interrupted.append(1)
            raise KeyboardInterrupt

    save(tmp_path, OLD, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", interrupting)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, NEW, 2)
    assert interrupted
    assert whole(tmp_path)[0] == 2
    assert len(files_of(tmp_path)) == 3


def test_what_names_a_part_that_cannot_be_removed_stays_until_it_can_be(tmp_path: Path) -> None:
    gone = left_by_a_kill(tmp_path)
    unlink = os.unlink

    def refusing(name: str, *args: Any, **kwargs: Any) -> None:
        if name in gone:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        unlink(name, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", refusing)
        with lock_folder(tmp_path):
            assert gone <= {*files_of(tmp_path)}
    with lock_folder(tmp_path):
        assert len(files_of(tmp_path)) == 3


def test_nothing_is_removed_from_a_folder_whose_manifest_is_damaged(tmp_path: Path) -> None:
    left_by_a_kill(tmp_path)
    manifest = tmp_path / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    before = files_of(tmp_path)
    with lock_folder(tmp_path):
        assert files_of(tmp_path) == before
