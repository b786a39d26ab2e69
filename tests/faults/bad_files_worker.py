"""Makes every bad file and gives it to `ibpwf learn`, in one process with little memory; says what came of each."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import resource
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import bad_images
import bad_tables
import more_bad_files
import pytest

from ibpwf.cli import program as cli
from ibpwf.data import read_examples
from ibpwf.errors import IBPWFError

ROOM = 2 << 30
"""Bytes that reading a bad file may take beyond what the program itself has."""

PLAIN = {"label": "--label", "missing": "--missing"}
LISTS = {"ignore": "--ignore", "categories": "--categories"}


def words_for(options: dict[str, Any]) -> list[str] | None:
    """The options as the command line has them; None where it has them not."""
    words = []
    for name, value in options.items():
        if name in PLAIN:
            words += [PLAIN[name], value]
        elif name in LISTS:
            words += [word for item in value for word in (LISTS[name], item)]
        else:
            return None
    return words


def tried(path: Path, options: dict[str, Any], model: Path) -> tuple[int, str]:
    """The exit code, and what was said."""
    said = io.StringIO()
    words = words_for(options)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            if words is None:
                read_examples(path, **options)
                return 0, ""
            sys.argv = ["ibpwf", "learn", str(model), str(path), "--device", "cpu", "--epochs", "1", *words]
            cli.main()
    except SystemExit as end:
        return int(end.code or 0), said.getvalue()
    except IBPWFError as error:
        return 2, f"error: {error}\n"
    except BaseException:
        return 1, traceback.format_exc()
    return 0, said.getvalue()


def main() -> None:
    for module in (
        "torch",
        "ibpwf.cli.learn",
        "ibpwf.cli.learn_bar",
        "pyarrow.parquet",
        "PIL.Image",
        "ibpwf.estimator.files",
    ):  # none of their memory counts
        importlib.import_module(module)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
    known = {**bad_tables.BAD, **bad_images.BAD}  # tested for their words, in which Python calls options otherwise
    cases = {**{name: (make, options, "") for name, (make, options, _) in known.items()}, **more_bad_files.BAD}
    for name, (make, options, expected) in list(cases.items())[:: int(sys.argv[1])]:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "data").mkdir()
            try:
                path = make(Path(folder) / "data")
            except pytest.skip.Exception:
                continue
            model = Path(folder) / "model"
            code, said = tried(path, options, model)
            told = {"name": name, "code": code, "said": said.replace(folder, ""), "expected": expected}
            print(json.dumps({**told, "model": model.exists()}), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main()
