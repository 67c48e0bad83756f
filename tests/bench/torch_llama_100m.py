#!/usr/bin/env python3
"""The 100M benchmark model of docs/measured/performance.md in plain PyTorch: one training step of a 100M Llama on CPUs.

    python3 tests/bench/torch_llama_100m.py [--precision fp32|bf16|both] [--threads 2] [--steps 5]

Runs with Debian 12's python3-torch (1.13.1) and with newer releases. Debian's takes whichever BLAS is
installed: have libopenblas0-pthread, or it falls back to one many times slower. Compare its tokens/s with those
of `llamesh bench step` from the same machine and the same hour: same shapes, same batch, AdamW with
clipping, random tokens. bf16 means autocast: fp32 parameters, bf16 matrix products.
"""

import argparse
import contextlib
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

# B batch, T sequence, D hidden, H heads, K kv heads, d head dim, V vocabulary
HIDDEN, LAYERS, HEADS, KV_HEADS, INTERMEDIATE, VOCABULARY = 768, 12, 12, 4, 2048, 16384
HEAD_DIM = HIDDEN // HEADS
SEQUENCE, BATCH = 512, 4


class RmsNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x):
        x32 = x.float()
        return self.weight * (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def rotary_tables():
    frequency = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
    angle = torch.outer(torch.arange(SEQUENCE).float(), frequency)
    angle = torch.cat([angle, angle], -1)  # (T, d): the rotate-half convention
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos.to(x.dtype) + torch.cat([-second, first], -1) * sin.to(x.dtype)


def causal_attention(q, k, v):
    """(B, H, T, d) each. PyTorch 2 has a fused kernel, 1.13 composes it from matrix products."""
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = q @ k.transpose(-1, -2) * HEAD_DIM**-0.5
    future = torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1).to(v.dtype) @ v


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_norm, self.post_attention_norm = RmsNorm(), RmsNorm()
        self.q_proj = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
        self.gate_proj = nn.Linear(HIDDEN, INTERMEDIATE, bias=False)
        self.up_proj = nn.Linear(HIDDEN, INTERMEDIATE, bias=False)
        self.down_proj = nn.Linear(INTERMEDIATE, HIDDEN, bias=False)

    def forward(self, x, cos, sin):
        def heads(y, count):
            return y.view(BATCH, SEQUENCE, count, HEAD_DIM).transpose(1, 2)

        h = self.input_norm(x)
        q = rotate(heads(self.q_proj(h), HEADS), cos, sin)
        k = rotate(heads(self.k_proj(h), KV_HEADS), cos, sin)
        v = heads(self.v_proj(h), KV_HEADS)
        k, v = (y.repeat_interleave(HEADS // KV_HEADS, dim=1) for y in (k, v))
        attended = causal_attention(q, k, v).transpose(1, 2).reshape(BATCH, SEQUENCE, -1)
        x = x + self.o_proj(attended)
        h = self.post_attention_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = RmsNorm()
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.rotary = rotary_tables()
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, *self.rotary)
        logits = self.lm_head(self.norm(x))
        return F.cross_entropy(logits.float().view(-1, VOCABULARY), targets.reshape(-1))


def measure(precision, steps):
    """Prints each step's time; returns nothing. The first step warms up and is not counted."""
    torch.manual_seed(0)
    model = Llama()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=3e-4, betas=(0.9, 0.95))
    autocast = (contextlib.nullcontext() if precision == "fp32"
                else torch.autocast("cpu", dtype=torch.bfloat16))
    seconds = []
    for step in range(steps + 1):
        stream = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1))
        start = time.perf_counter()
        with autocast:
            loss = model(stream[:, :-1], stream[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step > 0:
            seconds.append(time.perf_counter() - start)
    tokens = BATCH * SEQUENCE
    print(f"torch {torch.__version__} {precision}: {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M "
          f"parameters, median {tokens / statistics.median(seconds):.0f} tokens/s, "
          f"best {tokens / min(seconds):.0f} tokens/s over {steps} steps of {tokens} tokens", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", choices=["fp32", "bf16", "both"], default="both")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for precision in ["fp32", "bf16"] if options.precision == "both" else [options.precision]:
        measure(precision, options.steps)


if __name__ == "__main__":
    main()
