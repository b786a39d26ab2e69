"""Right digests, wrong content: refused in one sentence, or harmless. Never NaN, a traceback, gigabytes or a hang."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from killed_learner import examples, fresh
from resealed import CHANGES, Change, Folder, apart, at, tensor, without
from whole_model import KINDS, save_whole

from ibpwf import registry
from ibpwf.lab.experiments.run import run
from ibpwf.lab.experiments.run_config import RunConfig


@pytest.fixture(scope="module", params=KINDS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder.read(save_whole(request.param, tmp_path_factory.mktemp("whole") / "model"))


LEGAL = ("state.inference.", "configuration.settings.", "face.standardizer.", "face.novelty.", "face.labels.")
"""Other values here are another model, and a whole one: it answers as it says."""


def is_legal(what: str) -> bool:
    """Whether other answers follow from a change: other numbers, or tensors of one shape in each other's place."""
    return what.startswith(LEGAL) or ".inference.groups." in what or what.split()[1] in ("number", "swap")


def digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(str(path).encode() + path.read_bytes() for path in files)).hexdigest()


@pytest.mark.parametrize("times", [12, pytest.param(700, marks=pytest.mark.faults)])
def test_a_folder_changed_at_random_and_sealed_again_is_refused_or_answers_as_before(
    whole: Folder, tmp_path: Path, times: int, tally: Callable[..., None]
) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "letter.txt").write_text("mine")
    before = digest(beside)
    whole.write(tmp_path / "model")
    expected = apart(tmp_path / "model")
    assert expected.startswith("answers")
    seed = times + len(whole.parts)
    chance = random.Random(seed)
    seen: Counter[str] = Counter()
    strange = []
    for _ in range(times):
        folder = whole.changed()
        what = chance.choice(CHANGES)(folder, chance)
        folder.write(tmp_path / "model")
        said = apart(tmp_path / "model")
        kind = "same" if said == expected else said.split()[0]
        if kind == "answers" and is_legal(what):
            kind = "legal"
        seen[kind] += 1
        if kind not in ("same", "refused", "legal"):
            strange.append((what, said))
    print(dict(seen), strange)
    wrong = seen["answers"] + seen["NaN"]
    ours = sum(seen[kind] for kind in ("same", "refused", "legal"))
    outside = int(digest(beside) != before)
    tally("resealed folders", times, seed=seed, wrong=wrong, tracebacks=times - ours - wrong, outside=outside)


def linear(folder: Folder, size: int) -> None:
    layers = folder.content["configuration"]["network"]["sequential"]
    layers[0][1]["arguments"].update(in_features=size, out_features=size)


MANY = 120_000


def many_tasks(folder: Folder) -> None:
    folder.content["tasks"] = [{**folder.content["tasks"][0], "name": str(n)} for n in range(MANY)]


def many_states(folder: Folder) -> None:
    folder.content["state"]["tasks"] *= MANY


def nested(folder: Folder) -> None:
    inner: Any = []
    for _ in range(900):
        inner = [inner]
    folder.content["configuration"]["network"] = {"sequential": inner}


def deep_network(folder: Folder) -> None:
    folder.content["configuration"]["network"] = {
        "builder": "resnet",
        "arguments": {"depth": 6 * 10**8 + 2, "width": 1},
    }


def asymmetric(covariance: torch.Tensor) -> torch.Tensor:
    changed = covariance.clone()
    changed[0, 1] += changed[0, 0]
    return changed


