"""A sentence encoder: BERT (Devlin et al., 2019) of six narrow layers (MiniLM, Wang et al., 2020) that was trained to
put sentences of like meaning close together (Reimers and Gurevych, 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.backbones.backbone import StagedNetwork


@dataclass(frozen=True)
class EncoderSize:
    vocabulary: int = 30_522
    positions: int = 512
    width: int = 384
    inner: int = 1536
    heads: int = 12
    layers: int = 6
    epsilon: float = 1e-12


MINILM_L6 = EncoderSize()


class EncoderLayer(nn.Module):
    """Attention, then a perceptron at each place; each is added to what came in, and normalized."""

    def __init__(self, size: EncoderSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.query, self.key, self.value, self.attended = (
            nn.Linear(size.width, size.width, dtype=torch.float32) for _ in range(4)
        )
        self.attention_norm = nn.LayerNorm(size.width, eps=size.epsilon, dtype=torch.float32)
        self.inner, self.outer = (
            nn.Linear(size.width, size.inner, dtype=torch.float32),
            nn.Linear(size.inner, size.width, dtype=torch.float32),
        )
        self.output_norm = nn.LayerNorm(size.width, eps=size.epsilon, dtype=torch.float32)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            part(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
        x = self.attention_norm(x + self.attended(seen.transpose(1, 2).flatten(2)))
        out: Tensor = self.output_norm(x + self.outer(F.gelu(self.inner(x))))
        return out


class SentenceEncoder(StagedNetwork):
    """Each depth gives the mean over a text's word pieces; the deepest one's has length 1."""

    def __init__(self, size: EncoderSize = MINILM_L6) -> None:
        super().__init__()
        self.vocabulary = size.vocabulary
        self.words = nn.Embedding(size.vocabulary, size.width, dtype=torch.float32)
        self.positions = nn.Embedding(size.positions, size.width, dtype=torch.float32)
        self.segments = nn.Embedding(2, size.width, dtype=torch.float32)
        self.norm = nn.LayerNorm(size.width, eps=size.epsilon, dtype=torch.float32)
        self.layers = nn.ModuleList(EncoderLayer(size) for _ in range(size.layers))

    def stages(self, x: Tensor) -> Iterator[Tensor]:
        """x: numbers of word pieces N×L, 0 behind a text's end."""
        ids = x.long()
        mask = ids != 0
        places = torch.arange(ids.shape[1], device=ids.device)
        out = self.norm(self.words(ids) + self.positions(places) + self.segments.weight[0])
        for number, layer in enumerate(self.layers, 1):
            out = layer(out, mask)
            mean = (out * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True)
            yield F.normalize(mean, dim=1) if number == len(self.layers) else mean


_NAMES = {
    "embeddings.word_embeddings": "words",
    "embeddings.position_embeddings": "positions",
    "embeddings.token_type_embeddings": "segments",
    "embeddings.LayerNorm": "norm",
    "encoder.layer.": "layers.",
    "attention.self.": "",
    "attention.output.dense": "attended",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "inner",
    "output.dense": "outer",
    "output.LayerNorm": "output_norm",
}
"""Parts of the names that published weights have, and ours. The order counts: `output.dense` ends a longer one."""

_UNREAD = ("embeddings.position_ids", "pooler.")


def with_weights(weights: Mapping[str, Tensor], size: EncoderSize = MINILM_L6) -> SentenceEncoder:
    """The encoder with the weights of a `BertModel`."""
    state = {}
    for name, tensor in weights.items():
        if not name.startswith(_UNREAD):
            for theirs, ours in _NAMES.items():
                name = name.replace(theirs, ours)
            state[name] = tensor
    net = SentenceEncoder(size)
    net.load_state_dict(state)
    return net
