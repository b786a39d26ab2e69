"""Fixtures: an empty cache, and the tiny network known by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibpwf.backbones.catalog import BACKBONES
from tiny_backbone import NAME, Shelf, tiny_network


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("IBPWF_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def shelf(root: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """Where the tiny network is fetched from."""
    source = Shelf()
    monkeypatch.setitem(BACKBONES, NAME, tiny_network(source))
    return source
