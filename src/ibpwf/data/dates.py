"""Columns of dates and times of day, as numbers that any later file shares.

A date as such is always new: next month's rows lie beyond all that was learned. What comes again is the season, the
day of the week and the time of day, each a place on a circle, so that December is beside January and 23:59 beside
0:00. The year is left out.
"""

from __future__ import annotations

import datetime
import math
import re
from typing import Literal

import numpy as np
import numpy.typing as npt

Order = Literal["", "year first", "day first", "month first"]

CIRCLES = ("day of year", "day of week", "time of day")
PARTS = tuple(f"{circle}, {wave}" for circle in CIRCLES for wave in ("sin", "cos"))

_TIME = (
    r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(:(?P<second>\d{2})([.,]\d+)?)?"
    r"\s*(?P<half>[AaPp][Mm])?\s*(Z|UTC|[+-]\d{2}:?\d{2})?"
)
_DATE = (
    r"((?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})"
    r"|(?P<a>\d{1,2})(?P<by>[-/.])(?P<b>\d{1,2})[-/.](?P<year>\d{4}|\d{2}))"
)
_MOMENT = re.compile(rf"{_DATE}([T ]+{_TIME})?|{_TIME.replace('?P<', '?P<only_')}", re.ASCII)


def order_of(texts: list[str]) -> Order | None:
    """How dates that are all of a column are written, "" where there is none but the time of day; None of what are no
    dates, or where nobody can tell the day from the month. With points the day comes first everywhere."""
    found = [_MOMENT.fullmatch(text) for text in texts]
    dates = [match for match in found if match is not None and (match["y"] or match["a"])]
    if not found or None in found or 0 < len(dates) < len(found):
        return None
    if not dates:
        orders: tuple[Order, ...] = ("",)
    elif all(match["y"] for match in dates):
        orders = ("year first",)
    elif any(match["y"] for match in dates):
        return None
    elif all(match["by"] == "." for match in dates):
        orders = ("day first",)
    else:
        orders = ("day first", "month first")
    fitting = [order for order in orders if all(features(text, order) is not None for text in texts)]
    return fitting[0] if len(fitting) == 1 else None


def are_dates(texts: list[str]) -> bool:
    """Whether all look like dates or times, however they are written."""
    return bool(texts) and all(_MOMENT.fullmatch(text) for text in texts)


def odd_one(texts: list[str], counts: list[int]) -> tuple[int, Order] | None:
    """Which text is not written as the others are, and how these are, where more than half of all rows hold dates or
    times, or all look like some; `counts` are the rows of each text. None where there is no such text, or nobody can
    tell the day from the month."""
    looks = [_MOMENT.fullmatch(text) is not None for text in texts]
    rows = sum(counts)
    if 2 * sum(count for count, look in zip(counts, looks, strict=True) if look) <= rows:
        return None
    orders: tuple[Order, ...] = ("year first", "day first", "month first", "")
    fits = {order: [features(text, order) is not None for text in texts] for order in orders}
    fitting = {order: sum(count for count, fit in zip(counts, fits[order], strict=True) if fit) for order in orders}
    order = max(orders, key=fitting.__getitem__)
    if 2 * fitting[order] <= rows and not all(looks):
        return None
    rivals = [fits[other] for other in orders if fitting[other] == fitting[order] > 0]
    wrong = [at for at in range(len(texts)) if not fits[order][at]]
    wrong = [at for at in wrong if not any(fit[at] for fit in rivals)] or wrong
    return (wrong[0], order) if wrong else None


def features(text: str, order: Order) -> npt.NDArray[np.float32] | None:
    """The numbers of a date written in this order, named by `PARTS`; None of what is no such date. A date without a
    time is at midnight, a time without a date on no day."""
    match = _MOMENT.fullmatch(text)
    if match is None or bool(match["y"] or match["a"]) != bool(order) or bool(match["y"]) != (order == "year first"):
        return None
    within = "" if order else "only_"
    hour, minute, second = (int(match[within + part] or 0) for part in ("hour", "minute", "second"))
    if match[within + "half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + 12 * (match[within + "half"].lower() == "pm")
    try:
        time = datetime.time(hour, minute, min(second, 59))
        circles = [0.0, 0.0, (time.hour * 3600 + time.minute * 60 + time.second) / 86_400]
        if order:
            date = _date(match, order)
            circles[:2] = (date.timetuple().tm_yday - 1) / 365.25, date.weekday() / 7
    except ValueError:
        return None
    waves = [wave(2 * math.pi * part) for part in circles for wave in (math.sin, math.cos)]
    return np.array(waves if order else [0.0] * 4 + waves[4:], dtype=np.float32)


def _date(match: re.Match[str], order: Order) -> datetime.date:
    if order == "year first":
        return datetime.date(int(match["y"]), int(match["m"]), int(match["d"]))
    day, month = (match["a"], match["b"]) if order == "day first" else (match["b"], match["a"])
    year = int(match["year"]) + (2000 if len(match["year"]) == 2 else 0)
    return datetime.date(year, int(month), int(day))
