"""The kind of data decides the recipe: what is chosen, what it is made of, that it learns, answers and is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import ibpwf
from ibpwf import Backbone, Gaussian, Joined, Patches, Router, SharedGaussian, backbones
from ibpwf.backbones import BACKBONES
from ibpwf.errors import InputError
from ibpwf.estimator import ContinualClassifier, recipes
from ibpwf.estimator.building import RIDGE, make_settings
from ibpwf.estimator.preparing import BackbonePreparation, PixelPreparation, as_rows, averaging, smaller
from ibpwf.estimator.recipes import RECIPES, FirstTask, Plan, suitable
from ibpwf.inference.base import Features
from tiny_backbone import NAME, Shelf, tiny_network

QUICK: dict[str, Any] = {
    "epochs": 20,
    "settings": {"finetune_epochs": 20, "inference.features.filters": 12},
    "device": "cpu",
}


def waves(labels: tuple[int, ...], each: int = 24, side: int = 12, channels: int = 3) -> tuple[Any, Any]:
    """Byte images of waves in random places, steeper from class to class, so that turning them changes none."""
    chance = np.random.default_rng(list(labels))
    y = np.repeat(labels, each)
    down, across = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
    images = np.empty((len(y), side, side, channels))
    for row, label in enumerate(y):
        pace, start = (0.3 + 0.4 * label) * 12 / side, chance.uniform(0, 6, 2)
        wave = np.sin(pace * down + start[0]) * np.sin(pace * across + start[1])
        images[row] = (128 + 100 * wave)[..., None] + chance.normal(0, 5, (side, side, channels))
    order = chance.permutation(len(y))
    return np.clip(images[order], 0, 255).astype(np.uint8), np.array([f"kind {label}" for label in y[order]])


@pytest.fixture
def no_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "is_cached", lambda name: False)


@pytest.mark.parametrize(
    ("image", "cached", "name"),
    [
        ((1, 28, 28), True, "images"),
        ((3, 32, 32), False, "images"),
        ((3, 32, 32), True, "backbone"),
        ((3, 224, 160), False, "images"),
        ((1, 5, 9), True, "plain"),
    ],
)
def test_what_the_data_are_decides(image: Any, cached: bool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "is_cached", lambda name: cached)
    assert suitable(FirstTask(100, 64, image)) == name


@pytest.mark.parametrize("name", ["inference", "inference.kind"])
def test_naming_the_kind_of_inference_keeps_what_a_recipe_says_of_that_kind(name: str) -> None:
    recipe = Plan.choose("table", FirstTask(5_000, 10)).settings()
    alike, other = (make_settings({name: kind}, recipe).inference for kind in ("gaussian", "shared-gaussian"))
    assert isinstance(alike, Gaussian)
    assert alike.ridge == recipe["inference"]["ridge"] != RIDGE
    assert isinstance(other, SharedGaussian)
    assert other.ridge == RIDGE
    assert alike.features == other.features == make_settings(None, recipe).inference.features


def test_each_recipe_says_its_name_first() -> None:
    for name, recipe in RECIPES.items():
        assert name == recipe.name
        assert recipe.summary.startswith(f"{name} (")


@pytest.mark.parametrize(("side", "channels"), [(8, 1), (12, 3)])
def test_images_of_any_size_are_learned_answered_and_stored(
    side: int, channels: int, tmp_path: Path, no_backbone: None
) -> None:
    made = ContinualClassifier(**QUICK)
    x, y = waves((0, 1), side=side, channels=channels)
    made.learn(x, y, task="wide")
    made.learn(*waves((2, 3), side=side, channels=channels), task="narrow")
    assert made.recipe_ == "images"
    assert made.learner_.input_shape == (channels, *smaller((channels, side, side)))
    assert made.learner_.settings.turns == 4
    assert made.learner_.settings.mirror == (channels == 3)
    assert made.score(x, y, task="wide") > 0.8
    p = made.predict_proba(x)
    assert p.shape == (len(x), 4)
    made.save(tmp_path / "m")
    loaded = ContinualClassifier.load(tmp_path / "m", device="cpu")
    assert loaded.recipe_ == "images"
    assert np.array_equal(loaded.predict_proba(x), p)
    first = x if channels > 1 else x[..., 0]
    for same in (
        first,
        x.transpose(0, 3, 1, 2),
        torch.from_numpy(x),
        x.transpose(0, 3, 1, 2).reshape(len(x), -1) / 255,
    ):
        assert np.allclose(made.predict_proba(same), p, atol=1e-4)
    made.learn(*waves((4, 5), side=side, channels=channels))
    loaded.learn(*waves((4, 5), side=side, channels=channels))
    assert np.array_equal(loaded.predict_proba(x), made.predict_proba(x))


def test_images_that_are_not_square_have_no_turns(no_backbone: None) -> None:
    x, y = waves((0, 1))
    made = ContinualClassifier(**QUICK).learn(x[:, :10], y)
    assert made.learner_.settings.turns == 1
    with pytest.raises(InputError, match=r"X holds images of 3×12×12 .*, what was learnt was 3×10×12; resize X"):
        made.predict(x)


def test_one_class_of_images_is_a_task(no_backbone: None) -> None:
    made = ContinualClassifier(**QUICK).learn(*waves((0, 1)))
    x, y = waves((2,))
    made.learn(x, y, task="one")
    assert made.labels_of("one") == ["kind 2"]
    assert (made.predict(x, task="one") == "kind 2").all()


@pytest.mark.parametrize("recipe", ["plain", "table"])
@pytest.mark.parametrize("inference", ["gaussian", "router"])
def test_classes_of_a_table_may_come_one_at_a_time(inference: str, recipe: str) -> None:
    chance = np.random.default_rng(0)
    x = chance.normal(size=(400, 4)) + 6 * np.repeat(np.eye(4), 100, axis=0)
    y = np.repeat(["a", "b", "c", "d"], 100)
    made = ContinualClassifier(settings={"inference": inference}, epochs=20, device="cpu", recipe=recipe)
    made.learn(x[:100], y[:100], task="first")
    assert (made.predict(x[100:]) == "a").all()
    made.learn(x[200:], y[200:], task="two classes")
    made.learn(x[100:200], y[100:200], task="last")
    assert made.score(x[200:], y[200:], task="two classes") > 0.9
    assert made.score(x, y) > 0.9


def test_what_does_not_belong_to_a_recipe_is_refused(no_backbone: None) -> None:
    x, y = waves((0, 1))
    with pytest.raises(InputError, match=r"hidden is \(8,\), but recipe 'images' has a network of convolutions"):
        ContinualClassifier(hidden=(8,), **QUICK).learn(x, y)
    with pytest.raises(InputError, match=r"recipe is 'images', which reads images, but X has rows of numbers"):
        ContinualClassifier(recipe="images").learn(x.reshape(len(x), -1), y)
    with pytest.raises(
        InputError, match=r"recipe is 'images', which reads images from 8×8 pixels, but these are 6×12"
    ):
        ContinualClassifier(recipe="images").learn(x[:, :6], y)
    with pytest.raises(InputError, match=r"unknown recipe 'image'. Did you mean 'images'\?"):
        ContinualClassifier(recipe="image").learn(x, y)
    made = ContinualClassifier(recipe="plain", hidden=(8,), epochs=1, device="cpu").learn(x, y)
    assert made.learner_.settings.input.shape == (3, 12, 12)
    made.recipe = "table"
    with pytest.raises(InputError, match=r"recipe is 'table', but the first task was learnt with 'plain'"):
        made.learn(*waves((2, 3)))


def test_large_images_are_averaged_down_in_whole_blocks() -> None:
    assert smaller((3, 32, 32)) == (32, 32)
    assert smaller((3, 64, 48)) == (64, 48)
    assert smaller((1, 224, 224)) == (37, 37)
    x = np.random.default_rng(0).integers(0, 256, (5, 120, 80, 3), dtype=np.uint8)
    rows, image = as_rows(x)
    assert image == (3, 120, 80)
    made = PixelPreparation.fit(rows, image)
    blocks = F.avg_pool2d(torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255, 2)
    assert torch.allclose(torch.from_numpy(made(rows)), (blocks - 0.5) / 0.25, atol=1e-5)
    down, across = averaging((3, 224, 224), (37, 37))
    assert torch.allclose(down.sum(1), torch.ones(37))
    assert torch.equal(down, across)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network of random weights, known by its name and in no cache yet."""
    monkeypatch.setenv("IBPWF_DATA", str(tmp_path / "cache"))
    monkeypatch.setitem(BACKBONES, NAME, tiny_network(Shelf()))


