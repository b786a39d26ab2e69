"""torch's ambient state, pinned at every public entry point.

Autocast, the default device, gradient and inference mode and the precision of float32 products belong to whoever
calls. Each of them could change an answer, or stay behind in weights that are composed once and cached. Inside
`pinned` they have torch's defaults; outside they are the caller's again. The default dtype is not touched: all code
of the library names the dtype of what it makes. Only networks and parts of the user's own rely on it.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode, has_torch_function
from torch.utils._device import DeviceContext

R = TypeVar("R")

_dependents: dict[int, weakref.ref[Any]] = {}
"""By identity: a part may compare itself with others, and then has no hash."""
_float32_users = 0
_default: torch.dtype | None = None

_SHARED = (("generic", "all"), ("mkldnn", "all"), ("cuda", "all"))
_OPERATIONS = (("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn"), ("cuda", "matmul"))
"""Where torch keeps the precision of float32 products: an operation that has none of its own takes its backend's, a
backend that has none the generic one. Convolutions of cuDNN stay the caller's choice, as they round by default."""

_lock = threading.RLock()
_inside = 0  # callers that rely on the process-wide precision being plain
_ambient: _Products | None = None
_rounding = False  # inside `tf32_products`, for the thread that holds the lock


@contextlib.contextmanager
def pinned(*, grad: bool = False) -> Iterator[None]:
    """Run in torch's default state, with gradients or without; also a decorator. Costs about 4 µs where it changes
    nothing.

    The caller's state comes back even if an interrupt hits just before it would; gradient mode also where one hits
    inside, while a context of torch's own ends.
    """
    before, changes = torch.is_grad_enabled(), contextlib.ExitStack()
    try:
        try:
            for change in _changes(grad):
                changes.enter_context(change)
            yield
        finally:
            changes.close()
            _set_grad_enabled(before)
    finally:
        changes.close()
        _set_grad_enabled(before)


def _changes(grad: bool) -> Iterator[AbstractContextManager[Any]]:
    """What must be entered for the default state; nothing of what is so already."""
    torch.get_num_threads()  # makes a new thread use as many as were set; its first product would not, and round anew
    with _lock:  # between two steps of another thread the precision may be plain for a moment
        ambient = bool(_inside) or not (_rounding or _plain_products())
    if ambient:
        yield _exact_products()
    if _dependents and (_float32_users or torch.get_default_dtype() != torch.float32):
        yield float32_by_default()
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            yield torch.autocast(device, enabled=False)
    if has_torch_function((None,)):
        yield _no_default_device()
    if torch.is_inference_mode_enabled():
        yield torch.inference_mode(False)  # which also enables gradients
    if not grad and (torch.is_grad_enabled() or torch.is_inference_mode_enabled()):
        yield torch.no_grad()
    elif grad and not torch.is_grad_enabled():
        yield torch.enable_grad()


@contextlib.contextmanager
def _no_default_device() -> Iterator[None]:
    """A default device is a function mode, under which torch's attention computes otherwise, even if it is "cpu";
    other modes stay."""
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    others = [mode for mode in modes if not isinstance(mode, DeviceContext)]
    if len(others) == len(modes):
        yield
        return
    _exchange_modes(len(modes), others)
    try:
        yield
    finally:
        _exchange_modes(len(others), modes)


def _exchange_modes(count: int, modes: Sequence[Any]) -> None:
    for _ in range(count):
        _pop_mode()  # type: ignore[no-untyped-call]
    for mode in modes:
        _push_mode(mode)  # type: ignore[no-untyped-call]


def pinned_steps(steps: Generator[None, None, R]) -> Generator[None, None, R]:
    """A training whose every step is pinned; between two steps the state is the caller's."""
    try:
        while True:
            with pinned(grad=True):
                try:
                    next(steps)
                except StopIteration as end:
                    found: R = end.value
                    return found
            yield
    finally:
        steps.close()


def depends_on_default(*parts: object) -> None:
    """Call parts that are not the library's own with a default dtype of float32, as they may make tensors without
    naming a dtype. The library's code always names one, because the default dtype is the whole process's: while such
    a part exists, other threads see float32 during a call."""
    for part in filter(_is_users, parts):
        with contextlib.suppress(TypeError):  # a part of C code, without weak references
            _dependents[id(part)] = weakref.ref(part, partial(_forget_dependent, id(part)))


def _forget_dependent(place: int, _: object) -> None:
    _dependents.pop(place, None)


def called_in_float32(function: object) -> AbstractContextManager[None]:
    """To call a function that may be the user's."""
    return float32_by_default() if _is_users(function) else contextlib.nullcontext()


def _is_users(part: object) -> bool:
    module = str(getattr(part if hasattr(part, "__name__") else type(part), "__module__", ""))
    return part is not None and module.split(".")[0] not in ("torch", "ibpwf")


@contextlib.contextmanager
def float32_by_default() -> Iterator[None]:
    """The first caller sets the default dtype, the last one restores it, unless somebody has changed it."""
    global _float32_users, _default
    with _lock:
        if not _float32_users:
            _default = torch.get_default_dtype()
            torch.set_default_dtype(torch.float32)
        _float32_users += 1
    try:
        yield
    finally:
        with _lock:
            _float32_users -= 1
            if not _float32_users and _default is not None and torch.get_default_dtype() == torch.float32:
                torch.set_default_dtype(_default)


_set_grad_enabled = torch._C._set_grad_enabled
_precision, _set_precision = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter


def _plain_products() -> bool:
    return all(_precision(*place) in ("none", "ieee") for place in (_SHARED[0], *_OPERATIONS))


@dataclass(frozen=True)
class _Products:
    """The precision of float32 products as it is set: by torch's older interface, and by the newer one for each
    backend and operation alone, without what it would take from others."""

    older: str | None
    newer: dict[tuple[str, str], str]

    @classmethod
    def exchanged(cls) -> _Products:
        """Set what is plain; what there was before."""
        try:
            older = torch.get_float32_matmul_precision()
        except RuntimeError:  # set by the newer interface, which the older one does not describe
            older = None
        newer = {}
        for place in (*_SHARED, *_OPERATIONS):
            newer[place] = _precision(*place)
            _set_precision(*place, "none")
        torch.set_float32_matmul_precision("highest")
        return cls(older, newer)

    def restore(self) -> None:
        torch.set_float32_matmul_precision(self.older or "highest")
        for place, precision in self.newer.items():
            _set_precision(*place, precision)


@contextlib.contextmanager
def tf32_products(wanted: bool) -> Iterator[None]:
    """Let float32 products round their inputs to TF32 (10 bits of mantissa) inside, if `wanted`. Meanwhile other
    threads wait where they are pinned: the precision is the process's, and they would restore it."""
    global _rounding
    if not wanted:
        yield
        return
    with _lock:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        _rounding = True
        try:
            yield
        finally:
            _rounding = False
            torch.backends.cuda.matmul.allow_tf32 = before


@contextlib.contextmanager
def _exact_products() -> Iterator[None]:
    """The first caller sets what all threads share; the last one restores it, unless somebody has changed it."""
    global _inside, _ambient
    with _lock:
        if not _inside:
            _ambient = _Products.exchanged()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside and _ambient is not None and _plain_products():
                _ambient.restore()
