"""Templates to text. Everything a template writes is escaped and free of characters that HTML and XML forbid."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from ibpwf.errors import InputError, StoreError
from ibpwf.lab.experiments.compare import size
from ibpwf.lab.experiments.paper import tolerance
from ibpwf.lab.report import charts, experiments
from ibpwf.lab.report.drawing import clean, tick_label

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

METHOD_NAMES = {"ibpwf": "IBP-WF"}


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def short_commit(commit: str) -> str:
    """Ten digits, and whether there were changes."""
    return commit[:10] + ("-dirty" if commit.endswith("-dirty") else "")


def need_jinja2() -> None:
    """Refuse now what could not be reported at its end."""
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise InputError("the report needs jinja2; install it with `pip install 'ibpwf[lab]'`.") from None


@cache
def environment() -> Environment:
    need_jinja2()
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("ibpwf.lab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if isinstance(value, str) and not hasattr(value, "__html__") else value,
    )
    made.filters |= {
        "form": format,
        "exactly": repr,
        "plural": plural,
        "short_commit": short_commit,
        "bytes": size,
        "tick": tick_label,
        "count_form": lambda value: f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}",
        "json": lambda value: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),
    }
    made.globals |= {
        "METHOD_NAMES": METHOD_NAMES,
        "tolerance": tolerance,
        "charts": charts,
        "experiments": experiments,
    }
    return made


def render(template: str, **values: Any) -> Markup:
    """What a template makes of some values, as text that other templates take for markup."""
    from jinja2 import TemplateError
    from markupsafe import Markup

    try:
        return Markup(environment().get_template(template).render(**values).strip())
    except TemplateError as error:
        raise StoreError(f"{error}.") from error
