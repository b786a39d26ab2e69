"""Processes that do jobs beside the one that serves, so that predictions keep their pace: learn a task, update or
forget one, write an export.

They are forked from a process that has imported all that a job needs, which takes seconds of a core and is done once.
`run` reads `job.json` in the job's folder, writes progress to `progress.jsonl` and leaves what came of it in
`result.json`. A process ends when the server that started it does, and has the model's lease until then: no other
server makes changes beside it. Whatever ends it, the model folder is as before or as after, and the same job can be
given again.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
import traceback
import warnings
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ibpwf.errors import IBPWFError, StoreError
from ibpwf.serving.lease import Lease
from ibpwf.training.callbacks import Callback, EpochEnd, TaskEnd, TaskStart

DONE, FAILED, LOCKED, DISK_FULL, STOPPED = 0, 2, 3, 4, 130
"""Exit codes. LOCKED: another process writes to the model, or its folder is gone; to be tried again."""

CHECKPOINT_MINUTES = 0.5
"""At most between two checkpoints, however long writing one takes."""
NICE = 10
TRIES = 5
"""To copy a model that is being written."""
PATIENCE = 20.0
"""Seconds in which a job that is asked to stop must have done so."""


class Progress(Callback):
    """Writes a line for every epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.epochs, self.done = 0, 0

    def task_start(self, task: TaskStart) -> None:
        self.epochs, self.done = task.epochs, 0
        self.write({"event": "start", "rows": task.rows, "epochs": task.epochs})

    def epoch_end(self, epoch: EpochEnd) -> None:
        self.done += 1
        line = {name: value for name, value in asdict(epoch).items() if name not in ("task", "samples")}
        self.write({"event": "epoch", "done": self.done, "of": self.epochs, **line})

    def write(self, line: dict[str, Any]) -> None:
        from ibpwf.storage.files import append_jsonl

        append_jsonl(self.path, {name: _plain(value) for name, value in line.items()})


class ModelThere(Callback):
    """Ends a job whose model folder has gone meanwhile, where saving would make it again."""

    def __init__(self, model: Path) -> None:
        self.model = model

    def epoch_end(self, epoch: EpochEnd) -> None:
        check_there(self.model)

    def task_end(self, task: TaskEnd) -> None:
        check_there(self.model)


def check_there(model: Path) -> None:
    if not (model / "manifest.json").is_file():
        raise StoreError(f"{model} holds no model any more. Put its folder back, and ask again.")


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and value != value else value


def run(model: str, folder: str, held: Connection, lease: int, device: str) -> None:
    """Do the job in a folder, and end the process with what came of it. The other end of `held` is the server's;
    `lease` is a handle that is only to stay open."""
    os.setsid()  # an interrupt from a terminal is for the server, which lets this one end
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so is the end of a service, which is sent to all its processes
    os.nice(NICE)
    try:
        os.chdir(folder)  # so that messages name a file as `data.csv`
    except OSError:  # it is gone, with its model: the server, which looks before it tries again, says so
        sys.exit(LOCKED)
    stop = threading.Event()
    threading.Thread(target=_wait_for_end, args=(held, stop), daemon=True).start()
    sys.exit(_do(Path(model), stop, device))


def _do(model: Path, stop: threading.Event, device: str) -> int:
    import torch

    from ibpwf.serving.faults import FAULT, is_disk_full
    from ibpwf.storage.files import read_json, write_json
    from ibpwf.storage.folder import lock_folder

    torch.set_num_threads(1)
    job = read_json(Path("job.json"))
    code = DONE
    try:
        if job["kind"] == "export":
            result = _export(model, job)
        else:
            with contextlib.ExitStack() as stack:
                check_there(model)  # to lock a folder that is gone would make it again
                try:
                    stack.enter_context(lock_folder(model))
                except StoreError as error:
                    return DISK_FULL if is_disk_full(error) else LOCKED
                result = _change(model, job, stop, device)
    except KeyboardInterrupt:
        return STOPPED
    except Exception as error:
        if is_disk_full(error):  # so that no words can be left; the code says it
            return DISK_FULL
        told = str(error).replace(str(model), model.name)
        if not isinstance(error, IBPWFError):  # the same would happen again; the log says where
            traceback.print_exc()
            told = FAULT
        result, code = {"error": told}, FAILED
    try:
        write_json(Path("result.json"), result)
    except StoreError:
        if job["kind"] == "export" or code != DONE:
            return DISK_FULL
    return code


def _wait_for_end(held: Connection, stop: threading.Event) -> None:
    """Until nobody holds the other end: the server is gone, or asks to stop."""
    with contextlib.suppress(EOFError, OSError):
        held.recv_bytes()
    stop.set()
    time.sleep(PATIENCE)
    os._exit(STOPPED)  # nobody has looked at it


def _change(model: Path, job: dict[str, Any], stop: threading.Event, device: str) -> dict[str, Any]:
    from ibpwf.serving.versions import Kept

    kept = Kept(model)
    if job["kind"] == "forget":
        result = _forget(model, job["task"], kept)
    else:
        kept.follow()  # what was forgotten otherwise, and what killed jobs have left
        kept.keep()  # what is the newest version until now
        result = _learn(model, job, stop, device)
    try:
        kept.keep()
    except (OSError, StoreError) as error:  # the change is made, and the next job keeps it before another
        sys.stderr.write(f"the new version could not be kept: {error}\n")
    return result


