"""One self-contained HTML page from run folders: no network, no fonts, no scripts but its own."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ibpwf import __version__, store
from ibpwf.errors import InputError, StoreError
from ibpwf.report.colours import scale_css
from ibpwf.report.markup import EMPTY, Markup, el, join, text
from ibpwf.report.reading import expand, read_run
from ibpwf.report.run_record import Run
from ibpwf.report.sections import PAGE_SECTIONS, RUN_SECTIONS, Section


@dataclass(frozen=True)
class Page:
    """The page, the runs on it, and a sentence for everything that had to be left out."""

    html: str
    runs: tuple[Run, ...]
    problems: tuple[str, ...]


def make_page(folders: Sequence[Path]) -> Page:
    """The report of some run folders (or of folders that hold run folders).

    What cannot be read is reported and left out; only when nothing at all can be read it is an `InputError`.
    """
    if not folders:
        raise InputError("no run folder was given; name at least one --out folder of `ibpwf run`.")
    runs, problems = [], []
    for folder in dict.fromkeys(each for given in folders for each in expand(Path(given))):
        try:
            run = read_run(folder)
        except (StoreError, OSError) as error:  # OSError: a folder that may not even be looked into
            problems.append(f"{folder} is left out: {error}")
            continue
        runs.append(run)
        problems += [f"{folder}: {problem}" for problem in run.problems]
    if not runs:
        raise InputError("there is nothing to report. " + " ".join(problems))
    return Page(_html(runs, problems), tuple(runs), tuple(problems))


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write the report of some run folders to the file `out`, whole or not at all, and return its path."""
    store.write_text(out, make_page(folders).html)
    return out


def _file(name: str) -> str:
    return resources.files("ibpwf.report").joinpath(name).read_text(encoding="utf-8")


def _section(section: Section, anchor: str, level: int) -> Markup:
    heading = el(f"h{level}", text(section.title), id=f"{anchor}-title")
    return el("section", heading, section.body, id=anchor, aria_labelledby=f"{anchor}-title")


def _html(runs: Sequence[Run], problems: Sequence[str]) -> str:
    single = len(runs) == 1
    title = runs[0].title if single else f"{len(runs)} runs"
    parts = [_problems(problems)]
    for make_for_all in PAGE_SECTIONS:
        section = make_for_all(runs)
        if section is not None:
            parts.append(_section(section, section.name, 2))
    for i, run in enumerate(runs, start=1):
        found = [section for make in RUN_SECTIONS if (section := make(run)) is not None]
        inner = [_section(section, f"run{i}-{section.name}", 2 if single else 3) for section in found]
        heading = [] if single else [el("h2", text(run.title), id=f"run{i}-title")]
        parts.append(el("article", *heading, *inner, id=f"run{i}", class_=None if single else "run"))
    style = _file("page.css").replace("/*LIGHT*/", scale_css()).replace("/*DARK*/", scale_css(dark=True))
    script = _file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="generator", content=f"ibpwf {__version__}"),
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
