"""Settings are checked once, refuse what makes no sense, and are the same in Python, JSON and on a command line."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ibpwf import Patches, Settings
from ibpwf.errors import InputError
from ibpwf.lab.methods.router import RouterSettings
from ibpwf.parts import FrozenSettings, parse_assignment

POSITIVE = ("alpha", "strength_std", "learning_rate", "temperature", "inference.ridge")
POSITIVE_OR_NONE = ("clip", "temperature_start")


@pytest.mark.parametrize("name", POSITIVE + POSITIVE_OR_NONE)
@pytest.mark.parametrize("value", [0, -1])
def test_what_must_be_above_zero_is_refused_at_zero_and_below(name: str, value: int) -> None:
    with pytest.raises(InputError, match=rf"^{name} is {value}; .*above 0"):
        Settings().replace(**{name: value})


@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5])
def test_kappa_is_strictly_between_0_and_1(value: float) -> None:
    with pytest.raises(InputError, match=rf"^kappa is {value}; it is a probability strictly between 0 and 1"):
        Settings(kappa=value)


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("epochs", 0, "at least 1"),
        ("batch_size", 0, "at least 1"),
        ("max_factors", 0, "at least 1, or none"),
        ("kl_terms", 0, "at least 1 and at most 1,000, or none"),
        ("finetune_epochs", -1, "cannot be negative"),
        ("weight_decay", -1e-9, "cannot be negative"),
        ("temperature_decay", 0, "more than 0 and at most 1"),
        ("temperature_decay", 1.01, "more than 0 and at most 1"),
    ],
)
def test_a_number_out_of_range_is_named_with_its_value_and_the_remedy(name: str, value: float, remedy: str) -> None:
    with pytest.raises(InputError) as caught:
        Settings().replace(**{name: value})
    assert str(caught.value).startswith(f"{name} is {value}; ")
    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("epochs", 1.5, "a whole number"),
        ("epochs", True, "a whole number"),
        ("epochs", "ten", "a whole number"),
        ("alpha", "lots", "a number or 'auto' or a mapping from layer patterns to numbers"),
        ("alpha", math.nan, "a number or 'auto'"),
        ("learning_rate", math.inf, "a number"),
        ("learning_rate", None, "a number"),
        ("heads", "many", "'shared' or 'per-task'"),
        ("schedule", "linear", "'constant' or 'cosine'"),
        ("inference", None, "a TaskInference or its kind"),
        ("max_factors", {"head": 2.5}, "a whole number or a mapping"),
        ("alpha", {3: 2.0}, "a mapping from layer patterns"),
        ("inference.features.layers", "hidden1", "'auto' or a list of texts"),
        ("inference.features.layers", [1], "'auto' or a list of texts"),
        ("input.shape", "28", "'auto' or a list of 3 whole numbers"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_with_what_was_expected(name: str, value: object, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        Settings().replace(**{name: value})
    assert str(caught.value).startswith(f"{name} is {value!r}; expected ") or name == "inference.features.layers"
    assert expected in str(caught.value)


def test_alpha_is_checked_inside_a_mapping_too() -> None:
    with pytest.raises(InputError, match=r"alpha is -2\.0; it must be above 0"):
        Settings(alpha={"hidden*": 3.0, "head": -2.0})
    with pytest.raises(InputError, match="max_factors is 0"):
        Settings(max_factors={"head": 0})


def test_an_unknown_setting_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InputError, match=r"unknown setting 'epocs'\. Did you mean 'epochs'\?"):
        Settings().replace(epocs=3)
    with pytest.raises(InputError, match="Did you mean 'learning_rate'"):
        Settings.from_json({"learning_rat": 1e-3})


def test_settings_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValidationError):
        Settings().epochs = 3  # type: ignore[misc]


def test_none_is_a_choice_where_there_is_one_of_that_name() -> None:
    name, value = parse_assignment("augment=none")
    assert Settings().replace(**{name: value}).augment == "none"


def test_numpys_numbers_become_plain_ones() -> None:
    settings = Settings(epochs=np.int64(3), alpha=np.float32(2.5))  # type: ignore[arg-type]
    assert type(settings.epochs) is int
    assert settings.epochs == 3
    assert type(settings.alpha) is float
    assert json.loads(json.dumps(settings.to_json()))["alpha"] == 2.5


@given(
    alpha=st.one_of(
        st.just("auto"),
        st.floats(1e-6, 1e6),
        st.dictionaries(st.text(min_size=1), st.floats(1e-3, 1e3), max_size=3),
    ),
    max_factors=st.one_of(st.none(), st.integers(1, 10**6)),
    heads=st.sampled_from(["shared", "per-task"]),
    epochs=st.integers(1, 1000),
    learning_rate=st.floats(1e-8, 10),
    clip=st.one_of(st.none(), st.floats(1e-6, 1e3)),
    kappa=st.floats(0.01, 0.99),
    **{"inference.features.layers": st.one_of(st.just("auto"), st.lists(st.text(min_size=1), max_size=3).map(tuple))},
)
def test_settings_come_back_from_json_as_they_were(**values: Any) -> None:
    settings = Settings(**values)
    assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("alpha=300", "alpha", 300),
        ("learning-rate=1e-3", "learning_rate", 1e-3),
        (" kappa = 0.6", "kappa", 0.6),
        ("clip=none", "clip", None),
        ("clip=None", "clip", None),
        ("clip=null", "clip", None),
        ("heads=per-task", "heads", "per-task"),
        ('alpha={"head": 32, "*": 40}', "alpha", {"head": 32, "*": 40}),
        ('inference.features.layers=["hidden1"]', "inference.features.layers", ["hidden1"]),
        ("alpha=auto", "alpha", "auto"),
        ("note=a=b", "note", "a=b"),
    ],
)
def test_an_assignment_on_the_command_line_is_read_as_json_or_else_as_text(
    text: str, name: str, value: object
) -> None:
    assert parse_assignment(text) == (name, value)


@pytest.mark.parametrize("text", ["alpha", "=3", "", " =1"])
def test_what_is_no_assignment_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match=r"is not a setting; write --set name=value, such as --set alpha=300"):
        parse_assignment(text)


@pytest.mark.parametrize(("settings", "name"), [(Patches, "sizes"), (RouterSettings, "patch_sizes")])
def test_patches_have_one_to_four_different_sizes(settings: type[FrozenSettings], name: str) -> None:
    assert getattr(settings(), name) == (6,)
    assert getattr(settings().replace(**{name: [5, 8]}), name) == (5, 8)
    for wrong, message in (
        ([], r"sizes is \[\]; give one to 4 different sizes, such as \[5, 8\]\."),
        ([5, 5], r"sizes is \[5, 5\]; give one to 4 different sizes"),
        ([2, 3, 4, 5, 6], "give one to 4 different sizes"),
        ([5, 1], r"sizes is 1; give at least 2 and at most 32\."),
        ([33], r"sizes is 33; give at least 2 and at most 32\."),
        (6, "sizes is 6; expected a list of whole numbers"),
    ):
        with pytest.raises(InputError, match=message):
            settings(**{name: wrong})
