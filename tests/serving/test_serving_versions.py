"""Versions by a model's history, passes that give a row the same bits alone and among others, and their batching."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from served import NAMES, archive, blobs, fresh_folder, png, service_of

from ibpwf import ContinualClassifier
from ibpwf.errors import InputError, StoreError
from ibpwf.serving import worker
from ibpwf.serving.batching import MOST, STEP, Batcher, Rows, _passes, predict
from ibpwf.serving.faults import Refused
from ibpwf.serving.inference_routes import _different
from ibpwf.serving.limits import Limits
from ibpwf.serving.registry import NoSuchModel, Registry, ServedModel
from ibpwf.serving.versions import Kept, Version, versions_of
from ibpwf.storage.model_folder import verify_model

X = blobs(range(6), each=50, seed=3)[0].astype(np.float32)


def learnt(serial: int, event: str = "learnt") -> dict[str, object]:
    return {"event": event, "serial": serial}


def test_versions_count_what_was_learnt_and_a_number_is_never_given_twice():
    history = [learnt(0), learnt(1), learnt(2, "updated"), learnt(3)]
    assert versions_of(history) == [Version(1, 0), Version(2, 1), Version(3, 2, True), Version(4, 3)]
    history += [learnt(1, "forgot"), learnt(3, "forgot"), learnt(3)]
    assert versions_of(history) == [Version(1, 0), Version(3, 2, True), Version(5, 3)]


def test_a_classifier_looks_back_to_the_bit_and_shares_its_tensors(made_models):
    newest = ContinualClassifier.load(made_models / "things")
    older = newest.first_tasks(2)
    assert older.tasks_ == newest.tasks_[:2]
    assert len(newest.tasks_) == 3
    for name, dictionary in older.learner_.model.layers.items():
        for mine, theirs in zip(dictionary.blocks, newest.learner_.model.layers[name].blocks, strict=False):
            assert mine.a.data_ptr() == theirs.a.data_ptr()
    for wrong in (0, 4):
        with pytest.raises(InputError, match="3 tasks"):
            newest.first_tasks(wrong)


@pytest.mark.parametrize("task", [None, "trees"])
def test_a_row_has_the_same_bits_alone_and_among_others(made_models, task):
    classifier = ContinualClassifier.load(made_models / "things")
    torch.set_num_threads(1)
    whole = predict(classifier, [Rows(X, [task] * len(X))])[0]
    chance = np.random.default_rng(0)
    for count in (*range(1, 40), 63, 65, 126, 127, 128, 129, 131, 300):
        start = int(chance.integers(0, len(X) - count + 1))
        part = predict(classifier, [Rows(X[start : start + count], [task] * count)])[0]
        here = slice(start, start + count)
        for name in ("probability", "entropy", "novelty", "task_probabilities"):
            np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[here])


def test_questions_in_one_pass_are_answered_as_each_alone(made_models):
    classifier = ContinualClassifier.load(made_models / "things")
    names = (None, "fruit", "pets")
    questions = [Rows(X[n : n + 1 + n % 3], [names[n % 3]] * (1 + n % 3), novelty=n % 2 == 0) for n in range(40)]
    together = predict(classifier, questions)
    for question, found in zip(questions, together, strict=True):
        alone = predict(classifier, [question])[0]
        np.testing.assert_array_equal(found.probability, alone.probability)
        np.testing.assert_array_equal(found.entropy, alone.entropy)
        assert found.labels.tolist() == alone.labels.tolist()
        if question.novelty:
            np.testing.assert_array_equal(found.novelty, alone.novelty)


def test_rows_of_several_given_tasks_cost_one_pass(made_models, monkeypatch):
    classifier = ContinualClassifier.load(made_models / "things")
    asked: list[int] = []
    real = ContinualClassifier.prediction
    monkeypatch.setattr(
        ContinualClassifier,
        "prediction",
        lambda self, x, *words, **how: asked.append(len(x)) or real(self, x, *words, **how),
    )
    tasks = [("fruit", "trees", "pets")[row % 3] for row in range(30)]
    found = predict(classifier, [Rows(X[row : row + 1], [tasks[row]]) for row in range(30)])
    assert asked == [48]
    assert [one.task[0] for one in found] == tasks


@pytest.mark.parametrize(
    ("tasks", "each", "passes"),
    [(8, 1, 1), (8, 16, 1), (9, 16, 2), (16, 16, 2), (8, 17, 2), (8, 128, 8), (1, 129, 2)],
)
def test_a_pass_has_eight_tasks_of_up_to_16_rows_or_fewer_tasks_of_more(tasks, each, passes):
    """As docs/serving.md says."""
    rows = [f"t{number}" for number in range(tasks) for _ in range(each)]
    assert len(_passes(rows, np.ones(len(rows), dtype=bool), STEP)) == passes


def test_what_waits_together_is_answered_together_and_too_much_is_refused(made_models):
    version = ServedModel("things", made_models / "things", read_only=True).version()
    passes: list[int] = []

    async def ask() -> list[object]:
        batcher = Batcher(100, 10**6, told=lambda questions, rows, seconds: passes.append(questions))
        asked = [batcher.ask(version, Rows(X[n : n + 1], [None])) for n in range(100)]
        found = await asyncio.gather(*asked, batcher.ask(version, Rows(X[:5], [None] * 5)), return_exceptions=True)
        assert batcher.waiting == 0
        assert len((await batcher.ask(version, Rows(X[:300], [None] * 300))).labels) == 300
        batcher.close()
        return list(found)

    *found, last = asyncio.run(ask())
    assert isinstance(last, Refused)
    assert last.status == 429
    assert not any(isinstance(one, BaseException) for one in found)
    large = -(-300 // MOST)  # passes of the last question, which are its alone
    assert passes[-large:] == [1] * large
    assert sum(passes[:-large]) == 100
    assert len(passes) <= 2 + 100 // MOST + large


def test_outputs_that_are_equal_and_not_the_same_to_the_bit_are_different(made_models):
    version = ServedModel("things", made_models / "things", read_only=True).version()
    [one] = predict(version.classifier, [Rows(X[:3], ["fruit"] * 3)])
    zero, negative = np.zeros(3), -np.zeros(3)
    assert _different(replace(one, entropy=zero), replace(one, entropy=zero)) == []
    assert _different(replace(one, entropy=zero), replace(one, entropy=negative)) == ["entropy"]
    labels = one.labels[::-1].copy()
    labels[0] = "other"
    assert _different(one, replace(one, labels=labels)) == ["label", "probability"], "that of the label"


def test_questions_with_too_many_numbers_together_are_refused(made_models):
    version = ServedModel("things", made_models / "things", read_only=True).version()

    async def ask(rows: int) -> list[object]:
        batcher = Batcher(10**6, 150 * X.shape[1])
        asked = [batcher.ask(version, Rows(X[:rows], [None] * rows)) for _ in range(3)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        await batcher.ask(version, Rows(X[:300], [None] * 300))  # more than may wait, but nothing waits
        await batcher.ask(version, Rows(X[:100], [None] * 100))
        assert batcher._numbers == batcher.waiting == 0
        batcher.close()
        return [isinstance(one, Refused) and one.status == 429 for one in found]

    assert asyncio.run(ask(50)) == [False, False, False]
    assert asyncio.run(ask(70)) == [False, False, True]
    assert asyncio.run(ask(140)) == [False, True, True]


def test_a_question_that_cannot_be_answered_costs_only_who_asked(made_models):
    version = ServedModel("things", made_models / "things", read_only=True).version()

    async def ask() -> list[object]:
        batcher = Batcher(100, 10**6)
        wrong = Rows(X[:1], ["no such task"])
        asked = [batcher.ask(version, Rows(X[:1], [None])) for _ in range(3)]
        found = await asyncio.gather(*asked[:1], batcher.ask(version, wrong), *asked[1:], return_exceptions=True)
        batcher.close()
        return list(found)

    found = asyncio.run(ask())
    assert [isinstance(one, InputError) for one in found] == [False, True, False, False]


def test_whoever_changes_a_folder_the_server_sees_it(models: Path, tmp_path):
    registry = Registry(models)
    assert {model.name for model in registry} == {"things", "pictures"}
    classifier = ContinualClassifier.load(models / "things")
    classifier.learn(X, np.repeat(["up", "down"], 150), task="ways")
    classifier.save(models / "things")
    fresh_folder(models, tmp_path / "copy")
    (tmp_path / "copy" / "models" / "things").rename(models / "another")
    assert sorted(model.name for model in registry.refresh()) == ["another", "things"]
    assert registry["things"].versions == [1, 2, 3, 4]
    assert registry["another"].version(4).tasks[-1] == "ways"
    with pytest.raises(NoSuchModel, match="Did you mean 'things'"):
        registry["thing"]
    with pytest.raises(NoSuchModel, match="no version 9"):
        registry["things"].version(9)


def test_what_is_kept_costs_links_and_what_is_not_a_version_is_removed(models):
    path = models / "things"
    kept = Kept(path)
    kept.keep()
    (there,) = (path / ".serving" / "versions").glob("[0-9]*")
    for file in there.glob("*.safetensors"):
        assert file.samefile(path / file.name)
    (path / ".serving" / "versions" / "new-0").mkdir()
    (path / ".serving" / "versions" / "00009").mkdir()
    assert kept.follow() == [9]
    assert [one.name for one in (path / ".serving" / "versions").iterdir() if one.name != ".lock"] == ["00003"]
    assert ContinualClassifier.load(there).tasks_ == ["fruit", "trees", "pets"]


@pytest.mark.parametrize("moment", ["waiting", "linking"])
def test_a_version_that_is_saved_while_another_is_kept_is_not_mixed_with_it(models, monkeypatch, moment):
    path = models / "things"
    left = [ContinualClassifier.load(path)]

    def save() -> None:
        if left:
            classifier = left.pop()
            classifier.learn(X, np.repeat(["up", "down"], 150), task="ways")
            classifier.save(path)

    alone, link = Kept._alone, os.link

    @contextlib.contextmanager
    def waited(self: Kept) -> Iterator[None]:
        with alone(self):
            save()
            yield

    def linked(*args: Path) -> None:
        link(*args)
        save()

    if moment == "waiting":
        monkeypatch.setattr(Kept, "_alone", waited)
    else:
        monkeypatch.setattr(os, "link", linked)
    with contextlib.suppress(StoreError) if moment == "linking" else contextlib.nullcontext():
        Kept(path).keep()
    kept = list((path / ".serving" / "versions").glob("[0-9]*"))
    assert [one.name for one in kept] == (["00004"] if moment == "waiting" else [])
    assert all(not verify_model(one).problems for one in kept)
    assert ServedModel("things", path).versions == [1, 2, 3, 4]


def test_what_is_copied_for_a_version_or_made_for_a_job_is_on_disk_before_it_has_its_name(
    models, tmp_path, monkeypatch
):
    synced, fsync = set[int](), os.fsync

    def no_links(*args: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    def noted(file: int) -> None:
        fsync(file)
        synced.add(os.fstat(file).st_ino)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "link", no_links)
    kept = Kept(models / "things")
    kept.keep()
    files = list(kept.path(3).iterdir())
    assert len(files) > 3
    assert {file.stat().st_ino for file in files} <= synced

    def rename(self: Path, target: Path) -> Path:
        assert self.stat().st_ino in synced
        return Path(shutil.move(self, target))

    image = png(np.zeros((4, 4), dtype=np.uint8))
    (tmp_path / "job").mkdir()
    monkeypatch.chdir(tmp_path / "job")
    Path("data.zip").write_bytes(archive({f"{name}/0.png": image for name in ("apple", "pear")}))
    monkeypatch.setattr(Path, "rename", rename)
    job = {"data": "data.zip", "limits": asdict(Limits())}
    assert worker._data(models / "pictures", job) == Path("data.npz")


def test_a_model_that_is_saved_while_it_is_exported_is_exported_as_it_was_at_one_moment(
    models, tmp_path, monkeypatch
):
    path = models / "things"
    left = [ContinualClassifier.load(path)]

    def saved(copy: Callable[..., object]) -> Callable[..., object]:
        def copied(*args: Any) -> object:
            if left:
                classifier = left.pop()
                classifier.learn(X, np.repeat(["up", "down"], 150), task="ways")
                classifier.save(path)
            return copy(*args)

        return copied

    monkeypatch.setattr(shutil, "copyfile", saved(shutil.copyfile))
    monkeypatch.setattr(os, "link", saved(os.link))
    monkeypatch.chdir(tmp_path)
    found = worker._export(path, {"to": "folder"})
    shutil.unpack_archive(found["file"], tmp_path / "exported")
    assert not verify_model(tmp_path / "exported").problems
    assert ContinualClassifier.load(tmp_path / "exported").tasks_ == ["fruit", "trees", "pets", "ways"]


def test_a_version_in_memory_is_asked_while_another_is_loaded(models, monkeypatch):
    service = service_of(models, read_only=True)
    model, begun, go_on = service.registry["things"], threading.Event(), threading.Event()
    first, make = model.version(1), ServedModel._make

    def slow(self: ServedModel, *about: Any) -> Any:
        begun.set()
        assert go_on.wait(30)
        return make(self, *about)

    monkeypatch.setattr(ServedModel, "_make", slow)
    loading = threading.Thread(target=model.version, args=(2,))
    loading.start()
    assert begun.wait(30)
    late = threading.Timer(5, go_on.set)
    late.start()
    try:
        assert asyncio.run(service.version(model, 1)) is first
        assert not go_on.is_set()
    finally:
        late.cancel()
        go_on.set()
        loading.join(30)
    assert model.in_memory(2) is model.version(2)
    assert [model.in_memory(number) for number in (None, 3)] == [model.newest] * 2


def test_a_folder_without_models_is_refused(tmp_path):
    with pytest.raises(StoreError, match="no model folder"):
        Registry(tmp_path)


def test_a_model_that_was_not_learnt_from_files_takes_one_tensor(tmp_path):
    from ibpwf.serving.inputs import input_tensors, inputs_of

    classifier = ContinualClassifier(epochs=2, hidden=(8,), settings={"inference.features.width": 16})
    classifier.learn(X[:100], np.repeat(["a", "b"], 50), task="one")
    classifier.save(tmp_path / "model")
    version = ServedModel("model", tmp_path / "model").version()
    numbers, task = input_tensors(version)
    assert numbers == {"name": "x", "datatype": "FP32", "shape": [-1, len(NAMES)]}
    assert task == {"name": "task", "datatype": "BYTES", "shape": [-1], "parameters": {"optional": True}}
    assert inputs_of({"x": X[:3]}, version, Limits()).shape == (3, 16)
