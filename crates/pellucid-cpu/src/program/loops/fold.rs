//! Reductions in the canonical order, a function of the element count only.
//!
//! A row is cut into blocks of 128 = 8 × 16 elements; element j·16 + l of a block belongs to lane l.
//! Each lane combines its eight values by the fixed tree
//! ((x₀ ∘ x₁) ∘ (x₂ ∘ x₃)) ∘ ((x₄ ∘ x₅) ∘ (x₆ ∘ x₇)) and then its running value with the result. A last,
//! partial block counts as filled up with the identity. At the end the sixteen lanes meet in a fixed tree:
//! l with l + 8, then + 4, + 2, + 1.
//!
//! The same order holds whether the reduced elements lie side by side ([`FoldLoops::accumulate`]) or one
//! below the other ([`FoldLoops::accumulate_rows`]), so a layout changes no bit.

use super::element::{At, LoopElement, Mask, are_apart, source};
use pellucid_ir::Compute;
use pellucid_simd::Isa;
use pellucid_simd::math::Real;
use pellucid_simd::math::integer::Int;
use pellucid_simd::per_isa;
use std::mem::MaybeUninit;

/// Running values of one reduction.
pub(crate) const LANES: usize = 16;

/// Elements of one block, or rows of one block of rows.
pub(crate) const ROWS: usize = 8 * LANES;

/// Columns that a partial block of rows is worked on at once.
const STRIP: usize = 512;

/// An associative operation to reduce by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Fold {
    /// Σ; integers wrap.
    Sum,
    /// Π; integers wrap.
    Prod,
    /// The largest; NaN if any is.
    Max,
    /// The smallest; NaN if any is.
    Min,
    /// Logical and of masks.
    And,
    /// Logical or of masks.
    Or,
}

/// `accumulate(lanes, src, n, first)`: takes `n` contiguous values into the 16 lanes, or into as many identities
/// if these are the first.
///
/// # Safety
/// `lanes` has room for 16 values and holds them unless these are the first; `src` holds `n`, a multiple of 128
/// except in a reduction's last call; they do not overlap, and the processor has the isa the loop was asked
/// for.
pub(crate) type AccumulateLoop = unsafe fn(lanes: *mut u8, src: *const u8, n: usize, first: bool);

/// `accumulate_products(lanes, a, b, n, first)`: takes the `n` products a[i] · b[i], each rounded, into the 16
/// lanes.
///
/// # Safety
/// As [`AccumulateLoop`], for both sources.
pub(crate) type ProductsLoop = unsafe fn(lanes: *mut u8, a: *const u8, b: *const u8, n: usize, first: bool);

/// `accumulate_rows(lanes, src, row_stride, cols, rows)`: takes `rows` ≤ 128 rows of `cols` contiguous values,
/// `row_stride` bytes apart, into 16 lanes per column; lane l of column c is value l·cols + c.
///
/// # Safety
/// `lanes` holds 16·cols values, each row of `src` holds `cols`, `rows` is 128 except in a reduction's
/// last call; they do not overlap, and the processor has the isa the loop was asked for.
pub(crate) type RowsLoop = unsafe fn(lanes: *mut u8, src: *const u8, row_stride: isize, cols: usize, rows: usize);

/// `finish(dst, lanes)`: combines the 16 lanes into one value.
///
/// # Safety
/// `lanes` holds 16 values and `dst` has room for one; they do not overlap, and the processor has the isa the
/// loop was asked for.
pub(crate) type FinishLoop = unsafe fn(dst: *mut u8, lanes: *const u8);

/// `finish_rows(dst, lanes, cols)`: combines the 16 lanes of each column into one value.
///
/// # Safety
/// `lanes` holds 16·cols values and `dst` has room for `cols`; they do not overlap, and the processor has
/// the isa the loop was asked for.
pub(crate) type FinishRowsLoop = unsafe fn(dst: *mut u8, lanes: *const u8, cols: usize);

