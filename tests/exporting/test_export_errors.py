"""What cannot be exported is said in a sentence, and nothing is written."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ibpwf
from ibpwf import ContinualClassifier, IBPWFError, Learner, Settings
from ibpwf.errors import InputError
from ibpwf.exporting import writing
from ibpwf.lab.methods import method_named
from ibpwf.lab.methods.dense import Problem
from processes import Finished


class Deciding(nn.Module):
    """A forward pass that looks at its numbers, which no graph can."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        return out if float(x.sum()) > 0 else 2 * out


def deciding() -> Learner:
    learner = Learner(Deciding(), Settings(epochs=1, finetune_epochs=0), device="cpu")
    learner.learn(torch.randn(8, 4), torch.arange(8) % 2, task="a")
    return learner


def other_method() -> Learner:
    learner = Learner(method_named("sgd")(Problem((4,), 2, "task")))  # type: ignore[call-arg]
    learner.learn(torch.randn(8, 4), torch.arange(8) % 2, task="a")
    return learner


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("0-1", "onnx"), "unknown task '0-1'. Did you mean '0/1'?"),
        (("0/1", "onx"), "unknown format 'onx'. Did you mean 'onnx'?"),
        ((7, "pt2"), "task is 7, but 2 tasks"),
        ((None, "safetensors"), "safetensors holds the weights of one task"),
        (("0/1", "pt2", "model.onnx"), "ends in .pt2"),
        (("0/1", "pt2", "none/model.pt2"), "'none' is no folder"),
    ],
)
def test_a_wrong_word_is_named(
    arguments: tuple[Any, ...], words: str, learned: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        ibpwf.export(learned, *arguments)
    assert words in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (deciding, "the network (Deciding) cannot be exported to pt2"),
        (other_method, "method 'sgd', whose tasks have no networks of their own"),
        (ContinualClassifier, "has learnt nothing yet"),
        (lambda: Learner(nn.Sequential(nn.Linear(2, 2))), "nothing has been learnt yet"),
        (lambda: 3, "model is a int; give a ContinualClassifier"),
        (lambda: "nowhere", "there is no such file or folder"),
    ],
)
def test_a_model_that_cannot_be_exported_says_why(model: Callable[[], Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(IBPWFError) as caught:
        ibpwf.export(model(), 0, "pt2", tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_tasks_inferred_inside_a_network_that_is_no_sequence_are_exported_one_by_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="export one task at a time"):
        ibpwf.export(deciding(), None, "pt2", tmp_path)


def test_a_missing_package_is_named_with_its_extra(
    learned: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "onnx" else real(name, *more)
    )
    with pytest.raises(InputError, match=r"needs onnx, .* pip install 'ibpwf\[export\]'"):
        ibpwf.export(learned, "0/1", "onnx", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_that_answers_otherwise_is_not_written(
    learned: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = writing.Source.answers
    monkeypatch.setattr(writing.Source, "answers", lambda *given: [answer + 1e-4 for answer in real(*given)])
    with pytest.raises(InputError, match="answers otherwise"):
        ibpwf.export(learned, "0/1", "pt2", tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_replaced_only_when_asked(learned: Learner, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text("mine")
    with pytest.raises(InputError, match=r"m\.json' exists already; give --overwrite"):
        ibpwf.export(learned, "0/1", "safetensors", tmp_path / "m.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["m.json"]
    for _ in range(2):  # the same content again is no change
        ibpwf.export(learned, "0/1", "safetensors", tmp_path / "m.safetensors", overwrite=True)
    ibpwf.export(learned, "0/1", "safetensors", tmp_path / "m.safetensors")
    with pytest.raises(InputError, match="exists already"):
        ibpwf.export(learned, "2/3", "safetensors", tmp_path / "m.safetensors")
    assert json.loads((tmp_path / "m.json").read_text())["task"] == "0/1"


def test_a_program_of_the_users_own_is_not_replaced(learned: Learner, tmp_path: Path) -> None:
    (tmp_path / "predict.py").write_text("print('mine')")
    with pytest.raises(InputError, match=r"predict\.py"):
        ibpwf.export(learned, "0/1", "safetensors", tmp_path / "m.safetensors", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["predict.py"]
    assert (tmp_path / "predict.py").read_text() == "print('mine')"


def test_the_command_says_what_it_wrote_and_what_is_wrong(
    learnt_folder: Path, tmp_path: Path, command: Callable[..., Finished]
) -> None:
    done = command("export", str(learnt_folder), "--task", "2/3", "--to", "pt2")
    assert done.code == 0, done.err
    for named in ("model-2-3.pt2", "'2/3'", "2, 3", "64 numbers", "Checked in torch"):
        assert named in done.out
    told = command("export", str(learnt_folder), "--task", "0/1", "--to", "safetensors", "--json")
    assert json.loads(told.out)["files"] == ["model-0-1.safetensors", "model-0-1.json", "predict.py"]
    wrong = command("export", str(learnt_folder), "--task", "4/5", "--to", "pt2")
    assert (wrong.code, wrong.out) == (2, "")
    assert "'4/5'" in wrong.err
