"""A merged task goes wherever a network goes: torch.export, torch.compile and ONNX Runtime agree with it."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from ibpwf import Learner, Settings, models


class Attending(nn.Module):
    """A network with torch's own attention and a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.stem(x).flatten(2).transpose(1, 2)
        mixed = self.layer(torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1))
        out: Tensor = self.head(mixed[:, 0])
        return out


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=2, dilation=2, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, stride=2, groups=6),
        nn.GroupNorm(2, 6),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 5),
    )


NETS: dict[str, Callable[[], nn.Module]] = {
    "convolutions": convolutions,
    "vit": lambda: models.vit_tiny(8, 4, width=12, depth=2, heads=3, classes=5, in_channels=1),
    "attention": Attending,
}
X = torch.randn(24, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def learned(name: str, heads: str) -> Learner:
    torch.manual_seed(0)
    settings = Settings(alpha=4.0, epochs=2, finetune_epochs=1, batch_size=8, learning_rate=0.01, heads=heads)
    learner = Learner(NETS[name](), settings, device="cpu")
    for task in range(2):
        learner.learn(X + task, torch.arange(24) % 3)
    return learner


@pytest.fixture(scope="module", params=[("shared", name) for name in NETS] + [("per-task", "convolutions")], ids=str)
def merged(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    """A merged network and what the learner answers; the task has three of the five classes."""
    heads, name = request.param
    learner = learned(name, heads)
    return learner.merge(1), learner.logits(X, 1)


def relative_error(got: Tensor, expected: Tensor) -> float:
    assert got.shape == expected.shape
    return float((got.detach() - expected).abs().max() / expected.abs().max())


def test_a_merged_network_answers_as_the_learner_does(merged: tuple[nn.Module, Tensor]) -> None:
    net, expected = merged
    assert relative_error(net(X), expected) < 1e-6
    with torch.no_grad():
        assert relative_error(net(X), expected) < 1e-6


def test_torch_export_agrees_for_any_number_of_rows(merged: tuple[nn.Module, Tensor]) -> None:
    net, expected = merged
    exported = torch.export.export(net, (X,), dynamic_shapes=({0: Dim("rows")},)).module()
    assert relative_error(exported(X), expected) < 1e-5
    assert relative_error(exported(X[:5]), expected[:5]) < 1e-5


def test_torch_compile_agrees_in_one_graph(merged: tuple[nn.Module, Tensor]) -> None:
    net, expected = merged
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert relative_error(compiled(X), expected) < 1e-5


@pytest.mark.slow
def test_compiled_to_machine_code_it_agrees_as_well(merged: tuple[nn.Module, Tensor]) -> None:
    net, expected = merged
    torch._dynamo.reset()
    # With gradients wanted, attention does not take the fast path, whose layout torch's compiler gets wrong.
    assert relative_error(torch.compile(net)(X), expected) < 1e-5


def test_onnx_runtime_agrees_for_any_number_of_rows(merged: tuple[nn.Module, Tensor]) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    net, expected = merged
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(net, (X,), dynamo=True, dynamic_shapes=({0: Dim("rows")},), verbose=False)
    file = io.BytesIO()
    program.save(file)
    session = runtime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    (name,) = (given.name for given in session.get_inputs())
    for rows in (24, 7):
        (got,) = session.run(None, {name: X[:rows].numpy()})
        assert isinstance(got, np.ndarray)
        assert relative_error(torch.from_numpy(got), expected[:rows]) < 1e-5
