"""Features of a trained network: what is said of them by hand, and learners that infer tasks from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ibpwf import ContinualClassifier, Learner, Settings, export
from ibpwf.backbones import loading
from ibpwf.backbones.catalog import BACKBONES
from ibpwf.errors import DataError, InputError, StoreError
from ibpwf.images import Images
from ibpwf.inference.base import Context
from ibpwf.inference.features import backbone as module
from ibpwf.inference.features.backbone import Backbone
from ibpwf.inference.signs import random_signs
from ibpwf.storage.tensor_checks import CorruptModelError
from router_tasks import CLASSES, examples, network
from tiny_backbone import INPUT, NAME, WIDTHS, Shelf, tiny_network, weights

pytestmark = pytest.mark.usefixtures("tiny")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    """The tiny network is known by its name, and an empty cache."""
    monkeypatch.setenv("IBPWF_DATA", str(tmp_path / "cache"))
    source = Shelf()
    monkeypatch.setitem(BACKBONES, NAME, tiny_network(source))
    module._loaded.cache_clear()
    yield source
    module._loaded.cache_clear()


def images(rows: int = 20, channels: int = 3, side: int = 8, seed: int = 0) -> Tensor:
    """Bytes, as float32."""
    return torch.randint(256, (rows, channels, side, side), generator=torch.Generator().manual_seed(seed)).float()


def fitted(x: Tensor, **options: Any) -> Backbone:
    """By the settings of the features, and of images."""
    images = Images(**{name: options.pop(name) for name in ("shape", "mean", "std") if name in options})
    features = Backbone(name=NAME, **options).bound(Context(images=images))
    features.fit([(part, torch.zeros(len(part))) for part in torch.split(x, 7)], len(x), torch.Generator())
    return features


def of_network(pixels: Tensor, depths: tuple[int, ...] = (2,)) -> Any:
    """What the network itself says of pixels from 0 to 255."""
    with torch.no_grad():
        return loading.load(NAME).features(INPUT(pixels), depths).double().numpy()


def standardized(raw: Any, first: Any) -> Any:
    return (raw - first.mean(0)) / np.sqrt(first.var(0) + 1e-8)


@pytest.mark.parametrize("depths", [(2,), (1,), (1, 2)])
def test_they_are_the_networks_features_on_the_first_tasks_scale(depths: tuple[int, ...]) -> None:
    first, later = images(), images(5, seed=1)
    features = fitted(first, depths=depths)
    by_hand = standardized(of_network(later, depths), of_network(first, depths))
    np.testing.assert_allclose(features(later).numpy(), by_hand, atol=1e-4)
    assert features.width == sum(WIDTHS[depth - 1] for depth in depths)


def test_a_grid_tells_where_something_is() -> None:
    first, later = images(), images(5, seed=1)
    features = fitted(first, depths=(1, 2), grid=(2, 1))

    def by_quarters(pixels: Tensor) -> Any:
        with torch.no_grad():
            early, late = loading.load(NAME).net.stages(INPUT(pixels))  # 4×4 and 2×2 places
        quarters = early.unflatten(3, (2, 2)).unflatten(2, (2, 2)).mean((3, 5))
        return torch.cat([quarters.flatten(1), late.mean((2, 3))], 1).double().numpy()

    by_hand = standardized(by_quarters(later), by_quarters(first))
    np.testing.assert_allclose(features(later).numpy(), by_hand, atol=1e-4)
    assert features.width == 4 * WIDTHS[0] + WIDTHS[1] == by_hand.shape[1]
    assert torch.equal(fitted(first, depths=(1, 2), grid=1)(later), fitted(first, depths=(1, 2))(later))


def test_a_grid_is_stored() -> None:
    x = images()
    features = fitted(x, depths=(1, 2), grid=(2, 1))
    content, tensors = features.state()
    again = Backbone(name=NAME, depths=(1, 2), grid=(2, 1))
    again.load_state(content, tensors)
    assert torch.equal(again(x), features(x))
    with pytest.raises(CorruptModelError, match="which the settings do not say"):
        Backbone(name=NAME, depths=(1, 2), grid=2).load_state(content, tensors)


@pytest.mark.parametrize("wrong", [(2,), (1, 2, 3), ()])
def test_a_grid_has_a_number_for_each_depth_or_one(wrong: Any) -> None:
    with pytest.raises(InputError, match=r"depths \[1, 2\]; give one number from 1 on, or one for each depth"):
        Backbone(name=NAME, depths=(1, 2), grid=wrong).bound(Context())


def test_one_depth_may_be_given_as_it_is() -> None:
    learner = learned(SETTINGS.replace(**{"inference.features.depths": 2, "inference.features.grid": 2}), tasks=1)
    assert learner.method.features.plan.depths == (2,)
    assert learner.method.features.plan.grid == (2,)


def test_more_features_than_can_be_kept_are_refused_with_the_remedy() -> None:
    lite0 = {"name": "efficientnet-lite0", "depths": (7, 8)}
    Backbone(**lite0, grid=(3, 1), projection=32_000).bound(Context())
    with pytest.raises(InputError, match=r"would give 409,600 features, which is more .*, or a projection"):
        Backbone(**lite0, grid=16).bound(Context())
    with pytest.raises(InputError, match=r"409,600 features, and 2,000 random sums of them, .*, or fewer sums"):
        Backbone(**lite0, grid=16, projection=2_000).bound(Context())


def test_a_network_that_does_not_tell_where_has_no_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    features = Backbone(name=NAME, grid=2)
    monkeypatch.setattr(features._network(torch.device("cpu")).net, "places", False)
    with pytest.raises(InputError, match="grid is 2, and backbone 'tiny' does not tell where"):
        features.check(images())


@pytest.mark.parametrize(
    ("made", "scale"),
    [
        (lambda pixels: pixels, {}),
        (lambda pixels: pixels / 255, {}),
        (lambda pixels: (pixels / 255 - 0.4) / 0.3, {"mean": (0.4,), "std": (0.3,)}),
        (lambda pixels: pixels / 255 * 16, {"mean": (0.0,), "std": (1 / 16,)}),
        (
            lambda pixels: (pixels / 255 - torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)) / 0.3,
            {"mean": (0.4, 0.5, 0.6), "std": (0.3, 0.3, 0.3)},
        ),
    ],
    ids=["bytes", "to 1", "standardized", "to 16", "by channel"],
)
def test_it_does_not_matter_how_pixels_came_if_it_is_known(made: Any, scale: dict[str, Any]) -> None:
    first, later = images(), images(5, seed=1)
    plain = fitted(first)(later)
    assert torch.allclose(fitted(made(first), **scale)(made(later)), plain, atol=1e-3)


def test_the_first_task_decides_about_the_scale_once_and_for_all() -> None:
    features = fitted(images())
    dark = images(5, seed=1).clamp(max=1.0)  # bytes, though all of them below 2
    by_hand = standardized(of_network(dark), of_network(images()))
    np.testing.assert_allclose(features(dark).numpy(), by_hand, atol=1e-4)


@pytest.mark.parametrize("wrong", [images() / 100 - 1, images() / 255 * 16, images() * 4])
def test_numbers_that_are_no_pixels_are_refused_with_the_remedy(wrong: Tensor) -> None:
    with pytest.raises(InputError, match=r"neither from 0 to 1 nor from 0 to 255; say in input\.mean and input.std"):
        fitted(wrong)


def test_images_are_resized_as_the_first_task_had_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the catalog has come to know better."""
    x = images(side=5)
    net = Backbone(name=NAME)._network(x.device)
    with monkeypatch.context() as earlier:
        earlier.setattr(net, "input", replace(INPUT, resize="bilinear"))
        features = fitted(x)
        before = features(x)
    assert torch.equal(features(x), before)
    assert not torch.allclose(fitted(x)(x), before, atol=1e-2)
    content, tensors = features.state()
    with pytest.raises(CorruptModelError, match="resized by 'nearest'"):
        Backbone(name=NAME).load_state({**content, "resize": "nearest"}, tensors)


