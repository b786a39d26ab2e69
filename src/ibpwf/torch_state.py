"""torch's ambient state, pinned at every public entry point.

Autocast, the default dtype, the default device, gradient and inference mode and the precision of float32 products
belong to whoever calls. Each of them could change an answer, or stay behind in weights that are composed once and
cached. Inside `pinned` they have torch's defaults; outside they are the caller's again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode, has_torch_function
from torch.utils._device import DeviceContext

R = TypeVar("R")

PLAIN = (torch.float32, "highest")
"""torch's own default dtype and precision of float32 products."""

_lock = threading.RLock()
_inside = 0  # callers that rely on the process-wide settings being plain
_ambient: tuple[Any, Any] = PLAIN
_intended: tuple[Any, Any] = PLAIN  # otherwise only inside `tf32_products`, for the thread that holds the lock


@contextlib.contextmanager
def pinned(*, grad: bool = False) -> Iterator[None]:
    """Run in torch's default state, with gradients or without; also a decorator. Costs about 2 µs where it changes
    nothing."""
    changes = list(_changes(grad))
    if not changes:
        yield
        return
    with contextlib.ExitStack() as stack:
        for change in changes:
            stack.enter_context(change)
        yield


def _changes(grad: bool) -> Iterator[AbstractContextManager[Any]]:
    """What must be entered for the default state; nothing of what is so already."""
    torch.get_num_threads()  # makes a new thread use as many as were set; its first product would not, and round anew
    with _lock:  # between two steps of another thread the settings may be plain for a moment
        ambient = bool(_inside) or _process_wide() != _intended
    if ambient:
        yield _plain_process()
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


def _process_wide() -> tuple[Any, Any]:
    try:
        return torch.get_default_dtype(), torch.get_float32_matmul_precision()
    except RuntimeError:  # set by backend with torch's newer interface, which the older one does not describe
        return torch.get_default_dtype(), "highest"


def _set_process_wide(state: tuple[Any, Any]) -> None:
    dtype, precision = state
    torch.set_default_dtype(dtype)
    with contextlib.suppress(RuntimeError):
        if torch.get_float32_matmul_precision() != precision:
            torch.set_float32_matmul_precision(precision)


@contextlib.contextmanager
def tf32_products(wanted: bool) -> Iterator[None]:
    """Let float32 products round their inputs to TF32 (10 bits of mantissa) inside, if `wanted`. Meanwhile other
    threads wait where they are pinned: the precision is the process's, and they would restore it."""
    global _intended
    if not wanted:
        yield
        return
    with _lock:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        _intended = _process_wide()
        try:
            yield
        finally:
            _intended = PLAIN
            torch.backends.cuda.matmul.allow_tf32 = before


@contextlib.contextmanager
def _plain_process() -> Iterator[None]:
    """The first caller sets what all threads share, the last one restores it."""
    global _inside, _ambient
    with _lock:
        if not _inside:
            _ambient = _process_wide()
            _set_process_wide(PLAIN)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _set_process_wide(_ambient)
