"""`ibpwf export`: a task of a model, or all of it, as a file that runs without ibpwf."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ibpwf.cli.options import AsJson, OfModel
from ibpwf.cli.output import counted, print_json, say, size
from ibpwf.cli.parsing import option
from ibpwf.errors import InputError, printable

if TYPE_CHECKING:
    from ibpwf.exporting.writing import Exported


@dataclass(kw_only=True)
class Export(OfModel, AsJson):
    """Export a task's network for use without ibpwf: ONNX, torch.export, plain weights or a peft adapter.

    Without --task, all tasks go into one graph that infers the task. A graph takes your own numbers and returns
    probabilities; it is compared with the model's predictions before it is written. An ONNX model comes with a small
    predict.py that needs only onnxruntime and numpy. A peft adapter is a folder with a task's difference from its
    pretrained base (setting base=frozen). A folder for MLflow holds the whole model, and needs ibpwf where it runs.
    """

    to: Literal["onnx", "pt2", "safetensors", "peft", "mlflow"] = option(
        ..., "The format; pt2 is torch.export, peft a LoRA adapter.", metavar="FORMAT"
    )
    task: str | None = option(None, "The task; see `ibpwf inspect MODEL`.", metavar="NAME", usual="all tasks")
    out: Path | None = option(
        None,
        "The file, or a folder for it; for peft and mlflow the folder itself.",
        "-o",
        "--out",
        usual="MODEL-NAME.FORMAT",
    )
    base: str | None = option(
        None,
        "The pretrained base of tasks learned with base=frozen: a backbone's name, a folder of transformers, or a "
        "file of weights for a network that the model describes.",
        metavar="NAME",
    )
    overwrite: bool = option(False, "Replace existing files.")

    def run(self) -> None:
        from ibpwf.exporting.base import configuration_of
        from ibpwf.exporting.writing import export

        if self.base is None and configuration_of(self.model) is not None:
            raise InputError(
                f"{self.model} holds differences from a pretrained base, which is not in it; give that base with "
                "--base (a backbone's name, a folder of transformers, or a file of weights). With a network of your "
                "own class: ibpwf.export(Learner.load(path, net=base), task, 'peft') in Python."
            )
        done = export(self.model, self.task, self.to, self.out, base=self.base, overwrite=self.overwrite)
        if self.json:
            print_json({"files": done.files, "difference": done.difference, "about": done.about})
        else:
            show(done, self.to)


def show(done: Exported, to: str) -> None:
    target, *beside = done.files
    about = done.about
    is_folder = to in ("peft", "mlflow")
    where = target.parent if is_folder else target
    files = [file for file in where.rglob("*") if file.is_file()] if is_folder else [target]
    written = sum(file.stat().st_size for file in files)
    if about["task"] is not None or len(about["tasks"]) == 1:
        what = f"task '{printable(about['task'] or about['tasks'][0])}'"
    else:
        what = f"all {counted(len(about['tasks']), 'task')}"
    labels = printable(", ".join(map(str, about["labels"][:6]))) + (", …" if len(about["labels"]) > 6 else "")
    say(f"Wrote {printable(str(where))} ({size(written)}): {what}, labels {labels}.")
    if to == "peft":
        say(f"Load it onto its base: peft.PeftModel.from_pretrained(net, {str(where)!r}).")
        say(f"The first {len(about['labels'])} outputs are {printable(about['network']['words'])}.")
        return
    if to == "mlflow":
        say(printable(f"Load it: mlflow.pyfunc.load_model({str(where)!r}). Serve it: mlflow models serve -m {where}"))
        return
    shape = "×".join(map(str, about["input"]["shape"]))
    if about["preprocessing"]["included"] and to != "safetensors":
        how = "unscaled: standardization is part of the graph"
    else:
        how = f"prepared as described in {target.with_suffix('.json') if to == 'safetensors' else 'its metadata'}"
    say(f"Input: {shape} numbers per row, {printable(how)}.")
    if to == "safetensors":
        if about["network"]["turns"] > 1:
            say(f"Outputs: {printable(about['network']['words'])}.")
        return
    if done.difference is None:
        say("Not checked: onnxruntime is not installed (pip install 'ibpwf[export]').")
    else:
        runner = "ONNX Runtime" if to == "onnx" else "torch"
        say(f"Checked in {runner}: at most {done.difference:.1g} from the model's own predictions.")
    if to == "onnx":
        say(printable(f"To run it: python {beside[0]} {target} DATA.csv"))
