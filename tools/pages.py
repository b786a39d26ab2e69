"""Markdown pages from the files in docs/results and nothing else.

    python -m tools.pages               # every page
    python -m tools.pages streams       # one, by the name of its template in tools/templates
    python -m tools.pages --check       # only says which pages are out of date

A template describes a page, or the part of it between `<!-- MARK: made by … -->` and `<!-- end of MARK -->`: which
fields of which file are in a table, and how they are written. In it, a line that begins with `%` is a statement, and
a field that a file doesn't have is shown as a dash by `f` and is an error if it is printed as it is.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from ibpwf.errors import InputError, run_program
from ibpwf.storage.files import read_json, write_text
from tools import measured

ROOT = Path(__file__).parents[1]
BLANK = "\0"
"""Stands for an empty line of a template, which would be lost after a statement."""


class Page(NamedTuple):
    """A file, and the mark of the part of it that is made here; without one, all of it is."""

    path: str
    mark: str | None = None
    template: str | None = None  # by its own name otherwise
    record: str | None = None  # the file that a template for several pages reads


PAGES = {
    "readme": Page("README.md", "results"),
    "results": Page("docs/results/README.md"),
    "reproduction": Page("docs/results/REPRODUCTION.md"),
    "choosing": Page("docs/choosing.md", "comparisons"),
    "class-incremental": Page("docs/class-incremental.md", "class-incremental"),
    "own-data": Page("docs/results/own-data/README.md"),
    "streams": Page("docs/streams.md", "streams"),
    "trained-networks": Page("docs/trained-networks.md", "trained networks"),
    "scaling": Page("docs/scaling.md"),
    "serving": Page("docs/serving.md", "measured"),
    "serving-load": Page("docs/results/serving/README.md"),
    "serving-faults": Page("docs/serving.md", "tally", "faults", "serving/faults.json"),
    "faults": Page("docs/reliability.md", "tally", record="reliability/faults.json"),
    "stand-ins": Page("docs/results/stand-ins-gpu/README.md"),
}


class Absent(jinja2.ChainableUndefined):
    """A field that a file doesn't have: false, and an error where it would be printed."""

    def __str__(self) -> str:
        if "inline if-expression" in (self._undefined_hint or ""):
            return ""
        self._fail_with_undefined_error()
        raise AssertionError


def templates(results: Path) -> jinja2.Environment:
    """Templates that read a folder of results."""

    def source(name: str) -> str:
        text = Path(__file__).with_name("templates").joinpath(name).read_text(encoding="utf-8")
        return re.sub(r"^$", BLANK, text, flags=re.MULTILINE)

    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(source),
        undefined=Absent,
        line_statement_prefix="%",
        trim_blocks=True,
    )

    def files(pattern: str) -> dict[str, Any]:
        return {path.stem: read_json(path) for path in sorted(results.glob(pattern))}

    def file(path: str) -> Any:
        return read_json(results / path) if (results / path).is_file() else None

    made.globals |= {"files": files, "file": file, **measured.CONSTANTS}
    made.globals |= {name: partial(function, results) for name, function in measured.READERS.items()}
    made.globals |= measured.FUNCTIONS
    made.filters |= measured.FILTERS
    return made


def rendered(name: str, results: Path) -> str:
    """The text of a page, or of its part."""
    page = PAGES[name]
    text = (
        templates(results).get_template(f"{page.template or name}.md").render(record=page.record).replace(BLANK, "")
    )
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)).strip("\n")


def replaced(text: str, mark: str, part: str) -> str:
    """A page with another part between its marks."""
    marks = re.compile(
        rf"(<!-- {re.escape(mark)}: made by `[^`]+` -->\n).*(\n<!-- end of {re.escape(mark)} -->)", re.S
    )
    if len(marks.findall(text)) != 1:
        raise InputError(f"there are no lines '<!-- {mark}: made by `…` -->' and '<!-- end of {mark} -->' once each.")
    return marks.sub(lambda found: found[1] + part + found[2], text)


def wanted(names: Sequence[str], root: Path) -> dict[Path, str]:
    """What files should hold."""
    found: dict[Path, str] = {}
    for name in names:
        page, part = PAGES[name], rendered(name, root / "docs" / "results")
        path = root / page.path
        if page.mark is not None:
            before = found[path] if path in found else path.read_text(encoding="utf-8")
            part = replaced(before, page.mark, part)
        found[path] = part.rstrip("\n") + "\n"
    return found


def main(given: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.pages", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"all by default, or some of {', '.join(PAGES)}")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is out of date")
    parser.add_argument("--root", type=Path, default=ROOT, help="of the repository")
    asked = parser.parse_args(given)
    for name in asked.pages:
        if name not in PAGES:
            parser.error(f"page is {name!r}; choose from {', '.join(PAGES)}")
    stale = {
        path: text
        for path, text in wanted(asked.pages or list(PAGES), asked.root).items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    for path, text in stale.items():
        if asked.check:
            sys.stderr.write(f"{path} doesn't agree with docs/results; run `make results`.\n")
        else:
            write_text(path, text)
    return 1 if asked.check and stale else 0


if __name__ == "__main__":
    run_program(main)
