"""Methods of ibpwf on Split MNIST with the task given; prints JSON."""

from __future__ import annotations

from measure import Answer, Clock, Job, Task, main
from settings import ENTRIES, Training

import ibpwf
from ibpwf.lab.methods import method_named
from ibpwf.lab.methods.dense import DenseMethod, Problem
from ibpwf.learner import TaskLearner


def learn(job: Job, tasks: list[Task], training: Training, clock: Clock) -> Answer:
    entry = ENTRIES[job.method]
    kind = method_named(entry.ours)
    assert issubclass(kind, DenseMethod)
    settings = kind.settings_type().replace(
        hidden=training.hidden,
        epochs=training.epochs,
        batch_size=training.batch_size,
        learning_rate=training.learning_rate,
        **entry.settings,
    )
    problem = Problem(tuple(tasks[0].x.shape[1:]), 2 * len(tasks), "task")
    learner = TaskLearner(kind(problem, settings, seed=job.seed), seed=job.seed)
    for task in tasks:
        with clock.running():
            learner.learn(task.x, task.y)
    return lambda x, task: learner.predict(x, task=task).labels


if __name__ == "__main__":
    main(__doc__ or "", list(ENTRIES), learn, ibpwf=ibpwf.__version__)
