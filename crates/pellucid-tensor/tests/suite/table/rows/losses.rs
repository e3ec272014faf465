//! Losses, each with every reduction.

use crate::table::nd::{Nd, zip};
use crate::table::row::{Input, Row, Rule, argument_rejected, class, mask, real, shape_rejected};
use crate::table::special::softplus;
use ops::{
    CtcLossOptions, MultiMarginLossOptions, NllLossOptions, PoissonNllLossOptions, Reduction, TripletMarginLossOptions,
};
use pellucid_tensor::{DType, Error, Result, Tensor, ops};
use std::f64::consts::PI;

const EACH: [Reduction; 3] = [Reduction::Mean, Reduction::Sum, Reduction::None];

fn reduced(values: &Nd, reduction: Reduction) -> Nd {
    let sum: f64 = values.data.iter().sum();
    match reduction {
        Reduction::Mean => Nd::scalar(sum / values.data.len() as f64),
        Reduction::Sum => Nd::scalar(sum),
        Reduction::None => values.clone(),
    }
}

/// Returns a row of a loss from a reference of its elements, with a case for each reduction.
fn loss<const N: usize>(
    name: &'static str,
    inputs: [Input; N],
    call: impl Fn(&[Tensor], Reduction) -> Result<Tensor> + Copy + 'static,
    values: impl Fn(&[Nd]) -> Nd + Copy + 'static,
) -> Row {
    let row = Row::new(name).rule(Rule::FloatsOnly).ulps(64.0).scale(8.0).ordinary();
    EACH.into_iter().fold(row, |row, reduction| {
        with_loss_case(row, format!("{reduction:?}"), inputs.clone(), call, values, reduction)
    })
}

/// Adds a case of a loss.
fn with_loss_case<const N: usize>(
    row: Row,
    label: String,
    inputs: [Input; N],
    call: impl Fn(&[Tensor], Reduction) -> Result<Tensor> + 'static,
    values: impl Fn(&[Nd]) -> Nd + 'static,
    reduction: Reduction,
) -> Row {
    row.case(label, inputs, move |x| call(x, reduction), move |x| reduced(&values(x), reduction)).floats_only()
}

/// Returns targets of 1 and −1 from a mask.
fn signs(mask: &Tensor, dtype: DType) -> Result<Tensor> {
    ops::sub(&ops::mul(&ops::to_dtype(mask, dtype)?, 2)?, 1)
}

fn share(shape: [usize; 2]) -> Input {
    real(shape).within(0.1..=0.9)
}

fn integers_rejected<T>(result: Result<T>) -> Result<bool> {
    Ok(matches!(result, Err(Error::DTypeMismatch { .. })))
}

