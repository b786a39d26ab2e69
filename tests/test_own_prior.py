"""A prior from outside the package: independent Bernoulli selections, with nothing of ours edited."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ibpwf
from ibpwf import Learner, Settings
from ibpwf.errors import InputError, StoreError
from ibpwf.factors.posterior import LayerVectors, TaskPosterior, stacked
from ibpwf.factors.prior import ConstantGrowth, LayerShape, Prior
from ibpwf.models import mlp
from ibpwf.parts import Probability, register
from ibpwf.training.callbacks import Callback, StepEnd
from ibpwf.training.checkpoint import Checkpoint


@dataclass(frozen=True)
class Selected(LayerVectors):
    logit: Tensor


class BernoulliPosterior(TaskPosterior):
    def __init__(self, start: Sequence[Selected], prior: Sequence[Selected], rate: float) -> None:
        super().__init__(start, prior)
        self.rate, self.logit = rate, nn.Parameter(stacked([one.logit for one in start], -30.0))

    def sample_scores(self, generator: torch.Generator | None = None) -> Tensor:
        noise = torch.rand(self.logit.shape, generator=generator).logit(eps=1e-6)
        return self.strength * ((self.logit + noise) / 0.5).sigmoid()

    def mean_scores(self) -> Tensor:
        return self.strength * self.logit.sigmoid()

    def kl(self, generator: torch.Generator | None = None) -> Tensor:
        odds = self.logit - torch.tensor(self.rate).logit()
        return (self.logit.sigmoid() * odds - F.softplus(self.logit) + F.softplus(self.logit - odds)).sum()

    def vectors(self, row: int) -> Selected:
        return Selected(self._row(self.strength, row), self._row(self.logit, row))


@register
class Bernoulli(Prior):
    """Every task is offered `new` more factors, and uses each with the same probability."""

    kind: ClassVar[str] = "bernoulli"
    vectors: ClassVar[type[LayerVectors]] = Selected
    new: int = 8
    rate: Probability = 0.3

    def width(self, layer: LayerShape, task: int, locked: int, used: int) -> int:
        return max(used, locked + self.new)

    def start(self, layer: LayerShape, strength: Tensor, previous: LayerVectors | None) -> Selected:
        return Selected(strength, torch.full_like(strength, float(torch.tensor(self.rate).logit())))

    def posterior(self, start: Sequence[Selected], prior: Sequence[Selected]) -> BernoulliPosterior:
        return BernoulliPosterior(start, prior, self.rate)

    def logit(self, vectors: Selected) -> Tensor:
        return vectors.logit


def rows(task: int) -> tuple[Tensor, Tensor]:
    """Two classes of a task, apart from each other and from other tasks'."""
    generator = torch.Generator().manual_seed(task)
    y = torch.arange(96) % 2
    centers = 3 * torch.randn(2, 6, generator=generator)
    return torch.randn(96, 6, generator=generator) + centers[y] + 4 * task, y


def new(prior: Prior | None = None, **changes: Any) -> Learner:
    torch.manual_seed(0)
    settings = Settings(prior=prior or Bernoulli(), epochs=12, finetune_epochs=6, batch_size=16, learning_rate=0.02)
    return Learner(mlp(6, [12], 2), settings.replace(**changes), seed=1, device="cpu")


@pytest.fixture(scope="module")
def taught() -> Learner:
    learner = new()
    for task in range(2):
        learner.learn(*rows(task), task=f"t{task}")
    return learner


@pytest.mark.parametrize("told", [True, False])
def test_it_learns_and_predicts(taught: Learner, told: bool) -> None:
    for task in range(2):
        x, y = rows(task)
        assert float((taught.predict(x, task if told else None).labels == y).double().mean()) > 0.9


def test_its_kl_is_that_of_bernoulli_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    start = [Selected(torch.ones(n), torch.randn(n, generator=generator)) for n in (3, 5)]
    q = torch.cat([one.logit for one in start]).double().sigmoid().numpy()
    expected = (q * np.log(q / 0.3) + (1 - q) * np.log((1 - q) / 0.7)).sum()
    posterior = Bernoulli().posterior(start, start)
    padding = 2 * -np.log(0.7)  # of the two positions that the narrower layer has not
    assert float(posterior.kl().detach()) == pytest.approx(expected + padding, rel=1e-4)


