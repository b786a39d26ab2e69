"""An exported file answers as the model does, without the model."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from sklearn.datasets import load_digits
from torch import nn

import ibpwf
from ibpwf import ContinualClassifier, Learner, Settings, models
from ibpwf.data import read_examples
from ibpwf.data.layout import Column, Layout
from ibpwf.exporting.source import Source
from ibpwf.exporting.writing import script
from ibpwf.storage.network_json import build

pytest.importorskip("onnxscript")
runtime = pytest.importorskip("onnxruntime")

WORDS = np.array(["zero", "one", "two", "three", "four"])
TASKS = (["zero", "one"], ["two", "three"], ["one", "four"])  # "one" returns
X, NUMBERS = load_digits(n_class=5, return_X_y=True)
Y = WORDS[NUMBERS]


def table(x: np.ndarray[Any, Any]) -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(x, columns=[f"pixel {i}" for i in range(x.shape[1])])


@pytest.fixture(scope="module")
def classifier() -> ContinualClassifier:
    made = ContinualClassifier(hidden=(20,), epochs=4, settings={"inference.features.width": 100}, device="cpu")
    for task in TASKS:
        rows = np.isin(Y, task)
        made.learn(table(X[rows]), Y[rows], task="/".join(task))
    return made


@pytest.fixture(scope="module")
def files(classifier: ContinualClassifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model, one task of it and the whole of it as ONNX, and the program beside them."""
    folder = tmp_path_factory.mktemp("exported")
    classifier.save(folder / "digits")
    ibpwf.export(folder / "digits", "two/three", "onnx", folder)
    ibpwf.export(classifier, None, "onnx", folder / "whole.onnx")
    return folder


def opened(path: Path) -> tuple[Any, dict[str, Any]]:
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session, json.loads(session.get_modelmeta().custom_metadata_map["ibpwf"])


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, atol=2e-6)


# ONNX


def test_a_task_in_onnx_runtime_answers_as_the_classifier_for_any_number_of_rows(
    classifier: ContinualClassifier, files: Path
) -> None:
    session, about = opened(files / "digits-two-three.onnx")
    assert about["labels"] == ["three", "two"]
    taken = {"shape": [64], "dtype": "float64", "range": [0.0, 16.0], "missing": False}
    assert (about["task"], about["input"]) == ("two/three", taken)
    assert about["features"][3] == {"column": "pixel 3"}
    assert about["preprocessing"]["included"] is True
    columns = [classifier.classes_.tolist().index(label) for label in about["labels"]]
    for x in (X[:1], X[:50], 40 * X[50:90] - 100):  # far beyond what was learnt as well
        (found,) = session.run(None, {"x": x})
        close(found, classifier.predict_proba(table(x), task="two/three")[:, columns])


def test_the_whole_model_infers_the_task_in_onnx_runtime(classifier: ContinualClassifier, files: Path) -> None:
    session, about = opened(files / "whole.onnx")
    assert about["task"] is None
    assert about["labels"] == classifier.classes_.tolist()
    found, tasks = session.run(None, {"x": X})
    close(found, classifier.predict_proba(table(X)))
    close(tasks, classifier.prediction(table(X), novelty=False).task_probabilities)
    clear = tasks.max(1) > 0.6  # the rows of "one" are two tasks' alike
    assert clear.sum() > 300
    assert (np.array(about["tasks"])[tasks.argmax(1)] == classifier.predict_task(table(X)))[clear].all()


# predict.py


