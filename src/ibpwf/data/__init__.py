"""The user's own files as examples: tables, arrays and images in, numbers and labels out.

One small module per format. Every reader checks sizes before it allocates, unpickles and unpacks nothing,
and blames the file and the row it could not take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ibpwf.lazy import lazy_names

if TYPE_CHECKING:
    from ibpwf.data.examples import Examples
    from ibpwf.data.layout import Column, Layout
    from ibpwf.data.options import ReadOptions
    from ibpwf.data.reading import read_batches, read_examples

__all__ = ["Column", "Examples", "Layout", "ReadOptions", "read_batches", "read_examples"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Column": "ibpwf.data.layout",
        "Examples": "ibpwf.data.examples",
        "Layout": "ibpwf.data.layout",
        "ReadOptions": "ibpwf.data.options",
        "read_batches": "ibpwf.data.reading",
        "read_examples": "ibpwf.data.reading",
    },
)
