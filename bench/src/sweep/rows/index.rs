//! Selection, scattering, searching and sorting.

use crate::sweep::OperandValues::{Below, Integers, Mask, Normal, Permutation, Positive, Sorted};
use crate::sweep::{OperandValues, SweepRow, cubes, vectors};
use pellucid::ops;

/// Indices below the length of an axis of [`cubes`].
const ALONG: OperandValues = Below([4, 40, 100]);

/// Indices below the length of a vector of [`vectors`].
const POSITIONS: OperandValues = Below([64, 1 << 16, 1 << 20]);

/// Returns the shapes of a cube, and of indices for half of the elements of an axis.
fn cube_and_half(n: usize) -> Vec<Vec<usize>> {
    let side = [4, 40, 100][n];
    vec![vec![side; 3], vec![side / 2]]
}

/// Returns the shapes of a cube, and of an index and a source with the shape of the cube.
fn cube_index_source(n: usize) -> Vec<Vec<usize>> {
    vec![vec![[4, 40, 100][n]; 3]; 3]
}

/// Returns the shapes of a cube, an index along an axis, and a source with the shape of the cube.
fn cube_line_source(n: usize) -> Vec<Vec<usize>> {
    let side = [4, 40, 100][n];
    vec![vec![side; 3], vec![side], vec![side; 3]]
}

pub(super) fn rows() -> Vec<SweepRow> {
    [gathering(), scattering(), searching(), sorting()].into_iter().flatten().collect()
}

fn gathering() -> Vec<SweepRow> {
    vec![
        SweepRow::new("index_select", "torch.index_select(a, {d}, b)", |t, s| t[0].index_select(s.axis, &t[1]))
            .of([Normal, ALONG])
            .shapes(cube_and_half)
            .axes(3),
        SweepRow::new("take_along_axis", "torch.gather(a, {d}, b)", |t, s| t[0].take_along_axis(&t[1], s.axis))
            .of([Normal, ALONG])
            .shapes(cubes)
            .axes(3),
        SweepRow::new("take", "torch.take(a, b)", |t, _| t[0].take(&t[1])).of([Normal, POSITIONS]).shapes(vectors),
        SweepRow::new("masked_select", "a.masked_select(b)", |t, _| t[0].masked_select(&t[1]))
            .of([Normal, Mask])
            .shapes(vectors),
        SweepRow::new("embedding", "F.embedding(b, a)", |t, _| t[0].embedding(&t[1], Default::default()))
            .of([Normal, Below([8, 1024, 8192])])
            .shapes(|n| vec![[vec![8, 8], vec![1024, 64], vec![8192, 128]][n].clone(), vec![[8, 1024, 8192][n]]]),
        SweepRow::new("embedding_bag", "F.embedding_bag(b, a)", |t, _| t[0].embedding_bag(&t[1], Default::default()))
            .of([Normal, Below([8, 1024, 8192])])
            .shapes(|n| {
                let (table, bags) = [([8, 8], [4, 2]), ([1024, 64], [128, 8]), ([8192, 128], [1024, 8])][n];
                vec![table.into(), bags.into()]
            }),
        SweepRow::new("one_hot", "F.one_hot(a, 16)", |t, _| t[0].one_hot(16))
            .of([Integers(0, 16)])
            .shapes(|n| vec![vec![[4, 4096, 1 << 16][n]]])
            .forward_only(),
    ]
}

