"""Who may do what: every route with every role, and what a token costs."""

from __future__ import annotations

import contextlib
import hmac
import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from served import Server, client_of
from starlette.testclient import TestClient

from ibpwf.errors import InputError, StoreError
from ibpwf.serving import access as access_module
from ibpwf.serving.access import Access, Rate, Role, add_token, digest, read_tokens
from ibpwf.serving.faults import Refused
from ibpwf.serving.limits import Limits
from ibpwf.serving.routes import ROUTES
from ibpwf.serving.server import Place, check_place

ALLOWED = {
    "GET /v2/health/live": "anyone predict learn admin",
    "GET /v2/health/ready": "anyone predict learn admin",
    "GET /v2": "predict learn admin",
    "POST /v2/repository/index": "predict learn admin",
    "GET /v2/models/{model}": "predict learn admin",
    "GET /v2/models/{model}/versions/{version}": "predict learn admin",
    "GET /v2/models/{model}/ready": "predict learn admin",
    "GET /v2/models/{model}/versions/{version}/ready": "predict learn admin",
    "POST /v2/models/{model}/infer": "predict learn admin",
    "POST /v2/models/{model}/versions/{version}/infer": "predict learn admin",
    "GET /v2/models/{model}/tasks": "predict learn admin",
    "POST /v2/models/{model}/predict": "predict learn admin",
    "POST /v2/models/{model}/compare": "predict learn admin",
    "GET /metrics": "predict learn admin",
    "POST /v2/models/{model}/tasks": "learn admin",
    "GET /v2/jobs": "learn admin",
    "GET /v2/jobs/{job}": "learn admin",
    "GET /v2/jobs/{job}/events": "learn admin",
    "DELETE /v2/jobs/{job}": "learn admin",
    "POST /v2/models/{model}/forget": "admin",
    "POST /v2/models/{model}/verify": "admin",
    "POST /v2/models/{model}/export": "admin",
    "GET /": "predict learn admin",
    "GET /models/{model}": "predict learn admin",
    "POST /login": "",  # without a token in its body nobody gets in
    "POST /logout": "anyone predict learn admin",
    "GET /static/{name}": "anyone predict learn admin",
}
"""By hand, not by the program's own table."""


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    file = tmp_path_factory.mktemp("tokens") / "tokens.json"
    return file, {role: add_token(file, f"{role}er", role) for role in ("predict", "learn", "admin")}


@pytest.fixture(scope="module")
def guarded(made_models: Path, tokens: tuple[Path, dict[str, str]]) -> Iterator[TestClient]:
    with client_of(made_models, tokens=tokens[0], redirects=False) as client:
        yield client


def test_the_table_has_every_route():
    assert {f"{route.method} {route.path}" for route in ROUTES} == {*ALLOWED}


@pytest.mark.parametrize("route", ALLOWED)
@pytest.mark.parametrize("role", ["anyone", "predict", "learn", "admin", "wrong"])
def test_each_route_lets_in_those_roles_and_no_others(guarded, tokens, route, role):
    method, path = route.split()
    address = path.format(model="things", version="1", job="none", name="page.css")
    if path.endswith("/export"):
        address += "?to=nothing"  # enough to see who gets in
    given = {"anyone": {}, "wrong": {"Authorization": "Bearer wrong"}}.get(role)
    headers = {"Authorization": f"Bearer {tokens[1][role]}"} if given is None else given
    status = guarded.request(method, address, headers=headers).status_code
    may = "anyone" if role == "wrong" else role
    if may in ALLOWED[route].split():
        assert status not in (401, 403), status
        assert status < 500
    else:
        assert status == (401 if may == "anyone" or path == "/login" else 403)


def test_a_read_only_server_changes_nothing_whoever_asks(made_models, tokens):
    with client_of(made_models, tokens=tokens[0], read_only=True) as client:
        headers = {"Authorization": f"Bearer {tokens[1]['admin']}"}
        assert client.get("/v2/models/things", headers=headers).status_code == 200
        refused = client.post("/v2/models/things/tasks?task=new", headers=headers, content=b"a")
        assert refused.status_code == 403
        assert "read-only" in refused.json()["error"]


def test_tokens_are_stored_as_digests_only(tokens):
    file, given = tokens
    text = file.read_text()
    assert all(token not in text for token in given.values())
    assert file.stat().st_mode & 0o077 == 0
    assert {one.sha256 for one in read_tokens(file)} == {digest(token) for token in given.values()}


def test_every_stored_digest_is_compared_whatever_is_given(tokens, monkeypatch):
    """So that time tells neither whether a token is right nor whose it is."""
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr("ibpwf.serving.access.hmac.compare_digest", lambda a, b: compared.append(b) or real(a, b))
    access = Access(read_tokens(tokens[0]))
    for token in (*tokens[1].values(), "wrong", "", None):
        compared.clear()
        access.caller(token)
        assert len(compared) == 3


def test_a_wrong_token_takes_as_long_as_a_right_one(tokens):
    access = Access(read_tokens(tokens[0]))
    right, wrong = tokens[1]["predict"], "x" * len(tokens[1]["predict"])

    def seconds(token: str) -> float:
        began = time.thread_time()  # not that of others on the same machine
        for _ in range(300):
            access.caller(token)
        return time.thread_time() - began

    pairs = [(seconds(right), seconds(wrong)) for _ in range(15)]
    first, second = (statistics.median(values) for values in zip(*pairs, strict=True))
    assert 0.6 < first / second < 1.6


