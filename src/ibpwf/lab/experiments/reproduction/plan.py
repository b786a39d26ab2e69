"""What experiments would run, before anything does: every run once, with its seeds, length and state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ibpwf.lab.experiments.reproduction.experiment import Experiment, Request
from ibpwf.lab.experiments.reproduction.reproduce import Job, jobs_of


@dataclass(frozen=True)
class PlannedRun:
    """One run and the experiments that share it."""

    job: Job
    experiments: tuple[str, ...]

    @property
    def length(self) -> str:
        """Epochs (or iterations) of a task, and the tasks where these are fewer than the scenario's."""
        settings = self.job.config.settings().to_json()
        epochs = " + ".join(str(settings[name]) for name in ("epochs", "finetune_epochs") if settings.get(name))
        count = f"{settings['iterations']} iterations" if settings.get("iterations") else f"{epochs} epochs"
        tasks = self.job.config.tasks
        return count + (f", {tasks} tasks" if tasks is not None else "")

    @property
    def trainings(self) -> int:
        """How often a scenario is learnt: once per seed, or once per seed and setting."""
        return len(self.job.config.seeds) * len(self.job.config.trainings())

    @property
    def state(self) -> str:
        if self.job.finished() is not None:
            return "finished"
        return "begun" if (self.job.folder / "config.json").exists() else "to do"


def plan(experiments: Sequence[Experiment], asked: Request) -> list[PlannedRun]:
    """Every run of the experiments once, in the order in which they come up, with the most seeds that one wants."""
    jobs: dict[str, Job] = {}
    wanted: dict[str, list[str]] = {}
    for experiment in experiments:
        for job in jobs_of(experiment, asked):
            name = job.spec.name
            wanted.setdefault(name, [])
            if experiment.name not in wanted[name]:
                wanted[name].append(experiment.name)
            if name not in jobs or len(job.config.seeds) > len(jobs[name].config.seeds):
                jobs[name] = job
    return [PlannedRun(job, tuple(wanted[name])) for name, job in jobs.items()]
