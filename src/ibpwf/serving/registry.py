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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ibpwf.data import Layout
from ibpwf.errors import IBPWFError, InputError, StoreError, unknown
from ibpwf.estimator import ContinualClassifier
from ibpwf.estimator.files import layout_of
from ibpwf.serving.batching import warm
from ibpwf.serving.faults import Refused
from ibpwf.serving.records import RateLimitedLog, log
from ibpwf.serving.versions import FolderVersions, Kept, Stamp, Way, all_versions, stamp_of
from ibpwf.storage.files import plain_errors
from ibpwf.storage.folder import MANIFEST
from ibpwf.storage.tensor_file import everything_now

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


@dataclass(frozen=True)
class State:
    """A model folder as it was at one moment, and its `classifier`. `held` are those of earlier moments, for versions
    that are nowhere else."""

    stamp: Stamp
    folder: FolderVersions
    classifier: ContinualClassifier
    newest: LoadedVersion
    ways: dict[int, Way]
    held: dict[int, ContinualClassifier]

    @property
    def numbers(self) -> list[int]:
        return sorted(self.ways)


class ServedModel:
    """A model folder, answered from by any number of threads. While the folder cannot be used, `problem` says why,
    and answers go on from what was loaded before."""

    def __init__(self, name: str, path: Path, *, read_only: bool = False, device: str = "cpu") -> None:
        self.name, self.path, self.read_only, self.device = name, path, read_only, device
        self.problem: str | None = None
        self._kept = Kept(path)
        self._is_kept = True
        self._trouble = RateLimitedLog(logging.ERROR, 60.0)
        self._state = self._read()
        self._earlier: OrderedDict[tuple[Stamp, int], LoadedVersion] = OrderedDict()
        self._loading, self._reading = threading.Lock(), threading.Lock()
        self._using = threading.Lock()  # of `_earlier`, and for a moment only: the event loop takes it, too

    @property
    def versions(self) -> list[int]:
        return self._state.numbers

    @property
    def history(self) -> list[dict[str, Any]]:
        """What was learned and forgotten, in order."""
        return self._state.folder.history

    @property
    def newest(self) -> LoadedVersion:
        return self._state.newest

    def in_memory(self, number: int | None) -> LoadedVersion | None:
        """A version that can be asked at once; None of one that has to be made first."""
        state = self._state
        return state.newest if number is None else self._in_memory(state, number)

    def version(self, number: int | None = None) -> LoadedVersion:
        """A version to ask, the newest if none is named; an earlier one may have to be made first."""
        state = self._state
        number = state.newest.number if number is None else number
        if (found := self._in_memory(state, number)) is not None:
            return found
        if number not in state.ways:
            raise NoSuchModel(self._why_not(state, number))
        with self._loading:
            found = self._in_memory(state, number) or self._make(state, number)  # another thread may have made it
            with self._using:
                self._earlier[state.stamp, number] = found
                for old in [one for one in self._earlier if one[0] != state.stamp]:
                    del self._earlier[old]
                while len(self._earlier) > RESIDENT:
                    self._earlier.popitem(last=False)
            return found

    def _in_memory(self, state: State, number: int) -> LoadedVersion | None:
        if number == state.newest.number:
            return state.newest
        key = (state.stamp, number)
        with self._using:
            if key in self._earlier:
                self._earlier.move_to_end(key)
            return self._earlier.get(key)

    def _why_not(self, state: State, number: int) -> str:
        known = f"it has {', '.join(map(str, state.numbers[-8:]))}"
        if number in [one.number for one in all_versions(state.folder.history)[1]]:
            return f"version {number} of model '{self.name}' was withdrawn: what made it was forgotten; {known}."
        if number in [one.number for one in state.folder.versions]:
            why = "it was not served when it was the newest, or withdrawn with a task that it could not go on without"
            return f"version {number} of model '{self.name}' is not available: {why}; {known}."
        return f"model '{self.name}' has no version {number}; {known}."

    def _make(self, state: State, number: int) -> LoadedVersion:
        return self._loaded(number, state.ways[number], state.held.get(number, state.classifier))

    def _loaded(self, number: int, way: Way, classifier: ContinualClassifier) -> LoadedVersion:
        if way.path is not None:
            with everything_now():
                classifier = ContinualClassifier.load(way.path, device=self.device)
        torch.set_num_threads(1)  # in this thread too: what is prepared must have the same bits whoever loads it
        classifier = way.apply(classifier)
        warm(classifier)
        layout = layout_of(classifier) if "layout" in classifier.extra_ else None
        return LoadedVersion(self.name, number, classifier, layout)

    def plain(self, error: object) -> str:
        """A message without where the model lies."""
        return str(error).replace(str(self.path), self.name)

    def look(self) -> bool:
        """Read the folder again if it has changed; whether it was read. What hinders it becomes the `problem`, and is
        logged once."""
        try:
            changed = self.refresh()
        except (IBPWFError, OSError) as error:
            self._note(str(error))
            return False
        self._note(None)
        return changed

    def _note(self, problem: str | None) -> None:
        told = None if problem is None else self.plain(problem)
        if told != self.problem and told is None:
            log.info("model %s: the folder can be read again", self.name)
        elif told != self.problem:
            log.error("model %s is not ready: %s Versions loaded before stay in use.", self.name, problem)
        self.problem = told

    def check_changeable(self) -> None:
        """Refuse a job where the folder cannot be read, or written to, at this moment."""
        self.look()
        problem = self.problem
        if problem is None and not os.access(self.path, os.W_OK):
            problem = "its folder cannot be written to. Check its access rights, and whether its disk is read-only."
        if problem is not None:
            raise Refused(503, f"model '{self.name}' cannot be changed: {problem}", retry_after=10)

    def refresh(self) -> bool:
        """Read the folder again if its manifest is another one; whether it was."""
        with self._reading:  # several may have seen that it changed
            with plain_errors("read", self.path / MANIFEST):
                stamp = stamp_of(self.path)
            if stamp == self._state.stamp:
                if not self._is_kept:
                    self._keep(self._state.folder, stamp)
                return False
            before = self._state
            self._state = self._read(before)
            if gone := sorted({*before.ways} - {*self._state.ways}):
                log.warning("model %s: versions %s were withdrawn, since a task was forgotten", self.name, gone)
            return True

    def _read(self, before: State | None = None) -> State:
        for _ in range(TRIES - 1):
            try:
                return self._read_once(before)
            except (StoreError, OSError):  # files may go while a save replaces them
                time.sleep(0.05)
        return self._read_once(before)

    def _read_once(self, before: State | None) -> State:
        stamp = stamp_of(self.path)
        folder = FolderVersions.read(self.path)
        if before is not None and not folder.continues(before.folder):
            other = "holds another model than the one that is served"
            raise StoreError(f"{self.path} {other}. Put that back, or restart the server to serve this one.")
        versions = folder.versions
        if not versions:
            raise StoreError(f"{self.path} has no task yet; learn one first: ibpwf learn {self.path} DATA.csv.")
        with everything_now():  # the folder may be written anew while this answers
            classifier = ContinualClassifier.load(self.path, device=self.device)
        if not self.read_only:
            self._keep(folder, stamp)
        ways, held = self._kept.ways(folder), dict[int, ContinualClassifier]()
        if before is not None:
            self._hold(before, folder, ways, held)
        if stamp_of(self.path) != stamp:
            raise StoreError(f"{self.path} was written meanwhile; read it again.")
        number = versions[-1].number
        return State(stamp, folder, classifier, self._loaded(number, ways[number], classifier), ways, held)

    def keep_versions(self) -> None:
        """Keep the newest version, and those to come: from now on this server makes the folder's changes."""
        self.read_only, self._is_kept = False, False
        self.refresh()

    def _keep(self, folder: FolderVersions, stamp: Stamp) -> None:
        """Keep the newest version, and take out of older ones what was forgotten; what cannot be done now is tried
        again later."""
        try:
            self._kept.keep()
            if self._kept.needs_following(folder):
                for number in self._kept.follow(wait=0):
                    log.warning("model %s: the kept version %s is damaged or another model's", self.name, number)
            self._is_kept = True
        except (OSError, StoreError) as error:
            if stamp_of(self.path) != stamp:  # it is being written
                raise
            self._is_kept = False
            self._trouble.note("keep", f"a version of model {self.name} could not be kept: {error}")

    def _hold(
        self, before: State, folder: FolderVersions, ways: dict[int, Way], held: dict[int, ContinualClassifier]
    ) -> None:
        """Go on with what is in memory of versions that were not kept, as on a disk that cannot be written to."""
        there, earlier = {one.number for one in folder.versions}, before.folder
        gone = folder.forgotten_since(earlier) or set()
        for number, back in earlier.holds(gone).items():
            if number in there and number not in ways:
                ways[number], held[number] = Way(None, frozenset(gone), back), before.classifier
        for number in before.held:
            if number in there and number not in ways:
                old = before.ways[number]
                ways[number] = replace(old, gone=old.gone | gone)
                held[number] = before.held[number]


