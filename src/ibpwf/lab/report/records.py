"""JSON files as objects: fields are attributes, means over seeds are spreads, numbers are such as can be measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ibpwf.errors import StoreError
from ibpwf.lab.experiments.paper import tolerance
from ibpwf.storage.files import read_json

LARGEST = 1e30
"""Beyond it sums and squares overflow, and axes with them."""
MISFITS = (StoreError, OSError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)
"""What a file of the right form but wrong content runs into."""


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds; `note` is what the paper's table says beside it."""

    mean: float
    std: float | None = None
    note: str = ""

    def __str__(self) -> str:
        mean = f"{self.mean:.2f}"
        mean = mean.removeprefix("-") if float(mean) == 0 else mean
        return mean if self.std is None else f"{mean} ± {self.std:.2f}"

    def reaches(self, paper: Spread) -> bool:
        """Our mean is better than the paper's, or below it by no more than the tolerance."""
        return self.mean >= paper.mean - tolerance(paper.std)

    def beats(self, paper: Spread) -> bool:
        """Better than the paper's by more than the tolerance."""
        return self.mean > paper.mean + tolerance(paper.std)


class Tree(dict[str, Any]):
    """A JSON object whose fields are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no field '{name}'") from None


def tree(value: Any) -> Any:
    """JSON with its objects as trees and means over seeds as spreads; rejects a number that nothing measured is."""
    if isinstance(value, (int, float)) and not abs(value) <= LARGEST:
        raise ValueError(f"{str(value)[:20]} is beyond {LARGEST:g}, which nothing measured is")
    if isinstance(value, list):
        return [tree(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "mean" in value and value.keys() <= {"mean", "std", "note", "per_seed"}:
        mean, std = (None if value.get(name) is None else float(tree(value[name])) for name in ("mean", "std"))
        return None if mean is None else Spread(mean, std, str(value.get("note", "")))
    return Tree({name: tree(one) for name, one in value.items()})


def record(content: object, where: str, *fields: str, schema: int | None = None) -> Tree:
    """An object that has these fields, and is of a schema that this ibpwf reads, or a `StoreError`."""
    try:
        found = tree(content)
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"{where}: {error}.") from None
    if not isinstance(found, Tree):
        raise StoreError(f"{where} holds {str(content)[:60]!r}: an object is expected.")
    for name in fields:
        if found.get(name) is None:
            raise StoreError(f"{where} has no field '{name}'.")
    if schema is not None and not (isinstance(found.get("schema"), int) and found.schema <= schema):
        raise StoreError(
            f"{where} has schema version {found.get('schema')!r}, and this ibpwf reads up to {schema}: upgrade ibpwf."
        )
    return found


def read_record(path: Path, *fields: str, schema: int | None = None) -> Tree:
    """The object in a file."""
    return record(read_json(path), path.name, *fields, schema=schema)
