"""Sizes and random inputs of small networks of transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ibpwf import Learner, Settings

NETWORKS = ("bert", "roberta", "gpt2", "llama", "vit", "clip")
TEXTS = NETWORKS[:4]
WORDS, LENGTH, ROWS, LABELS = 60, 7, 16, 3
SETTINGS = Settings(epochs=1, finetune_epochs=1, batch_size=8, alpha=3.0)

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
}
TEXT = SIZES | {"vocab_size": WORDS, "max_position_embeddings": 40, "num_labels": LABELS}
IMAGE = SIZES | {"image_size": 8, "patch_size": 4}
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForSequenceClassification", TEXT),
    "roberta": ("RobertaForSequenceClassification", TEXT),
    "gpt2": (
        "GPT2ForSequenceClassification",
        {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 40, "num_labels": LABELS}
        | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1},
    ),
    "llama": ("LlamaForSequenceClassification", TEXT | {"num_key_value_heads": 2, "pad_token_id": 0}),
    "vit": ("ViTForImageClassification", IMAGE | {"num_labels": LABELS}),
    "clip": ("CLIPForImageClassification", {"vision_config": IMAGE, "num_labels": LABELS}),
}


def batch(name: str, seed: int = 0, length: int = LENGTH) -> dict[str, Tensor]:
    """Named inputs of random examples; texts of several lengths, filled up on the right."""
    generator = torch.Generator().manual_seed(seed)
    if name not in TEXTS:
        return {"pixel_values": torch.randn(ROWS, 3, 8, 8, generator=generator)}
    ids = torch.randint(2, WORDS, (ROWS, length), generator=generator)
    mask = (torch.arange(length) < torch.randint(2, length + 1, (ROWS, 1), generator=generator)).long()
    padding = 1 if name == "roberta" else 0
    return {"input_ids": ids.masked_fill(mask == 0, padding), "attention_mask": mask}


def labels(seed: int, classes: int = 2) -> Tensor:
    return torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed)) % classes


@dataclass(frozen=True)
class Taught:
    """A learner of three tasks, and each task's logits when it had just been learnt."""

    learner: Learner
    logits: dict[str, Tensor]
