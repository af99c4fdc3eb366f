#!/usr/bin/env python3
"""Times PyTorch on the attention cases of `sinkgrad bench`, in its best formulations (torch_attention.py), and prints or writes JSON.

Times are medians of CUDA events (or of the clock on a CPU), forward, and forward with backward; memory is the peak above the inputs.
"""
import argparse
import json
import statistics
import sys
import time

import torch
from torch_attention import lean, norm, sdpa_backends

LARGE = [(512, 64), (256, 256), (64, 1024), (16, 4096), (8, 8192)]
SMALL = [(256, 64), (256, 256), (64, 1024), (8, 4096)]


class Timer:
    def __init__(self, device, seconds):
        self.cuda = device == "cuda"
        self.seconds = seconds

    def once(self, work):
        if not self.cuda:
            start = time.perf_counter()
            work()
            return time.perf_counter() - start
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3

    def median(self, work):
        for _ in range(3):
            work()
        times = []
        begin = time.perf_counter()
        while len(times) < 3 or (time.perf_counter() - begin < self.seconds and len(times) < 200):
            times.append(self.once(work))
        return statistics.median(times)


def measure(timer, function, tensors, cotangent):
    def forward():
        with torch.no_grad():
            function(*tensors)

    def both():
        for t in tensors:
            t.grad = None
        function(*tensors).backward(cotangent)

    peak = None
    forward_seconds = timer.median(forward)
    if timer.cuda:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    both_seconds = timer.median(both)
    if timer.cuda:
        peak = torch.cuda.max_memory_allocated() - before
    return {"forward": forward_seconds, "both": both_seconds, "peak_bytes": peak}


def formulations(half_steps, device, dtype):
    yield "lean", lambda q, k, v: lean(q, k, v, half_steps)
    yield "norm", lambda q, k, v: norm(q, k, v, half_steps)
    if half_steps > 1:
        yield "compiled", torch.compile(lambda q, k, v: lean(q, k, v, half_steps), dynamic=False)
        return
    names = ["MATH", "EFFICIENT_ATTENTION"] + (["FLASH_ATTENTION", "CUDNN_ATTENTION"] if device == "cuda" and dtype != torch.float32 else [])
    yield from sdpa_backends(names if device == "cuda" else ["MATH", "FLASH_ATTENTION"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--large", action="store_true", help="the sizes of a large GPU")
    parser.add_argument("--seconds", type=float, default=0.05, help="of running per measurement")
    parser.add_argument("--budget", type=float, default=90, help="seconds after which no further case starts")
    parser.add_argument("--json", help="write to this file")
    args = parser.parse_args()
    begin = time.perf_counter()
    timer = Timer(args.device, args.seconds)
    results = {"torch": torch.__version__, "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu", "threads": torch.get_num_threads(), "cases": []}
    for dtype in [torch.bfloat16, torch.float32] if args.device == "cuda" else [torch.float32]:
        for matrices, n in LARGE if args.large else SMALL:
            generator = torch.Generator().manual_seed(1)
            tensors = [torch.rand(matrices // 8, 8, n, 64, generator=generator).mul_(2).sub_(1).to(args.device, dtype).requires_grad_() for _ in range(3)]
            cotangent = torch.rand(matrices // 8, 8, n, 64, generator=generator).to(args.device, dtype)
            for half_steps in (1, 3, 5, 21):
                for name, function in formulations(half_steps, args.device, dtype):
                    if time.perf_counter() - begin > args.budget:
                        continue
                    case = {"dtype": str(dtype).split(".")[1], "matrices": matrices, "n": n, "d": 64, "l": half_steps, "formulation": name}
                    try:
                        case.update(measure(timer, function, tensors, cotangent))
                    except Exception as error:  # out of memory, or a backend that does not take the case
                        case["error"] = str(error).splitlines()[0][:200]
                    if args.device == "cuda":
                        torch.cuda.empty_cache()
                    results["cases"].append(case)
                    print(json.dumps(case), flush=True)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
