"""The program: how it starts, finds commands, reads options, and ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import ibpwf
from ibpwf.cli import program
from ibpwf.cli.parsing import options_of
from processes import Finished

Command = Callable[..., Finished]


# As users start it


def test_python_dash_m_and_the_script_are_the_same_program() -> None:
    for start in ([sys.executable, "-m", "ibpwf"], [Path(sys.executable).with_name("ibpwf")]):
        done = subprocess.run([*start, "--version"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"ibpwf {ibpwf.__version__}\n", "")


def test_ctrl_c_in_a_shell_ends_a_run_with_code_130(run_words: tuple[str, ...], tmp_path: Path) -> None:
    words = [sys.executable, "-m", "ibpwf", *run_words, "--set", "epochs=400", "--out", "r"]
    process = subprocess.Popen(
        words,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test runner in the background ignores SIGINT, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    end = time.monotonic() + 240
    while not (tmp_path / "r" / "metrics.jsonl").exists():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130
    assert err.count("\n") == 1
    assert "--resume" in err


def test_help_names_every_command_argument_and_option(invoke: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    overview = invoke("--help")
    assert overview.code == 0
    assert invoke("-h") == overview
    for name, place in program.PLACES.items():
        assert re.search(rf"\n  {name} +{re.escape(place.summary)}\n", overview.out), "a summary fits its line"
        shown = invoke(*name.split(), "--help")
        assert shown.code == 0
        assert max(map(len, shown.out.splitlines())) <= 80
        for one in options_of(program.command_named(name)):
            assert one.written in shown.out
            assert one.help.split()[0] in shown.out
    assert "data fetch" in invoke("data", "--help").out


HEAVY = {"torch", "sklearn", "scipy", "numpy", "pyarrow", "matplotlib", "pandas", "jinja2", "pooch", "rich"}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--help"], ""),
        *(([*name.split(), "--help"], "") for name in ("learn", "run", "bench", "data fetch")),
        (["lern"], "Did you mean 'learn'?"),
        (["learn", "--hlp"], "Did you mean '--help'?"),
    ],
)
def test_help_and_mistyped_names_need_nothing_that_takes_long_to_import(
    words: list[str], named: str, tmp_path: Path
) -> None:
    assert named in without(HEAVY, words, tmp_path, 2 if named else 0)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["learn", "model", "nosuch.csv"], "'nosuch.csv'"),
        (["learn", "model", "here.csv", "--epochs", "3", "--set", "epochs=4"], "--set epochs"),
        (["learn", "model", "here.csv", "--device", "mps"], "'mps'"),
        (["learn", "model", "here.csv", "--recipe", "plain", "--size", "8000x8000"], "--size 8000x8000"),
        (["learn", "model", "here.csv", "--false-alarm-rate", "2"], "--false-alarm-rate is 2"),
        (["predict", "nosuch", "here.csv"], "'nosuch'"),
        (["predict", ".", "here.csv", "--posterior-samples", "1000000000"], "--posterior-samples"),
        (["inspect", "nosuch"], "'nosuch'"),
        (["export", "nosuch", "--to", "onnx"], "'nosuch'"),
        (["run", "split-mnsit"], "'split-mnist'"),
        (["data", "fetch", "mnits"], "'mnist'"),
        (["run", "split-mnist", "--method", "ibpf"], "'ibpwf'"),
        (["run", "split-mnist", "--preset", "papier"], "'papier'"),
        (["compare", "split-mnist", "--methods", "ewc,sg"], "'sg'"),
        (["report", "nosuch"], "nosuch"),
        (["bench", "--only", "nothing"], "'nothing'"),
    ],
)
def test_mistakes_are_named_before_torch_is_imported(words: list[str], named: str, tmp_path: Path) -> None:
    assert named in without(HEAVY - {"numpy", "rich"}, words, tmp_path, 2)


def without(heavy: set[str], words: list[str], tmp_path: Path, code: int) -> str:
    """Standard error of a command, which has imported none of these."""
    (tmp_path / "here.csv").write_text("x,label\n1,a\n2,b\n")
    script = f"""
import atexit, sys
atexit.register(lambda: print(*({heavy!r} & set(sys.modules)), file=open("imported", "w")))
sys.argv = ["ibpwf", *{words}]
from ibpwf.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (tmp_path / "imported").read_text().split() == []
    assert done.returncode == code
    return done.stderr


# What is typed wrong


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["run", "SPLIT-DIGITS"], "'split-digits'"),
        (["run", "split-digits", "--set", "alfa=3"], "'alpha'"),
        (["run", "split-digits", "--set", "alpha=0"], "alpha is 0"),
        (["run", "split-digits", "--set", "alpha"], "'alpha'"),
        (["run", "split-digits", "--seeds", "0"], "--seeds is 0"),
        (["run", "split-digits", "--seed", "1", "--seeds", "2"], "--seeds"),
        (["run", "split-digits", "--fallback", "splitdigits"], "'splitdigits'"),
        (["run", "split-digits", "--tasks", "0"], "--tasks is 0"),
        (["run", "split-digits", "--seed", "one"], "--seed is 'one'"),
        (["run", "split-digits", "--tasks", "2.5"], "--tasks is '2.5'"),
        (["run", "split-digits", "--validation", "nan"], "--validation is 'nan'"),
        (["run", "split-digits", "--validation", "1"], "--validation is 1"),
        (["run", "split-digits", "--sedes", "3"], "'--seeds'"),
        (["run", "split-digits", "--out"], "--out"),
        (["run", "split-digits", "--out", "--overwrite"], "--out"),
        (["run", "split-digits", "--json=yes"], "--json"),
        (["run", "split-digits", "split-mnist"], "'split-mnist'"),
        (["run"], "SCENARIO"),
        (["export", "."], "--to"),
        (["export", ".", "--to", "onxx"], "'onxx'"),
        (["data", "fetsh", "mnist"], "'data fetch'"),
        (["--versoin"], "'--version'"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_it_and_code_2(
    invoke: Command, words: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = invoke(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert named in done.err
    assert list(tmp_path.iterdir()) == []


def test_options_may_stand_anywhere_and_be_written_in_every_usual_way(
    taught: Path, invoke: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(taught)
    place = tmp_path / "a.csv"
    whole = invoke("predict", "model", "new.csv", "--task", "trees", "-o", "-").out
    assert whole.count("\n") == 61
    assert invoke("predict", "--task=trees", "model", "-o-", "--", "new.csv").out == whole
    assert invoke("predict", "model", "--task", "fruit", f"--out={place}", "new.csv", "--task", "trees").code == 0
    assert place.read_text() == whole


def test_debug_shows_the_traceback_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["--debug", "data", "fetch", "mnits"], ["data", "fetch", "mnits", "--debug"]):
        monkeypatch.setattr(sys, "argv", ["ibpwf", *words])
        with pytest.raises(ibpwf.IBPWFError, match="'mnits'"):
            program.main()


def test_an_error_of_the_system_names_the_path(invoke: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*words: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", "runs/x")

    monkeypatch.setattr("ibpwf.lab.experiments.run.run", denied)
    done = invoke("run", "split-digits")
    assert done.code == 2
    assert done.err.startswith("error: 'runs/x': Permission denied")
