#!/usr/bin/env python3
"""Times `sinkgrad bench` and PyTorch on the same attention problems, in turns within one run, on a CPU.

  compare_torch.py --sinkgrad build/bin/sinkgrad --threads 2 --rounds 5 --json compare.json

Every round of a case runs our program and then each formulation of tools/reference/torch_attention.py once, eager ("lean", "norm",
"paper", "sdpa_*") and compiled, in worker processes that live as long as the case: one with the default allocator settings, one whose
malloc keeps large blocks ("tuned"). All get the same tensors and threads.
Our output and gradients are checked against float64 autograd first. Ratios are those of medians over the rounds, PyTorch over ours,
forward and forward + backward; "of the floor" is the time that the products alone take at the best rate of our own large matrix
products, measured in the same rounds, over our time.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

import torch_worker
from torch_worker import words

CASES = [(256, 64), (256, 256), (64, 1024), (8, 4096)]
HEADS = 8
SOFTMAX_ONLY = ("sdpa_math", "sdpa_flash_attention")
NO_STEPS = ("norm",)  # at one half-step the same as lean, but for the softmax kernel


def read_safetensors(path):
    import torch

    data = bytearray(pathlib.Path(path).read_bytes())
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = torch.frombuffer(data, dtype=torch.float32, count=(end - begin) // 4, offset=8 + length + begin).reshape(entry["shape"])
    return tensors


# ------------------------------------------------------------------ a worker process: PyTorch, one allocator setting


def split_heads(x):
    """(B, N, H D) -> (B, H, N, D)"""
    return x.reshape(x.shape[0], x.shape[1], HEADS, -1).transpose(1, 2).contiguous()


def check(tensors, half_steps):
    """The largest error of our float32 results against float64 autograd, relative to the largest entry, over the first and last head."""
    import torch
    from torch_attention import lean

    worst = {}
    for batch, head in {(0, 0), (-1, HEADS - 1)}:
        t = {name: split_heads(x)[batch, head].double() for name, x in tensors.items()}
        q, k, v = (t[name].clone().requires_grad_() for name in "qkv")
        out = lean(q, k, v, half_steps)
        out.backward(t["d_out"])
        for name, expected in {"out": out.detach(), "dq": q.grad, "dk": k.grad, "dv": v.grad}.items():
            error = ((t[name] - expected).abs().max() / expected.abs().max()).item()
            worst[name] = max(worst.get(name, 0.0), error)
    return worst


def formulation(name, half_steps):
    import torch
    import torch_attention

    if name.startswith("sdpa_"):
        return dict(torch_attention.sdpa_backends(["MATH", "FLASH_ATTENTION"]))[name]
    if name == "compiled":
        return torch.compile(lambda q, k, v: torch_attention.lean(q, k, v, half_steps), dynamic=False)
    return lambda q, k, v: getattr(torch_attention, name)(q, k, v, half_steps)


def worker(path, half_steps, threads, processor_time):
    """Answers {"check": true} and {"formulation": name, "seconds": s}."""
    import torch

    torch.set_num_threads(threads)
    tensors = read_safetensors(path)
    q, k, v, d_out = (split_heads(tensors[name]) for name in ("q", "k", "v", "d_out"))
    functions = {}

    def handle(request):
        if "check" in request:
            return check(tensors, half_steps)
        name = request["formulation"]
        inputs = [x.requires_grad_() for x in (q, k, v)]

        def forward():
            with torch.no_grad():
                functions[name](*inputs)

        def both():
            for x in inputs:
                x.grad = None
            functions[name](*inputs).backward(d_out)

        if name not in functions:
            functions[name] = formulation(name, half_steps)
            forward(), both()  # compiles, fills caches
        return {key: torch_worker.median_time(work, request["seconds"], processor_time) for key, work in {"forward": forward, "both": both}.items()}

    torch_worker.serve(handle)


# ------------------------------------------------------------------ the run


def kept_bytes(matrices, n, half_steps):
    """What a materialising formulation keeps for its backward, roughly."""
    return 4 * matrices * n * n * (half_steps + 2)


def compare(args, matrices, n, half_steps, folder):
    name, values = f"attention {matrices}x{n} l={half_steps}", os.path.join(folder, "values.safetensors")
    torch_worker.ours(args, "attention", name, folder, "--values", values)
    names = [f for f in args.formulations if (half_steps == 1 or f not in SOFTMAX_ONLY) and (half_steps > 1 or f not in NO_STEPS)]
    if kept_bytes(matrices, n, half_steps) > args.memory_gib * 2**30:
        print(f"{name}: PyTorch would keep {kept_bytes(matrices, n, half_steps) / 2**30:.0f} GiB, above --memory-gib; only SDPA and ours are timed")
        names = [f for f in names if f in SOFTMAX_ONLY]
    options = ["--worker", values, "--half-steps", half_steps, "--threads", args.threads] + ["--processor-time"] * args.processor_time
    workers = {a: torch_worker.Worker(a, options) for a in args.allocators}
    errors = next(iter(workers.values())).ask(check=True)
    case = {"matrices": matrices, "n": n, "d": 64, "l": half_steps, "errors": errors, "torch": []}
    mine, rates, theirs = [], [], {(f, a): [] for f in names for a in workers}
    for _ in range(args.rounds):
        entry, report = torch_worker.ours(args, "attention", name, folder)
        mine.append(entry)
        rates.append({key: report[key] for key in ("gemm_flops_per_second", "copy_bytes_per_second")})
        for key, samples in theirs.items():
            samples.append(workers[key[1]].ask(formulation=key[0], seconds=args.seconds))
    for w in workers.values():
        w.close()

    median = statistics.median
    forward, both = median(e["forward"]["seconds"] for e in mine), median(e["forward"]["seconds"] + e["backward"]["seconds"] for e in mine)
    least = [e["forward"]["floor_seconds"] for e in mine], [e["forward"]["floor_seconds"] + e["backward"]["floor_seconds"] for e in mine]
    case["ours"] = {
        "forward": forward,
        "both": both,
        "fastest_both": min(e["forward"]["seconds"] + e["backward"]["seconds"] for e in mine),
        "floor_fraction_forward": median(least[0]) / forward,
        "floor_fraction_both": median(least[1]) / both,
        "rates": {key: median(r[key] for r in rates) for key in rates[0]},
    }
    print(f"\n{name}, {args.threads} threads: ours forward {forward * 1e3:.2f} ms, forward + backward {both * 1e3:.2f} ms; of the floor "
          f"{case['ours']['floor_fraction_forward']:.0%} and {case['ours']['floor_fraction_both']:.0%}; errors " + ", ".join(f"{k} {v:.1e}" for k, v in errors.items() if k != "error"))
    print("| formulation | malloc | forward ms | both ms | forward / ours | both / ours |\n|---|---|---|---|---|---|")
    for (f, allocator), samples in theirs.items():
        entry = {"formulation": f, "allocator": allocator}
        failed = [s["error"] for s in samples if "error" in s]
        if failed:
            entry["error"] = failed[0]
            print(f"| {f} | {allocator} | {failed[0]} | | | |")
        else:
            entry.update(forward=median(s["forward"] for s in samples), both=median(s["both"] for s in samples))
            entry.update(forward_ratio=entry["forward"] / forward, both_ratio=entry["both"] / both)
            print(f"| {f} | {allocator} | {entry['forward'] * 1e3:.2f} | {entry['both'] * 1e3:.2f} | {entry['forward_ratio']:.2f} | **{entry['both_ratio']:.2f}** |", flush=True)
        case["torch"].append(entry)
    return case


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    torch_worker.add_arguments(parser)
    parser.add_argument("--cases", type=words, default=[f"{b}x{n}" for b, n in CASES], help="matrices x length, e.g. 256x64,8x4096")
    parser.add_argument("--half-steps", type=words, default=["1", "3", "5", "21"])
    parser.add_argument("--formulations", type=words, default=["paper", "lean", "norm", "compiled", "sdpa_math", "sdpa_flash_attention"])
    parser.add_argument("--memory-gib", type=float, default=4, help="cases for which PyTorch would keep more are left to ours")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.worker, int(args.half_steps[0]), args.threads, args.processor_time)
    report = torch_worker.new_report(args)
    with tempfile.TemporaryDirectory() as folder:
        for text in args.cases:
            for half_steps in args.half_steps:
                matrices, n = (int(x) for x in text.split("x"))
                torch_worker.add_case(args, report, compare(args, matrices, n, int(half_steps), folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
