"""Parts from outside the package: entry points, module:Name, and names that are nearly right."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from ibpwf import registry
from ibpwf.errors import InputError
from ibpwf.registry import FEATURES, INFERENCE, METHODS, SCENARIOS, find, names

KNOWN = {"layer": 1, "random": 2}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that registers three kinds of features and one method."""
    points = [
        EntryPoint("wavelets", "json:loads", FEATURES),
        EntryPoint("layer", "json:dumps", FEATURES),
        EntryPoint("broken", "json:no_such_thing", FEATURES),
        EntryPoint("absent", "no_such_module_at_all:thing", FEATURES),
        EntryPoint("mine", "json:JSONDecoder", METHODS),
    ]
    monkeypatch.setattr(
        registry, "entry_points", lambda *, group: [point for point in points if point.group == group]
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with a module that no package has."""
    (tmp_path / "only_here.py").write_text("class Inner:\n    thing = 7\n\nvalue = 3\n")
    (tmp_path / "wrong_here.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for module in ("only_here", "wrong_here"):
        sys.modules.pop(module, None)


@pytest.mark.usefixtures("installed")
def test_ours_come_first_then_what_packages_register() -> None:
    import json

    assert names(FEATURES, KNOWN) == ["layer", "random", "absent", "broken", "wavelets"]
    assert names(METHODS, {}) == ["mine"]
    assert names(SCENARIOS, {}) == []
    assert find(FEATURES, "layer", KNOWN) == 1, "nobody can put another in the place of ours"
    assert find(FEATURES, "wavelets", KNOWN) is json.loads
    assert find(FEATURES, "wavelets", KNOWN, imports=False) is json.loads
    assert find(METHODS, "mine", {}) is json.JSONDecoder


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["broken", "absent"])
def test_an_entry_point_that_leads_nowhere_is_named_with_what_it_says(name: str) -> None:
    with pytest.raises(InputError, match=rf"'{name}' is registered as .*, which cannot be imported .*mend or remove"):
        find(FEATURES, name, KNOWN)


def test_module_and_name_are_imported_from_anywhere_and_from_the_current_folder(here: Path) -> None:
    path = list(sys.path)
    assert find(METHODS, "only_here:value", {}) == 3
    assert find(METHODS, "only_here:Inner.thing", {}) == 7
    assert find(INFERENCE, "pathlib:Path", {}) is Path
    assert sys.path == path, "the current folder is no longer looked in"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("only_here:Absent", "has no attribute 'Absent'"),
        ("not_here:Thing", "No module named 'not_here'"),
        ("wrong_here:Thing", "No module named 'a_module_that_is_not_there'"),
        (":Thing", "Empty module name"),
        ("only_here:", "has no attribute ''"),
    ],
)
def test_what_cannot_be_imported_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(
        InputError, match=f"method '{text}' cannot be imported: .*{reason}.*; write it as module:Name"
    ):
        find(METHODS, text, {})


@pytest.mark.usefixtures("here", "installed")
def test_data_never_has_a_module_imported() -> None:
    with pytest.raises(InputError, match="unknown method 'only_here:value'"):
        find(METHODS, "only_here:value", {}, imports=False)
    assert "only_here" not in sys.modules


@pytest.mark.usefixtures("installed")
def test_an_unknown_name_comes_with_the_nearest_known_one() -> None:
    with pytest.raises(InputError, match=r"unknown features 'wavelet'\. Did you mean 'wavelets'\? Known: layer"):
        find(FEATURES, "wavelet", KNOWN)
    with pytest.raises(InputError, match=r"unknown scenario 'x'\. Known: \."):
        find(SCENARIOS, "x", {})