EVIL: dict[str, Change] = {
    "NaN in a factor": tensor("reference", "factors/0/a", lambda a: a * float("nan")),
    "an infinite bias": tensor("task-0002", "own/0.bias", lambda b: b + float("inf")),
    "a bias too large to calculate with": tensor("task-0002", "own/0.bias", lambda b: b + 3e38),
    "NaN in a mean": tensor("task-0001", "inference/0/mean", lambda m: m * float("nan")),
    "no head": without("task-0001", "own/3.bias"),
    "a short head": tensor("task-0001", "own/3.bias", lambda b: b[:-1]),
    "a template too few": without("template", "3.bias"),
    "float64 factors": tensor("factors-0001", "factors/3/b", lambda b: b.double()),
    "a selection of numbers": tensor("task-0001", "posterior/0/selected", lambda s: s.float()),
    "a short selection": tensor("task-0001", "posterior/0/selected", lambda s: s[:-1]),
    "factors that are read and not there": tensor("task-0001", "posterior/0/selected", torch.ones_like),
    "positions out of range": tensor("reference", "factors/0/positions", lambda p: p + 1000),
    "negative positions": tensor("reference", "factors/0/positions", lambda p: p - 1000),
    "positions not in order": tensor("reference", "factors/0/positions", lambda p: p.flip(0)),
    "positions twice": tensor("reference", "factors/0/positions", torch.zeros_like),
    "c of zero": tensor("task-0001", "posterior/0/c", torch.zeros_like),
    "a covariance that is not square": tensor("task-0001", "inference/0/covariance", lambda c: c[:, :-1]),
    "a covariance that is not symmetric": tensor("task-0001", "inference/0/covariance", asymmetric),
    "a negative covariance": tensor("task-0001", "inference/0/covariance", lambda c: -c),
    "means of another length": tensor("task-0001", "inference/0/mean", lambda m: m[:-1]),
    "no ridge": at("state.inference.absolute_ridge", None),
    "a ridge of zero": at("state.inference.absolute_ridge", 0.0),
    "a negative ridge": at("state.inference.absolute_ridge", -1.0),
    "gigabytes in a line": lambda f: linear(f, 40_000),
    "more than memory in a line": lambda f: linear(f, 10**9),
    "a network without end": deep_network,
    "many tasks": many_tasks,
    "many states": many_states,
    "too deep": nested,
    "inputs of another shape": at("input_shape", [9]),
    "absurd inputs": at("input_shape", [10**9, 10**9]),
    "inputs of no number": at("input_shape", ["8"]),
    "negative examples": at("tasks.0.examples", -1),
    "a seed too large": at("seed", 2**64),
    "classes of another number": at("tasks.0.classes", [0, 1, 2]),
    "the same class twice": at("tasks.0.classes", [0, 0]),
    "outputs of another number": at("state.tasks.0.outputs", 4),
    "the same name twice": at("tasks.0.name", "t2"),
    "an accuracy of 101": at("tasks.0.accuracy", 101),
    "serials that fall": at("state.tasks.0.serial", 99),
    "no Gaussians": at("state.tasks.0.inference.groups", []),
    "a Gaussian of no rows": at("state.tasks.0.inference.groups", [0]),
    "φ of no layer": at("state.features.layers", ["nothing"]),
    "φ of another layer": at("state.features.layers", ["3"]),
    "φ of a layer twice": at("state.features.layers", ["0", "0"]),
    "a history of another kind": at("history", [{"event": "eaten", "serial": 0, "version": None}]),
    "another head": at("configuration.head", "0"),
    "a layer less": at("configuration.layers", ["0"]),
    "layers by pattern": at("configuration.layers", ["*"]),
    "a method that is none": at("method", "nothing"),
    "another method": at("method", "ewc"),
    "a face that is none": at("face", "smile"),
    "a part too many": lambda f: f.parts.update(more={"x": torch.zeros(1)}),
}


@pytest.fixture(scope="module")
def learner_folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    path = tmp_path_factory.mktemp("evil") / "model"
    learner = fresh()
    for number in range(4):
        learner.learn(*examples(number), task=f"t{number}")
    learner.forget("t0")
    learner.save(path)
    return Folder.read(path)


@pytest.mark.parametrize("evil", EVIL)
def test_what_does_not_fit_together_is_refused(learner_folder: Folder, tmp_path: Path, evil: str) -> None:
    folder = learner_folder.changed()
    EVIL[evil](folder)
    folder.write(tmp_path / "model")
    assert apart(tmp_path / "model") == "refused"


@pytest.fixture(scope="module")
def baseline_folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Another method's: its own tensors are its own affair, but nothing of them ends in a traceback."""
    out = tmp_path_factory.mktemp("run")
    config = RunConfig("split-digits", method="ewc", preset="quick", tasks=2, changes={"epochs": 1})
    run(config, out / "r", command="")
    return Folder.read(next((out / "r").rglob("manifest.json")).parent)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The method is found as in an installed package."""
    entry = EntryPoint("ewc", "ibpwf.lab.methods.penalties:EWC", registry.METHODS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry] if group == registry.METHODS else [])


def change_network(folder: Folder, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    part = folder.parts["network"]
    first = sorted(part)[0]
    part[first] = change(part[first])


OTHERS: dict[str, Change] = {
    "NaN": lambda f: change_network(f, lambda t: t * float("nan")),
    "another shape": lambda f: change_network(f, lambda t: t[:-1]),
    "a tensor too few": lambda f: f.parts["network"].popitem(),
    "no network": lambda f: f.parts.pop("network"),
    "gigabytes": lambda f: f.content["configuration"].update(input_shape=[10**9]),
    "classes of another number": EVIL["classes of another number"],
    "many tasks": EVIL["many tasks"],
    "a seed too large": EVIL["a seed too large"],
    "a state that is none": lambda f: f.content.update(state={"classes": 3}),
}


@pytest.mark.usefixtures("registered")
def test_another_methods_folder_answers(baseline_folder: Folder, tmp_path: Path) -> None:
    baseline_folder.write(tmp_path / "model")
    assert apart(tmp_path / "model").startswith("answers")


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("evil", OTHERS)
def test_another_methods_folder_of_the_wrong_content_is_refused(
    baseline_folder: Folder, tmp_path: Path, evil: str
) -> None:
    folder = baseline_folder.changed()
    OTHERS[evil](folder)
    folder.write(tmp_path / "model")
    assert apart(tmp_path / "model") == "refused"
