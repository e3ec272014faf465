//! Elementwise operations.

use crate::sweep::OperandValues::{self, Integers, Mask, Normal, Positive, Uniform, Unit};
use crate::sweep::{NamedCase, RunCase, SweepRow};
use pellucid::{DType, Tensor, ops};

const NUMBERS: &[DType] = &[DType::F32, DType::F64, DType::BF16, DType::I64];
const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::BF16];

/// Defines rows of unary functions with PyTorch's names.
macro_rules! unary {
    ($values:expr, $module:literal: $($name:ident)+) => {
        [$((stringify!($name), concat!($module, stringify!($name), "(a)"), $values, (|t, _| t[0].$name()) as RunCase)),+]
    };
}

/// Defines rows of binary functions with PyTorch's names.
macro_rules! binary {
    ($values:expr, $module:literal: $($name:ident)+) => {
        [$((stringify!($name), concat!($module, stringify!($name), "(a, b)"), $values, (|t, _| t[0].$name(&t[1])) as RunCase)),+]
    };
}

pub(super) fn rows() -> Vec<SweepRow> {
    let mut rows = Vec::new();
    rows.extend(one_operand().into_iter().map(|(op, torch, values, run)| {
        let dtypes =
            if ["abs", "exp", "tanh", "sqrt", "sigmoid", "relu", "gelu", "sin"].contains(&op) { FLOATS } else { &[] };
        SweepRow::new(op, torch, run).of([values]).layouts().dtypes(dtypes)
    }));
    rows.extend(two_operands().into_iter().map(|(op, torch, values, run)| {
        let dtypes = match op {
            "add" | "mul" | "maximum" | "lt" | "eq" => NUMBERS,
            "sub" | "div" | "pow" => FLOATS,
            _ => &[],
        };
        let row = SweepRow::new(op, torch, run).of([values; 2]).layouts().dtypes(dtypes);
        match op {
            "eq" | "lt" | "igamma" | "igammac" | "zeta" => row.forward_only(),
            _ => row,
        }
    }));
    rows.extend(predicates());
    rows.extend(with_settings());
    rows.extend(integers());
    rows
}

fn one_operand() -> Vec<NamedCase> {
    let groups: [&[NamedCase]; 10] = [
        &unary!(Normal, "torch.": abs neg exp exp2 expm1 sin cos tan atan sinh cosh tanh asinh sinc erf erfc square
            ceil floor round trunc frac sign sigmoid deg2rad rad2deg i0 angle),
        &unary!(Positive, "torch.": log log2 log10 log1p sqrt rsqrt reciprocal lgamma digamma),
        &unary!(Unit, "torch.": asin acos atanh erfinv logit),
        &unary!(Uniform(1.1, 3.0), "torch.": acosh),
        &unary!(Positive, "torch.special.": entr i0e i1 i1e bessel_j0 bessel_j1 bessel_y0 bessel_y1),
        &unary!(Normal, "torch.special.": erfcx ndtr log_ndtr airy_ai spherical_bessel_j0),
        &unary!(Unit, "torch.special.": ndtri),
        &unary!(Normal, "F.": relu relu6 selu gelu silu mish softplus logsigmoid softsign hardsigmoid hardswish
            tanhshrink),
        &[
            ("ln", "torch.log(a)", Positive, |t, _| t[0].ln()),
            ("cbrt", "", Normal, |t, _| t[0].cbrt()),
            ("cube", "a ** 3", Normal, |t, _| t[0].cube()),
            ("k0", "torch.special.modified_bessel_k0(a)", Positive, |t, _| t[0].k0()),
            ("k0e", "torch.special.scaled_modified_bessel_k0(a)", Positive, |t, _| t[0].k0e()),
            ("k1", "torch.special.modified_bessel_k1(a)", Positive, |t, _| t[0].k1()),
            ("k1e", "torch.special.scaled_modified_bessel_k1(a)", Positive, |t, _| t[0].k1e()),
            ("gelu_tanh", "F.gelu(a, approximate='tanh')", Normal, |t, _| t[0].gelu_tanh()),
        ],
        &[
            ("leaky_relu", "F.leaky_relu(a, 0.1)", Normal, |t, _| t[0].leaky_relu(0.1)),
            ("elu", "F.elu(a, 1.0)", Normal, |t, _| t[0].elu(1.0)),
            ("celu", "F.celu(a, 1.5)", Normal, |t, _| t[0].celu(1.5)),
            ("softplus_beta", "F.softplus(a, 2.0)", Normal, |t, _| t[0].softplus_beta(2.0, 20.0)),
            ("hardshrink", "F.hardshrink(a, 0.5)", Normal, |t, _| t[0].hardshrink(0.5)),
            ("softshrink", "F.softshrink(a, 0.5)", Normal, |t, _| t[0].softshrink(0.5)),
            ("hardtanh", "F.hardtanh(a)", Normal, |t, _| t[0].hardtanh(-1.0, 1.0)),
            ("threshold", "F.threshold(a, 0.1, 20.0)", Normal, |t, _| t[0].threshold(0.1, 20.0)),
            ("clamp", "torch.clamp(a, -0.5, 0.5)", Normal, |t, _| t[0].clamp(-0.5, 0.5)),
            ("pow", "a ** 2.0", Normal, |t, _| t[0].pow(2.0)),
            ("pow", "a ** 0.7", Positive, |t, _| t[0].pow(0.7)),
            ("mul", "a * 2.0", Normal, |t, _| &t[0] * 2.0),
            ("rem", "a % 0.7", Normal, |t, _| t[0].rem(0.7)),
            ("around", "torch.round(a, decimals=2)", Normal, |t, _| t[0].around(2)),
            ("nan_to_num", "torch.nan_to_num(a)", Normal, |t, _| t[0].nan_to_num(0.0, f32::MAX, f32::MIN)),
            ("logit_with", "torch.logit(a, 1e-6)", Unit, |t, _| t[0].logit_with(1e-6)),
            ("multigammaln", "torch.special.multigammaln(a, 2)", Uniform(2.0, 5.0), |t, _| t[0].multigammaln(2)),
            ("polygamma", "torch.polygamma(2, a)", Positive, |t, _| t[0].polygamma(2)),
        ],
    ];
    groups.concat()
}

