"""An exported model prepares inputs as `ibpwf predict` does, row by row, or refuses them; it never guesses."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ibpwf
from ibpwf import ContinualClassifier
from ibpwf.errors import InputError
from ibpwf.estimator.files import (
    LearnOptions,
    ReadOptions,
    answer_rows,
    learn_file,
    load_classifier,
    read_like_before,
)

runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

QUICK: dict[str, Any] = {"hidden": (16,), "epochs": 4, "settings": {"inference.features.width": 40}}
RNG = np.random.default_rng(0)
MEANS = RNG.integers(40, 216, (4, 5, 6, 3))


def images(classes: tuple[int, ...], each: int = 25) -> tuple[np.ndarray, np.ndarray]:
    """Small coloured pictures, N×height×width×channels, as bytes."""
    y = np.repeat(classes, each)
    return np.clip(MEANS[y] + RNG.normal(0, 30, (len(y), 5, 6, 3)), 0, 255).astype(np.uint8), y


def learn(folder: Path, name: str, task: str, **options: Any) -> None:
    how = LearnOptions(ReadOptions(**options), device="cpu")
    learn_file(folder / "model", folder / name, task, QUICK if not (folder / "model").exists() else {}, how)


def predicted(folder: Path, name: str, task: str | None = None) -> tuple[list[str], list[float]]:
    """What `ibpwf predict` answers."""
    classifier = load_classifier(folder / "model", "cpu")
    batches = read_like_before(classifier, folder / name, ReadOptions(with_labels=False))
    rows = [row for batch in answer_rows(classifier, batches, task) for row in batch]
    return [row["label"] for row in rows], [row["probability"] for row in rows]


def script(folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-I", "predict.py", "whole.onnx", name]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


def agrees(folder: Path, name: str) -> None:
    """The script answers a file as `ibpwf predict` does, row by row."""
    done = script(folder, name)
    assert done.returncode == 0, done.stderr
    told = list(csv.reader(io.StringIO(done.stdout)))
    labels, probabilities = predicted(folder, name)
    assert [label for label, _ in told] == labels
    np.testing.assert_allclose([float(p) for _, p in told], probabilities, atol=2e-6)


@dataclass(frozen=True)
class Run:
    """Every exported file of a model, as functions from its inputs to labels and probabilities."""

    folder: Path

    def __call__(self, x: np.ndarray, to: str, task: str | None) -> tuple[list[str], np.ndarray]:
        done = ibpwf.export(self.folder / "model", task, to, self.folder / f"m.{to}", overwrite=True)  # type: ignore[arg-type]
        assert done.difference is not None
        assert done.difference < 1e-5
        if to == "onnx":
            session = runtime.InferenceSession(self.folder / "m.onnx", providers=["CPUExecutionProvider"])
            found = session.run(None, {"x": x})[0]
        else:
            with torch.no_grad():
                out = torch.export.load(self.folder / "m.pt2").module()(torch.from_numpy(x))
            found = (out[0] if isinstance(out, tuple) else out).numpy()
        return [str(done.about["labels"][row.argmax()]) for row in found], found.max(1)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a folder of PNG files and an .npz file of bytes, and the same images to ask it in other files."""
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path_factory.mktemp("pictures")
    x, y = images((0, 1))
    for number, (pixels, kind) in enumerate(zip(x, y, strict=True)):
        (folder / "photos" / f"kind {kind}").mkdir(parents=True, exist_ok=True)
        image.fromarray(pixels).save(folder / "photos" / f"kind {kind}" / f"{number:03}.png")
    learn(folder, "photos", "photos")
    x, y = images((2, 3))
    np.savez(folder / "more.npz", x=x, y=y)
    learn(folder, "more.npz", "more")
    asked, _ = images((0, 1, 2, 3))
    np.savez(folder / "last.npz", x=asked)
    np.savez(folder / "first.npz", x=asked.transpose(0, 3, 1, 2))
    np.savez(folder / "floats.npz", x=asked / 255)
    np.savez(folder / "large.npz", x=asked.astype(np.float32))
    np.savez(folder / "wide.npz", x=asked[:, :, :5])
    (folder / "asked").mkdir()
    for number, pixels in enumerate(asked):
        image.fromarray(pixels).save(folder / "asked" / f"{number:03}.png")
    ibpwf.export(folder / "model", None, "onnx", folder / "whole.onnx")
    return folder


