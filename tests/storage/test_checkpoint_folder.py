"""The folder of a task in progress says whose it is, and one that is not whole is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ibpwf.errors import StoreError
from ibpwf.storage.checkpoint_folder import (
    IN_PROGRESS,
    CheckpointContent,
    digest_of,
    discard_finished,
    open_checkpoint,
    save_checkpoint,
    task_in_progress,
)
from ibpwf.storage.folder import save_folder

CONTENT = CheckpointContent(task="second", serial=1, data="a", model="b", method={"x": 1}, phase=0, epoch=3, done=17)


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, CONTENT, {"step": {"mean": torch.arange(3.0)}})
    opened = open_checkpoint(tmp_path)
    assert opened.content == CONTENT
    assert torch.equal(opened.folder.tensors("step")["mean"], torch.arange(3.0))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("serial", "one", "field 'serial' is 'one'; it should be a valid integer"),
        ("method", [], r"field 'method' is \[\]; it should be an object"),
        ("more", 1, "field 'more' is unknown"),
        ("epoch", None, "field 'epoch' is None"),
    ],
)
def test_a_field_that_is_not_what_it_should_be_is_named_with_the_remedy(
    field: str, value: object, words: str, tmp_path: Path
) -> None:
    content = {**CONTENT.model_dump(), field: value}
    save_folder(tmp_path / IN_PROGRESS, kind="ibpwf-task-in-progress", schema=1, content=content, files={})
    with pytest.raises(StoreError, match=f"manifest.json': {words}.*To start the task anew, leave resume out"):
        open_checkpoint(tmp_path)
    assert task_in_progress(tmp_path) is None


def test_only_the_checkpoint_of_a_task_finished_since_is_removed(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, CONTENT, {})
    discard_finished(tmp_path, 1)
    assert task_in_progress(tmp_path) == CONTENT
    discard_finished(tmp_path, 2)
    assert not (tmp_path / IN_PROGRESS).exists()


def test_a_digest_depends_on_every_name_type_shape_and_byte() -> None:
    tensors = {"a": torch.zeros(4), "b": torch.ones(2, 2)}
    changed = [
        {"a": torch.zeros(4), "c": torch.ones(2, 2)},
        {"a": torch.zeros(4, dtype=torch.int32), "b": torch.ones(2, 2)},
        {"a": torch.zeros(2, 2), "b": torch.ones(2, 2)},
        {"a": torch.tensor([0.0, 0.0, 0.0, -0.0]), "b": torch.ones(2, 2)},
    ]
    digests = {digest_of([1], {"part": tensors}), digest_of([2], {"part": tensors}), digest_of([1], {"x": tensors})}
    digests |= {digest_of([1], {"part": other}) for other in changed}
    assert len(digests) == 7
    assert digest_of([1], {"part": dict(reversed(tensors.items()))}) in digests
