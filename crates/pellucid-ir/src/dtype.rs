//! Data types of tensor elements, and type promotion.
//!
//! # Promotion
//!
//! If the operands of an operation have different dtypes, both are first converted to their *join*:
//!
//! |        | bool | u8  | i8  | i16 | i32 | i64 | f16 | bf16 | f32 | f64 |
//! | ------ | ---- | --- | --- | --- | --- | --- | --- | ---- | --- | --- |
//! | bool   | bool | u8  | i8  | i16 | i32 | i64 | f16 | bf16 | f32 | f64 |
//! | u8     |      | u8  | i16 | i16 | i32 | i64 | f16 | bf16 | f32 | f64 |
//! | i8     |      |     | i8  | i16 | i32 | i64 | f16 | bf16 | f32 | f64 |
//! | i16    |      |     |     | i16 | i32 | i64 | f16 | bf16 | f32 | f64 |
//! | i32    |      |     |     |     | i32 | i64 | f16 | bf16 | f32 | f64 |
//! | i64    |      |     |     |     |     | i64 | f16 | bf16 | f32 | f64 |
//! | f16    |      |     |     |     |     |     | f16 | f32  | f32 | f64 |
//! | bf16   |      |     |     |     |     |     |     | bf16 | f32 | f64 |
//! | f32    |      |     |     |     |     |     |     |      | f32 | f64 |
//! | f64    |      |     |     |     |     |     |     |      |     | f64 |
//!
//! The join is commutative. Two integer or two float dtypes are promoted to the smallest dtype that represents both; an
//! integer and a float to the float's dtype, as in PyTorch. `bool` is promoted to the other dtype. **A scalar changes
//! the dtype of a tensor only if its kind is higher** (booleans, then integers, then floats): `x * 2.5` keeps the dtype
//! of a float tensor and converts an integer or boolean tensor to the default float `f32`. An integer scalar keeps the
//! dtype of an integer tensor and converts a boolean tensor to `i64`.

use std::fmt;
use std::hash::{Hash, Hasher};

/// The type of one element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum DType {
    /// Boolean in one byte: always 0 or 1.
    #[doc(alias = "bool_")]
    Bool,
    /// Unsigned 8-bit integer.
    #[doc(alias("uint8", "byte"))]
    U8,
    /// Signed 8-bit integer.
    #[doc(alias = "int8")]
    I8,
    /// Signed 16-bit integer.
    #[doc(alias("int16", "short"))]
    I16,
    /// Signed 32-bit integer.
    #[doc(alias("int32", "int"))]
    I32,
    /// Signed 64-bit integer: the dtype of indices.
    #[doc(alias("int64", "long"))]
    I64,
    /// IEEE 754 half precision: 5 exponent bits and 10 fraction bits.
    #[doc(alias("float16", "half"))]
    F16,
    /// Brain float: the upper half of an `f32`, with 8 exponent bits and 7 fraction bits.
    #[doc(alias = "bfloat16")]
    BF16,
    /// IEEE 754 single precision: the default float.
    #[doc(alias("float32", "float"))]
    F32,
    /// IEEE 754 double precision.
    #[doc(alias("float64", "double"))]
    F64,
}

/// The type in which a formula is evaluated: each dtype has exactly one (see [`DType::compute`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Compute {
    /// Booleans, one byte each, 0 or 1.
    Mask,
    /// 32-bit integers, wrapping.
    I32,
    /// 64-bit integers, wrapping.
    I64,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
}

impl Compute {
    /// Returns the size of one value in bytes.
    #[inline]
    pub const fn size(self) -> usize {
        match self {
            Compute::Mask => 1,
            Compute::I32 | Compute::F32 => 4,
            Compute::I64 | Compute::F64 => 8,
        }
    }

    /// Returns true for `F32` and `F64`.
    #[inline]
    pub const fn is_float(self) -> bool {
        matches!(self, Compute::F32 | Compute::F64)
    }

    /// Returns the dtype that stores values of this type without conversion.
    pub const fn storage(self) -> DType {
        match self {
            Compute::Mask => DType::Bool,
            Compute::I32 => DType::I32,
            Compute::I64 => DType::I64,
            Compute::F32 => DType::F32,
            Compute::F64 => DType::F64,
        }
    }
}

