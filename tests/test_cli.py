"""The command line: one clear sentence and exit code 2 when something is wrong, tables that fit the terminal."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ibpwf
from ibpwf.cli import program as cli
from ibpwf.cli.run_display import Display
from ibpwf.cli.screen import Screen
from ibpwf.training.callbacks import EpochEnd
from processes import Finished

Command = Callable[..., Finished]
Main = Callable[..., tuple[int, str, str]]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Main]:
    """Calls the entry point in this process: exit code, standard output, standard error."""

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ibpwf", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        code = ended.value.code
        printed = capsys.readouterr()
        return (code if isinstance(code, int) else 1 if code else 0), printed.out, printed.err

    yield call
    torch.set_flush_denormal(False)  # a run turns it on for its process, and other tests need small numbers


# As users start it


def test_python_dash_m_and_the_script_are_the_same_program() -> None:
    module = subprocess.run([sys.executable, "-m", "ibpwf", "--version"], capture_output=True, text=True, check=False)
    assert (module.returncode, module.stdout, module.stderr) == (0, f"ibpwf {ibpwf.__version__}\n", "")
    script = Path(sys.executable).with_name("ibpwf")
    typo = subprocess.run([script, "run", "split-mnsit"], capture_output=True, text=True, check=False)
    assert typo.returncode == 2
    assert typo.stdout == ""
    assert typo.stderr.startswith("error: unknown scenario 'split-mnsit'. Did you mean 'split-mnist'? Known: ")
    assert typo.stderr.count("\n") == 1


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
    assert err == "Interrupted. Finished tasks are kept in r; the same command with --resume goes on.\n"


def test_help_names_every_command_and_option(main: Main) -> None:
    code, out, _ = main("--help")
    assert code == 0
    for word in ("Usage: ibpwf", "run", "data", "--version", "--debug"):
        assert word in out
    code, out, _ = main("run", "--help")
    assert code == 0
    for option in ("method", "preset", "seed", "seeds", "tasks", "device", "set", "out", "resume", "overwrite"):
        assert f"--{option}" in out
    for option in ("fallback", "tensorboard", "json"):
        assert f"--{option}" in out
    assert "SCENARIO" in out


def test_dash_h_is_help_and_no_summary_is_cut(main: Main) -> None:
    code, out, _ = main("-h")
    assert code == 0
    assert out == main("--help")[1]
    for title, group in cli.COMMANDS.items():
        assert f"\n{title}:\n" in out
        for name, place in group.items():
            assert re.search(rf"\n  {name} +{re.escape(place.summary)}\n", out)
            assert main(name, "-h")[0] == 0


HEAVY = ("torch", "sklearn", "scipy", "pyarrow", "matplotlib", "pandas", "jinja2", "pooch")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--help"], ""),
        (["learn", "--help"], ""),
        (["learn", "model", "nosuch.csv"], "cannot read 'nosuch.csv': there is no such file or folder."),
        (["learn", "model", "here.csv", "--set", "kapa=1"], "unknown setting 'kapa'. Did you mean 'kappa'?"),
        (["learn", "model", "here.csv", "--epochs", "3", "--set", "epochs=4"], "--epochs and --set epochs were both"),
        (["learn", "model", "here.csv", "--device", "mps"], "device is 'mps'"),
        (
            ["learn", "model", "here.csv", "--recipe", "plain", "--size", "8000x8000"],
            "--size 8000x8000 would have a layer",
        ),
        (["learn", "model", "here.csv", "--false-alarm-rate", "1e-17"], "--false-alarm-rate is 1e-17"),
        (["predict", "nosuch", "here.csv"], "cannot read 'nosuch'"),
        (["predict", ".", "here.csv", "--posterior-samples", "1000000000"], "--posterior-samples is 1000000000"),
        (["evaluate", "nosuch", "here.csv"], "cannot read 'nosuch'"),
        (["inspect", "nosuch"], "cannot read 'nosuch'"),
        (["verify", "nosuch"], "cannot read 'nosuch'"),
        (["forget", "nosuch", "a"], "cannot read 'nosuch'"),
        (["export", "nosuch", "--to", "onnx"], "cannot read 'nosuch'"),
        (["lern"], "No such command 'lern'. Did you mean 'learn'?"),
        (["learn", "--hlp"], "No such option: --hlp"),
        (["run", "split-mnsit"], "unknown scenario 'split-mnsit'. Did you mean 'split-mnist'?"),
        (["run", "split-mnist", "--method", "ibpf"], "unknown method 'ibpf'. Did you mean 'ibpwf'?"),
        (["run", "split-mnist", "--preset", "papier"], "unknown preset 'papier'"),
        (["compare", "split-mnist", "--methods", "ewc,sg"], "unknown method 'sg'"),
        (["reproduce", "table9"], "unknown experiment 'table9'"),
        (["report", "nosuch"], "nosuch is not a folder"),
        (["bench", "--only", "nothing"], "unknown measurement in --only 'nothing'"),
        (["data", "get", "mnits"], "unknown data set 'mnits'. Did you mean 'mnist'?"),
    ],
)
def test_help_and_mistakes_need_nothing_that_takes_seconds_to_import(
    words: list[str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "here.csv").write_text("x,label\n1,a\n2,b\n")
    program = f"""
