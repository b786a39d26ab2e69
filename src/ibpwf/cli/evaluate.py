"""`ibpwf evaluate`: how well a labelled file is answered."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ibpwf.cli import reading as own
from ibpwf.cli.output import json_text, print_json
from ibpwf.device import check_device
from ibpwf.errors import printable

if TYPE_CHECKING:
    from ibpwf.cli.screen import Screen


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
    fast: own.Fast = False,
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
    check_device(device)
    options = own.read_options(
        unknown=unknown, missing=missing, size=size, channels=channels, ignore=ignore, label=label, with_labels=True
    )
    from ibpwf.storage.files import check_writable, write_text

    if json_ is not None and str(json_) != "-":
        check_writable(json_)
    from ibpwf.estimator.files import load_classifier, read_like_before
    from ibpwf.estimator.scoring import score_rows

    classifier = load_classifier(model, device)
    classifier = classifier.fast() if fast else classifier
    if task is not None:
        classifier.learner_.task_number(task)  # an unknown name is refused with the nearest one
    scores = score_rows(classifier, read_like_before(classifier, data, options), task, own.option)
    found = {"model": str(model), "data": str(data), "task": task, **scores.to_json()}
    if json_ is not None and str(json_) == "-":
        print_json(found)
        return
    if json_ is not None:
        write_text(json_, json_text(found) + "\n")
    from ibpwf.cli.screen import Screen

    show(Screen(), found, data, classifier.false_alarm_rate)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} %"


def show(screen: Screen, found: dict[str, Any], data: Path, rate: float) -> None:
    from rich.table import Table

    say = screen.say
    say(f"{printable(str(data))}: {found['rows']:,} rows, {len(found['classes'])} classes", "bold")
    never = found["never_learned"]
    if never["rows"]:
        names = printable(", ".join(list(never["labels"])[:5])) + (", …" if len(never["labels"]) > 5 else "")
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
    screen.print(table)
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
        label, tasks, taken = map(printable, (entry["label"], tasks, taken))
        table.add_row(label, tasks, f"{entry['rows']:,}", *shares, taken)
    say()
    screen.print(table)
