//! Fused chains, compared with the separate instructions.

use super::*;
use crate::program::loops::loop_element::{Unaligned, source_slice};
use pellucid_ir::formula::{Binary, Unary};
use pellucid_simd::math::Real;

/// Returns every instruction of fused chains. Instructions that apply a function contain the loop of the function.
fn all_instructions(ty: Compute, isa: Isa) -> Vec<FusedInstr> {
    use FusedInstr::*;
    let function = |op| unary(op, ty, isa).expect("every function of floats must have a loop").vector_loop();
    let comparisons = [Comparison::Lt, Comparison::Le, Comparison::Gt, Comparison::Ge, Comparison::Eq, Comparison::Ne];
    let forms = [CompareTile, CompareOne, CompareTiles, CompareTileOne];
    let updates = [MaskUpdate::Replace, MaskUpdate::And, MaskUpdate::Or];
    let others = [
        AddTile,
        AddOne,
        Double,
        SubTile,
        SubOne,
        TileSub,
        OneSub,
        MulTile,
        MulOne,
        Square,
        DivTile,
        DivOne,
        TileDiv,
        OneDiv,
        Neg,
        Sqrt,
        MulTileAddTile,
        MulTileAddOne,
        MulOneAddTile,
        MulOneAddOne,
        AddTileTile,
        AddTileOne,
        Exp(function(Unary::Exp)),
        Sigmoid(function(Unary::Sigmoid)),
        Ndtr(function(Unary::Ndtr)),
        Tanh(function(Unary::Tanh)),
        Sin(function(Unary::Sin)),
        Cos(function(Unary::Cos)),
        Apply(function(Unary::Log2)),
        MaxTile,
        MaxOne,
        TileMax,
        OneMax,
        MinTile,
        MinOne,
        TileMin,
        OneMin,
        RaiseToOne,
        LowerToOne,
        NoOp,
        SelectElseTile,
        SelectElseOne,
        SelectTile,
        SelectOne,
        SelectTileTile,
        SelectTileOne,
        SelectOneTile,
        SelectOneOne,
        ToNumber,
        IfElseTile,
        IfElseOne,
        IfTile,
        IfOne,
        Abs(function(Unary::Abs)),
        Floor(function(Unary::Floor)),
        Trunc(function(Unary::Trunc)),
    ];
    let tests = [IsNan, IsFinite, TileIsFinite].into_iter().flat_map(|test| updates.map(test));
    let pairs = comparisons.into_iter().zip(updates.into_iter().cycle().skip(1));
    let compare = pairs.flat_map(|(c, update)| forms.map(|form| [form(c, MaskUpdate::Replace), form(c, update)]));
    others.into_iter().chain(tests).chain(compare.flatten()).collect()
}

/// Returns the mask after a comparison, with the operands of [`apply_one`].
fn mask_after<T: Real>(instr: FusedInstr, v: T, mask: bool, [t, s]: [T; 2], [u, w]: [T; 2]) -> Option<bool> {
    use FusedInstr::*;
    let (comparison, x, y, update) = match instr {
        CompareTile(c, update) => (c, v, t, update),
        CompareOne(c, update) => (c, v, u, update),
        CompareTiles(c, update) => (c, t, s, update),
        CompareTileOne(c, update) => (c, t, w, update),
        IsNan(update) => (Comparison::Ne, v, v, update),
        IsFinite(update) => (Comparison::Lt, v.abs(), T::INFINITY, update),
        TileIsFinite(update) => (Comparison::Lt, t.abs(), T::INFINITY, update),
        _ => return None,
    };
    let result = match comparison {
        Comparison::Lt => x < y,
        Comparison::Le => x <= y,
        Comparison::Gt => x > y,
        Comparison::Ge => x >= y,
        Comparison::Eq => x == y,
        Comparison::Ne => x != y,
    };
    Some(match update {
        MaskUpdate::Replace => result,
        MaskUpdate::And => mask && result,
        MaskUpdate::Or => mask || result,
    })
}

