"""The default dtype of torch is the whole process's, and the library neither changes nor reads it.

Whatever it is, and however other threads set it meanwhile, a model learns and answers to the same bits. Only networks
and parts of the user's own are called with float32 as the default.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import ibpwf
from ibpwf import ContinualClassifier, Learner, Settings, torch_state
from ibpwf.likelihoods import Categorical

PACKAGE = str(Path(ibpwf.__file__).parent)
MARK = torch.float16  # in which the library computes nothing


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)
    torch.set_default_dtype(torch.float32)


def rows(task: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(task)
    y = torch.arange(40) % 2
    return torch.randn(40, 4, generator=generator, dtype=torch.float32) + 2 * y.unsqueeze(1) - 2 * task, 2 * task + y


def tables(task: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = rows(task)
    return x.numpy().astype(float), y.numpy()


def learner(**settings: Any) -> Learner:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8, dtype=torch.float32), nn.ReLU(), nn.Linear(8, 4, dtype=torch.float32))
    chosen = {"epochs": 2, "finetune_epochs": 1, "batch_size": 10, "alpha": 4, "heads": "per-task", **settings}
    return Learner(net, Settings(**chosen), device="cpu")


ROUTER = {
    "inference": "router",
    "inference.features": "random",
    "inference.features.width": 8,
    "validation_fraction": 0.3,
}
LEARNERS: dict[str, dict[str, Any]] = {
    "gaussian": {},
    "class-gaussian": {"inference.per": "class", "accelerate": False},
    "shared-gaussian": {
        "inference": "shared-gaussian",
        "inference.features": "random",
        "inference.features.width": 8,
    },
    "router": {**ROUTER, "inference.keep_sums_per_task": True},
    "pretrained": {"init": "pretrained"},
}


def lives_as_a_learner(folder: Path, **settings: Any) -> list[Tensor]:
    made = learner(**settings)
    for task in range(2):
        made.learn(*rows(task), task=f"t{task}")
    made.update(*rows(0), task="t0", keep="always")
    made.forget("t1")
    made.learn(*rows(2), task="t2")
    made.save(folder / "model")
    x, found = rows(0)[0], []
    for model in (made, Learner.load(folder / "model", device="cpu")):
        for asked in (model.predict(x), model.predict(x, marginal=True), model.predict(x[:4], posterior_samples=3)):
            found += [asked.probabilities, asked.task, asked.entropy]
        found += [model.logits(x, "t0"), *model.merge("t2").state_dict().values()]
    return found


CLASSIFIERS: dict[str, dict[str, Any]] = {
    "plain": {"hidden": (8,), "epochs": 2, "settings": {"inference.features.width": 8}},
    "table": {"recipe": "table", "epochs": 2},
    "router": {"hidden": (8,), "epochs": 2, "settings": {k: v for k, v in ROUTER.items() if k != "features"}},
    "images": {"epochs": 1},
    "stream": {"hidden": (8,), "epochs": 2, "settings": {"inference.features.width": 8}, "stream": True},
}


def lives_as_a_classifier(folder: Path, kind: str) -> list[np.ndarray]:
    made = ContinualClassifier(**CLASSIFIERS[kind], device="cpu")
    for task in range(2):
        x, y = tables(task)
        x = np.kron(x.reshape(40, 2, 2), np.ones((5, 5))) if kind == "images" else x
        if kind == "stream":
            made.partial_fit(x, y)
        else:
            made.learn(x, y, task=f"t{task}")
    if kind == "stream":
        made.finish()
    made.save(folder / "model")
    loaded = ContinualClassifier.load(folder / "model", device="cpu")
    return [one for c in (made, loaded) for one in (c.predict_proba(x), c.novelty(x), c.uncertainty(x))]


LIVES: dict[str, Callable[[Path], list[Any]]] = {
    **{f"learner {name}": lambda path, s=s: lives_as_a_learner(path, **s) for name, s in LEARNERS.items()},
    **{f"classifier {name}": lambda path, name=name: lives_as_a_classifier(path, name) for name in CLASSIFIERS},
}


class Marked(TorchFunctionMode):
    """Where the library makes tensors of the default dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.places: set[tuple[str, int | None, str | None]] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for one in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(one, Tensor) and one.dtype == MARK:
                ours = [frame for frame in traceback.extract_stack() if frame.filename.startswith(PACKAGE)]
                if not any(frame.name == "_build_leaf" for frame in ours):  # is converted at once
                    self.places.update((frame.filename, frame.lineno, frame.line) for frame in ours[-1:])
        return found