def test_without_tokens_nobody_elsewhere_can_reach_the_server():
    with pytest.raises(InputError, match="--tokens FILE"):
        check_place(Place("0.0.0.0"), None)
    check_place(Place("0.0.0.0"), Path("tokens.json"))
    check_place(Place("127.0.0.1"), None)
    with pytest.raises(InputError, match="key"):
        check_place(Place(certificate=Path("a.pem")), None)


def test_without_tokens_pages_of_other_sites_cannot_ask(made_models):
    with client_of(made_models, "http://127.0.0.1:8000") as client:
        assert client.get("/v2").status_code == 200
        assert client.get("/v2", headers={"Host": "evil.example:8000"}).status_code == 403
        for origin in ("http://evil.example", "null", "", "http://[", "http://[::1", "http://127.0.0.1:8000:8000"):
            crossing = {"Origin": origin}
            assert client.post("/v2/models/things/verify", headers=crossing).status_code == 403, origin
        own = {"Origin": "http://127.0.0.1:8000"}
        assert client.post("/v2/models/things/verify", headers=own).status_code == 200


def test_a_page_keeps_its_token_where_no_script_reads_it(guarded, tokens):
    wrong = guarded.post("/login", data={"token": "wrong"})
    assert wrong.status_code == 401
    assert "set-cookie" not in wrong.headers
    signed = guarded.post("/login", data={"token": tokens[1]["predict"]})
    assert signed.status_code == 303
    cookie = signed.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    guarded.cookies.clear()


def test_more_requests_a_second_than_allowed_are_told_to_wait(made_models, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(access_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with client_of(made_models, limits=Limits(rate=5)) as client:
        asked = [client.get("/v2") for _ in range(12)]
        assert [one.status_code for one in asked] == [200] * 5 + [429] * 7
        assert int(asked[-1].headers["retry-after"]) >= 1
        now[0] += 0.41
        assert [client.get("/v2").status_code for _ in range(4)] == [200, 200, 429, 429]
        now[0] += 3600  # no more than a second's worth at once
        assert [client.get("/v2").status_code for _ in range(6)] == [200] * 5 + [429]
    rate = Rate(2)
    rate.check("a")
    rate.check("a")
    rate.check("b")
    with pytest.raises(Refused):
        rate.check("a")


def test_the_callers_that_are_remembered_are_limited(monkeypatch):
    clock = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr(access_module, "time", clock)
    monkeypatch.setattr(Rate, "CALLERS", 3, raising=False)
    rate = Rate(2)
    for who in ("first", "often", "often", "second", "third", "often", "fourth", "often"):
        with contextlib.suppress(Refused):
            rate.check(who)
    assert list(rate._left) == ["third", "fourth", "often"]
    with pytest.raises(Refused):
        rate.check("often")


def test_a_client_cannot_choose_the_address_that_it_is_counted_by(start):
    server: Server = start("--limit", "rate=2", "--access-log", "-")
    statuses = [
        server.http.get("/v2", headers={"X-Forwarded-For": f"10.0.0.{number}"}).status_code for number in range(20)
    ]
    assert 429 in statuses
    server.http.close()
    server.send(signal.SIGTERM)
    assert "10.0.0." not in server.finish().out


def test_behind_a_proxy_with_tls_the_cookie_is_secure(guarded, tokens):
    form = {"token": tokens[1]["predict"]}
    for headers, secure in (({}, False), ({"X-Forwarded-Proto": "https"}, True)):
        signed = guarded.post("/login", data=form, headers=headers)
        assert ("secure" in signed.headers["set-cookie"].lower()) == secure
    guarded.cookies.clear()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"tokens": 3}', "a,b\n1,2\n"])
def test_what_to_do_about_a_file_that_holds_no_tokens_helps(tmp_path, content):
    file = tmp_path / "tokens.json"
    file.write_text(content)
    for asked in (read_tokens, lambda path: add_token(path, "a", "predict")):
        with pytest.raises(InputError, match=r"tokens\.json"):
            asked(file)
    assert file.read_text() == content
    file.unlink()
    add_token(file, "a", "predict")
    assert [one.name for one in read_tokens(file)] == ["a"]


def test_a_token_file_that_cannot_be_read_is_told_by_its_reason(tmp_path):
    for asked in (read_tokens, lambda path: add_token(path, "a", "predict")):
        with pytest.raises(StoreError, match="it is a folder, not a file"):
            asked(tmp_path)
    with pytest.raises(StoreError, match="no such file"):
        read_tokens(tmp_path / "none.json")


def test_a_token_file_says_what_is_wrong_with_it(tmp_path):
    file = tmp_path / "tokens.json"
    file.write_text('{"tokens": [{"name": "a", "role": "king", "sha256": "00"}]}')
    with pytest.raises(InputError, match="role"):
        read_tokens(file)
    with pytest.raises(InputError, match="predict, learn, admin"):
        add_token(tmp_path / "new.json", "a", "king")
    add_token(tmp_path / "new.json", "a", "predict")
    with pytest.raises(InputError, match="already"):
        add_token(tmp_path / "new.json", "a", "predict")
    assert Access(read_tokens(tmp_path / "new.json")).caller("?").role is Role.anyone
