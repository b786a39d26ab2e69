"""The models that are served, each with all its versions: loaded once, replaced in one step.

A model folder is read when it is first seen and whenever its manifest has changed, whoever changed it. What is
answered meanwhile is answered by the version that the request asked for when it came.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from ibpwf.errors import IBPWFError, InputError, StoreError, unknown
from ibpwf.estimator import ContinualClassifier
from ibpwf.files import Layout
from ibpwf.own_data.answering import layout_of
from ibpwf.serving.faults import is_disk_full
from ibpwf.serving.passes import warm
from ibpwf.serving.records import RateLimitedLog
from ibpwf.serving.versions import Kept, can_look_back, history_of, versions_of
from ibpwf.storage.folder import MANIFEST, open_folder
from ibpwf.storage.model_folder import KIND
from ibpwf.storage.on_demand import everything_now

RESIDENT = 4
"""Earlier versions of a model that stay in memory, those asked for last."""

TRIES = 5
"""To read a folder that is being written."""


class NoSuchModel(InputError):
    """A model, or a version of one, that is not served."""


@dataclass(frozen=True, eq=False)
class LoadedVersion:
    """A version of a model that can be asked. `layout` is None of a model that was not learnt from files."""

    model: str
    number: int
    classifier: ContinualClassifier
    layout: Layout | None

    @property
    def tasks(self) -> list[str]:
        return list(self.classifier.tasks_)


Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class State:
    """A model folder as it was at one moment."""

    stamp: Stamp
    newest: LoadedVersion
    counts: dict[int, int]  # how many tasks each version has that is had by leaving the last ones out
    kept: frozenset[int]  # versions that are read from what was kept of them

    @property
    def numbers(self) -> list[int]:
        return sorted({*self.counts, *self.kept})


class ServedModel:
    """A model folder, answered from by any number of threads."""

    def __init__(self, name: str, path: Path, *, read_only: bool = False) -> None:
        self.name, self.path, self.read_only = name, path, read_only
        self._trouble = RateLimitedLog(logging.ERROR, 60.0)
        self._state = self._read()
        self._earlier: OrderedDict[tuple[Stamp, int], LoadedVersion] = OrderedDict()
        self._loading, self._reading = threading.Lock(), threading.Lock()

    @property
    def versions(self) -> list[int]:
        return self._state.numbers

    @property
    def newest(self) -> LoadedVersion:
        return self._state.newest

    def is_loaded(self, number: int | None) -> bool:
        state = self._state
        return number in (None, state.newest.number) or (state.stamp, number) in self._earlier

    def version(self, number: int | None = None) -> LoadedVersion:
        """A version to ask, the newest if none is named; an earlier one may have to be made first."""
        state = self._state
        if number is None or number == state.newest.number:
            return state.newest
        if number not in state.numbers:
            known = ", ".join(map(str, state.numbers[-8:]))
            raise NoSuchModel(f"model '{self.name}' has no version {number}; it has {known}.")
        key = (state.stamp, number)
        with self._loading:
            found = self._earlier.get(key)
            if found is None:
                found = self._earlier[key] = self._make(state, number)
            self._earlier.move_to_end(key)
            for old in [one for one in self._earlier if one[0] != state.stamp]:
                del self._earlier[old]
            while len(self._earlier) > RESIDENT:
                self._earlier.popitem(last=False)
            return found

    def _make(self, state: State, number: int) -> LoadedVersion:
        if number in state.counts:
            classifier = state.newest.classifier.first_tasks(state.counts[number])
        else:
            with everything_now():
                classifier = ContinualClassifier.load(Kept(self.path).path(number), device="cpu")
        return _loaded(self.name, number, classifier)

    def refresh(self) -> bool:
        """Read the folder again if its manifest is another one; whether it was."""
        with self._reading:  # several may have seen that it changed
            if _stamp(self.path) == self._state.stamp:
                return False
            self._state = self._read()
            return True

    def _read(self) -> State:
        for _ in range(TRIES - 1):
            try:
                return self._read_once()
            except (StoreError, OSError):  # files may go while a save replaces them
                time.sleep(0.05)
        return self._read_once()

    def _read_once(self) -> State:
        stamp = _stamp(self.path)
        history = history_of(open_folder(self.path, kind=KIND))
        versions, kept = versions_of(history), Kept(self.path)
        if not versions:
            raise StoreError(
                f"{self.path} has learnt no task yet; learn one first: ibpwf learn {self.path} DATA.csv."
            )
        with everything_now():  # the folder may be written anew while this answers
            classifier = ContinualClassifier.load(self.path, device="cpu")
        if not self.read_only:
            try:
                kept.keep()
            except (OSError, StoreError) as error:
                if not is_disk_full(error):
                    raise
                self._trouble.note("keep", f"a version of model {self.name} could not be kept: {error}")
        if _stamp(self.path) != stamp:
            raise StoreError(f"{self.path} was written meanwhile; read it again.")
        newest = _loaded(self.name, versions[-1].number, classifier)
        counts = {versions[-1].number: len(classifier.tasks_)}
        if can_look_back(classifier):
            for version in reversed(versions[:-1]):
                later = [one for one in versions if one.number > version.number]
                if any(one.more for one in later):
                    break
                counts[version.number] = len(classifier.tasks_) - len(later)
        return State(stamp, newest, counts, frozenset(kept.numbers(history)))


def _stamp(path: Path) -> Stamp:
    found = os.stat(path / MANIFEST)
    return found.st_ino, found.st_mtime_ns, found.st_size


def _loaded(model: str, number: int, classifier: ContinualClassifier) -> LoadedVersion:
    torch.set_num_threads(1)  # in this thread too: what is prepared must have the same bits whoever loads it
    layout = layout_of(classifier) if "layout" in classifier.extra_ else None
    version = LoadedVersion(model, number, classifier, layout)
    warm(version.classifier)
    return version


class Registry:
    """The models by name: one model folder, or all that lie in a folder."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self.read_only = path, read_only
        self.single = os.path.lexists(path / MANIFEST)
        self._models: dict[str, ServedModel] = {}
        self.faults: dict[str, str] = {}  # folders that could not be read, and why
        self.refresh()
        if not self._models:
            why = next(iter(self.faults.values()), f"{path} holds no model folder. Give one, or a folder of them.")
            raise StoreError(why)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(list(self._models.values()))

    def __getitem__(self, name: str) -> ServedModel:
        """A model by its name, which is looked up and never made a path."""
        if name not in self._models:
            raise NoSuchModel(str(unknown("model", name, self._models)))
        return self._models[name]

    def refresh(self) -> list[ServedModel]:
        """Look at the folders again; the models that are new or have changed."""
        changed = []
        for name, path in self._folders().items():
            try:
                if name not in self._models:
                    self._models[name] = ServedModel(name, path, read_only=self.read_only)
                    changed.append(self._models[name])
                elif self._models[name].refresh():
                    changed.append(self._models[name])
                self.faults.pop(name, None)
            except (IBPWFError, OSError) as error:
                self.faults[name] = str(error)
        return changed

    def _folders(self) -> dict[str, Path]:
        if self.single:
            path = self.path.resolve()
            return {path.name: path}
        try:
            inside = sorted(entry for entry in self.path.iterdir() if not entry.name.startswith("."))
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read: {error.strerror}. Check the path.") from None
        return {entry.name: entry for entry in inside if os.path.lexists(entry / MANIFEST)}
