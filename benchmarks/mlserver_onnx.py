"""The model that MLServer runs in `benchmarks/serving.py`: ONNX Runtime, one pass per request."""

from typing import Any

import numpy as np
import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Onnx(MLModel):
    session: Any

    async def load(self) -> bool:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        path = self.settings.parameters.uri
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        wanted = self.session.get_inputs()[0]
        kind = np.float64 if "double" in wanted.type else np.float32
        x = np.stack([NumpyCodec.decode_input(one).ravel() for one in payload.inputs], axis=1).astype(kind)
        values = self.session.run(None, {wanted.name: x})[0]
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("probabilities", values)])
