"""A user's files: blobs around class means in every format, small enough to be learnt in a second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

QUICK = ("--epochs", "4", "--hidden", "24", "--set", "inference.features.width=64", "--device", "cpu")
"""Settings with which a task of blobs is learnt in a fraction of a second, and learnt well."""

MEANS = np.random.default_rng(7).normal(0, 4, (12, 16))
NAMES = [f"f{number}" for number in range(16)]


def blobs(classes: Sequence[int], each: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows around the means of these classes, and their classes' numbers."""
    y = np.repeat(list(classes), each)
    return MEANS[y] + np.random.default_rng([seed, *classes]).normal(size=(len(y), 16)), y


def table(path: Path, x: np.ndarray, labels: Sequence[object] | None, columns: Sequence[str] = NAMES) -> Path:
    """Writes a table in the format that the path's ending asks for; the label stands first and is called `kind`."""
    import pandas

    frame = pandas.DataFrame(x, columns=NAMES)[list(columns)]
    if labels is not None:
        frame.insert(0, "kind", list(labels))
    if path.suffix == ".parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


def pixels(x: np.ndarray) -> np.ndarray:
    """The rows as 4×4 pictures."""
    return np.clip(x * 8 + 128, 0, 255).astype(np.uint8).reshape(-1, 4, 4)


def model_bytes(folder: Path) -> dict[str, bytes]:
    """All files of a model folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