fn regression_rows() -> Vec<Row> {
    let separated = || [real([2, 3]).within(-2.0..=-0.7), real([2, 3]).within(-0.5..=1.0)];
    let near = || [real([2, 3]).within(0.0..=0.4), real([3]).within(-0.3..=-0.1)];
    let (int, one) = (|| Tensor::from([1i64]), || Tensor::from([1.0]));
    let huber = |d: f64, w: f64| if d.abs() < w { 0.5 * d * d } else { w * (d.abs() - 0.5 * w) };
    let stirling = |t: f64| if t > 1.0 { t * t.ln() - t + 0.5 * (2.0 * PI * t).ln() } else { 0.0 };
    let full = PoissonNllLossOptions { log_input: false, full: true, eps: 1e-3, reduction: Reduction::None };
    vec![
        loss("l1_loss", separated(), |x, r| ops::l1_loss(&x[0], &x[1], r), |x| zip(x, |v| (v[0] - v[1]).abs()))
            .check("integers must be an error", move || {
                integers_rejected(ops::l1_loss(&int(), &int(), Reduction::Mean))
            })
            .check("shapes that do not broadcast must be an error", move || {
                shape_rejected(ops::l1_loss(&Tensor::from([1.0, 2.0]), &Tensor::from([1.0, 2.0, 3.0]), Reduction::Mean))
            }),
        loss(
            "mse_loss",
            [real([2, 3]), real([3])],
            |x, r| ops::mse_loss(&x[0], &x[1], r),
            |x| zip(x, |v| (v[0] - v[1]).powi(2)),
        )
        .check("integers must be an error", move || integers_rejected(ops::mse_loss(&int(), &int(), Reduction::Mean))),
        with_loss_case(
            loss(
                "huber_loss",
                separated(),
                |x, r| ops::huber_loss(&x[0], &x[1], 0.15, r),
                move |x| zip(x, |v| huber(v[0] - v[1], 0.15)),
            ),
            "near".into(),
            near(),
            |x, r| ops::huber_loss(&x[0], &x[1], 0.9, r),
            move |x| zip(x, |v| huber(v[0] - v[1], 0.9)),
            Reduction::Mean,
        )
        .check("a delta that is not positive must be an error", move || {
            argument_rejected(ops::huber_loss(&one(), &one(), 0.0, Reduction::Mean))
        }),
        with_loss_case(
            loss(
                "smooth_l1_loss",
                separated(),
                |x, r| ops::smooth_l1_loss(&x[0], &x[1], 0.15, r),
                move |x| zip(x, |v| huber(v[0] - v[1], 0.15) / 0.15),
            ),
            "of no width".into(),
            separated(),
            |x, r| ops::smooth_l1_loss(&x[0], &x[1], 0.0, r),
            |x| zip(x, |v| (v[0] - v[1]).abs()),
            Reduction::Sum,
        )
        .check("a negative beta must be an error", move || {
            argument_rejected(ops::smooth_l1_loss(&one(), &one(), -1.0, Reduction::Mean))
        }),
        with_loss_case(
            loss(
                "kl_div",
                [real([2, 3]), share([2, 3])],
                |x, r| ops::kl_div(&x[0], &x[1], false, r),
                |x| zip(x, |v| v[1] * (v[1].ln() - v[0])),
            ),
            "of logarithms".into(),
            [real([2, 3]), real([2, 3])],
            |x, r| ops::kl_div(&x[0], &x[1], true, r),
            |x| zip(x, |v| v[1].exp() * (v[1] - v[0])),
            Reduction::None,
        )
        .check("a target of probability 0 must contribute nothing", || {
            Ok(ops::kl_div(&Tensor::from([-1.0]), &Tensor::from([0.0]), false, Reduction::Sum)?.item::<f64>() == 0.0)
        }),
        with_loss_case(
            loss(
                "poisson_nll_loss",
                [real([2, 3]), real([2, 3]).within(0.2..=4.0)],
                |x, reduction| {
                    ops::poisson_nll_loss(&x[0], &x[1], PoissonNllLossOptions { reduction, ..Default::default() })
                },
                |x| zip(x, |v| v[0].exp() - v[1] * v[0]),
            ),
            "of rates, with ln t!".into(),
            [real([4]).within(0.2..=2.0), real([4]).within(1.2..=4.0)],
            move |x, _| ops::poisson_nll_loss(&x[0], &x[1], full),
            move |x| zip(x, |v| v[0] - v[1] * (v[0] + 1e-3).ln() + stirling(v[1])),
            Reduction::None,
        )
        .check("integers must be an error", move || {
            integers_rejected(ops::poisson_nll_loss(&int(), &int(), PoissonNllLossOptions::default()))
        }),
        with_loss_case(
            loss(
                "gaussian_nll_loss",
                [real([2, 3]), real([2, 3]), share([2, 3])],
                |x, r| ops::gaussian_nll_loss(&x[0], &x[1], &x[2], false, 1e-6, r),
                |x| zip(x, |v| 0.5 * (v[2].ln() + (v[0] - v[1]).powi(2) / v[2])),
            ),
            "one variance a row, with the constant".into(),
            [real([2, 3]), real([2, 3]), real([2]).within(0.3..=2.0)],
            |x, r| ops::gaussian_nll_loss(&x[0], &x[1], &x[2], true, 1e-6, r),
            |x| {
                let v = Nd { shape: vec![2, 1], data: x[2].data.clone() };
                zip(&[x[0].clone(), x[1].clone(), v], |v| 0.5 * ((2.0 * PI * v[2]).ln() + (v[0] - v[1]).powi(2) / v[2]))
            },
            Reduction::Mean,
        )
        .check("the variance must be at least eps", || {
            let (zero, variance) = (Tensor::from([0.0]), Tensor::from([0.0]).requires_grad_(true));
            let y = ops::gaussian_nll_loss(&Tensor::from([2.0]), &zero, &variance, false, 0.5, Reduction::Sum)?;
            y.backward();
            // ½(1/v − d²/v²) at v = ½, d = 2.
            let gradient = variance.grad().is_some_and(|g| (g.item::<f64>() + 7.0).abs() < 1e-14);
            Ok(gradient && (y.item::<f64>() - (4.0 + 0.5 * 0.5f64.ln())).abs() < 1e-14)
        }),
    ]
}

