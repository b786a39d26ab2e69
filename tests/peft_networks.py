"""Small trained networks, learners beside them, and what real peft makes of an adapter's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ibpwf import Learner, Settings
from zoos import imported

SETTINGS = Settings(base="frozen", epochs=3, finetune_epochs=2, learning_rate=0.02, batch_size=16)


class Attentive(nn.Module):
    """Attention, whose projections peft cannot adapt one by one, and normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(2, 4)
        self.norm = nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.stem(x.unflatten(1, (4, 2))))
        h, _ = self.attention(h, h, h, need_weights=False)
        logits: Tensor = self.head(h.mean(1))
        return logits


class Nested(nn.Module):
    """A layer whose name is the end of another's."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 10)
        self.block = nn.ModuleDict({"fc": nn.Linear(10, 6), "norm": nn.LayerNorm(6)})
        self.norm = nn.LayerNorm(10)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.fc(x)).relu()
        logits: Tensor = self.head(self.block["norm"](self.block["fc"](h)).relu())
        return logits


class Reader(nn.Module):
    """A small random BERT that takes token ids as one tensor."""

    def __init__(self) -> None:
        super().__init__()
        transformers = imported("transformers")
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
        config = transformers.BertConfig(vocab_size=20, max_position_embeddings=8, num_labels=3, **sizes)
        self.bert = transformers.BertForSequenceClassification(config)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.bert(input_ids=x.long()).logits
        return logits


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, groups=3),  # peft's factors cannot have groups, nor dilation
        nn.Conv2d(6, 8, 3, stride=2, bias=False),
        nn.Conv2d(8, 8, 2, padding=1, dilation=2),
        nn.Flatten(),
        nn.Linear(32, 10),
        nn.ReLU(),
        nn.LayerNorm(10),
        nn.Linear(10, 3),
        nn.Identity(),  # its name, 11, ends as that of the batch normalization
    )


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3))


KINDS = {"mlp": perceptron, "conv": convolutions, "attentive": Attentive, "nested": Nested}


def trained(kind: str) -> nn.Module:
    """The same weights whenever it is asked for."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Reader() if kind == "bert" else KINDS[kind]()


def rows(kind: str, task: int = 0, classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(task)
    shape = {"conv": (1, 8, 8)}.get(kind, (8,))
    y = torch.arange(48) % classes
    if kind == "bert":
        return torch.randint(0, 20, (48, *shape), generator=generator).float(), y
    return torch.randn(48, *shape, generator=generator) + task, y


def taught(kind: str, net: nn.Module | None = None, tasks: int = 2, **changes: Any) -> Learner:
    """A learner with tasks '0', '1', ... beside a trained network."""
    learner = Learner(net or trained(kind), SETTINGS.replace(**changes), seed=1, device="cpu")
    for task in range(tasks):
        learner.learn(*rows(kind, task), task=str(task))
    return learner


def in_peft(net: nn.Module, folder: Path) -> nn.Module:
    """The network with the adapter of a folder, loaded by peft itself."""
    model: nn.Module = imported("peft").PeftModel.from_pretrained(net, str(folder))
    return model.eval()
