"""The code in the documentation runs as printed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ibpwf import Settings
from processes import Finished
from tools import command_reference, settings_page

DOCS = Path(__file__).parents[2] / "docs"


PAGES = sorted(
    page.name for page in DOCS.glob("*.md") if page.name != "tutorial.md" and "```python" in page.read_text()
)
SMALL = (("split-mnist", "split-digits"), ("784, [400]", "64, [60]"), ("alpha=200", "alpha=30"))
"""What makes the README's example take seconds: digits in place of MNIST."""


def run_blocks(blocks: list[str], page: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Run code as a page prints it, in the folder one is in; what it prints must be what a comment says.

    Blocks that begin with `# NAME.py` make that file besides.
    """
    names: dict[str, Any] = {"__name__": "page"}
    torch.manual_seed(0)
    for block in blocks:
        if title := re.match(r"# (\w+\.py)\n", block):
            with Path(title[1]).open("a") as file:
                file.write(block)
            sys.modules.pop(Path(title[1]).stem, None)  # of an earlier test, from another folder
        exec(compile(block, page, "exec"), names)
        printed = capsys.readouterr().out.splitlines()
        claimed = re.findall(r"^print\(.*\)  # (.*)$", block, re.MULTILINE)
        for line, claim in zip(printed, claimed, strict=True):
            assert re.fullmatch(re.escape(claim).replace(r"\.\.\.", ".*"), line), line
    return names


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs_from_top_to_bottom(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks(python_blocks(DOCS / page), page, capsys)


def test_the_readmes_python_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = python_blocks(DOCS.parent / "README.md")
    for old, new in SMALL:
        assert old in example
        example = example.replace(old, new)
    monkeypatch.chdir(tmp_path)
    names = run_blocks([example], "README.md", capsys)
    x = names["stream"][1].test.x
    assert [task.name for task in names["learner"].tasks] == ["0/1", "2/3", "4/5", "6/7", "8/9"]
    assert names["p"].mutual_information.shape == (len(x),)
    with torch.no_grad():
        torch.testing.assert_close(names["plain"](x), names["learner"].logits(x, "2/3"), rtol=0, atol=1e-6)


def test_every_command_of_the_tutorial_runs_and_says_what_is_printed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., Finished]
) -> None:
    page = (DOCS / "tutorial.md").read_text()
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    said, ran = "", 0
    for kind, block in re.findall(r"^```(python|sh|sh fails|text)\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        if kind == "python":
            exec(compile(block, "tutorial.md", "exec"), names)
        elif kind == "text":  # as the commands above it have said, but for numbers
            for line in block.splitlines():
                assert without_numbers(line) in {without_numbers(printed) for printed in said.splitlines()}, line
        else:
            said = ""
            for line in block.splitlines():
                program, *words = shlex.split(line)
                if program == "python":
                    shipped = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
                    said += shipped.stdout
                    continue
                assert program == "ibpwf"
                done = command(*words)
                assert done.code == (2 if kind == "sh fails" else 0), done.err
                said += done.out + done.err
                ran += 1
            if "answers.csv" in block:
                said += (tmp_path / "answers.csv").read_text()
    assert ran == page.count("\nibpwf ") >= 12


def without_numbers(line: str) -> str:
    return re.sub(r"\d+(\.\d+)?", "0", line)


def test_the_page_of_all_commands_is_as_the_program_has_it() -> None:
    assert (DOCS / "cli.md").read_text() == command_reference.page(), "run `make docs`"


def test_the_page_of_all_settings_is_as_the_program_has_it() -> None:
    assert (DOCS / "settings.md").read_text() == settings_page.page(), "run `make docs`"
    for name in Settings.model_fields:
        assert f"| `{name}` |" in settings_page.page()


def test_every_page_and_section_linked_to_is_there() -> None:
    for path in [*DOCS.glob("*.md"), *DOCS.parent.glob("*.md")]:
        for target, section in re.findall(r"\]\(([^)#: ]+)(?:#([^)]+))?\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
            if section:
                heads = re.findall(r"^#+ (.*)$", (path.parent / target).read_text(), re.MULTILINE)
                slugs = [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads]
                assert section in slugs, f"{path.name} links to {target}#{section}"