@pytest.mark.parametrize("kind", LIVES)
def test_no_tensor_of_the_librarys_code_has_the_default_dtype(kind: str, tmp_path: Path) -> None:
    torch.set_default_dtype(MARK)
    with Marked() as marked:
        LIVES[kind](tmp_path)
    assert marked.places == set()
    assert torch.get_default_dtype() == MARK


def equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) else np.array_equal(one, other)


@pytest.mark.parametrize("kind", LIVES)
def test_bits_do_not_depend_on_what_other_threads_set_the_default_dtype_to(kind: str, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    (tmp_path / "beside").mkdir()
    expected = LIVES[kind](tmp_path / "alone")
    done = threading.Event()

    def toggle() -> None:
        while not done.is_set():
            for dtype in (torch.float64, torch.bfloat16, torch.float32):
                torch.set_default_dtype(dtype)
                done.wait(1e-4)

    sys.setswitchinterval(1e-5)
    toggling = threading.Thread(target=toggle)
    toggling.start()
    try:
        found = LIVES[kind](tmp_path / "beside")
    finally:
        done.set()
        toggling.join()
    assert all(map(equal, found, expected))


def test_other_threads_keep_their_default_dtype_while_a_model_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_state, "_dependents", {})  # without the parts of other tests
    made = learner()
    made.learn(*rows(0))
    done, answered = threading.Event(), threading.Event()

    def ask() -> None:
        while not done.is_set():
            made.predict(rows(0)[0])
            answered.set()

    torch.set_default_dtype(torch.float64)
    sys.setswitchinterval(1e-5)
    asking = threading.Thread(target=ask)
    asking.start()
    answered.wait()
    seen, undone = set(), 0
    for number in range(60):
        seen.update(torch.zeros(1).dtype for _ in range(200))
        wanted = torch.float32 if number % 2 else torch.float64
        torch.set_default_dtype(torch.float64)
        torch.set_default_dtype(wanted)
        answered.clear()
        answered.wait()
        undone += torch.get_default_dtype() != wanted
        torch.set_default_dtype(torch.float64)
    done.set()
    asking.join()
    assert (seen, undone) == ({torch.float64}, 0)


class OfTheUsers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + torch.linspace(0, 1, 4))


class Smoothed(Categorical):
    smoothing: float

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(scores @ torch.eye(scores.shape[1]), y, label_smoothing=self.smoothing)


def test_a_likelihood_of_the_users_own_is_called_with_float32_as_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_state, "_dependents", {})  # without the parts of other tests
    torch.manual_seed(0)
    made = Learner(
        ibpwf.models.mlp(4, [4], 4),
        Settings(epochs=1, finetune_epochs=0, likelihood=Smoothed(smoothing=0.1)),
        device="cpu",
    )
    torch.set_default_dtype(torch.float64)
    made.learn(*rows(0))


def test_a_network_of_the_users_own_is_called_with_float32_as_the_default() -> None:
    torch.manual_seed(0)
    net = OfTheUsers()
    made = Learner(net, Settings(epochs=1, finetune_epochs=0), device="cpu")
    made.learn(*rows(0))
    expected = made.logits(rows(0)[0], 0)
    torch.set_default_dtype(torch.float64)
    assert torch.equal(made.logits(rows(0)[0], 0), expected)
    with torch_state.float32_by_default():
        torch.set_default_dtype(torch.bfloat16)  # somebody's own change, which stays
    assert torch.get_default_dtype() == torch.bfloat16
