"""A model as MLflow loads it: the same answers, written without MLflow."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas
import pytest
from scipy import sparse

import ibpwf
from ibpwf import ContinualClassifier, Learner, models
from ibpwf.data import ReadOptions, read_examples
from ibpwf.errors import InputError
from ibpwf.estimator.files import LearnOptions, answer_rows, learn_file, read_like_before
from ibpwf.exporting.mlflow import Answering


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a table with numbers and a category."""
    folder = tmp_path_factory.mktemp("mlflow")
    chance = np.random.default_rng(0)
    for number in range(2):
        y = np.repeat(["a", "b"] if number == 0 else ["c", "d"], 30)
        frame = pandas.DataFrame(
            chance.normal(0, 1, (60, 3)) + (y == "a")[:, None] * 3 + 6 * number, columns=list("uvw")
        )
        frame["color"] = chance.choice(["red", "blue"], 60)
        frame["label"] = y
        frame.to_csv(folder / f"{number}.csv", index=False)
        parameters = (
            {"epochs": 3, "hidden": (16,), "settings": {"inference.features.width": 32}} if number == 0 else None
        )
        learn_file(folder / "model", folder / f"{number}.csv", f"t{number}", parameters, LearnOptions(device="cpu"))
    return folder / "model"


def test_mlflow_loads_it_and_answers_as_the_model_does(model, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    done = ibpwf.export(model, to="mlflow", path=tmp_path / "served")
    assert done.files[0] == tmp_path / "served" / "MLmodel"
    rows = pandas.read_csv(model.parent / "1.csv").drop(columns="label")
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "served"))
    found = loaded.predict(rows)
    classifier = ContinualClassifier.load(model)
    layout = ibpwf.data.Layout.from_json(classifier.extra_["layout"])
    x = read_examples(model.parent / "1.csv", ReadOptions(like=layout)).x
    truth = classifier.prediction(x)
    assert found["label"].tolist() == truth.labels.tolist()
    for name in ("probability", "entropy", "novelty"):
        np.testing.assert_array_equal(found[name], getattr(truth, name))
    assert [one.name for one in loaded.metadata.signature.inputs] == ["u", "v", "w", "color"]


def test_what_is_far_from_everything_is_told_as_predict_tells_it(model):
    classifier = ContinualClassifier.load(model)
    classifier._novelty.limits = [1e-9] * 2  # as if rows had always been all alike
    table = model.parent / "1.csv"
    batches = read_like_before(classifier, table, ReadOptions())
    told = [row["novelty"] for rows in answer_rows(classifier, batches) for row in rows]
    assert set(told) == {1e6}
    found = Answering(classifier).predict(pandas.read_csv(table).drop(columns="label"))
    assert found["novelty"].tolist() == told


def test_arrays_that_hold_no_plain_numbers_are_rejected_and_others_answered():
    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    classifier = ContinualClassifier(hidden=(8,), epochs=1, settings={"inference.features.width": 16}, device="cpu")
    answering = Answering(classifier.learn(x, np.arange(24) % 2))
    mask = np.zeros(x.shape, bool)
    mask[7, 1] = True
    bad = {
        "row 7, column 1": np.ma.array(x, mask=mask),
        "text": x.astype(str),
        "dates": x.astype("datetime64[s]"),
        "text.*column 'b'": pandas.DataFrame(x.astype(str), columns=list("abc")).astype({"a": float}),
        "9007199254740993": np.full((2, 3), 2**53 + 1),
    }
    for words, rows in bad.items():
        with pytest.raises(InputError, match=words):
            answering.predict(rows)
    expected = classifier.prediction(x).probability
    for rows in (x, x.astype(np.float64), x.tolist(), pandas.DataFrame(x), sparse.csr_matrix(x)):
        np.testing.assert_array_equal(answering.predict(rows)["probability"], expected)


def test_mlflow_serves_it_with_the_same_answers(model, tmp_path):
    """By the program `mlflow models serve`, over HTTP."""
    pytest.importorskip("mlflow")
    httpx = pytest.importorskip("httpx")
    ibpwf.export(model, to="mlflow", path=tmp_path / "served")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    words = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(tmp_path / "served"), "-p", port]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    log = (tmp_path / "log").open("w")
    served = subprocess.Popen(
        [*words, "--env-manager", "local"], env={**os.environ, "PATH": path}, stdout=log, stderr=log, process_group=0
    )
    try:
        end = time.monotonic() + 120
        while time.monotonic() < end and served.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{port}/ping").status_code == 200:
                    break
            time.sleep(0.2)
        rows = pandas.read_csv(model.parent / "1.csv").drop(columns="label")
        body = {"dataframe_split": rows.to_dict("split", index=False)}
        sent = httpx.post(f"http://127.0.0.1:{port}/invocations", json=body, timeout=60).json()["predictions"]
    finally:
        os.killpg(served.pid, signal.SIGKILL)
        served.wait()
        log.close()
    classifier = ContinualClassifier.load(model)
    layout = ibpwf.data.Layout.from_json(classifier.extra_["layout"])
    truth = classifier.prediction(read_examples(model.parent / "1.csv", ReadOptions(like=layout)).x)
    assert [row["label"] for row in sent] == truth.labels.tolist()
    np.testing.assert_allclose([row["probability"] for row in sent], truth.probability, rtol=1e-6)


def test_it_is_written_without_mlflow(model, tmp_path):
    code = (
        "import sys; sys.modules['mlflow'] = None\n"
        f"import ibpwf; ibpwf.export({str(model)!r}, to='mlflow', path={str(tmp_path / 'out')!r})"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "out" / "model" / "manifest.json").exists()


def test_what_is_there_is_not_written_over_and_what_has_no_labels_is_refused(model, tmp_path):
    ibpwf.export(model, to="mlflow", path=tmp_path / "out")
    with pytest.raises(InputError, match="--overwrite"):
        ibpwf.export(model, to="mlflow", path=tmp_path / "out")
    ibpwf.export(model, to="mlflow", path=tmp_path / "out", overwrite=True)
    (tmp_path / "out" / "letter.txt").write_text("mine")
    with pytest.raises(InputError, match=r"letter\.txt"):
        ibpwf.export(model, to="mlflow", path=tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "letter.txt").read_text() == "mine"
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match="exists already"):
        ibpwf.export(model, to="mlflow", path=tmp_path / "mine", overwrite=True)
    with pytest.raises(InputError, match="leave the task out"):
        ibpwf.export(model, "t0", to="mlflow", path=tmp_path / "other")
    learner = Learner(models.mlp(4, [4], 2), ibpwf.Settings(epochs=1, finetune_epochs=0))
    learner.learn(np.zeros((8, 4), dtype=np.float32), np.arange(8) % 2)
    with pytest.raises(InputError, match="ContinualClassifier"):
        ibpwf.export(learner, to="mlflow", path=tmp_path / "learner")
