//! Chains: float instructions, each of which reads the result of the previous one, fused into one loop.
//!
//! A block of values stays in registers while the loop applies all instructions of the chain to it. Only results that
//! other instructions or outputs read are written to memory. Each instruction rounds once, as its own loop does, so a
//! chain is bit-identical to the separate loops. The most important functions (`exp`, `tanh`, ...) are computed in
//! registers if the vector type supports this and no value of the block is rare. Otherwise, and for all other
//! functions, the block goes through memory to the loop of the function. Instructions that compute only one operand of
//! a selection are skipped for a block whose lanes all select the other operand.

use super::fold::{LANES, ROWS};
use super::fused_instr::{Comparison, FusedInstr, MaskUpdate};
use super::unary::{VectorUnaryLoop, float};
use pellucid_ir::Compute;
use pellucid_simd::math::Real;
use pellucid_simd::vector::{FloatVector, Function};
use pellucid_simd::{Float, Isa, per_isa};
use std::mem::MaybeUninit;

/// An instruction of a fused loop with its operands.
#[derive(Clone, Copy)]
pub(crate) struct FusedOperands {
    /// The tile from which the values are loaded, if a chain begins here; null if the values are the result of the
    /// previous instruction.
    pub(crate) chain_start: *const u8,
    /// The instruction.
    pub(crate) instr: FusedInstr,
    /// The tile or uniform operands of the instruction. An instruction ignores the entries beyond the number of its
    /// operands.
    pub(crate) operands: [*const u8; 2],
    /// The destination of the results; null if only the next instruction reads them.
    pub(crate) into: *mut u8,
    /// True for non-temporal stores. Other threads see their results only after [`store_fence`](super::store_fence).
    pub(crate) non_temporal: bool,
    /// The distance from a comparison to the selection that comes after instructions which only its second operand
    /// needs. If the mask is true for all lanes of a block, the values in registers are the result of the selection,
    /// and the loop continues after it.
    pub(crate) skip: Option<u8>,
}

/// `fused_loop(links, sum, n)` applies the instructions `links` to `n` elements. The first instruction begins a chain.
/// `sum`, if not null, points to the 16 lanes of a sum, to which the loop adds all full blocks of 128 results of the
/// last instruction.
///
/// # Safety
/// * Sources: every tile operand is valid for reads of `n` elements, every uniform operand for reads of one element.
/// * Destinations: every non-null `into` is valid for writes of `n` elements.
/// * Lanes: `sum` is null or valid for reads and writes of 16 elements.
/// * Aliasing: two operands or results overlap only if their addresses are equal.
/// * Alignment: all destinations of non-temporal stores are aligned to the element size, and all are congruent modulo
///   64 bytes. With a sum, there are no non-temporal stores.
/// * ISA: the processor has the instruction set for which the loop was requested.
pub(crate) type ChainLoop = unsafe fn(links: &[FusedOperands], sum: *mut u8, n: usize);

/// Returns the fused loop for floats of type `ty`, or `None` for other types.
pub(crate) fn chain(ty: Compute, isa: Isa) -> Option<ChainLoop> {
    // A block has eight vectors. Portable vectors are wider than registers, so portable blocks have fewer vectors.
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
    /// Returns the fused loop with blocks of `R` vectors, for an instruction set.
    fn fused_loop [T: Float, const R: usize] [T, R] <S> (links: &[FusedOperands], sum: *mut u8, n: usize) {
        // SAFETY: the caller guarantees all clauses of the contract of `ChainLoop`. *ISA* implies that the instruction
        // set of the vectors is enabled here.
        unsafe { run_fused::<S::FloatVector<T>, R>(links, sum, n) }
    }
}

/// Returns true if all destinations of non-temporal stores are aligned to the size of T and congruent modulo 64 bytes.
fn has_aligned_non_temporal_outputs<T>(links: &[FusedOperands]) -> bool {
    let mut streamed = links.iter().filter(|l| l.non_temporal).map(|l| l.into.addr());
    streamed
        .next()
        .is_none_or(|first| first.is_multiple_of(size_of::<T>()) && streamed.all(|other| other % 64 == first % 64))
}

