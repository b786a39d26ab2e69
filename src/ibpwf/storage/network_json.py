"""Describes a network as JSON and builds it again, without pickle.

A description is one of `{"builder": name, "arguments": {...}}` for networks made by a registered builder,
`{"sequential": [[name, description], ...]}`, and `{"module": name, "arguments": {...}}` for the leaf
modules of torch.nn listed below. `describe` gives one only after rebuilding the network from it and
comparing; `build` knows nothing but these names, so a hostile description can import or run nothing.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ibpwf.errors import InputError, StoreError
from ibpwf.storage.tensor_checks import CorruptModelError
from ibpwf.torch_state import called_in_float32

_LEAVES: dict[str, type[nn.Module]] = {
    leaf.__name__: leaf
    for leaf in (
        *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding),
        *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm),
        *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
        *(nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.Softplus),
        *(nn.ReLU6, nn.Hardswish, nn.Mish),
        *(nn.Identity, nn.Dropout, nn.Dropout2d, nn.Flatten, nn.Unflatten),
        *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
        *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool2d),
    )
}
_BUILDERS: dict[str, Callable[..., nn.Module]] = {}
_STAMP = "_ibpwf_built_by"  # the attribute in which a builder leaves its name and arguments
_DEEPEST = 50  # nesting allowed in a description; more is damage or malice

P = ParamSpec("P")
M = TypeVar("M", bound=nn.Module)
Spec = dict[str, Any]


MOST_AT_ONCE = 1 << 28
"""Numbers that a layer may give for one example."""


class NeedsParts(StoreError):
    """A folder cannot be read without something of the caller's own: a network, features, a builder."""


class _NotPlain(Exception):
    """A value that JSON would not give back as it was."""


def register_builder(name: str) -> Callable[[Callable[P, M]], Callable[P, M]]:
    """Makes a function that returns a network known to `describe` and `build` under a name.

    Its arguments must be plain (numbers, text, booleans, None, lists of those). To load a model whose
    network was made by your own builder, import the module that registers it first.
    """

    def register(function: Callable[P, M]) -> Callable[P, M]:
        known = _BUILDERS.get(name)
        if known is not None and _origin(known) != _origin(function):
            raise InputError(f"builder '{name}' is registered already, by {_origin(known)}. Use another name.")
        parameters = inspect.signature(function).parameters.values()
        if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY) for p in parameters):
            raise InputError(f"builder '{name}' takes *args, **kwargs or positional-only arguments. Name them.")

        @functools.wraps(function)
        def stamped(*args: P.args, **kwargs: P.kwargs) -> M:
            network = function(*args, **kwargs)
            bound = inspect.signature(function).bind(*args, **kwargs)
            bound.apply_defaults()
            try:
                arguments = {key: _to_json(value) for key, value in bound.arguments.items()}
            except _NotPlain:
                network.__dict__.pop(_STAMP, None)  # an inner builder's stamp would not describe this one
            else:
                network.__dict__[_STAMP] = {"builder": name, "arguments": arguments}
            return network

        _BUILDERS[name] = stamped
        return stamped

    return register


def builder(function: Callable[P, M]) -> Callable[P, M]:
    """`register_builder` under the function's own name."""
    return register_builder(function.__name__)(function)


def _origin(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _to_json(value: object) -> Any:
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):  # NumPy's whole numbers too
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    raise _NotPlain


def describe(net: nn.Module) -> Spec | None:
    """The network as JSON, or None where no description would bring back the same one."""
    try:
        spec = _describe(net, 0)
        # A builder's stamp has been compared by then; a walked network is compared as a whole.
        return spec if spec is not None and ("builder" in spec or _rebuilds(spec, net)) else None
    except RecursionError:
        return None


def _describe(net: nn.Module, depth: int) -> Spec | None:
    if depth > _DEEPEST:
        return None
    stamp = net.__dict__.get(_STAMP)
    # Checked here and not only at the end: a stamped Sequential that was changed can still be walked.
    if stamp is not None and _rebuilds(stamp, net):
        return {"builder": stamp["builder"], "arguments": dict(stamp["arguments"])}
    if type(net) is nn.Sequential:
        children = []
        for name, child in net._modules.items():
            inner = None if child is None else _describe(child, depth + 1)
            if inner is None:
                return None
            children.append([name, inner])
        return {"sequential": children}
    if _LEAVES.get(type(net).__name__) is type(net):
        try:
            return {"module": type(net).__name__, "arguments": _leaf_arguments(net)}
        except _NotPlain:
            return None
    return None