impl DType {
    /// Every dtype, in the order of the promotion table.
    pub const ALL: [DType; 10] = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];

    /// Returns the size of one element in bytes.
    #[inline]
    pub const fn size(self) -> usize {
        match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    /// Returns true for `f16`, `bf16`, `f32` and `f64`: the dtypes that can have a gradient.
    #[inline]
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// Returns true for the integer dtypes, which do not include `bool`.
    #[inline]
    pub const fn is_int(self) -> bool {
        matches!(self, DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64)
    }

    /// Returns the type in which formulas over this dtype are evaluated. `f16` and `bf16` are loaded as `f32`; small
    /// integers are loaded as `i32` and wrap when they are stored.
    #[inline]
    pub const fn compute(self) -> Compute {
        match self {
            DType::Bool => Compute::Mask,
            DType::U8 | DType::I8 | DType::I16 | DType::I32 => Compute::I32,
            DType::I64 => Compute::I64,
            DType::F16 | DType::BF16 | DType::F32 => Compute::F32,
            DType::F64 => Compute::F64,
        }
    }

    /// Returns the join of two dtypes by the promotion table.
    #[inline]
    pub const fn promote(self, other: DType) -> DType {
        use DType::*;
        let (low, high) = if (self as u8) <= (other as u8) { (self, other) } else { (other, self) };
        match (low, high) {
            (U8, I8) => I16,
            (F16, BF16) => F32,
            _ => high,
        }
    }

    /// Returns the smallest and the largest value of an integer dtype; `None` for `bool` and floats.
    fn integer_range(self) -> Option<(i64, i64)> {
        Some(match self {
            DType::U8 => (0, i64::from(u8::MAX)),
            DType::I8 => (i64::from(i8::MIN), i64::from(i8::MAX)),
            DType::I16 => (i64::from(i16::MIN), i64::from(i16::MAX)),
            DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
            DType::I64 => (i64::MIN, i64::MAX),
            DType::Bool | DType::F16 | DType::BF16 | DType::F32 | DType::F64 => return None,
        })
    }

    /// Returns the smallest and the largest finite value: `false` and `true`, integers, or floats.
    ///
    /// ```
    /// # extern crate pellucid_ir as pellucid;
    /// use pellucid::{DType, Scalar};
    /// assert_eq!(DType::U8.range(), (Scalar::Int(0), Scalar::Int(255)));
    /// assert_eq!(DType::F16.range().1, Scalar::Float(65504.0));
    /// ```
    #[doc(alias("finfo", "iinfo"))]
    pub fn range(self) -> (Scalar, Scalar) {
        let floats = |largest: f64| (Scalar::Float(-largest), Scalar::Float(largest));
        match self {
            DType::Bool => (Scalar::Bool(false), Scalar::Bool(true)),
            DType::F16 => floats(65504.0),
            DType::BF16 => floats((2.0 - 2f64.powi(-7)) * 2f64.powi(127)),
            DType::F32 => floats(f64::from(f32::MAX)),
            DType::F64 => floats(f64::MAX),
            DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => {
                let (least, largest) = self.integer_range().expect("the dtype must be an integer dtype");
                (Scalar::Int(least), Scalar::Int(largest))
            }
        }
    }

    /// Returns ε, the distance from 1 to the next larger value of a float dtype; `None` for integers and `bool`.
    ///
    /// ```
    /// # extern crate pellucid_ir as pellucid;
    /// use pellucid::DType;
    /// assert_eq!(DType::F32.epsilon(), Some(f64::from(f32::EPSILON)));
    /// ```
    #[doc(alias = "eps")]
    pub fn epsilon(self) -> Option<f64> {
        match self {
            DType::F16 => Some(2f64.powi(-10)),
            DType::BF16 => Some(2f64.powi(-7)),
            DType::F32 => Some(f64::from(f32::EPSILON)),
            DType::F64 => Some(f64::EPSILON),
            _ => None,
        }
    }

    /// Returns the smallest positive normal value of a float dtype; `None` for integers and `bool`.
    ///
    /// ```
    /// # extern crate pellucid_ir as pellucid;
    /// use pellucid::DType;
    /// assert_eq!(DType::F64.min_positive(), Some(f64::MIN_POSITIVE));
    /// ```
    #[doc(alias("tiny", "smallest_normal"))]
    pub fn min_positive(self) -> Option<f64> {
        match self {
            DType::F16 => Some(2f64.powi(-14)),
            DType::BF16 | DType::F32 => Some(f64::from(f32::MIN_POSITIVE)),
            DType::F64 => Some(f64::MIN_POSITIVE),
            _ => None,
        }
    }

    /// Clamps `value` to the range of an integer dtype; returns it unchanged for `bool` and floats.
    pub fn saturate(self, value: i64) -> i64 {
        self.integer_range().map_or(value, |(low, high)| value.clamp(low, high))
    }

    /// Returns true if this dtype accepts `value`.
    ///
    /// An integer dtype accepts only the integers in its range. A float dtype accepts, and may round, every number;
    /// `bool` accepts every number and stores whether it is nonzero.
    pub fn represents(self, value: Scalar) -> bool {
        let Some((low, high)) = self.integer_range() else { return true };
        match value {
            Scalar::Bool(_) => true,
            Scalar::Int(x) => (low..=high).contains(&x),
            // i64::MIN as an `f64` is exactly −2⁶³, the smallest value of the range. i64::MAX rounds to 2⁶³, which is
            // outside the range of `i64`.
            Scalar::Float(x) => x.trunc() == x && x >= low as f64 && x < high as f64 + 1.0,
        }
    }

    /// Returns the name that messages and files use: `f32`, `i64`, `bool`, ...
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::U8 => "u8",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that represents the elements of a dtype.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tensor element type",
    note = "elements are `bool`, `u8`, `i8`, `i16`, `i32`, `i64`, `f16`, `bf16`, `f32` or `f64`; convert a `usize` with `as i64`"
)]
pub trait Element: bytemuck::NoUninit + Send + Sync + PartialEq + fmt::Debug + 'static {
    /// The dtype of the type.
    const DTYPE: DType;
    /// Converts a scalar: a float type rounds to nearest, an integer type truncates towards zero and wraps (a float
    /// beyond `i64` first saturates), and a `bool` is true unless `v` is zero.
    fn from_scalar(v: Scalar) -> Self;
    /// Widens the value to a scalar.
    fn to_scalar(self) -> Scalar;
    /// Reads elements of [`Element::DTYPE`] from bytes in native byte order.
    ///
    /// A byte of a `bool` other than 0 reads as `true`; a trailing partial element is ignored.
    fn from_bytes(bytes: &[u8]) -> Vec<Self>;
}

