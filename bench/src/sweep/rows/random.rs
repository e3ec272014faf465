//! Random numbers.

use crate::sweep::OperandValues::{Normal, Positive, Unit};
use crate::sweep::{SweepRow, vectors};
use pellucid::{DType, Generator, Tensor, ops};

pub(super) fn rows() -> Vec<SweepRow> {
    let like_first: Vec<SweepRow> = vec![
        SweepRow::new("rand", "torch.rand(a.shape)", |t, _| Tensor::rand(t[0].shape().dims(), DType::F32)),
        SweepRow::new("randn", "torch.randn(a.shape)", |t, _| Tensor::randn(t[0].shape().dims(), DType::F32)),
        SweepRow::new("rand_with", "torch.rand(a.shape)", |t, _| {
            ops::rand_with(t[0].shape().clone(), DType::F32, &Generator::default()).expect("the shape must be valid")
        }),
        SweepRow::new("randn_with", "torch.randn(a.shape)", |t, _| {
            ops::randn_with(t[0].shape().clone(), DType::F32, &Generator::default()).expect("the shape must be valid")
        }),
        SweepRow::new("randint", "torch.randint(0, 1000, a.shape)", |t, _| {
            Tensor::randint(0, 1000, t[0].shape().dims())
        }),
        SweepRow::new("rand_like", "torch.rand_like(a)", |t, _| t[0].rand_like()),
        SweepRow::new("randn_like", "torch.randn_like(a)", |t, _| t[0].randn_like()),
        SweepRow::new("randint_like", "torch.randint_like(a, 0, 1000)", |t, _| t[0].randint_like(0, 1000)),
        SweepRow::new("randperm", "torch.randperm(a.numel())", |t, _| {
            ops::randperm(t[0].numel()).expect("the length must be valid")
        }),
    ];
    let mut rows: Vec<SweepRow> = like_first.into_iter().map(|row| row.of([Normal]).forward_only()).collect();
    rows.extend([
        SweepRow::new("bernoulli", "torch.bernoulli(a)", |t, _| t[0].bernoulli()).of([Unit]).forward_only(),
        SweepRow::new("normal", "torch.normal(a, b)", |t, _| t[0].normal(&t[1])).of([Normal, Positive]).forward_only(),
        SweepRow::new("multinomial", "a.multinomial(64, replacement=True)", |t, _| t[0].multinomial(64, true))
            .of([Positive])
            .shapes(vectors)
            .forward_only(),
        SweepRow::new("dropout", "F.dropout(a, 0.5)", |t, _| t[0].dropout(0.5)).of([Normal]),
        SweepRow::new("alpha_dropout", "F.alpha_dropout(a, 0.5, training=True)", |t, _| t[0].alpha_dropout(0.5))
            .of([Normal]),
        SweepRow::new("feature_dropout", "F.dropout1d(a[None], 0.5)", |t, _| t[0].unsqueeze(0).feature_dropout(0.5))
            .of([Normal]),
        SweepRow::new("feature_alpha_dropout", "F.feature_alpha_dropout(a[None], 0.5, training=True)", |t, _| {
            t[0].unsqueeze(0).feature_alpha_dropout(0.5)
        })
        .of([Normal]),
        SweepRow::new("rrelu", "F.rrelu(a, training=True)", |t, _| t[0].rrelu(0.125, 1.0 / 3.0)).of([Normal]),
        SweepRow::new("gumbel_softmax", "F.gumbel_softmax(a)", |t, _| t[0].gumbel_softmax(1.0, false, -1)).of([Normal]),
    ]);
    rows
}
