"""Factors beside a frozen base, W_t = W_0 + W_a diag(λ_t) W_b: compared with the sum written out."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ibpwf import ContinualClassifier, Learner, Settings, factorize
from ibpwf.errors import IBPWFError, InputError
from ibpwf.factors.task_network import TaskNetwork
from ibpwf.lab.experiments.run import run
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.models import mlp

TASKS = 3


class Attentive(nn.Module):
    """Linear, convolution, attention and normalization in one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3, padding=1)
        self.norm = nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(x.unsqueeze(1)).transpose(1, 2))
        h, _ = self.attention(h, h, h, need_weights=False)
        logits: Tensor = self.head(h.mean(1))
        return logits


def trained(kind: str) -> nn.Module:
    torch.manual_seed(3)
    return Attentive() if kind == "attentive" else mlp(8, [16, 12], 3)


def rows(task: int, count: int = 60) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(task)
    x = torch.randn(count, 8, generator=generator)
    return x, (x @ torch.randn(8, 3, generator=generator)).argmax(1)


SETTINGS = Settings(base="frozen", epochs=3, finetune_epochs=2, batch_size=16, learning_rate=0.01)


def taught(kind: str = "mlp", tasks: int = TASKS, **changes: object) -> Learner:
    learner = Learner(trained(kind), SETTINGS.replace(**changes), seed=1, device="cpu")
    for task in range(tasks):
        learner.learn(*rows(task), task=f"t{task}")
    return learner


