//! Matrix products, convolutions, attention and recurrent layers.

use super::{CatalogueOperation, Domain, OperationFamily, fit};
use Domain::Any;
use pellucid::ops::{
    AttentionOptions, ConvOptions, ConvPadding, ConvolveMode, RecurrenceOptions, RecurrentWeights, RnnNonlinearity,
};
use pellucid::{Result, Tensor, ops};

/// Returns query, key and value of these shapes.
fn heads(x: &[Tensor], shapes: [&[usize]; 3]) -> Result<[Tensor; 3]> {
    Ok([fit(&x[0], shapes[0])?, fit(&x[1], shapes[1])?, fit(&x[2], shapes[2])?])
}

fn matrix_products() -> Vec<CatalogueOperation> {
    entries! { Products;
        "matmul" [Any, Any] (x, _) => ops::matmul(&fit(&x[0], &[2, 3])?, &fit(&x[1], &[3, 2])?);
        "matmul of a batch" [Any, Any] (x, _) => ops::matmul(&fit(&x[0], &[2, 2, 3])?, &fit(&x[1], &[3, 2])?);
        "matmul with a vector" [Any, Any] (x, _) => ops::matmul(&fit(&x[0], &[2, 3])?, &fit(&x[1], &[3])?);
        "x · xᵀ" [Any] (x, _) => {
            let x = fit(&x[0], &[2, 3])?;
            ops::matmul(&x, &ops::t(&x)?)
        };
        "dot" [Any, Any] (x, _) => ops::dot(&fit(&x[0], &[3])?, &fit(&x[1], &[3])?);
        "outer" [Any, Any] (x, _) => ops::outer(&fit(&x[0], &[2])?, &fit(&x[1], &[3])?);
        "linear" [Any, Any, Any] (x, _) => {
            let [x, weight, bias] = heads(x, [&[2, 3], &[2, 3], &[2]])?;
            ops::linear(&x, &weight, Some(&bias))
        };
        "trace" [Any] (x, _) => ops::trace(&fit(&x[0], &[2, 3])?);
        "cross" [Any, Any] (x, _) => ops::cross(&fit(&x[0], &[2, 3])?, &fit(&x[1], &[2, 3])?, -1);
        "einsum ij,jk" [Any, Any] (x, _) => {
            ops::einsum("ij,jk->ki", &[&fit(&x[0], &[2, 3])?, &fit(&x[1], &[3, 2])?])
        };
        "einsum ii" [Any] (x, _) => ops::einsum("ii->i", &[&fit(&x[0], &[2, 2])?]);
        "einsum of three" [Any, Any, Any] (x, _) => {
            let [a, b, c] = heads(x, [&[2, 3], &[3, 2], &[2, 2]])?;
            ops::einsum("ij,jk,kl->il", &[&a, &b, &c])
        };
        "addmm" [Any, Any, Any] (x, _) => {
            let [x, a, b] = heads(x, [&[2, 2], &[2, 3], &[3, 2]])?;
            ops::addmm(&x, &a, &b, 0.5, -1.5)
        };
        "addmv" [Any, Any, Any] (x, _) => {
            let [x, a, v] = heads(x, [&[2], &[2, 3], &[3]])?;
            ops::addmv(&x, &a, &v, 0.5, -1.5)
        };
        "addr" [Any, Any, Any] (x, _) => {
            let [x, u, v] = heads(x, [&[2, 3], &[2], &[3]])?;
            ops::addr(&x, &u, &v, 0.5, -1.5)
        };
        "baddbmm" [Any, Any, Any] (x, _) => {
            let [x, a, b] = heads(x, [&[2, 1, 2], &[2, 1, 2], &[2, 2, 2]])?;
            ops::baddbmm(&x, &a, &b, 0.5, -1.5)
        };
        "addbmm" [Any, Any, Any] (x, _) => {
            let [x, a, b] = heads(x, [&[1, 2], &[2, 1, 2], &[2, 2, 2]])?;
            ops::addbmm(&x, &a, &b, 0.5, -1.5)
        };
        "vdot" [Any, Any] (x, _) => ops::vdot(&fit(&x[0], &[3])?, &fit(&x[1], &[3])?);
        "convolve" [Any, Any] (x, random) => {
            let mode = random.choose(&[ConvolveMode::Full, ConvolveMode::Same, ConvolveMode::Valid]);
            ops::convolve(&fit(&x[0], &[4])?, &fit(&x[1], &[2])?, mode)
        };
        "correlate" [Any, Any] (x, random) => {
            let mode = random.choose(&[ConvolveMode::Full, ConvolveMode::Same, ConvolveMode::Valid]);
            ops::correlate(&fit(&x[0], &[4])?, &fit(&x[1], &[2])?, mode)
        };
        "inner" [Any, Any] (x, _) => ops::inner(&fit(&x[0], &[2, 3])?, &fit(&x[1], &[2, 3])?);
        "kron" [Any, Any] (x, _) => ops::kron(&fit(&x[0], &[2, 2])?, &fit(&x[1], &[1, 2])?);
        "tensordot" [Any, Any] (x, _) => ops::tensordot(&fit(&x[0], &[2, 3])?, &fit(&x[1], &[3, 2])?, &[1], &[0]);
        "vecdot" [Any, Any] (x, _) => ops::vecdot(&fit(&x[0], &[2, 3])?, &fit(&x[1], &[2, 3])?, -1);
        "multi_dot" [Any, Any, Any] (x, _) => {
            let [a, b, c] = heads(x, [&[2, 3], &[3, 2], &[2, 2]])?;
            ops::multi_dot(&[&a, &b, &c])
        };
        "matrix_power" [Any] (x, random) => ops::matrix_power(&fit(&x[0], &[2, 2])?, 2 + random.below(2) as isize);
    }
}

