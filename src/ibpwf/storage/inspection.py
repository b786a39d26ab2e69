"""What a model folder holds, read from its files alone: no network is built, so any model can be looked at."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ibpwf.errors import StoreError
from ibpwf.storage.checkpoint_folder import task_in_progress
from ibpwf.storage.folder import MANIFEST, OpenedFolder, open_folder
from ibpwf.storage.model_folder import KIND


@dataclass(frozen=True)
class LayerUse:
    """Factors of one layer that a task reads, those it was the first to read, and those there were by then."""

    active: int
    new: int
    reused: int
    total: int


@dataclass(frozen=True)
class TaskReport:
    """One task of a model folder. `bytes` are its own part's and its block of factors'."""

    name: str
    number: int
    serial: int
    classes: list[int]
    labels: list[Any]  # what the classes are called, where a classifier has names for them
    examples: int
    accuracy: float | None
    bytes: int
    factors: dict[str, LayerUse]


@dataclass(frozen=True)
class ModelReport:
    """A model folder at a glance."""

    path: str
    method: str
    schema: int
    seed: int
    input_shape: list[int] | None
    tasks: list[TaskReport]
    layers: dict[str, int]  # locked factors of each layer
    bytes: int
    shared_bytes: int  # the network's own tensors and what φ reads of a forgotten first task
    manifest_bytes: int
    history: list[dict[str, Any]]
    in_progress: str | None  # the task whose learning was broken off and can be resumed
    extra: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def inspect_model(path: str | Path) -> ModelReport:
    """Read and check every part of a model folder and say what it holds."""
    unfinished = task_in_progress(path)
    if unfinished is not None and not (Path(path) / MANIFEST).exists():
        raise StoreError(
            f"{path} holds no finished task yet; its first, '{unfinished.task}', was broken off. Learn it again with "
            "resume to go on."
        )
    opened = open_folder(path, kind=KIND)
    try:
        return _report(opened)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise StoreError(f"{path} is not a whole model folder ({what}); restore it from a copy.") from None


def _report(opened: OpenedFolder) -> ModelReport:
    content = opened.content
    stored = content["state"].get("tasks", [])
    known = [int(entry.get("serial", number)) for number, entry in enumerate(stored)]
    serials = known or list(range(len(content["tasks"])))
    total: dict[str, int] = {}
    for name, block in _blocks(opened, "reference").items():
        total[name] = total.get(name, 0) + len(block)
    extra = content.get("extra", {})
    names = extra["labels"]["labels"] if extra.get("kind") == "continual-classifier" else []
    tasks, of_tasks = [], 0
    for number, (serial, task) in enumerate(zip(serials, content["tasks"], strict=True)):
        parts = [f"task-{serial:04d}", f"factors-{serial:04d}"]
        size = sum(opened.files[part].bytes for part in parts if part in opened.files)
        of_tasks += size
        factors = _use(opened, serial, total)
        tasks.append(
            TaskReport(
                name=task["name"],
                number=number,
                serial=serial,
                classes=list(task["classes"]),
                labels=[names[number] for number in task["classes"]] if names else list(task["classes"]),
                examples=task["examples"],
                accuracy=task.get("accuracy"),
                bytes=size,
                factors=factors,
            )
        )
    parts_bytes = sum(entry.bytes for entry in opened.files.values())
    manifest = (opened.path / MANIFEST).stat().st_size
    unfinished = task_in_progress(opened.path)
    if unfinished is not None and unfinished.serial <= max(serials, default=-1):
        unfinished = None  # finished since
    learnt = [{"event": "learnt", "serial": serial, "version": None} for serial in serials]
    return ModelReport(
        path=str(opened.path),
        method=content["method"],
        schema=opened.schema,
        seed=content["seed"],
        input_shape=content["input_shape"],
        tasks=tasks,
        layers=total,
        bytes=parts_bytes + manifest,
        shared_bytes=parts_bytes - of_tasks,
        manifest_bytes=manifest,
        history=list(content.get("history", learnt)),
        in_progress=None if unfinished is None else unfinished.task,
        extra=dict(content.get("extra", {})),
    )


def _blocks(opened: OpenedFolder, part: str) -> dict[str, Tensor]:
    """Positions of the factors in a part, by layer."""
    tensors = opened.tensors(part) if part in opened.files else {}
    ends = "/positions"
    return {
        name.removeprefix("factors/").removesuffix(ends): tensor
        for name, tensor in tensors.items()
        if name.startswith("factors/") and name.endswith(ends)
    }


def _use(opened: OpenedFolder, serial: int, total: dict[str, int]) -> dict[str, LayerUse]:
    """The factors that a task uses; `total` counts on."""
    name = f"task-{serial:04d}"
    if name not in opened.files:
        return {}  # a method without factors
    new = _blocks(opened, f"factors-{serial:04d}") or _blocks(opened, name)
    use = {}
    for key, selected in opened.tensors(name).items():
        if key.startswith("posterior/") and key.endswith("/selected"):
            layer = key.removeprefix("posterior/").removesuffix("/selected")
            active, fresh = int(selected.sum()), len(new.get(layer, ()))
            total[layer] = total.get(layer, 0) + fresh
            use[layer] = LayerUse(active, fresh, active - fresh, total[layer])
    return use
