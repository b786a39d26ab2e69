"""Bad input: only a 4xx with one sentence, never a fault of the server's, a traceback or a hang."""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
import socket
import struct
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from served import Server, archive, blobs, client_of, columns, inside, is_refused, png, request, service_of
from starlette.testclient import TestClient

from ibpwf.errors import IBPWFError
from ibpwf.estimator.files import layout_of, load_classifier
from ibpwf.serving import batching
from ibpwf.serving.faults import Refused
from ibpwf.serving.limits import Limits
from ibpwf.serving.protocol import HEADER
from ibpwf.serving.routes import ROUTES
from ibpwf.serving.uploads import check_archive, images_to_arrays, suffix_of

X = blobs(range(6), each=1, seed=2)[0]
SMALL = Limits(body=1 << 20, rows=64, pixels=10_000, numbers=4096, upload=1 << 20, unpacked=1 << 20, files=100)


@pytest.fixture(scope="module")
def asked(made_models: Path) -> Iterator[TestClient]:
    """Raises what goes wrong inside, instead of answering 500."""
    with client_of(made_models, limits=SMALL, read_only=True) as client:
        yield client


def refused(response: Any, *words: str) -> None:
    assert is_refused(response), (response.status_code, response.text)
    sentence = response.json()["error"]
    for word in words:
        assert word in sentence, sentence


INFER = "/v2/models/things/infer"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"inputs": None}, "inputs"),
        ({"inputs": []}, "inputs"),
        ({"inputs": {}}, "inputs"),
        ({"inputs": [1]}, "input"),
        ({"inputs": columns(X)[:5]}, "lacks"),
        ({"inputs": [*columns(X), {"name": "new", "shape": [6], "datatype": "FP32", "data": [1] * 6}]}, "new"),
        ({"inputs": [*columns(X), columns(X)[0]]}, "twice"),
        ({"parameters": []}, "parameters"),
        ({"parameters": {"task": "fruits"}}, "Did you mean 'fruit'?"),
        ({"parameters": {"task": 7}}, "task"),
        ({"parameters": {"task": ["fruit"]}}, "1 tasks are given for 6 rows"),
        ({"parameters": {"taks": "fruit"}}, "'taks'; there are task, missing, unknown, binary_data_output."),
        ({"parameters": {"task": "fruit", "": 1}}, "there is no parameter ''"),
        ({"outputs": [{"name": "logits"}]}, "logits"),
        ({"outputs": 3}, "outputs"),
        ({"id": 3}, "id"),
    ],
)
def test_a_request_that_lacks_something_is_told_what(asked, change, word):
    refused(asked.post(INFER, json={**request(X), **change}), word)


@pytest.mark.parametrize(
    ("tensor", "word"),
    [
        ({"shape": [7]}, "6 values"),
        ({"shape": [-1]}, "shape"),
        ({"shape": "6"}, "shape"),
        ({"shape": [10**9, 10**9]}, "numbers"),
        ({"datatype": "FP8"}, "FP8"),
        ({"datatype": None}, "None"),
        ({"datatype": "BYTES"}, "BYTES"),
        ({"datatype": "INT8"}, "INT8"),
        ({"data": None}, "data"),
        ({"data": ["a"] * 6}, "FP64"),
        ({"data": [None] * 6}, "'f3'"),
        ({"data": [None] * 6, "datatype": "INT64"}, "None"),
        ({"data": [True] * 6}, "True"),
        ({"data": [[1], [2], [3], [4], [5], [6]]}, "nested"),
        ({"data": [1e999] * 6}, ""),
        ({"data": [1e300] * 6}, "not finite"),
        ({"datatype": "FP32", "data": [10**400] * 6}, "FP32"),
        ({"name": 3}, "name"),
    ],
)
def test_a_tensor_that_is_none_is_told_why(asked, tensor, word):
    content = request(X)
    content["inputs"][3] = {**content["inputs"][3], **tensor}
    refused(asked.post(INFER, content=json.dumps(content)), word)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"inputs": NaN}', b"[" * 100_000, b'"' + b"a" * 1000, b"\x00" * 100],
)
def test_what_is_no_json_object_is_refused(asked, body):
    refused(asked.post(INFER, content=body))


