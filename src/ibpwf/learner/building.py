"""The method of a learner: IBP-WF on a given network, or any method as a model folder holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ibpwf import registry
from ibpwf.device import choose_device
from ibpwf.distributed import Distributed, join
from ibpwf.errors import InputError
from ibpwf.factors.compiled import uncompiled
from ibpwf.factors.factorize import factorize
from ibpwf.factors.model import FactorModel
from ibpwf.factors.weights import load_tensors
from ibpwf.method import IBPWF, Parts, base_digest
from ibpwf.packing import Field, Packing
from ibpwf.parts import UnknownKindError, part_fields
from ibpwf.settings import Settings
from ibpwf.storage.folder import OpenedFolder
from ibpwf.storage.model_folder import whole_folder
from ibpwf.storage.model_record import Configuration, StoredPacking, manifest_of, read_content
from ibpwf.storage.network_json import NeedsParts, build, check_same
from ibpwf.storage.records import read_record
from ibpwf.storage.tensor_checks import (
    BOUNDED,
    NOT_NAN,
    CorruptModelError,
    TensorReader,
    at_most,
    check_numbers,
)
from ibpwf.storage.tensor_file import parts_of
from ibpwf.training.method import Method

SPARE = 1 << 22
"""Numbers that building a network may make beyond a few times those it has."""

MOST_UNSTORED = 1 << 26
"""Numbers that an untrained method may make beyond a few times those that are stored."""

Files = Mapping[str, Mapping[str, Tensor]]


def build_ibpwf(
    net: nn.Module,
    settings: Settings | None,
    parts: Parts,
    device: str | torch.device = "auto",
    distributed: Distributed = "off",
) -> IBPWF:
    """IBP-WF on a network, which is factorized by the settings, or on a network that has been factorized."""
    settings = settings or Settings()
    if not isinstance(net, nn.Module):
        raise InputError(
            f"net is a {type(net).__name__}; give a torch.nn.Module, the result of ibpwf.factorize, or a method."
        )
    if isinstance(net, FactorModel):
        model = net
        _check_factorization(model, settings)
    else:
        model = factorize(net, **settings.factorization)
    if model.tasks:
        raise InputError("this factorized model already belongs to a learner; factorize the network again.")
    flat = {name: getattr(model.prior, name) for name in model.prior.fixed & {*Settings.model_fields}}
    settings = settings.replace(
        **(flat if model.options["prior"] is None else {"prior": model.prior}),
        heads=model.heads,
        init=model.init,
        base=model.base,
        length=model.options["length"],
    )
    group = join(distributed, str(device))
    method = IBPWF(model.to(choose_device(device)), settings, parts)
    method.join(group)
    group.take_from_first(model.net.state_dict().values())  # which each process may have drawn for itself
    return method


def _check_factorization(model: FactorModel, settings: Settings) -> None:
    """Reject settings that differ from the model's factorization: one of the two would be ignored."""
    for name, value in settings.factorization.items():
        if name in settings.model_fields_set and value != model.options.get(name):
            raise InputError(
                f"{name} is {value!r} in the settings, but the model was factorized with "
                f"{model.options.get(name)!r}; say it once, to factorize or in the settings of a plain network."
            )


def read_method(
    opened: OpenedFolder,
    net: nn.Module | None,
    device: str | torch.device,
    distributed: Distributed = "off",
    **parts: Any,
) -> tuple[Method, Files]:
    """The untrained method that a folder describes, and the tensors to load into it."""
    content, path = read_content(opened), opened.path
    if content.method == IBPWF.name:
        return _read_ibpwf(opened, net, device, distributed, parts)
    try:
        kind = registry.find(registry.METHODS, content.method, {}, imports=False)
    except InputError as error:
        raise NeedsParts(f"{path} holds a model of an {error}") from None
    given = [name for name, value in {"net": net, **parts}.items() if value is not None]
    if given:
        raise InputError(f"{given[0]} was given, but {path} holds a model of '{content.method}', which has its own.")
    stored = sum(entry.bytes for entry in opened.files.values())
    with whole_folder(path):
        with at_most(MOST_UNSTORED + 4 * stored):
            method: Method = kind.create(content.configuration, choose_device(device))
        return method, opened.all_tensors()


