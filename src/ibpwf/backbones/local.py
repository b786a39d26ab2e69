"""Networks of timm and transformers as backbones, with weights from a path of the user's own."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.backbones.backbone import PIXEL_LEVELS, Backbone, ImageInput, StagedNetwork, TextInput
from ibpwf.backbones.resizing import Resize
from ibpwf.backbones.weights import read_tokenizer, read_weights
from ibpwf.errors import DataError, InputError
from ibpwf.packing import vocabulary_of

WEIGHTS, TOKENIZER, PIXELS = "model.safetensors", "tokenizer.json", "preprocessor_config.json"
PIL_BICUBIC = 3
"""Pillow's number of that way to resize, as transformers writes it."""


def load_timm(name: str, weights: str | os.PathLike[str]) -> Backbone:
    """timm's network of that name with the weights in a file; it has one depth, its pooled features."""
    timm = _package("timm", "zoo")
    try:
        net = timm.create_model(name, pretrained=False, num_classes=0)
    except RuntimeError as error:
        raise InputError(f"timm has no network '{name}' ({error}); see timm.list_models().") from None
    data, recipe = _bytes(Path(weights)), timm.data.resolve_data_config(model=net)
    state = read_weights(Path(weights).name, data)
    classifier = net.pretrained_cfg["classifier"]
    heads = tuple(f"{head}." for head in ([classifier] if isinstance(classifier, str) else classifier))
    _take(net, {key: tensor for key, tensor in state.items() if not key.startswith(heads)}, f"timm's '{name}'")
    mean, std = (tuple(PIXEL_LEVELS * value for value in recipe[part]) for part in ("mean", "std"))
    takes = ImageInput(recipe["input_size"][-1], mean, std, _resize(recipe.get("interpolation") == "bicubic"))
    return Backbone(f"timm:{name}", hashlib.sha256(data).hexdigest(), _Pooled(net), takes, (net.num_features,))


def load_transformers(folder: str | os.PathLike[str]) -> Backbone:
    """The network in a folder of transformers, `config.json` and `model.safetensors`; for text also `tokenizer.json`.
    Each of its layers is a depth: the mean over a text's word pieces, or over an image's patches. What the folder may
    hold of code is not run."""
    transformers = _package("transformers", "")
    where = Path(folder)
    data = _bytes(where / WEIGHTS)
    net, told = part_of(transformers, "AutoModel").from_pretrained(
        where, local_files_only=True, use_safetensors=True, trust_remote_code=False, output_loading_info=True
    )
    config = net.config
    missing = sorted(name for name in told["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise DataError(f"{where / WEIGHTS} has no '{missing[0]}' ({len(missing)} tensors are missing).")
    takes: ImageInput | TextInput
    if hasattr(config, "image_size"):
        recipe = json.loads(_bytes(where / PIXELS)) if (where / PIXELS).is_file() else {}
        given = [recipe.get(name, (0.5, 0.5, 0.5)) for name in ("image_mean", "image_std")]
        mean, std = (tuple(PIXEL_LEVELS * value for value in values) for values in given)
        takes = ImageInput(config.image_size, mean, std, _resize(recipe.get("resample") == PIL_BICUBIC))
    else:
        if not (where / TOKENIZER).is_file():
            raise DataError(
                f"{where} has no {TOKENIZER}, without which no words can be read; save the tokenizer there."
            )
        if getattr(config, "pad_token_id", None) is None:
            raise DataError(
                f"{where / 'config.json'} has no pad_token_id; say there what stands behind a text's end."
            )
        longest = config.max_position_embeddings - 2  # some count positions from 2
        takes = TextInput(read_tokenizer(where.name, _bytes(where / TOKENIZER)), longest, config.pad_token_id)
    widths = (config.hidden_size,) * config.num_hidden_layers
    name, digest = f"transformers:{config.model_type}", hashlib.sha256(data).hexdigest()
    padding = takes.padding if isinstance(takes, TextInput) else None
    return Backbone(name, digest, _HiddenStates(net, padding), takes, widths)


class _Pooled(StagedNetwork):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def stages(self, x: Tensor) -> Iterator[Tensor]:
        yield self.net(x)


class _HiddenStates(StagedNetwork):
    """`padding` is what stands behind a text's end; None: it reads images."""

    def __init__(self, net: nn.Module, padding: int | None) -> None:
        super().__init__()
        self.net, self.padding = net, padding
        self.vocabulary = None if padding is None else vocabulary_of(net)

    def stages(self, x: Tensor) -> Iterator[Tensor]:
        if self.padding is None:
            yield from (out.mean(1) for out in self.net(pixel_values=x, output_hidden_states=True).hidden_states[1:])
            return
        ids = x.long()
        mask = (ids != self.padding).long()
        hidden = self.net(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
        share = F.normalize(mask.float(), p=1, dim=1).unsqueeze(2)
        yield from ((out * share).sum(1) for out in hidden[1:])


def _resize(bicubic: bool) -> Resize:
    return "bicubic" if bicubic else "bilinear"


def _package(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        what = f"'ibpwf[{extra}]'" if extra else name
        raise InputError(f"this needs {name}; run pip install {what}.") from None


def part_of(transformers: Any, name: str) -> Any:
    """What transformers calls so, which it imports when it is asked for; None of what it does not have."""
    try:
        return getattr(transformers, name, None)
    except (ImportError, RuntimeError) as error:
        told = " ".join(str(error).split())[:200]
        raise InputError(
            f"transformers cannot import {name} here ({told}); mend what it needs, such as a torchvision that does "
            "not fit this torch."
        ) from None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}; give a path with the weights.") from None


def _take(net: nn.Module, state: dict[str, Tensor], what: str) -> None:
    try:
        net.load_state_dict(state)
    except RuntimeError as error:
        told = " ".join(str(error).split())[:200]
        raise DataError(f"these weights are not those of {what}: {told}.") from None
