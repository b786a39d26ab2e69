"""What the network makes of inputs under the first task's weights, on one scale."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import router_tasks
from ibpwf import Learner, Settings, export
from ibpwf.errors import InputError
from ibpwf.inference.base import Context
from ibpwf.inference.features import adapted
from ibpwf.inference.features.adapted import Adapted
from router_tasks import CLASSES, X, examples, network

SETTINGS = Settings(
    inference="router",
    epochs=2,
    finetune_epochs=1,
    validation_fraction=0.1,
    learning_rate=0.02,
    **{"inference.features": "adapted"},
)
LAYERS = ("0", "4")


learned = functools.partial(router_tasks.learned, SETTINGS)


def outputs(learner: Learner, layers: tuple[str, ...], x: Tensor) -> np.ndarray:
    """Of the first task as an ordinary network, averaged over space."""
    found: dict[str, Tensor] = {}
    net = learner.merge("0").eval()
    for name in layers:
        net.get_submodule(name).register_forward_hook(
            lambda module, given, out, name=name: found.update(
                {name: out.flatten(2).mean(2) if out.ndim > 2 else out}
            )
        )
    with torch.no_grad():
        net(x)
    each = [found[name].flatten(2).mean(2) if found[name].ndim > 2 else found[name] for name in layers]
    return torch.cat(each, 1).double().numpy()


@pytest.mark.parametrize("mirror", [False, True])
def test_they_are_the_first_tasks_outputs_on_one_scale(mirror: bool) -> None:
    learner = learned(1, validation_fraction=0.0, **{"inference.features": Adapted(layers=LAYERS, mirror=mirror)})
    seen, _ = examples(CLASSES[0])
    views = [(seen, X), (seen.flip(-1), X.flip(-1))] if mirror else [(seen, X)]
    own = np.concatenate([outputs(learner, LAYERS, rows) for rows, _ in views])
    wanted = []
    for _, rows in views:
        scaled = (outputs(learner, LAYERS, rows) - own.mean(0)) / np.sqrt(own.var(0) + 1e-8)
        wanted.append(scaled)
    found = learner.method.features(X)
    np.testing.assert_allclose(found.double().numpy(), np.mean(wanted, axis=0), atol=1e-3)
    assert len(list(learner.method.features.views(X))) == len(views)


def test_many_rows_are_looked_at_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learned(1, **{"inference.features.layers": LAYERS})
    features = learner.method.features
    whole, seen = features(X), []
    monkeypatch.setitem(adapted.ROWS_AT_ONCE, "cpu", 7)
    outputs = features._outputs
    features._outputs = lambda rows: seen.append(len(rows)) or outputs(rows)
    torch.testing.assert_close(features(X), whole, rtol=1e-4, atol=1e-4)
    assert max(seen) == 7
    assert sum(seen) == len(X)


@pytest.mark.parametrize("features", ["adapted", "adapted+random"])
def test_no_later_task_changes_a_bit_of_them(features: str, tmp_path: Path) -> None:
    learner = learned(1, **{"inference.features": features})
    before = learner.method.features(X)
    for number in (1, 2):
        learner.learn(*examples(CLASSES[number]), task=str(number))
    assert torch.equal(learner.method.features(X), before)
    learner.save(tmp_path / "model")
    again = Learner.load(tmp_path / "model", device="cpu")
    assert torch.equal(again.method.features(X), before)
    assert torch.equal(again.predict(X).probabilities, learner.predict(X).probabilities)


def test_they_outlive_the_first_task() -> None:
    learner = learned(3, **{"inference.keep_sums_per_task": True})
    before = learner.method.features(X)
    learner.forget("0")
    torch.testing.assert_close(learner.method.features(X), before, rtol=0, atol=0)


def test_without_a_name_they_are_of_the_last_layer_before_the_head() -> None:
    features = learned(1).method.features
    assert isinstance(features, Adapted)
    assert features._outputs.layers_read == ("4",)
    assert features(X).shape == (len(X), 16)


def test_flat_rows_are_mirrored_as_images() -> None:
    flat = learned(
        1, flat=True, **{"input.shape": (1, 8, 8), "inference.features": Adapted(layers=("1",), mirror=True)}
    )
    mirrored = X.flip(-1).flatten(1)
    torch.testing.assert_close(flat.method.features(mirrored), flat.method.features(X.flatten(1)))


def test_rows_that_are_no_images_have_no_mirror_image() -> None:
    learner = Learner(
        nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)),
        SETTINGS.replace(**{"inference.features.mirror": True}),
    )
    with pytest.raises(InputError, match="mirror is True, and a row is 5, which is no image"):
        learner.learn(torch.randn(20, 5), torch.arange(20) % 2)


def test_a_mistyped_layer_is_named() -> None:
    with pytest.raises(InputError, match="unknown layer of the features 'nine'"):
        Learner(network(), SETTINGS.replace(**{"inference.features.layers": ("nine",)}))


@pytest.mark.parametrize("fault", ["mirror", "deviation", "widths", "gone"])
def test_a_folder_that_does_not_fit_is_refused(fault: str) -> None:
    learner = learned(1)
    content, tensors = learner.method.features.state()
    other = Adapted().bound(Context(learner.model))
    if fault == "mirror":
        content["mirror"] = True
    elif fault == "deviation":
        tensors["deviation"] = tensors["deviation"] * 0
    elif fault == "widths":
        tensors["deviation"] = tensors["deviation"][:-1]
    else:
        del tensors["mean"]
    with pytest.raises(ValueError, match=r"mirror|deviation|mean"):
        other.load_state(content, tensors)


def test_one_graph_with_them_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Adapted.*cannot be put into one graph"):
        export(learned(2), to="onnx", path=tmp_path / "model.onnx")
