"""The versions of a model folder: version n is what the model was after n changes, each a task or an update of one.

A learned task never changes, so a folder also holds the versions from before its last tasks, which are left out. What
cannot be found so (a task was updated since, or a router keeps one sum for all tasks) comes from what was kept: each
version that is the newest when a server sees it is a folder of hard links in `.serving/versions`, which costs only
the files that later changes write anew. A version comes from the earliest folder that holds it, so that it stays as
it was announced, or from the newest where that is bound to answer alike.

Forgetting a task withdraws the version that it made, and takes the task out of all other versions.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ibpwf.errors import StoreError
from ibpwf.estimator import ContinualClassifier
from ibpwf.serving.faults import is_disk_full
from ibpwf.storage.files import encode_json, read_bytes, replacing, write_bytes
from ibpwf.storage.folder import MANIFEST, OpenedFolder, lock_folder, open_folder
from ibpwf.storage.model_folder import KIND, whole_folder
from ibpwf.storage.whole_folder import replacing_folder

STATE = ".serving"
"""What a server keeps in a model folder."""

ANSWERED_WITH = ("accelerate", "precision", "views", "inference")
"""Settings that predictions depend on, and that may change from task to task or have such settings."""

WAIT = 60.0
"""Seconds to wait for another process that changes what is kept."""

Events = Sequence[Mapping[str, Any]]
Stamp = tuple[int, int, int]


def make_state_folder(model: Path, *names: str) -> Path:
    """A folder in `.serving` of a model folder, made if need be. A model folder that is gone is not made again."""
    folder = model / STATE
    folder.mkdir(exist_ok=True)
    for name in names:
        folder = folder / name
        folder.mkdir(exist_ok=True)
    return folder


def stamp_of(folder: Path) -> Stamp:
    """Tells a manifest from the one that takes its place."""
    found = os.stat(folder / MANIFEST)
    return found.st_ino, found.st_mtime_ns, found.st_size


@dataclass(frozen=True)
class Version:
    """One version: its number, the serial of what was learned last, and whether that was an update of a task."""

    number: int
    serial: int
    is_update: bool = False


def all_versions(history: Events) -> tuple[list[Version], list[Version]]:
    """The versions that there are by a model's history, and those that were withdrawn because what made them was
    forgotten. A number is never given twice."""
    number, there, withdrawn = 0, list[Version](), list[Version]()
    for event in history:
        if event["event"] == "forgot":
            withdrawn += [version for version in there if version.serial == event["serial"]]
            there = [version for version in there if version.serial != event["serial"]]
        else:
            number += 1
            there.append(Version(number, int(event["serial"]), event["event"] == "updated"))
    return there, withdrawn


def versions_of(history: Events) -> list[Version]:
    return all_versions(history)[0]


def history_of(opened: OpenedFolder) -> list[dict[str, Any]]:
    """What was learned and forgotten; of a folder that does not say so, that its tasks were learned."""
    found = opened.content.get("history")
    if found is None:
        return [{"event": "learnt", "serial": number} for number in range(len(opened.content["tasks"]))]
    return list(found)


@dataclass(frozen=True)
class Mark:
    """By what a task, or a version of it, is known again: what is told of it, and the digest of its part."""

    told: list[Any]
    part: str | None

    def agrees(self, other: Mark) -> bool:
        comparable = self.part and other.part
        return self.told == other.told and (not comparable or self.part == other.part)


@dataclass(frozen=True)
class FolderVersions:
    """What a model folder's manifest says of its versions.

    `marks` tell by serial what was learned, so that one model is known from another; `origins` are the serials of the
    first version of each task. `setup` is all else that answers depend on, but for the `stream` that some models
    learn from, which goes on without new versions. Of a folder that `looks_back`, versions from before its last tasks
    can be had.
    """

    history: list[dict[str, Any]]
    marks: Mapping[int, Mark]
    origins: Mapping[int, int]
    setup: bytes
    stream: bytes
    looks_back: bool

    @classmethod
    def of(cls, opened: OpenedFolder) -> Self:
        content, marks, origins = opened.content, dict[int, Mark](), dict[int, int]()
        with whole_folder(opened.path):
            state = content["state"].get("tasks", [])
            for number, (info, learned) in enumerate(zip(content["tasks"], state, strict=False)):
                serial = int(learned.get("serial", number))
                origins[serial] = int(learned.get("origin") or serial)
                told = [info.get(name) for name in ("classes", "examples", "training_accuracy", "held_out")]
                # The part of an older version is written anew without its statistics.
                part = opened.files.get(f"task-{serial:04d}") if info.get("version_of") is None else None
                marks[serial] = Mark(told, None if part is None else part.sha256)
            settings, face = content["configuration"].get("settings", {}), content.get("face") or {}
            setup = {
                "settings": {name: settings.get(name) for name in ANSWERED_WITH},
                "rate": face.get("parameters", {}).get("false_alarm_rate"),
                "inputs": [face.get("standardizer"), (content.get("extra") or {}).get("layout")],
                "inference": content["state"].get("inference"),  # the ridge, which an update of the first task moves
            }
            stream = encode_json(face.get("stream"), "stream")
            # A router that keeps one sum for all tasks keeps it beside them, and cannot take a task out of it.
            looks_back = "inference" not in opened.files
            return cls(history_of(opened), marks, origins, encode_json(setup, "setup"), stream, looks_back)

    @classmethod
    def read(cls, folder: Path) -> Self:
        return cls.of(open_folder(folder, kind=KIND))

    @property
    def versions(self) -> list[Version]:
        return versions_of(self.history)

    def is_same_model(self, other: FolderVersions) -> bool:
        """Whether what both have learned is the same, as far as both still have it."""
        both = {one.serial for one in self.versions if one in other.versions} & {*self.marks} & {*other.marks}
        return all(self.marks[serial].agrees(other.marks[serial]) for serial in both)

    def continues(self, before: FolderVersions) -> bool:
        """Whether this is the model of `before`, now or later."""
        return self.history[: len(before.history)] == before.history and self.is_same_model(before)

    def forgotten_since(self, kept: FolderVersions) -> set[int] | None:
        """The serials that were forgotten since this model was as it was `kept`; None where that is another model's,
        or newer than this one."""
        there, withdrawn = all_versions(self.history)
        gone = {one.serial for one in kept.versions if one not in there}
        if not {*kept.versions} <= {*there, *withdrawn} or not self.is_same_model(kept):
            return None
        return gone

    def holds(self, gone: Collection[int] = ()) -> dict[int, int]:
        """The versions that the folder holds once what is `gone` has been taken out, newest first, and how many of
        its last tasks each does not have."""
        newest = {origin: serial for serial, origin in sorted(self.origins.items())}
        whole = {origin for origin, serial in newest.items() if serial in gone}  # which take older versions along
        if whole and not self.looks_back:
            return {}
        left = [one for one in self.versions if one.serial not in gone and self.origins.get(one.serial) not in whole]
        found = dict[int, int]()
        for back, version in enumerate(reversed(left)):
            found[version.number] = back
            if version.is_update or not self.looks_back:
                break
        return found


@dataclass(frozen=True)
class Way:
    """How to come by a version: from a folder that was kept, or, where `path` is None, from a classifier in memory;
    without the serials that are `gone`, and without so many of the last tasks."""

    path: Path | None
    gone: frozenset[int]
    back: int

    def apply(self, classifier: ContinualClassifier) -> ContinualClassifier:
        other = classifier.first_tasks(len(classifier.tasks_)) if self.gone else classifier  # the original stays
        leave_out(other, self.gone)
        return other.first_tasks(len(other.tasks_) - self.back) if self.back else other


def leave_out(classifier: ContinualClassifier, serials: Collection[int]) -> None:
    """Forget what has these serials."""
    for serial in serials:
        method, names = classifier.learner_.method, classifier.learner_.names()
        numbers = {classifier.learner_.task_number(name) for name in names}
        number = next((one for one in numbers if method.serial(one) == serial), None)
        if number is not None:
            classifier.forget(number)


def link_model(opened: OpenedFolder, target: Path) -> None:
    """Fill an empty folder with the files of a model folder as it was opened: links, or copies where the disk has
    none. A `StoreError`, or an `OSError` of a file that is gone, if the model was saved since."""
    for entry in opened.files.values():
        try:
            os.link(opened.path / entry.file, target / entry.file)
        except FileNotFoundError:
            raise
        except OSError:
            with open(opened.path / entry.file, "rb") as source, replacing(target / entry.file) as copy:
                shutil.copyfileobj(source, copy)
    # The original is replaced, and must not be linked to.
    write_bytes(target / MANIFEST, read_bytes(opened.path / MANIFEST))
    if open_folder(target).sha256 != opened.sha256:
        raise StoreError(f"{opened.path} was written meanwhile; read it again.")


class Kept:
    """What was kept of earlier versions, in `.serving/versions` of a model folder."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.folder = model / STATE / "versions"
        self._read: dict[Path, tuple[Stamp, FolderVersions]] = {}

    def path(self, number: int) -> Path:
        return self.folder / f"{number:05d}"

    def there(self) -> dict[int, FolderVersions]:
        """What was kept, by number in order; what is damaged is left out."""
        found = {}
        for path in sorted(self.folder.glob("[0-9]" * 5)):
            try:
                stamp, known = stamp_of(path), self._read.get(path)
                if known is None or known[0] != stamp:
                    known = self._read[path] = stamp, FolderVersions.read(path)
                found[int(path.name)] = known[1]
            except FileNotFoundError:
                pass
            except StoreError as error:
                cause = error.__cause__
                if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
                    raise  # it may be readable again
        self._read = {path: known for path, known in self._read.items() if int(path.name) in found}
        return found

    def ways(self, model: FolderVersions) -> dict[int, Way]:
        """Every version of a model that can be had, and how."""
        held = model.holds()
        ways = {number: Way(None, frozenset(), back) for number, back in held.items()}
        newest = max(held, default=0)
        for kept_as, kept in sorted(self.there().items(), reverse=True):  # the earliest counts
            gone = model.forgotten_since(kept)
            if gone is None:
                continue
            for number, back in kept.holds(gone).items():
                alike = kept.setup == model.setup and (number == newest or kept.stream == model.stream)
                if number in held and alike:
                    ways[number] = Way(None, frozenset(), held[number])
                else:
                    ways[number] = Way(self.path(kept_as), frozenset(gone), back)
        return ways

    def keep(self) -> None:
        """Keep the version that the folder holds now, if that was not done before. One that is saved meanwhile is a
        `StoreError`."""
        if self._has_newest(FolderVersions.read(self.model)):
            return
        with self._alone():
            opened = open_folder(self.model, kind=KIND)  # it may have been saved while this waited
            model = FolderVersions.of(opened)
            if not self._has_newest(model):
                with replacing_folder(self.path(model.versions[-1].number)) as aside:
                    link_model(opened, aside)

    def _has_newest(self, model: FolderVersions) -> bool:
        if not model.versions:
            return True
        kept = self.there().get(model.versions[-1].number)
        return kept is not None and model.forgotten_since(kept) is not None

    def needs_following(self, model: FolderVersions) -> bool:
        """Whether something is kept that `follow` would change."""
        kept = self.there()
        there = list(self.folder.glob("[!.]*"))  # with what is damaged, and what a killed process has left
        return len(there) > len(kept) or any(model.forgotten_since(one) != set() for one in kept.values())

    def follow(self, *, wait: float = WAIT) -> list[int]:
        """Take out of all that was kept what has been forgotten in the model since, by whomever, and remove what a
        killed process has left, and what is damaged or another model's: the numbers of the latter."""
        strange = list[int]()
        if not self.folder.is_dir():
            return strange
        with self._alone(wait):
            self._put_back()
            model = FolderVersions.read(self.model)
            kept = self.there()
            for path in sorted(self.folder.iterdir()):
                if path.name.startswith("."):
                    continue
                found = kept.get(int(path.name)) if path.name.isdigit() else None
                gone = None if found is None else model.forgotten_since(found)
                if found is None or gone is None:
                    shutil.rmtree(path, ignore_errors=True)
                    strange += [int(path.name)] if path.name.isdigit() else []
                elif gone:
                    self._leave_out(path, gone, max(found.holds(gone), default=None))
        return strange

    def _put_back(self) -> None:
        """Put back what a process that was killed had moved aside to replace it, where the system cannot exchange
        folders in one step."""
        for path in self.folder.glob("*.old"):
            number = path.name.partition(".")[0]
            if number.isdigit() and not self.path(int(number)).exists():
                path.rename(self.path(int(number)))

    def _leave_out(self, path: Path, gone: Collection[int], number: int | None) -> None:
        """Put what is left without these serials in the place of what was kept; nothing, where it is no version or
        one that is there already."""
        try:
            if number is not None and (path == self.path(number) or not self.path(number).exists()):
                with replacing_folder(self.path(number)) as aside:
                    link_model(open_folder(path, kind=KIND), aside)
                    classifier = ContinualClassifier.load(aside, device="cpu")
                    leave_out(classifier, gone)
                    classifier.save(aside)
                    (aside / ".lock").unlink(missing_ok=True)
        except (OSError, StoreError) as error:  # what cannot be written without the task goes with it
            if not is_disk_full(error):
                raise
            shutil.rmtree(path)
        if number is None or path != self.path(number):
            shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def _alone(self, wait: float = WAIT) -> Iterator[None]:
        """Nobody else changes what is kept meanwhile."""
        make_state_folder(self.model, "versions")
        with locked(self.folder, wait):
            yield


@contextlib.contextmanager
def locked(folder: Path, wait: float) -> Iterator[None]:
    """The lock of a folder, for which this waits so many seconds. A folder that is gone is not made again."""
    end = time.monotonic() + wait
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(lock_folder(folder))
                break
            except StoreError:
                if time.monotonic() >= end or not folder.is_dir():
                    raise
                time.sleep(0.1)
        yield
