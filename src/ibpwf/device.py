"""Which device to compute on, by its name; a mistyped one is refused without waiting for torch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ibpwf.errors import InputError

if TYPE_CHECKING:
    import torch

_KNOWN = re.compile(r"auto|cpu|cuda(:\d{1,4})?")


def check_device(device: object) -> None:
    """Refuses what is no name of a device that networks are trained and tested on."""
    if not _KNOWN.fullmatch(str(device)):
        raise InputError(f"device is '{device}'; give 'auto', 'cpu' or 'cuda'.")


def choose_device(device: str | torch.device) -> torch.device:
    """'auto' is the GPU where there is one, else the CPU."""
    import torch

    check_device(device)
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = torch.device(device)
    if chosen.type == "cuda":
        if not torch.cuda.is_available():
            raise InputError(f"device is '{device}' but this machine has no CUDA GPU; use 'auto' or 'cpu'.")
        if chosen.index is not None and chosen.index >= torch.cuda.device_count():
            raise InputError(
                f"device is '{device}' but this machine's GPUs are numbered 0 to {torch.cuda.device_count() - 1}; "
                "use one of them, or 'cuda'."
            )
    return chosen