def test_gray_images_of_any_size_are_read() -> None:
    first = images(channels=1, side=5)
    features = fitted(first)
    by_hand = standardized(of_network(first), of_network(first))
    np.testing.assert_allclose(features(first).numpy(), by_hand, atol=1e-4)
    flat = fitted(first.flatten(1), shape=(1, 5, 5))
    assert torch.equal(flat(first.flatten(1)), features(first))


def test_an_image_and_its_mirror_image_are_one_with_mirror() -> None:
    x = images()
    features = fitted(x, mirror=True)
    assert torch.allclose(features(x), features(x.flip(-1)), atol=1e-5)
    first, second = features.views(x)
    assert torch.equal(features(x), (first + second) / 2)


def test_a_projection_is_a_random_layer_that_is_the_same_for_ever() -> None:
    x = images()
    features, plain = fitted(x, projection=50), fitted(x)
    signs = random_signs(WIDTHS[1], 50, seed=2026).numpy()
    by_hand = np.maximum(plain(x).numpy() @ signs / math.sqrt(WIDTHS[1]), 0)
    np.testing.assert_allclose(features(x).numpy(), by_hand, atol=1e-5)
    assert features.width == 50
    assert random_signs(2, 7, seed=2026).int().tolist() == [[1, -1, 1, -1, 1, -1, 1], [-1, 1, 1, 1, 1, 1, -1]]


