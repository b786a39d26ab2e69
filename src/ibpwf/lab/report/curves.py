"""Learning curves: the loss and the KL of every epoch, task after task."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ibpwf.lab.report.chart import Frame, legend, mark, svg
from ibpwf.lab.report.markup import Markup, el, number, short
from ibpwf.lab.report.run_record import Epoch, Run

WIDTH, HEIGHT = 420.0, 270.0
MOST_SEED_LINES = 20


@dataclass(frozen=True)
class Step:
    """One epoch on the common axis of all tasks and phases, with the values of the seeds that have it."""

    at: int
    task: int
    phase: str
    epoch: int
    values: dict[int, Epoch]


def steps(epochs: Sequence[Epoch]) -> list[Step]:
    """Epochs in order: by task, by phase as the phases first appear, by number."""
    phases: dict[tuple[int, str], int] = {}
    table: dict[tuple[int, int, int], dict[int, Epoch]] = {}
    for epoch in epochs:
        rank = phases.setdefault((epoch.task, epoch.phase), len(phases))
        table.setdefault((epoch.task, rank, epoch.epoch), {})[epoch.seed] = epoch
    result = []
    for at, key in enumerate(sorted(table)):
        values = table[key]
        first = next(iter(values.values()))
        result.append(Step(at, key[0], first.phase, first.epoch, values))
    return result


def _range(values: list[float], log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if log:
        low, high = low / 1.15, high * 1.15
        if high / low < 4:
            middle = math.sqrt(low * high)
            low, high = middle / 2, middle * 2
        return low, high
    low = min(low, 0.0)
    return low, high + (high - low) * 0.06 or 1.0


def curve(run: Run, part: str, axis: str, title: str, *, skip_flat: bool = False) -> Markup | None:
    """One panel. `skip_flat` leaves out phases in which the value is 0 throughout (fine-tuning has no KL)."""
    shown = steps(run.epochs)
    if skip_flat:
        alive = {s.phase for s in shown if any(getattr(e, part) != 0 for e in s.values.values())}
        shown = [step for step in shown if step.phase in alive]
        shown = [Step(at, s.task, s.phase, s.epoch, s.values) for at, s in enumerate(shown)]
    everything = [float(getattr(e, part)) for s in shown for e in s.values.values()]
    if not everything:
        return None
    log = part == "loss" and min(everything) > 0 and max(everything) / min(everything) > 20
    keys = [("line", "mean", "mean over seeds" if len(run.seeds) > 1 else f"seed {run.seeds[0]}")]
    if len(run.seeds) > 1:
        keys.append(("line", "seed", "each seed"))
    fine = any(step.phase == "finetune" for step in shown)
    if fine:
        keys.append(("box", "band key", "fine-tuning"))
    key_parts, used = legend(keys, 18, 14, WIDTH - 24)
    frame = Frame(
        WIDTH,
        HEIGHT + used,
        (-0.5, len(shown) - 0.5),
        _range(everything, log),
        top=used + 12,
        log_y=log,
    )
    parts = [*key_parts, *_bands(frame, shown), *frame.y_axis(axis + (", log" if log else ""))]
    parts += frame.x_axis(_task_ticks(run, shown, frame), f"task ({len(shown)} epochs in all)")
    if 1 < len(run.seeds) <= MOST_SEED_LINES:
        for seed in run.seeds:
            points = [(s.at, s.task, float(getattr(s.values[seed], part))) for s in shown if seed in s.values]
            parts += _lines(frame, points, "seed")
    means = [(s.at, s.task, statistics.fmean(getattr(e, part) for e in s.values.values())) for s in shown]
    parts += _lines(frame, means, "mean")
    for step, (at, _, value) in zip(shown, means, strict=True):
        of = f" (mean of {len(step.values)} seeds)" if len(step.values) > 1 else ""
        tip = f"task {run.task_name(step.task)}, {step.phase} epoch {step.epoch}: {value:.4g}{of}"
        left, right = frame.x(at - 0.5), frame.x(at + 0.5)
        parts.append(mark(tip, left, frame.top, right - left, frame.inner_height, "hit"))
    return svg(frame.width, frame.height, title, parts)


def _lines(frame: Frame, points: list[tuple[int, int, float]], class_: str) -> list[Markup]:
    """A line per task, broken where the next task starts; a single point is drawn as a short dash."""
    parts = []
    for task in dict.fromkeys(task for _, task, _ in points):
        here = [(float(at), value) for at, t, value in points if t == task]
        if len(here) == 1:
            here = [(here[0][0] - 0.2, here[0][1]), (here[0][0] + 0.2, here[0][1])]
        path = " ".join(f"{number(frame.x(at))},{number(frame.y(value))}" for at, value in here)
        parts.append(el("polyline", class_=class_, points=path))
    return parts


def _bands(frame: Frame, shown: list[Step]) -> list[Markup]:
    """Fine-tuning shaded, and a line where a new task starts."""
    parts = []
    for step in shown:
        if step.phase == "finetune":
            left, right = frame.x(step.at - 0.5), frame.x(step.at + 0.5)
            height = frame.inner_height
            parts.append(el("rect", class_="band", x=left, y=frame.top, width=right - left + 0.2, height=height))
    for before, after in itertools.pairwise(shown):
        if before.task != after.task:
            at = frame.x(after.at - 0.5)
            bottom = frame.top + frame.inner_height
            parts.append(el("line", class_="split", x1=at, x2=at, y1=frame.top, y2=bottom))
    return parts


def _task_ticks(run: Run, shown: list[Step], frame: Frame) -> list[tuple[float, str]]:
    """A label in the middle of every task: its name where names fit, its number otherwise."""
    tasks = list(dict.fromkeys(step.task for step in shown))
    room = frame.inner_width / max(len(tasks), 1)
    names = [run.task_name(task) for task in tasks]
    if any(len(name) * 7 > room for name in names):
        names = [str(task + 1) for task in tasks]
    every = math.ceil(len(tasks) * 22 / frame.inner_width)
    middles = [statistics.fmean(s.at for s in shown if s.task == task) for task in tasks]
    return [(at, short(name, 12)) for at, name in zip(middles, names, strict=True)][::every]
