"""Networks whose inputs have names (token ids, masks, pixels), seen by everything else as networks of one tensor.

An example's fields lie side by side in one row of float32 numbers, which hold whole numbers up to 2²⁴ exactly. A
field that is alone keeps its shape, so that an image stays an image. Examples of token ids are filled up on the right
to one length, where the attention mask says 0.

The network itself keeps its parameters and their names: its copy is given a class derived from its own, whose forward
pass takes such rows apart, calls the original one with named tensors and gives back the logits.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.errors import InputError

TOKENS, MASK = "input_ids", "attention_mask"
LABELS = ("labels", "label")
"""Of a batch that brings its own; never inputs."""

MOST_EXACT = 1 << 24
"""The largest whole number up to which float32 has every one."""

KINDS = ("bool", "int64", "float32")
"""Of numbers; each can hold those before it."""


@dataclass(frozen=True)
class Field:
    """One named input of a network: the shape of one example, and the kind of its numbers."""

    name: str
    shape: tuple[int, ...]
    kind: str

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Packing:
    """How named inputs become one row an example; the network's main input comes first. Sequences are filled up with
    the token `padding`. `vocabulary` is how many tokens the network knows, None where it does not say: no part of
    what is stored."""

    fields: tuple[Field, ...]
    padding: int = 0
    vocabulary: int | None = None

    @property
    def length(self) -> int | None:
        """Tokens of an example; None where there are none."""
        found = [field.shape[0] for field in self.fields if field.name == TOKENS and len(field.shape) == 1]
        return found[0] if found else None

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Of one example, packed."""
        if len(self.fields) == 1 and self.fields[0].shape:
            return self.fields[0].shape
        return (sum(field.numbers for field in self.fields),)

    def of_length(self, length: int) -> Packing:
        """The same for sequences of another length."""
        fields = tuple(replace(f, shape=(length,)) if self._is_sequence(f) else f for f in self.fields)
        return replace(self, fields=fields)

    def _is_sequence(self, field: Field) -> bool:
        return self.length is not None and field.kind != "float32" and field.shape == (self.length,)

    def pack(self, given: Mapping[str, Tensor]) -> Tensor:
        """Named tensors as float32 rows; names, kinds and shapes must be those that were recorded."""
        named = dict(given)
        names = [field.name for field in self.fields]
        _check_names(named, names, [name for name in names if name != MASK or TOKENS not in names])
        rows = _rows_of(named)
        if self.length is not None:
            named = self._filled_up(named, self.length)
        parts = [_checked(field, named[field.name]) for field in self.fields]
        if self.vocabulary is not None and TOKENS in named:
            _check_tokens(named[TOKENS], self.vocabulary)
        if len(parts) == 1 and self.fields[0].shape:
            return parts[0]
        return torch.cat(
            [part.reshape(rows, field.numbers) for field, part in zip(self.fields, parts, strict=True)], 1
        )

    def _filled_up(self, named: dict[str, Tensor], length: int) -> dict[str, Tensor]:
        """All sequences at their full length; where no mask is given, one that sees every token that is."""
        tokens = named[TOKENS]
        if tokens.ndim != 2:
            raise InputError(
                f"x['{TOKENS}'] has shape {tuple(tokens.shape)}; give one row of tokens per example, (N, length)."
            )
        here = tokens.shape[1]
        if here > length:
            raise InputError(
                f"x['{TOKENS}'] has {here} tokens an example, and this model reads {length}; cut texts to {length} "
                f"tokens (a tokenizer's max_length), or begin a model with length={here} in its settings."
            )
        named.setdefault(MASK, torch.ones_like(tokens))
        filled = {}
        for field in self.fields:
            value = named[field.name]
            if self._is_sequence(field) and value.shape[1:] == (here,):
                value = F.pad(value, (0, length - here), value=self.padding if field.name == TOKENS else 0)
            filled[field.name] = value
        return filled

    def unpack(self, x: Tensor) -> dict[str, Tensor]:
        """The inverse of `pack`."""
        if len(self.fields) == 1:
            parts: tuple[Tensor, ...] = (x,)
        else:
            parts = torch.split(x, [field.numbers for field in self.fields], dim=1)
        return {
            field.name: part.reshape(x.shape[0], *field.shape).to(getattr(torch, field.kind))
            for field, part in zip(self.fields, parts, strict=True)
        }