fn two_operands() -> Vec<NamedCase> {
    let groups: [&[NamedCase]; 4] = [
        &binary!(Normal, "torch.": add sub mul maximum minimum fmax fmin atan2 copysign hypot logaddexp logaddexp2 fmod),
        &binary!(Positive, "torch.": div pow xlogy ldexp igamma igammac),
        &[
            ("floor_div", "torch.floor_divide(a, b)", Positive, |t, _| t[0].floor_div(&t[1])),
            ("rem", "torch.remainder(a, b)", Positive, |t, _| t[0].rem(&t[1])),
            ("xlog1py", "torch.special.xlog1py(a, b)", Positive, |t, _| t[0].xlog1py(&t[1])),
            ("zeta", "torch.special.zeta(a + 1, b)", Positive, |t, _| (&t[0] + 1.0).zeta(&t[1])),
        ],
        &[
            ("addcmul", "torch.addcmul(a, a, b, value=0.5)", Normal, |t, _| t[0].addcmul(&t[0], &t[1], 0.5)),
            ("addcdiv", "torch.addcdiv(a, a, b, value=0.5)", Positive, |t, _| t[0].addcdiv(&t[0], &t[1], 0.5)),
            ("lerp", "torch.lerp(a, b, 0.3)", Normal, |t, _| t[0].lerp(&t[1], &Tensor::scalar(0.3, t[0].dtype()))),
            ("eq", "torch.eq(a, b)", Normal, |t, _| t[0].eq(&t[1])),
            ("lt", "torch.lt(a, b)", Normal, |t, _| t[0].lt(&t[1])),
        ],
    ];
    groups.concat()
}

/// Returns the rows of functions without a gradient.
fn predicates() -> Vec<SweepRow> {
    let one = unary!(Normal, "torch.": isnan isfinite isinf isposinf isneginf signbit logical_not);
    let two = binary!(Normal, "torch.": ne le gt ge logical_and logical_or logical_xor heaviside nextafter);
    let one = one.into_iter().map(|(op, torch, values, run)| SweepRow::new(op, torch, run).of([values]).forward_only());
    let two =
        two.into_iter().map(|(op, torch, values, run)| SweepRow::new(op, torch, run).of([values; 2]).forward_only());
    one.chain(two).collect()
}

