"""The torch dtype of each way in which payloads are stored."""

import torch

from megapack.records.payload import PayloadDtype

TORCH_DTYPES = {
    PayloadDtype.BF16: torch.bfloat16,
    PayloadDtype.FP16: torch.float16,
    PayloadDtype.FP32: torch.float32,
}