def run_script(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """In isolated mode, and in a process that fails if anything of ours, or torch, has been imported."""
    code = (
        "import runpy, sys; sys.argv = ['predict.py', *sys.argv[1:]]; runpy.run_path('predict.py'); "
        "assert not {'torch', 'ibpwf', 'onnx', 'pandas', 'sklearn'} & set(sys.modules)"
    )
    return subprocess.run(
        [sys.executable, "-I", "-c", code, *words], cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_program_beside_it_is_short_and_answers_tables_by_the_names_of_their_columns(
    classifier: ContinualClassifier, files: Path
) -> None:
    assert len((files / "predict.py").read_text().splitlines()) < 110
    asked = table(X[:40])
    asked.assign(label=Y[:40])[["label", *reversed(asked.columns)]].to_csv(files / "rows.csv", index=False)
    done = run_script(files, "whole.onnx", "rows.csv")
    assert done.returncode == 0, done.stderr
    told = list(csv.reader(io.StringIO(done.stdout)))
    assert [label for label, _ in told] == classifier.predict(asked).tolist()
    close([float(p) for _, p in told], classifier.predict_proba(asked).max(1))
    np.savez(files / "rows.npz", x=X[:40])
    assert run_script(files, "whole.onnx", "rows.npz").stdout == done.stdout


def test_the_program_says_in_a_sentence_what_is_wrong(files: Path) -> None:
    rows = table(X[:2])
    rows.drop(columns="pixel 7").to_csv(files / "less.csv", index=False)
    rows.astype(object).replace({"pixel 7": {rows["pixel 7"][0]: "many"}}).to_csv(files / "text.csv", index=False)
    np.savez(files / "wide.npz", x=np.zeros((2, 65)))
    np.savez(files / "nan.npz", x=np.full((2, 64), np.nan))
    for data, words in {
        "less.csv": "no column or array 'pixel 7'",
        "text.csv": "could not convert string to float: 'many'",
        "wide.npz": "cannot reshape array",
        "nan.npz": "NaN",
        "none.csv": "No such file",
    }.items():
        done = run_script(files, "whole.onnx", data)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("error: ")
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    assert "MODEL.onnx DATA.csv" in run_script(files, "whole.onnx").stderr


def test_columns_of_words_are_read_as_the_model_learnt_them(tmp_path: Path) -> None:
    columns = (Column("size"), Column("colour", "category", ("blue", "red")), Column("new", "boolean"))
    layout = Layout("table", (4,), columns, label="label", means=(2.5, 0.5, 0.5, 0.5))
    x = np.array([[1, 1, 0, 0], [2, 0, 1, 1], [3, 1, 0, 1], [4, 0, 1, 0]] * 8, dtype=float)
    made = ContinualClassifier(hidden=(4,), epochs=2, settings={"inference.features.width": 10}, device="cpu")
    made.learn(x, np.array(["left", "right"] * 16))
    made.save(tmp_path / "model", extra={"layout": layout.to_json()})
    ibpwf.export(tmp_path / "model", "task-1", "onnx", tmp_path / "m.onnx")
    (tmp_path / "rows.csv").write_text("size,new,colour\n1,false,blue\n2,True, red\n")
    done = run_script(tmp_path, "m.onnx", "rows.csv")
    assert done.returncode == 0, done.stderr
    told = [float(line.split(",")[1]) for line in done.stdout.splitlines()]
    close(told, made.predict_proba(x[:2], task=0).max(1))
    (tmp_path / "rows.csv").write_text("size,new,colour\n1,false,green\n")
    assert "'green' in column 'colour' was never learnt" in run_script(tmp_path, "m.onnx", "rows.csv").stderr


def test_zero_with_a_sign_is_the_category_zero(tmp_path: Path) -> None:
    cells = ["0", "-0.0", "1", "2", "0.0", "-0", "+0", "1.0"]
    rows = [f"{cell},{place},{'uv'[place % 2]}" for place, cell in enumerate(cells)]
    (tmp_path / "rows.csv").write_text("\n".join(["kind,b,y", *rows]) + "\n")
    examples = read_examples(tmp_path / "rows.csv", categories=["kind"])
    assert examples.layout.columns[0].categories == ("0", "1", "2")
    made = ContinualClassifier(hidden=(4,), epochs=2, settings={"inference.features.width": 10}, device="cpu")
    made.learn(examples.x, np.array(examples.y))
    made.save(tmp_path / "model", extra={"layout": examples.layout.to_json()})
    ibpwf.export(tmp_path / "model", "task-1", "onnx", tmp_path / "m.onnx")
    done = run_script(tmp_path, "m.onnx", "rows.csv")
    assert done.returncode == 0, done.stderr
    told = [float(line.split(",")[1]) for line in done.stdout.splitlines()]
    close(told, made.predict_proba(examples.x, task=0).max(1))


# The other formats


def test_torch_loads_a_pt2_file_that_answers_alike(classifier: ContinualClassifier, tmp_path: Path) -> None:
    done = ibpwf.export(classifier, None, "pt2", tmp_path / "m.pt2")
    assert done.files == (tmp_path / "m.pt2",)
    more = {"metadata.json": ""}
    program = torch.export.load(tmp_path / "m.pt2", extra_files=more)
    with torch.no_grad():
        found, _ = program.module()(torch.from_numpy(X[:33]))
    close(found, classifier.predict_proba(table(X[:33])))
    assert json.loads(more["metadata.json"]) == done.about


def test_plain_weights_and_their_notes_are_enough_to_build_the_network_again(
    classifier: ContinualClassifier, tmp_path: Path
) -> None:
    ibpwf.export(classifier, "one/four", "safetensors", tmp_path / "m.safetensors")
    about = json.loads((tmp_path / "m.json").read_text())
    net = build(about["network"]["architecture"])
    net.load_state_dict(safetensors.torch.load_file(tmp_path / "m.safetensors"))
    notes = about["preprocessing"]
    z = (X - np.array(notes["mean"])) / np.array(notes["scale"])
    z = np.where(np.abs(z) > 5, np.sign(z) * 5 * (1 + np.log(np.maximum(np.abs(z), 5) / 5)), z)
    with torch.no_grad():
        found = (net(torch.from_numpy(z).float()) / about["network"]["temperature"]).softmax(1)
    columns = [classifier.classes_.tolist().index(label) for label in about["labels"]]
    close(found, classifier.predict_proba(table(X), task="one/four")[:, columns])


# Learners


def test_announced_labels_have_columns_and_those_of_a_forgotten_task_have_none() -> None:
    made = ContinualClassifier(hidden=(4,), epochs=1, settings={"inference.features.width": 10}, device="cpu")
    made.partial_fit(X[NUMBERS < 2], Y[NUMBERS < 2], classes=["one", "zero", "zzz"])
    rows = np.isin(NUMBERS, (2, 3))
    made.partial_fit(X[rows], Y[rows])
    made.forget(1)
    source = Source.of(made)
    x = source.examples(20)
    with torch.no_grad():
        found, _ = source.graph(None)(x)
    assert source.labels(None) == ["one", "zero", "zzz"]
    close(found, made.predict_proba(x.numpy()))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 4)
    )


