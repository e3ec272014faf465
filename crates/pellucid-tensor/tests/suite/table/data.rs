//! Inputs for rows: numbers from a range, in every dtype and every layout.

use super::nd::Nd;
use super::row::{Case, Input, Kind};
use pellucid_tensor::{DType, Element, Ellipsis, Scalar, Tensor, bf16, f16, slice};

/// Runs a generic expression with `$t` as the Rust type of a dtype.
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

/// A number as `dtype` holds it: floats are rounded, integers truncated and wrapped, truth is "not 0".
pub fn round(value: f64, dtype: DType) -> f64 {
    with_element!(dtype, T => T::from_scalar(Scalar::Float(value)).to_scalar().to_f64())
}

/// A tensor of these numbers, which are rounded on the host.
pub fn tensor(values: &Nd, dtype: DType) -> Tensor {
    with_element!(dtype, T => {
        let data: Vec<T> = values.data.iter().map(|&v| T::from_scalar(Scalar::Float(v))).collect();
        Tensor::new(data, &values.shape)
    })
}

/// The elements of a tensor as they are, widened on the host.
pub fn values(tensor: &Tensor) -> Vec<f64> {
    let bytes = tensor.to_bytes().expect("values");
    with_element!(tensor.dtype(), T => T::from_bytes(&bytes).into_iter().map(|v| v.to_scalar().to_f64()).collect())
}

/// The distance between 1 and the next number.
pub fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        DType::F32 => 2f64.powi(-23),
        _ => 2f64.powi(-52),
    }
}

/// A stream of numbers in [0, 1) that a name decides (splitmix64).
pub struct Stream(u64);

impl Stream {
    pub fn new(name: &str) -> Stream {
        Stream(name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)))
    }

    pub fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 11) as f64 * 2f64.powi(-53)
    }
}

/// Numbers for an input, as `dtype` holds them.
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
                // A few whole numbers beyond the range: integers have no fractions to vary.
                DType::U8 => (3.0 * x).round().abs(),
                _ => (3.0 * x).round(),
            };
        },
    };
    Nd::from_fn(&input.shape, |_| value())
}

/// The dtype of an input's tensor where the case's numbers are `dtype`.
pub fn dtype_of(input: &Input, dtype: DType) -> DType {
    match input.kind {
        Kind::Number { .. } => dtype,
        Kind::Index { .. } | Kind::Class { .. } => DType::I64,
        Kind::Mask => DType::Bool,
    }
}

/// Numbers for every input of a case, the i-th number in the i-th of `dtypes` (the last for the rest),
/// and the tensors of them.
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

/// How a tensor lies in its storage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lie {
    /// Column-major.
    Turned,
    /// Every axis backwards.
    Flipped,
    /// Every third element of the last axis, garbage between.
    Gaps,
    /// Row-major behind other elements.
    Behind,
}

pub const LIES: [Lie; 4] = [Lie::Turned, Lie::Flipped, Lie::Gaps, Lie::Behind];

/// The same elements, lying otherwise.
pub fn lay(x: &Tensor, lie: Lie) -> Tensor {
    let laid = match lie {
        Lie::Turned => x.t().copy().t(),
        Lie::Flipped => x.flip(..).copy().flip(..),
        Lie::Gaps if x.rank() > 0 => {
            let mut shape = x.shape().clone();
            shape[x.rank() - 1] *= 3;
            let wide = Tensor::full(shape, 77, x.dtype());
            let gaps = || (Ellipsis, slice(1, None, 3));
            wide.set(gaps(), x);
            wide.i(gaps())
        }
        Lie::Gaps | Lie::Behind => {
            let long = Tensor::full([x.size() + 5], 77, x.dtype());
            long.set(5.., x.reshape([x.size()]));
            long.i(5..).reshape(x.shape())
        }
    };
    assert_eq!(laid.to_bytes(), x.to_bytes(), "{lie:?} of {x:?}");
    laid
}

/// The first slice along `axis`, stretched to the whole tensor without a copy.
pub fn stretched(x: &Tensor, axis: usize) -> Tensor {
    if axis >= x.rank() || x.shape()[axis] == 0 {
        return x.clone();
    }
    x.narrow(axis as isize, 0, 1).broadcast_to(x.shape())
}
