"""Models made files that run elsewhere: ONNX, torch.export archives, plain weights."""

from __future__ import annotations

from ibpwf.exporting.writing import Exported, export

__all__ = ["Exported", "export"]
