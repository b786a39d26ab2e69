"""A stream as it is at one moment: what it remembers of rows, and where it finds borders.

It is in one of two phases. *Gathering*: rows of something not learned yet fill the buffer; a border, or the buffer's
end, makes them a `Segment` to be settled. *Watching*: rows are answered by tasks and dropped; a border starts the
gathering. Surprise is 1 − P(true label), by the tasks while watching, by the online part while gathering.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ibpwf.streaming.buffer import Buffer, Labels
from ibpwf.streaming.detectors import Detector, make_detector
from ibpwf.streaming.online import OnlineRidge
from ibpwf.streaming.options import StreamOptions
from ibpwf.streaming.recent import Recent, TaskAnswers

ROWS_AT_ONCE = 100
"""Rows after which the online part is solved for anew, in a batch that has more."""
MOST_ENTRIES = 1000
"""Of the log that is kept with a model."""
AS_GOOD = 0.02
"""A task answers rows as well as the online part that has seen them, if it is right so much less often at most."""
GONE_AFTER = 4
"""Windows without a class after which the log says so."""

GATHERING, WATCHING = "gathering", "watching"


@dataclass(frozen=True, eq=False)
class Segment:
    """Rows that belong together: between two borders, or as many as the buffer holds. `online` is how often the
    online part was right about them before it learned them, `why` what ended it."""

    x: NDArray[Any]
    y: Labels
    online: float
    why: str


class Stream:
    """What is remembered of a stream beside its tasks. A batch is taken by a `fork`, which then takes its place."""

    def __init__(self, options: StreamOptions, inputs: int, seed: int, *, watching: bool = False) -> None:
        self.options = options
        self.online = OnlineRidge.new(inputs, options.forgetting, seed)
        self.recent = Recent(options.window)
        self.detector: Detector = make_detector(options.detector)
        self.buffer = Buffer()
        self.phase = WATCHING if watching else GATHERING
        self.rows = 0
        self.right = self.tested = 0  # of the online part, on the rows being gathered
        self.dropped: dict[str, int] = {}  # rows that were an old task's, by its name
        self.last_seen: dict[int, int] = {}  # the row each label came last with; negative once the log has said so
        self.log: list[dict[str, Any]] = []
        self.entries = 0

    def fork(self) -> Stream:
        other = copy.copy(self)
        other.detector = self.detector.fork()
        other.dropped, other.last_seen, other.log = dict(self.dropped), dict(self.last_seen), list(self.log)
        return other

    def note(self, decision: str, reason: str, **others: Any) -> None:
        """A line of the log."""
        self.entries += 1
        line = {"number": self.entries, "row": self.rows, "decision": decision, **others, "reason": reason}
        self.log = [*self.log[-MOST_ENTRIES + 1 :], line]

    # Rows

    def take(self, x: NDArray[Any], y: Labels, told: TaskAnswers | None, current: str | None) -> Segment | None:
        """Test on some rows, then learn from them; gives the rows to be settled where that is due."""
        online = self.online.probabilities(x)
        self.recent = self.recent.seen(y, online, told)
        surprise = self._surprise(y, online, told)
        self.online = self.online.learned(x, y)
        self.buffer = self.buffer.added(np.array(x), y)
        self.rows += len(y)
        if self.phase == GATHERING and online.shape[1]:
            self.tested += len(y)
            self.right += int((online.argmax(1) == y).sum())
        self._note_labels(y)
        border = self._border(surprise)
        if self.phase == WATCHING:
            self._watch(border, len(y), current)
            return None
        return self._gather(border)

    def _surprise(self, y: Labels, online: NDArray[np.float64], told: TaskAnswers | None) -> NDArray[np.float64]:
        if self.phase == WATCHING and told is not None:
            online = told.by_label(max(int(told.label.max()), int(y.max())) + 1)
        known = y < online.shape[1]
        found = np.ones(len(y))
        found[known] = 1 - online[np.flatnonzero(known), y[known]]
        return np.clip(found, 0.0, 1.0)

    def _border(self, surprise: NDArray[np.float64]) -> int | None:
        """How many rows before the last one taken something else began."""
        for place, value in enumerate(surprise.tolist()):
            ago = self.detector.update(value)
            if ago is not None:
                return max(1, ago + len(surprise) - 1 - place)
        return None

    def _watch(self, border: int | None, rows: int, current: str | None) -> None:
        if border is None:
            if current is not None:
                self.dropped[current] = self.dropped.get(current, 0) + rows
            self.buffer = self.buffer.newest(self.options.window)
            return
        self.buffer = self.buffer.newest(min(border, self.options.window))
        self.note(
            "border",
            f"tasks are more surprised by labels than before, since about {border:,} rows; rows are gathered",
            rows=border,
        )
        self._start(GATHERING)

    def _gather(self, border: int | None) -> Segment | None:
        options = self.options
        if border is not None:
            self.detector = make_detector(options.detector)
            before = len(self.buffer) - border
            older = self.buffer.oldest(before)
            if before >= options.least and len(older.classes()) > 1:
                segment = self._segment(older, f"the online part is more surprised since about {border:,} rows")
                self.buffer = self.buffer.newest(border)
                self.right = self.tested = 0
                self.note("border", segment.why, rows=border)
                return segment
        if len(self.buffer) < options.buffer:
            return None
        if len(self.buffer.classes()) > 1:
            segment = self._segment(self.buffer, f"the buffer of {options.buffer:,} rows is full")
            self.buffer = Buffer()
            return segment
        self.buffer = self.buffer.newest(options.buffer).thinned()
        self.note("wait", "the buffer is full of one class, and a task needs two; every second row was dropped")
        return None

    def _segment(self, buffer: Buffer, why: str) -> Segment:
        x, y = buffer.newest(self.options.buffer).rows()
        return Segment(x, y, self.right / max(self.tested, 1), why)

    def rest(self, why: str) -> Segment | None:
        """What was gathered so far, as one segment."""
        if self.phase == WATCHING or len(self.buffer.classes()) < 2:
            return None
        segment = self._segment(self.buffer, why)
        self.buffer = Buffer()
        return segment

    def _start(self, phase: str) -> None:
        self.phase, self.right, self.tested = phase, 0, 0
        self.detector = make_detector(self.options.detector)

    def _note_labels(self, y: Labels) -> None:
        for label in set(y.tolist()):
            self.last_seen[label] = self.rows

    def vanished(self) -> list[int]:
        """Labels that have not come for long, each told once."""
        long = GONE_AFTER * self.options.window
        gone = [label for label, row in self.last_seen.items() if row >= 0 and self.rows - row > long]
        for label in gone:
            self.last_seen[label] = -1
        return gone

    # Decisions

    def settled(self, told: TaskAnswers | None = None) -> None:
        """The rows gathered have been settled: watch what comes, unless more has been gathered already. `told` is
        what the tasks say of them now."""
        if told is not None:
            self.recent = replace(self.recent, shares={}).taken(told)
        if not len(self.buffer):
            self._start(WATCHING)

    def lost_a_task(self, others: bool) -> None:
        """A task was taken back: what tasks say of rows, and what is usual, is another matter now."""
        self.recent = Recent(self.options.window, online=self.recent.online)
        self._start(self.phase if others else GATHERING)

    def without(self, labels: Collection[int]) -> Stream:
        """One in which rows of these labels are in no buffer and no sums. What they did to the inputs' scales and
        products fades with the rows that follow."""
        other = self.fork()
        x, y = self.buffer.rows()
        stay = ~np.isin(y, list(labels))
        other.buffer = Buffer().added(x[stay], y[stay]) if stay.any() else Buffer()
        other.online = self.online.without(labels)
        other.last_seen = {label: row for label, row in self.last_seen.items() if label not in labels}
        shares = {pair: share for pair, share in self.recent.shares.items() if pair[1] not in labels}
        other.recent = replace(self.recent, shares=shares)
        return other

    def same_task(self, segment: Segment, accuracies: Mapping[str, float]) -> str | None:
        """The best of the tasks that may be meant, if it answers a segment as well as the online part did."""
        best = max(accuracies, key=lambda name: accuracies[name], default=None)
        return best if best is not None and accuracies[best] >= segment.online - AS_GOOD else None
