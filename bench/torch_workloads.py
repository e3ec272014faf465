"""PyTorch's side of the workloads W1 to W11, on the CPU or on a GPU: one JSON line for eager mode ("torch"), and one
for `torch.compile(mode="reduce-overhead")` ("torch-compile"), which replays CUDA graphs on a GPU.

    pellucid-bench --device cuda --only W3,W4 --vs "python bench/torch_workloads.py {} --device cuda"

timing.py measures as src/harness.rs does: a call is timed until the device has done its work. TF32 is off, as in
Pellucid.
"""
import argparse
import os

THREADS = int(os.environ.get("THREADS", "1"))
os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))
os.environ.setdefault("MKL_NUM_THREADS", str(THREADS))
import torch
import torch.nn.functional as F
from timing import print_line, print_unsupported
from torch import nn

LARGE = 4 * 1024 * 1024


def randn(*shape):
    return torch.randn(*shape, device=DEVICE)


def classes(count, *shape):
    return torch.randint(0, count, shape, device=DEVICE)


def compiled(f, is_compiled):
    return torch.compile(f, mode="reduce-overhead") if is_compiled else f


def training(model, make_optimizer, x, target, is_compiled):
    """A training step. A compiled step has the optimizer's fused kernels."""
    model = model.to(DEVICE)
    optimizer = make_optimizer(model.parameters(), fused=True if is_compiled else None)

    def loss(x):
        logits = model(x)
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target)
    loss = compiled(loss, is_compiled)

    def step():
        optimizer.zero_grad()
        loss(x).backward()
        optimizer.step()
    return step


def sgd(momentum=0.0):
    return lambda parameters, fused: torch.optim.SGD(parameters, lr=0.1, momentum=momentum, fused=fused)


def adamw(lr, weight_decay):
    return lambda parameters, fused: torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=fused)


def adam(parameters, fused):
    return torch.optim.Adam(parameters, lr=1e-3, fused=fused)


def scalar(is_compiled):
    x = torch.tensor([1.5], device=DEVICE, requires_grad=True)
    f = compiled(lambda x: x * x + x, is_compiled)

    def body():
        for _ in range(100):
            x.grad = None
            f(x).backward()
    return body, 100


def additions(_):
    x, c = randn(16).requires_grad_(), randn(16)

    def body():
        x.grad = None
        y = x
        for _ in range(10_000):
            y = y + c
        y.sum().backward()
    return body


def perceptron():
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


def mlp(batch, make_optimizer):
    def build(is_compiled):
        return training(perceptron(), make_optimizer, randn(batch, 784), classes(10, batch), is_compiled)
    return build


