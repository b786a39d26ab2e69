"""Reuters-21578, the 20 commonest topics in 10 tasks of two: what MiniLM-L6 makes of a text, and tasks beside it.

`ridge` is regression on the frozen features, over all topics; experts are small perceptrons on the same features
beside a router on a random layer of them.
"""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from record import percent
from safetensors.torch import load_file, save_file
from torch import Tensor

from ibpwf import Learner, Settings, backbones
from ibpwf.device import choose_device
from ibpwf.inference.router import Router
from ibpwf.lab.data.texts import load_reuters
from ibpwf.models import mlp

LENGTH = 128
TOPICS, OF_A_TASK = 20, 2
VALIDATION = 0.2
HIDDEN = 64
KEPT = Path("runs/reuters")
"""Where the features of all texts are kept: to make them takes minutes on a CPU."""

EXPERTS = Settings(
    heads="per-task",
    inference="router",
    init="anew",
    **{
        "inference.features": "random",
        "inference.features.width": 5_000,
        "inference.precision": "float32",
        "inference.expert_weight": 0.05,  # of experts without turns; chosen on held-out texts
    },
)


@dataclass(frozen=True)
class Texts:
    """Features N×384 of mean square 1, topics, and which texts are to learn from."""

    features: Tensor
    topics: Tensor
    learned: Tensor
    names: list[str]


def read_texts(device: torch.device) -> Texts:
    """All texts as numbers; what was made once is read again."""
    articles = load_reuters(TOPICS)
    digest = hashlib.sha256("\0".join(articles.texts).encode()).hexdigest()[:16]
    kept = KEPT / f"minilm-l6-{LENGTH}-{digest}.safetensors"
    if not kept.exists():
        encoder = backbones.load("minilm-l6").to(device)
        assert isinstance(encoder.input, backbones.TextInput)
        pieces = encoder.input(articles.texts, length=LENGTH)
        features = torch.empty(len(pieces), encoder.width)
        order = (pieces != 0).sum(1).argsort()  # a batch is as long as its longest
        with torch.no_grad():
            for rows in torch.split(order, 64):
                longest = int((pieces[rows] != 0).sum(1).max())
                features[rows] = encoder.features(pieces[rows, :longest].to(device)).cpu()
        KEPT.mkdir(parents=True, exist_ok=True)
        save_file({"features": features}, kept)
    features = load_file(kept)["features"]
    features *= features.shape[1] ** 0.5  # of length 1 as they come
    topics, learned = torch.tensor(articles.topics), torch.tensor(articles.learned)
    return Texts(features, topics, learned, articles.names)


def measure(seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    device = choose_device(asked.device)
    texts = read_texts(device)
    train, test = split(texts, seed, asked)
    settings = EXPERTS.replace(**asked.changes)
    made = made_learner(settings, seed, str(device))
    for task in range(TOPICS // OF_A_TASK):
        rows = train & (texts.topics // OF_A_TASK == task)
        made.learn(texts.features[rows].to(device), texts.topics[rows], task=task_name(texts, task))
    y = texts.topics[test]
    asked_rows = torch.split(texts.features[test].to(device), 256)
    inferred = torch.cat([made.predict(part).labels.cpu() for part in asked_rows])
    tasks = torch.split(y // OF_A_TASK, 256)
    both = zip(asked_rows, tasks, strict=True)
    given = torch.cat([made.predict(part, task=of.tolist()).labels.cpu() for part, of in both])
    ridge = ridge_answers(texts, train, test)
    found = {"class": inferred, "given": given, "ridge": ridge}
    return {
        **{name: percent(labels == y) for name, labels in found.items()},
        "above_ridge": percent(inferred == y) - percent(ridge == y),
        "tests": len(y),
        "settings": settings.to_json(),
    }


def task_name(texts: Texts, task: int) -> str:
    return "/".join(texts.names[OF_A_TASK * task : OF_A_TASK * (task + 1)])


def split(texts: Texts, seed: int, asked: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Which texts are learned from and measured with: those before and after April 7, 1987, or, to choose settings
    by, of the former alone a share of every topic drawn at random."""
    train, test = texts.learned.clone(), ~texts.learned
    if asked.validation:
        test = torch.zeros_like(train)
        for topic in range(TOPICS):
            rows = (texts.learned & (texts.topics == topic)).nonzero().flatten()
            order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1000 * seed + topic))
            test[rows[order[: max(1, int(VALIDATION * len(rows)))]]] = True
        train &= ~test
    if asked.examples is not None:
        for part in (train, test):
            for topic in range(TOPICS):
                part[(part & (texts.topics == topic)).nonzero().flatten()[asked.examples :]] = False
    return train, test


def made_learner(settings: Settings, seed: int, device: str) -> Learner:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Learner(mlp(384, (HIDDEN,), OF_A_TASK), settings, seed=seed, device=device)


def ridge_answers(texts: Texts, train: Tensor, test: Tensor) -> Tensor:
    """Of regression on the frozen features as they are, over all topics at once, with the ridge a router takes."""
    router = Router()
    router.learn(0, [(texts.features[train], texts.topics[train])], TOPICS)
    return router.class_scores(texts.features[test]).argmax(1)
