//! Schedules: the instructions of a program in execution order, and their cache.
//!
//! The schedules of a program are kept in a list that only grows: a lookup takes no lock, and only the first run for
//! each [`ScheduleKey`] allocates.

use crate::program::fold::{FoldKernel, FoldValues};
use crate::program::loops::{BinaryLoop, ChainLoop, FillLoop, FusedInstr, TernaryLoop, UnaryLoop};
use crate::program::slot::{Granularity, ValueSlot};
use std::ops::Range;
use std::sync::OnceLock;

/// The minimum length of rows for which each row has its own loop calls.
pub(crate) const LONG_ROW: usize = 128;

/// The maximum number of fused instructions in a loop; one of them may be the multiplication of a sum of products.
pub(crate) const MAX_FUSED: usize = 64;

/// How a tile stores its rows. A schedule depends on this, not on the length of the rows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum RowLayout {
    /// Row after row. One call of a loop computes or reduces several rows.
    Short,
    /// Row after row. Each row has its own loop calls.
    Long,
    /// Adjacent elements belong to different rows. Values per row are therefore vectors, like the elements of all rows
    /// at one index.
    Transposed,
}

impl RowLayout {
    /// Returns the layout of a tile that stores row after row, for rows of `length` elements.
    pub(crate) fn classify(length: usize) -> RowLayout {
        if length < LONG_ROW { RowLayout::Short } else { RowLayout::Long }
    }
}

/// The loop of a scheduled instruction, in the form that its operands require.
#[derive(Clone, Copy)]
pub(crate) enum LoopKind {
    /// A loop of one operand.
    Unary(UnaryLoop),
    /// A loop of two operands: the form for the operands of the instruction, and the form for two tiles.
    Binary(BinaryLoop, BinaryLoop),
    /// A loop of three operands.
    Ternary(TernaryLoop),
    /// Repeats a value of a coarser granularity for every element of its row.
    Broadcast(FillLoop),
    /// Writes the index of every element within its row.
    RowIndex,
    /// Compares the index of every element within its row with one value per row.
    RowIndexEquals,
}

/// A scheduled instruction.
#[derive(Clone, Copy)]
pub(crate) struct ScheduledInstr {
    /// The loop.
    pub(crate) kernel: LoopKind,
    /// The granularity of the result.
    pub(crate) granularity: Granularity,
    /// Whether the instruction reads per-row and per-element values. It then runs row by row in a tile of several rows.
    pub(crate) mixed: bool,
    /// The slot of the result.
    pub(crate) result: ValueSlot,
    /// The slots of the operands.
    pub(crate) args: [ValueSlot; 3],
    /// The size of one value in bytes and the granularity, first of the result and then of the operands.
    pub(crate) layouts: [(u8, Granularity); 4],
    /// The part of the instruction in a fused loop, if it is fused.
    pub(crate) fused: Option<FusedOp>,
    /// The purpose of an additional comparison, which a fused loop evaluates before an operand of a selection.
    pub(crate) shortcut: Option<Shortcut>,
}

/// A comparison before instructions that only the second operand of a selection needs. If all lanes of a block select
/// the first operand, the fused loop skips these instructions and the selection.
#[derive(Clone, Copy)]
pub(crate) struct Shortcut {
    /// The slot of the first operand, whose values are in registers at the comparison.
    pub(crate) common: ValueSlot,
    /// The distance to the selection; `None` for a part of a conjunction or disjunction.
    pub(crate) skip: Option<u8>,
}

impl ScheduledInstr {
    /// Returns the slots that the instruction reads.
    pub(crate) fn operands(&self) -> &[ValueSlot] {
        let count = match self.kernel {
            LoopKind::Unary(_) | LoopKind::Broadcast(_) | LoopKind::RowIndexEquals => 1,
            LoopKind::Binary(..) => 2,
            LoopKind::Ternary(_) => 3,
            LoopKind::RowIndex => 0,
        };
        &self.args[..count]
    }

    /// Returns the bytes of one result.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.layouts[0].0 as usize
    }
}

/// A scheduled instruction as part of a fused loop.
#[derive(Clone, Copy)]
pub(crate) struct FusedOp {
    /// The loop that runs the chain.
    pub(crate) chain_loop: ChainLoop,
    /// The number of instructions in the loop, from this one to the last.
    pub(crate) count: u8,
    /// Whether an instruction of the loop reads a per-row value. A tile of several rows is then computed row by row.
    pub(crate) by_row: bool,
    /// The operation on the values in registers.
    pub(crate) instr: FusedInstr,
    /// The slot of the values that the chain loads, if this instruction begins a chain.
    pub(crate) chain_start: Option<ValueSlot>,
    /// The slots of the operands other than the values in registers, as many as `instr` has.
    pub(crate) operands: [ValueSlot; 2],
    /// The granularities of `operands`.
    pub(crate) granularity: [Granularity; 2],
    /// Whether the result is written to memory, because an instruction other than the next one in the loop reads it.
    pub(crate) is_stored: bool,
    /// Whether a later comparison of a [`Shortcut`] writes the result instead, in blocks that do not skip.
    pub(crate) is_deferred: bool,
    /// For such a comparison: the slot of the values in registers, which it writes unless the block skips.
    pub(crate) stores_common: Option<ValueSlot>,
    /// Whether the chain ends with this instruction, and the result is a direct output that no instruction reads.
    pub(crate) can_stream: bool,
    /// The reduction that accumulates the last result of the loop.
    pub(crate) reduction: Option<FusedReduction>,
    /// The distance from the comparison of a [`Shortcut`] to the selection, if both are in the loop.
    pub(crate) skip: Option<u8>,
}

