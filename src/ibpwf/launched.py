"""Whether this process was started as one of several, told without waiting for torch."""

from __future__ import annotations

import os


def started_as() -> int | None:
    """This process's number among those that `torchrun`, or somebody like it, has started; None where it is alone."""
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return int(rank) if rank.isdigit() and size.isdigit() and int(size) > 1 else None
