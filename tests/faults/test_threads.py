"""Many threads ask one model at once, and another teaches it: every answer has the bits that one thread would get."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ibpwf import ContinualClassifier, Learner, Settings, concurrency
from ibpwf.concurrency import SingleWriter
from ibpwf.errors import BusyError
from threads import at_once

Tally = Callable[..., None]

TASKS, THREADS = 3, 8
SEED = 15


class Attention(nn.Module):
    """Two ways to attend: torch's module, which has a fast path, and the function."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.query = nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(self.embed(x.flatten(2).transpose(1, 2)))
        h = h + self.attend(h, h, h, need_weights=False)[0]
        q = self.query(h).unsqueeze(1)
        h = h + nn.functional.scaled_dot_product_attention(q, q, q).squeeze(1)
        return self.head(h.mean(1))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4 * 16, 12), nn.ReLU(), nn.Linear(12, 2))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3),
        nn.BatchNorm2d(6),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 2),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {"MLP": perceptron, "CNN": convolutions, "attention": Attention}


def examples(task: int, rows: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + task)
    y = torch.arange(rows) % 2
    x = torch.randn(rows, 4, 4, 4, generator=generator) + task
    x[y == 1, :2] += 1.5
    return x, 2 * task + y


def fresh(network: Callable[[], nn.Module], device: str = "cpu") -> Learner:
    torch.manual_seed(0)
    return Learner(network(), Settings(epochs=2, finetune_epochs=1, batch_size=20, alpha=6), device=device)


@pytest.fixture(scope="module", params=NETWORKS)
def taught(request: pytest.FixtureRequest) -> Learner:
    learner = fresh(NETWORKS[request.param])
    for task in range(TASKS):
        learner.learn(*examples(task))
    return learner


def bits(prediction: Any) -> list[Tensor]:
    return [prediction.labels, prediction.probabilities, prediction.task, prediction.entropy]


@pytest.mark.parametrize("calls", [30, pytest.param(10_000, marks=pytest.mark.faults)])
@pytest.mark.parametrize("posterior_samples", [0, 4])
def test_threads_get_the_bits_that_one_thread_gets(
    taught: Learner, calls: int, posterior_samples: int, tally: Tally
) -> None:
    x = torch.cat([examples(task, 4)[0] for task in range(TASKS)])
    asks: list[Callable[[Learner], list[Tensor]]] = [
        lambda learner: bits(learner.predict(x, posterior_samples=posterior_samples)),
        lambda learner: bits(learner.predict(x[:5], task=1, posterior_samples=posterior_samples)),
        lambda learner: bits(
            learner.predict(x, task=[0] * 4 + [2] * 4 + [1] * 4, posterior_samples=posterior_samples)
        ),
        lambda learner: bits(learner.predict(x[3:9], marginal=True, posterior_samples=posterior_samples)),
        lambda learner: [learner.logits(x, 2)],
    ]
    alone = taught.fork()
    expected = [ask(alone) for ask in asks]
    wrong = [0] * THREADS
    learner = taught.fork()
    learner.model.forget_composed()  # so that all begin by composing weights at once

    def work(number: int) -> None:
        for call in range(calls):
            which = (number + call) % len(asks)
            got = asks[which](learner)
            wrong[number] += not all(torch.equal(*pair) for pair in zip(got, expected[which], strict=True))

    raised = at_once(work, THREADS)
    tally(
        f"answers in {THREADS} threads, {'with' if posterior_samples else 'without'} posterior samples",
        THREADS * calls,
        wrong=sum(wrong),
        tracebacks=len(raised),
    )
    assert [torch.equal(a, b) for a, b in zip(asks[0](alone), expected[0], strict=True)] == [True] * 4


GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_answers_while_a_task_is_learned_are_those_of_the_last_finished_one(
    network: Callable[[], nn.Module], device: str, tally: Tally
) -> None:
    """On a GPU steps are recorded, and what other threads ask meanwhile must not be part of it."""
    x = examples(0, 8)[0]
    twin, known = fresh(network, device), []
    learner = fresh(network, device)
    for task in range(4):
        twin.learn(*examples(task))
        known.append((bits(twin.predict(x)), bits(twin.predict(x, task=0))))
    learner.learn(*examples(0))
    done, asked, wrong = threading.Event(), [0] * 4, [0] * 4

    def ask(number: int) -> None:
        if number == 3:
            try:
                for task in range(1, 4):
                    learner.learn(*examples(task))
            finally:
                done.set()
            return
        first = 0  # answers never go back to those of fewer tasks
        while not done.is_set():
            inferred, given = bits(learner.predict(x)), bits(learner.predict(x, task=0))
            asked[number] += 1
            found = [n for n in range(first, 4) if all(map(torch.equal, inferred, known[n][0]))]
            same = all(torch.equal(given[part], known[0][1][part]) for part in (0, 2, 3))  # columns come with tasks
            wrong[number] += not (found and same)
            first = found[0] if found else first

    raised = at_once(ask, 4)
    assert all(torch.equal(*pair) for pair in zip(bits(learner.predict(x)), known[3][0], strict=True))
    tally("answers while a task is learned", sum(asked), wrong=sum(wrong), tracebacks=len(raised))


