#!/usr/bin/env python3
"""PyTorch reference for the MNIST patch-size study: the attention-only ViT, softmax or Sinkhorn. It shares no code with sinkgrad.

Needs torch, numpy and safetensors. Three modes; results go to stdout as one JSON object a line:

  same weights and batches as another program, the loss before each update:
    mnist_patch_torch.py --data DIR --n-it 5 --lr 2e-3 --weights init.safetensors --order order.safetensors --steps 20
  its own shuffling, mean training loss and test accuracy of each epoch:
    mnist_patch_torch.py --data DIR --n-it 5 --lr 2e-3 --epochs 10 --milestones 7,9
  the model against stored outputs and gradients (exit status 1 when one is off):
    mnist_patch_torch.py --check-fixture vit_attention_only_it5.safetensors

DIR holds the four MNIST files *-ubyte.gz. The weights file names its tensors as `Vit.state_dict()` does; other entries (an unused MLP, optimizer
moments) are ignored. The order file holds one integer tensor "order" (steps, batch): indices of training images.
"""
import argparse
import gzip
import json
import pathlib
import sys
import time

import numpy
import safetensors
import safetensors.torch
import torch
from torch import nn
from torch.nn import functional


def sinkhorn(scores, n_it):
    """Balances square matrices exp(scores) by n_it half-steps in the log domain, rows first: 1 is softmax, odd counts leave row sums 1."""
    for i in range(n_it - 1):
        scores = functional.log_softmax(scores, dim=-1 if i % 2 == 0 else -2)
    return functional.softmax(scores, dim=-1 if n_it % 2 == 1 else -2)


class Patches(nn.Module):
    """Cuts (B, C, H, W) into (B, HW/p^2, p*p*C); the numbers of a patch are ordered row, column, channel."""

    def __init__(self, patch):
        super().__init__()
        self.patch = patch

    def forward(self, images):
        (batch, channels, height, width), p = images.shape, self.patch
        grid = images.reshape(batch, channels, height // p, p, width // p, p)
        return grid.permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, p * p * channels)


class Attention(nn.Module):
    """One head: x (B, T, dim) -> (B, T, dim). The last attention matrix stays in `matrix` (B, T, T)."""

    def __init__(self, dim, inner, n_it):
        super().__init__()
        self.to_qkv = nn.Linear(dim, 3 * inner, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, dim))
        self.n_it = n_it

    def forward(self, x):
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        attention = sinkhorn(q @ k.transpose(1, 2) * q.shape[-1] ** -0.5, self.n_it)
        self.matrix = attention.detach()
        return self.to_out(attention @ v)


class Vit(nn.Module):
    """Images (B, channels, image, image) -> logits (B, classes), with no layer but attention between the patches and the head."""

    def __init__(self, n_it, patch, image=28, channels=1, dim=128, inner=64, classes=10):
        super().__init__()
        self.to_patch_embedding = nn.Sequential(Patches(patch), nn.Linear(patch * patch * channels, dim))
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        self.pos_embedding = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, dim))
        block = nn.ModuleDict({"norm": nn.LayerNorm(dim), "fn": Attention(dim, inner, n_it)})
        self.transformer = nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleList([block])])})  # the names are transformer.layers.0.0.*
        self.mlp_head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, classes))

    def forward(self, images):
        tokens = self.to_patch_embedding(images)
        tokens = torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], dim=1) + self.pos_embedding
        block = self.transformer["layers"][0][0]
        tokens = tokens + block["fn"](block["norm"](tokens))
        return self.mlp_head(tokens[:, 0])

    def load(self, tensors):
        """Takes its parameters from a dictionary that may hold more; a missing name or another shape is an error."""
        self.load_state_dict({name: tensor for name, tensor in tensors.items() if name in self.state_dict()})


def read_idx(path):
    """Tensor of bytes in an idx .gz file."""
    raw = gzip.decompress(path.read_bytes())
    if raw[:3] != b"\0\0\x08":
        sys.exit(f"{path}: the magic of an idx file of bytes is 0 0 8, got {list(raw[:3])}")
    shape = numpy.frombuffer(raw, ">i4", count=raw[3], offset=4)
    return torch.from_numpy(numpy.frombuffer(raw, "u1", offset=4 + 4 * raw[3]).reshape(shape).copy())


def load_mnist(folder, part):
    """Normalised images (N, 1, 28, 28) and labels (N) of the part "train" or "t10k"."""
    images = read_idx(folder / f"{part}-images-idx3-ubyte.gz").unsqueeze(1).float() / 255
    return (images - 0.1307) / 0.3081, read_idx(folder / f"{part}-labels-idx1-ubyte.gz").long()


