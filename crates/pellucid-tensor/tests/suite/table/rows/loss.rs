//! Cross-entropy, with every option.

use crate::table::nd::{Nd, with};
use crate::table::row::{Row, Rule, class, real};
use ops::{CrossEntropyOptions, Reduction};
use pellucid_tensor::{Error, Tensor, lazy, ops};

/// Computes −Σ_c p_c·log softmax(x)_c along the class axis; `target` returns p at an index of x.
fn losses(x: &Nd, axis: usize, smoothing: f64, target: impl Fn(&[usize]) -> f64) -> Nd {
    let classes = x.shape[axis];
    let per_sample = Nd::from_fn(&with(&x.shape, axis, 1), |ix| {
        let logit = |c| x.at(&with(ix, axis, c));
        let sum: f64 = (0..classes).map(|c| f64::exp(logit(c))).sum();
        let share = |c| (1.0 - smoothing) * target(&with(ix, axis, c)) + smoothing / classes as f64;
        (0..classes).map(|c| share(c) * (sum.ln() - logit(c))).sum()
    });
    let mut shape = x.shape.clone();
    shape.remove(axis);
    per_sample.reshape(&shape)
}

/// Returns 1 at the class index, else 0.
fn one_hot(classes: &Nd, axis: usize) -> impl Fn(&[usize]) -> f64 {
    move |ix| {
        let mut own = ix.to_vec();
        own.remove(axis);
        f64::from(classes.at(&own) == ix[axis] as f64)
    }
}

fn axis_of(x: &Nd) -> usize {
    x.shape.len().min(2) - 1
}

fn hard(x: &[Nd], smoothing: f64) -> Nd {
    let axis = axis_of(&x[0]);
    losses(&x[0], axis, smoothing, one_hot(&x[1], axis))
}

fn soft(x: &[Nd], smoothing: f64) -> Nd {
    losses(&x[0], axis_of(&x[0]), smoothing, |ix| x[1].at(ix))
}

fn total(x: &Nd) -> Nd {
    Nd::scalar(x.data.iter().sum())
}

fn mean(x: &Nd) -> Nd {
    Nd::scalar(x.data.iter().sum::<f64>() / x.data.len() as f64)
}

/// Returns the losses with 0 for the ignored class, and the number of the others.
fn ignoring(x: &[Nd], ignored: f64, smoothing: f64) -> (Nd, f64) {
    let each = hard(x, smoothing);
    let kept = |i: usize| x[1].data[i] != ignored;
    let data = (0..each.data.len()).map(|i| if kept(i) { each.data[i] } else { 0.0 }).collect();
    let count = (0..each.data.len()).filter(|&i| kept(i)).count();
    (Nd { shape: each.shape, data }, count as f64)
}

fn options(label_smoothing: f64, ignore_index: Option<i64>, reduction: Reduction) -> CrossEntropyOptions<'static> {
    CrossEntropyOptions { label_smoothing, ignore_index, reduction, weight: None }
}

const WEIGHTS: [f64; 3] = [0.5, 1.0, 3.0];

/// Computes −Σ_c w_c·p_c·log softmax(x)_c for a matrix of logits.
fn weighted_losses(x: &[Nd], smoothing: f64, target: impl Fn(&[usize]) -> f64) -> Nd {
    Nd::from_fn(&x[0].shape[..1], |ix| {
        let row: Vec<f64> = (0..3).map(|c| x[0].at(&[ix[0], c])).collect();
        let sum = row.iter().map(|v| v.exp()).sum::<f64>().ln();
        let p = |c| (1.0 - smoothing) * target(&[ix[0], c]) + smoothing / 3.0;
        (0..3).map(|c| WEIGHTS[c] * p(c) * (sum - row[c])).sum()
    })
}

