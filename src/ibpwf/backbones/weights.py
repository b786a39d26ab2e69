"""Weights and tokenizers out of bytes, without running anything that is in them."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ibpwf.errors import DataError, InputError


def read_weights(name: str, data: bytes | bytearray) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of a torch file that holds nothing else."""
    from safetensors.torch import load

    refused = f"{name} holds no plain weights: give a safetensors file, or a state dict saved with torch.save"
    try:
        if name.endswith(".safetensors"):
            return load(bytes(data))
        found: Any = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # both raise many kinds on damaged files
        told = next(iter(str(error).splitlines()), type(error).__name__)
        raise DataError(f"{refused} ({told[:160]}).") from error
    if not isinstance(found, Mapping) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise DataError(f"{refused}.")
    return dict(found)


def need_tokenizers(name: str) -> None:
    if importlib.util.find_spec("tokenizers") is None:
        raise InputError(f"backbone '{name}' reads words with tokenizers; run pip install 'ibpwf[text]'.")


def read_tokenizer(name: str, data: bytes | bytearray) -> Any:
    """The tokenizer that a tokenizer.json describes, which gives texts as long as they are."""
    need_tokenizers(name)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(bytes(data).decode())
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
