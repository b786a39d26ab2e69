"""A file answered row by row: label, probability, task, entropy, and whether it looks like anything learnt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ibpwf.errors import InputError
from ibpwf.files import Examples
from ibpwf.own_data.model import FileModel

Row = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What to answer: for one task or inferring it, with so many posterior draws."""

    task: str | None = None
    draws: int = 0

    def check(self, model: FileModel) -> None:
        if self.task is not None:
            model.classifier.learner_.task_number(self.task)  # an unknown name is refused with the nearest one
        if self.draws < 0:
            raise InputError(f"--draws is {self.draws}; give the number of posterior draws, such as 100.")


def answer_rows(model: FileModel, batches: Iterable[Examples], asked: Asked) -> Iterator[list[Row]]:
    """The answers in the order of the file, a batch at a time. An image is named by its file, anything else by its
    number, counted from 1."""
    number = 0
    for batch in batches:
        place = 0
        for found in model.answers(batch, asked.task, asked.draws):
            rows: list[Row] = []
            for at in range(len(found.labels)):
                where = batch.where(place + at)
                number += 1
                row: Row = {"file": where.file} if where.number is None else {"row": number}
                row["label"] = str(found.labels[at])
                row["probability"] = float(found.probability[at])
                row["task"] = str(found.tasks[at])
                row["entropy"] = float(found.entropy[at])
                row["novel"] = bool(found.novelty[at] > 1)
                if found.mutual_information is not None:
                    row["mutual_information"] = float(found.mutual_information[at])
                rows.append(row)
            place += len(rows)
            yield rows
