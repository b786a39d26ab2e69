"""Questions that come at the same time, answered in one pass.

Nobody waits for others to come: while a pass runs, what arrives is gathered, and the next pass takes all of it that
asks the same version, tasks mixed. When more rows wait than may, or larger ones, the next question is refused at
once. A question of more rows than a pass has is answered pass by pass, and others get theirs in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter

import torch

from ibpwf.serving.faults import busy
from ibpwf.serving.passes import MOST, Answer, Rows, answer
from ibpwf.serving.registry import LoadedVersion

Told = Callable[[int, int, float], None]
"""Is told of every pass: questions, rows, seconds."""


@dataclass(eq=False)
class _Question:
    version: LoadedVersion
    rows: Rows
    numbers: int  # of its rows that count until it is answered
    answer: asyncio.Future[Answer] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher:
    """Answers questions, those that wait together in one pass."""

    def __init__(self, waiting: int, numbers: int, *, together: bool = True, told: Told | None = None) -> None:
        """At most so many rows wait, and so many numbers in all of them together."""
        self.limit, self.most_numbers, self.together, self.told = waiting, numbers, together, told
        self._queue: deque[_Question] = deque()
        self._rows = self._numbers = 0
        self._running: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "passes", initializer=torch.set_num_threads, initargs=(1,))
        self._seconds_a_row = 0.001

    @property
    def waiting(self) -> int:
        """Rows that wait or are being answered."""
        return self._rows

    async def ask(self, version: LoadedVersion, rows: Rows) -> Answer:
        """An answer; refused if too many rows, or numbers, wait already."""
        numbers = rows.x.size
        if self._rows and (self._rows + len(rows) > self.limit or self._numbers + numbers > self.most_numbers):
            seconds = max(1, min(60, round(self._rows * self._seconds_a_row)))
            raise busy(f"{self._rows:,} rows wait to be answered; ask again in {seconds} s.", seconds)
        self._rows += len(rows)
        self._numbers += numbers
        if len(rows) <= MOST:
            return await self._next(version, rows, numbers)
        order, found = rows.by_task(), list[Answer]()
        left = len(rows)  # that have not been put into the queue, which counts its own
        try:
            for start in range(0, len(rows), MOST):
                part = rows.at(order[start : start + MOST])
                left -= len(part)
                found.append(await self._next(version, part, 0))
        finally:
            self._rows -= left
            self._numbers -= numbers  # which were in memory until now
        return Answer.joined(found, order)

    async def _next(self, version: LoadedVersion, rows: Rows, numbers: int) -> Answer:
        """An answer in one of the next passes."""
        question = _Question(version, rows, numbers)
        self._queue.append(question)
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await question.answer

    async def _run(self) -> None:
        """Pass after pass until nothing waits."""
        loop = asyncio.get_running_loop()
        try:
            while self._queue:
                taken = self._take()
                asked = [question for question in taken if not question.answer.done()]
                if asked:
                    began = perf_counter()
                    found = await loop.run_in_executor(self._thread, _answers, asked)
                    self._tell(asked, perf_counter() - began)
                    for question, one in zip(asked, found, strict=True):
                        if question.answer.done():  # nobody waits for it any more
                            continue
                        if isinstance(one, BaseException):
                            question.answer.set_exception(one)
                        else:
                            question.answer.set_result(one)
                self._rows -= sum(len(question.rows) for question in taken)
                self._numbers -= sum(question.numbers for question in taken)
        finally:
            self._running = None

    def _take(self) -> list[_Question]:
        """The oldest question, and those after it that can go with it."""
        first = self._queue.popleft()
        taken, rows, left = [first], len(first.rows), deque[_Question]()
        while self.together and self._queue and rows < MOST:
            question = self._queue.popleft()
            if question.version is first.version and rows + len(question.rows) <= MOST:
                taken.append(question)
                rows += len(question.rows)
            else:
                left.append(question)
        self._queue = left + self._queue
        return taken

    def _tell(self, asked: list[_Question], seconds: float) -> None:
        rows = sum(len(question.rows) for question in asked)
        self._seconds_a_row = 0.9 * self._seconds_a_row + 0.1 * seconds / rows
        if self.told is not None:
            self.told(len(asked), rows, seconds)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _answers(asked: list[_Question]) -> list[Answer] | list[Answer | BaseException]:
    """Of all questions; if together they cannot be answered, each for itself, so that nobody pays for another."""
    try:
        return answer(asked[0].version.classifier, [question.rows for question in asked])
    except Exception:
        return [_alone(question) for question in asked]


def _alone(question: _Question) -> Answer | BaseException:
    try:
        return answer(question.version.classifier, [question.rows])[0]
    except Exception as error:  # told to who asked, and to nobody else
        return error
