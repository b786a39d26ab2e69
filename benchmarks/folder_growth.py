"""What learning one more task writes to a model folder: 50 small tasks, each saved when it is learned.

    python benchmarks/folder_growth.py            # writes docs/results/folder-growth/growth.json

The tasks are the digits of scikit-learn under another fixed permutation of their pixels each, so there is always
something new to learn. For every task the bytes that reach the disk are counted, by part, beside the bytes of the
whole model: the first must follow the new factors, and not the second.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from record import RESULTS, bytes_of, made_by, options, write
from sklearn.datasets import load_digits

from ibpwf import Learner, Settings
from ibpwf.models import mlp

SETTINGS = Settings(alpha=16.0, epochs=2, finetune_epochs=1, batch_size=32, learning_rate=0.01)


def measure(tasks: int, seed: int) -> Iterator[dict[str, Any]]:
    """A row for each task."""
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32)[:600] / 16, torch.tensor(digits.target)[:600]
    torch.manual_seed(0)
    learner = Learner(mlp(64, [64, 64], 10), SETTINGS, seed=seed, device="cpu")
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there) / "model"
        learner.save(folder)
        before = {path: path.stat() for path in folder.glob("*.safetensors")}
        for task in range(tasks):
            order = torch.randperm(64, generator=torch.Generator().manual_seed(task))
            learner.learn(x[:, order], y)
            learner.save(folder)
            after = {path: path.stat() for path in folder.glob("*.safetensors")}
            old = all(after[path].st_mtime_ns == stat.st_mtime_ns for path, stat in before.items())
            assert old, "an old file was written again"
            new = {path.name: stat.st_size for path, stat in after.items() if path not in before}
            use, before = learner.model.use(task).values(), after
            yield {
                "task": task + 1,
                "new_factors": sum(layer.new for layer in use),
                "factors": sum(layer.total for layer in use),
                "factor_bytes": sum(size for name, size in new.items() if name.startswith("factors-")),
                "task_bytes": sum(size for name, size in new.items() if name.startswith("task-")),
                "manifest_bytes": (folder / "manifest.json").stat().st_size,
                "model_bytes": bytes_of(folder),
            }


if __name__ == "__main__":
    parser = options(__doc__, RESULTS / "folder-growth")
    parser.add_argument("--tasks", type=int, default=50)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = list(measure(asked.tasks, seed=0))
    write(asked.out / "growth.json", {"schema": 1, **made_by(), "seed": 0, "rows": rows})
