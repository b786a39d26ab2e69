"""The user's own files as examples: tables, arrays and images in, numbers and labels out.

One small module per format. Every reader checks sizes before it allocates, unpickles and unpacks nothing,
and blames the file and the row it could not take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ibpwf.lazy import lazy_names

if TYPE_CHECKING:
    from ibpwf.files.examples import Examples
    from ibpwf.files.layout import Column, Layout
    from ibpwf.files.options import ReadOptions
    from ibpwf.files.reading import read_batches, read_examples

__all__ = ["Column", "Examples", "Layout", "ReadOptions", "read_batches", "read_examples"]

__getattr__ = lazy_names(
    __name__,
    {
        "Column": "ibpwf.files.layout",
        "Examples": "ibpwf.files.examples",
        "Layout": "ibpwf.files.layout",
        "ReadOptions": "ibpwf.files.options",
        "read_batches": "ibpwf.files.reading",
        "read_examples": "ibpwf.files.reading",
    },
)