fn binary_rows() -> Vec<Row> {
    let entropy = |x: f64, t: f64| -(t * x.ln() + (1.0 - t) * (1.0 - x).ln());
    let logits = |x: f64, t: f64, p: f64| p * t * softplus(-x) + (1.0 - t) * softplus(x);
    let int = || Tensor::from([1i64]);
    vec![
        with_loss_case(
            loss(
                "binary_cross_entropy",
                [share([2, 3]), share([2, 3])],
                |x, r| ops::binary_cross_entropy(&x[0], &x[1], None, r),
                move |x| zip(x, |v| entropy(v[0], v[1])),
            ),
            "weighted".into(),
            [share([2, 3]), share([2, 3]), real([3])],
            |x, r| ops::binary_cross_entropy(&x[0], &x[1], Some(&x[2]), r),
            move |x| zip(x, |v| v[2] * entropy(v[0], v[1])),
            Reduction::Sum,
        )
        .check("the loss must be at most 100 for each element", || {
            let y =
                ops::binary_cross_entropy(&Tensor::from([0.0, 1.0]), &Tensor::from([1.0, 1.0]), None, Reduction::None)?;
            Ok(y.to_vec::<f64>() == [100.0, 0.0])
        })
        .check("the gradient at probabilities 0 and 1 must be finite", || {
            let x = Tensor::from([0.0, 0.0, 1.0, 1.0]).requires_grad_(true);
            ops::binary_cross_entropy(&x, &Tensor::from([0.0, 0.5, 1.0, 0.5]), None, Reduction::Sum)?.backward();
            Ok(x.grad().expect("the tensor must have a gradient").to_vec::<f64>() == [0.0, -0.5e12, 0.0, 0.5e12])
        })
        .check("integers must be an error", move || {
            integers_rejected(ops::binary_cross_entropy(&int(), &int(), None, Reduction::Mean))
        }),
        with_loss_case(
            loss(
                "binary_cross_entropy_with_logits",
                [real([2, 3]), share([2, 3])],
                |x, r| ops::binary_cross_entropy_with_logits(&x[0], &x[1], None, None, r),
                move |x| zip(x, |v| logits(v[0], v[1], 1.0)),
            ),
            "weighted".into(),
            [real([2, 3]), share([2, 3]), share([2, 3]), real([3]).within(0.5..=2.0)],
            |x, r| ops::binary_cross_entropy_with_logits(&x[0], &x[1], Some(&x[2]), Some(&x[3]), r),
            move |x| zip(x, |v| v[2] * logits(v[0], v[1], v[3])),
            Reduction::Mean,
        )
        .check("large logits", || {
            let (x, t) = (Tensor::from([1e4, -1e4]), Tensor::from([0.0, 1.0]));
            Ok(ops::binary_cross_entropy_with_logits(&x, &t, None, None, Reduction::None)?.to_vec::<f64>()
                == [1e4, 1e4])
        }),
        loss(
            "multilabel_soft_margin_loss",
            [real([2, 3]), share([2, 3]), real([3])],
            |x, r| ops::multilabel_soft_margin_loss(&x[0], &x[1], Some(&x[2]), r),
            move |x| zip(x, |v| v[2] * logits(v[0], v[1], 1.0)).reduce(&[1], |row| row.iter().sum::<f64>() / 3.0),
        )
        .check("integers must be an error", move || {
            integers_rejected(ops::multilabel_soft_margin_loss(&int(), &int(), None, Reduction::Mean))
        }),
        loss(
            "soft_margin_loss",
            [real([2, 3]), real([2, 3])],
            |x, r| ops::soft_margin_loss(&x[0], &x[1], r),
            |x| zip(x, |v| softplus(-v[0] * v[1])),
        )
        .check("integers must be an error", move || {
            integers_rejected(ops::soft_margin_loss(&int(), &int(), Reduction::Mean))
        }),
        loss(
            "hinge_embedding_loss",
            [real([2, 3]).within(0.1..=1.4), mask([2, 3])],
            |x, r| ops::hinge_embedding_loss(&x[0], &signs(&x[1], x[0].dtype())?, 1.5, r),
            |x| zip(x, |v| if v[1] != 0.0 { v[0] } else { f64::max(0.0, 1.5 - v[0]) }),
        )
        .check("the loss must be 0 beyond the margin", || {
            Ok(ops::hinge_embedding_loss(&Tensor::from([2.0]), &Tensor::from([-1.0]), 1.0, Reduction::Sum)?
                .item::<f64>()
                == 0.0)
        })
        .check("integers must be an error", move || {
            integers_rejected(ops::hinge_embedding_loss(&int(), &int(), 1.0, Reduction::Mean))
        }),
    ]
}

