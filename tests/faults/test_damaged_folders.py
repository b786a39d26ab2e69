"""Whatever happens to the bytes of a model folder: it is noticed, or it does not matter. Never a wrong answer."""

from __future__ import annotations

import ast
import os
import pickle
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from killed_learner import TASKS, examples
from torch import Tensor
from whole_model import KINDS, save_whole

import ibpwf
from ibpwf import ContinualClassifier, Learner
from ibpwf.errors import StoreError
from ibpwf.storage.folder import LOCK, MANIFEST
from ibpwf.storage.model_folder import verify_model

X = torch.cat([examples(number)[0][:4] for number in range(TASKS)])


@pytest.fixture(scope="module", params=KINDS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_whole(request.param, tmp_path_factory.mktemp("whole") / "model")
    kinds = {path.name.split(".")[0].split("-")[0] for path in folder.glob("*.safetensors")}
    expected = {"task", "factors", "reference", "template"}
    assert kinds == expected | {"features"} if request.param == "classifier" else kinds == expected
    return folder


def predictions(folder: Path) -> list[Tensor]:
    loaded = ibpwf.load(folder, device="cpu")
    learner = loaded if isinstance(loaded, Learner) else loaded.learner_
    told = learner.predict(X, posterior_samples=2)
    answers = [told.labels, told.probabilities, *(learner.logits(X, task.number) for task in learner.tasks)]
    if isinstance(loaded, ContinualClassifier):
        found = (loaded.predict_proba(X.numpy()), loaded.novelty(X.numpy()))
        answers += [torch.from_numpy(array) for array in found]
    return answers


def outcome(folder: Path) -> tuple[list[Tensor], str | None]:
    """What a folder answers, or why it is refused; any other error is a failure of the test."""
    try:
        return predictions(folder), None
    except StoreError as error:
        return [], str(error)


def flipped(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def gone(data: bytes, chance: random.Random) -> None:
    return None


HARM: dict[str, Callable[[bytes, random.Random], bytes | None]] = {"flipped": flipped, "cut": cut, "gone": gone}


def stand_in(path: Path, beside: Path, chance: random.Random) -> str:
    """Put something else where a file was: a link to a copy of it, a folder, a pipe, or another file of the model."""
    kind = chance.choice(["link", "folder", "pipe", "swapped"])
    data = path.read_bytes()
    path.unlink()
    if kind == "link":
        (beside / "copy").write_bytes(data)
        path.symlink_to(beside / "copy")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        others = [other for other in path.parent.iterdir() if other.name not in (LOCK, path.name)]
        shutil.copyfile(chance.choice(others), path)
    return kind


def cleared(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("times", [150, pytest.param(1500, marks=pytest.mark.faults)])
def test_whatever_is_done_to_a_file_is_refused_or_harmless(
    whole: Path, tmp_path: Path, times: int, tally: Callable[..., None]
) -> None:
    folder, beside = tmp_path / "model", tmp_path / "beside"
    shutil.copytree(whole, folder)
    beside.mkdir()
    (beside / "letter.txt").write_text("mine")
    expected = predictions(folder)
    (folder / LOCK).unlink()  # nobody misses it
    names = sorted(path.name for path in folder.iterdir())
    chance = random.Random(times)
    seen: Counter[tuple[str, bool]] = Counter()
    lost = wrong = tracebacks = 0
    for _ in range(times):
        path = folder / chance.choice(names)
        data = path.read_bytes()
        harm = chance.choices([*HARM, "stand-in"], weights=[8, 3, 1, 4])[0]
        if harm == "stand-in":
            harm = stand_in(path, beside, chance)
        else:
            harmed = HARM[harm](data, chance)
            path.unlink()
            if harmed is not None:
                path.write_bytes(harmed)
        problems = verify_model(folder).problems
        try:
            told, refused = outcome(folder)
        except Exception as error:
            print(harm, path.name, repr(error))
            tracebacks += 1
            told, refused = expected, None
        seen[harm, refused is not None] += 1
        if refused is not None:
            tracebacks += "\n" in refused
            wrong += [problem.file for problem in problems] != [path.name]
        else:  # one blank for another in the manifest, or its last newline
            lost += path.name != MANIFEST or problems != []
            wrong += not all(torch.equal(now, then) for now, then in zip(told, expected, strict=True))
        cleared(path)
        path.write_bytes(data)
    strange = {path.name for path in beside.iterdir()} - {"letter.txt", "copy"}
    outside = bool(strange) or (beside / "letter.txt").read_text() != "mine"
    assert all(seen[harm, True] for harm in [*HARM, "link", "folder", "pipe", "swapped"])
    print(dict(seen))
    tally("damaged files", times, seed=times, lost=lost, wrong=wrong, tracebacks=tracebacks, outside=int(outside))


def test_nothing_is_unpickled_when_a_folder_is_read(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = predictions(whole)

    def explode(*_: Any, **__: Any) -> None:
        raise AssertionError("a model folder was unpickled")

    for place, names in (
        (pickle, ("load", "loads", "Unpickler", "_Unpickler", "_load", "_loads")),
        (torch, ("load",)),
        (torch.serialization, ("load", "_load", "_legacy_load")),
    ):
        for name in names:
            monkeypatch.setattr(place, name, explode)
    told = predictions(whole)
    monkeypatch.undo()
    assert all(torch.equal(now, then) for now, then in zip(told, expected, strict=True))


def test_no_module_of_ours_imports_pickle_loads_with_torch_or_runs_text_as_code() -> None:
    source = Path(ibpwf.__file__).parent
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            imported = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            module = node.module if isinstance(node, ast.ImportFrom) else None
            for name in (*imported, module or ""):
                assert name.partition(".")[0] not in ("pickle", "dill", "shelve", "marshal"), path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile", "__import__"), path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                loads = (node.value.id, node.attr) == ("torch", "load")
                assert not loads or path.relative_to(source) == Path("backbones/weights.py"), path
    # Weights of others, known by their digest: tensors alone, whatever the file says.
    weights = ast.walk(ast.parse((source / "backbones" / "weights.py").read_text()))
    calls = [node for node in weights if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"]
    assert [
        ast.unparse(keyword.value) for call in calls for keyword in call.keywords if keyword.arg == "weights_only"
    ] == ["True"] * len(calls)
