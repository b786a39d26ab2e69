"""Tasks learned with turns, and tasks told by router and experts together, are exported with all they answer by."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import ibpwf
from ibpwf import ContinualClassifier, Learner, Settings
from ibpwf.cli.export import show
from ibpwf.errors import InputError
from ibpwf.exporting.graph import Expert
from ibpwf.exporting.source import Source
from ibpwf.images import Images
from ibpwf.inference.base import Batch, Context, Features
from ibpwf.inference.features import patches
from ibpwf.inference.features.patches import Patches
from ibpwf.inference.router import Router
from ibpwf.storage.network_json import build

DIGITS = load_digits()
IMAGES, LABELS = torch.from_numpy(DIGITS.images).float().unsqueeze(1) / 16, torch.from_numpy(DIGITS.target).long()
TASKS = ((0, 1), (1, 2, 3))  # 1 returns
X = IMAGES[200:240]
SETTINGS = Settings(
    alpha=6.0,
    epochs=3,
    finetune_epochs=2,
    batch_size=16,
    learning_rate=0.02,
    turns=4,
    mirror=True,
    validation_fraction=0.2,
    inference="router",
    **{"inference.features": "patches", "inference.features.mirror": True, "inference.features.filters": 12},
)


def rows_of(classes: Iterable[int], rows: int = 60) -> tuple[Tensor, Tensor]:
    chosen = torch.isin(LABELS, torch.tensor([*classes]))
    return IMAGES[chosen][:rows], LABELS[chosen][:rows]


@functools.cache
def _taught(**changes: Any) -> Learner:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 12))
    learner = Learner(net, SETTINGS.replace(**changes), seed=1, device="cpu")
    for classes in TASKS:
        learner.learn(*rows_of(classes), task="/".join(map(str, classes)))
    return learner


def taught(**changes: Any) -> Learner:
    return _taught(**changes).fork()


def by_label(learner: Learner, x: Tensor = X) -> tuple[np.ndarray, np.ndarray]:
    """P(label|x) and P(t|x) of a learner: a label that two tasks have gets the sum."""
    told = learner.predict(x, marginal=True)
    labels = sorted({label for _, label in told.classes})
    found = np.zeros((len(x), len(labels)))
    for column, (_, label) in enumerate(told.classes):
        found[:, labels.index(label)] += told.probabilities[:, column].numpy()
    return found, told.task_probabilities.numpy()


def run(path: Path, x: Tensor) -> list[np.ndarray]:
    """An exported file's answers, without the model."""
    if path.suffix == ".onnx":
        runtime = pytest.importorskip("onnxruntime")
        found: list[np.ndarray] = runtime.InferenceSession(path).run(None, {"x": x.numpy()})
        return found
    with torch.no_grad():
        out = torch.export.load(path).module()(x)
    return [one.numpy() for one in (out if isinstance(out, tuple) else (out,))]


def graph_answers(model: Learner | ContinualClassifier, x: Tensor, task: int | None = None) -> list[np.ndarray]:
    with torch.no_grad():
        out = Source.of(model).graph(task)(x)
    return [one.numpy() for one in (out if isinstance(out, tuple) else (out,))]


def close(found: Any, expected: Any, within: float = 5e-6) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=within)


# One task