/// A sum that a fused loop computes.
#[derive(Clone, Copy)]
pub(crate) struct FusedReduction {
    /// The index of the reduction in the schedule.
    pub(crate) index: u16,
    /// If products are summed, the multiplication and the slot of the other factor.
    pub(crate) product: Option<(FusedInstr, ValueSlot)>,
}

/// A row reduction at the end of a phase.
pub(crate) struct RowReduction {
    /// The loops of the operation.
    pub(crate) fold: FoldKernel,
    /// The slot of the result.
    pub(crate) result: ValueSlot,
    /// The slot of the values, or of the first factors of the products that are summed.
    pub(crate) operand: ValueSlot,
    /// The slot of the second factors, if products are summed.
    pub(crate) factor: Option<ValueSlot>,
    /// Whether a fused chain can compute the reduction: see
    /// [`TileExtent::folds`](crate::program::execute::TileExtent::folds).
    pub(crate) chained: bool,
}

impl RowReduction {
    /// Returns the slots that the reduction reads.
    pub(crate) fn operands(&self) -> impl Iterator<Item = ValueSlot> {
        std::iter::once(self.operand).chain(self.factor)
    }

    /// Returns the values to reduce; `addresses` has the address of every slot.
    #[inline]
    pub(crate) fn values(&self, addresses: &[*mut u8]) -> FoldValues {
        let factors = self.factor.map(|slot| addresses[slot as usize].cast_const());
        FoldValues { values: addresses[self.operand as usize], factors }
    }
}

/// The instructions between two row reductions, and the reductions that end the phase.
pub(crate) struct Phase {
    /// The instructions on per-row values, and the broadcasts, which run first.
    pub(crate) head: Range<usize>,
    /// The other instructions on tiles.
    pub(crate) tiles: Range<usize>,
    /// The reductions that end the phase.
    pub(crate) folds: Range<usize>,
    /// The per-element inputs that the tiles and the reductions read.
    pub(crate) reads: Vec<ValueSlot>,
    /// A mask with one value per row: the results of the phase are not needed for rows whose value is true.
    pub(crate) guard: Option<ValueSlot>,
}

/// A program in execution order, with a buffer for every value.
pub(crate) struct KernelSchedule {
    /// The instructions on uniform values, which run once, and the instructions of all phases.
    pub(crate) instrs: Vec<ScheduledInstr>,
    /// The number of instructions on uniform values.
    pub(crate) uniform: usize,
    /// How the tiles store their rows.
    pub(crate) rows: RowLayout,
    /// The row reductions of all phases.
    pub(crate) folds: Vec<RowReduction>,
    /// The phases, in execution order.
    pub(crate) phases: Vec<Phase>,
    /// The granularity of every slot. The slots of broadcast values follow the slots of the program.
    pub(crate) granularity: Vec<Granularity>,
    /// For every slot: the index of the phase that computes it.
    pub(crate) phase: Vec<usize>,
    /// The start of the buffer of every per-element slot, in bytes per element of the tile.
    pub(crate) buffer_offset: Vec<usize>,
    /// The size of all buffers together, in bytes per element of the tile.
    pub(crate) buffer_width: usize,
    /// For every slot: true if a later phase reads the value. Its buffer must then hold an entire row.
    pub(crate) is_live_across_phases: Vec<bool>,
    /// For every slot: true if the slot is an output that ends a fused chain and that no instruction reads. The chain
    /// can write such an output with non-temporal stores.
    pub(crate) is_streamed: Vec<bool>,
    /// Whether a per-element result needs a buffer, because it is not a direct output and no chain keeps it in
    /// registers.
    pub(crate) has_inner: bool,
}

impl KernelSchedule {
    /// Returns true if a loop with results of `granularity` reads the values of `slot` as a vector, and false if it
    /// reads one value.
    pub(crate) fn is_vector(&self, slot: ValueSlot, granularity: Granularity) -> bool {
        match self.granularity[slot as usize] {
            Granularity::PerRow if self.rows == RowLayout::Transposed => granularity != Granularity::Uniform,
            own => own == granularity,
        }
    }

    /// Returns true if the instructions can run on transposed tiles: none writes the index of an element or repeats the
    /// value of a row, and no phase is skipped.
    pub(crate) fn supports_transposed(&self) -> bool {
        let is_supported = |instr: &ScheduledInstr| match instr.kernel {
            LoopKind::RowIndex | LoopKind::RowIndexEquals => false,
            LoopKind::Broadcast(_) => instr.layouts[1].1 == Granularity::Uniform,
            _ => true,
        };
        self.instrs.iter().all(is_supported) && self.phases.iter().all(|phase| phase.guard.is_none())
    }
}

/// The properties of operands on which a schedule depends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ScheduleKey {
    /// How the tiles store their rows.
    pub(crate) rows: RowLayout,
    /// Two bits for the granularity of each input.
    pub(crate) granularities: u128,
}

/// The schedules of one program, one for each combination of row layout and input granularities.
#[derive(Default)]
pub(crate) struct KernelScheduleCache {
    node: OnceLock<Box<ScheduleNode>>,
}

/// One element of the list of schedules.
struct ScheduleNode {
    key: ScheduleKey,
    schedule: KernelSchedule,
    next: KernelScheduleCache,
}

impl KernelScheduleCache {
    /// Returns the schedule for `key`, which `build` creates on first use.
    pub(crate) fn get_or_init(&self, key: ScheduleKey, build: impl Fn() -> KernelSchedule) -> &KernelSchedule {
        let mut list = self;
        loop {
            let node = list.node.get_or_init(|| {
                Box::new(ScheduleNode { key, schedule: build(), next: KernelScheduleCache::default() })
            });
            if node.key == key {
                return &node.schedule;
            }
            list = &node.next;
        }
    }
}