/// Runs a fused loop: blocks of R vectors, then single vectors, then a partial vector.
///
/// With non-temporal stores, the loop first processes a partial vector, up to the first address that is aligned to a
/// vector. With a sum, the loop first processes blocks of 128 elements in the canonical reduction order.
///
/// # Safety
/// The contract of [`ChainLoop`] holds.
#[inline(always)]
unsafe fn run_fused<V: FloatVector, const R: usize>(links: &[FusedOperands], sum: *mut u8, n: usize) {
    debug_assert!(
        links.first().is_some_and(|first| !first.chain_start.is_null()),
        "the first instruction of a fused loop must begin a chain"
    );
    debug_assert!(
        has_aligned_non_temporal_outputs::<V::Scalar>(links)
            && (sum.is_null() || links.iter().all(|l| !l.non_temporal)),
        "non-temporal stores require equally aligned destinations, and a loop without a sum"
    );
    let (mut done, sum) = (0, sum.cast::<V::Scalar>());
    // SAFETY: the caller guarantees the contract of `ChainLoop`. `done` plus the size of each block is at most n, or
    // the mask limits the block to the elements left, so *Sources* and *Destinations* cover all blocks. By *Alignment*,
    // vectors of non-temporal stores are aligned after the first partial vector. *Lanes* covers the accesses to `sum`,
    // because `lane` plus a vector is at most 16.
    unsafe {
        let all = V::mask(V::LANES);
        // The number of lanes of the next partial vector: at the start the lanes before the first aligned address, at
        // the end the remaining ones.
        let first_streamed = links.iter().find(|l| l.non_temporal);
        let has_masks = links.iter().any(|l| l.instr.gives_mask());
        let has_shortcuts = links.iter().any(|l| l.skip.is_some());
        let mut partial = first_streamed.map_or(0, |l| l.into.cast::<V::Scalar>().align_offset(size_of::<V>()).min(n));
        loop {
            if partial > 0 {
                fused_block::<V, 1, 0, false, true, false>(links, done, V::mask(partial));
                done += partial;
            }
            while !sum.is_null() && n - done >= ROWS {
                for lane in (0..LANES).step_by(V::LANES) {
                    let v = fused_block::<V, 8, LANES, true, true, false>(links, done + lane, all);
                    let eight = v[0].add(v[1]).add(v[2].add(v[3])).add(v[4].add(v[5]).add(v[6].add(v[7])));
                    V::load(sum.add(lane)).add(eight).store(sum.add(lane));
                }
                done += ROWS;
            }
            while has_shortcuts && n - done >= R * V::LANES {
                fused_block::<V, R, 0, true, true, true>(links, done, all);
                done += R * V::LANES;
            }
            while has_masks && n - done >= R * V::LANES {
                fused_block::<V, R, 0, true, true, false>(links, done, all);
                done += R * V::LANES;
            }
            while n - done >= R * V::LANES {
                fused_block::<V, R, 0, true, false, false>(links, done, all);
                done += R * V::LANES;
            }
            while n - done >= V::LANES {
                fused_block::<V, 1, 0, true, true, false>(links, done, all);
                done += V::LANES;
            }
            if done == n {
                return;
            }
            partial = n - done;
        }
    }
}

/// Applies an expression to each vector of a block; `u = a` broadcasts the uniform operand a.
macro_rules! map_vectors {
    ($block:ident: |$v:ident, $i:ident $(, $u:ident = $p:ident)*| $e:expr) => {{
        $(let $u = V::splat($p);)*
        for $i in 0..R {
            let value = {
                let $v = $block[$i];
                $e
            };
            $block[$i] = value;
        }
    }};
}

/// The position of a block of R vectors: vector i begins at element `start + i · STEP`, or the vectors are contiguous
/// if STEP is 0. Unless FULL, only the lanes of the mask are loaded and stored.
#[derive(Clone, Copy)]
struct BlockPosition<V: FloatVector, const STEP: usize, const FULL: bool> {
    start: usize,
    mask: V::Mask,
}

impl<V: FloatVector, const STEP: usize, const FULL: bool> BlockPosition<V, STEP, FULL> {
    /// The number of elements between the starts of two adjacent vectors.
    const STRIDE: usize = if STEP == 0 { V::LANES } else { STEP };

    /// Loads vector `i` of the tile at `p`.
    ///
    /// # Safety
    /// *Contract* and *Block* of [`fused_block`] hold for the tile.
    #[inline(always)]
    unsafe fn load(self, p: *const V::Scalar, i: usize) -> V {
        // SAFETY: the vector, or its lanes in the mask, is part of the tile (this method's contract).
        unsafe {
            let p = p.add(self.start + i * Self::STRIDE);
            if FULL { V::load(p) } else { V::load_part(p, self.mask) }
        }
    }
}

