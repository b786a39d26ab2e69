"""Turning an ordinary network into a model whose weights are sums of factors: which weights, with which
dictionaries."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from ibpwf.errors import InputError
from ibpwf.factors.compiled import compiler_of, uncompiled
from ibpwf.factors.dictionary import Dictionary
from ibpwf.factors.model import FactorModel
from ibpwf.factors.prior import IBP, Prior
from ibpwf.factors.weights import (
    Weight,
    check_patterns,
    check_weight,
    factorizable,
    head_choices,
)
from ibpwf.torch_state import pinned


@pinned()
def factorize(
    net: nn.Module,
    *,
    prior: Prior | None = None,
    alpha: float | str | Mapping[str, float] | None = None,
    max_factors: int | Mapping[str, int] | None = None,
    strength_std: float | None = None,
    heads: str = "shared",
    head: str | None = None,
    include: str | list[str] | None = None,
    exclude: str | list[str] | None = None,
    init: str = "random",
    base: str = "none",
    length: int | None = None,
) -> FactorModel:
    """Turn a network into a continual learner's model; `net` itself is copied, not changed.

    The weights of Linear and convolution layers and the projections of `nn.MultiheadAttention` are factorized;
    `include` and `exclude` choose among them by name or type pattern. Every other parameter and buffer (biases,
    normalization and its running statistics, embeddings, tokens) becomes the task's own; one that is frozen
    (`requires_grad=False`) stays as it is.
    `prior` says which factors tasks use and how many; by default `IBP()`, for which `alpha`, `max_factors` and
    `strength_std` are shorthand. `alpha` is the expected number of factors per task and layer (a number, "auto", or a
    mapping from layer-name or type patterns to numbers); `max_factors` caps the dictionary (None: it may grow).
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
    given: dict[str, Any] = {"alpha": alpha, "max_factors": max_factors, "strength_std": strength_std}
    given = {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in given.items()
        if value is not None
    }
    own_prior = prior
    if prior is None:
        prior = IBP(**given)
    elif given:
        name = next(iter(given))
        raise InputError(f"{name} is {given[name]} beside a prior; say it once, as prior=IBP({name}=...).")
    if base == "frozen" and init != "random":
        raise InputError(
            "base is 'frozen' and init is 'pretrained': the trained weights are either kept beside the factors or "
            "turned into them; leave one out."
        )
    template = copy.deepcopy(uncompiled(net))
    found = factorizable(template)
    for field, chosen_by in (("include", include), ("exclude", exclude)):
        check_patterns(field, [chosen_by] if isinstance(chosen_by, str) else chosen_by or [], found, template)
    for field in type(prior).model_fields:
        numbers = getattr(prior, field)
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
    asked = {name: getattr(prior, name) for name in prior.fixed}
    layers = {name: _dictionary(template, name, weight) for name, weight in chosen.items()}
    prior = prior.for_layers(chosen, [layer.shape for layer in layers.values()], beside_base=base == "frozen")
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
        raise InputError(f"length is {length!r}; give the tokens of an example as a whole number from 1, or None.")
    if base == "frozen":
        for module in template.modules():
            if isinstance(module, nn.Embedding):
                module.requires_grad_(False)
    named = template.named_parameters(remove_duplicate=False)
    frozen = [name for name, parameter in named if not parameter.requires_grad]
    template.requires_grad_(False)
    model = FactorModel(template, layers, chosen, head, heads, prior, init, frozen, base)
    model.compiler = compiler_of(net)
    model.options = {
        **asked,
        "prior": own_prior,
        "heads": heads,
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


def _dictionary(net: nn.Module, name: str, weight: Weight) -> Dictionary:
    inputs, outputs = weight.matrix(net.get_parameter(weight.parameter)).shape
    return Dictionary(inputs, outputs, name)
