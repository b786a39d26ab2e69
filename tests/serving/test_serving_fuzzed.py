"""The whole API under schemathesis, and damaged files to learn from: others are answered the same bits meanwhile."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import NAMES, Server, Watcher, archive, blobs, pixels, png, task_table
from test_serving_bad_input import damaged

X = blobs(range(6), each=1, seed=2)[0]
HERE = Path(__file__).parent


def described(server: Server) -> dict[str, Any]:
    """The server's own OpenAPI, with names that there are, and some that are not, so that requests get far."""
    found: dict[str, Any] = server.http.get("/openapi.json").json()
    names = {
        "model": ["things", "pictures", "..", "nothing"],
        "version": ["1", "2", "3", "4", "0", "-1"],
        "versions": ["1,2", "2,3", "3", "9,9"],
        "task": ["trees", "pets", "new", ""],  # one that it may forget
        "to": ["folder", "safetensors", "mlflow", "no"],
    }
    for path in found["paths"].values():
        for route in path.values():
            for parameter in route.get("parameters", []):
                if parameter["name"] in names:
                    parameter["schema"] = {"anyOf": [{"enum": names[parameter["name"]]}, {"type": "string"}]}
            content = route.get("requestBody", {}).get("content", {}).get("application/json")
            if content and "inputs" in content["schema"]["properties"]:
                tensor = content["schema"]["properties"]["inputs"]["items"]
                tensor["properties"]["name"] = {"enum": [*NAMES, "x", "image", "task", "other"]}
                tensor["properties"]["shape"] = {"enum": [[1], [2], [1, 16], [2, 16], [0], [1, 1, 4, 4], [3, 3]]}
    return found


def fuzz(server: Server, folder: Path, examples: int, seed: int) -> tuple[int, str]:
    """Run schemathesis; how many requests it made, and what it found."""
    (folder / "api.json").write_text(json.dumps(described(server)))
    words = [sys.executable, "-m", "schemathesis.cli", "run", "api.json", "--url", server.address]
    words += [f"--max-examples={examples}", f"--seed={seed}", "--checks=one_sentence", "--no-color"]
    words += ["--phases=coverage,fuzzing", "--request-timeout=60"]
    paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    told = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "one_sentence", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    said = told.stdout + told.stderr
    count = re.search(r"([\d,]+) generated", said)
    assert count is not None, said
    return int(count[1].replace(",", "")), said if told.returncode else ""


needs_schemathesis = pytest.mark.skipif(
    importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not installed"
)


@pytest.mark.faults
@needs_schemathesis
@pytest.mark.parametrize("part", range(3))
def test_a_fuzzer_finds_no_fault_in_thousands_of_requests(start, tmp_path, tally, part):
    seed, server = int.from_bytes(os.urandom(4)), start()
    watcher = Watcher(server, (1,), X, pause=0.1)
    watcher.start()
    count, said = fuzz(server, tmp_path, 120, seed)
    watcher.finish()
    print(said)
    faults = len(re.findall(r'status="5\d\d"', server.http.get("/metrics").text))
    for job in server.http.get("/v2/jobs").json():
        server.wait(job["id"])
    found = {"refused by the check": int(bool(said)), "server faults": faults, "others disturbed": len(watcher.other)}
    tracebacks = server.stop().count("Traceback")
    tally("requests of schemathesis to a server", count, seed=seed, **found, tracebacks=tracebacks)


def uploads() -> list[tuple[str, bytes]]:
    """Good files to learn from, of every kind, and the model that takes them."""
    x, y = blobs((6, 7), each=6)
    labels = np.array(["red", "blue"])[y % 2]
    arrays = io.BytesIO()
    np.savez(arrays, x=x.astype(np.float32), y=labels)
    images = {f"{label}/{n}.png": png(image) for n, (image, label) in enumerate(zip(pixels(x), labels, strict=True))}
    return [("things", arrays.getvalue()), ("pictures", archive(images))]


def try_uploads(server: Server, folder: Path, times: int, seed: int) -> dict[str, int]:
    """Damaged files to learn from: refused, or a job that fails with a sentence, or is done if still whole."""
    chance, found = random.Random(seed), {"server faults": 0, "no sentence": 0, "paths told": 0}
    good = [("things", task_table(folder, 3, each=6).read_bytes()), *uploads()]
    for number in range(times):
        model, body = good[number % len(good)]
        answered = server.http.post(f"/v2/models/{model}/tasks?task=new-{number}", content=damaged(body, chance))
        found["server faults"] += answered.status_code >= 500
        if answered.status_code == 202:
            job = server.wait(answered.json()["id"])
            sentence = job["error"] if job["state"] == "failed" else "done."
        else:
            sentence = answered.json()["error"]
        found["no sentence"] += not sentence or "\n" in sentence or "Traceback" in sentence or "a fault" in sentence
        found["paths told"] += str(folder) in sentence
    return found


def check_after(server: Server) -> dict[str, int]:
    whole = all(server.http.post(f"/v2/models/{name}/verify").json()["intact"] for name in ("things", "pictures"))
    return {"folders damaged": int(not whole), "tracebacks": server.stop().count("Traceback")}


@pytest.mark.parametrize("times", [6, pytest.param(200, marks=pytest.mark.faults)])
def test_damaged_files_to_learn_from_are_refused_in_a_sentence(start, models, tally, times):
    server, seed = start(), int.from_bytes(os.urandom(4))
    watcher = Watcher(server, (1, 3), X, pause=0.1)
    watcher.start()
    found = try_uploads(server, models.parent, times, seed)
    watcher.finish()
    tally("damaged files to learn from, sent to a server", times, seed=seed, **found, **check_after(server))
