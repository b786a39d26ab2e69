"""What users hand in as plain arrays and tensors of numbers; whatever would be lost silently on the way is rejected.

NumPy drops a mask, reads text as numbers and dates as nanoseconds without an error, and torch raises errors about its
own internals for tensors that are sparse, quantized, nested or without values. Every function that takes rows, labels
or weights reads them through this module, so the same value is treated the same everywhere.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ibpwf.errors import InputError
from ibpwf.limits import EXACT

Array = NDArray[Any]
Names = Sequence[str] | None
"""Names of columns, where they have any."""

_KINDS = {"U": "text", "T": "text", "S": "text", "O": "objects", "c": "complex numbers"}
_KINDS |= {"M": "dates", "m": "time spans", "V": "records"}
_TIMES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)
_REAL = (float, np.floating)
_NUMBERS = (*_REAL, int, np.integer, np.bool_)
_ARRAYS = (Tensor, np.ma.MaskedArray)
_PACKED = re.compile(r"torch\.(u?int[1-7]|bits\w+|float4\w+)")
"""Types of less than a byte, which torch stores and does not convert."""
_GIVE_NUMBERS = "give numbers (a tensor or a numpy array)"


def plain(name: str, value: Any) -> Any:
    """A tensor as one with values of its own, an array without its mask; anything else as it is.

    Parameters
    ----------
    name
        What the value is called in errors, such as "X" or "y".
    value
        Whatever was given.

    Raises
    ------
    InputError
        If cells are masked, or a tensor is sparse, quantized, nested or without values.
    """
    if isinstance(value, Tensor):
        return _plain_tensor(name, value)
    if isinstance(value, np.ma.MaskedArray):
        return _unmasked(name, value)
    if isinstance(value, np.ndarray) and value.dtype.kind == "O" and value.ndim and _holds(value.flat, _ARRAYS):
        value = value.tolist()
    if isinstance(value, (list, tuple)) and _holds(value, (*_ARRAYS, list, tuple, np.ndarray)):
        return [
            as_array(f"{name}[{row}]", one) if isinstance(one, _ARRAYS) else plain(f"{name}[{row}]", one)
            for row, one in enumerate(value)
        ]
    return value


def _holds(values: Iterable[Any], kinds: tuple[type, ...]) -> bool:
    return any(issubclass(kind, kinds) for kind in set(map(type, values)))


def _plain_tensor(name: str, tensor: Tensor) -> Tensor:
    fault = None
    if hasattr(tensor, "get_mask"):  # torch.masked.MaskedTensor, which has no methods to ask about itself
        fault = f"is a masked tensor; give {name}.to_tensor(value), with a value for masked cells"
    elif tensor.is_nested:
        fault = f"is a nested tensor, with rows of different lengths; give torch.nested.to_padded_tensor({name}, 0.0)"
    elif tensor.is_quantized:
        fault = f"is quantized ({tensor.dtype}); give {name}.dequantize()"
    elif _PACKED.fullmatch(str(tensor.dtype)):
        fault = f"holds {tensor.dtype}, of which torch makes no other numbers; give integers or floats"
    elif tensor.layout is not torch.strided:
        fault = f"is a sparse tensor ({tensor.layout}); give {name}.to_dense()"
    elif tensor.is_meta:
        fault = "is on the meta device and has no values; give a tensor with values"
    elif hasattr(tensor, "fake_mode"):
        fault = "is a FakeTensor, which has no values; give a tensor with values"
    if fault is not None:
        raise InputError(f"{name} {fault}.")
    return tensor.detach().resolve_neg()


def _unmasked(name: str, array: np.ma.MaskedArray[Any, Any]) -> Array:
    if array.dtype.names is None:  # records are rejected by whoever wants numbers
        masked = np.argwhere(np.ma.getmaskarray(array))
        if len(masked):
            raise InputError(
                f"{name} has a masked value in {_place(masked[0])}; fill it in ({name}.filled(value)) or remove the "
                "row."
            )
    return np.asarray(array.data)


def as_array(name: str, value: Any) -> Array:
    """What was given as a NumPy array, of whatever it holds."""
    value = plain(name, value)
    if isinstance(value, Tensor):
        try:
            return value.numpy(force=True)
        except TypeError:  # bfloat16, for instance, which NumPy lacks
            return value.float().numpy(force=True)
    try:
        array = np.asarray(value)
    except ValueError as error:
        if "inhomogeneous" in str(error):
            how = ", as a tokenizer makes them with padding=True" if name.startswith("x[") else ""
            raise InputError(f"{name} has rows of different lengths; give rows of equal length{how}.") from None
        raise InputError(f"{name} cannot be made an array ({error}); give rows of equal length.") from None
    if isinstance(value, (list, tuple)) and array.dtype.kind == "f":
        _check_listed(name, value, array)
    return array


def numbers(name: str, value: Any, remedy: str = _GIVE_NUMBERS, *, labels: bool = False) -> Array:
    """What was given as an array of real numbers: integers, floats or truth values.

    Integers of 2⁵³ and above are rejected, unless they are `labels`, which stay integers.
    """
    array, names = as_array(name, value), column_names(value)
    if array.dtype.kind == "O":
        ordinary = _ordinary(array, labels=labels)
        if ordinary is None:
            _check_objects(name, array, names, labels=labels)
            ordinary = np.array(array.tolist())
        array = ordinary
    _check_kind(name, array.dtype, remedy)
    if not labels:
        _check_exact(name, value, array, names)
    return array


def check_numbers(name: str, value: Any) -> None:
    """Reject a table, an array or a sparse matrix that does not hold real numbers, before scikit-learn converts it.

    Objects that are neither text, times nor missing are left to scikit-learn."""
    if hasattr(value, "tocsr"):
        _check_kind_as_scikit_learn(name, value.dtype)
        if value.dtype.kind in "iu":
            entries = value.tocoo()
            _check_integers(name, entries.data, None, (entries.row, entries.col))
        return
    array, names = as_array(name, value), column_names(value)
    if array.dtype.kind == "O":
        if _ordinary(array, labels=False) is None:
            _check_objects(name, array, names)
        return
    _check_kind_as_scikit_learn(name, array.dtype)
    _check_exact(name, value, array, names)


def _check_kind_as_scikit_learn(name: str, dtype: np.dtype[Any]) -> None:
    """Of complex numbers in the words that scikit-learn demands."""
    remedy = "Complex data not supported; give real numbers" if dtype.kind == "c" else _GIVE_NUMBERS
    _check_kind(name, dtype, remedy)


def _check_kind(name: str, dtype: np.dtype[Any], remedy: str) -> None:
    if dtype.kind not in "biuf":
        raise InputError(f"{name} holds {_KINDS.get(dtype.kind, dtype)}; {remedy}.")


def column_names(value: Any) -> Names:
    """The names of the columns of a table of pandas, Arrow or the like."""
    names = getattr(value, "column_names", None)
    if names is None and hasattr(value, "dtypes"):
        names = getattr(value, "columns", None)
    return None if names is None else [str(name) for name in names]


def _check_exact(name: str, value: Any, array: Array, names: Names) -> None:
    """Reject integers that no float keeps, also in a table's columns that NumPy made floats beside others."""
    _check_integers(name, array, names)
    if array.dtype.kind != "f":
        return
    for place, column in _integer_columns(value):
        whole = np.asarray(column)
        _check_integers(name, whole, names, (np.arange(len(whole)), np.full(len(whole), place)))


