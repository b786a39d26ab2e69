"""Articles with one topic each, cut in two by their dates."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ibpwf.downloads.files import DataFile
from ibpwf.errors import DataError
from ibpwf.lab.data import texts

ARTICLES = [
    {"title": "A", "body": "crude  oil\nrose", "date": "26-FEB-1987 15:01:01.79", "topics": ["crude"], "id": "1"},
    {"title": "B", "body": "two topics", "date": "26-FEB-1987 15:02:00.00", "topics": ["crude", "ship"]},
    {"title": "C", "body": " ", "date": "26-FEB-1987 15:03:00.00", "topics": ["crude"]},
    {"title": "D", "date": "26-FEB-1987 15:03:00.00", "topics": ["crude"]},
    {"body": "gold fell", "date": "7-APR-1987 23:59:00.00", "topics": ["gold"]},
    {"title": "F", "body": "ships", "date": "8-APR-1987 00:00:01.00", "topics": ["ship"]},
    {"title": "G", "body": "more oil", "date": " 19-OCT-1987 10:00:00.00", "topics": ["crude"]},
    {"title": "H", "body": "none", "date": "8-APR-1987 00:00:01.00"},
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    data = json.dumps(ARTICLES).encode()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "few.json").write_bytes(data)
    few = DataFile("few.json", hashlib.sha256(data).hexdigest(), len(data))
    monkeypatch.setattr(texts, "REUTERS", replace(texts.REUTERS, files=(few,), sources=()))
    return tmp_path


def test_articles_with_a_text_and_one_of_the_commonest_topics_are_kept(folder: Path) -> None:
    found = texts.load_reuters(2, source=folder / "mine", data_dir=folder / "cache")
    assert found.names == ["crude", "gold"]
    assert found.texts == ["A. crude oil rose", ". gold fell", "G. more oil"]
    assert found.topics == [0, 1, 0]
    assert found.learned == [True, True, False]  # up to the 7th of April


def test_files_with_other_bytes_are_refused(folder: Path) -> None:
    (folder / "mine" / "few.json").write_text("[]")
    with pytest.raises(DataError, match="sha256"):
        texts.load_reuters(2, source=folder / "mine", data_dir=folder / "cache")
