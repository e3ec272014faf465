//! Products of vectors, matrices and tensors.

use crate::sweep::OperandValues::Normal;
use crate::sweep::SweepRow;
use pellucid::{DType, Tensor, ops};

/// The side lengths of matrices.
const SIDES: [usize; 3] = [8, 128, 512];

fn matrices<const K: usize>(n: usize) -> Vec<Vec<usize>> {
    vec![vec![SIDES[n]; 2]; K]
}

fn batches<const K: usize>(n: usize) -> Vec<Vec<usize>> {
    let (batch, side) = [(2, 4), (16, 64), (64, 128)][n];
    vec![vec![batch, side, side]; K]
}

fn matrix_and_vector(n: usize) -> Vec<Vec<usize>> {
    let side = [8, 256, 1024][n];
    vec![vec![side], vec![side, side], vec![side]]
}

fn vectors(n: usize) -> Vec<Vec<usize>> {
    vec![vec![[64, 1 << 16, 1 << 20][n]]; 2]
}

fn sides(n: usize) -> Vec<Vec<usize>> {
    vec![vec![[8, 256, 1024][n]]; 2]
}

fn einsum(equation: &str, factors: &[&Tensor]) -> Tensor {
    ops::einsum(equation, factors).expect("the equation must fit")
}

pub(super) fn rows() -> Vec<SweepRow> {
    let mut rows: Vec<SweepRow> = vec![
        SweepRow::new("matmul", "a @ b", |t, _| t[0].matmul(&t[1])).shapes(matrices::<2>).dtypes(&[
            DType::F32,
            DType::F64,
            DType::BF16,
        ]),
        SweepRow::new("matmul", "a.t() @ b", |t, _| t[0].t().matmul(&t[1])).shapes(matrices::<2>),
        SweepRow::new("matmul", "a @ b.t()", |t, _| t[0].matmul(&t[1].t())).shapes(matrices::<2>),
        SweepRow::new("matmul", "torch.bmm(a, b)", |t, _| t[0].matmul(&t[1])).shapes(batches::<2>),
        SweepRow::new("matmul", "a @ b", |t, _| t[0].matmul(&t[1]))
            .shapes(|n| vec![vec![[8, 256, 1024][n]; 2], vec![[8, 256, 1024][n]]]),
        SweepRow::new("matmul_integer", "torch._int_mm(a.to(torch.int8), b.to(torch.int8))", |t, _| {
            t[0].to_dtype(DType::I8).matmul_integer(&t[1].to_dtype(DType::I8))
        })
        .shapes(|n| vec![vec![[32, 128, 512][n]; 2]; 2])
        .forward_only(),
        SweepRow::new("dot", "torch.dot(a, b)", |t, _| t[0].dot(&t[1])).shapes(vectors),
        SweepRow::new("vdot", "torch.vdot(a, b)", |t, _| t[0].vdot(&t[1])).shapes(vectors),
        SweepRow::new("outer", "torch.outer(a, b)", |t, _| t[0].outer(&t[1])).shapes(sides),
        SweepRow::new("inner", "torch.inner(a, b)", |t, _| t[0].inner(&t[1])).shapes(matrices::<2>),
        SweepRow::new("linear", "F.linear(a, b, c)", |t, _| t[0].linear(&t[1], Some(&t[2]))).shapes(|n| {
            let (batch, inputs, outputs) = [(4, 8, 8), (64, 256, 256), (256, 1024, 512)][n];
            vec![vec![batch, inputs], vec![outputs, inputs], vec![outputs]]
        }),
        SweepRow::new("addmm", "torch.addmm(a, b, c)", |t, _| t[0].addmm(&t[1], &t[2], 1.0, 1.0)).shapes(matrices::<3>),
        SweepRow::new("addmv", "torch.addmv(a, b, c)", |t, _| t[0].addmv(&t[1], &t[2], 1.0, 1.0))
            .shapes(matrix_and_vector),
        SweepRow::new("addr", "torch.addr(b, a, c)", |t, _| t[1].addr(&t[0], &t[2], 1.0, 1.0))
            .shapes(matrix_and_vector),
        SweepRow::new("baddbmm", "torch.baddbmm(a, b, c)", |t, _| t[0].baddbmm(&t[1], &t[2], 1.0, 1.0))
            .shapes(batches::<3>),
        SweepRow::new("addbmm", "torch.addbmm(a[0], b, c)", |t, _| t[0].i(0).addbmm(&t[1], &t[2], 1.0, 1.0))
            .shapes(batches::<3>),
        SweepRow::new("einsum", "torch.einsum('bij,bjk->bik', a, b)", |t, _| einsum("bij,bjk->bik", &[&t[0], &t[1]]))
            .shapes(batches::<2>),
        SweepRow::new("einsum", "torch.einsum('bij,bkj->bik', a, b)", |t, _| einsum("bij,bkj->bik", &[&t[0], &t[1]]))
            .shapes(batches::<2>),
        SweepRow::new("tensordot", "torch.tensordot(a, b, ([1], [0]))", |t, _| t[0].tensordot(&t[1], &[1], &[0]))
            .shapes(matrices::<2>),
        SweepRow::new("kron", "torch.kron(a, b)", |t, _| t[0].kron(&t[1])).shapes(|n| vec![vec![[3, 16, 32][n]; 2]; 2]),
        SweepRow::new("bilinear", "F.bilinear(a, b, c)", |t, _| t[0].bilinear(&t[1], &t[2], None)).shapes(|n| {
            let (batch, width) = [(4, 4), (32, 32), (64, 64)][n];
            vec![vec![batch, width], vec![batch, width], vec![width; 3]]
        }),
        SweepRow::new("trace", "torch.trace(a)", |t, _| t[0].trace()).shapes(|n| vec![vec![[8, 256, 1024][n]; 2]]),
        SweepRow::new("cross", "torch.linalg.cross(a, b)", |t, _| t[0].cross(&t[1], -1))
            .shapes(|n| vec![vec![[21, 21_845, 349_525][n], 3]; 2]),
        SweepRow::new("vecdot", "torch.linalg.vecdot(a, b)", |t, _| t[0].vecdot(&t[1], -1))
            .shapes(|n| vec![vec![[8, 256, 1024][n]; 2]; 2]),
        SweepRow::new("cdist", "torch.cdist(a, b)", |t, _| t[0].cdist(&t[1], 2.0)).shapes(distances),
        SweepRow::new("cdist", "torch.cdist(a, b, p=1.0)", |t, _| t[0].cdist(&t[1], 1.0)).shapes(distances),
        SweepRow::new("pdist", "torch.pdist(a)", |t, _| t[0].pdist(2.0)).shapes(|n| distances(n)[..1].to_vec()),
        SweepRow::new("pairwise_distance", "F.pairwise_distance(a, b)", |t, _| {
            t[0].pairwise_distance(&t[1], 2.0, 1e-6, false)
        })
        .shapes(|n| vec![vec![[8, 256, 1024][n]; 2]; 2]),
        SweepRow::new("cosine_similarity", "F.cosine_similarity(a, b, dim=-1)", |t, _| {
            t[0].cosine_similarity(&t[1], -1, 1e-8)
        })
        .shapes(|n| vec![vec![[8, 256, 1024][n]; 2]; 2]),
    ];
    rows.push(
        SweepRow::new("multi_dot", "torch.linalg.multi_dot([a, b, c])", |t, _| {
            ops::multi_dot(&[&t[0], &t[1], &t[2]]).expect("the shapes must fit")
        })
        .shapes(matrices::<3>),
    );
    rows.into_iter().map(|row| row.of_all(Normal)).collect()
}

/// Two sets of points.
fn distances(n: usize) -> Vec<Vec<usize>> {
    let (points, width) = [(8, 4), (128, 32), (1024, 64)][n];
    vec![vec![points, width]; 2]
}