/// Applies an instruction to one element v, with the elements of two tiles and two uniform values. `mask` is the last
/// mask, and `condition` the uniform boolean.
fn apply_one<T: Real>(instr: FusedInstr, v: T, mask: &mut bool, [t, s]: [T; 2], [u, w]: [T; 2], condition: bool) -> T {
    use FusedInstr::*;
    if let Some(after) = mask_after(instr, v, *mask, [t, s], [u, w]) {
        *mask = after;
        return v;
    }
    let select = |a: T, b: T| if *mask { a } else { b };
    let choose = |a: T, b: T| if condition { a } else { b };
    match instr {
        RaiseToOne => {
            if v < u {
                u
            } else {
                v
            }
        }
        LowerToOne => {
            if v > u {
                u
            } else {
                v
            }
        }
        NoOp => v,
        IfElseTile => choose(v, t),
        IfElseOne => choose(v, u),
        IfTile => choose(t, v),
        IfOne => choose(u, v),
        MaxTile => v.max(t),
        MaxOne => v.max(u),
        TileMax => t.max(v),
        OneMax => u.max(v),
        MinTile => v.min(t),
        MinOne => v.min(u),
        TileMin => t.min(v),
        OneMin => u.min(v),
        SelectElseTile => select(v, t),
        SelectElseOne => select(v, u),
        SelectTile => select(t, v),
        SelectOne => select(u, v),
        SelectTileTile => select(t, s),
        SelectTileOne => select(t, w),
        SelectOneTile => select(u, s),
        SelectOneOne => select(u, w),
        ToNumber => select(T::ONE, T::ZERO),
        Abs(_) => v.abs(),
        Floor(_) => v.floor(),
        Trunc(_) => v.trunc(),
        AddTile => v + t,
        AddOne => v + u,
        Double => v + v,
        SubTile => v - t,
        SubOne => v - u,
        TileSub => t - v,
        OneSub => u - v,
        MulTile => v * t,
        MulOne => v * u,
        Square => v * v,
        DivTile => v / t,
        DivOne => v / u,
        TileDiv => t / v,
        OneDiv => u / v,
        Neg => -v,
        Sqrt => v.sqrt(),
        MulTileAddTile => v.mul_add(t, s),
        MulTileAddOne => v.mul_add(t, w),
        MulOneAddTile => v.mul_add(u, s),
        MulOneAddOne => v.mul_add(u, w),
        AddTileTile => t.mul_add(s, v),
        AddTileOne => t.mul_add(w, v),
        Exp(_) => v.exp(),
        Sigmoid(_) => v.sigmoid(),
        Ndtr(_) => v.ndtr(),
        Tanh(_) => v.tanh(),
        Sin(_) => v.sin(),
        Cos(_) => v.cos(),
        Apply(_) => v.log2(),
        _ => v,
    }
}

