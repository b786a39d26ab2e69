"""The sections of the report. Each is a function from data to a `Section`, or None where there is no data.

`RUN_SECTIONS` are shown for every run, `PAGE_SECTIONS` once for all runs together. To add one, write such a
function and add it to the list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ibpwf.lab.report import words
from ibpwf.lab.report.accuracy_map import accuracy_map
from ibpwf.lab.report.chart import figure
from ibpwf.lab.report.curves import curve
from ibpwf.lab.report.factor_scores import score_map
from ibpwf.lab.report.factor_use import expectation, use_chart
from ibpwf.lab.report.markup import EMPTY, Markup, el, exact, join, table, text
from ibpwf.lab.report.run_record import MEASURES, POINTS, Run
from ibpwf.lab.report.uncertainty_chart import entropy_chart

LAYERS_SHOWN = 4  # further layers are folded away


@dataclass(frozen=True)
class Section:
    """A part of the page: `name` makes its anchor, `title` its heading."""

    name: str
    title: str
    body: Markup


def said(sentence: str | None, class_: str | None = None) -> Markup:
    return EMPTY if sentence is None else el("p", text(sentence), class_=class_)


def folded(summary: str, body: Markup) -> Markup:
    return el("details", el("summary", text(summary)), body)


# ------------------------------------------------------------------------------------------- one run


def summary(run: Run) -> Section:
    """What was learnt, in plain words and four numbers."""
    if not run.finished:
        return Section("summary", "Summary", _unfinished(run))
    sentences = [
        text(words.what(run)),
        words.measured(run, "task", "Told which task an example belongs to, it answers right in"),
        words.measured(run, "class", "When it must find out the task by itself, it answers right in"),
        *(text(said) for said in (words.forgot(run), words.dictionary(run)) if said),
    ]
    body = el("p", join([sentence for sentence in sentences if sentence], " "), class_="lead")
    return Section("summary", "Summary", join((_tiles(run), body)))


def _tiles(run: Run) -> Markup:
    tiles = []
    for key, name in (("task", "Task given"), ("class", "Task inferred")):
        ours = run.measures.get(key)
        if ours is None:
            continue
        below = []
        if key in run.paper:
            below.append(join((text(f"paper {run.paper[key].shown()} "), words.verdict(ours, run.paper[key]))))
        chance = run.chance(key)
        if chance is not None:
            below.append(text(f"guessing {chance:.3g} %"))
        tiles.append(_tile(name, exact(ours.mean, f"{ours.mean:.2f}"), "%", below))
    if "forgetting" in run.measures:
        value = run.measures["forgetting"]
        tiles.append(
            _tile("Forgotten", exact(value.mean, value.shown().split(" ")[0]), "points", [text("0 is best")])
        )
    if run.parameters is not None:
        size = exact(run.parameters.mean, f"{run.parameters.mean:,.0f}")
        tiles.append(_tile("Stored", size, "numbers", [text(f"for {words.plural(len(run.tasks), 'task')}")]))
    return el("ul", *tiles, class_="tiles") if tiles else EMPTY


def _tile(name: str, value: Markup, unit: str, below: Sequence[Markup]) -> Markup:
    return el(
        "li",
        el("span", text(name), class_="name"),
        el("span", value, el("small", text(f" {unit}")), class_="big"),
        *(el("span", line, class_="below") for line in below),
    )


def _unfinished(run: Run) -> Markup:
    """An unfinished run: how far each seed got, and how to go on."""
    state = el("p", el("strong", text("Unfinished.")), text(f" {words.what(run)} There is no usable result yet."))
    rows = []
    matrices = iter(zip(run.matrices["task"], run.matrices["class"], strict=True))
    for seed in run.seeds:
        done = run.progress.get(seed, 0)
        cells = [text(f"seed {seed}"), text(done)]
        last = [matrix[-1] if matrix else [] for matrix in next(matrices)] if done else [[], []]
        for row in last:
            known = [value for value in row if value is not None]
            mean = sum(known) / len(known) if known else None
            cells.append(text("–") if mean is None else exact(mean, f"{mean:.2f} %"))
        rows.append(cells)
    head = [text(name) for name in ("", "tasks finished", "accuracy, task given", "accuracy, task inferred")]
    go_on = el("p", text("Go on with "), el("code", text(run.resume_command())))
    return join((state, table(head, rows, "How far each seed got (accuracy: mean of its finished tasks)"), go_on))


def results(run: Run) -> Section | None:
    """Ours beside the paper's."""
    if not run.finished:
        return None
    rows = []
    for key, name in MEASURES.items():
        ours, paper = run.measures.get(key), run.paper.get(key)
        unit = "points" if key in POINTS else "%"
        cells = [text(f"{name}, {unit}"), words.spread(ours) if ours else text("–")]
        if not run.paper:
            rows.append(cells)
            continue
        if ours and paper:
            difference = ours.mean - paper.mean
            cells += [words.spread(paper), exact(difference, f"{difference:+.2f}"), words.verdict(ours, paper)]
        else:
            cells += [text("–"), EMPTY, EMPTY]
        rows.append(cells)
    columns = ("measure", "ours", "paper", "difference", "verdict")
    head = [text(name) for name in (columns if run.paper else columns[:2])]
    seeds = ", ".join(map(str, run.seeds))
    of = f"mean ± standard deviation over seeds {seeds}" if len(run.seeds) > 1 else f"seed {seeds}"
    body = [table(head, rows, f"Results ({of})"), said(words.comparison_note(run), "note")]
    if run.paper:
        rule = (
            "✅: our mean is better than the paper's, or below it by at most 1 point or 3 of its standard deviations."
        )
        body.append(said(rule, "note"))
    if run.note:
        body.append(said(f"Preset: {run.note}.", "note"))
    if run.train_seconds is not None:
        speed = f", {run.samples_per_second:,.0f} samples per second" if run.samples_per_second else ""
        body.append(said(f"Training took {run.train_seconds:,.1f} s in all{speed}.", "note"))
    body.append(words.made(run, "result.json", whole=True))
    return Section("results", "Results beside the paper's" if run.paper else "Results", join(body))


