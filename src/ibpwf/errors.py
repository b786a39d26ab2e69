"""The errors a user can meet. Each message names the field, the value and the remedy."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn


def printable(text: str, keep: str = "") -> str:
    """Text of unknown origin as it can be shown: what would steer a terminal, hide or break a line, and bytes of a
    file name that are no UTF-8, as escapes such as \\x1b; but for the characters in `keep`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in text)


class IBPWFError(Exception):
    """Base of every error this library raises on purpose; the command line exits with code 2.

    A message may hold names and paths of any origin, and can be shown all the same. A `remedy` that is given apart
    from the `problem` can be put in other words by who knows better what was asked.
    """

    def __init__(self, problem: str = "", *, remedy: str = "") -> None:
        problem = printable(problem, keep="\n")
        super().__init__(f"{problem} {remedy}" if remedy else problem)
        self.problem, self.remedy = problem, remedy


class InputError(IBPWFError, ValueError):
    """Data, a setting or a name given by the user does not fit."""


class BusyError(InputError):
    """Another change of the same learner or classifier is under way; try again when it has ended."""


class DataError(IBPWFError):
    """A data set could not be had, or what was had is not what it should be."""


class StoreError(IBPWFError):
    """A file or folder of ours cannot be read or written."""


class TrainingError(IBPWFError):
    """Training had to stop; what was learnt before is kept."""


LONGEST = 80
"""Characters of a mistyped name that are repeated to who typed it."""


MOST_NAMED, NEAREST = 12, 5
"""So many known names are all named beside an unknown one; of more, only the nearest."""


def unknown(kind: str, given: str, known: Iterable[str]) -> InputError:
    """An `InputError` for an unknown name, with the nearest known one suggested and others named."""
    names = [printable(name) for name in known]
    given = printable(str(given))
    given = given if len(given) <= LONGEST else given[: LONGEST - 1] + "…"
    by_lower = {name.lower(): name for name in reversed(names)}
    near = difflib.get_close_matches(given.lower(), by_lower, n=1, cutoff=0.5)
    hint = f" Did you mean '{by_lower[near[0]]}'?" if near else ""
    if len(names) <= MOST_NAMED:
        return InputError(f"unknown {kind} '{given}'.{hint} Known: {', '.join(names)}.")
    near = difflib.get_close_matches(given.lower(), by_lower, n=NEAREST, cutoff=0)
    return InputError(f"unknown {kind} '{given}'.{hint} Nearest: {', '.join(by_lower[name] for name in near)}.")


def run_program(main: Callable[[list[str]], int]) -> NoReturn:
    """Run a module as a program: exit with what `main` returns, or with one line and code 2 for an error of ours."""
    try:
        sys.exit(main(sys.argv[1:]))
    except IBPWFError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