fn scattering() -> Vec<SweepRow> {
    let scattered = |row: SweepRow| row.of([Normal, ALONG, Normal]).shapes(cube_index_source).axes(3);
    let lines = |row: SweepRow| row.of([Normal, ALONG, Normal]).shapes(cube_line_source).axes(3);
    vec![
        scattered(SweepRow::new("scatter", "a.scatter({d}, b, c)", |t, s| t[0].scatter(s.axis, &t[1], &t[2]))),
        scattered(SweepRow::new("scatter_add", "a.scatter_add({d}, b, c)", |t, s| {
            t[0].scatter_add(s.axis, &t[1], &t[2])
        })),
        scattered(SweepRow::new("scatter_reduce", "a.scatter_reduce({d}, b, c, 'amax')", |t, s| {
            t[0].scatter_reduce(s.axis, &t[1], &t[2], ops::ScatterReduceOp::Max, true)
        })),
        SweepRow::new("scatter_add_along", "torch.zeros(b.shape).scatter_add({d}, b, a)", |t, s| {
            t[0].scatter_add_along(&t[1], s.axis, t[0].shape().clone())
        })
        .of([Normal, ALONG])
        .shapes(cubes)
        .axes(3),
        lines(SweepRow::new("index_add", "a.index_add({d}, b, c)", |t, s| t[0].index_add(s.axis, &t[1], &t[2], 1.0))),
        SweepRow::new("index_copy", "a.index_copy({d}, b, c)", |t, s| t[0].index_copy(s.axis, &t[1], &t[2]))
            .of([Normal, Permutation, Normal])
            .shapes(cube_line_source)
            .axes(3),
        SweepRow::new("index_fill", "a.index_fill({d}, b, 0.5)", |t, s| t[0].index_fill(s.axis, &t[1], 0.5))
            .of([Normal, ALONG])
            .shapes(cube_and_half)
            .axes(3),
        lines(SweepRow::new("index_reduce", "a.index_reduce({d}, b, c, 'amax')", |t, s| {
            t[0].index_reduce(s.axis, &t[1], &t[2], ops::ScatterReduceOp::Max, true)
        })),
        SweepRow::new("put", "torch.put(a, b, c, accumulate=True)", |t, _| t[0].put(&t[1], &t[2], true))
            .of([Normal, POSITIONS, Normal])
            .shapes(vectors),
        SweepRow::new("index_put", "a.index_put((b,), c)", |t, _| t[0].index_put(&t[1], &t[2], false))
            .of([Normal, Permutation, Normal])
            .shapes(vectors),
        SweepRow::new("masked_scatter", "a.masked_scatter(b, c)", |t, _| t[0].masked_scatter(&t[1], &t[2]))
            .of([Normal, Mask, Normal])
            .shapes(vectors),
        SweepRow::new("index_add", "a.index_add(0, b, c)", |t, _| t[0].index_add(0, &t[1], &t[2], 1.0))
            .of([Normal, Below([10, 1000, 20_000]), Normal])
            .shapes(|n| {
                let (nodes, edges, width) = [(10, 20, 8), (1000, 5000, 16), (20_000, 100_000, 64)][n];
                vec![vec![nodes, width], vec![edges], vec![edges, width]]
            }),
    ]
}

fn searching() -> Vec<SweepRow> {
    let sorted_and_values = |n: usize| vec![vec![[16, 1024, 4096][n]], vec![[64, 1 << 16, 1 << 20][n]]];
    let rows: Vec<SweepRow> = vec![
        SweepRow::new("searchsorted", "torch.searchsorted(a, b)", |t, _| t[0].searchsorted(&t[1], false))
            .of([Sorted, Normal])
            .shapes(sorted_and_values),
        SweepRow::new("bucketize", "torch.bucketize(b, a)", |t, _| t[1].bucketize(&t[0], false))
            .of([Sorted, Normal])
            .shapes(sorted_and_values),
        SweepRow::new("bincount", "torch.bincount(a, minlength=1000)", |t, _| t[0].bincount(None, 1000))
            .of([Integers(0, 1000)])
            .shapes(vectors),
        SweepRow::new("histc", "torch.histc(a, 100, -3, 3)", |t, _| t[0].histc(100, -3.0, 3.0))
            .of([Normal])
            .shapes(vectors),
        SweepRow::new("histogram", "torch.histogram(a, 100)[0]", |t, _| {
            t[0].histogram(ops::Bins::Count(100), None, false).0
        })
        .of([Normal])
        .shapes(vectors),
        SweepRow::new("histogram2d", "torch.histogramdd(torch.stack([a, b], 1), [30, 30])[0]", |t, _| {
            t[0].histogram2d(&t[1], [ops::Bins::Count(30); 2], None, false).0
        })
        .of([Normal; 2])
        .shapes(vectors),
        SweepRow::new("histogramdd", "torch.histogramdd(a, [30, 30])[0]", |t, _| {
            t[0].histogramdd(&[ops::Bins::Count(30); 2], None, false).0
        })
        .of([Normal])
        .shapes(|n| vec![vec![[64, 1 << 16, 1 << 20][n], 2]]),
        SweepRow::new("nonzero", "torch.nonzero(a)", |t, _| t[0].nonzero().swap_remove(0)).of([Mask]).shapes(vectors),
        SweepRow::new("nonzero", "torch.nonzero(a)", |t, _| t[0].nonzero().swap_remove(0)).of([Mask]),
        SweepRow::new("flatnonzero", "torch.nonzero(a)", |t, _| t[0].flatnonzero()).of([Mask]).shapes(vectors),
        SweepRow::new("unravel_index", "torch.unravel_index(a, (8, 8))[0]", |t, _| {
            t[0].unravel_index([8, 8]).swap_remove(0)
        })
        .of([Integers(0, 64)])
        .shapes(vectors),
        SweepRow::new("isin", "torch.isin(a, b)", |t, _| t[0].isin(&t[1]))
            .of([Integers(0, 5000); 2])
            .shapes(|n| vec![vec![[64, 1 << 16, 1 << 20][n]], vec![[8, 256, 1024][n]]]),
    ];
    rows.into_iter().map(SweepRow::forward_only).collect()
}