def test_binary_tensors_that_are_cut_or_lie_are_refused(asked):
    size = {"binary_data_size": 128}
    head: dict[str, Any] = {"name": "x", "shape": [1, 16], "datatype": "FP64", "parameters": size}
    whole = np.zeros(16).tobytes()

    def send(entry: dict[str, Any], data: bytes, length: int | str | None = None) -> Any:
        text = json.dumps({"inputs": [entry]}).encode()
        return asked.post(INFER, content=text + data, headers={HEADER: str(len(text) if length is None else length)})

    assert send(head, whole).status_code == 200
    refused(send(head, whole[:-1]), "bytes")
    refused(send(head, whole + b"1"), "follow")
    refused(send(head, whole, 10**9), HEADER)
    refused(send(head, whole, "-1"), HEADER)
    refused(send({**head, "parameters": {"binary_data_size": -5}}, whole), "bytes")
    refused(send({**head, "shape": [2, 16]}, whole), "takes 256")
    refused(send(head, np.full(16, np.nan).tobytes()), "not finite")
    text = {"name": "task", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 8}}
    refused(send(text, struct.pack("<I", 2**32 - 1) + b"abcd"), "end within")


def test_too_much_is_refused_with_413(asked):
    rows = np.zeros((65, 16))
    assert asked.post(INFER, json=request(rows)).status_code == 413
    assert asked.post(INFER, content=b" " * ((1 << 20) + 1)).status_code == 413
    large = png(np.zeros((200, 200), dtype=np.uint8)).decode("latin-1")
    body = {"name": "image", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(large) + 4}}
    text = json.dumps({"inputs": [body]}).encode()
    data = struct.pack("<I", len(large)) + large.encode("latin-1")
    answered = asked.post("/v2/models/pictures/infer", content=text + data, headers={HEADER: str(len(text))})
    assert answered.status_code == 413
    assert "pixels" in answered.json()["error"]
    import gzip

    bomb = gzip.compress(b" " * (20 << 20))
    assert asked.post(INFER, content=bomb, headers={"Content-Encoding": "gzip"}).status_code == 413
    refused(asked.post(INFER, content=b"no", headers={"Content-Encoding": "gzip"}), "gzip")
    assert asked.post(INFER, content=b"no", headers={"Content-Encoding": "br"}).status_code == 415


def test_what_is_no_image_is_refused(asked):
    for data in ("", "no image", "\x89PNG\r\n\x1a\n"):
        entry = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [data]}
        refused(asked.post("/v2/models/pictures/infer", json={"inputs": [entry]}))


@pytest.mark.parametrize("number", ["0", "9", "-1", "1.5", "a", "1" * 30, "%00", "٣"])
def test_a_version_that_there_is_not_is_404(asked, number):
    answered = asked.post(f"/v2/models/things/versions/{number}/infer", json=request(X))
    assert answered.status_code == 404
    refused(answered)


WORDS = (b"NaN", b"null", b"-1", b"1e999", b"{}", b"[]", b'"', b"99999999999", b"\\ud800")


def damaged(body: bytes, chance: random.Random) -> bytes:
    """A body with something wrong somewhere."""
    data = bytearray(body)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0 if data:
                data[at % len(data)] ^= 1 << chance.randrange(8)
            case 1:
                data[at:at] = chance.randbytes(chance.randint(1, 8))
            case 2:
                del data[at : at + chance.randint(1, 40)]
            case 3:
                del data[at:]
            case _:
                data[at:at] = chance.choice(WORDS)
    return bytes(data)


