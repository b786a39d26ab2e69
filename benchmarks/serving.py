"""Requests per second and latency of `ibpwf serve`, beside a bare FastAPI echo, ONNX Runtime behind FastAPI, and
MLServer with ONNX Runtime; latency while a task is learned; memory over many requests.

    python benchmarks/serving.py --mlserver PYTHON   # writes docs/results/serving/serving.json
    python benchmarks/serving.py --seconds 1 --rounds 1 --memory 10000 --out /tmp/serving

PYTHON is the interpreter of an environment with `pip install mlserver onnxruntime`. Without it, that side is left
out.

A table model of 20 tasks is learned first. A request is one row of 16 columns as JSON. Servers and client are
processes of one machine. Each side is sent requests by 1, 32 and 256 clients at a time. Sides take turns in several
rounds, and each number is the median of the rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from fastapi import FastAPI
from record import RESULTS, made_by, options, write
from starlette.requests import Request
from starlette.responses import Response

from ibpwf.storage.files import write_json

TASKS, FEATURES, ROWS = 20, 16, 200
CLIENTS = (1, 32, 256)
NAMES = [f"f{number}" for number in range(FEATURES)]
INFER = "/v2/models/things/infer"


def rows_of(task: int) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(task)
    y = np.arange(ROWS) % 2
    return chance.normal(0, 4, (2, FEATURES))[y] + chance.normal(0, 1, (ROWS, FEATURES)), y


def write_rows(path: Path, task: int) -> Path:
    x, y = rows_of(task)
    lines = [",".join([*map(str, row), f"class-{2 * task + label}"]) for row, label in zip(x, y, strict=True)]
    path.write_text("\n".join([",".join([*NAMES, "label"]), *lines]))
    return path


def learn_model(folder: Path) -> Path:
    from ibpwf.estimator.files import LearnOptions, learn_file

    for task in range(TASKS):
        rows = write_rows(folder / "task.csv", task)
        learn_file(folder / "things", rows, f"task-{task}", None, LearnOptions(device="cpu"))
    return folder / "things"


# The sides


def serve_ibpwf(port: int, model: str, batching: bool) -> None:
    from ibpwf.serving.limits import Limits
    from ibpwf.serving.server import Place, serve
    from ibpwf.serving.service import ServeOptions

    patient = Limits(seconds=600)  # 256 clients one at a time wait long
    serve(ServeOptions(Path(model), batching=batching, limits=patient), Place(port=port))


def serve_app(port: int, model: str | None) -> None:
    """ONNX Runtime on one row at a time, or without a model a bare echo."""
    import onnxruntime
    import uvicorn

    from ibpwf.serving.limits import Limits
    from ibpwf.serving.protocol import read_request

    app, limits, threads = FastAPI(), Limits(), onnxruntime.SessionOptions()
    threads.intra_op_num_threads = 1
    made = model and onnxruntime.InferenceSession(model, threads, providers=["CPUExecutionProvider"])

    async def infer(request: Request) -> Response:
        body = await request.body()
        if not made:
            return Response(body, media_type="application/json")
        asked, wanted = read_request(body, None, limits), made.get_inputs()[0]
        kind = np.float64 if "double" in wanted.type else np.float32
        x = np.stack([asked.inputs[name] for name in NAMES], axis=1).astype(kind)
        found = made.run(None, {wanted.name: x})[0]
        content = {"outputs": [{"name": "probabilities", "shape": list(found.shape), "data": found.ravel().tolist()}]}
        return Response(json.dumps(content), media_type="application/json")

    app.add_api_route("/v2/health/ready", lambda: {"ready": True})
    app.add_api_route(INFER, infer, methods=["POST"], response_model=None)
    uvicorn.run(app, port=port, log_level="error", access_log=False)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


@contextlib.contextmanager
def running(function: Callable[..., None], *arguments: Any) -> Iterator[tuple[int, int]]:
    """A side in a process of its own; its port and process number."""
    (port,) = free_ports(1)
    process = multiprocessing.get_context("spawn").Process(target=function, args=(port, *arguments))
    process.start()
    assert process.pid is not None
    try:
        wait_ready(port, process.is_alive)
        yield port, process.pid
    finally:
        process.terminate()
        process.join(20)
        process.kill()


@contextlib.contextmanager
def running_mlserver(python: str, onnx: Path, folder: Path) -> Iterator[tuple[int, int]]:
    """MLServer in its own environment, without workers: they would take the client's core."""
    settings: dict[str, Any] = dict(zip(("http_port", "grpc_port", "metrics_port"), free_ports(3), strict=True))
    folder.mkdir()
    shutil.copy(Path(__file__).with_name("mlserver_onnx.py"), folder)
    write_json(folder / "settings.json", {**settings, "host": "127.0.0.1", "parallel_workers": 0, "debug": False})
    model = {"name": "things", "implementation": "mlserver_onnx.Onnx", "parameters": {"uri": str(onnx)}}
    write_json(folder / "model-settings.json", model)
    words = [python, "-c", "from mlserver.cli import main; main()", "start", "."]
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_ready(settings["http_port"], lambda: process.poll() is None)
        yield settings["http_port"], process.pid
    finally:
        process.terminate()
        process.wait(20)


