"""A server killed at any moment starts again with every version it ever announced; its job goes on or is gone."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from served import Server, blobs, files_of, request, task_table, workers

X = blobs(range(6), each=2, seed=4)[0]
MOMENTS = ("upload", "learning", "publishing")


class Announced(threading.Thread):
    """Notes what a server says it has, until it is dead."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.address, self.versions = server.address, set[str]()
        self.start()

    def run(self) -> None:
        with httpx.Client(base_url=self.address, timeout=30) as client:
            while True:
                try:
                    self.versions |= {*client.get("/v2/models/things").json()["versions"]}
                except (httpx.HTTPError, ValueError):
                    return
                time.sleep(0.01)


class Upload(threading.Thread):
    """Sends the next task, slowly; notes the job that it is promised."""

    def __init__(self, server: Server, body: bytes, number: int) -> None:
        super().__init__(daemon=True)
        self.address, self.body, self.number = server.address, body, number
        self.promised = list[str]()
        self.start()

    def run(self) -> None:
        try:
            with httpx.Client(base_url=self.address, timeout=30) as client:
                answered = client.post(f"/v2/models/things/tasks?task=new-{self.number}", content=self._parts())
                self.promised.append(answered.json()["id"])
        except (httpx.HTTPError, ValueError):
            pass

    def _parts(self) -> Iterator[bytes]:
        for start in range(0, len(self.body), 1024):
            yield self.body[start : start + 1024]
            time.sleep(0.005)


def wait_for(moment: str, chance: random.Random, upload: Upload, jobs: Path) -> None:
    """A random moment while a file comes in, while its task is learnt, or while it becomes a version."""
    if moment == "upload":
        time.sleep(chance.uniform(0, 0.35))
        return
    upload.join(30)
    if moment == "learning":
        time.sleep(chance.uniform(0, 5))
        return
    progress, end = jobs / upload.promised[0] / "progress.jsonl", time.monotonic() + 60
    while time.monotonic() < end:
        lines = progress.read_text().splitlines() if progress.exists() else []
        epochs = [json.loads(line) for line in lines if line.endswith("}")]
        if any(line.get("done") == line.get("of", 0) for line in epochs):
            break
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.5))


def kill_somewhere(models: Path, chance: random.Random, number: int, moment: str) -> Counter[str]:
    """Upload, learn and publish, killed in the midst of it; what a server after it lacks."""
    server = Server(models)
    told = Announced(server)
    before = {version: answers(server, version) for version in server.versions()}
    body = task_table(models.parent, 3 + number % 3, each=20 + number % 40).read_bytes()
    state = models / "things" / ".serving"
    upload = Upload(server, body, number)
    wait_for(moment, chance, upload, state / "jobs")
    server.kill()
    upload.join(30)
    told.join(30)

    again, found = Server(models), Counter[str]()
    try:
        found["versions lost"] = len(told.versions - {*again.versions()})
        jobs = [job for job in again.http.get("/v2/jobs").json() if job["task"] == f"new-{number}"]
        found["jobs lost"] = int(bool(upload.promised) and not jobs)
        found["jobs not done"] = sum(again.wait(job["id"])["state"] != "done" for job in jobs)
        learnt = {*again.versions()} - {*before}
        found["versions too many"] = abs(len(learnt) - len(jobs))
        found["other bits"] = sum(answers(again, version) != was for version, was in before.items())
        found["left over"] = len(list(state.glob("jobs/*.new")))
        found["folders damaged"] = int(not again.http.post("/v2/models/things/verify").json()["whole"])
    finally:
        again.kill()
    return found


def answers(server: Server, version: str) -> object:
    return server.http.post(f"/v2/models/things/versions/{version}/infer", json=request(X)).json()["outputs"]


def test_a_server_killed_at_some_moments_loses_nothing(models):
    chance = random.Random(20)
    for number, moment in enumerate(MOMENTS[:2]):
        found = kill_somewhere(models, chance, number, moment)
        assert not any(found.values()), found


