//! Chains: instructions on floats of which each takes up the result of the one before, run as one loop.
//!
//! A block of values stays in registers while every act of the chain is done to it, so that only what
//! someone else reads is written to memory. Each act rounds once, as the instruction by itself does: a
//! chain gives the same bits. The functions that matter most (`exp`, `tanh`, ...) are computed in the registers too, as
//! long as no value of the block is rare; any other function, and a block with a rare value, goes through memory to the
//! function's own loop.

use super::convert::round;
use super::fold::{LANES, ROWS};
use super::unary::{WholeLoop, float, unary};
use pellucid_ir::Compute;
use pellucid_ir::formula::{Binary, Op, Unary};
use pellucid_simd::vector::{FloatVector, Function};
use pellucid_simd::{Float, Isa, per_isa};
use std::mem::MaybeUninit;

/// What instructions are in chains.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Opcode {
    Add,
    Sub,
    Mul,
    Div,
    Neg,
    Sqrt,
    MulAdd,
    /// A function of one value, with its loop.
    Function(Unary, WholeLoop),
    /// Rounding through a narrower type.
    Round(WholeLoop),
}

impl Opcode {
    /// What an instruction on floats is in a chain.
    pub(crate) fn of(op: Op, compute: Compute, isa: Isa) -> Option<Opcode> {
        Some(match op {
            _ if !compute.is_float() => return None,
            Op::Binary(Binary::Add) => Opcode::Add,
            Op::Binary(Binary::Sub) => Opcode::Sub,
            Op::Binary(Binary::Mul) => Opcode::Mul,
            Op::Binary(Binary::Div) => Opcode::Div,
            Op::Unary(Unary::Neg) => Opcode::Neg,
            Op::Unary(Unary::Sqrt) => Opcode::Sqrt,
            Op::Unary(op) if !op.gives_mask() => Opcode::Function(op, unary(op, compute, isa)?.whole()),
            Op::Round(dtype) => Opcode::Round(round(compute, dtype, isa)?.whole()),
            Op::MulAdd => Opcode::MulAdd,
            _ => return None,
        })
    }
}

/// What is done to the block v; t and t′ are tiles' blocks, u and u′ single values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FusedInstr {
    /// v + t
    AddTile,
    /// v + u
    AddOne,
    /// v + v
    Double,
    /// v − t
    SubTile,
    /// v − u
    SubOne,
    /// t − v
    TileSub,
    /// u − v
    OneSub,
    /// v · t
    MulTile,
    /// v · u
    MulOne,
    /// v · v
    Square,
    /// v / t
    DivTile,
    /// v / u
    DivOne,
    /// t / v
    TileDiv,
    /// u / v
    OneDiv,
    /// −v
    Neg,
    /// √v
    Sqrt,
    /// eᵛ in registers, as all that follow up to `Apply`; the loop is for rare values.
    Exp(WholeLoop),
    Sigmoid(WholeLoop),
    Tanh(WholeLoop),
    Sin(WholeLoop),
    Cos(WholeLoop),
    /// f(v)
    Apply(WholeLoop),
    /// v · t + t′
    MulTileAddTile,
    /// v · t + u′
    MulTileAddOne,
    /// v · u + t′
    MulOneAddTile,
    /// v · u + u′
    MulOneAddOne,
    /// t · t′ + v
    AddTileTile,
    /// t · u′ + v
    AddTileOne,
}

/// An act with its other operands.
#[derive(Clone, Copy)]
pub(crate) struct FusedOperands {
    /// The tile that is v before the act, where a chain begins; null where it goes on.
    pub(crate) begin: *const u8,
    pub(crate) act: FusedInstr,
    /// Tiles or single values, as many as the act has.
    pub(crate) with: [*const u8; 2],
    /// Where the results go; null if only the next act reads them.
    pub(crate) into: *mut u8,
    /// True if they go past the caches; other threads see them after [`store_fence`](super::store_fence).
    pub(crate) far: bool,
}

/// `run(links, sum, n)`: does all `links` to `n` values; the first one begins. `sum`, if not null, is the 16 running
/// values of a sum that takes all whole blocks of 128 of the last results.
///
/// # Safety
/// Every tile that is read holds `n` values, every place that is written has room for `n`, two of them
/// overlap only where they are equal, places past the caches are aligned as a value is and all alike to 64 bytes,
/// there are none beside a sum, and the processor has the isa the loop was asked for.
pub(crate) type ChainLoop = unsafe fn(links: &[FusedOperands], sum: *mut u8, n: usize);