/// Tests that every pair of fused instructions is bit-identical to the separate instructions: on full blocks and
/// remainders, with stored, non-temporal and unstored results.
#[test]
fn chains_match_their_separate_instructions() {
    fn check<T: Real + LoopElement>(ty: Compute, isa: Isa) {
        let acts = all_instructions(ty, isa);
        let pairs = acts.iter().flat_map(|&a| acts.iter().map(move |&b| (a, b)));
        let run = chain(ty, isa).expect("float types must have fused loops");
        for (k, (first, second)) in pairs.enumerate() {
            let n = COUNTS[k % COUNTS.len()];
            // Every second pair has no rare operands.
            let operand = |x| if k % 2 == 0 { x } else { without_huge_values(ty.storage(), x) };
            let [from, mut tile, more] =
                [1, 2, 3].map(|seed| operand(values(ty.storage(), n + 1, seed + 3 * k as u64)));
            if k % 3 == 1 {
                // The uniform divisor is a power of two, so a division is computed as a multiplication.
                let one = T::ONE;
                let power = (0..k % 5).fold(one, |power, _| power / (one + one));
                // SAFETY: the first element is valid for writes; the vector is borrowed exclusively.
                unsafe { tile.as_mut_ptr().cast::<Unaligned<T>>().write(Unaligned(power)) };
            }
            let shift = if k % 3 == 0 { k % 7 } else { k % 7 * size_of::<T>() };
            let mut kept = [(); 3].map(|()| GuardedBytes::new(&vec![0; n * size_of::<T>()], shift));
            let to = kept[1].ptr();
            let non_temporal = k % 3 != 0 && to.addr().is_multiple_of(size_of::<T>());
            let nowhere = std::ptr::null_mut();
            let operands = [tile.as_ptr(), more.as_ptr()];
            let aligned = non_temporal && (kept[2].ptr().addr() ^ to.addr()).is_multiple_of(64);
            let keep = if k % 2 == 0 { kept[0].ptr() } else { nowhere };
            let link = |chain_start, instr, into, non_temporal| FusedOperands {
                chain_start,
                instr,
                operands,
                into,
                non_temporal,
                skip: None,
            };
            let links = [
                link(from.as_ptr(), first, keep, false),
                link(std::ptr::null(), second, to, non_temporal),
                link(more.as_ptr(), FusedInstr::AddTile, kept[2].ptr(), aligned),
            ];
            // SAFETY: all sources hold `n + 1` values and all destinations `n`. Non-temporal destinations are aligned
            // to the element size and congruent modulo 64. The isa is available.
            unsafe { run(&links, nowhere, n) };
            store_fence();
            // SAFETY: the buffers hold `n + 1` values.
            let [v, t, s] = unsafe { [&from, &tile, &more].map(|x| source_slice::<T>(x.as_ptr(), n + 1)) };
            let (u, w, condition) = (t[0].0, s[0].0, more[0] != 0);
            let [mut once, mut twice, mut sums] = [(); 3].map(|()| vec![0; n * size_of::<T>()]);
            for i in 0..n {
                let mut mask = true;
                let one = apply_one(first, v[i].0, &mut mask, [t[i].0, s[i].0], [u, w], condition);
                let two = apply_one(second, one, &mut mask, [t[i].0, s[i].0], [u, w], condition);
                // SAFETY: the vectors hold `n` values, and i < n.
                unsafe {
                    once.as_mut_ptr().cast::<Unaligned<T>>().add(i).write(Unaligned(one));
                    twice.as_mut_ptr().cast::<Unaligned<T>>().add(i).write(Unaligned(two));
                    sums.as_mut_ptr().cast::<Unaligned<T>>().add(i).write(Unaligned(s[i].0 + t[i].0));
                }
            }
            let context = format!("{first:?}, {second:?} {ty:?} {isa:?}");
            let [a, b, c] = kept.map(GuardedBytes::into_contents);
            if k % 2 == 0 {
                assert_same(ty.storage(), &a, &once, &context);
            }
            assert_same(ty.storage(), &b, &twice, &context);
            assert_same(ty.storage(), &c, &sums, &context);
        }
    }
    for_each_isa(|isa| {
        check::<f32>(Compute::F32, isa);
        check::<f64>(Compute::F64, isa);
    });
}

/// Tests that a sum at the end of a chain is bit-identical to a sum over the stored results of the chain.
#[test]
fn sums_in_chains_match_sums_of_stored_results() {
    fn check<T: LoopElement>(ty: Compute, isa: Isa) {
        let run = chain(ty, isa).expect("float types must have fused loops");
        let sum = fold(FoldOp::Sum, ty, isa).expect("float types must have sums");
        for n in COUNTS {
            let [from, tile] = [1, 2].map(|seed| values(ty.storage(), n, seed + n as u64));
            let mut kept = GuardedBytes::new(&vec![0; n * size_of::<T>()], 3);
            let [mut got, mut want] = [[0u64; LANES]; 2];
            let links = [FusedOperands {
                chain_start: from.as_ptr(),
                instr: FusedInstr::MulTile,
                operands: [tile.as_ptr(); 2],
                into: kept.ptr(),
                non_temporal: false,
                skip: None,
            }];
            // SAFETY: all buffers hold `n` values, and the lanes hold 16; the instruction set is available.
            unsafe {
                run(&links, got.as_mut_ptr().cast(), n);
                (sum.accumulate)(want.as_mut_ptr().cast(), kept.ptr(), n / ROWS * ROWS, true);
            }
            let bytes = |lanes: [u64; LANES]| lanes.map(u64::to_ne_bytes).concat()[..LANES * size_of::<T>()].to_vec();
            assert_same(ty.storage(), &bytes(got), &bytes(want), &format!("sum of {n} values, {ty:?} {isa:?}"));
            let product =
                binary(Binary::Mul, ty, OperandForm::TileTile, Isa::Portable).expect("float types must have products");
            let mut products = vec![0; n * size_of::<T>()];
            // SAFETY: all buffers hold `n` values and are disjoint; every processor runs portable code.
            unsafe { product.run(products.as_mut_ptr(), from.as_ptr(), tile.as_ptr(), n) };
            assert_same(ty.storage(), &kept.into_contents(), &products, &format!("{n} products, {ty:?} {isa:?}"));
        }
    }
    for_each_isa(|isa| {
        check::<f32>(Compute::F32, isa);
        check::<f64>(Compute::F64, isa);
    });
}

