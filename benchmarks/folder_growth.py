"""What learning one more task writes to a model folder: 50 small tasks, each saved when it is learned.

    python benchmarks/folder_growth.py            # writes docs/results/folder-growth/growth.json

The tasks are the digits of scikit-learn under another fixed permutation of their pixels each, so there is always
something new to learn. For every task the bytes that reach the disk are counted, by part, beside the bytes of the
whole model: the first must follow the new factors, and not the second.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from record import RESULTS, bytes_of, made_by, options, write
from sklearn.datasets import load_digits

from ibpwf import Learner, Settings
from ibpwf.models import mlp
from ibpwf.storage import files
from ibpwf.storage import folder as folder_module

TASKS = 50
SEED = 0
SETTINGS = Settings(alpha=16.0, epochs=2, finetune_epochs=1, batch_size=32, learning_rate=0.01)


def measure(tasks: int) -> list[dict[str, Any]]:
    """One row per task."""
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32)[:600] / 16, torch.tensor(digits.target)[:600]
    torch.manual_seed(0)
    learner = Learner(mlp(64, [64, 64], 10), SETTINGS, seed=SEED, device="cpu")
    written: dict[str, int] = {}
    real = files.write_bytes

    def counted(path: Any, data: bytes) -> None:
        name = Path(path).name.split(".")[0].split("-")[0]
        written[name] = written.get(name, 0) + len(data)
        real(path, data)

    files.write_bytes = folder_module.write_bytes = counted  # the module that writes folders has its own name for it
    rows = []
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there) / "model"
        learner.save(folder)
        for task in range(tasks):
            order = torch.randperm(64, generator=torch.Generator().manual_seed(task))
            learner.learn(x[:, order], y)
            before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}
            written.clear()
            learner.save(folder)
            after = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}
            assert {name: after[name] for name in before} == before, "an old file was written again"
            use = learner.model.use(task).values()
            rows.append(
                {
                    "task": task + 1,
                    "new_factors": sum(layer.new for layer in use),
                    "factors": sum(layer.total for layer in use),
                    "factor_bytes": written.get("factors", 0),
                    "task_bytes": written["task"],
                    "manifest_bytes": written["manifest"],
                    "model_bytes": bytes_of(folder),
                }
            )
            sys.stderr.write(f"\r{task + 1}/{tasks}")
    sys.stderr.write("\n")
    return rows


if __name__ == "__main__":
    asked = options(__doc__, RESULTS / "folder-growth").parse_args()
    torch.set_num_threads(1)
    write(asked.out / "growth.json", {"schema": 1, **made_by(), "seed": SEED, "rows": measure(TASKS)})
