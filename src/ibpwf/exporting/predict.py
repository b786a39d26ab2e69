"""Prints a label and its probability for each row: python predict.py MODEL.onnx DATA.csv (or .tsv, or .npz).

Of plain weights it checks that the JSON file beside them belongs to them: python predict.py MODEL.safetensors
"""

import csv
import hashlib
import json
import re
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np

SCHEMA = 1


def table(path: str, about: dict[str, Any]) -> Any:
    """The rows of a table, columns by their names, words as the features they stand for."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file, delimiter="\t" if path.endswith(".tsv") else ",")
        columns = about["features"] or [{"column": name} for name in rows.fieldnames or ()]
        filled = (row for row in rows if any(text and text.strip() for text in row.values()))
        return np.array([[number(row[column["column"]], column) for column in columns] for row in filled])


def number(text: str, column: dict[str, Any]) -> float:
    word = re.sub(r"^([+-]?\d+)\.0*$", r"\1", unicodedata.normalize("NFC", text.strip()))
    word = "0" if word in ("-0", "+0") else word
    if word.lower() in column.get("missing", ()):
        return np.nan
    if "equals" not in column:
        return float(text)
    if text.strip() not in column.get("words", [text.strip()]) and word not in column.get("words", [word]):
        raise ValueError(f"'{text.strip()}' in column '{column['column']}' was never learnt")
    return float(text.strip() in column["equals"] or word in column["equals"])


def array(path: str, given: dict[str, Any]) -> Any:
    """The array x of an .npz file. Images have their colours first or last; bytes are for models that learnt them."""
    x = np.load(path)["x"]
    images, dtype = len(given["shape"]) == 3 and x.ndim > 2, np.dtype(given["dtype"])
    if images and (x.dtype == np.uint8) != (dtype == np.uint8):
        raise ValueError(f"x holds {x.dtype}, the model takes images of {dtype}; convert x as what was learnt")
    if images and x.ndim == 4 and not (x.shape[1] not in (1, 3) and x.shape[3] in (1, 3)):
        x = x.transpose(0, 2, 3, 1)
    if (images and x[:1].size != np.prod(given["shape"])) or (x.ndim == 4 and list(x.shape[1:]) != given["shape"]):
        raise ValueError(f"x has shape {x.shape}, the model takes images of {given['shape']}")
    return x


def check(x: Any, given: dict[str, Any]) -> Any:
    """Refuse what is no number, and numbers on another scale than what was learnt."""
    odd = np.isinf(x) if given["missing"] else ~np.isfinite(x)
    if x.dtype.kind == "f" and odd.any():
        raise ValueError("x has NaN or infinities")
    low, high = given["range"] or (0, 0)
    size, reach = np.nan_to_num(np.abs(x)), max(abs(low), abs(high))
    if reach and (np.mean(size > 16 * reach) > 0.01 or (len(x) >= 8 and 0 < size.max(initial=0) < reach / 64)):
        raise ValueError(f"x goes to {size.max():.4g}, what was learnt lay from {low:.4g} to {high:.4g}; convert x")
    return x


def check_weights(path: str) -> str:
    """Refuse notes of other weights: a program that was killed between the two files leaves such."""
    notes = Path(path).with_suffix(".json")
    about = json.loads(notes.read_text(encoding="utf-8"))
    if about.get("weights", {}).get("sha256") != hashlib.sha256(Path(path).read_bytes()).hexdigest():
        raise ValueError(f"{notes} is not of {path}: it names another SHA-256; export them again with --overwrite")
    return f"{notes} is of {path}: task {about['task']}, labels {about['labels']}"


def cell(label: object) -> object:
    """Text that a spreadsheet would run as a formula gets a quote before it."""
    return f"'{label}" if re.match(r"[=+\-@\t\r\n](?![\d.]+$)", str(label)) else label


def main(model: str, data: str) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["ibpwf"])
    if about["schema"] != SCHEMA:
        raise ValueError(f"{model} has schema {about['schema']}, not {SCHEMA}; use the predict.py of its export")
    given = about["input"]
    x = array(data, given) if data.endswith(".npz") else table(data, about)
    if not len(x):
        raise ValueError(f"{data} has no rows")
    x = check(np.asarray(x, given["dtype"]).reshape(len(x), *given["shape"]), given)
    answers = session.run(None, {"x": x})[0]
    csv.writer(sys.stdout).writerows((cell(about["labels"][row.argmax()]), f"{row.max():.6f}") for row in answers)


try:
    if len(sys.argv) == 2 and sys.argv[1].endswith(".safetensors"):
        print(check_weights(sys.argv[1]))
        sys.exit()
    model, data = sys.argv[1:] if len(sys.argv) == 3 else sys.exit(__doc__)
    if not data.endswith((".csv", ".tsv", ".npz")):
        sys.exit(f"error: {data} is no .csv, .tsv or .npz file")
    main(model, data)
except Exception as error:
    sys.exit(f"error: no column or array {error}" if isinstance(error, KeyError) else f"error: {error}")
