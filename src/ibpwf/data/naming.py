"""Which files a user means: one, the shards of one table, or those that a pattern such as 'day-*.parquet' names."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ibpwf.data.opening import check_there, shown, unreadable
from ibpwf.errors import DataError, InputError

TABLES = {
    **dict.fromkeys((".csv", ".tsv", ".tab"), "csv_file.CsvFile"),
    **dict.fromkeys((".parquet", ".pq"), "parquet_file.ParquetFile"),
}
"""What opens a table, by its ending."""
ARRAYS = {".npz": "npz_file.read_npz"}
"""What reads a file of arrays."""

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def names_files(given: Any) -> bool:
    """Whether what was given are paths: one, or a list of them."""
    if isinstance(given, (list, tuple)):
        return bool(given) and all(isinstance(one, (str, os.PathLike)) for one in given)
    return isinstance(given, (str, os.PathLike))


def check_path(path: Any) -> Path:
    text = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text:
        raise InputError(f"path is {text!r}; give the path of a file or folder.")
    return Path(text)


def check_data(path: Path) -> None:
    """Refuses a path that leads nowhere, and a pattern that no file has."""
    if not _is_pattern(path):
        check_there(path)
    elif not glob.glob(str(path)):
        raise DataError(f"no file is called like {str(path)!r}; check the pattern.")


def table_files(given: Paths) -> list[Path] | None:
    """The files of one table, in the order of their names: those of a folder of nothing but tables, those that a
    pattern names, those of a list in its order, or one; None for anything that is no table by its name."""
    if isinstance(given, (list, tuple)):
        if not given:
            raise InputError("the list of paths is empty; give the shards of a table.")
        paths = [check_path(one) for one in given]
        strange = next((path for path in paths if not _is_table(path)), None)
        if strange is not None and len(paths) > 1:
            raise InputError(f"{shown(strange)} is no table by its name; several files are shards of one table.")
        given = paths[0]
        if len(paths) > 1:
            return _alike(paths)
    path = check_path(given)
    if _is_pattern(path):
        check_data(path)
        paths = sorted(Path(one) for one in glob.glob(str(path)))
        strange = next((one for one in paths if not _is_table(one)), None)
        if strange is not None:
            raise InputError(f"{shown(strange)} is no table by its name; a pattern must name shards of one table.")
        return _alike(paths)
    if path.is_dir():
        return _in_folder(path)
    return [path] if _is_table(path) and path.exists() else None


def _in_folder(folder: Path) -> list[Path] | None:
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith((".", "_")))
    except OSError as error:
        raise unreadable(folder, error) from error
    tables = [folder / name for name in names if _is_table(folder / name) and (folder / name).is_file()]
    if not tables:
        return None
    other = next((name for name in names if folder / name not in tables), None)
    if other is not None:
        raise DataError(
            f"{shown(folder)} holds tables such as {shown(tables[0].name)} and, beside them, {shown(other)}; give "
            "one file, or a folder of nothing but the shards of one table."
        )
    return _alike(tables)


def _alike(paths: list[Path]) -> list[Path]:
    kinds = {TABLES[path.suffix.lower()] for path in paths}
    if len(kinds) > 1:
        raise InputError(
            f"{shown(paths[0])} and {shown(paths[-1])} are shards in different formats; write them all in one."
        )
    return paths


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in TABLES


def _is_pattern(path: Path) -> bool:
    return any(sign in str(path) for sign in "*?[") and not os.path.lexists(path)
