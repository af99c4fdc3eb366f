"""The models of `sinkgrad bench --suite steps` in PyTorch: the same layers, widths and numbers of parameters, each with a batch to train on.

Attention is PyTorch's scaled_dot_product_attention at one half-step, and the lean log-domain formulation of torch_attention.py beyond."""
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch_attention import lean


def attend(q, k, v, heads, half_steps):
    """(B, N, H D), (B, M, H D), (B, M, H D) -> (B, N, H D)"""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v) if half_steps == 1 else lean(q, k, v, half_steps)
    return out.transpose(1, 2).flatten(2)


class VitBlock(nn.Module):
    def __init__(self, dim, heads, head_dim, mlp_dim, half_steps):
        super().__init__()
        self.heads, self.half_steps = heads, half_steps
        self.norm, self.qkv, self.out = nn.LayerNorm(dim), nn.Linear(dim, 3 * heads * head_dim, bias=False), nn.Linear(heads * head_dim, dim)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, mlp_dim), nn.GELU(), nn.Linear(mlp_dim, dim)) if mlp_dim else None

    def forward(self, x):
        x = x + self.out(attend(*self.qkv(self.norm(x)).chunk(3, -1), self.heads, self.half_steps))
        return x + self.mlp(x) if self.mlp else x


class Vit(nn.Module):
    """Images (B, channels, image, image) -> (B, classes)"""

    def __init__(self, half_steps, image, channels, patch, classes, depth, heads, dim=128, head_dim=64, mlp_dim=0):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch * patch * channels, dim)
        self.cls, self.positions = nn.Parameter(torch.randn(1, 1, dim)), nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, dim))
        self.blocks = nn.Sequential(*(VitBlock(dim, heads, head_dim, mlp_dim, half_steps) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, classes))

    def forward(self, images):
        batch, channels, height, width = images.shape
        grid = images.reshape(batch, channels, height // self.patch, self.patch, width // self.patch, self.patch)
        tokens = self.embed(grid.permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, self.patch * self.patch * channels))
        x = torch.cat([self.cls.expand(batch, -1, -1), tokens], 1) + self.positions
        return self.head(self.blocks(x)[:, 0])


class TextBlock(nn.Module):
    def __init__(self, dim, heads, mlp_dim, half_steps, dropout=0.1):
        super().__init__()
        self.heads, self.half_steps = heads, half_steps
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_dim), nn.ReLU(), nn.Linear(mlp_dim, dim))
        self.norm1, self.norm2, self.dropout = nn.LayerNorm(dim, 1e-6), nn.LayerNorm(dim, 1e-6), nn.Dropout(dropout)

    def forward(self, x):
        x = self.norm1(x + self.dropout(self.out(attend(self.q(x), self.k(x), self.v(x), self.heads, self.half_steps))))
        return self.norm2(x + self.dropout(self.mlp(x)))


class TextEncoder(nn.Module):
    """Tokens (B, N) -> (B, classes). Without a padding mask: the texts of the comparison have none."""

    def __init__(self, half_steps, vocabulary=16000, length=256, dim=256, mlp_dim=1024, heads=8, depth=6, classes=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        angles = torch.arange(1, length + 1).unsqueeze(1) * torch.exp(torch.arange(0, dim, 2) * (-math.log(1e4) / dim))
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], -1).flatten(1))
        self.blocks = nn.Sequential(*(TextBlock(dim, heads, mlp_dim, half_steps) for _ in range(depth)))
        self.head = nn.Linear(dim, classes)

    def forward(self, tokens):
        return self.head(self.blocks(self.embedding(tokens) + self.positions).amax(1))


class Mab(nn.Module):
    def __init__(self, query_dim, key_dim, dim, heads, half_steps):
        super().__init__()
        self.heads, self.half_steps = heads, half_steps
        self.q, self.k, self.v, self.out = nn.Linear(query_dim, dim), nn.Linear(key_dim, dim), nn.Linear(key_dim, dim), nn.Linear(dim, dim)
        self.norm0, self.norm1 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, queries, keys):
        q = self.q(queries)
        x = self.norm0(q + attend(q, self.k(keys), self.v(keys), self.heads, self.half_steps))
        return self.norm1(x + F.relu(self.out(x)))


class SetTransformer(nn.Module):
    """Sets (B, N, 3) -> (B, classes)"""

    def __init__(self, half_steps, dim=128, inducing=16, heads=4, classes=40, dropout=0.5):
        super().__init__()
        mab = lambda query_dim, key_dim: Mab(query_dim, key_dim, dim, heads, half_steps)
        self.inducing = nn.ParameterList(nn.Parameter(torch.randn(1, inducing, dim)) for _ in range(2))
        self.summaries, self.broadcasts = nn.ModuleList([mab(dim, 3), mab(dim, dim)]), nn.ModuleList([mab(3, dim), mab(dim, dim)])
        self.seed, self.pool = nn.Parameter(torch.randn(1, 1, dim)), mab(dim, dim)
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(dim, classes)

    def forward(self, x):
        for inducing, summary, broadcast in zip(self.inducing, self.summaries, self.broadcasts):
            x = broadcast(x, summary(inducing.expand(len(x), -1, -1), x))
        return self.head(self.dropout(self.pool(self.seed.expand(len(x), -1, -1), self.dropout(x))).squeeze(1))


def model_and_batch(name, half_steps):
    """The model of case "step <name> l=<half_steps>", inputs and labels."""
    images = lambda batch, channels, side: torch.randn(batch, channels, side, side)
    if name.startswith("mnist_patch"):
        model, inputs, classes = Vit(half_steps, 28, 1, int(name.removeprefix("mnist_patch")), 10, depth=1, heads=1), images(100, 1, 28), 10
    elif name == "vit":
        model, inputs, classes = Vit(half_steps, 224, 3, 16, 2, depth=6, heads=8, mlp_dim=128), images(64, 3, 224), 2
    elif name == "text":
        model, inputs, classes = TextEncoder(half_steps), torch.randint(1, 16000, (32, 256)), 2
    elif name == "set":
        model, inputs, classes = SetTransformer(half_steps), torch.randn(64, 512, 3), 40
    else:
        raise ValueError(f"there is no model called {name}")
    return model, inputs, torch.randint(0, classes, (len(inputs),))
