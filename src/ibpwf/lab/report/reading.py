"""From a run folder to a `Run`. A file that is missing, cut or foreign is noted in `problems` and left out.

Only a folder in which neither `result.json` nor `config.json` can be read is no run at all: that is a
`StoreError`, which the page's maker catches and reports.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import torch

from ibpwf.errors import StoreError
from ibpwf.lab.evaluation.metrics import Matrix
from ibpwf.lab.experiments.result import SCHEMA
from ibpwf.lab.report.fields import Fields, is_number
from ibpwf.lab.report.run_record import Epoch, LayerUse, Run, Scores, Spread, Task, Use
from ibpwf.storage.files import read_bytes, read_json
from ibpwf.storage.folder import MANIFEST, OpenedFolder, open_folder


def expand(folder: Path) -> list[Path]:
    """The run folders meant by a path: itself, or the run folders directly inside it."""
    try:
        if _is_run(folder) or not folder.is_dir():
            return [folder]
        return sorted(child for child in folder.iterdir() if child.is_dir() and _is_run(child)) or [folder]
    except OSError:  # said properly when it is read
        return [folder]


def _is_run(folder: Path) -> bool:
    return (folder / "result.json").exists() or (folder / "config.json").exists()


def read_run(folder: Path) -> Run:
    """Everything the report can learn from a run folder."""
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder. Give the --out folder of `ibpwf run`.")
    if not _is_run(folder):
        raise StoreError(f"{folder} is not a run folder: it has neither result.json nor config.json.")
    run, damaged = None, []
    if (folder / "result.json").exists():
        try:
            run = _from_result(folder, Fields(read_json(folder / "result.json"), "result.json"))
        except StoreError as error:
            damaged.append(f"{error} The result is left out.")
    if run is None:
        if not (folder / "config.json").exists():
            raise StoreError(" ".join([*damaged, f"{folder} has no config.json either."]))
        run = _from_config(folder, Fields(read_json(folder / "config.json"), "config.json"))
        run.problems += damaged
    _read_epochs(run)
    _read_model(run)
    return run


def read_result_file(path: Path) -> Run:
    """A result that was kept without its run folder: no learning curves, no factor scores."""
    run = _from_result(path.parent, Fields(read_json(path), path.name))
    run.name = path.stem
    _take_plain_alpha(run)
    return run


# ------------------------------------------------------------------------------------- result.json, rows


def _spread(fields: Fields, name: str) -> Spread | None:
    if name not in fields:
        return None
    entry = fields.child(name)
    return Spread(entry.number("mean"), entry.maybe_number("std"))


def _described(folder: Path, fields: Fields) -> Run:
    """What result.json and config.json have in common."""
    seeds = fields.numbers("seeds")
    if not seeds or any(seed < 0 or seed != int(seed) for seed in seeds):
        raise StoreError(f"{fields.where}: field 'seeds' is not a list of whole numbers from 0.")
    return Run(
        folder=folder,
        scenario=fields.text("scenario"),
        method=fields.text("method"),
        preset=fields.text("preset"),
        seeds=[int(seed) for seed in seeds],
        changes=fields.plain("changes"),
        settings=fields.plain("settings"),
        network=fields.plain("network"),
        note=fields.text("note", ""),
    )


def _from_result(folder: Path, fields: Fields) -> Run:
    schema = fields.count("schema")
    if schema > SCHEMA:
        raise StoreError(
            f"result.json has schema version {schema}, and this ibpwf reads up to {SCHEMA}: upgrade ibpwf to read it."
        )
    run = _described(folder, fields)
    run.finished = True
    run.tasks = [Task(task.text("name"), len(task.items("classes"))) for task in fields.children("tasks")]
    accuracy = fields.child("accuracy")
    found = {
        "task": _spread(accuracy, "task"),
        "class": _spread(accuracy, "class"),
        "task-inference": _spread(fields, "task_inference"),
        **{name: _spread(fields, name) for name in ("forgetting", "backward_transfer", "forward_transfer")},
    }
    run.measures = {name: spread for name, spread in found.items() if spread is not None}
    if "paper" in fields:
        paper = {name: _spread(fields.child("paper"), name) for name in ("task", "class", "task-inference")}
        run.paper = {name: spread for name, spread in paper.items() if spread is not None}
    for key in ("task", "class"):
        seeds = [seed for seed in fields.children("matrix") if key in seed]
        run.matrices[key] = [_matrix(seed, key) for seed in seeds]
    if "factors" in fields:
        run.factors = [[_use(row) for row in seed.children("per_task")] for seed in fields.children("factors")]
    if "uncertainty" in fields:
        for seed in fields.children("uncertainty"):
            _take_uncertainty(run, seed.children("per_task") if None not in seed.items("per_task") else [])
    run.parameters = _spread(fields, "parameters")
    run.train_seconds = fields.child("seconds").maybe_number("train") if "seconds" in fields else None
    run.samples_per_second = fields.maybe_number("samples_per_second")
    run.environment = fields.plain("environment")
    run.command = fields.text("command")
    run.commit = fields.text("commit") if "commit" in fields else None
    run.progress = dict.fromkeys(run.seeds, len(run.tasks))
    return run


def _matrix(fields: Fields, key: str) -> Matrix:
    rows: Matrix = []
    for row in fields.items(key):
        if not isinstance(row, list) or not all(value is None or is_number(value) for value in row):
            raise StoreError(f"{fields.where}: field '{key}' is not a matrix of numbers.")
        rows.append([None if value is None else float(value) for value in row])
    return rows


def _take_uncertainty(run: Run, rows: list[Fields]) -> None:
    """One seed's entropies after each task; a seed without them is left out."""
    entropies = [row.numbers("entropy") for row in rows]
    if not entropies:
        return
    width = len(run.entropies[0][0]) if run.entropies else len(entropies[0])
    if any(len(row) != width or min(row, default=-1) < 0 for row in entropies) or len(entropies) > width:
        raise StoreError(f"{rows[0].where}: field 'entropy' is not a number of nats for each of the tasks.")
    run.entropies.append(entropies)
    run.aurocs.append([row.maybe_number("auroc") for row in rows])


