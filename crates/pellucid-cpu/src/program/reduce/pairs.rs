//! Sums over pairs of values: reductions of (a − b)², |a − b| or c·w·(a − b), where a or b is constant along the
//! reduced axis or along the axis of adjacent results.
//!
//! The general path stores the terms of many sums, because its loops compute tiles. This path computes the terms and
//! the sums in registers, with the same bits.

use super::{PreparedReduction, SequenceReduction};
use crate::program::fold::CHUNK;
use crate::program::loops::{Opcode, PairOperand, PairSums, PairTerm};
use crate::program::prepared::{PreparedProgram, scalar_bits};
use crate::program::transpose::is_aliased;
use crate::strided::{self, Cursor, StridedAxis};
use pellucid_ir::formula::Unary;
use pellucid_ir::{Compute, Scalar};
use pellucid_runtime::list::List;
use pellucid_runtime::threads::{GRAIN, parallel_ranges};
use std::mem::MaybeUninit;
use std::ptr;

/// The approximate number of bytes of values of y, and of weights, for the adjacent sums that are computed together.
const PANEL_BYTES: usize = 16 << 10;

/// The bytes of a [`PackedPanel`]. A panel whose rows are rounded up to full cache lines fits, for up to 512 terms of
/// `f32`.
const PACKED_BYTES: usize = 2 * PANEL_BYTES;

/// The values of y of adjacent sums, copied row by row. Rows whose distance is a multiple of a page map to a few sets
/// of the first-level cache and evict each other; the rows of the copy are adjacent and fit this cache.
#[repr(C, align(64))]
struct PackedPanel(MaybeUninit<[u8; PACKED_BYTES]>);

impl PackedPanel {
    /// The minimum number of sums that read each column of a panel for copying the panel to be faster.
    const MIN_USES: usize = 8;

    /// Copies `terms` rows of `row` bytes each, and returns the copy.
    ///
    /// # Safety
    /// Every row of the operand is valid for reads, and the rows have at most [`PACKED_BYTES`] bytes in total.
    unsafe fn pack(&mut self, y: PairOperand, terms: usize, row: usize) -> PairOperand {
        debug_assert!(terms * row <= PACKED_BYTES, "{terms} rows of {row} bytes do not fit the packed panel");
        let packed = self.0.as_mut_ptr().cast::<u8>();
        for r in 0..terms {
            // SAFETY: the rows are valid for reads and fit the panel (this function's contract), which is not part of
            // the operand.
            unsafe { ptr::copy_nonoverlapping(y.base.offset(r as isize * y.stride), packed.add(r * row), row) };
        }
        PairOperand { base: packed.cast_const(), stride: row as isize }
    }
}

/// The operands of the terms of a program, by the indices of its inputs.
#[derive(Clone, Copy)]
struct PairProgram {
    term: PairTerm,
    /// The inputs a and b of a − b.
    difference: [usize; 2],
    /// The input of the weight and, unless the factor c is 1, the index of the uniform that holds c.
    weight: Option<(usize, Option<usize>)>,
    /// Whether the terms are negated.
    is_negated: bool,
}

/// A value of a program, in the form in which it can be part of a term.
#[derive(Clone, Copy)]
enum PairValue {
    Input(usize),
    Uniform(usize),
    Difference([usize; 2]),
    /// An input times a uniform value.
    Scaled(usize, usize),
    Term(PairProgram),
    Other,
}

impl PairProgram {
    /// Returns the terms that a program computes, or `None` if it computes other values.
    fn recognize(program: &PreparedProgram) -> Option<PairProgram> {
        let inputs = program.inputs.len();
        if inputs > 3
            || !(1..=4).contains(&program.steps.len())
            || program.inputs.iter().any(|i| i.load.is_some() || i.per_row)
        {
            return None;
        }
        let uniforms = program.uniforms.len();
        let first = (0..inputs).map(PairValue::Input).chain((0..uniforms).map(PairValue::Uniform));
        let mut values: List<PairValue, 12> = first.collect();
        let weighted = |difference, input, factor| {
            let weight = Some((input, factor));
            PairValue::Term(PairProgram { term: PairTerm::Weighted, difference, weight, is_negated: false })
        };
        let plain =
            |term, difference| PairValue::Term(PairProgram { term, difference, weight: None, is_negated: false });
        for step in &program.steps {
            let (opcode, _) = step.fusable?;
            let arg = |k: usize| values[step.args[k] as usize];
            let other_arg = || if step.args.len() > 1 { arg(1) } else { PairValue::Other };
            let value = match (opcode, arg(0), other_arg()) {
                (Opcode::Sub, PairValue::Input(a), PairValue::Input(b)) => PairValue::Difference([a, b]),
                (Opcode::Mul, PairValue::Difference(d), PairValue::Difference(_)) if step.args[0] == step.args[1] => {
                    plain(PairTerm::Square, d)
                }
                (Opcode::Function(Unary::Abs, _), PairValue::Difference(d), _) => plain(PairTerm::Magnitude, d),
                (Opcode::Mul, PairValue::Input(w), PairValue::Uniform(c))
                | (Opcode::Mul, PairValue::Uniform(c), PairValue::Input(w)) => PairValue::Scaled(w, c),
                (Opcode::Mul, PairValue::Scaled(w, c), PairValue::Difference(d))
                | (Opcode::Mul, PairValue::Difference(d), PairValue::Scaled(w, c)) => weighted(d, w, Some(c)),
                (Opcode::Mul, PairValue::Input(w), PairValue::Difference(d))
                | (Opcode::Mul, PairValue::Difference(d), PairValue::Input(w)) => weighted(d, w, None),
                (Opcode::Neg, PairValue::Term(p), _) => PairValue::Term(PairProgram { is_negated: !p.is_negated, ..p }),
                _ => PairValue::Other,
            };
            values.push(value);
        }
        match (values[program.outputs[0].slot as usize], program.outputs[0].store) {
            (PairValue::Term(term), None) => Some(term),
            _ => None,
        }
    }
}

