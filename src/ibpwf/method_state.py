"""What IBP-WF stores: a part per task and a part per block of factors that a task locked, none of them ever rewritten
by a later task. docs/model-format.md lists every tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch
from pydantic import ValidationError
from torch import Tensor

from ibpwf.core.dictionary import FactorBlock
from ibpwf.core.learned import BLOCK, VECTORS, LearnedTask, Reference
from ibpwf.core.posterior import LayerVectors
from ibpwf.core.turns import check_square
from ibpwf.inference.features.backbone import BackboneFeatures
from ibpwf.inference.features.layer import FactorFeatures, LayerFeatures
from ibpwf.inference.features.layer import features as layer_outputs
from ibpwf.inference.features.patches import PatchFeatures
from ibpwf.inference.features.random import RandomFeatures
from ibpwf.inference.fusion import GRID, RATES, Calibration, ClassScores
from ibpwf.inference.gaussian import GaussianTaskInference
from ibpwf.inference.router import RidgeRouter
from ibpwf.inference.shared import SharedGaussianInference
from ibpwf.inference.versions import Version
from ibpwf.storage.model_record import FactorState, FactorTask
from ibpwf.storage.network_json import check_runs
from ibpwf.storage.records import first_problem
from ibpwf.storage.tensor_checks import BOUNDED, Expected, NotWhole, buffer_rules, check_numbers, check_part

if TYPE_CHECKING:
    from ibpwf.method import IBPWF

REFERENCE = "reference"

Tensors = dict[str, Tensor]


def state_of(method: IBPWF) -> tuple[dict[str, Any], dict[str, Tensors]]:
    """JSON, and the parts by name. They hold the model's own tensors, not copies."""
    model, inference = method.model, method.inference
    parts: dict[str, Tensors] = {}
    tasks = []
    newest = {version.serial: task for task, version in enumerate(method.versions.newest)}
    for t, version in enumerate(method.versions.all):
        serial = version.serial
        learned, tensors = inference.task_state(newest[serial]) if serial in newest else (None, {})
        blocks = {name: dictionary.blocks[t] for name, dictionary in model.layers.items()}
        factors = sum(len(block.positions) for block in blocks.values())
        parts[f"task-{serial:04d}"] = _task_part(model.tasks[t], model.fixed_tensors(), tensors)
        if factors:
            parts[f"factors-{serial:04d}"] = _block_part(blocks)
        tasks.append(
            {
                "serial": serial,
                **({} if version.number == 1 else {"origin": version.origin, "version": version.number}),
                "classes": list(version.classes),
                "outputs": model.tasks[t].outputs,
                "turns": model.tasks[t].turns,
                "factors": factors,
                "inference": learned,
                "calibration": None if version.calibration is None else asdict(version.calibration),
            }
        )
    if model.reference is not None:
        parts[REFERENCE] = _reference_part(method)
    content: dict[str, Any] = {"reference": model.reference is not None, "tasks": tasks}
    for name, part in (("features", method.features), ("inference", method.inference)):
        content[name], tensors = part.state()
        if tensors:
            parts[name] = tensors
    return content, parts


def _task_part(task: LearnedTask, fixed: Tensors, inference: Tensors) -> Tensors:
    """A task's vectors, its own parameters and buffers but for those that all tasks have alike, and what task
    inference keeps of it."""
    tensors = {f"own/{name}": tensor for name, tensor in task.own.items() if name not in fixed}
    for name, vectors in task.vectors.items():
        tensors |= {f"posterior/{name}/{part}": getattr(vectors, part) for part in VECTORS}
        tensors[f"posterior/{name}/selected"] = task.selected[name]
    return tensors | {f"inference/{name}": tensor for name, tensor in inference.items()}


def _block_part(blocks: Mapping[str, FactorBlock]) -> Tensors:
    """The factors that a task locked, of the layers in which it locked any."""
    return {
        f"factors/{name}/{part}": getattr(block, part)
        for name, block in blocks.items()
        if len(block.positions)
        for part in BLOCK
    }