def cnn(is_compiled):
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))
    return training(model, adam, randn(64, 1, 28, 28), classes(10, 64), is_compiled)


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (r.unflatten(-1, (self.heads, -1)).transpose(1, 2) for r in rows)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, words=1024, length=128, width=256, heads=4, layers=4):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(GptBlock(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.register_buffer("index", torch.arange(length))

    def forward(self, words):
        return self.head(self.norm(self.blocks(self.words(words) + self.positions(self.index))))


def gpt(is_compiled):
    return training(Gpt(), adamw(3e-4, 0.01), classes(1024, 8, 128), classes(1024, 8 * 128), is_compiled)


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.LSTM(128, 256, batch_first=True), nn.Linear(256, 10)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


def lstm(is_compiled):
    return training(Lstm(), adamw(1e-3, 0.0), randn(32, 64, 128), classes(10, 32), is_compiled)


class ResidualBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        is_same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if is_same else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def resnet(is_compiled):
    layers, inputs = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 64
    for outputs, stride in [(64, 1), (128, 2), (256, 2), (512, 2)]:
        layers += [ResidualBlock(inputs, outputs, stride), ResidualBlock(outputs, outputs, 1)]
        inputs = outputs
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    return training(model, sgd(momentum=0.9), randn(16, 3, 32, 32), classes(10, 16), is_compiled)


def gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def forward(f, *arguments):
    """The forward pass of a function of tensors that need no gradient."""
    def build(is_compiled):
        tensors, g = [make() for make in arguments], compiled(f, is_compiled)

        def body():
            with torch.no_grad():
                g(*tensors)
        return body
    return build


def gelu_backward(is_compiled):
    x, g, f = randn(LARGE).requires_grad_(), torch.ones(LARGE, device=DEVICE), compiled(gelu, is_compiled)

    def body():
        x.grad = None
        f(x).backward(g)
    return body


def second_derivative(_):
    x = randn(1024 * 1024).requires_grad_()

    def body():
        y = (torch.sin(x) * torch.exp(-x * x)).sum()
        first, = torch.autograd.grad(y, x, create_graph=True)
        torch.autograd.grad(first.sum(), x)
    return body


def hessian_product(_):
    model, x, target = perceptron().to(DEVICE), randn(64, 784), classes(10, 64)
    parameters = list(model.parameters())
    vectors = [torch.randn_like(p) for p in parameters]

    def body():
        gradients = torch.autograd.grad(F.cross_entropy(model(x), target), parameters, create_graph=True)
        product = sum((g * v).sum() for g, v in zip(gradients, vectors))
        torch.autograd.grad(product, parameters, allow_unused=True)
    return body


def matrices(*shapes):
    return [lambda shape=shape: randn(*shape) for shape in shapes]


def square(n):
    return forward(torch.matmul, *matrices((n, n), (n, n)))


WORKLOADS = {
    "W1": scalar, "W2": additions, "W3": mlp(64, sgd()), "W3a": mlp(64, adamw(1e-3, 1e-4)), "W3b": mlp(1024, sgd()),
    "W4": cnn, "W5": gpt, "W6": forward(gelu, *matrices((LARGE,))), "W6b": gelu_backward,
    "W7-softmax": forward(lambda x: torch.softmax(x, -1), *matrices((4096, 1024))),
    "W7-layernorm": forward(lambda x, w, b: F.layer_norm(x, (1024,), w, b), *matrices((4096, 1024), (1024,), (1024,))),
    "W7-sum0": forward(lambda x: x.sum(0), *matrices((4096, 4096))),
    "W7-argmax": forward(lambda x: x.argmax(-1), *matrices((4096, 4096))),
    "W8-256": square(256), "W8-512": square(512), "W8-1024": square(1024), "W8-2048": square(2048),
    "W8-bmm": forward(torch.matmul, *matrices((64, 128, 64), (64, 64, 128))),
    "W9": lstm, "W10": second_derivative, "W10-hvp": hessian_product, "W11": resnet,
}
# torch.compile does not differentiate twice, and the loop of W2 is too long for it.
EAGER_ONLY = {"W2", "W10", "W10-hvp"}


def run(name, is_compiled):
    peer = "torch-compile" if is_compiled else "torch"
    try:
        built = WORKLOADS[name](is_compiled)
        body, inner = built if isinstance(built, tuple) else (built, 1)
        wait = torch.cuda.synchronize if DEVICE.type == "cuda" else lambda: None

        def timed():
            body()
            wait()
        print_line(name, timed, THREADS, peer, inner)
    except Exception as error:  # The other lines of the table do not depend on this one.
        print_unsupported(name, peer, f"{type(error).__name__}: {str(error)[:200]}")


parser = argparse.ArgumentParser()
parser.add_argument("names", nargs="*", choices=[[], *WORKLOADS])
parser.add_argument("--device", default="cpu", type=torch.device)
arguments = parser.parse_args()
DEVICE = arguments.device
torch.set_num_threads(THREADS)
torch.manual_seed(0)
torch.backends.cudnn.allow_tf32 = False
for name in arguments.names or WORKLOADS:
    run(name, False)
    if name in EAGER_ONLY:
        print_unsupported(name, "torch-compile", "not compiled")
    else:
        run(name, True)
