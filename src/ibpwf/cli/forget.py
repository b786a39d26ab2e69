"""`ibpwf forget`: a task deleted from a model folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ibpwf.cli.options import AsJson, OfModel
from ibpwf.cli.output import counted, print_json, say, size
from ibpwf.cli.parsing import argument
from ibpwf.errors import InputError, printable


@dataclass(kw_only=True)
class Forget(OfModel, AsJson):
    """Delete a task and every factor that only it uses. All other tasks predict the same bits as before."""

    task: str = argument("TASK", "The task's name; see `ibpwf inspect MODEL`.")

    def run(self) -> None:
        from ibpwf.learner import open_model

        with open_model(self.model, device="cpu") as found:
            before = _bytes(self.model)
            if getattr(found, "tasks_", None) == [self.task]:
                raise InputError(f"task '{self.task}' is the only one of {self.model}; delete the folder instead.")
            forgotten = found.forget(self.task)
            found.save(self.model)
            freed = before - _bytes(self.model)
        left = [known.name for known in getattr(found, "learner_", found).tasks]
        if self.json:
            counts = {"removed": forgotten.removed, "kept": forgotten.kept}
            print_json({"model": self.model, "forgot": self.task, **counts, "bytes": freed, "tasks": left})
            return
        say(f"Forgot task '{printable(self.task)}' of {printable(str(self.model))}: {size(max(freed, 0))} freed.")
        for layer, count in forgotten.removed.items():
            kept = forgotten.kept[layer]
            say(f"  {layer}: {counted(count, 'factor')} removed, {kept} kept because other tasks use them")
        say(f"Remaining tasks: {printable(', '.join(left)) or 'none'}.")


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
