"""Command lines made at random from the real commands and options, with hostile values; run in a child process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

SECONDS, MEMORY = 120, 8 << 30
"""What one command line may take: time, and memory beyond what the process has."""

NUMBERS = ["0", "1", "-1", "2.5", "nan", "inf", "-inf", "1e308", "1e-308", "1e-17", "99999999999999999999", "0x10"]
TEXTS = [
    *("", " ", "a", "ä😀", "\x1b[31mred\x1b[0m", "[red]x[/red]", "a\nb", "a\tb", "\x07", "\u202eabc", "x" * 5000),
    *("--help", "-", "--", "-o", "=", "a=b", "../../etc", "$(touch outside)", "; touch outside", "%s%n", "{0}", "\\"),
    *(
        "None",
        "null",
        "true",
        "[]",
        "{}",
        "os:system",
        "no.such:Thing",
        ":",
        "x:",
        ":x",
        "json:loads",
        "\udcff\udc80",
    ),
]
SETTINGS = [
    *(
        "alpha",
        "epochs",
        "kappa",
        "clip",
        "inference.ridge",
        "inference.features",
        "inference",
        "inference.features.width",
        "max_factors",
    ),
    *("heads", "init", "temperature", "kl_terms", "optimizer", "precision", "augment"),
    *(
        "inference.features.layers",
        "learning_rate",
        "strength_std",
        "weight_decay",
        "schedule",
        "batch_size",
        "nonsense",
    ),
]
KNOWN = {
    "SCENARIO": ["split-digits", "permuted-digits", "split-mnist", "split-digit"],
    "--method": ["ibpwf", "sgd", "ewc", "slda"],
    "--methods": ["sgd", "sgd,slda", "all,sgd", ","],
    "--preset": ["quick", "default", "none"],
    "--to": ["onnx", "pt2", "safetensors", "exe"],
    "--device": ["cpu", "auto", "cuda", "cuda:7", "mps", "xpu", "meta", "cpu:3", "cuda:-1"],
    "--size": ["2x2", "8000x8000", "0x0", "1x99999", "-1x3", "2x2x2"],
    "--channels": ["1", "3", "2"],
    "--hidden": ["4", "4,4", "1000000", "0", "4,,4", ","],
    "--budget": ["quick", "tiny"],
    "--network": ["mlp", "mlp;hidden=[4]", "resnet;depth=8", "mlp;hidden=[1000000,1000000]", "mlp;;", "vit_tiny;x=1"],
    "--missing": ["error", "mean", "median"],
    "--only": ["step", "nothing"],
}
READ, WRITTEN = ("MODEL", "DATA", "DIR...", "--from"), ("--out", "-o", "--runs")
RIGHT = {
    "MODEL": ["model"],
    "DATA": ["a.csv", "b.csv", "bytes-\udcff.csv"],
    "TASK": ["a"],
    "SCENARIO": ["split-digits"],
}
NEVER_ALONE = ("run", "compare", "reproduce", "bench", "data fetch")
"""Commands that take minutes, or the network, unless something is wrong with the request: that is seen to."""


def places(folder: Path) -> list[str]:
    """Paths of every kind; none leads out of the folder."""
    (folder / "empty").write_bytes(b"")
    (folder / "noise.csv").write_bytes(random.Random(0).randbytes(500))
    (folder / "a folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    (folder / "model.txt").write_text("a file")
    Path(os.fsdecode(os.fsencode(folder) + b"/bytes-\xff.csv")).write_text("x,z,label\n1,2,a0\n3,4,a1\n")
    names = ["a.csv", "b.csv", "model", "empty", "noise.csv", "a folder", "pipe", "dangling", "loop", "model.txt"]
    names += [
        "nosuch",
        "nosuch/deeper",
        "model/manifest.json",
        "a.csv/x",
        ".",
        "model/",
        "new",
        "out.csv",
        "out.json",
    ]
    return [*names, "out.parquet", "bytes-\udcff.csv", "\x1b[2J.csv", "y" * 300, "a\0b"]


def tree() -> dict[str, tuple[list[str], list[tuple[str, bool]]]]:
    """Every command of the program by its words: its arguments, and its options with whether they take a value."""
    from ibpwf.cli.parsing import options_of
    from ibpwf.cli.program import PLACES, command_named

    found = {}
    for name in PLACES:
        options = options_of(command_named(name))
        arguments = [one.metavar for one in options if one.place]
        found[name] = (
            arguments,
            [(flag, one.kind is not bool) for one in options for flag in (*one.on, *one.off) if not one.place],
        )
    return found


def value(chance: random.Random, name: str, paths: list[str]) -> str:
    """Something for an option or argument: often of the right kind, often not."""
    if name == "--set":
        raw = chance.choice([*NUMBERS, *TEXTS, "gaussian", "layer", "none", "[1,2]", '{"hidden1": 4}'])
        return f"{chance.choice(SETTINGS)}={raw}"
    if name in KNOWN and chance.random() < 0.7:
        return chance.choice(KNOWN[name])
    if name in ("MODEL", "TASK") and chance.random() < 0.5:
        return {"MODEL": "model", "TASK": "a"}[name]
    if name in READ or name in WRITTEN:
        known = [path for path in paths if name in READ or not path.startswith("model")]
        inside = [text for text in TEXTS if ".." not in text]
        return chance.choice(known) if chance.random() < 0.9 else chance.choice(inside)
    return chance.choice([*NUMBERS, *TEXTS])


def line(chance: random.Random, commands: dict[str, Any], paths: list[str]) -> list[str]:
    """One command line: half of them right but for some options, so that they get far."""
    name = chance.choice([*commands, *["learn"] * 6, "run", "run", "predict", "predict", "evaluate", "export"])
    arguments, known = commands[name]
    right = chance.random() < 0.5
    words = name.split()
    for argument in arguments:
        if right and argument in RIGHT:
            words.append(chance.choice(RIGHT[argument]))
        elif chance.random() < 0.95:
            words.append(value(chance, argument, paths))
    if name == "learn" and right:
        words[1] = chance.choice(["model", f"new-{chance.random()}"])
    for option, takes in chance.sample(known, min(len(known), chance.randint(0, 2 if right else 4))):
        words += [option, value(chance, option, paths)] if takes else [option]
    if name == "learn":
        quick = [] if "model" in words else ["--epochs", "1", "--set", "finetune_epochs=1", "--hidden", "4"]
        words += quick if right else ["--epochs", "1"]
    elif name == "run" and right and "--seeds" not in words:
        words[1] = "split-digits"
        words += ["--tasks", "2", "--examples", "3", "--set", "epochs=1", "--set", "finetune_epochs=1", "--overwrite"]
    elif name in NEVER_ALONE:
        words += chance.choice([["--device", "mps"], ["--nonsense"], ["--only", "nothing"], ["one", "too", "many"]])
    return words


class TooLong(BaseException):
    """The time is over."""


def run(words: list[str]) -> tuple[int, str, str, str]:
    """Run one line in this process: exit code, output, error, and the traceback of what should not have been."""
    from ibpwf.cli import program as cli

    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    before, sys.argv = sys.argv, ["ibpwf", *words]
    failure, code = "", 0

    def over(*_: object) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, over)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            cli.main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except TooLong:
        failure = f"took longer than {SECONDS} seconds"
    except BaseException:  # whatever it is, it should have been a sentence
        failure = traceback.format_exc()
    finally:
        signal.alarm(0)
        sys.argv = before
    out, err = (stream.buffer.getvalue().decode("utf-8", "surrogateescape") for stream in streams)  # type: ignore[attr-defined]
    return code, out, err, failure


def complaint(words: list[str], done: tuple[int, str, str, str]) -> str | None:
    """What is wrong with how a line ended."""
    code, out, err, failure = done
    if failure:
        return failure
    codes = (0, 1, 2) if words and words[0] == "verify" else (0, 2)
    if code not in codes:
        return f"exit code {code}"
    if "Traceback" in err:
        return "a traceback on standard error"
    if code == 2 and not err.strip():
        return "an error without a word"
    if code == 2 and err.startswith("error: ") and len(err) > 12_000:
        return f"an error of {len(err)} characters"  # a path of 5,000 may be named, twice
    if any(c in out + err for c in "\x1b\x07\u202e"):
        return "control characters"
    return None


def run_all(folder: str, count: int, seed: int, report: str) -> None:
    """Make and run lines in a folder that has a.csv, b.csv and a model; write what was found as JSON."""
    import torch

    torch.set_num_threads(1)
    for name in ("files", "scoring"):
        __import__(f"ibpwf.estimator.{name}")
    os.chdir(folder)
    os.environ.update(HOME=folder, IBPWF_DATA=str(Path(folder) / "data"), PIP_NO_INDEX="1", COLUMNS="80")
    os.environ.update(dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9"))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    chance, paths, commands = random.Random(seed), places(Path(folder)), tree()
    kept = {name: Path(name).read_bytes() for name in ("a.csv", "b.csv")}
    model = {path.name: path.read_bytes() for path in Path("model").iterdir()}
    found = []
    for _ in range(count):
        words = line(chance, commands, paths)
        Path(report + ".last").write_text(json.dumps(words))  # for a process that dies
        wrong = complaint(words, run(words)) or broken("model")
        if wrong is not None:
            found.append({"words": words, "wrong": wrong})
        for name, content in kept.items():  # an answer may have been asked for in their place
            Path(name).write_bytes(content)
        if {path.name: path.read_bytes() for path in Path("model").iterdir() if path.is_file()} != model:
            shutil.rmtree("model")
            Path("model").mkdir()
            for name, content in model.items():
                (Path("model") / name).write_bytes(content)
    Path(report).write_text(json.dumps(found))


def broken(model: str) -> str | None:
    """What is wrong with a model folder."""
    from ibpwf.storage.model_folder import verify_model

    problems = verify_model(Path(model)).problems
    return f"the model is not whole: {problems}" if problems else None