@pytest.mark.parametrize("to", ["onnx", "pt2"])
def test_a_turned_task_answers_by_all_its_turns_and_its_temperature_for_any_number_of_rows(
    to: Any, tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript")
    learner = taught()
    done = ibpwf.export(learner, "1/2/3", to, tmp_path / f"m.{to}")
    assert done.about["labels"] == [1, 2, 3]
    assert abs(learner.method.temperature(1) - 1) > 0.01  # by which dividing is seen
    own = [column for column, (task, _) in enumerate(learner.predict(X[:1], task=1).classes) if task == 1]
    for x in (X[:1], X[:2], X):
        (found,) = run(tmp_path / f"m.{to}", x)
        close(found, learner.predict(x, task=1).probabilities[:, own])
    unturned = learner.merge(1)(X).detach().softmax(1)
    assert np.abs(unturned.numpy() - found).max() > 0.01


@pytest.mark.parametrize("heads", ["shared", "per-task"])
@pytest.mark.parametrize("changes", [{}, {"views": "plain"}, {"mirror": False}], ids=str)
def test_a_task_is_looked_at_as_the_settings_say(heads: str, changes: dict[str, Any]) -> None:
    mirror = changes.get("mirror", True)
    learner = taught(heads=heads, mirror=mirror, **{"inference.features.mirror": mirror})
    learner.settings = learner.settings.replace(**changes)
    for task, classes in enumerate(TASKS):
        told = learner.predict(X, task=task)
        own = [column for column, (owner, _) in enumerate(told.classes) if owner == task]
        (found,) = graph_answers(learner, X, task)
        assert found.shape == (len(X), len(classes))
        close(found, told.probabilities[:, own])


def test_plain_weights_of_a_turned_task_say_that_they_answer_for_images_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learner = taught(heads="per-task")
    done = ibpwf.export(learner, "0/1", "safetensors", tmp_path / "m.safetensors")
    about = json.loads((tmp_path / "m.json").read_text())["network"]
    assert (about["classes"], about["turns"], about["mirror"]) == (2, 4, True)
    assert about["temperature"] == learner.method.temperature(0)
    assert "the mean over 4 quarter turns, each also mirrored" in about["words"]
    net = build(about["architecture"])
    net.load_state_dict(safetensors.torch.load_file(tmp_path / "m.safetensors"))
    learner.settings = learner.settings.replace(views="plain")
    close(net(X).detach(), learner.logits(X, 0))
    show(done, "safetensors")
    said = " ".join(capsys.readouterr().out.split())
    assert "class scores of the image as it is, unturned; the model itself" in said

    plain = ibpwf.export(learner, "0/1", "safetensors", tmp_path / "plain.safetensors")
    assert plain.about["network"]["turns"] == 1
    assert plain.about["network"]["words"].startswith("class scores as the model has them")
    show(plain, "safetensors")
    assert "unturned" not in capsys.readouterr().out


# All tasks


@pytest.mark.parametrize("to", ["onnx", "pt2"])
def test_router_and_turned_experts_answer_together_in_one_graph(to: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    learner = taught()
    done = ibpwf.export(learner, None, to, tmp_path / f"m.{to}")
    assert (done.about["labels"], done.about["tasks"]) == ([0, 1, 2, 3], ["0/1", "1/2/3"])
    assert done.difference is not None
    for x in (X[:1], X):
        for found, expected in zip(run(tmp_path / f"m.{to}", x), by_label(learner, x), strict=True):
            close(found, expected)
    assert np.ptp(expected, axis=0).min() > 0.3  # the tasks of these rows are not all the same


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({"inference.experts": "likely"}, 2),
        ({"inference.experts": 1}, 2),
        ({"inference.experts": 5}, 2),
        ({"inference.experts": 0}, 0),
        ({"inference.expert_weight": 0.3}, 2),
        ({"inference.expert_weight": 0.0}, 0),
    ],
    ids=str,
)
def test_those_experts_count_for_a_row_that_the_settings_ask(changes: dict[str, Any], asked: int) -> None:
    learner = taught()
    everyone = by_label(learner)[0]
    learner.settings = learner.settings.replace(**changes)
    expected = by_label(learner)
    for found, own in zip(graph_answers(learner, X), expected, strict=True):
        close(found, own)
    assert np.abs(expected[0] - everyone).max() > 1e-3 or changes == {"inference.experts": 5}
    graph = Source.of(learner).graph(None)
    assert sum(isinstance(module, Expert) for module in graph.modules()) == asked


def test_a_graph_can_leave_out_unlikely_experts(tmp_path: Path) -> None:
    learner = taught()
    learner.settings = learner.settings.replace(**{"inference.experts": 1})
    ibpwf.export(learner, None, "pt2", tmp_path / "m.pt2")
    for found, own in zip(run(tmp_path / "m.pt2", X[:7]), by_label(learner, X[:7]), strict=True):
        close(found, own)


@pytest.mark.parametrize(
    "changes",
    [{"inference.features": "random", "inference.features.width": 30}, {"inference.features": "layer"}],
    ids=str,
)
def test_a_router_on_other_features_is_exported_too(changes: dict[str, Any]) -> None:
    learner = taught(**changes)
    for found, own in zip(graph_answers(learner, X), by_label(learner), strict=True):
        close(found, own)


@pytest.mark.parametrize("held_out", [0.0, 0.2])
def test_gaussians_mix_turned_tasks_with_their_temperatures(held_out: float) -> None:
    learner = taught(
        inference="gaussian", validation_fraction=held_out, **{"inference.features": "layer", "inference.ridge": 1e-2}
    )
    for found, own in zip(graph_answers(learner, X), by_label(learner), strict=True):
        close(found, own)


# Flat rows


