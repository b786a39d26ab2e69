"""The comparison as Markdown, made from comparison.json and nothing else.

`python benchmarks/avalanche/page.py FOLDER` rewrites FOLDER/README.md from FOLDER/comparison.json.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from scipy.stats import ttest_ind
from settings import WAYS, Training, avalanche_arguments

NOISE = 0.01  # a difference of means less likely than this by chance is called one
FASTER, OF_BARE = 2.0, 0.8  # what we want: times as fast as Avalanche, part of the bare loop


def select(content: dict[str, Any], who: str, method: str, way: str = "") -> list[dict[str, Any]]:
    """The runs of one column and row, by seed."""
    found = [r for r in content["runs"] if (r["who"], r["method"], r["way"]) == (who, method, way)]
    return sorted(found, key=lambda run: run["seed"])


def means(runs: list[dict[str, Any]]) -> list[float]:
    """Accuracy over all tasks after the last, a number per seed."""
    return [statistics.fmean(run["accuracy"]) for run in runs]


def accuracy(runs: list[dict[str, Any]]) -> str:
    values = means(runs)
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread}"


def chance(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> float | None:
    """How likely means so far apart are if both libraries do the same (Welch's t-test); None for too few seeds."""
    a, b = means(ours), means(theirs)
    if min(len(a), len(b)) < 2 or statistics.pstdev(a + b) == 0:
        return None
    return float(ttest_ind(a, b, equal_var=False).pvalue)


def speed(runs: list[dict[str, Any]]) -> str:
    values = [run["samples_per_second"] for run in runs]
    return f"{statistics.median(values):,.0f} ({min(values):,.0f}–{max(values):,.0f})"


def ratios(ours: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[float]:
    """How many times as fast ours is, round by round."""
    return [a["samples_per_second"] / b["samples_per_second"] for a, b in zip(ours, others, strict=True)]


def ratio(ours: list[dict[str, Any]], others: list[dict[str, Any]], wanted: float) -> str:
    values = ratios(ours, others)
    middle = statistics.median(values)
    return f"{middle:.2f} ({min(values):.2f}–{max(values):.2f}) {'✅' if middle >= wanted else '❌'}"


def accuracy_table(content: dict[str, Any]) -> list[str]:
    lines = ["| method | ours | Avalanche | difference | p | within noise |", "|---|---:|---:|---:|---:|---|"]
    for method, entry in content["entries"].items():
        ours = select(content, "ours", entry["variant_of"] or method)
        theirs = select(content, "avalanche", method, "leanest")
        if not ours:
            continue
        p = chance(ours, theirs)
        gap = statistics.fmean(means(ours)) - statistics.fmean(means(theirs))
        word = "" if p is None else "✅" if p >= NOISE else "❌"
        lines.append(
            f"| {entry['ours']} / {entry['theirs']} | {accuracy(ours)} | {accuracy(theirs)} | {gap:+.2f} "
            f"| {'–' if p is None else f'{p:.3f}'} | {word} |"
        )
    return lines


def speed_table(content: dict[str, Any]) -> list[str]:
    lines = [
        "| method | ours | Avalanche, as documented | ratio | Avalanche, leanest | ratio |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for method in content["entries"]:
        ours = select(content, "ours", method)
        documented, leanest = (select(content, "avalanche", method, way) for way in WAYS)
        if ours:
            lines.append(
                f"| {method} | {speed(ours)} | {speed(documented)} | {ratio(ours, documented, FASTER)} "
                f"| {speed(leanest)} | {ratio(ours, leanest, FASTER)} |"
            )
    bare = select(content, "bare", "adam")
    if bare:
        ours, leanest = select(content, "ours", "adam"), select(content, "avalanche", "adam", "leanest")
        limit = statistics.median(ratios(bare, leanest))
        lines += [
            "",
            f"Bare loop: {speed(bare)} samples/s. `adam` ours / bare: **{ratio(ours, bare, OF_BARE)}**. The bare "
            f"loop is itself {limit:.2f} times as fast as the leanest Naive of Avalanche, so that no loop in "
            "PyTorch can be much faster than that: the time goes into matrix products.",
        ]
    return lines


def settings_list(content: dict[str, Any]) -> list[str]:
    given = content["training"]
    training = Training(**{**given, "hidden": tuple(given["hidden"])})
    lines = []
    for method, entry in content["entries"].items():
        ours = ", ".join(f"{name} {value:g}" for name, value in entry["settings"].items()) or "no settings of its own"
        theirs = ", ".join(f"{name} {value:g}" for name, value in avalanche_arguments(method, training).items())
        theirs = f"{entry['theirs']}: {theirs}" if theirs else entry["theirs"]
        lines.append(
            f"- **{method}** — ours `{entry['ours']}`: {ours}. Theirs {theirs}. Conversion: {entry['mapping']}. "
            f"Difference left: {entry['difference'].removesuffix('.')}."
        )
    return lines


def markdown(content: dict[str, Any]) -> str:
    training, machine = content["training"], content["machine"]
    hidden = "-".join(map(str, training["hidden"]))
    versions = "; ".join(
        f"{who}: {', '.join(f'{name} {version}' for name, version in found.items())}"
        for who, found in content["versions"].items()
    )
    return "\n".join(
        [
            "# ibpwf and Avalanche side by side",
            "",
            "Made by `benchmarks/avalanche/compare.py` from `comparison.json` beside this page. Split MNIST, five "
            f"tasks of two digits, task given (a head per task); perceptron 784-{hidden}-10, Adam at rate "
            f"{training['learning_rate']:g}, batches of {training['batch_size']}, epochs a task: "
            f"{training['epochs']}.",
            "",
            f"- Command: `{content['command']}`",
            f"- Commit {content['commit']}; seeds {', '.join(map(str, content['seeds']))}",
            f"- {machine['processor']}, {machine['cores']} cores; threads of every program: {content['threads']}. "
            "Other programs ran on the same machine; ours, theirs and the bare loop take turns within every round, "
            "and ratios are of runs in the same round.",
            f"- {versions}",
            "",
            "## Accuracy",
            "",
            "Percent right over all five tasks after the last, mean ± standard deviation over seeds. p is how likely "
            f"means so far apart are by chance (Welch's t-test); below {NOISE} is not noise.",
            "",
            *accuracy_table(content),
            "",
            "## Training speed",
            "",
            "New examples trained on per second of wall time, all a task needs included (importances, memories), "
            "no evaluation: median (lowest–highest) over rounds. Ours learns tensors. Avalanche is used in two "
            "ways: as its documentation shows (its `SplitMNIST`, torch's default Adam, its default metrics and "
            "progress display), and with all of that left out (tensors in memory, no metrics) and torch's fused "
            f"Adam. ✅ is at least {FASTER:g} times as fast as Avalanche, at least {OF_BARE:.0%} of the bare loop.",
            "",
            *speed_table(content),
            "",
            "## Settings, and what remains different",
            "",
            "Common to all: the same images (mean and deviation of MNIST's pixels taken out), tasks in the order of "
            "the digits, torch's own initialisation, a fresh Adam for every task, a rest smaller than a batch left "
            "out.",
            "",
            *settings_list(content),
            "",
        ]
    )


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        sys.stdout.write(__doc__ or "")
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    folder = Path(sys.argv[1])
    source = folder / "comparison.json"
    if not source.is_file():
        sys.stderr.write(f"error: {source} is not there; compare.py writes it.\n")
        return 2
    content = json.loads(source.read_text(encoding="utf-8"))
    (folder / "README.md").write_text(markdown(content), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
