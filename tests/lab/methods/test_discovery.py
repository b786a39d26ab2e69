"""Methods are found by name: ours, those of installed packages, and any class as `module:Name`."""

from __future__ import annotations

import tomllib
import warnings
from importlib.metadata import EntryPoint
from pathlib import Path

import last_rows
import pytest
import torch

from ibpwf import registry
from ibpwf.errors import InputError
from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.methods import method_named, methods, own_methods
from ibpwf.lab.methods.dense import DenseMethod, Problem
from ibpwf.learner import Learner
from ibpwf.method import IBPWF


def registered(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """As if a package that registers these had been installed."""
    entries = [EntryPoint(name.replace("_", "-"), value, registry.METHODS) for name, value in values.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries if group == registry.METHODS else [])


def learner(name: str, **changes: object) -> Learner:
    kind = method_named(name)
    settings = kind.settings_type(
        **{"hidden": (24,), "epochs": 10, "batch_size": 32, "learning_rate": 0.01, **changes}
    )
    return Learner(kind(Problem((64,), 10, "class"), settings, seed=3), seed=3)


def accuracy(one: Learner, digits: Scenario, task: int) -> float:
    return float((one.predict(digits[task].test.x).labels == digits[task].test.y).double().mean())


def test_pyproject_registers_every_baseline_under_its_name_in_the_order_of_the_tables() -> None:
    pyproject = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    entries = pyproject["project"]["entry-points"]["ibpwf.methods"]
    found = [(name, EntryPoint(name, value, registry.METHODS).load()) for name, value in entries.items()]
    assert found == [(name, kind) for name, kind in own_methods().items() if kind is not IBPWF]


def test_every_setting_of_every_method_is_described() -> None:
    for name, kind in own_methods().items():
        for field, info in kind.settings_type.model_fields.items():
            assert info.description, f"{field} of {name}"


def test_a_method_of_ones_own_is_named_by_module_and_class_and_learns_tasks(digits: Scenario) -> None:
    mine, plain = learner("last_rows:LastRows"), learner("adam")
    for one in (mine, plain):
        for task in digits[:2]:
            one.learn(task.train.x, task.train.y, task.name)
    assert accuracy(mine, digits, 1) > 0.9
    assert accuracy(mine, digits, 0) > 0.8
    assert accuracy(plain, digits, 0) < 0.5
    assert mine.tasks[1].training_accuracy > 95


def test_its_settings_are_checked_like_those_of_ours() -> None:
    with pytest.raises(InputError, match=r"coefficient is -1\.0; it cannot be negative\."):
        learner("last_rows:LastRows", coefficient=-1.0)


def test_a_registered_method_is_listed_found_by_its_name_stored_and_loaded(
    digits: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(monkeypatch, last_rows="last_rows:LastRows")
    assert methods()["last-rows"] is method_named("last-rows") is last_rows.LastRows
    assert list(methods()) == [*own_methods(), "last-rows"]
    one = learner("last-rows", epochs=1)
    one.learn(digits[0].train.x, digits[0].train.y)
    one.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model", device="cpu")
    assert isinstance(loaded.method, last_rows.LastRows)
    for each in (one, loaded):
        each.learn(digits[1].train.x, digits[1].train.y)
    assert torch.equal(one.logits(digits[0].test.x, 0), loaded.logits(digits[0].test.x, 0))


def test_a_package_cannot_take_the_name_of_one_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    registered(monkeypatch, ibpwf="last_rows:LastRows")
    assert method_named("ibpwf") is methods()["ibpwf"] is IBPWF


def test_a_broken_package_is_named_in_a_warning_and_takes_no_other_method_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registered(monkeypatch, broken="no_such_module:Thing", last_rows="last_rows:LastRows")
    with pytest.warns(UserWarning, match="method 'broken' is left out: .* mend or remove the package"):
        found = methods()
    assert "broken" not in found
    assert "last-rows" in found
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert method_named("adam").name == "adam"
    with pytest.raises(InputError, match="mend or remove"):
        method_named("broken")


class Nameless(DenseMethod):
    """Has all a method needs but texts about itself."""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("emc", "unknown method 'emc'.*gem"),
        ("last_rows:Nothing", "method 'last_rows:Nothing' cannot be imported"),
        ("no_such_module:Thing", "method 'no_such_module:Thing' cannot be imported"),
        ("last_rows:LastRowsSettings", "which is no method; give a class and derive it from ibpwf.lab"),
        ("test_discovery:learner", "which is no method"),
        ("test_discovery:Nameless", "has no name and no summary; give"),
        ("ibpwf.training.method:Method", "has no name and no summary and no stores"),
    ],
)
def test_what_is_no_method_is_refused_with_what_would_be(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        method_named(name)


def test_module_and_name_are_not_imported_where_the_text_comes_from_a_file() -> None:
    with pytest.raises(InputError, match="unknown method 'last_rows:LastRows'"):
        registry.find(registry.METHODS, "last_rows:LastRows", {}, imports=False)
