"""The report's sentences: what a run learnt, how it compares, what made the numbers."""

from __future__ import annotations

from ibpwf.lab.experiments.paper import tolerance
from ibpwf.lab.report.markup import Markup, el, exact, join, text
from ibpwf.lab.report.run_record import Run, Spread, reached

METHOD_NAMES = {"ibpwf": "IBP-WF"}


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def count(value: float) -> str:
    """A mean of counts: 4.3, 96, 1,031."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def spread(value: Spread, digits: int = 2) -> Markup:
    """Mean and deviation, each with its full value; on a phone the deviation takes a line of its own."""
    mean, _, std = value.shown(digits).partition(" ± ")
    if value.std is None:
        return exact(value.mean, mean)
    return join((exact(value.mean, mean), el("span", text(" ± "), exact(value.std, std), class_="pm")))


def verdict(ours: Spread, paper: Spread) -> Markup:
    """✅ or ❌, in words too."""
    within = reached(ours, paper)
    words = "reached" if within else "below"
    rule = f"within {tolerance(paper.std):.2f} points of the paper, or better"
    return el(
        "span",
        text("✅ " if within else "❌ "),
        el("span", text(words), class_="word"),
        class_="yes" if within else "no",
        title=f"{words}: {rule}" if within else f"not {rule}",
    )


def what(run: Run) -> str:
    """What was learnt, in a sentence."""
    name = METHOD_NAMES.get(run.method, run.method)
    counts = {task.classes for task in run.tasks}
    each = counts.pop() if len(counts) == 1 else None
    classes = f" of {each} class{'es' * (each != 1)} each" if each else ""
    seeds = "one random seed" if len(run.seeds) == 1 else f"{len(run.seeds)} random seeds"
    if not run.finished:
        return f"{name} is learning {run.scenario}, one task after another, with {seeds}."
    return (
        f"{name} learnt {run.scenario}: {plural(len(run.tasks), 'task')}{classes}, one after another, with {seeds}."
    )


def measured(run: Run, key: str, opening: str) -> Markup | None:
    """One accuracy beside the paper's and guessing."""
    ours = run.measures.get(key)
    if ours is None:
        return None
    parts = [text(f"{opening} "), el("strong", exact(ours.mean, f"{ours.mean:.2f}\u00a0%"))]
    beside = []
    if key in run.paper:
        paper = run.paper[key]
        beside.append(join((text("the paper reports "), exact(paper.mean, f"{paper.mean:.2f}\u00a0%"))))
    chance = run.chance(key)
    if chance is not None:
        beside.append(text(f"guessing gives {chance:.3g}\u00a0%"))
    if beside:
        parts.append(join((text(" ("), join(beside, "; "), text(")"))))
    return join((*parts, text(".")))


def forgot(run: Run) -> str | None:
    """Forgetting, said plainly."""
    value = run.measures.get("forgetting")
    if value is None or len(run.tasks) < 2:
        return None
    if value.mean == 0 and not value.std:
        return (
            "It forgot nothing: at the end every task is answered exactly as well as right after it was learnt "
            "(forgetting 0.00 points)."
        )
    return (
        f"It forgot {value.mean:.2f} points: so much lower is the accuracy on earlier tasks at the end than it was "
        "at its best."
    )


def dictionary(run: Run) -> str | None:
    """What the last task took from the first layer's dictionary."""
    if not run.layers:
        return None
    layer = run.layers[0]
    uses = run.mean_use(layer)
    if len(uses) < 2:
        return None
    last = uses[-1]
    mean = " (means over seeds)" if len(run.factors) > 1 else ""
    return (
        f"Layer {layer} ended with {count(last.total)} factors; of the {count(last.active)} the last task uses, "
        f"{count(last.reused)} were there already and {count(last.new)} are new{mean}."
    )


def comparison_note(run: Run) -> str | None:
    """When the paper's figures are not for this very experiment, say so."""
    if not run.paper:
        reason = "a shortened scenario" if run.shortened else "this scenario and method"
        return f"The paper has no figures for {reason}." if run.finished else None
    if run.preset != "paper" or run.changes:
        changed = f" with {', '.join(run.changes)} changed" if run.changes else ""
        own = "The paper's figures belong to its own settings (preset paper)"
        return f"{own}; this run used preset {run.preset}{changed}."
    return None


def hardware(run: Run) -> str:
    """Versions and machine, as recorded."""
    env = run.environment
    versions = [f"{name} {env[name]}" for name in ("ibpwf", "python", "torch") if env.get(name)]
    machine = [str(env[name]) for name in ("device", "system", "machine") if env.get(name)]
    if env.get("cores"):
        machine.append(f"{env['cores']} cores")
    if env.get("threads"):
        machine.append(f"{env['threads']} threads")
    return ", ".join(versions) + ("; " if versions and machine else "") + ", ".join(machine)


def short_commit(commit: str) -> str:
    """Ten digits, and whether there were changes."""
    return commit[:10] + ("-dirty" if commit.endswith("-dirty") else "")


def made(run: Run, file: str, *, whole: bool = False) -> Markup:
    """Which command, commit and machine a number comes from."""
    file = f"{run.name}.json" if run.name else file
    parts = [text("From "), el("code", text(file))]
    if run.command:
        parts += [text(", made by "), el("code", text(run.command))]
    if run.commit:
        commit = run.commit if whole else short_commit(run.commit)
        parts += [text(", commit "), el("code", text(commit))]
    if whole and run.environment:
        parts.append(text(f"; {hardware(run)}"))
    return el("p", *parts, text("."), class_="made")
