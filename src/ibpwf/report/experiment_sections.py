"""A reproduced table or figure on the page: what the paper found, our numbers drawn, the claims, the commands.

`DRAWINGS` maps what an experiment shows to the function that draws its `measured` fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ibpwf.errors import StoreError
from ibpwf.report import words
from ibpwf.report.chart import figure
from ibpwf.report.dot_plot import Compare, dot_plot
from ibpwf.report.experiment_record import Compared, ExperimentRecord
from ibpwf.report.factor_scores import score_map
from ibpwf.report.factor_use import use_chart
from ibpwf.report.fields import Fields, is_number
from ibpwf.report.growth_charts import growth_figures, sweep_figures
from ibpwf.report.markup import EMPTY, Markup, el, exact, join, table, text
from ibpwf.report.run_record import Scores, Spread, Use
from ibpwf.report.sections import Section, folded, said
from ibpwf.report.series import scatter
from ibpwf.report.violins import KINDS, Violin, violin_chart

SETTINGS = {"task": "task given", "class": "task inferred", "task-inference": "task inference"}
FACTOR_LAYERS = 2


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
    return folded(words.plural(len(rows), "run") + ", each with its command", shown)


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
        lines = []
        for row in mine:
            ours, paper = _spread(row, "ours"), _spread(row, "paper")
            note = row.child("paper").text("note", "")
            difference = row.maybe_number("difference")
            setting = row.text("setting")
            found = Compared(ours, paper, note, row.values.get("reproduces"))
            lines.append(
                [
                    text(f"{row.text('method')}, {SETTINGS.get(setting, setting)}"),
                    words.spread(ours) if ours else text("–"),
                    join((words.spread(paper), text(f" ({note})" if note else ""))) if paper else text("–"),
                    EMPTY if difference is None else exact(difference, f"{difference:+.2f}"),
                    mark_cell(found),
                    text(row.count("seeds")) if "seeds" in row and ours else EMPTY,
                ]
            )
        of = benchmark if ran == benchmark else f"{benchmark}: ours is {ran}, a stand-in that is not judged"
        head = [text(name) for name in ("method, setting", "ours, %", "paper, %", "difference", "verdict", "seeds")]
        parts += [_dot_plots(mine, benchmark) if ran == benchmark else EMPTY, table(head, lines, of)]
    rule = "✅: our mean is better than the paper's, or below it by at most 1 point or 3 of its standard deviations."
    missing = any("ours" not in row for row in rows)
    note = EMPTY if record.quick else said(rule + (" –: not measured yet." if missing else ""), "note")
    return join((*parts, note))


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


def uncertainty_drawing(record: ExperimentRecord) -> Markup:
    measured = record.measured
    highest = measured.number("highest")
    per_task = measured.values.get("per_task") is True
    figures, rows = [], []
    columns: list[str] = []
    for panel in measured.children("panels"):
        task = panel.text("task")
        violins = [_violin(one) for one in panel.children("sets")]
        when = f"Under the parameters of task {task}" if per_task else f"After task {task}"
        title = f"{when}: predictive entropy of every test set, in nats"
        numbers = table(
            [text("test set"), text("mean"), text("median"), text("5 % to 95 %")],
            [
                [
                    text(f"{v.name} ({KINDS[v.kind][1]})"),
                    exact(v.mean, f"{v.mean:.3f}"),
                    exact(v.quantiles[2], f"{v.quantiles[2]:.3f}"),
                    text(f"{v.quantiles[0]:.3f} to {v.quantiles[4]:.3f}"),
                ]
                for v in violins
            ],
            title,
        )
        drawing = violin_chart(violins, highest, "entropy, nats", title)
        figures.append(
            figure(drawing, when, text("Dot: median; bar: half of the inputs."), folded("Numbers", numbers))
        )
        scores = panel.child("auroc").values if "auroc" in panel else {}
        columns += [name for name in scores if name not in columns]
        rows.append((task, {name: float(value) for name, value in scores.items() if is_number(value)}))
    cells = [
        [text(task), *(exact(s[c], f"{s[c]:.1f}") if c in s else text("–") for c in columns)] for task, s in rows
    ]
    caption = "How well entropy tells inputs that are not known from known ones (AUROC in %; guessing: 50)"
    head = [text("parameters of" if per_task else "after task"), *map(text, columns)]
    draws = f"Mean over {measured.count('draws')} draws from the posterior." if "draws" in measured else None
    return join((said(draws, "note"), el("div", *figures, class_="grid"), table(head, cells, caption)))


def _violin(fields: Fields) -> Violin:
    q = fields.numbers("quantiles")
    kind = fields.text("kind")
    histogram = tuple(int(count) for count in fields.numbers("histogram"))
    if len(q) != 5 or kind not in KINDS or not histogram or min(histogram) < 0:
        raise StoreError(f"{fields.where} does not describe a distribution.")
    return Violin(fields.text("name"), kind, fields.number("mean"), (q[0], q[1], q[2], q[3], q[4]), histogram)


def factors_drawing(record: ExperimentRecord) -> Markup:
    parts = []
    for panel in record.measured.children("panels"):
        tasks = [str(name) for name in panel.items("tasks")]
        layer, ran = panel.text("layer"), panel.text("ran")
        scores = panel_scores(panel, len(tasks))
        title = f"Expected factor scores E[λ] of layer {layer}, {ran}: tasks in rows, factors in columns"
        caption = text(
            "E[λ] = strength × probability, of the factors whose probability is at least κ; the others are empty."
        )
        parts.append(figure(score_map(scores, tasks, title), f"{ran}, layer {layer}, seed {scores.seed}", caption))
        charts = []
        for name, one in panel.child("layers").named():
            uses = [
                Use(*(use.number(part) for part in ("active", "new", "reused", "total")))
                for use in one.children("per_task")
            ]
            alpha = one.number("alpha")
            drawing = use_chart(uses, tasks, alpha, f"Factors of layer {name} per task, {ran}")
            charts.append(
                figure(drawing, f"{ran}, layer {name}", text(f"α = {alpha:g}. Dashed: α·H, as the IBP expects."))
            )
        parts.append(el("div", *charts[:FACTOR_LAYERS], class_="grid"))
        if len(charts) > FACTOR_LAYERS:
            rest = el("div", *charts[FACTOR_LAYERS:], class_="grid")
            parts.append(folded(words.plural(len(charts) - FACTOR_LAYERS, "more layer"), rest))
    return join(parts)


def panel_scores(panel: Fields, tasks: int) -> Scores:
    """The factor scores of one panel of figure-factors."""
    values, selected, opened = (panel.items(name) for name in ("scores", "selected", "opened"))
    if not len(values) == len(selected) == len(opened) == tasks:
        raise StoreError(f"{panel.where}: scores, selection and new factors are not one row per task.")
    rows: list[list[float | None]] = []
    for row, chosen in zip(values, selected, strict=True):
        used = {int(k) for k in chosen}
        rows.append([float(value) if k in used else None for k, value in enumerate(row)])
    new = [frozenset(int(k) for k in row) for row in opened]
    return Scores(panel.count("seed"), panel.text("layer"), rows, new)


def scatter_drawing(record: ExperimentRecord) -> Markup:
    measured = record.measured
    names = [str(name) for name in measured.items("tasks")]
    points = [(float(x), float(y), int(task)) for x, y, task in measured.items("points")]
    if not points or any(not 0 <= task < len(names) for _, _, task in points):
        raise StoreError("result.json: field 'points' does not fit the tasks.")
    title = f"t-SNE of φ: {len(points)} test images of {len(names)} tasks of {measured.text('ran')}"
    key = "; ".join(f"{i + 1}: {name}" for i, name in enumerate(names))
    return figure(scatter(points, names, title), title, text(f"Axes have no unit. Tasks: {key}."))


def pictures_drawing(record: ExperimentRecord) -> Markup:
    items = []
    for one in record.measured.children("pictures"):
        task, label = one.text("task"), one.count("class")
        words_ = f"class {label}, task {task}"
        data = one.text("png")
        if not data.isascii() or not all(c.isalnum() or c in "+/=" for c in data):
            raise StoreError(f"{one.where}: field 'png' is not the text of a picture.")
        picture = el("img", src=f"data:image/png;base64,{data}", alt=f"First-layer responses for {words_}")
        items.append(el("li", picture, el("span", text(f"{words_}; {one.count('active')} factors"))))
    rows = [
        [text(task.text("task")), exact(task.number("similarity"), f"{task.number('similarity'):.3f}")]
        for task in record.measured.children("tasks")
    ]
    caption = "How alike the maps of an image are: mean |correlation| over all pairs of maps"
    numbers = table([text("task"), text("similarity")], rows, caption)
    said_ = f"What the kernels of layer {record.measured.text('layer')} give for one test image of each class."
    return join((said(said_, "note"), el("ul", *items, class_="pictures"), numbers))


DRAWINGS: dict[str, Callable[[ExperimentRecord], Markup]] = {
    "table": table_drawing,
    "uncertainty": uncertainty_drawing,
    "factors": factors_drawing,
    "growth": lambda record: el("div", *growth_figures(record.measured), class_="grid"),
    "sweep": lambda record: el("div", *sweep_figures(record.measured), class_="grid"),
    "scatter": scatter_drawing,
    "pictures": pictures_drawing,
}


def _reached(record: ExperimentRecord) -> list[Markup]:
    """How many of a table's numbers are reached, and how many are missing."""
    if record.shows != "table" or record.quick:
        return [EMPTY, EMPTY]
    rows = record.measured.children("rows")
    judged = [row.values["reproduces"] for row in rows if row.values.get("reproduces") is not None]
    return [text(f"{sum(judged)} of {len(judged)}"), text(len(rows) - len(judged))]


def overview_of(records: Sequence[ExperimentRecord], waiting: Sequence[str] = ()) -> Section | None:
    """What holds, in plain words, when there are several experiments; `waiting` names those still to be run."""
    if len(records) < 2:
        return None
    rows = []
    for record in records:
        held = sum(claim.held for claim in record.claims)
        judged = not (record.quick and record.shows == "table")
        rows.append(
            [
                el("a", text(record.title), href=f"#{record.name}"),
                text(f"{held} of {len(record.claims)}" if judged and record.claims else "not judged"),
                *_reached(record),
                text("quick" if record.quick else "shortened" if record.note else "paper's size"),
                text(len(record.seeds) or "see there"),
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
    columns = ("experiment", "claims that hold", "numbers reached", "not measured yet", "size", "seeds")
    head = [text(name) for name in columns]
    missing = f"Not measured yet: {', '.join(waiting)}." if waiting else None
    body = join((said(lead, "lead"), table(head, rows, "All experiments"), said(missing, "note")))
    return Section("experiments", "The paper, reproduced", body)
