"""LoRA as peft does it: by peft where it is installed, else its two products written out.

    y = W_0 x + (α/r) B A x

A is r×in and starts as `nn.Linear` does, B is 0; of a convolution A has its kernel and stride, and B is 1×1.
"""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.metadata
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ibpwf.factors.weights import replace_module


class LoraLayer(nn.Module):
    """A Linear layer or convolution with an adapter beside it."""

    def __init__(self, base: nn.Module, rank: int) -> None:
        super().__init__()
        self.base = base
        self.lora_a: nn.Module
        self.lora_b: nn.Module
        if isinstance(base, nn.Conv2d):
            kept = {"kernel_size": base.kernel_size, "stride": base.stride, "padding": base.padding}
            self.lora_a = nn.Conv2d(base.in_channels, rank, bias=False, **kept)  # type: ignore[arg-type]
            self.lora_b = nn.Conv2d(rank, base.out_channels, 1, bias=False)
        else:
            assert isinstance(base, nn.Linear)
            self.lora_a = nn.Linear(base.in_features, rank, bias=False)
            self.lora_b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.kaiming_uniform_(self.lora_a.get_parameter("weight"), a=math.sqrt(5))
        nn.init.zeros_(self.lora_b.get_parameter("weight"))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.base(x)
        return result + self.lora_b(self.lora_a(x))


def made_by() -> str:
    """Whose LoRA it is."""
    return f"peft {importlib.metadata.version('peft')}" if has_peft() else "written out as peft does it"


@functools.cache
def has_peft() -> bool:
    """Whether peft can be imported, and with it transformers and all they import."""
    try:
        importlib.import_module("peft")
    except (ImportError, RuntimeError):
        return False
    return True


def with_lora(net: nn.Module, ranks: Mapping[str, int], head: str) -> nn.Module:
    """A copy of a network whose layers of these names have adapters of these ranks (scaling 1), to train with its
    head; all else is as frozen as it is."""
    net = copy.deepcopy(net)
    if has_peft():
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(
            r=1,
            lora_alpha=1,
            rank_pattern={f"^{name}$": rank for name, rank in ranks.items()},
            alpha_pattern={f"^{name}$": rank for name, rank in ranks.items()},
            target_modules=list(ranks),
            modules_to_save=[head],
            lora_dropout=0.0,
        )
        adapted: nn.Module = get_peft_model(net, config)  # type: ignore[arg-type]
        return adapted
    for name, rank in ranks.items():
        replace_module(net, name, LoraLayer(net.get_submodule(name).requires_grad_(False), rank))
    net.get_submodule(head).requires_grad_(True)
    return net


def recorded(net: nn.Module, x: Tensor) -> nn.Module:
    """A network in training whose passes over batches like x are CUDA graphs: the same numbers in less time. Under
    autocast it must not remember rounded weights (`cache_enabled=False`)."""
    if not x.is_cuda:
        return net
    before = [buffer.clone() for buffer in net.buffers()]  # recording is a few passes, which normalizations count
    graphs: nn.Module = torch.cuda.make_graphed_callables(net, (x,))
    for buffer, value in zip(net.buffers(), before, strict=True):
        buffer.copy_(value)
    return graphs


def trained_numbers(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad)


def adapter_size(net: nn.Module, ranks: Mapping[str, int]) -> int:
    """Numbers of adapters of these ranks, without a head."""
    shapes = ((net.get_parameter(f"{name}.weight"), rank) for name, rank in ranks.items())
    return sum(rank * (weight.shape[0] + weight[0].numel()) for weight, rank in shapes)


class Batches:
    """Mini-batches of rows on a device, the same for whoever asks with the same seed."""

    def __init__(self, x: Tensor, y: Tensor, size: int, seed: int) -> None:
        self.x, self.y, self.size = x, y, size
        self._generator = torch.Generator().manual_seed(seed)

    def epoch(self) -> list[Tensor]:
        count = len(self.y) // self.size
        order = torch.randperm(len(self.y), generator=self._generator)[: count * self.size]
        return list(order.view(count, self.size).to(self.x.device))
