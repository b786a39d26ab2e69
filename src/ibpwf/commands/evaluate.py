"""`ibpwf evaluate`: how well a labelled file is answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ibpwf.commands.own_data import Data, Device, Ignore, Label, Missing, Model, Unknown, options_named

if TYPE_CHECKING:
    from ibpwf.own_data.scoring import Scores


def evaluate_command(
    model: Model,
    data: Data,
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="NAME", help="The task of all rows.", show_default="as their labels tell"),
    ] = None,
    json_: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write JSON to a file, or to stdout (-).", show_default=False),
    ] = None,
    label: Label = None,
    ignore: Ignore = None,
    unknown: Unknown = False,
    missing: Missing = None,
    device: Device = "auto",
) -> None:
    """Compare the answers with a file's labels: accuracy with the task given and inferred, class by class."""
    from ibpwf.files import read_batches
    from ibpwf.own_data.model import ROWS_AT_ONCE, FileModel
    from ibpwf.own_data.scoring import score_rows
    from ibpwf.storage.files import write_text

    with options_named():
        known = FileModel.load(model, device)
        if task is not None:
            known.classifier.learner_.task_number(task)  # an unknown name is refused with the nearest one
        batches = read_batches(
            data,
            known.layout,
            ROWS_AT_ONCE,
            label=label,
            labelled=True,
            ignore=ignore or (),
            unknown="zeros" if unknown else "error",
            missing=None if missing is None else missing.value,
        )
        scores = score_rows(known, batches, task)
    found = {"model": str(model), "data": str(data), "task": task, **scores.to_json()}
    text = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    if json_ is not None and str(json_) == "-":
        typer.echo(text, nl=False)
        return
    if json_ is not None:
        write_text(json_, text)
    show(Console(), scores, data, known.classifier.false_alarm_rate)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} %"


def show(console: Console, scores: Scores, data: Path, rate: float) -> None:
    def say(text: str = "", style: str = "") -> None:
        console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    found = scores.to_json()
    say(f"{data}: {scores.rows:,} rows, {len(found['classes'])} classes", "bold")
    never = found["never_learnt"]
    if never["rows"]:
        names = ", ".join(list(never["labels"])[:5]) + (", …" if len(never["labels"]) > 5 else "")
        say(
            f"and {never['rows']:,} rows with labels never learnt ({names}), not counted below; "
            f"{_percent(never['novel'])} of them are flagged as novel"
        )
    if not scores.rows:
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    some = scores.given_rows < scores.rows
    note = f"of {scores.given_rows:,} rows whose label tells the task" if some else ""
    table.add_row("accuracy, task given", _percent(scores.given), note)
    table.add_row("accuracy, task inferred", _percent(scores.inferred), "")
    table.add_row("task inference", _percent(scores.task_inference), note)
    table.add_row("mean entropy", f"{scores.mean_entropy:.3f} nats", "")
    table.add_row(
        "flagged as novel", _percent(found["novel"]), f"{100 * rate:g} % is usual for rows like those learnt"
    )
    say()
    console.print(table)
    table = Table(box=None, pad_edge=False)
    for head in ("class", "task"):
        table.add_column(head)
    for head in ("rows", "given", "inferred", "precision"):
        table.add_column(head, justify="right")
    table.add_column("most often taken for")
    for entry in found["classes"]:
        mistakes = [
            (name, count) for name, count in found["confusion"][entry["label"]].items() if name != entry["label"]
        ]
        taken = ", ".join(f"{name} ({count})" for name, count in mistakes[:2])
        shares = [_percent(entry[key]).removesuffix(" %") for key in ("task_given", "task_inferred", "precision")]
        tasks = ", ".join(entry["tasks"])
        table.add_row(escape(entry["label"]), escape(tasks), f"{entry['rows']:,}", *shares, escape(taken))
    say()
    console.print(table)