def _reference_part(method: IBPWF) -> Tensors:
    """What φ reads of a first task that was forgotten."""
    model = method.model
    assert model.reference is not None
    fixed = model.fixed_tensors()
    tensors = {f"own/{name}": tensor for name, tensor in model.reference.own.items() if name not in fixed}
    tensors |= _block_part({name: d.reference for name, d in model.layers.items() if d.reference is not None})
    for name in model.reference.selected:
        tensors[f"posterior/{name}/strength"] = model.reference.strength[name]
        tensors[f"posterior/{name}/selected"] = model.reference.selected[name]
    return tensors


def take_state(method: IBPWF, content: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]) -> None:
    """The inverse of `state_of`, on a fresh method, of earlier schemas too. Everything is checked against the network
    before it is taken."""
    if len(content["tasks"]) > len(files):  # before so many are looked at
        raise NotWhole(f"{len(content['tasks'])} tasks are declared, and {len(files)} parts are there")
    content, files = _upgraded(content, files)
    try:
        state = FactorState.model_validate(content)
    except ValidationError as error:
        raise NotWhole(f"in content.state, {first_problem(error)}") from None
    _check_parts(state, files)
    model, device = method.model, method.device

    def part(name: str) -> Tensors:
        return {key: tensor.to(device) for key, tensor in files[name].items()} if name in files else {}

    for name in ("features", "inference"):
        for key, tensor in part(name).items():
            check_numbers(name, key, tensor, BOUNDED)
    method.features.load_state(state.features, part("features"))
    if state.reference:
        tensors = part(REFERENCE)
        check_part(REFERENCE, tensors, _reference_shapes(method, tensors))
        _take_reference(method, tensors)
    learned = []
    for entry in state.tasks:
        place = f"task-{entry.serial:04d}"
        tensors, inference = part(place), {}
        for name in [name for name in tensors if name.startswith("inference/")]:  # checked by who reads them
            inference[name.removeprefix("inference/")] = tensors.pop(name)
        if entry.inference is None and inference:
            raise NotWhole(f"part '{place}' is of an older version, and has what is known of the task's inputs")
        block_place = place if entry.factors is None else f"factors-{entry.serial:04d}"
        factors = tensors if entry.factors is None else part(block_place)
        shapes, block_shapes = _task_shapes(method, place, tensors, entry.outputs), _block_shapes(method, factors)
        if entry.factors is None:
            shapes |= block_shapes
        else:
            check_part(block_place, factors, block_shapes)
        check_part(place, tensors, shapes)
        vectors, selected = {}, {}
        for name in model.layers:
            vectors[name] = LayerVectors(*(tensors[f"posterior/{name}/{key}"] for key in VECTORS))
            selected[name] = tensors[f"posterior/{name}/selected"]
            _check_vectors(place, name, vectors[name])
        own = model.fixed_tensors() | _within(tensors, "own/")
        task = LearnedTask(entry.outputs, vectors, selected, own, entry.turns)
        blocks = {name: _block(method, name, factors) for name in model.layers}
        _check_positions(block_place, blocks, {name: len(chosen) for name, chosen in selected.items()}, entry.factors)
        model.add_task(task, blocks)
        origin, classes = entry.serial if entry.origin is None else entry.origin, tuple(entry.classes)
        found = Version(entry.serial, classes, origin, entry.version)
        method.versions = method.versions.added(replace(found, calibration=_calibration(method, entry, found)))
        learned.append((entry.inference or {}, inference))
    current = [learned[place] for place in method.versions.places[: method.versions.tasks]]
    method.inference.load_state((state.inference, part("inference")), current)
    _check_read(method)
    _check_groups(method)