import atexit, sys
atexit.register(lambda: print(*[name for name in {HEAVY} if name in sys.modules], file=open("imported", "w")))
sys.argv = ["ibpwf", *{words}]
from ibpwf.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (tmp_path / "imported").read_text().split() == []
    assert done.returncode == (2 if said else 0)
    assert said in done.stderr


# What is typed wrong


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "splitmnist"], "unknown scenario 'splitmnist'. Did you mean 'split-mnist'?"),
        (["run", "SPLIT-DIGITS"], "unknown scenario 'SPLIT-DIGITS'. Did you mean 'split-digits'?"),
        (["run", "split-digits", "--method", "ibpf"], "unknown method 'ibpf'. Did you mean 'ibpwf'?"),
        (["run", "split-digits", "--preset", "fast"], "unknown preset 'fast'."),
        (["run", "split-digits", "--set", "alfa=3"], "unknown setting 'alfa'. Did you mean 'alpha'?"),
        (["run", "split-digits", "--set", "alpha=0"], "alpha is 0; it must be above 0."),
        (["run", "split-digits", "--set", "kappa=1"], "kappa is 1; it is a probability strictly between 0 and 1."),
        (["run", "split-digits", "--set", "alpha"], "'alpha' is not a setting; write --set name=value"),
        (["run", "split-digits", "--seeds", "0"], "--seeds is 0; give at least 1."),
        (["run", "split-digits", "--seed", "1", "--seeds", "2"], "--seed and --seeds were both given; choose one."),
        (["run", "split-digits", "--device", "gpu"], "device is 'gpu'; give 'auto', 'cpu' or 'cuda'."),
        (["run", "split-digits", "--fallback", "splitdigits"], "unknown scenario 'splitdigits'."),
        (["run", "split-digits", "--tasks", "0"], "tasks=0: it must be a whole number of at least 1."),
        (["data", "get", "mnits"], "unknown data set 'mnits'. Did you mean 'mnist'?"),
    ],
)
def test_a_mistake_is_one_sentence_and_code_2(
    main: Main, words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = main(*words)
    assert code == 2
    assert err.startswith(f"error: {sentence}")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["run", "split-digits", "--seed", "one"], "Invalid value for '--seed'"),
        (["run", "split-digits", "--tasks", "2.5"], "Invalid value for '--tasks'"),
        (["run", "split-digits", "--sedes", "3"], "No such option: --sedes"),
        (["run"], "Missing argument 'SCENARIO'"),
        (["run", "split-digits", "split-mnist"], "unexpected extra argument"),
        (["rum", "split-digits"], "No such command 'rum'"),
    ],
)
def test_an_option_that_does_not_exist_or_does_not_parse_exits_with_code_2(
    main: Main, words: list[str], complaint: str
) -> None:
    code, out, err = main(*words)
    assert code == 2
    assert complaint in err
    assert "Try 'ibpwf" in err
    assert out == ""


