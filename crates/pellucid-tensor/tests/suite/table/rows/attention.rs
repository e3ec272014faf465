//! Attention.

use crate::table::nd::Nd;
use crate::table::row::{Gradient::Third, Row, Rule, argument_rejected, mask, real, shape_rejected};
use pellucid_tensor::ops::AttentionOptions;
use pellucid_tensor::{DType, Error, Tensor, bf16, ops};

pub(super) fn rows() -> Vec<Row> {
    vec![attention()]
}

/// Computes softmax(Q·Kᵀ·scale + added)·V for `[H, L, E]`, `[G, S, E]`, `[G, S, D]`; `added` is indexed by head, query,
/// key.
fn naive(x: &[Nd], scale: f64, added: impl Fn(usize, usize, usize) -> f64) -> Nd {
    let (q, k, v) = (&x[0], &x[1], &x[2]);
    let group = q.shape[0] / k.shape[0];
    Nd::from_fn(&[q.shape[0], q.shape[1], v.shape[2]], |ix| {
        let head = ix[0] / group;
        let score = |s: usize| {
            let dot: f64 = (0..q.shape[2]).map(|e| q.at(&[ix[0], ix[1], e]) * k.at(&[head, s, e])).sum();
            (dot * scale + added(ix[0], ix[1], s)).exp()
        };
        let weights: Vec<f64> = (0..k.shape[1]).map(score).collect();
        let sum: f64 = weights.iter().sum();
        let value = (0..k.shape[1]).map(|s| weights[s] * v.at(&[head, s, ix[2]])).sum::<f64>();
        if sum == 0.0 { 0.0 } else { value / sum }
    })
}

/// Calls `attention` with all operands in the dtype of the queries.
fn attend(x: &[Tensor], options: AttentionOptions) -> pellucid_tensor::Result<Tensor> {
    let own = |t: &Tensor| if t.dtype() == DType::Bool { t.clone() } else { t.to_dtype(x[0].dtype()) };
    let mask = options.mask.map(own);
    ops::scaled_dot_product_attention(
        &x[0],
        &own(&x[1]),
        &own(&x[2]),
        AttentionOptions { mask: mask.as_ref(), ..options },
    )
}

