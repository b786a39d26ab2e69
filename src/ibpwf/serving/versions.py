"""The versions of a model folder: version n is what it was after n tasks, or more rows of one, had been learnt.

A learnt task never changes, so an earlier version is the newest with its last tasks left out. Where that cannot be
had (a task had more rows since, or a router keeps one sum for all tasks), it is what was kept when it was the newest:
a folder of hard links in `.serving/versions`, which costs no more than the files that later tasks write anew.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ibpwf.errors import InputError, StoreError
from ibpwf.estimator import ContinualClassifier
from ibpwf.estimator.building import told_by_router
from ibpwf.serving.faults import is_disk_full
from ibpwf.storage.files import sync_folder
from ibpwf.storage.folder import MANIFEST, OpenedFolder, lock_folder, open_folder
from ibpwf.storage.model_folder import KIND

STATE = ".serving"
"""What a server keeps in a model folder."""

Events = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Version:
    """One version: its number, the serial of what was learnt last, and whether that was more rows of a task."""

    number: int
    serial: int
    more: bool = False


def versions_of(history: Events) -> list[Version]:
    """The versions that there are by a model's history. One whose last task was forgotten is no more; its number is
    never given again."""
    number, there = 0, list[Version]()
    for event in history:
        if event["event"] == "forgot":
            there = [version for version in there if version.serial != event["serial"]]
        else:
            number += 1
            there.append(Version(number, int(event["serial"]), event["event"] == "more"))
    return there


def history_of(opened: OpenedFolder) -> list[dict[str, Any]]:
    """What was learnt and forgotten; of a folder that does not say so, that its tasks were learnt."""
    found = opened.content.get("history")
    if found is None:
        return [{"event": "learnt", "serial": number} for number in range(len(opened.content["tasks"]))]
    return list(found)


def can_look_back(classifier: ContinualClassifier) -> bool:
    """Whether earlier versions can be had by leaving tasks out."""
    if not told_by_router(classifier.learner_):
        return True
    return bool(classifier.learner_.settings.keep_sums_per_task)


class Kept:
    """What was kept of earlier versions, in `.serving/versions` of a model folder."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.folder = model / STATE / "versions"

    def path(self, number: int) -> Path:
        return self.folder / f"{number:05d}"

    def numbers(self, history: Events) -> set[int]:
        """Of which versions something fitting was kept."""
        return {version.number for version in versions_of(history) if self.fits(version, history)}

    def fits(self, version: Version, history: Events) -> bool:
        """Whether what was kept under a number is that version of this model, with nothing in it that was forgotten
        since."""
        try:
            kept = versions_of(history_of(open_folder(self.path(version.number), kind=KIND)))
        except StoreError:
            return False
        return kept == [one for one in versions_of(history) if one.number <= version.number]

    def keep(self) -> None:
        """Keep the version that the folder holds now, if that was not done before; the caller holds the lock, or
        nobody writes."""
        opened = open_folder(self.model, kind=KIND)
        history = history_of(opened)
        newest = versions_of(history)[-1:]
        if not newest or self.fits(newest[0], history):
            return
        try:
            self._put(newest[0].number, self.model, [MANIFEST, *(entry.file for entry in opened.files.values())])
        except OSError:  # another process may be keeping it too
            if not self.fits(newest[0], history):
                raise

    def _put(self, number: int, source: Path, names: Sequence[str]) -> None:
        """Links to files of a folder, all of them or none; copies where the disk has no links."""
        self.folder.mkdir(parents=True, exist_ok=True)
        aside = self.folder / f"new-{secrets.token_hex(8)}"
        aside.mkdir()
        try:
            for name in names:
                if name == MANIFEST:  # the original is replaced, and must not be linked to
                    shutil.copyfile(source / name, aside / name)
                    continue
                try:
                    os.link(source / name, aside / name)
                except FileNotFoundError:
                    raise
                except OSError:
                    shutil.copyfile(source / name, aside / name)
            sync_folder(aside)
            self._replace(number, aside)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise

    def _replace(self, number: int, aside: Path) -> None:
        target = self.path(number)
        if target.exists():
            target.rename(self.folder / f"old-{secrets.token_hex(8)}")
        aside.rename(target)
        sync_folder(self.folder)

    def forget(self, task: str) -> None:
        """Take a task out of all that was kept, after it has been taken out of the model."""
        history = history_of(open_folder(self.model, kind=KIND))
        wanted = {version.number: version for version in versions_of(history)}
        for path in sorted(self.folder.glob("[0-9]" * 5)):
            version = wanted.get(int(path.name))
            if version is None:
                shutil.rmtree(path)
            elif not self.fits(version, history):
                try:
                    self._forget_in(path, task)
                except (OSError, StoreError) as error:
                    if not is_disk_full(error):
                        raise
                    shutil.rmtree(path)  # a version that cannot be written without the task goes with it
        self.sweep(history)

    def _forget_in(self, path: Path, task: str) -> None:
        aside = self.folder / f"new-{secrets.token_hex(8)}"
        try:
            shutil.copytree(path, aside)
            with contextlib.suppress(InputError):  # what does not fit afterwards is removed
                classifier = ContinualClassifier.load(aside, device="cpu")
                classifier.forget(task)
                with lock_folder(aside):
                    classifier.save(aside)
            (aside / ".lock").unlink(missing_ok=True)
            self._replace(int(path.name), aside)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)  # it has the task
            raise

    def sweep(self, history: Events) -> None:
        """Remove what a killed process has left, and what is no version of the model any more."""
        if not self.folder.is_dir():
            return
        wanted = {version.number: version for version in versions_of(history)}
        for path in self.folder.iterdir():
            version = wanted.get(int(path.name)) if path.name.isdigit() else None
            if version is None or not self.fits(version, history):
                shutil.rmtree(path, ignore_errors=True)