/// Applies the instructions `links` to a block of R vectors and returns the last results. If SKIPS, the block takes the
/// shortcuts of its comparisons; otherwise it applies all instructions, which has the same results. Comparisons are
/// allowed only if MASKS. Without masks or shortcuts, the loop over the instructions needs fewer registers.
///
/// # Safety
/// * Contract: the clauses of [`ChainLoop`] hold.
/// * Block: all elements of the block (unless FULL: all elements that the mask selects) are among the `n` elements.
/// * Aligned: if FULL, every vector of a non-temporal store is aligned to the vector size.
/// * Masks: unless MASKS, [`FusedInstr::gives_mask`] is false for all instructions.
#[inline(always)]
unsafe fn fused_block<
    V: FloatVector,
    const R: usize,
    const STEP: usize,
    const FULL: bool,
    const MASKS: bool,
    const SKIPS: bool,
>(
    links: &[FusedOperands],
    start: usize,
    mask: V::Mask,
) -> [V; R] {
    let at = BlockPosition::<V, STEP, FULL> { start, mask };
    // SAFETY: *Contract* and *Block* (this function's contract): every load and store of a tile or a result is within
    // its `n` elements, and a uniform operand is valid for a read of one element. *Aligned* covers the non-temporal
    // stores.
    unsafe {
        let mut v = [V::zero(); R];
        let mut mask_of = [V::zero().equal(V::zero()); R];
        let mut remaining = links.iter();
        while let Some(mut link) = remaining.next() {
            let [a, b] = link.operands.map(|p| p.cast::<V::Scalar>());
            if !link.chain_start.is_null() {
                let chain_start = link.chain_start.cast();
                for i in 0..R {
                    v[i] = at.load(chain_start, i);
                }
            }
            match link.instr {
                FusedInstr::AddTile => map_vectors!(v: |v, i| v.add(at.load(a, i))),
                FusedInstr::AddOne => map_vectors!(v: |v, i, u = a| v.add(u)),
                FusedInstr::Double => map_vectors!(v: |v, i| v.add(v)),
                FusedInstr::SubTile => map_vectors!(v: |v, i| v.sub(at.load(a, i))),
                FusedInstr::SubOne => map_vectors!(v: |v, i, u = a| v.sub(u)),
                FusedInstr::TileSub => map_vectors!(v: |v, i| at.load(a, i).sub(v)),
                FusedInstr::OneSub => map_vectors!(v: |v, i, u = a| u.sub(v)),
                FusedInstr::MulTile => map_vectors!(v: |v, i| v.mul(at.load(a, i))),
                FusedInstr::MulOne => map_vectors!(v: |v, i, u = a| v.mul(u)),
                FusedInstr::Square => map_vectors!(v: |v, i| v.mul(v)),
                FusedInstr::DivTile => map_vectors!(v: |v, i| v.div(at.load(a, i))),
                FusedInstr::DivOne => match a.read_unaligned().exact_reciprocal() {
                    Some(reciprocal) => {
                        let r = &raw const reciprocal;
                        map_vectors!(v: |v, i, u = r| v.mul(u));
                    }
                    None => map_vectors!(v: |v, i, u = a| v.div(u)),
                },
                FusedInstr::TileDiv => map_vectors!(v: |v, i| at.load(a, i).div(v)),
                FusedInstr::OneDiv => map_vectors!(v: |v, i, u = a| u.div(v)),
                FusedInstr::Neg => map_vectors!(v: |v, i| v.neg()),
                FusedInstr::Sqrt => map_vectors!(v: |v, i| v.sqrt()),
                FusedInstr::MulTileAddTile => map_vectors!(v: |v, i| v.mul_add(at.load(a, i), at.load(b, i))),
                FusedInstr::MulTileAddOne => map_vectors!(v: |v, i, u = b| v.mul_add(at.load(a, i), u)),
                FusedInstr::MulOneAddTile => map_vectors!(v: |v, i, u = a| v.mul_add(u, at.load(b, i))),
                FusedInstr::MulOneAddOne => map_vectors!(v: |v, i, u = a, w = b| v.mul_add(u, w)),
                FusedInstr::AddTileTile => map_vectors!(v: |v, i| at.load(a, i).mul_add(at.load(b, i), v)),
                FusedInstr::AddTileOne => map_vectors!(v: |v, i, u = b| at.load(a, i).mul_add(u, v)),
                FusedInstr::NoOp => {}
                _ if link.instr.is_function() => v = apply_function(v, link.instr),
                _ if MASKS && link.instr.gives_mask() => {
                    mask_of = compare_block(&v, mask_of, link, at);
                    if SKIPS
                        && let Some(distance) = link.skip.filter(|_| is_true_everywhere::<V, R>(&mask_of))
                        && let Some(selection) = remaining.nth(distance as usize - 1)
                    {
                        link = selection;
                    }
                }
                _ => v = select_block(v, &mask_of, link, at),
            }
            if !link.into.is_null() {
                let into = link.into.cast::<V::Scalar>().add(start);
                store_block::<V, R, FULL>(v, into, BlockPosition::<V, STEP, FULL>::STRIDE, link.non_temporal, mask);
            }
        }
        v
    }
}

