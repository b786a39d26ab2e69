"""One self-contained HTML page from runs, comparisons and reproductions: no network, no scripts but its own."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from ibpwf import __version__
from ibpwf.errors import InputError
from ibpwf.lab.experiments.reproduction.registry import EXPERIMENTS
from ibpwf.lab.report.colors import scale_css
from ibpwf.lab.report.experiment_record import (
    ComparisonRecord,
    ExperimentRecord,
    is_reproduction,
    read_comparison,
    read_experiment,
)
from ibpwf.lab.report.rendering import render
from ibpwf.lab.report.result_files import (
    MISFITS,
    digest,
    is_results_folder,
    read_comparisons,
    read_experiments,
    read_runs,
)
from ibpwf.lab.report.run_record import Run, expand, read_run
from ibpwf.storage.files import write_text

# In the page's order; each is templates/run/NAME.html, and left out where that makes nothing of a run.
RUN_SECTIONS = {
    "summary": "Summary",
    "results": "Results",
    "accuracy": "Accuracy after every task",
    "learning": "Learning curves",
    "factors": "Factor use",
    "scores": "Which factors each task uses",
    "uncertainty": "Uncertainty",
    "settings": "Settings and environment",
}


@dataclass(frozen=True)
class Section:
    """A part of the page: `name` is its anchor, `title` its heading; it has text, or sections inside."""

    name: str
    title: str
    html: str = ""
    inner: Sequence[Section] = ()


@dataclass
class Page:
    """The page, what is on it, and a sentence for everything that had to be left out."""

    html: str = ""
    runs: list[Run] = field(default_factory=list)
    comparisons: list[ComparisonRecord] = field(default_factory=list)
    experiments: list[ExperimentRecord] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    source: str = ""  # tells whether a page made from result files is up to date
    # By anchor. What cannot be drawn is left out like what cannot be read, so each is made as soon as it is read.
    sections: dict[str, Section] = field(default_factory=dict)

    def add_experiment(self, record: ExperimentRecord) -> None:
        title = record.about.title + (" (quick)" if record.about.quick else "")
        self.sections[record.name] = Section(record.name, title, render("experiment.html", record=record))
        self.experiments.append(record)

    def add_comparison(self, record: ComparisonRecord) -> None:
        name = f"comparison{len(self.comparisons) + 1}"
        self.sections[name] = Section(name, f"Comparison: {record.title}", render("comparison.html", record=record))
        self.comparisons.append(record)


def make_page(folders: Sequence[Path]) -> Page:
    """The report of run, comparison and reproduction folders (or of folders that hold them).

    What cannot be read is reported and left out; only when nothing at all can be read it is an `InputError`.
    """
    if not folders:
        raise InputError("no run folder was given; name at least one --out folder of run, compare or reproduce.")
    page = Page()
    given = list(dict.fromkeys(Path(folder) for folder in folders))
    of_results = [folder for folder in given if is_results_folder(folder)]
    for folder in of_results:
        _take_results(page, folder)
    rest = [folder for folder in given if folder not in of_results]
    for folder in rest:
        if (folder / "comparison.json").exists():
            _take_comparison(page, folder)
    for folder in rest:
        _note_missing(page, folder)
    for found in dict.fromkeys(each for folder in rest for each in expand(folder)):
        _take_run_or_experiment(page, found)
    if not (page.runs or page.comparisons or page.experiments):
        raise InputError("there is nothing to report. " + " ".join(page.problems))
    order = list(EXPERIMENTS)
    page.experiments.sort(key=lambda e: order.index(e.name) if e.name in order else len(order))
    page.source = "-".join(digest(folder) for folder in of_results)
    page.html = _html(page)
    return page


def _note_missing(page: Page, folder: Path) -> None:
    """Experiments of a reproduction that were begun, or have lost their result."""
    for name in EXPERIMENTS:
        try:
            gone = (folder / name).is_dir() and not (folder / name / "result.json").exists()
        except OSError:  # said properly when it is read
            continue
        if gone:
            page.problems.append(
                f"{folder / name} is left out: it has no result.json; `ibpwf reproduce {name} --resume` makes it."
            )


def _take_results(page: Page, folder: Path) -> None:
    """Everything in a folder of result files."""

    def unread(path: Path, error: Exception) -> None:
        sentence = f"{path.relative_to(folder)} is left out: {error}"
        if sentence not in page.problems:
            page.problems.append(sentence)

    for record in read_experiments(folder, unread):
        try:
            page.add_experiment(record)
        except MISFITS as error:
            unread(folder / record.source, error)
    for comparison in read_comparisons(folder, unread):
        page.add_comparison(comparison)
    page.runs += read_runs(folder, unread)


def _take_run_or_experiment(page: Page, folder: Path) -> None:
    try:
        if is_reproduction(folder):
            page.add_experiment(read_experiment(folder))
            return
        run = read_run(folder)
    except MISFITS as error:  # OSError: a folder that may not even be looked into
        page.problems.append(f"{folder} is left out: {error}")
        return
    page.runs.append(run)
    page.problems += [f"{folder}: {problem}" for problem in run.problems]


def _take_comparison(page: Page, folder: Path) -> None:
    try:
        page.add_comparison(read_comparison(folder))
    except MISFITS as error:
        page.problems.append(f"{folder}/comparison.json is left out: {error}")


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write the report of some run folders to the file `out`, whole or not at all, and return its path."""
    write_text(out, make_page(folders).html)
    return out


def _title(page: Page) -> str:
    abouts = [record.about for record in page.experiments]
    if abouts and (page.source or not page.runs):
        title = abouts[0].title if len(abouts) == 1 else "The paper, reproduced"
        return title + (" (quick)" if all(about.quick for about in abouts) else "")
    if page.comparisons and not abouts:
        return f"Comparison: {page.comparisons[0].title}"
    return page.runs[0].title if len(page.runs) == 1 else f"{len(page.runs)} runs"


def _run_sections(run: Run, anchor: str) -> list[Section]:
    titles = RUN_SECTIONS | ({"results": "Results beside the paper's"} if run.paper else {})
    made = [Section(f"{anchor}-{name}", titles[name], render(f"run/{name}.html", run=run)) for name in titles]
    return [section for section in made if section.html]


def _sections(page: Page) -> list[Section]:
    found = []
    if len(page.experiments) > 1:
        there = {record.name for record in page.experiments}
        waiting = [name for name in EXPERIMENTS if name not in there] if page.source else []
        html = render("experiments.html", records=page.experiments, waiting=waiting)
        found.append(Section("experiments", "The paper, reproduced", html))
    found += [page.sections[record.name] for record in page.experiments]
    found += [page.sections[f"comparison{i + 1}"] for i in range(len(page.comparisons))]
    if len(page.runs) > 1:
        found.append(Section("overview", "All runs", render("runs.html", runs=page.runs)))
    runs = [(f"run{i}", run) for i, run in enumerate(page.runs, start=1)]
    if not found and len(runs) == 1:
        return _run_sections(page.runs[0], "run1")
    return found + [Section(anchor, run.title, inner=_run_sections(run, anchor)) for anchor, run in runs]


def _html(page: Page) -> str:
    from markupsafe import Markup

    files = resources.files("ibpwf.lab.report").joinpath("templates")
    style, script = (files.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    style = style.replace("/*LIGHT*/", scale_css()).replace("/*DARK*/", scale_css(dark=True))
    digest_ = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    html = render(
        "page.html",
        title=_title(page),
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest_}'",
        version=__version__,
        source=page.source,
        style=Markup(style),
        script=Markup(script),
        problems=page.problems,
        sections=_sections(page),
    )
    return f"{html}\n"
