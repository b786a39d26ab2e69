"""Tasks of networks of transformers as graphs: images go in, tokens are refused with what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ibpwf
from hugging_face_networks import Taught, batch
from ibpwf.errors import InputError

Teach = Callable[[str, str], Taught]


@pytest.mark.parametrize("to", ["pt2", "onnx"])
@pytest.mark.parametrize("name", ["vit", "clip"])
def test_a_task_of_images_is_exported_as_a_graph(name: str, to: str, taught: Teach, tmp_path: Path) -> None:
    if to == "onnx":
        pytest.importorskip("onnxruntime")
    found = taught(name, "frozen")
    done = ibpwf.export(found.learner, "first", to, tmp_path / f"model.{to}")  # type: ignore[arg-type]
    assert done.difference is not None
    assert done.difference < 1e-5
    if to == "pt2":
        x = batch(name, 9)["pixel_values"]
        given = torch.export.load(done.files[0]).module()(x)
        torch.testing.assert_close(given, found.logits["first"].softmax(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("base", ["none", "frozen"])
@pytest.mark.parametrize("task", ["first", None])
def test_tokens_are_refused_with_what_to_do_instead(
    task: str | None, base: str, taught: Teach, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"inputs by name \('input_ids', 'attention_mask'\)") as refused:
        ibpwf.export(taught("bert", base).learner, task, "pt2", tmp_path / "model.pt2")
    assert ("export the task to peft" in str(refused.value)) == (base == "frozen")
    assert "learner.merge(task)" in str(refused.value)
    assert not list(tmp_path.iterdir())