def accuracy(run: Run) -> Section | None:
    """The accuracy of every task after every task."""
    captions = {
        "task": ("Task given", "Down a column is what becomes of one task while others are learnt."),
        "class": (
            "Task inferred",
            "A column may fall although nothing is forgotten: the more tasks there are, the harder they are to "
            "tell apart.",
        ),
    }
    figures = []
    for key, (name, words_) in captions.items():
        matrix = run.mean_matrix(key)
        if not matrix:
            continue
        names = [run.task_name(t) for t in range(len(matrix))]
        over = f", mean over {len(run.matrices[key])} seeds" if len(run.matrices[key]) > 1 else ""
        title = f"{name}: accuracy in % on every task (column) after every task (row){over}"
        rows = [
            [text(names[i]), *(text("") if value is None else exact(value, f"{value:.2f}") for value in row)]
            for i, row in enumerate(matrix)
        ]
        numbers = table([text("after task"), *map(text, names)], rows, title)
        drawing = accuracy_map(matrix, names, run.chance(key), title)
        figures.append(
            figure(
                drawing,
                name,
                text(words_),
                folded("Numbers", numbers),
            )
        )
    if not figures:
        return None
    source = "result.json" if run.finished else "seed-*/rows.json"
    body = join((el("div", *figures, class_="grid"), words.made(run, source)))
    return Section("accuracy", "Accuracy after every task", body)


def learning(run: Run) -> Section | None:
    """Loss and KL per epoch."""
    extra = "KL" if run.method == "ibpwf" else "penalty"
    panels = (
        (
            "loss",
            "loss, nats per example",
            "Loss",
            "Mean of an epoch: negative ELBO, then cross-entropy alone while fine-tuning."
            if run.method == "ibpwf"
            else "Mean of an epoch.",
            False,
        ),
        (
            "extra",
            f"{extra}, nats",
            extra,
            "From the prior to the posterior, all layers together; divided by the "
            "number of examples it is part of the loss."
            if run.method == "ibpwf"
            else "Mean of an epoch.",
            True,
        ),
    )
    figures = []
    for part, axis, name, caption, skip in panels:
        drawing = curve(run, part, axis, f"{name} per epoch over all tasks of {run.title}", skip_flat=skip)
        if drawing is not None:
            figures.append(figure(drawing, f"{name} per epoch", text(caption)))
    if not figures:
        return None
    body = join((el("div", *figures, class_="grid"), words.made(run, "metrics.jsonl")))
    return Section("learning", "Learning curves", body)


def factors(run: Run) -> Section | None:
    """Reused and new factors, layer by layer."""
    panels = []
    for layer in run.layers:
        uses = run.mean_use(layer)
        names = [run.task_name(t) for t in range(len(uses))]
        alpha = run.alpha.get(layer)
        title = f"Factors of layer {layer} per task: reused and new, the whole dictionary, and the IBP's expectation"
        expected = expectation(alpha, len(uses))
        head = ["task", "reused", "new", "active", "dictionary"] + (["IBP α·H"] if expected else [])
        rows = []
        for t, use in enumerate(uses):
            cells = [text(names[t]), *(exact(v, f"{v:g}") for v in (use.reused, use.new, use.active, use.total))]
            rows.append([*cells, exact(expected[t], f"{expected[t]:.1f}")] if expected else cells)
        numbers = folded("Numbers", table([text(name) for name in head], rows, title))
        caption = f"α = {alpha:g}" if alpha is not None else "α is not recorded"
        panels.append(figure(use_chart(uses, names, alpha, title), f"Layer {layer}", text(caption + "."), numbers))
    if not panels:
        return None
    mean = f" Means over {len(run.factors)} seeds." if len(run.factors) > 1 else ""
    intro = (
        "Every task reuses factors that earlier tasks locked and opens a few new ones. The dashed line is what the "
        f"Indian buffet process expects before seeing data: t tasks together use α·(1 + 1/2 + … + 1/t) factors.{mean}"
    )
    parts = [said(intro), el("div", *panels[:LAYERS_SHOWN], class_="grid")]
    if len(panels) > LAYERS_SHOWN:
        rest = el("div", *panels[LAYERS_SHOWN:], class_="grid")
        parts.append(folded(words.plural(len(panels) - LAYERS_SHOWN, "more layer"), rest))
    parts.append(words.made(run, "result.json" if run.finished else "seed-*/rows.json"))
    return Section("factors", "Factor use", join(parts))


