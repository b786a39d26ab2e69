"""The report as PDF, printed by an installed Chromium or Chrome."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from ibpwf.errors import InputError, StoreError
from ibpwf.storage.files import write_bytes

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
FLAGS = (
    "--headless",
    "--disable-gpu",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SECONDS = 120


def find_browser() -> str | None:
    """The path of an installed browser that can print, if there is one."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def write_pdf(page: Path, out: Path) -> Path:
    """Print the HTML file `page` to the PDF file `out`, whole or not at all."""
    browser = find_browser()
    if browser is None:
        raise InputError(
            f"--pdf needs Chromium or Chrome, and none is on the PATH (looked for {', '.join(BROWSERS)}). "
            f"Install one, or open {page} in a browser and print it."
        )
    with tempfile.TemporaryDirectory(prefix="ibpwf-pdf-", ignore_cleanup_errors=True) as scratch:
        printed = Path(scratch) / "report.pdf"
        command = [
            browser,
            *FLAGS,
            f"--user-data-dir={scratch}/profile",
            "--no-pdf-header-footer",
            f"--print-to-pdf={printed}",
            page.resolve().as_uri(),
        ]
        said = _run(command)
        if not printed.exists():  # in a container Chromium's sandbox cannot start; the page is our own
            said = _run([*command[:1], "--no-sandbox", *command[1:]])
        if not printed.exists() or printed.stat().st_size == 0:
            last = said.strip().splitlines()[-1:] or ["it said nothing"]
            raise StoreError(f"{browser} printed no PDF ({last[0]}). Open {page} in a browser and print it there.")
        write_bytes(out, printed.read_bytes())
    return out


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {SECONDS} s"
    except OSError as error:
        return str(error)
    return done.stderr
