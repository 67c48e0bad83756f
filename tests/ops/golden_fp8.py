#!/usr/bin/env python3
"""Writes fp8_torchao.json: matrices as torchao quantizes them for its rowwise recipe with scales that are powers of two.

    VENV/bin/python tests/ops/golden_fp8.py     # VENV with torchao 0.18

Numbers are bits: of fp32 (x, and scales by which E4M3 is multiplied) and of E4M3 (values).
"""

import json
import pathlib

import torch
from torchao.float8.config import ScalingGranularity
from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
from torchao.float8.float8_training_tensor import LinearMMConfig


def bits(tensor):
    return tensor.contiguous().view(torch.int32).flatten().tolist()


def quantized(x):
    q = hp_tensor_to_float8_dynamic(x, torch.float8_e4m3fn, LinearMMConfig(), scaling_granularity=ScalingGranularity.AXISWISE,
                                    axiswise_dim=-1, round_scales_to_power_of_2=True)
    assert q._scale.dtype == torch.float32 and q._scale.shape == (x.shape[0], 1)
    return {"rows": x.shape[0], "cols": x.shape[1], "x": bits(x.float()), "scales": bits(1 / q._scale),
            "values": q._data.view(torch.uint8).flatten().tolist()}


def main():
    torch.manual_seed(8)
    cases = []
    for dtype in (torch.float32, torch.bfloat16):
        for spread in (1e-20, 1e-11, 3e-5, 1.0, 7e4, 1e30):
            # Rows of different size, of many magnitudes.
            x = torch.randn(6, 37) * torch.exp(2 * torch.randn(6, 37)) * spread
            x[0, :5] = torch.tensor([448.0, 464.0, -448.0, 1.0, 2**-9]) * spread
            x[1] = 0
            cases.append(quantized(x.to(dtype)))
    lines = ",\n ".join(json.dumps(case, separators=(",", ":")) for case in cases)
    (pathlib.Path(__file__).parent / "fp8_torchao.json").write_text(f"[{lines}]\n")


if __name__ == "__main__":
    main()
