"""The folder of a run: whether it may be used, and what of it may be removed."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ibpwf.errors import IBPWFError, InputError
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.storage.files import read_json, read_jsonl, write_text
from ibpwf.storage.folder import LOCK, MANIFEST

CONFIG = "config.json"
_BEGUN = re.compile(r"config\.json\.tmp-[0-9a-f]{16}")
"""What a run leaves that was killed while it wrote its first file."""


def check_folder(out: Path, config: RunConfig, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that a run with this configuration may not use. Nothing is written or removed."""
    if resume and overwrite:
        raise InputError("--resume and --overwrite were both given; choose one.")
    if not out.exists() or (overwrite and (out / CONFIG).exists()):
        return
    if not out.is_dir():
        raise InputError(f"{out} is a file; choose a folder as --out.")
    if _nothing_learned(out):
        return
    if not (out / CONFIG).exists():
        raise InputError(f"{out} is not empty and holds no run; choose another --out.")
    if not resume:
        raise InputError(
            f"{out} holds a run already; choose another --out, go on with --resume, or replace it with --overwrite."
        )
    old = read_json(out / CONFIG)
    for key, was, now in _differences(old, config.to_json()):
        raise InputError(
            f"{out} was started with {key} = {was!r}, now {key} = {now!r}; "
            "resume with the same choices or use another --out."
        )


def _nothing_learned(out: Path) -> bool:
    """Whether a folder is empty, or has only what a run was asked for that was refused or stopped in its first
    task."""
    if not all(path.name in (LOCK, CONFIG) or _BEGUN.fullmatch(path.name) for path in out.iterdir()):
        return False
    if not (out / CONFIG).exists():
        return True
    try:
        asked = read_json(out / CONFIG)
    except (IBPWFError, OSError, ValueError):
        return False
    ours = {"scenario", "method", "seeds", "settings"}  # and no file of a user's
    return isinstance(asked, dict) and ours <= asked.keys()


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """What must stay the same in a resumed run and does not; more seeds may be added."""
    for key in ("scenario", "method", "preset", "tasks", "examples", "network", "order", "validation"):
        if old.get(key) != new[key]:
            yield key, old.get(key), new[key]
    before = old.get("settings", {})
    for key, now in new["settings"].items():
        if before.get(key) != now:
            yield key, before.get(key), now
    if old.get("settings_for", {}) != new["settings_for"]:
        yield "settings_for", old.get("settings_for", {}), new["settings_for"]


def drop_unfinished(metrics: Path, finished: Mapping[str, int]) -> None:
    """Leave out the lines of tasks that will be learned again, so that none is there twice; `finished` says how many
    tasks of each training are."""
    if not metrics.exists():
        return
    lines = read_jsonl(metrics)
    kept = [line for line in lines if line["task_number"] < finished.get(line.get("training", ""), len(lines))]
    if len(kept) < len(lines):
        write_text(metrics, "".join(json.dumps(line) + "\n" for line in kept))


OURS = (
    *("result.json", "metrics.jsonl", "report.html", "tensorboard/events.out.tfevents.*"),
    *("seed-[0-9]*/rows.json", "config.json.tmp-*", "result.json.tmp-*"),
)
# The manifest goes first: without it a half-removed folder is no model.
MODELS = tuple(f"seed-[0-9]*/model/{name}" for name in (MANIFEST, "*.safetensors", LOCK))


def remove_run(out: Path) -> None:
    """Remove the files of an old run, and nothing a user may have put beside them."""
    # What was asked for goes last: a folder without it is no run, and `--overwrite` could not be tried again.
    _remove(out, (*MODELS, *OURS, CONFIG), ("seed-[0-9]*/model", "seed-[0-9]*", "tensorboard"))


def remove_models(out: Path) -> None:
    """Remove the models of a run; its rows and result stay."""
    _remove(out, MODELS, ("seed-[0-9]*/model",))


def _remove(out: Path, files: Sequence[str], folders: Sequence[str]) -> None:
    for pattern in files:
        for path in _inside(out, pattern):
            path.unlink()
    for pattern in folders:
        for folder in _inside(out, pattern):
            with contextlib.suppress(OSError):  # something of the user's is in it
                folder.rmdir()


def _inside(out: Path, pattern: str) -> list[Path]:
    """What fits a pattern in a run's folder itself, not in one that a link leads to."""
    real = Path(os.path.realpath(out))
    found = out.glob(pattern)
    return [path for path in found if Path(os.path.realpath(path.parent)) == real / path.parent.relative_to(out)]
