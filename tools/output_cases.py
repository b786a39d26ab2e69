"""What this checkout computes in a few hundred small cases, as tensors and JSON: one side of `tools.same_outputs`.

A case says what is computed in words that do not depend on how the code is laid out (predictions, merged weights,
exported graphs), so both sides can be compared after the code between them has been rewritten. When an interface
changes, change the call here in the same commit; never change what is computed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits, load_iris, load_wine
from torch import Tensor, nn

from ibpwf import ContinualClassifier, Learner, Settings, export, load
from ibpwf.models import mlp, vit_tiny
from ibpwf.training.callbacks import Callback, StepEnd
from ibpwf.training.checkpoint import Checkpoint

Outputs = Iterator[tuple[str, Any]]
"""Names and what was computed: tensors, arrays, or anything JSON can hold."""

CLASSES = ((0, 1), (2, 3), (4, 5, 6))
ROWS, UNSEEN = 48, 12

INFERENCE: dict[str, dict[str, Any]] = {
    "gaussian": {},
    "class-gaussian": {"inference": "gaussian", "inference.per": "class"},
    "shared-gaussian": {"inference": "shared-gaussian"},
    "router": {
        "inference": "router",
        "inference.features": "random",
        "inference.features.width": 60,
        "inference.experts": 0,
    },
    "ensemble": {
        "inference": "router",
        "inference.features": "random",
        "inference.features.width": 60,
        "validation_fraction": 0.2,
    },
    "second-opinion": {
        "inference": "router",
        "inference.features": "random",
        "inference.features.width": 60,
        "validation_fraction": 0.2,
        "inference.second_opinion": True,
        "inference.keep_sums_per_task": True,
    },
}
NETWORKS = ("plain", "rotations", "frozen", "named", "batch-norm")


class Texts(nn.Module):
    """A network of token ids and a mask, as those of transformers take them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.hidden, self.head = nn.Embedding(20, 12), nn.Linear(12, 16), nn.Linear(16, 10)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask.unsqueeze(-1).to(self.words.weight.dtype)
        mean = (self.words(input_ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        logits: Tensor = self.head(torch.relu(self.hidden(mean)))
        return logits


def network(kind: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if kind == "named":
            return Texts()
        if kind in ("rotations", "batch-norm"):
            stem = nn.Conv2d(1, 4, 3, padding=1, bias=False)
            body = [nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 16), nn.Tanh()]
            return nn.Sequential(stem, *body, nn.Linear(16, 28 if kind == "rotations" else 10))
        return nn.Sequential(nn.Flatten(), mlp(64, [24], 10))


def settings(kind: str, heads: str, inference: Mapping[str, Any]) -> Settings:
    own: dict[str, Any] = {
        "rotations": {"turns": 4, "mirror": True},
        "frozen": {"base": "frozen", "alpha": 3.0},
        "named": {"length": 9},
    }.get(kind, {})
    return Settings(
        **{"alpha": 6.0, "epochs": 2, "finetune_epochs": 1, "batch_size": 16, "learning_rate": 0.02, "heads": heads}
        | own
        | dict(inference)
    )


def images(task: int) -> tuple[Tensor, Tensor]:
    found = load_digits()
    x, y = torch.from_numpy(found.images).float().unsqueeze(1) / 16, torch.from_numpy(found.target).long()
    chosen = torch.isin(y, torch.tensor(CLASSES[task]))
    return x[chosen], y[chosen]


def texts(x: Tensor) -> dict[str, Tensor]:
    """Token ids made from images, of several lengths."""
    ids = (x.flatten(1)[:, 20:29] * 17).long() + 2
    lengths = 4 + (x.sum((1, 2, 3)).long() % 6)
    mask = (torch.arange(9) < lengths.unsqueeze(1)).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def given(kind: str, x: Tensor) -> Any:
    return texts(x) if kind == "named" else x


def told(name: str, learner: Learner, x: Any, **how: Any) -> Outputs:
    found = learner.predict(x, **how)
    for field in ("labels", "task", "probabilities", "task_probabilities", "entropy", "mutual_information"):
        value = getattr(found, field)
        if value is not None:
            yield f"{name}/{field}", value


def state(name: str, learner: Learner, x: Any) -> Outputs:
    """All that a learner says of some rows, and the weights of its tasks."""
    yield f"{name}/tasks", [[one.name, list(one.classes), one.examples, one.version] for one in learner.tasks]
    yield f"{name}/accuracies", [one.training_accuracy for one in learner.tasks]
    yield from told(f"{name}/inferred", learner, x)
    yield from told(f"{name}/marginal", learner, x, marginal=True)
    for number, one in enumerate([*learner.tasks, *learner.older]):
        yield from told(f"{name}/{number}", learner, x, task=one.name)
        yield f"{name}/{number}/logits", learner.logits(x, one.name)
        for key, value in learner.merge(one.name).state_dict().items():
            yield f"{name}/{number}/merged/{key}", value
    rows = len(x["input_ids"]) if isinstance(x, dict) else len(x)
    yield from told(f"{name}/mixed", learner, x, task=[row % len(learner.tasks) for row in range(rows)])
    yield from told(f"{name}/samples", learner, x, task=0, posterior_samples=5, seed=3)
    yield from told(f"{name}/samples inferred", learner, x, posterior_samples=4, marginal=True)


def learner_case(kind: str, heads: str, inference: str) -> Outputs:
    """Three tasks, rows added to one, tasks and versions forgotten, stored and loaded, and one more task."""
    learner = Learner(network(kind), settings(kind, heads, INFERENCE[inference]), seed=3, device="cpu")
    x = given(kind, torch.cat([images(task)[0][ROWS + 24 :][:UNSEEN] for task in range(3)]))
    for task in range(3):
        rows, labels = images(task)
        learner.learn(given(kind, rows[:ROWS]), labels[:ROWS], task=f"t{task}")
    yield from state("learned", learner, x)
    if "validation_fraction" in INFERENCE[inference]:
        yield "learned/novelty", learner.novelty(x)
    for name, fast in (("accelerate off", {"accelerate": False}), ("fast", learner.settings.faster)):
        other = learner.fork()
        other.settings = other.settings.replace(**fast)
        yield from told(name, other, x)
    with tempfile.TemporaryDirectory() as place:
        learner.save(Path(place) / "model")
        loaded = Learner.load(Path(place) / "model", net=None if kind in ("plain",) else network(kind), device="cpu")
        yield from told("loaded", loaded, x, marginal=True)
        rows, labels = images(0)
        loaded.learn(given(kind, rows[-ROWS:]), labels[-ROWS:] + 20, task="later")
        yield from state("loaded, later", loaded, x)
    rows, labels = images(1)
    more = slice(ROWS, ROWS + 24)
    learner.update(given(kind, rows[more]), labels[more], task="t1", keep="always")
    yield from state("updated", learner, x)
    for step, task in (("first forgotten", "t0"), ("older forgotten", "t1@1")):
        try:
            learner.forget(task)
        except ValueError as error:
            yield f"{step}/rejected", type(error).__name__
        else:
            yield from state(step, learner, x)


def plain_training(accelerate: bool) -> Outputs:
    """Losses and KLs, step by step, of networks of several kinds."""
    for name, net, x in (
        ("mlp", mlp(64, [32], 10), images(0)[0].flatten(1)),
        ("vit", vit_tiny(image=8, patch=4, width=12, depth=2, heads=3, classes=4, in_channels=1), images(0)[0]),
    ):
        torch.manual_seed(1)
        for parameter in net.parameters():
            nn.init.normal_(parameter, std=0.1)
        losses: list[list[float | None]] = []

        class Record(Callback):
            def step_end(self, event: StepEnd, losses: list[list[float | None]] = losses) -> None:
                losses.append([event.loss, event.penalty])

        learner = Learner(net, Settings(epochs=2, alpha=8.0, batch_size=32, accelerate=accelerate), device="cpu")
        learner.learn(x, images(0)[1], task="first", callbacks=[Record()])
        yield f"{name}/losses", losses
        yield f"{name}/logits", learner.logits(x, "first")


class Stop(Exception):
    """What interrupts a training here."""


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.left = step

    def step_end(self, event: StepEnd) -> None:
        self.left -= 1
        if not self.left:
            raise Stop


def resumed() -> Outputs:
    """A task that is interrupted and goes on from its checkpoint."""
    for heads, inference in (("shared", "gaussian"), ("per-task", "ensemble")):
        learner = Learner(network("plain"), settings("plain", heads, INFERENCE[inference]), seed=3, device="cpu")
        learner.learn(*(part[:ROWS] for part in images(0)), task="t0")
        rows, labels = (part[:ROWS] for part in images(1))
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "model"
            learner.save(path)
            kept = Checkpoint(path, every=0)
            with contextlib.suppress(Stop):
                learner.learn(rows, labels, task="t1", callbacks=[kept, StopAt(4)])
            learner = Learner.load(path, device="cpu")
            learner.learn(rows, labels, task="t1", callbacks=[Checkpoint(path, every=0, resume=True)])
        yield from state(f"{heads}, {inference}", learner, images(2)[0][:UNSEEN])


def method_case(name: str) -> Outputs:
    """A method of the benchmark suite on Split digits, as `ibpwf run` trains and evaluates it."""
    with tempfile.TemporaryDirectory() as place:
        words = ("--method", name, "--preset", "quick", "--seed", "1", "--tasks", "3", "--device", "cpu", "--json")
        yield "result", lasting(json.loads(command("run", "split-digits", *words, "--out", f"{place}/run")))


TABLES: dict[str, Callable[[], Any]] = {"iris": load_iris, "wine": load_wine}


def classifier_case(name: str) -> Outputs:
    """A recipe of `ContinualClassifier` on rows that it was made for."""
    model = ContinualClassifier(random_state=1, epochs=3, device="cpu")
    if name in TABLES:
        found = TABLES[name]()
        x, y = found.data, found.target
        names = np.array(["a", "b", "c"])[y]
        for label in ("a", "b", "c"):
            model.learn(x[names == label][:40], names[names == label][:40], task=f"only {label}")
        asked = x[::7]
    else:
        found = load_digits()
        x = found.images if name == "images" else found.data
        y = found.target
        for low in (0, 4):
            chosen = (y >= low) & (y < low + 4)
            model.learn(x[chosen][:120], y[chosen][:120], task=f"from {low}")
        asked = x[::60]
    yield from classifier_outputs("learned", model, asked)
    more = slice(40, 48)
    if name not in TABLES:
        chosen = (y >= 0) & (y < 4)
        model.update(x[chosen][120:160], y[chosen][120:160], task="from 0")
        yield from classifier_outputs("updated", model, asked)
    else:
        model.update(x[names == "b"][more], names[names == "b"][more], task="only b")
        yield from classifier_outputs("updated", model, asked)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "model"
        model.save(path)
        yield from classifier_outputs("loaded", load(path, device="cpu"), asked)
        for kind in ("onnx", "pt2"):
            graph = Path(place) / f"all.{kind}"
            try:
                export(path, to=kind, path=graph)
            except (ValueError, RuntimeError) as error:
                yield f"{kind}/rejected", type(error).__name__
            else:
                if kind == "onnx":
                    yield from onnx_outputs(kind, graph, asked)


def classifier_outputs(name: str, model: Any, x: Any) -> Outputs:
    yield f"{name}/classes", [str(label) for label in model.classes_]
    yield f"{name}/probabilities", model.predict_proba(x)
    yield f"{name}/labels", [str(label) for label in model.predict(x)]
    yield f"{name}/tasks", [str(task) for task in model.predict_task(x)]
    yield f"{name}/novelty", model.novelty(x)
    yield f"{name}/uncertainty", model.uncertainty(x)
    yield f"{name}/sampled uncertainty", model.uncertainty(x, posterior_samples=4)
    for task in model.tasks_:
        yield f"{name}/{task}/probabilities", model.predict_proba(x, task=task)


def onnx_outputs(name: str, path: Path, x: Any) -> Outputs:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    wanted = session.get_inputs()[0]
    kind = {"tensor(float)": np.float32, "tensor(double)": np.float64}.get(wanted.type, np.float32)
    rows = x.reshape(len(x), *wanted.shape[1:]).astype(kind)  # images of a classifier are flat rows to the graph
    for output, value in zip(session.get_outputs(), session.run(None, {wanted.name: rows}), strict=True):
        if value.dtype.kind in "fiub":
            yield f"{name}/{output.name}", value


def stream_case() -> Outputs:
    """Batches without task names, whose classes change halfway."""
    found = load_digits()
    order = np.concatenate([np.flatnonzero(found.target < 5)[:400], np.flatnonzero(found.target >= 5)[:400]])
    model = ContinualClassifier(random_state=1, stream=True, epochs=3, device="cpu")
    for start in range(0, len(order), 50):
        rows = order[start : start + 50]
        model.partial_fit(found.data[rows], found.target[rows])
    yield "log", lasting(model.stream_log_)
    asked = found.data[::60]
    yield "probabilities", model.predict_proba(asked)
    yield "labels", model.predict(asked)
    model.finish()
    yield from classifier_outputs("finished", model, asked)


LASTING_NOT = (
    *("second", "time", "date", "version", "started", "created", "commit"),
    *("path", "out", "command", "machine", "bytes", "sha256"),
)


def lasting(content: Any) -> Any:
    """JSON without what differs between two runs of the same program."""
    if isinstance(content, dict):
        return {
            str(key): lasting(value)
            for key, value in content.items()
            if not any(word in str(key).lower() for word in LASTING_NOT)
        }
    if isinstance(content, list):
        return [lasting(value) for value in content]
    return content


def command(*words: str) -> str:
    """A command of the command line, in a process of its own; what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "ibpwf", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        raise RuntimeError(f"ibpwf {' '.join(words)}: exit code {done.returncode}: {done.stderr[-400:]}")
    return done.stdout


def table(path: Path, found: Any, rows: slice, classes: tuple[int, ...]) -> Path:
    chosen = np.isin(found.target, classes)
    lines = [",".join([*(f"c{column}" for column in range(found.data.shape[1])), "kind"])]
    lines += [
        ",".join([*(f"{value:g}" for value in row), f"k{label}"])
        for row, label in zip(found.data[chosen][rows], found.target[chosen][rows], strict=True)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def commands() -> Outputs:
    """`learn`, `predict`, `evaluate`, `inspect`, `forget` and `verify` on files, as JSON where they give it."""
    found = load_wine()
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        model, asked = str(here / "model"), table(here / "asked.csv", found, slice(1, None, 9), (0, 1, 2))
        for task, classes in enumerate(((0, 1), (2,))):
            rows = table(here / f"t{task}.csv", found, slice(None, None, 2), classes)
            command("learn", model, str(rows), "--label", "kind", "--device", "cpu", "--set", "epochs=3")
        answers = here / "answers.csv"
        command("predict", model, str(asked), "--out", str(answers), "--device", "cpu")
        yield "predict", answers.read_text(encoding="utf-8").splitlines()
        scores = here / "scores.json"
        command("evaluate", model, str(asked), "--json", str(scores), "--device", "cpu")
        yield "evaluate", lasting(json.loads(scores.read_text(encoding="utf-8")))
        yield "inspect", lasting(json.loads(command("inspect", model, "--json")))
        command("forget", model, "t0")
        command("predict", model, str(asked), "--out", str(here / "later.csv"), "--device", "cpu")
        yield "forgotten", (here / "later.csv").read_text(encoding="utf-8").splitlines()
        command("verify", model)


def served() -> Outputs:
    """What a server answers, with the task inferred and given, and of an older version."""
    found = load_wine()
    with tempfile.TemporaryDirectory() as place, socket.socket() as free:
        model = ContinualClassifier(random_state=1, epochs=3, device="cpu")
        for task in range(3):
            chosen = found.target == task
            model.learn(found.data[chosen][:40], found.target[chosen][:40], task=f"t{task}")
            model.save(Path(place) / "wine", overwrite=True)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        server = subprocess.Popen(
            [sys.executable, "-m", "ibpwf", "serve", place, "--port", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                until_ready(client)
                rows = found.data[::20]
                tensor = {"name": "X", "shape": list(rows.shape), "datatype": "FP64", "data": rows.ravel().tolist()}
                for where, parameters in (
                    ("", {}),
                    ("", {"task": "t1"}),
                    ("", {"posterior_samples": 3}),
                    ("/versions/2", {}),
                ):
                    asked = {"inputs": [tensor], "parameters": parameters}
                    said = client.post(f"/v2/models/wine{where}/infer", json=asked)
                    yield f"{where} {json.dumps(parameters)}", [said.status_code, lasting(said.json())]
        finally:
            server.terminate()
            server.wait(20)


def until_ready(client: httpx.Client) -> None:
    for _ in range(200):
        with contextlib.suppress(httpx.TransportError):
            if client.get("/v2/health/ready").status_code == 200:
                return
        time.sleep(0.2)
    raise RuntimeError("the server does not become ready")


def together() -> Outputs:
    """Two processes that learn the same tasks, under torchrun."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "two.safetensors"
        words = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "tests/together.py", str(out)]
        subprocess.run([sys.executable, *words], check=True, capture_output=True)
        from safetensors.torch import load_file

        yield from load_file(out).items()


def cases() -> dict[str, Callable[[], Outputs]]:
    from ibpwf.lab.names import METHODS

    found: dict[str, Callable[[], Outputs]] = {
        f"learner/{kind}/{heads}/{inference}": partial(learner_case, kind, heads, inference)
        for kind, heads, inference in product(NETWORKS, ("shared", "per-task"), INFERENCE)
    }
    found |= {f"training/{'optimized' if fast else 'plain'}": partial(plain_training, fast) for fast in (True, False)}
    found |= {"resumed": resumed, "stream": stream_case, "commands": commands, "served": served, "together": together}
    found |= {f"classifier/{name}": partial(classifier_case, name) for name in (*TABLES, "flat images", "images")}
    found |= {f"method/{name}": partial(method_case, name) for name in METHODS}
    return found


def written(name: str, case: Callable[[], Outputs], out: Path) -> str | None:
    """The outputs of a case in a folder of its own: `tensors.safetensors` and `values.json`; None, or what went
    wrong."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    problem = None
    try:
        for key, value in case():
            if isinstance(value, np.ndarray) and value.dtype.kind in "OUS":
                value = value.tolist()
            if isinstance(value, (Tensor, np.ndarray)):
                tensors[key] = torch.as_tensor(value).detach().cpu().contiguous().clone()
            else:
                values[key] = value
    except Exception:
        problem = traceback.format_exc()
    here = out / name
    here.mkdir(parents=True, exist_ok=True)
    save_file(tensors, here / "tensors.safetensors")
    (here / "values.json").write_text(json.dumps(values, sort_keys=True, default=str), encoding="utf-8")
    if problem is not None:
        (here / "problem.txt").write_text(problem, encoding="utf-8")
    return problem


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--list", action="store_true", help="print the names of all cases")
    parser.add_argument("names", nargs="*")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    warnings.simplefilter("ignore")
    known = cases()
    if chosen.list:
        print("\n".join(known))
        return
    for name in chosen.names or known:
        with contextlib.redirect_stdout(io.StringIO()):
            problem = written(name, known[name], chosen.out)
        print(f"{name}: {'failed' if problem else 'done'}", flush=True)


if __name__ == "__main__":
    main()
