"""Measurements of speed and memory, as ratios taken in one run: `ibpwf bench`. One file per kind of measurement."""

NAMES = (
    *("step", "seeds", "prediction", "late-tasks", "memory"),
    *("step-gpu", "split-mnist", "permuted-mnist", "split-cifar10"),
)
"""What can be measured, in this order; here, so that the command line can list it without loading torch."""
