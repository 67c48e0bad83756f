#!/usr/bin/env python3
"""A training step of a Llama with PyTorch FSDP2 and torch.compile: what `llamesh bench step` is compared with.

    python3 tests/bench/torch_fsdp2.py --model inputs/models/llama3.2-1b.yaml --sequence 4096 --micro-batch 8 \
        --global-batch 64 [--checkpointing none|selective|full] [--attention fastest|fa3|cudnn|flash|efficient|math]
        [--linear same|rowwise|rowwise_with_gw_hp|tensorwise] [--plain] [--steps 4] [--no-compile]
        [--device cuda|cpu] [--dtype bf16|fp32]
    torchrun --nproc-per-node 8 tests/bench/torch_fsdp2.py ...

Same model, batch and precision: fp32 master weights, gradients and AdamW moments, computation in --dtype, gradients
reduced in fp32, clipping at norm 1, random tokens. Each block and the head are units of FSDP2, compiled one by one
as is usual; every micro-batch reduces its gradients. Selective checkpointing keeps what products and attention give
and computes the rest again, as llamesh's does. The attention is the fastest of those that are there, timed on the
run's own shape: FlashAttention 3 where its package is installed, and the backends of scaled_dot_product_attention.
--linear names a recipe by which torchao makes the blocks' linear layers FP8; rowwise_with_gw_hp is closest to llamesh's
(weight gradients in bf16), tensorwise also gathers in FP8. --plain trains on one rank without FSDP2, by autocast.
Needs torch 2.6 or later and yaml, for FP8 torchao. `tests/bench/gpu_steps.sh` runs it beside llamesh.
"""

import argparse
import contextlib
import dataclasses
import functools
import math
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import yaml
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

# B batch, T sequence, D hidden, H heads, K kv heads, E head dim, V vocabulary


DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
DEFAULTS = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 8,
            "num_key_value_heads": "auto", "head_dim": "auto", "vocab_size": 256, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": False, "initializer_range": 0.02}


def read_model(path):
    """The keys of a file of inputs/models over the defaults of src/model/description/model_config.hpp, with what `auto` stands for."""
    with open(path, encoding="utf-8") as file:
        model = DEFAULTS | yaml.safe_load(file)
    for key in "rms_norm_eps", "rope_theta", "initializer_range":  # YAML 1.1 reads 1e-5 as a string
        model[key] = float(model[key])
    if model["num_key_value_heads"] == "auto":
        model["num_key_value_heads"] = model["num_attention_heads"]
    if model["head_dim"] == "auto":
        model["head_dim"] = model["hidden_size"] // model["num_attention_heads"]
    return model


def rotary_table(model, sequence):
    """(T, E) cosines and sines; Llama 3.1's scaling stretches the long waves (transformers: rope_type llama3)."""
    head_dim = model["head_dim"]
    frequency = model["rope_theta"] ** (-torch.arange(0, head_dim, 2).double() / head_dim)
    scaling = model.get("rope_scaling")
    if scaling:
        turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        frequency = frequency * (kept + (1 - kept) / scaling["factor"])
    angle = torch.outer(torch.arange(sequence).double(), frequency)
    angle = torch.cat([angle, angle], -1)
    return angle.cos().float(), angle.sin().float()


# Outputs that selective checkpointing keeps.
KEPT = {torch.ops.aten.mm.default, torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default}


def flash_attention_3():
    """FlashAttention 3 as an operator of (B, H, T, E) tensors; None where its package is not installed."""
    try:
        from flash_attn_interface import flash_attn_func
    except ImportError:
        return None

    def attend(q, k, v):
        out = flash_attn_func(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=True)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    try:
        KEPT.add(torch.ops.flash_attn_3.fwd.default)
    except AttributeError:
        pass
    return attend


def by_sdpa(backend):
    def attend(q, k, v):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] < q.shape[1])

    return attend


def attentions(device):
    """Those to choose from, by name."""
    if device.type == "cpu":
        return {"sdpa": lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=k.shape[1] < q.shape[1])}
    known = {"fa3": flash_attention_3(), "cudnn": by_sdpa(SDPBackend.CUDNN_ATTENTION),
             "flash": by_sdpa(SDPBackend.FLASH_ATTENTION), "efficient": by_sdpa(SDPBackend.EFFICIENT_ATTENTION),
             "math": by_sdpa(SDPBackend.MATH)}
    return {name: attend for name, attend in known.items() if attend is not None}


def seconds_of_attention(attend, model, options, device):
    """Forward and backward of a micro-batch, the best of five; infinite where it refuses the shape."""
    shape = options.micro_batch, -1, options.sequence, model["head_dim"]

    def heads(count):
        x = torch.randn(shape[0], count, *shape[2:], device=device, dtype=DTYPES[options.dtype])
        return x.requires_grad_()

    try:
        q, kv = heads(model["num_attention_heads"]), [heads(model["num_key_value_heads"]) for _ in range(2)]
        best = math.inf
        for _ in range(7):
            torch.cuda.synchronize()
            start = time.perf_counter()
            attend(q, *kv).sum().backward()
            torch.cuda.synchronize()
            best = min(best, time.perf_counter() - start)
        return best
    except (RuntimeError, torch.OutOfMemoryError) as error:
        print(f"an attention refuses this shape: {str(error).splitlines()[0]}")
        return math.inf


