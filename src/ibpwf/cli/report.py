"""`ibpwf report`: one self-contained HTML page (and PDF) from folders of run, compare and reproduce."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ibpwf.cli.options import AsJson
from ibpwf.cli.output import counted, print_json, say
from ibpwf.cli.parsing import argument, option
from ibpwf.errors import InputError, printable


@dataclass(kw_only=True)
class Report(AsJson):
    """Write one HTML page with the results, figures and settings of runs, comparisons and reproductions."""

    folders: tuple[Path, ...] = argument("DIR...", "Folders of run, compare or reproduce, or folders that hold them.")
    out: Path = option(Path("report.html"), "The HTML file to write.", "-o", "--out", metavar="FILE")
    pdf: bool = option(False, "Print it to a PDF next to it, too (needs Chromium).")

    def run(self) -> None:
        out = self.out
        if out.is_dir():
            raise InputError(f"--out is {out}, which is a folder; give a file, such as {out / 'report.html'}.")
        if self.pdf and out.suffix.lower() == ".pdf":
            raise InputError(f"--out is {out}; give the HTML file, --pdf writes the PDF next to it.")
        if not any(folder.is_dir() for folder in self.folders):
            named = ", ".join(map(str, self.folders))
            raise InputError(f"{named} is not a folder. Give the --out folder of `ibpwf run`.")
        from ibpwf.lab.report.page import make_page
        from ibpwf.lab.report.pdf import write_pdf
        from ibpwf.storage.files import check_writable, write_text

        check_writable(out)
        if self.pdf:
            check_writable(out.with_suffix(".pdf"))
        page = make_page(self.folders)
        for problem in page.problems:
            say(printable(f"warning: {problem}"), err=True)
        write_text(out, page.html)
        pdf = write_pdf(out, out.with_suffix(".pdf")) if self.pdf else None
        counts = {"experiment": len(page.experiments), "comparison": len(page.comparisons), "run": len(page.runs)}
        if self.json:
            print_json({"html": out, "pdf": pdf, **{f"{word}s": count for word, count in counts.items()}})
            return
        shown = ", ".join(counted(count, word) for word, count in counts.items() if count)
        say(f"Report of {shown}: {printable(str(out))}")
        if pdf is not None:
            say(printable(f"PDF: {pdf}"))
