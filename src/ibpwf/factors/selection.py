"""Which factors a task keeps: those with π̄ ≥ κ (section 2.3), and the most probable further ones it needs.

Until the selection is fixed, a task is trained with samples of b ~ Bernoulli(π̄). A κ above the π̄ of factors that the
task relies on would leave a layer with too few of them, and fine-tuning cannot always make up for that. So the
accuracy with the fixed selection is compared with that of E[λ] = r ⊙ π̄ before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ibpwf.factors.task_network import TaskNetwork

Selection = dict[str, Tensor]


def sufficient_selection(
    network: TaskNetwork, accuracy: Callable[[Mapping[str, Tensor] | None], float], most_lost: float
) -> Selection:
    """The factors that the prior selects (π̄ ≥ κ), where they keep the accuracy; otherwise the fewest of the most
    probable further ones that do, in the layers that need them.

    Parameters
    ----------
    network
        A task's network before its selection is fixed.
    accuracy
        The accuracy in percent with a selection, or with E[λ] where it is given None.
    most_lost
        How many points below that of E[λ] the accuracy may be.
    """
    own = network.selection()
    logits = {name: network.prior.logit(network.posterior.vectors(row)) for row, name in enumerate(own)}
    left_out = torch.unique(torch.cat([logits[name][~chosen] for name, chosen in own.items()]))  # ascending
    if not len(left_out):
        return own
    enough = accuracy(None) - most_lost
    best, found = own, accuracy(own)
    if found >= enough:
        return own
    low, high = 0, len(left_out)  # the highest level that suffices is at `low` or above, and below `high`
    while low < high:
        middle = (low + high) // 2
        tried = {name: chosen | (logits[name] >= left_out[middle]) for name, chosen in own.items()}
        reached = accuracy(tried)
        if reached >= enough or reached > found:
            best, found = tried, reached
        low, high = (middle + 1, high) if reached >= enough else (low, middle)
    for name, chosen in own.items():
        tried = {**best, name: chosen}
        if accuracy(tried) >= min(enough, found):
            best = tried
    return best


def further_factors(network: TaskNetwork) -> dict[str, int]:
    """How many factors with π̄ < κ a task keeps beyond the selection by κ, for layers that keep any."""
    own = network.selection()
    counts = {name: int((chosen & ~own[name]).sum()) for name, chosen in network.selected.items()}
    return {name: count for name, count in counts.items() if count}
