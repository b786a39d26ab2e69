"""docs/settings.md from the program: `python -m tools.settings_page docs/settings.md` (or `make docs`)."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from pydantic.fields import FieldInfo

from ibpwf.parts import FrozenSettings, OfGroup, Part, build, kinds
from ibpwf.settings import Factorization, Settings
from ibpwf.settings_words import limits_of, spell
from ibpwf.storage.files import write_text

HEAD = """\
# Every setting

Made from the program by `make docs`. In Python they are the fields of `ibpwf.Settings`, `Learner(net, \
Settings(epochs=20))`; a `ContinualClassifier` takes them as `settings={"epochs": 20}`; on the command line they are \
`--set epochs=20`. Settings of parts are fields of the parts, `Settings(inference=Router(ridge=0.1))`; elsewhere \
they have dotted names, `--set inference=router --set inference.ridge=0.1`. A wrong name or value is \
rejected with what it should be. \
`Settings.replace(...)` gives a changed copy, `to_json()` and `from_json(...)` go to JSON and back.

Baselines of the laboratory have settings of their own; `ibpwf methods` lists the baselines.
"""
SIGNS = {"gt": "above {:g}", "ge": "at least {:g}", "lt": "below {:g}", "le": "at most {:g}"}


def kind(field: FieldInfo) -> str:
    """What a value must be, and between which limits."""
    group = next((mark.group for mark in field.metadata if isinstance(mark, OfGroup)), None)
    if group is not None:
        return f"a kind of {group}"
    found = [*field.metadata, *limits_of(field.annotation)]
    limits = [text.format(getattr(one, sign)) for one in found for sign, text in SIGNS.items() if hasattr(one, sign)]
    return ", ".join([spell(field.annotation), *dict.fromkeys(limits)])


def default(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Part):
        return value.kind_name()
    if isinstance(value, tuple):  # as it is given on the command line
        return str(list(value))
    return "none" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def lifetime(settings: type[FrozenSettings], name: str) -> str:
    if name in settings.fixed:
        return "all tasks share it"
    return "may change at any time" if name in settings.at_prediction else "may change from task to task"


def table(settings: type[FrozenSettings], names: Iterable[str], prefix: str = "") -> list[str]:
    lines = ["| setting | value | by default | | lifetime |", "|---|---|---|---|---|"]
    for name in names:
        field = settings.model_fields[name]
        shown = default(field.get_default(call_default_factory=True))
        row = (f"`{prefix}{name}`", kind(field), shown, field.description, lifetime(settings, name))
        lines.append(f"| {' | '.join(map(str, row))} |")
    return lines


def parts_of(group: str, prefix: str) -> list[str]:
    """A table for every kind of a group."""
    lines = []
    for name in kinds(group):
        found = build(group, {"kind": name} if name != "joined" else "inputs+random")
        if not type(found).__module__.startswith("ibpwf."):  # a user's own, registered in this process
            continue
        lines += [f"### `{prefix}={name}`", "", *(type(found).__doc__ or "").strip().split("\n\n")[:1], ""]
        own = [field for field in type(found).model_fields if field != "features"]
        lines += [*table(type(found), own, f"{prefix}."), ""] if own else []
    return lines


def page() -> str:
    """The whole of docs/settings.md."""
    factorization = list(Factorization.model_fields)
    rest = [name for name in Settings.model_fields if name not in factorization]
    parts = [HEAD, "## How a network is factorized", "", "`factorize` takes these as arguments too.", ""]
    parts += [*table(Settings, factorization), "", "## How it is trained, and infers the task", ""]
    parts += [*table(Settings, rest), "", "## How the task is inferred", "", *parts_of("inference", "inference")]
    parts += ["## Features", "", *parts_of("features", "inference.features")]
    parts += ["## What inputs are like", "", *parts_of("input", "input")]
    return "\n".join(parts)


if __name__ == "__main__":
    write_text(sys.argv[1], page())
