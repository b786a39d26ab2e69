"""What IBP-WF stores: a part per task and a part per block of factors that a task locked, none of them ever rewritten
by a later task; and whether what is read fits together. docs/model-format.md lists every tensor."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import torch
from pydantic import Field, ValidationError, model_validator
from torch import Tensor

from ibpwf.factors.dictionary import FactorBlock
from ibpwf.factors.learned import BLOCK, LearnedTask, Reference
from ibpwf.inference.fusion import GRID, RATES, Calibration
from ibpwf.inference.opinion import Opinion, taken_opinion
from ibpwf.inference.versions import Version
from ibpwf.storage.model_record import Class, Count, Serial
from ibpwf.storage.network_json import check_runs
from ibpwf.storage.records import Record, first_problem
from ibpwf.storage.tensor_checks import BOUNDED, CorruptModelError, TensorReader, buffer_rules, check_numbers
from ibpwf.storage.tensor_file import TensorFile
from ibpwf.views import views_of

if TYPE_CHECKING:
    from ibpwf.factors.model import FactorModel
    from ibpwf.inference.base import TaskInference
    from ibpwf.method import IBPWF

REFERENCE = "reference"

Tensors = dict[str, Tensor]


AboveZero = Annotated[float, Field(ge=1e-3, le=1e3)]
Weight = Annotated[float, Field(ge=0, le=1e3)]


class TaskCalibration(Record):
    """What rows held out of a task said: of its own network, and where there is a router of both."""

    temperature: AboveZero
    router: AboveZero | None
    experts: Weight | None
    classes: Count
    limits: list[Annotated[float, Field(ge=-1e300, le=1e300)]] | None
    alone: AboveZero | None
    nearness: list[Annotated[float, Field(ge=-1e300, le=1e300)]] | None
    losses: list[Annotated[float, Field(ge=0, le=1e300)]] | None
    opinion: Annotated[tuple[AboveZero, Weight], Field(strict=False)] | None

    @model_validator(mode="after")
    def _of_a_router_or_not(self) -> Self:
        given = [value is not None for value in (self.router, self.experts, self.limits, self.alone)]
        if any(given) != all(given) or any(given) != bool(self.classes):
            raise ValueError("field 'calibration' has some numbers of a router, and lacks others")
        for name, table in (("limits", self.limits), ("nearness", self.nearness)):
            if table is not None and table != sorted(table):
                raise ValueError(f"field 'calibration.{name}' does not rise")
        return self


class FactorTask(Record):
    """What IBP-WF keeps of a task beside its tensors."""

    serial: Serial
    origin: Serial | None = None  # of a later version of a task, the serial of its first
    version: Annotated[int, Field(ge=1, lt=1_000_000_000)] = 1
    classes: list[Class]
    outputs: Annotated[int, Field(ge=1)]
    turns: Literal[1, 4]
    factors: Count
    inference: dict[str, Any] | None  # of an older version None: the newest has it
    calibration: TaskCalibration | None
    opinion: bool = False  # whether its part has what the router said of its classes


class FactorState(Record):
    """What IBP-WF keeps beside its tensors."""

    features: dict[str, Any]
    inference: dict[str, Any]
    reference: bool
    tasks: list[FactorTask]

    @model_validator(mode="after")
    def _serials_in_order(self) -> Self:
        serials = [task.serial for task in self.tasks]
        if any(first >= second for first, second in itertools.pairwise(serials)):
            raise ValueError("field 'tasks' has serials that do not rise")
        self._check_versions()
        if self.reference and not serials:
            raise ValueError("field 'reference' is True, but there are no tasks")
        return self

    def _check_versions(self) -> None:
        """Versions of a task come in order, with the task's classes and turns, and the newest has what is known of
        its inputs."""
        last: dict[int, FactorTask] = {}
        for task in self.tasks:
            origin = task.serial if task.origin is None else task.origin
            before = last.get(origin)
            if (task.version == 1) != (origin == task.serial) or origin > task.serial:
                raise ValueError(f"task {task.serial} is version {task.version} of task {origin}")
            alike = before is None or (before.classes, before.turns) == (task.classes, task.turns)
            if before is not None and not (alike and before.version < task.version):
                raise ValueError(f"tasks {before.serial} and {task.serial} are no versions of one task")
            last[origin] = task
        newest = {task.serial for task in last.values()}
        for task in self.tasks:
            if (task.inference is not None) != (task.serial in newest):
                raise ValueError(f"task {task.serial} lacks what is known of its inputs, or an older version has it")


def state_of(method: IBPWF) -> tuple[dict[str, Any], dict[str, Mapping[str, Tensor]]]:
    """JSON, and the parts by name. They hold the model's own tensors, not copies; one that has not been read from its
    folder yet stands for itself."""
    model, inference = method.model, method.inference
    parts: dict[str, Mapping[str, Tensor]] = {}
    tasks = []
    newest = {version.serial: task for task, version in enumerate(method.versions.newest)}
    for t, version in enumerate(method.versions.all):
        serial = version.serial
        learned, part = _task_state(model, inference, t, newest.get(serial))
        if version.opinion is not None:
            part = {**part, **version.opinion.tensors()}
        parts[f"task-{serial:04d}"] = part
        blocks = {name: dictionary.blocks[t] for name, dictionary in model.layers.items()}
        factors, block_part = _blocks_state(blocks)
        if factors:
            parts[f"factors-{serial:04d}"] = block_part
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
                **({} if version.opinion is None else {"opinion": True}),
            }
        )
    if model.reference is not None:
        parts[REFERENCE] = _reference_part(method)
    content: dict[str, Any] = {"reference": model.reference is not None, "tasks": tasks}
    for name, kept in (("features", method.features), ("inference", method.inference)):
        content[name], tensors = kept.state()
        if tensors:
            parts[name] = tensors
    return content, parts


def _task_state(
    model: FactorModel, inference: TaskInference, place: int, number: int | None
) -> tuple[dict[str, Any] | None, Mapping[str, Tensor]]:
    """What is kept of a task's inputs, and its part; an older version has no `number` to be inferred by."""
    task = model.tasks[place]
    if isinstance(task.part, TensorFile):
        known = None if number is None else inference.unread(number)
        if number is None and task.part.content is None:
            return None, task.part
        if known is not None and known[1] is task.part:
            return known[0], task.part
    learned, tensors = (None, {}) if number is None else inference.task_state(number)
    return learned, _task_part(task, model.fixed_tensors(), tensors)


