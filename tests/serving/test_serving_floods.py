"""Bodies that are small to send and large to read: they are rejected, and cost others little time and memory."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import io
import json
import multiprocessing
import os
import signal
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from served import (
    NAMES,
    Again,
    Server,
    blobs,
    client_of,
    columns,
    outputs,
    pixels,
    png,
    request,
    service_of,
    wait_for,
)

from ibpwf.estimator.files import layout_of, load_classifier
from ibpwf.inference.prediction import Prediction
from ibpwf.serving import batching, inputs
from ibpwf.serving import inference_routes as ask
from ibpwf.serving.batching import Rows, predict
from ibpwf.serving.bodies import BodyReader
from ibpwf.serving.body_process import LARGE, unpack
from ibpwf.serving.faults import Refused
from ibpwf.serving.limits import Limits
from ibpwf.serving.protocol import HEADER, PARSED, check_json, read_json, tensors_of

X = blobs(range(6), each=1, seed=2)[0]
INFER = "/v2/models/things/infer"
MB = 1 << 20


def tensor(data: str, shape: int = 6, kind: str = "FP64") -> bytes:
    return f'{{"inputs": [{{"name": "f0", "shape": [{shape}], "datatype": "{kind}", "data": {data}}}]}}'.encode()


def binary(head: dict[str, object], data: bytes) -> tuple[bytes, dict[str, str]]:
    text = json.dumps({"inputs": [{**head, "parameters": {"binary_data_size": len(data)}}]}).encode()
    return text + data, {HEADER: str(len(text))}


def objects(size: int) -> bytes:
    return b'{"inputs": [' + b"{}," * (size // 3) + b"{}]}"


def bombs(size: int) -> dict[str, tuple[bytes, dict[str, str]]]:
    """By kind: a body, and its headers. Unpacked, each has about `size` bytes."""
    deflate, packed = {"Content-Encoding": "deflate"}, {"Content-Encoding": "gzip"}
    loose = np.random.default_rng(0).integers(0, 256, size // 40).astype(np.uint8).tobytes()
    return {
        "empty objects, packed": (zlib.compress(objects(size)), deflate),
        "empty objects among noise, packed": (
            gzip.compress(b'{"a": "' + loose.hex().encode() + b'", "inputs": [' + b"{}," * (size // 3) + b"{}]}"),
            packed,
        ),
        "empty objects": (objects(size), {}),
        "objects": (b'{"inputs": [' + b'{"a":1},' * (size // 8) + b"{}]}", {}),
        "empty lists": (tensor("[" + "[]," * (size // 3) + "[]]"), {}),
        "texts": (tensor("[" + '"ab",' * (size // 5) + '"ab"]', kind="BYTES"), {}),
        "numbers": (tensor("[" + "1," * (size // 2) + "1]"), {}),
        "long numbers": (tensor("[" + ("9" * 4000 + ",") * (size // 4001) + "1]"), {}),
        "a long text": (tensor('["' + "a" * (size // 2) + '\\ud83d\\ude00"]', 1, "BYTES"), {}),
        "spaces, packed": (gzip.compress(b" " * size), packed),
        "nesting": (tensor("[" * 3000 + "]" * 3000), {}),
        "nesting within a parameter": (b'{"id": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}", {}),
        "deep and large": (tensor(("[" * 500 + "]" * 500 + ",") * (size // 1001)), {}),
        "texts of no bytes": binary({"name": "f0", "shape": [size // 4], "datatype": "BYTES"}, bytes(size)),
        "a text that ends late": binary(
            {"name": "f0", "shape": [1], "datatype": "BYTES"}, struct.pack("<I", size) + bytes(size - 8)
        ),
        "zeros": binary({"name": "x", "shape": [size // 128, 16], "datatype": "FP64"}, bytes(size // 128 * 128)),
    }


def files(size: int) -> dict[str, tuple[bytes, dict[str, str], str]]:
    """By kind: a file that is small to send, or of about `size` bytes, and where it is sent to."""
    import pyarrow
    import pyarrow.parquet

    def parquet(rows: int, label: str) -> bytes:
        columns = {name: np.zeros(rows) for name in NAMES} | {"kind": pyarrow.array([label]).take([0] * rows)}
        out = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(columns), out, compression="gzip")
        return out.getvalue()

    def npz(kind: Any) -> bytes:
        out = io.BytesIO()
        np.savez_compressed(out, x=np.zeros((9 << 20, 8), kind))
        return out.getvalue()

    image = png(np.zeros((4000, 4000), np.uint8))
    coded = base64.b64encode(image).decode()
    images = {"name": "image", "shape": [20], "datatype": "BYTES", "data": [coded] * 20}
    header = ",".join(NAMES).encode() + b"\n"
    answer = "/v2/models/{}/predict".format
    return {
        "long labels that are all the same": (parquet(4000, "a" * 250_000), {}, answer("things")),
        "many rows that are all the same": (parquet(1_000_000, "apple"), {}, answer("things")),
        "zeros, packed": (npz(np.uint8), {}, answer("pictures")),
        "zeros, packed, for a table": (npz(np.float32), {}, answer("things")),
        "one line": (header + b"1," * (size // 2), {}, answer("things")),
        "one column": (b"\n".join([b"f0"] * (size // 3)), {}, answer("things")),
        "an image of one color": (image, {}, answer("pictures")),
        "images of one color": (json.dumps({"inputs": [images]}).encode(), {}, "/v2/models/pictures/infer"),
    }


def resident(process: int) -> int:
    """Bytes that a process and those it has started hold."""
    found, waiting = 0, [process]
    while waiting:
        number = waiting.pop()
        try:
            status = Path(f"/proc/{number}/status").read_text()
            children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += int(status.split("VmRSS:")[1].split()[0]) << 10 if "VmRSS:" in status else 0
        waiting += map(int, children)
    return found


class Observer(Again):
    """Another client, which asks for one row again and again, and looks at the server's memory."""

    def __init__(self, server: Server) -> None:
        super().__init__(self.look, 0.005)
        self.server, self.http = server, httpx.Client(base_url=server.address, timeout=240)
        self.times, self.peak = list[float](), 0
        self.body = json.dumps(request(X[:1], outputs=[{"name": "label"}]))

    def ask(self) -> float:
        began = time.perf_counter()
        assert self.http.post(INFER, content=self.body).status_code == 200
        return time.perf_counter() - began

    def look(self) -> None:
        self.times.append(self.ask())
        self.peak = max(self.peak, resident(self.server.pid))


