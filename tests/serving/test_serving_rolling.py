"""Several servers of one model: one of them makes its changes, and the next one goes on where it ended."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from dataclasses import asdict, replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from served import (
    Again,
    Server,
    blobs,
    inside,
    read_audit,
    request,
    service_of,
    slowly,
    task_table,
    wait_for,
    workers,
)
from test_serving_uploads import Upload, closing, left

from ibpwf.serving import jobs as jobs_module
from ibpwf.serving.jobs import Job, new_job
from ibpwf.serving.lease import Lease
from ibpwf.storage.folder import lock_folder

X = blobs(range(6), each=2, seed=4)[0]


def is_writer(server: Server, model: str = "things") -> bool:
    return f'ibpwf_writer{{model="{model}"}} 1.0' in server.http.get("/metrics").text


def answers(server: Server, version: str = "3") -> object:
    return server.http.post(f"/v2/models/things/versions/{version}/infer", json=request(X)).json()["outputs"]


def refused(server: Server, job: str, file: Path) -> dict[str, httpx.Response]:
    """What a server says that must change nothing."""
    return {
        "learn": server.learn(file, "other"),
        "forget": server.http.post("/v2/models/things/forget", json={"task": "pets"}),
        "cancel": server.http.delete(f"/v2/jobs/{job}"),
        "export": server.http.post("/v2/models/things/export"),
    }


def stopped_worker(model: Path) -> int:
    """The process that does a job, held in the midst of it."""
    assert wait_for(lambda: workers(model) != [])
    (worker,) = workers(model)
    os.kill(worker, signal.SIGSTOP)
    return worker


def test_a_second_server_answers_and_takes_over_what_the_first_was_promised(start, models):
    state, file = models / "things" / ".serving", task_table(models.parent, 3, each=100)
    first: Server = start()
    assert first.http.get("/v2/health/ready").json() == {"ready": True, "learning": True}
    before = answers(first)
    job = first.learn(file, "colors").json()["id"]
    worker = stopped_worker(models / "things")
    with closing([Upload(first, "numbers", task_table(models.parent, 4).read_bytes())]) as uploads:
        assert wait_for(lambda: len(left(models / "things")) == 1)
        second: Server = start()
        ready = second.http.get("/v2/health/ready")
        assert (ready.status_code, ready.json()["ready"], ready.json()["learning"]) == (200, True, False)
        assert answers(second) == before
        for what, answered in refused(second, job, file).items():
            assert answered.status_code == 503, what
            assert answered.headers["retry-after"] == "5"
            assert f"process {first.pid}" in answered.json()["error"]
        assert f"process {first.pid}" in second.http.get("/v2/models/things").json()["parameters"]["read_only"]
        assert f"process {first.pid}" in second.http.get("/models/things").text
        assert f"process {first.pid}" in second.log
        assert first.http.get("/v2/models/things").json()["parameters"]["read_only"] is None
        assert not is_writer(second)
        assert second.http.get(f"/v2/jobs/{job}").json()["state"] in ("queued", "running")
        assert [one["id"] for one in second.http.get("/v2/jobs").json()] == [job]
        assert len(left(models / "things")) == 1  # the second has left it alone
        promised = uploads[0].finish()
    os.kill(worker, signal.SIGCONT)
    assert promised.statuses == [202]
    other = json.loads(promised.data.partition(b"\r\n\r\n")[2])["id"]
    first.stop()
    assert wait_for(lambda: is_writer(second))
    assert second.wait(job)["state"] == second.wait(other)["state"] == "done"
    assert second.versions() == ["1", "2", "3", "4", "5"]
    assert answers(second) == before
    asked = second.learn(task_table(models.parent, 5), "ways")
    assert asked.status_code == 202
    assert left(models / "things") == []
    assert [line["what"] for line in read_audit(models / "things")].count("learn done") == 2
    assert {path.name for path in state.iterdir()} == {"audit.jsonl", "jobs", "lease", "versions"}


def test_the_worker_of_a_killed_server_ends_before_the_next_one_makes_changes(start, models):
    """And a server of one model has a lease of its own, whatever folder others were started on."""
    first: Server = start()
    second = Server(models / "things")
    third = Server(models / "pictures")
    try:
        assert first.http.get("/v2/models/things").json()["parameters"]["read_only"] is None
        job = first.learn(task_table(models.parent, 3, each=3000), "colors").json()["id"]
        worker = stopped_worker(models / "things")
        first.kill()
        assert wait_for(lambda: is_writer(third, "pictures"))
        assert not wait_for(lambda: is_writer(second), 2)  # the worker lives, and may write any moment
        os.kill(worker, signal.SIGCONT)
        assert wait_for(lambda: is_writer(second))
        assert worker not in workers(models / "things")
        assert second.wait(job)["state"] == "done"
        again: Server = start()
        parameters = [again.http.get(f"/v2/models/{name}").json()["parameters"] for name in ("things", "pictures")]
        assert all("another server" in one["read_only"] for one in parameters)
        assert again.wait(job)["version"] == 4  # as the other has stored it
    finally:
        second.kill()
        third.kill()


def test_a_lease_is_not_that_of_a_forked_process_nor_of_a_folder_that_was_replaced(tmp_path):
    folder = tmp_path / "model" / ".serving"
    folder.parent.mkdir()
    lease, other = Lease(folder / "lease"), Lease(folder / "lease")
    assert lease.take()
    assert not other.take()
    assert str(os.getpid()) in other.problem
    child = os.fork()
    if not child:
        os._exit(int(lease.is_held() or lease.take()))
    assert os.waitpid(child, 0)[1] == 0
    assert lease.is_held()
    folder.parent.rename(tmp_path / "old")
    folder.parent.mkdir()
    assert not lease.is_held()
    assert other.take()
    assert not lease.take()
    other.release()
    assert lease.take()
    shutil.rmtree(folder.parent)
    assert not lease.take()


def test_a_job_of_another_version_of_the_server_is_done_and_one_that_cannot_be_read_stays(start, models):
    first: Server = start()
    with lock_folder(models / "things"):  # so that it is not done before the server is killed
        job = first.learn(task_table(models.parent, 3), "colors").json()["id"]
        first.kill()
        assert wait_for(lambda: workers(models / "things") == [])
    folder = models / "things" / ".serving" / "jobs"
    stored = json.loads((folder / job / "job.json").read_text())
    (folder / job / "job.json").write_text(json.dumps({**stored, "added later": 1}))
    damaged = folder / f"{0:016x}"
    shutil.copytree(folder / job, damaged)
    (damaged / "job.json").write_text("{")
    again: Server = start()
    assert again.wait(job)["state"] == "done"
    assert damaged.name in again.log
    assert (damaged / "data.csv").exists()


def left_job(model: Path, number: int) -> str:
    """A job that another server was promised, with its data."""
    job = replace(new_job(model.name, "forget", "fruit", "somebody"), created=float(number))
    folder = model / ".serving" / "jobs" / job.id
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps(asdict(job)))
    (folder / "data.csv").write_text("a")
    return job.id


def test_jobs_of_another_server_are_read_beside_the_thread_that_serves_and_only_those_asked_for(models, monkeypatch):
    ids = [left_job(models / "things", number) for number in range(3)]
    lease, service = Lease(models / "things" / ".serving" / "lease"), service_of(models)
    assert lease.take()
    read, asked = jobs_module._read, list[str]()
    serving = threading.get_ident()

    def noted(folder: Path) -> Job | None:
        asked.append(folder.name if threading.get_ident() != serving else "while serving")
        return read(folder)

    monkeypatch.setattr(jobs_module, "_read", noted)

    async def ask() -> list[int]:
        async with inside(service) as http:
            assert [one["id"] for one in (await http.get("/v2/jobs")).json()] == ids
            assert sorted(asked) == sorted(ids)
            asked.clear()
            addresses = (ids[1], "0" * 16, "..", "unknown")
            found = [(await http.get(f"/v2/jobs/{one}")).status_code for one in addresses]
            events = service.jobs.events(ids[2])
            assert (await anext(events))["state"] == "queued"
            return found

    assert asyncio.run(ask())[:2] == [200, 404]
    assert asked == [ids[1], "0" * 16, ids[2]]
    lease.release()


def test_a_model_whose_jobs_cannot_be_looked_at_hinders_no_other_and_loses_none(models, monkeypatch, caplog):
    jobs = {name: [left_job(models / name, number) for number in range(2)] for name in ("pictures", "things")}
    service, failing, stat = service_of(models), [True], Path.stat

    def broken(self: Path, **options: Any) -> os.stat_result:
        if failing[0] and self.name == "data.csv" and jobs["pictures"][1] in self.parts:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return stat(self, **options)

    monkeypatch.setattr(Path, "stat", broken)
    monkeypatch.setattr(service.jobs, "_enqueue", lambda model, job: taken.append(job.id))
    monkeypatch.setattr(service.jobs, "workshop", Mock())
    monkeypatch.setattr("ibpwf.serving.jobs.LOOK", 0.01)
    taken: list[str] = []

    async def look() -> None:
        async with service.running(), asyncio.timeout(60):
            while taken != jobs["things"]:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)  # some more looks
            failing[0] = False
            while taken != jobs["things"] + jobs["pictures"]:
                await asyncio.sleep(0.01)

    asyncio.run(look())
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


class HeldWorker:
    """A process that ends when it is killed."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def wait(self) -> int:
        await self.ended.wait()
        return -signal.SIGKILL

    def kill(self) -> None:
        self.ended.set()

    stop = kill


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_lease_that_is_lost_while_a_job_is_started_costs_its_process_and_not_the_job(models, monkeypatch, moment):
    """It is lost before the process is given it, or after."""
    service, begun = service_of(models), list[HeldWorker | None]()
    jobs, model = service.jobs, service.registry["things"]

    async def start(path: Path, folder: Path, lease: Lease, device: str) -> HeldWorker:
        if not begun:
            lease.release()
            if moment == "before":
                begun.append(None)
                ForkingPickler.dumps(lease)
            jobs._leave(model.name)
        begun.append(HeldWorker())
        return begun[-1]

    async def lose() -> None:
        async with service.running(), asyncio.timeout(20):
            monkeypatch.setattr(jobs.workshop, "start", start)
            job = await jobs.submit(model, new_job(model.name, "forget", "trees", "somebody"))
            while len(begun) < 2:  # the server has the lease again
                await asyncio.sleep(0.01)
            assert begun[0] is None or begun[0].ended.is_set()
            assert not begun[1].ended.is_set()
            assert (await jobs.find(job.id)).state == "running"

    asyncio.run(lose())


