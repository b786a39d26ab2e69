"""`ibpwf serve` as a command: over TLS, and what it says of things that are wrong."""

from __future__ import annotations

import signal
import socket
import ssl
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from certificates import write_certificate
from served import Server, blobs, request, service_of, task_table, wait_for
from test_serving_uploads import Upload, closing, left
from wires import connect

import processes


def test_a_server_with_a_certificate_is_asked_over_tls_and_keeps_its_cookie_to_it(start, models, tmp_path):
    certificate, key = write_certificate(tmp_path)
    tokens = tmp_path / "tokens.json"
    told = processes.start(
        ("serve", str(models), "--tokens", str(tokens), "--new-token", "alice", "--role", "admin"), tmp_path, {}
    ).finish()
    token = told.err.split()[-1]
    trusting = ssl.create_default_context(cafile=str(certificate))
    words = ("--tokens", str(tokens), "--certificate", str(certificate), "--key", str(key))
    server = start(*words, verify=trusting)
    client = server.http
    assert client.get("/v2/models/things").status_code == 401
    assert client.get("/v2/models/things", headers={"Authorization": f"Bearer {token}"}).status_code == 200
    signed = client.post("/login", data={"token": token})
    assert "secure" in signed.headers["set-cookie"].lower()
    assert client.get("/models/things").status_code == 200  # by the cookie
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{server.port}/v2/health/ready", timeout=10)
    client.close()
    server.send(signal.SIGINT)
    ended = server.finish()
    assert ended.code == 130
    assert "Traceback" not in ended.err


def test_a_server_that_is_asked_to_end_first_says_so_and_goes_on_answering(models):
    server = Server(models, "--drain-seconds", "600")
    server.send(signal.SIGTERM)
    assert wait_for(lambda: server.http.get("/v2/health/ready").status_code == 503)
    assert server.http.get("/v2/health/live").status_code == 200
    assert server.http.get("/v2/health/ready").json()["ready"] is False
    assert server.http.post("/v2/models/things/infer", json=request(blobs([0], each=1)[0])).status_code == 200
    assert httpx.get(f"{server.address}/v2/health/live").status_code == 200  # on a new connection
    server.kill()


def test_a_server_that_ends_takes_no_connections_after_a_while_and_finishes_what_it_has_begun(models, tmp_path):
    server = Server(models, "--drain-seconds", "2")
    body = task_table(tmp_path, 3).read_bytes()

    def refuses() -> bool:
        try:
            connect(server.port).close()
        except ConnectionRefusedError:
            return True
        return False

    with closing([Upload(server, "colors", body)]) as uploads:
        assert wait_for(lambda: len(left(models / "things")) == 1)
        server.http.close()
        began = time.monotonic()
        server.send(signal.SIGTERM)
        assert wait_for(refuses)
        assert time.monotonic() - began >= 2
        assert uploads[0].finish().statuses == [202]  # was begun before
    ended = server.finish()
    assert ended.code == 0
    assert "Traceback" not in ended.err
    again = Server(models)
    assert [again.wait(one["id"])["state"] for one in again.http.get("/v2/jobs").json()] == ["done"]
    again.kill()


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_server_at_once_and_its_job_goes_on_with_the_next(models, tmp_path, second):
    server = Server(models, "--drain-seconds", "600")
    job = server.learn(task_table(tmp_path, 3, each=200), "colors").json()["id"]
    assert wait_for(lambda: server.http.get(f"/v2/jobs/{job}").json()["state"] == "running")
    server.send(signal.SIGTERM)
    assert wait_for(lambda: server.http.get("/v2/health/ready").status_code == 503)
    server.send(second)
    assert server.finish().code == 128 + second  # after the time to drain, or for running jobs, it would be 0
    again = Server(models)
    assert again.wait(job)["state"] == "done"
    again.kill()


