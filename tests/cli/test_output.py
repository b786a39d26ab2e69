"""Whatever is printed can be printed: in any encoding, to any reader, with nothing that steers the terminal."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ibpwf.cli.output import NARROWEST, Screen, json_text
from ibpwf.errors import IBPWFError, InputError, printable, unknown

HOSTILE = "\x1b[2J[red]\u202eabc\x07\udcff"
ESCAPED = r"\x1b[2J[red]\u202eabc\x07\udcff"


def shell(line: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line of a shell in which `ibpwf` is the program."""
    program = f"ibpwf() {{ '{sys.executable}' -m ibpwf \"$@\"; }}; "
    env = {**os.environ, **environment}
    words, encoding = ["bash", "-c", program + line], environment.get("PYTHONIOENCODING", "utf-8")
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, encoding=encoding, check=False)


def test_control_characters_marks_and_broken_bytes_are_shown_as_escapes() -> None:
    assert printable(HOSTILE) == ESCAPED
    assert printable("ä 😀 – \n", keep="\n") == "ä 😀 – \n"
    assert str(InputError(f"unknown '{HOSTILE}'.")) == f"unknown '{ESCAPED}'."
    assert str(IBPWFError("two\nlines")) == "two\nlines"
    assert "\n" not in str(unknown("task", "a\nb", ["c\nd"]))
    assert len(str(unknown("task", "x" * 5000, ["a"]))) < 200


def test_lines_and_cells_are_taken_as_they_are() -> None:
    printed = io.StringIO()
    screen = Screen(file=printed, width=80, force_terminal=True, color_system=None)
    screen.table(["name"], [[HOSTILE]])
    screen.say(f"{HOSTILE} :smile:")
    assert printed.getvalue().count(ESCAPED) == 2
    assert ":smile:" in printed.getvalue()
    assert not set("\x1b\x07\u202e\udcff") & set(printed.getvalue())


@pytest.mark.parametrize("columns", ["0", "1", "", "many"])
def test_a_terminal_without_columns_gets_a_table_all_the_same(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert Screen(file=io.StringIO()).width >= NARROWEST


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "ascii"])
def test_json_is_the_same_in_every_encoding(encoding: str) -> None:
    value = {"label": "ä✅", "path": "\udcff.csv"}
    written = json_text(value, encoding)
    assert json.loads(written.encode(encoding).decode(encoding)) == value


def test_json_has_no_character_that_steers_a_terminal() -> None:
    value = "".join(map(chr, range(0xA0)))
    written = json_text(value)
    assert all(character.isprintable() for character in written)
    assert json.loads(written) == value


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_a_table_can_be_printed_in_every_encoding(encoding: str, tmp_path: Path) -> None:
    done = shell("ibpwf data list", tmp_path, PYTHONIOENCODING=encoding, IBPWF_DATA=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert ("1x28x28" if encoding == "ascii" else "1×28×28") in done.stdout


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("ibpwf --help | true; exit ${PIPESTATUS[0]}", (0, 141)),
        ("(ibpwf data list; echo $? >code) | true; exit $(cat code)", (0, 141)),
        ("ibpwf --help >&-", (0,)),
        ("ibpwf --help <&- >&- 2>&-", (0,)),
        ("ibpwf inspect nosuch 2>&-", (2,)),
        ("unset HOME; ibpwf data list", (0,)),
        ("HOME=/nonexistent ibpwf data list", (0,)),
        ("TERM=dumb NO_COLOR=1 COLUMNS=0 ibpwf --help", (0,)),
    ],
)
def test_a_stream_or_a_home_that_is_not_there_is_borne(line: str, code: tuple[int, ...], tmp_path: Path) -> None:
    done = shell(line, tmp_path, IBPWF_DATA=str(tmp_path))
    assert done.returncode in code
    assert done.stderr == ""


def test_a_full_disk_behind_standard_output_is_said(tmp_path: Path) -> None:
    done = shell("ibpwf --help >/dev/full", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: No space left on device")


def test_a_removed_folder_to_be_in_is_said(tmp_path: Path) -> None:
    done = shell("mkdir gone && cd gone && rmdir ../gone && ibpwf inspect model", tmp_path)
    assert done.returncode == 2
    assert "current directory" in done.stderr
