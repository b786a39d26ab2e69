"""What holds of every request, whatever it asks: framing, host, size of its head, request IDs and the access log."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from served import Server, client_of, wait_for
from starlette.testclient import TestClient
from wires import connect, exchange

from ibpwf.serving import access
from ibpwf.serving.access import add_token
from ibpwf.serving.limits import Limits
from ibpwf.serving.records import AccessLog, RateLimitedLog
from ibpwf.serving.routes import ROUTES

# Framing

GET = b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n"
INNER = b"DELETE /v2/jobs/smuggled HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
SMUGGLING = {
    "length and chunks": GET + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
    "chunks and length": GET + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + INNER,
    "post": GET.replace(b"GET", b"POST")
    + b"Content-Length: 5\r\ntransfer-encoding: Chunked\r\n\r\n0\r\n\r\n"
    + INNER,
    "two lengths": GET + b"Content-Length: 0\r\nContent-Length: 55\r\n\r\n" + INNER,
    "a length with a sign": GET + b"Content-Length: +0\r\n\r\n" + INNER,
    "an unknown coding": GET + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + INNER,
    "a space before the colon": GET + b"Content-Length : 4\r\n\r\n" + INNER,
    "two hosts": GET + b"Host: evil.example\r\n\r\n" + INNER,
}


@pytest.mark.parametrize("how", SMUGGLING)
def test_a_request_of_ambiguous_length_is_rejected_and_its_connection_closed(server: Server, how: str):
    found = exchange(server.port, SMUGGLING[how])
    assert found.statuses == [400], found.data
    assert found.closed


@pytest.mark.faults
def test_thousands_of_ambiguous_heads_never_hide_a_second_request(server: Server, tally):
    """Whatever two parsers may read differently: at most one response, or the connection is closed after an error."""
    seed = int.from_bytes(os.urandom(4))
    chance, tried, found = random.Random(seed), 0, {"hidden requests answered": 0, "left open": 0}
    spellings = [b"Content-Length: 4", b"Content-Length: 0", b"content-length:4", b"Transfer-Encoding: chunked"]
    spellings += [
        b"Transfer-Encoding: identity",
        b"Transfer-Encoding: chunked, chunked",
        b"Transfer-Encoding:\tchunked",
    ]
    spellings += [
        b"Transfer_Encoding: chunked",
        b"X: y\r\n z",
        b"Content-Length: 4,4",
        b"Transfer-Encoding: gzip, chunked",
    ]
    for _ in range(2000):
        lines = chance.sample(spellings, chance.randint(2, 4))
        names = {line.partition(b":")[0].strip().lower() for line in lines}
        if not {b"content-length", b"transfer-encoding"} <= names:
            continue
        tried += 1
        text = GET + b"\r\n".join(lines) + b"\r\n\r\n0\r\n\r\n" + INNER
        answered = exchange(server.port, text, 5.0)
        found["hidden requests answered"] += len(answered.statuses) > 1
        found["left open"] += not answered.closed
    tally("requests of ambiguous length sent to a server", tried, seed=seed, **found)


LARGE_HEADS = {
    "one header": GET + b"X-Large: " + b"a" * 200_000 + b"\r\n\r\n",
    "many headers": GET + b"".join(b"X-%d: a\r\n" % n for n in range(1000)) + b"\r\n",
    "cookies": GET + b"Cookie: " + b"a=b;" * 12_000 + b"\r\n\r\n",
    "no end": GET + b"X-Large: " + b"a" * 2_000_000,
    "a path": b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a query": b"GET /v2?" + b"a&" * 10_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
}


@pytest.mark.parametrize("how", LARGE_HEADS)
def test_a_head_that_is_too_large_is_rejected_before_it_is_looked_into(server: Server, how: str):
    found = exchange(server.port, LARGE_HEADS[how])
    assert found.closed
    assert found.statuses in ([400], [414], [431], []), found.statuses  # none: closed while it was still sent
    assert server.http.get("/v2/health/live").status_code == 200


# Hosts and other sites


@pytest.mark.parametrize(
    "path", ["/v2", "/v2/", "/v2/models/things/", "/openapi.json", "/nothing", "/static/page.css/"]
)
def test_without_tokens_every_address_checks_the_host(made_models, path):
    with client_of(made_models) as client:
        for method in ("GET", "POST", "OPTIONS"):
            answered = client.request(method, path, headers={"Host": "evil.example:8000"}, follow_redirects=False)
            assert answered.status_code == 403, (method, path, answered.status_code)
        assert client.get(path, follow_redirects=False).status_code in (200, 404)
        assert client.get("/v2", headers={"Host": "LOCALHOST:8000"}).status_code == 200


def test_no_get_changes_anything_or_starts_an_export(models):
    changing = {"tasks": "POST", "forget": "POST", "verify": "POST", "export": "POST"}
    methods = {route.path.rpartition("/")[2]: route.method for route in ROUTES if route.role >= 2}
    assert {name: method for name, method in methods.items() if name in changing} == changing
    with client_of(models) as client:
        assert client.get("/v2/models/things/export?to=folder").status_code == 405
        assert not (models / "things" / ".serving" / "exports").exists()
        crossing = {"Origin": "http://evil.example"}
        assert client.post("/v2/models/things/export?to=folder", headers=crossing).status_code == 403
        exported = client.post("/v2/models/things/export?to=folder")
        assert exported.status_code == 200
        assert exported.headers["content-type"] == "application/zip"


# Health, IDs and logs


def test_health_checks_have_no_rate_limit(made_models, monkeypatch):
    monkeypatch.setattr(access, "time", SimpleNamespace(monotonic=lambda: 0.0))  # or a slow machine asks too slowly
    with client_of(made_models, limits=Limits(rate=2)) as client:
        addresses = ("/v2/health/live", "/v2/health/ready", "/v2/models/things/ready")
        assert {client.get(address).status_code for _ in range(10) for address in addresses} == {200}
        found = [client.get("/v2").status_code for _ in range(10)]
    assert found == [200] * 2 + [429] * 8  # they did not use it up either


def test_a_request_has_an_id_which_comes_back_and_is_in_the_access_log(start, tmp_path):
    where = tmp_path / "access.jsonl"
    server: Server = start("--access-log", str(where))
    given = server.http.get("/v2/models/things", headers={"X-Request-ID": "abc-123"})
    assert given.headers["x-request-id"] == "abc-123"
    made = [server.http.get("/v2/models/none").headers["x-request-id"] for _ in range(3)]
    assert len(set(made)) == 3
    for wrong in ("", "a b", 'a"b', "x" * 200, "a\tb"):
        answered = server.http.get("/v2", headers={"X-Request-ID": wrong}).headers["x-request-id"]
        assert re.fullmatch(r"[0-9a-f]+-[0-9a-f]+", answered)
    assert server.http.get("/nowhere", headers={"X-Request-ID": "lost"}).headers["x-request-id"] == "lost"
    assert server.http.post("/v2/models/things/verify", headers={"X-Request-ID": "check"}).status_code == 200
    told = server.stop()
    lines = {line["request"]: line for line in map(json.loads, where.read_text().splitlines())}
    assert lines["abc-123"]["status"] == 200
    assert lines["abc-123"]["path"] == "/v2/models/things"
    assert lines["abc-123"]["caller"] == "local"
    assert lines["abc-123"]["address"] == "127.0.0.1"
    assert lines["abc-123"]["bytes"] == len(given.content)
    assert {lines[one]["status"] for one in made} == {404}
    assert lines["lost"]["status"] == 404
    assert "[check]" in told  # the server's own log names the request as well
    audited = (server.models / "things" / ".serving" / "audit.jsonl").read_text()
    assert json.loads(audited.splitlines()[-1])["request"] == "check"


def test_a_client_that_leaves_before_its_request_is_there_has_no_status_in_the_access_log(start, tmp_path):
    where = tmp_path / "access.jsonl"
    server: Server = start("--access-log", str(where))
    for path in ("infer", "predict"):
        with connect(server.port) as wire:
            wire.sendall(f"POST /v2/models/things/{path} HTTP/1.1\r\n".encode())
            wire.sendall(b"Host: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{")

    def statuses() -> dict[str, int | None]:
        lines = [json.loads(line) for line in where.read_text().splitlines()]
        return {line["path"].rsplit("/")[-1]: line["status"] for line in lines if line["method"] == "POST"}

    assert wait_for(lambda: len(statuses()) == 2)
    assert statuses() == {"infer": None, "predict": None}
    assert "Traceback" not in server.stop()


def test_the_access_log_follows_rotation_and_survives_a_full_disk(tmp_path, caplog):
    scope = {"client": ("10.0.0.1", 5), "method": "GET", "path": "/a"}
    where = tmp_path / "access.jsonl"
    kept = AccessLog(str(where))
    kept.note(scope, "one", 200, 0, 0.0)
    assert wait_for(lambda: where.read_text().count("\n") == 1)
    where.rename(tmp_path / "access.jsonl.1")
    kept.note(scope, "two", 200, 0, 0.0)
    assert wait_for(lambda: where.exists() and "two" in where.read_text())
    kept.close()
    full = AccessLog("/dev/full")
    for _ in range(5):
        full.note(scope, "three", 200, 0, 0.0)
    full.close()
    assert sum("/dev/full" in record.message for record in caplog.records) == 1


@pytest.fixture
def guarded(made_models: Path, tmp_path: Path) -> Iterator[tuple[TestClient, str]]:
    token = add_token(tmp_path / "tokens.json", "asker", "predict")
    with client_of(made_models, tokens=tmp_path / "tokens.json") as client:
        yield client, token


def test_failed_authentication_is_counted_and_logged_without_the_token(guarded, caplog):
    client, token = guarded
    secret = "a-wrong-token-that-nobody-should-read"
    for _ in range(50):
        assert client.get("/v2/models/things", headers={"Authorization": f"Bearer {secret}"}).status_code == 401
    assert client.get("/v2").status_code == 401
    right = {"Authorization": f"Bearer {token}"}
    assert client.get("/v2/jobs", headers=right).status_code == 403
    assert client.post("/login", data={"token": secret}).status_code == 401
    lines = [record.message for record in caplog.records if "denied" in record.message]
    assert len(lines) == 3  # of each reason one, however many there were
    assert all("testclient" in line for line in lines)
    assert "'/v2/models/things'" in lines[0]
    assert secret not in caplog.text
    assert token not in caplog.text
    counted = client.get("/metrics", headers=right).text
    for reason, count in {"unknown": 51, "missing": 1, "role": 1}.items():
        assert f'ibpwf_authentication_failures_total{{reason="{reason}"}} {count}.0' in counted


def test_a_flood_of_failures_from_many_addresses_leaves_few_lines(caplog):
    noted = RateLimitedLog(seconds=3600, keys=20)
    for number in range(10_000):
        noted.note(f"10.0.{number // 256}.{number % 256}", f"from {number}")
    assert len(caplog.records) == 21
