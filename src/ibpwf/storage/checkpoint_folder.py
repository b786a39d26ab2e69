"""The folder of a task in progress, `.in-progress` in the model folder: what it belongs to, and its removal.

It is written whole or not at all, like the model folder. What training puts into it is in
`ibpwf.training.checkpoint`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ibpwf.errors import StoreError
from ibpwf.storage.files import encode_json, plain_errors
from ibpwf.storage.folder import MANIFEST, OpenedFolder, open_folder, save_folder
from ibpwf.storage.records import Record, read_record

IN_PROGRESS = ".in-progress"
KIND = "ibpwf-task-in-progress"
SCHEMA = 2

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


@dataclass(frozen=True)
class OpenedCheckpoint:
    """A checkpoint whose manifest has been read and checked; the tensors are read when asked for."""

    folder: OpenedFolder
    content: CheckpointContent


def open_checkpoint(model: str | Path) -> OpenedCheckpoint:
    """The checkpoint in a model folder."""
    folder = Path(model) / IN_PROGRESS
    try:
        opened = open_folder(folder, kind=KIND, newest=SCHEMA)
        return OpenedCheckpoint(opened, read_record(CheckpointContent, opened.content, str(folder / MANIFEST)))
    except StoreError as error:
        raise StoreError(str(error), remedy=ANEW) from None


def save_checkpoint(model: str | Path, content: CheckpointContent, files: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Write the checkpoint in a model folder; the one that was there stays until it is whole."""
    save_folder(Path(model) / IN_PROGRESS, kind=KIND, schema=SCHEMA, content=content.model_dump(), files=files)


def has_checkpoint(model: str | Path) -> bool:
    """Whether a model folder has a checkpoint, whole or damaged."""
    return os.path.lexists(Path(model) / IN_PROGRESS / MANIFEST)


def task_in_progress(model: str | Path) -> Identity | None:
    """The task that was broken off while it was learnt into a model folder, if its checkpoint can be read."""
    try:
        return open_checkpoint(model).content
    except StoreError:
        return None


def discard(model: str | Path) -> None:
    """Remove the checkpoint in a model folder: its manifest first, so that half a removal leaves none."""
    folder = Path(model) / IN_PROGRESS
    if not os.path.isdir(folder):
        return
    with plain_errors("remove", folder):
        for name in sorted(os.listdir(folder), key=lambda name: name != MANIFEST):
            os.unlink(folder / name)
        os.rmdir(folder)


def discard_finished(model: str | Path, serial: int) -> None:
    """Remove the checkpoint of a task older than `serial`, which the model holds finished, and what a process that
    was killed has left of one. For those who hold the folder's lock."""
    found = task_in_progress(model)
    if not has_checkpoint(model) or (found is not None and found.serial < serial):
        discard(model)


def digest_of(content: object, parts: Mapping[str, Mapping[str, Tensor]]) -> str:
    """One digest over JSON and tensors: names, types, shapes and bytes."""
    total = hashlib.sha256(encode_json(content, "content"))
    for part in sorted(parts):
        for name, tensor in sorted(parts[part].items()):
            plain = tensor.detach().cpu().contiguous()
            total.update(f"{part}/{name}/{plain.dtype}/{tuple(plain.shape)}/".encode())
            total.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