fn picked(x: &[Nd], weight: impl Fn(usize) -> f64 + Copy) -> Nd {
    Nd::from_fn(&x[1].shape, |ix| {
        let class = x[1].at(ix) as usize;
        let at: Vec<usize> = [&ix[..1], &[class], &ix[1..]].concat();
        -weight(class) * x[0].at(&at)
    })
}

fn class_rows() -> Vec<Row> {
    const W: [f64; 3] = [0.5, 1.0, 2.0];
    let weights = |x: &Tensor| Tensor::from(W).to_dtype(x.dtype());
    let nll = Row::new("nll_loss").rule(Rule::FloatsOnly).ulps(64.0).scale(8.0).ordinary();
    let nll = EACH.into_iter().fold(nll, |row, reduction| {
        with_loss_case(
            row,
            format!("further axes, {reduction:?}"),
            [real([2, 3, 2]), class([2, 2], 3)],
            |x, reduction| ops::nll_loss(&x[0], &x[1], NllLossOptions { reduction, ..Default::default() }),
            |x| picked(x, |_| 1.0),
            reduction,
        )
    });
    let margin = |x: &[Nd], p: f64, w: fn(usize) -> f64| {
        Nd::from_fn(&[3], |ix| {
            let class = x[1].data[ix[0]] as usize;
            let short = |i: usize| f64::max(0.0, 1.0 - x[0].at(&[ix[0], class]) + x[0].at(&[ix[0], i])).powf(p);
            w(class) * (0..3).filter(|&i| i != class).map(short).sum::<f64>() / 3.0
        })
    };
    let labels = || Tensor::from([[2i64, 0, -1, 1], [-1, 3, 1, 0], [1, 1, -1, -1]]);
    let multilabel = |x: &[Nd]| {
        let sets: [&[usize]; 3] = [&[2, 0], &[], &[1, 1]];
        Nd::from_fn(&[3], |ix| {
            let s = |i: usize| x[0].at(&[ix[0], i]);
            let has = sets[ix[0]];
            let pairs = has.iter().flat_map(|&j| (0..4).filter(|i| !has.contains(i)).map(move |i| (i, j)));
            pairs.map(|(i, j)| f64::max(0.0, 1.0 - (s(j) - s(i)))).sum::<f64>() / 4.0
        })
    };
    let x = || Tensor::from([[0.1, 0.2, 0.7]]);
    let bounds = |result: Result<Tensor>| Ok(matches!(result, Err(Error::IndexOutOfBounds { .. })));
    vec![
        nll.case(
            "the mean is one over the weights",
            [real([4, 3]), class([4], 3)],
            move |x| {
                ops::nll_loss(&x[0], &x[1], NllLossOptions { weight: Some(&weights(&x[0])), ..Default::default() })
            },
            |x| {
                let total: f64 = x[1].data.iter().map(|&c| W[c as usize]).sum();
                Nd::scalar(picked(x, |c| W[c]).data.iter().sum::<f64>() / total)
            },
        )
        .floats_only()
        .case(
            "but one class",
            [real([4, 3]), class([4], 3)],
            |x| {
                ops::nll_loss(
                    &x[0],
                    &x[1],
                    NllLossOptions { ignore_index: Some(1), reduction: Reduction::None, ..Default::default() },
                )
            },
            |x| picked(x, |c| f64::from(c != 1)).map(|v| v + 0.0),
        )
        .floats_only()
        .any_zero()
        .check("one sample", move || {
            Ok(ops::nll_loss(&Tensor::from([0.25, 0.5]), &Tensor::from(1i64), NllLossOptions::default())?.item::<f64>()
                == -0.5)
        })
        .check("ignored logits of −∞ and ignored targets must be allowed", || {
            let options = NllLossOptions { ignore_index: Some(-1), ..Default::default() };
            let x = Tensor::from([[f64::NEG_INFINITY, 0.0], [0.0, -2.0]]).requires_grad_(true);
            let one = ops::nll_loss(&x, &[-1i64, 1].into(), options)?;
            one.backward();
            let by_one = x.grad().expect("the tensor must have a gradient").to_vec::<f64>();
            x.zero_grad();
            let none = ops::nll_loss(&x, &[-1i64, -1].into(), options)?;
            none.backward();
            let by_none = x.grad().expect("the tensor must have a gradient").to_vec::<f64>();
            let values = one.item::<f64>() == 2.0 && none.item::<f64>().is_nan();
            Ok(values && by_one == [0.0, 0.0, 0.0, -1.0] && by_none == [0.0; 4])
        })
        .check("an invalid class must be an error", move || {
            bounds(ops::nll_loss(&x(), &[-1i64].into(), NllLossOptions::default()))
        })
        .check("a wrong number of targets must be an error", move || {
            shape_rejected(ops::nll_loss(&x(), &[0i64, 1].into(), NllLossOptions::default()))
        })
        .check("float classes must be an error", move || {
            integers_rejected(ops::nll_loss(&x(), &[0.0].into(), NllLossOptions::default()))
        }),
        with_loss_case(
            loss(
                "multi_margin_loss",
                [real([3, 3]), class([3], 3)],
                |x, reduction| {
                    ops::multi_margin_loss(&x[0], &x[1], MultiMarginLossOptions { reduction, ..Default::default() })
                },
                move |x| margin(x, 1.0, |_| 1.0),
            ),
            "squares, weighted".into(),
            [real([3, 3]), class([3], 3)],
            move |x, reduction| {
                let weight = weights(&x[0]);
                ops::multi_margin_loss(
                    &x[0],
                    &x[1],
                    MultiMarginLossOptions { p: 2.0, weight: Some(&weight), reduction, ..Default::default() },
                )
            },
            move |x| margin(x, 2.0, |c| W[c]),
            Reduction::None,
        )
        .check("an invalid class must be an error", move || {
            bounds(ops::multi_margin_loss(&x(), &[3i64].into(), MultiMarginLossOptions::default()))
        })
        .check("a wrong number of classes must be an error", move || {
            shape_rejected(ops::multi_margin_loss(&x(), &[0i64, 1].into(), MultiMarginLossOptions::default()))
        }),
        loss(
            "multilabel_margin_loss",
            [real([3, 4])],
            move |x, r| ops::multilabel_margin_loss(&x[0], &labels(), r),
            multilabel,
        )
        .check("an invalid class must be an error", move || {
            bounds(ops::multilabel_margin_loss(&x(), &[[3i64, -1, -1]].into(), Reduction::Mean))
        })
        .check("targets of another shape must be an error", move || {
            shape_rejected(ops::multilabel_margin_loss(&x(), &[0i64, -1, -1].into(), Reduction::Mean))
        }),
    ]
}