Make = Callable[[int], Mapping[str, Sequence[Any]]]


def attack(address: str, make: Make, size: int, rounds: int, clients: int) -> list[tuple[str, int, str]]:
    """Send bombs from several clients at once. For each: its kind, the answer's status, the beginning of its text."""
    os.nice(19)  # for attackers have machines of their own
    sent, answers = make(size), list[tuple[str, int, str]]()

    def send(number: int) -> None:
        with httpx.Client(base_url=address, timeout=240) as http:
            names = list(sent)[number:] + list(sent)[:number]
            for name in names * rounds:
                body, headers, *path = sent[name]
                answer = http.post(*path or [INFER], content=body, headers=headers)
                answers.append((name, answer.status_code, answer.text[:200]))

    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(send, [5 * number for number in range(clients)]))
    return answers


def flood(server: Server, make: Make, size: int, rounds: int, clients: int, share: float) -> dict[str, int]:
    """Attack from another process; how many of the answers were none that a client should get, and whether it cost
    another client more than it may: `share` of its requests are looked at."""
    watcher = Observer(server)
    for _ in range(20):
        watcher.ask()
    idle = np.quantile([watcher.ask() for _ in range(100)], share)
    baseline = resident(server.pid)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as elsewhere:
        attacking = elsewhere.submit(attack, server.address, make, size, rounds, clients)
        watcher.start()
        try:
            answers = attacking.result()
        finally:
            watcher.finish()
    assert len(answers) == clients * rounds * len(make(1000))
    delay, memory = np.quantile(watcher.times, share) - idle, watcher.peak - baseline
    print(f"{len(watcher.times)} requests beside: {delay * 1000:.0f} ms and {memory / MB:.0f} MB more")
    wrong = [one for one in answers if not 400 <= one[1] < 500]
    assert not wrong, wrong[:5]
    return {
        "not rejected": len(wrong),
        "delays beyond 100 ms": int(delay > 0.1),
        "beyond 300 MB": int(memory > 300e6),
    }


