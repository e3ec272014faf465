//! Inputs of rows: numbers from a range, in every dtype and layout.

use super::super::engine::SplitMix64;
use super::nd::Nd;
use super::row::{Case, Input, Kind};
use pellucid_tensor::{DType, Device, Element, Ellipsis, Result, Scalar, Tensor, bf16, f16, slice};

/// Evaluates a generic expression with `$t` as the Rust type of a dtype.
macro_rules! with_element {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            DType::Bool => {
                type $t = bool;
                $body
            }
            DType::U8 => {
                type $t = u8;
                $body
            }
            DType::I8 => {
                type $t = i8;
                $body
            }
            DType::I16 => {
                type $t = i16;
                $body
            }
            DType::I32 => {
                type $t = i32;
                $body
            }
            DType::I64 => {
                type $t = i64;
                $body
            }
            DType::F16 => {
                type $t = f16;
                $body
            }
            DType::BF16 => {
                type $t = bf16;
                $body
            }
            DType::F32 => {
                type $t = f32;
                $body
            }
            DType::F64 => {
                type $t = f64;
                $body
            }
        }
    };
}

/// Converts a number to `dtype`: floats are rounded, integers truncated and wrapped, booleans are `value != 0`.
pub fn round(value: f64, dtype: DType) -> f64 {
    with_element!(dtype, T => T::from_scalar(Scalar::Float(value)).to_scalar().to_f64())
}

/// Returns a tensor of these numbers, converted on the host.
pub fn tensor(values: &Nd, dtype: DType) -> Tensor {
    with_element!(dtype, T => {
        let data: Vec<T> = values.data.iter().map(|&v| T::from_scalar(Scalar::Float(v))).collect();
        Tensor::new(data, &values.shape)
    })
}

/// Returns the elements of a tensor, widened on the host.
pub fn values(tensor: &Tensor) -> Vec<f64> {
    let bytes = tensor.to_bytes();
    with_element!(tensor.dtype(), T => T::from_bytes(&bytes).into_iter().map(|v| v.to_scalar().to_f64()).collect())
}

/// Returns the distance between 1 and the next larger number.
pub fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        DType::F32 => 2f64.powi(-23),
        _ => 2f64.powi(-52),
    }
}

/// A stream of numbers in [0, 1) that is seeded by a name.
pub struct Stream(SplitMix64);

impl Stream {
    pub fn new(name: &str) -> Stream {
        let hash = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
        Stream(SplitMix64::new(name.bytes().fold(0xcbf2_9ce4_8422_2325, hash)))
    }

    pub fn next(&mut self) -> f64 {
        (self.0.bits() >> 11) as f64 * 2f64.powi(-53)
    }
}

/// Draws numbers for an input, rounded to `dtype`.
pub fn sample(input: &Input, dtype: DType, stream: &mut Stream) -> Nd {
    let mut next = || stream.next();
    let mut value = || match &input.kind {
        Kind::Index { len } => (next() * 2.0 * *len as f64).floor() - *len as f64,
        Kind::Class { len } => (next() * *len as f64).floor(),
        Kind::Mask => f64::from(next() < 0.5),
        Kind::Number { range, away } => loop {
            let x = range.start() + next() * (range.end() - range.start());
            let near = away.iter().any(|a| (x - a).abs() < 0.05);
            if near {
                continue;
            }
            break match dtype {
                d if d.is_float() => round(x, d),
                DType::Bool => f64::from(x > 0.5 * (range.start() + range.end())),
                // Some integers beyond the range: integers inside it would be almost constant.
                DType::U8 => (3.0 * x).round().abs(),
                _ => (3.0 * x).round(),
            };
        },
    };
    Nd::from_fn(&input.shape, |_| value())
}

/// Returns the dtype of the tensor of an input for a case whose numbers have dtype `dtype`.
pub fn dtype_of(input: &Input, dtype: DType) -> DType {
    match input.kind {
        Kind::Number { .. } => dtype,
        Kind::Index { .. } | Kind::Class { .. } => DType::I64,
        Kind::Mask => DType::Bool,
    }
}

/// Draws numbers for every input of a case and creates their tensors. The i-th number input has the i-th of `dtypes`;
/// later inputs have the last one.
pub fn operands(name: &str, case: &Case, dtypes: &[DType]) -> (Vec<Nd>, Vec<Tensor>) {
    let mut stream = Stream::new(&format!("{name} {}", case.label));
    let mut numbers = 0;
    let both = case.inputs.iter().map(|input| {
        let number = dtypes[numbers.min(dtypes.len() - 1)];
        numbers += usize::from(input.is_number());
        let dtype = dtype_of(input, number);
        let values = sample(input, dtype, &mut stream);
        let tensor = tensor(&values, dtype);
        (values, tensor)
    });
    both.unzip()
}

/// Creates operands as [`operands`] does, on `device`.
pub fn operands_on(device: Device, name: &str, case: &Case, dtypes: &[DType]) -> Result<(Vec<Nd>, Vec<Tensor>)> {
    let (values, tensors) = operands(name, case, dtypes);
    Ok((values, tensors.iter().map(|t| t.try_to(device)).collect::<Result<_>>()?))
}

/// A memory layout of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Layout {
    /// Column-major.
    ColumnMajor,
    /// Every axis reversed.
    Flipped,
    /// Every third element of the last axis, with unused elements between them.
    Strided,
    /// Row-major with an offset.
    Offset,
}

pub const LAYOUTS: [Layout; 4] = [Layout::ColumnMajor, Layout::Flipped, Layout::Strided, Layout::Offset];

/// Returns a tensor with the same elements in another layout.
pub fn with_layout(x: &Tensor, layout: Layout) -> Tensor {
    let result = match layout {
        Layout::ColumnMajor => x.t().copy().t(),
        Layout::Flipped => x.flip(..).copy().flip(..),
        Layout::Strided if x.rank() > 0 => {
            let mut shape = x.shape().clone();
            shape[x.rank() - 1] *= 3;
            let wide = Tensor::full(shape, 77, x.dtype()).to(x.device());
            let gaps = || (Ellipsis, slice(1, None, 3));
            wide.set(gaps(), x);
            wide.i(gaps())
        }
        Layout::Strided | Layout::Offset => {
            let long = Tensor::full([x.size() + 5], 77, x.dtype()).to(x.device());
            long.set(5.., x.reshape([x.size()]));
            long.i(5..).reshape(x.shape())
        }
    };
    assert_eq!(result.to_bytes(), x.to_bytes(), "{layout:?} of {x:?}");
    result
}

/// Broadcasts the first slice along `axis` to the full shape without a copy.
pub fn stretched(x: &Tensor, axis: usize) -> Tensor {
    if axis >= x.rank() || x.shape()[axis] == 0 {
        return x.clone();
    }
    x.narrow(axis as isize, 0, 1).broadcast_to(x.shape())
}
