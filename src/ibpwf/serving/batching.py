"""Predicts in batches of fixed sizes: the same bits for a row alone and among others, concurrent requests together.

Products of few rows, and of very many, are rounded otherwise, and so are the last rows where their number is odd for
the processor. So every pass has 16, 32, … or 128 rows, and on a GPU, which chooses how to multiply by their number,
always 128. Fewer are filled up with copies of one of them, more take several passes. Rows whose task is given go
through that task's expert together, so each task's are filled up.

No request waits for others to come: what arrives during a pass is queued, and the next pass takes all of it that asks
the same version, tasks mixed. When more rows wait than may, or larger ones, the next request is rejected at once. A
request of more rows than a pass has is answered pass by pass, and others get theirs in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ibpwf.errors import InputError
from ibpwf.estimator import ContinualClassifier
from ibpwf.inference.prediction import Prediction
from ibpwf.serving.faults import busy

STEP, MOST = 16, 128
"""Rows of a pass: a multiple of the one, up to the other."""

Places = NDArray[np.intp]
Told = Callable[[int, int, float], None]
"""Is told of every pass: requests, rows, seconds."""


@dataclass(frozen=True)
class Rows:
    """Rows to predict: inputs as a classifier takes them, and the task of each, None where it is to be inferred."""

    x: NDArray[Any]
    tasks: Sequence[str | None]
    novelty: bool = True

    def __len__(self) -> int:
        return len(self.x)

    def at(self, places: Places) -> Rows:
        return Rows(self.x[places], [self.tasks[place] for place in places], self.novelty)

    def by_task(self) -> Places:
        """An order in which the rows of each task stand together, so that they can share passes."""
        return np.array(sorted(range(len(self)), key=lambda place: self.tasks[place] or ""), dtype=np.intp)


def joined(parts: Sequence[Prediction[Any]], places: Sequence[Places]) -> Prediction[Any]:
    """One prediction out of several, and the rows that each is about. A row may be in a part more than once."""
    first = np.unique(np.concatenate(places), return_index=True)[1]
    return Prediction.joined(parts).rows(first)


def predict(classifier: ContinualClassifier, requests: Sequence[Rows]) -> list[Prediction[Any]]:
    """The predictions for several requests, in as few passes as there can be. Inputs are prepared once, for labels
    and novelty; the latter is computed in passes that have a row for which it was asked."""
    x = np.concatenate([one.x for one in requests])
    tasks = [task for one in requests for task in one.tasks]
    novelty = np.concatenate([np.full(len(one), one.novelty) for one in requests])
    passes = _passes(tasks, novelty, _step(classifier))
    parts = [_pass(classifier, x[rows], given, novelty=bool(novelty[rows].any())) for rows, given in passes]
    whole = joined(parts, [rows for rows, _ in passes])
    ends = np.cumsum([len(one) for one in requests]).tolist()
    return [whole.rows(slice(end - len(one), end)) for one, end in zip(requests, ends, strict=True)]


def _pass(classifier: ContinualClassifier, x: NDArray[Any], task: Any, *, novelty: bool) -> Prediction[Any]:
    """The prediction of a pass; one that has no novelty has NaN instead, to be joined with others."""
    found = classifier.prediction(x, task, novelty=novelty)
    return found if found.novelty is not None else found.with_novelty(np.full(len(x), np.nan))


def _step(classifier: ContinualClassifier) -> int:
    return STEP if classifier.learner_.device.type == "cpu" else MOST


def _passes(tasks: Sequence[str | None], novelty: NDArray[np.bool_], step: int) -> list[tuple[Places, Any]]:
    """Which rows go together, filled up, and their tasks, None for those whose task is to be inferred."""
    by_task: dict[str | None, list[int]] = {}
    for row in np.argsort(~novelty, kind="stable").tolist():
        by_task.setdefault(tasks[row], []).append(row)
    inferred = by_task.pop(None, [])
    passes: list[tuple[Places, Any]] = [(rows, None) for rows in _filled(inferred, step)]
    waiting, given = list[Places](), list[str | None]()
    for task, places in by_task.items():
        for rows in _filled(places, step):
            if len(given) + len(rows) > MOST:
                passes.append((np.concatenate(waiting), given))
                waiting, given = [], []
            waiting.append(rows)
            given = [*given, *[task] * len(rows)]
    return [*passes, (np.concatenate(waiting), given)] if waiting else passes


def _filled(rows: Sequence[int], step: int) -> list[Places]:
    """Rows as passes may have them; the last one again and again."""
    parts = [np.array(rows[start : start + MOST], dtype=np.intp) for start in range(0, len(rows), MOST)]
    return [np.pad(part, (0, -len(part) % step), mode="edge") if len(part) % step else part for part in parts]


def warm(classifier: ContinualClassifier) -> None:
    """Prepare what is made at the first prediction, and see that there can be one at all."""
    if classifier.learner_.input_shape is None:
        raise InputError("nothing has been learned yet, so nothing can be predicted.")
    predict(classifier, [Rows(np.zeros((1, classifier.n_features_in_), dtype=np.float32), [None])])


class HasClassifier(Protocol):
    """What is asked: rows of the same one can share a pass."""

    @property
    def classifier(self) -> ContinualClassifier: ...


@dataclass(eq=False)
class _Waiting:
    """A request in the queue."""

    version: HasClassifier
    rows: Rows
    numbers: int  # of its rows that count until it is answered
    answer: asyncio.Future[Prediction[Any]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Batcher:
    """Predicts for requests, those that wait together in one pass."""

    def __init__(self, waiting: int, numbers: int, *, together: bool = True, told: Told | None = None) -> None:
        """At most so many rows wait, and so many numbers in all of them together."""
        self.limit, self.most_numbers, self.together, self.told = waiting, numbers, together, told
        self._queue: deque[_Waiting] = deque()
        self.waiting = self._numbers = 0  # rows that wait or are being predicted, and their numbers
        self._running: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "passes", initializer=torch.set_num_threads, initargs=(1,))
        self._seconds_a_row = 0.001

    async def ask(self, version: HasClassifier, rows: Rows) -> Prediction[Any]:
        """A prediction; rejected if too many rows, or numbers, wait already."""
        numbers = rows.x.size
        if self.waiting and (self.waiting + len(rows) > self.limit or self._numbers + numbers > self.most_numbers):
            seconds = max(1, min(60, round(self.waiting * self._seconds_a_row)))
            raise busy(f"{self.waiting:,} rows wait to be predicted; ask again in {seconds} s.", seconds)
        self.waiting += len(rows)
        self._numbers += numbers
        if len(rows) <= MOST:
            return await self._next(version, rows, numbers)
        order = rows.by_task()
        places, found = [order[start : start + MOST] for start in range(0, len(rows), MOST)], list[Prediction[Any]]()
        left = len(rows)  # that have not been put into the queue, which counts its own
        try:
            for some in places:
                left -= len(some)
                found.append(await self._next(version, rows.at(some), 0))
        finally:
            self.waiting -= left
            self._numbers -= numbers  # which were in memory until now
        return joined(found, places)

    async def _next(self, version: HasClassifier, rows: Rows, numbers: int) -> Prediction[Any]:
        """A prediction in one of the next passes."""
        request = _Waiting(version, rows, numbers)
        self._queue.append(request)
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await request.answer

    async def _run(self) -> None:
        """Pass after pass until nothing waits."""
        loop = asyncio.get_running_loop()
        try:
            while self._queue:
                taken = self._take()
                if asked := [request for request in taken if not request.answer.done()]:
                    began = perf_counter()
                    found = await loop.run_in_executor(self._thread, _predictions, asked)
                    self._note(asked, perf_counter() - began)
                    for request, one in zip(asked, found, strict=True):
                        if request.answer.done():  # its client is gone
                            continue
                        if isinstance(one, BaseException):
                            request.answer.set_exception(one)
                        else:
                            request.answer.set_result(one)
                self.waiting -= sum(len(request.rows) for request in taken)
                self._numbers -= sum(request.numbers for request in taken)
        finally:
            self._running = None

    def _take(self) -> list[_Waiting]:
        """The oldest request, and those after it that can go with it."""
        first = self._queue.popleft()
        taken, rows, left = [first], len(first.rows), deque[_Waiting]()
        while self.together and self._queue and rows < MOST:
            request = self._queue.popleft()
            fits = request.version is first.version and rows + len(request.rows) <= MOST
            (taken if fits else left).append(request)
            rows += len(request.rows) if fits else 0
        self._queue = left + self._queue
        return taken

    def _note(self, asked: list[_Waiting], seconds: float) -> None:
        rows = sum(len(request.rows) for request in asked)
        self._seconds_a_row = 0.9 * self._seconds_a_row + 0.1 * seconds / rows
        if self.told is not None:
            self.told(len(asked), rows, seconds)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _predictions(asked: list[_Waiting]) -> Sequence[Prediction[Any] | BaseException]:
    """For all requests; if that fails, for each on its own, so that no request fails for another."""
    try:
        return predict(asked[0].version.classifier, [request.rows for request in asked])
    except Exception as error:
        if len(asked) == 1:
            return [error]
        return [one for request in asked for one in _predictions([request])]