/// A Rust type in which the host can read elements: an [`Element`], or an integer type without a dtype, such as
/// `usize`.
pub trait ReadElement: Copy + fmt::Debug + 'static {
    /// The element type in which the values are read before they are converted.
    type Read: Element;
    /// Converts the values.
    ///
    /// # Errors
    /// The index and the value of the first element that the type cannot represent.
    fn from_read(values: Vec<Self::Read>) -> Result<Vec<Self>, (usize, Self::Read)>;
}

impl<T: Element> ReadElement for T {
    type Read = T;
    #[inline]
    fn from_read(values: Vec<T>) -> Result<Vec<T>, (usize, T)> {
        Ok(values)
    }
}

macro_rules! read_integers {
    ($($t:ty)*) => {$(
        impl ReadElement for $t {
            type Read = i64;
            fn from_read(values: Vec<i64>) -> Result<Vec<$t>, (usize, i64)> {
                values.into_iter().enumerate().map(|(i, value)| value.try_into().map_err(|_| (i, value))).collect()
            }
        }
    )*};
}
read_integers!(usize isize u16 u32 u64);

macro_rules! element {
    ($($t:ty => $d:ident, |$v:ident| $from:expr, |$x:ident| $to:expr, $arm:ident;)*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$d;
            fn from_scalar($v: Scalar) -> Self {
                $from
            }
            fn to_scalar(self) -> Scalar {
                let $x = self;
                Scalar::$arm($to)
            }
            fn from_bytes(bytes: &[u8]) -> Vec<Self> {
                bytes.chunks_exact(size_of::<$t>()).map(bytemuck::pod_read_unaligned).collect()
            }
        }
    )*};
}

element! {
    u8 => U8, |v| v.to_i64() as u8, |x| x as i64, Int;
    i8 => I8, |v| v.to_i64() as i8, |x| x as i64, Int;
    i16 => I16, |v| v.to_i64() as i16, |x| x as i64, Int;
    i32 => I32, |v| v.to_i64() as i32, |x| x as i64, Int;
    i64 => I64, |v| v.to_i64(), |x| x, Int;
    half::f16 => F16, |v| half::f16::from_f64(v.to_f64()), |x| x.to_f64(), Float;
    half::bf16 => BF16, |v| half::bf16::from_f64(v.to_f64()), |x| x.to_f64(), Float;
    f32 => F32, |v| v.to_f64() as f32, |x| x as f64, Float;
    f64 => F64, |v| v.to_f64(), |x| x, Float;
}

impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn from_scalar(v: Scalar) -> Self {
        v.to_f64() != 0.0
    }
    fn to_scalar(self) -> Scalar {
        Scalar::Bool(self)
    }
    fn from_bytes(bytes: &[u8]) -> Vec<Self> {
        bytes.iter().map(|&b| b != 0).collect()
    }
}

/// One number on the host, at full width. It is rounded once, to the compute type of the kernel that reads it.
///
/// Equality compares kernel arguments: floats are compared by their bits, so NaN equals itself and −0 is not 0.
#[derive(Clone, Copy, Debug)]
pub enum Scalar {
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A real number.
    Float(f64),
}

impl Default for Scalar {
    /// The integer 0.
    #[inline]
    fn default() -> Scalar {
        Scalar::Int(0)
    }
}

impl Scalar {
    /// Converts the value to `f64`.
    pub const fn to_f64(self) -> f64 {
        match self {
            Scalar::Bool(b) => b as u8 as f64,
            Scalar::Int(i) => i as f64,
            Scalar::Float(x) => x,
        }
    }