def test_a_classifier_of_flat_rows_is_exported_with_the_images_that_they_are(tmp_path: Path) -> None:
    chosen = {
        "turns": 4,
        "mirror": True,
        "validation_fraction": 0.2,
        "inference.features.width": 40,
        "input.shape": (1, 8, 8),
    }
    classifier = ContinualClassifier(hidden=(12,), epochs=3, settings=chosen, device="cpu")
    words = np.array(["zero", "one", "two", "three"])
    for classes in TASKS:
        x, y = rows_of(classes)
        classifier.learn(x.flatten(1).numpy() * 16, words[y], task="/".join(words[[*classes]]))
    x = 16 * X.flatten(1).double()
    done = ibpwf.export(classifier, None, "pt2", tmp_path / "m.pt2")
    assert done.about["labels"] == classifier.classes_.tolist() == ["one", "three", "two", "zero"]
    assert done.about["input"]["shape"] == [64]
    found, tasks = run(tmp_path / "m.pt2", x)
    close(found, classifier.predict_proba(x.numpy()))
    assert np.array(done.about["tasks"])[tasks.argmax(1)].tolist() == classifier.predict_task(x.numpy()).tolist()
    (given,) = graph_answers(classifier, x, 1)
    columns = [classifier.classes_.tolist().index(label) for label in ("one", "three", "two")]
    assert Source.of(classifier).labels(1) == ["one", "three", "two"]
    close(given, classifier.predict_proba(x.numpy(), task=1)[:, columns])


def test_a_router_of_flat_rows_is_exported_with_the_images_that_they_are() -> None:
    net = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 12))
    learner = Learner(net, SETTINGS.replace(**{"input.shape": (1, 8, 8)}), device="cpu")
    for classes in TASKS:
        x, y = rows_of(classes)
        learner.learn(x.flatten(1), y)
    for found, own in zip(graph_answers(learner, X.flatten(1)), by_label(learner, X.flatten(1)), strict=True):
        close(found, own)


# Patches


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 12)], ids=str)
@pytest.mark.parametrize("responses", [1, 2**18])
@pytest.mark.parametrize("patch", [(6,), (3, 5)], ids=str)
def test_patch_features_are_the_same_in_a_graph_line_by_line_or_at_once(
    mirror: bool,
    shape: tuple[int, int, int],
    responses: int,
    patch: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patches, "RESPONSES", responses)
    x = torch.rand(20, *shape, generator=torch.Generator().manual_seed(0))
    x[:5, :, :, :7] = 0.5  # with blank patches
    features = Patches(filters=9, sizes=patch, mirror=mirror).bound(Context(images=Images(shape=shape)))
    features.fit([(x, torch.zeros(20))], 20, torch.Generator().manual_seed(1))
    traced = features.export_module()
    with torch.no_grad():
        for rows in (x, x.flatten(1)):
            close(traced(rows), features(rows), 1e-4)


def test_a_graph_answers_by_patches_of_several_sizes() -> None:
    learner = taught(**{"inference.features.sizes": (3, 5)})
    for found, own in zip(graph_answers(learner, X), by_label(learner), strict=True):
        close(found, own)


# What cannot be


class OwnRouter(Router):
    """Tells classes apart otherwise than the router of the house."""

    def class_log_scores(self, phi: Tensor) -> Tensor:
        return 2 * super().class_log_scores(phi).tanh()


class Brightness(Features):
    def __call__(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :20].double()

    def fit(self, batches: Iterable[Batch], rows: int, generator: torch.Generator) -> None:
        pass


@pytest.mark.parametrize(
    ("inference", "words"),
    [
        (OwnRouter(), "OwnRouter.*cannot be put into one graph"),
        (Router(features=Brightness()), "Brightness.*cannot be put into one graph"),
    ],
)
def test_a_router_or_features_of_ones_own_are_exported_one_task_at_a_time(
    inference: Router, words: str, tmp_path: Path
) -> None:
    settings = SETTINGS.replace(epochs=1, finetune_epochs=0, validation_fraction=0.0, inference=inference)
    learner = Learner(nn.Sequential(nn.Flatten(), nn.Linear(64, 12)), settings, device="cpu")
    learner.learn(*rows_of((0, 1)), task="a")
    with pytest.raises(InputError, match=words) as caught:
        ibpwf.export(learner, None, "pt2", tmp_path / "m.pt2")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
    ibpwf.export(learner, "a", "pt2", tmp_path / "m.pt2")
    close(run(tmp_path / "m.pt2", X)[0], learner.predict(X, task=0).probabilities)
