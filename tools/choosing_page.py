"""The tables of docs/choosing.md, made from the comparisons in docs/results: the best method of each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ibpwf.errors import InputError
from ibpwf.lab.experiments.compare import Outcome, lengths, number, rows, size
from tools.recorded_command import present_changes

BEGIN, END = "<!-- comparisons: made by `make results` -->", "<!-- end of comparisons -->"
OURS = "ibpwf"
POINT = 1.0

KINDS: dict[str, tuple[str, ...]] = {
    "IBP-WF": (OURS,),
    "IBP-WF, a Gaussian per class": ("ibpwf-class-gaussians",),
    "all data kept, trained again": ("joint",),
    "replay of kept or generated data": ("rehearsal", "gem", "vcl-coreset", "dgr", "rtf"),
    "closed form, or a model per class": ("router", "ridge", "slda", "gen-classifier"),
    "a network (or a column of one) per task": ("separate", "separate-turns", "pnn", "side-tuning"),
    "one network, held back": ("l2", "ewc", "online-ewc", "si", "mas", "lwf", "vcl"),
    "one network, nothing done": ("sgd", "adam", "adagrad"),
}
WORDS = {"task": "Task given", "class": "Task inferred"}


def _best(table: Sequence[dict[str, Any]], methods: Sequence[str]) -> dict[str, Any] | None:
    """Of some methods the one that does best with the task inferred, or given where none can infer it."""
    found = [row for row in table if row["method"] in methods and not row["error"]]

    def order(row: dict[str, Any]) -> tuple[float, float]:
        return row["class_mean"] or -1.0, row["task_mean"] or -1.0

    return max(found, key=order, default=None)


def _better(table: Sequence[dict[str, Any]], setting: str) -> str | None:
    """Which methods are better than ours by more than a point, in words."""
    key = f"{setting}_mean"
    ours = next((row[key] for row in table if row["method"] == OURS), None)
    if ours is None:
        return None
    others = [row for row in table if row[key] is not None and row[key] > ours + POINT]
    others = [row for row in others if not row["method"].startswith(OURS)]
    if not others:
        return f"{WORDS[setting]}: no method measured is better than IBP-WF ({ours:.2f}) by more than a point."
    names = ", ".join(f"{row['method']} {row[key]:.2f}" for row in sorted(others, key=lambda row: -row[key]))
    return f"{WORDS[setting]}: better than IBP-WF ({ours:.2f}) by more than a point: {names}."


def named(outcome: Outcome) -> Outcome:
    """A variant under its own name: what is said of it is not true of the method's main row."""
    return replace(outcome, method=outcome.variant or outcome.method)


def settings_line(outcomes: Sequence[Outcome]) -> str:
    """Which preset each row of a table has, and what was changed in it, by its record."""
    presets: dict[str, list[str]] = {}
    changed = []
    for outcome in outcomes:
        assert outcome.result is not None
        name = named(outcome).method
        presets.setdefault(outcome.result["preset"], []).append(name)
        changes = present_changes(outcome.result)
        changed += [f"{name} with {', '.join(changes)}"] if changes else []
    whose = {"paper": "the paper's settings, where it has the method", "default": "ours, not the paper's"}
    told = [
        f"preset `{preset}` ({whose.get(preset, 'for a first look')}) in "
        + ("every row" if len(presets) == 1 else ", ".join(names))
        for preset, names in presets.items()
    ]
    return f"Settings: {'; '.join([*told, *changed])}."


def comparison_table(scenario: str, outcomes: Sequence[Outcome]) -> str:
    """One scenario: a row per kind of method, and what is better than ours."""
    table = rows(outcomes)
    lines = [
        f"### {scenario}",
        "",
        "| | best of its kind | task given | task inferred | stored in all | training |",
        "|---|---|---:|---:|---:|---:|",
    ]
    shown = []
    for kind, methods in KINDS.items():
        row = _best(table, methods)
        if row is not None:
            shown.append(next(outcome for outcome in outcomes if named(outcome).method == row["method"]))
            given, inferred = (number(row[f"{s}_mean"], row[f"{s}_std"]) for s in ("task", "class"))
            lines.append(
                f"| {kind} | {row['method']} | {given} | {inferred} | {size(row['memory_bytes'])} "
                f"| {row['seconds']:.0f} s |"
            )
    length = lengths([named(outcome) for outcome in shown])
    told = [line for line in (_better(table, "task"), _better(table, "class"), settings_line(shown), length) if line]
    return "\n".join([*lines, "", *(f"- {line}" for line in told), ""])


def with_tables(text: str, comparisons: Mapping[str, Sequence[Outcome]]) -> str:
    """The page with its marked part replaced by the main comparisons, `compare-SCENARIO`."""
    if BEGIN not in text or END not in text:
        raise InputError(f"choosing.md has no lines '{BEGIN}' and '{END}' to put the tables between.")
    parts = []
    for name, outcomes in comparisons.items():
        first = outcomes[0].result
        if first is not None and name == f"compare-{first['scenario']}":
            parts.append(comparison_table(first["scenario"], outcomes))
    head, rest = text.split(BEGIN, 1)
    return head + BEGIN + "\n" + "\n".join(parts) + END + rest.split(END, 1)[1]