fn ranking_rows() -> Vec<Row> {
    let length = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
    let raised = |v: &[f64]| (v.iter().map(|x| x * x).sum::<f64>() + 1e-12).sqrt();
    let row = |x: &Nd, i: usize| x.data[3 * i..3 * i + 3].to_vec();
    let cosine = move |x: &[Nd], i: usize| {
        let (a, b) = (row(&x[0], i), row(&x[1], i));
        a.iter().zip(&b).map(|(a, b)| a * b).sum::<f64>() / (raised(&a) * raised(&b))
    };
    let distance = move |a: &Nd, b: &Nd, i: usize| {
        length(&row(a, i).iter().zip(row(b, i)).map(|(a, b)| a - b).collect::<Vec<_>>())
    };
    let triple = || [real([2, 3]), real([2, 3]), real([2, 3])];
    let no_eps = |reduction| TripletMarginLossOptions { margin: 3.0, eps: 0.0, reduction, ..Default::default() };
    let one = || Tensor::from([1.0]);
    vec![
        loss(
            "margin_ranking_loss",
            [real([2, 3]), real([2, 3]), mask([2, 3])],
            |x, r| ops::margin_ranking_loss(&x[0], &x[1], &signs(&x[2], x[0].dtype())?, 0.3, r),
            |x| zip(x, |v| f64::max(0.0, (v[1] - v[0]) * (2.0 * v[2] - 1.0) + 0.3)),
        )
        .check("operands of unequal ranks must be an error", move || {
            shape_rejected(ops::margin_ranking_loss(&one(), &Tensor::from(1.0), &one(), 0.0, Reduction::Mean))
        }),
        loss(
            "cosine_embedding_loss",
            [real([2, 3]), real([2, 3]), mask([2])],
            |x, r| ops::cosine_embedding_loss(&x[0], &x[1], &signs(&x[2], x[0].dtype())?, -1.5, r),
            move |x| {
                let value = |cos: f64, near: f64| if near != 0.0 { 1.0 - cos } else { f64::max(0.0, cos + 1.5) };
                Nd::from_fn(&[2], |ix| value(cosine(x, ix[0]), x[2].data[ix[0]]))
            },
        )
        .check("a wrong number of labels must be an error", move || {
            let x = Tensor::zeros([2, 3], DType::F32);
            shape_rejected(ops::cosine_embedding_loss(&x, &x, &x, 0.0, Reduction::Mean))
        }),
        loss(
            "triplet_margin_loss",
            triple(),
            move |x, r| ops::triplet_margin_loss(&x[0], &x[1], &x[2], no_eps(r)),
            move |x| {
                Nd::from_fn(&[2], |ix| {
                    f64::max(0.0, distance(&x[0], &x[1], ix[0]) - distance(&x[0], &x[2], ix[0]) + 3.0)
                })
            },
        )
        .case(
            "the nearer pair",
            triple(),
            move |x| {
                ops::triplet_margin_loss(
                    &x[0],
                    &x[1],
                    &x[2],
                    TripletMarginLossOptions { swap: true, ..no_eps(Reduction::Sum) },
                )
            },
            move |x| {
                let nearest_negative = |i| f64::min(distance(&x[0], &x[2], i), distance(&x[1], &x[2], i));
                Nd::scalar((0..2).map(|i| f64::max(0.0, distance(&x[0], &x[1], i) - nearest_negative(i) + 3.0)).sum())
            },
        )
        .floats_only()
        .check("a margin of 0 or less must be an error", move || {
            let options = TripletMarginLossOptions { margin: -1.0, ..TripletMarginLossOptions::default() };
            argument_rejected(ops::triplet_margin_loss(&one(), &one(), &one(), options))
        })
        .check("operands of unequal ranks must be an error", move || {
            shape_rejected(ops::triplet_margin_loss(
                &one(),
                &Tensor::from(1.0),
                &one(),
                TripletMarginLossOptions::default(),
            ))
        }),
        loss(
            "triplet_margin_with_distance_loss",
            [real([4]), real([4]), real([4])],
            |x, r| ops::triplet_margin_with_distance_loss(&x[0], &x[1], &x[2], |a, b| ops::mul(a, b), 0.7, false, r),
            |x| zip(x, |v| f64::max(0.0, v[0] * v[1] - v[0] * v[2] + 0.7)),
        )
        .check("an error of the distance function must be returned", move || {
            let rejected = |_: &Tensor, _: &Tensor| Err(Error::invalid("distance", "is not a distance"));
            let result =
                ops::triplet_margin_with_distance_loss(&one(), &one(), &one(), rejected, 1.0, false, Reduction::Mean);
            argument_rejected(result)
        }),
    ]
}

