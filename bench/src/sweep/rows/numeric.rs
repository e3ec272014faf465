//! Convolution of signals, and polynomials.

use crate::sweep::OperandValues::{Normal, Unit};
use crate::sweep::{Size, SweepRow, vectors};
use pellucid::{Tensor, ops};

/// Defines rows of orthogonal polynomials of degree 5, with PyTorch's names.
macro_rules! polynomials {
    ($($op:ident $torch:literal),+ $(,)?) => {
        [$((
            stringify!($op),
            concat!("torch.special.", $torch, "(a, 5)"),
            (|t, _| t[0].$op(&Tensor::scalar(5.0, t[0].dtype()))) as fn(&[Tensor], Size) -> Tensor,
        )),+]
    };
}

pub(super) fn rows() -> Vec<SweepRow> {
    let families = polynomials!(
        chebyshev_t "chebyshev_polynomial_t",
        chebyshev_u "chebyshev_polynomial_u",
        chebyshev_v "chebyshev_polynomial_v",
        chebyshev_w "chebyshev_polynomial_w",
        hermite_h "hermite_polynomial_h",
        hermite_he "hermite_polynomial_he",
        laguerre_l "laguerre_polynomial_l",
        legendre_p "legendre_polynomial_p",
        shifted_chebyshev_t "shifted_chebyshev_polynomial_t",
        shifted_chebyshev_u "shifted_chebyshev_polynomial_u",
        shifted_chebyshev_v "shifted_chebyshev_polynomial_v",
        shifted_chebyshev_w "shifted_chebyshev_polynomial_w",
    );
    let mut rows: Vec<SweepRow> =
        families.map(|(op, torch, run)| SweepRow::new(op, torch, run).of([Unit]).forward_only()).into();
    let signals = |n: usize| vec![vec![[64, 1 << 14, 1 << 17][n]], vec![[5, 31, 63][n]]];
    rows.extend([
        SweepRow::new("convolve", "F.conv1d(a[None, None], b.flip(0)[None, None], padding=b.numel() - 1)", |t, _| {
            t[0].convolve(&t[1], ops::ConvolveMode::Full)
        })
        .of([Normal; 2])
        .shapes(signals),
        SweepRow::new("correlate", "F.conv1d(a[None, None], b[None, None])", |t, _| {
            t[0].correlate(&t[1], ops::ConvolveMode::Valid)
        })
        .of([Normal; 2])
        .shapes(signals),
        SweepRow::new("polyval", "((a[0] * b + a[1]) * b + a[2]) * b + a[3]", |t, _| t[0].polyval(&t[1]))
            .of([Normal; 2])
            .shapes(|n| vec![vec![4], vec![[64, 1 << 16, 1 << 20][n]]]),
        SweepRow::new("polyfit", "torch.linalg.lstsq(torch.vander(a, 3), b).solution", |t, _| t[0].polyfit(&t[1], 2))
            .of([Normal; 2])
            .shapes(vectors)
            .forward_only(),
    ]);
    rows
}