class Client(threading.Thread):
    """Sends tasks, slowly, to whichever server takes them, until each is promised."""

    def __init__(self, folder: Path, servers: list[Server], names: list[str]) -> None:
        super().__init__(daemon=True)
        self.folder, self.servers, self.names = folder, servers, names
        self.promised: dict[str, str] = {}
        self.refused = 0
        self.faults = list[str]()
        self.start()

    def run(self) -> None:
        for number, name in enumerate(self.names):
            body = task_table(self.folder, 3 + number % 3, each=30).read_bytes()
            while name not in self.promised:
                for server in list(self.servers):
                    with contextlib.suppress(httpx.HTTPError, ValueError):
                        self._send(server, name, body)
                    if name in self.promised:
                        break
                    time.sleep(0.1)

    def _send(self, server: Server, name: str, body: bytes) -> None:
        address = f"{server.address}/v2/models/things/tasks?task={name}"
        answered = httpx.post(address, content=slowly(body, 0.01), timeout=30)
        if answered.status_code == 202:
            self.promised[name] = answered.json()["id"]
        elif answered.status_code in (429, 503):
            self.refused += 1
        else:
            self.faults.append(answered.text)


class Together(Again):
    """Notes processes that change the model beside each other."""

    def __init__(self, model: Path) -> None:
        super().__init__(self.look, 0.02)
        self.model, self.seen = model, 0
        self.start()

    def look(self) -> None:
        self.seen += len(workers(self.model)) > 1


