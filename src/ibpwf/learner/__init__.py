"""A learner of any method: it checks what comes in, names tasks, trains, predicts, saves and loads."""

from __future__ import annotations

from ibpwf.learner.learner import Learner
from ibpwf.learner.loading import load, open_model
from ibpwf.learner.state import LearnerState, TaskInfo
from ibpwf.learner.update import Update

__all__ = ["Learner", "LearnerState", "TaskInfo", "Update", "load", "open_model"]
