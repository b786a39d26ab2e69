"""Turning an ordinary network into a model whose weights are sums of factors: which weights, with which
dictionaries."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping

from torch import nn

from ibpwf.errors import InputError
from ibpwf.factors.compiled import compiler_of, uncompiled
from ibpwf.factors.dictionary import Dictionary
from ibpwf.factors.model import FactorModel
from ibpwf.factors.weights import (
    Weight,
    adapter_alpha,
    automatic_alpha,
    check_patterns,
    check_weight,
    factorizable,
    head_choices,
    per_layer,
)
from ibpwf.torch_state import pinned


@pinned()
def factorize(
    net: nn.Module,
    *,
    alpha: float | str | Mapping[str, float] = "auto",
    max_factors: int | Mapping[str, int] | None = None,
    heads: str = "shared",
    head: str | None = None,
    include: str | list[str] | None = None,
    exclude: str | list[str] | None = None,
    strength_std: float = 0.316,
    init: str = "random",
    base: str = "none",
    length: int | None = None,
) -> FactorModel:
    """Turn a network into a continual learner's model; `net` itself is copied, not changed.

    The weights of Linear and convolution layers and the projections of `nn.MultiheadAttention` are factorized;
    `include` and `exclude` choose among them by name or type pattern. Every other parameter and buffer (biases,
    normalization and its running statistics, embeddings, tokens) becomes the task's own; one that is frozen
    (`requires_grad=False`) stays as it is.
    `alpha` is the IBP's expected number of factors per task and layer (a number, "auto", or a mapping from
    layer-name or type patterns to numbers); `max_factors` caps the dictionary (None: it grows as needed).
    `heads="shared"` factorizes the last layer like any other, `"per-task"` gives each task a dense one; `head`
    names that layer where it is not the last Linear one.
    `init="pretrained"` fits the dictionary to the weights of `net` by singular value decomposition, so that the first
    task starts from what `net` computes and each later one from the task before it; `FactorModel.fits` tells the
    error. `"anew"` does so for the first task, and later ones start from weights newly drawn, in factors of their own
    beside those that are locked: for data whose tasks have little in common, at the price of a larger dictionary.
    `"random"` takes nothing from `net` but what is not factorized.
    `base="frozen"` leaves the weights of `net` as they are and gives each task a difference from them,
    W_t = W_0 + W_a diag(λ_t) W_b: every task begins as `net` itself, and takes as few factors as its data ask for.
    Embeddings are then frozen too.
    `length` is for networks of token ids: how many every example is filled up to (None: the longest of the first
    task).
    """
    if not isinstance(net, nn.Module):
        raise InputError(f"net is a {type(net).__name__}; factorize takes a torch.nn.Module.")
    for field, value, choices in (
        ("heads", heads, ("shared", "per-task")),
        ("init", init, ("random", "pretrained", "anew")),
        ("base", base, ("none", "frozen")),
    ):
        if value not in choices:
            raise InputError(f"{field} is {value!r}; choose {' or '.join(map(repr, choices))}.")
    if not (strength_std > 0 and math.isfinite(strength_std)):
        raise InputError(f"strength_std is {strength_std}; the spread of the initial r must be above 0.")
    if base == "frozen" and init != "random":
        raise InputError(
            "base is 'frozen' and init is 'pretrained': the trained weights are either kept beside the factors or "
            "turned into them; leave one out."
        )
    template = copy.deepcopy(uncompiled(net))
    found = factorizable(template)
    for field, chosen_by in (("include", include), ("exclude", exclude)):
        check_patterns(field, [chosen_by] if isinstance(chosen_by, str) else chosen_by or [], found, template)
    for field, numbers in (("alpha", alpha), ("max_factors", max_factors)):
        check_patterns(field, numbers if isinstance(numbers, Mapping) else [], found, template)
    head = _chosen_head(head, found)
    chosen = {
        name: weight
        for name, weight in found.items()
        if (include is None or weight.matches(include))
        and not (exclude is not None and weight.matches(exclude))
        and not (heads == "per-task" and name == head)
    }
    if not chosen:
        raise InputError(
            f"no layer of net is left to factorize (include={include!r}, exclude={exclude!r}, heads={heads!r}); "
            f"it has {', '.join(found)}."
        )
    for weight in [*chosen.values(), found[head]] if heads == "per-task" else chosen.values():
        check_weight(template, weight)
    automatic = adapter_alpha if base == "frozen" else automatic_alpha
    layers = {name: _dictionary(template, weight, alpha, max_factors, automatic) for name, weight in chosen.items()}
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
        raise InputError(f"length is {length!r}; give the tokens of an example as a whole number from 1, or None.")
    if base == "frozen":
        for module in template.modules():
            if isinstance(module, nn.Embedding):
                module.requires_grad_(False)
    named = template.named_parameters(remove_duplicate=False)
    frozen = [name for name, parameter in named if not parameter.requires_grad]
    template.requires_grad_(False)
    model = FactorModel(template, layers, chosen, head, heads, strength_std, init, frozen, base)
    model.compiler = compiler_of(net)
    model.options = {
        "alpha": alpha,
        "max_factors": max_factors,
        "heads": heads,
        "strength_std": strength_std,
        "init": init,
        "base": base,
        "length": length,
    }
    return model


def _chosen_head(head: str | None, found: Mapping[str, Weight]) -> str:
    choices = head_choices(found)
    if head is not None and head not in choices:
        kind = "Linear" if any(isinstance(found[name].module, nn.Linear) for name in choices) else "convolution"
        raise InputError(f"head is {head!r}; name one of the {kind} layers: {', '.join(choices) or 'none'}.")
    if not choices:
        raise InputError("net has no Linear or convolution layer to serve as its head; add one as the last layer.")
    return head or choices[-1]


def _dictionary(
    net: nn.Module,
    weight: Weight,
    alpha: object,
    max_factors: object,
    automatic: Callable[[int, int], float],
) -> Dictionary:
    """An empty dictionary for a weight, with the settings that the patterns give it."""
    inputs, outputs = weight.matrix(net.get_parameter(weight.parameter)).shape
    layer_alpha = per_layer("alpha", alpha, weight, automatic(inputs, outputs))
    cap = per_layer("max_factors", max_factors, weight, None)
    if cap is not None and not cap.is_integer():
        raise InputError(f"max_factors is {cap}; give a whole number, or None for a dictionary that grows freely.")
    return Dictionary(inputs, outputs, layer_alpha or 0.0, None if cap is None else int(cap))
