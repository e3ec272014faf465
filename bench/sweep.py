"""PyTorch's side of the sweep: times the expressions that the lines of standard input describe.

    pellucid-bench --sweep --vs "python bench/sweep.py"

A turn is timed as in src/sweep/case.rs. THREADS is the number of threads, by default 1.
"""
import json
import os
import sys
import time
import warnings

THREADS = int(os.environ.get("THREADS", "1"))
os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))
os.environ.setdefault("MKL_NUM_THREADS", str(THREADS))
import torch
import torch.nn.functional as F

warnings.filterwarnings("ignore")
torch.set_num_threads(THREADS)
NAMES = "abcefg"


def values(operand):
    """The values of an operand; `random` in src/sweep/case.rs creates the same kinds."""
    shape, kind, (low, high) = operand["shape"], operand["values"], operand["numbers"]
    dtype = getattr(torch, operand["dtype"])
    if operand["transposed"]:
        shape = shape[::-1]
    if dtype == torch.int64 and kind not in ("integers", "permutation", "mask"):
        made = torch.randint(1, 100, shape)
    elif kind == "normal":
        made = torch.randn(shape)
    elif kind == "uniform":
        made = torch.rand(shape) * (high - low) + low
    elif kind == "log_probabilities":
        made = torch.randn(shape).log_softmax(-1)
    elif kind == "signs":
        made = (torch.rand(shape) > 0.5).float() * 2 - 1
    elif kind == "integers":
        made = torch.randint(int(low), int(high), shape)
    elif kind == "permutation":
        made = torch.randperm(shape[0])
    elif kind == "mask":
        made = torch.rand(shape) > 0.5
    elif kind == "sorted":
        made = torch.randn(shape).sort()[0]
    elif kind == "spd":
        x = torch.randn(shape)
        made = x @ x.mT / shape[-1] + torch.eye(shape[-1])
    else:
        made = torch.randn(shape).tril(-1) * 0.1 + torch.eye(shape[-1])
    if made.dtype.is_floating_point:
        made = made.to(dtype)
    if operand["transposed"]:
        made = made.t()
    return made.detach().requires_grad_(operand["leaf"])


def prepared(case):
    """Returns the function to time."""
    operands = [values(operand) for operand in case["operands"]]
    scope = {"torch": torch, "F": F, "zeros": torch.zeros, "full": torch.full}
    names = NAMES[: len(operands)]
    f = eval(f"lambda {', '.join(names)}: {case['expression']}", scope)
    leaves = [operand for operand in operands if operand.requires_grad]

    def with_gradient():
        for leaf in leaves:
            leaf.grad = None
        f(*operands).sum().backward()

    def forward():
        with torch.no_grad():
            f(*operands)

    return with_gradient if case["gradient"] else forward


def calls_in(body, seconds):
    body()
    calls = 1
    while True:
        start = time.perf_counter()
        for _ in range(calls):
            body()
        took = time.perf_counter() - start
        if took > seconds / 2 or calls > 1 << 20:
            return max(1, int(calls * seconds / took + 1))
        calls *= 4


def turn(body, calls, seconds):
    times = []
    start = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < seconds:
        group = time.perf_counter()
        for _ in range(calls):
            body()
        times.append((time.perf_counter() - group) * 1e6 / calls)
    return sorted(times)[len(times) // 4]


last, body, calls = None, None, 1
for line in sys.stdin:
    try:
        case = json.loads(line)
        if line != last:
            torch.manual_seed(1)
            body = prepared(case)
            calls = calls_in(body, case["seconds"] / 20)
            last = line
        reply = {"us": turn(body, calls, case["seconds"])}
    except Exception as error:
        reply = {"error": str(error).splitlines()[0][:200] if str(error) else repr(error)}
    print(json.dumps(reply), flush=True)