/// Applies an instruction for which [`FusedInstr::is_function`] is true.
///
/// # Safety
/// The processor has the instruction set of V and of the loops of the functions.
#[inline(always)]
unsafe fn apply_function<V: FloatVector, const R: usize>(v: [V; R], instr: FusedInstr) -> [V; R] {
    // SAFETY: the instruction set is available (this function's contract).
    unsafe {
        match instr {
            FusedInstr::Abs(f) => apply_in_registers::<V, R, float::Abs>(v, f),
            FusedInstr::Floor(f) => apply_in_registers::<V, R, float::Floor>(v, f),
            FusedInstr::Trunc(f) => apply_in_registers::<V, R, float::Trunc>(v, f),
            FusedInstr::Exp(f) => match V::exp(v) {
                Some(y) => y,
                None => apply_in_memory(v, f),
            },
            FusedInstr::Sigmoid(f) => match V::sigmoid(v) {
                Some(y) => y,
                None if const { size_of::<V::Scalar>() == 8 } => apply_in_registers::<V, R, float::Sigmoid>(v, f),
                None => apply_in_memory(v, f),
            },
            FusedInstr::Ndtr(f) => match V::ndtr(v) {
                Some(y) => y,
                None => apply_in_memory(v, f),
            },
            FusedInstr::Tanh(f) => match V::tanh(v) {
                Some(y) => y,
                None => apply_in_memory(v, f),
            },
            FusedInstr::Sin(f) => apply_in_registers::<V, R, float::Sin>(v, f),
            FusedInstr::Cos(f) => apply_in_registers::<V, R, float::Cos>(v, f),
            FusedInstr::Apply(f) => apply_in_memory(v, f),
            _ => v,
        }
    }
}

/// Returns the mask after an instruction for which [`FusedInstr::gives_mask`] is true. `mask` is the mask before it.
///
/// # Safety
/// *Contract* and *Block* of [`fused_block`] hold.
#[inline(always)]
unsafe fn compare_block<V: FloatVector, const R: usize, const STEP: usize, const FULL: bool>(
    v: &[V; R],
    mask: [V::LaneMask; R],
    link: &FusedOperands,
    at: BlockPosition<V, STEP, FULL>,
) -> [V::LaneMask; R] {
    let [a, b] = link.operands.map(|p| p.cast::<V::Scalar>());
    // Computes a mask for each vector of the block; `u = a` broadcasts the uniform operand a.
    macro_rules! compare_vectors {
        ($comparison:expr, $update:expr, |$i:ident $(, $u:ident = $p:ident)*| $x:expr, $y:expr) => {{
            $(let $u = V::splat($p);)*
            match $comparison {
                Comparison::Lt => combine_masks!($update, |$i| $x.less($y)),
                Comparison::Le => combine_masks!($update, |$i| $x.less_equal($y)),
                Comparison::Gt => combine_masks!($update, |$i| $y.less($x)),
                Comparison::Ge => combine_masks!($update, |$i| $y.less_equal($x)),
                Comparison::Eq => combine_masks!($update, |$i| $x.equal($y)),
                Comparison::Ne => combine_masks!($update, |$i| $x.not_equal($y)),
            }
        }};
    }
    // There are few mask registers, so a combination does not keep the masks of both comparisons.
    macro_rules! combine_masks {
        ($update:expr, |$i:ident| $e:expr) => {{
            let mut combined = mask;
            match $update {
                MaskUpdate::Replace => {
                    for $i in 0..R {
                        combined[$i] = $e
                    }
                }
                MaskUpdate::And => {
                    for $i in 0..R {
                        combined[$i] = V::both(mask[$i], $e)
                    }
                }
                MaskUpdate::Or => {
                    for $i in 0..R {
                        combined[$i] = V::either(mask[$i], $e)
                    }
                }
            }
            combined
        }};
    }
    // SAFETY: *Contract* and *Block* (this function's contract) cover the loads, and a uniform operand is valid for a
    // read of one element.
    unsafe {
        match link.instr {
            FusedInstr::CompareTile(c, update) => compare_vectors!(c, update, |i| v[i], at.load(a, i)),
            FusedInstr::CompareOne(c, update) => compare_vectors!(c, update, |i, u = a| v[i], u),
            FusedInstr::CompareTiles(c, update) => compare_vectors!(c, update, |i| at.load(a, i), at.load(b, i)),
            FusedInstr::CompareTileOne(c, update) => compare_vectors!(c, update, |i, u = b| at.load(a, i), u),
            FusedInstr::IsNan(update) => combine_masks!(update, |i| v[i].not_equal(v[i])),
            FusedInstr::IsFinite(update) => combine_masks!(update, |i| is_finite(v[i])),
            FusedInstr::TileIsFinite(update) => combine_masks!(update, |i| is_finite(at.load(a, i))),
            _ => mask,
        }
    }
}