fn weighed(label_smoothing: f64, reduction: Reduction) -> impl Fn(&[Tensor]) -> pellucid_tensor::Result<Tensor> {
    move |x| {
        let weight = Tensor::from(WEIGHTS).to_dtype(x[0].dtype());
        let options = CrossEntropyOptions { label_smoothing, reduction, weight: Some(&weight), ..Default::default() };
        ops::cross_entropy(&x[0], &x[1], options)
    }
}

pub(super) fn rows() -> Vec<Row> {
    use Reduction::{Mean, None as Each, Sum};
    let plain = |reduction| move |x: &[Tensor]| ops::cross_entropy(&x[0], &x[1], options(0.0, None, reduction));
    let smooth = |reduction| move |x: &[Tensor]| ops::cross_entropy(&x[0], &x[1], options(0.2, None, reduction));
    let but_one = |s, reduction| move |x: &[Tensor]| ops::cross_entropy(&x[0], &x[1], options(s, Some(1), reduction));
    let classes = || [real([3, 4]), class([3], 4)];
    let shares = || [real([2, 3]), real([2, 3]).within(0.05..=0.95)];
    let row = Row::new("cross_entropy")
        .rule(Rule::FloatsOnly)
        .ulps(32.0)
        .scale(2.0)
        .case("classes, mean", classes(), plain(Mean), |x| mean(&hard(x, 0.0)))
        .case("classes, sum", classes(), plain(Sum), |x| total(&hard(x, 0.0)))
        .floats_only()
        .case("classes, each", classes(), plain(Each), |x| hard(x, 0.0))
        .floats_only()
        .case("classes, smoothed", classes(), smooth(Mean), |x| mean(&hard(x, 0.2)))
        .floats_only()
        .case("classes, smoothed, each", classes(), smooth(Each), |x| hard(x, 0.2))
        .floats_only()
        .case("classes but one, mean", [real([6, 3]), class([6], 3)], but_one(0.0, Mean), |x| {
            let (each, count) = ignoring(x, 1.0, 0.0);
            Nd::scalar(total(&each).data[0] / count)
        })
        .floats_only()
        .case("classes but one, each", classes(), but_one(0.2, Each), |x| ignoring(x, 1.0, 0.2).0)
        .floats_only()
        .case("one sample", [real([4]), class([], 4)], plain(Mean), |x| hard(x, 0.0))
        .floats_only()
        .case("further axes", [real([2, 3, 2]), class([2, 2], 3)], plain(Each), |x| hard(x, 0.0))
        .floats_only()
        .case("further axes, mean", [real([2, 3, 2]), class([2, 2], 3)], smooth(Mean), |x| mean(&hard(x, 0.2)))
        .floats_only()
        .case("weighted classes, smoothed, mean", [real([4, 3]), class([4], 3)], weighed(0.2, Mean), |x| {
            let weights: f64 = x[1].data.iter().map(|&c| WEIGHTS[c as usize]).sum();
            Nd::scalar(total(&weighted_losses(x, 0.2, one_hot(&x[1], 1))).data[0] / weights)
        })
        .floats_only()
        .case("weighted classes, each", [real([4, 3]), class([4], 3)], weighed(0.0, Each), |x| {
            weighted_losses(x, 0.0, one_hot(&x[1], 1))
        })
        .floats_only()
        .case(
            "weighted probabilities, mean",
            [real([2, 3]), real([2, 3]).within(0.05..=0.95)],
            weighed(0.1, Mean),
            |x| mean(&weighted_losses(x, 0.1, |ix| x[1].at(ix))),
        )
        .floats_only()
        .case("no sample, sum", [real([0, 3]), class([0], 3)], plain(Sum), |x| total(&hard(x, 0.0)))
        .floats_only()
        .case("probabilities, mean", shares(), plain(Mean), |x| mean(&soft(x, 0.0)))
        .floats_only()
        .case("probabilities, each", shares(), smooth(Each), |x| soft(x, 0.2))
        .floats_only()
        .case("probabilities, further axes", [real([2, 3, 2]), real([2, 3, 2]).within(0.0..=1.0)], plain(Sum), |x| {
            total(&soft(x, 0.0))
        })
        .floats_only()
        // Infinite logits and NaN are in the checks below: the naive sum overflows for them.
        .ordinary();
    vec![with_checks(row)]
}