def _calibration(method: IBPWF, entry: FactorTask, version: Version) -> Calibration | None:
    """Of a version that comes after those that the method has; one with limits has been made beside a router."""
    found = entry.calibration
    if found is None:
        return None
    wanted = len(RATES) if isinstance(method.inference, ClassScores) else 0
    measured = wanted if isinstance(method.inference, RidgeRouter) else 0
    for name, table, count in (("limits", found.limits, wanted), ("nearness", found.nearness, measured)):
        if len(table or ()) != count:
            raise NotWhole(f"task {entry.serial} has {len(table or ())} {name} in its calibration, not {count}")
    remembered = len(GRID) if wanted else 0
    if found.losses is not None and len(found.losses) != remembered:
        raise NotWhole(f"task {entry.serial} has {len(found.losses)} losses in its calibration, not {remembered}")
    before = method.versions.added(version)
    known = sum(len(one.classes) for one in before.newest if one.origin <= version.origin)
    forgotten = entry.serial + 1 - before.tasks  # or serials of other versions
    if wanted and not (known <= found.classes and (forgotten or known == found.classes)):
        raise NotWhole(f"task {entry.serial} was calibrated among {found.classes} classes, and there were {known}")
    tables = {"limits": found.limits, "nearness": found.nearness, "losses": found.losses}
    return Calibration(
        **found.model_dump() | {name: None if table is None else tuple(table) for name, table in tables.items()}
    )


def _check_parts(state: FactorState, files: Mapping[str, Mapping[str, Tensor]]) -> None:
    """The parts that are declared are there, and no others."""
    wanted = {f"task-{task.serial:04d}" for task in state.tasks}
    wanted |= {f"factors-{task.serial:04d}" for task in state.tasks if task.factors}
    wanted |= {REFERENCE} if state.reference else set()
    for name in sorted({*files} ^ wanted):
        if name not in files:
            raise NotWhole(f"part '{name}' is not there")
        if name not in ("template", "features", "inference"):
            raise NotWhole(f"part '{name}' is there, and nothing reads it")


def _own_shapes(method: IBPWF, tensors: Tensors, outputs: int) -> dict[str, Expected]:
    """A task's own parameters and buffers: all of the network but factorized weights, and but for frozen ones, which
    older folders have here too; a dense head has a row per class of the task."""
    model = method.model
    elsewhere = {model.weights[name].parameter for name in model.layers}
    elsewhere |= {name for name in model.fixed_tensors() if f"own/{name}" not in tensors}
    buffers = buffer_rules(model.net)
    shapes = {}
    for name, value in model.net.state_dict().items():
        if name not in elsewhere and isinstance(value, Tensor):
            shape = tuple(value.shape)
            if model.heads == "per-task" and name.rpartition(".")[0] == model.head and name not in buffers:
                shape = (outputs, *shape[1:])
            shapes[name] = Expected(shape, value.dtype, buffers.get(name, BOUNDED))
    return shapes


def _task_shapes(method: IBPWF, part: str, tensors: Tensors, outputs: int) -> dict[str, Expected]:
    """What a task's part must hold: its own tensors, and vectors as long as its strengths are."""
    model = method.model
    if model.heads == "shared" and outputs > model.head_width:
        raise NotWhole(f"part '{part}' has {outputs} classes, and the network {model.head_width} outputs")
    shapes = {f"own/{name}": shape for name, shape in _own_shapes(method, tensors, outputs).items()}
    for name in model.layers:
        width = _length(tensors, f"posterior/{name}/strength")
        shapes |= {f"posterior/{name}/{key}": Expected((width,)) for key in VECTORS}
        shapes[f"posterior/{name}/selected"] = Expected((width,), torch.bool)
    return shapes


def _block_shapes(method: IBPWF, tensors: Tensors) -> dict[str, Expected]:
    """What the factors of the layers named in a part must be like."""
    shapes = {}
    for name, dictionary in method.model.layers.items():
        if any(f"factors/{name}/{key}" in tensors for key in BLOCK):
            count = _length(tensors, f"factors/{name}/positions")
            shapes[f"factors/{name}/a"] = Expected((dictionary.inputs, count))
            shapes[f"factors/{name}/b"] = Expected((count, dictionary.outputs))
            shapes[f"factors/{name}/positions"] = Expected((count,), torch.int64)
    return shapes


