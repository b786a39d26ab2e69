"""Every command that a page prints is understood by the program's own parsers, with its names and settings."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ibpwf import Settings
from ibpwf.backbones.catalog import known_network
from ibpwf.cli import program
from ibpwf.cli.parsing import parse
from ibpwf.errors import IBPWFError
from ibpwf.lab.data.catalog import entry
from ibpwf.parts import parse_assignment
from tools.recorded_command import present_command

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
ENDS = {"&&", "&", "|", ";"}


class Wrong(Exception):
    """A command that the program would not take."""


class Parsed(Exception):
    """Raised in place of the work that follows the parsing of a command line."""


class Command(NamedTuple):
    words: tuple[str, ...]
    whole: bool
    """Whether it could be typed as it stands; a mention in running text may leave arguments out."""


def commands_of(text: str) -> Iterator[Command]:
    for kind, block in FENCE.findall(text):
        if kind.split(" ")[0] in ("", "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                yield from split(line.removeprefix("$ "), whole=True)
    for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", FENCE.sub("", text)):
        yield from split(span, whole=False)


def split(line: str, whole: bool) -> Iterator[Command]:
    """The commands of a line, without what comes before the program (`VARIABLE=value`, `torchrun …`)."""
    if not re.match(r"(\w+=\S* )*(ibpwf|make|python3?|torchrun)\b", line) and "&&" not in line:
        return
    words: list[str] = []
    for word in [*shlex.split(line, comments=True), "&&"]:
        if word not in ENDS:
            words.append(word)
            continue
        while words and re.match(r"\w+=", words[0]):
            words.pop(0)
        if words[:1] == ["torchrun"]:
            words = words[words.index("ibpwf") :] if "ibpwf" in words else []
        elif words[:3] == ["python", "-m", "ibpwf"]:
            words = words[2:]
        if words and words[0] in ("ibpwf", "make", "python"):
            yield Command(tuple(words), whole and not {"[options]", "--help", "-h"} & set(words))
        words = []


def check(command: Command) -> None:
    first, *words = command.words
    if first == "make":
        unknown = [word for word in words if "=" not in word and word not in TARGETS]
        if unknown:
            raise Wrong(f"no target {unknown}")
    elif first == "python":
        check_python(words, command.whole)
    else:
        check_ibpwf(words, command.whole)


PLACEHOLDERS = {"SCENARIO": "split-digits", "N": "2", "PART": "cifar10"}
NAMED = {"reproduce": "table1", "backbones fetch": "minilm-l6", "data fetch": "mnist", "data verify": "mnist"}


def filled(words: list[str]) -> list[str]:
    """With an example where the page has a placeholder."""
    kept = [word.strip("[]") for word in words if word not in ("[options]", "...", "…", "-h", "--help", "$TLS")]
    for place, word in enumerate(kept):
        before = " ".join(kept[:place])
        if word == "NAME" and before in NAMED:
            kept[place] = NAMED[before]
    return [PLACEHOLDERS.get(word, word) for word in kept]


def check_ibpwf(words: list[str], whole: bool) -> None:
    words = filled([word for word in words if word != "--debug"])
    if not words or words == ["--version"]:
        return
    try:
        name, rest = program.split(words)
        if name in program.PLACES:
            check_values(name, parse(program.command_named(name), rest, name))
    except IBPWFError as error:
        if whole or not re.search("is missing|needs a value", str(error)):
            raise Wrong(str(error)) from None


def check_values(name: str, asked: Any) -> None:
    """Names and settings, by what checks them when the command runs."""
    if name in ("run", "compare"):
        tls = dict.fromkeys(("cluster", "tls_ca_file", "tls_cert", "tls_key"))  # addresses and files
        replace(asked, **tls).configs()
    elif name == "learn":
        asked.parameters()
    elif name in ("data fetch", "data verify"):
        entry(asked.name)
    elif name == "backbones fetch":
        known_network(asked.name)


def check_python(words: list[str], whole: bool) -> None:
    """A program of benchmarks/ or tools/; others are a user's own."""
    words = filled(words)
    if words[:1] == ["-m"] and words[1].startswith("tools."):
        if importlib.util.find_spec(words[1]) is None:
            raise Wrong(f"no module {words[1]}")
        file, words = ROOT / f"{words[1].replace('.', '/')}.py", words[1:]
    elif words and words[0].startswith("benchmarks/"):
        file = ROOT / words[0]
        if not file.exists():
            raise Wrong(f"no program {words[0]}")
    else:
        return
    settings = [value for option, value in pairwise(words) if option == "--set"]
    try:
        Settings(**{"inference": "router", **dict(parse_assignment(text) for text in settings)})
    except IBPWFError as error:
        raise Wrong(str(error)) from None
    if "parse_args" in file.read_text():
        parse_program(file, words[1:], whole)