def test_few_rows_of_a_large_task_fix_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_FITTED", 8)
    x = images(40)
    assert torch.isfinite(fitted(x)(x)).all()


def test_what_is_no_image_is_refused() -> None:
    features = Backbone(name=NAME)
    for wrong in (torch.zeros(2, 30), torch.zeros(2, 2, 8, 8), torch.zeros(2, 3, 8)):
        with pytest.raises(InputError, match="'tiny' reads images"):
            features.check(wrong)
    with pytest.raises(InputError, match="unknown backbone 'tinny'"):
        Backbone(name="tinny").bound(Context())
    with pytest.raises(InputError, match="give some of 1 to 2"):
        Backbone(name=NAME, depths=(3,)).bound(Context())
    with pytest.raises(InputError, match="N × length, but a row is 3 × 8 × 8"):
        Backbone(name="minilm-l6").width_for((3, 8, 8))


def test_a_network_that_cannot_be_had_is_refused_before_anything_is_learned(tiny: Shelf) -> None:
    tiny.content.clear()
    with pytest.raises(DataError, match="could not be had"):
        Backbone(name=NAME).check(images(1))


SETTINGS = Settings(
    alpha=8.0,
    epochs=3,
    finetune_epochs=2,
    batch_size=16,
    learning_rate=0.02,
    inference="router",
    **{
        "inference.features": "backbone",
        "inference.features.name": NAME,
        "inference.features.depths": (1, 2),
        "inference.features.grid": (2, 1),
        "inference.features.projection": 60,
    },
)


def learned(settings: Settings = SETTINGS, tasks: int = 2, net: nn.Module | None = None) -> Learner:
    learner = Learner(net or network(), settings, seed=1)
    for labels in CLASSES[:tasks]:
        learner.learn(*examples(labels))
    return learner


@pytest.mark.parametrize("inference", ["router", "gaussian", "shared-gaussian"])
def test_a_learner_infers_tasks_and_goes_on_from_its_folder(inference: str, tmp_path: Path) -> None:
    learner = learned(SETTINGS.replace(inference=inference))
    x, y = (torch.cat(both) for both in zip(*(examples(labels, 80, 120) for labels in CLASSES[:2]), strict=True))
    prediction = learner.predict(x)
    assert float((prediction.labels == y).float().mean()) > 0.5  # of four digits, through random weights
    learner.save(tmp_path / "model")
    stored = sum(path.stat().st_size for path in (tmp_path / "model").rglob("*") if "features" in path.name)
    assert stored < 1000  # a mean and a deviation, and no network
    again = Learner.load(tmp_path / "model")
    assert torch.equal(again.predict(x).labels, prediction.labels)
    for one in (learner, again):
        one.learn(*examples(CLASSES[2]))
    assert torch.equal(again.predict(x).labels, learner.predict(x).labels)


