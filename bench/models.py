"""The models of src/models.rs in PyTorch: one JSON line each.

    pellucid-bench --only model --vs "python bench/models.py {}"

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
from torch import nn

torch.set_num_threads(THREADS)
torch.manual_seed(0)


def training(parameters, loss):
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)

    def step():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return step


def classifier(model, x):
    target = torch.randint(0, 10, (x.shape[0],))
    return training(model.parameters(), lambda: F.cross_entropy(model(x), target))


def regression(model, x, target):
    return training(model.parameters(), lambda: (model(x) - target).square().mean())


def depthwise():
    layers = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    for inputs, outputs, stride in [(32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2)]:
        layers += [nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False), nn.BatchNorm2d(inputs),
                   nn.ReLU(), nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)]
    return classifier(nn.Sequential(*layers), torch.randn(16, 3, 64, 64))


def dcgan():
    generator = nn.Sequential(
        nn.ConvTranspose2d(64, 128, 4, bias=False), nn.BatchNorm2d(128), nn.ReLU(),
        nn.ConvTranspose2d(128, 64, 4, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.ConvTranspose2d(64, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh())
    discriminator = nn.Sequential(
        nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(),
        nn.Conv2d(32, 64, 4, 2, 1, bias=False), nn.BatchNorm2d(64), nn.LeakyReLU(),
        nn.Conv2d(64, 128, 4, 2, 1, bias=False), nn.BatchNorm2d(128), nn.LeakyReLU(),
        nn.Conv2d(128, 1, 4))
    noise, images = torch.randn(32, 64, 1, 1), torch.randn(32, 3, 32, 32)

    def loss():
        return F.softplus(-discriminator(images)).mean() + F.softplus(discriminator(generator(noise))).mean()
    return training([*generator.parameters(), *discriminator.parameters()], loss)


def double_conv(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU(),
                         nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.bottom, self.up = double_conv(3, 32), double_conv(32, 64), double_conv(96, 32)
        self.head = nn.Conv2d(32, 1, 1)

    def forward(self, x):
        high = self.down(x)
        low = self.bottom(F.avg_pool2d(high, 2))
        return self.head(self.up(torch.cat([high, F.interpolate(low, scale_factor=2)], 1)))


def unet():
    return regression(UNet(), torch.randn(4, 3, 64, 64), torch.randn(4, 1, 64, 64))


def dilated1d():
    layers = [nn.Conv1d(32, 64, 1)]
    for dilation in [1, 2, 4, 8]:
        layers += [nn.Conv1d(64, 64, 3, dilation=dilation, padding=dilation), nn.ReLU()]
    layers.append(nn.Conv1d(64, 32, 1))
    return regression(nn.Sequential(*layers), torch.randn(16, 32, 512), torch.randn(16, 32, 512))


def conv3d():
    model = nn.Sequential(
        nn.Conv3d(2, 16, 3, padding=1), nn.ReLU(), nn.Conv3d(16, 32, 3, stride=2, padding=2, dilation=2), nn.ReLU(),
        nn.Conv3d(32, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(32, 10))
    return classifier(model, torch.randn(2, 2, 16, 32, 32))


class MixerLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.token_norm, self.channel_norm = nn.LayerNorm(128), nn.LayerNorm(128)
        self.tokens = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
        self.channels = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))

    def forward(self, x):
        x = x + self.tokens(self.token_norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.channel_norm(x))


def mixer():
    return regression(nn.Sequential(*(MixerLayer() for _ in range(4))), torch.randn(32, 64, 128),
                      torch.randn(32, 64, 128))


def gru():
    layer, head = nn.GRU(64, 128, batch_first=True, bidirectional=True), nn.Linear(256, 10)
    x, target = torch.randn(32, 64, 64), torch.randint(0, 10, (32,))
    return training([*layer.parameters(), *head.parameters()],
                    lambda: F.cross_entropy(head(layer(x)[0].mean(1)), target))


def attention():
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True)
    return regression(layer, torch.randn(2, 1024, 256), torch.randn(2, 1024, 256))


def vocabulary():
    words, head = nn.Embedding(32_000, 128), nn.Linear(128, 32_000, bias=False)
    x, target = torch.randint(0, 32_000, (256,)), torch.randint(0, 32_000, (256,))
    return training([*words.parameters(), *head.parameters()], lambda: F.cross_entropy(head(words(x)), target))


def messages():
    nodes, edges = 20_000, 100_000
    layers = [nn.Linear(64, 64), nn.Linear(64, 64)]
    sources, targets = torch.randint(0, nodes, (edges,)), torch.randint(0, nodes, (edges,))
    x, target = torch.randn(nodes, 64), torch.randn(nodes, 64)

    def loss():
        h = x
        for layer in layers:
            h = torch.zeros(nodes, 64).index_add(0, targets, layer(h).index_select(0, sources)).relu()
        return (h - target).square().mean()
    return training([p for layer in layers for p in layer.parameters()], loss)


def pinn():
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(),
                          nn.Linear(64, 1))
    points = [torch.rand(1024, 1), torch.rand(1024, 1)]

    def loss():
        t, x = (p.detach().requires_grad_() for p in points)
        u = model(torch.cat([t, x], 1))
        u_t, u_x = torch.autograd.grad(u.sum(), (t, x), create_graph=True)
        u_xx, = torch.autograd.grad(u_x.sum(), x, create_graph=True)
        return (u_t + u * u_x - 0.01 * u_xx).square().mean()
    return training(model.parameters(), loss)


def linalg():
    root = nn.Parameter(torch.randn(256, 16, 16))
    identity, x = torch.eye(16) * 4.0, torch.randn(256, 16, 1)

    def loss():
        factor = torch.linalg.cholesky(root @ root.mT + identity)
        white = torch.linalg.solve_triangular(factor, x, upper=False)
        return (white.square().sum((-2, -1)) + 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)).mean()
    return training([root], loss)


MODELS = {f"model-{f.__name__}": f for f in [depthwise, dcgan, unet, dilated1d, conv3d, mixer, gru, attention,
                                             vocabulary, messages, pinn, linalg]}

for name in sys.argv[1:] or MODELS:
    print_line(name, MODELS[name](), THREADS)
