"""Teaching over HTTP: a new version appears whole, old ones answer with the same bits all the while."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from served import (
    TASKS,
    Watcher,
    archive,
    blobs,
    client_of,
    files_under,
    inside,
    pixels,
    png,
    read_audit,
    request,
    service_of,
    task_table,
    wait_for,
)

from ibpwf import ContinualClassifier
from ibpwf.estimator.files import LearnOptions, update_file
from ibpwf.serving.batching import Rows, predict
from ibpwf.serving.jobs import Job
from ibpwf.serving.learning_routes import EXPORTS
from ibpwf.serving.registry import ServedModel
from ibpwf.serving.worker import FAILED, Worker
from ibpwf.storage.files import write_json
from ibpwf.storage.folder import lock_folder

X = blobs(range(6), each=3, seed=9)[0]


def test_a_task_is_learnt_while_old_versions_answer_with_the_same_bits(start, models):
    server = start()
    before = {
        number: server.http.post(f"/v2/models/things/versions/{number}/infer", json=request(X)).json()
        for number in (1, 2, 3)
    }
    watcher = Watcher(server, (1, 2, 3), X)
    watcher.start()
    file = task_table(models.parent, 3)
    with lock_folder(models / "things"):  # as another program that writes it: the job waits
        answered = server.learn(file, "colors", validation_fraction="0.2")
        assert answered.status_code == 202
        refused = server.learn(file, "again", queue="false")
    assert refused.status_code == 409
    job = answered.json()["id"]
    kinds = []
    with server.http.stream("GET", f"/v2/jobs/{job}/events") as events:
        for line in events.iter_lines():
            if line.startswith("event: "):
                kinds.append(line.removeprefix("event: "))
    assert kinds[-1] == "done"
    assert kinds.count("epoch") == 6
    watcher.finish()
    done = server.wait(job)
    assert done["version"] == 4
    assert done["result"]["accuracy"] > 80
    assert server.versions() == ["1", "2", "3", "4"]
    for number, was in before.items():
        now = server.http.post(f"/v2/models/things/versions/{number}/infer", json=request(X)).json()
        assert now["outputs"] == was["outputs"]
    alone = ContinualClassifier.load(models / "things")
    assert alone.tasks_ == list(TASKS[:4])
    lines = read_audit(models / "things")
    assert [line["what"] for line in lines] == ["asked to learn", "learn done"]
    assert {line["who"] for line in lines} == {"local"}

    forgotten = server.http.post("/v2/models/things/forget", json={"task": "pets"}).json()
    assert server.wait(forgotten["id"])["state"] == "done"
    assert server.versions() == ["1", "2", "4"]
    gone = server.http.get("/v2/models/things/versions/3")
    assert gone.status_code == 404
    for number in (1, 2):
        now = server.http.post(f"/v2/models/things/versions/{number}/infer", json=request(X)).json()
        assert now["outputs"] == before[number]["outputs"]
    assert "pets" not in server.http.get("/v2/models/things").text
    for path in files_under(models / "things"):  # nothing of it is left but who asked for what
        if path.is_file() and path.name != "audit.jsonl" and forgotten["id"] not in str(path):
            assert b"pets" not in path.read_bytes(), path
    assert server.http.post("/v2/models/things/verify").json()["intact"]


def test_jobs_wait_for_each_other_can_be_cancelled_and_say_what_is_wrong(start, models):
    server = start("--limit", "jobs=2")
    file = task_table(models.parent, 3, each=400)
    with lock_folder(models / "things"):  # the first waits for it, the others for the first
        first = server.learn(file, "slow").json()
        waiting = server.learn(models.parent / "test.csv", "waits").json()
        third = server.http.post("/v2/models/things/tasks?task=bad", content=b"kind,f0\na,1\nb,2\n").json()
        full = server.learn(file, "too many")
        assert full.status_code == 429
        assert full.headers["retry-after"]
        assert server.http.delete(f"/v2/jobs/{waiting['id']}").json()["state"] == "cancelled"
        assert read_audit(models / "things")[-1]["what"] == "cancelled"
    progress = models / "things" / ".serving" / "jobs" / first["id"] / "progress.jsonl"
    assert wait_for(progress.exists)
    asked = server.http.delete(f"/v2/jobs/{first['id']}")
    ended = server.wait(first["id"]) if asked.status_code == 409 else asked.json()  # 409: it was done before
    assert ended["state"] in ("cancelled", "done")
    failed = server.wait(third["id"])
    assert failed["state"] == "failed"
    assert "data.csv lacks columns" in failed["error"]
    assert str(models) not in failed["error"]
    assert not (models / "things" / ".in-progress").exists()
    assert server.http.delete(f"/v2/jobs/{third['id']}").status_code == 409
    assert ContinualClassifier.load(models / "things").tasks_[:3] == list(TASKS[:3])
    left = files_under(models / "things" / ".serving" / "jobs")
    assert not [path for path in left if path.name.startswith("data")]


@pytest.mark.parametrize(
    ("kind", "saved"), [("forget", True), ("update", True), ("forget", False), ("update", False), ("learn", False)]
)
def test_a_job_that_is_cancelled_says_whether_it_has_changed_the_model(models, monkeypatch, kind, saved):
    """Its process is killed once it has saved the model, before it has left a result; or before it has saved it."""
    path, service = models / "things", service_of(models)
    rows = task_table(models.parent, 0, each=60)

    async def killed(model: ServedModel, job: Job, folder: Path) -> int:
        if saved and kind == "forget":
            classifier = ContinualClassifier.load(path)
            classifier.forget("trees")
            classifier.save(path)
        elif saved:
            update_file(path, rows, "fruit", None, LearnOptions(device="cpu"), "always")
        service.jobs._cancelled.add(job.id)
        return -signal.SIGKILL

    monkeypatch.setattr(service.jobs, "_work", killed)
    with client_of(service) as client:
        if kind == "forget":
            asked = client.post("/v2/models/things/forget", json={"task": "trees"})
        else:
            update = str(kind == "update").lower()
            asked = client.post(f"/v2/models/things/tasks?task=fruit&update={update}", content=rows.read_bytes())
        assert asked.status_code == 202
        address = f"/v2/jobs/{asked.json()['id']}"
        assert wait_for(lambda: client.get(address).json()["state"] not in ("queued", "running"))
        found = client.get(address).json()
    assert found["state"] == ("done" if saved else "cancelled")
    assert found["version"] == (None if not saved else 4 if kind == "update" else 3)


def test_a_slow_disk_delays_no_other_request(models, monkeypatch):
    """What waits for the disk, and what removes large files, is not done by the thread that serves all requests."""
    service, syncs = service_of(models), list[str]()
    serving, remove, unlink, fsync = threading.get_ident(), shutil.rmtree, os.unlink, os.fsync

    def noted(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def called(*args: Any, **options: Any) -> object:
            if threading.get_ident() == serving:
                syncs.append(f"{name} {args}")
            return call(*args, **options)

        return called

    async def failed(model: ServedModel, job: Job, folder: Path) -> int:
        return FAILED

    class Written:
        async def wait(self) -> int:
            return FAILED

        def kill(self) -> None:
            pass

    async def started(model: ServedModel, folder: Path) -> Written:
        return Written()

    async def ask() -> list[int]:
        async with inside(service) as http:
            monkeypatch.setattr(service.jobs, "_work", failed)
            monkeypatch.setattr(service.jobs, "start_worker", started)
            for name, call in (("rmtree", remove), ("unlink", unlink), ("fsync", fsync)):
                monkeypatch.setattr(shutil if name == "rmtree" else os, name, noted(name, call))
            rows = task_table(models.parent, 3).read_bytes()
            job = await http.post("/v2/models/things/tasks?task=colors", content=rows)
            async with asyncio.timeout(30):
                while (await http.get(f"/v2/jobs/{job.json()['id']}")).json()["state"] != "failed":
                    await asyncio.sleep(0.01)
            asked = [job, await http.post("/v2/models/things/tasks?task=colors", content=b"PK\x03\x04 no archive")]
            asked += [await http.post(f"/v2/models/things/{what}") for what in ("verify", "export")]
            monkeypatch.setattr(service.jobs, "_enqueue", lambda model, job: waiting.append(job.id))
            waiting = service.jobs._waiting.setdefault("things", [])
            job = await http.post("/v2/models/things/forget", json={"task": "trees"})
            return [one.status_code for one in (*asked, job, await http.delete(f"/v2/jobs/{job.json()['id']}"))]

    assert asyncio.run(ask()) == [202, 400, 200, 409, 202, 200]
    assert syncs == []


def test_images_are_learnt_from_an_archive_whose_names_lead_nowhere(start, models):
    server = start()
    x, y = blobs((4, 5), each=20)
    files = {
        f"{models.parent}/evil/{'cat' if label == 4 else 'dog'}/{n}.png": png(image)
        for n, (image, label) in enumerate(zip(pixels(x), y, strict=True))
    }
    files |= {"../../../evil/cat/x.png": b"left out, as all that begins with a dot is"}
    answered = server.http.post("/v2/models/pictures/tasks?task=pets", content=archive(files))
    assert answered.status_code == 202
    done = server.wait(answered.json()["id"])
    assert done["state"] == "done", done
    assert done["result"]["classes"] == ["cat", "dog"]
    assert not [path for path in files_under(models.parent.parent) if path.name == "evil"]
    exported = server.http.post("/v2/models/pictures/export?to=folder")
    assert exported.headers["content-type"] == "application/zip"
    assert b"manifest.json" in exported.content


def test_exports_that_arrive_together_share_the_places_that_there_are(models, monkeypatch):
    """Their processes are held until every other request has its answer, however slow the machine is."""
    service = service_of(models)
    begun, start_worker = list[Path](), service.jobs.start_worker

    async def ask() -> tuple[list[httpx.Response], httpx.Response]:
        free = asyncio.Event()

        async def held(model: ServedModel, folder: Path) -> Worker:
            begun.append(folder)
            await free.wait()
            return await start_worker(model, folder)

        monkeypatch.setattr(service.jobs, "start_worker", held)
        async with inside(service) as http:
            export = partial(http.post, "/v2/models/pictures/export?to=folder")
            asked = [asyncio.create_task(export()) for _ in range(6)]
            async with asyncio.timeout(60):
                while len(begun) + sum(one.done() for one in asked) < len(asked):
                    await asyncio.sleep(0.01)
            assert len(begun) == service.exporting == EXPORTS
            free.set()
            return [await one for one in asked], await export()

    together, later = asyncio.run(ask())
    rejected = [one for one in together if one.status_code == 429]
    assert len(rejected) == 6 - EXPORTS
    assert {one.headers["retry-after"] for one in rejected} == {"10"}
    answered = [one for one in together if one not in rejected]
    assert {one.status_code for one in (*answered, later)} == {200}
    assert all(b"manifest.json" in one.content for one in (*answered, later))
    assert service.exporting == 0
    assert not any(folder.exists() for folder in begun)


def test_the_exit_code_of_a_process_is_its_own_while_others_start(models, monkeypatch):
    """Python asks after all processes whenever one is started; each code can be read only once."""
    from multiprocessing import forkserver

    service, read = service_of(models), forkserver.read_signed

    def slowly(handle: int) -> int:
        time.sleep(random.random() / 2)
        return read(handle)

    async def codes() -> list[int]:
        async with service.running():
            model = service.registry["pictures"]
            monkeypatch.setattr(forkserver, "read_signed", slowly)

            async def ended(number: int) -> list[int]:
                folder = models.parent / f"job {number}"
                folder.mkdir()
                write_json(folder / "job.json", {"kind": "export", "to": "nothing", "task": None})
                return [await (await service.jobs.start_worker(model, folder)).wait() for _ in range(3)]

            return [code for codes in await asyncio.gather(*map(ended, range(4))) for code in codes]

    assert asyncio.run(codes()) == [FAILED] * 12


def test_more_rows_are_a_version_and_those_before_it_stay(models, tmp_path: Path):
    """What cannot be had by leaving tasks out is served from what was kept."""
    rows = [Rows(X.astype(np.float32), [None] * len(X))]
    path = models / "things"
    served = ServedModel("things", path)
    before = predict(served.version(3).classifier, rows)[0]
    update_file(path, task_table(tmp_path, 0, each=60), "fruit", None, LearnOptions(device="cpu"), "always")
    assert served.refresh()
    assert served.versions == [1, 2, 3, 4]
    after = predict(served.version(3).classifier, rows)[0]
    np.testing.assert_array_equal(after.probability, before.probability)
    np.testing.assert_array_equal(after.task_probabilities, before.task_probabilities)
    np.testing.assert_array_equal(after.novelty, before.novelty)
