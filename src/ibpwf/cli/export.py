"""`ibpwf export`: a task of a model, or all of it, as a file that runs without ibpwf."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from ibpwf.cli.model import AsJson, Model, counted, size
from ibpwf.cli.output import print_json, say
from ibpwf.data.opening import check_there
from ibpwf.errors import InputError, printable

if TYPE_CHECKING:
    from ibpwf.exporting.writing import Exported, Format

Task = Annotated[
    str | None,
    typer.Option("--task", metavar="NAME", help="The task (see `ibpwf inspect`); without it, or `all`: all of them."),
]
To = Annotated[
    str,
    typer.Option("--to", metavar="FORMAT", help="onnx, pt2 (torch.export), safetensors, peft (LoRA) or mlflow."),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="PATH",
        help="The file, or a folder for it; of peft and mlflow the folder itself. Default: MODEL-NAME.FORMAT.",
    ),
]


Base = Annotated[
    str | None,
    typer.Option(
        "--base",
        metavar="NAME",
        help="The trained network of tasks learned with base=frozen: a backbone's name, a folder of transformers, or "
        "a file of weights for a network that the model describes.",
    ),
]


def export_command(
    model: Model,
    to: To,
    task: Task = None,
    output: Out = None,
    base: Base = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")] = False,
    json_: AsJson = False,
) -> None:
    """Write a task's network for use without ibpwf: ONNX, torch.export, plain weights or a peft adapter.

    Without --task, all tasks go into one graph that infers the task itself. A graph takes your own numbers and gives
    probabilities; it is compared with the model's answers before it is written. Beside an ONNX model lies a small
    predict.py that needs only onnxruntime and numpy. A peft adapter is a folder with a task's difference from the
    trained network that it was learned beside (setting base=frozen). A folder for MLflow holds the whole model, and
    needs ibpwf where it runs.
    """
    check_there(model)
    from ibpwf.exporting.base import configuration_of
    from ibpwf.exporting.writing import export

    if base is None and configuration_of(model) is not None:
        raise InputError(
            f"{model} holds differences from a trained network, which is not in it; give that network with --base "
            "(a backbone's name, a folder of transformers, or a file of weights). One of your own class: "
            "ibpwf.export(Learner.load(path, net=trained), task, 'peft') in Python."
        )
    done = export(model, task, cast("Format", to), output, base=base, overwrite=overwrite)
    if json_:
        told = {"files": [str(file) for file in done.files], "difference": done.difference, "about": done.about}
        print_json(told)
        return
    show(done, to)


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
        say(f"Load it onto the trained network: peft.PeftModel.from_pretrained(net, {str(where)!r}).")
        say(f"The first {len(about['labels'])} outputs are {printable(about['network']['words'])}.")
        return
    if to == "mlflow":
        say(printable(f"Load it: mlflow.pyfunc.load_model({str(where)!r}). Serve it: mlflow models serve -m {where}"))
        return
    shape = "×".join(map(str, about["input"]["shape"]))
    kind = {"safetensors": "The network takes", "onnx": "It takes", "pt2": "It takes"}[to]
    included = about["preprocessing"]["included"] and to != "safetensors"
    how = "as they are: standardised inside" if included else f"prepared as {_notes(target, to)} says"
    say(f"{kind} {shape} numbers a row, {how}.")
    if to == "safetensors" and about["network"]["turns"] > 1:
        say(f"Its outputs are {printable(about['network']['words'])}.")
    if to != "safetensors":
        runner = "ONNX Runtime" if to == "onnx" else "torch"
        if done.difference is None:
            say("Not checked: onnxruntime is not installed here (pip install 'ibpwf[export]').")
        else:
            say(f"Checked in {runner}: at most {done.difference:.1g} from the model's own answers.")
    if to == "onnx":
        say(printable(f"Beside it {beside[0].name}: python {beside[0]} {target} DATA.csv"))


def _notes(target: Path, to: str) -> str:
    return str(target.with_suffix(".json")) if to == "safetensors" else "its metadata"
