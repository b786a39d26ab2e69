"""A trained network as one to learn with: images go in as the user has them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import ibpwf.backbones as backbones
from ibpwf import Learner, Settings
from ibpwf.backbones.backbone import Backbone, TextInput
from ibpwf.backbones.resizing import Resize, resized
from ibpwf.backbones.sentence_encoder import EncoderSize, SentenceEncoder
from ibpwf.errors import InputError
from tiny_backbone import INPUT, WIDTHS, TinyNetwork

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def tiny() -> Backbone:
    torch.manual_seed(0)
    return Backbone("tiny", "", TinyNetwork(), INPUT, WIDTHS)


def images(side: int, channels: int = 3) -> torch.Tensor:
    """Pixels from 0 to 255."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (5, channels, side, side), generator=generator).float()


@pytest.mark.parametrize("resize", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("side", "channels"), [(4, 3), (8, 3), (20, 3), (6, 1)])
def test_images_on_any_scale_become_what_the_backbone_makes_of_pixels(
    side: int, channels: int, resize: Resize
) -> None:
    pixels, takes = images(side, channels), replace(INPUT, resize=resize)
    mean, std = (MEAN, STD) if channels == 3 else ((0.5,), (0.2,))
    given = (pixels / 255 - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    made = backbones.PixelInput(takes, 12, mean, std)(given)
    torch.testing.assert_close(made, takes(pixels, 12), rtol=1e-5, atol=1e-5)


def keys(distance: float, sharpness: float = 0.75) -> float:
    """Keys' cubic kernel, as sharp as TensorFlow's, by which most such networks were trained."""
    d, a = abs(distance), -sharpness
    if d >= 2:
        return 0.0
    return (a + 2) * d**3 - (a + 3) * d**2 + 1 if d < 1 else a * (d**3 - 5 * d**2 + 8 * d - 4)


def test_larger_images_are_between_the_pixels_that_there_are() -> None:
    small = images(5)
    weights = torch.zeros(12, 5)
    for to in range(12):
        at = (to + 0.5) * 5 / 12 - 0.5
        for near in range(math.floor(at) - 1, math.floor(at) + 3):
            weights[to, min(max(near, 0), 4)] += keys(at - near)
    torch.testing.assert_close(resized(small, 12, "bicubic"), weights @ small @ weights.T, rtol=1e-5, atol=1e-3)
    assert torch.equal(resized(small, 5, "bicubic"), small)


@pytest.mark.parametrize("resize", ["bilinear", "bicubic"])
def test_smaller_images_are_smoothed_as_pillow_does_it(resize: Resize) -> None:
    large, image = images(30), pytest.importorskip("PIL.Image")
    named = image.Resampling[resize.upper()]
    planes = [np.array(image.fromarray(plane.numpy()).resize((12, 12), named)) for plane in large.flatten(0, 1)]
    theirs = torch.from_numpy(np.stack(planes)).view(5, 3, 12, 12)
    torch.testing.assert_close(resized(large, 12, resize), theirs, rtol=0, atol=1e-3)


def test_the_classifier_is_the_backbone_and_a_dense_layer() -> None:
    backbone = tiny()
    net = backbones.image_classifier(backbone, 3, image_mean=MEAN, image_std=STD)
    given = (images(20) / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    wanted = net.get_submodule("head")(backbone.features(INPUT(images(20))))
    torch.testing.assert_close(net(given), wanted, rtol=1e-5, atol=1e-5)


def test_tasks_are_learned_beside_it_and_old_ones_keep_their_bits() -> None:
    net = backbones.image_classifier(tiny(), 2, size=16).requires_grad_(False)
    settings = Settings(base="frozen", heads="per-task", epochs=2, finetune_epochs=1, batch_size=8)
    learner = Learner(net, settings, device="cpu")
    x, y = torch.rand(32, 3, 6, 6), torch.arange(32) % 2
    learner.learn(x, y, task="first")
    before = learner.logits(x, "first")
    learner.learn(x.flip(-1), y, task="second")
    assert torch.equal(learner.logits(x, "first"), before)
    assert not any("pixels" in name for name in learner.model.tasks[0].own)  # a task keeps nothing of the input


def small_encoder() -> Backbone:
    size = EncoderSize(vocabulary=40, positions=8, width=12, inner=16, heads=2, layers=2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Backbone("words", "", SentenceEncoder(size), TextInput(nn.Identity(), 8), (12, 12))


def test_topics_are_learned_beside_a_sentence_encoder_and_old_ones_keep_their_bits() -> None:
    encoder = small_encoder()
    net = backbones.text_classifier(encoder, 2).requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(60) % 2
    low = torch.randint(1, 20, (60, 6), generator=generator)
    x = (low + 20 * y.unsqueeze(1)).float()  # words of one topic are none of the other's
    torch.testing.assert_close(net(x), net.get_submodule("head")(encoder.features(x) * 12**0.5))
    settings = Settings(
        base="frozen", heads="per-task", epochs=8, finetune_epochs=4, batch_size=12, learning_rate=0.02
    )
    learner = Learner(net, settings, device="cpu")
    learner.learn(x, y, task="first")
    assert float((learner.predict(x, task="first").labels == y).double().mean()) > 0.95
    before = learner.logits(x, "first")
    learner.learn(x.flip(0), y, task="second")
    assert torch.equal(learner.logits(x, "first"), before)
    assert not any(
        "words" in name for name in learner.model.tasks[0].own if name not in learner.model.fixed_tensors()
    )


def test_word_pieces_that_the_encoder_does_not_know_are_refused_wherever_rows_come_in(tmp_path: Path) -> None:
    settings = Settings(base="frozen", heads="per-task", epochs=1, finetune_epochs=1, batch_size=8)
    learner = Learner(backbones.text_classifier(small_encoder(), 2).requires_grad_(False), settings, device="cpu")
    y = torch.arange(16) % 2
    known = (torch.arange(96).view(16, 6) % 39 + 1).float()
    high, low = known.clone(), known.clone()
    high[11, 2], low[3, 5] = 40, -1
    what = "x holds 40 in row 11, place 2, and the encoder knows 40 word pieces, from 0 to 39; make rows with its own"
    np.savez(tmp_path / "rows.npz", x=high.numpy(), y=y.numpy())
    for given in ((high, y), (TensorDataset(high, y),), (tmp_path / "rows.npz",)):
        with pytest.raises(InputError, match=what):
            learner.learn(*given)
    learner.learn(known, y, task="first")
    with pytest.raises(InputError, match=what):
        learner.predict(high)
    with pytest.raises(InputError, match="x holds -1 in row 3, place 5, and the encoder knows 40 word pieces"):
        learner.logits(low, "first")
    with pytest.raises(InputError, match=what):
        learner.learn(high, y, task="second")
    learner.save(tmp_path / "model")
    kept = Learner.load(tmp_path / "model", net=backbones.text_classifier(small_encoder(), 2), device="cpu")
    with pytest.raises(InputError, match=what):
        kept.predict(high)
    assert torch.equal(kept.logits(known, "first"), learner.logits(known, "first"))


def test_an_image_network_reads_no_texts() -> None:
    with pytest.raises(InputError, match="'tiny' reads images; give one that reads texts"):
        backbones.text_classifier(tiny(), 2)


def test_a_text_encoder_reads_no_images() -> None:
    text = Backbone("words", "", TinyNetwork(), TextInput(nn.Identity(), 8), WIDTHS)
    with pytest.raises(InputError, match="'words' reads texts; give one that reads images"):
        backbones.image_classifier(text, 2)