def _reference_shapes(method: IBPWF, tensors: Tensors) -> dict[str, Expected]:
    """What is kept of a forgotten first task must be like: all that φ reads, and what else of it is there."""
    model, unread = method.model, tuple(method.features.unread())
    shapes = _block_shapes(method, tensors)
    head = f"{model.head}."
    for name, shape in _own_shapes(method, tensors, 0).items():
        if f"own/{name}" in tensors or not name.startswith(unread):
            if name.startswith(head) and shape.shape[:1] == (0,):  # a row per class of the task, which is forgotten
                shape = replace(shape, shape=(_length(tensors, f"own/{name}"), *shape.shape[1:]))
            shapes[f"own/{name}"] = shape
    for name in model.layers:
        if f"posterior/{name}/selected" in tensors or not model.weights[name].parameter.startswith(unread):
            width = _length(tensors, f"posterior/{name}/strength")
            shapes[f"posterior/{name}/strength"] = Expected((width,))
            shapes[f"posterior/{name}/selected"] = Expected((width,), torch.bool)
    return shapes


def _length(tensors: Tensors, name: str) -> int:
    """How many a tensor has, if it is there: what else must be as many is compared with it."""
    return len(tensors[name]) if name in tensors and tensors[name].ndim else 0


def _check_vectors(part: str, layer: str, vectors: LayerVectors) -> None:
    for key in ("c", "d"):
        values = getattr(vectors, key)
        if len(values) and not float(values.min()) > 0:
            raise NotWhole(f"tensor 'posterior/{layer}/{key}' of part '{part}' is not above 0")


def _check_positions(
    part: str, blocks: Mapping[str, FactorBlock], widths: Mapping[str, int], declared: int | None
) -> None:
    """Every factor has a place of its own among its task's sticks."""
    for name, block in blocks.items():
        at = block.positions
        inside = not len(at) or (int(at[0]) >= 0 and int(at[-1]) < widths[name])
        if not inside or not bool((at[1:] > at[:-1]).all()):
            where = f"tensor 'factors/{name}/positions' of part '{part}'"
            raise NotWhole(f"{where} does not rise between 0 and {widths[name]}")
    found = sum(len(block.positions) for block in blocks.values())
    if declared is not None and found != declared:
        raise NotWhole(f"part '{part}' holds {found} factors instead of {declared}")


def _check_groups(method: IBPWF) -> None:
    """Gaussians of ours: one per task, or per class; of a router a column per class."""
    inference, tasks = method.inference, method.versions.newest
    if isinstance(inference, RidgeRouter) and inference.columns() != [len(task.classes) for task in tasks]:
        raise NotWhole(f"the router's tasks have {inference.columns()} classes, which are not those of the tasks")
    if not isinstance(inference, GaussianTaskInference):
        return
    if (inference.absolute_ridge is None) != (not tasks):
        raise NotWhole(f"absolute_ridge is {inference.absolute_ridge} with {len(tasks)} tasks")
    each = inference.per_class or isinstance(inference, SharedGaussianInference)
    for number, task in enumerate(tasks):
        if inference.owner.count(number) != (len(task.classes) if each else 1):
            raise NotWhole(f"task {task.serial} has {inference.owner.count(number)} Gaussians, which are not its own")


