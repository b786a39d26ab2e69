"""A model folder that is lost, damaged, replaced or read-only: readiness, log, metrics and page tell, answers go on
from memory, no job is accepted, and all is well once the folder is back."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import Server, blobs, client_of, request, service_of, task_table, wait_for
from starlette.testclient import TestClient

from ibpwf import ContinualClassifier
from ibpwf.inference.prediction import Prediction
from ibpwf.serving import worker
from ibpwf.serving.service import Service
from ibpwf.storage.folder import MANIFEST

X = blobs(range(6), each=1, seed=2)[0]

Fault = Callable[[Path], Callable[[], object]]
"""Does something to a model folder; the result undoes it."""


@pytest.fixture
def client(models: Path) -> Iterator[tuple[TestClient, Service]]:
    """A server that looks at its folders when it is told to."""
    service = service_of(models)
    with client_of(service) as found:
        yield found, service


def removed(path: Path) -> Callable[[], object]:
    aside = path.rename(path.parent / ".aside")
    return lambda: aside.rename(path)


def damaged(path: Path) -> Callable[[], object]:
    whole = (path / MANIFEST).read_bytes()
    (path / MANIFEST).write_bytes(whole.replace(b"fruit", b"fruid"))
    return lambda: (path / MANIFEST).write_bytes(whole)


def replaced(path: Path) -> Callable[[], object]:
    classifier = ContinualClassifier(epochs=2, hidden=(24,), settings={"inference.features.width": 64}, device="cpu")
    for task in range(3):  # with as many tasks, of the same sizes
        x, y = blobs((2 * task, 2 * task + 1), 40, seed=9)
        classifier.learn(x, y.astype(str), task=f"other {task}")
    classifier.save(path.parent / ".other")
    back = removed(path)
    (path.parent / ".other").rename(path)

    def undo() -> None:
        shutil.rmtree(path)
        back()

    return undo


def unreadable(path: Path) -> Callable[[], object]:
    """As of a file system that does not answer: each access fails."""
    aside = (path / MANIFEST).rename(path / "aside")
    (path / MANIFEST).symlink_to(path / MANIFEST)  # ELOOP
    return lambda: aside.replace(path / MANIFEST)


@pytest.mark.parametrize("fault", [removed, damaged, replaced, unreadable])
def test_what_is_wrong_with_a_folder_is_told_everywhere_until_it_is_well_again(client, models, caplog, fault: Fault):
    http, service = client
    path, before = models / "things", http.post("/v2/models/things/infer", json=request(X)).json()
    caplog.clear()
    undo = fault(path)
    for _ in range(3):
        service.registry.refresh()
    files = sorted(one for one in path.rglob("*"))

    told = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 1, [record.getMessage() for record in told]
    assert "things" in told[0].getMessage()
    assert http.get("/v2/health/live").status_code == 200
    assert http.get("/v2/health/ready").status_code == 503
    assert http.get("/v2/health/ready").json()["ready"] is False
    asked = http.get("/v2/models/things/ready")
    assert (asked.status_code, asked.json()["ready"]) == (503, False)
    assert asked.json()["reason"]
    assert str(models) not in asked.text
    assert http.get("/v2/models/pictures/ready").status_code == 200
    states = {one["name"]: one["state"] for one in http.post("/v2/repository/index").json()}
    assert states == {"things": "UNAVAILABLE", "pictures": "READY"}
    metrics = http.get("/metrics").text
    assert 'ibpwf_model_ready{model="things"} 0.0' in metrics
    assert 'ibpwf_model_ready{model="pictures"} 1.0' in metrics
    for page in ("/", "/models/things"):
        assert "Not ready" in http.get(page).text
    assert http.post("/v2/models/things/infer", json=request(X)).json() == before
    for job in (
        lambda: http.post("/v2/models/things/tasks?task=colors", content=task_table(models.parent, 3).read_bytes()),
        lambda: http.post("/v2/models/things/tasks?task=fruit&update=true", content=b"f0,kind\n1,apple\n"),
        lambda: http.post("/v2/models/things/forget", json={"task": "pets"}),
        lambda: http.post("/v2/models/things/export?to=folder"),
        *([lambda: http.post("/v2/models/things/verify")] if fault is removed else []),
    ):
        refused = job()
        assert refused.status_code == 503, refused.text
        assert "things" in refused.json()["error"]
        assert refused.headers["retry-after"]
    assert service.jobs.all == {}
    assert sorted(one for one in path.rglob("*")) == files  # nothing was made in the void

    undo()
    service.registry.refresh()
    assert http.get("/v2/health/ready").status_code == 200
    assert http.get("/v2/models/things/ready").status_code == 200
    assert 'ibpwf_model_ready{model="things"} 1.0' in http.get("/metrics").text
    assert "Not ready" not in http.get("/models/things").text
    assert http.post("/v2/models/things/infer", json=request(X)).json() == before


def test_a_model_that_can_not_be_loaded_beside_others_is_logged_once_and_counted(client, models, caplog):
    http, service = client
    shutil.copytree(models / "things", models / "another")
    (models / "another" / MANIFEST).write_text("{")
    for _ in range(3):
        service.registry.refresh()
    assert len([record for record in caplog.records if "another" in record.getMessage()]) == 1
    assert 'ibpwf_model_ready{model="another"} 0.0' in http.get("/metrics").text
    assert http.get("/v2/health/ready").status_code == 200  # of the models that are served
    shutil.rmtree(models / "another")
    service.registry.refresh()
    assert 'model="another"' not in http.get("/metrics").text


def test_models_whose_common_folder_is_lost_are_not_ready(client, models, caplog):
    http, service = client
    caplog.clear()
    models.rename(models.with_name("aside"))
    for _ in range(3):
        service.registry.refresh()
    assert http.get("/v2/health/ready").status_code == 503
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 2  # of each model
    models.with_name("aside").rename(models)
    service.registry.refresh()
    assert http.get("/v2/health/ready").status_code == 200


def test_a_job_whose_folder_goes_before_it_is_done_fails_and_makes_nothing_anew(models, tmp_path, monkeypatch):
    """In the process that does jobs."""
    import json
    import threading

    path, folder = models / "things", tmp_path / "job"
    folder.mkdir()
    shutil.copyfile(task_table(models.parent, 3), folder / "data.csv")
    work = {"data": "data.csv", "options": {}, "validation_fraction": None, "keep": "better"}
    job = {"kind": "learn", "task": "colors", "work": work}
    (folder / "job.json").write_text(json.dumps(job))
    monkeypatch.chdir(folder)
    real = worker.Progress.epoch_end

    def gone(self: Any, epoch: Any) -> None:
        real(self, epoch)
        if path.exists():
            path.rename(tmp_path / "aside")

    monkeypatch.setattr(worker.Progress, "epoch_end", gone)
    assert worker._do(path, threading.Event(), "cpu") == worker.FAILED
    assert "things" in json.loads((folder / "result.json").read_text())["error"]
    assert not path.exists()
    assert worker._do(path, threading.Event(), "cpu") == worker.FAILED  # tried again
    assert not path.exists()


def test_a_process_whose_job_has_gone_with_the_folder_ends_to_be_tried_again_without_a_traceback(tmp_path, capfd):
    read, write = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if not child:
        try:
            worker.run(str(tmp_path / "things"), str(tmp_path / "things" / "job"), read, 0, "cpu")
        except SystemExit as ended:
            os._exit(int(ended.code))  # type: ignore[arg-type]
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == worker.LOCKED
    write.close()
    assert "Traceback" not in capfd.readouterr().err
    assert not (tmp_path / "things").exists()


def test_a_folder_that_cannot_be_written_to_is_served_and_takes_no_job(made_models, tmp_path, caplog):
    shutil.copytree(made_models, tmp_path / "models", ignore=shutil.ignore_patterns(".serving"))
    place = tmp_path / "read-only"
    place.mkdir()
    mount = ["mount", "--bind", str(tmp_path / "models"), str(place)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
        with client_of(place) as http:
            assert http.get("/v2/models/things").json()["versions"] == ["1", "2", "3"]
            assert http.get("/v2/health/ready").status_code == 200
            told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
            assert [sum(f"'{name}'" in line for line in told) for name in ("things", "pictures")] == [1, 1]
            refused = http.post("/v2/models/things/forget", json={"task": "pets"})
            assert refused.status_code == 503
            assert "things" in refused.json()["error"]
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.faults
def test_a_server_tells_that_a_folder_was_deleted_and_that_it_is_back(start, models, tally):
    """The program itself, which looks every two seconds. A folder that is back has a copy's files, or its own."""
    server: Server = start()
    rounds, found, path = 6, Counter[str](), models / "things"
    before = server.http.post("/v2/models/things/infer", json=request(X)).json()["outputs"]
    for number in range(rounds):
        aside = models.parent / "aside"
        if number % 2:
            path.rename(aside)
        else:
            shutil.copytree(path, aside)
            shutil.rmtree(path)
        assert wait_for(lambda: server.http.get("/v2/health/ready").status_code == 503)
        answered = server.http.post("/v2/models/things/infer", json=request(X))
        found["answers lost"] += answered.status_code != 200 or answered.json()["outputs"] != before
        found["metrics that say ready"] += (
            'ibpwf_model_ready{model="things"} 0.0' not in server.http.get("/metrics").text
        )
        found["jobs accepted"] += server.learn(task_table(models.parent, 3), "colors").status_code != 503
        time.sleep(2.5)
        found["missing or repeated log lines"] += server.log.count("is not ready") != number + 1
        found["folders made in the void"] += os.path.lexists(path)
        aside.rename(path)
        assert wait_for(lambda: server.http.get("/v2/health/ready").status_code == 200)
        answered = server.http.post("/v2/models/things/infer", json=request(X))
        found["answers lost"] += answered.status_code != 200 or answered.json()["outputs"] != before
    learned = server.learn(task_table(models.parent, 3), "colors")
    found["jobs not done"] += server.wait(learned.json()["id"])["state"] != "done"
    found["versions lost"] += server.versions() != ["1", "2", "3", "4"]
    found["tracebacks"] += "Traceback" in server.stop()
    tally("deletions of a served model's folder", rounds, **found)


def test_comparing_versions_names_each_output_that_is_not_the_same_to_the_bit(client, models, monkeypatch):
    http, service = client
    real = service.ask

    async def nudged(version: Any, rows: Any) -> Prediction[Any]:
        found = await real(version, rows)
        return replace(found, entropy=np.nextafter(found.entropy, 9)) if version.number == 2 else found

    monkeypatch.setattr(service, "ask", nudged)
    file = (models.parent / "test.csv").read_bytes()
    compared = http.post("/v2/models/things/compare", params={"versions": "2,3"}, content=file).json()
    assert [one["different"] for one in compared["task_incremental"]] == [["entropy"], ["entropy"]]
    assert not any(one["bit_identical"] for one in compared["task_incremental"])
