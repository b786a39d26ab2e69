"""A task's training beside LoRA of the same mean rank, on the same network and as many batches, in one run."""

from __future__ import annotations

import argparse
import gc
import time
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf import Learner, Settings, backbones, factorize
from ibpwf.backbones.sentence_encoder import EncoderSize, SentenceEncoder
from ibpwf.device import choose_device
from ibpwf.training.callbacks import Callback, EpochEnd
from trained.images import BACKBONE, factor_layers
from trained.lora_layers import Batches, made_by, trained_numbers, with_lora

SETTINGS = Settings(
    base="frozen",
    heads="per-task",
    epochs=4,
    finetune_epochs=2,
    batch_size=64,
    learning_rate=1e-3,
    precision="bfloat16",
    features="random",
    random_features=16,
)
LENGTH, STEPS = 128, 60
WARM_EPOCHS = 1
"""In the first epoch of a phase a step is recorded; it is not counted."""


class EncodedText(nn.Module):
    """A sentence encoder with random weights and a head: a BERT of 12 layers, 384 wide."""

    def __init__(self, size: EncoderSize) -> None:
        super().__init__()
        self.encoder, self.head = SentenceEncoder(size), nn.Linear(size.width, 4)

    def forward(self, x: Tensor) -> Tensor:
        *_, last = self.encoder.stages(x)
        out: Tensor = self.head(last)
        return out


def encoder(small: bool) -> tuple[nn.Module, list[str], Tensor]:
    size = EncoderSize(layers=2 if small else 12)
    net = EncodedText(size)
    names = [name for name, module in net.named_modules() if isinstance(module, nn.Linear) and name != "head"]
    return net, names, torch.randint(1, size.vocabulary, (1, LENGTH)).float()


def convolutions(small: bool) -> tuple[nn.Module, list[str], Tensor]:
    net = backbones.image_classifier(backbones.load(BACKBONE), 4, size=64 if small else 128)
    return net, factor_layers(net, "pointwise"), torch.rand(1, 3, 32, 32)


NETWORKS = {"encoder": encoder, "efficientnet-lite0": convolutions}


class Epochs(Callback):
    """Seconds of every epoch, by phase; an epoch ends when the device has done all its steps."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {"elbo": [], "finetune": []}
        self._last = time.perf_counter()

    def epoch_end(self, epoch: EpochEnd) -> None:
        now = time.perf_counter()
        self.seconds[epoch.phase].append(now - self._last)
        self._last = now


def measure(seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    settings = SETTINGS.replace(**asked.changes)
    device = choose_device(asked.device)
    found: dict[str, Any] = {"lora_by": made_by(), "settings": settings.to_json()}
    for name in asked.networks:
        torch.manual_seed(seed)
        net, layers, example = NETWORKS[name](asked.examples is not None)
        net.requires_grad_(False)
        rows = asked.examples or STEPS * int(settings.batch_size)
        x = example.expand(rows, *example.shape[1:]).clone().to(device)
        x += torch.randint(0, 2, x.shape, device=device) if name == "encoder" else torch.rand_like(x)
        y = torch.arange(rows, device=device) % 4
        ours = of_factors(net, layers, settings, (x, y), seed)
        ranks = dict.fromkeys(layers, max(1, round(ours["mean_rank"])))
        theirs = of_lora(net, ranks, settings, (x, y), seed)
        both = {"factors": ours, "lora": theirs, "time_ratio": ours["seconds"] / theirs["seconds"]}
        if device.type == "cuda":
            both["memory_ratio"] = ours["peak_bytes"] / theirs["peak_bytes"]
        found[name] = both
        found |= {f"{name} {key}": value for key, value in both.items() if isinstance(value, float)}
        print(name, {key: value for key, value in both.items() if isinstance(value, float)}, flush=True)
    return found


def of_factors(
    net: nn.Module, layers: list[str], settings: Settings, rows: tuple[Tensor, Tensor], seed: int
) -> dict[str, Any]:
    """A task of ours: seconds of a step, over both phases as they are long, and the most memory that was in use."""
    x, y = rows
    model = factorize(net, include=layers, **settings.factorization)
    learner, epochs = Learner(model, settings, seed=seed, device=x.device), Epochs()
    base = clear(x)
    learner.learn(x, y, callbacks=[epochs])
    steps = len(y) // int(settings.batch_size)
    phases = {name: settled(seconds, steps) for name, seconds in epochs.seconds.items() if seconds}
    weights = {name: len(seconds) for name, seconds in epochs.seconds.items()}
    mean = sum(phases[name] * weights[name] for name in phases) / sum(weights.values())
    use = learner.model.use(0)
    return {
        "seconds": mean,
        "by_phase": phases,
        "mean_rank": sum(each.active for each in use.values()) / len(use),
        "ranks": {name: each.active for name, each in use.items()},
        "peak_bytes": peak(x),
        "bytes_before": base,
    }


def of_lora(
    net: nn.Module, ranks: dict[str, int], settings: Settings, rows: tuple[Tensor, Tensor], seed: int
) -> dict[str, Any]:
    """The same length of training with LoRA, as users of peft write it: autocast, Adam, a loop."""
    x, y = rows
    adapted = with_lora(net, ranks, "head").to(x.device).train()
    moved = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    base = clear(x)
    optimizer = torch.optim.Adam(moved, lr=float(settings.learning_rate), fused=True)
    batches, seconds = Batches(x, y, int(settings.batch_size), seed), []
    rounded = x.is_cuda and settings.precision == "bfloat16"
    for _ in range(int(settings.epochs) + int(settings.finetune_epochs)):
        started = time.perf_counter()
        for order in batches.epoch():
            given = x.index_select(0, order)
            if given.is_cuda and given.dim() == 4:
                given = given.contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16) if rounded else nullcontext():
                loss = F.cross_entropy(adapted(given), y.index_select(0, order))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if x.is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    steps = len(y) // int(settings.batch_size)
    return {
        "seconds": settled(seconds, steps),
        "rank": next(iter(ranks.values())),
        "trained": trained_numbers(adapted),
        "peak_bytes": peak(x),
        "bytes_before": base,
    }


def settled(seconds: list[float], steps: int) -> float:
    """Seconds of a step, once everything is warm; the quickest epoch, which nothing else disturbed."""
    return min(seconds[WARM_EPOCHS:] or seconds) / steps


def clear(x: Tensor) -> int | None:
    """Let go of what earlier trainings left; how much memory is in use before the next."""
    gc.collect()
    if not x.is_cuda:
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def peak(x: Tensor) -> int | None:
    return torch.cuda.max_memory_allocated() if x.is_cuda else None
