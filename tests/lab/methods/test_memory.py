"""How many bytes a method stores, from the sizes of its layers: what comparisons of methods report."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from digit_tasks import learn

from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.methods.closed_form import SLDA, Ridge
from ibpwf.lab.methods.dense import Problem
from ibpwf.lab.methods.expansion import PNN, SideTuning
from ibpwf.lab.methods.gen_classifier import GenClassifier
from ibpwf.lab.methods.generative_replay import DGR, RtF
from ibpwf.lab.methods.ibnn import IBNN
from ibpwf.lab.methods.lwf import LwF
from ibpwf.lab.methods.penalties import EWC, L2, MAS, SI, OnlineEWC
from ibpwf.lab.methods.router import Router
from ibpwf.lab.methods.vcl import VCL, VCLCoreset
from ibpwf.training.method import Method

FLOAT, DOUBLE = 4, 8
ROW = 64 * FLOAT + DOUBLE  # an example of digits and its label


def linear(*widths: int) -> int:
    """Numbers in linear layers one after another, with biases."""
    return sum(a * b + b for a, b in itertools.pairwise(widths))


def lateral(earlier: int) -> int:
    """Of a progressive network of 16 and 12 units with adapters of 6: down from all columns, up, and two scales."""
    return sum(earlier * below * 6 + 6 + 6 * own for below, own in ((16, 12), (12, 2))) + 2


DENSE = FLOAT * linear(64, 16, 12, 10)
GAUSSIAN = 2 * DENSE
CELLS = 2 * 3 * 3 * 12  # 12 filters and their negatives in the 3 × 3 places of a patch of 6 pixels in 8
VAE = linear(64, 24, 2 * 3) + linear(3, 24, 64)
ANSWERS, ENCODER, LATENT = linear(64, 32, 24, 10), linear(64, 32, 24), 2 * linear(24, 8)
DECODER = linear(8, 24, 32, 64) + 2  # and the range of values

CASES: list[tuple[type[Method], dict[str, object], int, dict[str, int]]] = [
    (LwF, {}, 2, {"network": DENSE}),
    *((kind, {}, 0, {"network": DENSE}) for kind in (L2, EWC, OnlineEWC, SI, MAS)),
    *(
        (kind, {}, 2, dict.fromkeys(("network", "importance", "anchor"), DENSE))
        for kind in (L2, EWC, OnlineEWC, SI, MAS)
    ),
    (PNN, {"adapter": 6}, 3, {"network": FLOAT * (3 * linear(64, 16, 12, 2) + lateral(1) + lateral(2))}),
    (
        SideTuning,
        {"side_hidden": (4,)},
        3,
        {"network": FLOAT * (linear(64, 16, 12, 2) + 1 + 2 * (linear(64, 4, 12, 2) + 1))},
    ),
    (GenClassifier, {"hidden": (24,), "latent": 3}, 3, {"network": FLOAT * 6 * VAE}),
    *(
        (kind, {"hidden": (32, 24), "latent": 8, **steps}, 2, {"network": FLOAT * ANSWERS, "generator": FLOAT * kept})
        for kind, steps, kept in (
            (DGR, {}, ENCODER + LATENT + DECODER),
            (RtF, {"iterations": None}, LATENT + DECODER),
        )
    ),
    (IBNN, {}, 1, {"network": GAUSSIAN + FLOAT * 3 * (16 + 12)}),
    (VCL, {}, 2, {"network": GAUSSIAN}),
    (
        VCLCoreset,
        {"memory_size": 60, "coreset_epochs": 1},
        2,
        {"network": GAUSSIAN, "posterior": GAUSSIAN, "examples": 60 * ROW},
    ),
    *(
        (
            kind,
            {"hidden": (30,)},
            2,
            {"network": FLOAT * linear(64, 30, 10), "moments": DOUBLE * (30 * 30 + 30 * 4 + 4)},
        )
        for kind in (SLDA, Ridge)
    ),
]


@pytest.mark.parametrize(
    ("kind", "settings", "tasks", "expected"), CASES, ids=[f"{kind.name}-{tasks}" for kind, _, tasks, _ in CASES]
)
def test_memory_is_counted_from_the_widths_of_layers(
    digits: Scenario,
    kind: Any,
    settings: dict[str, object],
    tasks: int,
    expected: dict[str, int],
) -> None:
    small = {"hidden": (16, 12), "epochs": 1, **settings}
    setting = "class" if "class" in kind.answers else "task"
    method = learn(kind(Problem((64,), 10, setting), kind.settings_type().replace(**small), seed=5), *digits[:tasks])
    assert method.memory() == expected


def test_a_router_stores_filters_sums_means_and_outlines(digits: Scenario) -> None:
    settings = Router.settings_type().replace(features="patches", patch_filters=12, patch_epsilon=1.0)
    method = learn(Router(Problem((64,), 10, "task"), settings, seed=5), *digits[:3])
    filters = FLOAT * (36 * 36 + 12 * 36 + 2 * CELLS)
    outlines = 3 * FLOAT * CELLS * CELLS  # of fewer than 256 features
    sums = DOUBLE * (CELLS * (CELLS + 1) // 2 + 6 * CELLS)
    assert method.memory() == {"features": filters, "sums": sums + outlines}
    assert method.parameter_count() == filters // FLOAT + CELLS * 6 + 6
