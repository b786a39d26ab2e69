"""Beside a frozen base, tasks trained compiled, in bfloat16 or with gradient checkpointing, and as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ibpwf import Learner, Settings
from ibpwf.dispatch import accelerated
from ibpwf.errors import InputError

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SETTINGS = Settings(
    base="frozen",
    epochs=3,
    finetune_epochs=2,
    batch_size=8,
    **{"inference.features": "random", "inference.features.width": 8},
)


class Blocks(nn.Module):
    """Two blocks of convolutions with dropout, each of which may be calculated again for its gradients."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.reentrant, self.passes = reentrant, 0
        self.first = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(), nn.Dropout(0.3))
        self.second = nn.Sequential(nn.Conv2d(6, 6, 3, stride=2, padding=1), nn.GroupNorm(2, 6), nn.ReLU())
        self.head = nn.Linear(6 * 16, 3)

    def _counted(self, x: Tensor) -> Tensor:
        self.passes += 1
        h: Tensor = self.second(x)
        return h

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            h = self._counted(self.first(x))
        else:
            h = self.first(x) if self.reentrant else checkpoint(self.first, x, use_reentrant=False)
            h = checkpoint(self._counted, h, use_reentrant=self.reentrant)
        logits: Tensor = self.head(h.flatten(1))
        return logits


class Plain(nn.Module):
    """Without dropout, which compilers draw from numbers of their own; attention reads its weights itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.attention, self.head = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        h, _ = self.attention(h, h, h, need_weights=False)
        logits: Tensor = self.head(h.mean(1))
        return logits


def made(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build()


def rows(task: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(32, 1, 8, 8, generator=torch.Generator().manual_seed(task))
    return x, torch.arange(32) % (2 + task % 2)


def taught(net: nn.Module, device: str = "cpu", **changes: Any) -> tuple[Learner, list[Tensor]]:
    """A learner of three tasks, and each task's logits when it had just been learned; later ones change none."""
    learner, logits = Learner(net, SETTINGS.replace(**changes), seed=2, device=device), []
    for task in range(3):
        learner.learn(*rows(task), task=str(task))
        logits.append(learner.logits(rows(9)[0], task))
        assert all(torch.equal(learner.logits(rows(9)[0], number), old) for number, old in enumerate(logits))
    return learner, logits