def test_the_device_is_named_and_one_that_is_not_there_ends_it(models, command):
    import torch

    wrong = ["gpu", *([] if torch.cuda.is_available() else ["cuda", "cuda:1"])]
    for device in wrong:
        done = command("serve", str(models), "--device", device)
        assert (done.code, done.out) == (2, "")
        assert f"'{device}'" in done.err
        assert len(done.err.strip().splitlines()) == 1
    server = Server(models, "--device", "cpu")
    assert server.http.get("/v2").json()["device"] == "cpu"
    assert "computed on cpu" in server.log
    server.kill()


def test_models_passes_and_jobs_are_computed_on_the_device_that_was_chosen(models, monkeypatch):
    """By what they are told: there may be no GPU where tests run."""
    from ibpwf.estimator import ContinualClassifier
    from ibpwf.serving import batching, worker
    from ibpwf.serving.registry import Registry

    told = list[str]()
    load = ContinualClassifier.load

    def loaded(path: Path, *, device: str = "auto") -> ContinualClassifier:
        told.append(device)
        return load(path, device="cpu")

    monkeypatch.setattr(ContinualClassifier, "load", loaded)
    Registry(models, device="cuda:1")
    assert set(told) == {"cuda:1"}
    service = service_of(models, device="cpu")
    assert service.device == service.jobs.device == service.registry.device == "cpu"
    service.batcher.close()

    seen = list[object]()
    monkeypatch.setattr("ibpwf.estimator.files.learn_file", lambda *given: seen.append(given[4].device) or 1 / 0)
    work = {"data": "data.csv", "options": {}, "validation_fraction": None}
    job = {"kind": "learn", "task": "colors", "work": work}
    with pytest.raises(ZeroDivisionError):
        worker._learn(models / "things", job, threading.Event(), "cuda:1")
    assert seen == ["cuda:1"]

    sizes = list[int]()
    served = load(models / "things", device="cpu")
    predict = type(served).prediction
    monkeypatch.setattr(
        type(served),
        "prediction",
        lambda self, x, *given, **named: sizes.append(len(x)) or predict(self, x, *given, **named),
    )
    rows = batching.Rows(blobs([0], each=3)[0].astype(np.float32), ["fruit", "trees", None], novelty=False)
    alone = batching.predict(served, [rows])[0]
    assert max(sizes) == 32
    sizes.clear()
    monkeypatch.setattr(batching, "_step", lambda classifier: batching.MOST)
    padded = batching.predict(served, [rows])[0]
    assert set(sizes) == {128}
    np.testing.assert_array_equal(padded.labels, alone.labels)


def test_what_is_wrong_is_said_in_a_sentence_before_anything_is_served(models, tmp_path, command):
    table = models.parent / "test.csv"
    certificate, key = write_certificate(tmp_path)
    (tmp_path / "other").mkdir()
    other = write_certificate(tmp_path / "other")[1]
    (tmp_path / "empty").mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        wrong = {
            ("modles",): "no such file or folder",
            (str(table),): "is a file; give a model folder",
            (str(tmp_path / "empty"),): "holds no model folder",
            (str(models), "--port", port): "choose another --port",
            (str(models), "--port", "99999"): "from 0 to 65535",
            (str(models), "--drain-seconds", "-1"): "--drain-seconds is -1",
            (str(models), "--limit", "rwos=3"): "Did you mean 'rows'?",
            (str(models), "--limit", "rows=many"): "give a number",
            (str(models), "--host", "0.0.0.0"): "--tokens FILE",
            (str(models), "--tokens", str(table)): "is not a token file",
            (str(models), "--certificate", str(table)): "needs its key",
            (str(models), "--certificate", str(table), "--key", str(table)): "not a certificate and its key",
            (str(models), "--certificate", str(certificate), "--key", str(other)): "not a certificate and its key",
            (str(models), "--certificate", str(tmp_path / "no.pem"), "--key", str(key)): "no such file",
            (str(models), "--new-token", "alice"): "give --tokens FILE",
        }
        for words, sentence in wrong.items():
            done = command("serve", *words)
            assert done.code == 2, (words, done)
            assert sentence in done.err, (words, done.err)
            assert len(done.err.strip().splitlines()) == 1
            assert "Serving" not in done.out