def test_a_second_task_at_the_same_time_is_refused_at_once_and_the_first_is_learned() -> None:
    learner = fresh(perceptron)
    steps = learner.learn_steps(*examples(0), task="first")
    next(steps)
    for change in (
        lambda: learner.learn(*examples(1)),
        lambda: learner.forget(0),
        lambda: setattr(learner, "settings", learner.settings.replace(epochs=3)),
    ):
        with pytest.raises(BusyError):
            change()
    for _ in steps:
        pass
    assert [task.name for task in learner.tasks] == ["first"]
    learner.learn(*examples(1))


def test_of_many_threads_that_teach_one_learner_one_does_and_the_others_are_told(tally: Tally) -> None:
    told = learned = 0
    for _ in range(10):
        learner = fresh(perceptron)
        raised = at_once(lambda number, learner=learner: learner.learn(*examples(number)), THREADS)
        assert all(isinstance(error, BusyError) for error in raised), raised
        told, learned = told + len(raised), learned + len(learner.tasks)
        assert len(learner.tasks) == THREADS - len(raised) >= 1
        assert len(learner.history) == len(learner.tasks) == len(learner.method.model.tasks)
    assert told > 0
    tally("threads that teach one learner", 10 * THREADS, lost=10 * THREADS - told - learned)


def test_a_claim_that_comes_second_is_refused_even_if_the_first_ends_at_that_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def change() -> Generator[None, None, None]:
        yield

    claims, first, second = SingleWriter(), change(), change()
    claims.claim(first, "learned")
    seen = concurrency._under_way

    def seen_for_the_last_time(one: weakref.ref[Generator[None, None, None]]) -> bool:
        found = seen(one)
        first.close()
        return found

    monkeypatch.setattr(concurrency, "_under_way", seen_for_the_last_time)
    with pytest.raises(BusyError):
        claims.claim(second, "learned")
    claims.claim(change(), "learned")


def test_a_task_whose_steps_nobody_holds_any_more_does_not_stand_in_the_way() -> None:
    learner = fresh(perceptron)
    steps = learner.learn_steps(*examples(0))
    next(steps)
    del steps
    assert learner.learn(*examples(1)).number == 0


def test_a_classifier_answers_threads_while_it_learns(tally: Tally) -> None:
    rng = np.random.default_rng(SEED)
    x, y = rng.normal(size=(60, 5)), np.arange(60) % 2
    x[y == 1] += 2

    def teach(classifier: ContinualClassifier, task: int) -> None:
        classifier.learn(x + 6 * task, np.array([f"a{task}", f"b{task}"])[y])

    def made() -> ContinualClassifier:
        return ContinualClassifier(hidden=(6,), epochs=2, settings={"inference.features.width": 8}, device="cpu")

    twin, known = made(), []
    for task in range(4):
        teach(twin, task)
        known.append((twin.predict(x).tolist(), twin.predict_proba(x).tobytes(), twin.novelty(x).tobytes()))
    classifier, done = made(), threading.Event()
    teach(classifier, 0)
    asked, wrong = [0] * 4, [0] * 4

    def work(number: int) -> None:
        if number == 0:
            try:
                for task in range(1, 4):
                    teach(classifier, task)
            finally:
                done.set()
            return
        while not done.is_set():
            asked[number] += 1
            told = classifier.prediction(x)
            found = [classifier.predict(x).tolist(), classifier.predict_proba(x).tobytes()]
            wrong[number] += not all(found[part] in [one[part] for one in known] for part in range(2))
            labels, tasks = {str(label) for label in told.labels}, set(told.task)
            wrong[number] += not any(labels <= {f"{c}{t}" for c in "ab" for t in range(n + 1)} for n in range(4))
            wrong[number] += told.novelty.tobytes() not in [one[2] for one in known] or not tasks

    raised = at_once(work, 4)
    assert classifier.predict(x).tolist() == known[3][0]
    tally("answers of a classifier that learns", sum(asked), wrong=sum(wrong), tracebacks=len(raised))
