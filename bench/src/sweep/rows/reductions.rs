//! Reductions, scans and statistics over the first, the middle and the last axis.

use crate::sweep::OperandValues::{self, Mask, Normal, Positive};
use crate::sweep::{NamedCase, RunCase, SweepRow, cubes, vectors};
use pellucid::{DType, ops};

const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::BF16];

pub(super) fn rows() -> Vec<SweepRow> {
    let wide = ["sum", "max", "softmax", "cumsum", "mean"];
    let row = |(op, torch, values, run)| {
        axis_row(op, torch, values, run).dtypes(if wide.contains(&op) { FLOATS } else { &[] })
    };
    let mut rows: Vec<SweepRow> = along_axis().into_iter().map(row).collect();
    rows.extend(
        without_gradient().into_iter().map(|(op, torch, values, run)| axis_row(op, torch, values, run).forward_only()),
    );
    rows.extend(
        masked().into_iter().map(|(op, run)| SweepRow::new(op, "", run).of([Normal, Mask]).shapes(cubes).axes(3)),
    );
    rows.push(
        SweepRow::new("masked_argmax", "", |t, s| t[0].masked_argmax(&t[1], s.axis))
            .of([Normal, Mask])
            .shapes(cubes)
            .axes(3)
            .forward_only(),
    );
    rows.push(
        SweepRow::new("masked_argmin", "", |t, s| t[0].masked_argmin(&t[1], s.axis))
            .of([Normal, Mask])
            .shapes(cubes)
            .axes(3)
            .forward_only(),
    );
    rows.extend(full_reductions());
    rows
}

fn axis_row(op: &'static str, torch: &'static str, values: OperandValues, run: RunCase) -> SweepRow {
    SweepRow::new(op, torch, run).of([values]).shapes(cubes).axes(3)
}