def _check_names(named: Mapping[str, Tensor], known: list[str], needed: list[str]) -> None:
    for name in needed:
        if name not in named:
            raise InputError(f"x has no '{name}', which the network needs; it has {_listed(named)}. Add it.")
    for name in named:
        if name not in known:
            raise InputError(
                f"x has '{name}', which is none of this model's inputs ({_listed(known)}). Leave it out."
            )


def _listed(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in names) or "nothing"


def _rows_of(named: Mapping[str, Tensor]) -> int:
    """How many examples there are, in every field alike."""
    for name, value in named.items():
        if not value.ndim:
            raise InputError(f"x['{name}'] is a single number; give one row per example.")
    first, *others = named
    for name in others:
        if len(named[name]) != len(named[first]):
            raise InputError(
                f"x['{first}'] has {len(named[first])} rows and x['{name}'] has {len(named[name])}; give one row per "
                "example in each."
            )
    return len(named[first])


def _kind(name: str, value: Tensor) -> str:
    if value.is_complex():
        raise InputError(f"x['{name}'] holds {value.dtype}; give real numbers.")
    if value.is_floating_point():
        return "float32"
    return "bool" if value.dtype == torch.bool else "int64"


def _checked(field: Field, value: Tensor) -> Tensor:
    """A field's values as float32, if they are of the recorded kind and shape, and exact."""
    kind = _kind(field.name, value)
    if KINDS.index(kind) > KINDS.index(field.kind):
        raise InputError(f"x['{field.name}'] holds {value.dtype}; give {field.kind}, as the first task had.")
    if tuple(value.shape[1:]) != field.shape:
        raise InputError(
            f"x['{field.name}'] has examples of shape {tuple(value.shape[1:])}; this model takes {field.shape}."
        )
    if kind == "int64" and value.numel():
        low, high = (int(end) for end in value.aminmax())
        if max(-low, high) > MOST_EXACT:
            raise InputError(
                f"x['{field.name}'] holds {high if high > MOST_EXACT else low}; whole numbers are exact up to "
                f"{MOST_EXACT} here: give smaller ones."
            )
    return value.float()


def _check_tokens(tokens: Tensor, vocabulary: int) -> None:
    """Refuse tokens that the network has no embedding of."""
    if not tokens.numel() or tokens.is_complex():
        return
    if tokens.is_floating_point() and not bool(tokens.isfinite().all()):
        value = tokens[~tokens.isfinite()][0].item()
        raise InputError(f"x['{TOKENS}'] holds {value}; give whole numbers, those of a tokenizer.")
    low, high = (int(end) for end in tokens.aminmax())
    if low < 0 or high >= vocabulary:
        raise InputError(
            f"x['{TOKENS}'] holds {high if high >= vocabulary else low}, and the network knows tokens from 0 to "
            f"{vocabulary - 1}; use the tokenizer that belongs to it."
        )


def vocabulary_of(net: nn.Module) -> int | None:
    """How many tokens a network of transformers knows, by its embedding."""
    try:
        embedding = net.get_input_embeddings() if names_inputs(net) else None  # type: ignore[operator]
    except (AttributeError, NotImplementedError):  # of networks that read no tokens
        return None
    return embedding.num_embeddings if isinstance(embedding, nn.Embedding) else None


def names_inputs(net: nn.Module) -> bool:
    """Whether a network is of the kind that Hugging Face's transformers makes: it says what its main input is called,
    and answers with an object that has logits."""
    return all(hasattr(net, name) for name in ("config", "main_input_name", "base_model_prefix"))


