"""What IBP-WF keeps of a task once the model has it: what its inputs are like, and how sure its answers may be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from torch import Tensor

from ibpwf.inference import fusion
from ibpwf.inference.base import Features
from ibpwf.inference.fusion import Calibration
from ibpwf.inference.opinion import Opinion
from ibpwf.inference.versions import Version
from ibpwf.method_answers import AnsweringMethod
from ibpwf.training.linear import FEWEST_ROWS, compared
from ibpwf.training.method import TaskData
from ibpwf.training.rows import Again, Rows

MOST_HELD_OUT, MOST_TO_STOP_BY = 500, 2_000
"""Rows of a task: three numbers and a few quantiles are made of them, and with early stopping it is decided by them
when to stop, for which more are better."""


class KeepingMethod(AnsweringMethod):
    """Takes finished tasks into features, task inference and versions; how they are learned is left to
    `method.IBPWF`."""

    _held_out: tuple[Rows, Rows] | None = None  # while a task is learned: what it learns from, and the rest

    def hold_out(self, data: TaskData) -> None:
        share, apart = self.settings.held_out, data.generator("held out")
        most = MOST_TO_STOP_BY if self.settings.early_stopping else MOST_HELD_OUT
        self.outcome = None
        self._held_out = data.rows.apart(share, most, apart) if share else None

    def keep(self, data: TaskData, rows: Rows) -> None:
        """What is kept of a task that the model has by now: what its inputs are like, and how sure it may be."""
        # A router is weighed by the held-out rows, which it must not have seen; Gaussians are not.
        seen = rows if self.inference.has_class_scores else data.rows
        if data.more:
            self.take_rows(data.index, seen)
            old = self.versions[data.index]
            new = replace(old, serial=data.serial, number=old.number + 1)
        else:
            if data.index == 0:
                self._fit_features(data, seen)
            self.inference.learn(data.index, self._phi(seen), len(data.classes))
            serial = max(data.serial, self.next_serial(data.index))  # no two tasks have the same
            new = Version(serial, data.classes, serial)
        self.versions = self.versions.added(replace(new, opinion=self._opinion(data.index)))
        if self._held_out is not None and (not data.more or new.calibration is not None):
            self.versions = self.versions.calibrated(self._calibrated(data.index, self._held_out, new.calibration))
            self._as_if_not_asked()
        elif self.settings.second_opinion:
            self._as_if_not_asked()
        self._held_out = None

    def _fit_features(self, data: TaskData, rows: Rows) -> None:
        """Those that look at some rows alone take them from all over."""
        for part in self.features.parts_to_fit():
            part.fit(Again(partial(self._seen_by, part, data, rows)), len(rows), data.generator("random features"))

    @staticmethod
    def _seen_by(features: Features, data: TaskData, rows: Rows) -> Iterator[tuple[Tensor, Tensor]]:
        some = features.rows_to_fit
        return rows.in_order() if some is None else rows.sample(some, data.generator("sample"))

    def take_rows(self, task: int, rows: Rows) -> None:
        """Let task inference have more rows of a task, as if they had come with its first; its expert stays."""
        self.inference.more(task, self._phi(rows), len(self.classes[task]))

    def _phi(self, rows: Rows) -> Iterator[tuple[Tensor, Tensor]]:
        batches = rows.in_order()
        batches = self.group.shares(batches) if self.inference.adds_up else batches
        return ((phi, y) for x, y in batches for phi in self.features.views(x))

    def _opinion(self, task: int) -> Opinion | None:
        return self.inference.opinion(task) if self.settings.second_opinion else None

    def _as_if_not_asked(self) -> None:
        """Let a router on a CPU solve again: training has other threads than answering, so other bits."""
        if self.device.type == "cpu":
            self.inference = self.inference.fork()

    def _calibrated(self, task: int, apart: tuple[Rows, Rows], old: Calibration | None) -> Calibration:
        """What the held-out rows of a task say of it, the second of the rows that were set `apart`, with all that is
        learned by now; of a new version, beside what those of the `old` one said."""
        train, rows = apart
        x, y = rows.tensors()
        own = self.logits(x, task)
        scores = self.class_scores(x, "all", distances=True) if self.inference.has_class_scores else None
        kept = self.versions[task].opinion
        opinion = None if kept is None else kept.scores(self.phi(x))
        if old is None:
            found = fusion.calibrate(scores, own, y, self.calibrations, opinion)
        else:
            found = fusion.recalibrated(old, scores, own, y, task, opinion)
        if opinion is not None and found.opinion is not None:
            expert, regression = found.opinion
            own = expert * own.double() + regression * opinion
        self.outcome = compared(train, rows, own) if len(y) >= FEWEST_ROWS else None
        return found