fn along_axis() -> Vec<NamedCase> {
    vec![
        ("sum", "a.sum({d})", Normal, |t, s| t[0].sum(s.axis)),
        ("mean", "a.mean({d})", Normal, |t, s| t[0].mean(s.axis)),
        ("max", "a.amax({d})", Normal, |t, s| t[0].max(s.axis)),
        ("min", "a.amin({d})", Normal, |t, s| t[0].min(s.axis)),
        ("prod", "a.prod({d})", Positive, |t, s| t[0].prod(s.axis)),
        ("var", "a.var({d}, correction=0)", Normal, |t, s| t[0].var(s.axis)),
        ("std", "a.std({d}, correction=0)", Normal, |t, s| t[0].std(s.axis)),
        ("norm", "torch.linalg.vector_norm(a, dim={d})", Normal, |t, s| t[0].norm(2.0, s.axis)),
        ("norm", "torch.linalg.vector_norm(a, 1, dim={d})", Normal, |t, s| t[0].norm(1.0, s.axis)),
        ("logsumexp", "a.logsumexp({d})", Normal, |t, s| t[0].logsumexp(s.axis)),
        ("nansum", "a.nansum({d})", Normal, |t, s| t[0].nansum(s.axis)),
        ("nanmean", "a.nanmean({d})", Normal, |t, s| t[0].nanmean(s.axis)),
        ("ptp", "a.amax({d}) - a.amin({d})", Normal, |t, s| t[0].ptp(s.axis)),
        ("softmax", "torch.softmax(a, {d})", Normal, |t, s| t[0].softmax(s.axis)),
        ("log_softmax", "torch.log_softmax(a, {d})", Normal, |t, s| t[0].log_softmax(s.axis)),
        ("softmin", "F.softmin(a, {d})", Normal, |t, s| t[0].softmin(s.axis)),
        ("cumsum", "a.cumsum({d})", Normal, |t, s| t[0].cumsum(s.axis)),
        ("cumprod", "a.cumprod({d})", Positive, |t, s| t[0].cumprod(s.axis)),
        ("cummax", "a.cummax({d})[0]", Normal, |t, s| t[0].cummax(s.axis).0),
        ("cummin", "a.cummin({d})[0]", Normal, |t, s| t[0].cummin(s.axis).0),
        ("logcumsumexp", "a.logcumsumexp({d})", Normal, |t, s| t[0].logcumsumexp(s.axis)),
        ("diff", "a.diff(dim={d})", Normal, |t, s| t[0].diff(1, s.axis)),
        ("median", "a.median({d})[0]", Normal, |t, s| t[0].median(s.axis).0),
        ("quantile", "a.quantile(0.9, dim={d})", Normal, |t, s| {
            t[0].quantile(0.9, s.axis, ops::QuantileInterpolation::Linear)
        }),
        ("nanquantile", "a.nanquantile(0.9, dim={d})", Normal, |t, s| {
            t[0].nanquantile(0.9, s.axis, ops::QuantileInterpolation::Linear)
        }),
        ("nanmedian", "a.nanmedian({d})[0]", Normal, |t, s| t[0].nanmedian(s.axis).0),
        ("std_mean", "sum(torch.std_mean(a, {d}, correction=0))", Normal, |t, s| {
            let (std, mean) = t[0].std_mean(s.axis);
            std + mean
        }),
        ("var_mean", "sum(torch.var_mean(a, {d}, correction=0))", Normal, |t, s| {
            let (var, mean) = t[0].var_mean(s.axis);
            var + mean
        }),
        ("aminmax", "torch.aminmax(a, dim={d})[0]", Normal, |t, s| t[0].aminmax(s.axis).0),
        ("nanmax", "", Normal, |t, s| t[0].nanmax(s.axis)),
        ("nanmin", "", Normal, |t, s| t[0].nanmin(s.axis)),
        ("nanprod", "", Positive, |t, s| t[0].nanprod(s.axis)),
        ("nanvar", "", Normal, |t, s| t[0].nanvar(s.axis)),
        ("nanstd", "", Normal, |t, s| t[0].nanstd(s.axis)),
        ("nancumsum", "", Normal, |t, s| t[0].nancumsum(s.axis)),
        ("nancumprod", "", Positive, |t, s| t[0].nancumprod(s.axis)),
        ("normalize", "F.normalize(a, dim={d})", Normal, |t, s| t[0].normalize(2.0, s.axis, 1e-12)),
        ("renorm", "torch.renorm(a, 2, {d}, 1.0)", Normal, |t, s| t[0].renorm(2.0, s.axis, 1.0)),
        ("map_rows", "a - a.mean({d}, keepdim=True)", Normal, |t, s| {
            ops::map_rows(pellucid::formula!(|x| x - x.row_mean()), &[&t[0]], &[], s.axis)
                .expect("the formula must have one input")
        }),
        ("map_rows_all", "a - a.mean({d}, keepdim=True)", Normal, |t, s| {
            let f = pellucid::formula!(|x| (x - x.row_mean(), x.row_mean()));
            ops::map_rows_all(f, &[&t[0]], &[], s.axis).expect("the formula must have one input").swap_remove(0)
        }),
    ]
}

fn without_gradient() -> Vec<NamedCase> {
    vec![
        ("argmax", "a.argmax({d})", Normal, |t, s| t[0].argmax(s.axis)),
        ("argmin", "a.argmin({d})", Normal, |t, s| t[0].argmin(s.axis)),
        ("any", "a.any({d})", Mask, |t, s| t[0].any(s.axis)),
        ("all", "a.all({d})", Mask, |t, s| t[0].all(s.axis)),
        ("count_nonzero", "torch.count_nonzero(a, {d})", Normal, |t, s| t[0].count_nonzero(s.axis)),
        ("nanargmax", "", Normal, |t, s| t[0].nanargmax(s.axis)),
        ("nanargmin", "", Normal, |t, s| t[0].nanargmin(s.axis)),
        ("mode", "a.mode({d})[0]", OperandValues::Integers(0, 20), |t, s| t[0].mode(s.axis).0),
    ]
}