def _leaf_parameters(leaf: type[nn.Module]) -> dict[str, inspect.Parameter]:
    return {
        name: parameter
        for name, parameter in inspect.signature(leaf).parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        and name not in ("device", "dtype")
        and not name.startswith("_")
    }


def _leaf_arguments(net: nn.Module) -> dict[str, Any]:
    """The arguments that made a module. Those left at their defaults are left out, so that a description
    written with a newer torch can still be built with an older one that lacks a new argument."""
    arguments = {}
    for name, parameter in _leaf_parameters(type(net)).items():
        try:
            value = getattr(net, name)
        except AttributeError:
            raise _NotPlain from None
        if name == "bias":  # asked for as a flag, kept as a parameter
            value = value is not None
        if type(value) is not type(parameter.default) or value != parameter.default:
            arguments[name] = _to_json(value)
    return arguments


def _rebuilds(spec: Spec, net: nn.Module) -> bool:
    """Whether the description gives a network that looks and is tied like this one."""
    for module in net.modules():
        # A hook or a replaced forward changes what is computed, and no description can carry it.
        if module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__:
            return False
    # Describing a network must not shift the user's random numbers.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        try:
            again = build(spec)
        except StoreError:
            return False
    same_form = signature(again) == signature(net) and _ties(again) == _ties(net)
    return same_form and _printed(again) == _printed(net)


def _printed(net: nn.Module) -> str:
    return repr(net).replace("[", "(").replace("]", ")")  # torch takes lists for tuples, and prints them


def _ties(net: nn.Module) -> list[int]:
    """For each parameter, the index of the first one that is the same object: shared weights show here."""
    first: dict[int, int] = {}
    named = net.named_parameters(remove_duplicate=False)
    return [first.setdefault(id(parameter), index) for index, (_, parameter) in enumerate(named)]


def build(spec: object) -> nn.Module:
    """The network of a description, freshly initialised; an unsound description is a `StoreError`."""
    from ibpwf import models as _models  # noqa: F401  (registers the builders that come with the library)

    return _build(spec, "network", 0)


def _refused(where: str, what: str) -> StoreError:
    return StoreError(f"{where} {what}. The description was damaged or is not ours; restore it from a copy.")


def _build(spec: object, where: str, depth: int) -> nn.Module:
    if depth > _DEEPEST:
        raise StoreError(f"{where} is nested more than {_DEEPEST} deep. Restore the model from a copy.")
    if not isinstance(spec, dict):
        raise _refused(where, f"is a {type(spec).__name__} instead of an object")
    match sorted(map(str, spec)):
        case ["sequential"]:
            return _build_sequential(spec["sequential"], where, depth)
        case ["arguments", "module"]:
            return _build_leaf(spec["module"], spec["arguments"], where)
        case ["arguments", "builder"]:
            return _build_registered(spec["builder"], spec["arguments"], where)
        case keys:
            names = ", ".join(map(repr, keys)) or "(none)"
            raise _refused(where, f"has the fields {names}; it needs a module, a builder or a sequential")


def _build_sequential(children: object, where: str, depth: int) -> nn.Module:
    if not isinstance(children, list):
        raise _refused(f"{where}.sequential", f"is a {type(children).__name__} instead of a list")
    network = nn.Sequential()
    for index, child in enumerate(children):
        place = f"{where}.sequential[{index}]"
        match child:
            case [str(name), spec] if name not in network._modules:
                module = _build(spec, f"{where}.{name}", depth + 1)
            case [str(name), _]:
                raise _refused(place, f"has the name '{name}' a second time")
            case _:
                raise _refused(place, "is not a pair of a name and a description")
        try:
            network.add_module(name, module)
        except (KeyError, TypeError) as error:  # empty, with a dot, or an attribute of every module
            raise _refused(place, f"has the name '{name}', which no module can have") from error
    return network


def _build_leaf(name: object, arguments: object, where: str) -> nn.Module:
    leaf = _LEAVES.get(name) if isinstance(name, str) else None
    if leaf is None:
        raise _refused(f"{where}.module", f"is {name!r}; known: {', '.join(_LEAVES)}")
    given = _checked_arguments(arguments, _leaf_parameters(leaf), where)
    plain = {key: _tuples(value) for key, value in given.items()}
    return _made(lambda: leaf(**plain).float(), f"a {name}", where)


def _build_registered(name: object, arguments: object, where: str) -> nn.Module:
    function = _BUILDERS.get(name) if isinstance(name, str) else None
    if function is None:
        raise NeedsParts(
            f"{where}.builder is {name!r}, which is not registered; known: {', '.join(_BUILDERS)}. "
            "Import the module that registers it, then load again."
        )
    given = _checked_arguments(arguments, inspect.signature(function).parameters, where)
    with called_in_float32(function):
        return _made(lambda: function(**given), f"a '{name}'", where)


