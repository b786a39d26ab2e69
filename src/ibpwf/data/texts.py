"""Columns of texts: what a trained sentence encoder makes of each, as numbers.

The encoder is fetched once and stays as it is; a model keeps its name and digest, and later files are read by the
same.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ibpwf.data.columns import NOTHING, Cells
from ibpwf.data.dates import are_dates
from ibpwf.data.examples import Floats
from ibpwf.data.layout import Column
from ibpwf.data.number_texts import is_number
from ibpwf.data.opening import quoted, shown
from ibpwf.data.options import ReadOptions
from ibpwf.errors import InputError

if TYPE_CHECKING:
    from ibpwf.backbones import Backbone

ENCODER = "minilm-l6"
AT_ONCE = 64
_WORD = re.compile(r"[^\W\d_]{2}")
"""Two letters of any script, which a text has somewhere."""


@lru_cache(maxsize=1)
def _loaded(name: str) -> Backbone:
    from ibpwf.backbones import load

    return load(name)


def encoder_named(name: str, options: ReadOptions) -> Backbone:
    """The encoder called so, fetched if it is not there yet."""
    from ibpwf.backbones import TextInput, fetch, is_cached
    from ibpwf.backbones.catalog import BACKBONES

    reads = [known for known, network in BACKBONES.items() if network.kind == "text"]
    if name not in reads:
        raise InputError(f"{options.naming('encoder')} is {name!r}; encoders of texts are: {', '.join(reads)}.")
    if not is_cached(name):
        fetch(name, progress=options.progress)
    found = _loaded(name)
    assert isinstance(found.input, TextInput)
    return found


def text_column(cells: Cells, encoder: str) -> Column:
    """A column of a first file that was named as one of texts."""
    file, instead = shown(cells.origins.files[0]), _instead_of_texts(cells, words_in=0.5)
    if instead is not None:
        raise InputError(
            f"{file}: column {quoted(cells.name)} holds {instead}, and {cells.options.naming('text')} names it as "
            "texts; name a column of sentences."
        )
    if not any(word.strip() for word in cells.words):
        raise InputError(f"{file}: column {quoted(cells.name)} has no text in any row; name a column of sentences.")
    known = encoder_named(encoder, cells.options)
    return Column(cells.name, "text", encoder=encoder, digest=known.digest, width=known.width)


def _instead_of_texts(cells: Cells, words_in: float) -> str | None:
    """What a column holds where it holds no texts: of the different ones, so large a share has words, or one has."""
    if not cells.is_text:
        return "numbers"
    words = [word.strip() for word in cells.words if word.strip().lower() not in NOTHING]
    if not words:
        return None
    if all(is_number(word) for word in words):
        return "numbers"
    if all(word.lower() in ("true", "false") for word in words):
        return "true and false"
    if are_dates(words):
        return "dates"
    worded = sum(_WORD.search(word) is not None for word in words)
    return None if worded >= max(1, words_in * len(words)) else "numbers or signs, and hardly any words"


def encode_texts(into: Floats, column: Column, cells: Cells) -> None:
    """Writes what the encoder makes of a column's texts, each different one once."""
    known = encoder_named(column.encoder, cells.options)
    if known.digest != column.digest:
        raise InputError(
            f"column {quoted(column.name)} was read by encoder {column.encoder!r} with the digest "
            f"{column.digest[:12]}…, and the one that is there has {known.digest[:12]}…; use the version of ibpwf "
            "that the model was made with."
        )
    instead = _instead_of_texts(cells, words_in=0.0)
    if instead is not None and (len(cells.words) > 1 or not cells.is_text):  # a single text may be "5"
        raise InputError(
            f"{shown(cells.origins.files[0])}: column {quoted(cells.name)} holds {instead}, and earlier files had "
            "texts there; give a file with sentences in that column."
        )
    vectors = np.full((len(cells.words), into.shape[1]), np.nan, dtype=np.float32)
    blank = [at for at, word in enumerate(cells.words) if word.strip().lower() in NOTHING]
    if blank and not cells.options.fills_in:
        raise cells.fault(cells.row_of(blank[0]), f"the text is empty; {cells.options.fill_in}")
    # Long ones with long ones: a batch is as long as its longest.
    order = sorted({*range(len(cells.words))} - {*blank}, key=lambda at: len(cells.words[at]))
    tell = cells.options.progress
    for start in range(0, len(order), AT_ONCE):
        part = order[start : start + AT_ONCE]
        vectors[part] = known.encode([cells.words[at] for at in part], at_once=AT_ONCE).cpu().numpy()
        if tell is not None:
            tell(f"reading {cells.name}", start + len(part), len(order))
    into[:] = vectors[cells.codes]
