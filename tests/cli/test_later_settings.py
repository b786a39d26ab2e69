"""A setting that is asked for with a later task is refused by its name, never passed over in silence."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import pytest

from ibpwf.cli.options import flag
from ibpwf.data import ReadOptions
from ibpwf.errors import InputError
from ibpwf.estimator.files import LearnOptions, learn_file
from ibpwf.settings import Settings
from own_files import model_bytes

NAMED: dict[str, Any] = {"alpha": 3.0, "epochs": 7, "hidden": (9,), "random_state": 5, "false_alarm_rate": 0.2}


def another(name: str) -> Any:
    """A value that the setting can have, and has not by default."""
    field = Settings.model_fields[name]
    if isinstance(field.default, bool):
        return not field.default
    choices = [choice for choice in typing.get_args(field.annotation) if isinstance(choice, str)]
    if choices:
        return next(choice for choice in choices if choice != field.default)
    special = {
        "inference.features": "factors",
        "inference": "gaussian",
        "inference.features.layers": ("hidden1",),
        "kappa": 0.7,
    }
    return special.get(name, 0.5 if isinstance(field.default, float) else 3)


@pytest.mark.parametrize("name", [*NAMED, *(f"set {name}" for name in Settings.model_fields)])
def test_another_value_with_a_later_task_is_refused_by_name(name: str, here: Path) -> None:
    plain = name.removeprefix("set ")
    asked = {plain: NAMED[plain]} if plain == name else {"settings": {plain: another(plain)}}
    options = LearnOptions(ReadOptions(label="kind", naming=flag), device="cpu")
    before = model_bytes(here / "model")
    with pytest.raises(InputError, match=rf"^{flag(name) if plain == name else plain} is .*leave it out"):
        learn_file(here / "model", here / "test.csv", "more", asked, options)
    assert model_bytes(here / "model") == before