def parse_program(file: Path, words: list[str], whole: bool) -> None:
    """Run a program up to the end of its parsing."""

    def stop(self: argparse.ArgumentParser, given: Any = None, namespace: Any = None) -> None:
        found, left = self.parse_known_args(words)
        raise Parsed if not left else Wrong(f"{file.name} does not know {left}; found {found}")

    def refuse(self: argparse.ArgumentParser, message: str) -> None:
        raise Wrong(f"{file.name}: {message}") if whole or "are required" not in message else Parsed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        patch.setattr(argparse.ArgumentParser, "error", refuse)
        patch.setattr(sys, "argv", [str(file), *words])
        patch.syspath_prepend(file.parent)
        try:
            runpy.run_path(str(file), run_name="__main__")
        except Parsed:
            return
    raise AssertionError(f"{file.name} has not parsed its words")


@pytest.fixture(autouse=True)
def every_path_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    for check in ("ibpwf.data.opening.check_there", "ibpwf.data.naming.check_data"):
        monkeypatch.setattr(check, lambda path: None)


@pytest.fixture
def my_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module that a page has its reader write, in the folder one is in."""
    blocks = [block for _, block in FENCE.findall((ROOT / "docs" / "extending.md").read_text())]
    (tmp_path / "my_module.py").write_text("".join(block for block in blocks if block.startswith("# my_module.py")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_module", raising=False)


@pytest.mark.usefixtures("my_module")
def test_every_command_of_every_page_is_understood() -> None:
    pages: dict[Command, set[str]] = {}
    for page in PAGES:
        for command in commands_of(page.read_text()):
            pages.setdefault(command, set()).add(page.name)
    wrong = []
    for command, where in pages.items():
        try:
            check(command)
        except Wrong as error:
            wrong.append(f"{', '.join(sorted(where))}: {shlex.join(command.words)}: {error}")
    assert not wrong, "\n".join(wrong)
    assert len(pages) > 200


def recorded(content: Any) -> Iterator[str]:
    """Every command in a result file."""
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        if key in ("command", "commands") and not isinstance(value, dict):
            yield from (one for one in ([value] if isinstance(value, str) else value) if isinstance(one, str))
        if isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], dict)):
            yield from recorded(value)


def test_every_benchmark_that_a_result_file_names_still_takes_its_options() -> None:
    found: dict[tuple[str, ...], str] = {}
    for path in sorted((ROOT / "docs" / "results").rglob("*.json")):
        for command in recorded(json.loads(path.read_text())):
            words = command.split()
            if words[:1] == ["python"] and words[1].startswith("benchmarks/"):
                found[words[1], *(word for word in words if word.startswith("--"))] = command
    assert len({program for program, *_ in found}) > 10
    for command in found.values():
        check(Command(tuple(shlex.split(present_command(command))), whole=True))


@pytest.mark.parametrize(
    "line",
    [
        "ibpwf lern model a.csv",
        "ibpwf learn model a.csv --hiden 4",
        "ibpwf learn model a.csv --set kapa=0.6",
        "ibpwf learn model a.csv --set kappa=60",
        "ibpwf learn model a.csv --recipe tables",
        "ibpwf learn model",
        "ibpwf run split-mnist --set gaussians=class",
        "ibpwf run split-mnits",
        "ibpwf run split-mnist --preset papers",
        "ibpwf run split-mnist --method ewcc",
        "ibpwf compare split-mnist --methods ibpwf,rigde",
        "ibpwf export model --to onxx",
        "ibpwf data fetch mnits",
        "ibpwf data get mnist",
        "ibpwf backbones fetch minilm",
        "ibpwf reproduce table9",
        "ibpwf bench --only steps",
        "make tests",
        "python benchmarks/scalling.py",
        "python benchmarks/scaling.py rows --sises 100",
        "python benchmarks/big_table.py --set epoch=2",
        "python -m tools.scalling_page docs",
        "torchrun --nproc-per-node 2 -m ibpwf learn model data.csv --lable kind",
        "make env && ibpwf verify model --jsn",
    ],
)
def test_a_mistyped_command_would_be_noticed(line: str) -> None:
    def all_of() -> None:
        for command in commands_of(f"```sh\n{line}\n```\n"):
            check(command)

    with pytest.raises(Wrong):
        all_of()


def test_options_are_checked_also_in_mentions_that_leave_arguments_out() -> None:
    (mention,) = commands_of("Give `ibpwf learn --on-disk` for that.")
    check(mention)
    (mistyped,) = commands_of("Give `ibpwf learn --on-disc` for that.")
    with pytest.raises(Wrong):
        check(mistyped)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in page.read_text()], ids=lambda page: page.name
)
def test_every_block_of_python_compiles(page: Path) -> None:
    for kind, block in FENCE.findall(page.read_text()):
        if kind.startswith("python"):
            compile(block, str(page), "exec")
