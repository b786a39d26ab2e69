"""The trained network that a folder's tasks are differences from, found by what a user can say of it in a word: a
backbone's name, a folder of transformers, a file of weights. Whether it is the right one is seen by its digest, when
the folder is read with it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ibpwf.backbones.backbone import Backbone
from ibpwf.backbones.catalog import BACKBONES
from ibpwf.backbones.loading import load as load_backbone
from ibpwf.backbones.local import part_of
from ibpwf.backbones.weights import read_weights
from ibpwf.errors import InputError
from ibpwf.learner.building import SPARE
from ibpwf.storage.files import plain_errors, read_bytes
from ibpwf.storage.folder import open_folder
from ibpwf.storage.model_folder import KIND, face_of, whole_folder
from ibpwf.storage.model_record import Configuration, manifest_of, read_content
from ibpwf.storage.network_json import build
from ibpwf.storage.records import read_record
from ibpwf.storage.tensor_checks import at_most

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def configuration_of(folder: str | Path) -> Configuration | None:
    """What a model folder says of its network, if its tasks are differences from one that it does not hold."""
    opened = open_folder(folder, kind=KIND)
    content = read_content(opened)
    with whole_folder(opened.path):
        if face_of(opened.content) is not None or "base" not in content.configuration:
            return None
        found = read_record(Configuration, content.configuration, f"{manifest_of(opened)} content.configuration")
    return None if found.base is None else found


def trained_network(given: str | Path, folder: str | Path) -> nn.Module:
    """The network that `given` names, as the folder's is built; with other weights, the folder will not take it."""
    about = configuration_of(folder)
    if about is None:
        raise InputError(f"base is '{given}', but {folder} holds its whole network; leave it out.")
    path = Path(given)
    if str(given) in BACKBONES:
        return _with_head(load_backbone(str(given)), about)
    if path.is_dir():
        return _of_transformers(path)
    if path.is_file():
        return _described(path, about)
    raise InputError(
        f"base is '{given}', which is no file, no folder and no backbone ({', '.join(BACKBONES)}); give one of these."
    )


def _with_head(backbone: Backbone, about: Configuration) -> nn.Module:
    """The backbone alone, or before one Linear layer: `nn.Sequential(backbone, nn.Linear(width, classes))`."""
    shapes = {name: shape for name, shape, _ in about.signature}
    if "1.weight" not in shapes:
        return backbone
    return nn.Sequential(
        backbone, nn.Linear(backbone.width, shapes["1.weight"][0], bias="1.bias" in shapes, dtype=torch.float32)
    )


def _of_transformers(folder: Path) -> nn.Module:
    """A network of a class that transformers itself has; what the folder may hold of code is not run."""
    try:
        transformers = importlib.import_module("transformers")
    except ImportError:
        raise InputError("a folder as base needs transformers; run pip install transformers.") from None
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise InputError(f"base is '{folder}', which has no {name}; give a folder that save_pretrained has made.")
    with plain_errors("read", folder / CONFIG):
        try:
            names = json.loads(read_bytes(folder / CONFIG)).get("architectures") or []
        except (ValueError, AttributeError):
            names = []
    kind = part_of(transformers, str(names[0])) if names else None
    if not (isinstance(kind, type) and issubclass(kind, part_of(transformers, "PreTrainedModel"))):
        raise InputError(f"{folder / CONFIG} names no network of transformers (architectures: {names}).")
    found: Any = kind
    net: nn.Module = found.from_pretrained(
        folder, local_files_only=True, use_safetensors=True, trust_remote_code=False
    )
    return net


def _described(file: Path, about: Configuration) -> nn.Module:
    """The network that the folder describes, with weights from a file."""
    if about.network is None:
        raise InputError(
            f"base is '{file}', but the network is of your own class, of which a file of weights says nothing; in "
            "Python: ibpwf.export(Learner.load(path, net=trained), task, 'peft')."
        )
    tensors = read_weights(file.name, read_bytes(file))
    with at_most(SPARE + 4 * sum(tensor.numel() for tensor in tensors.values())):
        net = build(about.network)
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        raise InputError(f"'{file}' holds other weights: {' '.join(str(error).split())[:200]}.") from None
    return net