@pytest.mark.parametrize(
    ("net", "changes"),
    [
        (lambda: models.mlp(64, [12], 4), {"inference": "gaussian", "inference.per": "class"}),
        (lambda: models.mlp(64, [12], 4), {"inference.features": "factors"}),
        (conv, {"inference": "gaussian"}),
    ],
    ids=["class", "factors", "convolution"],
)
def test_a_whole_learner_answers_as_its_marginal_prediction(
    net: Any, changes: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    settings = Settings(alpha=6.0, epochs=2, finetune_epochs=1, batch_size=16, **changes, **{"inference.ridge": 1e-2})
    learner = Learner(net(), settings, device="cpu")
    x = torch.from_numpy(X / 16).float()
    x = x.reshape(-1, 1, 8, 8) if net is conv else x
    for pair in ((0, 1), (2, 3, 4)):
        rows = np.isin(NUMBERS, pair)
        learner.learn(x[rows], NUMBERS[rows])
    if "inference.features" in changes:
        learner.forget(0)  # φ is still read under its weights
    done = ibpwf.export(learner, "all", "pt2", tmp_path / "m.pt2")
    assert done.about["preprocessing"]["included"] is False
    with torch.no_grad():
        found, tasks = torch.export.load(tmp_path / "m.pt2").module()(x[:40])
    told = learner.predict(x[:40], marginal=True)
    torch.testing.assert_close(found.double(), told.probabilities, atol=1e-5, rtol=0)
    torch.testing.assert_close(tasks.double(), told.task_probabilities, atol=1e-5, rtol=0)
    assert done.about["labels"] == [label for _, label in told.classes]


def test_a_model_of_a_run_has_its_preprocessing_written_down(finished_run: Path, tmp_path: Path) -> None:
    done = ibpwf.export(finished_run / "seed-0" / "model", "2/3", "safetensors", tmp_path)
    notes = done.about["preprocessing"]
    assert (notes["included"], notes["scenario"]) == (False, "split-digits")
    assert (notes["mean"], notes["std"]) == ([0.3052], [0.3758])
    assert done.about["labels"] == [2, 3]
    assert done.files[0].name == "model-2-3.safetensors"


def test_the_program_is_the_one_in_the_package() -> None:
    assert script().startswith(b'"""Prints a label')
