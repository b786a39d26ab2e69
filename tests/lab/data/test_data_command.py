"""`ibpwf data`: what a user at a terminal sees."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_set import CONTENT, NAME, Shelf
from typer.testing import CliRunner, Result

from ibpwf.cli.data import app
from ibpwf.errors import DataError, InputError

IMAGES = "train-images-idx3-ubyte"


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, list(arguments))


def test_list_shows_every_set_and_whether_it_is_cached(tiny, root: Path) -> None:
    tiny(Shelf())
    line = next(line for line in run("list").output.splitlines() if line.startswith(NAME))
    assert " no " in line
    run("get", NAME)
    listed = run("list")
    assert listed.exit_code == 0
    line = next(line for line in listed.output.splitlines() if line.startswith(NAME))
    assert " yes " in line
    assert "20 + 6" in line
    for name in ("mnist", "fashion-mnist", "cifar10", "digits"):
        assert name in listed.output
    assert "comes with scikit-learn" in listed.output


def test_get_says_where_the_files_are(tiny, root: Path) -> None:
    tiny(Shelf())
    result = run("get", NAME)
    assert result.exit_code == 0
    assert str(root / NAME) in result.output
    assert (root / NAME / IMAGES).read_bytes() == CONTENT[IMAGES]


def test_get_from_a_folder_and_again(tiny, tmp_path: Path, root: Path) -> None:
    shelf = Shelf()
    tiny(shelf)
    (tmp_path / "mine").mkdir()
    for name, content in CONTENT.items():
        (tmp_path / "mine" / name).write_bytes(content)
    assert run("get", NAME, "--from", str(tmp_path / "mine")).exit_code == 0
    assert shelf.asked == 0
    assert run("get", NAME, "--again").exit_code == 0
    assert shelf.asked == 1


def test_verify_prints_a_line_a_file_and_fails_on_a_wrong_one(tiny, root: Path) -> None:
    tiny(Shelf())
    run("get", NAME)
    good = run("verify", NAME)
    assert good.exit_code == 0
    assert good.output.count("ok ") == len(CONTENT)
    (root / NAME / IMAGES).write_bytes(b"wrong")
    (root / NAME / "t10k-labels-idx1-ubyte").unlink()
    bad = run("verify", NAME)
    assert bad.exit_code != 0
    assert f"WRONG    {IMAGES}" in bad.output
    assert "MISSING  t10k-labels-idx1-ubyte" in bad.output
    assert isinstance(bad.exception, DataError)
    assert f"ibpwf data get {NAME}" in str(bad.exception)
    assert run("get", NAME).exit_code == 0
    assert run("verify", NAME).exit_code == 0


def test_verify_of_a_missing_path_is_an_error(tiny, tmp_path: Path) -> None:
    tiny(Shelf())
    result = run("verify", NAME, "--from", str(tmp_path / "nowhere"))
    assert isinstance(result.exception, DataError)
    assert "no such file or folder" in str(result.exception)


def test_an_unknown_name_comes_out_as_our_error() -> None:
    result = run("get", "minst")
    assert isinstance(result.exception, InputError)
    assert "Did you mean 'mnist'" in str(result.exception)


@pytest.mark.parametrize("command", ["get", "verify"])
def test_digits_have_nothing_to_fetch_or_check(command: str) -> None:
    result = run(command, "digits")
    assert result.exit_code == 0
    assert "comes with scikit-learn" in result.output


def test_help_names_the_choices() -> None:
    for arguments in (["--help"], ["get", "--help"], ["verify", "--help"]):
        assert run(*arguments).exit_code == 0
    assert "--from" in run("get", "--help").output
    assert "fashion-mnist" in run("get", "--help").output
