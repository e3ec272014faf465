//! Execution: the instructions of a schedule, run on one tile.

use crate::program::kernel_schedule::{
    FusedOp, FusedReduction, LONG_ROW, LoopKind, MAX_FUSED, RowReduction, ScheduledInstr,
};
use crate::program::loader::repeat;
use crate::program::loops::{FusedOperands, LANES, ROWS};
use crate::program::slot::{Granularity, ValueSlot};
use std::mem::MaybeUninit;

/// The extent of a tile: several entire rows, or a segment of one row.
#[derive(Clone, Copy)]
pub(crate) struct TileExtent<'a> {
    /// The number of lines. Unless the tile is transposed, a line is a row.
    ///
    /// In a transposed tile, a line consists of the elements of all rows at one index, or at a few adjacent indices.
    /// The last line may be shorter.
    pub(crate) rows: usize,
    /// The number of elements of a line.
    pub(crate) len: usize,
    /// The number of elements.
    pub(crate) elements: usize,
    /// Whether adjacent elements belong to different rows: see
    /// [`RowLayout::Transposed`](crate::program::kernel_schedule::RowLayout::Transposed). The values per row are then
    /// repeated to the length of a line.
    pub(crate) transposed: bool,
    /// The index of the first element in its row.
    pub(crate) first: usize,
    /// The scratch memory for `rows · len` values of any type, if there are several rows.
    pub(crate) scratch: *mut u8,
    /// Whether results for which
    /// [`KernelSchedule::is_streamed`](crate::program::kernel_schedule::KernelSchedule::is_streamed) is true are
    /// written with non-temporal stores. A chain that also accumulates a reduction uses no such stores.
    pub(crate) stream: bool,
    /// All reductions of the schedule if fused chains compute the reductions that are marked as `chained`, otherwise
    /// empty. Chains can do so only if the tile consists of entire rows that are no longer than a chunk.
    pub(crate) folds: &'a [RowReduction],
}

/// A slot of a transposed tile that is used in the memory of an operand. The lines of all other slots are adjacent.
#[derive(Clone, Copy)]
pub(crate) struct LineStride {
    /// The slot.
    pub(crate) slot: ValueSlot,
    /// The distance in bytes between two lines.
    pub(crate) stride: isize,
}

impl TileExtent<'_> {
    /// Returns the extent of the first `n` elements of one row.
    pub(crate) fn single_row(n: usize) -> Self {
        let scratch = std::ptr::null_mut();
        TileExtent { rows: 1, len: n, elements: n, transposed: false, first: 0, scratch, stream: false, folds: &[] }
    }

    /// Returns the number of elements of a line.
    #[inline]
    fn line_len(&self, line: usize) -> usize {
        self.len.min(self.elements - line * self.len)
    }

    /// Returns the number of values of a slot with values per row.
    #[inline]
    fn row_values(&self) -> usize {
        if self.transposed { self.len } else { self.rows }
    }

    /// Returns the distance in bytes between the values of a slot for two adjacent lines of the tile. The values have
    /// `size` bytes.
    #[inline]
    pub(crate) fn line_stride(
        &self,
        slot: ValueSlot,
        size: usize,
        granularity: Granularity,
        strides: &[LineStride],
    ) -> isize {
        match granularity {
            Granularity::PerElement => match strides.iter().find(|line| line.slot == slot) {
                Some(line) => line.stride,
                None => (size * self.len) as isize,
            },
            Granularity::PerRow if !self.transposed => size as isize,
            _ => 0,
        }
    }
}

impl ScheduledInstr {
    /// Computes `n` results, the first of which has index `first` in its row.
    ///
    /// # Safety
    /// - *Operands*: every operand of the loop is valid for reads of `n` values if it has the granularity of the
    ///   result, otherwise of one value.
    /// - *Result*: `into` is valid for writes of `n` values, aligned to 8 bytes for row indices.
    /// - *Aliasing*: `into` overlaps an operand only if both addresses and both element sizes are equal.
    #[inline]
    unsafe fn call(&self, into: *mut u8, [a, b, d]: [*mut u8; 3], n: usize, first: usize) {
        // SAFETY: the form of the loop was selected for the granularities of the operands and for this processor's
        // instruction set; *Operands*, *Result* and *Aliasing* are the contract of the loops.
        unsafe {
            match self.kernel {
                LoopKind::Unary(f) => f.run(into, a, n),
                LoopKind::Broadcast(f) => f(into, a, n),
                LoopKind::Binary(f, _) => f.run(into, a, b, n),
                LoopKind::Ternary(f) => f.run(into, a, b, d, n),
                LoopKind::RowIndexEquals => {
                    into.write_bytes(0, n);
                    let hit = usize::try_from(a.cast::<i64>().read_unaligned()).ok().and_then(|t| t.checked_sub(first));
                    if let Some(i) = hit.filter(|&i| i < n) {
                        into.add(i).write(1);
                    }
                }
                LoopKind::RowIndex => {
                    let index = into.cast::<i64>();
                    (0..n).for_each(|i| *index.add(i) = (first + i) as i64);
                }
            }
        }
    }
}

