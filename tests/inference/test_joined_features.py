"""Several kinds of features side by side, by name or by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ibpwf import Learner, Settings, export
from ibpwf.errors import InputError
from ibpwf.inference.features.inputs import Inputs
from ibpwf.inference.features.joined import Joined
from ibpwf.inference.features.layer import Layer
from ibpwf.inference.features.patches import Patches
from ibpwf.inference.features.quantiles import Quantiles
from ibpwf.inference.features.random import Random
from router_tasks import CLASSES, SMALL, examples, network

SETTINGS = Settings(
    inference="router",
    epochs=2,
    finetune_epochs=1,
    validation_fraction=0.1,
    **{
        "inference.features": "patches+random",
        "inference.features.patches.filters": 6,
        "inference.features.patches.mirror": True,
        "inference.features.patches.sizes": (3,),
        "inference.features.random.width": 20,
        "input.shape": (1, 8, 8),
    },
)


def images(rows: int, seed: int = 0) -> Tensor:
    return torch.rand(rows, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def learned(tasks: int, settings: Settings = SETTINGS) -> Learner:
    learner = Learner(network(), settings, seed=1)
    for number in range(tasks):
        learner.learn(*examples(CLASSES[number]))
    return learner


def test_each_part_is_fitted_as_it_would_be_alone() -> None:
    x, later = images(40), images(5, seed=1)
    patches, random = Patches(filters=4, sizes=(3,), mirror=True), Random(width=7)
    both = Joined(parts=[Patches(filters=4, sizes=(3,), mirror=True), Random(width=7)])
    batches = [(x, torch.zeros(40))]
    for one in (patches, random, both):
        one.fit(batches, 40, torch.Generator().manual_seed(3))
    assert torch.equal(both(later), torch.cat([patches(later), random(later)], 1))
    views = list(both.views(later))
    assert len(views) == 2
    for found, own in zip(views, patches.views(later), strict=True):
        assert torch.equal(found, torch.cat([own, random(later)], 1))


def test_a_part_that_looks_at_some_rows_takes_them_from_all_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside another that looks at all."""
    monkeypatch.setattr(Quantiles, "rows_to_fit", 50)
    x = torch.linspace(0, 1, 400).unsqueeze(1).repeat(1, 2)  # sorted, as many a table is
    settings = Settings(inference="router", epochs=1, finetune_epochs=1, **{"inference.features": "random"})
    found = []
    quantiles, random = Quantiles(width=8), Random(width=8)
    for features in (quantiles, Joined(parts=(quantiles, random)), Joined(parts=(random, quantiles))):
        net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
        learner = Learner(net, settings.replace(**{"inference.features": features}), seed=3, device="cpu")
        learner.learn(x, torch.arange(400) % 2)
        parts = learner.method.features.parts_to_fit()
        found += [part(x) for part in parts if isinstance(part, Quantiles)]
    assert all(torch.equal(one, found[0]) for one in found)
    assert float(found[0].std(0).min()) > 0, "and not of its first rows alone"


def test_what_is_unread_is_read_by_none() -> None:
    class Reader(Inputs):
        names: tuple[str, ...] = ()

        def unread(self) -> tuple[str, ...]:
            return self.names

    def unread(*parts: tuple[str, ...]) -> tuple[str, ...]:
        return Joined(parts=[Reader(names=part) for part in parts]).unread()

    assert unread(("",), ("",)) == ("",)
    assert unread(("",), ("b.", "c.")) == ("b.", "c.")
    assert unread(("b.1.", "c."), ("b.", "d.")) == ("b.1.",)


def test_a_learner_answers_the_same_after_it_was_stored(tmp_path: Path) -> None:
    learner = learned(2)
    x = examples(CLASSES[1], 30, 100)[0]
    learner.save(tmp_path / "model")
    again = Learner.load(tmp_path / "model")
    assert isinstance(again.method.features, Joined)
    assert torch.equal(again.predict(x).probabilities, learner.predict(x).probabilities)
    for one in (learner, again):
        one.learn(*examples(CLASSES[2]))
    assert torch.equal(again.predict(x).labels, learner.predict(x).labels)


@pytest.mark.parametrize("name", ["2/x", "junk", "0/junk", "-1/mean"])
def test_a_tensor_that_no_part_reads_is_refused(name: str) -> None:
    features = learned(1).method.features
    content, tensors = features.state()
    with pytest.raises(ValueError, match="that nothing reads"):
        features.load_state(content, {**tensors, name: torch.zeros(3)})


def test_old_tasks_answers_stay_and_a_fork_is_apart() -> None:
    learner = learned(1)
    x = examples(CLASSES[0], 30, 100)[0]
    before, phi = learner.logits(x, 0), learner.method.features(x)
    fork = learner.fork()
    learner.learn(*examples(CLASSES[1]))
    assert torch.equal(learner.logits(x, 0), before)
    assert torch.equal(learner.method.features(x), phi)
    assert torch.equal(fork.method.features(x), phi)


def test_together_with_a_layer_of_the_network() -> None:
    learner = learned(2, SETTINGS.replace(**{"inference.features": "layer+inputs"}))
    layer, inputs = learner.method.features.parts_to_fit()  # type: ignore[attr-defined]
    assert isinstance(layer, Layer)
    assert isinstance(inputs, Inputs)
    x, y = examples(CLASSES[0], 20, 100)
    assert (learner.predict(x).labels == y).double().mean() > 0.5


def test_they_are_exported_as_one_graph_where_every_part_can_be(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    learner = learned(2, SETTINGS.replace(**{"inference.features.patches.mirror": False}))
    export(learner, None, "onnx", tmp_path / "all.onnx")
    x = examples(CLASSES[1], 20, 100)[0]
    session = onnxruntime.InferenceSession(str(tmp_path / "all.onnx"))
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {session.get_inputs()[0].name: x.numpy()}), strict=True))
    joint = learner.method.class_log_scores(x)
    assert joint is not None
    np.testing.assert_allclose(found["probabilities"], joint.softmax(1).numpy(), atol=1e-4)


def test_mistakes_are_named() -> None:
    with pytest.raises(InputError, match=r"unknown .*'pathces'"):
        Learner(network(), SETTINGS.replace(**{"inference.features": "pathces+random"}))
    with pytest.raises(InputError, match="at least two"):
        Joined(parts=[Random(width=4)])


@pytest.mark.parametrize(
    ("features", "sentence"),
    [
        (
            "random+random",
            "features is 'random+random', which names 'random' twice; give each kind once, such as",
        ),
        ("patches+random+patches", "names 'patches' twice; give each kind once, such as 'patches+random'."),
        (
            "patches+",
            "features is 'patches+', which has no name beside a +; give each kind once, such as 'patches+backbone'.",
        ),
        ("patches+ +random", "has no name beside a +; give each kind once, such as 'patches+random'."),
        ("+", "features is '+', which has no name beside a +; give each kind once, such as 'patches+backbone'."),
    ],
)
def test_kinds_that_are_blank_or_there_twice_are_refused_with_what_to_give(features: str, sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        Learner(network(), SETTINGS.replace(**{"inference.features": SMALL.get(features, features)}))
    assert sentence in str(refused.value)
