"""A version that is asked while a task is forgotten is answered, gone (404), or there again in a moment (503)."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from served import Again, Server, blobs, client_of, files_under, request, service_of, task_table

from ibpwf import ContinualClassifier
from ibpwf.estimator.files import LearnOptions, update_file
from ibpwf.serving.versions import FolderVersions, Kept
from ibpwf.storage import whole_folder
from killed_writes import run_until

X = blobs(range(6), each=1, seed=2)[0]


def with_kept_versions(models: Path) -> Path:
    """Version 3 is read from what was kept of it, since a task had more rows after it."""
    path = models / "things"
    Kept(path).keep()
    rows = task_table(models.parent, 0, each=60)
    update_file(path, rows, "fruit", None, LearnOptions(device="cpu"), "always")
    return path


def test_a_version_whose_files_go_while_they_are_read_is_503_or_404(models):
    path = with_kept_versions(models)
    with client_of(service_of(models)) as client:
        aside = Kept(path).path(3).rename(path / "aside")  # as while a task is taken out of it
        for address in ("/v2/models/things/versions/3/infer", "/v2/models/things/infer?version=3"):
            answered = client.post(address, json=request(X))
            assert answered.status_code == 503
            assert answered.headers["retry-after"]
        assert client.get("/v2/models/things/versions/3/ready").status_code == 503
        assert client.get("/models/things?version=3").status_code == 503
        aside.rename(Kept(path).path(3))
        assert client.post("/v2/models/things/versions/3/infer", json=request(X)).status_code == 200

    with client_of(service_of(models)) as client:
        classifier = ContinualClassifier.load(path)
        classifier.forget("pets")  # which made version 3
        classifier.save(path)
        shutil.rmtree(Kept(path).path(3))
        assert client.post("/v2/models/things/versions/3/infer", json=request(X)).status_code == 404


@pytest.mark.parametrize(
    ("step", "exchanges"), [(17, True), *(pytest.param(1, one, marks=pytest.mark.faults) for one in (True, False))]
)
def test_versions_that_are_rewritten_without_a_task_survive_a_kill_at_any_call_to_the_disk(
    models, tmp_path, monkeypatch, step, exchanges
):
    """Also on a disk that cannot exchange two folders in one step."""
    if not exchanges:
        monkeypatch.setattr(whole_folder, "_exchanged", lambda one, other: False)
    path = with_kept_versions(models)
    Kept(path).keep()
    classifier = ContinualClassifier.load(path)
    classifier.forget("trees")
    classifier.save(path)
    begun = shutil.copytree(path, tmp_path / "begun")

    def follow() -> None:
        torch.set_num_threads(1)
        Kept(path).follow()

    def versions() -> list[int]:
        return sorted(Kept(path).ways(FolderVersions.read(path)))

    def has_trees() -> bool:
        files = [file for file in files_under(Kept(path).folder) if file.is_file()]
        return any(b"trees" in file.read_bytes() for file in files)

    there = versions()
    code, events = run_until(follow, 0)
    assert (code, there) == (0, [1, 3, 4])
    assert not has_trees()
    for at in range(1, events + 1, step):
        shutil.rmtree(path)
        shutil.copytree(begun, path)
        assert run_until(follow, at)[0] == -9
        assert versions() == there or not exchanges, at
        kept = Kept(path)
        if kept.needs_following(FolderVersions.read(path)):
            kept.follow()
        assert versions() == there, at
        assert not has_trees(), at


def test_a_version_that_a_killed_process_has_moved_aside_is_put_back(models):
    """On a disk that cannot exchange two folders in one step."""
    path = with_kept_versions(models)
    kept = Kept(path)
    kept.path(3).rename(kept.folder / f"00003.tmp-{0:016x}.old")
    assert kept.needs_following(FolderVersions.read(path))
    assert kept.follow() == []
    assert sorted(kept.ways(FolderVersions.read(path))) == [1, 2, 3, 4]
    assert not kept.needs_following(FolderVersions.read(path))


class Asking(Again):
    """Asks for one version again and again."""

    def __init__(self, server: Server, address: str) -> None:
        super().__init__(self.ask)
        self.http, self.address = httpx.Client(base_url=server.address, timeout=240), address
        self.texts, self.seen = dict[int, str](), Counter[int]()
        self.start()

    def ask(self) -> None:
        answered = self.http.post(self.address, json=request(X))
        self.seen[answered.status_code] += 1
        self.texts[answered.status_code] = answered.text


@pytest.mark.faults
def test_versions_asked_while_tasks_are_forgotten_are_never_a_bad_request(start, models, tally):
    seed = int.from_bytes(os.urandom(4))
    chance, found = random.Random(seed), Counter[int]()
    with_kept_versions(models)
    server: Server = start()
    texts: dict[int, str] = {}
    for turn in range(6):
        learned = server.learn(task_table(models.parent, 3), f"more-{turn}")
        assert server.wait(learned.json()["id"])["state"] == "done"
        versions = [int(one) for one in server.versions()]
        asking = [Asking(server, f"/v2/models/things/versions/{number}/infer") for number in versions]
        known: dict[str, Any] = server.http.get("/v2/models/things").json()["parameters"]
        task = chance.choice(known["tasks"][1:])
        forgotten = server.http.post("/v2/models/things/forget", json={"task": task})
        assert server.wait(forgotten.json()["id"])["state"] == "done"
        for one in asking:
            one.finish()
            found += one.seen
            texts |= one.texts
    other = {status: texts[status] for status in found if status not in (200, 404, 503)}
    assert other == {}
    tally("versions asked while a task is forgotten", found.total(), seed=seed, **{"other statuses": len(other)})