fn masked() -> Vec<(&'static str, RunCase)> {
    vec![
        ("masked_sum", |t, s| t[0].masked_sum(&t[1], s.axis)),
        ("masked_mean", |t, s| t[0].masked_mean(&t[1], s.axis)),
        ("masked_max", |t, s| t[0].masked_max(&t[1], s.axis)),
        ("masked_min", |t, s| t[0].masked_min(&t[1], s.axis)),
        ("masked_prod", |t, s| t[0].masked_prod(&t[1], s.axis)),
        ("masked_var", |t, s| t[0].masked_var(&t[1], s.axis)),
        ("masked_std", |t, s| t[0].masked_std(&t[1], s.axis)),
        ("masked_median", |t, s| t[0].masked_median(&t[1], s.axis).0),
        ("masked_norm", |t, s| t[0].masked_norm(&t[1], 2.0, s.axis)),
        ("masked_logsumexp", |t, s| t[0].masked_logsumexp(&t[1], s.axis)),
        ("masked_softmax", |t, s| t[0].masked_softmax(&t[1], s.axis)),
        ("masked_log_softmax", |t, s| t[0].masked_log_softmax(&t[1], s.axis)),
        ("masked_softmin", |t, s| t[0].masked_softmin(&t[1], s.axis)),
        ("masked_cumsum", |t, s| t[0].masked_cumsum(&t[1], s.axis)),
        ("masked_cumprod", |t, s| t[0].masked_cumprod(&t[1], s.axis)),
        ("masked_normalize", |t, s| t[0].masked_normalize(&t[1], 2.0, s.axis, 1e-12)),
    ]
}

/// Returns the rows of reductions over all elements.
fn full_reductions() -> Vec<SweepRow> {
    vec![
        SweepRow::new("sum", "a.sum()", |t, _| t[0].sum(..)).of([Normal]).layouts(),
        SweepRow::new("max", "a.max()", |t, _| t[0].max(..)).of([Normal]).layouts(),
        SweepRow::new("mean", "a.mean()", |t, _| t[0].mean(..)).of([Normal]),
        SweepRow::new("var", "a.var(correction=0)", |t, _| t[0].var(..)).of([Normal]),
        SweepRow::new("prod", "a.prod()", |t, _| t[0].prod(..)).of([Positive]),
        SweepRow::new("norm", "torch.linalg.vector_norm(a)", |t, _| t[0].norm(2.0, ..)).of([Normal]),
        SweepRow::new("logsumexp", "a.flatten().logsumexp(0)", |t, _| t[0].logsumexp(..)).of([Normal]),
        SweepRow::new("argmax", "a.argmax()", |t, _| t[0].argmax(..)).of([Normal]).forward_only(),
        SweepRow::new("allclose", "torch.allclose(a, a)", |t, _| t[0].allclose(&t[0], 1e-5, 1e-8, false))
            .of([Normal])
            .forward_only(),
        SweepRow::new("equal", "torch.equal(a, a.clone())", |t, _| t[0].equal(&t[0].copy()))
            .of([Normal])
            .forward_only(),
        SweepRow::new("cov", "torch.cov(a)", |t, _| t[0].cov(ops::CovOptions::default()))
            .of([Normal])
            .gradient_up_to(1),
        SweepRow::new("corrcoef", "torch.corrcoef(a)", |t, _| t[0].corrcoef()).of([Normal]).gradient_up_to(1),
        SweepRow::new("dist", "torch.dist(a, b)", |t, _| t[0].dist(&t[1], 2.0)).of([Normal; 2]),
        SweepRow::new("trapezoid", "torch.trapezoid(a)", |t, _| t[0].trapezoid(ops::Spacing::Step(1.0), -1))
            .of([Normal]),
        SweepRow::new("cumulative_trapezoid", "torch.cumulative_trapezoid(a)", |t, _| {
            t[0].cumulative_trapezoid(ops::Spacing::Step(1.0), -1)
        })
        .of([Normal]),
        SweepRow::new("gradient", "torch.gradient(a, dim=1)[0]", |t, _| t[0].gradient(ops::Spacing::Step(1.0), 1, 1))
            .of([Normal]),
        SweepRow::new("reduce", "a.mean(1)", |t, _| {
            ops::einops::reduce(&t[0], "i j -> i", ops::einops::EinopsReduction::Mean, &[])
                .expect("the pattern must fit")
        })
        .of([Normal]),
        SweepRow::new("rearrange", "a.t().reshape(-1)", |t, _| {
            ops::einops::rearrange(&t[0], "i j -> (j i)", &[]).expect("the pattern must fit")
        })
        .of([Normal]),
        SweepRow::new("median", "a.median()", |t, _| t[0].median(..).0).of([Normal]).shapes(vectors),
    ]
}