def train_step(model, optimizer, images, labels):
    """One Adam step; returns the loss before it."""
    loss = functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def run_steps(model, optimizer, args):
    """Trains on the stored batch order."""
    images, labels = load_mnist(args.data, "train")
    order = safetensors.torch.load_file(args.order)["order"].long()
    if args.steps and args.steps > len(order):
        sys.exit(f"{args.order}: --steps {args.steps} needs as many rows, got order of shape {tuple(order.shape)}")
    for step, batch in enumerate(order[: args.steps], start=1):
        loss = train_step(model, optimizer, images[batch], labels[batch])
        print(json.dumps({"step": step, "loss": loss}), flush=True)


def run_epochs(model, optimizer, args):
    """Trains with fresh shuffling, testing after each epoch."""
    images, labels = load_mnist(args.data, "train")
    test_images, test_labels = load_mnist(args.data, "t10k")
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, args.milestones, args.gamma)
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        losses = [train_step(model, optimizer, images[batch], labels[batch]) for batch in torch.randperm(len(images)).split(args.batch)]
        seconds = time.perf_counter() - start
        with torch.no_grad():
            hits = sum((model(x).argmax(1) == y).sum().item() for x, y in zip(test_images.split(1000), test_labels.split(1000)))
        schedule.step()
        line = {"epoch": epoch, "loss": sum(losses) / len(losses), "test_accuracy": hits / len(test_labels), "train_seconds": round(seconds, 2)}
        print(json.dumps(line), flush=True)


def check_fixture(path):
    """Compares outputs and gradients with a file of ../shared/fixtures; returns the exit status. Errors are relative to a tensor's largest entry."""
    fixture = safetensors.torch.load_file(path)
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    images = fixture["in/images"].requires_grad_()
    model = Vit(int(metadata["n_it"]), int(metadata["patch"]), images.shape[2], images.shape[1], fixture["param/cls_token"].shape[2],
                int(metadata["dim_head"]), fixture["out/logits"].shape[1])
    model.load({name.removeprefix("param/"): tensor for name, tensor in fixture.items()})
    logits = model(images)
    (logits * fixture["cotangent"]).sum().backward()
    found = {"out/logits": logits, "out/attention0": model.transformer["layers"][0][0]["fn"].matrix[:, None], "grad/in/images": images.grad}
    found |= {f"grad/param/{name}": parameter.grad for name, parameter in model.named_parameters()}
    stored = {name for name in fixture if name.startswith(("out/", "grad/"))}
    if stored != set(found):
        sys.exit(f"{path}: stored and computed tensors differ in {sorted(stored ^ set(found))}")
    errors = {name: ((tensor - fixture[name]).abs().max() / fixture[name].abs().max()).item() for name, tensor in found.items()}
    for name, error in errors.items():
        print(json.dumps({"tensor": name, "relative_error": error}))
    return 0 if all(error <= 2e-5 for error in errors.values()) else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--order", metavar="FILE", help="train on the batches of this file")
    mode.add_argument("--epochs", type=int, metavar="N", help="train N epochs and test after each")
    mode.add_argument("--check-fixture", metavar="FILE", help="compare the model with stored values")
    parser.add_argument("--data", type=pathlib.Path, metavar="DIR", help="folder of the MNIST files")
    parser.add_argument("--weights", metavar="FILE", help="initial weights (default: PyTorch's initialisers, from --seed)")
    parser.add_argument("--n-it", type=int, default=1, help="Sinkhorn half-steps; 1 is softmax (default 1)")
    parser.add_argument("--patch", type=int, default=7, help="side of a patch, a divisor of 28 (default 7)")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate of Adam (default 1e-3; the study takes 2e-3 for 5 half-steps)")
    parser.add_argument("--steps", type=int, metavar="S", help="with --order: the first S rows only")
    parser.add_argument("--batch", type=int, default=100, help="with --epochs: images a batch (default 100)")
    parser.add_argument("--milestones", type=lambda text: [int(word) for word in text.split(",")], default=[],
                        help="with --epochs: after these epochs the learning rate is multiplied by --gamma, e.g. 7,9")
    parser.add_argument("--gamma", type=float, default=0.1, help="(default 0.1)")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and the shuffling (default 0)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="(default: one a core)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    if args.check_fixture:
        return check_fixture(args.check_fixture)
    if args.data is None:
        parser.error("--order and --epochs need --data")
    model = Vit(args.n_it, args.patch)
    if args.weights:
        model.load(safetensors.torch.load_file(args.weights))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    (run_steps if args.order else run_epochs)(model, optimizer, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
