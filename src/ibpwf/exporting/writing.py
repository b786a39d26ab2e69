"""`export`: a task of a model, or all of it, as a file for another program."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ibpwf.errors import InputError, unknown
from ibpwf.exporting.formats import TOLERANCE, as_onnx, as_pt2, difference, need_packages
from ibpwf.exporting.mlflow import write_mlflow
from ibpwf.exporting.peft import adapter_files, peft_adapter, write_folder
from ibpwf.exporting.source import Base, Model, Source
from ibpwf.storage.files import encode_json, encode_tensors, plain_errors, read_bytes, write_bytes
from ibpwf.storage.leftovers import remove_leftovers
from ibpwf.torch_state import pinned

Format = Literal["onnx", "pt2", "safetensors", "peft", "mlflow"]
SCRIPT = "predict.py"
OURS = b'"""Prints a label and its probability for each row:'
"""How every version of it begins."""
TRACED_ROWS, CHECKED_ROWS = 4, 64


@dataclass(frozen=True)
class Exported:
    """What was written: `files`, the first of them the model; `difference` is how far its answers are from the
    model's own, relative to the largest (None if it could not be run here); `about` is its metadata."""

    files: tuple[Path, ...]
    difference: float | None
    about: dict[str, Any]


@pinned()
def export(
    model: Model,
    task: str | int | None = None,
    to: Format = "onnx",
    path: str | Path | None = None,
    *,
    base: Base | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write one task, by name or number, for use without ibpwf; without a task, all of them in one graph that infers
    the task.

    `model` is a `ContinualClassifier`, whose preprocessing and labels go along, a `Learner`, or a model folder. `to`
    is "onnx" (with a `predict.py` beside it), "pt2" (`torch.export`), "safetensors" (the network's state dict, with
    a JSON file that names the weights' SHA-256, and a `predict.py` that checks it), "peft" (a LoRA adapter of a task
    learned with base="frozen") or "mlflow" (a pyfunc folder, which needs ibpwf to run). Graphs give probabilities,
    and are compared with the model's own answers before they are written. `path` is a file, or a folder to put one
    in; for peft and mlflow, which are folders themselves, the folder to make. `base` is for a model folder whose
    tasks were learned with base="frozen": the trained network, a backbone's name, a folder of transformers, or a
    file of weights (safetensors) for a network that the folder itself describes.
    """
    if to not in get_args(Format):
        raise unknown("format", str(to), get_args(Format))
    if to == "onnx":
        need_packages()
    source = Source.of(model, base)
    number = source.task(task)
    if to == "peft":
        return _export_adapter(source, number, path, overwrite)
    if to == "mlflow":
        return _export_mlflow(source, number, path, overwrite)
    target = _target(source, number, to, path)
    if to == "safetensors":
        if number is None:
            raise InputError("safetensors holds the weights of one task; name it with --task, or choose onnx or pt2.")
        net = source.network(number)
        about = source.about(number, net)
        record = encode_json(about, "metadata").decode()
        data, found = encode_tensors(net.state_dict(), target.name, {"ibpwf": record}), None
        # Two files cannot be replaced in one step, so the notes name the weights that they belong to.
        about["weights"] = {"file": target.name, "sha256": hashlib.sha256(data).hexdigest()}
        beside = {
            target.with_suffix(".json"): encode_json(about, "metadata", 2) + b"\n",
            target.parent / SCRIPT: script(),
        }
        _check_free({target: data, **beside}, overwrite)
    else:
        beside = {target.parent / SCRIPT: script()} if to == "onnx" else {}
        _check_free({target: None, **beside}, overwrite)
        about = source.about(number)
        graph, x = source.graph(number), source.examples(TRACED_ROWS)
        data, run = as_onnx(graph, x, about, graph.outputs) if to == "onnx" else as_pt2(graph, x, about)
        found = None
        if run is not None:
            x = source.examples(CHECKED_ROWS)
            found = difference(run(x), source.answers(x, number))
            if not found <= TOLERANCE:
                raise InputError(
                    f"the exported {to} model answers otherwise than this one (by {found:.1g} of the largest "
                    f"probability, more than {TOLERANCE:g}), so it was not written; export with --to safetensors."
                )
    for file, content in (*beside.items(), (target, data)):
        write_bytes(file, content)
    for file in (*beside, target):
        remove_leftovers(file)
    return Exported((target, *beside), found, about)


def _export_adapter(source: Source, task: int | None, path: str | Path | None, overwrite: bool) -> Exported:
    if task is None:
        raise InputError("peft holds the adapter of one task; name the task, or choose onnx or pt2.")
    model = source.method.model
    adapter = peft_adapter(model, source.method.place(task))
    about = source.about(task, source.network(task))
    target = Path(path) if path is not None else Path(f"{_name(source, task)}.peft")
    if not target.absolute().parent.is_dir():
        raise InputError(f"'{target.parent}' is no folder to make '{target.name}' in; make it first.")
    files = adapter_files(adapter, model, about)
    with plain_errors("write", target):
        there = sorted(os.listdir(target)) if os.path.lexists(target) else []
    for name in there:
        if name not in files:
            raise InputError(f"'{target}' holds '{name}', which is no adapter's file; give a folder to make.")
    if there:
        _check_free({target / name: content for name, content in files.items()}, overwrite)
    write_folder(target, files)
    return Exported(tuple(target / name for name in files), None, about)


def _export_mlflow(source: Source, task: int | None, path: str | Path | None, overwrite: bool) -> Exported:
    if task is not None:
        raise InputError("mlflow holds the whole model, which infers the task; leave the task out.")
    target = Path(path) if path is not None else Path(f"{_name(source, None)}.mlflow")
    return Exported(write_mlflow(source, target, overwrite=overwrite), None, source.about(None))


def script() -> bytes:
    """A short program that answers a table with an exported ONNX model, or checks exported weights."""
    return read_bytes(Path(__file__).with_name(SCRIPT))


def _target(source: Source, task: int | None, to: str, path: str | Path | None) -> Path:
    """The file to write: as asked, or named after the model and the task."""
    target = Path(path) if path is not None else Path()
    if path is None or target.is_dir():
        target = target / f"{_name(source, task)}.{to}"
    if target.suffix != f".{to}":
        raise InputError(f"path is '{target}'; a file of this format ends in .{to}.")
    if not target.parent.is_dir():
        raise InputError(f"'{target.parent}' is no folder to write '{target.name}' to; make it first.")
    return target


def _name(source: Source, task: int | None) -> str:
    of = "model" if source.folder is None else source.folder.resolve().name
    which = "" if task is None else "-" + re.sub(r"[^\w.]+", "-", source.learner.info(task).name).strip("-")
    return of + which


def _check_free(files: dict[Path, bytes | None], overwrite: bool) -> None:
    """Refuse to write over anything but the same content, unless asked to."""
    for file, content in files.items():
        with plain_errors("write", file):
            there = os.path.lexists(file)
        if there and not overwrite and (content is None or not file.is_file() or read_bytes(file) != content):
            raise InputError(f"'{file}' exists already; give --overwrite to replace it, or another path with -o.")
        if there and file.name == SCRIPT and not read_bytes(file).startswith(OURS):
            raise InputError(f"'{file}' is a program of your own, which would be lost; give another folder with -o.")