def test_its_vectors_are_stored_and_loaded_to_the_bit(taught: Learner, tmp_path: Path) -> None:
    taught.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model", device="cpu")
    assert loaded.settings.prior == taught.settings.prior
    for one, other in zip(loaded.model.tasks, taught.model.tasks, strict=True):
        for name, vectors in one.vectors.items():
            assert isinstance(vectors, Selected)
            for part in vectors.names():
                assert torch.equal(getattr(vectors, part), getattr(other.vectors[name], part))
    x = torch.cat([rows(task)[0] for task in range(2)])
    assert torch.equal(loaded.predict(x).probabilities, taught.predict(x).probabilities)


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.left = step

    def step_end(self, event: StepEnd) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("step", [5, 6 * 12 + 5])
def test_it_is_resumed_within_a_task(taught: Learner, tmp_path: Path, step: int) -> None:
    learner = new()
    learner.learn(*rows(0), task="t0")
    learner.save(tmp_path / "model")
    with contextlib.suppress(KeyboardInterrupt):
        learner.learn(*rows(1), task="t1", callbacks=[Checkpoint(tmp_path / "model", every=0), StopAt(step)])
    again = Learner.load(tmp_path / "model", device="cpu")
    again.learn(*rows(1), task="t1", callbacks=[Checkpoint(tmp_path / "model", every=0, resume=True)])
    assert torch.equal(again.logits(rows(1)[0], "t1"), taught.logits(rows(1)[0], "t1"))


def test_forgetting_and_posterior_samples_need_nothing_of_its_own(taught: Learner) -> None:
    learner = taught.fork()
    before = learner.logits(rows(1)[0], "t1")
    assert learner.predict(rows(1)[0], "t1", posterior_samples=5).mutual_information is not None
    learner.forget("t0")
    assert torch.equal(learner.logits(rows(1)[0], "t1"), before)


@pytest.mark.parametrize("changes", [{"base": "frozen"}, {"init": "pretrained"}, {"init": "anew"}])
def test_it_goes_with_every_way_to_start(changes: dict[str, Any]) -> None:
    learner = new(**changes)
    for task in range(2):
        learner.learn(*rows(task), task=f"t{task}")
    x, y = rows(1)
    assert float((learner.predict(x, "t1").labels == y).double().mean()) > 0.9


def test_constant_growth_is_a_prior_of_the_learner_too(tmp_path: Path) -> None:
    learner = new(ConstantGrowth(nu=7, omega=2))
    for task in range(2):
        learner.learn(*rows(task), task=f"t{task}")
    assert [use.total for use in learner.model.use(1).values()] == [9, 9]
    with pytest.raises(InputError, match="forget"):
        learner.forget("t0")
    learner.save(tmp_path / "model")
    loaded = ibpwf.load(tmp_path / "model", device="cpu")
    assert torch.equal(loaded.logits(rows(1)[0], "t1"), learner.logits(rows(1)[0], "t1"))


def test_shorthand_of_the_ibp_is_rejected_beside_another_prior() -> None:
    with pytest.raises(InputError, match=r"alpha is 7.*bernoulli"):
        new(alpha=7.0)


def test_what_every_task_shares_cannot_change_and_the_rest_can(taught: Learner) -> None:
    learner = new(ConstantGrowth(nu=7, omega=2))
    learner.learn(*rows(0), task="t0")
    with pytest.raises(InputError, match="nu"):
        learner.settings = learner.settings.replace(prior=ConstantGrowth(nu=8, omega=2))
    other = taught.fork()
    other.settings = other.settings.replace(**{"prior.rate": 0.5})
    assert isinstance(other.model.prior, Bernoulli)
    assert other.model.prior.rate == 0.5


def test_a_later_layer_of_settings_drops_the_shorthand_below_it() -> None:
    found = Settings(**Settings.merged({"alpha": 200.0, "epochs": 3}, {"prior": "constant-growth", "prior.nu": 5}))
    assert found.prior == ConstantGrowth(nu=5)
    assert found.epochs == 3


def test_a_folder_with_a_damaged_vector_of_it_is_rejected(taught: Learner, tmp_path: Path) -> None:
    taught.save(tmp_path / "model")
    part = next((tmp_path / "model").glob("**/*task-0000*"))
    data = bytearray(part.read_bytes())
    data[-5] ^= 255
    part.write_bytes(bytes(data))
    with pytest.raises(StoreError):
        Learner.load(tmp_path / "model", device="cpu").predict(rows(0)[0])