def check_inputs(method: IBPWF, shape: tuple[int, ...]) -> None:
    """Refuse inputs that the network and φ were not made for."""
    given, wanted = check_runs(method.model.net, shape), (1, method.model.head_width)
    if given != wanted:
        head = f"its head '{method.model.head}' has {wanted[1]} outputs"
        raise NotWhole(f"the network gives {list(given)} for one input, and {head}")
    for task in method.model.tasks:
        check_square(torch.zeros(1, *shape), task.turns, method.image_shape)
    features, inference = method.features, method.inference
    width: int | None = None
    if isinstance(features, RandomFeatures):
        width = len(features.bias)
        if features.inputs != math.prod(shape):
            raise NotWhole(f"random features take {features.inputs} numbers, inputs have shape {list(shape)}")
    elif isinstance(features, FactorFeatures):
        kept, layer = method.model.reference or method.model.tasks[0], features.layers[0]
        width = int(kept.selected[layer].sum())
    elif isinstance(features, LayerFeatures):
        net, one = method.model.net, torch.zeros(1, *shape, device=method.device)
        width = layer_outputs(net, dict(net.state_dict()), features.layers, one).shape[1]
    elif isinstance(features, BackboneFeatures):
        features.check_shape(torch.zeros(1, *shape))
        width = features.width
    elif isinstance(features, PatchFeatures):
        width = features(torch.zeros(1, *shape, device=method.device)).shape[1]
    if isinstance(inference, RidgeRouter) and width not in (None, inference.width):
        raise NotWhole(f"the router is of {inference.width} features, and φ has {width}")
    if isinstance(inference, GaussianTaskInference) and width not in (None, len(inference.groups[0].mean)):
        raise NotWhole(f"the Gaussians are of {len(inference.groups[0].mean)} features, and φ has {width}")


def _upgraded(
    content: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]
) -> tuple[Mapping[str, Any], Mapping[str, Mapping[str, Tensor]]]:
    """What schemas 1 and 2 stored, in the form of schema 3: moments of φ lay beside the tasks under names of their
    own, and schema 1 had a task's factors in the task's part and no serials."""
    if "features" in content:
        return content, files
    renamed = {
        name: {key.replace("moments/", "inference/", 1): tensor for key, tensor in tensors.items()}
        for name, tensors in files.items()
    }
    if "random-features" in renamed:
        renamed["features"] = renamed.pop("random-features")
    tasks = [
        {"serial": number, **{key: value for key, value in entry.items() if key != "groups"}, "inference": groups}
        for number, entry in enumerate(content["tasks"])
        for groups in ({"groups": entry["groups"]},)
    ]
    features = {"layers": content["inference_layers"]}
    inference = {"absolute_ridge": content["absolute_ridge"]}
    reference = content.get("reference", False)
    return {"features": features, "inference": inference, "reference": reference, "tasks": tasks}, renamed


def _check_read(method: IBPWF) -> None:
    """A factor that is read must be there: weights composed of the wrong ones would answer without a sign of it."""
    model = method.model
    for name, dictionary in model.layers.items():
        readers = [task.selected[name] for task in model.tasks]
        if model.reference is not None and name in model.reference.selected:
            readers.append(model.reference.selected[name])
        locked = [block.positions for block in dictionary.all_blocks]
        for selected in readers:
            if not bool(torch.isin(selected.nonzero().flatten(), torch.cat(locked)).all()):
                raise NotWhole(f"a task reads factors of layer '{name}' that are not there")


def _take_reference(method: IBPWF, tensors: Tensors) -> None:
    model = method.model
    strength, selected = {}, {}
    for name, dictionary in model.layers.items():
        if f"posterior/{name}/selected" in tensors:
            strength[name] = tensors[f"posterior/{name}/strength"]
            selected[name] = tensors[f"posterior/{name}/selected"]
            dictionary.reference = _block(method, name, tensors)
            _check_positions(REFERENCE, {name: dictionary.reference}, {name: len(selected[name])}, None)
    unread = tuple(method.features.unread())
    fixed = {name: tensor for name, tensor in model.fixed_tensors().items() if not name.startswith(unread)}
    model.reference = Reference(strength, selected, fixed | _within(tensors, "own/"))


def _block(method: IBPWF, layer: str, tensors: Tensors) -> FactorBlock:
    if f"factors/{layer}/a" in tensors:
        return FactorBlock(*(tensors[f"factors/{layer}/{key}"] for key in BLOCK))
    dictionary = method.model.layers[layer]
    empty = next(iter(method.model.net.parameters())).new_empty
    at = empty(0).long()
    return FactorBlock(empty(dictionary.inputs, 0), empty(0, dictionary.outputs), at)


def _within(tensors: Tensors, prefix: str) -> Tensors:
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
