"""Prints a label and its probability for each row: python predict.py MODEL.onnx DATA.csv (or .tsv, or .npz)."""

import csv
import json
import sys

import numpy as np
import onnxruntime

try:
    model, data = sys.argv[1:] if len(sys.argv) == 3 else sys.exit(__doc__)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["ibpwf"])
    if data.endswith(".npz"):
        x = np.load(data)["x"]
    else:
        with open(data, newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file, delimiter="\t" if data.endswith(".tsv") else ",")
            columns = about["features"] or [{"column": name} for name in table.fieldnames or ()]
            rows = [[(row[c["column"]].strip(), c) for c in columns] for row in table]
        for text, column in (cell for row in rows for cell in row):
            if text not in column.get("words", [text]):
                raise ValueError(f"'{text}' in column '{column['column']}' was never learnt")
        x = np.array([[text in c["equals"] if "equals" in c else float(text) for text, c in row] for row in rows])
    x = np.asarray(x, about["input"]["dtype"]).reshape(len(x), *about["input"]["shape"])
    answers = session.run(None, {"x": x})[0] if np.isfinite(x).all() else sys.exit("error: x has NaN or infinities")
    csv.writer(sys.stdout).writerows((about["labels"][row.argmax()], f"{row.max():.6f}") for row in answers)
except Exception as error:
    sys.exit(f"error: no column or array {error}" if isinstance(error, KeyError) else f"error: {error}")
