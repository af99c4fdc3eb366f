#!/usr/bin/env python3
"""What Sinkhorn attention keeps for its backward, and what a process holds at most, ours against PyTorch's lean formulation.

  compare_memory.py --attention-memory build/tools/bench/attention_memory --matrices 8 --length 1024

Kept: bytes on our tape; bytes of the distinct storages that PyTorch's autograd saves. Peak: growth of the largest resident set over a forward
and a backward, inputs included, in a process of its own. The last lines give the exponent of n in what we keep, at three half-steps."""
import argparse
import json
import math
import resource
import subprocess
import sys

import torch_worker


def theirs(matrices, n, half_steps):
    import torch
    from torch_attention import lean

    torch.manual_seed(1)
    torch.empty(1).requires_grad_().mul(2).backward()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    q, k, v = (torch.randn(matrices, 1, n, 64, requires_grad=True) for _ in range(3))
    saved = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = lean(q, k, v, half_steps)
    out.backward(v.detach())
    return {"kept": sum(saved.values()), "peak": 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)}


def measure(command):
    return json.loads(subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention-memory", default="build/tools/bench/attention_memory", help="our program")
    parser.add_argument("--matrices", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--half-steps", type=torch_worker.words, default=["1", "3", "5", "21"])
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(theirs(args.matrices, args.length, int(args.half_steps[0]))))
        return 0
    print("| matrices x n | l | kept MB, ours / PyTorch | ratio | peak MB, ours / PyTorch | ratio |\n|---|---|---|---|---|---|")
    for l in args.half_steps:
        ours = measure([args.attention_memory, args.matrices, args.length, l])
        other = measure([sys.executable, sys.argv[0], "--worker", "--matrices", args.matrices, "--length", args.length, "--half-steps", l])
        cells = [f"{ours[key] / 1e6:.1f} / {other[key] / 1e6:.0f} | **{other[key] / ours[key]:.0f}**" for key in ("kept", "peak")]
        print(f"| {args.matrices}x{args.length} | {l} | {' | '.join(cells)} |")
    kept = {n: measure([args.attention_memory, 1, n, 3])["kept"] for n in (512, 8192)}
    print(f"\nExponent of n from 512 to 8192 in what we keep: {math.log(kept[8192] / kept[512]) / math.log(8192 / 512):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
