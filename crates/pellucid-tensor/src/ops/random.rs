//! Random tensors, drawn on the device from a counter.

use crate::array::Array;
use crate::device::Device;
use crate::engine;
use crate::ops;
use crate::random::Generator;
use crate::tensor::Tensor;
use pellucid_derive::face;
use pellucid_ir::formula::Formula;
use pellucid_ir::kernel::{self, Distribution, Kernel};
use pellucid_ir::{DType, Error, Result, Shape, formula};
use std::sync::OnceLock;

fn draw(
    op: &'static str,
    shape: Shape,
    dtype: DType,
    distribution: Distribution,
    generator: &Generator,
) -> Result<Tensor> {
    if !dtype.is_float() {
        return Err(Error::dtypes(op, [dtype], "draws floats; randint() draws integers"));
    }
    let out = Array::new(Device::cpu(), dtype, shape)?;
    let state = generator.state();
    engine::submit(&Kernel::Random(kernel::Random { distribution }), &[], &[state.array(), &out])?;
    Ok(Tensor::from(out))
}

/// Uniform on [0, 1), from the thread's generator (see [`manual_seed`](crate::manual_seed)).
///
/// # Errors
/// [`Error::DTypeMismatch`] if `dtype` is not a float.
pub fn rand(shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    rand_with(shape, dtype, &Generator::default())
}

/// Uniform on [0, 1), from this generator.
///
/// # Errors
/// [`Error::DTypeMismatch`] if `dtype` is not a float.
pub fn rand_with(shape: impl Into<Shape>, dtype: DType, generator: &Generator) -> Result<Tensor> {
    draw("rand", shape.into(), dtype, Distribution::Uniform, generator)
}

/// Standard normal, from the thread's generator (see [`manual_seed`](crate::manual_seed)).
///
/// # Errors
/// [`Error::DTypeMismatch`] if `dtype` is not a float.
pub fn randn(shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    randn_with(shape, dtype, &Generator::default())
}

/// Standard normal, from this generator.
///
/// # Errors
/// [`Error::DTypeMismatch`] if `dtype` is not a float.
pub fn randn_with(shape: impl Into<Shape>, dtype: DType, generator: &Generator) -> Result<Tensor> {
    draw("randn", shape.into(), dtype, Distribution::Normal, generator)
}

/// Integers (`i64`) uniform on `low..high`, from the thread's generator.
///
/// # Errors
/// [`Error::InvalidArgument`] for an empty range, or one of more than 2⁵³ values.
pub fn randint(low: i64, high: i64, shape: impl Into<Shape>) -> Result<Tensor> {
    static SCALE: OnceLock<Formula> = OnceLock::new();
    let count = i128::from(high) - i128::from(low);
    if !(1..=1 << 53).contains(&count) {
        return Err(Error::invalid("randint", format!("{low}..{high} must hold between 1 and 2^53 integers")));
    }
    let scale = SCALE.get_or_init(|| formula! { randint(u; count) = (u * count).floor(); }.eternal());
    let u = rand(shape, DType::F64)?;
    let offset = super::formula::map(scale, &[&u], &[(count as f64).into()])?;
    ops::add(&ops::to_dtype(&offset, DType::I64)?, low)
}

/// Dropout (Srivastava et al. 2014): each element is kept with probability 1 − p and divided by it,
/// else 0. The mask is drawn on the device, so a replayed step draws a new one.
///
/// # Errors
/// [`Error::InvalidArgument`] if `p` is not in [0, 1]; [`Error::DTypeMismatch`] for integers.
#[face]
pub fn dropout(x: &Tensor, p: f64) -> Result<Tensor> {
    static DROPOUT: OnceLock<Formula> = OnceLock::new();
    if !(0.0..=1.0).contains(&p) {
        return Err(Error::invalid("dropout", format!("p must be in [0, 1], got {p}")));
    }
    let u = draw("dropout", x.shape().clone(), x.dtype(), Distribution::Uniform, &Generator::default())?;
    let formula =
        DROPOUT.get_or_init(|| formula! { dropout(x, u; p, scale) = u.ge(p).select(x * scale, 0.0); }.eternal());
    // With p = 1 nothing is kept, and the scale is never used.
    let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
    super::formula::map(formula, &[x, &u], &[p.into(), scale.into()])
}