def _use(fields: Fields) -> LayerUse:
    parts = ("active", "new", "reused", "total")
    return {name: Use(*(layer.number(part) for part in parts)) for name, layer in fields.named()}


def _from_config(folder: Path, fields: Fields) -> Run:
    """An unfinished run: what its seeds have stored so far."""
    run = _described(folder, fields)
    run.shortened = fields.count("tasks") if "tasks" in fields else None
    run.matrices = {"task": [], "class": []}
    for seed in run.seeds:
        path = folder / f"seed-{seed}" / "rows.json"
        run.progress[seed] = 0
        if not path.exists():
            continue
        try:
            rows = Fields(read_json(path), f"seed-{seed}/rows.json").children("rows")
            matrices = {key: [row.numbers(f"{key}_accuracy") for row in rows] for key in ("task", "class")}
            names = [row.text("task") for row in rows]
            uses = [_use(row.child("factors")) if "factors" in row else {} for row in rows]
            _take_uncertainty(run, [row.child("uncertainty") for row in rows if "uncertainty" in row])
        except StoreError as error:
            run.problems.append(f"{error} Seed {seed} is left out.")
            continue
        run.progress[seed] = len(rows)
        for key, matrix in matrices.items():
            run.matrices[key].append([[*row, *([None] * (len(rows) - len(row)))] for row in matrix])
        run.factors.append(uses)
        if len(names) > len(run.tasks):
            run.tasks = [Task(name, None) for name in names]
    return run


# ----------------------------------------------------------------------------------------- metrics.jsonl


def _read_epochs(run: Run) -> None:
    """Epoch lines; of a task that was begun twice (a run resumed), the later lines count."""
    try:
        lines = read_bytes(run.folder / "metrics.jsonl").split(b"\n")
    except StoreError as error:
        run.problems.append(f"metrics.jsonl: {error} No learning curves are drawn.")
        return
    found: dict[tuple[int, int, str, int], Epoch] = {}
    bad = 0
    for line in lines:
        if not line.strip():
            continue
        try:
            epoch = _epoch(Fields(_decode(line), "metrics.jsonl"))
        except StoreError:
            bad += 1
            continue
        if epoch is not None:
            found[epoch.seed, epoch.task, epoch.phase, epoch.epoch] = epoch
    run.epochs = list(found.values())
    if bad:
        run.problems.append(f"metrics.jsonl: {bad} damaged line{'s' * (bad > 1)} left out of the learning curves.")