@pytest.mark.faults
@pytest.mark.parametrize("part", range(2))
def test_rolling_updates_under_load_lose_nothing(models, tally, part):
    """Servers take turns, ended and killed at random moments; every upload that was promised becomes a version."""
    seed = int.from_bytes(os.urandom(4))
    chance, found, rounds = random.Random(seed), Counter[str](), 10
    servers = [Server(models, "--limit", "jobs=100")]
    before, together = answers(servers[0]), Together(models / "things")
    folders = [models.parent / f"client-{n}" for n in range(2)]
    for folder in folders:
        folder.mkdir()
    clients = [Client(folder, servers, [f"{folder.name}-{k}" for k in range(rounds)]) for folder in folders]
    for _ in range(rounds):
        time.sleep(chance.uniform(0, 3))
        servers.append(Server(models, "--limit", "jobs=100"))
        found["other bits"] += answers(servers[-1]) != before
        time.sleep(chance.uniform(0, 2))
        old = servers.pop(0)
        if chance.random() < 0.5:
            old.kill()
        else:
            found["tracebacks"] += "Traceback" in old.stop()
        found["not taken over"] += not wait_for(lambda: is_writer(servers[-1]), 40)
    last = servers[0]
    try:
        for client in clients:
            client.join(120)
        promised = {name: job for client in clients for name, job in client.promised.items()}
        states = [last.wait(job, 300)["state"] for job in promised.values()]
        found["not promised"] = 2 * rounds - len(promised)
        found["jobs not done"] = sum(state != "done" for state in states)
        tasks = last.http.get("/v2/models/things").json()["parameters"]["tasks"]
        found["tasks lost"] = len({*promised} - {*tasks})
        found["versions"] = abs(len(last.versions()) - len(tasks))
        found["other bits"] += answers(last) != before
        found["left over"] = len(left(models / "things"))
        found["folders damaged"] = int(not last.http.post("/v2/models/things/verify").json()["intact"])
        found["server faults"] = sum(len(client.faults) for client in clients)
        print({fault for client in clients for fault in client.faults})
    finally:
        last.kill()
        together.finish()
    found["two writers at a time"] = together.seen
    names = ("not taken over", "not promised", "jobs not done", "tasks lost", "versions", "other bits", "left over")
    names = (*names, "two writers at a time", "folders damaged", "server faults", "tracebacks")
    tally("rolling updates of a server under load", rounds, seed=seed, **{name: found[name] for name in names})