def _integer_columns(value: Any) -> Iterator[tuple[int, Any]]:
    """The columns of integers of a table of pandas or Arrow, with their numbers; nothing of anything else."""
    if hasattr(value, "iloc") and hasattr(value, "columns"):  # a Series has one type and needs no such care
        kinds = [getattr(dtype, "kind", "") for dtype in value.dtypes]
        yield from ((place, value.iloc[:, place]) for place, kind in enumerate(kinds) if kind in ("i", "u"))
    elif hasattr(value, "column_names"):
        yield from ((place, one) for place, one in enumerate(value.columns) if "int" in str(one.type))


def check_finite(name: str, array: Any, names: Names = None) -> None:
    """Reject NaN and infinite values, in an array or in a sparse matrix, and name the first."""
    if hasattr(array, "tocsr"):
        if not np.isfinite(array.data).all():
            entries = array.tocoo()
            at = int(np.argmin(np.isfinite(entries.data)))
            raise _not_finite(name, entries.data[at], _place((entries.row[at], entries.col[at]), names))
        return
    # A sum is finite only if all its terms are, and found in a fraction of the time it takes to look at each.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum(dtype=np.float64)):
            return
    wrong = np.argwhere(~np.isfinite(array))
    if len(wrong):
        raise _not_finite(name, array[tuple(wrong[0])], _place(wrong[0], names))