    /// Converts the value to `i64`: floats are truncated towards zero and saturate, NaN is 0.
    pub const fn to_i64(self) -> i64 {
        match self {
            Scalar::Bool(b) => b as i64,
            Scalar::Int(i) => i,
            Scalar::Float(x) => x as i64,
        }
    }

    /// Returns the dtype of the result of an operation on this scalar and a tensor of dtype `tensor`.
    pub const fn promote_into(self, tensor: DType) -> DType {
        match self {
            Scalar::Bool(_) => tensor,
            Scalar::Int(_) if matches!(tensor, DType::Bool) => DType::I64,
            Scalar::Int(_) => tensor,
            Scalar::Float(_) if tensor.is_float() => tensor,
            Scalar::Float(_) => DType::F32,
        }
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Scalar) -> bool {
        match (self, other) {
            (Scalar::Bool(a), Scalar::Bool(b)) => a == b,
            (Scalar::Int(a), Scalar::Int(b)) => a == b,
            (Scalar::Float(a), Scalar::Float(b)) => a.to_bits() == b.to_bits(),
            _ => false,
        }
    }
}

impl Eq for Scalar {}

impl Hash for Scalar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        match self {
            Scalar::Bool(b) => b.hash(state),
            Scalar::Int(i) => i.hash(state),
            Scalar::Float(x) => x.to_bits().hash(state),
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Bool(b) => b.fmt(f),
            Scalar::Int(i) => i.fmt(f),
            Scalar::Float(x) => x.fmt(f),
        }
    }
}

macro_rules! scalar_from {
    ($($t:ty => $arm:ident as $wide:ty),*) => {$(
        impl From<$t> for Scalar {
            fn from(v: $t) -> Scalar {
                Scalar::$arm(<$wide>::from(v))
            }
        }
    )*};
}
scalar_from!(bool => Bool as bool, u8 => Int as i64, i8 => Int as i64, i16 => Int as i64, i32 => Int as i64,
    i64 => Int as i64, f32 => Float as f64, f64 => Float as f64, half::f16 => Float as f64, half::bf16 => Float as f64);

impl From<usize> for Scalar {
    /// Converts a size or a count. It must be less than 2⁶³; larger values wrap.
    fn from(v: usize) -> Scalar {
        Scalar::Int(v as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promotion_is_commutative_idempotent_and_never_loses_kind() {
        for a in DType::ALL {
            assert_eq!(a.promote(a), a);
            for b in DType::ALL {
                let join = a.promote(b);
                assert_eq!(join, b.promote(a));
                assert_eq!(join.is_float(), a.is_float() || b.is_float());
                for c in DType::ALL {
                    assert_eq!(
                        join.promote(c),
                        a.promote(b.promote(c)),
                        "the join of {a}, {b} and {c} must be associative"
                    );
                }
            }
        }
    }

    #[test]
    fn an_integer_dtype_represents_the_integers_of_its_range() {
        let (top, next) = (2f64.powi(63), f64::from_bits(2f64.powi(63).to_bits() - 1));
        for (dtype, value, expected) in [
            (DType::I64, Scalar::Float(2.7), false),
            (DType::I64, Scalar::Float(-3.0), true),
            (DType::I64, Scalar::Float(-0.0), true),
            (DType::I64, Scalar::Float(f64::NAN), false),
            (DType::I64, Scalar::Float(f64::INFINITY), false),
            (DType::I64, Scalar::Float(top), false),
            (DType::I64, Scalar::Float(next), true),
            (DType::I64, Scalar::Float(-top), true),
            (DType::U8, Scalar::Int(255), true),
            (DType::U8, Scalar::Int(256), false),
            (DType::U8, Scalar::Float(255.0), true),
            (DType::U8, Scalar::Float(255.5), false),
            (DType::U8, Scalar::Int(-1), false),
            (DType::I8, Scalar::Float(-128.0), true),
            (DType::I8, Scalar::Float(-129.0), false),
            (DType::I16, Scalar::Bool(true), true),
            (DType::Bool, Scalar::Float(0.5), true),
            (DType::F16, Scalar::Float(1e300), true),
        ] {
            assert_eq!(dtype.represents(value), expected, "the result for {dtype} and {value} is wrong");
        }
    }

    #[test]
    fn a_scalar_never_widens_a_tensor() {
        assert_eq!(Scalar::Float(1e300).promote_into(DType::F16), DType::F16);
        assert_eq!(Scalar::Int(1 << 40).promote_into(DType::I8), DType::I8);
        assert_eq!(Scalar::Float(0.5).promote_into(DType::I64), DType::F32);
        assert_eq!(Scalar::Int(2).promote_into(DType::Bool), DType::I64);
    }
}