@pytest.mark.faults
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("part", range(3))
def test_a_server_killed_at_fifty_four_moments_loses_nothing(models, tally, moment, part):
    seed = int.from_bytes(os.urandom(4))
    chance, found = random.Random(seed), Counter[str]()
    for number in range(6):
        found += kill_somewhere(models, chance, number, moment)
    names = ("versions lost", "jobs lost", "jobs not done", "other bits", "left over", "folders damaged")
    tally(f"kills of a server, {moment}", 6, seed=seed, **{name: found[name] for name in names})
    assert not any(found.values()), found


def test_a_server_that_is_asked_to_stop_leaves_its_job_to_the_next(models):
    server = Server(models)
    job = server.learn(task_table(models.parent, 4, each=200), "numbers").json()["id"]
    time.sleep(1)
    assert "Traceback" not in server.stop()
    again = Server(models)
    assert again.wait(job)["state"] == "done"
    assert again.versions() == ["1", "2", "3", "4"]
    again.kill()


def kill_workers(models: Path, pause: float, most: int) -> tuple[Server, Counter[str]]:
    """Learn a task whose process is killed every so many seconds, but not before it has written a checkpoint; what
    went wrong, and how often it was killed."""
    model, body = models / "things", task_table(models.parent, 4, each=3000)
    server, found = Server(models), Counter[str]()
    job = server.learn(body, "numbers").json()["id"]
    checkpoint, seen, began = model / ".in-progress" / "manifest.json", b"", time.monotonic()
    while server.http.get(f"/v2/jobs/{job}").json()["state"] in ("queued", "running"):
        assert time.monotonic() - began < 240
        time.sleep(0.02)
        try:
            written = checkpoint.read_bytes()
        except FileNotFoundError:
            continue
        alive = workers(model)
        if written != seen and alive and found["kills"] < most and time.monotonic() - began > pause:
            os.kill(alive[0], signal.SIGKILL)
            seen, began = written, time.monotonic()
            found["kills"] += 1
    found["jobs not done"] = int(server.http.get(f"/v2/jobs/{job}").json()["state"] != "done")
    return server, found


def undisturbed(models: Path, folder: Path) -> dict[str, str]:
    """The files of a model that has learnt the same task in one go."""
    shutil.copytree(models.parent, folder)
    server = Server(folder / models.name)
    job = server.learn(task_table(folder, 4, each=3000), "numbers").json()["id"]
    assert server.wait(job, 240)["state"] == "done"
    server.kill()
    return files_of(folder / models.name / "things")


def test_a_job_that_is_killed_again_and_again_is_done_with_the_same_bits(models, tmp_path_factory):
    """More often than a job is tried that does not get on, and each time after seconds."""
    whole = undisturbed(models, tmp_path_factory.mktemp("whole") / "models")
    server, found = kill_workers(models, 0, 4)
    server.kill()
    assert found == {"kills": 4, "jobs not done": 0}
    assert files_of(models / "things") == whole


@pytest.mark.faults
def test_a_job_that_is_killed_every_few_seconds_is_done_with_the_same_bits(models, tally, tmp_path_factory):
    whole = undisturbed(models, tmp_path_factory.mktemp("whole") / "models")
    kills, found = 0, Counter[str]()
    for pause in (0, 0.5, 3.0):
        copy = tmp_path_factory.mktemp("killed")
        shutil.copytree(models.parent, copy, dirs_exist_ok=True)
        server, once = kill_workers(copy / models.name, pause, 1000)
        server.kill()
        kills += once["kills"]
        found["jobs not done"] += once["jobs not done"]
        found["other bits"] += files_of(copy / models.name / "things") != whole
    names = ("jobs not done", "other bits")
    tally("kills of a job's process, again and again", kills, **{name: found[name] for name in names})