impl FusedOp {
    /// Returns true if the fused loop is faster than its instructions one by one.
    #[inline]
    fn is_profitable(&self, tile: &TileExtent<'_>) -> bool {
        self.count > 1 || tile.stream || self.reduction.is_some() && !tile.folds.is_empty()
    }
}

/// Executes instructions on one tile. `addresses` has the address of every slot's values.
///
/// # Safety
/// - *Slots*: for every slot that the instructions name, `addresses` has an address that is valid for reads of an
///   operand or writes of a result, and aligned to 8 bytes for row indices. By the granularity of the slot, it has one
///   value, one per row (`tile.rows`, or `tile.len` if the tile is transposed), or `tile.elements` values, which are at
///   most `tile.rows · tile.len`, and exactly as many unless the tile is transposed.
/// - *Transposed*: if `tile.transposed`, the instructions belong to a schedule for transposed tiles that
///   [supports](crate::program::kernel_schedule::KernelSchedule::supports_transposed) them, and `tile.folds` is empty.
/// - *Aliasing*: a result overlaps an operand of the same instruction, or of the same fused chain, only if both
///   addresses and both element sizes are equal.
/// - *Scratch*: if `tile.rows > 1`, `tile.scratch` is aligned to 8 bytes, valid for `tile.rows · tile.len` values of
///   eight bytes, and disjoint from all slots.
/// - *Streaming*: if `tile.stream`, results with `KernelSchedule::is_streamed` are aligned to their element size.
/// - *Reductions*: `tile.folds` is empty or has all reductions of the schedule, whose result slots are then valid for
///   writes of `tile.rows` values.
pub(crate) unsafe fn execute(instrs: &[ScheduledInstr], addresses: &[*mut u8], tile: &TileExtent<'_>) {
    // SAFETY: the contract of this function is the contract of `execute_lines` for adjacent lines.
    unsafe { execute_lines(instrs, addresses, tile, &[]) }
}

/// Executes instructions on one tile, in which the lines of some slots are not adjacent. This function is inlined, so
/// [`execute`] has no instructions for such slots.
///
/// # Safety
/// The contract of [`execute`] holds, where the lines of the slots in `strides` have the distances in `strides`. The
/// tile is transposed if there are such slots.
#[inline(always)]
pub(crate) unsafe fn execute_lines(
    instrs: &[ScheduledInstr],
    addresses: &[*mut u8],
    tile: &TileExtent<'_>,
    strides: &[LineStride],
) {
    debug_assert!(
        instrs.iter().all(|i| i.operands().iter().chain([&i.result]).all(|&s| (s as usize) < addresses.len())),
        "every slot must have an address"
    );
    // SAFETY: by this function's contract, every slot has an address (*Slots*; unused operands refer to slot 0). A
    // chain is within the phase that is executed, so `split_at_unchecked` is in bounds. The addresses of row `row` are
    // the addresses of *Slots*, advanced by `row` rows of the operand's granularity, which are within its values.
    // `broadcast_rows` writes `rows · len` values to the scratch (*Scratch*). *Aliasing*, *Streaming* and *Reductions*
    // are also clauses of the called functions.
    unsafe {
        let address = |slot: ValueSlot| *addresses.get_unchecked(slot as usize);
        let mut remaining = instrs;
        while let Some((instr, others)) = remaining.split_first() {
            if let Some(fused) = instr.fused.as_ref().filter(|f| f.is_profitable(tile)) {
                let (chain, others) = remaining.split_at_unchecked(fused.count as usize);
                run_chain(chain, addresses, tile, strides);
                remaining = others;
                continue;
            }
            remaining = others;
            let (into, [a, b, d]) = (address(instr.result), instr.args.map(address));
            if tile.rows == 1 && !tile.transposed {
                let n = if instr.granularity == Granularity::PerElement { tile.len } else { 1 };
                instr.call(into, [a, b, d], n, tile.first);
                continue;
            }
            let by_row = instr.mixed;
            let is_short = by_row && tile.len < LONG_ROW && !tile.transposed;
            if let (true, LoopKind::Binary(_, tiles)) = (is_short, instr.kernel) {
                // The value of each short row is repeated for its elements. Then one call computes all rows.
                let to_tile = |from: *mut u8, k: usize| match instr.layouts[k] {
                    (size, Granularity::PerRow) => {
                        broadcast_rows(tile.scratch, from, size, tile);
                        tile.scratch
                    }
                    _ => from,
                };
                tiles.run(into, to_tile(a, 1), to_tile(b, 2), tile.rows * tile.len);
                continue;
            }
            let (calls, n) = match instr.granularity {
                Granularity::Uniform => (1, 1),
                Granularity::PerRow => (1, tile.row_values()),
                Granularity::PerElement
                    if by_row
                        || !strides.is_empty()
                        || !matches!(
                            instr.kernel,
                            LoopKind::Unary(_) | LoopKind::Binary(..) | LoopKind::Ternary(_)
                        ) =>
                {
                    (tile.rows, tile.len)
                }
                Granularity::PerElement => (1, tile.elements),
            };
            for row in 0..calls {
                let in_row = |p: *mut u8, k: usize| {
                    let (size, granularity) = instr.layouts[k];
                    let slot = if k == 0 { instr.result } else { instr.args[k - 1] };
                    let stride = || tile.line_stride(slot, size as usize, granularity, strides);
                    if row == 0 { p } else { p.offset(row as isize * stride()) }
                };
                let n = if calls > 1 { tile.line_len(row) } else { n };
                instr.call(in_row(into, 0), [in_row(a, 1), in_row(b, 2), in_row(d, 3)], n, tile.first);
            }
        }
    }
}

