"""One self-contained HTML page from runs, comparisons and reproductions: no network, no scripts but its own."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ibpwf import __version__
from ibpwf.errors import InputError, StoreError
from ibpwf.lab.experiments.reproduction.registry import EXPERIMENTS
from ibpwf.lab.report.colours import scale_css
from ibpwf.lab.report.comparison_section import comparison_section
from ibpwf.lab.report.experiment_record import (
    ComparisonRecord,
    ExperimentRecord,
    is_reproduction,
    read_comparison,
    read_experiment,
)
from ibpwf.lab.report.experiment_sections import experiment_section, overview_of
from ibpwf.lab.report.markup import EMPTY, Markup, el, join, text
from ibpwf.lab.report.reading import expand, read_run
from ibpwf.lab.report.results_folder import (
    MISFITS,
    digest,
    is_results_folder,
    read_comparisons,
    read_experiments,
    read_runs,
)
from ibpwf.lab.report.run_record import Run
from ibpwf.lab.report.sections import PAGE_SECTIONS, RUN_SECTIONS, Section
from ibpwf.storage.files import write_text


@dataclass(frozen=True)
class Page:
    """The page, what is on it, and a sentence for everything that had to be left out."""

    html: str
    runs: tuple[Run, ...]
    problems: tuple[str, ...]
    comparisons: tuple[ComparisonRecord, ...] = ()
    experiments: tuple[ExperimentRecord, ...] = ()


@dataclass
class Found:
    """Everything that could be read, with its sections where these are made at once."""

    runs: list[Run]
    comparisons: list[tuple[ComparisonRecord, Section]]
    experiments: list[tuple[ExperimentRecord, Section]]
    problems: list[str]
    source: str = ""  # what tells whether a page made from result files is up to date


def make_page(folders: Sequence[Path]) -> Page:
    """The report of run, comparison and reproduction folders (or of folders that hold them).

    What cannot be read is reported and left out; only when nothing at all can be read it is an `InputError`.
    """
    if not folders:
        raise InputError("no run folder was given; name at least one --out folder of run, compare or reproduce.")
    found = Found([], [], [], [])
    kept = [Path(folder) for folder in folders if is_results_folder(Path(folder))]
    for given in kept:
        _take_results(found, given)
    folders = [folder for folder in folders if Path(folder) not in kept]
    for given in dict.fromkeys(Path(folder) for folder in folders):
        if (given / "comparison.json").exists():
            _take_comparison(found, given)
    for given in dict.fromkeys(Path(folder) for folder in folders):
        _note_missing(found, given)
    for folder in dict.fromkeys(each for given in folders for each in expand(Path(given))):
        if is_reproduction(folder):
            _take_experiment(found, folder)
        else:
            _take_run(found, folder)
    if not (found.runs or found.comparisons or found.experiments):
        raise InputError("there is nothing to report. " + " ".join(found.problems))
    order = list(EXPERIMENTS)
    found.experiments.sort(key=lambda e: order.index(e[0].name) if e[0].name in order else len(order))
    found.source = "-".join(digest(given) for given in kept)
    return Page(
        _html(found),
        tuple(found.runs),
        tuple(found.problems),
        tuple(record for record, _ in found.comparisons),
        tuple(record for record, _ in found.experiments),
    )


def _note_missing(found: Found, folder: Path) -> None:
    """Experiments of a reproduction that were begun, or have lost their result."""
    for name in EXPERIMENTS:
        try:
            gone = (folder / name).is_dir() and not (folder / name / "result.json").exists()
        except OSError:  # said properly when it is read
            continue
        if gone:
            found.problems.append(
                f"{folder / name} is left out: it has no result.json; `ibpwf reproduce {name} --resume` makes it."
            )


def _take_run(found: Found, folder: Path) -> None:
    try:
        run = read_run(folder)
    except (StoreError, OSError) as error:  # OSError: a folder that may not even be looked into
        found.problems.append(f"{folder} is left out: {error}")
        return
    found.runs.append(run)
    found.problems += [f"{folder}: {problem}" for problem in run.problems]


def _take_results(found: Found, folder: Path) -> None:
    """Everything in a folder of result files."""

    def unread(path: Path, error: Exception) -> None:
        sentence = f"{path.relative_to(folder)} is left out: {error}"
        if sentence not in found.problems:
            found.problems.append(sentence)

    for record in read_experiments(folder, unread):
        try:
            found.experiments.append((record, experiment_section(record)))
        except MISFITS as error:
            unread(folder / record.source, error)
    for comparison in read_comparisons(folder, unread):
        found.comparisons.append((comparison, comparison_section(comparison, len(found.comparisons) + 1)))
    found.runs += read_runs(folder, unread)


def _take_experiment(found: Found, folder: Path) -> None:
    try:
        record = read_experiment(folder)
        found.experiments.append((record, experiment_section(record)))
    except MISFITS as error:
        found.problems.append(f"{folder} is left out: {error}")


def _take_comparison(found: Found, folder: Path) -> None:
    try:
        record = read_comparison(folder)
        found.comparisons.append((record, comparison_section(record, len(found.comparisons) + 1)))
    except MISFITS as error:
        found.problems.append(f"{folder}/comparison.json is left out: {error}")


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write the report of some run folders to the file `out`, whole or not at all, and return its path."""
    write_text(out, make_page(folders).html)
    return out