def wait_ready(port: int, is_alive: Callable[[], bool]) -> None:
    for _ in range(1200):
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"http://127.0.0.1:{port}/v2/health/ready").status_code == 200:
                return
        if not is_alive():
            sys.exit("a server has ended")
        time.sleep(0.1)
    sys.exit("a server did not come up")


# The client


def request_bytes(row: np.ndarray, address: str = INFER, outputs: tuple[str, ...] = ()) -> bytes:
    content: dict[str, Any] = {
        "inputs": [
            {"name": name, "shape": [1], "datatype": "FP64", "data": [float(value)]}
            for name, value in zip(NAMES, row, strict=True)
        ]
    }
    if outputs:
        content["outputs"] = [{"name": name} for name in outputs]
    body = json.dumps(content).encode()
    head = f"POST {address} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Load:
    """So many clients that ask one after another, each as soon as it has been answered."""

    def __init__(self, port: int, requests: list[bytes], check: bool = False) -> None:
        self.port, self.requests = port, requests
        self.times: list[float] = []
        self.failed, self.other = 0, 0
        self.first: dict[int, bytes] | None = {} if check else None

    async def client(self, number: int, wire: Any, until: float, most: int) -> None:
        reader, writer = wire
        turn = number
        while time.perf_counter() < until and len(self.times) < most:
            which = turn % len(self.requests)
            began = time.perf_counter()
            writer.write(self.requests[which])
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            body = await reader.readexactly(length)
            self.times.append(time.perf_counter() - began)
            if b" 200 " not in head[:20]:
                self.failed += 1
            elif self.first is not None and self.first.setdefault(which, body) != body:
                self.other += 1
            turn += 7
        writer.close()

    async def run(self, clients: int, seconds: float, most: int = 1 << 60) -> dict[str, float]:
        wires = [await asyncio.open_connection("127.0.0.1", self.port) for _ in range(clients)]
        self.times, began = [], time.perf_counter()
        until = began + seconds
        await asyncio.gather(*(self.client(number, wire, until, most) for number, wire in enumerate(wires)))
        spent = time.perf_counter() - began
        p50, p99 = np.percentile(np.array(self.times) * 1000, (50, 99))
        per_second = len(self.times) / spent
        return {"per_second": per_second, "p50_ms": float(p50), "p99_ms": float(p99), "failed": self.failed}


def memory(process: int) -> float:
    """MB that a process holds, counted page by page."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    return round(int(text.split("Rss:")[1].split()[0]) / 1024, 2)


def cpu_seconds(process: int) -> float:
    """CPU time that a process has taken."""
    after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


Side = tuple[int, int, list[bytes]]
"""A server's port, its process, and what it is sent."""


