"""PyTorch's side of the workloads in src/operations.rs and of the products in src/matmul.rs: one JSON line each.

    pellucid-bench --only conv-3x3,attention --vs "python bench/torch_operations.py {}"

timing.py measures as src/harness.rs does.
"""
import os
import sys

THREADS = int(os.environ.get("THREADS", "1"))
os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))
os.environ.setdefault("MKL_NUM_THREADS", str(THREADS))
import torch
import torch.nn.functional as F
from timing import print_line

torch.set_num_threads(THREADS)
torch.manual_seed(0)


def backward(f, *leaves):
    def run():
        for leaf in leaves:
            leaf.grad = None
        f().sum().backward()
    return run


def conv(each, groups):
    x = torch.randn(64, 64, 14, 14, requires_grad=True)
    w = torch.randn(64, each, 3, 3, requires_grad=True)
    return backward(lambda: F.conv2d(x, w, padding=1, groups=groups), x, w)


def conv_forward():
    x, w = torch.randn(64, 64, 14, 14), torch.randn(64, 64, 3, 3)
    return lambda: F.conv2d(x, w, padding=1)


def attention(batch, heads, tokens, causal):
    rows = (torch.randn(batch, tokens, heads, 64).transpose(1, 2) for _ in range(3))
    q, k, v = (r.detach().requires_grad_() for r in rows)
    return backward(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal), q, k, v)


def recurrent(layer):
    x, m = torch.randn(64, 32, 128), layer(128, 256)
    return backward(lambda: m(x)[0], *m.parameters())


def embedding():
    table = torch.randn(4096, 1024, requires_grad=True)
    index = torch.randint(0, 4096, (4096,))
    return backward(lambda: F.embedding(index, table), table)


def product(m, k, n, form):
    a = torch.randn(k, m).t() if form == "AtB" else torch.randn(m, k)
    b = torch.randn(n, k).t() if form == "ABt" else torch.randn(k, n)
    return lambda: a @ b


def along(f):
    x = torch.randn(4096, 1024)
    return lambda: f(x)


def einsum():
    a, b = torch.randn(8, 256, 256), torch.randn(8, 256, 256)
    return lambda: torch.einsum("bij,bjk->bik", a, b)


WORKLOADS = {
    "conv-3x3": lambda: conv(64, 1),
    "conv-forward": conv_forward,
    "conv-depthwise": lambda: conv(1, 64),
    "attention-128": lambda: attention(1, 8, 128, False),
    "attention-1024": lambda: attention(1, 8, 1024, False),
    "attention-causal": lambda: attention(8, 4, 128, True),
    "lstm": lambda: recurrent(torch.nn.LSTM),
    "gru": lambda: recurrent(torch.nn.GRU),
    "embedding": embedding,
    "sort": lambda: along(lambda x: x.sort(dim=-1, stable=True)),
    "topk": lambda: along(lambda x: x.topk(10, -1)),
    "cumsum": lambda: along(lambda x: x.cumsum(-1)),
    "cumsum-0": lambda: along(lambda x: x.cumsum(0)),
    "einsum": einsum,
    "widen": lambda: product(1024, 256, 1024, "ABt"),
    "widen-input": lambda: product(1024, 1024, 256, "AB"),
    "widen-weight": lambda: product(1024, 1024, 256, "AtB"),
    "narrow": lambda: product(1024, 1024, 256, "ABt"),
    "narrow-input": lambda: product(1024, 256, 1024, "AB"),
    "narrow-weight": lambda: product(256, 1024, 1024, "AtB"),
}


for name in sys.argv[1:] or WORKLOADS:
    print_line(name, WORKLOADS[name](), THREADS)
