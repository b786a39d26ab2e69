"""Whether a network can take a task's examples at all, checked before training."""

from __future__ import annotations

import torch
from torch import Tensor

from ibpwf.errors import InputError
from ibpwf.packing import packing_of
from ibpwf.training.method import Method


def check_fits(method: Method, x: Tensor) -> None:
    """Run one example through the network, so that a wrong shape is named here and not deep inside torch. Inputs with
    names are given twice: a network of tokens may take single examples alone."""
    packing = packing_of(method.template)
    example = x[:1].to(method.device)
    try:
        out = method.trial(example if packing is None else torch.cat([example, example]))
    except InputError:  # which says what to do
        raise
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
        shapes = {field.name: field.shape for field in packing.fields} if packing else tuple(x.shape[1:])
        raise InputError(
            f"x has examples of shape {shapes}, which does not fit the network: "
            f"{next(iter(str(error).splitlines()), type(error).__name__).rstrip('.')}. {_remedy(str(error))}"
        ) from error
    if not isinstance(out, Tensor) or out.ndim != 2:
        what = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise InputError(f"the network gives {what} for one example; it must give one row of class scores.")


def _remedy(error: str) -> str:
    if "padding token" in error:  # a decoder of transformers that was not told of any
        return "Set net.config.pad_token_id to the number of the token that stands behind a text's end."
    return "Reshape x or change the network's first layer."
