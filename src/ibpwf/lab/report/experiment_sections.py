"""A reproduced table or figure on the page: what the paper found, our numbers drawn, the claims, the commands.

`DRAWINGS` maps what an experiment shows to the function that draws its `measured` fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ibpwf.errors import StoreError
from ibpwf.lab.report import words
from ibpwf.lab.report.chart import figure
from ibpwf.lab.report.dot_plot import Compare, dot_plot
from ibpwf.lab.report.experiment_drawings import (
    factors_drawing,
    pictures_drawing,
    scatter_drawing,
    uncertainty_drawing,
)
from ibpwf.lab.report.experiment_record import Compared, ExperimentRecord
from ibpwf.lab.report.fields import Fields
from ibpwf.lab.report.growth_charts import growth_figures, sweep_figures
from ibpwf.lab.report.markup import EMPTY, Markup, el, exact, join, table, text
from ibpwf.lab.report.run_record import Spread
from ibpwf.lab.report.sections import Section, folded, said

SETTINGS = {"task": "task given", "class": "task inferred", "task-inference": "task inference"}


def experiment_section(record: ExperimentRecord) -> Section:
    """The whole of one experiment."""
    if record.shows not in DRAWINGS:
        raise StoreError(f"result.json: field 'shows' is '{record.shows}'; this ibpwf draws {', '.join(DRAWINGS)}.")
    budget = EMPTY
    note = record.note or ("quick: not the paper's experiment" if record.quick else "")
    if note:
        size = el("strong", text("Quick run. " if record.quick else "Not the paper's size. "))
        note = note.removeprefix("quick: ")
        budget = el("p", size, text(f"{note[:1].upper()}{note[1:]}."), class_="budget")
    over = "one seed" if len(record.seeds) == 1 else f"{len(record.seeds)} seeds" if record.seeds else ""
    body = [
        budget,
        said(f"The paper: {record.paper}") if record.paper else EMPTY,
        _claims(record),
        DRAWINGS[record.shows](record),
        *(said(f"{name} failed and is left out: {error}", "note") for name, error in record.failed),
        _commands(record),
        made(record, over),
    ]
    return Section(record.name, record.title + (" (quick)" if record.quick else ""), join(body))


def made(record: ExperimentRecord, over: str) -> Markup:
    parts = [text("From "), el("code", text(record.source)), text(f", {over}" if over else "")]
    if record.command:
        parts += [text(", made by "), el("code", text(record.command))]
    if record.commit:
        parts += [text(", commit "), el("code", text(words.short_commit(record.commit)))]
    device = record.environment.get("device")
    return el("p", *parts, text(f"; {device}." if device else "."), class_="made")


def _claims(record: ExperimentRecord) -> Markup:
    if not record.claims or (record.quick and record.shows == "table"):
        return EMPTY
    items = []
    for claim in record.claims:
        sign = el("span", text("✅" if claim.held else "❌"), title="holds" if claim.held else "does not hold")
        items.append(el("li", sign, el("span", text(claim.statement))))
    return el("ul", *items, class_="claims")


def _commands(record: ExperimentRecord) -> Markup:
    if not record.commands:
        return EMPTY
    rows = [[text(name), el("code", text(command))] for name, command in record.commands]
    shown = table([text("run"), text("command")], rows, f"Commands of the runs of {record.name}", numeric=False)
    title = "The run and its command" if len(rows) == 1 else f"{len(rows)} runs, each with its command"
    return folded(title, el("div", shown, class_="commands"))


def mark_cell(found: Compared) -> Markup:
    """The file's own verdict: ✅, ❌ or nothing."""
    if found.reproduces is None:
        return EMPTY
    return el(
        "span",
        text("✅ " if found.reproduces else "❌ "),
        el("span", text("reached" if found.reproduces else "below"), class_="word"),
        class_="yes" if found.reproduces else "no",
    )


def _spread(fields: Fields, name: str) -> Spread | None:
    if name not in fields:
        return None
    child = fields.child(name)
    return Spread(child.number("mean"), child.maybe_number("std"))


# Drawings


def table_drawing(record: ExperimentRecord) -> Markup:
    """One table per benchmark."""
    rows = record.measured.children("rows")
    parts = []
    for benchmark in dict.fromkeys(row.text("benchmark") for row in rows):
        mine = [row for row in rows if row.text("benchmark") == benchmark]
        ran = next((row.text("ran") for row in mine if "ran" in row), benchmark)
        judged = ran == benchmark and not record.quick
        lines = [_table_line(row, judged) for row in mine]
        of = benchmark if ran == benchmark else f"{benchmark}: ours is {ran}, a stand-in that is not judged"
        verdict = ("difference", "verdict") if judged else ()
        head = [text(name) for name in ("method, setting", "ours, %", "paper, %", *verdict, "seeds")]
        parts += [_dot_plots(mine, benchmark) if judged else EMPTY, table(head, lines, of)]
    rule = "✅: our mean is better than the paper's, or below it by at most 1 point or 3 of its standard deviations."
    missing = any("ours" not in row for row in rows)
    note = EMPTY if record.quick else said(rule + (" –: not measured yet." if missing else ""), "note")
    return join((*parts, note))


