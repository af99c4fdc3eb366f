#!/usr/bin/env python3
"""The initial weights and batch order of a sinkgrad run on MNIST, computed from its seed alone: an independent reading of
core/rng.h, nn/module.cpp and datasets/dataset.h. Writes weights.safetensors and order.safetensors for mnist_patch_torch.py.

  sinkgrad_start.py --seed 1 --patch 7 --steps 20 --out DIR
"""
import argparse
import math
import pathlib

import numpy
import safetensors.numpy

WORD, LONG = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


def philox(blocks, step, key):
    """Philox4x32-10 of the counters (block, step): words (blocks, 4)."""
    block = numpy.arange(blocks, dtype=numpy.uint64)
    c = [block & WORD, block >> numpy.uint64(32), numpy.full_like(block, step & WORD), numpy.full_like(block, step >> 32)]
    k0, k1 = key & WORD, key >> 32
    for _ in range(10):
        a, b = c[0] * numpy.uint64(0xD2511F53), c[2] * numpy.uint64(0xCD9E8D57)
        c = [b >> numpy.uint64(32) ^ c[1] ^ numpy.uint64(k0), b & numpy.uint64(WORD), a >> numpy.uint64(32) ^ c[3] ^ numpy.uint64(k1), a & numpy.uint64(WORD)]
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return numpy.stack(c, axis=1)


def longs(seed, name, count, step=0):
    """The first `count` 64-bit numbers of a named stream, high word first."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & LONG
    z = seed * 0x9E3779B97F4A7C15 + (h >> 11) & LONG
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & LONG
    z = (z ^ z >> 27) * 0x94D049BB133111EB & LONG
    words = philox((count + 1) // 2, step, z ^ z >> 31).reshape(-1)
    return (words[0::2] << numpy.uint64(32) | words[1::2])[:count]


def uniforms(seed, name, count):
    return (longs(seed, name, count) >> numpy.uint64(11)).astype(numpy.float64) * 2.0**-53


def normals(seed, name, count):
    u = uniforms(seed, name, 2 * count)
    return numpy.sqrt(-2 * numpy.log(1 - u[0::2])) * numpy.cos(2 * math.pi * u[1::2])


def permutation(seed, epoch, n):
    """Fisher-Yates from the end; the rejection of numbers beyond the last multiple is too rare to matter here and is asserted away."""
    order, draws = list(range(n)), longs(seed, "batch order", n - 1, epoch)
    for i, x in zip(range(n, 1, -1), draws.tolist()):
        assert x < LONG - LONG % i
        order[i - 1], order[x % i] = order[x % i], order[i - 1]
    return order


def weights(seed, patch, dim=128, inner=64, classes=10):
    """Initial parameters: torch's Linear, N(0, 1) for the CLS token and the positions, ones and zeros for norms."""
    tokens, pixels = (28 // patch) ** 2 + 1, patch * patch

    def linear(name, shape, fan_in):
        b = 1 / math.sqrt(fan_in)
        return (-b + 2 * b * uniforms(seed, "init/" + name, math.prod(shape))).reshape(shape)

    block = "transformer.layers.0.0."
    drawn = {
        "to_patch_embedding.1.weight": ((dim, pixels), pixels), "to_patch_embedding.1.bias": ((dim,), pixels),
        block + "fn.to_qkv.weight": ((3 * inner, dim), dim),
        block + "fn.to_out.0.weight": ((dim, inner), inner), block + "fn.to_out.0.bias": ((dim,), inner),
        "mlp_head.1.weight": ((classes, dim), dim), "mlp_head.1.bias": ((classes,), dim),
    }
    tensors = {name: linear(name, *shapes) for name, shapes in drawn.items()}
    for name, count in {"cls_token": 1, "pos_embedding": tokens}.items():
        tensors[name] = normals(seed, "init/" + name, count * dim).reshape(1, count, dim)
    for name in (block + "norm", "mlp_head.0"):
        tensors[name + ".weight"], tensors[name + ".bias"] = numpy.ones(dim), numpy.zeros(dim)
    return {name: tensor.astype(numpy.float32) for name, tensor in tensors.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patch", type=int, default=7)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    safetensors.numpy.save_file(weights(args.seed, args.patch), args.out / "weights.safetensors")
    order = numpy.array(permutation(args.seed, 0, 60000), dtype=numpy.int32)[: args.steps * args.batch].reshape(args.steps, args.batch)
    safetensors.numpy.save_file({"order": order}, args.out / "order.safetensors")


if __name__ == "__main__":
    main()
