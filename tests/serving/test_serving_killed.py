"""A server killed at any moment starts again with every version it ever announced; its job goes on or is gone."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest
from served import Again, Server, blobs, files_of, request, slowly, task_table, workers

X = blobs(range(6), each=2, seed=4)[0]
MOMENTS = ("upload", "learning", "publishing")


class Announced(Again):
    """Notes what a server says it has, until it is dead."""

    def __init__(self, server: Server) -> None:
        super().__init__(self.note, 0.01)
        self.http, self.versions = httpx.Client(base_url=server.address, timeout=30), set[str]()
        self.start()

    def note(self) -> None:
        self.versions |= {*self.http.get("/v2/models/things").json()["versions"]}


class Upload(Again):
    """Sends the next task, slowly; notes the job that it is promised."""

    def __init__(self, server: Server, body: bytes, number: int) -> None:
        super().__init__(self.send)
        self.address, self.body, self.promised = f"{server.address}/v2/models/things/tasks", body, list[str]()
        self.task = f"new-{number}"
        self.start()

    def send(self) -> None:
        self.ended.set()
        with contextlib.suppress(ValueError):
            answered = httpx.post(
                self.address, params={"task": self.task}, content=slowly(self.body, 0.005), timeout=30
            )
            self.promised.append(answered.json()["id"])


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
        found["folders damaged"] = int(not again.http.post("/v2/models/things/verify").json()["intact"])
    finally:
        again.kill()
    return found


def answers(server: Server, version: str) -> object:
    return server.http.post(f"/v2/models/things/versions/{version}/infer", json=request(X)).json()["outputs"]


@pytest.mark.parametrize(
    ("moment", "part"),
    [
        ("upload", 0),
        ("learning", 0),
        *(pytest.param(one, 1 + n, marks=pytest.mark.faults) for one in MOMENTS for n in range(3)),
    ],
)
def test_a_server_killed_at_any_moment_loses_nothing(models, tally, moment, part):
    seed, tries = int.from_bytes(os.urandom(4)), 6 if part else 1
    chance, found = random.Random(seed), Counter[str]()
    for number in range(tries):
        found += kill_somewhere(models, chance, number, moment)
    names = ("versions lost", "jobs lost", "jobs not done", "versions too many", "other bits", "left over")
    names = (*names, "folders damaged")
    tally(f"kills of a server, {moment}", tries, seed=seed, **{name: found[name] for name in names})


def test_a_server_that_is_asked_to_stop_leaves_its_job_to_the_next(models):
    server = Server(models)
    job = server.learn(task_table(models.parent, 4, each=200), "numbers").json()["id"]
    time.sleep(1)
    assert "Traceback" not in server.stop()
    again = Server(models)
    assert again.wait(job)["state"] == "done"
    assert again.versions() == ["1", "2", "3", "4"]
    again.kill()


def kill_workers(models: Path, running: float, most: int) -> tuple[Server, Counter[str]]:
    """Learn a task whose process is killed whenever it has written a checkpoint; how often, and what went wrong.

    It has so many seconds of a processor between two stops of a second, as on a machine that is far too slow.
    """
    model, server, found = models / "things", Server(models), Counter[str]()
    job = server.learn(task_table(models.parent, 4, each=EACH), "numbers").json()["id"]
    progress = model / ".serving" / "jobs" / job / "progress.jsonl"
    checkpoint, seen, end = model / ".in-progress" / "manifest.json", b"", time.monotonic() + 240

    def content(path: Path) -> bytes:
        return path.read_bytes() if path.exists() else b""

    def state() -> str:
        assert time.monotonic() < end
        return str(server.http.get(f"/v2/jobs/{job}").json()["state"])

    while state() in ("queued", "running"):
        begun = content(progress).count(b'"start"') > found["kills"]
        if not begun or found["kills"] == most or not (alive := workers(model)):
            time.sleep(0.005)
            continue
        with contextlib.suppress(ProcessLookupError):  # it is done
            os.kill(alive[0], signal.SIGSTOP)
            time.sleep(1.05)
            used = processor_seconds(alive[0])
            os.kill(alive[0], signal.SIGCONT)
            while (written := content(checkpoint)) in (b"", seen) and processor_seconds(alive[0]) < used + running:
                time.sleep(0.005)
            if written not in (b"", seen):
                os.kill(alive[0], signal.SIGKILL)
                seen, found["kills"] = written, found["kills"] + 1
    found["jobs not done"] = int(state() != "done")
    return server, found


def processor_seconds(process: int) -> float:
    """That a process has had; without end once it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("inf")
    return float("inf") if fields[0] in "ZX" else sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


EACH = 6000
"""Rows of a class of a task that takes a second, and longer on a slow machine."""


def undisturbed(models: Path, folder: Path) -> dict[str, str]:
    """The files of a model that has learned the same task in one go."""
    copy = shutil.copytree(models, folder / models.name)
    server = Server(copy)
    job = server.learn(task_table(folder, 4, each=EACH), "numbers").json()["id"]
    assert server.wait(job, 240)["state"] == "done"
    server.kill()
    return files_of(copy / "things")


def test_a_job_that_is_killed_again_and_again_is_done_with_the_same_bits(models, tmp_path_factory):
    """As often as a job is tried that does not advance."""
    whole = undisturbed(models, tmp_path_factory.mktemp("whole"))
    server, found = kill_workers(models, 0.2, 3)
    server.kill()
    assert found["jobs not done"] == 0
    assert 0 < found["kills"] <= 3  # on a fast machine the job may be done before the third
    assert files_of(models / "things") == whole


@pytest.mark.faults
def test_a_job_that_is_killed_at_thirty_checkpoints_is_done_with_the_same_bits(models, tally, tmp_path_factory):
    whole = undisturbed(models, tmp_path_factory.mktemp("whole"))
    kills, found = 0, Counter[str]()
    for running in (0.1, 0.2):
        copy = shutil.copytree(models, tmp_path_factory.mktemp("killed") / models.name)
        server, once = kill_workers(copy, running, 15)
        server.kill()
        kills += once["kills"]
        found["jobs not done"] += once["jobs not done"]
        found["other bits"] += files_of(copy / "things") != whole
    names = ("jobs not done", "other bits")
    tally("kills of a job's process, again and again", kills, **{name: found[name] for name in names})