def _file(name: str) -> str:
    return resources.files("ibpwf.lab.report").joinpath(name).read_text(encoding="utf-8")


def _section(section: Section, anchor: str, level: int) -> Markup:
    heading = el(f"h{level}", text(section.title), id=f"{anchor}-title")
    return el("section", heading, section.body, id=anchor, aria_labelledby=f"{anchor}-title")


def _title(found: Found) -> str:
    if found.experiments and (found.source or not found.runs):
        records = [record for record, _ in found.experiments]
        title = records[0].title if len(records) == 1 else "The paper, reproduced"
        return title + (" (quick)" if all(record.quick for record in records) else "")
    if found.comparisons and not found.experiments:
        return found.comparisons[0][1].title
    return found.runs[0].title if len(found.runs) == 1 else f"{len(found.runs)} runs"


def _html(found: Found) -> str:
    runs = found.runs
    single = len(runs) == 1 and not found.comparisons and not found.experiments
    title = _title(found)
    parts = [_problems(found.problems)]
    there = [record for record, _ in found.experiments]
    waiting = [name for name in EXPERIMENTS if name not in {record.name for record in there}] if found.source else []
    overview = overview_of(there, waiting)
    sections = [overview] if overview is not None else []
    sections += [section for _, section in [*found.experiments, *found.comparisons]]
    parts += [_section(section, section.name, 2) for section in sections]
    for make_for_all in PAGE_SECTIONS:
        section = make_for_all(runs)
        if section is not None:
            parts.append(_section(section, section.name, 2))
    for i, run in enumerate(runs, start=1):
        made = [section for make in RUN_SECTIONS if (section := make(run)) is not None]
        inner = [_section(section, f"run{i}-{section.name}", 2 if single else 3) for section in made]
        heading = [] if single else [el("h2", text(run.title), id=f"run{i}-title")]
        parts.append(el("article", *heading, *inner, id=f"run{i}", class_=None if single else "run"))
    style = _file("page.css").replace("/*LIGHT*/", scale_css()).replace("/*DARK*/", scale_css(dark=True))
    script = _file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="generator", content=f"ibpwf {__version__}"),
        *([el("meta", name="ibpwf-source", content=found.source)] if found.source else []),
        el("title", text(f"{title} – ibpwf report")),
        el("style", Markup(style)),
    )
    body = el(
        "body",
        el(
            "header",
            el("p", text("ibpwf report"), class_="kicker"),
            el("h1", text(title)),
            el(
                "p",
                text("Point at, tap or tab to a figure and use the arrow keys to read its numbers."),
                class_="hint",
            ),
        ),
        el("main", *parts),
        el("footer", el("p", text(f"Written by ibpwf {__version__}. Percentages are of test examples."))),
        el("div", id="tip", role="status", aria_live="polite", hidden=True),
        el("script", Markup(script)),
    )
    return f"<!doctype html>\n{el('html', head, body, lang='en')}\n"


def _problems(problems: Sequence[str]) -> Markup:
    if not problems:
        return EMPTY
    items = [el("li", text(problem)) for problem in problems]
    heading = el("h2", text("Left out"), id="problems-title")
    return join((el("section", heading, el("ul", *items), id="problems", aria_labelledby="problems-title"),))
