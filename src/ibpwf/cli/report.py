"""`ibpwf report`: one self-contained HTML page (and PDF) from folders of run, compare and reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ibpwf.cli.output import say
from ibpwf.errors import InputError, printable


def report_command(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Folders of run, compare or reproduce, or folders that hold them."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    pdf: Annotated[bool, typer.Option("--pdf", help="Print it to a PDF beside it too (needs Chromium).")] = False,
) -> None:
    """Write one HTML page with the results, figures and settings of runs, comparisons and reproductions."""
    if out.is_dir():
        raise InputError(f"--out is {out}, which is a folder; give the file to write, such as {out / 'report.html'}.")
    if pdf and out.suffix.lower() == ".pdf":
        raise InputError(f"--out is {out}; give the HTML file, --pdf writes the PDF beside it.")
    if not any(folder.is_dir() for folder in folders):
        named = ", ".join(map(str, folders))
        raise InputError(
            f"there is nothing to report: {named} is not a folder. Give the --out folder of `ibpwf run`."
        )
    from ibpwf.lab.report.page import make_page
    from ibpwf.lab.report.pdf import write_pdf
    from ibpwf.storage.files import check_writable, write_text

    check_writable(out)
    if pdf:
        check_writable(out.with_suffix(".pdf"))
    page = make_page(folders)
    for problem in page.problems:
        say(printable(f"warning: {problem}"), err=True)
    write_text(out, page.html)
    counts = [(len(page.experiments), "experiment"), (len(page.comparisons), "comparison"), (len(page.runs), "run")]
    shown = ", ".join(f"{count} {word}{'s' * (count != 1)}" for count, word in counts if count)
    say(f"Report of {shown}: {printable(str(out))}")
    if pdf:
        say(printable(f"PDF: {write_pdf(out, out.with_suffix('.pdf'))}"))
