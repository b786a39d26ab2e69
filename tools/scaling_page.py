"""docs/scaling.md, from the result files of benchmarks/scaling.py.

`python -m tools.scaling_page docs`. Beside every column stands the exponent b of cost ≈ a·size^b, fitted by least
squares of the logarithms to the sizes from a tenth of the largest on: what holds where it gets large.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ibpwf.storage.files import read_json, write_text
from ibpwf.storage.folder import LARGEST_MANIFEST, MOST_ENTRIES

COLUMNS = {
    "learn_seconds": ("learning a task", "s"),
    "next_to_eleventh": ("a further task ÷ the eleventh", "×"),
    "given_seconds": ("200 rows, task given", "ms"),
    "inferred_seconds": ("200 rows, task inferred", "ms"),
    "load_seconds": ("read, first answer", "ms"),
    "folder_bytes": ("folder", "MB"),
    "peak_bytes": ("peak memory", "MB"),
    "accuracy": ("right", "%"),
}
SCALES = {"s": 1.0, "ms": 1e3, "MB": 1e-6, "%": 1.0, "×": 1.0}
LIMITS = "model-format.md#what-is-checked-when-a-folder-is-read"
NO_FIT = ("accuracy", "next_to_eleventh")
REASONS = {
    "tasks": """A task is learned beside the factors that are there, most of which it reuses: what grows is the number
of factors that it chooses among, ever more slowly, and with it the posterior. With the task given, its own weights
alone are multiplied, and the columns of other tasks are not made unless they are asked for, so the number of tasks
does not matter. To infer it, a few coordinates of every task's Gaussian are looked at, which is one product for all
of them, and the rest of those that may still win. Both grow with the tasks, the latter where a thousand of them share
a small space of features, as here; but up to a thousand tasks what an answer costs anyway is a part of it, so that
the whole grows more slowly. The folder has a part a task, most of it the covariance of its features. From 100 parts
on, opening it reads the manifest and looks whether all parts are there; a task's part, and the factors of the tasks
before it, are read when it is first asked for. The line for fewer parts has all of them read and checked.""",
    "classes": """Experts are of their own task's size, so a task costs what it costs. The router's regression has one
column a class; its sums are those of its features, D²/2 numbers whatever the number of classes, and a mean per
class. To infer a class all columns are multiplied, and all experts are asked. Of 10,000 classes whose centers are
points of 64 numbers, 500 random features no longer tell all apart.""",
    "rows": """Every row is read, written to a scratch file and passed twice, so time is proportional to rows. Memory
is that of some batches, and of what is remembered of each row (its class and its place in the order of an epoch). The
model does not know how many rows there were.""",
    "parameters": """The base is multiplied in every step and is not stored again; a task's factors are as long as a