class Registry:
    """The models by name: one model folder, or all that lie in a folder."""

    def __init__(self, path: Path, *, read_only: bool = False, device: str = "cpu") -> None:
        self.path, self.read_only, self.device = path, read_only, device
        self.single = os.path.lexists(path / MANIFEST)
        self._models: dict[str, ServedModel] = {}
        self.faults: dict[str, str] = {}  # folders that could never be read, and why
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

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong with the folders of models that are served."""
        return {model.name: model.problem for model in self if model.problem is not None}

    def refresh(self) -> list[ServedModel]:
        """Look at the folders again; the models that are new or have changed."""
        changed, faults = [model for model in self if model.look()], dict[str, str]()
        for name, path in self._folders().items():
            if name in self._models:
                continue
            try:
                self._models[name] = ServedModel(name, path, read_only=self.read_only, device=self.device)
                changed.append(self._models[name])
            except (IBPWFError, OSError) as error:
                faults[name] = str(error)
                if self.faults.get(name) != faults[name]:
                    log.error("model %s cannot be served: %s", name, error)
        self.faults = faults
        return changed

    def _folders(self) -> dict[str, Path]:
        if self.single:
            path = self.path.resolve()
            return {path.name: path}
        try:
            inside = sorted(entry for entry in self.path.iterdir() if not entry.name.startswith("."))
        except OSError as error:
            if self._models:  # which say themselves what is wrong
                return {}
            raise StoreError(f"{self.path} cannot be read: {error.strerror}. Check the path.") from None
        return {entry.name: entry for entry in inside if os.path.lexists(entry / MANIFEST)}
