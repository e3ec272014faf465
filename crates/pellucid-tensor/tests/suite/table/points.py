"""Writes docs/special-points.md: derivatives of orders 1 to 4 at special points, by mpmath.

Run it with Python 3 and mpmath: python3 crates/pellucid-tensor/tests/suite/table/points.py

Every value is the limit of the derivative of the function, computed from differences in 300 digits. Where the two
one-sided limits differ, or the derivative is a convention, `CONVENTIONS` states the value and the reason.
"""

import itertools
import os

import mpmath as mp

mp.mp.dps = 300
INF, NAN = mp.inf, mp.nan
ORDERS = 4
STEP = mp.mpf(10) ** -38


def differences(f, at, orders):
    """Returns the mixed derivative of f at a point, by central differences with a tiny step."""
    step = STEP
    axes = [k for k, n in enumerate(orders) for _ in range(n)]
    total = mp.mpf(0)
    for signs in itertools.product((1, -1), repeat=len(axes)):
        x, sign = list(at), 1
        for k, s in zip(axes, signs):
            x[k] += s * step
            sign *= s
        total += sign * f(*x)
    return total / (2 * step) ** len(axes)


def one_sided(f, at, sides, orders):
    """Returns the limit of a derivative from one side; None outside of the domain."""
    values = []
    for h in (mp.mpf(10) ** -12, mp.mpf(10) ** -24):
        x = [p + s * h * (1 + mp.mpf(k) / 3) for k, (p, s) in enumerate(zip(at, sides))]
        try:
            v = differences(f, x, orders)
            noise = mp.mpf(10) ** -290 * max(1, abs(f(*x))) / STEP ** sum(orders)
        except (ValueError, ZeroDivisionError):
            return None
        if isinstance(v, mp.mpc) or mp.isnan(v):
            return None
        values.append(v if abs(v) > noise else mp.mpf(0))
    near, nearer = values
    if abs(nearer) > 1.2 * abs(near) + 10:
        return mp.sign(nearer) * INF
    # A value that vanishes with the distance to the point is 0 at the point.
    return mp.mpf(0) if abs(nearer) < 1e-11 and abs(nearer) < 1e-5 * abs(near) else nearer


def limit(f, at, orders):
    """Returns the limit of a derivative where it does not depend on the side; None otherwise."""
    sides = itertools.product((1, -1), repeat=len(at))
    found = [v for v in (one_sided(f, at, s, orders) for s in sides) if v is not None]
    if not found:
        return None
    first = found[0]
    same = all(v == first or (mp.isfinite(v) and abs(v - first) < 1e-9 * max(1, abs(first))) for v in found)
    return first if same else None


def real(f):
    """Makes a function real: an error outside of its domain."""

    def g(*x):
        y = f(*x)
        if isinstance(y, mp.mpc):
            if y.imag != 0:
                raise ValueError
            y = y.real
        return y

    return g


sigmoid = lambda x: 1 / (1 + mp.exp(-x))
softplus = lambda x: mp.log1p(mp.exp(x)) if x < 100 else x + mp.log1p(mp.exp(-x))
phi = lambda x: mp.erfc(-x / mp.sqrt(2)) / 2
sinc = lambda x: mp.mpf(1) if x == 0 else mp.sin(x) / x
SELU = (mp.mpf(1.0507009873554805), mp.mpf(1.6732632423543772))


def elu(x, alpha):
    return x if x > 0 else alpha * mp.expm1(x)


def digamma(n):
    return lambda x: mp.psi(n, x)


def inside(low, high):
    return lambda f: lambda x: f(x) if low <= x <= high else fail()


def fail():
    raise ValueError


def pnorm(p, rest):
    """Returns t ↦ ‖(t, rest)‖ of order p."""
    return lambda t: (sum(abs(mp.mpf(v)) ** p for v in (t, *rest) if v != 0 or p > 0)) ** (mp.mpf(1) / p)


positive = inside(0, mp.inf)
unit = inside(0, 1)
near_one = inside(-1, 1)
ln = lambda x: mp.log(x) if x > 0 else fail()
clip = lambda x: min(max(x, mp.mpf(1) / 5), mp.mpf(4) / 5)
root = lambda x: mp.sqrt(x) if x >= 0 else fail()
POINT_ZERO = ["0"]

