"""Features of images that are also looked at when moved a little."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import router_tasks
from ibpwf import Learner, Settings, export
from ibpwf.errors import InputError
from ibpwf.inference.features.moved import MovedFeatures
from router_tasks import CLASSES, X, examples, network

SETTINGS = Settings(
    inference="router",
    features="patches",
    patch_filters=10,
    patch_grid=2,
    moved_by=1,
    epochs=2,
    finetune_epochs=1,
    held_out=0.1,
    learning_rate=0.02,
)


learned = functools.partial(router_tasks.learned, SETTINGS)


def moved(x: Tensor, by: int) -> Tensor:
    """Moved down and to the right; the mirror image of the border fills what is left."""
    size = x.shape[-1]
    places = torch.tensor([abs(place) if place < size else 2 * (size - 1) - place for place in range(-by, size - by)])
    return x[:, :, places][:, :, :, places]


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("features", ["patches", "patches+adapted"])
def test_they_are_the_mean_of_an_image_and_of_it_moved_either_way_and_nearer(features: str, mirror: bool) -> None:
    learner = learned(1, features=features, mirror=mirror)
    phi = learner.method.features
    assert isinstance(phi, MovedFeatures)
    nearer = F.interpolate(X[:, :, 1:7, 1:7], (8, 8), mode="bicubic", align_corners=False)
    looks = [X, moved(X, 1), F.pad(X, (0, 1, 0, 1), mode="reflect")[:, :, 1:, 1:], nearer]
    torch.testing.assert_close(phi(X), sum(phi.inner(look) for look in looks) / 4)
    assert len(list(phi.views(X))) == (8 if mirror else 4)
    same = Learner(network(), SETTINGS.replace(features=features, mirror=mirror, moved_by=0), seed=1, device="cpu")
    same.learn(*examples(CLASSES[0]))
    assert torch.equal(same.method.features(X), phi.inner(X))


def test_no_later_task_changes_a_bit_of_them_and_a_folder_keeps_them(tmp_path: Path) -> None:
    learner = learned(1, features="patches+adapted")
    before = learner.method.features(X)
    learner.learn(*examples(CLASSES[1]), name="1")
    assert torch.equal(learner.method.features(X), before)
    learner.save(tmp_path / "model")
    again = Learner.load(tmp_path / "model", device="cpu")
    assert torch.equal(again.method.features(X), before)
    assert torch.equal(again.predict(X).probabilities, learner.predict(X).probabilities)
    learner.learn(*examples(CLASSES[2]), name="2")
    again.learn(*examples(CLASSES[2]), name="2")
    assert torch.equal(again.predict(X).probabilities, learner.predict(X).probabilities)


def test_flat_rows_are_moved_as_images() -> None:
    flat, images = learned(1, flat=True, image_shape=(1, 8, 8)), learned(1)
    torch.testing.assert_close(flat.method.features(X.flatten(1)), images.method.features(X))


def test_what_cannot_be_moved_is_refused() -> None:
    rows = Learner(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)), SETTINGS.replace(features="random"))
    with pytest.raises(InputError, match="moved_by is 1, and a row is 5, which is no image"):
        rows.learn(torch.randn(20, 5), torch.arange(20) % 2)
    with pytest.raises(InputError, match="moved_by is 4, and an image is 1 × 8 × 8; give less than half"):
        learned(1, moved_by=4)
    with pytest.raises(InputError, match="moved_by is 0"):
        MovedFeatures(learned(1).method.features, 0)


def test_a_folder_of_other_moves_is_refused() -> None:
    content, tensors = learned(1).method.features.state()
    with pytest.raises(ValueError, match="features have moved_by=1, and the settings say 2"):
        MovedFeatures(learned(1, moved_by=0).method.features, 2).load_state(content, tensors)


def test_one_graph_with_them_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="MovedFeatures, which cannot be put into one graph"):
        export(learned(2), to="onnx", path=tmp_path / "model.onnx")
