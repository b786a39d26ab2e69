"""A folder of image files against the same images in memory: how many of them a second are learned.

    python benchmarks/image_files.py                        # 60,000 files, two workers
    python benchmarks/image_files.py --files 2000 --out DIR # to see that it runs

The same network learns the same task from a tensor in memory, from the folder by its path (the images are decoded
once, into a scratch file), and from a DataLoader whose workers decode every image anew in every epoch. `per_second`
counts images between the end of the first epoch and that of the last; `whole_seconds` has reading in it. What each
comes to is one line of the result in docs/results/scaling.
"""

from __future__ import annotations

import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from record import RESULTS, Clock, made_by, options, write
from torch.utils.data import DataLoader, Dataset

from ibpwf import Learner, Settings
from ibpwf.data import read_examples
from ibpwf.models import resnet9

CLASSES, SIDE = 4, 32


def write_images(folder: Path, count: int) -> None:
    """Noise over a pattern of each class, as PNG, in a folder per class."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(40, 200, (CLASSES, SIDE // 8, SIDE // 8, 3)).repeat(8, 1).repeat(8, 2)
    for label in range(CLASSES):
        (folder / str(label)).mkdir(parents=True)
    for number in range(count):
        label = number % CLASSES
        pixels = np.clip(patterns[label] + rng.normal(0, 40, (SIDE, SIDE, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / str(label) / f"{number:06}.png", compress_level=1)


class ImageFiles(Dataset[tuple[torch.Tensor, int]]):
    """A folder of images as anybody would write it."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.rglob("*.png"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.files[row]) as image:
            pixels = np.array(image)
        return torch.from_numpy(pixels).permute(2, 0, 1).float().div_(255), int(self.files[row].parent.name)


def measured(name: str, given: Callable[[], tuple[Any, ...]], epochs: int, batch_size: int) -> dict[str, Any]:
    torch.manual_seed(0)
    settings = Settings(epochs=epochs - 2, finetune_epochs=2, batch_size=batch_size, learning_rate=2e-3)
    learner = Learner(resnet9(width=8, classes=CLASSES), settings, seed=0, device="cpu")
    clock, started = Clock(), time.perf_counter()
    learner.learn(*given(), task="images", callbacks=[clock])
    whole = time.perf_counter() - started
    rate = clock.samples * (len(clock.ends) - 1) / (clock.ends[-1] - clock.ends[0])
    found = {"per_second": rate, "whole_seconds": whole, "training_accuracy": clock.accuracy}
    print(json.dumps({name: found}), flush=True)
    return found


def main() -> None:
    parser = options(__doc__, RESULTS / "scaling")
    parser.add_argument("--files", type=int, default=60_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4, help="three or more")
    parser.add_argument("--batch-size", type=int, default=64)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as place:
        folder = Path(place) / "images"
        write_images(folder, asked.files)

        def in_memory() -> tuple[Any, ...]:
            examples = read_examples(folder)
            return examples.x, np.array(examples.y, dtype=np.int64)

        def loaded() -> tuple[Any, ...]:
            how = {"num_workers": asked.workers, "persistent_workers": asked.workers > 0, "shuffle": True}
            return (DataLoader(ImageFiles(folder), asked.batch_size, drop_last=True, **how),)

        ways = {"path": lambda: (folder,), "DataLoader": loaded, "memory": in_memory}
        found = {name: measured(name, way, asked.epochs, asked.batch_size) for name, way in ways.items()}
    memory = found["memory"]["per_second"]
    summary = {
        "files": asked.files,
        "of_memory": {name: found[name]["per_second"] / memory for name in ("path", "DataLoader")},
        "peak_rss_gb_of_all": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }
    write(asked.out / "image-files.json", {"name": "image-files", **made_by(), "summary": summary, "ways": found})
    print(json.dumps(summary, indent=2), flush=True)


if __name__ == "__main__":
    main()