/// Returns the loop for chains of floats of type `ty`.
pub(crate) fn chain(ty: Compute, isa: Isa) -> Option<ChainLoop> {
    // Blocks of eight vectors. The portable vectors are wider than registers, so that fewer of them fit.
    match (ty, isa) {
        (Compute::F32, Isa::Avx512) => Some(const { fused_loop::<f32, 8>(Isa::Avx512) }),
        (Compute::F32, Isa::Avx2) => Some(const { fused_loop::<f32, 8>(Isa::Avx2) }),
        (Compute::F32, Isa::Portable) => Some(const { fused_loop::<f32, 2>(Isa::Portable) }),
        (Compute::F64, Isa::Avx512) => Some(const { fused_loop::<f64, 8>(Isa::Avx512) }),
        (Compute::F64, Isa::Avx2) => Some(const { fused_loop::<f64, 8>(Isa::Avx2) }),
        (Compute::F64, Isa::Portable) => Some(const { fused_loop::<f64, 1>(Isa::Portable) }),
        _ => None,
    }
}

per_isa! {
    /// The loop, in blocks of `R` vectors.
    fn fused_loop [T: Float, const R: usize] [T, R] <S> (links: &[FusedOperands], sum: *mut u8, n: usize) {
        // SAFETY: the caller keeps the contract of `ChainLoop`; the instruction set of the vectors is enabled here.
        unsafe { run::<S::FloatVector<T>, R>(links, sum, n) }
    }
}

/// Whether the results of non-temporal stores are aligned as a value of type T is, and all alike to 64 bytes.
fn are_far_alike<T>(links: &[FusedOperands]) -> bool {
    let mut far = links.iter().filter(|l| l.far).map(|l| l.into.addr());
    far.next().is_none_or(|first| first.is_multiple_of(size_of::<T>()) && far.all(|other| other % 64 == first % 64))
}

/// Blocks of R vectors, then single ones, then a part of one; where results pass the caches by, a part of one before
/// all, to the first place that is aligned as a vector; where they are summed, blocks in the order of reductions
/// before all.
#[inline(always)]
unsafe fn run<V: FloatVector, const R: usize>(links: &[FusedOperands], sum: *mut u8, n: usize) {
    debug_assert!(links.first().is_some_and(|first| !first.begin.is_null()), "a chain without a beginning");
    debug_assert!(are_far_alike::<V::Scalar>(links) && (sum.is_null() || links.iter().all(|l| !l.far)), "far results");
    let (mut done, sum) = (0, sum.cast::<V::Scalar>());
    // SAFETY: the caller's promise; no block reaches beyond the `n` values.
    unsafe {
        let all = V::mask(V::LANES);
        if let Some(far) = links.iter().find(|l| l.far) {
            done = far.into.cast::<V::Scalar>().align_offset(size_of::<V>()).min(n);
            if done > 0 {
                block::<V, 1, 0, false>(links, 0, V::mask(done));
            }
        }
        if !sum.is_null() {
            while n - done >= ROWS {
                for lane in (0..LANES).step_by(V::LANES) {
                    let v = block::<V, 8, LANES, true>(links, done + lane, all);
                    let eight = v[0].add(v[1]).add(v[2].add(v[3])).add(v[4].add(v[5]).add(v[6].add(v[7])));
                    V::load(sum.add(lane)).add(eight).store(sum.add(lane));
                }
                done += ROWS;
            }
        }
        while n - done >= R * V::LANES {
            block::<V, R, 0, true>(links, done, all);
            done += R * V::LANES;
        }
        while n - done >= V::LANES {
            block::<V, 1, 0, true>(links, done, all);
            done += V::LANES;
        }
        if done < n {
            block::<V, 1, 0, false>(links, done, V::mask(n - done));
        }
    }
}