fn attention() -> Row {
    let plain = || AttentionOptions { scale: Some(0.5), ..AttentionOptions::default() };
    let hidden = |hide: bool| if hide { f64::NEG_INFINITY } else { 0.0 };
    Row::new("scaled_dot_product_attention")
        .rule(Rule::FloatsOnly)
        .gradient(Third)
        .ordinary()
        .ulps(64.0)
        .scale(1.0)
        .case(
            "one head",
            [real([1, 2, 3]), real([1, 3, 3]), real([1, 3, 2])],
            move |x| attend(x, plain()),
            |x| naive(x, 0.5, |_, _, _| 0.0),
        )
        .floats_only()
        .case(
            "heads that share keys, 1/√E",
            [real([4, 2, 4]), real([2, 3, 4]), real([2, 3, 1])],
            |x| attend(x, AttentionOptions::default()),
            |x| naive(x, 0.5, |_, _, _| 0.0),
        )
        .floats_only()
        .case(
            "all heads share keys",
            [real([4, 2, 4]), real([1, 3, 4]), real([1, 3, 2])],
            move |x| attend(x, plain()),
            |x| naive(x, 0.5, |_, _, _| 0.0),
        )
        .floats_only()
        .case(
            "causal, with a negative scale",
            [real([1, 3, 2]), real([1, 3, 2]), real([1, 3, 2])],
            move |x| attend(x, AttentionOptions { causal: true, scale: Some(-0.5), ..plain() }),
            move |x| naive(x, -0.5, |_, l, s| hidden(s > l)),
        )
        .floats_only()
        .case(
            "causal",
            [real([1, 3, 2]), real([1, 3, 2]), real([1, 3, 2])],
            move |x| attend(x, AttentionOptions { causal: true, ..plain() }),
            move |x| naive(x, 0.5, |_, l, s| hidden(s > l)),
        )
        .floats_only()
        .case(
            "a boolean mask for all heads",
            [real([2, 2, 2]), real([2, 3, 2]), real([2, 3, 2]), mask([2, 3])],
            move |x| attend(x, AttentionOptions { mask: Some(&x[3]), ..plain() }),
            move |x| naive(x, 0.5, |_, l, s| hidden(x[3].at(&[l, s]) == 0.0)),
        )
        .floats_only()
        .case(
            "numbers that are added, with their gradient",
            [real([2, 2, 2]), real([2, 2, 2]), real([2, 2, 2]), real([2, 1, 2])],
            move |x| attend(x, AttentionOptions { mask: Some(&x[3]), ..plain() }),
            |x| naive(x, 0.5, |h, _, s| x[3].at(&[h, 0, s])),
        )
        .floats_only()
        .case(
            "several blocks",
            [real([2, 300, 3]), real([2, 700, 3]), real([2, 700, 2])],
            move |x| attend(x, AttentionOptions { causal: true, ..plain() }),
            move |x| naive(x, 0.5, |_, l, s| hidden(s > l)),
        )
        .long()
        .case(
            "no key",
            [real([1, 2, 3]), real([1, 0, 3]), real([1, 0, 2])],
            move |x| attend(x, plain()),
            |x| naive(x, 0.5, |_, _, _| 0.0),
        )
        .floats_only()
        .case(
            "no query",
            [real([1, 0, 3]), real([1, 2, 3]), real([1, 2, 2])],
            move |x| attend(x, plain()),
            |x| naive(x, 0.5, |_, _, _| 0.0),
        )
        .floats_only()
        .check("gradients of several blocks must equal the definition's", blocks_have_the_gradients_of_the_definition)
        .check("axes of length 1 must broadcast, and other lengths must be equal", || {
            let of = |shape: &[usize]| Tensor::zeros(shape, DType::F32);
            let y = of(&[5, 2, 3, 4]).scaled_dot_product_attention(
                &of(&[1, 2, 6, 4]),
                &of(&[5, 1, 6, 7]),
                AttentionOptions::default(),
            );
            let mismatched = ops::scaled_dot_product_attention(
                &of(&[4, 3, 4]),
                &of(&[3, 6, 4]),
                &of(&[3, 6, 4]),
                AttentionOptions::default(),
            );
            Ok(y.shape().dims() == [5, 2, 3, 7] && shape_rejected(mismatched)?)
        })
        .check("more batch axes, heads inside rows, and masks of any rank must equal separate matrices", || {
            // [2, 3, L, H, E]: the heads come before the elements only in a view.
            let of = |len: usize| Tensor::randn([2, 3, len, 4, 5], DType::F64).transpose(2, 3);
            let (q, k, v) = (of(6), of(7), of(7));
            for shape in [&[6, 7][..], &[4, 1, 7], &[3, 1, 1, 7], &[1, 1, 1, 6, 1], &[2, 3, 4, 6, 7]] {
                let mask = Tensor::randn(shape, DType::F64);
                let attend = |q: &Tensor, k: &Tensor, v: &Tensor, mask: &Tensor| {
                    ops::scaled_dot_product_attention(
                        q,
                        k,
                        v,
                        AttentionOptions { mask: Some(mask), ..AttentionOptions::default() },
                    )
                };
                let all = attend(&q, &k, &v, &mask)?;
                let masks = mask.broadcast_to([2, 3, 4, 6, 7]);
                for (n, m, h) in (0..24).map(|i| (i / 12, i / 4 % 3, i % 4)) {
                    let one = |t: &Tensor| t.select(0, n).select(0, m).select(0, h).contiguous();
                    let alone = attend(&one(&q), &one(&k), &one(&v), &one(&masks))?;
                    if one(&all).to_vec::<f64>() != alone.to_vec::<f64>() {
                        return Ok(false);
                    }
                }
            }
            Ok(true)
        })
        .check("half precision must be rounded once", || {
            let of = || Tensor::randn([2, 40, 16], DType::F32).to_dtype(DType::BF16);
            let (q, k, v) = (of(), of(), of());
            let wide = [&q, &k, &v].map(|t| t.to_dtype(DType::F32));
            let options = || AttentionOptions { causal: true, ..AttentionOptions::default() };
            let half = ops::scaled_dot_product_attention(&q, &k, &v, options())?;
            let exact = ops::scaled_dot_product_attention(&wide[0], &wide[1], &wide[2], options())?;
            // A mask that requires a gradient uses a separate implementation.
            let mask = Tensor::zeros([40, 40], DType::BF16).requires_grad_(true);
            let other =
                ops::scaled_dot_product_attention(&q, &k, &v, AttentionOptions { mask: Some(&mask), ..options() })?;
            let near =
                (other.to_dtype(DType::F32) - &exact).abs().le(exact.abs() / 256.0 + 1e-6).all(..).item::<bool>();
            Ok(near
                && half.dtype() == DType::BF16
                && half.to_vec::<bf16>() == exact.to_dtype(DType::BF16).to_vec::<bf16>())
        })
        .check("queries and keys of width 0 must give the mean of all values", || {
            let (q, v) = (Tensor::zeros([2, 0], DType::F32), Tensor::from([[1.0f32], [3.0]]));
            let y = ops::scaled_dot_product_attention(&q, &q, &v, AttentionOptions::default())?;
            Ok(y.to_vec::<f32>() == [2.0, 2.0])
        })
        .check("a dropout of 1 must drop all weights", || {
            let x = Tensor::ones([2, 2], DType::F32);
            let options = AttentionOptions { dropout: 1.0, ..AttentionOptions::default() };
            Ok(ops::scaled_dot_product_attention(&x, &x, &x, options)?.to_vec::<f32>() == [0.0; 4])
        })
        .check("a dropout above 1", || {
            let x = Tensor::zeros([2, 2], DType::F32);
            let options = AttentionOptions { dropout: 1.5, ..AttentionOptions::default() };
            argument_rejected(ops::scaled_dot_product_attention(&x, &x, &x, options))
        })
        .check("dropout must drop weights and scale the others", || {
            let (q, v) = (Tensor::zeros([1, 64], DType::F64), Tensor::ones([1000, 1], DType::F64));
            let k = Tensor::zeros([1000, 64], DType::F64);
            let options = AttentionOptions { dropout: 0.5, ..AttentionOptions::default() };
            let y = ops::scaled_dot_product_attention(&q, &k, &v, options)?.item::<f64>();
            Ok(y != 1.0 && (y - 1.0).abs() < 0.2)
        })
        .check("an integer mask must be an error", || {
            let x = Tensor::zeros([2, 2], DType::F32);
            let seen = Tensor::from([[1i64, 0], [0, 1]]);
            let options = AttentionOptions { mask: Some(&seen), ..AttentionOptions::default() };
            let rejected = ops::scaled_dot_product_attention(&x, &x, &x, options);
            Ok(matches!(rejected, Err(Error::DTypeMismatch { .. })))
        })
}

