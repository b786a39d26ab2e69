"""Model folders of the right digests and the wrong content, and what becomes of who reads them.

A folder is changed in memory (its manifest, or the tensors of a part), written and sealed again, as an adversary or a
program with a fault of its own would, and then read in a process of its own with little memory and little time.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from killed_learner import TASKS, examples
from torch import Tensor

import ibpwf
from ibpwf import ContinualClassifier
from ibpwf.errors import IBPWFError, StoreError, TrainingError
from ibpwf.method import IBPWF
from ibpwf.storage.folder import MANIFEST
from ibpwf.storage.inspection import inspect_model
from ibpwf.storage.model_folder import verify_model

X = torch.cat([examples(number)[0][:4] for number in range(TASKS)])
MEMORY, SECONDS = 1 << 30, 60


@dataclass
class Folder:
    """A model folder in memory."""

    manifest: dict[str, Any]
    parts: dict[str, dict[str, Tensor]]

    @property
    def content(self) -> dict[str, Any]:
        found: dict[str, Any] = self.manifest["content"]
        return found

    @classmethod
    def read(cls, path: Path) -> Folder:
        manifest = json.loads((path / MANIFEST).read_text())
        files = {name: (path / entry["file"]).read_bytes() for name, entry in manifest["files"].items()}
        return cls(manifest, {name: safetensors.torch.load(data) for name, data in files.items()})

    def changed(self) -> Folder:
        return Folder(copy.deepcopy(self.manifest), {name: dict(part) for name, part in self.parts.items()})

    def write(self, path: Path) -> None:
        """Every digest is right."""
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        entries = {}
        for name, tensors in self.parts.items():
            data = safetensors.torch.save({key: tensor.clone().contiguous() for key, tensor in tensors.items()})
            digest = hashlib.sha256(data).hexdigest()
            entries[name] = {"file": f"{name}.{digest[:12]}.safetensors", "sha256": digest, "bytes": len(data)}
            (path / entries[name]["file"]).write_bytes(data)
        manifest = {**self.manifest, "files": entries}
        manifest.pop("sha256", None)
        canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
        manifest["sha256"] = hashlib.sha256(canonical).hexdigest()
        (path / MANIFEST).write_text(json.dumps(manifest))


def learner_of(loaded: Any) -> Any:
    return loaded.learner_ if isinstance(loaded, ContinualClassifier) else loaded


def answers(path: Path) -> list[Tensor]:
    """All that a folder answers to the same inputs."""
    loaded = ibpwf.load(path, device="cpu")
    learner = learner_of(loaded)
    if learner.method.name != IBPWF.name:
        x = torch.rand(12, *learner.input_shape, generator=torch.Generator().manual_seed(0))
        return [learner.predict(x, task=0).probabilities, *(learner.logits(x, task.number) for task in learner.tasks)]
    told = learner.predict(X, posterior_samples=2)
    found = [told.probabilities, told.task_probabilities]
    found += [learner.logits(X, task.number) for task in learner.tasks]
    if isinstance(loaded, ContinualClassifier):
        more = (loaded.predict_proba(X.numpy()), loaded.novelty(X.numpy()))
        found += [torch.from_numpy(np.asarray(array)) for array in more]
    return found


def use(path: Path) -> list[Tensor]:
    """Read, look at, answer from, learn into and save again; what it answers."""
    with contextlib.suppress(StoreError):
        verify_model(path)
    with contextlib.suppress(StoreError):
        inspect_model(path).to_json()
    found = answers(path)
    loaded = ibpwf.load(path, device="cpu")
    if learner_of(loaded).method.name != IBPWF.name:
        return found
    x, y = examples(7)
    name = "the next task, of a name that none has"
    if isinstance(loaded, ContinualClassifier):
        known = loaded.classes_
        new = (
            np.array([max(known.tolist()) + type(known.tolist()[0])(one) for one in (1, 2)]) if len(known) else known
        )
        loaded.learn(x.numpy(), new[y.numpy()], task=name)
    else:
        loaded.learn(x, y, task=name)
    loaded.save(path)
    return found


def outcome(path: Path) -> str:
    """ "refused", "answers" (with the digest of what it answers), or what else happened."""
    try:
        found = use(path)
    except (StoreError, TrainingError) as error:  # the latter: it was loaded, and learns nothing with such settings
        return "refused" if "\n" not in str(error) else f"two lines: {error}"
    except IBPWFError as error:
        return f"another error: {type(error).__name__}: {error}"
    except BaseException as error:
        return f"traceback: {type(error).__name__}: {error}"
    if not all(bool(torch.isfinite(tensor).all()) for tensor in found):
        return "NaN"
    total = hashlib.sha256()
    for tensor in found:
        total.update(str(tuple(tensor.shape)).encode() + tensor.contiguous().numpy().tobytes())
    return f"answers {total.hexdigest()}"


def apart(path: Path) -> str:
    """`outcome` in a process of its own, with a gigabyte of memory more than it has and a minute of a processor."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            warnings.simplefilter("ignore")
            torch.set_num_threads(1)
            used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
            signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of a processor: other programs may keep it busy
            signal.alarm(10 * SECONDS)
            os.write(writer, outcome(path).encode()[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return said or ("hung" if -status in (signal.SIGALRM, signal.SIGPROF) else f"died: {status}")


# Changes at random


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*path, key))


VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 10**6, 2**63, -(2**70), 10**400, 0.5, -1.5, 1e300),
    *("", "x", "../x", "é\u202e", "auto", "nan", "x" * 10_000),
    *([], {}, [1], [[]], ["a", "a"], {"a": 1}, [0] * 1000, [2**40]),
]
SMALL = (None, True, 0, -1, 2, "x", [], "auto")
"""For settings, which have limits of their own: what is allowed may take long to learn with."""
TYPES = (torch.float64, torch.float32, torch.float16, torch.int64, torch.int8)
HARM = ("gone", "renamed", "surplus", "shorter", "longer", "flat", "type", "number", "number", "swap")


def change_json(folder: Folder, chance: random.Random) -> str:
    """One value of the manifest's content is another, is gone, or is there twice."""
    content = folder.content
    at = chance.choice([place for place in places(content) if place and place[0] != "extra"])
    parent = content
    for key in at[:-1]:
        parent = parent[key]
    act = chance.choice(["other", "other", "other", "gone", "twice", "near"])
    value = parent[at[-1]]
    if act == "gone":
        del parent[at[-1]]
    elif act == "twice" and isinstance(parent, list):
        parent.append(copy.deepcopy(value))
    elif act == "near" and isinstance(value, (int, float)) and not isinstance(value, bool):
        parent[at[-1]] = value + chance.choice([-1, 1])
    else:
        parent[at[-1]] = copy.deepcopy(chance.choice(SMALL if "settings" in at else VALUES))
    return f"{'.'.join(map(str, at))} {act}"


def change_tensor(folder: Folder, chance: random.Random) -> str:
    """One tensor has another shape, type, name or value, or is gone."""
    part = chance.choice(sorted(folder.parts))
    if not folder.parts[part]:
        return "nothing"
    name = chance.choice(sorted(folder.parts[part]))
    tensor = folder.parts[part][name]
    act = chance.choice(HARM)
    tensors = folder.parts[part]
    if act == "gone":
        del tensors[name]
    elif act == "renamed":
        tensors[f"{name}x"] = tensors.pop(name)
    elif act == "surplus":
        tensors[f"{name}/more"] = tensor.clone()
    elif act == "shorter":
        tensors[name] = tensor[:-1] if tensor.ndim else tensor.reshape(1)
    elif act == "longer":
        tensors[name] = torch.cat([tensor, tensor[-1:]]) if tensor.ndim else tensor.repeat(2)
    elif act == "flat":
        tensors[name] = tensor.reshape(-1, 1)
    elif act == "type":
        tensors[name] = tensor.to(chance.choice(TYPES))
    elif act == "number" and tensor.numel():
        flat = tensor.clone().reshape(-1)
        number = chance.choice([float("nan"), float("inf"), float("-inf"), 3e38, -1.0, 0.0, 1e6])
        whole = 99 if math.isfinite(number) else 0
        flat[chance.randrange(len(flat))] = number if flat.is_floating_point() else whole
        tensors[name] = flat.reshape(tensor.shape)
    elif act == "swap":
        other = chance.choice(sorted(tensors))
        tensors[name], tensors[other] = tensors[other], tensors[name]
    return f"{part}/{name} {act}"


def change_parts(folder: Folder, chance: random.Random) -> str:
    """A part is gone, or another's, or one more."""
    names = sorted(folder.parts)
    one, other = chance.choice(names), chance.choice(names)
    act = chance.choice(["gone", "swap", "copy"])
    if act == "gone":
        del folder.parts[one]
    elif act == "swap":
        folder.parts[one], folder.parts[other] = folder.parts[other], folder.parts[one]
    else:
        folder.parts[chance.choice(["task-0009", "factors-0009", "more"])] = folder.parts[one]
    return f"{one} {act} {other}"


CHANGES: list[Callable[[Folder, random.Random], str]] = [change_json] * 4 + [change_tensor] * 4 + [change_parts]


# Changes of the test's choice

Change = Callable[[Folder], object]


def at(path: str, value: Any) -> Change:
    """Another value at a place of the manifest's content."""

    def change(folder: Folder) -> None:
        *keys, last = path.split(".")
        parent: Any = folder.content
        for key in keys:
            parent = parent[int(key)] if isinstance(parent, list) else parent[key]
        parent[int(last) if isinstance(parent, list) else last] = value

    return change


def tensor(part: str, name: str, change: Callable[[Tensor], Tensor]) -> Change:
    return lambda folder: folder.parts[part].update({name: change(folder.parts[part][name])})


def without(part: str, name: str) -> Change:
    return lambda folder: folder.parts[part].pop(name)


def one_number(value: float) -> Callable[[Tensor], Tensor]:
    def act(whole: Tensor) -> Tensor:
        changed = whole.clone()
        changed.view(-1)[0] = value
        return changed

    return act


def refused(folder: Folder, change: Change, path: Path) -> str:
    """What is said when a changed folder is loaded, in one line."""
    changed = folder.changed()
    change(changed)
    changed.write(path)
    with pytest.raises(StoreError) as caught:
        ibpwf.load(path, device="cpu")
    assert "\n" not in str(caught.value)
    return str(caught.value)
