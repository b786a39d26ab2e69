"""Columns of dates, against the calendar of the standard library."""

from __future__ import annotations

import datetime
import math
from pathlib import Path

import numpy as np
import pytest

from ibpwf.data import read_examples
from ibpwf.data.dates import PARTS, features, order_of
from ibpwf.data.layout import Layout
from ibpwf.errors import DataError


def circle(share: float) -> list[float]:
    return [math.sin(2 * math.pi * share), math.cos(2 * math.pi * share)]


def expected(moment: datetime.datetime) -> list[float]:
    day = (moment.date() - datetime.date(moment.year, 1, 1)).days / 365.25
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return [*circle(day), *circle((moment.isoweekday() - 1) / 7), *circle((moment - midnight).seconds / 86_400)]


MOMENT = datetime.datetime(2026, 3, 14, 21, 5, 9)


@pytest.mark.parametrize(
    ("pattern", "order"),
    [
        ("%Y-%m-%d %H:%M:%S", "year first"),
        ("%Y-%m-%dT%H:%M:%SZ", "year first"),
        ("%Y/%m/%d %H:%M:%S.123456", "year first"),
        ("%Y-%m-%d %H:%M:%S+02:00", "year first"),
        ("%d.%m.%Y %H:%M:%S", "day first"),
        ("%d/%m/%y %H:%M:%S", "day first"),
        ("%m/%d/%Y %I:%M:%S %p", "month first"),
    ],
)
def test_a_date_is_season_weekday_and_time_of_day_however_it_is_written(pattern: str, order: str) -> None:
    text = MOMENT.strftime(pattern)
    assert order_of([text]) == order
    found = features(text, order)  # type: ignore[arg-type]
    assert found is not None
    np.testing.assert_allclose(found, expected(MOMENT), atol=1e-6)
    assert len(PARTS) == len(found)


def test_midnight_and_noon_are_told_apart_in_hours_of_a_half_day() -> None:
    for text, hour in (
        ("12:00 AM", 0),
        ("12:30 pm", 12.5),
        ("1:00 pm", 13),
        ("11:59 pm", 23 + 59 / 60),
        ("0:15", 0.25),
    ):
        found = features(text, "")
        assert found is not None
        np.testing.assert_allclose(found, [0, 0, 0, 0, *circle(hour / 24)], atol=1e-6)


@pytest.mark.parametrize(
    ("texts", "order"),
    [
        (["1/2/2026", "13/2/2026"], "day first"),
        (["1/2/2026", "2/13/2026"], "month first"),
        (["1/2/2026", "2/1/2026"], None),  # nobody can tell
        (["13/2/2026", "2/13/2026"], None),  # neither
        (["1.2.2026", "2.1.2026"], "day first"),
        (["2026-02-30"], None),  # there is no such day
        (["2026-02-03", "12:30"], None),
        (["12:30", "13:00"], ""),
        (["25:00"], None),
        (["a date"], None),
        ([], None),
    ],
)
def test_all_rows_together_tell_how_dates_are_written(texts: list[str], order: str | None) -> None:
    assert order_of(texts) == order


def test_a_later_file_with_other_dates_is_read_by_the_same_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("day,a,y\n2026-01-31 10:00,1,u\n2026-02-01 11:00,2,v\n")
    first = read_examples(path)
    assert first.feature_names == (*(f"day ({part})" for part in PARTS), "a")
    layout = Layout.from_json(first.layout.to_json())
    path.write_text("a,day\n5,2031-12-24\n")
    later = read_examples(path, like=layout)
    np.testing.assert_allclose(later.x, [[*expected(datetime.datetime(2031, 12, 24)), 5]], atol=1e-6)
    np.testing.assert_allclose(read_examples(path, like=layout, ignore=["day"]).x[0, :6], first.x[:, :6].mean(0))
    path.write_text("a,day\n5,tomorrow\n")
    with pytest.raises(DataError, match=r"line 2, column 'day': 'tomorrow' is not a date, year first, as others in"):
        read_examples(path, like=layout)
    path.write_text("a,day\n5,24.12.2031\n")
    with pytest.raises(DataError, match=r"'24\.12\.2031' is not a date, year first"):
        read_examples(path, like=layout)
    path.write_text("a,day\n5,\n")
    with pytest.raises(DataError, match=r"line 2, column 'day': the cell is blank"):
        read_examples(path, like=layout)


def test_missing_dates_take_the_mean_of_the_others(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("day,y\n2026-01-31,u\n,v\n2026-02-01,v\n")
    x = read_examples(path, missing="mean").x
    np.testing.assert_allclose(x[1], x[[0, 2]].mean(0), atol=1e-6)


def test_dates_that_nobody_can_tell_are_refused_and_may_be_categories_or_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("day,a,y\n1/2/2026,1,u\n2/1/2026,2,v\n")
    words = r"line 2, column 'day': '1/2/2026' is a date, .* write them year first \(2026-01-31\), or name the column"
    with pytest.raises(DataError, match=words):
        read_examples(path)
    assert read_examples(path, ignore=["day"]).feature_names == ("a",)
    assert read_examples(path, categories=["day"]).x.shape == (2, 3)


def test_moments_and_days_of_parquet_are_the_same_as_those_written_in_text(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    moments = [MOMENT, MOMENT.replace(day=2)]
    times = pyarrow.array([moment.time() for moment in moments])
    for unit in ("s", "ms", "us", "ns"):
        columns = {
            "moment": pyarrow.array(moments, pyarrow.timestamp(unit)),
            "zoned": pyarrow.array(moments, pyarrow.timestamp(unit, tz="UTC")),
            "day": pyarrow.array([moment.date() for moment in moments], pyarrow.date32()),
            "time": times,
            "y": ["u", "v"],
        }
        parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
        x = read_examples(tmp_path / "a.parquet").x
        for row, moment in enumerate(moments):
            whole = expected(moment)
            day = [*whole[:4], *circle(0)]
            np.testing.assert_allclose(x[row], [*whole, *whole, *day, 0, 0, 0, 0, *whole[4:]], atol=1e-6)
