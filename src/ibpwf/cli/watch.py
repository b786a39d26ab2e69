"""`ibpwf watch`: learn files as they arrive in a folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ibpwf.cli import reading as own
from ibpwf.cli.output import print_json, say
from ibpwf.data.opening import check_there
from ibpwf.device import check_device
from ibpwf.errors import InputError, printable


def watch_command(
    model: own.Model,
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="FOLDER", help="Where .csv, .parquet or .npz files arrive.", show_default=False),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Take the files that are there, then end.")] = False,
    poll: Annotated[float, typer.Option("--poll", metavar="SECONDS", help="Between two looks at the folder.")] = 5.0,
    undo: Annotated[bool, typer.Option("--undo", help="Take back the last decision about rows, then end.")] = False,
    label: own.Label = None,
    ignore: own.Ignore = None,
    categories: Annotated[
        list[str] | None,
        typer.Option("--categories", metavar="COLUMN", help=f"{own.HELP['categories']} Repeatable."),
    ] = None,
    unknown: own.Unknown = False,
    missing: own.Missing = None,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log", metavar="FOLDER", help="Where log.jsonl and predictions go.", show_default="MODEL.watch"
        ),
    ] = None,
    buffer: Annotated[
        int | None,
        typer.Option("--buffer", metavar="ROWS", help="Rows kept until learned as a task.", show_default="10000"),
    ] = None,
    detector: Annotated[
        str | None,
        typer.Option("--detector", metavar="NAME", help="What finds borders.", show_default="page-hinkley"),
    ] = None,
    device: own.Device = "auto",
    json_: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="New model: a setting, such as --set epochs=5. Repeatable."),
    ] = None,
) -> None:
    """Learn files as they arrive in a folder: what is a task is found out, and every decision is logged.

    A file is learned once, also after a restart. One without labels is answered. One that cannot be read is named in
    the log and left where it is. Ctrl-C ends after the file that is being learned.
    """
    check_device(device)
    if undo:
        _undo(model, device, log, json_)
        return
    if folder is None:
        raise InputError("FOLDER is missing; give the folder that files arrive in.")
    check_there(folder)
    read = own.read_options(
        unknown=unknown, missing=missing, size=None, label=label, ignore=ignore, categories=categories
    )
    parameters, stream = _parameters(set_), _stream(buffer, detector)
    from ibpwf.cli.learn import stopping
    from ibpwf.estimator.watch import WatchOptions, watch_folder

    caught: list[int] = []
    with stopping(caught) as stop:
        options = WatchOptions(
            read,
            parameters,
            stream,
            device,
            once,
            poll,
            log,
            say=lambda text: say(printable(text), err=json_),
            stop=stop,
        )
        try:
            watched = watch_folder(model, folder, options)
        except KeyboardInterrupt:
            say("Ended at once. The file that was being learned will be read again.", err=True)
            raise typer.Exit(130) from None
    if json_:
        print_json({"model": str(model), "folder": str(folder), **asdict(watched)})
        return
    files = f"{watched.learned} file{'s' * (watched.learned != 1)}"
    say(f"{files} learned, {watched.answered} answered, {watched.skipped} skipped.")
    if not watched.saved:
        say("No task has been learned yet, so nothing is on disk; these files will be read again.")


def _undo(model: Path, device: str, log: Path | None, json_: bool) -> None:
    from ibpwf.estimator.watch import undo_last

    line = undo_last(model, device, log)
    if json_:
        print_json({"model": str(model), **line})
    else:
        say(printable(f"Undone: decision {line['undone']}, {line['what']} '{line['task']}'. {line['effect']}"))


def _stream(buffer: int | None, detector: str | None) -> dict[str, Any] | None:
    """What was asked of the stream; None if nothing was."""
    given = {"buffer": buffer, "detector": detector}
    asked = {name: value for name, value in given.items() if value is not None}
    if not asked:
        return None
    from ibpwf.streaming.options import StreamOptions

    StreamOptions.of(asked)  # a wrong one is named before anything is read
    return asked


def _parameters(settings: list[str] | None) -> dict[str, Any]:
    """Settings of a new model, as `ContinualClassifier` takes them."""
    from ibpwf.parts import parse_assignment
    from ibpwf.settings import Settings

    chosen = dict(parse_assignment(text) for text in settings or [])
    own_names = ("alpha", "epochs", "batch_size", "learning_rate")
    parameters: dict[str, Any] = {name: chosen.pop(name) for name in own_names if name in chosen}
    if "hidden" in chosen:
        widths = chosen.pop("hidden")
        if not isinstance(widths, list):
            raise InputError(f"hidden is {widths!r}; give the widths of layers, such as --set hidden=[400].")
        parameters["hidden"] = tuple(widths)
    Settings(**{name: value for name, value in parameters.items() if name != "hidden"}, **chosen)
    return {**parameters, "settings": chosen} if chosen else parameters
