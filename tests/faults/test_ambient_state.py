"""Whatever torch is set to around a call, its answers have the same bits, and nothing of that state stays behind."""

from __future__ import annotations

import contextlib
import copy
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ibpwf import ContinualClassifier, Learner, Random, Settings, factorize, load
from ibpwf.torch_state import pinned, tf32_products
from tallies import Tally
from threads import at_once

SEED = 35


@contextlib.contextmanager
def during(get: Callable[[], Any], set_: Callable[[Any], object], value: Any) -> Iterator[None]:
    """A state of the caller's, which the calls inside must leave as it is."""
    before = get()
    set_(value)
    try:
        yield
    finally:
        assert get() == value
        set_(before)


def default_dtype(dtype: torch.dtype) -> AbstractContextManager[None]:
    return during(torch.get_default_dtype, torch.set_default_dtype, dtype)


def products(precision: str) -> AbstractContextManager[None]:
    return during(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, precision)


@contextlib.contextmanager
def newer_products(owner: Any, precision: str = "bf16") -> Iterator[None]:
    """By torch's interface of its own for each backend; the bits of a product must be those from before."""
    owner.fp32_precision = precision
    try:
        yield
    finally:
        assert owner.fp32_precision == precision
        owner.fp32_precision = "none"


AMBIENT: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast to bfloat16": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast to float16": lambda: torch.autocast("cpu", torch.float16),
    "default float64": lambda: default_dtype(torch.float64),
    "default bfloat16": lambda: default_dtype(torch.bfloat16),
    "default device cpu": lambda: torch.device("cpu"),
    "default device meta": lambda: torch.device("meta"),
    "products in bfloat16": lambda: products("medium"),
    "products of oneDNN in bfloat16": lambda: newer_products(torch.backends.mkldnn.matmul),
    "all of oneDNN in bfloat16": lambda: newer_products(torch.backends.mkldnn),
    "all in bfloat16": lambda: newer_products(torch.backends),
    "products of CUDA in TF32": lambda: newer_products(torch.backends.cuda.matmul, "tf32"),
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
}


WIDE = {"products in bfloat16", "products of oneDNN in bfloat16", "all of oneDNN in bfloat16", "all in bfloat16"}


@pytest.mark.parametrize("name", sorted(WIDE))
def test_wide_products_have_the_same_bits_in_any_precision_and_so_have_those_that_follow(
    name: str, tmp_path: Path
) -> None:
    """Of small matrices no product is rounded."""

    def wide() -> Learner:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
        learner = Learner(net, Settings(epochs=1, finetune_epochs=1, alpha=3), device="cpu")
        for task in range(2):
            learner.learn(*ROWS[task], task=f"t{task}")
        return learner

    learner, a = wide(), torch.randn(256, 256)
    learner.save(tmp_path / "model")
    x, plain = ROWS[1][0].repeat(4, 1), a @ a
    with AMBIENT[name]():
        rounded = a @ a
        loaded, other = Learner.load(tmp_path / "model", device="cpu"), wide()
        inside = [loaded.logits(x, 0), other.logits(x, 0), loaded.predict(x).probabilities]
    after = [loaded.logits(x, 0), other.logits(x, 0), loaded.predict(x).probabilities]
    expected = [learner.logits(x, 0), learner.logits(x, 0), learner.predict(x).probabilities]
    assert same(inside, expected)
    assert same(after, expected)
    assert torch.equal(a @ a, plain)
    if torch.equal(rounded, plain):
        pytest.skip("this processor rounds no products")


def test_a_precision_that_is_changed_while_a_thread_answers_is_not_undone() -> None:
    torch.set_float32_matmul_precision("medium")
    with pinned():
        torch.backends.mkldnn.matmul.fp32_precision = "tf32"
    changed = torch.backends.mkldnn.matmul.fp32_precision
    torch.set_float32_matmul_precision("highest")
    torch.backends.mkldnn.matmul.fp32_precision = "none"
    assert changed == "tf32"


