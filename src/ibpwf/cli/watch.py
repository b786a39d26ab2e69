"""`ibpwf watch`: learn files as they arrive in a folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ibpwf.cli.interrupts import Interrupted, stopping
from ibpwf.cli.options import AsJson, Categories, Columns, Labeled, NewModel, OnDevice
from ibpwf.cli.output import counted, print_json, say
from ibpwf.cli.parsing import argument, option
from ibpwf.errors import InputError, printable


@dataclass(kw_only=True)
class Watch(NewModel, Labeled, Columns, Categories, OnDevice, AsJson):
    """Learn files as they arrive in a folder: task boundaries are detected, and every decision is logged.

    A file is learned once, also after a restart. Files without labels are predicted. A file that cannot be read is
    named in the log and left where it is. Ctrl-C ends after the file that is being learned.
    """

    model: Path = argument("MODEL", "The model folder.")
    folder: Path | None = argument("FOLDER", "Where .csv, .parquet or .npz files arrive.", None)
    once: bool = option(False, "Process the files that are there, then end.")
    poll: float = option(5.0, "Seconds between two looks at the folder.", metavar="SECONDS")
    undo: bool = option(False, "Undo the last decision about rows, then end.")
    log: Path | None = option(
        None, "Where to write log.jsonl and predictions.", metavar="FOLDER", usual="MODEL.watch"
    )
    buffer: int | None = option(
        None, "Keep at most this many rows until they are learned as a task.", metavar="ROWS", usual="10000"
    )
    detector: str | None = option(
        None, "The drift detector that finds task boundaries.", metavar="NAME", usual="page-hinkley"
    )

    def run(self) -> None:
        if self.undo:
            self._undo()
            return
        if self.folder is None:
            raise InputError("FOLDER is missing; give the folder that files arrive in.")
        from ibpwf.data.opening import check_there

        check_there(self.folder)
        read, parameters, stream = self.read_options(), self.parameters(), self._stream()
        from ibpwf.estimator.watch import WatchOptions, watch_folder

        with stopping([]) as stop:
            options = WatchOptions(
                read,
                parameters,
                stream,
                self.device,
                self.once,
                self.poll,
                self.log,
                say=lambda text: say(printable(text), err=self.json),
                stop=stop,
            )
            try:
                watched = watch_folder(self.model, self.folder, options)
            except KeyboardInterrupt:
                raise Interrupted("Interrupted. The file that was being learned will be read again.") from None
        if self.json:
            print_json({"model": self.model, "folder": self.folder, **asdict(watched)})
            return
        say(f"{counted(watched.learned, 'file')} learned, {watched.answered} predicted, {watched.skipped} skipped.")
        if not watched.saved:
            say("No task has been learned yet, so nothing is saved; these files will be read again.")

    def _undo(self) -> None:
        from ibpwf.estimator.watch import undo_last

        line = undo_last(self.model, self.device, self.log)
        if self.json:
            print_json({"model": self.model, **line})
        else:
            say(printable(f"Undone: decision {line['undone']}, {line['what']} '{line['task']}'. {line['effect']}"))

    def _stream(self) -> dict[str, Any] | None:
        """What was asked of the stream; None if nothing was."""
        given = {"buffer": self.buffer, "detector": self.detector}
        asked = {name: value for name, value in given.items() if value is not None}
        if not asked:
            return None
        from ibpwf.streaming.options import StreamOptions

        StreamOptions.of(asked)  # a wrong one is named before anything is read
        return asked