def test_a_network_with_other_weights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learned(tasks=1).save(tmp_path / "model")
    other = tiny_network(Shelf(), weights(seed=1))
    monkeypatch.setitem(BACKBONES, NAME, other)
    with pytest.raises(StoreError, match=f"learned with backbone 'tiny' of sha256 .* here has {other.digest}; give"):
        Learner.load(tmp_path / "model")


def test_a_loaded_network_may_be_given_itself(tmp_path: Path) -> None:
    own = Backbone.of(loading.load(NAME), depths=(1, 2), grid=(2, 1), projection=60)
    learner = Learner(network(), SETTINGS.replace(**{"inference.features": own}), seed=1)
    learner.learn(*examples(CLASSES[0]))
    by_name = learned(tasks=1)
    x = examples(CLASSES[0], 80, 100)[0]
    assert torch.equal(learner.predict(x).labels, by_name.predict(x).labels)


def test_such_a_model_is_not_exported_as_one_graph(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    with pytest.raises(InputError, match=r"Backbone.*cannot be put into one graph"):
        export(learned(), None, "onnx", tmp_path / "all.onnx")


def test_mean_and_deviation_of_images_are_given_together() -> None:
    for wrong in ({"input.mean": [0.5]}, {"input.mean": [0.5], "input.std": [0.1, 0.2, 0.3]}):
        with pytest.raises(InputError, match="give both, one number or three each, or neither"):
            Settings(**wrong)
    Settings(**{"input.mean": [0.5, 0.4, 0.3], "input.std": [0.1, 0.2, 0.3]})


@pytest.mark.parametrize("levels", [1, 255])
def test_a_classifier_of_flat_pixels_knows_what_they_were(levels: int) -> None:
    own = {
        "inference.features": "backbone",
        "inference.features.name": NAME,
        "inference": "router",
        "input.shape": [1, 8, 8],
    }
    classifier = ContinualClassifier(hidden=(16,), epochs=3, settings=own)
    for labels in CLASSES[:2]:
        x, y = examples(labels)
        classifier.learn((levels * x).flatten(1).numpy(), y.numpy())
    first, later = (255 * examples(CLASSES[0], *rows)[0] for rows in ((0, 80), (80, 100)))
    inputs = classifier._inputs((levels * later / 255).flatten(1).numpy())
    found = classifier.learner_.method.features(inputs).numpy()  # type: ignore[attr-defined]
    raw = of_network(later)
    by_hand = standardized(raw, of_network(first))
    assert np.corrcoef(found.ravel(), by_hand.ravel())[0, 1] > 0.99  # some rows are held out of the first task
    with pytest.raises(InputError, match="give pixels from 0 to 255"):
        ContinualClassifier(settings=own).learn(-x.flatten(1).numpy(), y.numpy())


def test_several_sizes_come_side_by_side() -> None:
    first, later = images(), images(5, seed=1)
    both = fitted(first, size=(32, 64))
    alone = [fitted(first, size=size)(later) for size in (32, 64)]
    torch.testing.assert_close(both(later), torch.cat(alone, 1))
    assert both.width == 2 * WIDTHS[-1]
    content, tensors = both.state()
    assert content["size"] == [32, 64]
    again = Backbone(name=NAME, size=(32, 64))
    again.load_state(content, tensors)
    assert torch.equal(again(later), both(later))
    with pytest.raises(InputError, match=r"size is \[64, 64\]; give one to 4 different sizes"):
        SETTINGS.replace(**{"inference.features.size": [64, 64]})
