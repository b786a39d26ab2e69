"""Charts of sweeps over a setting, and of size and accuracy against tasks."""

from __future__ import annotations

import math

from ibpwf.errors import StoreError
from ibpwf.lab.report.chart import figure, label_of
from ibpwf.lab.report.fields import Fields
from ibpwf.lab.report.markup import Markup, exact, table, text
from ibpwf.lab.report.sections import folded
from ibpwf.lab.report.series import Point, Series, series_chart

SETTINGS = {"task": "task given", "class": "task inferred"}
WHISKERS = "whiskers: a standard deviation over seeds"
SIGNS = {"alpha": "α", "kappa": "κ"}


def _shown(mean: float, std: float | None) -> str:
    return f"{mean:.2f}" + (f" ± {std:.2f}" if std is not None else "")


def sweep_figures(measured: Fields) -> list[Markup]:
    """A panel per scenario: accuracy in both settings against the value."""
    setting = measured.text("setting")
    sign = SIGNS.get(setting, setting)
    figures = []
    for panel in measured.children("panels"):
        points = panel.children("points")
        values = [point.number("value") for point in points]
        log = setting == "alpha"
        if not values or (log and min(values) <= 0):
            raise StoreError(f"{panel.where} has no values to draw.")
        place = [math.log10(value) if log else value for value in values]
        series, rows = [], [[text(label_of(value))] for value in values]
        for key, name in SETTINGS.items():
            line = []
            for at, value, point, row in zip(place, values, points, rows, strict=True):
                mean, std = point.child(key).number("mean"), point.child(key).maybe_number("std")
                line.append(Point(at, mean, std, f"{sign} = {label_of(value)}: {_shown(mean, std)} %"))
                row.append(exact(mean, _shown(mean, std)))
            series.append(Series(name, line))
        ran = panel.text("ran")
        marks = [(at, label_of(value)) for at, value in zip(place, values, strict=True)]
        title = f"{ran}: accuracy against {sign}"
        axes = (f"{sign} (log scale)" if log else sign, "accuracy, %")
        drawing = series_chart(series, marks, axes, title, highest=100.5)
        numbers = table([text(sign), *map(text, SETTINGS.values())], rows, f"{title}, %")
        spread = any(point.std is not None for one in series for point in one.points)
        caption = text(f"Mean over tasks after the last one; {WHISKERS if spread else 'one seed'}.")
        figures.append(figure(drawing, title, caption, folded("Numbers", numbers)))
    return figures


def growth_figures(measured: Fields) -> list[Markup]:
    """Two panels per scenario: numbers stored, and accuracy, against tasks learnt."""
    figures = []
    for panel in measured.children("panels"):
        lines, ran = panel.children("lines"), panel.text("ran")
        size, accuracy = [], []
        tasks = 0
        for line in lines:
            name = line.text("label")
            stored = line.numbers("parameters")
            tasks = max(tasks, len(stored))
            size.append(
                Series(
                    name,
                    [Point(t, n / 1000, None, f"task {t}: {n:,.0f} numbers") for t, n in enumerate(stored, start=1)],
                )
            )
            means = [(a.number("mean"), a.maybe_number("std")) for a in line.children("task")]
            accuracy.append(
                Series(
                    name, [Point(t, m, s, f"task {t}: {_shown(m, s)} %") for t, (m, s) in enumerate(means, start=1)]
                )
            )
        if not tasks:
            raise StoreError(f"{panel.where} has no lines to draw.")
        marks = [(float(t), str(t)) for t in range(1, tasks + 1)]
        rows = [
            [text(one.name), exact(one.points[-1].y * 1000, f"{one.points[-1].y * 1000:,.0f}"), _last(other)]
            for one, other in zip(size, accuracy, strict=True)
        ]
        head = [text(name) for name in ("method", "numbers stored", "accuracy, task given, %")]
        numbers = folded("Numbers after the last task", table(head, rows, f"{ran}, after the last task"))
        first, second = f"{ran}: numbers stored", f"{ran}: accuracy so far, task given"
        drawn = series_chart(size, marks, ("tasks learnt", "numbers stored, thousands"), first, zero=True)
        figures.append(figure(drawn, first, text("Factors, strengths and own parameters of all tasks."), numbers))
        drawn = series_chart(accuracy, marks, ("tasks learnt", "accuracy, %"), second, highest=100.5)
        spread = any(point.std is not None for one in accuracy for point in one.points)
        figures.append(
            figure(drawn, second, text(f"Mean over the tasks learnt; {WHISKERS if spread else 'one seed'}."))
        )
    return figures


def _last(series: Series) -> Markup:
    point = series.points[-1]
    return exact(point.y, _shown(point.y, point.std))
