"""Sinkhorn attention in PyTorch, in the formulations that we compare with. q, k, v: (batch, heads, n, d); half_steps as in sinkgrad.

  paper     the sequence of operations of the Sinkformer authors: log domain, potentials scaled by marginals, a stopping test per row step
  lean      log domain by alternating log-sum-exp, with the fewest passes that eager mode allows
  norm      probability domain: softmax, then division by sums (fast, fails for large scores)
  compiled  torch.compile of lean
  sdpa_*    scaled_dot_product_attention backends, for one half-step (softmax)
"""
import torch
import torch.nn.functional as F


def scores(q, k):
    return torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5


def paper(q, k, v, half_steps):
    cost = -scores(q, k)
    n, m = cost.shape[-2:]
    log_mu, log_nu = cost.new_full((n,), 1 / n).log(), cost.new_full((m,), 1 / m).log()
    row, column = cost.new_zeros(cost.shape[:-1]), cost.new_zeros(cost.shape[:-2] + (m,))

    def kernel():
        return -cost + row.unsqueeze(-1) + column.unsqueeze(-2)

    for step in range(half_steps):
        if step % 2 == 0:
            before, row = row, log_mu - torch.logsumexp(kernel(), -1) + row
            if (row - before).abs().sum(-1).mean().item() < 1e-12:
                break
        else:
            column = log_nu - torch.logsumexp(kernel().transpose(-1, -2), -1) + column
    return torch.matmul(n * torch.exp(kernel()), v)


def lean(q, k, v, half_steps):
    s = scores(q, k)
    for step in range(half_steps):
        s = s - torch.logsumexp(s, -1 if step % 2 == 0 else -2, keepdim=True)
    return torch.matmul(torch.exp(s), v)


def norm(q, k, v, half_steps):
    p = torch.softmax(scores(q, k), -1)
    for step in range(1, half_steps):
        p = p / p.sum(-1 if step % 2 == 0 else -2, keepdim=True)
    return torch.matmul(p, v)


def sdpa(backend):
    from torch.nn.attention import sdpa_kernel

    def function(q, k, v):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v)

    return function


def sdpa_backends(names):
    """(name, function of q, k, v) for the backends of that name which this PyTorch knows."""
    from torch.nn.attention import SDPBackend

    for name in names:
        if hasattr(SDPBackend, name):
            yield "sdpa_" + name.lower(), sdpa(getattr(SDPBackend, name))
