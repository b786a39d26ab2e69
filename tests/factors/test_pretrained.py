"""Starting from trained weights, against torch's singular values and the network the weights came from."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ibpwf import Learner, Settings, factorize
from ibpwf.errors import InputError
from ibpwf.lab.data.tasks import Scenario
from ibpwf.models import mlp, resnet, vit_tiny


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Attending(nn.Module):
    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 2, stride=2)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(self.stem(x).flatten(2).transpose(1, 2)).mean(1))
        return out


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: mlp(8, [12, 6], 5), (7, 8)),
    "resnet": (lambda: resnet(8, 4, classes=5, in_channels=1), (7, 1, 8, 8)),
    "grouped and dilated": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 8, 3, dilation=2, bias=False),
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 8, 3, groups=8),
            nn.Flatten(),
            nn.Linear(32, 5),
        ),
        (7, 1, 8, 8),
    ),
    "transformer": (lambda: vit_tiny(8, 4, width=12, depth=2, heads=3, classes=5, in_channels=1), (7, 1, 8, 8)),
    "torch's attention": (Attending, (7, 1, 8, 8)),
}


def trained(name: str) -> tuple[nn.Module, Tensor]:
    """A network that has weights, biases, normalisation and running statistics to keep."""
    torch.manual_seed(0)
    make, shape = NETS[name]
    net = make()
    generator = seeded(1)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
        for key, buffer in net.named_buffers():
            if "running" in key:
                buffer.add_(torch.rand(buffer.shape, generator=generator))
    return net.eval(), torch.randn(shape, generator=generator)


def matrix(net: nn.Module, parameter: str) -> Tensor:
    return net.get_parameter(parameter).detach().flatten(1).T.double()


@pytest.mark.parametrize("heads", ["shared", "per-task"])
@pytest.mark.parametrize("name", NETS)
def test_at_full_rank_the_first_task_starts_from_what_the_network_computes(name: str, heads: str) -> None:
    net, x = trained(name)
    with torch.no_grad():
        expected = net(x)
    model = factorize(net, init="pretrained", heads=heads)
    assert all(fit.factors == fit.rank and fit.relative_error < 1e-6 for fit in model.fits().values())
    with torch.no_grad():
        torch.testing.assert_close(model.fitted_network()(x), expected, rtol=1e-5, atol=1e-5)
        network = model.start_task(5, seeded(2)).eval()
        network.fix_selection()
        torch.testing.assert_close(network(x), expected, rtol=1e-5, atol=1e-5)
    model.finish_task(network)
    torch.testing.assert_close(model.logits(x, 0), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NETS)
def test_with_fewer_factors_the_error_is_that_of_the_singular_values_left_out(name: str) -> None:
    net, x = trained(name)
    model = factorize(net, init="pretrained", max_factors=3)
    fitted, network = model.fitted_network(), model.start_task(5, seeded()).eval()
    for layer, fit in model.fits().items():
        parameter = model.weights[layer].parameter
        given = matrix(net, parameter)
        values = torch.linalg.svdvals(given)
        left = math.sqrt(float(values[3:].square().sum()))
        assert fit.factors == min(3, len(values))
        assert fit.relative_error == pytest.approx(left / float(values.norm()), rel=1e-4, abs=1e-6)
        error = torch.linalg.matrix_norm(given - matrix(fitted, parameter), ord=2)  # Eckart–Young, the other norm
        assert float(error) == pytest.approx(float(values[3]) if len(values) > 3 else 0.0, rel=1e-4, abs=1e-5)
    network.fix_selection()
    with torch.no_grad():
        torch.testing.assert_close(network(x), fitted(x), rtol=1e-4, atol=1e-5)


def test_the_largest_singular_values_take_the_first_sticks_and_all_start_nearly_certain() -> None:
    net, _ = trained("mlp")
    network = factorize(net, init="pretrained", alpha={"hidden1": 500.0, "*": 4.0}).start_task(5, seeded())
    for row, (name, layer) in enumerate(network.factor_layers.items()):
        n = network.posterior.widths[row]
        values = np.linalg.svd(net.get_submodule(name).weight.detach().double().numpy(), compute_uv=False)
        lengths = layer.free_a.norm(dim=1) * layer.free_b.norm(dim=1)
        np.testing.assert_allclose(lengths.detach().numpy(), values, rtol=1e-4)
        np.testing.assert_allclose(layer.free_a.norm(dim=1).detach(), layer.free_b.norm(dim=1).detach(), rtol=1e-4)
        assert network.posterior.strength[row, :n].tolist() == [1.0] * n
        assert bool((network.posterior.logit[row, :n].sigmoid() >= 0.99 - 1e-6).all())
        np.testing.assert_allclose(network.posterior.prior_c[row, :n], 500.0 if name == "hidden1" else 4.0)
    assert float(network.posterior.logit[0, 0].detach().sigmoid()) == pytest.approx(500 / 501, rel=1e-5)


def test_factors_that_were_fitted_are_trained_by_the_first_task_and_not_added_to() -> None:
    net, x = trained("mlp")
    network = factorize(net, init="pretrained", alpha=4).start_task(5, seeded())
    network.noise = seeded(1)
    before = [layer.free_a.detach().clone() for layer in network.factor_layers.values()]
    assert network.grow() == 0
    optimizer = torch.optim.Adam(network.trainable(posterior=True), lr=0.01)
    network(x).square().sum().backward()
    optimizer.step()
    for layer, old in zip(network.factor_layers.values(), before, strict=True):
        assert bool((layer.free_a != old).any(1).all())


@pytest.mark.parametrize("heads", ["shared", "per-task"])
@pytest.mark.parametrize("name", NETS)
def test_a_later_task_starts_where_the_task_before_it_ended(name: str, heads: str) -> None:
    net, x = trained(name)
    model = factorize(net, init="pretrained", heads=heads, alpha=4)
    for task in range(2):
        network = model.start_task(5, seeded(task))
        generator = seeded(task + 10)
        with torch.no_grad():
            for parameter in network.trainable(posterior=True):
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
            network.posterior.logit.add_(torch.randn(network.posterior.logit.shape, generator=generator))
        model.finish_task(network)
    network = model.start_task(5, seeded(5)).eval()
    assert all(len(layer.free_at) > 0 for layer in network.factor_layers.values()), "there is room for new factors"
    network.fix_selection()
    start = copy.deepcopy(network.network.state_dict())
    own = model.tasks[-1].own
    dense = {key for key in own if heads == "per-task" and key.startswith(f"{model.head}.")}
    assert all(torch.equal(start[key], value) for key, value in own.items() if key not in dense)
    if heads == "shared":
        with torch.no_grad():
            torch.testing.assert_close(network(x), model.logits(x, 1), rtol=1e-4, atol=1e-5)


def test_a_weight_of_zeros_is_fitted_exactly_and_can_still_be_learnt() -> None:
    net, x = trained("mlp")
    with torch.no_grad():
        net.get_submodule("head").weight.zero_()
        net.get_submodule("hidden2").weight[2:].zero_()  # rank two
    model = factorize(net, init="pretrained")
    assert max(fit.relative_error for fit in model.fits().values()) < 1e-6
    network = model.start_task(5, seeded())
    network.fix_selection()
    with torch.no_grad():
        torch.testing.assert_close(network(x), net(x), rtol=1e-5, atol=1e-5)
    optimizer = torch.optim.Adam(network.trainable(posterior=False), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), torch.arange(7) % 5).backward()
        optimizer.step()
    network(x)  # a layer has the scores of the last pass
    for name in ("head", "hidden2"):
        weight = network.factor_layers[name].weight.detach()
        assert int(torch.linalg.matrix_rank(weight)) > 2, "unused directions have come alive"


def test_a_dense_head_of_another_width_starts_afresh_while_the_rest_is_fitted() -> None:
    net, x = trained("resnet")
    network = factorize(net, init="pretrained", heads="per-task").start_task(3, seeded()).eval()
    network.fix_selection()
    hidden: list[Tensor] = []
    for module in (net, network.network):
        module.get_submodule("stages").register_forward_hook(lambda m, args, out: hidden.append(out.detach()))
    with torch.no_grad():
        net(x)
        assert network(x).shape == (7, 3)
    torch.testing.assert_close(hidden[1], hidden[0], rtol=1e-5, atol=1e-5)


def test_without_trained_weights_there_is_no_fit_to_tell_of() -> None:
    model = factorize(mlp(4, [4], 2))
    for ask in (model.fits, model.fitted_network):
        with pytest.raises(InputError, match=r"init is 'random'; only factorize\(net, init='pretrained'\)"):
            ask()


def test_a_learner_given_trained_weights_is_good_at_once_and_forgets_nothing(
    digits: Scenario, tmp_path: Path
) -> None:
    """A network trained on all digits knows the second task's before it has learnt any step of the first."""
    torch.manual_seed(0)
    net = mlp(64, [32], 2)
    x, y = (torch.cat([getattr(task.train, part) for task in digits]) for part in ("x", "y"))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y % 2).backward()
        optimizer.step()
    small = Settings(epochs=1, finetune_epochs=1, learning_rate=1e-3, batch_size=16)
    accuracy = {}
    for init in ("random", "pretrained"):
        learner = Learner(net, small.replace(init=init))
        answers = []
        for task in digits[:3]:
            learner.learn(task.train.x, task.train.y)
            answers.append(learner.logits(x, -1))
        right = [learner.predict(t.test.x, task=n).labels == t.test.y for n, t in enumerate(digits[:3])]
        accuracy[init] = float(torch.cat(right).double().mean())
        learner.save(tmp_path / init)
        again = Learner.load(tmp_path / init)
        assert again.settings.init == init
        for number, expected in enumerate(answers):
            assert torch.equal(learner.logits(x, number), expected)
            assert torch.equal(again.logits(x, number), expected)
    assert accuracy["pretrained"] > 0.95
    assert accuracy["pretrained"] > accuracy["random"]
