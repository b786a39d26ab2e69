"""Patch features against the same thing said patch by patch, in NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ibpwf import Learner, Settings, factorize, load
from ibpwf.errors import InputError
from ibpwf.images import Images
from ibpwf.inference.base import Context
from ibpwf.inference.features import patches as module
from ibpwf.inference.features.patches import Patches, pooling_matrix
from ibpwf.lab.data.tasks import Scenario
from ibpwf.models import mlp


def images(rows: int, *shape: int, seed: int = 0) -> Tensor:
    """Smooth pictures with a blank margin at the left, values from 0 to 1 in steps of 1/255."""
    generator = torch.Generator().manual_seed(seed)
    rough = torch.rand(rows, shape[0], 5, 5, generator=generator)
    x = torch.nn.functional.interpolate(rough, shape[1:], mode="bilinear")
    x = (x + 0.1 * torch.rand(rows, *shape, generator=generator)) / 1.1
    x[..., : shape[2] // 3] = 0.5
    return (x * 255).round() / 255


def fitted(x: Tensor, seed: int = 0, batch: int = 7, **options: Any) -> Patches:
    """By the settings of the features, and the shape of images."""
    images, threshold = Images(shape=options.pop("shape", "auto")), options.pop("threshold", 0.05)
    features = Patches(**options).bound(Context(images=images))
    features._threshold = threshold
    batches = [(part, torch.zeros(len(part))) for part in torch.split(x, batch)]
    features.fit(batches, len(x), torch.Generator().manual_seed(seed))
    return features


def patches_of(image: Any, size: int) -> Any:
    """rows × columns × n, each patch with its channels, rows and columns in this order."""
    down, across = (side - size + 1 for side in image.shape[1:])
    return np.stack([[image[:, i : i + size, j : j + size].ravel() for j in range(across)] for i in range(down)])


@pytest.mark.parametrize(("shape", "grid"), [((1, 12, 11), 4), ((3, 10, 12), 2)])
def test_they_are_what_the_words_say(shape: tuple[int, ...], grid: int) -> None:
    x, patch, epsilon, threshold = images(30, *shape), 4, 0.05, 0.1
    features = fitted(x, filters=9, sizes=(patch,), epsilon=epsilon, threshold=threshold)
    pixels = 255 * x.double().numpy() / float(x.max() - x.min())
    every = np.concatenate([patches_of(image, patch).reshape(-1, shape[0] * patch**2) for image in pixels])
    every = every - every.mean(1, keepdims=True)
    every /= np.sqrt(every.var(1, keepdims=True) + 10)
    values, vectors = np.linalg.eigh(every.T @ every / len(every))
    whitening = vectors @ np.diag((values.clip(0) + epsilon * values.mean()) ** -0.5) @ vectors.T
    state = features.state()[1]
    filters = state["filters"].double().numpy()
    np.testing.assert_allclose(np.linalg.norm(filters, axis=1), 1, rtol=1e-5)
    directions = every @ whitening
    length = np.linalg.norm(directions, axis=1)
    directions = directions[length > 1e-6] / length[length > 1e-6, None]
    assert np.abs(directions @ filters.T).max(0) == pytest.approx(np.ones(9), abs=1e-4)  # each is one of the patches
    raw = []
    for image in pixels:
        found = patches_of(image, patch)
        found = (found - found.mean(2, keepdims=True)) @ whitening
        length = np.linalg.norm(found, axis=2, keepdims=True)
        response = np.where(length > 1e-6, found / np.maximum(length, 1e-9), 0) @ filters.T
        signs = []
        for sign in (1, -1):
            active = np.maximum(sign * response - threshold, 0)
            down, across = (
                [range(side * c // grid, -(-side * (c + 1) // grid)) for c in range(grid)]
                for side in active.shape[:2]
            )
            signs.append([active[np.ix_(rows, columns)].mean((0, 1)) for rows in down for columns in across])
        raw.append(np.array(signs).ravel())
    expected = np.array(raw)
    spread = np.sqrt(expected.var(0) + 1e-10)
    got = features(x).double().numpy()
    assert got.shape == (30, 2 * grid**2 * 9)
    np.testing.assert_allclose(got, (expected - expected.mean(0)) / spread, atol=5e-3)


def test_the_first_task_has_mean_0_and_deviation_1() -> None:
    x = images(60, 1, 14, 14)
    phi = fitted(x, filters=8)(x).double()
    torch.testing.assert_close(phi.mean(0), torch.zeros(256).double(), rtol=0, atol=1e-4)
    deviation = phi.std(0, unbiased=False)
    moves = deviation > 0.5
    assert float(moves.double().mean()) > 0.5
    torch.testing.assert_close(deviation[moves], torch.ones_like(deviation[moves]), rtol=0, atol=1e-3)
    assert bool((deviation[~moves] < 0.1).all())


def test_brightness_and_scale_of_the_pixels_do_not_matter() -> None:
    x = images(40, 3, 12, 12)
    plain = fitted(x, filters=6)(x)
    for moved in (255 * x, (x - 0.3) / 0.2):
        torch.testing.assert_close(fitted(moved, filters=6)(moved), plain, rtol=0, atol=5e-3)
    byte = (255 * x).round().byte()
    assert torch.equal(fitted(byte, filters=6)(byte), fitted(255 * x, filters=6)(byte.float()))


def test_the_same_seed_gives_the_same_bits_however_the_images_come() -> None:
    x = images(50, 1, 13, 13)
    first, again, other = fitted(x), fitted(x, batch=50), fitted(x, seed=1)
    for name, tensor in first.state()[1].items():
        assert torch.equal(tensor, again.state()[1][name])
    assert not torch.equal(first.state()[1]["filters"], other.state()[1]["filters"])


def test_only_a_random_part_of_a_large_first_task_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    x = images(80, 1, 12, 12)
    whole = fitted(x, filters=10)
    monkeypatch.setattr(module, "KEPT_NUMBERS", 30 * 144)
    monkeypatch.setattr(module, "PATCHES", 500)
    part = fitted(x, filters=10)
    assert all(torch.equal(t, fitted(x, filters=10, batch=80).state()[1][n]) for n, t in part.state()[1].items())
    assert not torch.equal(part.state()[1]["mean"], whole.state()[1]["mean"])
    assert part(x).shape == whole(x).shape


def test_how_many_rows_are_seen_at_once_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = images(33, 1, 12, 12)
    features = fitted(x, filters=5)
    whole = features(x)
    monkeypatch.setitem(module.NUMBERS_AT_ONCE, "cpu", 1)
    torch.testing.assert_close(features(x), whole, rtol=0, atol=1e-4)


def test_saved_and_loaded_they_are_the_same_to_the_bit_and_small() -> None:
    x = images(20, 3, 12, 12)
    features = fitted(x, filters=7, mirror=True, threshold=0.02)
    again = Patches(mirror=True)
    again.load_state(*features.state())
    assert torch.equal(features(x), again(x))
    assert features.bytes == 4 * (108 * 108 + 7 * 108 + 2 * 56)
    Patches().load_state({}, {})  # of a model without a task
    assert torch.equal(features.fork(factorize(mlp(2, [2], 2)))(x), features(x))


def test_mirrored_images_are_rows_to_learn_from_and_count_half_each_when_asked() -> None:
    x = images(20, 3, 12, 12)
    features = fitted(x, filters=7, mirror=True)
    one, other = features.views(x)
    torch.testing.assert_close(features(x), (one + other) / 2)
    torch.testing.assert_close(features(x.flip(3)), features(x))
    torch.testing.assert_close(next(features.views(x.flip(3))), other)
    plain = fitted(x, filters=7)
    (view,) = plain.views(x)
    assert torch.equal(view, plain(x))


@pytest.mark.parametrize(
    ("shape", "filters", "features"),
    [
        ((1, 28, 28), "small", 1600),
        ((3, 32, 32), "small", 1600),
        ((1, 8, 8), "small", 2 * 9 * (1600 // 18)),  # three patches in a row: a grid of 3
        ((1, 28, 28), 3, 96),
        ((3, 6, 9), 5, 10),  # one patch from top to bottom
    ],
)
def test_a_size_is_a_number_of_features_whatever_the_grid(
    shape: tuple[int, ...], filters: Any, features: int
) -> None:
    x = images(300, *shape)
    assert fitted(x, filters=filters)(x[:2]).shape == (2, features)


def test_a_few_small_images_give_as_many_filters_as_they_have_patches() -> None:
    x = images(2, 1, 7, 7)
    assert fitted(x, filters=50)(x).shape == (2, 2 * 4 * 8)


def test_what_is_no_image_or_too_small_or_of_another_size_is_refused() -> None:
    x = images(10, 1, 12, 12)
    features = fitted(x, filters=3)
    for wrong, message in (
        (torch.rand(5, 144), r"reads images .* but a row is 144; give images, say in input\.shape"),
        (torch.rand(5), "a row is one number"),
        (torch.rand(5, 1, 5, 12), "of 6 × 6 pixels, but an image is 1 × 5 × 12; give larger images"),
        (torch.rand(5, 3, 12, 12), "an image is 3 × 12 × 12, but the first task's were 1 × 12 × 12"),
    ):
        with pytest.raises(InputError, match=message):
            features.check(wrong)
        with pytest.raises(InputError, match=message):
            features(wrong)
    with pytest.raises(InputError, match="reads images"):
        fitted(torch.rand(5, 144))
    with pytest.raises(InputError, match="images are blank"):
        fitted(torch.ones(5, 1, 12, 12))
    with pytest.raises(InputError, match="no images"):
        Patches().fit([], 0, torch.Generator())
    with pytest.raises(InputError, match=r"^filters is 'smal'; expected a whole number or 'small'"):
        Patches(filters="smal")  # type: ignore[arg-type]


def test_they_can_be_fitted_again_to_other_images() -> None:
    features, x = fitted(images(10, 1, 12, 12), filters=3), images(10, 3, 9, 9)
    features.fit([(x, torch.zeros(10))], 10, torch.Generator().manual_seed(0))
    assert torch.equal(features(x), fitted(x, filters=3)(x))


def test_flat_rows_are_images_where_their_shape_is_told() -> None:
    x = images(20, 3, 12, 10)
    features, flat = fitted(x, filters=4), fitted(x.flatten(1), filters=4, shape=(3, 12, 10))
    assert torch.equal(flat(x.flatten(1)), features(x))
    content, tensors = flat.state()
    again = Patches(filters=4)
    again.load_state(json.loads(json.dumps(content)), tensors)
    assert torch.equal(again(x.flatten(1)), features(x))
    assert torch.equal(again(x), features(x))
    with pytest.raises(InputError, match="a row is 350"):
        flat(torch.rand(2, 350))


def test_blank_parts_of_an_image_say_nothing_whatever_their_brightness() -> None:
    x = images(30, 1, 16, 16)
    features = fitted(x, filters=6)
    gray = torch.stack([torch.full((1, 16, 16), value) for value in (0.0, 1 / 3, 1.0)])
    phi = features(gray)
    torch.testing.assert_close(phi, phi[:1].expand(3, -1), rtol=0, atol=1e-2)


def test_cells_are_those_of_torchs_adaptive_pooling() -> None:
    x = torch.randn(2, 1, 23, 17, dtype=torch.float64)
    expected = torch.nn.functional.adaptive_avg_pool2d(x, 4).flatten(1)
    torch.testing.assert_close(x.flatten(1) @ pooling_matrix(23, 17, 4).double().T, expected, rtol=1e-5, atol=1e-6)


# Several sizes


def drawn_filters(x: Tensor, patch: int, count: int, whitening: Tensor, seed: int = 0) -> Tensor:
    """Which patches become filters: the draws of a folder of before there were several sizes, made once more."""
    generator = torch.Generator().manual_seed(seed)
    torch.randperm(len(x), generator=generator)  # which images are kept
    every = torch.nn.functional.unfold(x, patch).transpose(1, 2).flatten(0, 1)
    directions = every @ whitening
    length = directions.norm(dim=1)
    usable = torch.nonzero(length > 0.05).flatten()
    chosen = usable[torch.randperm(len(usable), generator=generator)[:count]]
    return directions[chosen] / length[chosen, None]


@pytest.mark.parametrize("patch", [(6,), [6]])
def test_one_size_is_drawn_and_stored_as_ever(patch: Any) -> None:
    x = images(30, 1, 12, 12)
    features = fitted(x, filters=5, sizes=patch, seed=3)
    content, tensors = features.state()
    assert json.dumps(content) == (
        '{"image": [1, 12, 12], "patch": 6, "grid": "auto", "mirror": false, "threshold": 0.05, "filters": 5, '
        '"shape": null}'
    )
    assert list(tensors) == ["whitening", "filters", "mean", "deviation"]
    torch.testing.assert_close(tensors["filters"], drawn_filters(x, 6, 5, tensors["whitening"], seed=3))
    assert torch.equal(features(x), fitted(x, filters=5, seed=3)(x))


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("few", [False, True])
def test_several_sizes_give_what_each_gives_alone(mirror: bool, few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if few:
        monkeypatch.setattr(module, "KEPT_NUMBERS", 20 * 300)
        monkeypatch.setattr(module, "PATCHES", 500)
    x = images(30, 3, 10, 10)
    features = fitted(x, filters=11, sizes=(7, 3, 5), mirror=mirror)
    alone = [fitted(x, filters=k, sizes=(p,), mirror=mirror) for p, k in ((7, 4), (3, 4), (5, 3))]
    assert torch.equal(features(x), torch.cat([one(x) for one in alone], 1))
    for views in zip(features.views(x), *(one.views(x) for one in alone), strict=True):
        assert torch.equal(views[0], torch.cat(views[1:], 1))
    for one, part in zip(alone, features.alone(), strict=True):
        assert torch.equal(one(x), part(x))
        assert one.state()[0] == part.state()[0]


def test_several_sizes_saved_and_loaded_are_the_same_to_the_bit() -> None:
    x = images(20, 1, 12, 12)
    features = fitted(x, filters=7, sizes=(3, 5))
    content, tensors = features.state()
    assert content["patch"] == [3, 5]
    assert content["filters"] == 7
    assert list(tensors) == [f"{size}.{name}" for size in (3, 5) for name in module.TENSORS]
    again = Patches(sizes=(3, 5))
    again.load_state(json.loads(json.dumps(content)), tensors)
    assert torch.equal(again(x), features(x))
    assert again.bytes == features.bytes == 4 * (81 + 4 * 9 + 25**2 + 3 * 25 + 2 * 32 * 7)


@pytest.mark.parametrize(
    ("shape", "patch", "features"),
    [
        ((1, 28, 28), (5, 8), 1600),
        ((3, 32, 32), (4, 6, 9), 1600),
        ((1, 8, 8), (5, 7), 2 * (16 * 40 + 4 * 40)),  # four patches in a row, and two
    ],
)
def test_a_size_is_a_number_of_features_of_all_patches(
    shape: tuple[int, ...], patch: tuple[int, ...], features: int
) -> None:
    x = images(100, *shape)
    assert fitted(x, sizes=patch)(x[:2]).shape == (2, features)


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="of 9 × 9 pixels, but an image is 1 × 8 × 8"):
        fitted(images(5, 1, 8, 8), sizes=(3, 9))
    with pytest.raises(InputError, match=r"^filters is 1; patches have 2 sizes"):
        Patches(filters=1, sizes=(3, 5))
    for wrong in ((), (3, 3)):
        with pytest.raises(InputError, match=r"^sizes is .*give one to 4 different sizes"):
            Patches(sizes=wrong)


def test_features_that_are_fitted_leave_the_copy_they_were_made_of_as_it_was() -> None:
    x, other = images(20, 1, 12, 12), images(20, 1, 12, 12, seed=1)
    features = fitted(x, filters=6, sizes=(3, 5))
    before = features(x)
    features.fork(factorize(mlp(2, [2], 2))).fit([(other, torch.zeros(20))], 20, torch.Generator().manual_seed(1))
    assert torch.equal(features(x), before)


def test_a_learner_tells_digits_apart_by_patches_of_two_sizes(digits: Scenario, tmp_path: Path) -> None:
    settings = Settings(
        alpha=6.0,
        epochs=2,
        finetune_epochs=1,
        inference="router",
        **{
            "inference.features": "patches",
            "inference.features.filters": 24,
            "inference.features.sizes": (3, 5),
            "input.shape": (1, 8, 8),
        },
    )
    learner = Learner(mlp(64, [16], 10), settings, device="cpu")
    for task in digits:
        learner.learn(task.train.x, task.train.y)
    right = [float((learner.predict(task.test.x).task == n).float().mean()) for n, task in enumerate(digits)]
    assert min(right) > 0.8
    learner.save(tmp_path / "model")
    again, x = load(tmp_path / "model"), digits[0].test.x
    assert again.settings.inference.features == Patches(filters=24, sizes=(3, 5))
    assert torch.equal(again.predict(x).probabilities, learner.predict(x).probabilities)