def _blocks_state(blocks: Mapping[str, FactorBlock]) -> tuple[int, Mapping[str, Tensor]]:
    """How many factors a task locked, and their part."""
    part = next(iter(blocks.values())).part
    if isinstance(part, TensorFile) and all(block.part is part for block in blocks.values()):
        assert isinstance(part.content, int)
        return part.content, part
    return sum(len(block.positions) for block in blocks.values()), _block_part(blocks)


def _task_part(task: LearnedTask, fixed: Tensors, inference: Tensors) -> Tensors:
    """A task's vectors, its own parameters and buffers but for those that all tasks have alike, and what task
    inference keeps of it."""
    tensors = {f"own/{name}": tensor for name, tensor in task.own.items() if name not in fixed}
    for name, vectors in task.vectors.items():
        tensors |= {f"posterior/{name}/{part}": getattr(vectors, part) for part in vectors.names()}
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
    """The inverse of `state_of`, on a fresh method. Everything is checked against the network before it is taken."""
    if len(content["tasks"]) > len(files):  # before so many are looked at
        raise CorruptModelError(f"{len(content['tasks'])} tasks are declared, and {len(files)} parts are there")
    try:
        state = FactorState.model_validate(content)
    except ValidationError as error:
        raise CorruptModelError(f"in content.state, {first_problem(error)}") from None
    _check_parts(state, files)
    model, device = method.model, method.device

    def part(name: str) -> Tensors:
        return {key: tensor.to(device) for key, tensor in files[name].items()} if name in files else {}

    for name in ("features", "inference"):
        for key, tensor in part(name).items():
            check_numbers(name, key, tensor, BOUNDED)
    method.features.load_state(state.features, part("features"))
    if state.reference:
        _take_reference(method, part(REFERENCE))
    learned: list[tuple[dict[str, Any], Any]] = []
    for entry in state.tasks:
        whole, rest = divmod(entry.outputs, entry.turns)
        problem = f"its {entry.outputs} outputs are not {entry.turns} times as many" if rest else None
        problem = problem or method.likelihood.check_task(entry.classes, whole)
        if problem is not None:
            raise CorruptModelError(f"task {entry.serial} does not fit the likelihood: {problem}")
        file, opinion = files[f"task-{entry.serial:04d}"], None
        if isinstance(file, TensorFile) and method.inference.reads_later:
            learned.append((entry.inference or {}, _add_unread(method, entry, file, files)))
        else:
            task, inference, opinion = _task(method, entry, part(f"task-{entry.serial:04d}"))
            widths = {name: len(chosen) for name, chosen in task.selected.items()}
            model.add_task(task, _blocks(method, entry, part(f"factors-{entry.serial:04d}"), widths))
            learned.append((entry.inference or {}, inference))
        origin, classes = entry.serial if entry.origin is None else entry.origin, tuple(entry.classes)
        found = Version(entry.serial, classes, origin, entry.version, opinion=opinion)
        method.versions = method.versions.added(replace(found, calibration=_calibration(method, entry, found)))
    for name, dictionary in model.layers.items():
        dictionary.width = max(dictionary.width, len(model.tasks[-1].vectors[name]) if model.tasks else 0)
    current = [learned[place] for place in method.versions.places[: method.versions.tasks]]
    method.inference.load_state((state.inference, part("inference")), current)
    check_opinions(method)
    if all(task.part is None for task in model.tasks):
        check_read(method)
    method.inference.check_tasks({task.serial: len(task.classes) for task in method.versions.newest})


