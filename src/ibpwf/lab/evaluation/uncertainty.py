"""How sure a learner is of test sets that it has learnt, and of those it has not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ibpwf.inference.base import TaskInference
from ibpwf.learner import Learner

ROWS = 100
DRAWS = 10
"""Inputs of each test set and posterior draws: enough for a mean, few enough to be asked after every task."""


def auroc(low: Tensor, high: Tensor) -> float:
    """How often, in percent, a value of `high` is above one of `low`; ties count half."""
    from sklearn.metrics import roc_auc_score

    of_high = torch.cat([torch.zeros(len(low)), torch.ones(len(high))])
    return 100.0 * float(roc_auc_score(of_high.numpy(), torch.cat([low, high]).double().numpy()))


def seen_and_unseen(learner: Learner[Any], tests: Sequence[Tensor]) -> dict[str, Any]:
    """The mean predictive entropy in nats of every task's test set, the task unknown (eq. entropy_incr_class), and
    how well it tells tasks still to come from those learnt (None after the last one)."""
    some = [x[:ROWS] for x in tests]
    # A router's answer is of the locked weights. All sets in one call: what costs most is to compose every draw's.
    inference = getattr(learner.method, "inference", None)
    posterior_samples = 0 if isinstance(inference, TaskInference) and inference.has_class_scores else DRAWS
    answers = (
        learner.predict(torch.cat(some), marginal=True, posterior_samples=posterior_samples).entropy.double().cpu()
    )
    found = torch.split(answers, [len(x) for x in some])
    learned = len(learner.tasks)
    told = auroc(torch.cat(found[:learned]), torch.cat(found[learned:])) if learned < len(found) else None
    return {
        "entropy": [round(float(values.mean()), 5) for values in found],
        "auroc": None if told is None else round(told, 3),
    }


RATE, NOVEL_ROWS = 0.05, 500
"""False alarms that are allowed, and inputs of each test set that are looked at."""


def novelty_found(learner: Learner[Any], tests: Sequence[Tensor]) -> dict[str, Any] | None:
    """How well novelty by router and experts tells tasks still to come from those learnt: the area under the ROC
    curve, and the share of each that is called new at a false-alarm rate of 5 %, in percent. None after the last
    task, or for a method that has none."""
    learned = len(learner.tasks)
    if learned == len(tests) or not learner.method.has_novelty:
        return None
    known, new = (
        learner.novelty(torch.cat([x[:NOVEL_ROWS] for x in part]), RATE).double().cpu()
        for part in (tests[:learned], tests[learned:])
    )
    shares = {name: 100.0 * float((values > 1).double().mean()) for name, values in (("known", known), ("new", new))}
    return {"auroc": round(auroc(known, new), 3), **{name: round(share, 3) for name, share in shares.items()}}
