"""What learning one more task writes to a model folder: 50 small tasks, each saved when it is learnt.

    python benchmarks/folder_growth.py            # writes docs/results/folder-growth/{growth.json,README.md}

The tasks are the digits of scikit-learn under another fixed permutation of their pixels each, so there is always
something new to learn. For every task the bytes that reach the disk are counted, by part, beside the bytes of the
whole model: the first must follow the new factors, and not the second.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits

from ibpwf import Learner, Settings
from ibpwf.lab.experiments.result import commit, environment
from ibpwf.models import mlp
from ibpwf.storage import files
from ibpwf.storage import folder as folder_module
from ibpwf.storage.files import write_json, write_text

TASKS = 50
SEED = 0
OUT = Path(__file__).parents[1] / "docs" / "results" / "folder-growth"
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
                    "model_bytes": sum(path.stat().st_size for path in folder.iterdir()),
                }
            )
            sys.stderr.write(f"\r{task + 1}/{tasks}")
    sys.stderr.write("\n")
    return rows


def page(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    rows, has = record["rows"], record["environment"]
    shown = [row for row in rows if row["task"] <= 5 or row["task"] % 5 == 0]
    lines = [
        "# What one more task writes",
        "",
        f"{len(rows)} small tasks (permuted digits, a 64-64-64-10 network) learnt into one model folder. A save "
        "writes the new task's block of factors, its own part (posterior, biases, 33 kB of feature statistics) "
        "and the manifest. No file of an earlier task is read, encoded or written again.",
        "",
        "| task | new factors | factors in all | bytes: factors | bytes: task | bytes: manifest | whole model |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    keys = ("task", "new_factors", "factors", "factor_bytes", "task_bytes", "manifest_bytes", "model_bytes")
    lines += ["| " + " | ".join(f"{row[key]:,}" for key in keys) + " |" for row in shown]
    first, last = rows[1], rows[-1]
    per_task = (last["manifest_bytes"] - first["manifest_bytes"]) / (len(rows) - 2)
    total = sum(last[key] for key in ("factor_bytes", "task_bytes", "manifest_bytes"))
    lines += [
        "",
        f"The manifest grows by {per_task:,.0f} bytes a task. The last task wrote {total:,} bytes to a model of "
        f"{last['model_bytes']:,}: {100 * total / last['model_bytes']:.1f} %.",
        "",
        f"New factors and the bytes of their blocks go together (correlation {correlation(rows):.3f} over the tasks "
        "after the first); the task's own part and the growth of the manifest do not depend on how much was learnt "
        "before, save for a stick's four numbers per factor in the task's posterior.",
        "",
        f"Made by `{record['command']}` at commit {record['commit']}, seed {record['seed']}, on {has['device']} "
        f"({has['machine']}, {has['threads']} of {has['cores']} cores) with ibpwf {has['ibpwf']}, "
        f"Python {has['python']}, torch {has['torch']}; all rows are in [growth.json](growth.json).",
        "",
    ]
    return "\n".join(lines)


def correlation(rows: list[dict[str, Any]]) -> float:
    """Of new factors with the bytes of their blocks, first task left out: it alone is larger than all the others."""
    return statistics.correlation(*([float(row[key]) for row in rows[1:]] for key in ("new_factors", "factor_bytes")))


if __name__ == "__main__":
    torch.set_num_threads(1)
    made = {
        "schema": 1,
        "command": "python benchmarks/folder_growth.py",
        "commit": commit(),
        "seed": SEED,
        "environment": environment("cpu"),
        "rows": measure(TASKS),
    }
    OUT.mkdir(parents=True, exist_ok=True)
    write_json(OUT / "growth.json", made)
    write_text(OUT / "README.md", page(made))
