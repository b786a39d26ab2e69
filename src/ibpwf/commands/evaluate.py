"""`ibpwf evaluate`: how well a labelled file is answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ibpwf.commands import own_data as own


def evaluate_command(
    model: own.Model,
    data: own.Data,
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="NAME", help="The task of all rows.", show_default="as their labels tell"),
    ] = None,
    json_: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write JSON to a file, or to stdout (-).", show_default=False),
    ] = None,
    label: own.Label = None,
    ignore: own.Ignore = None,
    unknown: own.Unknown = False,
    missing: own.Missing = None,
    size: own.Size = None,
    channels: own.Channels = None,
    device: own.Device = "auto",
) -> None:
    """Compare the answers with a file's labels: accuracy with the task given and inferred, class by class."""
    own.check_paths(model, data)
    options = own.read_options(
        unknown=unknown, missing=missing, size=size, channels=channels, ignore=ignore, label=label, with_labels=True
    )
    from ibpwf.own_data.answering import load_classifier, read_like_before
    from ibpwf.own_data.scoring import score_rows
    from ibpwf.storage.files import write_text

    classifier = load_classifier(model, device)
    if task is not None:
        classifier.learner_.task_number(task)  # an unknown name is refused with the nearest one
    scores = score_rows(classifier, read_like_before(classifier, data, options), task, own.option)
    found = {"model": str(model), "data": str(data), "task": task, **scores.to_json()}
    text = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    if json_ is not None and str(json_) == "-":
        typer.echo(text, nl=False)
        return
    if json_ is not None:
        write_text(json_, text)
    show(Console(), found, data, classifier.false_alarm_rate)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} %"


def show(console: Console, found: dict[str, Any], data: Path, rate: float) -> None:
    def say(text: str = "", style: str = "") -> None:
        console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    say(f"{data}: {found['rows']:,} rows, {len(found['classes'])} classes", "bold")
    never = found["never_learned"]
    if never["rows"]:
        names = ", ".join(list(never["labels"])[:5]) + (", …" if len(never["labels"]) > 5 else "")
        say(
            f"and {never['rows']:,} rows with labels never learnt ({names}), not counted below; "
            f"{_percent(never['novel'])} of them are flagged as novel"
        )
    if not found["rows"]:
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    told = found["rows_with_task"]
    note = f"of {told:,} rows whose label tells the task" if told < found["rows"] else ""
    table.add_row("accuracy, task given", _percent(found["accuracy"]["task_given"]), note)
    table.add_row("accuracy, task inferred", _percent(found["accuracy"]["task_inferred"]), "")
    table.add_row("task inference", _percent(found["task_inference"]), note)
    table.add_row("mean entropy", f"{found['mean_entropy']:.3f} nats", "")
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
