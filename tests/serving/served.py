"""Servers to test: real ones in processes of their own, on a free port of this machine, and models to serve."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import signal
import threading
import time
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from starlette.testclient import TestClient

import processes
from ibpwf.serving.routes import make_app
from ibpwf.serving.service import ServeOptions, Service
from own_files import NAMES, blobs, pixels, table

WORDS = ["apple", "pear", "oak", "elm", "cat", "dog", "red", "blue", "one", "two", "up", "down"]
TASKS = ("fruit", "trees", "pets", "colors", "numbers", "ways")


def task_table(folder: Path, number: int, each: int = 40) -> Path:
    """The rows of one task as a file."""
    x, y = blobs((2 * number, 2 * number + 1), each)
    return table(folder / f"{TASKS[number]}.csv", x, [WORDS[label] for label in y])


def make_models(folder: Path) -> Path:
    """A folder of two models: `things`, three tasks of a table, and `pictures`, two tasks of 4×4 images."""
    from ibpwf.data import ReadOptions
    from ibpwf.estimator.files import LearnOptions, learn_file

    models = folder / "models"
    models.mkdir()
    quick = {"epochs": 4, "hidden": (24,), "settings": {"inference.features.width": 64}}
    for number in range(3):
        options = LearnOptions(read=ReadOptions(label=None if number else "kind"), device="cpu")
        rows = task_table(folder, number)
        learn_file(models / "things", rows, TASKS[number], None if number else quick, options)
    for number in range(2):
        x, y = blobs((2 * number, 2 * number + 1))
        np.savez(folder / "images.npz", x=pixels(x), y=np.array(WORDS)[y])
        quick = {"recipe": "plain", "epochs": 3, "hidden": (16,), "settings": {"inference.features.width": 32}}
        parameters = None if number else quick
        learn_file(models / "pictures", folder / "images.npz", TASKS[number], parameters, LearnOptions(device="cpu"))
    x, y = blobs(range(6), each=5, seed=1)
    table(folder / "test.csv", x, [WORDS[label] for label in y])
    return models


class Server:
    """A server that runs in a process of its own."""

    def __init__(self, models: Path, *words: str, descriptors: int | None = None, verify: Any = None) -> None:
        """`descriptors` limits the files that it may open; `verify` is the context of a server with a certificate."""
        self.models = models
        self._process = processes.start(
            ("serve", str(models), "--port", "0", "--drain-seconds", "0", *words),
            models.parent,
            {"OMP_NUM_THREADS": "1"},
        )
        if descriptors is not None:
            resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (descriptors, descriptors))
        self.port = announced_port(self._process)
        self.address = f"{'https' if verify else 'http'}://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.address, timeout=240, verify=verify or True)
        assert self._process.wait_until(self._answers), self._process.finish().err

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        """What it has written to standard error so far."""
        return self._process.err

    def _answers(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return self.http.get("/v2/health/ready").status_code == 200
        return False

    def send(self, number: signal.Signals) -> None:
        self._process.send(number)

    def finish(self) -> processes.Finished:
        """How it ended."""
        return self._process.finish()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send(signal.SIGKILL)
        self._process.end()

    def stop(self) -> str:
        """End it as a user would; what it has written."""
        self.http.close()
        self._process.send(signal.SIGTERM)
        return self._process.finish().err

    def versions(self, model: str = "things") -> list[str]:
        found: list[str] = self.http.get(f"/v2/models/{model}").json()["versions"]
        return found

    def wait(self, job: str, seconds: float = 240) -> dict[str, Any]:
        """A job once it has ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found: dict[str, Any] = self.http.get(f"/v2/jobs/{job}").json()
            if found["state"] in ("done", "failed", "cancelled"):
                return found
            time.sleep(0.05)
        raise AssertionError("the job did not end")

    def learn(self, file: Path, task: str, **query: str) -> httpx.Response:
        return self.http.post("/v2/models/things/tasks", params={"task": task, **query}, content=file.read_bytes())


def service_of(models: Path, **options: Any) -> Service:
    """A server's state in this process. It looks at its folders when it is told to."""
    return Service(ServeOptions(models, **{"poll": 3600.0, **options}))


def client_of(
    served: Service | Path, url: str = "http://127.0.0.1", *, redirects: bool = True, **options: Any
) -> TestClient:
    """A client of a server in this process, which raises what goes wrong inside instead of answering 500."""
    service = served if isinstance(served, Service) else service_of(served, **options)
    return TestClient(make_app(service), base_url=url, follow_redirects=redirects)


