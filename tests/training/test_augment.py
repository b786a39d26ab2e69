"""Crops and mirrored images: each is the original, moved and perhaps mirrored, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf import Learner, Settings
from ibpwf.data.rows import IndexedRows
from ibpwf.errors import InputError
from ibpwf.training.augment import PADDING, CropAndFlip
from ibpwf.training.objective import Fit, Loss
from ibpwf.training.phase import Phase
from ibpwf.training.step import Step


def moved(image: Tensor, down: int, right: int, mirrored: bool) -> Tensor:
    padded = F.pad(image, (PADDING,) * 4)
    part = padded[:, down : down + image.shape[1], right : right + image.shape[2]]
    return (
        F.pad(image.flip(2), (PADDING,) * 4)[
            :, down : down + image.shape[1], 2 * PADDING - right : 2 * PADDING - right + image.shape[2]
        ]
        if mirrored
        else part
    )


def test_every_image_is_moved_by_at_most_four_pixels_and_half_are_mirrored() -> None:
    x = torch.randn(200, 3, 12, 10, generator=torch.Generator().manual_seed(0))
    y = CropAndFlip(torch.Generator().manual_seed(1))(x)
    assert y.shape == x.shape
    found = []
    for image, changed in zip(x, y, strict=True):
        matches = [
            (down, right, mirrored)
            for down in range(2 * PADDING + 1)
            for right in range(2 * PADDING + 1)
            for mirrored in (False, True)
            if torch.equal(moved(image, down, right, mirrored), changed)
        ]
        assert len(matches) == 1
        found += matches
    downs, rights, mirrors = zip(*found, strict=True)
    assert set(downs) == set(rights) == set(range(2 * PADDING + 1))
    assert 70 < sum(mirrors) < 130


def test_the_same_generator_makes_the_same_images() -> None:
    x = torch.randn(8, 1, 6, 6)
    one, other = (CropAndFlip(torch.Generator().manual_seed(4))(x) for _ in range(2))
    assert torch.equal(one, other)
    again = CropAndFlip(torch.Generator().manual_seed(5))(x)
    assert not torch.equal(one, again)


def test_a_step_sees_the_changed_images() -> None:
    seen: list[Tensor] = []
    weight = nn.Parameter(torch.zeros(1))

    def loss(x: Tensor, y: Tensor) -> Loss:
        seen.append(x)
        return Loss((weight * x.mean()).sum())

    x = torch.randn(4, 1, 8, 8)
    step = Step(Fit([weight], loss), Phase("p", 1, 4), IndexedRows(x, torch.zeros(4)), CropAndFlip(torch.Generator()))
    step.start_epoch(torch.Generator())
    assert step.gradients()
    step.move()
    assert not step.gradients()
    assert seen[0].shape == x.shape
    assert not torch.equal(seen[0].sum((1, 2, 3)).sort().values, x.sum((1, 2, 3)).sort().values)


def test_rows_of_a_table_cannot_be_cropped() -> None:
    learner = Learner(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), Settings(augment="crop-flip"))
    with pytest.raises(InputError, match=r"augment is crop-flip, which needs images .* shape \(6,\)"):
        learner.learn(torch.randn(20, 6), torch.arange(20) % 2)
    assert not learner.tasks