def choose_attention(model, options, device):
    """Its name and itself."""
    known = attentions(device)
    if options.attention != "fastest":
        return options.attention, known[options.attention]
    if len(known) == 1:
        return next(iter(known.items()))
    seconds = {name: seconds_of_attention(attend, model, options, device) for name, attend in known.items()
               if name != "math"}
    torch.cuda.empty_cache()
    name = min(seconds, key=seconds.get)
    print("attention, forward and backward of a layer: " + ", ".join(
        f"{n} {1e3 * s:.2f} ms" for n, s in seconds.items()) + f"; {name} is taken")
    return name, known[name]


def rotate(x, cos, sin):
    first, second = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)


class Block(nn.Module):
    def __init__(self, model, attend):
        super().__init__()
        self.attend = attend
        hidden, self.head_dim = model["hidden_size"], model["head_dim"]
        self.heads, self.kv_heads = model["num_attention_heads"], model["num_key_value_heads"]
        self.input_norm = nn.RMSNorm(hidden, eps=model["rms_norm_eps"])
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=False)
        self.post_attention_norm = nn.RMSNorm(hidden, eps=model["rms_norm_eps"])
        self.gate_proj = nn.Linear(hidden, model["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(hidden, model["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(model["intermediate_size"], hidden, bias=False)

    def forward(self, x, cos, sin):
        batch, sequence, _ = x.shape

        def heads(y, count):
            return y.view(batch, sequence, count, self.head_dim).transpose(1, 2)

        h = self.input_norm(x)
        q = rotate(heads(self.q_proj(h), self.heads), cos, sin)
        k = rotate(heads(self.k_proj(h), self.kv_heads), cos, sin)
        v = heads(self.v_proj(h), self.kv_heads)
        attended = self.attend(q, k, v)
        x = x + self.o_proj(attended.transpose(1, 2).reshape(batch, sequence, -1))
        h = self.post_attention_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


def what_is_kept(_context, operator, *_args, **_kwargs):
    return CheckpointPolicy.MUST_SAVE if operator in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


class SelectiveBlock(nn.Module):
    """Computes again what is neither a product nor attention. A module, so that it is compiled with its block."""

    def __init__(self, model, attend):
        super().__init__()
        self.block = Block(model, attend)

    def forward(self, x, cos, sin):
        return checkpoint(self.block, x, cos, sin, use_reentrant=False,
                          context_fn=functools.partial(create_selective_checkpoint_contexts, what_is_kept))


class Head(nn.Module):
    """The last norm, the head and the mean loss."""

    def __init__(self, model):
        super().__init__()
        self.norm = nn.RMSNorm(model["hidden_size"], eps=model["rms_norm_eps"])
        self.lm_head = nn.Linear(model["hidden_size"], model["vocab_size"], bias=False)

    def forward(self, x, targets):
        logits = self.lm_head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Llama(nn.Module):
    def __init__(self, model, checkpointing, attend):
        super().__init__()
        block = SelectiveBlock if checkpointing == "selective" else Block
        self.checkpointing = checkpointing
        self.embed_tokens = nn.Embedding(model["vocab_size"], model["hidden_size"])
        self.layers = nn.ModuleList(block(model, attend) for _ in range(model["num_hidden_layers"]))
        self.head = Head(model)
        if model["tie_word_embeddings"]:
            self.head.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens, targets, cos, sin):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            if self.checkpointing == "full":
                x = checkpoint(layer, x, cos, sin, use_reentrant=False)
            else:
                x = layer(x, cos, sin)
        return self.head(x, targets)


def make_fp8(llama, options):
    """The blocks' linear layers by a recipe of torchao, emulated on CPUs."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig.from_recipe_name(options.linear)
    gathers = options.linear == "tensorwise" and not options.plain
    config = dataclasses.replace(config, emulate=options.device == "cpu", enable_fsdp_float8_all_gather=gathers)
    convert_to_float8_training(llama.layers, config=config)


def shard(llama, model, options):
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[options.dtype], reduce_dtype=torch.float32)
    for layer in llama.layers:
        fully_shard(layer, mp_policy=policy)
    if not model["tie_word_embeddings"]:  # a tied table belongs to the root, which uses it at both ends
        fully_shard(llama.embed_tokens, mp_policy=policy)
        fully_shard(llama.head, mp_policy=policy)
    fully_shard(llama, mp_policy=policy)


def make_model(model, options, device, attend):
    """On the device, sharded over all ranks unless it is plain, its blocks compiled."""
    with torch.device("meta"):
        llama = Llama(model, options.checkpointing, attend)
    if options.linear != "same":
        make_fp8(llama, options)
    if options.compile:
        for block in (*llama.layers, llama.head):
            block.compile()
    if not options.plain:
        shard(llama, model, options)
    llama.to_empty(device=device)
    for parameter in llama.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=model["initializer_range"])
        else:
            nn.init.ones_(parameter)
    return llama


def make_optimizer(llama):
    matrices = [p for p in llama.parameters() if p.dim() == 2]
    vectors = [p for p in llama.parameters() if p.dim() != 2]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=3e-4, betas=(0.9, 0.95), fused=True)


def measure(llama, model, options, device):
    """Seconds of each step after two to warm up, and the last loss."""
    optimizer = make_optimizer(llama)
    cos, sin = (table.to(device) for table in rotary_table(model, options.sequence))
    micro_batches = options.global_batch // (options.micro_batch * dist.get_world_size())
    torch.manual_seed(1 + dist.get_rank())
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    precision = contextlib.nullcontext()
    if options.plain:
        precision = torch.autocast(device.type, DTYPES[options.dtype], enabled=options.dtype != "fp32")
    seconds = []
    for _ in range(options.steps + 2):
        synchronize()
        dist.barrier()
        start = time.perf_counter()
        loss = torch.zeros((), device=device)
        for _ in range(micro_batches):
            tokens = torch.randint(model["vocab_size"], (options.micro_batch, options.sequence + 1)).to(device)
            with precision:
                part = llama(tokens[:, :-1], tokens[:, 1:], cos, sin) / micro_batches
            part.backward()
            loss += part.detach()
        nn.utils.clip_grad_norm_(llama.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if options.linear == "tensorwise" and not options.plain:
            from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

            precompute_float8_dynamic_scale_for_fsdp(llama)
        loss = loss.item()
        synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds[2:], loss


def flops_per_token(model, llama, sequence):
    """As `llamesh` counts them: 6 a weight in products, 12 L D T for attention over the whole square."""
    table = model["vocab_size"] * model["hidden_size"]
    numel = sum(p.numel() for p in llama.parameters())
    vectors = sum(p.numel() for p in llama.parameters() if p.dim() == 1)
    in_products = numel - vectors - (0 if model["tie_word_embeddings"] else table)
    width = model["num_attention_heads"] * model["head_dim"]
    return 6 * in_products + 12 * model["num_hidden_layers"] * width * sequence


def measured_gemm_rate(device):
    """FLOP/s of a bf16 product of random matrices, the peak that MFU counts against."""
    if device.type != "cuda":
        return float("nan")
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(5):
        a @ b
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(50):
        a @ b
    torch.cuda.synchronize()
    return 50 * 2 * 8192**3 / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a file of inputs/models")
    parser.add_argument("--sequence", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True, help="sequences of a rank at a time")
    parser.add_argument("--global-batch", type=int, required=True, help="sequences of a step over all ranks")
    parser.add_argument("--steps", type=int, default=4, help="measured ones, after two to warm up")
    parser.add_argument("--checkpointing", choices=["none", "selective", "full"], default="none")
    parser.add_argument("--attention", default="fastest")
    parser.add_argument("--linear", choices=["same", "rowwise", "rowwise_with_gw_hp", "tensorwise"], default="same")
    parser.add_argument("--plain", action="store_true", help="one rank, without FSDP2")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    options = parser.parse_args()
    model = read_model(options.model)

    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": "29511"}.items():
        os.environ.setdefault(name, value)
    device = torch.device(options.device, int(os.environ["LOCAL_RANK"]) if options.device == "cuda" else None)
    if options.device == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    if options.plain and dist.get_world_size() > 1:
        parser.error("--plain is for one rank")
    if options.global_batch % (options.micro_batch * dist.get_world_size()):
        parser.error("--global-batch must be a multiple of --micro-batch times the ranks")

    if options.attention not in ["fastest", *attentions(device)]:
        parser.error(f"--attention is fastest or one of {', '.join(attentions(device))}")

    rate = measured_gemm_rate(device)
    attention, attend = choose_attention(model, options, device)
    llama = make_model(model, options, device, attend)
    seconds, loss = measure(llama, model, options, device)
    tokens = options.global_batch * options.sequence
    flops = flops_per_token(model, llama, options.sequence) * tokens / dist.get_world_size()
    if dist.get_rank() == 0:
        peak = torch.cuda.max_memory_allocated(device) / 2**20 if options.device == "cuda" else float("nan")
        how = f"{'plain' if options.plain else 'FSDP2'}{', compiled' if options.compile else ''}, linear {options.linear}"
        print(f"torch {torch.__version__}, {how}, checkpointing "
              f"{options.checkpointing}, attention {attention}: {sum(p.numel() for p in llama.parameters())} parameters, {tokens} tokens a "
              f"step, {dist.get_world_size()} ranks, GEMM peak {rate / 1e9:.0f} GFLOP/s, last loss {loss:.3f}")
        print(f"{'step':<8} {'seconds':>10} {'tokens/s':>12} {'MFU':>8}")
        for name, second in (("best", min(seconds)), ("median", statistics.median(seconds))):
            print(f"{name:<8} {second:>10.3f} {tokens / second:>12.0f} {100 * flops / second / rate:>6.0f} %")
        print(f"memory: peak {peak:.1f} MiB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
