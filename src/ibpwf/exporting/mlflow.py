"""A model as MLflow has it: a pyfunc folder that `mlflow` loads and serves with the same answers.

`mlflow` is not needed to write it. The folder holds the model folder itself and says which function reads it.
"""

from __future__ import annotations

import copy
import json
import os
import platform
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ibpwf import __version__
from ibpwf.data.examples import Origins
from ibpwf.data.layout import Layout
from ibpwf.data.options import ReadOptions
from ibpwf.data.table import read_table
from ibpwf.errors import InputError
from ibpwf.estimator import ContinualClassifier
from ibpwf.exporting.source import Source
from ibpwf.plain_arrays import numbers
from ibpwf.storage.files import write_json, write_text
from ibpwf.storage.whole_folder import replacing_folder

FILES, MODEL = ("MLmodel", "requirements.txt", "conda.yaml", "python_env.yaml"), "model"
KINDS = {"number": "double", "boolean": "boolean", "category": "string", "date": "string", "text": "string"}
OUTPUTS = {"label": "string", "probability": "double", "task": "string", "entropy": "double", "novelty": "double"}
EXTRA = {"images": "images", "table": "text"}
"""What a layout may need beside the package itself."""


def write_mlflow(source: Source, target: Path, *, overwrite: bool) -> tuple[Path, ...]:
    """Write the folder, whole or not at all; its files, `MLmodel` first."""
    if source.classifier is None:
        raise InputError(
            "mlflow takes a ContinualClassifier, with labels and preprocessing, and this is a Learner; export it as "
            "onnx, or learn with ContinualClassifier."
        )
    if not target.absolute().parent.is_dir():
        raise InputError(f"'{target.parent}' is no folder to make '{target.name}' in; make it first.")
    there = os.path.lexists(target)
    if there and not (overwrite and (target / "MLmodel").is_file()):
        remedy = (
            "give another path with -o" if overwrite else "give --overwrite to replace it, or another path with -o"
        )
        raise InputError(f"'{target}' exists already; {remedy}.")
    foreign = sorted(path.name for path in target.iterdir() if path.name not in (*FILES, MODEL)) if there else []
    if foreign:
        raise InputError(f"'{target}' holds '{foreign[0]}', which would be lost; give a folder to make.")
    with replacing_folder(target) as aside:
        _fill(aside, source.classifier)
    return (*(target / name for name in FILES), target / MODEL / "manifest.json")


def _fill(folder: Path, classifier: ContinualClassifier) -> None:
    copy.copy(classifier).save(folder / MODEL)
    (folder / MODEL / ".lock").unlink(missing_ok=True)
    layout = _layout(classifier)
    extra = "" if layout is None else EXTRA.get(layout.kind, "")
    if extra == "text" and layout is not None and not any(one.kind == "text" for one in layout.columns):
        extra = ""
    needed = f"ibpwf[{extra}]=={__version__}" if extra else f"ibpwf=={__version__}"
    python = platform.python_version()
    # JSON is YAML, so it needs no package to be written.
    write_text(folder / "requirements.txt", f"{needed}\nmlflow\n")
    packages = [f"python={python}", "pip", {"pip": ["mlflow", needed]}]
    write_json(folder / "conda.yaml", {"name": "mlflow-env", "dependencies": packages})
    write_json(
        folder / "python_env.yaml",
        {"python": python, "build_dependencies": ["pip"], "dependencies": ["-r requirements.txt"]},
    )
    write_json(
        folder / "MLmodel",
        {
            "artifact_path": MODEL,
            "flavors": {
                "python_function": {
                    "loader_module": __name__,
                    "data": MODEL,
                    "python_version": python,
                    "env": {"conda": "conda.yaml", "virtualenv": "python_env.yaml"},
                }
            },
            "model_uuid": secrets.token_hex(16),
            "signature": _signature(classifier, layout),
        },
    )


def _layout(classifier: ContinualClassifier) -> Layout | None:
    found = getattr(classifier, "extra_", {}).get("layout")
    return None if found is None else Layout.from_json(found)


def _signature(classifier: ContinualClassifier, layout: Layout | None) -> dict[str, str | None]:
    """What goes in and comes out, as MLflow writes it."""
    outputs = [{"type": kind, "name": name, "required": True} for name, kind in OUTPUTS.items()]
    if layout is not None and layout.kind == "table":
        inputs: list[dict[str, Any]] = [
            {"type": KINDS[one.kind], "name": one.name, "required": True} for one in layout.columns
        ]
    else:
        images = layout is not None and layout.kind == "images"
        shape = [-1, *(layout.shape if layout is not None and images else (classifier.n_features_in_,))]
        inputs = [{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": shape}}]
    return {"inputs": json.dumps(inputs), "outputs": json.dumps(outputs), "params": None}


class Answering:
    """What MLflow asks: `predict` of a table, or of arrays, gives a table of answers."""

    def __init__(self, classifier: ContinualClassifier) -> None:
        self.classifier, self.layout = classifier, _layout(classifier)

    def predict(self, model_input: Any, params: Any = None) -> Any:
        import pandas  # type: ignore[import-untyped,unused-ignore]

        if self.layout is not None and self.layout.kind == "table" and hasattr(model_input, "columns"):
            x = read_table(FrameTable(model_input), ReadOptions(like=self.layout, with_labels=False)).x
        elif hasattr(model_input, "tocsr"):
            x = model_input
        else:
            x = numbers("model_input", model_input).astype(np.float32)
        found = self.classifier.prediction(x)
        return pandas.DataFrame(
            {
                "label": [str(label) for label in found.labels],
                "probability": found.probability,
                "task": [str(task) for task in found.task],
                "entropy": found.entropy,
                "novelty": found.novelty,
            }
        )


class FrameTable:
    """A pandas table as the table that a file with these columns would be."""

    path = Path("the table")
    headless = False

    def __init__(self, frame: Any) -> None:
        import pyarrow

        self.names = [str(name) for name in frame.columns]
        self._table = pyarrow.Table.from_pandas(frame, preserve_index=False)

    def parts(self, wanted: Sequence[int], rows: int | None = None) -> Iterator[Any]:
        yield self._table.select(list(wanted))

    def origins(self, rows: range) -> Origins:
        return Origins([str(self.path)], "row", rows)


def _load_pyfunc(path: str) -> Answering:
    """Called by MLflow with the model folder's path."""
    return Answering(ContinualClassifier.load(path, device="cpu"))