@contextlib.asynccontextmanager
async def inside(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    """The same, in the event loop of the test, so that requests can be sent beside each other."""
    transport = httpx.ASGITransport(make_app(service))
    async with service.running(), httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        yield http


def wait_for(condition: Callable[[], object], seconds: float = 120.0) -> bool:
    """Whether a condition holds in the end. The time only ends what hangs: machines that run tests may be slow."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def is_refused(response: Any) -> bool:
    """Whether it is a 4xx, or 507, with one sentence."""
    status, told = response.status_code, response.json().get("error") if response.status_code >= 400 else None
    sentence = isinstance(told, str) and bool(told) and "\n" not in told and "Traceback" not in told
    return sentence and (status < 500 or status == 507)


@contextlib.contextmanager
def serving(models: Path, *words: str) -> Iterator[Server]:
    server = Server(models, *words)
    try:
        yield server
    finally:
        server.kill()


def workers(model: Path) -> list[int]:
    """Processes that do jobs of a model, of whichever server: they run in their job's folder."""
    jobs, found = os.path.realpath(model / ".serving" / "jobs"), []
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # of others, or gone
            if os.readlink(f"/proc/{process}/cwd").startswith(f"{jobs}/"):
                found.append(int(process))
    return found


def files_of(model: Path) -> dict[str, str]:
    """The digest of every part of a model folder."""
    from ibpwf.storage.folder import open_folder

    return {name: entry.sha256 for name, entry in open_folder(model).files.items()}


def announced_port(process: processes.Started) -> int:
    """The port that a server started with `--port 0` has taken. One chosen for it here, another process might take
    before the server does."""
    ports = list[str]()

    def is_announced() -> bool:
        ports[:] = re.findall(r" at https?://\S+:(\d+)/", process.out)
        return bool(ports)

    assert process.wait_until(is_announced), process.finish().err
    return int(ports[0])


def columns(x: np.ndarray, names: Sequence[str] = NAMES) -> list[dict[str, Any]]:
    """Rows as the tensors of a request, one for each column."""
    return [
        {"name": name, "shape": [len(x)], "datatype": "FP64", "data": x[:, place].tolist()}
        for place, name in enumerate(names)
    ]


def request(x: np.ndarray, **more: Any) -> dict[str, Any]:
    return {"inputs": columns(x), **more}


def outputs(content: dict[str, Any]) -> dict[str, Any]:
    """The values of an answer by their names."""
    return {one["name"]: one["data"] for one in content["outputs"]}


def slowly(body: bytes, pause: float) -> Iterator[bytes]:
    """A body in parts, with pauses."""
    for start in range(0, len(body), 1024):
        yield body[start : start + 1024]
        time.sleep(pause)


def png(image: np.ndarray) -> bytes:
    import PIL.Image

    out = io.BytesIO()
    PIL.Image.fromarray(image).save(out, "PNG")
    return out.getvalue()


def archive(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as written:
        for name, data in files.items():
            written.writestr(name, data)
    return out.getvalue()


def read_audit(model: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (model / ".serving" / "audit.jsonl").read_text().splitlines()]


def files_under(folder: Path) -> list[Path]:
    """All files and folders. Unlike rglob, it passes over folders that a server removes meanwhile."""
    return [Path(parent) / name for parent, *names in os.walk(folder) for name in names[0] + names[1]]


def fresh_folder(source: Path, target: Path) -> Path:
    """A copy of the models that may be written to."""
    import shutil

    shutil.copytree(source.parent, target, dirs_exist_ok=True)
    for state in target.rglob(".serving"):
        shutil.rmtree(state)
    return target / source.name


class Again(threading.Thread):
    """Does something again and again, beside the test, until it has ended, or cannot be done any more."""

    def __init__(self, work: Callable[[], object], pause: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.work, self.pause, self.ended = work, pause, threading.Event()

    def run(self) -> None:
        with contextlib.suppress(httpx.HTTPError, ValueError):  # the server is dead
            while not self.ended.is_set():
                self.work()
                time.sleep(self.pause)

    def finish(self) -> None:
        self.ended.set()
        self.join()


class Watcher(Again):
    """Asks old versions again and again and compares every answer with the first."""

    def __init__(self, server: Server, versions: tuple[int, ...], x: np.ndarray, pause: float = 0) -> None:
        super().__init__(self.compare, pause)
        self.http = httpx.Client(base_url=server.address, timeout=240)
        self.content = json.dumps(request(x))
        self.first = {number: self.ask(number) for number in versions}
        self.asked, self.other = 0, list[str]()

    def ask(self, number: int) -> str:
        answered = self.http.post(f"/v2/models/things/versions/{number}/infer", content=self.content)
        return json.dumps(answered.json()["outputs"]) if answered.status_code == 200 else answered.text

    def compare(self) -> None:
        for number, first in self.first.items():
            self.asked += 1
            found = self.ask(number)
            if found != first:
                self.other.append(found)

    def finish(self) -> None:
        until = time.monotonic() + 60
        while self.asked <= 10 and self.is_alive() and time.monotonic() < until:  # the test's own work was quick
            time.sleep(0.01)
        super().finish()
        assert self.asked > 10
        assert self.other == [], (len(self.other), self.asked, self.other[0][:300])