@pytest.mark.parametrize("beside", [(), (Patches(filters=8),)], ids=["alone", "beside patches"])
def test_a_backbone_is_told_what_pixels_its_inputs_were_made_from(tiny: None, beside: tuple[Features, ...]) -> None:
    own = Backbone(name=NAME, size=32)
    settings = {"inference": Router(features=Joined(parts=(*beside, own)) if beside else own)}
    made = ContinualClassifier(recipe="images", epochs=2, settings=settings, device="cpu")
    x, y = waves((0, 1))
    made.learn(x, y)
    scale = made.learner_.method.features.parts_to_fit()[-1]._fitted  # type: ignore[attr-defined]
    net = backbones.load(NAME)
    truth = net.features(net.input(torch.from_numpy(x).permute(0, 3, 1, 2).float(), 32)).detach()
    torch.testing.assert_close(scale.scale.mean, truth.mean(0), rtol=0.05, atol=0.02)  # but for rows held out


def test_a_trained_network_looks_at_each_image_once(
    tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    look = BackbonePreparation._looked_at

    def counted(self: BackbonePreparation, images: torch.Tensor) -> Any:
        seen.append(len(images))
        return look(self, images)

    monkeypatch.setattr(BackbonePreparation, "_looked_at", counted)
    settings = {"input.name": NAME, "input.size": 32, "finetune_epochs": 4}
    made = ContinualClassifier(recipe="backbone", hidden=(6,), epochs=8, settings=settings, device="cpu")
    x, y = waves((0, 1))
    made.learn(x, y)
    made.predict(x)
    assert sum(seen) == len(x)
    more, labels = waves((2, 3))
    made.learn(more, labels, task="more")
    one, label = waves((4,))
    made.learn(one, label, task="one")
    assert (made.predict(one, task="one") == "kind 4").all()
    p = made.prediction(more).probability
    assert sum(seen) == len(x) + len(more) + len(one)
    net = backbones.load(NAME)
    pixels = torch.from_numpy(more).permute(0, 3, 1, 2).float()
    truth = net.features(net.input(pixels, 32)).detach().numpy()
    assert np.allclose(made._standardizer.features(as_rows(more)[0]), truth, atol=1e-4)  # type: ignore[attr-defined]
    made.save(tmp_path / "m")
    loaded = ContinualClassifier.load(tmp_path / "m", device="cpu")
    assert loaded.recipe_ == "backbone"
    assert np.allclose(loaded.prediction(more).probability, p)
    done = ibpwf.export(tmp_path / "m", None, "pt2", tmp_path / "m.pt2")
    assert done.difference is not None
    assert done.difference < 1e-5
    with pytest.raises(InputError, match=r"recipe 'backbone' reads pixels, from 0 to 1 or from 0 to 255"):
        ContinualClassifier(recipe="backbone", settings=settings).learn(x.astype(float) - 128, y)
