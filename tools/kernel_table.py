#!/usr/bin/env python3
"""Prints the compiler's view of the CUDA kernels as Markdown: registers, static shared memory, stack, spills and theoretical occupancy.

  tools/kernel_table.py build/libsinkgrad_cuda.so [--architecture sm_90] [--all]

Needs cuobjdump of the CUDA toolkit, no GPU. One line for each kernel template: the instantiation with the most registers, or --all.
Occupancy counts registers, static shared memory and threads, for the largest blocks of each kernel; shared memory that is
asked for at launch comes on top.
"""
import argparse
import collections
import re
import subprocess
import sys

REGISTERS, WARPS, BLOCKS, GRANULE = 65536, 64, 32, 256  # per multiprocessor, and registers handed to a warp at a time: sm_80 and sm_90
SHARED = {"sm_80": 164 << 10, "sm_90": 228 << 10}


def occupancy(registers, shared, threads, architecture):
    warps = threads // 32
    per_warp = -(-registers * 32 // GRANULE) * GRANULE
    by_registers = REGISTERS // per_warp // warps
    by_shared = SHARED.get(architecture, SHARED["sm_90"]) // (shared + 1024)
    return min(by_registers, by_shared, WARPS // warps, BLOCKS) * warps / WARPS


def most_threads(name):
    if "resident::" in name:
        return 256 if "double" in name or "f64" in name else 384
    return 128 if "streaming::" in name else 512 if "resident" in name else 256


def resources(library, architecture):
    text = subprocess.run(["cuobjdump", "--dump-resource-usage", "-arch", architecture, library], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"Function (\S+):\s*\n\s*(.*)", text)
    names = subprocess.run(["c++filt"], input="\n".join(n for n, _ in found), capture_output=True, text=True, check=True).stdout.splitlines()
    for name, (_, line) in zip(names, found):
        usage = {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", line)}
        yield name, usage


def short(name):
    name = re.sub(r"\(anonymous namespace\)::|sinkgrad::cuda::|^void ", "", name)
    depth, out = 0, ""
    for c in name:  # the parameters are the last parenthesis at depth 0 of the angle brackets
        if c == "(" and depth == 0:
            break
        depth += (c == "<") - (c == ">")
        out += c
    return out.replace("(bool)1", "true").replace("(bool)0", "false")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--architecture", default="sm_90")
    parser.add_argument("--all", action="store_true", help="every instantiation")
    args = parser.parse_args()
    kernels = collections.defaultdict(list)
    for name, usage in resources(args.library, args.architecture):
        full = short(name)
        kernels[full if args.all else full.split("<")[0] + (" f64" if "double" in full else "")].append(usage)
    print("| kernel | instantiations | registers | shared | stack | local | occupancy |\n|---|---|---|---|---|---|---|")
    for name in sorted(kernels):
        worst = max(kernels[name], key=lambda u: u.get("REG", 0))
        share = occupancy(worst.get("REG", 0), worst.get("SHARED", 0), most_threads(name), args.architecture)
        stack, local = (max(u.get(key, 0) for u in kernels[name]) for key in ("STACK", "LOCAL"))
        print(f"| {name} | {len(kernels[name])} | {worst.get('REG', 0)} | {worst.get('SHARED', 0)} | {stack} | {local} | {share:.0%} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