/// The parts of one reduction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoldLoops {
    /// One value, the identity: what the lanes of rows start from and an empty reduction gives. Its first bytes, as
    /// many as the type has, count.
    pub identity: [u8; 8],
    /// Takes contiguous values.
    pub accumulate: AccumulateLoop,
    /// Takes products of contiguous values, without storing them; for sums.
    pub accumulate_products: Option<ProductsLoop>,
    /// Takes rows, column by column.
    pub accumulate_rows: RowsLoop,
    /// Ends a reduction of contiguous values.
    pub finish: FinishLoop,
    /// Ends a reduction of rows.
    pub finish_rows: FinishRowsLoop,
}

/// An operation and its identity.
trait Monoid<T: Copy> {
    const IDENTITY: T;
    fn combine(a: T, b: T) -> T;
    /// The fixed tree over eight values.
    #[inline(always)]
    fn eight(x: [T; 8]) -> T {
        tree(x, Self::combine)
    }
}

/// The fixed tree over eight values.
#[inline(always)]
fn tree<T: Copy>(x: [T; 8], c: impl Fn(T, T) -> T) -> T {
    c(c(c(x[0], x[1]), c(x[2], x[3])), c(c(x[4], x[5]), c(x[6], x[7])))
}

/// The tree by comparisons that know no NaN, and NaN if there is one: half the work of minding it at every step.
#[inline(always)]
#[expect(clippy::eq_op, reason = "0 / 0 is NaN in every type")]
fn extreme<T: Real>(x: [T; 8], wins: impl Fn(T, T) -> bool) -> T {
    let best = tree(x, |a, b| if wins(a, b) { a } else { b });
    let nan = x.iter().fold(false, |nan, v| nan | v.is_nan());
    if nan { T::ZERO / T::ZERO } else { best }
}

macro_rules! monoids {
    ($($Op:ident for $bound:ident: $identity:expr, |$a:ident, $b:ident| $e:expr, $eight:expr;)*) => {$(
        struct $Op;
        impl<T: $bound> Monoid<T> for $Op {
            const IDENTITY: T = $identity;
            #[inline(always)]
            fn combine($a: T, $b: T) -> T {
                $e
            }
            #[inline(always)]
            fn eight(x: [T; 8]) -> T {
                $eight(x)
            }
        }
    )*};
}

/// Values with a least and a greatest, whose comparison may fail (NaN).
trait Ordered: Copy {
    const LEAST: Self;
    const GREATEST: Self;
    fn larger(self, b: Self) -> Self;
    fn smaller(self, b: Self) -> Self;
    /// The tree of `larger` over eight.
    fn largest(x: [Self; 8]) -> Self;
    /// The tree of `smaller` over eight.
    fn smallest(x: [Self; 8]) -> Self;
}
/// Values that add and multiply.
trait Ring: Copy {
    const ZERO: Self;
    const ONE: Self;
    fn plus(self, b: Self) -> Self;
    fn times(self, b: Self) -> Self;
}
macro_rules! number {
    ($($t:ident: $kind:ident, $least:expr, $greatest:expr, $plus:expr, $times:expr, $larger:expr, $smaller:expr, $largest:expr, $smallest:expr;)*) => {$(
        impl Ordered for $t {
            const LEAST: $t = $least;
            const GREATEST: $t = $greatest;
            #[inline(always)]
            fn larger(self, b: $t) -> $t {
                $larger(self, b)
            }
            #[inline(always)]
            fn smaller(self, b: $t) -> $t {
                $smaller(self, b)
            }
            #[inline(always)]
            fn largest(x: [$t; 8]) -> $t {
                $largest(x)
            }
            #[inline(always)]
            fn smallest(x: [$t; 8]) -> $t {
                $smallest(x)
            }
        }
        impl Ring for $t {
            const ZERO: $t = <$t as $kind>::ZERO;
            const ONE: $t = <$t as $kind>::ONE;
            #[inline(always)]
            fn plus(self, b: $t) -> $t {
                $plus(self, b)
            }
            #[inline(always)]
            fn times(self, b: $t) -> $t {
                $times(self, b)
            }
        }
    )*};
}
number! {
    f32: Real, -f32::INFINITY, f32::INFINITY, |a: f32, b| a + b, |a: f32, b| a * b, <f32 as Real>::max, <f32 as Real>::min,
        |x| extreme(x, |a: f32, b| a > b), |x| extreme(x, |a: f32, b| a < b);
    f64: Real, -f64::INFINITY, f64::INFINITY, |a: f64, b| a + b, |a: f64, b| a * b, <f64 as Real>::max, <f64 as Real>::min,
        |x| extreme(x, |a: f64, b| a > b), |x| extreme(x, |a: f64, b| a < b);
    i32: Int, i32::MIN, i32::MAX, i32::wrapping_add, i32::wrapping_mul, Ord::max, Ord::min,
        |x| tree(x, Ord::max), |x| tree(x, Ord::min);
    i64: Int, i64::MIN, i64::MAX, i64::wrapping_add, i64::wrapping_mul, Ord::max, Ord::min,
        |x| tree(x, Ord::max), |x| tree(x, Ord::min);
}