def test_debug_shows_the_traceback_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["--debug", "data", "get", "mnits"], ["data", "get", "mnits", "--debug"]):
        monkeypatch.setattr(sys, "argv", ["ibpwf", *words])
        with pytest.raises(ibpwf.IBPWFError, match="unknown data set 'mnits'"):
            cli.main()


def test_an_error_of_the_system_is_a_sentence_too(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*words: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", "runs/x")

    monkeypatch.setattr("ibpwf.lab.experiments.run.run", denied)
    code, _, err = main("run", "split-digits")
    assert code == 2
    assert err == "error: 'runs/x': Permission denied. Check the path, its rights and the disk.\n"


def test_tensorboard_that_is_not_installed_is_said_before_anything_runs(
    main: Main, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.chdir(tmp_path)
    code, _, err = main("run", "split-digits", "--tensorboard")
    assert code == 2
    assert err == "error: --tensorboard needs the tensorboard package: pip install 'ibpwf[tensorboard]'.\n"
    assert list(tmp_path.iterdir()) == []


# What is printed


def test_json_is_all_there_is_on_standard_output(
    run_words: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    done = command(*run_words, "--out", "r", "--json")
    assert done.code == 0
    assert json.loads(done.out) == json.loads((tmp_path / "r" / "result.json").read_text())
    assert "task inferred (incremental class)" in done.err


@pytest.mark.parametrize("width", [60, 80])
def test_tables_of_ten_tasks_and_two_seeds_fit_the_terminal(command: Command, tmp_path: Path, width: int) -> None:
    words = ["run", "permuted-digits", "--preset", "quick", "--seeds", "2", "--out", "r", "--set", "alpha=8"]
    words += ["--set", "epochs=1", "--set", "finetune_epochs=1", "--set", "batch_size=200"]
    done = command(*words, COLUMNS=str(width))
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in done.out
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    for number in range(10):
        streamed = [line.split() for line in lines if re.match(rf"[01] +permutation-{number} ", line)]
        assert [line[0] for line in streamed] == ["0", "1"]
        for seed, line in enumerate(streamed):
            row = result["matrix"][seed]["task"][number][: number + 1]
            assert f"{sum(row) / len(row):.2f}" in line
            assert len(line) == (9 if width == 80 else 6)
        (final,) = [line.split() for line in lines if line.startswith(f"permutation-{number} ")]
        end = [matrix["task"][-1][number] for matrix in result["matrix"]]
        assert final[2] == f"{sum(end) / 2:.2f}"
    assert any(line.startswith("task given (incremental task)") for line in lines)


def test_the_papers_numbers_stand_beside_ours(tmp_path: Path) -> None:
    from ibpwf.cli.run_display import summary

    spread = {"mean": 99.5, "std": 0.25, "per_seed": [99.25, 99.75]}
    matrix = {"task": [[99.0, None], [99.0, 98.0]], "class": [[99.0, None], [97.0, 96.0]]}
    result: dict[str, Any] = {
        "scenario": "split-mnist",
        "method": "ibpwf",
        "preset": "paper",
        "seeds": [0, 1],
        "tasks": [{"name": "[0/1]", "classes": [0, 1]}, {"name": "2/3", "classes": [2, 3]}],
        "matrix": [matrix, matrix],
        "accuracy": {"task": spread, "class": spread},
        "paper": {"task": {"mean": 99.56, "std": 0.02}, "class": None, "task-inference": None},
        "forward_transfer": None,
        "seconds": {"train": 0.0, "eval": 0.0},
        "samples_per_second": None,
        "environment": {"device": "cpu"},
        "note": "",
        **dict.fromkeys(("task_inference", "forgetting", "backward_transfer", "parameters"), spread),
    }
    printed = io.StringIO()
    summary(Screen(file=printed, width=80), result)
    lines = printed.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    row = next(line.split() for line in lines if line.startswith("task given"))
    assert row[-7:] == ["99.50", "±", "0.25", "99.56", "±", "0.02", "-0.06"]
    assert next(line.split() for line in lines if line.startswith("forward transfer"))[2] == "–"
    assert any(line.split() == ["[0/1]", "99.00", "99.00", "97.00"] for line in lines)


def drawn(display: Display) -> list[str]:
    """The bars as they stand on the terminal."""
    printed = io.StringIO()
    display.screen.file = printed
    display.screen.print(display.bar)
    return [line.rstrip() for line in printed.getvalue().splitlines() if line.strip()]


def terminal(width: int) -> Screen:
    return Screen(file=io.StringIO(), width=width, force_terminal=True, color_system=None)


@pytest.mark.parametrize(("width", "trainings"), [(80, 1), (80, 10), (60, 1), (60, 10)])
def test_the_progress_bar_is_one_line_even_with_large_numbers(width: int, trainings: int) -> None:
    display = Display(terminal(width), trainings)
    display.task_start("seed-9", "permutation-19", 160)
    display.epoch_end("seed-9", EpochEnd("a", "elbo", 1, 150, 12.3456, 12345.6, 50.0, 2100, 700, 1400, 60000))
    display.epoch_end("seed-9", EpochEnd("a", "finetune", 1, 10, 12.3456, 0.0, 50.0, 2100, 700, 1400, 60000))
    (line,) = drawn(display)
    assert len(line) <= width
    assert line.startswith("permutation-…" + (" seed-9" if trainings > 1 else ""))
    assert "epoch 2/160" in line
    assert "loss 12.3" in line
    if width == 80:
        assert "fine-tune factors 2100 (+700)" in line


def test_unit_loss_and_time_left_are_there_in_the_first_epoch() -> None:
    display = Display(terminal(80))
    display.task_start("seed-0", "a", 10)
    (line,) = drawn(display)
    assert "epoch 0/10" in line
    display.step_end("seed-0", 0.25, 0.693)
    display.step_end("seed-0", 0.5, 0.512)
    (line,) = drawn(display)
    assert "loss 0.512" in line
    assert re.search(r"\d:\d\d:\d\d$", line)


def test_seeds_that_take_turns_have_a_line_each() -> None:
    display = Display(terminal(80), trainings=2)
    for training in ("seed-0", "seed-1"):
        display.task_start(training, "a", 4)
    for epoch in (1, 2):
        for training in ("seed-0", "seed-1"):
            display.epoch_end(training, EpochEnd("a", "elbo", epoch, 4, 1.0, 2.0, 50.0, 3, 3, 0, 10))
    bars = [line.split() for line in drawn(display)]
    assert [bar[:4] for bar in bars] == [["a", "seed-0", "epoch", "2/4"], ["a", "seed-1", "epoch", "2/4"]]


# When the data cannot be had

NOTHING = {"PATH": "/none", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
NOTHING |= dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")


def test_the_fallback_runs_where_the_data_cannot_be_had(
    run_words: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    words = ["split-mnist" if word == "split-digits" else word for word in run_words]
    without = command(*words, "--out", "r", IBPWF_DATA=str(tmp_path / "data"), **NOTHING)
    assert without.code == 2
    assert without.err.startswith("error: MNIST handwritten digits (mnist) could not be had:")
    assert "ibpwf data get mnist --from PATH" in without.err
    assert "Traceback" not in without.err
    assert not (tmp_path / "r").exists()
    words += ["--out", "r", "--fallback", "split-digits"]
    done = command(*words, IBPWF_DATA=str(tmp_path / "data"), **NOTHING)
    assert done.code == 0, done.err
    assert "split-mnist cannot be had here; running split-digits instead." in done.out
    assert json.loads((tmp_path / "r" / "result.json").read_text())["scenario"] == "split-digits"
