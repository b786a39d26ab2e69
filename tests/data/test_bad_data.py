"""Whatever is wrong with a user's file is said in one sentence that names file and row, with a remedy."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bad_images
import bad_tables
import numpy as np
import pytest
from bad_files import text
from bad_images import WHOLE, X, Y, npz
from bad_tables import LEARN, parquet
from sample_files import IRIS, idx, picture, pictures, two_classes

from ibpwf.cli import program as cli
from ibpwf.data import ReadOptions, read_examples
from ibpwf.errors import DataError, InputError
from ibpwf.estimator.files import LearnOptions, learn_file

BAD = {**bad_tables.BAD, **bad_images.BAD}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_rejected_in_one_line_and_makes_no_model_folder(name: str, tmp_path: Path) -> None:
    make, options, named = BAD[name]
    (tmp_path / "data").mkdir()
    path = make(tmp_path / "data")
    with pytest.raises((DataError, InputError), match=named) as caught:
        learn_file(tmp_path / "model", path, "task", {}, LearnOptions(ReadOptions(**options)))
    assert not (tmp_path / "model").exists()
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith((".", "?"))
    assert len(said.replace(str(tmp_path), "")) < 330
    assert sorted(tmp_path.parent.rglob("escaped*")) == []


@pytest.mark.parametrize("name", LEARN)
def test_a_file_from_which_nothing_can_be_learnt_is_read_and_then_refused(name: str, tmp_path: Path) -> None:
    content, words = LEARN[name]
    examples = read_examples(text(content)(tmp_path))
    with pytest.raises(DataError, match=words):
        examples.check_learnable()


def test_a_class_folder_with_one_image_is_named(tmp_path: Path) -> None:
    examples = read_examples(pictures(tmp_path, cat=[WHOLE, WHOLE], dog=[WHOLE]))
    with pytest.raises(DataError, match=r"dog/0\.png: class 'dog'"):
        examples.check_learnable()


def test_on_the_command_line_it_is_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = text("a,y\n1,u\n2,\n")(tmp_path)
    monkeypatch.setattr(cli, "call", lambda words: read_examples(path))
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {path}, line 3, column 'y'")
    assert said.count("\n") == 1


@pytest.mark.parametrize("path", ["", "a\0.csv", b"a.csv"])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(InputError, match="path"):
        read_examples(path)


@pytest.mark.parametrize("make", [text(IRIS), two_classes], ids=["a table", "a folder"])
def test_a_file_without_permission_is_named(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path)

    def denied(*words: Any, **options: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    # Not by chmod: whoever runs tests as root may read everything.
    monkeypatch.setattr("builtins.open", denied)
    with pytest.raises(DataError, match=rf"{path.name}.*permission"):
        read_examples(path)


def test_a_Parquet_file_too_large_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parquet(tmp_path, {"a": list(range(1000)), "y": ["u", "v"] * 500})
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.read", lambda *words, **options: pytest.fail("it was read"))
    monkeypatch.setattr("ibpwf.data.opening.LARGEST", 1000)
    with pytest.raises(DataError, match=r"a\.parquet .*1,000×2"):
        read_examples(path)


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """The file with some bytes changed, and now and then cut short."""
    changed = bytearray(data)
    for place in rng.integers(0, len(data), rng.integers(1, 4)).tolist():
        changed[place] = int(rng.integers(0, 256))
    return bytes(changed[: int(rng.integers(0, len(data)))] if rng.random() < 0.2 else changed)


@pytest.mark.parametrize("ending", [".csv", ".npz", "-images-idx3-ubyte", ".png", ".parquet", ".gif", ".jpg"])
def test_a_damaged_file_is_read_or_refused_and_nothing_else(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{ending}"
    if ending == ".csv":
        path.write_text(IRIS.replace("species", "y").replace("red", '"red"'))
    elif ending == ".npz":
        path = npz(tmp_path, x=X, y=Y.astype(str))
    elif ending == ".parquet":
        path = parquet(tmp_path, {"a": [1.5, 2.5] * 9, "b": ["s", "m"] * 9, "y": [0, 1] * 9})
    elif ending.endswith("ubyte"):
        path.write_bytes(idx(np.zeros((6, 4, 5), np.uint8)))
    else:
        image = pytest.importorskip("PIL.Image")
        image.fromarray(picture(height=20, width=20)).save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    with_labels = None if ending in (".csv", ".npz", ".parquet") else False
    read_examples(path, with_labels=with_labels)
    refused = 0
    for _ in range(150):
        path.write_bytes(damaged(whole, rng))
        try:
            read_examples(path, with_labels=with_labels)
        except (DataError, InputError):
            refused += 1
    assert refused


@pytest.mark.parametrize(
    ("module", "file", "package"),
    [("PIL", "a.jpg", r"'ibpwf\[images\]'"), ("pyarrow", "a.parquet", "pyarrow"), ("pyarrow", "a.csv", "pyarrow")],
)
def test_a_format_that_needs_a_package_names_it(
    module: str, file: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / file).write_bytes(b"\xff\xd8\xff....")
    with pytest.raises(InputError, match=rf"{file}.*pip install {package}"):
        read_examples(tmp_path / file, with_labels=False)