monoids! {
    Sum for Ring: T::ZERO, |a, b| a.plus(b), |x| tree(x, T::plus);
    Prod for Ring: T::ONE, |a, b| a.times(b), |x| tree(x, T::times);
    Max for Ordered: T::LEAST, |a, b| a.larger(b), T::largest;
    Min for Ordered: T::GREATEST, |a, b| a.smaller(b), T::smallest;
}

struct And;
impl Monoid<Mask> for And {
    const IDENTITY: Mask = Mask(1);
    #[inline(always)]
    fn combine(a: Mask, b: Mask) -> Mask {
        Mask(a.0 & b.0)
    }
}
struct Or;
impl Monoid<Mask> for Or {
    const IDENTITY: Mask = Mask(0);
    #[inline(always)]
    fn combine(a: Mask, b: Mask) -> Mask {
        Mask(a.0 | b.0)
    }
}

/// Contiguous values, read where they lie or made on the way.
trait Values<T>: Copy {
    /// Value number `i`.
    ///
    /// # Safety
    /// There is one.
    unsafe fn at(self, i: usize) -> T;
}

/// Values in memory.
#[derive(Clone, Copy)]
struct Stored(*const u8);
impl<T: LoopElement> Values<T> for Stored {
    #[inline(always)]
    unsafe fn at(self, i: usize) -> T {
        // SAFETY: the caller's promise.
        unsafe { self.0.cast::<T>().add(i).read_unaligned() }
    }
}

/// Products of values in memory.
#[derive(Clone, Copy)]
struct Products(*const u8, *const u8);
impl<T: LoopElement + Ring> Values<T> for Products {
    #[inline(always)]
    unsafe fn at(self, i: usize) -> T {
        // SAFETY: the caller's promise.
        unsafe { T::times(Stored(self.0).at(i), Stored(self.1).at(i)) }
    }
}

/// One block into the lanes.
#[inline(always)]
fn block<T: LoopElement, M: Monoid<T>>(lanes: &mut [T; LANES], x: impl Fn(usize) -> T) {
    for l in 0..LANES {
        let mut own = [M::IDENTITY; 8];
        for j in 0..8 {
            own[j] = x(j * LANES + l);
        }
        lanes[l] = M::combine(lanes[l], M::eight(own));
    }
}

