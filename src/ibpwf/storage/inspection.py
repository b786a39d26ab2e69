"""What a model folder holds, read from its files alone: no network is built, so any model can be looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ibpwf.errors import StoreError
from ibpwf.factors.learned import FactorUse
from ibpwf.storage.checkpoint_folder import task_in_progress
from ibpwf.storage.folder import MANIFEST, OpenedFolder, open_folder
from ibpwf.storage.model_folder import KIND, face_of
from ibpwf.storage.model_record import read_content


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
    version: int
    version_of: str | None  # of an older version, the task that has a newer one
    bytes: int
    factors: dict[str, FactorUse]
    further_factors: dict[str, int]  # by layer, those among them with π̄ < κ that the task's accuracy needed


@dataclass(frozen=True)
class ModelReport:
    """A model folder at a glance."""

    path: str
    method: str
    schema: int
    seed: int
    input_shape: list[int] | None
    base: str | None  # the digest of a frozen network that tasks are differences from, which is not stored
    tasks: list[TaskReport]
    layers: dict[str, int]  # locked factors of each layer
    numbers: dict[str, int]  # how many the tensors hold, by kind
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
    read_content(opened)
    try:
        return _report(opened)
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError, ArithmeticError) as error:
        what = f"{type(error).__name__}: {error}"
        raise StoreError(f"{path} is not a whole model folder ({what}); restore it from a copy.") from None


KINDS = {
    "factors": "factors",
    "posterior": "task vectors",
    "own": "own parameters",
    "inference": "feature statistics",
}
"""What a tensor is, by the first word of its name."""
STATISTICS = ("features", "inference")
"""Files that hold nothing else than feature statistics."""
NETWORK = "network"
"""What all others are: the network's own tensors, or another method's."""


@dataclass(frozen=True)
class _Part:
    """What the report needs of one file of tensors."""

    bytes: int
    numbers: Counter[str]  # by kind
    locked: Counter[str]  # factors, by layer
    selected: Counter[str]  # factors that the task reads, by layer


def _part(opened: OpenedFolder, name: str) -> _Part:
    part = _Part(opened.files[name].bytes, Counter(), Counter(), Counter())
    for key, tensor in opened.tensors(name).items():
        first, _, rest = key.partition("/")
        layer, _, field = rest.rpartition("/")
        kind = KINDS["inference"] if name in STATISTICS else KINDS.get(first, NETWORK)
        part.numbers[kind] += tensor.numel()
        if (first, field) == ("factors", "positions"):
            part.locked[layer] += len(tensor)
        elif (first, field) == ("posterior", "selected"):
            part.selected[layer] += int(tensor.sum())
    return part


def _report(opened: OpenedFolder) -> ModelReport:
    content = opened.content
    stored = content["state"].get("tasks", [])
    known = [int(entry.get("serial", number)) for number, entry in enumerate(stored)]
    serials = known or list(range(len(content["tasks"])))
    parts = {name: _part(opened, name) for name in opened.files}
    manifest = (opened.path / MANIFEST).stat().st_size
    tasks, layers = _tasks(content, serials, parts)
    parts_bytes = sum(part.bytes for part in parts.values())
    numbers = sum((part.numbers for part in parts.values()), Counter[str]())
    unfinished = task_in_progress(opened.path)
    if unfinished is not None and unfinished.serial <= max(serials, default=-1):
        unfinished = None  # finished since
    return ModelReport(
        path=str(opened.path),
        method=content["method"],
        schema=opened.schema,
        seed=content["seed"],
        input_shape=content["input_shape"],
        base=content["configuration"].get("base"),
        tasks=tasks,
        layers=layers,
        numbers={kind: numbers[kind] for kind in dict.fromkeys((*KINDS.values(), NETWORK)) if numbers[kind]},
        bytes=parts_bytes + manifest,
        shared_bytes=parts_bytes - sum(task.bytes for task in tasks),
        manifest_bytes=manifest,
        history=content["history"],
        in_progress=None if unfinished is None else unfinished.task,
        extra=content["extra"],
    )


def _tasks(
    content: Mapping[str, Any], serials: list[int], parts: Mapping[str, _Part]
) -> tuple[list[TaskReport], dict[str, int]]:
    """Every task, and how many factors each layer has after the last."""
    face = face_of(content)
    names = face["labels"]["labels"] if face is not None else []
    total = Counter(parts["reference"].locked) if "reference" in parts else Counter()
    tasks = []
    for number, (serial, task) in enumerate(zip(serials, content["tasks"], strict=True)):
        mine = [parts[name] for name in (f"task-{serial:04d}", f"factors-{serial:04d}") if name in parts]
        new, selected = Counter[str](), Counter[str]()
        for part in mine:
            new.update(part.locked)
            selected.update(part.selected)
        total.update({layer: new[layer] for layer in selected})
        tasks.append(
            TaskReport(
                name=task["name"],
                number=number,
                serial=serial,
                classes=list(task["classes"]),
                labels=[names[label] for label in task["classes"]] if names else list(task["classes"]),
                examples=task["examples"],
                accuracy=task["accuracy"],
                version=task.get("version", 1),
                version_of=task.get("version_of"),
                bytes=sum(part.bytes for part in mine),
                factors={
                    layer: FactorUse(active, new[layer], active - new[layer], total[layer])
                    for layer, active in selected.items()
                },
                further_factors=task.get("further_factors") or {},
            )
        )
    return tasks, dict(total)
