"""`ibpwf backbones list` and `fetch`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ibpwf.backbones.catalog import BACKBONES
from processes import Finished
from tiny_backbone import FILE, NAME, Shelf, tiny_network, weights


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IBPWF_DATA", str(tmp_path / "cache"))
    monkeypatch.setitem(BACKBONES, NAME, tiny_network(Shelf()))
    return tmp_path / "cache"


def test_backbones_are_listed_fetched_and_then_in_the_cache(root: Path, invoke: Callable[..., Finished]) -> None:
    before = json.loads(invoke("backbones", "--json").out)["backbones"]
    assert {one["name"]: one["license"] for one in before} == {
        name: known.license for name, known in BACKBONES.items()
    }
    assert not any(one["cached"] for one in before)
    assert str(root / "backbones" / NAME) in invoke("backbones", "fetch", NAME).out
    assert (root / "backbones" / NAME / FILE).read_bytes() == weights()
    listed = invoke("backbones", "list").out.splitlines()
    assert " yes " in next(line for line in listed if line.startswith(NAME))


def test_a_mistyped_name_gets_a_suggestion(invoke: Callable[..., Finished]) -> None:
    done = invoke("backbones", "fetch", "minilm")
    assert done.code == 2
    assert "'minilm-l6'" in done.err
