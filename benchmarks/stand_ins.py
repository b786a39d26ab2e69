"""What each stand-in of `ibpwf.fast` saves: beside the reference function it stands for, and beside torch.compile of
that reference.

    python benchmarks/stand_ins.py                # on a CPU; writes docs/results/stand-ins/stand_ins.json
    python benchmarks/stand_ins.py --device cuda  # the same on a GPU, each side recorded as a CUDA graph

Sides take turns, round by round, in one process; a time is the median over rounds. Sizes are those of Split MNIST's
network, 784-400-10 with 400 factors a layer, batch 32.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from record import RESULTS, made_by, options, write
from torch import Tensor, nn

import ibpwf.fast.registered  # noqa: F401 (registers them)
from ibpwf.dispatch import accelerated
from ibpwf.factors import elbo
from ibpwf.factors.dictionary import FactorBlock
from ibpwf.factors.layers import assign_scores, factor_layer, layer_product, layer_weight
from ibpwf.inference.base import infer_tasks
from ibpwf.inference.features.random import Random
from ibpwf.inference.gaussian import Gaussian
from ibpwf.training.phase import Phase, make_optimizer

ROUNDS, CALLS = 15, 20
Side = Callable[[], object]


def with_gradient(function: Callable[..., Tensor], inputs: list[Tensor], *fixed: Any) -> Side:
    """A call of `function`, and the gradient of its sum by `inputs`."""

    def run() -> object:
        return torch.autograd.grad(function(*inputs, *fixed).sum(), inputs)

    return run


def kl_sides(device: torch.device, later: bool, terms: int | None) -> dict[str, Side]:
    generator = torch.Generator().manual_seed(0)

    def drawn(low: float, high: float) -> Tensor:
        return (torch.rand(2, 400, generator=generator) * (high - low) + low).to(device)

    q = [drawn(-3, 3), drawn(4, 6), drawn(-1, 1)]
    prior = elbo.StickPrior(drawn(4, 6).exp(), drawn(-1, 1).exp() if later else None)
    noise, mask = drawn(0.1, 3), torch.ones(2, 400, device=device)

    def kl(logit: Tensor, log_c: Tensor, log_d: Tensor) -> Tensor:
        return elbo.posterior_kl(elbo.Posterior(logit, log_c, log_d), prior, noise, mask, terms)

    def plain(logit: Tensor, log_c: Tensor, log_d: Tensor) -> Tensor:
        q = elbo.Posterior(logit, log_c, log_d)
        return ((elbo.selection_kl(q, noise) + elbo.stick_kl(q, prior, terms)) * mask).sum()

    inputs = [part.requires_grad_() for part in q]
    return sides(with_gradient(kl, inputs), with_gradient(torch.compile(plain), inputs))


def scores_sides(device: torch.device) -> dict[str, Side]:
    from ibpwf.factors.distributions import concrete_sample

    strength, logit = (torch.randn(2, 400, device=device).requires_grad_() for _ in range(2))
    uniform, temperature = torch.rand(2, 400, device=device), torch.tensor(0.6, device=device)

    def plain(strength: Tensor, logit: Tensor) -> Tensor:
        return strength * concrete_sample(logit, temperature, uniform.logit(eps=1e-7))

    def scores(strength: Tensor, logit: Tensor) -> Tensor:
        return elbo.sample_scores(strength, logit, temperature, uniform)

    return sides(with_gradient(scores, [strength, logit]), with_gradient(torch.compile(plain), [strength, logit]))


def layer_sides(device: torch.device, outputs: int) -> dict[str, Side]:
    """A layer of a later task, with 200 locked factors and 100 free ones. The hidden layer goes through its factors,
    the head is composed."""
    hidden = outputs > 10
    inputs = 784 if hidden else 400
    x = torch.randn(32, inputs, device=device)

    def side(fast: bool) -> Side:
        locked = FactorBlock(torch.randn(inputs, 200), torch.randn(200, outputs), torch.arange(200))
        with accelerated(fast):
            layer = factor_layer(nn.Linear(inputs, outputs), locked)
            layer.set_free(torch.randn(100, inputs), torch.randn(100, outputs), torch.arange(200, 300))
            layer.to(device)
        scores = torch.randn(1, 300, device=device).requires_grad_()

        def run() -> object:
            with accelerated(fast):
                assign_scores(scores, [layer])
                y = layer_product(layer, x) if hidden else x @ layer_weight(layer)
            return torch.autograd.grad(y.sum(), [scores, layer.free_a, layer.free_b])

        return run

    return {"reference": side(False), "stand-in": side(True)}


def adam_sides(device: torch.device, clip: float | None) -> dict[str, Side]:
    def side(fast: bool) -> Side:
        shapes = [(400, 784), (400, 400), (400,), (400, 400), (400, 10), (10,)]
        parameters = [nn.Parameter(torch.randn(*shape, device=device)) for shape in shapes]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        with accelerated(fast):
            optimizer = make_optimizer(Phase("p", 1, 32, clip=clip), parameters)

        def run() -> object:
            if clip is not None and not hasattr(optimizer, "clip"):
                nn.utils.clip_grad_value_(parameters, clip)
            return optimizer.step()

        return run

    return {"reference": side(False), "stand-in": side(True)}


def inference_sides(device: torch.device) -> dict[str, Side]:
    """A hundred tasks whose φ lie apart, 256 rows of one of them."""
    features, inference = Random(width=300), Gaussian()
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(400, 64, generator=generator) + 3 * torch.randn(64, generator=generator) for _ in range(100)]
    features.fit([(rows[0].to(device), torch.zeros(400))], 400, generator)
    for number, x in enumerate(rows):
        inference.learn(number, [(features(x.to(device)), torch.zeros(400, device=device))], 1)
    asked = rows[7][:256].to(device)
    return sides(lambda: infer_tasks(inference, features, asked), None)


def sides(call: Side, compiled: Side | None) -> dict[str, Side]:
    def reference() -> object:
        with accelerated(False):
            return call()

    return {"reference": reference, "stand-in": call, **({"compiled": compiled} if compiled else {})}


def recorded(side: Side) -> Side:
    """A side as a CUDA graph: what it costs inside a recorded step."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            side()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        side()
    return graph.replay