# One operand: the call as in the table of operations, the function, and its points.
UNARY = {
    # Activation functions.
    "sigmoid": (sigmoid, ["0", "-30", "1e4", "-1e4"]),
    "relu": (lambda x: max(x, mp.mpf(0)), ["0", "-0", "2"]),
    "relu6": (lambda x: min(max(x, mp.mpf(0)), mp.mpf(6)), ["0", "6"]),
    "leaky_relu(0.1)": (lambda x: x if x > 0 else x * mp.mpf(0.1), ["0"]),
    "elu(1.3)": (lambda x: elu(x, mp.mpf(1.3)), ["0", "-1e4", "1e4"]),
    "celu(1.3)": (lambda x: mp.mpf(1.3) * elu(x / mp.mpf(1.3), 1), ["0", "1e4"]),
    "selu": (lambda x: SELU[0] * elu(x, SELU[1]), ["0", "-1e4"]),
    "gelu": (lambda x: x * phi(x), ["0", "-3", "1e4", "-1e4"]),
    "gelu_tanh": (
        lambda x: x / 2 * (1 + mp.tanh(mp.mpf(0.7978845608028654) * (x + mp.mpf(0.044715) * x**3))),
        ["0", "1e4"],
    ),
    "silu": (lambda x: x * sigmoid(x), ["0", "1e4", "-1e4"]),
    "mish": (lambda x: x * mp.tanh(softplus(x)), ["0", "10", "1e4", "-1e4"]),
    "softplus": (softplus, ["0", "1e4", "-1e4"]),
    "logsigmoid": (lambda x: -softplus(-x), ["0", "1e4", "-1e4"]),
    "softsign": (lambda x: x / (1 + abs(x)), ["0", "100"]),
    "hardtanh(-1.0, 1.0)": (lambda x: min(max(x, mp.mpf(-1)), mp.mpf(1)), ["-1", "1"]),
    "softplus_beta(2.0, 3.0)": (lambda x: x if 2 * x > 3 else softplus(2 * x) / 2, ["0", "1e4", "-1e4"]),
    "hardsigmoid": (lambda x: min(max(x / 6 + mp.mpf(1) / 2, mp.mpf(0)), mp.mpf(1)), ["-3", "3"]),
    "hardswish": (lambda x: x * min(max(x / 6 + mp.mpf(1) / 2, mp.mpf(0)), mp.mpf(1)), ["-3", "0", "3"]),
    "tanhshrink": (lambda x: x - mp.tanh(x), ["0", "1e4"]),
    "softshrink(0.5)": (
        lambda x: x - mp.sign(x) / 2 if abs(x) > 0.5 else mp.mpf(0), ["-0.5", "0", "0.5"]),
    "hardshrink(0.5)": (lambda x: x if abs(x) > 0.5 else mp.mpf(0), ["-0.5", "0", "0.5"]),
    "threshold(0.3, -2.5)": (lambda x: x if x > mp.mpf("0.3") else mp.mpf(-2.5), ["0.3"]),
    # Exponentials, logarithms, trigonometric and hyperbolic functions.
    "exp": (mp.exp, ["0", "-1e4"]),
    "exp2": (lambda x: mp.mpf(2) ** x, ["0"]),
    "expm1": (mp.expm1, ["0", "1e-25", "-20"]),
    "ln": (ln, ["0", "1"]),
    "log": (ln, ["0", "1"]),
    "log2": (lambda x: ln(x) / mp.log(2), ["0", "1"]),
    "log10": (lambda x: ln(x) / mp.log(10), ["0", "1"]),
    "log1p": (lambda x: ln(1 + x), ["-1", "0"]),
    "sin": (mp.sin, ["0"]),
    "cos": (mp.cos, ["0"]),
    "tan": (mp.tan, ["0"]),
    "asin": (near_one(mp.asin), ["-1", "0", "1"]),
    "acos": (near_one(mp.acos), ["-1", "0", "1"]),
    "atan": (mp.atan, ["0", "1e10"]),
    "sinh": (mp.sinh, ["0"]),
    "cosh": (mp.cosh, ["0"]),
    "tanh": (mp.tanh, ["0", "1e4", "-1e4"]),
    "asinh": (mp.asinh, ["0", "1e25", "-1e25"]),
    "acosh": (inside(1, mp.inf)(mp.acosh), ["1", "1e25"]),
    "atanh": (near_one(mp.atanh), ["-1", "0", "1"]),
    "erf": (mp.erf, ["0", "10"]),
    "erfc": (mp.erfc, ["0", "5"]),
    "erfinv": (near_one(mp.erfinv), ["-1", "0", "1"]),
    "lgamma": (lambda x: mp.loggamma(x).real if x > 0 else mp.log(abs(mp.gamma(x))), ["0", "1", "2", "-1"]),
    "digamma": (digamma(0), ["0", "1", "-1"]),
    "sinc": (lambda x: sinc(mp.pi * x), ["0", "1"]),
    "logit_with(0.2)": (lambda x: mp.log(clip(x) / (1 - clip(x))), ["0.1", "0.5", "0.9"]),
    "logit": (unit(lambda x: mp.log(x / (1 - x))), ["0", "0.5", "1"]),
    "deg2rad": (lambda x: x * mp.pi / 180, ["0"]),
    "rad2deg": (lambda x: x * 180 / mp.pi, ["0"]),
    "entr": (positive(lambda x: -x * mp.log(x)), ["0", "1"]),
    # Arithmetic.
    "neg": (lambda x: -x, ["0"]),
    "abs": (abs, ["0", "-0"]),
    "sign": (mp.sign, ["0"]),
    "angle": (lambda x: mp.pi if x < 0 else mp.mpf(0), ["0"]),
    "floor": (mp.floor, ["2"]),
    "ceil": (mp.ceil, ["2"]),
    "round": (mp.nint, ["2.5"]),
    "around(1)": (lambda x: mp.nint(10 * x) / 10, ["0.33"]),
    "trunc": (lambda x: mp.floor(x) if x > 0 else mp.ceil(x), ["0", "2"]),
    "frac": (lambda x: x - (mp.floor(x) if x > 0 else mp.ceil(x)), ["0", "2"]),
    "sqrt": (root, ["0", "1"]),
    "cbrt": (lambda x: mp.sign(x) * mp.cbrt(abs(x)), ["0", "-0", "1", "-8"]),
    "rsqrt": (lambda x: 1 / root(x), ["0", "1"]),
    "reciprocal": (lambda x: 1 / x, ["0", "1"]),
    "square": (lambda x: x**2, ["0"]),
    "cube": (lambda x: x**3, ["0"]),
    "nan_to_num(0.5, 7.0, -7.0)": (lambda x: x, ["0", "inf", "-inf"]),
    "clamp(-0.5, 0.75)": (lambda x: min(max(x, mp.mpf(-0.5)), mp.mpf(0.75)), ["-0.5", "0.75"]),
    # Special functions.
    "polygamma(0.0)": (digamma(0), ["0", "1", "-1"]),
    "polygamma(x, 1)": (digamma(1), ["0", "1", "-1"]),
    "polygamma(x, 2)": (digamma(2), ["0", "1"]),
    "erfcx": (lambda x: mp.exp(x**2) * mp.erfc(x), ["0", "50", "1e4"]),
    "ndtr": (phi, ["0", "-5", "10"]),
    "ndtri": (unit(lambda p: mp.sqrt(2) * mp.erfinv(2 * p - 1)), ["0", "0.5", "1"]),
    "log_ndtr": (lambda x: mp.log(phi(x)), ["-3", "-1", "0", "10"]),
    "i0": (lambda x: mp.besseli(0, x), ["0", "1"]),
    "i0e": (lambda x: mp.besseli(0, x) * mp.exp(-abs(x)), ["0", "1"]),
    "i1": (lambda x: mp.besseli(1, x), ["0", "1"]),
    "i1e": (lambda x: mp.besseli(1, x) * mp.exp(-abs(x)), ["0", "1"]),
    "k0": (positive(lambda x: mp.besselk(0, x)), ["0", "1"]),
    "k0e": (positive(lambda x: mp.besselk(0, x) * mp.exp(x)), ["0", "1"]),
    "k1": (positive(lambda x: mp.besselk(1, x)), ["0", "1"]),
    "k1e": (positive(lambda x: mp.besselk(1, x) * mp.exp(x)), ["0", "1"]),
    "bessel_j0": (lambda x: mp.besselj(0, x), ["0", "1"]),
    "bessel_j1": (lambda x: mp.besselj(1, x), ["0", "1"]),
    "bessel_y0": (positive(lambda x: mp.bessely(0, x)), ["0", "1"]),
    "bessel_y1": (positive(lambda x: mp.bessely(1, x)), ["0", "1"]),
    "airy_ai": (lambda x: mp.airyai(x), ["0", "-2.09", "2.09"]),
    "spherical_bessel_j0": (sinc, ["0", "1e-10", "4"]),
    # One operand of several, or one element of a vector.
    "pow(x, 0)": (lambda x: mp.mpf(1), ["0", "-1"]),
    "pow(x, 0.5)": (root, ["0"]),
    "pow(x, 1.5)": (lambda x: root(x) ** 3, ["0"]),
    "pow(x, 2)": (lambda x: x**2, ["0", "-1"]),
    "pow(x, 3)": (lambda x: x**3, ["0", "-1"]),
    "pow(x, -1)": (lambda x: 1 / x, ["0", "-1"]),
    "pow(2, x)": (lambda x: mp.mpf(2) ** x, ["0", "1"]),
    "pow(x, x)": (lambda x: x**x, ["1", "2"]),
    "igamma(0.5, x)": (positive(lambda x: mp.gammainc(0.5, 0, x, True)), ["0", "1"]),
    "igamma(1, x)": (lambda x: 1 - mp.exp(-x), ["0", "1"]),
    "igamma(2, x)": (lambda x: 1 - (1 + x) * mp.exp(-x), ["0", "1"]),
    "igammac(3, x)": (lambda x: (1 + x + x * x / 2) * mp.exp(-x), ["0", "1"]),
    "zeta(3, x)": (lambda x: mp.zeta(3, x) if x > 0 else fail(), ["0", "1"]),
    "multigammaln(x, 2)": (
        lambda x: mp.log(mp.pi) / 2 + mp.loggamma(x) + mp.loggamma(x - 0.5) if x > 0.5 else fail(), ["0.5", "1"]),
    "norm([x, 3], 0.5)": (pnorm(mp.mpf(0.5), [3]), POINT_ZERO),
    "norm([x, 3], 1)": (pnorm(1, [3]), POINT_ZERO),
    "norm([x, 3], 1.5)": (pnorm(mp.mpf(1.5), [3]), POINT_ZERO),
    "norm([x, 3], 2)": (pnorm(2, [3]), POINT_ZERO),
    "norm([x, 3], 3)": (pnorm(3, [3]), POINT_ZERO),
    "norm([x, 3], 4)": (pnorm(4, [3]), POINT_ZERO),
    "norm([x, 3], -1)": (lambda t: 1 / (1 / abs(t) + mp.mpf(1) / 3), POINT_ZERO),
    "norm([x, 0], 2)": (pnorm(2, []), POINT_ZERO),
    "norm([x, 0], 3)": (pnorm(3, []), POINT_ZERO),
    "norm([x, 3], inf)": (lambda t: max(abs(t), 3), ["0", "3"]),
    "cdist([x], [0], 0.5)": (abs, POINT_ZERO),
    "cdist([x, 3], [0, 0], 4)": (pnorm(4, [3]), POINT_ZERO),
    "pdist([x, 3], [0, 0], 0.5)": (pnorm(mp.mpf(0.5), [3]), POINT_ZERO),
    "pairwise_distance([x, 3], [0, 0], 0.5)": (pnorm(mp.mpf(0.5), [3]), POINT_ZERO),
    "normalize([x, 3], 4)": (lambda t: 3 / pnorm(4, [3])(t), POINT_ZERO),
    "lp_pool1d([x, 3], 0.5)": (pnorm(mp.mpf(0.5), [3]), POINT_ZERO),
    "lp_pool1d([x, 0], 2)": (pnorm(2, []), POINT_ZERO),
    "lp_pool1d([x, 3], 3)": (lambda t: (t**3 + 27) ** (mp.mpf(1) / 3), POINT_ZERO),
    "var([x, 2])": (lambda t: (t - 2) ** 2 / 4, ["2"]),
    "std([x, 2])": (lambda t: abs(t - 2) / 2, ["2"]),
    "masked_std([x, 2])": (lambda t: abs(t - 2) / 2, ["2"]),
    "max([x, 2])": (lambda t: max(t, 2), ["2"]),
    "min([x, 2])": (lambda t: min(t, 2), ["2"]),
    "prod([x, 0, 3])": (lambda t: mp.mpf(0), POINT_ZERO),
    "prod([x, x, 3])": (lambda t: 3 * t * t, POINT_ZERO),
    "cumprod([x, x, 3])": (lambda t: 3 * t * t, POINT_ZERO),
    "logsumexp([x, 0])": (softplus, ["0", "1e4", "-1e4"]),
    "logsumexp([x, -inf])": (lambda t: t, ["-inf", "1"]),
    "logcumsumexp([x, 0])": (softplus, ["0", "-1e4"]),
    "softmax([x, 0])": (sigmoid, ["0", "1e4"]),
    "ptp([x, 2])": (lambda t: abs(t - 2), ["2"]),
    "nanmax([x, 2, nan])": (lambda t: max(t, 2), ["2"]),
    "nanmax([x, nan])": (lambda t: t, ["-inf"]),
    "nanmin([x, 2, nan])": (lambda t: min(t, 2), ["2"]),
    "nanprod([x, 0, nan, 3])": (lambda t: mp.mpf(0), POINT_ZERO),
    "nanprod([x, x, nan, 3])": (lambda t: 3 * t * t, POINT_ZERO),
    "nancumprod([x, x, nan, 3])": (lambda t: 3 * t * t, POINT_ZERO),
    "nanvar([x, 2, nan])": (lambda t: (t - 2) ** 2 / 4, ["2"]),
    "nanstd([x, 2, nan])": (lambda t: abs(t - 2) / 2, ["2"]),
    "masked_max([x, 2])": (lambda t: max(t, 2), ["2"]),
    "masked_max([x])": (lambda t: t, ["-inf"]),
    "masked_prod([x, 0, 3])": (lambda t: mp.mpf(0), POINT_ZERO),
    "dist([x, 3], [0, 0], 0.5)": (pnorm(mp.mpf(0.5), [3]), POINT_ZERO),
    "dist([x], [0], 2)": (abs, POINT_ZERO),
    "cdist([x, 3], [0, 0], inf)": (lambda t: max(abs(t), 3), ["0", "3"]),
    "interp([0, 1, 3], [5, 7, 3])": (
        lambda t: 5 + 2 * t if t < 1 else 9 - 2 * t if t < 3 else mp.mpf(3) if t > 3 else fail(), ["0", "1", "3"]),
    "polyval([1, 0, 0], x)": (lambda x: x**2, ["0"]),
    "lerp(x, 3, 0.5)": (lambda x: (x + 3) / 2, ["0"]),
    "addcmul(x, x, x)": (lambda x: x + x * x, ["0"]),
    "addcdiv(1, 1, x)": (lambda x: 1 + 1 / x, ["0"]),
}