/// Writes the value of every row to each element of that row.
///
/// # Safety
/// - *Source*: `from` is aligned to `size` and valid for reads of `tile.rows` values of `size` bytes.
/// - *Target*: `to` is aligned to `size`, valid for writes of `tile.rows · tile.len` values, and disjoint from `from`.
unsafe fn broadcast_rows(to: *mut u8, from: *const u8, size: u8, tile: &TileExtent<'_>) {
    // SAFETY: *Source* and *Target* of this function's contract are the contract of `repeat`.
    unsafe { with_width!(size, T => repeat::<T>(to.cast(), from.cast(), tile.rows, tile.len)) }
}

/// Runs a fused loop on a tile.
///
/// # Safety
/// - *Chain*: `chain` is one fused loop: all its instructions, in order.
/// - *Slots*, *Aliasing*, *Streaming*, *Reductions*: the clauses of these names of [`execute`] hold.
#[inline]
unsafe fn run_chain(chain: &[ScheduledInstr], addresses: &[*mut u8], tile: &TileExtent<'_>, strides: &[LineStride]) {
    let mut links = [const { MaybeUninit::<FusedOperands>::uninit() }; MAX_FUSED];
    // SAFETY: a loop has at least one instruction, all are fused (*Chain* of this function's contract), and there are
    // fewer than `MAX_FUSED`, so there is one more link for the product of a reduction. Every slot has an address
    // (*Slots*). The first `count` links are written before the slice over them is read. The operands of the links
    // satisfy the contract of `ChainLoop` by *Slots*, *Aliasing* and *Streaming*. The code below uses non-temporal
    // stores only for results with equal alignment, and only in loops without a sum.
    unsafe {
        let address = |slot: ValueSlot| *addresses.get_unchecked(slot as usize);
        let first = chain.get_unchecked(0).fused.unwrap_unchecked();
        let reduction = first.reduction.filter(|_| !tile.folds.is_empty());
        // Non-temporal stores shift the blocks of the loop to aligned addresses, which would change the order of a sum.
        let streams = tile.stream && reduction.is_none();
        // The first result with non-temporal stores. Other results use them only if they have the same alignment.
        let mut first_streamed: *mut u8 = std::ptr::null_mut();
        let mut count = 0;
        let mut push = |link: FusedOperands| {
            links.get_unchecked_mut(count).write(link);
            count += 1;
        };
        for instr in chain {
            let op = instr.fused.unwrap_unchecked();
            let into = match op.stores_common {
                Some(common) => address(common),
                None if op.is_stored && !op.is_deferred => address(instr.result),
                None => std::ptr::null_mut(),
            };
            let mut non_temporal = streams && op.can_stream;
            if non_temporal && first_streamed.is_null() {
                first_streamed = into;
            }
            non_temporal &= (into.addr() ^ first_streamed.addr()).is_multiple_of(64);
            push(FusedOperands {
                chain_start: op.chain_start.map_or(std::ptr::null(), |slot| address(slot).cast_const()),
                instr: op.instr,
                operands: op.operands.map(|slot| address(slot).cast_const()),
                into,
                non_temporal,
                skip: op.skip,
            });
        }
        if let Some((instr, factor)) = reduction.and_then(|r| r.product) {
            push(FusedOperands {
                chain_start: std::ptr::null(),
                instr,
                operands: [address(factor).cast_const(); 2],
                into: std::ptr::null_mut(),
                non_temporal: false,
                skip: None,
            });
        }
        let links = std::slice::from_raw_parts_mut(links.as_mut_ptr().cast::<FusedOperands>(), count);
        let is_element = chain.get_unchecked(0).granularity == Granularity::PerElement;
        let by_row = first.by_row || is_element && !strides.is_empty();
        if reduction.is_none() && (!by_row || tile.rows == 1) {
            let n = if is_element { tile.elements } else { tile.row_values() };
            return (first.chain_loop)(links, std::ptr::null_mut(), n);
        }
        run_chain_by_rows(chain, links, reduction, addresses, tile, strides);
    }
}

