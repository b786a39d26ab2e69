"""The folder of a task in progress, `.in-progress` in the model folder: what it belongs to, and its removal.

It is written whole or not at all, like the model folder. What training puts into it is in
`ibpwf.training.checkpoint`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ibpwf.errors import StoreError
from ibpwf.storage.directory import FOLDER, Directory
from ibpwf.storage.files import encode_json
from ibpwf.storage.folder import MANIFEST, OpenedFolder, open_folder, own_files, sweep, write_folder
from ibpwf.storage.records import Record, read_record

IN_PROGRESS = ".in-progress"
KIND = "ibpwf-task-in-progress"

ANEW = "To start the task anew, leave resume out."


class Identity(Record):
    """What a checkpoint belongs to. `data` and `model` are digests."""

    task: str
    serial: int
    data: str
    model: str


class CheckpointContent(Identity):
    """The JSON of a checkpoint: whose it is, the method's own state, and how far training had come."""

    method: dict[str, Any]
    phase: int
    epoch: int
    done: int
    best: dict[str, Any] | None = None


@dataclass(frozen=True)
class OpenedCheckpoint:
    """A checkpoint whose manifest has been read and checked; the tensors are read when asked for."""

    folder: OpenedFolder
    content: CheckpointContent


def open_checkpoint(model: str | Path) -> OpenedCheckpoint:
    """The checkpoint in a model folder."""
    folder = Path(model) / IN_PROGRESS
    try:
        opened = open_folder(folder, kind=KIND, within=model)
        return OpenedCheckpoint(opened, read_record(CheckpointContent, opened.content, str(folder / MANIFEST)))
    except StoreError as error:
        raise StoreError(str(error), remedy=ANEW) from None


def save_checkpoint(model: str | Path, content: CheckpointContent, files: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Write the checkpoint in a model folder, whose lock the caller holds; the one that was there stays until it is
    whole."""
    with Directory.opened(model) as outer, outer.inside(IN_PROGRESS, make=True) as folder:
        write_folder(folder, kind=KIND, content=content.model_dump(), files=files)


def check_place(model: str | Path) -> None:
    """Refuse a model folder where something else stands in the place of a checkpoint."""
    with Directory.opened(model) as outer:
        outer.require(IN_PROGRESS, FOLDER)


def has_checkpoint(model: str | Path) -> bool:
    """Whether a model folder has a checkpoint, whole or damaged."""
    return os.path.lexists(Path(model) / IN_PROGRESS / MANIFEST)


def task_in_progress(model: str | Path) -> CheckpointContent | None:
    """The task that was broken off while it was learnt into a model folder, if its checkpoint can be read."""
    try:
        return open_checkpoint(model).content
    except StoreError:
        return None


def discard(model: str | Path) -> None:
    """Remove the checkpoint in a model folder: its manifest first, so that half a removal leaves none. What is not
    ours stays, and is named in a warning."""
    if not os.path.isdir(model):
        return
    with Directory.opened(model) as outer:
        if outer.kind(IN_PROGRESS) is None:
            return
        with outer.inside(IN_PROGRESS) as folder:
            for name in own_files(folder):
                folder.remove(name)
            folder.sync()
            others = folder.names()
        if not others:
            outer.remove_folder(IN_PROGRESS)
            return
    where = str(Path(model) / IN_PROGRESS)
    warnings.warn(f"{where!r} holds {others[0]!r}, which is not ours and was left there; move it away", stacklevel=2)


def discard_finished(model: str | Path, serial: int) -> None:
    """Remove the checkpoint of a task older than `serial`, which the model holds finished, and what a process that
    was killed has left of one. For those who hold the folder's lock."""
    found = task_in_progress(model)
    if not has_checkpoint(model) or (found is not None and found.serial < serial):
        discard(model)
    else:
        with contextlib.suppress(StoreError), Directory.opened(model) as outer, outer.inside(IN_PROGRESS) as folder:
            sweep(folder)


def digest_of(content: object, parts: Mapping[str, Mapping[str, Tensor]]) -> str:
    """One digest over JSON and tensors: names, types, shapes and bytes."""
    total = hashlib.sha256(encode_json(content, "content"))
    for part in sorted(parts):
        for name, tensor in sorted(parts[part].items()):
            plain = tensor.detach().cpu().contiguous()
            total.update(f"{part}/{name}/{plain.dtype}/{tuple(plain.shape)}/".encode())
            total.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