@pytest.mark.parametrize("to", ["onnx", "pt2"])
@pytest.mark.parametrize("task", [None, "more"])
def test_pixels_of_image_files_go_into_the_graph_as_they_are(pictures: Path, to: str, task: str | None) -> None:
    image = pytest.importorskip("PIL.Image")
    files = sorted((pictures / "asked").iterdir())
    x = np.stack([np.asarray(image.open(file)) for file in files])
    labels, found = Run(pictures)(x, to, task)
    expected, probabilities = predicted(pictures, "asked", task)
    assert labels == expected
    np.testing.assert_allclose(found, probabilities, atol=2e-6)
    assert len(set(labels)) == (4 if task is None else 2)


@pytest.mark.parametrize("name", ["last.npz", "first.npz"])
def test_the_script_answers_bytes_as_the_command_does_wherever_the_colours_stand(pictures: Path, name: str) -> None:
    agrees(pictures, name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("large.npz", "x holds float32, the model takes images of uint8"),
        ("floats.npz", "x holds float64, the model takes images of uint8"),
        ("wide.npz", "the model takes images of [5, 6, 3]"),
        ("asked/000.png", "000.png is no .csv, .tsv or .npz file"),
    ],
)
def test_the_script_refuses_images_that_are_not_as_those_learnt(pictures: Path, name: str, words: str) -> None:
    done = script(pictures, name)
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_floats_beyond_what_bytes_become_are_refused_and_those_within_are_answered_alike(pictures: Path) -> None:
    with pytest.raises(InputError, match=r"large\.npz holds floats from 0 to 255, but earlier images were bytes"):
        predicted(pictures, "large.npz")
    x, y = images((0, 1))
    np.savez(pictures / "task.npz", x=x.astype(float), y=y)
    with pytest.raises(
        InputError, match=r"task\.npz holds floats from .*give bytes \(uint8\), or floats from 0 to 1"
    ):
        learn(pictures, "task.npz", "third")
    assert predicted(pictures, "floats.npz")[0] == predicted(pictures, "last.npz")[0]


def test_onnx_runtime_itself_refuses_other_types_and_shapes(pictures: Path) -> None:
    session = runtime.InferenceSession(pictures / "whole.onnx", providers=["CPUExecutionProvider"])
    x = np.load(pictures / "last.npz")["x"]
    for wrong in (x.astype(np.float32), x / 255, x.transpose(0, 3, 1, 2), x.reshape(len(x), -1)):
        with pytest.raises(Exception, match=r"INVALID_ARGUMENT|Unexpected input|Got invalid dimensions"):
            session.run(None, {"x": wrong})


def test_float_images_are_answered_alike_and_other_scales_are_refused(tmp_path: Path) -> None:
    x, y = images((0, 1))
    np.savez(tmp_path / "first.npz", x=x.astype(float).transpose(0, 3, 1, 2), y=y)
    learn(tmp_path, "first.npz", "first")
    ibpwf.export(tmp_path / "model", None, "onnx", tmp_path / "whole.onnx")
    for name, given in {"first.npz": x.astype(np.float32), "last.npz": x.transpose(0, 3, 1, 2).astype(float)}.items():
        np.savez(tmp_path / name, x=given)
        agrees(tmp_path, name)
    labels, _ = Run(tmp_path)(x.astype(float), "pt2", None)
    assert labels == predicted(tmp_path, "first.npz")[0]
    np.savez(tmp_path / "small.npz", x=x / 255)
    assert "what was learnt lay from 0 to 255; convert x" in script(tmp_path, "small.npz").stderr
    with pytest.warns(UserWarning, match="on another scale than what was learnt"):
        predicted(tmp_path, "small.npz")
    np.savez(tmp_path / "bytes.npz", x=x)
    assert "x holds uint8, the model takes images of float64" in script(tmp_path, "bytes.npz").stderr
    with pytest.raises(
        InputError, match=r"bytes\.npz holds bytes, which are read as 0 to 1, but earlier images were"
    ):
        predicted(tmp_path, "bytes.npz")