def _forget(model: Path, task: str, kept: Any) -> dict[str, Any]:
    from ibpwf.estimator import ContinualClassifier
    from ibpwf.serving.versions import FolderVersions

    before, done = {*kept.ways(FolderVersions.read(model))}, Path("forgot")
    classifier = ContinualClassifier.load(model, device="cpu")
    if task in classifier.learner_.names() or not done.exists():
        classifier.forget(task)
        done.touch()  # a killed job that comes again must not say that there is no such task
        classifier.save(model)
    kept.follow()
    withdrawn = sorted(before - {*kept.ways(FolderVersions.read(model))})
    return {"task": task, "tasks": classifier.tasks_, "withdrawn": withdrawn}


def _learn(model: Path, job: dict[str, Any], stop: threading.Event, device: str) -> dict[str, Any]:
    from ibpwf.data import ReadOptions
    from ibpwf.estimator.files import LearnOptions, learn_file, update_file
    from ibpwf.serving.protocol import in_query

    work, data, told = job["work"], _data(model, job["work"]), list[str]()
    asked = {name: value for name, value in work["options"].items() if value not in (None, [])}
    options = LearnOptions(
        read=ReadOptions(**asked, with_labels=True, naming=in_query),
        validate=work["validation_fraction"],
        checkpoint_minutes=CHECKPOINT_MINUTES,
        resume=True,
        device=device,
        callbacks=[Progress(Path("progress.jsonl")), ModelThere(model)],
        stop=stop.is_set,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        if job["kind"] == "update":
            update = update_file(model, data, job["task"], None, options, work["keep"])
            found: dict[str, Any] = {"already": True} if update is None else asdict(update)
        else:
            found = asdict(learn_file(model, data, job["task"], None, options))
    told += [str(one.message) for one in caught if issubclass(one.category, UserWarning)]
    return {**found, "warnings": told}


def _data(model: Path, work: dict[str, Any]) -> Path:
    """The file to learn from; images out of an archive as arrays."""
    from ibpwf.estimator.files import layout_of, load_classifier
    from ibpwf.serving.limits import Limits
    from ibpwf.serving.uploads import images_to_arrays

    data = Path(work["data"])
    if data.suffix != ".zip":
        return data
    arrays = Path("data.npz")
    if not arrays.exists():
        layout = layout_of(load_classifier(model, "cpu"))
        layout.expect("images", "the archive")
        images_to_arrays(data, Path("data.part"), layout, Limits(**work["limits"]))
        with open("data.part", "rb") as part:
            os.fsync(part.fileno())  # what has the name is whole, also after a power cut
        Path("data.part").rename(arrays)
    return arrays


def _export(model: Path, job: dict[str, Any]) -> dict[str, Any]:
    from ibpwf.exporting.writing import export

    out = Path("export")
    shutil.rmtree(out, ignore_errors=True)
    if job["to"] == "folder":
        _link_newest(model, out)
    else:
        out.mkdir()
        target = out / f"{model.name}.{job['to']}" if job["to"] in ("peft", "mlflow") else out
        export(model, job["task"], job["to"], target)
    shutil.make_archive("export", "zip", out)
    shutil.rmtree(out)
    return {"file": "export.zip", "name": f"{model.name}-{job['to']}.zip"}


def _link_newest(model: Path, out: Path) -> None:
    """A new folder of the model's files as they were at one moment; a job may save the model meanwhile."""
    from ibpwf.serving.versions import link_model
    from ibpwf.storage.folder import open_folder

    for attempt in range(TRIES):
        out.mkdir()
        try:
            link_model(open_folder(model), out)
            return
        except (StoreError, OSError):
            shutil.rmtree(out)
            if attempt == TRIES - 1:
                raise


NEEDED = [
    *("ibpwf.estimator.files", "ibpwf.serving.worker", "ibpwf.serving.versions"),
    *("pyarrow.csv", "pyarrow.compute", "torch"),
    "torch._dynamo",  # which the first optimizer imports: most of the time of a short job
]


_ONE_AT_A_TIME = threading.Lock()
"""Starting a process also looks whether others have ended: two threads that read one exit code get 255 of it."""


class Worker:
    """A process that does one job."""

    def __init__(self, process: Any, held: Connection) -> None:
        self._process, self._held = process, held

    async def wait(self) -> int:
        """Its exit code, once it has ended; below 0 if a signal has ended it."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._process.sentinel, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._process.sentinel)
        self.stop()
        return await asyncio.to_thread(self._exit_code)

    def _exit_code(self) -> int:
        with _ONE_AT_A_TIME:
            self._process.join()
            return int(self._process.exitcode)

    def stop(self) -> None:
        """Let it keep what it has and end."""
        with contextlib.suppress(OSError):
            self._held.close()

    def kill(self) -> None:
        self._process.kill()


class Workshop:
    """Starts such processes."""

    def __init__(self) -> None:
        methods = multiprocessing.get_all_start_methods()
        self._context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")

    def prepare(self) -> None:
        """Import beforehand what jobs need, in the background."""
        if self._context.get_start_method() == "forkserver":
            from multiprocessing import forkserver

            self._context.set_forkserver_preload(NEEDED)
            threading.Thread(target=forkserver.ensure_running, daemon=True).start()

    async def start(self, model: Path, folder: Path, lease: Lease, device: str) -> Worker:
        return await asyncio.to_thread(self._start, model.resolve(), folder.resolve(), lease, device)

    def _start(self, model: Path, folder: Path, lease: Lease, device: str) -> Worker:
        theirs, ours = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=run, args=(str(model), str(folder), theirs, lease, device), daemon=True
        )
        with _ONE_AT_A_TIME:
            process.start()
        theirs.close()
        return Worker(process, ours)
