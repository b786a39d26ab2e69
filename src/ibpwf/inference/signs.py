"""Random signs that are the same for ever, so that what is multiplied with them need not be stored."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def random_signs(rows: int, columns: int, seed: int) -> Tensor:
    """±1, rows × columns, from the bits of a generator whose stream NumPy promises to keep."""
    count = rows * columns
    bits = np.unpackbits(np.random.PCG64(seed).random_raw(-(-count // 64)).astype("<u8").view(np.uint8))
    return torch.from_numpy(bits[:count].astype(np.float32).reshape(rows, columns)) * 2 - 1