LONG = pytest.param(5, 4, 60 * MB, 0.99, marks=pytest.mark.faults)


@pytest.mark.parametrize("make", [bombs, files])
@pytest.mark.parametrize(("clients", "rounds", "size", "share"), [(3, 1, 12 * MB, 0.5), LONG])
def test_a_flood_of_bodies_that_are_large_to_read_costs_others_little(
    start, tally, make, clients, rounds, size, share
):
    server: Server = start()
    for _ in range(3 if share == 0.5 else 1):  # other programs on a busy machine may delay anybody, but hardly thrice
        found = flood(server, make, size, rounds, clients, share)
        if not found["delays beyond 100 ms"]:
            break
    what = {bombs: "bodies", files: "files"}[make]
    tally(f"{what} sent to a server that are large to read", clients * rounds * len(make(1000)), seed=0, **found)
    assert "Traceback" not in server.stop()


# What is large and right is answered


@pytest.fixture(scope="module")
def many() -> np.ndarray:
    return np.tile(X, (400, 1))[:2048]


def spaced(content: dict[str, object]) -> bytes:
    """JSON that is long enough to be read by the process for large bodies."""
    text = json.dumps(content).encode()
    return text + b" " * max(0, LARGE + 1 - len(text))


@pytest.mark.parametrize("coding", ["", "gzip", "deflate"])
def test_a_large_body_has_the_same_bits_as_small_ones(server: Server, many: np.ndarray, coding: str):
    content = spaced(request(many, id="mine", parameters={"task": "fruit"}))
    assert len(content) > LARGE
    pack: Callable[[bytes], bytes] = {"": bytes, "gzip": gzip.compress, "deflate": zlib.compress}[coding]
    found = server.http.post(INFER, content=pack(content), headers={"Content-Encoding": coding} if coding else {})
    assert found.status_code == 200, found.text
    assert found.json()["id"] == "mine"
    small = server.http.post(INFER, json=request(many[:6], parameters={"task": "fruit"})).json()
    for name, values in outputs(small).items():
        assert outputs(found.json())[name][: len(values)] == values