def _checked_arguments(arguments: object, allowed: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(arguments, dict):
        raise _refused(f"{where}.arguments", f"is a {type(arguments).__name__} instead of an object")
    for name in arguments:
        if name not in allowed:
            raise _refused(f"{where}.arguments", f"has the unknown field '{name}'; known: {', '.join(allowed)}")
    try:
        return {name: _to_json(value) for name, value in arguments.items()}
    except (_NotPlain, RecursionError):
        raise _refused(f"{where}.arguments", "holds something else than numbers, text and lists") from None


def _made(make: Callable[[], nn.Module], what: str, where: str) -> nn.Module:
    try:
        return make()
    except CorruptModelError:
        raise
    except Exception as error:  # torch refuses bad arguments with many kinds of error
        raise _refused(f"{where}.arguments", f"do not make {what} ({' '.join(str(error).split())})") from error


def _tuples(value: Any) -> Any:
    """Lists as tuples, which is what torch.nn keeps and prints."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def signature(net: nn.Module) -> list[list[Any]]:
    """Name, shape and dtype of everything in the state dict, in order, as JSON holds it."""
    return [
        [name, list(value.shape), str(value.dtype).removeprefix("torch.")]
        if isinstance(value, Tensor)
        else [name, [], type(value).__name__]  # what a module's get_extra_state gave
        for name, value in net.state_dict().items()
    ]


def check_same(net: nn.Module, expected: object) -> None:
    """Raises a `StoreError` that names the first difference between a network and a stored signature."""
    wanted: dict[str, list[Any]] = {}
    for index, item in enumerate(expected if isinstance(expected, list) else [expected]):
        match item:
            case [str(name), shape, dtype]:
                wanted[name] = [shape, dtype]
            case _:
                raise _refused(f"signature[{index}]", f"is {item!r} instead of a name, a shape and a dtype")
    found = {name: [shape, dtype] for name, shape, dtype in signature(net)}
    remedy = "Give a network built exactly as the one that was saved."
    for name in wanted | found:
        if name not in found:
            raise StoreError(f"the saved network has '{name}' and the given one has not. {remedy}")
        if name not in wanted:
            raise StoreError(f"the given network has '{name}' and the saved one has not. {remedy}")
        (shape, dtype), (saved_shape, saved_dtype) = found[name], wanted[name]
        if (shape, dtype) != (saved_shape, saved_dtype):
            raise StoreError(
                f"'{name}' has shape {shape} and dtype {dtype} in the given network, "
                f"{saved_shape} and {saved_dtype} in the saved one. {remedy}"
            )


@torch.no_grad()
def check_runs(net: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of what a network gives for one input of this shape. Refuse a network that does not take such inputs,
    or makes gigabytes of one: unless its arguments are usual ones, it is asked on torch's meta device first, where
    nothing is calculated."""
    handles = [module.register_forward_hook(_check_size) for module in net.modules()]
    net.eval()
    try:
        if not _usual(net, shape):
            with contextlib.suppress(NotImplementedError):  # a network of the user's own may not run there
                meta = {name: tensor.to("meta") for name, tensor in net.state_dict(keep_vars=True).items()}
                return tuple(
                    functional_call(net, meta, (torch.empty(1, *shape, device="meta", dtype=torch.float32),)).shape
                )
        return tuple(net(torch.zeros(1, *shape, device=next(net.parameters()).device, dtype=torch.float32)).shape)
    except CorruptModelError:
        raise
    except Exception as error:  # a network's own code may raise anything
        what = next(iter(str(error).splitlines()), type(error).__name__)
        raise CorruptModelError(f"the network does not take inputs of shape {list(shape)}: {what}") from error
    finally:
        for handle in handles:
            handle.remove()


def _usual(net: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether one example cannot grow into gigabytes: no wide padding, no large output of a pooling layer."""
    sizes = [getattr(module, field, 0) for module in net.modules() for field in ("padding", "output_size")]
    flat = [size for each in sizes for size in (each if isinstance(each, (list, tuple)) else [each])]
    return math.prod(shape) <= 1 << 24 and all(not isinstance(size, int) or size <= 64 for size in flat)


def _check_size(module: nn.Module, inputs: object, output: object) -> None:
    if isinstance(output, Tensor) and output.numel() > MOST_AT_ONCE:
        raise CorruptModelError(
            f"a {type(module).__name__} of the network gives {output.numel()} numbers for one example"
        )
