"""`ibpwf predict`: the answers for a file, as a table to look at or a file to go on with."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ibpwf.cli import reading as own
from ibpwf.device import check_device
from ibpwf.errors import printable
from ibpwf.limits import check_posterior_samples

if TYPE_CHECKING:
    from ibpwf.cli.screen import Screen

SHOWN = 10
"""Rows that are shown where no file is asked for."""


def predict_command(
    model: own.Model,
    data: own.Data,
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="NAME", help="The task of all rows.", show_default="inferred for each row"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="Write all rows to a .csv, .tsv, .jsonl or .parquet file, or to stdout (-).",
            show_default="a few rows are shown",
        ),
    ] = None,
    posterior_samples: Annotated[
        int,
        typer.Option(
            "--posterior-samples", metavar="M", help="Average over M posterior draws; adds mutual information."
        ),
    ] = 0,
    fast: own.Fast = False,
    ignore: own.Ignore = None,
    unknown: own.Unknown = False,
    missing: own.Missing = None,
    size: own.Size = None,
    channels: own.Channels = None,
    device: own.Device = "auto",
) -> None:
    """Answer every row of a file: label, probability, task, entropy, and whether it looks like nothing learnt.

    A label column is not needed, and not looked at. The entropy and the mutual information are in nats.
    """
    own.check_paths(model, data)
    check_device(device)
    check_posterior_samples(posterior_samples, name="--posterior-samples")
    options = own.read_options(
        unknown=unknown, missing=missing, size=size, channels=channels, ignore=ignore, with_labels=False
    )
    from ibpwf.data.writing import check_output, rows_file

    if out is not None:
        check_output(out, data)
    from ibpwf.estimator.files import answer_rows, load_classifier, read_like_before

    classifier = load_classifier(model, device)
    classifier = classifier.fast() if fast else classifier
    batches = read_like_before(classifier, data, options)
    seen = Seen()
    write = None
    with contextlib.ExitStack() as held:
        for rows in answer_rows(classifier, batches, task, posterior_samples, own.option):
            if out is not None:
                write = write or held.enter_context(rows_file(out))
                write(rows)
            seen.add(rows)
    if out is None or str(out) != "-":
        from ibpwf.cli.screen import Screen

        seen.show(Screen(), out)


class Seen:
    """What is told of the answers: the first of them, and how many of each label."""

    def __init__(self) -> None:
        self.first: list[dict[str, Any]] = []
        self.labels: Counter[str] = Counter()
        self.tasks: Counter[str] = Counter()
        self.novel = self.count = 0

    def add(self, rows: list[dict[str, Any]]) -> None:
        self.first += rows[: SHOWN - len(self.first)]
        self.labels.update(row["label"] for row in rows)
        self.tasks.update(row["task"] for row in rows)
        self.novel += sum(row["novel"] for row in rows)
        self.count += len(rows)

    def show(self, screen: Screen, out: Path | None) -> None:
        say = screen.say
        if out is None:
            self._table(screen)
            if self.count > len(self.first):
                say(f"… and {self.count - len(self.first):,} rows more; -o FILE.csv writes them all.\n")
        else:
            say(f"{self.count:,} rows written to {printable(str(out))}.")
        say(f"labels: {_counts(self.labels)}")
        say(f"tasks: {_counts(self.tasks)}")
        say(f"novel: {self.novel:,} of {self.count:,} look like nothing learnt")

    def _table(self, screen: Screen) -> None:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for name in self.first[0]:
            table.add_column(name.replace("_", " "), justify="left" if name in ("file", "label", "task") else "right")
        for row in self.first:
            table.add_row(*(_shown(value) for value in row.values()))
        screen.print(table)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3f}" if isinstance(value, float) else printable(str(value))


def _counts(counter: Counter[str]) -> str:
    shown = ", ".join(f"{printable(name)} {count:,}" for name, count in counter.most_common(8))
    return shown if len(counter) <= 8 else f"{shown}, … ({len(counter)})"