/// Tests that a chain skips instructions exactly for the blocks in which all lanes of the mask are true, and that the
/// results are then the values in registers before the skipped instructions.
#[test]
fn chains_skip_instructions_of_operands_that_no_lane_selects() {
    fn check<T: Real + LoopElement>(ty: Compute, isa: Isa) {
        let run = chain(ty, isa).expect("float types must have fused loops");
        let (block, size) = (8 * 16, size_of::<T>());
        for n in [1, 5, 64, 128, 300, 643] {
            // The mask x < 1 is false for one element of every second block.
            let x: Vec<T> = (0..n).map(|i| if i % (2 * block) == 3 { T::ONE + T::ONE } else { -T::ONE }).collect();
            let marks = vec![T::INFINITY; n];
            let [mut rare, mut to, mut sums] = [(); 3].map(|()| GuardedBytes::new(&vec![0; n * size], size));
            let one = T::ONE;
            let x_tile = x.as_ptr().cast::<u8>();
            let link = |instr, operand: *const u8, into: *mut u8, skip| FusedOperands {
                chain_start: std::ptr::null(),
                instr,
                operands: [operand, (&raw const one).cast()],
                into,
                non_temporal: false,
                skip,
            };
            let nowhere = std::ptr::null_mut();
            let less = FusedInstr::CompareTileOne(Comparison::Lt, MaskUpdate::Replace);
            let links = [
                FusedOperands { chain_start: x_tile, ..link(less, x_tile, nowhere, Some(3)) },
                link(FusedInstr::AddTile, marks.as_ptr().cast(), rare.ptr(), None),
                link(less, x_tile, nowhere, None),
                link(FusedInstr::SelectTile, x_tile, to.ptr(), None),
                link(FusedInstr::AddTile, x_tile, sums.ptr(), None),
            ];
            // SAFETY: all tiles and destinations hold `n` values, and the uniform operand holds one. The instruction
            // set is available.
            unsafe { run(&links, nowhere, n) };
            let [rare, to, sums] = [rare, to, sums].map(GuardedBytes::into_contents);
            let of = |bytes: &[u8], i: usize| bytes[i * size..][..size].to_vec();
            // SAFETY: a float has no padding, and the slice ends with the value.
            let bytes = |v: T| unsafe { std::slice::from_raw_parts((&raw const v).cast::<u8>(), size) }.to_vec();
            let context = |i: usize| format!("element {i} of {n}, {ty:?} {isa:?}");
            for i in 0..n {
                let expected = if x[i] < one { x[i] } else { T::INFINITY };
                assert_eq!(of(&to, i), bytes(expected), "{}", context(i));
                assert_eq!(of(&sums, i), bytes(expected + x[i]), "{}", context(i));
                let is_full_block = i / block * block + block <= n;
                if is_full_block && i / block % 2 == 1 {
                    assert_eq!(of(&rare, i), bytes(T::ZERO), "not skipped: {}", context(i));
                }
                if x[i] >= one {
                    assert_eq!(of(&rare, i), bytes(T::INFINITY), "skipped: {}", context(i));
                }
            }
        }
    }
    for_each_isa(|isa| {
        check::<f32>(Compute::F32, isa);
        check::<f64>(Compute::F64, isa);
    });
}
