"""PyTorch's side of derivative_orders: the time of a function and of all orders of its derivatives, one JSON line each.

    python bench/derivative_orders.py [NAME..] > torch.jsonl
    cargo run --release -p pellucid-bench --bin derivative_orders -- --torch torch.jsonl

Shapes, orders and incoming gradients are as in src/bin/derivative_orders.rs: 8 elements to order 12 for elementwise
operations, [2, 3] or the smallest shape that makes sense to order 8 for all others, with random constants as incoming
gradients. An operation stops at the order after which BUDGET_S (20) seconds are spent; the line has the highest order that was reached.
"""
import json
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
import torch.nn.functional as F

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
BUDGET = float(os.environ.get("BUDGET_S", "20"))

ANY, POSITIVE, UNIT, SHARE, ABOVE_ONE = (-1.2, 1.2), (0.4, 2.2), (-0.8, 0.8), (0.15, 0.85), (1.3, 2.5)


def leaf(shape, domain):
    low, high = domain
    return (low + (high - low) * torch.rand(shape)).requires_grad_()


def constant(*shape):
    return torch.rand(shape) * 1.2 - 0.6


WEIGHTS = [(constant(8, 3), constant(8)), (constant(8, 8), constant(8)), (constant(1, 8), constant(1))]


def mlp(x):
    for weight, bias in WEIGHTS:
        x = torch.tanh(F.linear(x, weight, bias))
    return x


def square(x):
    n = x.shape[-1]
    return 0.8 * torch.tanh(x) + torch.diag(torch.tensor([2.6 + 0.9 * k for k in range(n)]))


def normalized(x):
    deviation = (x.var(-1, correction=0, keepdim=True) + 1e-3).sqrt()
    return (x - x.mean(-1, keepdim=True)) / deviation


CLASSES = torch.tensor([2, 0])

# Name: function, domains of 8 elements each.
ELEMENTWISE = {
    **{name: (getattr(torch, name), [ANY]) for name in (
        "neg square exp exp2 expm1 sin cos atan sinh cosh tanh asinh erf erfc sigmoid").split()},
    **{name: (getattr(torch, name), [POSITIVE]) for name in (
        "sqrt rsqrt reciprocal log log2 log10 log1p lgamma digamma").split()},
    **{name: (getattr(torch, name), [UNIT]) for name in "asin acos atanh erfinv tan".split()},
    "acosh": (torch.acosh, [ABOVE_ONE]),
    "logit": (torch.logit, [SHARE]),
    "cube": (lambda x: x ** 3, [ANY]),
    "gelu": (F.gelu, [ANY]),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), [ANY]),
    "silu": (F.silu, [ANY]),
    "mish": (F.mish, [ANY]),
    "softplus": (F.softplus, [ANY]),
    "logsigmoid": (F.logsigmoid, [ANY]),
    "tanhshrink": (F.tanhshrink, [ANY]),
    "sinc": (torch.sinc, [ANY]),
    "add": (torch.add, [ANY, ANY]),
    "mul": (torch.mul, [ANY, ANY]),
    "div": (torch.div, [ANY, POSITIVE]),
    "pow": (torch.pow, [POSITIVE, ANY]),
    "atan2": (torch.atan2, [POSITIVE, ANY]),
    "hypot": (torch.hypot, [POSITIVE, ANY]),
    "logaddexp": (torch.logaddexp, [ANY, ANY]),
    "xlogy": (torch.xlogy, [POSITIVE, POSITIVE]),
    "lerp": (torch.lerp, [ANY, ANY, ANY]),
    "pow 2": (lambda x: x ** 2, [ANY]),
    "pow 3": (lambda x: x ** 3, [ANY]),
    "pow 0.5": (lambda x: x ** 0.5, [POSITIVE]),
    "pow -2.5": (lambda x: x ** -2.5, [POSITIVE]),
    "x / (1 + x²)": (lambda x: x / (1 + x * x), [ANY]),
    "sin(x²)": (lambda x: torch.sin(x * x), [ANY]),
    "exp(-x²)": (lambda x: torch.exp(-x * x), [ANY]),
    "xˣ": (lambda x: x ** x, [POSITIVE]),
}

