"""A file answered row by row: label, probability, task, entropy, and how little it looks like anything learnt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ibpwf.data import Examples, Layout, ReadOptions, read_batches
from ibpwf.data.examples import in_order
from ibpwf.data.options import Naming, argument
from ibpwf.errors import InputError, StoreError
from ibpwf.estimator import ContinualClassifier

Row = dict[str, Any]

ROWS_AT_ONCE = 2048


def load_classifier(path: Path, device: str = "auto") -> ContinualClassifier:
    """Read a model folder that was made from files."""
    classifier = ContinualClassifier.load(path, device=device)
    if "layout" not in classifier.extra_:
        raise StoreError(
            f"{path} was not learnt from files, so the columns it expects are not known; use it in Python: "
            f"ContinualClassifier.load({str(path)!r})."
        )
    return classifier


def layout_of(classifier: ContinualClassifier) -> Layout:
    """How the files that a classifier learnt from are laid out; it is saved with it."""
    return Layout.from_json(classifier.extra_["layout"])


def classes_of(classifier: ContinualClassifier, task: str) -> list[str]:
    """The labels of a task."""
    return in_order(map(str, classifier.labels_of(task)))


def read_like_before(classifier: ContinualClassifier, data: Path, options: ReadOptions) -> Iterator[Examples]:
    """The examples of a file that is like those learnt, some at a time."""
    return read_batches(data, ROWS_AT_ONCE, replace(options, like=layout_of(classifier)))


def answer_rows(
    classifier: ContinualClassifier,
    batches: Iterable[Examples],
    task: str | None = None,
    posterior_samples: int = 0,
    naming: Naming = argument,
) -> Iterator[list[Row]]:
    """The answers in the order of the file, a batch at a time, averaged over so many `posterior_samples`. An
    image is named by its file, anything else by its number, counted from 1."""
    if task is not None:
        classifier.learner_.task_number(task)  # an unknown name is refused with the nearest one
    if posterior_samples < 0:
        raise InputError(
            f"{naming('posterior_samples')} is {posterior_samples}; give how many to average over, such as 100."
        )
    number = 0
    for batch in batches:
        found = classifier.answers(batch.inputs, task, posterior_samples)
        rows: list[Row] = []
        for at in range(len(batch)):
            number += 1
            row: Row = {"file": batch.where(at).file} if batch.origins.numbers is None else {"row": number}
            row["label"] = str(found.labels[at])
            row["probability"] = float(found.probability[at])
            row["task"] = str(found.tasks[at])
            row["entropy"] = float(found.entropy[at])
            row["novelty"] = float(found.novelty[at])
            row["novel"] = bool(found.is_novel[at])
            if found.mutual_information is not None:
                row["mutual_information"] = float(found.mutual_information[at])
            rows.append(row)
        yield rows
