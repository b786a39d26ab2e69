"""One optimization step of IBP-WF beside a plain PyTorch step of a dense network of the same widths."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.factors.factorize import factorize
from ibpwf.lab.bench.measure import Row, Setup, milliseconds, ratio, take_turns
from ibpwf.lab.experiments.presets import preset
from ibpwf.method import IBPWF
from ibpwf.models import mlp
from ibpwf.settings import Settings
from ibpwf.training.method import TaskData
from ibpwf.training.step import Step, make_step

STEPS = 40  # in a round


def examples(count: int, inputs: int, classes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random examples: a step takes as long whatever is in them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, inputs, generator=generator)
    y = torch.randint(0, classes, (count,), generator=generator)
    return x.to(device), y.to(device)


def method_of(scenario: str, net: nn.Module, device: torch.device) -> IBPWF:
    """IBP-WF on a network with the paper's settings of a scenario, nothing learned yet."""
    settings = preset(scenario, "paper").make_settings()
    assert isinstance(settings, Settings)
    return IBPWF(factorize(net, **settings.factorization).to(device), settings)


def elbo_step(method: IBPWF, data: TaskData, index: int) -> Step:
    """The ELBO step of task `index`; those before it are trained for one pass and locked."""
    for number in range(index + 1):
        here = TaskData(f"task {number + 1}", number, data.classes, data.x, data.y, data.seed)
        phase = method.begin_task(here)[0]
        step = make_step(method, phase, here.rows)
        if number < index:
            repeat(step, len(here.y) // phase.batch_size)()
            method.end_task(here)
    return step


def repeat(step: Step, times: int) -> Callable[[], None]:
    """That many steps, from the first batch on."""

    def steps() -> None:
        step.start_epoch(torch.Generator().manual_seed(0))
        for _ in range(times):
            step.gradients()
            step.move()

    return steps


def dense_steps(net: nn.Module, x: Tensor, y: Tensor, batch: int, times: int) -> Callable[[], None]:
    """Plain PyTorch, as anybody would write it: gather, forward, backward, fused Adam."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    order = torch.arange(batch * times, device=x.device).view(times, batch)

    def steps() -> None:
        for rows in order:
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(net(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return steps


def multiplications(method: IBPWF, batch: int) -> int:
    """Of the matrix products of one step, forward and back: no operation is so cheap that a step could do with fewer.
    The input needs no gradient, locked factors need none of their own."""
    assert method.network is not None
    total = 0
    for number, layer in enumerate(method.network.factor_layers.values()):
        inputs, outputs = layer.inputs, layer.outputs
        free, used = len(layer.free_at), len(layer.free_at) + len(layer.locked_at)
        deep = int(number > 0)
        through = batch * (inputs * (used + free + deep * used) + outputs * (2 * used + free))
        composed = inputs * outputs * (2 * used + free + batch * (2 + deep))
        total += min(through, composed)
    return total


def bare_steps(method: IBPWF, batch: int, times: int) -> Callable[[], None]:
    """The matrix products of a step, forward and back, and fused Adam on its parameters, with nothing around them:
    what is left of a step if sampling, the KL, autograd and everything small cost nothing at all."""
    assert method.network is not None
    parameters = [nn.Parameter(p.detach().clone()) for p in method.network.trainable(posterior=True)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * 1e-3
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)
    products: list[tuple[Tensor, Tensor]] = []
    for number, layer in enumerate(method.network.factor_layers.values()):
        inputs, outputs = layer.inputs, layer.outputs
        free, used = len(layer.free_at), len(layer.free_at) + len(layer.locked_at)
        x, a, b = torch.rand(batch, inputs), torch.randn(inputs, used), torch.randn(used, outputs)
        g, h, weight, rows = torch.randn(batch, outputs), torch.randn(batch, used), a @ b, b.t().contiguous()
        deep = number > 0
        if batch * used * (inputs + outputs) <= inputs * outputs * (used + batch):
            products += [(x, a), (h, b), (g, b.t()), (h[:, :free].t(), g), (x.t(), h[:, :free])]
            products += [(h, a.t())] if deep else []
        else:
            products += [(rows, a.t()), (x, weight), (g.t(), x), (weight.t(), a), (weight, rows[:, :free])]
            products += [(g, weight.t())] if deep else []

    def steps() -> None:
        for _ in range(times):
            for left, right in products:
                torch.mm(left, right)
            optimizer.step()

    return steps


def moved_by_adam(method: IBPWF) -> int:
    """How many numbers the optimiser moves in an ELBO step."""
    assert method.network is not None
    return sum(parameter.numel() for parameter in method.network.trainable(posterior=True))


def cpu_step(setup: Setup) -> list[Row]:
    """784-400-10 with 400 factors, batch 32: the first task (all factors new) and a later one (some are locked)."""
    x, y = examples(32 * STEPS, 784, 2, setup.device)
    data = TaskData("task", 0, (0, 1), x, y, 0)
    methods = [method_of("split-mnist", mlp(784, [400], 10), setup.device) for _ in range(2)]
    dense = mlp(784, [400], 10).to(setup.device)
    sides = {
        "first task": repeat(elbo_step(methods[0], data, 0), STEPS),
        "later task": repeat(elbo_step(methods[1], data, 1), STEPS),
        "dense": dense_steps(dense, x, y, 32, STEPS),
    }
    bare = {"first task": "products and Adam alone, first task", "later task": "later task, the same"}
    sides |= {name: bare_steps(method, 32, STEPS) for name, method in zip(bare.values(), methods, strict=True)}
    times = take_turns(sides, setup)
    plain = 32 * (784 * 400 * 2 + 400 * 10 * 3)
    size = sum(parameter.numel() for parameter in dense.parameters())
    first, later = (multiplications(method, 32) / plain for method in methods)
    detail = (
        f"{milliseconds(times, STEPS)}; multiplications of the matrix products alone: {first:.2f} × the dense step's "
        f"in the first task, {later:.2f} × in the later one; numbers that Adam moves: "
        f"{' and '.join(f'{moved_by_adam(method) / size:.2f}' for method in methods)} × the dense network's"
    )
    title = "ELBO step, 784-400-10, 400 factors, batch 32, {} ÷ dense eager step with fused Adam"
    return [
        ratio("step", title.format(side), times[side], times["dense"], 1.8, detail=detail)
        for side in ("first task", "later task")
    ]


def gpu_step(setup: Setup) -> list[Row]:
    """Permuted MNIST's network, 784-1000-1000 and a dense head, batch 64."""
    steps = 400
    x, y = examples(64 * steps, 784, 10, setup.device)
    data = TaskData("task", 0, tuple(range(10)), x, y, 0)
    ours, dense = mlp(784, [1000, 1000], 10), mlp(784, [1000, 1000], 10).to(setup.device)
    sides = {
        "IBP-WF": repeat(elbo_step(method_of("permuted-mnist", ours, setup.device), data, 0), steps),
        "dense": dense_steps(dense, x, y, 64, steps),
    }
    times = take_turns(sides, setup)
    what = "ELBO step, 784-1000-1000, dense head, batch 64 ÷ dense eager step with fused Adam"
    return [ratio("step-gpu", what, times["IBP-WF"], times["dense"], 0.6, detail=milliseconds(times, steps))]
