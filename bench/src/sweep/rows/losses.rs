//! Loss functions.

use crate::sweep::OperandValues::{self, Below, LogProbabilities, Normal, Positive, Signs, Unit};
use crate::sweep::SweepRow;
use pellucid::ops;
use pellucid::ops::Reduction::Mean;

/// Returns the shapes of logits `[N, C]` and of one class per row.
fn classes(n: usize) -> Vec<Vec<usize>> {
    let (rows, classes) = [(8, 8), (512, 128), (1024, 1024)][n];
    vec![vec![rows, classes], vec![rows]]
}

const CLASS: OperandValues = Below([8, 128, 1024]);

/// Returns the shapes of two matrices and of one label per row.
fn rows_and_labels(n: usize) -> Vec<Vec<usize>> {
    let (rows, width) = [(8, 8), (512, 128), (4096, 256)][n];
    vec![vec![rows, width], vec![rows, width], vec![rows]]
}

pub(super) fn rows() -> Vec<SweepRow> {
    // The targets are constants.
    let mut rows: Vec<SweepRow> = elementwise().into_iter().map(|row| row.leaves(1)).collect();
    rows.extend([
        SweepRow::new("cross_entropy", "F.cross_entropy(a, b)", |t, _| t[0].cross_entropy(&t[1], Default::default()))
            .of([Normal, CLASS])
            .shapes(classes),
        SweepRow::new("nll_loss", "F.nll_loss(a, b)", |t, _| t[0].nll_loss(&t[1], Default::default()))
            .of([LogProbabilities, CLASS])
            .shapes(classes),
        SweepRow::new("multi_margin_loss", "F.multi_margin_loss(a, b)", |t, _| {
            t[0].multi_margin_loss(&t[1], Default::default())
        })
        .of([Normal, CLASS])
        .shapes(classes),
        SweepRow::new(
            "multilabel_margin_loss",
            "F.multilabel_margin_loss(a, b[:, None] - torch.arange(a.shape[1]).clamp(max=1) * (b[:, None] + 1))",
            |t, _| {
                let width = t[0].shape()[1];
                let column = pellucid::Tensor::arange(0i64, width as i64, 1).clamp(0, 1);
                let class = t[1].unsqueeze(1);
                t[0].multilabel_margin_loss(&(&class - &column * (&class + 1)), Mean)
            },
        )
        .of([Normal, CLASS])
        .shapes(classes),
        SweepRow::new("margin_ranking_loss", "F.margin_ranking_loss(a, b, c)", |t, _| {
            t[0].margin_ranking_loss(&t[1], &t[2], 0.0, Mean)
        })
        .of([Normal, Normal, Signs]),
        SweepRow::new("cosine_embedding_loss", "F.cosine_embedding_loss(a, b, c)", |t, _| {
            t[0].cosine_embedding_loss(&t[1], &t[2], 0.0, Mean)
        })
        .of([Normal, Normal, Signs])
        .shapes(rows_and_labels),
        SweepRow::new("triplet_margin_loss", "F.triplet_margin_loss(a, b, c)", |t, _| {
            t[0].triplet_margin_loss(&t[1], &t[2], Default::default())
        })
        .of([Normal; 3]),
        SweepRow::new("triplet_margin_with_distance_loss", "F.triplet_margin_with_distance_loss(a, b, c)", |t, _| {
            let distance = |a: &pellucid::Tensor, b: &pellucid::Tensor| ops::pairwise_distance(a, b, 2.0, 1e-6, false);
            t[0].triplet_margin_with_distance_loss(&t[1], &t[2], distance, 1.0, false, Mean)
        })
        .of([Normal; 3]),
        SweepRow::new("gaussian_nll_loss", "F.gaussian_nll_loss(a, b, c)", |t, _| {
            t[0].gaussian_nll_loss(&t[1], &t[2], false, 1e-6, Mean)
        })
        .of([Normal, Normal, Positive]),
        SweepRow::new(
            "ctc_loss",
            "F.ctc_loss(a, b, full((a.shape[1],), a.shape[0]), full((a.shape[1],), b.shape[1]), zero_infinity=True)",
            |t, _| {
                let (steps, batch, length) = (t[0].shape()[0] as i64, t[0].shape()[1], t[1].shape()[1] as i64);
                let count = |n: i64| pellucid::Tensor::full([batch], n, pellucid::DType::I64);
                t[0].ctc_loss(
                    &t[1],
                    &count(steps),
                    &count(length),
                    ops::CtcLossOptions { zero_infinity: true, ..Default::default() },
                )
            },
        )
        .of([LogProbabilities, OperandValues::Integers(1, 8)])
        .shapes(|n| {
            let (steps, batch, classes, length) = [(8, 2, 8, 3), (50, 16, 32, 10), (100, 64, 64, 20)][n];
            vec![vec![steps, batch, classes], vec![batch, length]]
        }),
    ]);
    rows
}

fn elementwise() -> Vec<SweepRow> {
    vec![
        SweepRow::new("mse_loss", "F.mse_loss(a, b)", |t, _| t[0].mse_loss(&t[1], Mean)).of([Normal; 2]),
        SweepRow::new("l1_loss", "F.l1_loss(a, b)", |t, _| t[0].l1_loss(&t[1], Mean)).of([Normal; 2]),
        SweepRow::new("smooth_l1_loss", "F.smooth_l1_loss(a, b)", |t, _| t[0].smooth_l1_loss(&t[1], 1.0, Mean))
            .of([Normal; 2]),
        SweepRow::new("huber_loss", "F.huber_loss(a, b)", |t, _| t[0].huber_loss(&t[1], 1.0, Mean)).of([Normal; 2]),
        SweepRow::new("kl_div", "F.kl_div(a, b, reduction='mean')", |t, _| t[0].kl_div(&t[1], false, Mean))
            .of([Normal, Unit]),
        SweepRow::new("poisson_nll_loss", "F.poisson_nll_loss(a, b)", |t, _| {
            t[0].poisson_nll_loss(&t[1], Default::default())
        })
        .of([Normal, Positive]),
        SweepRow::new("binary_cross_entropy", "F.binary_cross_entropy(a, b)", |t, _| {
            t[0].binary_cross_entropy(&t[1], None, Mean)
        })
        .of([Unit; 2]),
        SweepRow::new("binary_cross_entropy_with_logits", "F.binary_cross_entropy_with_logits(a, b)", |t, _| {
            t[0].binary_cross_entropy_with_logits(&t[1], None, None, Mean)
        })
        .of([Normal, Unit]),
        SweepRow::new("soft_margin_loss", "F.soft_margin_loss(a, b)", |t, _| t[0].soft_margin_loss(&t[1], Mean))
            .of([Normal, Signs]),
        SweepRow::new("hinge_embedding_loss", "F.hinge_embedding_loss(a, b)", |t, _| {
            t[0].hinge_embedding_loss(&t[1], 1.0, Mean)
        })
        .of([Normal, Signs]),
        SweepRow::new("multilabel_soft_margin_loss", "F.multilabel_soft_margin_loss(a, b)", |t, _| {
            t[0].multilabel_soft_margin_loss(&t[1], None, Mean)
        })
        .of([Normal, Unit]),
    ]
}