OF_A_THREAD = [name for name in AMBIENT if name.startswith(("autocast", "default device"))]
OF_A_THREAD += ["no_grad", "enable_grad", "inference_mode"]
"""States of a thread's own; the others belong to the process."""


class Attention(nn.Module):
    """Makes tensors of the default dtype, on the default device."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(0, 4) * torch.full((), 0.1)
        h = self.embed(x.view(len(x), 4, 4)) + torch.outer(steps, torch.ones(8))
        return self.head(self.layer(h).mean(1))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4))


def cnn() -> nn.Module:
    image = nn.Unflatten(1, (1, 4, 4))
    return nn.Sequential(image, nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(24, 4))


SHORT = {"epochs": 2, "finetune_epochs": 1, "batch_size": 10, "alpha": 4, "heads": "per-task"}
ROUTER = {"inference": "router", "inference.features": Random(width=8), "validation_fraction": 0.3}
LEARNERS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "gaussian": (mlp, {}),
    "class-gaussian": (cnn, {"inference.per": "class"}),
    "random": (Attention, {"inference": "shared-gaussian", "inference.features": Random(width=8)}),
    "router": (mlp, {**ROUTER, "inference.keep_sums_per_task": True}),
    "frozen": (mlp, {"base": "frozen", "alpha": 2}),
    "plain": (cnn, {"accelerate": False}),
}


def made(task: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(task)
    y = torch.arange(40) % 2
    return torch.randn(40, 16, generator=generator) + 2 * y.unsqueeze(1) - 2 * task, 2 * task + y


ROWS = [made(task) for task in range(3)]
TABLES = [(x.numpy().astype(float), y.numpy()) for x, y in ROWS]


def fresh(kind: str) -> Learner:
    torch.manual_seed(0)
    net, settings = LEARNERS[kind]
    return Learner(net(), Settings(**{**SHORT, **settings}), device="cpu")


def taught(kind: str) -> Learner:
    learner = fresh(kind)
    for task in range(2):
        learner.learn(*ROWS[task], task=f"t{task}")
    return learner


def answers(learner: Learner) -> list[Tensor]:
    """All that a learner answers, by every way to ask it."""
    x = ROWS[1][0]
    found = []
    for asked in (
        learner.predict(x),
        learner.predict(x, task=0),
        learner.predict(x, task=[0, 1] * 20),
        learner.predict(x, marginal=True),
        learner.predict(x[:4], posterior_samples=3),
    ):
        found += [asked.labels, asked.probabilities, asked.task, asked.entropy]
    found += [learner.logits(x, 0), learner.model(x, task=1)]
    if learner.settings.inference.kind == "router":
        found.append(learner.novelty(x))
    return found


def merged(learner: Learner) -> list[Tensor]:
    return list(learner.merge(0).state_dict().values())


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(one, two) for one, two in zip(a, b, strict=True))


@pytest.mark.parametrize("kind", LEARNERS)
def test_answers_have_the_same_bits_and_so_have_those_that_follow(kind: str, tmp_path: Path, tally: Tally) -> None:
    learner = taught(kind)
    net, _ = LEARNERS[kind]
    torch.manual_seed(0)
    base = {"net": net()} if kind in ("frozen", "random") else {}
    learner.save(tmp_path / "model")
    expected, weights = answers(learner), merged(learner)
    wrong = tried = 0
    for name, ambient in AMBIENT.items():
        for loaded in (False, True):
            with ambient() if loaded else contextlib.nullcontext():
                model = load(tmp_path / "model", device="cpu", **base)
            assert isinstance(model, Learner)
            with ambient():
                inside, given = answers(model), merged(model)
            right = [same(inside, expected), same(given, weights), same(answers(model), expected)]
            assert all(part.requires_grad is False for part in inside), name
            assert not any(part.is_inference() for part in inside), name
            wrong, tried = wrong + right.count(False), tried + len(right)
    tally(f"answers of a learner ({kind}) in {len(AMBIENT)} states of torch", tried, wrong=wrong)


@pytest.mark.parametrize("kind", LEARNERS)
@pytest.mark.parametrize("name", AMBIENT)
def test_a_learner_made_and_taught_in_any_state_is_the_same_to_the_bit(kind: str, name: str) -> None:
    expected = taught(kind)
    expected.forget("t0")
    expected.learn(*ROWS[2])
    torch.manual_seed(0)
    net, settings = LEARNERS[kind]
    plain = net()
    with AMBIENT[name]():
        learner = Learner(factorize(plain, **Settings(**{**SHORT, **settings}).factorization),
                          Settings(**{**SHORT, **settings}), device="cpu")  # fmt: skip
        for task in range(2):
            learner.learn(*ROWS[task], task=f"t{task}")
        learner.forget("t0")
    learner.learn(*ROWS[2])
    x = ROWS[1][0]
    assert torch.equal(learner.predict(x).probabilities, expected.predict(x).probabilities)
    assert torch.equal(learner.logits(x, 0), expected.logits(x, 0))


def test_steps_that_a_caller_takes_one_by_one_are_pinned_too() -> None:
    expected, learner = fresh("gaussian"), fresh("gaussian")
    expected.learn(*ROWS[0])
    states = list(AMBIENT.values())
    steps = learner.learn_steps(*ROWS[0])
    for number in range(10_000):
        with states[number % len(states)]():
            if next(steps, "done") == "done":
                break
    assert torch.equal(learner.logits(ROWS[0][0], 0), expected.logits(ROWS[0][0], 0))


def test_tensors_made_in_inference_mode_can_be_learned_from() -> None:
    expected, learner = fresh("class-gaussian"), fresh("class-gaussian")
    expected.learn(*ROWS[0])
    with torch.inference_mode():
        given = made(0)
    learner.learn(*given)
    assert torch.equal(learner.logits(ROWS[0][0], 0), expected.logits(ROWS[0][0], 0))


SMALL = {"hidden": (12,), "epochs": 2, "settings": {"inference.features.width": 8}, "device": "cpu"}


def said(classifier: ContinualClassifier) -> list[Any]:
    x = TABLES[1][0]
    told = classifier.prediction(x, posterior_samples=2)
    return [
        classifier.predict(x),
        classifier.predict_proba(x),
        classifier.predict_proba(x, task="t0"),
        classifier.predict_task(x),
        classifier.uncertainty(x),
        classifier.novelty(x),
        classifier.is_novel(x),
        classifier.fast().predict_proba(x),
        classifier.first_tasks(1).predict_proba(x),
        *(told.labels, told.probability, told.entropy, told.mutual_information),
    ]


@pytest.mark.parametrize("name", AMBIENT)
def test_a_classifier_answers_and_learns_the_same_in_any_state(name: str, tmp_path: Path) -> None:
    classifier = ContinualClassifier(**SMALL)
    for task in range(2):
        classifier.learn(*TABLES[task], task=f"t{task}")
    classifier.save(tmp_path / "model")
    expected = said(classifier)
    other = ContinualClassifier(**SMALL)
    with AMBIENT[name]():
        for task in range(2):
            other.learn(*TABLES[task], task=f"t{task}")
        loaded = ContinualClassifier.load(tmp_path / "model", device="cpu")
        found = [said(loaded), said(other)]
    found += [said(loaded), said(other)]
    for one in found:
        assert all(np.array_equal(got, wanted) for got, wanted in zip(one, expected, strict=True))
    for model in (classifier, other):
        with AMBIENT[name]() if model is other else contextlib.nullcontext():
            model.update(*TABLES[0], task="t0", keep="always")
            model.forget("t1")
    assert np.array_equal(other.predict_proba(TABLES[0][0]), classifier.predict_proba(TABLES[0][0]))


@pytest.mark.parametrize("name", AMBIENT)
def test_a_stream_takes_the_same_in_any_state(name: str) -> None:
    def streamed() -> np.ndarray:
        classifier = ContinualClassifier(**SMALL, stream=True)
        for task in range(2):
            classifier.partial_fit(*TABLES[task])
        return classifier.finish().predict_proba(TABLES[0][0])

    expected = streamed()
    with AMBIENT[name]():
        found = streamed()
    assert np.array_equal(found, expected)


def test_a_callers_state_is_not_changed_by_threads_that_answer_meanwhile() -> None:
    """What all threads share is set by the first inside and restored by the last."""
    learner = taught("gaussian")
    x, expected = ROWS[0][0], learner.predict(ROWS[0][0]).probabilities

    def ask(number: int) -> None:
        for _ in range(50):
            assert torch.equal(learner.predict(x).probabilities, expected)

    with default_dtype(torch.float64), products("medium"):
        assert at_once(ask, 4) == []


def test_a_precision_that_training_chose_is_not_taken_for_the_callers() -> None:
    """Answers wait while a step is recorded, and neither of them leaves its precision behind."""
    inside, answered = threading.Event(), threading.Event()
    seen: list[str] = []

    def record() -> None:
        with tf32_products(True):
            inside.set()
            answered.wait(0.2)
            with pinned():
                seen.append(torch.get_float32_matmul_precision())

    recording = threading.Thread(target=record)
    recording.start()
    inside.wait()
    with pinned():
        answered.set()
        seen.append(torch.get_float32_matmul_precision())
    recording.join()
    assert seen == ["high", "highest"]
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize("times", [3, pytest.param(250, marks=pytest.mark.faults)])
@pytest.mark.parametrize("kind", LEARNERS)
def test_threads_in_different_states_that_ask_a_loaded_model_first_get_the_same_bits(
    kind: str, times: int, tmp_path: Path, tally: Tally
) -> None:
    """What one of them composes and caches is what the others and all later calls compute with."""
    learner = taught(kind)
    torch.manual_seed(0)
    base = {"net": LEARNERS[kind][0]()} if kind in ("frozen", "random") else {}
    learner.save(tmp_path / "model")
    expected, chance = answers(learner), random.Random(SEED)
    tried = wrong = 0
    raised: list[BaseException] = []
    for _ in range(times):
        model = Learner.load(tmp_path / "model", device="cpu", **base)
        states, found = chance.sample(OF_A_THREAD, 3), list[list[Tensor]]()

        def ask(number: int, model: Learner = model, states: list[str] = states, found: Any = found) -> None:
            with AMBIENT[states[number]]():
                found.append(answers(model))

        raised += at_once(ask, len(states))
        found.append(answers(model))
        tried, wrong = tried + len(states) + 1, wrong + sum(not same(one, expected) for one in found)
    what = "first answers of a loaded model, in threads in different states of torch"
    tally(what, tried, seed=SEED, wrong=wrong, tracebacks=len(raised))


def test_pinning_leaves_no_state_behind_after_an_error() -> None:
    @pinned(grad=True)
    def fails() -> None:
        assert not torch.is_autocast_enabled("cpu")
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
        raise ZeroDivisionError

    with default_dtype(torch.float64), torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        with pytest.raises(ZeroDivisionError):
            fails()
        assert torch.is_autocast_enabled("cpu")
        assert torch.is_inference_mode_enabled()


def test_a_copy_of_a_learner_used_in_autocast_still_answers() -> None:
    learner = taught("gaussian")
    with torch.autocast("cpu", torch.bfloat16):
        copied = copy.deepcopy(learner)
        copied.predict(ROWS[0][0])
    assert torch.equal(copied.logits(ROWS[0][0], 0), learner.logits(ROWS[0][0], 0))


@pytest.mark.parametrize("name", AMBIENT)
def test_a_state_dict_taken_and_given_in_any_state_holds_the_tasks(name: str) -> None:
    learner = taught("gaussian")
    expected = learner.model.state_dict()
    other = factorize(mlp(), **fresh("gaussian").settings.factorization)
    with AMBIENT[name]():
        taken = learner.model.state_dict()
        other.load_state_dict(taken)
    assert [*taken] == [*expected]
    assert all(torch.equal(taken[key], expected[key]) for key in expected)
    assert torch.equal(other.logits(ROWS[0][0], 0), learner.logits(ROWS[0][0], 0))