/// Takes `n` values into the lanes.
///
/// # Safety
/// As [`AccumulateLoop`], with `n` values of `x`.
#[inline(always)]
unsafe fn take<T: LoopElement, M: Monoid<T>>(lanes: *mut u8, x: impl Values<T>, n: usize, first: bool) {
    let lanes = lanes.cast::<[T; LANES]>();
    // SAFETY: the caller's promise.
    let mut running = if first { [M::IDENTITY; LANES] } else { unsafe { lanes.read_unaligned() } };
    let whole = n / ROWS * ROWS;
    for start in (0..whole).step_by(ROWS) {
        // SAFETY: a whole block of values from `start` on.
        block::<T, M>(&mut running, |i| unsafe { x.at(start + i) });
    }
    if whole < n {
        let mut last = [M::IDENTITY; ROWS];
        for i in whole..n {
            // SAFETY: i < n.
            last[i - whole] = unsafe { x.at(i) };
        }
        block::<T, M>(&mut running, |i| last[i]);
    }
    // SAFETY: the caller's promise.
    unsafe { lanes.write_unaligned(running) };
}

per_isa! {
    fn accumulate[T: LoopElement, M: Monoid<T>][T, M](lanes: *mut u8, src: *const u8, n: usize, first: bool) {
        debug_assert!(are_apart((lanes, LANES * size_of::<T>()), (src, n * size_of::<T>())), "lanes among the values");
        // SAFETY: the caller's promise.
        unsafe { take::<T, M>(lanes, Stored(src), n, first) };
    }
}

per_isa! {
    fn accumulate_products[T: LoopElement + Ring, M: Monoid<T>][T, M]
    (lanes: *mut u8, a: *const u8, b: *const u8, n: usize, first: bool) {
        // SAFETY: the caller's promise.
        unsafe { take::<T, M>(lanes, Products(a, b), n, first) };
    }
}

/// One lane of a block of rows: eight rows, sixteen apart, into the lane's running values.
#[inline(always)]
fn lane_of_rows<T: LoopElement, M: Monoid<T>>(lane: &mut [At<T>], rows: [&[At<T>]; 8]) {
    let n = lane.len();
    let [a, b, c, d, e, f, g, h] = rows.map(|r| &r[..n]);
    for i in 0..n {
        let x = [a[i].0, b[i].0, c[i].0, d[i].0, e[i].0, f[i].0, g[i].0, h[i].0];
        lane[i] = At(M::combine(lane[i].0, M::eight(x)));
    }
}

per_isa! {
    fn accumulate_rows[T: LoopElement, M: Monoid<T>][T, M]
    (lanes: *mut u8, src: *const u8, row_stride: isize, cols: usize, rows: usize) {
        let size = size_of::<T>();
        debug_assert!(rows <= ROWS, "{rows} rows in a block of {ROWS}");
        debug_assert!(rows <= 1 || row_stride == 0 || row_stride.unsigned_abs() >= size, "rows are {row_stride} bytes apart");
        let absent = [At(M::IDENTITY); STRIP];
        // A whole block needs no identity, hence no strips.
        let strip = if rows == ROWS { cols } else { STRIP };
        for l in 0..LANES.min(rows) {
            let mut start = 0;
            while start < cols {
                let count = strip.min(cols - start);
                let mut eight: [&[At<T>]; 8] = [&absent; 8];
                for (j, row) in eight.iter_mut().enumerate() {
                    let r = j * LANES + l;
                    if r < rows {
                        // SAFETY: row r < rows holds `cols` values.
                        *row = unsafe { source(src.offset(r as isize * row_stride).add(start * size), count) };
                    }
                }
                // SAFETY: lane l holds `cols` values, which no row overlaps.
                let lane = unsafe {
                    std::slice::from_raw_parts_mut(lanes.add((l * cols + start) * size).cast::<At<T>>(), count)
                };
                lane_of_rows::<T, M>(lane, eight);
                start += count;
            }
        }
        // Lanes without a row combine with the identity, which may still turn −0 into 0.
        for l in rows.min(LANES)..LANES {
            // SAFETY: lane l holds `cols` values.
            let lane = unsafe { std::slice::from_raw_parts_mut(lanes.add(l * cols * size).cast::<At<T>>(), cols) };
            for x in lane {
                *x = At(M::combine(x.0, M::IDENTITY));
            }
        }
    }
}

