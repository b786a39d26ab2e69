"""One writer per format: a graph or a network in, bytes out, checked against the model's own answers."""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ibpwf.errors import InputError

TOLERANCE = 1e-5
"""How far the exported file's answers may be from the model's, relative to the largest of them."""

Outputs = Sequence[Tensor]
Runner = Callable[[Tensor], Outputs]


def need_packages() -> None:
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"the format onnx needs {' and '.join(missing)}, which this Python has not; install the extra: "
            "pip install 'ibpwf[export]'."
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """torch's exporters warn and log about their own insides, which nobody who exports can change."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _refused(graph: nn.Module, to: str, error: Exception) -> InputError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0][:200] if lines else type(error).__name__
    expert = getattr(graph, "expert", None)
    whose = "one of the networks" if expert is None else f"the network ({expert.network})"
    return InputError(
        f"{whose} cannot be exported to {to}: torch could not trace it ({reason}); export its weights with "
        "--to safetensors, or change its forward pass."
    )


def traced(graph: nn.Module, x: Tensor, to: str) -> ExportedProgram:
    """The graph as torch.export has it, for any number of rows. Gradients stay on: without them attention takes a
    path of its own that does not trace."""
    try:
        with _quiet():
            return torch.export.export(graph, (x,), dynamic_shapes=({0: Dim("rows")},))
    except Exception as error:  # torch raises a great many kinds
        raise _refused(graph, to, error) from error


def as_pt2(graph: nn.Module, x: Tensor, about: dict[str, Any]) -> tuple[bytes, Runner]:
    """torch's own archive; `about` lies in it as the extra file metadata.json."""
    program = traced(graph, x, "pt2")
    file = io.BytesIO()
    with _quiet():
        torch.export.save(program, file, extra_files={"metadata.json": json.dumps(about)})
    data = file.getvalue()

    def run(x: Tensor) -> Outputs:
        with torch.no_grad(), _quiet():
            found = torch.export.load(io.BytesIO(data)).module()(x)
        return found if isinstance(found, tuple) else (found,)

    return data, run


def as_onnx(
    graph: nn.Module, x: Tensor, about: dict[str, Any], outputs: Sequence[str]
) -> tuple[bytes, Runner | None]:
    """An ONNX model with input `x`; `about` is its metadata under the key "ibpwf". Run by ONNX Runtime, if it is
    there."""
    need_packages()
    program = traced(graph, x, "onnx")
    try:
        with _quiet():
            made = torch.onnx.export(program, (x,), input_names=["x"], output_names=list(outputs), verbose=False)
            assert made is not None
            made.model.metadata_props["ibpwf"] = json.dumps(about)
            made.model.producer_name = "ibpwf"
            data = made.model_proto.SerializeToString()
    except Exception as error:
        raise _refused(graph, "onnx", error) from error
    if importlib.util.find_spec("onnxruntime") is None:
        return data, None
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def run(x: Tensor) -> Outputs:
        return [torch.from_numpy(array) for array in session.run(None, {"x": x.numpy()})]

    return data, run


def difference(found: Outputs, expected: Outputs) -> float:
    """The largest difference of any two answers, relative to the largest answer."""
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        if one.shape != other.shape:
            raise InputError(f"the exported file answers with {tuple(one.shape)} numbers for {tuple(other.shape)}.")
        apart = (one.double() - other.double()).abs().max() / other.double().abs().max()
        worst = max(worst, float(apart) if bool(apart.isfinite()) else float("inf"))
    return worst
