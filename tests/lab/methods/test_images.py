"""Baselines on a convolutional network with batch normalisation."""

from __future__ import annotations

import pytest
import torch
from three_tasks import learn
from torch import Tensor
from torch.nn import functional as F

from ibpwf.errors import InputError
from ibpwf.lab.methods import method_named, methods
from ibpwf.lab.methods.dense import DenseMethod, Problem
from ibpwf.training.method import Method, TaskData

TABLE_2 = ("adagrad", "l2", "ewc", "online-ewc", "si", "mas", "rehearsal")


def task(index: int, rows: int = 24) -> TaskData:
    """Images whose class is the brightness of their upper half, in a colour of the task's own."""
    generator = torch.Generator().manual_seed(index)
    y = torch.arange(rows) % 2
    x = 0.3 * torch.randn(rows, 3, 8, 8, generator=generator)
    x[:, index % 3, :4] += (2.0 * y - 1).view(-1, 1, 1)
    return TaskData(f"task-{index}", index, (2 * index, 2 * index + 1), x, y, 0)


def make(name: str, setting: str = "task", **changes: object) -> DenseMethod:
    kind = method_named(name)
    assert issubclass(kind, DenseMethod)
    small = {"network": "resnet20", "epochs": 2, "batch_size": 8, **changes}
    if name == "rehearsal":
        small["memory_size"] = 12
    return kind(Problem((3, 8, 8), 4, setting), kind.settings_type(**small), seed=1)


def stored(method: Method) -> dict[str, Tensor]:
    return {f"{f}/{n}": t.clone() for f, part in method.state()[1].items() for n, t in part.items()}


@pytest.mark.parametrize("name", TABLE_2)
def test_the_methods_of_table_2_learn_images_and_go_on_after_loading_with_the_same_bits(name: str) -> None:
    method = make(name, augment="crop-flip")
    learn(method, task(0))
    content, files = method.state()
    loaded = type(method).create(method.configuration())
    loaded.load_state(content, {f: {n: t.clone() for n, t in part.items()} for f, part in files.items()})
    for one in (method, loaded):
        learn(one, task(1))
    ours, theirs = stored(method), stored(loaded)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    answer = method.predict(task(0).x, torch.zeros(24, dtype=torch.long), marginal=False, posterior_samples=0, seed=0)
    assert answer.labels.shape == (24,)


def test_ewcs_fisher_information_of_a_convolutional_network_is_that_of_a_loop() -> None:
    method = make("ewc", "class", fisher_samples=5)
    learn(method, task(0))
    data = task(1, rows=5)
    method.begin_task(data)
    method.net.eval()
    found = method.importance_of(data)
    expected = torch.zeros(len(found), dtype=torch.float64)
    net = method.net.double()
    for x in data.x.double():
        log_p = F.log_softmax(net(x.unsqueeze(0))[0, :4], 0)
        for label in range(4):
            gradients = torch.autograd.grad(log_p[label], list(net.parameters()), retain_graph=True)
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            expected += log_p[label].exp().detach() * flat.square() / 5
    torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=2e-3 * float(expected.max()))


def test_a_method_without_a_network_for_images_says_which_it_has() -> None:
    vcl = method_named("vcl")
    with pytest.raises(InputError, match="network is resnet20, which method 'vcl' does not train; it trains: mlp"):
        vcl(Problem((3, 8, 8), 4, "task"), vcl.settings_type(network="resnet20"))
    adam = method_named("adam")
    with pytest.raises(InputError, match=r"needs images .* shape \(64,\); set network=mlp"):
        adam(Problem((64,), 4, "task"), adam.settings_type(network="resnet20"))


def test_every_method_says_whether_it_trains_images() -> None:
    can = {name for name, kind in methods().items() if "resnet20" in getattr(kind, "networks", ())}
    assert set(TABLE_2) <= can
    assert {"router", "separate-turns"} <= can
    assert can.isdisjoint({"vcl", "ibnn", "dgr", "rtf", "slda", "ridge", "pnn", "const-wf", "gen-classifier"})
