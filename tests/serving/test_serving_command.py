"""`ibpwf serve` as a command: over TLS, and what it says of things that are wrong."""

from __future__ import annotations

import signal
import socket
import ssl

import httpx
import pytest
from certificates import write_certificate
from served import free_port

import processes


def test_a_server_with_a_certificate_is_asked_over_tls_and_keeps_its_cookie_to_it(models, tmp_path):
    certificate, key = write_certificate(tmp_path)
    port, tokens = free_port(), tmp_path / "tokens.json"
    told = processes.start(
        ("serve", str(models), "--tokens", str(tokens), "--new-token", "alice", "--role", "admin"), tmp_path, {}
    ).finish()
    token = told.err.split()[-1]
    words = ("serve", str(models), "--port", str(port), "--tokens", str(tokens))
    words += ("--certificate", str(certificate), "--key", str(key))
    started = processes.start(words, tmp_path, {})
    trusting = ssl.create_default_context(cafile=str(certificate))
    client = httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trusting, timeout=30)
    try:

        def answers() -> bool:
            try:
                return client.get("/v2/health/ready").status_code == 200
            except httpx.TransportError:
                return False

        assert started.wait_until(answers)
        assert client.get("/v2/models/things").status_code == 401
        assert client.get("/v2/models/things", headers={"Authorization": f"Bearer {token}"}).status_code == 200
        signed = client.post("/login", data={"token": token})
        assert "secure" in signed.headers["set-cookie"].lower()
        assert client.get("/models/things").status_code == 200  # by the cookie
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/v2/health/ready", timeout=10)
        started.send(signal.SIGINT)
        ended = started.finish()
        assert ended.code == 130
        assert "Traceback" not in ended.err
    finally:
        client.close()
        started.end()


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
            (str(models), "--limit", "rwos=3"): "Did you mean 'rows'?",
            (str(models), "--limit", "rows=many"): "give a number",
            (str(models), "--host", "0.0.0.0"): "--tokens FILE",
            (str(models), "--tokens", str(table)): "is no file of tokens",
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