def measure(sides: dict[str, Side], rounds: int, seconds: float) -> dict[str, dict[str, dict[str, float]]]:
    """Of each side and number of clients the medians; sides take turns, so that what else runs hits all of them."""
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(rounds):
        for clients in CLIENTS:
            for name, (port, process, requests) in sides.items():
                asyncio.run(Load(port, requests).run(clients, 0.5))
                load, before = Load(port, requests), cpu_seconds(process)
                one = asyncio.run(load.run(clients, seconds))
                one["cpu_ms"] = (cpu_seconds(process) - before) / len(load.times) * 1000
                print(f"  {name}, {clients} clients: {one}", flush=True)
                if one["failed"]:
                    sys.exit("requests were rejected, so nothing was measured")
                found.setdefault((name, clients), []).append(one)
    return {
        name: {
            str(clients): {key: float(np.median([one[key] for one in found[name, clients]])) for key in one}
            for clients in CLIENTS
        }
        for name in sides
    }


def watch_memory(port: int, process: int, requests: list[bytes], most: int) -> dict[str, Any]:
    """What a server holds before so many requests, and after each quarter of them."""
    found, count = [memory(process)], 0
    for _ in range(4):
        load = Load(port, requests)
        asyncio.run(load.run(64, 3600, most // 4))
        count += len(load.times) - load.failed
        found.append(memory(process))
    return {"memory_mb": found, "memory_requests": count}


def while_learning(port: int, folder: Path, seconds: float) -> dict[str, Any]:
    """Old versions asked before, during and after a task is learned: how long it takes, and whether a bit differs."""
    addresses = [f"/v2/models/things/versions/{number}/infer" for number in (5, 20)]
    load = Load(
        port, [request_bytes(row, address) for row in rows_of(3)[0][:20] for address in addresses], check=True
    )
    asyncio.run(load.run(4, 1))
    idle = asyncio.run(load.run(4, seconds))
    rows = write_rows(folder / "next.csv", TASKS).read_bytes()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        job = client.post("/v2/models/things/tasks?task=next", content=rows).json()["id"]
        during: list[float] = []
        while (state := client.get(f"/v2/jobs/{job}").json()["state"]) not in ("done", "failed"):
            asyncio.run(load.run(4, 1))
            during += load.times
    after, p99 = asyncio.run(load.run(4, seconds)), float(np.percentile(during, 99)) * 1000
    found = {"idle": idle, "during_p99_ms": p99, "asked": len(during), "after": after}
    return {**found, "other": load.other, "state": state}


def main() -> None:
    parser = options(__doc__, RESULTS / "serving")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mlserver", metavar="PYTHON", help="interpreter of an environment with MLServer")
    parser.add_argument("--memory", type=int, default=100_000, help="requests over which memory is watched")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        from ibpwf import export

        folder, start = Path(place), stack.enter_context
        model = learn_model(folder)
        onnx = export(model, None, "onnx", folder / "things.onnx").files[0]
        rows = np.concatenate([rows_of(task)[0][:5] for task in range(TASKS)])
        plain = [request_bytes(row, outputs=("label", "probability")) for row in rows]
        whole = [request_bytes(row) for row in rows]
        # The seeds are those of the rows of each task, and of the one that is learned over HTTP.
        found = {**made_by(), "seeds": list(range(TASKS + 1)), "load": os.getloadavg()}
        together, alone = (start(running(serve_ibpwf, str(model), batching)) for batching in (True, False))
        sides: dict[str, Side] = {
            "a bare FastAPI echo": (*start(running(serve_app, None)), plain),
            "ONNX Runtime behind FastAPI": (*start(running(serve_app, str(onnx))), plain),
        }
        if asked.mlserver:
            server = start(running_mlserver(asked.mlserver, Path(onnx), folder / "mlserver"))
            sides["MLServer and ONNX Runtime"] = (*server, plain)
        sides |= {
            "ibpwf serve, one at a time": (*alone, plain),
            "ibpwf serve, one at a time, all outputs": (*alone, whole),
            "ibpwf serve": (*together, plain),
            "ibpwf serve, all outputs": (*together, whole),
        }
        found["sides"] = measure(sides, asked.rounds, asked.seconds)
        found |= watch_memory(*together, plain, asked.memory)
        found["learning"] = while_learning(together[0], folder, asked.seconds)
    write(asked.out / "serving.json", found)


if __name__ == "__main__":
    main()
