"""Columns of texts are read by a sentence encoder: each text as it alone would be, later files by the same one."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ibpwf.backbones import is_cached, load
from ibpwf.cli import program
from ibpwf.data import Layout, ReadOptions, read_batches, read_examples, texts
from ibpwf.errors import DataError, InputError

WIDTH = 6
ROWS = """body,price,topic
The striker scored twice,3,sport
Stir the onions slowly,4,food
The striker scored twice,5,sport
"Salt, pepper and a little sugar in a very long sentence indeed",6,food
"""


def vector(text: str) -> list[float]:
    generator = np.random.default_rng(zlib.crc32(text.encode()))
    return [float(value) for value in generator.normal(size=WIDTH)]


class Letters:
    """Stands for an encoder: any text has a vector of its own."""

    digest, width = "ab" * 32, WIDTH
    asked: list[list[str]]

    def __init__(self) -> None:
        self.asked = []

    def encode(self, words: Sequence[str], at_once: int) -> Tensor:
        self.asked.append(list(words))
        return torch.tensor([vector(word) for word in words])


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> Letters:
    known = Letters()
    monkeypatch.setattr(texts, "encoder_named", lambda name, options: known)
    return known


def write(folder: Path, content: str, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


def test_each_text_is_what_the_encoder_makes_of_it_beside_the_other_columns(encoder: Letters, tmp_path: Path) -> None:
    found = read_examples(write(tmp_path, ROWS), text=["body"], label="topic")
    bodies = [line["body"] for line in _lines(ROWS)]
    expected = np.array([[*vector(body), price] for body, price in zip(bodies, (3, 4, 5, 6), strict=True)])
    np.testing.assert_allclose(found.x, expected, rtol=1e-6)
    assert found.y == ["sport", "food", "sport", "food"]
    assert found.layout.feature_names == (*(f"body[{n}]" for n in range(WIDTH)), "price")
    assert sum(map(len, encoder.asked)) == 3, "a text that is there twice is read once"
    assert [len(text) for part in encoder.asked for text in part] == sorted(len(text) for text in {*bodies})


def _lines(text: str) -> list[dict[str, str]]:
    import csv
    import io

    return list(csv.DictReader(io.StringIO(text)))


def test_later_files_are_read_alike_whole_or_in_batches(encoder: Letters, tmp_path: Path) -> None:
    path = write(tmp_path, ROWS)
    first = read_examples(path, text=["body"], label="topic")
    like = Layout.from_json(json.loads(json.dumps(first.layout.to_json())))
    assert like == first.layout
    again = read_examples(path, like=like)
    np.testing.assert_array_equal(again.x, first.x)
    parts = list(read_batches(path, 3, like=like))
    np.testing.assert_array_equal(np.concatenate([part.x for part in parts]), first.x)


def test_an_encoder_with_another_digest_is_refused(encoder: Letters, tmp_path: Path) -> None:
    path = write(tmp_path, ROWS)
    like = read_examples(path, text=["body"], label="topic").layout
    encoder.digest = "cd" * 32
    with pytest.raises(InputError, match="the digest abababababab…, and the one that is there has cdcdcdcdcdcd…"):
        read_examples(path, like=like)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"text": ["price"]}, r"column 'price' holds numbers, and the argument text names it as texts"),
        ({"text": ["bdy"]}, r"no column 'bdy' with texts; did you mean 'body'"),
        ({"text": ["body"], "categories": ["body"]}, "both name 'body'; choose one"),
        ({"encoder": "minilm-l6", "ignore": ["body"]}, "encoder was given without the argument text"),
        ({"text": "body"}, r"text is 'body'; give a list of column names, such as \['body'\]"),
    ],
)
def test_what_cannot_be_read_as_text_is_said(
    encoder: Letters, tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_examples(write(tmp_path, ROWS), label="topic", **given)


@pytest.mark.parametrize(
    ("values", "instead"),
    [
        (["1", "2", "3.5"], "numbers"),
        (["2024-01-05", "2024-02-17"], "dates"),
        (["true", "False"], "true and false"),
        (["12", "7", "9", "!"], "numbers or signs, and hardly any words"),
    ],
)
def test_a_column_that_holds_no_texts_is_refused_in_the_first_file_and_in_later_ones(
    encoder: Letters, tmp_path: Path, values: list[str], instead: str
) -> None:
    none = write(tmp_path, "body,price,topic\n" + "".join(f"{value},1,sport\n" for value in values), "none.csv")
    with pytest.raises(InputError, match=f"none.csv: column 'body' holds {instead}, and the argument text names it"):
        read_examples(none, text=["body"], label="topic")
    like = read_examples(write(tmp_path, ROWS), text=["body"], label="topic").layout
    with pytest.raises(InputError, match=f"none.csv: column 'body' holds {instead}, and earlier files had texts"):
        read_examples(none, like=like)


def test_few_words_are_texts_and_a_single_later_one_may_be_a_number(encoder: Letters, tmp_path: Path) -> None:
    short = write(tmp_path, "body,topic\ngood,a\nbad,b\n10/10!,a\n素晴らしい,b\n", "short.csv")
    like = read_examples(short, text=["body"], label="topic").layout
    one = read_examples(write(tmp_path, "body,topic\n5,a\n", "one.csv"), like=like)
    np.testing.assert_allclose(one.x[0], vector("5"), rtol=1e-6)
    mostly = write(tmp_path, "body,topic\n12,a\n7,b\n9,a\nwell done,b\n", "mostly.csv")
    assert len(read_examples(mostly, like=like).x) == 4
    with pytest.raises(InputError, match="holds numbers or signs, and hardly any words, and the argument text"):
        read_examples(mostly, text=["body"], label="topic")


def test_an_empty_text_is_named_also_where_there_is_no_other_column(encoder: Letters, tmp_path: Path) -> None:
    first = write(tmp_path, "body,topic\nThe striker scored twice,sport\nStir the onions slowly,food\n")
    like = read_examples(first, text=["body"], label="topic").layout
    blank = write(tmp_path, 'body\n"bake the cake"\n\n   \nfry the fish\n', "blank.csv")
    assert len(read_examples(blank, like=like).x) == 2, "lines with nothing in them are none"
    empty = write(tmp_path, 'body\n"bake the cake"\n""\nfry the fish\n', "empty.csv")
    with pytest.raises(DataError, match=r"empty.csv, line 3, column 'body': the text is empty"):
        read_examples(empty, like=like)


def test_an_empty_text_is_an_error_or_takes_the_mean(encoder: Letters, tmp_path: Path) -> None:
    path = write(tmp_path, ROWS.replace("Stir the onions slowly", "  "))
    with pytest.raises(DataError, match=r"line 3, column 'body': the text is empty; fill it in or remove the row"):
        read_examples(path, text=["body"], label="topic")
    found = read_examples(path, text=["body"], label="topic", missing="mean")
    np.testing.assert_allclose(found.x[1, :WIDTH], found.x[[0, 2, 3], :WIDTH].mean(0), rtol=1e-5)
    none = write(tmp_path, "body,topic\n,a\n ,b\n", "none.csv")
    with pytest.raises(InputError, match="column 'body' has no text in any row"):
        read_examples(none, text=["body"], label="topic")


def test_a_later_file_may_not_name_other_texts_or_another_encoder(encoder: Letters, tmp_path: Path) -> None:
    path = write(tmp_path, ROWS)
    like = read_examples(path, text=["body"], label="topic").layout
    with pytest.raises(InputError, match="names 'price', which earlier files did not hold as texts; leave it out"):
        read_examples(path, like=like, text=["price"])
    with pytest.raises(InputError, match=r"encoder is 'other', but earlier files had 'minilm-l6'"):
        read_examples(path, like=like, encoder="other")


def test_an_unknown_encoder_is_named_with_those_there_are() -> None:
    with pytest.raises(InputError, match="encoder is 'bert'; encoders of texts are: minilm-l6"):
        texts.encoder_named("bert", ReadOptions())


def test_progress_is_told_text_by_text(encoder: Letters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "AT_ONCE", 2)
    told: list[tuple[str, int, int | None]] = []
    options = ReadOptions(label="topic", text=("body",), progress=lambda *what: told.append(what))
    read_examples(write(tmp_path, ROWS), options)
    assert told == [("reading body", 2, 3), ("reading body", 3, 3)]
    assert replace(options, progress=None).text == ("body",)


def test_a_table_of_texts_is_learned_and_answered_on_the_command_line(
    encoder: Letters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        f"{word} {number},{number},{topic}" for number in range(12) for word, topic in (("run", "a"), ("eat", "b"))
    ]
    write(tmp_path, "body,price,topic\n" + "\n".join(rows) + "\n")
    words = ["--label", "topic", "--text", "body", "--epochs", "1", "--hidden", "8"]
    assert program.call(["learn", "model", "a.csv", *words]) == 0
    assert program.call(["predict", "model", "a.csv"]) == 0
    with pytest.raises(InputError, match="minilm-l6"):
        program.call(["export", "model", "--to", "pt2"])


@pytest.mark.skipif(not is_cached("minilm-l6"), reason="minilm-l6 has not been fetched")
def test_the_real_encoder_reads_texts_as_it_does_alone(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    found = read_examples(write(tmp_path, ROWS), text=["body"], label="topic")
    known = load("minilm-l6")
    for row, line in enumerate(_lines(ROWS)):
        alone = known.encode([line["body"]])[0]
        np.testing.assert_allclose(found.x[row, :-1], alone.numpy(), atol=1e-5)
    assert SimpleNamespace(**found.layout.to_json()["columns"][0]).digest == known.digest
