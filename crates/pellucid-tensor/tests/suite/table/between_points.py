"""Writes between_points.txt: derivatives of orders 1 to 4 between the points of docs/special-points.md, by mpmath.

Run it with Python 3 and mpmath: python3 crates/pellucid-tensor/tests/suite/table/between_points.py

Every point is a number of `f32`. The derivatives are the coefficients of the Taylor polynomial through nodes on a small
circle in the complex plane (Cauchy's formula), in 120 digits.
"""

import os
import struct

import mpmath as mp

mp.mp.dps = 120
ORDERS = 4

sigmoid = lambda x: 1 / (1 + mp.exp(-x))
softplus = lambda x: mp.log1p(mp.exp(x))
ndtr = lambda x: mp.erfc(-x / mp.sqrt(2)) / 2
ROOT = mp.sqrt(2 / mp.pi)

FAR = "-60 -30 -20 -12.5 -8 -5 -3.3 -1.7 -0.6 -1e-3 -1e-8 1e-20 1e-5 0.3 1.1 2.9 4.94 7 10.5 14 17.5 20 25 40"
UNIT = "-0.9999 -0.98 -0.7 -0.3 -0.02 -1e-3 -1e-5 -1e-8 -1e-12 1e-20 1e-9 1e-6 1e-4 0.05 0.2 0.45 0.6 0.85 0.95 0.99"
# Φ and erfcx with small and large arguments of both signs.
TAIL = "-25 -12 -8 -6.3 -5 -4.2 -3.97 -3.5 -3.1 -2.7 -2.4 -1.9 -1.5 -1 -0.3 1e-6 0.4 1 1.9 3"
SCALED = "-3 -1.5 -0.4 1e-6 0.3 0.9 1.5 1.9 2.1 2.5 3 3.7 4.4 5.2 6.1 6.56 7.2 7.95 8.2 12 30 100"

FUNCTIONS = {
    "sigmoid": (sigmoid, FAR),
    "tanh": (mp.tanh, FAR),
    "tanhshrink": (lambda x: x - mp.tanh(x), FAR),
    "softplus": (softplus, FAR),
    "logsigmoid": (lambda x: -softplus(-x), FAR),
    "silu": (lambda x: x * sigmoid(x), FAR),
    "mish": (lambda x: x * mp.tanh(softplus(x)), FAR),
    "gelu": (lambda x: x * ndtr(x), TAIL),
    "gelu_tanh": (lambda x: x * sigmoid(2 * ROOT * (x + mp.mpf("0.044715") * x**3)), TAIL + " 1e-20 4.94 5 6"),
    "log_ndtr": (lambda x: mp.log(ndtr(x)), TAIL),
    "erfcx": (lambda x: mp.exp(x * x) * mp.erfc(x), SCALED),
    "asin": (mp.asin, UNIT),
    "acos": (mp.acos, UNIT),
    "atanh": (mp.atanh, UNIT),
    "asinh": (mp.asinh, FAR),
    "atan": (mp.atan, FAR),
}


def single(text):
    """Returns the nearest number of `f32`."""
    return mp.mpf(struct.unpack("f", struct.pack("f", float(text)))[0])


def derivatives(f, x):
    """Returns the derivatives of orders 1 to ORDERS at x."""
    n, radius = 24, mp.mpf(10) ** -8 * (1 - min(abs(x), 1) + mp.mpf(10) ** -2)
    nodes = [mp.expjpi(mp.mpf(2 * k) / n) for k in range(n)]
    values = [f(x + radius * u) for u in nodes]
    mean = lambda order: mp.re(mp.fsum(v * u**-order for v, u in zip(values, nodes))) / n
    return [mean(k) * mp.factorial(k) / radius**k for k in range(1, ORDERS + 1)]


def main():
    lines = []
    for name, (f, points) in FUNCTIONS.items():
        for text in points.split():
            x = single(text)
            found = " ".join(mp.nstr(d, 17, min_fixed=0, max_fixed=0) for d in derivatives(f, x))
            lines.append(f"{name} {mp.nstr(x, 17)} {found}")
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "between_points.txt")
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")


main()