def _read_ibpwf(
    opened: OpenedFolder,
    net: nn.Module | None,
    device: str | torch.device,
    distributed: Distributed,
    given: dict[str, Any],
) -> tuple[IBPWF, Files]:
    path = opened.path
    if net is not None and not isinstance(net, nn.Module):
        raise InputError(f"net is a {type(net).__name__}; give the network itself, a torch.nn.Module.")
    content = read_content(opened)
    with whole_folder(path):
        where = f"{manifest_of(opened)} content.configuration"
        configuration = read_record(Configuration, content.configuration, where)
        files = parts_of(opened)
        template = files.get("template", {})
        _check_template(configuration, template)
        net = _network(path, configuration, template) if net is None else net
        plain = uncompiled(net)
        check_same(plain, [list(line) for line in configuration.signature])
        buffers = {name for name, _ in plain.named_buffers()}
        for name, tensor in template.items():
            check_numbers("template", name, tensor, NOT_NAN if name in buffers else BOUNDED)
        of_settings = {name: given.pop(name) for name in part_fields(Settings) if name in given}
        try:
            settings, parts = Settings.from_json({**configuration.settings, **of_settings}), Parts(**given)
        except UnknownKindError as error:
            raise NeedsParts(
                f"{path} was learned with a part of your own: {error.problem} Register its class "
                "(ibpwf.parts.register), or pass the part again: Learner.load(path, inference=...)."
            ) from error
        _check_base(path, plain, configuration, settings, {*template})
        load_tensors(plain, template)
        missing = tuple(name for name in configuration.parts if getattr(parts, name, None) is None)
        model = factorize(net, **settings.factorization, head=configuration.head, include=[*configuration.layers])
        _check_layers(configuration, model)
        model.frozen = frozenset(configuration.frozen)  # as it was, whatever the given network has
        _take_stored_packing(model, configuration.packing, content.input_shape)
        method = build_ibpwf(model, settings, parts, device, distributed)
        method.missing_parts = missing
        return method, files


def _network(path: Path, configuration: Configuration, template: Mapping[str, Tensor]) -> nn.Module:
    """The network that a folder describes."""
    if configuration.base is not None:
        raise NeedsParts(
            f"{path} holds differences from a trained network, which is not in it; pass that network: "
            "Learner.load(path, net=trained)."
        )
    if configuration.network is None:
        raise NeedsParts(f"{path} holds a network of your own class; pass it again: Learner.load(path, net=MyNet()).")
    with at_most(SPARE + 4 * sum(tensor.numel() for tensor in template.values())):
        return build(configuration.network)


def _check_base(
    path: Path, net: nn.Module, configuration: Configuration, settings: Settings, stored: set[str]
) -> None:
    """Reject a network that is not the one that the tasks are differences from."""
    if (configuration.base is None) != (settings.base == "none"):
        raise CorruptModelError(f"field 'base' is {configuration.base}, and the settings say {settings.base}")
    if configuration.base is None:
        return
    given = {name: net.get_parameter(name) for name, _, _ in configuration.signature if name not in stored}
    if base_digest(given) != configuration.base:
        raise NeedsParts(
            f"{path} holds differences from another network than the one given: shapes agree, weights do not. Pass "
            "the trained network that its tasks were learned with."
        )


def _check_template(configuration: Configuration, template: Mapping[str, Tensor]) -> None:
    """Reject other tensors than the network's own, by its signature; without a frozen base all of them are there.
    Their numbers are looked at when the network is known."""
    with TensorReader("template", template) as reader:
        known = set[str]()
        for name, shape, kind in configuration.signature:
            dtype = getattr(torch, kind, None)
            if configuration.base is not None and name not in template:
                continue
            if not isinstance(dtype, torch.dtype) or name in known:
                raise CorruptModelError(f"the signature says '{kind}' of '{name}'")
            known.add(name)
            reader.take(name, tuple(shape), dtype, numbers=None)


def _check_layers(configuration: Configuration, model: FactorModel) -> None:
    """Patterns in the place of names, or a name too few, would make another model."""
    if [*model.layers] != configuration.layers:
        raise CorruptModelError(f"field 'layers' is {configuration.layers}; the network has {[*model.layers]}")
    for name in configuration.frozen:
        if name not in dict(model.net.named_parameters(remove_duplicate=False)):
            raise CorruptModelError(f"field 'frozen' has '{name}', which is no parameter of the network")
    if {*configuration.parts} - {*Parts.__annotations__}:
        raise CorruptModelError(
            f"field 'parts' is {configuration.parts}; known are {', '.join(Parts.__annotations__)}"
        )


def _take_stored_packing(model: FactorModel, stored: StoredPacking | None, shape: Sequence[int] | None) -> None:
    """Let a model take inputs as they were packed, if that is what examples are like."""
    if stored is None:
        return
    packing = Packing(tuple(Field(f.name, tuple(f.shape), f.kind) for f in stored.fields), stored.padding)
    if shape is None or packing.row_shape != tuple(shape):
        raise CorruptModelError(
            f"field 'packing' makes rows of shape {packing.row_shape}, and input_shape is {shape}"
        )
    model.take_packing(packing)