def power(a, b):
    return a**b if a > 0 else fail()


def angle(a, b):
    return mp.atan2(a, b)


def xlog(f):
    return lambda a, b: a * f(b)


BINARY = {
    "add": (lambda a, b: a + b, ["0, 0"]),
    "sub": (lambda a, b: a - b, ["0, 0"]),
    "mul": (lambda a, b: a * b, ["0, 0"]),
    "div": (lambda a, b: a / b, ["0, 1", "1, 2"]),
    "floor_div": (lambda a, b: mp.floor(a / b), ["2, 2"]),
    "rem": (lambda a, b: a - b * mp.floor(a / b), ["3, 2", "4, 2"]),
    "fmod": (lambda a, b: a - b * mp.floor(a / b), ["3, 2", "4, 2"]),
    "pow": (power, ["0, 0", "0, 1", "0, 2", "0, 3", "1, 0", "1, 1", "2, 0", "23, 0", "2, 1", "2, 2", "2, -1"]),
    "maximum": (max, ["1, 1", "1, 2"]),
    "minimum": (min, ["1, 1", "1, 2"]),
    "fmax": (max, ["1, 1", "1, 2"]),
    "fmin": (min, ["1, 1", "1, 2"]),
    "atan2": (angle, ["0, 0", "0, 1", "1, 0", "1, 1", "-1, 1"]),
    "copysign": (lambda a, b: abs(a) if b > 0 else -abs(a), ["1, 0", "0, 1"]),
    "heaviside": (lambda a, b: mp.mpf(a > 0), ["0, 3"]),
    "hypot": (lambda a, b: mp.sqrt(a * a + b * b), ["0, 0", "0, 1", "1, 1", "3, 4", "1e4, 1"]),
    "logaddexp": (lambda a, b: mp.log(mp.exp(a) + mp.exp(b)), ["0, 0", "1, 1", "-inf, -inf", "inf, inf"]),
    "logaddexp2": (lambda a, b: mp.log(mp.mpf(2) ** a + mp.mpf(2) ** b, 2), ["0, 0", "1, 1", "-inf, -inf"]),
    "xlogy": (xlog(ln), ["0, 0", "0, 1", "0, 2", "1, 1"]),
    "xlog1py": (xlog(lambda b: ln(1 + b)), ["0, -1", "0, 0", "0, 1"]),
    "ldexp": (lambda a, b: a * mp.mpf(2) ** b, ["0, 0", "1, 0"]),
}