def _task(method: IBPWF, entry: FactorTask, tensors: Tensors) -> tuple[LearnedTask, Tensors, Opinion | None]:
    """A task from its part, checked, and what is kept of its inputs, which is checked by who reads it."""
    model, place = method.model, f"task-{entry.serial:04d}"
    if model.heads == "shared" and entry.outputs > model.head_width:
        raise CorruptModelError(
            f"part '{place}' has {entry.outputs} classes, and the network {model.head_width} outputs"
        )
    kind = model.prior.vectors
    vectors, selected = {}, {}
    with TensorReader(place, tensors) as reader:
        inference = reader.take_all("inference/")
        if entry.inference is None and inference:
            raise CorruptModelError(
                f"part '{place}' is of an older version, and has what is known of the task's inputs"
            )
        opinion = taken_opinion(reader, len(entry.classes)) if entry.opinion else None
        own = {name: reader.take(f"own/{name}", *wanted) for name, wanted in _own(method, entry.outputs).items()}
        for name in model.layers:
            place = f"posterior/{name}"
            width = reader.length(f"{place}/strength")
            vectors[name] = kind(*(reader.take(f"{place}/{key}", (width,)) for key in kind.names()))
            selected[name] = reader.take(f"{place}/selected", (width,), torch.bool)
            problem = model.prior.problem(vectors[name])
            if problem is not None:
                raise CorruptModelError(f"of layer '{name}' in part '{reader.part}', {problem}")
    task = LearnedTask(entry.outputs, vectors, selected, model.fixed_tensors() | own, entry.turns)
    return task, inference, opinion


def _own(method: IBPWF, outputs: int) -> dict[str, tuple[tuple[int, ...], torch.dtype, str]]:
    """What a task's own parameters and buffers must be like: all of the network but factorized and frozen weights; a
    dense head has a row per class of the task."""
    model = method.model
    elsewhere = {model.weights[name].parameter for name in model.layers} | model.fixed_tensors().keys()
    buffers = buffer_rules(model.net)
    found = {}
    for name, value in model.net.state_dict().items():
        if name not in elsewhere and isinstance(value, Tensor):
            shape = tuple(value.shape)
            if model.heads == "per-task" and name.rpartition(".")[0] == model.head and name not in buffers:
                shape = (outputs, *shape[1:])
            found[name] = shape, value.dtype, buffers.get(name, BOUNDED)
    return found


