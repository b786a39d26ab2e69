"""Work in a folder that is killed at random moments and begun again, as often as it takes."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import processes
from ibpwf.storage.folder import MANIFEST
from ibpwf.storage.model_folder import verify_model


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def ends_as_if_undisturbed(
    work: Callable[[str], None], place: Path, kills: int, share: float, check: Callable[[Path], None]
) -> None:
    """Kill work in a model folder within a `share` of its time. Each time the folder is whole, if it is there, and
    passes the check; in the end it has the bytes of one that nobody has disturbed, which lies in `undisturbed`."""
    processes.call(work, str(place / "undisturbed"))
    undisturbed, started = files_of(place / "undisturbed"), time.monotonic()
    processes.call(work, str(place / "again"))  # now that everything has been loaded once
    whole, chance = time.monotonic() - started, random.Random(kills)
    assert files_of(place / "again") == undisturbed
    done = finished = 0
    while done < kills:
        folder = place / f"model-{finished}"
        process = processes.begin(work, str(folder))
        process.join(chance.uniform(0.0, share * whole))
        process.kill()
        process.join()
        if process.exitcode == 0:  # it was done first
            assert files_of(folder) == undisturbed
            finished += 1
            continue
        assert process.exitcode == -signal.SIGKILL
        done += 1
        if (folder / MANIFEST).exists():
            assert verify_model(folder).problems == []
            check(folder)
    processes.call(work, str(folder))
    assert files_of(folder) == undisturbed
    print(f"{done} kills, {finished + 1} models finished")