def measure(made: dict[str, Side], device: torch.device, record: bool) -> dict[str, Any]:
    """Milliseconds a call, side by side in turns, and the seconds until a side first answered."""
    gpu = device.type == "cuda"
    clock, wait = (time.perf_counter, torch.cuda.synchronize) if gpu else (time.process_time, lambda: None)
    row: dict[str, Any] = {"first_call_s": {}, "ms": {}, "failed": {}}
    ready: dict[str, Side] = {}
    for name, side in made.items():
        started = time.perf_counter()
        try:
            side()
            ready[name] = recorded(side) if record else side
        except Exception as error:  # a compiler may be missing, or fail
            row["failed"][name] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
            continue
        row["first_call_s"][name] = round(time.perf_counter() - started, 2)
    times: dict[str, list[float]] = {name: [] for name in ready}
    for _ in range(ROUNDS):
        for name, side in ready.items():
            wait()
            started = clock()
            for _ in range(CALLS):
                side()
            wait()
            times[name].append(1e3 * (clock() - started) / CALLS)
    row["ms"] = {name: round(statistics.median(found), 4) for name, found in times.items()}
    return row


Case = tuple[str, str, Callable[[torch.device], dict[str, Side]], bool]
CASES: list[Case] = [  # the reference, in which case, its sides, and whether it is part of a recorded step
    ("factors.elbo.posterior_kl", "first task, Beta prior", lambda device: kl_sides(device, False, None), True),
    ("factors.elbo.posterior_kl", "later task, 10 terms", lambda device: kl_sides(device, True, 10), True),
    ("factors.elbo.posterior_kl", "later task, whole series", lambda device: kl_sides(device, True, None), True),
    ("factors.elbo.sample_scores", "two layers of 400", scores_sides, True),
    ("factors.layers.layer_product", "later task, 784-400", lambda device: layer_sides(device, 400), True),
    ("factors.layers.layer_weight", "later task, 400-10", lambda device: layer_sides(device, 10), True),
    ("training.phase.make_optimizer", "Adam, 638,410 numbers", lambda device: adam_sides(device, None), False),
    ("training.phase.make_optimizer", "Adam that clips", lambda device: adam_sides(device, 0.5), False),
    ("inference.base.infer_tasks", "100 tasks, 256 rows of one", inference_sides, False),
]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    device, rows = torch.device(asked.device), []
    for reference, what, make, in_step in CASES:
        found = measure(make(device), device, in_step and device.type == "cuda")
        rows.append({"reference": reference, "what": what, **found})
        print(rows[-1], flush=True)
    folder = asked.out or RESULTS / ("stand-ins" if asked.device == "cpu" else "stand-ins-gpu")
    write(folder / "stand_ins.json", {"schema": 1, **made_by(asked.device), "rows": rows})


if __name__ == "__main__":
    main()
