"""Runs the same cases in two checkouts and compares what they compute, bit by bit.

    python -m tools.same_outputs OLD NEW [CASE ...]

Each checkout runs its own `tools.output_cases` in a process of its own, one thread each, with the same Python.
Bits depend on the CPU and on torch, so there are no recorded digests: both sides are computed here and now. A case
name may end in `*`. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file


def run(checkout: Path, *words: str) -> subprocess.Popen[str]:
    paths = os.pathsep.join(str(checkout / part) for part in ("src", ".", "tests"))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tools.output_cases", *words]
    return subprocess.Popen(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True)


def names_of(checkout: Path) -> list[str]:
    process = run(checkout, "--list")
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{checkout}: tools.output_cases failed")
    return out.split("\n")[:-1]


def same(old: torch.Tensor, new: torch.Tensor) -> str | None:
    """None if two tensors have the same bits; otherwise how they differ."""
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        return f"{old.dtype} {list(old.shape)} != {new.dtype} {list(new.shape)}"
    if torch.equal(*(one.flatten().contiguous().view(torch.uint8) for one in (old, new))):
        return None
    apart = (old.double() - new.double()).abs()
    return (
        f"up to {float(apart.nan_to_num(torch.inf).max()):.3g} in {int((apart != 0).sum())} of {old.numel()} numbers"
    )


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The plain values of JSON by their places."""
    if isinstance(value, dict | list) and value:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, f"{place}/{key}" if place else str(key))
    else:
        yield place, value


def differences(old: Path, new: Path) -> list[str]:
    """How the outputs of a case differ between two folders."""
    problems = [(side / "problem.txt").read_text("utf-8") for side in (old, new) if (side / "problem.txt").exists()]
    if problems:
        return [problem.strip().splitlines()[-1] for problem in problems]
    found = []
    sides: list[dict[str, Any]] = []
    for side in (old, new):
        values = json.loads((side / "values.json").read_text("utf-8"))
        sides.append({**load_file(side / "tensors.safetensors"), **dict(leaves(values))})
    for key in sorted({*sides[0], *sides[1]}):
        one, other = (side.get(key) for side in sides)
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            how = same(one, other)
        elif any(key not in side for side in sides):
            how = f"only in the {'old' if key in sides[0] else 'new'} checkout"
        else:
            how = None if one == other else f"{str(one)[:70]} != {str(other)[:70]}"
        if how is not None:
            found.append(f"{key}: {how}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("case", nargs="*", default=["*"])
    parser.add_argument("--keep", type=Path, help="a folder for the outputs of both sides")
    chosen = parser.parse_args()
    known = names_of(chosen.new)
    names = [name for name in known if any(fnmatch.fnmatch(name, pattern) for pattern in chosen.case)]
    if not names:
        raise SystemExit(f"no case is called {chosen.case}; there are {', '.join(known)}")
    with tempfile.TemporaryDirectory() as place:
        out = chosen.keep or Path(place)
        sides = {name: out / name for name in ("old", "new")}
        processes = [
            run(checkout.resolve(), "--out", str(side.resolve()), *names)
            for checkout, side in zip((chosen.old, chosen.new), sides.values(), strict=True)
        ]
        for process in processes:
            process.communicate()
        wrong = 0
        for name in names:
            found = differences(sides["old"] / name, sides["new"] / name)
            wrong += bool(found)
            if found:
                print(f"{name}: {len(found)} differ")
                print("".join(f"    {line}\n" for line in found[:8]), end="")
    print(f"{len(names) - wrong} of {len(names)} cases have the same outputs")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