fn with_checks(row: Row) -> Row {
    fn rejected(logits: Tensor, targets: Tensor, options: CrossEntropyOptions<'_>) -> Option<Error> {
        ops::cross_entropy(&logits, &targets, options).err()
    }
    let logits = || Tensor::from([[1.0, 2.0, 3.0]]);
    row.check("large logits", || {
        Ok(ops::cross_entropy(&Tensor::from([[1e4, 0.0]]), &[1i64].into(), CrossEntropyOptions::default())?
            .item::<f64>()
            == 1e4)
    })
    .check("NaN must propagate", || {
        Ok(ops::cross_entropy(&Tensor::from([[f64::NAN, 0.0]]), &[1i64].into(), CrossEntropyOptions::default())?
            .item::<f64>()
            .is_nan())
    })
    .check("a logit of −∞ must contribute nothing", || {
        let x = Tensor::from([[0.0, f64::NEG_INFINITY]]);
        Ok(ops::cross_entropy(&x, &[0i64].into(), CrossEntropyOptions::default())?.item::<f64>() == 0.0)
    })
    .check("an invalid class must be an error, and must give NaN in deferred execution", || {
        let x = Tensor::from([[0.0, 1.0], [0.0, 1.0]]);
        let each = CrossEntropyOptions { reduction: Reduction::None, ..Default::default() };
        let loss = |classes: [i64; 2]| ops::cross_entropy(&x, &classes.into(), each);
        let rejected = |classes, wrong| {
            let error = loss(classes).unwrap_err();
            error == Error::IndexOutOfBounds { op: "cross_entropy", index: wrong, axis: 1, len: 2 }
        };
        let deferred = lazy(|| loss([2, -1]))?;
        Ok(rejected([1, 2], 2) && rejected([-1, 0], -1) && deferred.to_vec::<f64>().iter().all(|v| v.is_nan()))
    })
    .check("the ignored index must be allowed to be any integer", || {
        let options = CrossEntropyOptions { ignore_index: Some(-100), ..Default::default() };
        let (x, t) = (Tensor::from([[0.0, 0.0], [5.0, 1.0]]).requires_grad_(true), Tensor::from([1i64, -100]));
        let loss = ops::cross_entropy(&x, &t, options)?;
        loss.backward();
        Ok((loss.item::<f64>() - 2f64.ln()).abs() < 1e-15
            && x.grad().expect("the tensor must have a gradient").to_vec::<f64>() == [0.5, -0.5, 0.0, 0.0])
    })
    .check("class indices of every integer dtype must be accepted", || {
        let loss = |t: Tensor| {
            Ok(ops::cross_entropy(&Tensor::from([[0.0, 3.0]]), &t, CrossEntropyOptions::default())?.item::<f64>())
        };
        let expected = loss([1i64].into())?;
        let others = [loss([1u8].into())?, loss([1i8].into())?, loss([1i16].into())?, loss([1i32].into())?];
        Ok(others == [expected; 4])
    })
    .check("targets of another shape must be an error", move || {
        Ok(matches!(
            rejected(logits(), [0i64, 1].into(), CrossEntropyOptions::default()),
            Some(Error::ShapeMismatch { .. })
        ))
    })
    .check("bool targets must be an error", move || {
        Ok(matches!(
            rejected(logits(), [true].into(), CrossEntropyOptions::default()),
            Some(Error::DTypeMismatch { .. })
        ))
    })
    .check("smoothing above 1 must be an error", move || {
        let options = CrossEntropyOptions { label_smoothing: 1.5, ..Default::default() };
        Ok(matches!(rejected(logits(), [0i64].into(), options), Some(Error::InvalidArgument { .. })))
    })
}