Z = ["0"] * ORDERS


def orders(*rows):
    """Returns mixed derivatives of two operands; missing orders are 0."""
    rows = [r.split(", ") for r in rows]
    return [rows[k] if k < len(rows) else ["0"] * (k + 2) for k in range(ORDERS)]


# Values that are no two-sided limits, by operation and point, and the reason. `<` is the limit from the left, `>` that
# from the right, `=` that from both sides. A single value stands for every order.
SIGN = "sign(0) = 0, as in PyTorch"
FLAT = "the limit from the flat side, as in PyTorch"
LEFT = "the limit from the left; PyTorch has 0 for order 2 and higher"
TIE = "operands of a tie share the gradient evenly, as in PyTorch"
POLE = "the limit from the right, as in PyTorch"
BOTH = "NaN where the limits from both sides differ"
ELEMENT = "0 beyond order p; PyTorch has 0 in order 1, then NaN"
KINK = "0 at the kink, as in PyTorch"
POWER = "0ⁿ·ln 0 is 0 for n ≥ 0, and so is 0·0⁻¹, as in PyTorch"
REMAINDER = "−⌊a/b⌋, as in PyTorch"
SELECTED = "an element that is not selected has no share"
INFINITE = "equal infinities share the gradient evenly; PyTorch has NaN"
OUTER = "the limit from the outer side, as in PyTorch"
CONVENTIONS = {
    "relu": {"0": ("0", FLAT), "-0": ("0", FLAT)},
    "relu6": {"0": ("0", FLAT), "6": ("0", FLAT)},
    "leaky_relu(0.1)": {"0": ("<", "the limit from the left, as in PyTorch")},
    "elu(1.3)": {"0": ("<", LEFT)},
    "celu(1.3)": {"0": ("<", LEFT)},
    "selu": {"0": ("<", LEFT)},
    "softsign": {"0": (["1", "0", "0", "0"], SIGN)},
    "hardtanh(-1.0, 1.0)": {"-1": ("0", FLAT), "1": ("0", FLAT)},
    "hardsigmoid": {"-3": ("0", FLAT), "3": ("0", FLAT)},
    "hardswish": {"-3": ("<", OUTER), "3": (">", OUTER)},
    "softshrink(0.5)": {"-0.5": ("0", FLAT), "0.5": ("0", FLAT)},
    "hardshrink(0.5)": {"-0.5": ("0", FLAT), "0.5": ("0", FLAT)},
    "threshold(0.3, -2.5)": {"0.3": ("0", FLAT)},
    "lgamma": {"0": ([">", "=", "NaN", "="], BOTH + " beyond order 2"), "-1": (["NaN", "=", "NaN", "="], BOTH)},
    "digamma": {"0": (["=", "NaN", "=", "NaN"], BOTH), "-1": (["=", "NaN", "=", "NaN"], BOTH)},
    "polygamma(0.0)": {"0": (["=", "NaN", "=", "NaN"], BOTH), "-1": (["=", "NaN", "=", "NaN"], BOTH)},
    "polygamma(x, 1)": {"0": (["NaN", "=", "NaN", "="], BOTH), "-1": (["NaN", "=", "NaN", "="], BOTH)},
    "polygamma(x, 2)": {"0": (["=", "NaN", "=", "NaN"], BOTH)},
    "abs": {"0": ("0", SIGN), "-0": ("0", SIGN)},
    "reciprocal": {"0": (">", POLE)},
    "pow(x, -1)": {"0": (">", POLE)},
    "addcdiv(1, 1, x)": {"0": (">", POLE)},
    "logsumexp([x, -inf])": {
        "-inf": ("NaN", "no element is finite: NaN as in PyTorch; `logaddexp` shares the gradient evenly")
    },
    "nan_to_num(0.5, 7.0, -7.0)": {"inf": ("0", "a constant"), "-inf": ("0", "a constant")},
    "clamp(-0.5, 0.75)": {p: (["1", "0", "0", "0"], "1 on the closed range, as in PyTorch") for p in ("-0.5", "0.75")},
    "i0e": {"0": (["0", "0.5", "0", "0.375"], SIGN)},
    "i1e": {"0": (["0.5", "0", "0.375", "0"], SIGN)},
    "multigammaln(x, 2)": {"0.5": (["=", "=", "NaN", "="], "as `lgamma` at 0")},
    "norm([x, 3], 0.5)": {"0": ("0", ELEMENT)},
    "norm([x, 3], 1)": {"0": ("0", SIGN)},
    "norm([x, 3], 1.5)": {"0": ("0", ELEMENT)},
    "norm([x, 3], 3)": {"0": (["=", "=", "0", "="], SIGN)},
    "norm([x, 3], -1)": {"0": ("0", "0 at a norm of 0")},
    "norm([x, 0], 2)": {"0": ("0", KINK)},
    "norm([x, 0], 3)": {"0": ("0", KINK)},
    "norm([x, 3], inf)": {"3": (["0.5", "0", "0", "0"], TIE)},
    "cdist([x], [0], 0.5)": {"0": ("0", KINK)},
    "pdist([x, 3], [0, 0], 0.5)": {"0": ("0", ELEMENT)},
    "pairwise_distance([x, 3], [0, 0], 0.5)": {"0": ("0", ELEMENT)},
    "lp_pool1d([x, 3], 0.5)": {"0": ("0", "as `norm`; PyTorch has ∞")},
    "lp_pool1d([x, 0], 2)": {"0": ("0", "0 at the kink; PyTorch has NaN")},
    "std([x, 2])": {"2": ("0", KINK)},
    "nanstd([x, 2, nan])": {"2": ("0", KINK)},
    "cbrt": {"0": (">", "the limit from the right"), "-0": ("<", "the limit from the left")},
    "ptp([x, 2])": {"2": ("0", TIE)},
    "nanmax([x, 2, nan])": {"2": (["0.5", "0", "0", "0"], TIE)},
    "nanmax([x, nan])": {"-inf": (["1", "0", "0", "0"], SELECTED)},
    "nanmin([x, 2, nan])": {"2": (["0.5", "0", "0", "0"], TIE)},
    "masked_max([x, 2])": {"2": (["0.5", "0", "0", "0"], TIE)},
    "masked_max([x])": {"-inf": (["1", "0", "0", "0"], SELECTED)},
    "dist([x, 3], [0, 0], 0.5)": {"0": ("0", ELEMENT)},
    "dist([x], [0], 2)": {"0": ("0", KINK)},
    "cdist([x, 3], [0, 0], inf)": {"3": (["0.5", "0", "0", "0"], TIE)},
    "interp([0, 1, 3], [5, 7, 3])": {
        "0": (">", "the slope of the segment that begins at the point"),
        "1": (">", "the slope of the segment that begins at the point"),
        "3": ("<", "the slope of the last segment"),
    },
    "masked_std([x, 2])": {"2": ("0", KINK)},
    "max([x, 2])": {"2": (["0.5", "0", "0", "0"], TIE)},
    "min([x, 2])": {"2": (["0.5", "0", "0", "0"], TIE)},
    "rem": {"4, 2": ([["1", "-2"]], REMAINDER)},
    "fmod": {"4, 2": ([["1", "-2"]], REMAINDER)},
    "pow": {
        "0, 0": ([], POWER),
        "0, 1": ([["1", "0"], ["0", "1", "0"]], POWER),
        "0, 2": ([["0", "0"], ["2", "0", "0"], ["0", "3", "0", "0"], ["0", "0", "2", "0", "0"]], POWER),
        "0, 3": ([["0", "0"], ["0", "0", "0"], ["6", "0", "0", "0"], ["0", "11", "0", "0", "0"]], POWER),
    },
    "maximum": {"1, 1": ([["0.5", "0.5"]], TIE)},
    "minimum": {"1, 1": ([["0.5", "0.5"]], TIE)},
    "fmax": {"1, 1": ([["0.5", "0.5"]], TIE)},
    "fmin": {"1, 1": ([["0.5", "0.5"]], TIE)},
    "atan2": {"0, 0": ([], "0 at the origin; PyTorch has NaN")},
    "hypot": {"0, 0": ([], "0 at the origin; PyTorch has NaN")},
    "copysign": {"1, 0": ([["1", "0"]], "the limit from the right, as in PyTorch"), "0, 1": ([["0", "0"]], SIGN)},
    "heaviside": {"0, 3": ([["0", "1"]], "the function of b at a = 0; PyTorch has no derivative")},
    "logaddexp": {p: ([["0.5", "0.5"]], INFINITE) for p in ("-inf, -inf", "inf, inf")},
    "logaddexp2": {"-inf, -inf": ([["0.5", "0.5"]], INFINITE)},
    "xlogy": {"0, 0": ([], "0 as along a = 0; PyTorch has NaN by b")},
    "xlog1py": {"0, -1": ([], "0 as along a = 0; PyTorch has NaN by b")},
}