fn sorting() -> Vec<SweepRow> {
    let mut rows: Vec<SweepRow> = vec![
        SweepRow::new("sort", "a.sort({d})[0]", |t, s| t[0].sort(s.axis, false).0).of([Normal]).shapes(cubes).axes(3),
        SweepRow::new("sort", "a.sort()[0]", |t, _| t[0].sort(-1, false).0).of([Normal]).shapes(vectors),
        SweepRow::new("msort", "torch.msort(a)", |t, _| t[0].msort()).of([Normal]),
        SweepRow::new("topk", "a.topk(4, {d})[0]", |t, s| t[0].topk(4, s.axis, true).0)
            .of([Normal])
            .shapes(cubes)
            .axes(3),
        SweepRow::new("kthvalue", "a.kthvalue(3, {d})[0]", |t, s| t[0].kthvalue(3, s.axis).0)
            .of([Normal])
            .shapes(cubes)
            .axes(3),
    ];
    let sets = Integers(0, 10_000);
    let without: Vec<SweepRow> = vec![
        SweepRow::new("argsort", "a.argsort({d})", |t, s| t[0].argsort(s.axis, false))
            .of([Normal])
            .shapes(cubes)
            .axes(3),
        SweepRow::new("argsort", "a.argsort()", |t, _| t[0].argsort(-1, false)).of([Normal]).shapes(vectors),
        SweepRow::new("argpartition", "", |t, _| t[0].argpartition(3, -1)).of([Normal]).shapes(vectors),
        SweepRow::new("lexsort", "", |t, _| ops::lexsort(t, -1).expect("the keys must have one shape"))
            .of([sets; 2])
            .shapes(vectors),
        SweepRow::new("unique", "a.unique()", |t, _| t[0].unique(None).values).of([sets]).shapes(vectors),
        SweepRow::new("unique_consecutive", "a.unique_consecutive()", |t, _| t[0].unique_consecutive(None).values)
            .of([Integers(0, 3)])
            .shapes(vectors),
        SweepRow::new("union1d", "torch.cat([a, b]).unique()", |t, _| t[0].union1d(&t[1]))
            .of([sets; 2])
            .shapes(vectors),
        SweepRow::new("intersect1d", "", |t, _| t[0].intersect1d(&t[1])).of([sets; 2]).shapes(vectors),
        SweepRow::new("setdiff1d", "", |t, _| t[0].setdiff1d(&t[1])).of([sets; 2]).shapes(vectors),
        SweepRow::new("setxor1d", "", |t, _| t[0].setxor1d(&t[1])).of([sets; 2]).shapes(vectors),
    ];
    rows.extend(without.into_iter().map(SweepRow::forward_only));
    rows.push(
        SweepRow::new("interp", "", |t, _| t[1].interp(&t[0], &t[2], Default::default()))
            .of([Sorted, Normal, Positive])
            .shapes(|n| vec![vec![[16, 1024, 4096][n]], vec![[64, 1 << 16, 1 << 20][n]], vec![[16, 1024, 4096][n]]])
            .forward_only(),
    );
    rows
}
