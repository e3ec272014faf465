//! Window functions of signal processing.

use crate::table::row::{Row, argument_rejected};
use ops::WindowFunction;
use pellucid_tensor::{DType, Error, Result, ops};

/// Returns true if the weights agree to ten digits.
fn weights_are(window: WindowFunction<'_>, count: usize, symmetric: bool, expected: &[f64]) -> Result<bool> {
    let weights = ops::signal_window(window, count, symmetric, DType::F64)?.to_vec::<f64>();
    let near = weights.iter().zip(expected).all(|(w, e)| (w - e).abs() < 1e-10);
    Ok(weights.len() == expected.len() && near)
}

pub(super) fn rows() -> Vec<Row> {
    let all = || {
        let exponential = WindowFunction::Exponential { center: None, tau: 1.0 };
        let (gaussian, cosines) = (WindowFunction::Gaussian { std: 1.0 }, WindowFunction::GeneralCosine(&[0.5, 0.3]));
        let (hamming, kaiser) = (WindowFunction::GeneralHamming { alpha: 0.6 }, WindowFunction::Kaiser { beta: 12.0 });
        let plain = [
            WindowFunction::Bartlett,
            WindowFunction::Blackman,
            WindowFunction::Cosine,
            WindowFunction::Hamming,
            WindowFunction::Hann,
            WindowFunction::Nuttall,
        ];
        plain.into_iter().chain([exponential, gaussian, cosines, hamming, kaiser])
    };
    vec![
        // Reference values of scipy.signal.windows.
        Row::new("signal_window")
            .untracked()
            .check("triangle", || weights_are(WindowFunction::Bartlett, 5, true, &[0.0, 0.5, 1.0, 0.5, 0.0]))
            .check("a periodic triangle", || weights_are(WindowFunction::Bartlett, 4, false, &[0.0, 0.5, 1.0, 0.5]))
            .check("Blackman", || weights_are(WindowFunction::Blackman, 5, true, &[0.0, 0.34, 1.0, 0.34, 0.0]))
            .check("sine", || weights_are(WindowFunction::Cosine, 3, true, &[0.5, 1.0, 0.5]))
            .check("Hamming", || weights_are(WindowFunction::Hamming, 5, true, &[0.08, 0.54, 1.0, 0.54, 0.08]))
            .check("Hann", || weights_are(WindowFunction::Hann, 4, false, &[0.0, 0.5, 1.0, 0.5]))
            .check("general Hamming", || {
                weights_are(WindowFunction::GeneralHamming { alpha: 0.6 }, 3, true, &[0.2, 1.0, 0.2])
            })
            .check("general cosine", || {
                weights_are(WindowFunction::GeneralCosine(&[0.5, 0.3, 0.2]), 3, true, &[0.4, 1.0, 0.4])
            })
            .check("Nuttall", || weights_are(WindowFunction::Nuttall, 3, true, &[0.0003628, 1.0, 0.0003628]))
            .check("exponential", || {
                let e = 1.0 / std::f64::consts::E;
                weights_are(WindowFunction::Exponential { center: Some(0.0), tau: 1.0 }, 3, false, &[1.0, e, e * e])
            })
            .check("Gauss", || {
                let e = (-0.5f64).exp();
                weights_are(WindowFunction::Gaussian { std: 1.0 }, 3, true, &[e, 1.0, e])
            })
            .check("Kaiser: 1/I0(2) at the ends", || {
                let end = 1.0 / 2.279_585_302_336_067;
                weights_are(WindowFunction::Kaiser { beta: 2.0 }, 3, true, &[end, 1.0, end])
            })
            .check("windows of one weight and of no weight must be allowed", move || {
                all().try_fold(true, |right, w| {
                    Ok(right
                        && weights_are(w, 1, true, &[1.0])?
                        && weights_are(w, 1, false, &[1.0])?
                        && weights_are(w, 0, false, &[])?)
                })
            })
            .check("invalid parameters must be errors", || {
                let rejected = |w| argument_rejected(ops::signal_window(w, 3, true, DType::F32));
                Ok(rejected(WindowFunction::Exponential { center: None, tau: 0.0 })?
                    && rejected(WindowFunction::Exponential { center: Some(1.0), tau: 1.0 })?
                    && rejected(WindowFunction::Gaussian { std: -1.0 })?
                    && rejected(WindowFunction::GeneralCosine(&[]))?
                    && rejected(WindowFunction::Kaiser { beta: f64::NAN })?)
            })
            .check("integer and half-precision dtypes", || {
                let rejected = |dtype| {
                    let result = ops::signal_window(WindowFunction::Hann, 3, true, dtype);
                    matches!(result, Err(Error::DTypeMismatch { .. }))
                };
                Ok(rejected(DType::I64) && rejected(DType::F16) && rejected(DType::BF16))
            }),
    ]
}
