"""A full disk: 507 and one sentence, nothing half-written, and all is well once there is room again."""

from __future__ import annotations

import builtins
import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import (
    TASKS,
    Server,
    blobs,
    client_of,
    files_under,
    fresh_folder,
    is_refused,
    request,
    service_of,
    task_table,
)
from starlette.testclient import TestClient

from disk_faults import full_disk
from ibpwf import ContinualClassifier
from ibpwf.serving import versions, worker
from ibpwf.serving.service import Service
from ibpwf.serving.versions import Kept

X = blobs(range(6), each=1, seed=2)[0]


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_quota() -> OSError:
    return OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


@pytest.fixture
def client(models: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TestClient, Service]]:
    """A server whose jobs stay in the queue, so that requests alone touch the disk."""
    service = service_of(models)
    monkeypatch.setattr(service.jobs, "_enqueue", lambda model, job: None)
    with client_of(service) as found:
        yield found, service


def leftovers(model: Path) -> list[str]:
    state = model / ".serving"
    found = [path for path in files_under(state) if path.name.endswith(".new") or ".tmp-" in path.name]
    found += list((state / "jobs").glob("*")) + list((state / "exports").glob("*"))
    return [str(path) for path in found]


@pytest.mark.parametrize("error", [no_space, no_quota])
@pytest.mark.parametrize("doing", ["upload", "forget"])
def test_a_job_that_the_disk_does_not_take_is_rejected_with_507_wherever_it_fills_up(client, models, doing, error):
    http, service = client
    data = task_table(models.parent, 3).read_bytes()

    def ask() -> Any:
        if doing == "upload":
            return http.post("/v2/models/things/tasks?task=colors", content=data)
        return http.post("/v2/models/things/forget", json={"task": "pets"})

    with full_disk(0, error) as calls:
        assert ask().status_code == 202
    for folder in (models / "things" / ".serving" / "jobs").iterdir():
        shutil.rmtree(folder)
    service.jobs.all.clear()
    service.jobs._stored.clear()
    rejected = 0
    for at in range(1, calls[0] + 1):
        with full_disk(at, error):
            answered = ask()
        if answered.status_code == 202:  # the audit line alone could not be written
            break
        rejected += 1
        assert answered.status_code == 507, (at, answered.text)
        assert is_refused(answered)
        assert leftovers(models / "things") == [], at
        assert service.jobs.all == {}
        assert service.jobs._stored == {}
    assert rejected >= 3
    assert ask().status_code == 202