fn with_settings() -> Vec<SweepRow> {
    let betas = [Positive, Positive, Unit];
    vec![
        SweepRow::new("betainc", "", |t, _| t[0].betainc(&t[1], &t[2])).of(betas),
        SweepRow::new("betaincc", "", |t, _| t[0].betaincc(&t[1], &t[2])).of(betas),
        SweepRow::new("where_", "torch.where(c, a, b)", |t, _| {
            ops::where_(&t[2], &t[0], &t[1]).expect("the shapes must agree")
        })
        .of([Normal, Normal, Mask])
        .layouts(),
        SweepRow::new("isclose", "torch.isclose(a, b)", |t, _| t[0].isclose(&t[1], 1e-5, 1e-8, false))
            .of([Normal; 2])
            .forward_only(),
        SweepRow::new("divmod", "torch.floor_divide(a, b) + torch.remainder(a, b)", |t, _| {
            let (quotient, rest) = t[0].divmod(&t[1]);
            quotient + rest
        })
        .of([Positive; 2])
        .forward_only(),
        SweepRow::new("modf", "torch.trunc(a) + torch.frac(a)", |t, _| {
            let (fraction, integer) = t[0].modf();
            integer + fraction
        })
        .of([Normal])
        .forward_only(),
        SweepRow::new("frexp", "torch.frexp(a)[0]", |t, _| t[0].frexp().0).of([Normal]).forward_only(),
        SweepRow::new("map", "torch.tanh(a) * a + 0.5", |t, _| {
            ops::map(pellucid::formula!(|x; bias| x.tanh() * x + bias), &[&t[0]], &[0.5.into()])
                .expect("the formula must have one input")
        })
        .of([Normal]),
        SweepRow::new("map_all", "torch.sin(a) + torch.cos(a)", |t, _| {
            let parts = ops::map_all(pellucid::formula!(|x| (x.sin(), x.cos())), &[&t[0]], &[])
                .expect("the formula must have one input");
            &parts[0] + &parts[1]
        })
        .of([Normal]),
        SweepRow::new("to_dtype", "a.double()", |t, _| t[0].to_dtype(DType::F64)).of([Normal]).layouts(),
        SweepRow::new("to_dtype", "a.bfloat16()", |t, _| t[0].to_dtype(DType::BF16)).of([Normal]),
        SweepRow::new("to_dtype", "a.long()", |t, _| t[0].to_dtype(DType::I64)).of([Normal]).forward_only(),
        SweepRow::new("copy", "a.clone()", |t, _| t[0].copy()).of([Normal]).layouts().dtypes(NUMBERS),
        SweepRow::new("contiguous", "a.contiguous()", |t, _| t[0].contiguous()).of([Normal]).layouts(),
        SweepRow::new("copy_", "a.copy_(b)", |t, _| {
            t[0].copy_(&t[1]);
            t[0].clone()
        })
        .of([Normal; 2])
        .forward_only(),
        SweepRow::new("update", "a.add_(b)", |t, _| {
            ops::update(pellucid::formula!(|x, y| x + y), &[&t[0]], &[&t[1]], &[]).expect("the shapes must agree");
            t[0].clone()
        })
        .of([Normal; 2])
        .forward_only(),
        SweepRow::new("update_many", "(a.mul_(0.9).add_(b), a)[1]", |t, _| {
            let step = pellucid::formula!(|x, y| x * 0.9 + y);
            ops::update_many(step, 1, &[&t[0], &t[1]], &[]).expect("the shapes must agree");
            t[0].clone()
        })
        .of([Normal; 2])
        .forward_only(),
    ]
}

fn integers() -> Vec<SweepRow> {
    let (small, bits) = (Integers(1, 100), Integers(0, 1 << 20));
    let named: [(&str, &str, OperandValues, RunCase); 9] = [
        ("bitwise_and", "a & b", bits, |t, _| &t[0] & &t[1]),
        ("bitwise_or", "a | b", bits, |t, _| &t[0] | &t[1]),
        ("bitwise_xor", "a ^ b", bits, |t, _| &t[0] ^ &t[1]),
        ("shift_left", "a << (b % 8)", bits, |t, _| t[0].shift_left(t[1].rem(8))),
        ("shift_right", "a >> (b % 8)", bits, |t, _| t[0].shift_right(t[1].rem(8))),
        ("gcd", "torch.gcd(a, b)", small, |t, _| t[0].gcd(&t[1])),
        ("lcm", "torch.lcm(a, b)", small, |t, _| t[0].lcm(&t[1])),
        ("rem", "a % b", small, |t, _| t[0].rem(&t[1])),
        ("floor_div", "a // b", small, |t, _| t[0].floor_div(&t[1])),
    ];
    let mut rows: Vec<SweepRow> =
        named.map(|(op, torch, values, run)| SweepRow::new(op, torch, run).of([values; 2]).forward_only()).into();
    rows.push(SweepRow::new("bitwise_not", "~a", |t, _| !&t[0]).of([bits]).forward_only());
    rows
}
