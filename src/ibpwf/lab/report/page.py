"""One self-contained HTML page from runs, comparisons and reproductions: no network, no scripts but its own."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from ibpwf import __version__
from ibpwf.errors import InputError
from ibpwf.lab.experiments.reproduction.registry import EXPERIMENTS
from ibpwf.lab.experiments.results_folder import digest, is_results_folder
from ibpwf.lab.report.experiments import (
    Comparison,
    Experiment,
    experiment_of,
    is_reproduction,
    read_comparison,
    read_comparisons,
    read_experiments,
)
from ibpwf.lab.report.records import MISFITS
from ibpwf.lab.report.rendering import need_jinja2, render
from ibpwf.lab.report.runs import Run, expand, read_result, read_run
from ibpwf.storage.files import read_json, write_text

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
    comparisons: list[Comparison] = field(default_factory=list)
    experiments: list[Experiment] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    source: str = ""  # tells whether a page made from result files is up to date
    made: dict[str, list[Section]] = field(default_factory=lambda: {"experiments": [], "comparisons": [], "runs": []})

    def leave_out(self, what: object, error: object) -> None:
        sentence = f"{what} is left out: {error}"
        if sentence not in self.problems:
            self.problems.append(sentence)

    # What cannot be drawn is left out like what cannot be read, so each is drawn as soon as it is read.

    def add_experiment(self, one: Experiment) -> None:
        title = str(one.about.title) + (" (quick)" if one.quick else "")
        html = render("experiment.html", record=one)
        self.made["experiments"].append(Section(str(one.about.name), title, html))
        self.experiments.append(one)

    def add_comparison(self, one: Comparison) -> None:
        name = f"comparison{len(self.comparisons) + 1}"
        self.made["comparisons"].append(
            Section(name, f"Comparison: {one.title}", render("comparison.html", record=one))
        )
        self.comparisons.append(one)

    def add_run(self, run: Run) -> None:
        anchor = f"run{len(self.runs) + 1}"
        inner = []
        for name, title in (RUN_SECTIONS | ({"results": "Results beside the paper's"} if run.paper else {})).items():
            try:
                html = render(f"run/{name}.html", run=run)
            except MISFITS as error:
                run.problems.append(f"section '{title}' is left out: {error}")
                continue
            inner += [Section(f"{anchor}-{name}", title, html)] if html else []
        self.made["runs"].append(Section(anchor, run.title, inner=inner))
        self.runs.append(run)
        self.problems += [f"{run.name or run.folder}: {problem}" for problem in run.problems]


def make_page(folders: Sequence[Path]) -> Page:
    """The report of run, comparison and reproduction folders (or of folders that hold them).

    What cannot be read is reported and left out; only when nothing at all can be read it is an `InputError`.
    """
    if not folders:
        raise InputError("no run folder was given; name at least one --out folder of run, compare or reproduce.")
    need_jinja2()
    page = Page()
    given = list(dict.fromkeys(Path(folder) for folder in folders))
    of_results = [folder for folder in given if is_results_folder(folder)]
    for folder in of_results:
        _take_results(page, folder)
    rest = [folder for folder in given if folder not in of_results]
    for folder in rest:
        if (folder / "comparison.json").exists():
            _take(page, folder / "comparison.json", folder)
        for name in EXPERIMENTS:
            if _lost(folder / name):
                page.leave_out(folder / name, f"it has no result.json; `ibpwf reproduce {name} --resume` makes it.")
    for found in dict.fromkeys(each for folder in rest for each in expand(folder)):
        _take(page, found, found)
    if not (page.runs or page.comparisons or page.experiments):
        raise InputError("there is nothing to report. " + " ".join(page.problems))
    order = list(EXPERIMENTS)
    page.experiments.sort(key=lambda one: order.index(one.about.name))
    page.source = "-".join(digest(folder) for folder in of_results)
    page.html = _html(page)
    return page


def _lost(folder: Path) -> bool:
    """Whether an experiment of a reproduction was begun, or has lost its result."""
    try:
        return folder.is_dir() and not (folder / "result.json").exists()
    except OSError:  # said properly when it is read
        return False


def _take(page: Page, what: Path, folder: Path) -> None:
    try:
        if what != folder:
            page.add_comparison(read_comparison(folder))
        elif is_reproduction(folder):
            page.add_experiment(experiment_of(read_json(folder / "result.json"), f"{folder.name}/result.json"))
        else:
            page.add_run(read_run(folder))
    except MISFITS as error:  # OSError: a folder that may not even be looked into
        page.leave_out(what, error)


def _take_results(page: Page, folder: Path) -> None:
    """Everything in a folder of result files."""

    def unread(path: Path, error: Exception) -> None:
        page.leave_out(path.relative_to(folder), error)

    def each(found: Iterable[Any], add: Any) -> None:
        for one in found:
            try:
                add(one)
            except MISFITS as error:
                page.leave_out(one.source, error)

    each(read_experiments(folder, unread), page.add_experiment)
    each(read_comparisons(folder, unread), page.add_comparison)
    for path in sorted(folder.glob("*.json")):
        try:
            content = read_json(path)
            if isinstance(content, dict) and "accuracy" in content:
                page.add_run(read_result(path))
        except MISFITS as error:
            unread(path, error)


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write the report of some run folders to the file `out`, whole or not at all, and return its path."""
    write_text(out, make_page(folders).html)
    return out


def _title(page: Page) -> str:
    abouts = [one.about for one in page.experiments]
    if abouts and (page.source or not page.runs):
        title = str(abouts[0].title) if len(abouts) == 1 else "The paper, reproduced"
        return title + (" (quick)" if all(one.quick for one in page.experiments) else "")
    if page.comparisons and not abouts:
        return f"Comparison: {page.comparisons[0].title}"
    return page.runs[0].title if len(page.runs) == 1 else f"{len(page.runs)} runs"


def _sections(page: Page) -> list[Section]:
    found, runs = [], page.made["runs"]
    if len(page.experiments) > 1:
        there = {one.about.name for one in page.experiments}
        waiting = [name for name in EXPERIMENTS if name not in there] if page.source else []
        html = render("experiments.html", records=page.experiments, waiting=waiting)
        found.append(Section("experiments", "The paper, reproduced", html))
    made = {section.name: section for section in page.made["experiments"]}
    found += [made[one.about.name] for one in page.experiments]
    found += page.made["comparisons"]
    if len(runs) > 1:
        found.append(Section("overview", "All runs", render("runs.html", runs=page.runs)))
    return [*runs[0].inner] if not found and len(runs) == 1 else found + runs


def _html(page: Page) -> str:
    from markupsafe import Markup

    files = resources.files("ibpwf.lab.report").joinpath("templates")
    style, script = (files.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    html = render(
        "page.html",
        title=_title(page),
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{allowed}'",
        version=__version__,
        source=page.source,
        style=Markup(style),
        script=Markup(script),
        problems=page.problems,
        sections=_sections(page),
    )
    return f"{html}\n"
