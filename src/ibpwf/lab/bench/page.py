"""The measurements as Markdown, made from bench.json and nothing else."""

from __future__ import annotations

from typing import Any

from ibpwf.errors import InputError
from ibpwf.lab.bench import NAMES


def mark(row: dict[str, Any]) -> str:
    return {None: "", True: "✅", False: "❌"}[row["met"]]


def number(value: float, unit: str) -> str:
    return f"{value:.2f}{'' if unit == '×' else ' ' + unit}"


def spread(row: dict[str, Any]) -> str:
    if row["low"] == row["high"]:
        return ""
    return f"{row['low']:.2f}–{row['high']:.2f}"


def target(row: dict[str, Any]) -> str:
    if row["limit"] is None:
        return ""
    return f"{'≥' if row['at_least'] else '≤'} {row['limit']:g}{'' if row['unit'] == '×' else ' ' + row['unit']}"


def joined(before: dict[str, Any] | None, content: dict[str, Any]) -> dict[str, Any]:
    """What was measured now, and what an earlier command measured on the same machine and was not measured again."""
    if before is None:
        return content
    if before["machine"]["words"] != content["machine"]["words"]:
        raise InputError(
            f"--out holds measurements of another machine ({before['machine']['words']}); choose another folder."
        )
    made = {entry["name"] for entry in content["measurements"] if "skipped" not in entry}
    old = [entry for entry in before["measurements"] if entry["name"] not in made and "skipped" not in entry]
    kept = {entry["name"] for entry in old}
    entries = [*old, *(entry for entry in content["measurements"] if entry["name"] not in kept)]
    order = {name: place for place, name in enumerate(NAMES)}
    profile = {"profile": before["profile"]} if "profile" in before else {}
    entries.sort(key=lambda entry: order.get(entry["name"], len(order)))
    return {**profile, **content, "measurements": entries}


def busy(content: dict[str, Any]) -> list[str]:
    """A word where other programs kept the machine busy: times on the wall are then too long."""
    load = content.get("load")
    if load is None or load < 0.5:
        return []
    return [
        f"- Other programs were running when it began (load {load:.1f}): times on the wall, such as those of "
        "`seeds`, are longer than on a quiet machine."
    ]


def markdown(content: dict[str, Any]) -> str:
    machine = content["machine"]
    lines = [
        "# Speed and memory",
        "",
        f"Made from `bench.json` beside this page, by {_commands(content)}.",
        "",
        f"- {machine['words']}",
        f"- {', '.join(f'{name} {version}' for name, version in content['versions'].items())}",
        "- Sides take turns, round by round; a ratio is the median over rounds of the ratio within one, with the "
        "middle half of them. On a CPU everything but `seeds` is processor time of one thread, so that other "
        "programs on the machine do not count.",
        *busy(content),
        "",
        "| measurement | what | median | middle half | target | |",
        "|---|---|---:|---:|---:|---|",
    ]
    notes = []
    for entry in content["measurements"]:
        if "skipped" in entry:
            lines.append(f"| {entry['name']} | {entry['summary']} | not made: {entry['skipped']} | | | |")
        for row in entry["rows"]:
            value = number(row["value"], row["unit"])
            lines.append(f"| {row['name']} | {row['what']} | {value} | {spread(row)} | {target(row)} | {mark(row)} |")
        details = dict.fromkeys(row["detail"] for row in entry["rows"] if row["detail"])
        notes += [f"- **{entry['name']}**: {'; '.join(details)}" for _ in details if details][:1]
    lines += ["", *notes, ""]
    if content.get("profile"):
        lines += [*profile_lines(content["profile"]), ""]
    return "\n".join(lines)


def _commands(content: dict[str, Any]) -> str:
    """Every command that measured something, with its commit."""
    made = [entry for entry in content["measurements"] if "skipped" not in entry] or [content]
    found = {(entry.get("command", content["command"]), entry.get("commit", content["commit"])) for entry in made}
    return ", ".join(f"`{command}` at commit {commit}" for command, commit in sorted(found))


def profile_lines(found: dict[str, Any]) -> list[str]:
    lines = ["## Where a step's time goes", "", "| part, timed alone | ms |", "|---|---:|"]
    lines += [f"| {name} | {spent:.3f} |" for name, spent in found["parts"].items()]
    lines += ["", "| operation, in the profiler | ms a step |", "|---|---:|"]
    return lines + [f"| `{name}` | {spent:.3f} |" for name, spent in found["operations"].items()]