/// Returns whether the masks are true in all lanes.
///
/// # Safety
/// The clause *instruction set* of [`Vector`](pellucid_simd::vector::Vector) holds.
#[inline(always)]
unsafe fn is_true_everywhere<V: FloatVector, const R: usize>(masks: &[V::LaneMask; R]) -> bool {
    // SAFETY: the methods require the same clause, *instruction set*.
    unsafe { V::is_true(masks[1..].iter().fold(masks[0], |combined, &mask| V::both(combined, mask))) }
}

/// Returns |x| < ∞ for every lane: x − x is NaN unless x is finite.
///
/// # Safety
/// The clause *instruction set* of [`Vector`](pellucid_simd::vector::Vector) holds.
#[inline(always)]
unsafe fn is_finite<V: FloatVector>(x: V) -> V::LaneMask {
    // SAFETY: the methods require the same clause, *instruction set*.
    unsafe { x.sub(x).equal(x.sub(x)) }
}

/// Applies an extremum, or an instruction that reads the last mask or a uniform boolean.
///
/// # Safety
/// *Contract* and *Block* of [`fused_block`] hold.
#[inline(always)]
unsafe fn select_block<V: FloatVector, const R: usize, const STEP: usize, const FULL: bool>(
    mut v: [V; R],
    mask: &[V::LaneMask; R],
    link: &FusedOperands,
    at: BlockPosition<V, STEP, FULL>,
) -> [V; R] {
    let [a, b] = link.operands.map(|p| p.cast::<V::Scalar>());
    // SAFETY: *Contract* and *Block* (this function's contract) cover the loads, and a uniform operand, also a boolean,
    // is valid for a read of one element.
    unsafe {
        let is_true = |p: *const V::Scalar| *p.cast::<u8>() != 0;
        match link.instr {
            FusedInstr::MaxTile => map_vectors!(v: |v, i| v.max(at.load(a, i))),
            FusedInstr::MaxOne => map_vectors!(v: |v, i, u = a| v.max(u)),
            FusedInstr::TileMax => map_vectors!(v: |v, i| at.load(a, i).max(v)),
            FusedInstr::OneMax => map_vectors!(v: |v, i, u = a| u.max(v)),
            FusedInstr::MinTile => map_vectors!(v: |v, i| v.min(at.load(a, i))),
            FusedInstr::MinOne => map_vectors!(v: |v, i, u = a| v.min(u)),
            FusedInstr::TileMin => map_vectors!(v: |v, i| at.load(a, i).min(v)),
            FusedInstr::OneMin => map_vectors!(v: |v, i, u = a| u.min(v)),
            FusedInstr::RaiseToOne => map_vectors!(v: |v, i, u = a| v.raise(u)),
            FusedInstr::LowerToOne => map_vectors!(v: |v, i, u = a| v.lower(u)),
            FusedInstr::SelectElseTile => map_vectors!(v: |v, i| v.select(at.load(a, i), mask[i])),
            FusedInstr::SelectElseOne => map_vectors!(v: |v, i, u = a| v.select(u, mask[i])),
            FusedInstr::SelectTile => map_vectors!(v: |v, i| at.load(a, i).select(v, mask[i])),
            FusedInstr::SelectOne => map_vectors!(v: |v, i, u = a| u.select(v, mask[i])),
            FusedInstr::SelectTileTile => map_vectors!(v: |_v, i| at.load(a, i).select(at.load(b, i), mask[i])),
            FusedInstr::SelectTileOne => map_vectors!(v: |_v, i, u = b| at.load(a, i).select(u, mask[i])),
            FusedInstr::SelectOneTile => map_vectors!(v: |_v, i, u = a| u.select(at.load(b, i), mask[i])),
            FusedInstr::SelectOneOne => map_vectors!(v: |_v, i, u = a, w = b| u.select(w, mask[i])),
            FusedInstr::IfElseTile if !is_true(b) => map_vectors!(v: |_v, i| at.load(a, i)),
            FusedInstr::IfElseOne if !is_true(b) => map_vectors!(v: |_v, _i, u = a| u),
            FusedInstr::IfTile if is_true(b) => map_vectors!(v: |_v, i| at.load(a, i)),
            FusedInstr::IfOne if is_true(b) => map_vectors!(v: |_v, _i, u = a| u),
            FusedInstr::ToNumber => {
                let one = &V::Scalar::ONE;
                map_vectors!(v: |_v, i, u = one| u.select(V::zero(), mask[i]));
            }
            _ => {}
        }
        v
    }
}