@pytest.mark.parametrize("kind", ["mlp", "attentive"])
@pytest.mark.parametrize("accelerate", [True, False])
def test_every_task_begins_as_the_trained_network_itself(
    kind: str, accelerate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IBPWF_ACCELERATE", str(int(accelerate)))
    learner = taught(kind, accelerate=accelerate)
    x = rows(9)[0]
    expected = trained(kind).eval()(x).detach()
    network = learner.model.start_task(3, torch.Generator().manual_seed(0))
    network.eval()
    torch.testing.assert_close(network(x).detach(), expected, rtol=1e-5, atol=1e-6)
    assert sum(len(layer.locked_at) for layer in network.factor_layers.values()) > 0


@pytest.mark.parametrize("kind", ["mlp", "attentive"])
def test_a_tasks_weight_is_the_base_and_the_sum_of_the_factors_it_selected(kind: str) -> None:
    learner = taught(kind)
    model, net = learner.model, trained(kind)
    for task in range(TASKS):
        state = model.state(task)
        for name in model.layers:
            parameter = model.weights[name].parameter
            base = net.get_parameter(parameter).detach().double()
            factors, strength = model.selected_factors(task, name)
            total = np.zeros(tuple(base.flatten(1).t().shape))
            for k in range(len(strength)):
                a, b = factors.a[:, k].double().numpy(), factors.b[k].double().numpy()
                total += float(strength[k]) * np.outer(a, b)
            expected = base.numpy() + total.T.reshape(base.shape)
            np.testing.assert_allclose(state[parameter].double().numpy(), expected, rtol=0, atol=1e-6)
    x = rows(1)[0]
    plain = trained(kind).eval()
    plain.load_state_dict(model.state(1))
    torch.testing.assert_close(plain(x).detach(), learner.logits(x, 1), rtol=0, atol=1e-6)
    torch.testing.assert_close(learner.merge(1)(x).detach(), learner.logits(x, 1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["mlp", "attentive"])
@pytest.mark.parametrize("heads", ["shared", "per-task"])
def test_the_base_never_changes_and_old_tasks_answer_with_the_same_bits(kind: str, heads: str) -> None:
    learner = Learner(trained(kind), SETTINGS.replace(heads=heads), seed=1, device="cpu")
    before: list[Tensor] = []
    for task in range(TASKS):
        learner.learn(*rows(task))
        assert all(torch.equal(learner.logits(rows(0)[0], number), old) for number, old in enumerate(before))
        before = [learner.logits(rows(0)[0], number) for number in range(task + 1)]
    net = trained(kind)
    for parameter, weight in learner.model.base_weights().items():
        assert torch.equal(weight, net.get_parameter(parameter))


def test_a_task_learns_what_the_base_does_not_know() -> None:
    learner = taught(epochs=30, finetune_epochs=15)
    for task in range(TASKS):
        x, y = rows(task)
        base = float((trained("mlp")(x).argmax(1) == y).double().mean())
        assert float((learner.predict(x, task=task).labels == y).double().mean()) > max(0.8, base + 0.1)


def test_the_optimizer_moves_the_tasks_own_numbers_alone() -> None:
    model = factorize(trained("mlp"), base="frozen")
    network = model.start_task(3, torch.Generator().manual_seed(0))
    shapes = [tuple(p.shape) for p in network.trainable(posterior=True)]
    assert all(tuple(weight.shape) not in shapes for weight in model.base_weights().values())


def test_a_task_in_training_has_no_copy_of_the_base_nor_keeps_one_for_its_recorded_steps() -> None:
    learner = taught(tasks=1, heads="per-task")
    model = learner.model
    network = model.start_task(3, torch.Generator().manual_seed(0))
    for name, layer in network.factor_layers.items():
        assert layer.base is not None
        assert layer.base.data_ptr() == model.base_weights()[model.weights[name].parameter].data_ptr()
        assert not layer.base.requires_grad
    learner.method.network = network
    shapes = [tuple(buffer.shape) for buffer in learner.method.buffers()]
    assert all(tuple(weight.shape) not in shapes for weight in model.base_weights().values())


def test_a_later_task_finds_as_many_new_factors_as_likely_as_the_first_did() -> None:
    first = factorize(trained("mlp"), base="frozen").start_task(3, torch.Generator().manual_seed(0))
    model = taught(selection_rate=10.0).model
    network = model.start_task(3, torch.Generator().manual_seed(0))
    for row, layer in enumerate(network.factor_layers.values()):
        began, vectors = first.posterior.vectors(row), network.posterior.vectors(row)
        free, locked = layer.free_at, layer.locked_at
        assert len(locked)
        assert len(free) >= len(began)
        torch.testing.assert_close(vectors.logit[free][: len(began)], began.logit)
        expected = _prior_means(first, row)
        torch.testing.assert_close(
            _prior_means(network, row)[free][: len(began)], expected, rtol=len(locked) / 500, atol=0
        )
        assert not vectors.strength[locked].any()


def test_new_factors_start_small_with_strength_one_and_so_do_those_that_are_added() -> None:
    model = taught(tasks=1).model
    network = model.start_task(3, torch.Generator().manual_seed(0))
    began = [len(layer.free_at) for layer in network.factor_layers.values()]
    with torch.no_grad():
        network.posterior.logit.fill_(5.0)  # all are likely: there must be more
    assert network.grow() > 0
    for row, layer in enumerate(network.factor_layers.values()):
        assert len(layer.free_at) > began[row]
        assert not layer.free_b.any()
        assert (network.posterior.vectors(row).strength[layer.free_at] == 1).all()
        most = 1 / (2 * math.sqrt(layer.free_a.shape[1]))
        assert 0.6 * most < float(layer.free_a.detach().abs().max()) <= most


def _prior_means(network: TaskNetwork, row: int) -> Tensor:
    """E π_k of a layer's sticks, v_k ~ Kumaraswamy(c, 1), whose mean is c / (c + 1)."""
    prior = network.posterior.prior[row]
    assert (prior.d == 1).all()
    return (prior.c / (prior.c + 1)).cumprod(0)


def test_later_tasks_learn_as_well_as_the_first_in_a_few_epochs() -> None:
    learner = taught(epochs=8, finetune_epochs=8, learning_rate=0.02, heads="per-task")
    for task in range(TASKS):
        assert sum(use.new for use in learner.model.use(task).values()) >= 3
        x, y = rows(task)
        assert float((learner.predict(x, task=task).labels == y).double().mean()) > 0.8


def test_posterior_draws_are_the_base_and_the_factors_drawn() -> None:
    learner = taught()
    model, generator = learner.model, torch.Generator().manual_seed(0)
    drawn = model.sampled_states(0, 50, torch.Generator().manual_seed(0))
    for name in model.layers:
        parameter = model.weights[name].parameter
        base = model.base_weights()[parameter].double().numpy()
        factors, strength = model.selected_factors(0, name)
        likely = model.tasks[0].vectors[name].logit[factors.positions].sigmoid()
        on = torch.rand(50, len(likely), generator=generator) < likely
        scores = (strength * on).double().numpy()
        sums = np.einsum("jf,nf,fm->nmj", factors.a.double().numpy(), scores, factors.b.double().numpy())
        np.testing.assert_allclose(drawn[parameter].double().numpy(), base + sums, rtol=0, atol=1e-6)
    assert learner.predict(rows(0)[0], task=0, posterior_samples=5).mutual_information is not None


def test_a_folder_leaves_the_base_out_and_goes_on_to_the_same_bits_with_it(tmp_path: Path) -> None:
    learner = taught()
    learner.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model", net=trained("mlp"), device="cpu")
    x = rows(5)[0]
    for task in range(TASKS):
        assert torch.equal(loaded.logits(x, task), learner.logits(x, task))
    for each in (learner, loaded):
        each.learn(*rows(7), task="next")
    assert torch.equal(loaded.logits(x, "next"), learner.logits(x, "next"))
    stored = [tensor for part in tmp_path.glob("model/**/*.safetensors") for tensor in tensors_of(part).items()]
    bases = learner.model.base_weights()
    assert not any(name in bases for name, _ in stored)


def tensors_of(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def test_another_base_or_none_is_refused_and_the_folder_stays_whole(tmp_path: Path) -> None:
    taught().save(tmp_path / "model")
    with pytest.raises(IBPWFError, match="differences from a trained network, which is not in it; pass that network"):
        Learner.load(tmp_path / "model")
    other = trained("mlp")
    with torch.no_grad():
        next(iter(other.parameters()))[0, 0] += 1e-6
    with pytest.raises(IBPWFError, match="differences from another network than the one given"):
        Learner.load(tmp_path / "model", net=other)
    with pytest.raises(IBPWFError):
        Learner.load(tmp_path / "model", net=mlp(8, [16, 13], 3))
    with pytest.raises(InputError, match="net is a str; give the network itself"):
        Learner.load(tmp_path / "model", net="mlp")  # type: ignore[arg-type]
    assert Learner.load(tmp_path / "model", net=trained("mlp")).tasks[0].name == "t0"


@pytest.mark.parametrize(("answer", "told"), [(None, "a NoneType"), ({"scores": torch.zeros(1, 3)}, "a dict")])
def test_a_network_that_gives_no_logits_is_refused_in_a_sentence(answer: object, told: str) -> None:
    class Silent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> object:
            return answer

    with pytest.raises(InputError) as refused:
        Learner(Silent(), SETTINGS, device="cpu").learn(*rows(0))
    assert str(refused.value) == f"the network gives {told} for one example; it must give one row of class scores."


def test_a_forgotten_task_leaves_the_others_bits() -> None:
    learner = taught()
    x = rows(4)[0]
    before = [learner.logits(x, task) for task in (0, 2)]
    learner.forget(1)
    assert all(torch.equal(learner.logits(x, task), old) for task, old in enumerate(before))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": "froze"}, "base is 'froze'; choose 'none' or 'frozen'"),
        ({"base": "frozen", "init": "pretrained"}, "base is 'frozen' and init is 'pretrained'"),
    ],
)
def test_what_contradicts_itself_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        factorize(trained("mlp"), **options)  # type: ignore[arg-type]


def test_a_classifier_has_no_trained_network_to_keep() -> None:
    x, y = rows(0)
    with pytest.raises(InputError, match="base is 'frozen', but a classifier's network is new"):
        ContinualClassifier(settings={"base": "frozen"}).fit(x.numpy(), y.numpy())


def test_an_interrupted_run_on_a_base_of_its_own_goes_on(tmp_path: Path) -> None:
    config = RunConfig("split-digits", preset="quick", changes={"base": "frozen", "epochs": 1}, device="cpu")
    whole = run(config, tmp_path / "whole")
    run(config, tmp_path / "broken")
    for name in ("result.json", "report.html"):
        (tmp_path / "broken" / name).unlink(missing_ok=True)
    again = run(config, tmp_path / "broken", resume=True)
    assert again["accuracy"] == whole["accuracy"]