/// The first half of the lanes, each combined with its partner of the second.
#[inline(always)]
fn halve<T: LoopElement, M: Monoid<T>, const N: usize, const H: usize>(x: [T; N]) -> [T; H] {
    let mut y = [M::IDENTITY; H];
    for l in 0..H {
        y[l] = M::combine(x[l], x[l + H]);
    }
    y
}

/// The fixed tree over the lanes.
#[inline(always)]
fn meet<T: LoopElement, M: Monoid<T>>(x: [T; LANES]) -> T {
    let x: [T; 8] = halve::<T, M, _, _>(x);
    let x: [T; 4] = halve::<T, M, _, _>(x);
    let x: [T; 2] = halve::<T, M, _, _>(x);
    M::combine(x[0], x[1])
}

per_isa! {
    fn finish[T: LoopElement, M: Monoid<T>][T, M](dst: *mut u8, lanes: *const u8) {
        // SAFETY: the caller's promise.
        unsafe { dst.cast::<T>().write_unaligned(meet::<T, M>(lanes.cast::<[T; LANES]>().read_unaligned())) };
    }
}

per_isa! {
    fn finish_rows[T: LoopElement, M: Monoid<T>][T, M](dst: *mut u8, lanes: *const u8, cols: usize) {
        let size = size_of::<T>();
        debug_assert!(are_apart((dst, cols * size), (lanes, LANES * cols * size)), "results among the lanes");
        // SAFETY: the caller's promise.
        let (dst, lanes) = unsafe {
            let dst: &mut [MaybeUninit<At<T>>] = super::element::target(dst, cols);
            (dst, source::<T>(lanes, cols * LANES))
        };
        for (c, d) in dst.iter_mut().enumerate() {
            let mut x = [M::IDENTITY; LANES];
            for (l, x) in x.iter_mut().enumerate() {
                *x = lanes[l * cols + c].0;
            }
            d.write(At(meet::<T, M>(x)));
        }
    }
}

fn loops<T: LoopElement, M: Monoid<T>>(isa: Isa) -> FoldLoops {
    let mut identity = [0; 8];
    // SAFETY: an element has at most eight bytes.
    unsafe { identity.as_mut_ptr().cast::<T>().write_unaligned(M::IDENTITY) };
    FoldLoops {
        identity,
        accumulate: accumulate::<T, M>(isa),
        accumulate_products: None,
        accumulate_rows: accumulate_rows::<T, M>(isa),
        finish: finish::<T, M>(isa),
        finish_rows: finish_rows::<T, M>(isa),
    }
}

fn numbers<T: LoopElement + Ring + Ordered>(op: Fold, isa: Isa) -> Option<FoldLoops> {
    Some(match op {
        Fold::Sum => {
            FoldLoops { accumulate_products: Some(accumulate_products::<T, Sum>(isa)), ..loops::<T, Sum>(isa) }
        }
        Fold::Prod => loops::<T, Prod>(isa),
        Fold::Max => loops::<T, Max>(isa),
        Fold::Min => loops::<T, Min>(isa),
        Fold::And | Fold::Or => return None,
    })
}

/// The loops of a reduction of `ty` values: Sum, Prod, Max and Min of numbers; And and Or of masks, where
/// Min and Max are the same.
pub(crate) fn fold(op: Fold, ty: Compute, isa: Isa) -> Option<FoldLoops> {
    match (ty, op) {
        (Compute::Mask, Fold::And | Fold::Min) => Some(loops::<Mask, And>(isa)),
        (Compute::Mask, Fold::Or | Fold::Max) => Some(loops::<Mask, Or>(isa)),
        (Compute::Mask, _) => None,
        (Compute::I32, _) => numbers::<i32>(op, isa),
        (Compute::I64, _) => numbers::<i64>(op, isa),
        (Compute::F32, _) => numbers::<f32>(op, isa),
        (Compute::F64, _) => numbers::<f64>(op, isa),
    }
}