/// Runs a fused loop row by row; `links` are the operands of the first row.
///
/// # Safety
/// The contract of [`run_chain`] holds, `links` are the operands of `chain` for the first row, and `tile.folds` has the
/// reduction if there is one.
#[inline(never)]
unsafe fn run_chain_by_rows(
    chain: &[ScheduledInstr],
    links: &mut [FusedOperands],
    reduction: Option<FusedReduction>,
    addresses: &[*mut u8],
    tile: &TileExtent<'_>,
    strides: &[LineStride],
) {
    // SAFETY: by the contract of `run_chain`, all instructions are fused (*Chain*). The links of row `row` are the
    // links of the first row, advanced by `row` rows, and are within the values of *Slots*. `tile.folds` has the
    // reduction with this index, and its result slot is valid for `tile.rows` values (*Reductions*). The values after
    // the first `done` of a row belong to *Slots*; a row is no longer than a chunk (*Reductions*), and `lanes` holds
    // sixteen values.
    unsafe {
        let chain_loop = chain.get_unchecked(0).fused.unwrap_unchecked().chain_loop;
        // The last instruction determines the size, because the first can be a comparison, whose result is a mask.
        let size = chain[chain.len() - 1].size();
        for row in 0..tile.rows {
            if row > 0 {
                advance_links(links, chain, size, tile, strides);
            }
            let Some(reduction) = reduction else {
                chain_loop(links, std::ptr::null_mut(), tile.line_len(row));
                continue;
            };
            let fold = tile.folds.get_unchecked(reduction.index as usize);
            let (mut lanes, done) = ([0u64; LANES], tile.len / ROWS * ROWS);
            let sum = lanes.as_mut_ptr().cast();
            chain_loop(links, sum, tile.len);
            let tail = fold.values(addresses).skip((row * tile.len + done) * size);
            fold.fold.finish_chunk(addresses[fold.result as usize].add(row * size), sum, tail, done, tile.len - done);
        }
    }
}

/// Advances the operands of a fused loop from one line of a tile of values of `size` bytes to the next.
fn advance_links(
    links: &mut [FusedOperands],
    chain: &[ScheduledInstr],
    size: usize,
    tile: &TileExtent<'_>,
    strides: &[LineStride],
) {
    let advance = |p: &mut *const u8, slot: ValueSlot, granularity: Granularity| {
        *p = p.wrapping_offset(tile.line_stride(slot, size, granularity, strides));
    };
    let (links, product) = links.split_at_mut(chain.len());
    for (link, (instr, op)) in links.iter_mut().zip(chain.iter().filter_map(|instr| Some((instr, instr.fused?)))) {
        if let Some(slot) = op.chain_start {
            advance(&mut link.chain_start, slot, Granularity::PerElement);
        }
        for (p, (slot, granularity)) in link.operands.iter_mut().zip(op.operands.into_iter().zip(op.granularity)) {
            advance(p, slot, granularity);
        }
        if !link.into.is_null() {
            link.into =
                link.into.wrapping_offset(tile.line_stride(instr.result, size, Granularity::PerElement, strides));
        }
    }
    // The link of a summed product follows the links of the instructions. Its operand is a tile with adjacent lines.
    for p in product.iter_mut().flat_map(|link| &mut link.operands) {
        *p = p.wrapping_add(size * tile.len);
    }
}
