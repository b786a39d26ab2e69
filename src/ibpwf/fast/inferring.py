"""Telling a hundred tasks apart in the time of a few: stands for `inference.base.infer_tasks`.

Groups that are out of the question are found from a few coordinates of each (`fast.screening`), straight from the
input where φ is one linear layer of it (`fast.folding`). Probabilities are those of the whole computation, with 0 for
less than 1e-19.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ibpwf.dispatch import stands_for
from ibpwf.fast.folding import Fold, LinearFeatures, linear_features
from ibpwf.fast.pairs import products
from ibpwf.fast.screening import Screen
from ibpwf.inference.base import Features, TaskInference, infer_tasks
from ibpwf.inference.features.layer import Layer
from ibpwf.inference.gaussian import Gaussian

SCREEN_FROM = 4
"""With fewer groups than this, looking at a few coordinates first costs more than it saves."""

ROWS_AT_ONCE = 2048


@dataclass
class Prepared:
    """A screen of all groups of an inference, and the way to it from an input."""

    screen: Screen | None
    latest: tuple[LinearFeatures, Fold | None] | None = None
    whitened: Tensor | None = None

    def offsets(self, inference: Gaussian) -> Tensor:
        """−μW of every group."""
        if self.whitened is None:
            means, whiten, _ = inference.prepared()
            self.whitened = -(means.unsqueeze(1) @ whiten).squeeze(1)
        return self.whitened

    def fold(self, layer: LinearFeatures) -> Fold | None:
        found = self.latest
        if found is None or not found[0].same(layer):
            assert self.screen is not None
            found = self.latest = layer, Fold.of(layer, self.screen)
        return found[1]


def screen_of(inference: Gaussian) -> Prepared:
    """The screen of an inference, made once after every change; None in it where it would not be certain."""
    derived = inference.derived
    found: Prepared | None = derived.get("screen")
    if found is None:
        means, whiten, constant = inference.prepared()
        total = sum((group.covariance for group in inference.groups), torch.zeros_like(whiten[0]))
        pooled, ridge = total / len(inference.groups), inference.ridge_for(0)
        screen = Screen.of(means, whiten, constant, pooled, ridge)
        found = derived["screen"] = Prepared(screen)
    return found


def _many_gaussians(inference: TaskInference, features: Features, x: Tensor) -> bool:
    """With one covariance for all, a score is one column of a product: nothing to be saved. Nor is there on a GPU,
    which takes all distances at once."""
    return (
        not x.is_cuda
        and isinstance(inference, Gaussian)
        and len(inference.groups) >= SCREEN_FROM
        and torch.get_float32_matmul_precision() == "highest"
    )


@stands_for(infer_tasks, when=_many_gaussians)
def screened_tasks(inference: TaskInference, features: Features, x: Tensor) -> Tensor:
    assert isinstance(inference, Gaussian)
    prepared = screen_of(inference)
    layer = None
    if prepared.screen is not None and type(features) is Layer and x.dtype == torch.float32:
        layer = linear_features(features.model.net, features.model.reference_state(), features.layers_read)
    fold = None if layer is None else prepared.fold(layer)

    def scores(rows: Tensor) -> Tensor:
        if layer is not None and fold is not None and prepared.screen is not None:
            left = prepared.screen.survivors(fold.place(rows))
            return likely_scores(inference, left, lambda some: layer(rows[some]).double())
        phi = features(rows)
        if prepared.screen is None:
            return inference.group_scores(phi)
        phi = phi.double()
        return likely_scores(inference, prepared.screen.survivors(prepared.screen.place(phi)), lambda some: phi[some])

    return torch.cat([inference.by_task(scores(rows)).softmax(1) for rows in torch.split(x, ROWS_AT_ONCE)])


def likely_scores(inference: Gaussian, left: Tensor, phi_of: Callable[[Tensor], Tensor]) -> Tensor:
    """`group_scores` of the groups that are `left` of every row up to a constant of the row, -inf for the others;
    `phi_of` gives φ of the rows it is asked for."""
    scores = torch.full(left.shape, -torch.inf, dtype=torch.float64, device=left.device).masked_fill_(left, 0.0)
    rows = (left.sum(1) > 1).nonzero().flatten()  # a group left alone has probability 1, whatever its score
    if len(rows):
        claimed, phi = left[rows], phi_of(rows)
        if 2 * int(claimed.sum()) > claimed.numel():
            scores[rows] = inference.group_scores(phi)
            return scores
        place, group = claimed.nonzero(as_tuple=True)
        _, whiten, constant = inference.prepared()
        squares = products(whiten, screen_of(inference).offsets(inference), phi, place, group, _square)
        scores[rows[place], group] = torch.add(constant[group], squares, alpha=-0.5)
    return scores


def _square(z: Tensor) -> Tensor:
    return z.square().sum(-1)