def _table_line(row: Fields, judged: bool) -> list[Markup]:
    """Method and setting, ours, the paper's, where they are compared the difference and the verdict, the seeds."""
    ours, paper = _spread(row, "ours"), _spread(row, "paper")
    note = row.child("paper").text("note", "") if "paper" in row else ""
    difference = row.maybe_number("difference")
    setting = row.text("setting")
    found = Compared(ours, paper, note, row.values.get("reproduces"))
    verdict = [EMPTY if difference is None else exact(difference, f"{difference:+.2f}"), mark_cell(found)]
    return [
        text(f"{row.text('method')}, {SETTINGS.get(setting, setting)}"),
        words.spread(ours) if ours else text("–"),
        join((words.spread(paper), el("span", text(f" ({note})"), class_="remark") if note else EMPTY))
        if paper
        else text("–"),
        *(verdict if judged else []),
        text(row.count("seeds")) if "seeds" in row and ours else EMPTY,
    ]


def _dot_plots(rows: Sequence[Fields], benchmark: str) -> Markup:
    """A chart per setting with at least three methods in it."""
    figures = []
    for setting, name in SETTINGS.items():
        mine = [row for row in rows if row.text("setting") == setting and "ours" in row]
        lines = [
            Compare(
                row.text("method"), _spread(row, "ours"), _spread(row, "paper"), row.child("paper").text("note", "")
            )
            for row in mine
        ]
        if len(lines) > 2:
            title = f"{benchmark}, {name}"
            drawing = dot_plot(lines, None, f"{title}: accuracy of each method, ours and the paper's")
            figures.append(figure(drawing, title, text("Best first. Whiskers: a standard deviation over seeds.")))
    return el("div", *figures, class_="grid") if figures else EMPTY


DRAWINGS: dict[str, Callable[[ExperimentRecord], Markup]] = {
    "table": table_drawing,
    "uncertainty": uncertainty_drawing,
    "factors": factors_drawing,
    "growth": lambda record: el("div", *growth_figures(record.measured), class_="grid"),
    "sweep": lambda record: el("div", *sweep_figures(record.measured), class_="grid"),
    "scatter": scatter_drawing,
    "pictures": pictures_drawing,
}


def _reached(record: ExperimentRecord) -> Markup:
    """How many of a table's numbers are reached, and how many are still to be measured."""
    if record.shows != "table" or record.quick:
        return EMPTY
    rows = record.measured.children("rows")
    judged = [row.values["reproduces"] for row in rows if row.values.get("reproduces") is not None]
    left = len(rows) - len(judged)
    return join(
        (
            text(f"{sum(judged)} of {len(judged)}"),
            el("span", text(f" ({left} to come)"), class_="pm") if left else EMPTY,
        )
    )


def _seeds(record: ExperimentRecord) -> str:
    """Of the experiment, or of a table's rows where those come from different files."""
    if record.seeds or record.shows != "table":
        return str(len(record.seeds))
    counts = sorted(
        {row.count("seeds") for row in record.measured.children("rows") if "ours" in row and "seeds" in row}
    )
    return " to ".join(str(count) for count in dict.fromkeys((*counts[:1], *counts[-1:])))


def overview_of(records: Sequence[ExperimentRecord], waiting: Sequence[str] = ()) -> Section | None:
    """What holds, in plain words, when there are several experiments; `waiting` names those still to be run."""
    if len(records) < 2:
        return None
    rows = []
    tables = any(record.shows == "table" and not record.quick for record in records)
    for record in records:
        held = sum(claim.held for claim in record.claims)
        judged = not (record.quick and record.shows == "table")
        rows.append(
            [
                el("a", text(record.title), href=f"#{record.name}"),
                text(f"{held} of {len(record.claims)}" if judged and record.claims else "not judged"),
                *([_reached(record)] if tables else []),
                text("quick" if record.quick else "shortened" if record.note else "full"),
                text(_seeds(record)),
            ]
        )
    full = [record for record in records if not record.quick]
    claims = [claim for record in full for claim in record.claims]
    lead = (
        f"{len(records)} tables and figures of the paper: {sum(c.held for c in claims)} of {len(claims)} claims hold."
        if full
        else f"{len(records)} tables and figures of the paper, run quick: they show that everything runs; none of "
        "their numbers stands for the paper's."
    )
    counts = ("numbers reached",) if tables else ()
    columns = ("experiment", "claims that hold", *counts, "size", "seeds")
    head = [text(name) for name in columns]
    missing = f"Not measured yet: {', '.join(waiting)}." if waiting else None
    body = join((said(lead, "lead"), table(head, rows, "All experiments"), said(missing, "note")))
    return Section("experiments", "The paper, reproduced", body)
