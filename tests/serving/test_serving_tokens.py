"""Tokens and certificates that change while the server runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import client_of, service_of
from starlette.testclient import TestClient

from ibpwf.serving.access import TokenFile, add_token


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(TokenFile, "SECONDS", 0.0)  # looked at for every request, so that no test waits
    return tmp_path / "tokens.json"


@pytest.fixture
def client(made_models: Path, file: Path) -> Iterator[tuple[TestClient, dict[str, str]]]:
    tokens = {name: add_token(file, name, role) for name, role in (("alice", "predict"), ("bob", "admin"))}
    with client_of(made_models, tokens=file) as found:
        yield found, tokens


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def remove(file: Path, name: str) -> None:
    """Take a token out, as an operator with an editor would: in place."""
    content = json.loads(file.read_text())
    content["tokens"] = [one for one in content["tokens"] if one["name"] != name]
    file.write_text(json.dumps(content))


def test_a_token_works_from_when_it_is_added_until_it_is_removed(client, file):
    http, tokens = client
    carol = add_token(file, "carol", "learn")
    assert http.get("/v2/jobs", headers=bearer(carol)).status_code == 200
    assert http.get("/v2", headers=bearer(tokens["alice"])).status_code == 200
    remove(file, "alice")
    assert http.get("/v2", headers=bearer(tokens["alice"])).status_code == 401
    assert http.get("/v2", headers=bearer(carol)).status_code == 200
    assert http.get("/v2/jobs", headers=bearer(tokens["bob"])).status_code == 200


def test_a_role_that_is_lowered_is_lower_at_once(client, file):
    http, tokens = client
    assert http.post("/v2/models/things/verify", headers=bearer(tokens["bob"])).status_code == 200
    file.write_text(file.read_text().replace('"admin"', '"learn"'))
    assert http.post("/v2/models/things/verify", headers=bearer(tokens["bob"])).status_code == 403


def test_a_page_whose_token_is_revoked_is_signed_out(client, file):
    http, tokens = client
    assert http.post("/login", data={"token": tokens["alice"]}).status_code == 200
    assert http.get("/models/things").status_code == 200
    remove(file, "alice")
    assert http.get("/models/things").status_code == 401
    assert http.get("/v2/models/things").status_code == 401


@pytest.mark.parametrize("content", ["", "{", '{"tokens": [{"name": "x"}]}', "[]", None])
def test_a_token_file_that_is_broken_or_gone_keeps_the_tokens_and_is_logged_once(client, file, content, caplog):
    http, tokens = client
    whole = file.read_text()
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    for _ in range(5):
        assert http.get("/v2", headers=bearer(tokens["alice"])).status_code == 200
    assert http.get("/v2", headers=bearer("wrong")).status_code == 401
    assert sum(record.levelname == "ERROR" for record in caplog.records) == 1
    file.write_text(whole)
    remove(file, "alice")
    assert http.get("/v2", headers=bearer(tokens["alice"])).status_code == 401


@pytest.mark.parametrize("age", [0, 10**12])
def test_a_write_that_leaves_size_and_time_as_they_were_is_seen(file, age):
    """As within a tick of the clock, or of a copy that keeps times."""
    for name in ("alice", "clare"):
        add_token(file, name, "predict")
    both = json.loads(file.read_text())["tokens"]
    file.write_text(json.dumps({"tokens": both[:1]}))
    time = os.stat(file).st_mtime_ns - age
    os.utime(file, ns=(time, time))
    watched = TokenFile(file)
    assert [one.name for one in watched.tokens()] == ["alice"]
    file.write_text(json.dumps({"tokens": both[1:]}))
    os.utime(file, ns=(time, time))
    assert [one.name for one in watched.tokens()] == ["clare"]


def test_events_of_a_job_end_when_the_token_is_revoked(models, file, monkeypatch):
    token, job = add_token(file, "dora", "learn"), "0123456789abcdef"
    service = service_of(models, tokens=file)
    told: list[Any] = []

    async def events(id: str) -> Any:
        for number in range(3):
            told.append(number)
            yield {"event": "epoch", "done": number}
            remove(file, "dora")

    async def find(id: str) -> Any:
        return type("Found", (), {"id": job})()

    with client_of(service) as http:
        monkeypatch.setattr(service.jobs, "find", find)
        monkeypatch.setattr(service.jobs, "events", events)
        answered = http.get(f"/v2/jobs/{job}/events", headers=bearer(token))
    assert answered.text.count("event:") == 1
    assert told == [0, 1]