def test_a_file_that_the_disk_takes_half_of_leaves_nothing(client, models, monkeypatch):
    http, _ = client
    real = builtins.open

    class Half:
        """A file that takes a thousand bytes."""

        def __init__(self, file: Any) -> None:
            self.file, self.left = file, 1000

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def __enter__(self) -> Half:
            return self

        def __exit__(self, *ended: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> int:
            self.left -= self.file.write(data[: self.left])
            if self.left <= 0:
                raise no_space()
            return len(data)

    def half(path: Any, *args: Any, **options: Any) -> Any:
        file = real(path, *args, **options)
        return Half(file) if str(path).endswith(".new/data") else file

    monkeypatch.setattr(builtins, "open", half)
    answered = http.post("/v2/models/things/tasks?task=colors", content=task_table(models.parent, 3).read_bytes())
    assert answered.status_code == 507
    assert is_refused(answered)
    assert leftovers(models / "things") == []


def test_what_needs_no_disk_is_answered_when_it_is_full(client):
    http, _ = client
    with full_disk(1, no_space):
        assert http.post("/v2/models/things/infer", json=request(X)).status_code == 200
        assert http.get("/v2/models/things").status_code == 200
        assert http.get("/v2/health/ready").status_code == 200


def test_an_export_that_cannot_be_begun_is_507_and_leaves_nothing(client, models):
    http, service = client
    with full_disk(1, no_space):
        answered = http.post("/v2/models/things/export?to=folder")
    assert answered.status_code == 507
    assert is_refused(answered)
    assert service.exporting == 0
    assert leftovers(models / "things") == []


def test_a_model_whose_version_cannot_be_kept_is_served_all_the_same(models, monkeypatch, caplog):
    def full(*args: Any) -> None:
        raise no_space()

    monkeypatch.setattr(versions, "link_model", full)
    with client_of(service_of(models)) as http:
        assert http.get("/v2/models/things").json()["versions"] == ["1", "2", "3"]
    assert any("things" in record.message and "kept" in record.message for record in caplog.records)


# The process that does a job


def do(model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[..., Any] | None, job: dict) -> int:
    """Do a job in this process, with one part of it replaced."""
    import json
    import threading

    folder.mkdir(exist_ok=True)
    (folder / "job.json").write_text(json.dumps(job))
    monkeypatch.chdir(folder)
    if work is not None:
        monkeypatch.setattr(worker, "_learn", work)
    return worker._do(model, threading.Event(), "cpu")


def test_a_job_that_fills_the_disk_says_so_by_its_exit_code_without_a_traceback(models, tmp_path, monkeypatch, capfd):
    def full(*args: Any) -> None:
        raise no_space()

    job = {"kind": "learn", "task": "colors"}
    assert do(models / "things", tmp_path / "job", monkeypatch, full, job) == worker.DISK_FULL
    assert "Traceback" not in capfd.readouterr().err


def test_a_job_that_is_done_is_done_though_its_result_cannot_be_written(models, tmp_path, monkeypatch):
    def done(*args: Any) -> dict[str, Any]:
        (tmp_path / "job" / "result.json").mkdir()  # in the way
        return {}

    job = {"kind": "learn", "task": "colors"}
    assert do(models / "things", tmp_path / "job", monkeypatch, done, job) == worker.DONE


def test_a_task_is_forgotten_also_where_its_versions_cannot_be_written_anew(models, tmp_path, monkeypatch):
    path = models / "things"
    kept = Kept(path)
    kept.keep()
    classifier = ContinualClassifier.load(path)
    classifier.forget("trees")
    classifier.save(path)

    def full(opened: Any, target: Path) -> None:
        (target / "half").write_text("trees")
        raise no_space()

    monkeypatch.setattr(versions, "link_model", full)
    kept.follow()
    for file in files_under(path):
        assert not file.is_file() or b"trees" not in file.read_bytes(), file


# A disk that is full in earnest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(place)], capture_output=True)
    if made.returncode:
        pytest.skip("a file system cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Fill a disk up to so many bytes."""
    ballast, free = disk / "ballast", shutil.disk_usage(disk).free
    with ballast.open("ab") as file:
        file.write(b"\0" * max(0, free - leave))
    return ballast


@pytest.mark.faults
def test_a_disk_that_fills_up_at_any_moment_costs_no_bit_and_no_version(made_models, small_disk, tally):
    models = fresh_folder(made_models, small_disk)
    shutil.rmtree(models / "pictures")
    data = task_table(small_disk, 3, each=2000)
    content, size = data.read_bytes(), data.stat().st_size
    data.unlink()
    server = Server(models, "--limit", "seconds=60")
    found = {"server faults": 0, "other bits": 0, "left over": 0, "not done afterwards": 0}
    tried = 0

    def bits() -> str:
        return server.http.post("/v2/models/things/versions/2/infer", json=request(X)).text

    before = bits()
    try:
        for leave in [
            0,
            4096,
            8192,
            16384,
            size // 2,
            size,
            size + 8192,
            *range(size + 20_000, size + 400_000, 20_000),
        ]:
            ballast = fill(small_disk, leave)
            answers = [
                server.http.post("/v2/models/things/tasks?task=colors", content=content),
                server.http.post("/v2/models/things/export?to=folder"),
                server.http.post("/v2/models/things/verify"),
            ]
            tried += len(answers)
            for one in answers:
                found["server faults"] += one.status_code == 500 or one.status_code not in (200, 202, 507)
            jobs = [one.json()["id"] for one in answers[:1] if one.status_code == 202]
            for job in jobs:
                ended = server.wait(job)
                found["server faults"] += ended["state"] == "failed" and "disk" not in ended["error"]
            found["other bits"] += bits() != before
            ballast.unlink()
            state = models / "things" / ".serving"
            found["left over"] += len([*state.rglob("*.new"), *state.rglob("data*"), *state.rglob("*.tmp-*")])
            found["left over"] += len(list((state / "exports").glob("*")))
            if "colors" in server.http.get("/v2/models/things").json()["parameters"]["tasks"]:
                forgotten = server.http.post("/v2/models/things/forget", json={"task": "colors"})
                found["not done afterwards"] += server.wait(forgotten.json()["id"])["state"] != "done"
        assert server.http.post("/v2/models/things/verify").json()["intact"]
        answered = server.http.post("/v2/models/things/tasks?task=colors", content=content)
        found["not done afterwards"] += server.wait(answered.json()["id"])["state"] != "done"
        found["server faults"] += server.log.count("Traceback")
        assert server.http.get("/v2/models/things").json()["parameters"]["tasks"] == list(TASKS[:4])
    finally:
        server.kill()
    assert np.isfinite(ContinualClassifier.load(models / "things").prediction(X.astype(np.float32)).probability).all()
    tally("requests to a server whose disk is full", tried, **found)