def scores(run: Run) -> Section | None:
    """Which factors each task uses, and how strongly."""
    if run.scores is None or not run.scores.width:
        return None
    found = run.scores
    names = [run.task_name(t) for t in range(len(found.rows))]
    title = (
        f"Factor scores λ of layer {found.layer}: tasks in rows, factors in stick order in columns, seed {found.seed}"
    )
    caption = text(
        "λ = strength × selection. A column filled from some row downwards is a factor that this task opened and "
        "later ones reuse; a gap is a factor that a task leaves out."
    )
    drawing = figure(score_map(found, names, title), f"Layer {found.layer}, seed {found.seed}", caption)
    source = f"seed-{found.seed}/model"
    return Section("scores", "Which factors each task uses", join((drawing, words.made(run, source))))


def uncertainty(run: Run) -> Section | None:
    """How sure it is of tasks learnt and of tasks to come."""
    found, told = run.mean_entropies(), run.mean_aurocs()
    if not found:
        return None
    names = [run.task_name(t) for t in range(len(found[0]))]
    title = "Mean predictive entropy of every task's test set after every task, in nats; the task is not given"
    rows = []
    for t, row in enumerate(found):
        cells = [text(names[t]), *(exact(value, f"{value:.3f}") for value in row)]
        rows.append([*cells, text("–") if told[t] is None else exact(told[t] or 0.0, f"{told[t]:.1f}")])
    head = [text("after task"), *map(text, names), text("AUROC, %")]
    split = [(row[: t + 1], row[t + 1 :]) for t, row in enumerate(found) if row[t + 1 :]]
    fine, asked = sum(max(seen) < min(unseen) for seen, unseen in split), len(split)
    lead = "Inputs of tasks that were learnt should leave it surer than inputs of tasks still to come."
    if asked:
        lead += f" After {fine} of {asked} tasks, every learnt test set has a lower entropy than any other."
    over = f" Means over {len(run.entropies)} seeds." if len(run.entropies) > 1 else ""
    caption = text(
        "100 inputs of each test set, 10 draws from the posterior; bars: means. AUROC: how well the entropy of "
        f"single inputs tells tasks to come from learnt ones (guessing: 50).{over}"
    )
    numbers = folded("Numbers", table(head, rows, title))
    drawing = figure(entropy_chart(found, names, title), "Entropy after every task", caption, numbers)
    source = "result.json" if run.finished else "seed-*/rows.json"
    return Section("uncertainty", "Uncertainty", join((said(lead), drawing, words.made(run, source))))


def settings(run: Run) -> Section:
    """What the run was asked to do, and where it ran."""

    def shown(value: object) -> Markup:
        return el("code", text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))

    rows = []
    for name, value in run.settings.items():
        changed = text(" (changed)") if name in run.changes else EMPTY
        rows.append([text(name), join((shown(value), changed))])
    rows += [[text(f"network: {name}"), shown(value)] for name, value in run.network.items()]
    rows.append([text("seeds"), shown(run.seeds)])
    rows += [[text(f"environment: {name}"), shown(value)] for name, value in run.environment.items()]
    rows += [[text("commit"), shown(run.commit or "not recorded")], [text("command"), shown(run.command or "–")]]
    rows.append([text("run folder"), shown(str(run.folder))])
    body = table([text("setting"), text("value")], rows, f"Settings of {run.title}", numeric=False)
    return Section("settings", "Settings and environment", folded("All settings", body))


# ------------------------------------------------------------------------------------------ all runs


def overview(runs: Sequence[Run]) -> Section | None:
    """A line per run, when there are several."""
    if len(runs) < 2:
        return None
    rows = []
    for i, run in enumerate(runs):
        link = el("a", text(run.title), href=f"#run{i + 1}")
        cells = [link, text(len(run.seeds))]
        for key in ("task", "class", "task-inference", "forgetting"):
            ours, paper = run.measures.get(key), run.paper.get(key)
            shown = words.spread(ours) if ours else text("–")
            cells.append(join((shown, text(" "), words.verdict(ours, paper))) if ours and paper else shown)
        rows.append([*cells, text("finished" if run.finished else "unfinished")])
    head = ["run", "seeds", "task given, %", "task inferred, %", "task inference, %", "forgetting, points", "state"]
    return Section("overview", "All runs", table([text(name) for name in head], rows, "All runs of this report"))


RUN_SECTIONS: tuple[Callable[[Run], Section | None], ...] = (
    summary,
    results,
    accuracy,
    learning,
    factors,
    scores,
    uncertainty,
    settings,
)
PAGE_SECTIONS: tuple[Callable[[Sequence[Run]], Section | None], ...] = (overview,)
