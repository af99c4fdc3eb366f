#!/usr/bin/env python3
"""Times whole training steps of `sinkgrad bench --suite steps` and of the same models in PyTorch, in turns within one run, on a CPU.

  compare_steps.py --sinkgrad build/bin/sinkgrad --threads 2 --rounds 5 --json steps.json

A step is forward, cross-entropy, backward and Adam (PyTorch's fused one), on a batch that lies in memory. Every round of a case runs our
program and then PyTorch in eager mode and compiled, in worker processes that live as long as the case; see torch_worker.py for their
allocators. Both models must have the same number of parameters. Ratios are those of medians over the rounds, PyTorch over ours.
"""
import argparse
import statistics
import sys
import tempfile

import torch_worker
from torch_worker import words

MODELS = ["mnist_patch7", "mnist_patch4", "set", "text", "vit"]


def worker(name, half_steps, threads, processor_time):
    """Answers {"parameters": true} and {"mode": "eager" or "compiled", also with "-bf16", "seconds": s}."""
    import torch
    import torch.nn.functional as F
    from torch_models import model_and_batch

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model, inputs, labels = model_and_batch(name, half_steps)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, fused=True)
    functions = {"eager": model}

    def handle(request):
        if "parameters" in request:
            return {"parameters": sum(p.numel() for p in model.parameters())}

        mode, _, bf16 = request["mode"].partition("-")

        def step():
            with torch.autocast("cpu", torch.bfloat16, enabled=bool(bf16)):
                logits = functions[mode](inputs)
            loss = F.cross_entropy(logits.float(), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        if mode == "compiled" and "compiled" not in functions:
            functions["compiled"] = torch.compile(model, dynamic=False)
            step()
        step()
        return {"seconds": torch_worker.median_time(step, request["seconds"], processor_time)}

    torch_worker.serve(handle)


def compare(args, model, half_steps, folder):
    name = f"step {model} l={half_steps}"
    options = ["--worker", "--models", model, "--half-steps", half_steps, "--threads", args.threads] + ["--processor-time"] * args.processor_time
    workers = {a: torch_worker.Worker(a, options) for a in args.allocators}
    mine, theirs = [], {(mode, a): [] for mode in args.modes for a in workers}
    for _ in range(args.rounds):
        entry, _ = torch_worker.ours(args, "steps", name, folder, "--precision", args.precision)
        mine.append(entry["seconds"])
        for (mode, allocator), samples in theirs.items():
            samples.append(workers[allocator].ask(mode=mode, seconds=args.seconds))
    counts = {w.ask(parameters=True)["parameters"] for w in workers.values()} | {entry["parameters"]}
    for w in workers.values():
        w.close()
    if len(counts) != 1:
        sys.exit(f"{name}: both programs must train as many parameters, got {sorted(counts)}")

    case = {"model": model, "l": int(half_steps), "parameters": entry["parameters"], "items": entry["items"], "ours": statistics.median(mine), "torch": []}
    for (mode, allocator), samples in theirs.items():
        result = {"mode": mode, "allocator": allocator}
        failed = [s["error"] for s in samples if "error" in s]
        if failed:
            print(f"{name}: {mode}, malloc {allocator}: {failed[0]}")
            result["error"] = failed[0]
        else:
            result["seconds"] = statistics.median(s["seconds"] for s in samples)
            result["ratio"] = result["seconds"] / case["ours"]
            print(f"| {model} | {half_steps} | {case['ours'] * 1e3:.2f} | {mode} | {allocator} | {result['seconds'] * 1e3:.2f} | **{result['ratio']:.2f}** |", flush=True)
        case["torch"].append(result)
    return case


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    torch_worker.add_arguments(parser)
    parser.add_argument("--models", type=words, default=MODELS)
    parser.add_argument("--half-steps", type=words, default=["1", "3"])
    parser.add_argument("--modes", type=words, default=["eager", "compiled"], help="of PyTorch; with -bf16 under autocast")
    parser.add_argument("--precision", default="f32", help="of our products: f32 or bf16")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.models[0], int(args.half_steps[0]), args.threads, args.processor_time)
    report = torch_worker.new_report(args)
    print("| model | l | ours ms | PyTorch | malloc | ms | PyTorch / ours |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for model in args.models:
            for half_steps in args.half_steps:
                torch_worker.add_case(args, report, compare(args, model, half_steps, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
