"""`ibpwf verify`: every file of a model folder checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ibpwf.cli.options import AsJson, OfModel
from ibpwf.cli.output import counted, print_json, say, size
from ibpwf.errors import printable

if TYPE_CHECKING:
    from ibpwf.storage.folder import Problem

CORRUPT = 1
"""The exit code for a folder that is corrupt or has leftovers; 2 is every command's for an error."""


@dataclass(kw_only=True)
class Verify(OfModel, AsJson):
    """Check every file of a model folder against its digest, and that the files fit together.

    Exit code 0: intact, 1: corrupt, or an interrupted save left files in it, 2: cannot be checked.
    """

    def run(self) -> int:
        from ibpwf.storage.folder import open_folder
        from ibpwf.storage.model_folder import verify_model

        if not self.model.is_dir():
            open_folder(self.model)  # says so
        checked = verify_model(self.model)
        if not checked.problems:
            checked = replace(checked, problems=content_problems(self.model))
        if self.json:
            problems = [problem._asdict() for problem in checked.problems]
            found = {"model": self.model, "whole": not problems, "problems": problems, "foreign": checked.foreign}
            print_json({**found, "leftovers": checked.leftovers, "files": checked.files, "bytes": checked.bytes})
        else:
            for problem in checked.problems:
                say(printable(f"{problem.kind}: {problem.file}: {problem.message}"))
            for name in checked.foreign:
                say(f"foreign: {printable(name)}: not part of the model; it is never read.")
            for name in checked.leftovers:
                say(f"leftover: {printable(name)}: from a save that is running or was killed; may hold deleted data.")
            model = printable(str(self.model))
            if checked.problems:
                say(f"{model} is corrupt: {counted(len(checked.problems), 'problem')}.")
            else:
                say(f"{model} is intact: {counted(checked.files, 'file')}, {size(checked.bytes)}.")
            if checked.leftovers:
                left = counted(len(checked.leftovers), "leftover file")
                say(f"It has {left}. The next command that changes the model (learn, forget, watch) removes them.")
        return CORRUPT if checked.problems or checked.leftovers else 0


def content_problems(model: Path) -> list[Problem]:
    """Whether what the files hold fits together, seen by loading it; not where that takes a network or parts of the
    user's own."""
    from ibpwf.errors import IBPWFError, StoreError
    from ibpwf.learner import load
    from ibpwf.storage.folder import MANIFEST, Problem
    from ibpwf.storage.network_json import NeedsParts
    from ibpwf.storage.tensor_file import everything_now

    try:
        with everything_now():
            load(model, device="cpu")
    except NeedsParts:
        pass
    except StoreError as error:
        return [Problem(MANIFEST, str(error))]
    except IBPWFError:  # of a part that this installation lacks
        pass
    return []