def _not_finite(name: str, value: Any, place: str) -> InputError:
    return InputError(f"{name} holds {value} in {place}; remove or replace NaN and infinite values.")


def _check_objects(name: str, array: Array, names: Names, *, labels: bool = False) -> None:
    """Reject objects that Python would convert to numbers, or that stand for a missing one."""
    for place, value in enumerate(array.flat):
        if isinstance(value, float):
            continue
        if isinstance(value, (str, bytes, bytearray, memoryview)):
            fault = f"text ({str(value)[:40]!r})"
        elif value is None or str(value) in ("<NA>", "NaT"):
            fault = f"{value}, a missing value,"
        elif isinstance(value, np.ma.MaskedArray):
            fault = "a masked value"
        elif isinstance(value, _TIMES):
            fault = f"a date or time ({value})"
        elif type(value).__module__.split(".")[0] == "pandas":
            fault = f"a {type(value).__name__} of pandas ({value})"
        elif isinstance(value, (complex, np.complexfloating)):
            fault = f"a complex number ({value})"
        elif not labels and _is_inexact(value):
            fault = f"{value}, which has more digits than a number keeps,"
        else:
            continue
        at = _place(np.unravel_index(place, array.shape), names)
        raise InputError(f"{name} holds {fault} in {at}; give numbers.")


def _ordinary(array: Array, *, labels: bool) -> Array | None:
    """The numbers of objects that are all ordinary ones with a fraction among them, without a look at each; else
    None."""
    kinds = set(map(type, array.flat))
    if not all(issubclass(kind, _NUMBERS) for kind in kinds) or not any(issubclass(kind, _REAL) for kind in kinds):
        return None
    try:
        found = array.astype(np.float64)
    except OverflowError:
        return None
    return found if labels or not (np.abs(found) >= EXACT).any() else None


def _is_inexact(value: object) -> bool:
    """Whether a number has more digits than a float keeps."""
    if isinstance(value, Decimal):
        return value.is_finite() and not -EXACT < value < EXACT
    return isinstance(value, (int, np.integer)) and not -EXACT < value < EXACT


def _check_integers(name: str, array: Array, names: Names, places: tuple[Array, Array] | None = None) -> None:
    """Reject integers that no float keeps; they look like identifiers. `places` are the row and the column of each,
    where these are not its places in the array."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 8 or not array.size:
        return
    if int(array.min()) > -EXACT and int(array.max()) < EXACT:
        return
    at = np.argwhere((array >= EXACT) | (array <= -EXACT))[0]
    place = _place(at if places is None else [one[at[0]] for one in places], names)
    raise _too_long(name, array[tuple(at)], place)


def _check_listed(name: str, value: Any, array: Array) -> None:
    """The same of integers in lists, which NumPy made floats beside others."""
    for at in np.argwhere(np.abs(array) >= EXACT):
        cell = value
        for place in at:
            cell = cell[place]
        if isinstance(cell, (int, np.integer)):
            raise _too_long(name, cell, _place(at))


def _too_long(name: str, value: Any, place: str) -> InputError:
    return InputError(
        f"{name} holds {value} in {place}, which has more digits than a number keeps, so it looks like an "
        "identifier; leave the column out, or scale it."
    )


def _place(index: Sequence[Any] | Array, names: Names = None) -> str:
    """Where a cell is. Columns are named where they have names; of images only the row is told."""
    row, *rest = (int(number) for number in index) if len(index) else (0,)
    if len(rest) != 1:
        return f"row {row}"
    return f"row {row}, column {rest[0] if names is None else repr(names[rest[0]])}"