/// Stores a block of R vectors, `step` elements apart.
///
/// # Safety
/// The clauses of [`fused_block`] hold for the destination `into`.
#[inline(always)]
unsafe fn store_block<V: FloatVector, const R: usize, const FULL: bool>(
    v: [V; R],
    into: *mut V::Scalar,
    step: usize,
    non_temporal: bool,
    mask: V::Mask,
) {
    for i in 0..R {
        // SAFETY: every vector, or its lanes in the mask, is within the destination, and aligned if `non_temporal`
        // (this function's contract).
        unsafe {
            let p = into.add(i * step);
            match (FULL, non_temporal) {
                (true, false) => v[i].store(p),
                (true, true) => v[i].stream(p),
                (false, _) => v[i].store_part(p, mask),
            }
        }
    }
}

/// Applies F to all elements: in registers if the vectors have a fused multiply-add and no element is rare, otherwise
/// by the loop `f`.
///
/// # Safety
/// The processor has the instruction set of the loop `f`, which computes F.
#[inline(always)]
unsafe fn apply_in_registers<V: FloatVector, const R: usize, F: Function<V::Scalar, Out = V::Scalar>>(
    v: [V; R],
    f: VectorUnaryLoop,
) -> [V; R] {
    if const { !V::HAS_FMA } {
        // SAFETY: the caller guarantees the instruction set of `f` (this function's contract).
        return unsafe { apply_in_memory(v, f) };
    }
    let (mut to, mut rare) = (v, false);
    // SAFETY: a vector consists of its elements, in order (the contract of `Vector`), and `to` is borrowed exclusively.
    let lanes = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<V::Scalar>(), R * V::LANES) };
    // One loop over all elements, which the compiler vectorizes and keeps in registers.
    for x in lanes {
        rare |= F::is_rare(*x);
        *x = F::at(*x);
    }
    // SAFETY: the caller guarantees the instruction set of `f` (this function's contract).
    if rare { unsafe { apply_in_memory(v, f) } } else { to }
}

/// Applies the loop `f` to all elements, through memory.
///
/// # Safety
/// The processor has the instruction set of `f`.
#[inline(always)]
unsafe fn apply_in_memory<V: FloatVector, const R: usize>(v: [V; R], f: VectorUnaryLoop) -> [V; R] {
    // The loop reads a copy, so the block itself stays in registers.
    let (from, mut to) = (v, MaybeUninit::<[V; R]>::uninit());
    // SAFETY: a vector consists of its elements, in order (the contract of `Vector`), so both arrays hold R · LANES
    // elements and do not overlap. The loop writes all elements of `to`. The caller guarantees the instruction set.
    unsafe {
        f(to.as_mut_ptr().cast(), (&raw const from).cast(), R * V::LANES);
        to.assume_init()
    }
}
