"""docs/settings.md from the program: `python -m tools.settings_page docs/settings.md` (or `make docs`)."""

from __future__ import annotations

import sys

from pydantic.fields import FieldInfo

from ibpwf.settings import Factorization, Settings
from ibpwf.settings_words import limits_of, spell
from ibpwf.storage.files import write_text

HEAD = """\
# Every setting

Made from the program by `make docs`. In Python they are the fields of `ibpwf.Settings`, `Learner(net, \
Settings(epochs=20))`; a `ContinualClassifier` takes them as `settings={"ridge": 0.1}`; on the command line they are \
`--set epochs=20`. A wrong name or value is refused with what it should be. \
`Settings.replace(...)` gives a changed copy, `to_json()` and `from_json(...)` go to JSON and back.

Baselines of the laboratory have settings of their own; `ibpwf methods` lists the baselines.
"""
SIGNS = {"gt": "above {:g}", "ge": "at least {:g}", "lt": "below {:g}", "le": "at most {:g}"}


def kind(field: FieldInfo) -> str:
    """What a value must be, and between which limits."""
    found = [*field.metadata, *limits_of(field.annotation)]
    limits = [text.format(getattr(one, sign)) for one in found for sign, text in SIGNS.items() if hasattr(one, sign)]
    return ", ".join([spell(field.annotation), *dict.fromkeys(limits)])


def default(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):  # as it is given on the command line
        return str(list(value))
    return "none" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def table(names: list[str]) -> list[str]:
    lines = ["| setting | value | by default | |", "|---|---|---|---|"]
    for name in names:
        field = Settings.model_fields[name]
        lines.append(f"| `{name}` | {kind(field)} | {default(field.default)} | {field.description} |")
    return lines


def page() -> str:
    """The whole of docs/settings.md."""
    factorization = list(Factorization.model_fields)
    rest = [name for name in Settings.model_fields if name not in factorization]
    parts = [HEAD, "## How a network is factorized", "", "`factorize` takes these as arguments too.", ""]
    parts += [*table(factorization), "", "## How it is trained, and infers the task", "", *table(rest), ""]
    return "\n".join(parts)


if __name__ == "__main__":
    write_text(sys.argv[1], page())