def convention(operation, point, order, j, operands):
    """Returns the value of a convention, or `=`, and the reason."""
    values, reason = CONVENTIONS.get(operation, {}).get(point, ("=", ""))
    if isinstance(values, str):
        return values, reason
    if operands == 1:
        return values[order - 1], reason
    return (values[order - 1][j] if order <= len(values) else "0"), reason


def text(v):
    """Writes a number with ten digits."""
    if isinstance(v, str):
        return v
    if mp.isnan(v):
        return "NaN"
    if abs(v) < 1e-300:
        return "0"
    if mp.isinf(v) or abs(v) > mp.mpf(1.7e308):
        return "∞" if v > 0 else "-∞"
    if abs(v - mp.nint(v)) < 1e-14 * abs(v) and abs(v) < 1e9:
        return str(int(mp.nint(v)))
    return mp.nstr(v, 10, min_fixed=-4, max_fixed=9).replace("e+", "e")


def multi_indices(operands, order):
    return [(order,)] if operands == 1 else [(order - j, j) for j in range(order + 1)]



def row(operation, f, point, operands):
    """Returns a line of the table."""
    at = [mp.mpf(p) for p in point.split(", ")]
    cells = []
    for order in range(1, ORDERS + 1):
        cell = []
        for j, index in enumerate(multi_indices(operands, order)):
            value, reason = convention(operation, point, order, j, operands)
            if value == "=":
                value = limit(f, at, index)
            elif value in "<>":
                value = one_sided(f, at, [-1 if value == "<" else 1], index)
            assert value is not None, f"{operation} at {point}: the limits of order {index} differ; state a convention"
            cell.append(text(value))
        cells.append(", ".join(cell))
    return f"| `{operation}` | {point.replace('inf', '∞')} | " + " | ".join(cells) + f" | {reason} |"