/// Does all `links` to R vectors, or to the lanes of the mask: the first from value `start` on, the others STEP values
/// further on each, or side by side if that is 0.
#[inline(always)]
unsafe fn block<V: FloatVector, const R: usize, const STEP: usize, const WHOLE: bool>(
    links: &[FusedOperands],
    start: usize,
    mask: V::Mask,
) -> [V; R] {
    let step = if STEP == 0 { V::LANES } else { STEP };
    // SAFETY: the caller's promise, and of an operand that is a tile or a result: the block lies within it; whole
    // vectors past the caches are aligned.
    unsafe {
        let mut v = [V::zero(); R];
        for link in links {
            let [a, b] = link.with.map(|p| p.cast::<V::Scalar>());
            let tile = |p: *const V::Scalar, i: usize| {
                let p = p.add(start + i * step);
                if WHOLE { V::load(p) } else { V::load_part(p, mask) }
            };
            // The block after the act; `u = a` is the one value of operand a.
            macro_rules! each {
                (|$v:ident, $i:ident $(, $u:ident = $p:ident)*| $e:expr) => {{
                    $(let $u = V::splat($p);)*
                    for $i in 0..R {
                        let $v = v[$i];
                        v[$i] = $e;
                    }
                }};
            }
            if !link.begin.is_null() {
                let begin = link.begin.cast();
                for i in 0..R {
                    v[i] = tile(begin, i);
                }
            }
            match link.act {
                FusedInstr::AddTile => each!(|v, i| v.add(tile(a, i))),
                FusedInstr::AddOne => each!(|v, i, u = a| v.add(u)),
                FusedInstr::Double => each!(|v, i| v.add(v)),
                FusedInstr::SubTile => each!(|v, i| v.sub(tile(a, i))),
                FusedInstr::SubOne => each!(|v, i, u = a| v.sub(u)),
                FusedInstr::TileSub => each!(|v, i| tile(a, i).sub(v)),
                FusedInstr::OneSub => each!(|v, i, u = a| u.sub(v)),
                FusedInstr::MulTile => each!(|v, i| v.mul(tile(a, i))),
                FusedInstr::MulOne => each!(|v, i, u = a| v.mul(u)),
                FusedInstr::Square => each!(|v, i| v.mul(v)),
                FusedInstr::DivTile => each!(|v, i| v.div(tile(a, i))),
                FusedInstr::DivOne => each!(|v, i, u = a| v.div(u)),
                FusedInstr::TileDiv => each!(|v, i| tile(a, i).div(v)),
                FusedInstr::OneDiv => each!(|v, i, u = a| u.div(v)),
                FusedInstr::Neg => each!(|v, i| v.neg()),
                FusedInstr::Sqrt => each!(|v, i| v.sqrt()),
                FusedInstr::Exp(f) => match V::exp(v) {
                    Some(y) => v = y,
                    None => v = apply(v, f),
                },
                FusedInstr::Sigmoid(f) => v = map::<V, R, float::Sigmoid>(v, f),
                FusedInstr::Tanh(f) => match V::tanh(v) {
                    Some(y) => v = y,
                    None => v = apply(v, f),
                },
                FusedInstr::Sin(f) => v = map::<V, R, float::Sin>(v, f),
                FusedInstr::Cos(f) => v = map::<V, R, float::Cos>(v, f),
                FusedInstr::Apply(f) => v = apply(v, f),
                FusedInstr::MulTileAddTile => each!(|v, i| v.mul_add(tile(a, i), tile(b, i))),
                FusedInstr::MulTileAddOne => each!(|v, i, u = b| v.mul_add(tile(a, i), u)),
                FusedInstr::MulOneAddTile => each!(|v, i, u = a| v.mul_add(u, tile(b, i))),
                FusedInstr::MulOneAddOne => each!(|v, i, u = a, w = b| v.mul_add(u, w)),
                FusedInstr::AddTileTile => each!(|v, i| tile(a, i).mul_add(tile(b, i), v)),
                FusedInstr::AddTileOne => each!(|v, i, u = b| tile(a, i).mul_add(u, v)),
            }
            if !link.into.is_null() {
                for i in 0..R {
                    let p = link.into.cast::<V::Scalar>().add(start + i * step);
                    match (WHOLE, link.far) {
                        (true, false) => v[i].store(p),
                        (true, true) => v[i].stream(p),
                        (false, _) => v[i].store_part(p, mask),
                    }
                }
            }
        }
        v
    }
}

/// F of all values, in registers unless one of them is rare.
#[inline(always)]
unsafe fn map<V: FloatVector, const R: usize, F: Function<V::Scalar, Out = V::Scalar>>(
    v: [V; R],
    f: WholeLoop,
) -> [V; R] {
    let (mut to, mut rare) = (v, false);
    // SAFETY: vectors are their lanes, one after the other.
    let lanes = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<V::Scalar>(), R * V::LANES) };
    // One loop over all, which the compiler turns into vectors side by side, and leaves in registers.
    for x in lanes {
        rare |= F::is_rare(*x);
        *x = F::at(*x);
    }
    // SAFETY: the caller's promise.
    if rare { unsafe { apply(v, f) } } else { to }
}

/// f of all values, by its own loop.
#[inline(always)]
unsafe fn apply<V: FloatVector, const R: usize>(v: [V; R], f: WholeLoop) -> [V; R] {
    // A copy, so that the block itself stays in registers.
    let (from, mut to) = (v, MaybeUninit::<[V; R]>::uninit());
    // SAFETY: vectors are their lanes, one after the other, and the processor has the loop's isa.
    unsafe {
        f(to.as_mut_ptr().cast(), (&raw const from).cast(), R * V::LANES);
        to.assume_init()
    }
}
