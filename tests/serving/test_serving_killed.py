"""A server killed at any moment starts again with every version it ever announced; its job goes on or is gone."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import httpx
import pytest
from served import Server, blobs, request, task_table

X = blobs(range(6), each=2, seed=4)[0]


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


def kill_somewhere(models: Path, chance: random.Random, number: int) -> Server:
    """Upload, learn and publish, killed in the midst of it, and a server after it."""
    server = Server(models)
    told = Announced(server)
    before = {version: answers(server, version) for version in server.versions()}
    body = task_table(models.parent, 3 + number % 3, each=20 + number % 40).read_bytes()
    promised = list[str]()

    def slowly() -> object:
        for start in range(0, len(body), 4096):
            yield body[start : start + 4096]
            time.sleep(0.002)

    def upload() -> None:
        try:
            with httpx.Client(base_url=server.address, timeout=30) as client:
                answered = client.post(f"/v2/models/things/tasks?task=new-{number}", content=slowly())
                promised.append(answered.json()["id"])
        except (httpx.HTTPError, ValueError):
            pass

    sender = threading.Thread(target=upload, daemon=True)
    sender.start()
    time.sleep(chance.choice((chance.uniform(0, 0.1), chance.uniform(0, 6))))
    server.kill()
    sender.join(30)
    told.join(30)

    again = Server(models)
    try:
        assert told.versions <= {*again.versions()}
        for version, was in before.items():
            assert answers(again, version) == was
        jobs = [job for job in again.http.get("/v2/jobs").json() if job["task"] == f"new-{number}"]
        if promised:
            assert jobs
        for job in jobs:
            assert again.wait(job["id"])["state"] == "done"
        learnt = {*again.versions()} - {*before}
        assert len(learnt) == len(jobs)
        state = models / "things" / ".serving"
        assert not list(state.glob("jobs/*.new"))
        assert again.http.post("/v2/models/things/verify").json()["whole"]
    except BaseException:
        again.kill()
        raise
    return again


def answers(server: Server, version: str) -> object:
    return server.http.post(f"/v2/models/things/versions/{version}/infer", json=request(X)).json()["outputs"]


def test_a_server_killed_at_some_moments_loses_nothing(models):
    chance = random.Random(20)
    for number in range(2):
        kill_somewhere(models, chance, number).kill()


@pytest.mark.slow
def test_a_server_killed_at_fifty_moments_loses_nothing(models):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    for number in range(50):
        kill_somewhere(models, chance, number).kill()


def test_a_server_that_is_asked_to_stop_leaves_its_job_to_the_next(models):
    server = Server(models)
    job = server.learn(task_table(models.parent, 4, each=200), "numbers").json()["id"]
    time.sleep(1)
    assert "Traceback" not in server.stop()
    again = Server(models)
    assert again.wait(job)["state"] == "done"
    assert again.versions() == ["1", "2", "3", "4"]
    again.kill()