/// The roles of the operands of sums over pairs.
struct PairLayout {
    term: PairTerm,
    /// The input that is constant along the lanes, the other input of the difference, and the weight.
    inputs: [usize; 3],
    /// The bytes of the factor.
    factor: u64,
    /// Whether the factor is negated.
    is_negated: bool,
    /// True if the lanes are adjacent results, false if they are the terms of one result.
    is_columns: bool,
}

impl SequenceReduction<'_> {
    /// Computes the sums in registers and returns true, if the program and the layout of its operands allow it.
    pub(crate) fn reduce_pairs(&self) -> bool {
        let ([reduced], Some((column, outer))) = (&self.reduced[..], self.kept.split_last()) else { return false };
        let Some(layout) = self.pair_layout(reduced, column) else { return false };
        let output = self.program.inputs.len();
        let sums_at = |positions: &[*mut u8], columns: usize| {
            let [x, y, weight] =
                layout.inputs.map(|k| PairOperand { base: positions[k].cast_const(), stride: reduced.strides[k] });
            let (factor, into) = ((&raw const layout.factor).cast(), positions[output]);
            let (term, is_negated, terms) = (layout.term, layout.is_negated, self.length);
            PairSums { term, x, y, weight, factor, is_negated, terms, columns, into }
        };
        // SAFETY: the operands and the output have an element for every point of the kept and the reduced axes, and the
        // positions belong to one point of the kept axes, with `columns` adjacent points. Every task writes the
        // results of its own points. The compute type is a float of `size` bytes, because its instructions are fusable.
        let compute = |sums: PairSums| unsafe {
            match self.size {
                4 => sums.compute::<f32>(),
                _ => sums.compute::<f64>(),
            }
        };
        let (axes, columns) = if layout.is_columns { (outer, column.len) } else { (&self.kept[..], 1) };
        let panel = (PANEL_BYTES / (self.length * self.size)).max(1).next_multiple_of(64 / self.size).min(columns);
        let grain = GRAIN.div_ceil((self.length * columns * self.work_per_value()).max(1));
        // A panel of y that all sums share is copied if its rows evict each other.
        let y = layout.inputs[1];
        let is_packed = layout.is_columns
            && is_aliased(reduced.strides[y])
            && axes.iter().all(|axis| axis.strides[y] == 0)
            && self.length * panel * self.size <= PACKED_BYTES;
        parallel_ranges(strided::element_count(axes), grain, |range| {
            let mut packed = PackedPanel(MaybeUninit::uninit());
            for start in (0..columns).step_by(panel) {
                let offset = |k: usize| if layout.is_columns { start as isize * column.strides[k] } else { 0 };
                let bases: List<*mut u8, 8> =
                    self.bases.iter().enumerate().map(|(k, base)| base.wrapping_offset(offset(k))).collect();
                let mut cursor = Cursor::at(axes, &bases, range.start);
                let count = if layout.is_columns { panel.min(columns - start) } else { 0 };
                let mut shared_y = None;
                if is_packed && range.len() >= PackedPanel::MIN_USES {
                    let rows = PairOperand { base: bases[y].cast_const(), stride: reduced.strides[y] };
                    // SAFETY: y has `count` adjacent values for every term, and the panel fits (`is_packed`).
                    shared_y = Some(unsafe { packed.pack(rows, self.length, count * self.size) });
                }
                for _ in range.clone() {
                    let sums = sums_at(&cursor.positions, count);
                    compute(PairSums { y: shared_y.unwrap_or(sums.y), ..sums });
                    cursor.advance();
                }
            }
        });
        true
    }

    /// Returns the roles of the operands if the sums can be computed in registers.
    fn pair_layout(&self, reduced: &StridedAxis, column: &StridedAxis) -> Option<PairLayout> {
        let is_sum =
            matches!(&self.operation, PreparedReduction::Fold(fold) if fold.loops.accumulate_products.is_some());
        let is_plain = self.widen.is_none() && self.finish.is_none() && self.store.is_none();
        if !is_sum || !is_plain || !(1..=CHUNK).contains(&self.length) {
            return None;
        }
        let program = PairProgram::recognize(self.program)?;
        let is_weighted = program.term == PairTerm::Weighted;
        let (size, output) = (self.size as isize, self.program.inputs.len());
        let is_columns = column.strides[output] == size && self.prefers_columns(output);
        let lanes = if is_columns { column } else { reduced };
        // x is the operand of the difference that is constant along the axis of the lanes.
        let [a, b] = program.difference;
        let (x, y) = match (lanes.strides[a], lanes.strides[b]) {
            (0, stride) if stride == size => (a, b),
            (stride, 0) if stride == size => (b, a),
            _ => return None,
        };
        let (weight, uniform) = program.weight.unwrap_or((y, None));
        if lanes.strides[weight] != size || (!is_columns || program.is_negated) && !is_weighted {
            return None;
        }
        let factor = match uniform {
            Some(uniform) => self.program.uniform_value(&self.program.uniforms[uniform], self.params, 0),
            None => scalar_bits(Scalar::from(1.0), if size == 4 { Compute::F32 } else { Compute::F64 }),
        };
        // Negation is exact, so one flag combines the order of the operands of the difference and the sign of the term.
        let is_negated = (x == b) != program.is_negated;
        Some(PairLayout { term: program.term, inputs: [x, y, weight], factor, is_negated, is_columns })
    }
}