def _blocks(
    method: IBPWF, entry: FactorTask, tensors: Tensors, widths: Mapping[str, int] | None = None
) -> dict[str, FactorBlock]:
    """The factors that a task locked, from their part, checked."""
    with TensorReader(f"factors-{entry.serial:04d}", tensors) as reader:
        blocks = {name: _block(method, name, reader) for name in method.model.layers}
    _check_positions(reader.part, blocks, widths, entry.factors)
    return blocks


def _add_unread(
    method: IBPWF, entry: FactorTask, part: TensorFile, files: Mapping[str, Mapping[str, Tensor]]
) -> TensorFile:
    """Add a task that is read when it is first asked for; what is kept of its inputs, as unread."""
    device, none = method.device, TensorReader("", {})

    def on_device(tensors: Mapping[str, Tensor]) -> Tensors:
        return {key: tensor.to(device) for key, tensor in tensors.items()}

    part.content = entry.inference
    read = part.later(lambda: _task(method, entry, on_device(part))[0])
    task = LearnedTask.deferred(part, read, outputs=entry.outputs, turns=entry.turns)
    factors = files.get(f"factors-{entry.serial:04d}")
    if isinstance(factors, TensorFile) and entry.factors:
        factors.content, whole = entry.factors, factors.later(lambda: _blocks(method, entry, on_device(factors)))
        once = cache(whole)
        reads = {name: partial(lambda layer: once()[layer], name) for name in method.model.layers}
        blocks = {name: FactorBlock.deferred(factors, read) for name, read in reads.items()}
    else:
        blocks = {name: _block(method, name, none) for name in method.model.layers}
    method.model.add_stored(task, blocks)
    return part.derived(lambda tensors: TensorReader("", on_device(tensors)).take_all("inference/"))


def _calibration(method: IBPWF, entry: FactorTask, version: Version) -> Calibration | None:
    """Of a version that comes after those that the method has; one with limits has been made beside a router."""
    found = entry.calibration
    if found is None:
        return None
    wanted = len(RATES) if method.inference.has_class_scores else 0
    measured = wanted if method.inference.has_distances else 0
    for name, table, count in (("limits", found.limits, wanted), ("nearness", found.nearness, measured)):
        if len(table or ()) != count:
            raise CorruptModelError(
                f"task {entry.serial} has {len(table or ())} {name} in its calibration, not {count}"
            )
    remembered = len(GRID) if wanted else 0
    if found.losses is not None and len(found.losses) != remembered:
        raise CorruptModelError(
            f"task {entry.serial} has {len(found.losses)} losses in its calibration, not {remembered}"
        )
    before = method.versions.added(version)
    known = sum(len(one.classes) for one in before.newest if one.origin <= version.origin)
    forgotten = entry.serial + 1 - before.tasks  # or serials of other versions
    if wanted and not (known <= found.classes and (forgotten or known == found.classes)):
        raise CorruptModelError(
            f"task {entry.serial} was calibrated among {found.classes} classes, and there were {known}"
        )
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
            raise CorruptModelError(f"part '{name}' is not there")
        if name not in ("template", "features", "inference"):
            raise CorruptModelError(f"part '{name}' is there, and nothing reads it")


def _check_positions(
    part: str, blocks: Mapping[str, FactorBlock], widths: Mapping[str, int] | None, declared: int | None
) -> None:
    """Every factor has a place of its own among its task's sticks, if it is known how many these are."""
    for name, block in blocks.items():
        at, width = block.positions, 1 << 62 if widths is None else widths[name]
        inside = not len(at) or (int(at[0]) >= 0 and int(at[-1]) < width)
        if not inside or not bool((at[1:] > at[:-1]).all()):
            where = f"tensor 'factors/{name}/positions' of part '{part}'"
            raise CorruptModelError(f"{where} does not rise between 0 and {width}")
    found = sum(len(block.positions) for block in blocks.values())
    if declared is not None and found != declared:
        raise CorruptModelError(f"part '{part}' holds {found} factors instead of {declared}")