GAPS = "size,shade,new,label\n1,red,true,a\n,blue,false,b\n3,,true,a\n4,3.0,,b\n5,red,false,a\nNA,blue,true,b\n"


def test_missing_values_and_unknown_words_are_taken_as_the_command_takes_them(tmp_path: Path) -> None:
    (tmp_path / "gaps.csv").write_text(GAPS + GAPS.split("\n", 1)[1] * 4)
    learn(tmp_path, "gaps.csv", "gaps", missing="mean", unknown="zeros", categories=["shade"])
    ibpwf.export(tmp_path / "model", None, "onnx", tmp_path / "whole.onnx")
    (tmp_path / "asked.csv").write_text("new,size,shade\ntrue,2,red\n,,\nfalse,n/a,green\nTrue,4,3\n1,null,3.00\n")
    agrees(tmp_path, "asked.csv")
    classifier = ContinualClassifier.load(tmp_path / "model", device="cpu")
    means = classifier.extra_["layout"]["means"]
    x = np.array([[2, 0, 0, 1, 1], [np.nan] * 5, [4, 1, 0, 0, 0]])
    for to in ("onnx", "pt2"):
        _, found = Run(tmp_path)(x, to, None)
        np.testing.assert_allclose(found, classifier.predict_proba(np.where(np.isnan(x), means, x)).max(1), atol=2e-6)
    done = ibpwf.export(tmp_path / "model", "gaps", "safetensors", tmp_path / "m.safetensors")
    assert done.about["preprocessing"]["fill_in"] == means
    assert "missing values (NaN) become fill_in" in done.about["preprocessing"]["words"]


def test_without_filling_in_a_gap_is_refused_and_so_is_another_scale(tmp_path: Path) -> None:
    (tmp_path / "whole.csv").write_text("size,label\n" + "1,=cmd|'calc'!A1\n2,-1.5\n" * 6)
    learn(tmp_path, "whole.csv", "whole")
    ibpwf.export(tmp_path / "model", None, "onnx", tmp_path / "whole.onnx")
    for content, words in {
        "size,other\n,1\n": "could not convert",
        "size\n" + "250\n" * 9: "convert x",
        "size\n\n": "has no rows",
    }.items():
        (tmp_path / "asked.csv").write_text(content)
        done = script(tmp_path, "asked.csv")
        assert (done.returncode, done.stdout) == (1, "")
        assert words in done.stderr
    (tmp_path / "asked.csv").write_text("size\n1\n2\n")
    labels = [line.split(",")[0] for line in script(tmp_path, "asked.csv").stdout.splitlines()]
    assert labels == ["'=cmd|'calc'!A1", "-1.5"], "a formula is text, a number a number"


def test_images_of_the_recipe_are_answered_alike(tmp_path: Path) -> None:
    """Convolutions with turns and a patch router, of images that are averaged down."""
    chance = np.random.default_rng(1)
    means = chance.integers(40, 216, (4, 10, 10, 3)).repeat(7, 1).repeat(7, 2)
    quick = {"recipe": "images", "epochs": 4, "settings": {"finetune_epochs": 2, "inference.features.filters": 6}}
    for name, classes in (("first", (0, 1)), ("second", (2, 3)), ("one class", (0,))):
        y = np.repeat(classes, 12)
        x = np.clip(means[y] + chance.normal(0, 30, (len(y), 70, 70, 3)), 0, 255).astype(np.uint8)
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
        how = LearnOptions(device="cpu")
        learn_file(tmp_path / "model", tmp_path / f"{name}.npz", name, {} if name != "first" else quick, how)
    assert load_classifier(tmp_path / "model", "cpu").learner_.input_shape == (3, 35, 35)
    done = ibpwf.export(tmp_path / "model", None, "onnx", tmp_path / "whole.onnx")
    assert done.difference is not None
    assert done.difference < 1e-5
    agrees(tmp_path, "second.npz")