def nested(x: np.ndarray) -> dict[str, object]:
    return {"inputs": [{"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.tolist()}]}


def tasks(x: np.ndarray) -> dict[str, object]:
    names = {"name": "task", "shape": [len(x)], "datatype": "BYTES", "data": ["fruit", "trees"] * (len(x) // 2)}
    return {"inputs": [*columns(x), names], "outputs": [{"name": "label"}]}


@pytest.mark.parametrize("make", [nested, tasks])
def test_every_form_of_a_large_body_is_read(server: Server, make: Callable[[np.ndarray], dict[str, object]]):
    small, large = (server.http.post(INFER, content=text) for text in (json.dumps(make(X)), spaced(make(X))))
    assert small.status_code == large.status_code == 200, large.text
    assert small.json()["outputs"] == large.json()["outputs"]


def test_a_large_body_that_is_wrong_is_rejected_as_a_small_one_is(server: Server):
    for change in (
        {"inputs": []},
        {"id": 3},
        {"inputs": [*columns(X), columns(X)[0]]},
        {"parameters": {"taks": "a"}},
    ):
        content = {**request(X), **change}
        small, large = (server.http.post(INFER, content=text) for text in (json.dumps(content), spaced(content)))
        assert small.status_code == large.status_code == 400
        assert small.json() == large.json()


def test_after_the_process_for_large_bodies_is_killed_the_next_one_is_read(start):
    server: Server = start()
    assert server.http.post(INFER, content=spaced(request(X))).status_code == 200
    for _ in range(3):
        [child] = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        os.kill(int(child), 9)
        assert server.http.post(INFER, content=spaced(request(X))).status_code in (200, 503)
        assert server.http.post(INFER, content=spaced(request(X))).status_code == 200
    assert "Traceback" not in server.stop()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_large_body_is_not_too_large_because_the_process_that_reads_it_gets_a_signal(number):
    """As all processes of a terminal or a service do, while the server answers what it has begun."""

    async def read() -> int:
        reader = BodyReader(Limits())
        try:
            await reader.read(bytearray(spaced(request(X))), "", None)
            assert reader._process is not None
            reading = asyncio.create_task(reader.read(bytearray(spaced(request(np.tile(X, (600, 1))))), "", None))
            await asyncio.sleep(0)
            reader._process.send_signal(number)
            try:
                await reading
            except Refused as error:
                return error.status
            return 200
        finally:
            await reader.end()

    assert asyncio.run(read()) == (503 if number == signal.SIGKILL else 200)


def test_a_client_that_leaves_a_large_body_half_sent_takes_no_place_for_good(start):
    server: Server = start("--limit", "large=1", "--limit", "seconds=5", "--limit", f"body={4 * MB}")
    head = f"POST {INFER} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {3 * MB}\r\n\r\n".encode()
    wires = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(4)]
    for one in wires:
        one.settimeout(1)
        with contextlib.suppress(OSError):
            one.sendall(head + b" " * (2 * MB))
    for one in wires:
        one.close()
    assert wait_for(lambda: server.http.post(INFER, content=spaced(request(X))).status_code == 200)


# Limits


def test_the_price_of_json_is_checked_before_it_is_parsed():
    for text in (objects(4 * MB), b'["a",' * (2 * MB), b"[" * (3 * MB), b"1," * (5 * MB)):
        with pytest.raises(Refused) as told:
            read_json(text)
        assert told.value.status == 413
    check_json(b"1.5," * (PARSED // 32 - 1))


def ratios() -> Iterator[tuple[bytes, int | None]]:
    yield bytes(MB), None  # so little may be of any ratio
    yield np.random.default_rng(0).bytes(3 * MB), None
    yield bytes(3 * MB), 413
    yield bytes(70 * MB), 413


def test_rows_have_no_more_numbers_together_than_a_tensor_may_have(made_models):
    rows = [dict(zip(NAMES, row, strict=True)) for row in X.tolist()]
    file = "\n".join([",".join(NAMES), *(",".join(map(str, row.values())) for row in rows)]).encode()
    image = base64.b64encode(png(pixels(X)[0])).decode()
    with client_of(made_models, limits=Limits(numbers=64), read_only=True) as http:
        for count, status in ((4, 200), (5, 413)):
            assert http.post(INFER, json=request(X[:count])).status_code == status
            some = b"\n".join(file.split(b"\n")[: count + 1])
            assert http.post("/v2/models/things/predict", content=some).status_code == status
            images = {"name": "image", "shape": [count], "datatype": "BYTES", "data": [image] * count}
            assert http.post("/v2/models/pictures/infer", json={"inputs": [images]}).status_code == status


def test_large_images_are_decoded_one_at_a_time(monkeypatch):
    running, most = [], 0

    def decode(number: int) -> None:
        nonlocal most
        with inputs.decoding(image, "image", Limits()):
            running.append(number)
            most = max(most, len(running))
            time.sleep(0.01)
            running.remove(number)

    image = png(np.zeros((1100, 1100), np.uint8))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(decode, range(8)))
    assert most == 1


def test_images_that_take_too_long_to_read_are_rejected(made_models):
    layout = layout_of(load_classifier(made_models / "pictures", "cpu"))
    given = np.array([png(pixels(X)[0])] * 3, dtype=object)
    assert len(inputs._images({"image": given}, layout, Limits())) == 3
    with pytest.raises(Refused) as told:
        inputs._images({"image": given}, layout, Limits(seconds=1e-9))
    assert told.value.status == 413


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_body_unpacks_to_a_limited_multiple_of_its_size(coding: str):
    pack = {"gzip": gzip.compress, "deflate": zlib.compress}[coding]
    for plain, status in ratios():
        if status is None:
            assert unpack(pack(plain), coding, Limits()) == plain
            continue
        with pytest.raises(Refused) as told:
            unpack(pack(plain), coding, Limits())
        assert told.value.status == status
    assert unpack(pack(bytes(3 * MB)), coding, Limits(ratio=2000)) == bytes(3 * MB)


def test_a_large_question_is_answered_between_others_with_the_same_bits(made_models):
    """Whose rows ask for tasks in any order, and for none."""
    service = service_of(made_models, read_only=True)
    version = service.registry["things"].version(None)
    tasks = [[None, "fruit", "trees"][row % 3] for row in range(len(X) * 100)]
    many, one = Rows(np.tile(X, (100, 1)).astype(np.float32), tasks), Rows(X[:1].astype(np.float32), [None])
    order = list[str]()

    async def ask(name: str, rows: Rows) -> Prediction[Any]:
        found = await service.batcher.ask(version, rows)
        order.append(name)
        return found

    async def both() -> list[Prediction[Any]]:
        return await asyncio.gather(ask("large", many), ask("small", one))

    large, small = asyncio.run(both())
    assert order == ["small", "large"]
    assert service.batcher.waiting == 0
    whole, alone = (predict(version.classifier, [rows])[0] for rows in (many, one))
    for found, wanted in ((large, whole), (small, alone)):
        for name, values in tensors_of(wanted).items():
            assert np.array_equal(tensors_of(found)[name], values), name


@pytest.mark.parametrize("kind", ["large images", "versions that are not loaded"])
def test_slow_requests_of_one_kind_do_not_hold_up_other_work(models, monkeypatch, kind):
    """More of them than the event loop has threads."""
    service = service_of(models)
    count, begun, waiting = min(32, (os.cpu_count() or 1) + 4) + 1, list[int](), ask._takes_long
    if kind == "large images":
        image = base64.b64encode(png(np.zeros((1100, 1100), np.uint8))).decode()
        slow = {"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": [image]}]}
        path, lock = "/v2/models/pictures/infer", inputs._ONE_LARGE_IMAGE
        monkeypatch.setattr(ask, "_takes_long", lambda *given: begun.append(1) or waiting(*given))
    else:
        slow, model = request(X), service.registry["things"]
        path, lock = "/v2/models/things/versions/1/infer", model._loading
        number = ask.version_number
        monkeypatch.setattr(ask, "version_number", lambda text: begun.append(1) or number(text))
    with client_of(service) as http, ThreadPoolExecutor(count + 1) as clients:
        with lock:
            asked = [clients.submit(http.post, path, json=slow) for _ in range(count)]
            assert wait_for(lambda: len(begun) == count)
            verified = clients.submit(http.post, "/v2/models/things/verify")
            assert verified.result(timeout=60).json()["intact"]
            assert not any(one.done() for one in asked)
        for one in asked:
            assert one.result().status_code in (200, 400)  # an image of that size is none of this model's


def test_a_large_file_has_its_place_until_it_is_answered(made_models, monkeypatch):
    service = service_of(made_models, limits=Limits(large=1), read_only=True)
    held, real = list[bool](), batching._predictions

    def answering(*asked: Any) -> list[Prediction[Any]]:
        held.append(service.bodies._places.locked())
        return real(*asked)

    monkeypatch.setattr(batching, "_predictions", answering)
    file = io.BytesIO()
    np.savez(file, x=np.tile(pixels(X)[:, None] / 255.0, (400, 1, 1, 1)))
    assert len(file.getvalue()) > LARGE
    with client_of(service) as http:
        for path in ("predict", "compare?versions=1,2"):
            found = http.post(f"/v2/models/pictures/{path}", content=file.getvalue())
            assert found.status_code == 200, found.text
    assert held
    assert all(held)
    assert not service.bodies._places.locked()


def test_rows_of_a_question_that_fails_or_is_given_up_do_not_wait_for_good(made_models, monkeypatch):
    service = service_of(made_models, read_only=True)
    version = service.registry["things"].version(None)
    many = Rows(np.tile(X, (100, 1)).astype(np.float32), [None] * len(X) * 100)
    calls, real = 0, batching.predict

    def second_fails(*asked: Any) -> list[Prediction[Any]]:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise ValueError
        return real(*asked)

    async def cancelled() -> None:
        asking = asyncio.create_task(service.batcher.ask(version, many))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        while service.batcher._running is not None:
            await asyncio.sleep(0)

    asyncio.run(cancelled())
    assert service.batcher.waiting == 0
    monkeypatch.setattr(batching, "predict", second_fails)
    with pytest.raises(ValueError):
        asyncio.run(service.batcher.ask(version, many))
    assert service.batcher.waiting == 0