/// Computes −ln Σ over all paths of `steps` classes that collapse to the labels, by enumeration.
fn alignments(x: &Nd, sample: usize, steps: usize, labels: &[usize]) -> f64 {
    let classes = x.shape[2];
    let mut total = 0.0;
    for code in 0..classes.pow(steps as u32) {
        let path: Vec<usize> = (0..steps).map(|t| code / classes.pow(t as u32) % classes).collect();
        let mut said = path.clone();
        said.dedup();
        said.retain(|&class| class != 0);
        if said == labels {
            total += path.iter().enumerate().map(|(t, &class)| x.at(&[t, sample, class])).sum::<f64>().exp();
        }
    }
    -total.ln()
}

fn ctc_row() -> Row {
    let lengths = || (Tensor::from([4i64, 3]), Tensor::from([2i64, 1]));
    let call = move |x: &Tensor, reduction| {
        let (steps, labels) = lengths();
        ops::ctc_loss(
            x,
            &Tensor::from([[1i64, 1], [2, 1]]),
            &steps,
            &labels,
            CtcLossOptions { reduction, ..Default::default() },
        )
    };
    let each = |x: &Nd| Nd { shape: vec![2], data: vec![alignments(x, 0, 4, &[1, 1]), alignments(x, 1, 3, &[2])] };
    let logs = || real([4, 2, 3]).within(-2.0..=-0.5);
    let uniform = || Tensor::full([2, 1, 2], 0.5f64.ln(), DType::F64);
    let of = move |labels: [i64; 2], zero_infinity| -> Result<f64> {
        let options = CtcLossOptions { zero_infinity, ..Default::default() };
        Ok(ops::ctc_loss(&uniform(), &[labels].into(), &[2i64].into(), &[2i64].into(), options)?.item())
    };
    Row::new("ctc_loss")
        .rule(Rule::FloatsOnly)
        .ulps(64.0)
        .scale(4.0)
        .ordinary()
        .case("each", [logs()], move |x| call(&x[0], Reduction::None), move |x| each(&x[0]))
        .floats_only()
        .case("the sum", [logs()], move |x| call(&x[0], Reduction::Sum), move |x| reduced(&each(&x[0]), Reduction::Sum))
        .floats_only()
        .case(
            "the mean, by the labels",
            [logs()],
            move |x| call(&x[0], Reduction::Mean),
            move |x| {
                let y = each(&x[0]).data;
                Nd::scalar(0.5 * (y[0] / 2.0 + y[1]))
            },
        )
        .floats_only()
        .check("concatenated labels, and empty labels", || {
            let x = Tensor::full([2, 2, 2], 0.5f64.ln(), DType::F64);
            let options = CtcLossOptions { reduction: Reduction::None, ..Default::default() };
            let y = ops::ctc_loss(&x, &[1i64].into(), &[2i64, 2].into(), &[1i64, 0].into(), options)?.to_vec::<f64>();
            Ok((y[0] + 0.75f64.ln()).abs() < 1e-14 && (y[1] + 0.25f64.ln()).abs() < 1e-14)
        })
        .check("an impossible labelling must have loss ∞, or loss 0 and gradient 0", move || {
            let x = uniform().requires_grad_(true);
            let options = CtcLossOptions { zero_infinity: true, ..Default::default() };
            ops::ctc_loss(&x, &[[1i64, 1]].into(), &[2i64].into(), &[2i64].into(), options)?.backward();
            let flat = x.grad().expect("the tensor must have a gradient").to_vec::<f64>() == [0.0; 4];
            Ok(of([1, 1], false)? == f64::INFINITY && of([1, 1], true)? == 0.0 && flat)
        })
        .check("the gradient of an infinite loss must be NaN for that sample alone", || {
            let x = Tensor::full([3, 2, 2], 0.5f64.ln(), DType::F64).requires_grad_(true);
            let labels = Tensor::from([[1i64, 1, 1], [1, 1, 1]]);
            ops::ctc_loss(&x, &labels, &[3i64, 3].into(), &[3i64, 1].into(), CtcLossOptions::default())?.backward();
            let slopes = x.grad().expect("the tensor must have a gradient").isnan().any(-1).to_vec::<bool>();
            Ok(slopes == [true, false, true, false, true, false])
        })
        .check("the blank index must be a class", move || {
            let options = CtcLossOptions { blank: 2, ..Default::default() };
            argument_rejected(ops::ctc_loss(&uniform(), &[[1i64]].into(), &[2i64].into(), &[1i64].into(), options))
        })
        .check("a wrong number of lengths must be an error", move || {
            shape_rejected(ops::ctc_loss(
                &uniform(),
                &[[1i64]].into(),
                &[2i64, 2].into(),
                &[1i64].into(),
                CtcLossOptions::default(),
            ))
        })
}

pub(super) fn rows() -> Vec<Row> {
    regression_rows()
        .into_iter()
        .chain(binary_rows())
        .chain(class_rows())
        .chain(ranking_rows())
        .chain([ctc_row()])
        .collect()
}
