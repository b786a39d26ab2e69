"""Files that keep arriving in a folder, each fed to a model once: what `ibpwf watch` does.

Which files are done is stored with the model, in one save with what was learned of them: whenever the program ends,
a file's rows and the note that they were learned are both there, or neither. The same save holds the file's line of
the log, which is written after it; a restart writes the line if the log does not have it yet.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ibpwf.data import Examples, ReadOptions, read_examples
from ibpwf.data.naming import ARRAYS, TABLES
from ibpwf.data.writing import rows_file
from ibpwf.errors import IBPWFError, InputError
from ibpwf.estimator.classifier import ContinualClassifier
from ibpwf.estimator.files import (
    ROWS_PER_ANSWER,
    answer_rows,
    check_model_place,
    layout_of,
    load_classifier,
    made_folder,
)
from ibpwf.storage.checkpoint_folder import discard_finished, task_in_progress
from ibpwf.storage.files import append_jsonl, read_jsonl
from ibpwf.storage.folder import MANIFEST, lock_folder

WATCH = "watch"
"""Under this name `extra_` keeps which files are done: by name, their digest and what was done."""
WATCH_LINE = "watch_line"
"""Under this name `extra_` keeps the log's line of the file that was done last."""

ENDINGS = (*TABLES, *ARRAYS)
UNFINISHED = (".tmp", ".part", ".partial", ".crdownload", ".swp")
SETTLED = 1.0
"""Seconds during which a file must not change to count as complete, by this process's own clock."""
AHEAD = 2.0
"""Seconds that a file may be dated ahead of this machine's clock before its line in the log says so."""
BACKLOG = 10
"""Files waiting from which on a growing number of them is said."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class WatchOptions:
    """How a folder is watched: how files are read, what a new model is made with, where the log goes."""

    read: ReadOptions = field(default_factory=ReadOptions)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    stream: Mapping[str, Any] | None = None
    device: str = "auto"
    once: bool = False
    poll: float = 5.0
    log: Path | None = None
    say: Say = lambda text: None
    stop: Callable[[], bool] = lambda: False

    def check(self) -> None:
        if not 0 < self.poll <= 86_400:
            raise InputError(f"{self.read.naming('poll')} is {self.poll}; give the seconds between two looks.")


@dataclass(frozen=True)
class Watched:
    """What was done until the watching ended."""

    learned: int
    answered: int
    skipped: int
    waiting: int
    saved: bool


def watch_folder(model: Path, folder: Path, options: WatchOptions) -> Watched:
    """Feed files to a model as they arrive, in their order, until told to stop; with `once`, those that are there."""
    options.check()
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; give the folder that files arrive in.")
    if model.exists() and model.samefile(folder):
        raise InputError(f"{folder} is the model itself; give the folder that files arrive in.")
    check_model_place(model)
    with made_folder(model):
        return Watching(model, folder, options).run()


def undo_last(model: Path, device: str = "auto", log: Path | None = None) -> dict[str, Any]:
    """Take back the last decision about a watched model's rows, and say which it was. Files stay done: what was
    learned of them is not learned again."""
    load_classifier(model, device)  # what is none is refused before a lock is left in it
    with lock_folder(model):
        classifier = load_classifier(model, device)
        if not classifier.stream_rows_:
            raise InputError(f"{model} has watched no folder, so there is no decision to undo; see ibpwf forget.")
        last = classifier.last_decision()
        learned, there = last["decision"] == "new task", last["task"] in classifier.tasks_
        if len(classifier.tasks_) == 1 and learned and there:
            raise InputError(f"the last decision made the only task of {model}; to undo it, remove the folder.")
        classifier.undo()
        classifier.save(model)
        line = classifier.stream_log_[-1]
        WatchLog.of(model, log).add_decisions(classifier.stream_log_)
    effect = "It is forgotten, with its rows." if learned else f"{last['rows']:,} rows are counted to it no more."
    effect = effect if there else "It was forgotten before, so nothing else has changed."
    return {"undone": line["undone"], "what": last["decision"], "task": line["task"], "effect": effect}


class WatchLog:
    """`log.jsonl`: one line per file and per decision, however often the watch was killed.

    A line is written once what it says is on disk, unless the log has it: of a decision by its number, of a file by
    its SHA-256 and what was done. A model that is begun anew next to an old one's log begins with the line `begun`,
    before which nothing counts.
    """

    def __init__(self, place: Path, *, begun: bool) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.path = place / "log.jsonl"
        lines = read_jsonl(self.path) if self.path.exists() else []
        starts = [number for number, line in enumerate(lines) if line.get("event") == "begun"]
        lines = lines[starts[-1] :] if starts else lines
        if begun and any(line.get("event") == "decision" for line in lines):  # of a model that has been removed
            lines = []
            self.add("begun", reason="there is no model yet")
        self._decisions = max((line["number"] for line in lines if line.get("event") == "decision"), default=0)
        self._files = {line["file"]: _identity(line) for line in lines if "file" in line}

    @classmethod
    def of(cls, model: Path, place: Path | None) -> WatchLog:
        """The log of a model, whose lock the caller holds."""
        begun = not os.path.lexists(model / MANIFEST)
        return cls(place or model.with_name(model.name + ".watch"), begun=begun)

    def add(self, event: str, **others: Any) -> None:
        append_jsonl(self.path, {"time": _now(), "event": event, **others})

    def add_file(self, line: Mapping[str, Any]) -> None:
        """A file's line, as `file_line` makes it, unless it is the last one of that file."""
        if self._files.get(line["file"]) != _identity(line):
            append_jsonl(self.path, line)
            self._files[line["file"]] = _identity(line)

    def add_decisions(self, decisions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Those decisions that the log does not have yet, which are returned."""
        new = [one for one in decisions if one["number"] > self._decisions]
        for one in new:
            self.add("decision", **one)
            self._decisions = one["number"]
        return new


def file_line(event: str, name: str, sha256: str, others: Mapping[str, Any]) -> dict[str, Any]:
    return {"time": _now(), "event": event, "file": name, "sha256": sha256, **others}


def _identity(line: Mapping[str, Any]) -> tuple[Any, Any]:
    return line.get("sha256"), line.get("event")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


Mark = tuple[int, int]
"""A file's size and time, by which a change is noticed."""


def _mark(status: os.stat_result) -> Mark:
    return status.st_size, status.st_mtime_ns


def _has_changed(path: Path, mark: Mark) -> bool:
    """Whether a file is another one than it was, or gone."""
    try:
        return _mark(path.stat()) != mark
    except OSError:
        return True


class Watching:
    """One watch of a folder."""

    def __init__(self, model: Path, folder: Path, options: WatchOptions) -> None:
        self.model, self.folder, self.options = model, folder, options
        self.classifier = self._opened()
        self._check_unfinished()
        self.log = WatchLog.of(model, options.log)
        self.done: dict[str, dict[str, Any]] = dict(self.classifier.extra_.get(WATCH, {}))
        self.seen: dict[str, tuple[Mark, float]] = {}  # when, by the monotonic clock, a file was first seen as it is
        self.known: dict[str, tuple[Mark, str]] = {}  # the digest of a file as it is
        self.counts = {"learned": 0, "answered": 0, "skipped": 0}
        self.most_waiting = BACKLOG

    def _opened(self) -> ContinualClassifier:
        options = self.options
        if os.path.lexists(self.model / MANIFEST):
            classifier = load_classifier(self.model, options.device)
            if options.stream is not None or classifier.stream is False:
                classifier.stream = dict(options.stream or {}) or True
            return classifier
        stream = dict(options.stream or {}) or True
        classifier = ContinualClassifier(**{**options.parameters, "device": options.device, "stream": stream})
        classifier.make_settings()
        classifier.extra_ = {}
        return classifier

    def _check_unfinished(self) -> None:
        """Refuse to drop a task that `ibpwf learn` has begun."""
        learner = getattr(self.classifier, "learner_", None)
        serial = 0 if learner is None else learner.method.next_serial(len(learner.tasks))
        discard_finished(self.model, serial)
        found = task_in_progress(self.model)
        if found is not None:
            raise InputError(
                f"{self.model} holds the task '{found.task}', whose training was interrupted; go on with it by ibpwf "
                "learn --resume, or drop it with --restart."
            )

    def run(self) -> Watched:
        if WATCH_LINE in self.classifier.extra_:  # of a watch that was killed before it wrote the line
            self.log.add_file(self.classifier.extra_[WATCH_LINE])
        self._log_decisions()
        while True:
            waiting, unsettled = self._look()
            while waiting and not self.options.stop():
                self._feed(waiting[0])
                waiting, unsettled = self._look()
                self._say_backlog(len(waiting))
            if self.options.stop() or (self.options.once and not unsettled):
                break
            self._rest(min(SETTLED, self.options.poll) if unsettled else self.options.poll)
        if self.options.once and not self.options.stop():
            self._first_task()
        return Watched(**self.counts, waiting=len(waiting), saved=os.path.lexists(self.model / MANIFEST))

    def _rest(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not self.options.stop():
            time.sleep(min(0.1, seconds))

    def _first_task(self) -> None:
        """Of files that are all there is: what has come so far is learned, where that is the first task."""
        classifier = self.classifier
        if classifier.stream_rows_ and not hasattr(classifier, "learner_"):
            classifier.finish()
            self._save()
            self._log_decisions()

    # Which files

    def _candidates(self) -> list[tuple[int, str, os.stat_result]]:
        """Files in the order of their time, each with what `stat` says."""
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith((".", "~")) or name.lower().endswith(UNFINISHED):
                    continue
                with contextlib.suppress(OSError):  # gone meanwhile
                    if name.lower().endswith(ENDINGS) and entry.is_file():
                        status = entry.stat()
                        found.append((status.st_mtime_ns, name, status))
        return sorted(found, key=lambda one: one[:2])

    def _settled(self, name: str, status: os.stat_result) -> bool:
        """Whether a file has not changed for long enough, as this process has seen. Its time is only compared with
        what it was: the clock that set it may be another machine's, or wrong."""
        now = time.monotonic()
        if self.seen.get(name, (None, now))[0] != _mark(status):
            self.seen[name] = _mark(status), now
        return now - self.seen[name][1] >= SETTLED

    def _look(self) -> tuple[list[Path], bool]:
        """Complete files that are not done, the first to arrive first, and whether others may not be complete yet."""
        waiting, unsettled = list[Path](), False
        for _, name, status in self._candidates():
            if not self._settled(name, status):
                unsettled = True
            elif self.done.get(name, {}).get("sha256") != self._digest(name, status):
                waiting.append(self.folder / name)
        return waiting, unsettled

    def _digest(self, name: str, status: os.stat_result) -> str:
        mark = _mark(status)
        if self.known.get(name, (None, ""))[0] != mark:
            try:
                with open(self.folder / name, "rb") as file:
                    self.known[name] = mark, hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                self.known[name] = mark, f"unreadable: {error.strerror}"
        return self.known[name][1]

    def _say_backlog(self, waiting: int) -> None:
        if waiting > self.most_waiting:
            self.most_waiting = 2 * waiting
            text = f"{waiting:,} files are waiting: the folder fills faster than it is learned"
            self.log.add("backlog", reason=text, waiting=waiting)
            self.options.say(text + ".")

    # What is done with a file

    def _feed(self, path: Path) -> None:
        name, (mark, digest) = path.name, self.known[path.name]
        before = self.done.get(name)
        learned_before = before is not None and (before["done"] == "learned" or "learned" in before)
        twin = next((other for other, one in self.done.items() if one["sha256"] == digest and other != name), None)
        try:
            if learned_before:
                raise InputError("it was learned before with other content; give further rows as another file.")
            if twin is not None and self.done[twin]["done"] == "learned":
                raise InputError(f"it holds the same bytes as {twin}, which was learned.")
            taken = self._taken(path, mark)
        except (IBPWFError, ValueError) as error:
            reason = " ".join(str(error).split())
            taken = None if _has_changed(path, mark) else ("skipped", {"reason": reason})
        if taken is None:  # somebody is writing it still
            return
        done, others = taken
        if (ahead := mark[1] / 1e9 - time.time()) > AHEAD:
            others = {**others, "seconds_ahead": round(ahead)}
        self.done[name] = {"sha256": digest, "done": done, **({"learned": True} if learned_before else {})}
        self.counts[done] += 1
        line = file_line(done, name, digest, others)
        self._save(line)
        self.log.add_file(line)
        self.options.say(f"{name}: {done}, " + ", ".join(f"{key} {value}" for key, value in others.items()))
        self._log_decisions()

    def _taken(self, path: Path, mark: Mark) -> tuple[str, dict[str, Any]] | None:
        """What was done with a file, and what there is to say of it; None if it has changed while it was read."""
        classifier = self.classifier
        like = layout_of(classifier) if "layout" in classifier.extra_ else None
        examples = read_examples(path, replace(self.options.read, like=like))
        if _has_changed(path, mark):
            return None
        if examples.y is None:
            return "answered", {"rows": self._answer(examples), "into": f"predictions/{path.name}.csv"}
        y = np.array(examples.y)
        right = {}
        if classifier.stream_rows_:
            batches = examples.batches(ROWS_PER_ANSWER)
            said = [classifier.predict(part.inputs.reshape(len(part), -1)) for part in batches]
            right = {"accuracy": round(100 * float(np.mean(np.concatenate(said) == y)), 2)}
        classifier.partial_fit(examples.inputs.reshape(len(examples), -1), y)
        if like is None:
            classifier.extra_ = {**classifier.extra_, "layout": examples.layout.to_json()}
        return "learned", {"rows": len(examples), **right}

    def _answer(self, examples: Examples) -> int:
        folder = self.log.path.parent / "predictions"
        folder.mkdir(exist_ok=True)
        with rows_file(folder / f"{Path(examples.path).name}.csv") as write:
            for rows in answer_rows(self.classifier, examples.batches(ROWS_PER_ANSWER)):
                write(rows)
        return len(examples)

    def _save(self, line: Mapping[str, Any] | None = None) -> None:
        """Once there is a task; until then nothing is on disk, and files are read again after a restart."""
        lines = {} if line is None else {WATCH_LINE: dict(line)}
        self.classifier.extra_ = {**self.classifier.extra_, WATCH: dict(self.done), **lines}
        if hasattr(self.classifier, "learner_"):
            self.classifier.save(self.model)

    def _log_decisions(self) -> None:
        """Those that are on disk with the model."""
        if not self.classifier.stream_rows_ or not hasattr(self.classifier, "learner_"):
            return
        for line in self.log.add_decisions(self.classifier.stream_log_):
            self.options.say(f"row {line['row']:,}: {line['decision']} {line.get('task', '')}: {line['reason']}.")