fn networks() -> Vec<CatalogueOperation> {
    entries! { Products;
        "conv1d" [Any, Any, Any] (x, random) => {
            let [x, weight, bias] = heads(x, [&[1, 2, 4], &[2, 2, 2], &[2]])?;
            let options = ConvOptions { stride: (1 + random.below(2)).into(), padding: random.below(2).into(), ..Default::default() };
            ops::conv1d(&x, &weight, Some(&bias), options)
        };
        "conv1d of two images" [Any, Any] (x, _) => {
            ops::conv1d(&fit(&x[0], &[2, 1, 4])?, &fit(&x[1], &[3, 1, 3])?, None, ConvOptions::default())
        };
        "conv1d to one output" [Any, Any] (x, _) => {
            ops::conv1d(&fit(&x[0], &[2, 1, 3])?, &fit(&x[1], &[3, 1, 3])?, None, ConvOptions::default())
        };
        "conv2d" [Any, Any] (x, _) => {
            let (x, weight) = (fit(&x[0], &[1, 1, 3, 3])?, fit(&x[1], &[2, 1, 2, 2])?);
            ops::conv2d(&x, &weight, None, ConvOptions { padding: ConvPadding::Same, ..Default::default() })
        };
        "conv2d in groups" [Any, Any] (x, _) => {
            let (x, weight) = (fit(&x[0], &[1, 2, 2, 3])?, fit(&x[1], &[2, 1, 2, 2])?);
            ops::conv2d(&x, &weight, None, ConvOptions { groups: 2, dilation: 1.into(), ..Default::default() })
        };
        "conv3d" [Any, Any] (x, _) => {
            let (x, weight) = (fit(&x[0], &[1, 1, 2, 2, 2])?, fit(&x[1], &[1, 1, 1, 2, 2])?);
            ops::conv3d(&x, &weight, None, ConvOptions::default())
        };
        "conv_transpose1d" [Any, Any] (x, _) => {
            let (x, weight) = (fit(&x[0], &[1, 2, 3])?, fit(&x[1], &[2, 1, 2])?);
            ops::conv_transpose1d(&x, &weight, None, ConvOptions { stride: 2.into(), ..Default::default() })
        };
        "conv_transpose2d" [Any, Any] (x, _) => {
            let (x, weight) = (fit(&x[0], &[1, 1, 2, 2])?, fit(&x[1], &[1, 2, 2, 2])?);
            ops::conv_transpose2d(&x, &weight, None, ConvOptions::default())
        };
        "conv_transpose3d" [Any, Any] (x, _) => {
            let (x, weight) = (fit(&x[0], &[1, 1, 1, 2, 2])?, fit(&x[1], &[1, 1, 2, 1, 2])?);
            ops::conv_transpose3d(&x, &weight, None, ConvOptions::default())
        };
        "attention" [Any, Any, Any] (x, _) => {
            let [q, k, v] = heads(x, [&[2, 3], &[2, 3], &[2, 3]])?;
            ops::scaled_dot_product_attention(&q, &k, &v, AttentionOptions::default())
        };
        "causal attention" [Any, Any, Any] (x, _) => {
            let [q, k, v] = heads(x, [&[1, 2, 3], &[1, 2, 3], &[1, 2, 2]])?;
            ops::scaled_dot_product_attention(&q, &k, &v, AttentionOptions { causal: true, ..Default::default() })
        };
        "attention with a mask" [Any, Any, Any, Any] (x, _) => {
            let [q, k, v] = heads(x, [&[2, 3], &[2, 3], &[2, 2]])?;
            let mask = fit(&x[3], &[2, 2])?;
            ops::scaled_dot_product_attention(&q, &k, &v, AttentionOptions { mask: Some(&mask), ..Default::default() })
        };
        "grouped attention" [Any, Any, Any] (x, _) => {
            let [q, k, v] = heads(x, [&[1, 2, 2, 2], &[1, 1, 2, 2], &[1, 1, 2, 2]])?;
            ops::scaled_dot_product_attention(&q, &k, &v, AttentionOptions::default())
        };
        "tanh MLP" [Any] (x, random) => {
            let mut y = fit(&x[0], &[2, 3])?;
            for (from, to) in [(3, 8), (8, 8), (8, 1)] {
                let weight = random.tensor(&[to, from], -0.6, 0.6);
                y = ops::tanh(&ops::linear(&y, &weight, Some(&random.tensor(&[to], -0.5, 0.5)))?)?;
            }
            Ok(y)
        };
        "rnn" [Any, Any, Any] (x, _) => recurrent(x, 1, |x, weights| {
            Ok(ops::rnn(x, weights, None, RnnNonlinearity::Tanh, RecurrenceOptions::default())?.0)
        });
        "gru" [Any, Any, Any] (x, _) => recurrent(x, 3, |x, weights| {
            Ok(ops::gru(x, weights, None, RecurrenceOptions::default())?.0)
        });
        "lstm" [Any, Any, Any] (x, _) => recurrent(x, 4, |x, weights| {
            Ok(ops::lstm(x, weights, None, RecurrenceOptions::default())?.0)
        });
    }
}

/// Applies a recurrent layer with 2 inputs and 1 unit for two steps.
fn recurrent(x: &[Tensor], gates: usize, layer: fn(&Tensor, RecurrentWeights<'_>) -> Result<Tensor>) -> Result<Tensor> {
    let (steps, weight_ih) = (fit(&x[0], &[2, 1, 2])?, fit(&x[1], &[gates, 2])?);
    let (weight_hh, bias) = (fit(&x[2], &[gates, 1])?, fit(&x[2], &[gates])?);
    let (bias_ih, bias_hh) = (Some(&bias), None);
    layer(&steps, RecurrentWeights { weight_ih: &weight_ih, weight_hh: &weight_hh, bias_ih, bias_hh, weight_hr: None })
}

pub(super) fn operations() -> Vec<CatalogueOperation> {
    let mut all = matrix_products();
    all.extend(networks());
    all
}