class Counting:
    """A backend of torch.compile that runs graphs as they are and counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
        self.graphs += 1
        return graph.forward


def test_a_compiled_network_is_trained_compiled_in_one_graph_and_learns_the_same(tmp_path: Path) -> None:
    plain, expected = taught(made(Plain))
    backend = Counting()
    compiled = torch.compile(made(Plain), backend=backend, fullgraph=True)
    assert isinstance(compiled, nn.Module)
    learner, logits = taught(compiled)
    assert backend.graphs >= 3, "one for each task at least"
    for one, other in zip(logits, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert [*learner.model.layers] == [*plain.model.layers]
    assert type(learner.merge("0")) is Plain
    learner.save(tmp_path / "model")
    for net in (made(Plain), torch.compile(made(Plain), backend="eager")):
        assert isinstance(net, nn.Module)
        again = Learner.load(tmp_path / "model", net=net, device="cpu")
        assert torch.equal(again.logits(rows(9)[0], "1"), logits[1])


def test_gradients_of_a_compiled_network_are_those_of_the_plain_one() -> None:
    found = []
    for compiled in (False, True):
        learner, _ = taught(made(Plain))
        learner.model.compiler = torch.compile(made(Plain), backend="aot_eager").dynamo_ctx if compiled else None
        network = learner.model.start_task(3, torch.Generator().manual_seed(0))
        network.noise = torch.Generator().manual_seed(1)
        x, y = rows(1)
        loss = F.cross_entropy(network(x), y)
        parameters = network.trainable(posterior=True)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        found.append([loss, *(gradient for gradient in gradients if gradient is not None)])
    assert len(found[0]) == len(found[1])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_merged_network_can_be_compiled() -> None:
    learner, logits = taught(made(Plain))
    with torch.no_grad():
        answer = torch.compile(learner.merge("0"), backend="aot_eager", fullgraph=True)(rows(9)[0])
    torch.testing.assert_close(answer, logits[0], rtol=1e-5, atol=1e-5)


def test_blocks_that_are_calculated_again_for_their_gradients_learn_the_same_bits() -> None:
    _, expected = taught(made(Blocks))
    net = made(lambda: Blocks(reentrant=False))
    learner, logits = taught(net)
    assert all(torch.equal(one, other) for one, other in zip(logits, expected, strict=True))
    network = learner.model.start_task(3, torch.Generator().manual_seed(0))
    inner = network.network
    assert isinstance(inner, Blocks)
    before = inner.passes
    F.cross_entropy(network(rows(0)[0]), rows(0)[1]).backward()
    assert inner.passes == before + 2


def test_the_kind_of_checkpointing_that_cannot_work_is_refused_with_the_one_that_does() -> None:
    with pytest.raises(InputError, match="use_reentrant=False"):
        taught(made(lambda: Blocks(reentrant=True)))


@pytest.mark.parametrize("accelerate", [True, False])
@pytest.mark.parametrize("build", [Plain, Blocks])
def test_a_loss_in_bfloat16_is_that_in_full_precision_to_three_digits(
    build: Callable[[], nn.Module], accelerate: bool
) -> None:
    learner, _ = taught(made(build))
    found: list[list[Tensor]] = []
    for rounded in (False, True):
        with accelerated(accelerate), torch.random.fork_rng():
            torch.manual_seed(1)
            network = learner.model.start_task(3, torch.Generator().manual_seed(0))
            network.noise = torch.Generator().manual_seed(1)
            with torch.no_grad():
                for layer in network.factor_layers.values():
                    layer.free_b.normal_(std=0.1, generator=torch.Generator().manual_seed(2))
            with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
                logits = network(rows(1)[0])
                assert logits.dtype == (torch.bfloat16 if rounded else torch.float32)
                loss = F.cross_entropy(logits, rows(1)[1])
            loss.backward()  # type: ignore[no-untyped-call]
        parameters = [p for p in network.trainable(posterior=True) if p.grad is not None]
        assert all(p.dtype == torch.float32 for p in parameters)
        found.append([loss.detach(), *(p.grad for p in parameters if p.grad is not None)])
    torch.testing.assert_close(found[1][0], found[0][0], rtol=0, atol=5e-3)
    rounded, exact = (torch.cat([gradient.flatten() for gradient in each[1:]]) for each in reversed(found))
    assert float((rounded - exact).norm()) <= 0.1 * float(exact.norm())
    for one, other in zip(*found, strict=True):  # of few numbers that nearly cancel less is left
        assert float((one - other).norm()) <= 0.2 * float(other.norm()) + 0.02 * float(exact.norm())


@GPU
def test_on_a_gpu_tasks_learned_in_bfloat16_answer_nearly_alike_and_forget_nothing() -> None:
    _, expected = taught(made(Plain), "cuda")
    _, logits = taught(made(Plain), "cuda", precision="bfloat16")
    for one, other in zip(logits, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0.1, atol=0.1)


@GPU
def test_on_a_gpu_a_compiled_network_learns_what_the_plain_one_does() -> None:
    _, expected = taught(made(Plain), "cuda")
    compiled = torch.compile(made(Plain))
    assert isinstance(compiled, nn.Module)
    _, logits = taught(compiled, "cuda")
    for one, other in zip(logits, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


class Watched(list[torch.optim.Optimizer]):
    """Makes the optimizer that the settings ask for, and remembers it."""

    def __call__(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        self.append(torch.optim.Adam(parameters, lr=1e-3))
        return self[-1]


def test_the_optimizer_keeps_numbers_of_the_tasks_factors_and_what_is_its_own_alone() -> None:
    net = made(Plain)
    net.norm.requires_grad_(False)
    optimizers = Watched()
    learner = Learner(net, SETTINGS, seed=2, device="cpu", optimizer=optimizers)
    learner.learn(*rows(0))
    learner.learn(*rows(1))
    base = learner.model.base_weights().values()
    for optimizer in optimizers[2:]:  # of the second task: there are locked factors by now
        moved = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        assert {*optimizer.state} == {*moved}
        assert not any(torch.equal(parameter, weight) for parameter in moved for weight in base)
        kept = sum(tensor.numel() for state in optimizer.state.values() for tensor in state.values() if tensor.ndim)
        assert kept == 2 * sum(parameter.numel() for parameter in moved)
    begun = learner.model.start_task(3, torch.Generator().manual_seed(0))
    free = [part for layer in begun.factor_layers.values() for part in (layer.free_a, layer.free_b)]
    biases = [layer.bias for layer in begun.factor_layers.values() if layer.bias is not None]
    own = [begun.network.get_parameter(f"attention.{name}") for name in ("in_proj_bias", "out_proj.bias")]
    allowed = {id(p) for p in (*free, *biases, *own, *begun.posterior.parameters())}
    assert {id(p) for p in begun.trainable(posterior=True)} == allowed
