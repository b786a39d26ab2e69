"""The figures of the paper drawn from an experiment's `measured` fields: uncertainty, factors, features, pictures."""

from __future__ import annotations

from ibpwf.errors import StoreError
from ibpwf.lab.report import words
from ibpwf.lab.report.chart import figure
from ibpwf.lab.report.experiment_record import ExperimentRecord
from ibpwf.lab.report.factor_scores import score_map
from ibpwf.lab.report.factor_use import use_chart
from ibpwf.lab.report.fields import Fields, is_number
from ibpwf.lab.report.markup import Markup, el, exact, join, table, text
from ibpwf.lab.report.run_record import Scores, Use
from ibpwf.lab.report.sections import folded, said
from ibpwf.lab.report.series import scatter
from ibpwf.lab.report.violins import KINDS, Violin, violin_chart

FACTOR_LAYERS = 2


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
            figure(
                drawing,
                when,
                text("Dot: median; line across: mean; bar: half of the inputs."),
                folded("Numbers", numbers),
            )
        )
        scores = panel.child("auroc").values if "auroc" in panel else {}
        columns += [name for name in scores if name not in columns]
        rows.append((task, {name: float(value) for name, value in scores.items() if is_number(value)}))
    cells = [
        [text(task), *(exact(s[c], f"{s[c]:.1f}") if c in s else text("–") for c in columns)] for task, s in rows
    ]
    caption = "How well entropy tells inputs that are not known from known ones (AUROC in %; guessing: 50)"
    head = [text("parameters of" if per_task else "after task"), *map(text, columns)]
    draws = None
    if "draws" in measured:
        wide = "a violin is as wide as the square root of the number of inputs"
        draws = f"Entropy of the mean over {measured.count('draws')} draws from the posterior; {wide}."
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
    alike = measured.maybe_number("alike") if "alike" in measured else None
    near = "" if alike is None else f" Of the nearest neighbours on the map {alike:.1f} % are of the same task."
    caption = f"Axes have no unit. Colour and sign tell the tasks apart; each name stands in its task's middle.{near}"
    return figure(scatter(points, names, title), title, text(caption))


def pictures_drawing(record: ExperimentRecord) -> Markup:
    """A picture per class, all of a task's in one figure."""
    measured = record.measured
    pictures: dict[str, list[Markup]] = {}
    factors: dict[str, int] = {}
    for one in measured.children("pictures"):
        task = one.text("task")
        label = one.text("label") if "label" in one else f"class {one.count('class')}"
        data = one.text("png")
        if not data.isascii() or not all(c.isalnum() or c in "+/=" for c in data):
            raise StoreError(f"{one.where}: field 'png' is not the text of a picture.")
        factors[task] = one.count("active")
        picture = el(
            "img",
            src=f"data:image/png;base64,{data}",
            alt=f"First-layer responses for {label}, task {task}",
            title=f"{label}, task {task}: sixteen maps, each from its darkest to its brightest value",
        )
        pictures.setdefault(task, []).append(el("li", picture, el("span", text(label))))
    alike = {task.text("task"): task.number("similarity") for task in measured.children("tasks")}
    figures = []
    for task, items in pictures.items():
        said_ = [text(f"{words.plural(factors[task], 'factor')}")]
        if task in alike:
            said_ += [
                text("; mean |correlation| between the maps of an image "),
                exact(alike[task], f"{alike[task]:.3f}"),
            ]
        figures.append(figure(el("ul", *items, class_="pictures"), f"Task {task}", join(said_)))
    layer = measured.text("layer")
    lead = f"What the first sixteen kernels of layer {layer} give for one test image of each class of a task."
    return join((said(lead, "note"), el("div", *figures, class_="grid thirds")))
