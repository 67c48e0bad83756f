#!/usr/bin/env python3
"""Writes nf4_bitsandbytes.json: numbers as bitsandbytes rounds them to NF4 in blocks of 64.

    VENV/bin/python tests/ops/golden_nf4.py     # VENV with bitsandbytes 0.50

Numbers are bits of fp32: x, and what its codes stand for.
"""

import json
import pathlib

import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit


def bits(tensor):
    return tensor.float().contiguous().view(torch.int32).flatten().tolist()


def rounded(x):
    codes, state = quantize_4bit(x, blocksize=64, quant_type="nf4", compress_statistics=False)
    return {"dtype": str(x.dtype).removeprefix("torch."), "x": bits(x), "rounded": bits(dequantize_4bit(codes, state))}


def main():
    torch.manual_seed(8)
    cases = []
    for dtype in (torch.float32, torch.bfloat16):
        for spread in (1e-20, 0.02, 1e30):
            # Rows of different size. The last one is a block of zeros.
            x = torch.randn(6, 64) * torch.exp(2 * torch.randn(6, 1)) * spread
            x[5] = 0
            cases.append(rounded(x.to(dtype)))
    lines = ",\n ".join(json.dumps(case, separators=(",", ":")) for case in cases)
    (pathlib.Path(__file__).parent / "nf4_bitsandbytes.json").write_text(f"[{lines}]\n")


if __name__ == "__main__":
    main()