def bodies() -> list[tuple[str, bytes, dict[str, str]]]:
    """Good ones, of every kind."""
    text = json.dumps(request(X, parameters={"task": "fruit"}, outputs=[{"name": "label"}])).encode()
    whole = {"name": "x", "shape": [6, 16], "datatype": "FP64", "parameters": {"binary_data_size": 768}}
    head = json.dumps({"inputs": [whole], "parameters": {"binary_data_output": True}}).encode()
    image = json.dumps({"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": ["x"]}]}).encode()
    csv = (
        ",".join(f"f{n}" for n in range(16)).encode() + b"\n" + b"\n".join(b",".join([b"1.5"] * 16) for _ in range(5))
    )
    arrays = io.BytesIO()
    np.savez(arrays, x=X.astype(np.float32))
    picture = png(np.arange(16, dtype=np.uint8).reshape(4, 4))
    return [
        (INFER, text, {}),
        (INFER, head + X.tobytes(), {HEADER: str(len(head))}),
        ("/v2/models/pictures/infer", image, {}),
        ("/v2/models/things/predict", csv, {}),
        ("/v2/models/things/compare?versions=1,3", csv, {}),
        ("/v2/models/things/predict", arrays.getvalue(), {}),
        ("/v2/models/pictures/predict", picture, {}),
    ]


def try_damaged(asked: TestClient, times: int, seed: int) -> tuple[int, dict[str, int]]:
    """How many were refused, and how many answers were none that a client should get."""
    chance, wrong, found = random.Random(seed), 0, {"server faults": 0, "no sentence": 0}
    good = bodies()
    for number in range(times):
        address, body, headers = good[number % len(good)]
        answered = asked.post(address, content=damaged(body, chance), headers=headers)
        if answered.status_code != 200:
            found["server faults"] += answered.status_code >= 500
            found["no sentence"] += not is_refused(answered)
            wrong += 1
    return wrong, found


def lengths(short: int, long: int) -> pytest.MarkDecorator:
    """So many tries, and more in `make test-serving`."""
    return pytest.mark.parametrize("times", [short, pytest.param(long, marks=pytest.mark.faults)])


@lengths(300, 3000)
def test_damaged_bodies_are_refused_in_a_sentence(asked, tally, times):
    seed = int.from_bytes(os.urandom(4))
    wrong, found = try_damaged(asked, times, seed)
    assert wrong > times // 2
    tally("damaged bodies sent to a server", wrong, seed=seed, **found)


def strange(chance: random.Random) -> str:
    """A word that somebody may put into an address."""
    words = ["things", "pictures", "1", "3", "..", "%2e%2e%2f", "\x7f", "ä", "💥", "a" * 300]
    words += ["-1", "None", "' OR 1=1", "{}"]
    return chance.choice(words) if chance.random() < 0.8 else chance.randbytes(6).hex()


def try_addresses(asked: TestClient, times: int, seed: int) -> dict[str, int]:
    from urllib.parse import quote

    chance, found = random.Random(seed), {"server faults": 0, "no sentence": 0}
    for _ in range(times):
        route = chance.choice(ROUTES)
        path = route.path
        for name in ("model", "version", "job", "name"):
            path = path.replace("{" + name + "}", quote(strange(chance)) or "x")
        query = {
            chance.choice(("version", "task", "to", "validation_fraction", "update", "x")): strange(chance)
            for _ in range(chance.randrange(3))
        }
        method = route.method if chance.random() < 0.9 else chance.choice(("PUT", "PATCH", "DELETE", "OPTIONS"))
        body = chance.choice((b"", b"{}", chance.randbytes(30), b'{"task": "fruit"}'))
        answered = asked.request(method, path, params=query, content=body if method != "GET" else None)
        found["server faults"] += answered.status_code >= 500
        if answered.status_code >= 400 and answered.headers["content-type"] == "application/json":
            found["no sentence"] += not is_refused(answered)
    return found


@lengths(300, 5000)
def test_strange_addresses_are_answered_in_a_sentence(asked, tally, times):
    seed = int.from_bytes(os.urandom(4))
    tally("strange addresses sent to a server", times, seed=seed, **try_addresses(asked, times, seed))


