"""`ibpwf predict`: a prediction for every row of a file."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ibpwf.cli.options import AsJson, Columns, Fast, Images, OfData, OnDevice, flag
from ibpwf.cli.output import Screen, print_json
from ibpwf.cli.parsing import option
from ibpwf.errors import InputError, printable

SHOWN = 10
"""Rows that are shown where no file is asked for."""


@dataclass(kw_only=True)
class Predict(OfData, Columns, Images, Fast, OnDevice, AsJson):
    """Predict every row of a file: label, probability, task, entropy and whether the row is novel.

    A label column is not needed and is ignored. Entropy and mutual information are in nats.
    """

    task: str | None = option(None, "The task of all rows.", metavar="NAME", usual="inferred for each row")
    out: Path | None = option(
        None,
        "Write all rows to a .csv, .tsv, .jsonl or .parquet file, or to stdout as CSV (-).",
        "-o",
        "--out",
        metavar="FILE",
        usual=f"show {SHOWN} rows",
    )
    posterior_samples: int = option(
        0, "Average over N posterior samples; adds the mutual information.", least=0, most=10_000
    )

    def run(self) -> None:
        options = self.read_options(with_labels=False)
        from ibpwf.data.writing import check_output, rows_file

        to_stdout = str(self.out) == "-"
        if self.json and to_stdout:
            raise InputError("--json and --out - both write to stdout; choose one.")
        if self.out is not None:
            check_output(self.out, self.data)
        from ibpwf.estimator.files import answer_rows, load_classifier, read_like_before

        classifier = load_classifier(self.model, self.device)
        classifier = classifier.fast() if self.fast else classifier
        batches = read_like_before(classifier, self.data, options)
        found = Summary(keep=None if self.json and self.out is None else SHOWN)
        write = None
        with contextlib.ExitStack() as held:
            for rows in answer_rows(classifier, batches, self.task, self.posterior_samples, flag):
                if self.out is not None:
                    write = write or held.enter_context(rows_file(self.out))
                    write(rows)
                found.add(rows)
        if self.json:
            print_json({"model": self.model, "data": self.data, "out": self.out, **found.to_json(self.out is None)})
        elif not to_stdout:
            found.show(Screen(), self.out)


@dataclass
class Summary:
    """The first predictions, and how many there are of each label."""

    keep: int | None
    first: list[dict[str, Any]] = field(default_factory=list)
    labels: Counter[str] = field(default_factory=Counter)
    tasks: Counter[str] = field(default_factory=Counter)
    novel: int = 0
    count: int = 0

    def add(self, rows: list[dict[str, Any]]) -> None:
        self.first += rows if self.keep is None else rows[: self.keep - len(self.first)]
        self.labels.update(row["label"] for row in rows)
        self.tasks.update(row["task"] for row in rows)
        self.novel += sum(row["novel"] for row in rows)
        self.count += len(rows)

    def to_json(self, with_rows: bool) -> dict[str, Any]:
        told = {"rows": self.count, "labels": self.labels, "tasks": self.tasks, "novel": self.novel}
        return {**told, "predictions": self.first} if with_rows else told

    def show(self, screen: Screen, out: Path | None) -> None:
        if out is None:
            heads = [name.replace("_", " ") for name in self.first[0]]
            right = [name for name in heads if name not in ("file", "label", "task")]
            screen.table(heads, ([_shown(value) for value in row.values()] for row in self.first), right=right)
            if self.count > len(self.first):
                screen.say(f"… and {self.count - len(self.first):,} more rows; -o FILE.csv writes them all.\n")
        else:
            screen.say(f"{self.count:,} rows written to {printable(str(out))}.")
        screen.say(f"labels: {_counts(self.labels)}")
        screen.say(f"tasks: {_counts(self.tasks)}")
        screen.say(f"novel: {self.novel:,} of {self.count:,} rows are flagged as novel")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _counts(counter: Counter[str]) -> str:
    shown = ", ".join(f"{printable(name)} {count:,}" for name, count in counter.most_common(8))
    return shown if len(counter) <= 8 else f"{shown}, … ({len(counter)})"