# Name: function, shapes and domains of the operands.
OTHERS = {
    "softmax": (lambda x: x.softmax(-1), [((2, 3), ANY)]),
    "log_softmax": (lambda x: x.log_softmax(-1), [((2, 3), ANY)]),
    "logsumexp": (lambda x: x.logsumexp(-1), [((2, 3), ANY)]),
    # F.layer_norm is fast, and wrong from the third order on.
    "layer_norm": (lambda x: normalized(x), [((2, 3), ANY)]),
    "layer_norm with weights": (
        lambda x, w, b: normalized(x) * w + b, [((2, 3), ANY), ((3,), ANY), ((3,), ANY)]),
    "rms_norm": (lambda x: F.rms_norm(x, (3,), eps=1e-3), [((2, 3), ANY)]),
    "group_norm": (
        lambda x, w, b: F.group_norm(x, 2, w, b, eps=1e-3), [((1, 4, 3), ANY), ((4,), ANY), ((4,), ANY)]),
    "batch_norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True, eps=1e-3), [((3, 2), ANY), ((2,), ANY), ((2,), ANY)]),
    "norm 2": (lambda x: x.norm(2, -1), [((2, 3), ANY)]),
    "norm 3": (lambda x: x.norm(3, -1), [((2, 3), ANY)]),
    "sum": (lambda x: x.sum(-1), [((2, 3), ANY)]),
    "mean": (lambda x: x.mean(-1), [((2, 3), ANY)]),
    "var": (lambda x: x.var(-1, correction=0), [((2, 3), ANY)]),
    "std": (lambda x: x.std(-1, correction=0), [((2, 3), ANY)]),
    "prod": (lambda x: x.prod(-1), [((2, 3), ANY)]),
    "cumsum": (lambda x: x.cumsum(-1), [((2, 3), ANY)]),
    "cumprod": (lambda x: x.cumprod(-1), [((2, 3), ANY)]),
    "logcumsumexp": (lambda x: x.logcumsumexp(-1), [((2, 3), ANY)]),
    "cosine_similarity": (lambda a, b: F.cosine_similarity(a, b), [((2, 3), ANY), ((2, 3), ANY)]),
    "matmul": (torch.matmul, [((2, 3), ANY), ((3, 2), ANY)]),
    "x · xᵀ": (lambda x: x @ x.t(), [((2, 3), ANY)]),
    "linear": (F.linear, [((2, 3), ANY), ((2, 3), ANY), ((2,), ANY)]),
    "einsum of three": (
        lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c), [((2, 3), ANY), ((3, 2), ANY), ((2, 2), ANY)]),
    "conv1d": (
        lambda x, w, b: F.conv1d(x, w, b, padding=1), [((1, 2, 4), ANY), ((2, 2, 2), ANY), ((2,), ANY)]),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding="same"), [((1, 1, 3, 3), ANY), ((2, 1, 2, 2), ANY)]),
    # The other kernels of attention have no second derivative.
    "attention": (
        lambda q, k, v: (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v, [((2, 3), ANY), ((2, 3), ANY), ((2, 3), ANY)]),
    "tanh MLP": (mlp, [((2, 3), ANY)]),
    "mse_loss": (F.mse_loss, [((2, 3), ANY), ((2, 3), ANY)]),
    "cross_entropy": (lambda x: F.cross_entropy(x, CLASSES), [((2, 3), ANY)]),
    "cross_entropy of probabilities": (F.cross_entropy, [((2, 3), ANY), ((2, 3), SHARE)]),
    "binary_cross_entropy": (F.binary_cross_entropy, [((2, 3), SHARE), ((2, 3), SHARE)]),
    "binary_cross_entropy_with_logits": (F.binary_cross_entropy_with_logits, [((2, 3), ANY), ((2, 3), SHARE)]),
    "inv": (lambda x: torch.linalg.inv(square(x)), [((2, 2), ANY)]),
    "det": (lambda x: torch.linalg.det(square(x)), [((2, 2), ANY)]),
    "cholesky": (lambda x: torch.linalg.cholesky(square(x) @ square(x).mT), [((2, 2), ANY)]),
    "solve": (lambda a, b: torch.linalg.solve(square(a), b), [((2, 2), ANY), ((2, 2), ANY)]),
}


def measure(function, leaves, limit):
    start, reached = time.perf_counter(), (0, 0.0)
    outputs = [function(*leaves)]
    for order in range(1, limit + 1):
        tracked = [y for y in outputs if y.requires_grad]
        if not tracked:
            break
        weights = [torch.rand_like(y) * 1.4 - 0.7 for y in tracked]
        try:
            outputs = torch.autograd.grad(
                tracked, leaves, weights, create_graph=order < limit, allow_unused=True, materialize_grads=True)
        except (RuntimeError, NotImplementedError) as error:
            print(f"order {order}: {error}", file=sys.stderr)
            break
        reached = (order, time.perf_counter() - start)
        if reached[1] > BUDGET:
            break
    return reached


CASES = {name: (f, [((8,), d) for d in domains], 12) for name, (f, domains) in ELEMENTWISE.items()}
CASES |= {name: (f, operands, 8) for name, (f, operands) in OTHERS.items()}

# The first graph of a process is slow.
measure(torch.tanh, [leaf((8,), ANY)], 3)
for name in sys.argv[1:] or CASES:
    function, operands, limit = CASES[name]
    order, seconds = measure(function, [leaf(shape, domain) for shape, domain in operands], limit)
    print(json.dumps({"peer": "torch", "operation": name, "order": order, "seconds": round(seconds, 6)}), flush=True)
