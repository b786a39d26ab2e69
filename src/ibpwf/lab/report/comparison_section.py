"""A comparison of methods on the page: a chart and a table, ours beside the paper's, and each row's command."""

from __future__ import annotations

from dataclasses import dataclass

from ibpwf.lab.experiments.compare import size
from ibpwf.lab.report import words
from ibpwf.lab.report.chart import figure
from ibpwf.lab.report.dot_plot import Compare, dot_plot, plot_height
from ibpwf.lab.report.experiment_record import ComparisonRecord
from ibpwf.lab.report.experiment_sections import mark_cell
from ibpwf.lab.report.markup import EMPTY, Markup, el, join, table, text
from ibpwf.lab.report.sections import Section, folded, said

SETTINGS = {"task": "task given", "class": "task inferred"}


def comparison_section(record: ComparisonRecord, number: int) -> Section:
    rows, commands = [], []
    judged = []
    for row in record.rows:
        cells: list[Markup] = [text(row.method)]
        if row.error is not None:
            rows.append([*cells, text(f"failed: {row.error}"), *([EMPTY] * 7)])
            continue
        for found in row.settings.values():
            paper = join((words.spread(found.paper), text(f" {found.note}"))) if found.paper else text("–")
            cells += [words.spread(found.ours) if found.ours else text("–"), paper, mark_cell(found)]
            judged += [found.reproduces] if found.reproduces is not None else []
        kept = text(size(row.kept)) if row.kept is not None else text("–")
        took = text(f"{row.seconds:,.1f} s") if row.seconds is not None else text("–")
        rows.append([*cells, kept, took])
        commands.append([text(row.method), el("code", text(row.command))])
    head = ["method"]
    for name in SETTINGS.values():
        head += [f"{name}, %", "paper, %", "verdict"]
    shown = table([text(name) for name in [*head, "kept between tasks", "training"]], rows, "Methods side by side")
    lead = f"{words.plural(len(record.rows), 'method')} side by side."
    if judged:
        lead += f" {sum(map(bool, judged))} of {len(judged)} numbers that the paper has too are reached."
    listed = table([text("method"), text("command")], commands, "Commands of the runs", numeric=False)
    body = [
        said(lead, "lead"),
        _charts(record),
        shown,
        said("✅: better than the paper's mean, or below it by at most 1 point or 3 of its deviations.", "note"),
        folded("The command of each row", listed),
        el("p", text("From "), el("code", text(record.source)), text("."), class_="made"),
    ]
    return Section(f"comparison{number}", f"Comparison: {record.title}", join(body))


@dataclass(frozen=True)
class SettingChart:
    """One setting of a comparison, drawn: its name, what a reader who cannot see it is told, and its height."""

    name: str
    title: str
    drawing: Markup
    height: float
    many_seeds: bool


def setting_charts(record: ComparisonRecord) -> list[SettingChart]:
    """A chart per setting that any method answers."""
    charts = []
    for key, name in SETTINGS.items():
        lines = []
        for row in record.rows:
            found = row.settings.get(key)
            if found is not None and found.ours is not None and row.error is None:
                lines.append(Compare(row.method, found.ours, found.paper, found.note, found.judged))
        if lines:
            title = f"{record.title}: accuracy after the last task, {name}, method by method"
            many = any(line.ours.std is not None for line in lines if line.ours)
            drawing = dot_plot(lines, record.guessing.get(key), title)
            charts.append(SettingChart(name[:1].upper() + name[1:], title, drawing, plot_height(len(lines)), many))
    return charts


def _charts(record: ComparisonRecord) -> Markup:
    figures = []
    for chart in setting_charts(record):
        caption = "Best first." + (" Whiskers: a standard deviation over seeds." if chart.many_seeds else "")
        figures.append(figure(chart.drawing, chart.name, text(caption)))
    return el("div", *figures, class_="grid") if figures else EMPTY