def _decode(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise StoreError("metrics.jsonl: a line is not JSON.") from None


def _epoch(fields: Fields) -> Epoch | None:
    if "finished" in fields:
        return None
    whole = {name: fields.count(name) for name in ("seed", "task_number", "epoch", "epochs")}
    return Epoch(
        seed=whole["seed"],
        task=whole["task_number"],
        phase=fields.text("phase"),
        epoch=whole["epoch"],
        epochs=whole["epochs"],
        loss=fields.number("loss"),
        extra=fields.number("extra"),
    )


# ------------------------------------------------------------------------------------------------- model


def _read_model(run: Run) -> None:
    """α per layer and the factor scores of the first layer, from the first seed whose model can be read."""
    _take_plain_alpha(run)
    for seed in run.seeds:
        place = f"seed-{seed}/model"
        path = run.folder / place
        if not (run.finished and run.layers) and not (path / MANIFEST).exists():
            continue
        try:
            opened = open_folder(path)
            content = Fields(opened.content, place)
            _take_alpha(run, content)
            _take_classes(run, content)
            run.scores = _scores(opened, content, seed)
        except StoreError as error:
            run.problems.append(f"{place}: {error} Its factor scores are left out.")
            continue
        return


def _take_plain_alpha(run: Run) -> None:
    alpha = run.settings.get("alpha")
    if is_number(alpha):
        run.alpha = {layer: float(run.settings["alpha"]) for layer in run.layers}


def _take_alpha(run: Run, content: Fields) -> None:
    """The model has α resolved per layer ('auto' and patterns are worked out)."""
    with contextlib.suppress(StoreError):  # without it the expectation is not drawn; nothing else depends on it
        for layer, value in content.child("configuration").child("settings").child("alpha").values.items():
            if is_number(value):
                run.alpha[layer] = float(value)


def _take_classes(run: Run, content: Fields) -> None:
    """Class counts of an unfinished run's tasks."""
    if run.finished or "tasks" not in content:
        return
    counts = [len(task.items("classes")) for task in content.children("tasks")]
    if len(counts) >= len(run.tasks):
        run.tasks = [Task(task.name, counts[t]) for t, task in enumerate(run.tasks)]


def _scores(opened: OpenedFolder, content: Fields, seed: int) -> Scores | None:
    names = sorted(name for name in opened.files if name.startswith("task-"))
    made = content.child("configuration") if "configuration" in content else content
    layers = made.items("layers") if "layers" in made else []
    rows: list[list[float | None]] = []
    new: list[frozenset[int]] = []
    layer = ""
    for name in names:
        tensors = opened.tensors(name)
        block = name.replace("task-", "factors-")
        if opened.schema > 1:  # the factors a task locked lie in a part of their own, if there are any
            tensors |= opened.tensors(block) if block in opened.files else {}
        layer = layer or next((str(each) for each in layers if f"posterior/{each}/strength" in tensors), "")
        if not layer:
            return None  # a method without factors
        parts = [tensors.get(f"posterior/{layer}/{part}") for part in ("strength", "selected")]
        none = torch.empty(0, dtype=torch.long) if opened.schema > 1 else None
        positions = tensors.get(f"factors/{layer}/positions", none)
        strength, selected = parts
        if strength is None or selected is None or positions is None or strength.shape != selected.shape:
            raise StoreError(f"{name} does not hold the strengths and selection of layer '{layer}'.")
        if not bool(torch.isfinite(strength.double()).all()):
            raise StoreError(f"{name} holds strengths that are not numbers.")
        values, chosen = strength.double().flatten().tolist(), selected.bool().flatten().tolist()
        rows.append([value if used else None for value, used in zip(values, chosen, strict=True)])
        new.append(frozenset(int(k) for k in positions.flatten().tolist()))
    return Scores(seed, layer, rows, new) if rows else None