/// Compares the blocked kernel with the unblocked computation for a mask that requires a gradient, here of zeros.
fn blocks_have_the_gradients_of_the_definition() -> pellucid_tensor::Result<bool> {
    let leaf = |shape: &[usize]| Tensor::randn(shape, DType::F64).requires_grad_(true);
    for causal in [false, true] {
        let [q, k, v] = [leaf(&[2, 300, 4]), leaf(&[1, 500, 4]), leaf(&[1, 500, 4])];
        let zeros = Tensor::zeros([300, 500], DType::F64).requires_grad_(true);
        let weights = Tensor::randn([2, 300, 4], DType::F64);
        let gradients = |mask: Option<&Tensor>| -> pellucid_tensor::Result<Vec<f64>> {
            [&q, &k, &v].into_iter().for_each(Tensor::zero_grad);
            let y = ops::scaled_dot_product_attention(
                &q,
                &k,
                &v,
                AttentionOptions { mask, causal, ..AttentionOptions::default() },
            )?;
            (y * &weights).sum(..).backward();
            Ok([&q, &k, &v]
                .iter()
                .flat_map(|t| t.grad().expect("the tensor must have a gradient").to_vec::<f64>())
                .collect())
        };
        let (blocks, full) = (gradients(None)?, gradients(Some(&zeros))?);
        if blocks.iter().zip(&full).any(|(a, b)| (a - b).abs() > 1e-12) {
            return Ok(false);
        }
    }
    Ok(true)
}