layer is wide, which is the square root of its weights.""",
}


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """Of the power law through the sizes from a tenth of the largest on; None with fewer than two."""
    late = [(s, v) for s, v in zip(sizes, values, strict=True) if s * 10.5 >= max(sizes) and v > 0]
    if len({s for s, _ in late}) < 2:
        return None
    x, y = ([math.log(pair[at]) for pair in late] for at in (0, 1))
    return statistics.linear_regression(x, y).slope


def number(value: float, unit: str) -> str:
    scaled = value * SCALES[unit]
    return f"{scaled:,.0f}" if scaled >= 100 else f"{scaled:.3g}"


def section(made: dict[str, Any]) -> list[str]:
    rows, has = made["rows"], made["environment"]
    keys = [key for key in COLUMNS if any(key in row for row in rows)]
    lines = [f"## {made['axis'].capitalize()}", "", made["what"], ""]
    lines.append(f"| {made['axis']} | " + " | ".join("{}, {}".format(*COLUMNS[key]) for key in keys) + " |")
    lines.append("|" + "---:|" * (1 + len(keys)))
    for row in rows:
        cells = [number(row[key], COLUMNS[key][1]) if key in row else "" for key in keys]
        lines.append(f"| {row['size']:,} | " + " | ".join(cells) + " |")
    sizes = [row["size"] for row in rows]
    fits = [None if key in NO_FIT else exponent(sizes, [row[key] for row in rows]) for key in keys]
    lines.append("| exponent | " + " | ".join("" if fit is None else f"{fit:.2f}" for fit in fits) + " |")
    lines += ["", REASONS[made["axis"]].replace("\n", " "), ""]
    calls = "; ".join(f"`{one['command'].strip()}` at commit {str(one['commit'])[:12]}" for one in made["commands"])
    lines.append(
        f"{calls}; {has['machine']}, {has['threads']} of {has['cores']} cores, torch {has['torch']}, Python "
        f"{has['python']}."
    )
    return [*lines, ""]


def outlook(made: dict[str, Any]) -> list[str]:
    """What the last tasks' numbers and their exponents mean for a million, said as the extrapolation that it is."""
    rows = made["rows"]
    last, sizes = rows[-1], [row["size"] for row in rows]
    each = ""
    if "manifest_bytes" in last:
        each = f"Here a task takes {last['manifest_bytes'] / last['size']:,.0f} bytes of it. "
    lines = ["## A million tasks", ""]
    lines.append(
        f"Not measured: the numbers for {last['size']:,} tasks, carried on with the exponents above, except that "
        "inferring goes on in proportion to the tasks: all are looked at, which outweighs the rest there, and the "
        "Gaussians of all are held in memory, D² numbers each. A folder takes "
        f"{MOST_ENTRIES:,} tasks and a manifest of {LARGEST_MANIFEST >> 20} MiB; with more it is not saved, and says "
        f"so ([limits]({LIMITS})). {each}The manifest names every part and is written anew with every task, and all "
        "of it is read to open the folder, so a million tasks are better ten folders or more."
    )
    reached = [size for size in (MOST_ENTRIES, 1_000_000) if size > last["size"]]
    lines += ["", "| | " + " | ".join(f"at {size:,}" for size in reached) + " |", "|---|" + "---:|" * len(reached)]
    for key in ("learn_seconds", "given_seconds", "inferred_seconds", "load_seconds", "folder_bytes"):
        fit = exponent(sizes, [row[key] for row in rows])
        words, unit = COLUMNS[key]
        if fit is not None:
            fit = max(fit, 1.0) if key == "inferred_seconds" else fit
            cells = (f"{number(last[key] * (size / last['size']) ** fit, unit)} {unit}" for size in reached)
            lines.append(f"| {words} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def big_table(made: dict[str, Any]) -> list[str]:
    """A table from disk, beside a tenth of it in memory."""
    found, steps = made["summary"], made["steps"]
    lines = [
        "## A table larger than one wants to hold",
        "",
        f"Covertype ten times with a little noise, {found['rows']:,} rows, "
        f"{number(found['parquet_bytes'], 'MB')} MB of Parquet.",
        "",
        "| | seconds | of one core | peak memory, GB |",
        "|---|---:|---:|---:|",
    ]
    for name in ("learn", "predict", "evaluate", "learn tenth in memory", "learn tenth on disk"):
        step = steps[name]
        cells = f"{step['seconds']:,.0f} | {step['cpu_seconds']:,.0f} | {step['peak_rss_gb']:.2f}"
        lines.append(f"| `{step['command']}` | {cells} |")
    lines += [
        "",
        f"Right of rows kept out of it: {found['accuracy']:.2f} %; learned from a tenth in memory "
        f"{found['accuracy_of_a_tenth_in_memory']:.2f} %, from a tenth on disk "
        f"{found['accuracy_of_a_tenth_on_disk']:.2f} %.",
    ]
    return lines


def image_files(made: dict[str, Any]) -> list[str]:
    """Folders of images beside memory."""
    share = made["summary"]["of_memory"]
    lines = ["## Image files", "", f"{made['summary']['files']:,} files, beside the same images in memory.", ""]
    lines += ["| | images a second | of those in memory |", "|---|---:|---:|"]
    for name, way in made["ways"].items():
        lines.append(f"| {name} | {way['per_second']:,.0f} | {100 * share.get(name, 1.0):.0f} % |")
    return lines


def ranks(made: dict[str, Any]) -> list[str]:
    """Several processes beside one."""
    found, has = made["summary"], made["environment"]
    where = "on one GPU" if has["device"] != "cpu" else "on the CPU"
    lines = [f"## Several processes, one task, {where}", ""]
    lines.append(
        f"Speed: {made['network']}, trained for a moment. Others used the machine too; its load was "
        f"{has['load']:.1f}."
    )
    lines += ["", "| | images a second |", "|---|---:|"]
    lines += [f"| {name} | {rate:,.0f} |" for name, rate in found["per_second"].items()]
    if "accuracy" not in found:
        return lines
    lines += [
        "",
        "Accuracy: digits of scikit-learn, 0 to 4 and 5 to 9, trained to the end with the same mini-batches; per "
        f"cent right of rows not learned from, mean of {made['seeds']} seeds and their standard deviation. Batch "
        "normalization looks at the rows of all processes; sums of parts are rounded otherwise than one sum.",
    ]
    lines += [
        "",
        f"| | 1 process | {made['processes']} processes | difference, and its standard error |",
        "|---|---:|---:|---:|",
    ]
    for name, one in found["accuracy"].items():
        cells = [plus_minus(statistics.mean(one[way]), deviation(one[way]), "") for way in ("one", "several")]
        cells.append(plus_minus(one["difference"], one["standard_error"], "+"))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def deviation(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def plus_minus(value: float, spread: float | None, sign: str) -> str:
    return f"{value:{sign}.2f}" + ("" if spread is None else f" ± {spread:.2f}")


RECORDS = {"big-table": big_table, "image-files": image_files, "ranks": ranks, "ranks-gpu": ranks}


def record(name: str, made: dict[str, Any]) -> list[str]:
    has = made["environment"]
    where = f"{has['machine']}, {has['device']}, {has['cores']} cores, torch {has['torch']}, Python {has['python']}"
    made_by = f"`{made['command'].strip()}` at commit {str(made['commit'])[:12]}; {where}."
    return [*RECORDS[name](made), "", made_by, ""]


def page(results: Path) -> str:
    lines = [
        "# How cost grows",
        "",
        "Made by `python -m tools.scaling_page docs` from [results/scaling](results/scaling). A size has a process "
        "of its own, tasks excepted, which are learned one after the other. Times are seconds of one core, on a "
        "machine that is not ours alone: answers and reading are the least of several, learning is the median of the "
        "last tasks. An exponent is good to about 0.1 or 0.2; it is fitted to the sizes from a tenth of the largest "
        "on. `make bench-scale` measures all of it anew.",
        "",
    ]
    there = {name: read_json(results / f"{name}.json") for name in REASONS if (results / f"{name}.json").is_file()}
    for made in there.values():
        lines += section(made)
    if "tasks" in there:
        lines += outlook(there["tasks"])
    for name in RECORDS:
        if (results / f"{name}.json").is_file():
            lines += record(name, read_json(results / f"{name}.json"))
    return "\n".join(lines)


def main(given: Sequence[str]) -> int:
    docs = Path(given[0])
    if not (docs / "results" / "scaling").is_dir():
        sys.stderr.write(f"error: {docs / 'results' / 'scaling'} is not there; run benchmarks/scaling.py first.\n")
        return 2
    write_text(docs / "scaling.md", page(docs / "results" / "scaling"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
