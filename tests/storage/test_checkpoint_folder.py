"""The folder of a task in progress says whose it is, and one that is not whole is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ibpwf.errors import StoreError
from ibpwf.storage.checkpoint_folder import (
    IN_PROGRESS,
    CheckpointContent,
    check_place,
    digest_of,
    discard,
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
    save_folder(tmp_path / IN_PROGRESS, kind="ibpwf-task-in-progress", content=content, files={})
    with pytest.raises(StoreError, match=f"manifest.json': {words}.*To start the task anew, leave resume out"):
        open_checkpoint(tmp_path)
    assert task_in_progress(tmp_path) is None


def test_only_the_checkpoint_of_a_task_finished_since_is_removed(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, CONTENT, {})
    discard_finished(tmp_path, 1)
    assert task_in_progress(tmp_path) == CONTENT
    discard_finished(tmp_path, 2)
    assert not (tmp_path / IN_PROGRESS).exists()


def test_a_link_in_the_place_of_a_checkpoint_is_neither_followed_nor_removed(tmp_path: Path) -> None:
    model, precious = tmp_path / "model", tmp_path / "precious"
    model.mkdir()
    precious.mkdir()
    save_checkpoint(precious, CONTENT, {"step": {"mean": torch.arange(3.0)}})
    (precious / IN_PROGRESS / "letter.txt").write_text("mine")
    (model / IN_PROGRESS).symlink_to(precious / IN_PROGRESS)
    before = sorted(path.name for path in (precious / IN_PROGRESS).iterdir())
    words = "in-progress' is a symbolic link instead of a folder, and no link in a model folder is followed"
    for act in (discard, check_place, open_checkpoint, lambda folder: save_checkpoint(folder, CONTENT, {})):
        with pytest.raises(StoreError, match=words):
            act(model)
    assert task_in_progress(model) is None
    assert sorted(path.name for path in (precious / IN_PROGRESS).iterdir()) == before
    assert (model / IN_PROGRESS).is_symlink()


def test_what_a_user_has_put_beside_a_checkpoint_stays_and_is_named(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, CONTENT, {"step": {"mean": torch.arange(3.0)}})
    folder = tmp_path / IN_PROGRESS
    part = next(folder.glob("step.*"))
    (folder / "method.0123456789ab.safetensors").write_text("called like ours")
    (folder / f"left.{part.name.split('.')[1]}.safetensors").write_bytes(part.read_bytes())  # ours by its content
    (folder / "step.safetensors.tmp-0123456789abcdef").write_text("left by a killed save")
    (folder / "notes").mkdir()
    (folder / "notes" / "letter.txt").write_text("mine")
    with pytest.warns(UserWarning, match="in-progress' holds 'method.0123456789ab.safetensors', which is not ours"):
        discard(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["method.0123456789ab.safetensors", "notes"]
    assert (folder / "notes" / "letter.txt").read_text() == "mine"


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
