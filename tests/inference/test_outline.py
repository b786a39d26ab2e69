"""Distances in a few directions against Mahalanobis distances by NumPy, and what is like nothing learned."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from torch import Tensor

from ibpwf.inference.outline import DIRECTIONS, FLOOR, directions, distances, whitening
from ibpwf.inference.router import Router


def rows(count: int, width: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % classes
    mix = torch.randn(width, width, generator=generator) / width**0.5
    centers = 3 * torch.randn(classes, width, generator=generator)
    return centers[y] + torch.randn(count, width, generator=generator) @ mix, y


def test_directions_are_the_same_for_ever_and_all_but_keep_lengths() -> None:
    found = directions(2000)
    assert found.shape == (2000, DIRECTIONS)
    assert found.unique().tolist() == pytest.approx([-(2000**-0.5), 2000**-0.5])
    digest = hashlib.sha256(np.packbits(found.numpy() > 0).tobytes()).hexdigest()
    assert digest.startswith("cf403e9fd4e35209")
    x = torch.randn(50, 2000, generator=torch.Generator().manual_seed(0))
    ratio = (x @ found).norm(dim=1) / x.norm(dim=1) * (2000 / DIRECTIONS) ** 0.5
    assert float((ratio - 1).abs().max()) < 0.2
    assert torch.equal(directions(7), torch.eye(7))


@pytest.mark.parametrize("width", [6, 300])
def test_a_distance_is_mahalanobis_from_the_nearest_class_in_the_directions(width: int) -> None:
    tasks = [rows(400, width, 2, 0), rows(500, width, 3, 1)]
    router = Router()
    for number, (phi, y) in enumerate(tasks):
        router.learn(number, zip(phi.split(90), y.split(90), strict=True), int(y.max()) + 1)
    asked = torch.cat([phi[:20] for phi, _ in tasks] + [rows(20, width, 2, 9)[0]])
    found = router.distances(asked).numpy()
    p = directions(width).double().numpy()
    for task, (phi, y) in enumerate(tasks):
        seen, labels = phi.double().numpy() @ p, y.numpy()
        means = np.stack([seen[labels == c].mean(0) for c in range(labels.max() + 1)])
        inside = seen - means[labels]
        covariance = inside.T @ inside / len(seen)
        covariance += FLOOR * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
        apart = (asked.double().numpy() @ p)[:, None] - means
        expected = np.sqrt(
            np.einsum("ncq,ncq->nc", apart, np.linalg.solve(covariance, apart.transpose(0, 2, 1)).transpose(0, 2, 1))
        )
        np.testing.assert_allclose(found[:, task], expected.min(1), rtol=2e-3)


def test_what_is_learned_later_changes_no_distance_and_it_is_stored_to_the_bit() -> None:
    first, second = rows(100, 300, 2, 0), rows(100, 300, 2, 1)
    router = Router()
    router.learn(0, [first], 2)
    before = router.distances(first[0])
    router.learn(1, [second], 2)
    assert torch.equal(router.distances(first[0])[:, :1], before)
    again = Router()
    again.load_state(router.state(), [router.task_state(task) for task in range(2)])
    assert torch.equal(again.distances(first[0]), router.distances(first[0]))


def test_an_outline_of_another_size_or_type_is_refused() -> None:
    router = Router()
    router.learn(0, [rows(50, 5, 2, 0)], 2)
    content, tensors = router.task_state(0)
    for wrong in (tensors["whitening"][:4], tensors["whitening"].double(), torch.full((5, 5), torch.nan)):
        with pytest.raises(ValueError, match=r"outline of task number 0|beyond"):
            Router().load_state(router.state(), [(content, {**tensors, "whitening": wrong})])


def test_rows_that_are_all_the_same_have_an_outline_too() -> None:
    router = Router()
    router.learn(0, [(torch.ones(9, 4), torch.zeros(9, dtype=torch.long))], 1)
    found = router.distances(torch.tensor([[1.0] * 4, [3.0, 1.0, 1.0, 1.0]]))
    assert found[0] == pytest.approx(0, abs=1e-6)
    assert float(found[1]) == pytest.approx(2)
    assert torch.isfinite(whitening(torch.zeros(3, 3), 1.0)).all()
    assert distances(torch.zeros(0, 4), torch.ones(1, 4).double(), torch.eye(4)).shape == (0,)
