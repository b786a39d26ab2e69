"""`ibpwf backbones`: what a user at a terminal sees."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ibpwf.backbones.catalog import BACKBONES
from ibpwf.cli.backbones import app
from tiny_backbone import FILE, NAME, Shelf, tiny_network, weights


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IBPWF_DATA", str(tmp_path / "cache"))
    monkeypatch.setitem(BACKBONES, NAME, tiny_network(Shelf()))
    return tmp_path / "cache"


def run(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, list(words))


def test_all_networks_are_listed_with_license_and_whether_they_are_there(root: Path) -> None:
    before = run().output
    for name, known in BACKBONES.items():
        line = next(line for line in before.splitlines() if line.startswith(name))
        assert " no " in line
        assert known.license in line
    assert run("fetch", NAME).exit_code == 0
    after = run("list").output
    assert " yes " in next(line for line in after.splitlines() if line.startswith(NAME))
    assert str(root) in after


def test_fetch_says_where_the_files_are(root: Path) -> None:
    told = run("fetch", NAME).output
    assert str(root / "backbones" / NAME) in told
    assert "digests checked" in told
    assert (root / "backbones" / NAME / FILE).read_bytes() == weights()


def test_a_mistyped_name_is_one_sentence(command) -> None:
    done = command("backbones", "fetch", "minilm")
    assert done.code == 2
    assert "unknown backbone 'minilm'. Did you mean 'minilm-l6'?" in done.err
