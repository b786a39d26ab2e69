"""Files that keep arriving in a folder, each fed to a model once: what `ibpwf watch` does.

Which files are done is stored with the model, in one save with what was learned of them: whenever the program ends,
a file's rows and the note that they were learned are both there, or neither.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ibpwf.errors import IBPWFError, InputError
from ibpwf.estimator import ContinualClassifier
from ibpwf.files import Examples, ReadOptions, read_examples
from ibpwf.files.writing import rows_file
from ibpwf.own_data.answering import ROWS_AT_ONCE, answer_rows, layout_of, load_classifier
from ibpwf.storage.files import append_jsonl, read_jsonl
from ibpwf.storage.folder import LOCK, MANIFEST, lock_folder

WATCH = "watch"
"""Under this name `extra_` keeps which files are done: by name, their digest and what was done."""

ENDINGS = (".csv", ".tsv", ".tab", ".parquet", ".pq", ".npz")
UNFINISHED = (".tmp", ".part", ".partial", ".crdownload", ".swp")
SETTLED = 1.0
"""Seconds that a file must not have changed for to be taken as whole."""
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
    others = sorted(set(os.listdir(model)) - {LOCK}) if model.is_dir() else []
    if others and not os.path.lexists(model / MANIFEST):
        raise InputError(f"{model} holds other things ({others[0]!r}) and no model; give a new or empty folder.")
    was_there = model.is_dir()
    with lock_folder(model):
        try:
            return Watching(model, folder, options).run()
        finally:
            if set(os.listdir(model)) <= {LOCK}:  # nothing was learned: the folder goes again
                with contextlib.suppress(OSError):
                    os.unlink(model / LOCK)
                    if not was_there:
                        os.rmdir(model)


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
    place = log or model.with_name(model.name + ".watch")
    place.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    append_jsonl(place / "log.jsonl", {"time": now, "event": "decision", **line})
    effect = "It is forgotten, with its rows." if learned else f"{last['rows']:,} rows are counted to it no more."
    effect = effect if there else "It was forgotten before, so nothing else has changed."
    return {"undone": line["undone"], "what": last["decision"], "task": line["task"], "effect": effect}


class Watching:
    """One watch of a folder."""

    def __init__(self, model: Path, folder: Path, options: WatchOptions) -> None:
        self.model, self.folder, self.options = model, folder, options
        self.place = options.log or model.with_name(model.name + ".watch")
        self.place.mkdir(parents=True, exist_ok=True)
        self.log = self.place / "log.jsonl"
        self.logged = max((line.get("number", 0) for line in self._old_log()), default=0)
        self.classifier = self._opened()
        self.done: dict[str, dict[str, Any]] = dict(self.classifier.extra_.get(WATCH, {}))
        self.known: dict[str, tuple[tuple[int, int], str]] = {}  # size and time of files, and their digest
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

    def _old_log(self) -> list[dict[str, Any]]:
        return read_jsonl(self.log) if self.log.exists() else []

    def run(self) -> Watched:
        self._log_decisions()  # those whose lines a crash has kept from the log
        while True:
            waiting = list(self._waiting())
            while waiting and not self.options.stop():
                self._feed(waiting[0])
                waiting = list(self._waiting())
                self._say_backlog(len(waiting))
            if self.options.stop() or (self.options.once and not self._unsettled()):
                break
            self._rest(SETTLED if self.options.once else self.options.poll)
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

    # Which files

    def _candidates(self) -> list[tuple[int, str, os.stat_result]]:
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

    def _unsettled(self) -> bool:
        return any(not _settled(status) for _, _, status in self._candidates())

    def _waiting(self) -> Iterator[Path]:
        """Whole files that are not done, the first to arrive first."""
        for _, name, status in self._candidates():
            if _settled(status) and self.done.get(name, {}).get("sha256") != self._digest(name, status):
                yield self.folder / name

    def _digest(self, name: str, status: os.stat_result) -> str:
        mark = (status.st_size, status.st_mtime_ns)
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
            self._line("backlog", reason=text, waiting=waiting)
            self.options.say(text + ".")

    # What is done with a file

    def _feed(self, path: Path) -> None:
        name, digest = path.name, self.known[path.name][1]
        before = self.done.get(name)
        twin = next((other for other, one in self.done.items() if one["sha256"] == digest and other != name), None)
        try:
            if before is not None and before["done"] == "learned":
                raise InputError("it was learned before with other content; give further rows as another file.")
            if twin is not None and self.done[twin]["done"] == "learned":
                raise InputError(f"it holds the same bytes as {twin}, which was learned.")
            done, others = self._taken(path)
        except (IBPWFError, ValueError) as error:
            done, others = "skipped", {"reason": " ".join(str(error).split())}
        self.done[name] = {"sha256": digest, "done": done}
        self.counts[done] += 1
        self._save()
        self._line(done, file=name, **others)
        self.options.say(f"{name}: {done}, " + ", ".join(f"{key} {value}" for key, value in others.items()))
        self._log_decisions()

    def _taken(self, path: Path) -> tuple[str, dict[str, Any]]:
        classifier = self.classifier
        like = layout_of(classifier) if "layout" in classifier.extra_ else None
        examples = read_examples(path, replace(self.options.read, like=like))
        if examples.y is None:
            return "answered", {"rows": self._answer(examples), "into": f"predictions/{path.name}.csv"}
        y = np.array(examples.y)
        right = {}
        if classifier.stream_rows_:
            said = [classifier.predict(part.inputs.reshape(len(part), -1)) for part in examples.batches(ROWS_AT_ONCE)]
            right = {"accuracy": round(100 * float(np.mean(np.concatenate(said) == y)), 2)}
        classifier.partial_fit(examples.inputs.reshape(len(examples), -1), y)
        if like is None:
            classifier.extra_ = {**classifier.extra_, "layout": examples.layout.to_json()}
        return "learned", {"rows": len(examples), **right}

    def _answer(self, examples: Examples) -> int:
        folder = self.place / "predictions"
        folder.mkdir(exist_ok=True)
        with rows_file(folder / f"{Path(examples.path).name}.csv") as write:
            for rows in answer_rows(self.classifier, examples.batches(ROWS_AT_ONCE)):
                write(rows)
        return len(examples)

    def _save(self) -> None:
        """Once there is a task; until then nothing is on disk, and files are read again after a restart."""
        self.classifier.extra_ = {**self.classifier.extra_, WATCH: dict(self.done)}
        if hasattr(self.classifier, "learner_"):
            self.classifier.save(self.model)

    # The log

    def _line(self, event: str, **others: Any) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        append_jsonl(self.log, {"time": now, "event": event, **others})

    def _log_decisions(self) -> None:
        if not self.classifier.stream_rows_:
            return
        for line in self.classifier.stream_log_:
            if line["number"] > self.logged and hasattr(self.classifier, "learner_"):
                self._line("decision", **line)
                self.logged = line["number"]
                self.options.say(f"row {line['row']:,}: {line['decision']} {line.get('task', '')}: {line['reason']}.")


def _settled(status: os.stat_result) -> bool:
    return time.time() - max(status.st_mtime, 0) >= SETTLED