def table(operations, operands):
    return [row(name, real(f), point, operands) for name, (f, points) in operations.items() for point in points]


PAGE = """# Derivatives at special points

The derivatives of orders 1 to 4 at zeros, ties, bounds, poles and the ends of the range. The test
`table::points` computes them in eager mode, in `f64` and `f32`, and compares them with this page. It runs `gradcheck`
and `gradgradcheck` at the points that are neither kinks nor jumps, and fails for an elementwise operation without a
row. The page is written by [points.py](../crates/pellucid-tensor/tests/suite/table/points.py), which differentiates
the functions in 300 digits.

A value is the limit of the derivative at the point, from the inside of the domain. Where the limits from both sides
differ, the last column states the convention:

- The derivative is PyTorch's where PyTorch has one. A tie shares the gradient evenly, and sign(0) is 0.
- Where PyTorch has NaN at the minimum or at the centre of symmetry of a function, the derivative is 0.
- At a pole the derivative is infinite. A gradient of 0 that arrives at a pole gives NaN, as in PyTorch: select the
  operand before the operation, not its result.
- The derivatives of `tanh` and `sigmoid` are computed from the result, as 1 − y² and y·(1 − y), as in PyTorch. They are
  0 where y rounds to ±1: in `f32` for `tanh` from |x| = 10 and for `sigmoid` from x = 17.

Between these points, the test `table::between_points` compares the derivatives of activations, `log_ndtr`, `erfcx` and
inverse functions with [values of mpmath](../crates/pellucid-tensor/tests/suite/table/between_points.py). In `f32`,
orders 1 to 4 keep three digits, except near a zero of the derivative itself. The scaled Bessel functions `i0e`,
`i1e`, `k0e` and `k1e` lose digits with each order, since their derivatives are differences: in `f32`, order 4 is off by
1 to 3 % from x = 5 to 30.

## Functions of one variable

Numbers in the name are parameters, in the order of the call. `[x, 3]` is a vector; its result is one element.

| operation | x | order 1 | order 2 | order 3 | order 4 | convention |
| --- | --- | --- | --- | --- | --- | --- |
{unary}

## Functions of two variables

The derivatives of order n are ∂ⁿ/∂aⁿ, ∂ⁿ/∂aⁿ⁻¹∂b, .., ∂ⁿ/∂bⁿ.

| operation | a, b | order 1 | order 2 | order 3 | order 4 | convention |
| --- | --- | --- | --- | --- | --- | --- |
{binary}
"""


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    content = PAGE.replace("{unary}", "\n".join(table(UNARY, 1))).replace("{binary}", "\n".join(table(BINARY, 2)))
    with open(os.path.join(here, "../../../../../docs/special-points.md"), "w") as page:
        page.write(content)


main()
