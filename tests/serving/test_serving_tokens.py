"""Tokens and certificates that change while the server runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from ibpwf.serving.access import TokenFile, add_token
from ibpwf.serving.routes import make_app
from ibpwf.serving.service import ServeOptions, Service


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(TokenFile, "SECONDS", 0.0)  # looked at for every request, so that no test waits
    return tmp_path / "tokens.json"


@pytest.fixture
def client(made_models: Path, file: Path) -> Iterator[tuple[TestClient, dict[str, str]]]:
    tokens = {name: add_token(file, name, role) for name, role in (("alice", "ask"), ("bob", "admin"))}
    service = Service(ServeOptions(made_models, file, poll=3600))
    with TestClient(make_app(service), base_url="http://127.0.0.1") as found:
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


def test_two_writes_within_a_clock_tick_are_both_seen(file):
    """The second leaves the file's size and, here, its time as they were."""
    for name in ("alice", "clare"):
        add_token(file, name, "ask")
    both = json.loads(file.read_text())["tokens"]
    file.write_text(json.dumps({"tokens": both[:1]}))
    watched = TokenFile(file)
    time = os.stat(file).st_mtime_ns
    assert [one.name for one in watched.tokens()] == ["alice"]
    file.write_text(json.dumps({"tokens": both[1:]}))
    os.utime(file, ns=(time, time))
    assert [one.name for one in watched.tokens()] == ["clare"]


def test_a_write_that_leaves_size_and_time_as_they_were_is_seen(file):
    """As of a copy that keeps times."""
    for name in ("alice", "clare"):
        add_token(file, name, "ask")
    both = json.loads(file.read_text())["tokens"]
    file.write_text(json.dumps({"tokens": both[:1]}))
    long_ago = os.stat(file).st_mtime_ns - 10**12
    os.utime(file, ns=(long_ago, long_ago))
    watched = TokenFile(file)
    assert [one.name for one in watched.tokens()] == ["alice"]
    file.write_text(json.dumps({"tokens": both[1:]}))
    os.utime(file, ns=(long_ago, long_ago))
    assert [one.name for one in watched.tokens()] == ["clare"]


def test_events_of_a_job_end_when_the_token_is_revoked(models, file, monkeypatch):
    token, job = add_token(file, "dora", "learn"), "0123456789abcdef"
    service = Service(ServeOptions(models, file, poll=3600))
    told: list[Any] = []

    async def events(id: str) -> Any:
        for number in range(3):
            told.append(number)
            yield {"event": "epoch", "done": number}
            remove(file, "dora")

    async def find(id: str) -> Any:
        return type("Found", (), {"id": job})()

    with TestClient(make_app(service), base_url="http://127.0.0.1") as http:
        monkeypatch.setattr(service.jobs, "find", find)
        monkeypatch.setattr(service.jobs, "events", events)
        answered = http.get(f"/v2/jobs/{job}/events", headers=bearer(token))
    assert answered.text.count("event:") == 1
    assert told == [0, 1]