def find_packing(
    net: nn.Module, given: Mapping[str, Tensor], length: int | None = None, before: Packing | None = None
) -> Packing:
    """How the named inputs of a first batch are packed for a network; `before` is what earlier batches of the same
    task said, of which the longest counts unless a `length` is given."""
    if before is not None:
        here = given[TOKENS].shape[-1] if TOKENS in given else 0
        grows = before.length is not None and length is None and here > before.length
        return before.of_length(here) if grows else before
    taken = _forward_names(net)
    main = str(net.main_input_name) if names_inputs(net) else None
    needed = [name for name, required in taken.items() if required] if main is None else [main]
    _check_names(given, [*given] if _takes_any(net) else [*taken], needed)
    order = sorted(given, key=lambda name: name != main)
    if TOKENS in given and MASK in taken and MASK not in given:
        order.append(MASK)
    if not order:
        raise InputError("x is an empty dict; give the network's inputs by their names.")
    fields = []
    for name in order:
        value = given[name if name in given else TOKENS]
        fields.append(Field(name, tuple(value.shape[1:]), _kind(name, value)))
    padding = getattr(getattr(net, "config", None), "pad_token_id", None)
    packing = Packing(tuple(fields), padding if isinstance(padding, int) else 0, vocabulary_of(net))
    return packing if length is None or packing.length is None else packing.of_length(length)


def _forward_names(net: nn.Module) -> dict[str, bool]:
    """What the forward pass takes by name, and whether it must be given; never labels."""
    parameters = inspect.signature(net.forward).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return {p.name: p.default is p.empty for p in named if p.name not in LABELS}


def _takes_any(net: nn.Module) -> bool:
    """Whether a network of the user's own takes inputs of any name. (What transformers takes so are no inputs.)"""
    kinds = [p.kind for p in inspect.signature(net.forward).parameters.values()]
    return inspect.Parameter.VAR_KEYWORD in kinds and not names_inputs(net)


class PackedInputs(nn.Module):
    """Put before a network's own class: its forward pass takes packed rows and gives logits."""

    packing: Packing
    _options: ClassVar[Mapping[str, bool]] = {}

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(**self.packing.unpack(x), **self._options)
        return _logits(out, type(self).__name__)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """The class has no place of its own to be found in: it is made again from the network's."""
        return _empty_packed, (type(self).__bases__[-1],), self.__getstate__()  # type: ignore[no-untyped-call]


def _logits(out: Any, name: str) -> Tensor:
    found = out if isinstance(out, Tensor) else getattr(out, "logits", None)
    if found is None and isinstance(out, (tuple, list)) and out:
        found = out[0]
    if not isinstance(found, Tensor):
        raise InputError(
            f"{name} returned no logits but a {type(out).__name__}; give a network that tells classes apart, such as "
            "one for sequence or image classification."
        )
    return found


_CLASSES: dict[type[nn.Module], type[nn.Module]] = {}


def _packed_class(kind: type[nn.Module]) -> type[nn.Module]:
    """The class of a network with packed inputs; the same one whenever it is asked for."""
    if kind not in _CLASSES:
        # Nothing is generated, so keys and values of earlier tokens need not be kept.
        keeps = "use_cache" in inspect.signature(kind.forward).parameters
        about = {
            "__module__": kind.__module__,
            "__doc__": kind.__doc__,
            "_options": {"use_cache": False} if keeps else {},
        }
        _CLASSES[kind] = type(kind.__name__, (PackedInputs, kind), about)
    return _CLASSES[kind]


def _empty_packed(kind: type[nn.Module]) -> nn.Module:
    made = _packed_class(kind)
    net: nn.Module = made.__new__(made)
    return net


def pack_inputs(net: nn.Module, packing: Packing) -> None:
    """Let a network of ours take packed rows."""
    net.__class__ = _packed_class(type(net))
    net.packing = replace(packing, vocabulary=vocabulary_of(net))  # type: ignore[assignment]


def unpack_inputs(net: nn.Module) -> None:
    """Give a network its own class back, which takes named inputs."""
    if isinstance(net, PackedInputs):
        net.__class__ = type(net).__bases__[-1]
        del net.packing


def packing_of(net: nn.Module) -> Packing | None:
    """How a network's inputs are packed; None where it takes tensors as they are."""
    return net.packing if isinstance(net, PackedInputs) else None