def _take_reference(method: IBPWF, tensors: Tensors) -> None:
    """What is kept of a forgotten first task: all that φ reads, and what else of it is there."""
    model, unread = method.model, tuple(method.features.unread())
    strength, selected, own = {}, {}, {}
    with TensorReader(REFERENCE, tensors) as reader:
        for name, (shape, dtype, numbers) in _own(method, 0).items():
            place = f"own/{name}"
            if not name.startswith(unread) or reader.has(place):
                if name.startswith(f"{model.head}.") and shape[:1] == (0,):  # a row per class of the forgotten task
                    shape = (reader.length(place), *shape[1:])
                own[name] = reader.take(place, shape, dtype, numbers)
        for name, dictionary in model.layers.items():
            place = f"posterior/{name}"
            if model.weights[name].parameter.startswith(unread) and not reader.has(f"{place}/selected"):
                continue
            width = reader.length(f"{place}/strength")
            strength[name] = reader.take(f"{place}/strength", (width,))
            selected[name] = reader.take(f"{place}/selected", (width,), torch.bool)
            dictionary.reference = _block(method, name, reader)
            _check_positions(REFERENCE, {name: dictionary.reference}, {name: width}, None)
    fixed = {name: tensor for name, tensor in model.fixed_tensors().items() if not name.startswith(unread)}
    model.reference = Reference(strength, selected, fixed | own)


def _block(method: IBPWF, layer: str, reader: TensorReader) -> FactorBlock:
    """The factors of a layer, none where the part has none."""
    dictionary, place = method.model.layers[layer], f"factors/{layer}"
    if reader.names(f"{place}/"):
        count = reader.length(f"{place}/positions")
        shapes: dict[str, Any] = {"a": (dictionary.inputs, count), "b": (count, dictionary.outputs)}
        a, b = (reader.take(f"{place}/{key}", shape) for key, shape in shapes.items())
        return FactorBlock(a, b, reader.take(f"{place}/positions", (count,), torch.int64))
    empty = next(iter(method.model.net.parameters())).new_empty
    return FactorBlock(empty(dictionary.inputs, 0), empty(0, dictionary.outputs), empty(0).long())


def check_opinions(method: IBPWF) -> None:
    """They are of the features that the router knows, and weighed where anything was."""
    for one in method.versions.all:
        weighed = one.calibration is not None and one.calibration.opinion is not None
        if one.opinion is None and not weighed:
            continue
        place, width = f"task-{one.serial:04d}", method.inference.phi_width()
        if one.opinion is None or (one.calibration is not None and not weighed):
            raise CorruptModelError(
                f"part '{place}' has an opinion, and its calibration none, or the other way round"
            )
        if len(one.opinion.weight) != width:
            raise CorruptModelError(
                f"the opinion in part '{place}' is of {len(one.opinion.weight)} features, not {width}"
            )


def check_inputs(method: IBPWF, shape: tuple[int, ...]) -> None:
    """Refuse inputs that the network and φ were not made for."""
    given, wanted = check_runs(method.model.net, shape), (1, method.model.head_width)
    if given != wanted:
        head = f"its head '{method.model.head}' has {wanted[1]} outputs"
        raise CorruptModelError(f"the network gives {list(given)} for one input, and {head}")
    for task in method.model.tasks:
        views_of(task.turns).of_images(method.image_shape).check(torch.zeros(1, *shape, dtype=torch.float32))
    known, width = method.inference.phi_width(), method.features.width_for(shape)
    if None not in (known, width) and known != width:
        raise CorruptModelError(f"task inference is of {known} features, and φ has {width}")


def check_read(method: IBPWF) -> None:
    """A factor that is read must be there: weights composed of the wrong ones would answer without a sign of it."""
    model = method.model
    for name, dictionary in model.layers.items():
        readers = [task.selected[name] for task in model.tasks]
        if model.reference is not None and name in model.reference.selected:
            readers.append(model.reference.selected[name])
        locked = [block.positions for block in dictionary.all_blocks]
        for selected in readers:
            if not bool(torch.isin(selected.nonzero().flatten(), torch.cat(locked)).all()):
                raise CorruptModelError(f"a task reads factors of layer '{name}' that are not there")
