"""A folder replaced in one step."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibpwf.errors import InputError
from ibpwf.storage.whole_folder import replacing_folder


def test_an_error_inside_comes_out_as_it_is_and_the_old_folder_stays(tmp_path: Path) -> None:
    place = tmp_path / "out"
    place.mkdir()
    (place / "old").write_text("old")
    error = InputError("the stream has no task yet.")

    def replace() -> None:
        with replacing_folder(place) as aside:
            (aside / "new").write_text("new")
            raise error

    with pytest.raises(InputError) as raised:
        replace()
    assert raised.value is error
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (place / "old").read_text() == "old"