def test_archives_that_are_bombs_or_no_archives_are_refused(made_models, tmp_path):
    layout = layout_of(load_classifier(made_models / "pictures", "cpu"))
    many = archive({f"a/{n}.png": b"" for n in range(200)})
    large = archive({"a/1.png": b"\x00" * (3 << 20), "b/1.png": b""})
    wide = archive({"a/1.png": png(np.zeros((2000, 2000), dtype=np.uint8))})
    lying = bytearray(archive({"a/1.png": png(np.zeros((4, 4), dtype=np.uint8))}))
    lying[50] ^= 255  # not what its digest says
    for name, data in {
        "many": many,
        "large": large,
        "wide": wide,
        "cut": many[:500],
        "lying": bytes(lying),
        "beheaded": archive({"a/1.png": png(np.zeros((4, 4), dtype=np.uint8))})[10:],
        "loose": archive({"1.png": png(np.zeros((4, 4), dtype=np.uint8))}),
        "other": archive({"a/readme.txt": b"hello"}),
        "an archive of archives": archive({"a/inner.zip": archive({"a/1.png": b""})}),
    }.items():
        path = tmp_path / name
        path.write_bytes(data)
        began = time.process_time()
        with pytest.raises(IBPWFError) as told:
            images_to_arrays(path, tmp_path / "out.npz", layout, SMALL)
        assert "\n" not in str(told.value)
        assert time.process_time() - began < 5
        assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize("form", ["plain", "zip64"])
def test_an_archive_with_more_files_than_it_says_is_refused_before_its_directory_is_parsed(tmp_path, form):
    whole, path = archive({f"{n}.npy": b"" for n in range(50)}), tmp_path / "many"
    at = whole.rfind(b"PK\5\6")
    size, start = struct.unpack_from("<II", whole, at + 12)
    if form == "zip64":
        found = struct.pack("<4sQHHLLQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, 50, 50, size, start)
        found += struct.pack("<4sLQL", b"PK\6\7", 0, at, 1) + struct.pack(
            "<4sHHHHIIH", b"PK\5\6", 0, 0, 1, 1, 47, start, 0
        )
    else:
        found = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 1, 1, size, start, 0)
    path.write_bytes(whole[:at] + found)
    with zipfile.ZipFile(path) as opened:
        assert len(opened.infolist()) == 50
    with pytest.raises(Refused):
        suffix_of(path, Limits(files=49))
    path.write_bytes(whole)
    check_archive(path, Limits(files=50))


def test_slow_and_vanishing_clients_disturb_nobody(start):
    server: Server = start("--limit", "seconds=600")  # whoever waited for the slow ones would hang
    wire = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(30)]
    text = b"POST /v2/models/things/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{"
    for number, one in enumerate(wire):
        one.sendall(text if number % 3 else text[:40])
    for one in wire[:15]:
        one.close()
    for _ in range(5):
        assert server.http.post(INFER, json=request(X)).status_code == 200
    for one in wire[15:]:
        one.close()
    told = server.stop()
    assert "Traceback" not in told, told


def test_a_client_that_is_too_slow_is_told_so(start):
    server: Server = start("--limit", "seconds=1")
    with socket.create_connection(("127.0.0.1", server.port), 60) as wire:
        wire.sendall(b"POST /v2/models/things/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{")
        assert b" 408 " in wire.recv(4096).split(b"\r\n")[0]
    told = server.stop()
    assert "Traceback" not in told, told


def test_when_too_many_rows_wait_the_next_is_told_to_come_back(made_models, monkeypatch):
    """A pass is held until every other request has its answer, however slow the machine is."""
    service = service_of(made_models, limits=Limits(waiting=40), read_only=True)
    free, answers, content = threading.Event(), batching._predictions, json.dumps(request(np.repeat(X, 5, 0)))
    monkeypatch.setattr(batching, "_predictions", lambda asked: free.wait(120) and answers(asked))

    async def ask() -> tuple[list[httpx.Response], httpx.Response]:
        async with inside(service) as http:
            asked = [asyncio.create_task(http.post(INFER, content=content)) for _ in range(16)]
            try:
                async with asyncio.timeout(60):
                    while sum(one.done() for one in asked) < 15:
                        await asyncio.sleep(0.01)
            finally:
                free.set()
            return [await one for one in asked], await http.post(INFER, content=content)

    found, later = asyncio.run(ask())
    assert sorted(one.status_code for one in found) == [200] + [429] * 15
    assert all(int(one.headers["retry-after"]) >= 1 for one in found if one.status_code == 429)
    assert later.status_code == 200
