//! [`StepShader`]: one dispatch of a time step, a tiled product whose epilogue reads and writes arrays of the step.

use crate::dispatch_list::DispatchList;
use crate::families::shared::tile::{ArrayExprs, TileBounds, TiledArray, WorkgroupTile, choose_tile};
use crate::operand::{Bindings, DeviceArray};
use crate::shader::parameters::{ParameterSlot, Parameters};
use crate::shader::template::{CollectLines, values};
use crate::shader::types::WgslFloat;
use crate::shader::{ShaderBuilder, access};
use pellucid_ir::{Compute, Result};

/// A time index that is a parameter of every dispatch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TimeIndex {
    /// The time step.
    Step,
    /// The state before the step.
    Previous,
    /// The state after the step.
    Following,
    /// The time step whose gradients are already computed.
    Done,
}

/// The parameters that differ between the dispatches of the steps.
#[derive(Clone, Copy)]
struct TimeSlots {
    step: ParameterSlot,
    previous: ParameterSlot,
    following: ParameterSlot,
    done: ParameterSlot,
    /// Whether a step is done, so its gradients can be multiplied: 1 or 0.
    is_any_done: ParameterSlot,
}

impl TimeSlots {
    fn declare(parameters: &mut Parameters) -> TimeSlots {
        let [step, previous, following, done, is_any_done] = [(); 5].map(|()| parameters.declare_slot(0));
        TimeSlots { step, previous, following, done, is_any_done }
    }

    /// Returns the expression of a time index.
    fn expr(&self, time: TimeIndex) -> String {
        match time {
            TimeIndex::Step => self.step,
            TimeIndex::Previous => self.previous,
            TimeIndex::Following => self.following,
            TimeIndex::Done => self.done,
        }
        .expr()
    }

    /// Returns parameters with these time indices.
    fn with_times(&self, parameters: &Parameters, times: StepTimes) -> Parameters {
        let mut result = parameters.clone();
        result.set(self.step, times.step);
        result.set(self.previous, times.states[0]);
        result.set(self.following, times.states[1]);
        result.set(self.done, times.done.unwrap_or(0));
        result.set(self.is_any_done, usize::from(times.done.is_some()));
        result
    }
}

/// The time indices of one dispatch.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepTimes {
    /// The time step.
    pub(super) step: usize,
    /// The states before and after the step.
    pub(super) states: [usize; 2],
    /// The time step whose gradients are already computed. Without it, the product is 0.
    pub(super) done: Option<usize>,
}

/// One array at the time of a step, for the epilogue.
pub(super) struct StepArray {
    binding: usize,
    compute: Compute,
    base: String,
    row: String,
    column: String,
}

impl StepArray {
    fn offset(&self, shader: &mut ShaderBuilder, row: &str, column: &str) -> String {
        shader.define(format!("{} + {row} * {} + {column} * {}", self.base, self.row, self.column))
    }

    /// Adds the lines that load an element.
    pub(super) fn load(&self, shader: &mut ShaderBuilder, row: &str, column: &str) -> String {
        let offset = self.offset(shader, row, column);
        let element = access::load(shader, self.binding, self.compute.storage(), self.compute, &offset);
        shader.define(element)
    }

    /// Adds the lines that store an element.
    pub(super) fn store(&self, shader: &mut ShaderBuilder, row: &str, column: &str, value: &str) {
        let offset = self.offset(shader, row, column);
        access::store(shader, self.binding, self.compute, self.compute.storage(), value, &offset);
    }
}

/// The lengths of sequences, for the epilogue.
pub(super) struct SequenceLengths {
    lengths: StepArray,
    step: String,
}

impl SequenceLengths {
    /// Returns the condition that the sequence `row` has the time step.
    pub(super) fn is_active(&self, shader: &mut ShaderBuilder, row: &str) -> String {
        let length = self.lengths.load(shader, "0u", row);
        format!("l_lt(vec2<u32>({}, 0u), {length})", self.step)
    }
}

/// The two factors of a part of the product, with their times, and the length of k.
pub(super) struct StepFactors<'a> {
    /// The left factor.
    pub(super) left: (TiledArray<'a>, Option<TimeIndex>),
    /// The right factor.
    pub(super) right: TiledArray<'a>,
    /// The length of k.
    pub(super) depth: usize,
}

/// The shader of a dispatch while it is generated.
pub(super) struct StepShader {
    shader: ShaderBuilder,
    parameters: Parameters,
    bindings: Bindings,
    times: TimeSlots,
    tile: WorkgroupTile,
    /// The row and column counts of the product.
    limits: [String; 2],
    groups: usize,
}

impl StepShader {
    /// Begins a shader with the sum of products of factors, `[rows, columns]`. `reads` are the other arrays that the
    /// epilogue reads, `writes` those that it writes.
    pub(super) fn new(
        float: WgslFloat,
        [rows, columns]: [usize; 2],
        factors: &[StepFactors<'_>],
        (reads, writes): (&[DeviceArray<'_>], &[DeviceArray<'_>]),
    ) -> StepShader {
        let compute = float.0;
        let (tile, tile_k) = choose_tile(compute, 1, [rows, columns]);
        let tile_columns = columns.div_ceil(tile.width());
        let groups = rows.div_ceil(tile.height()) * tile_columns;
        let mut parameters = Parameters::for_items(groups);
        let times = TimeSlots::declare(&mut parameters);
        let limits = [rows, columns].map(|v| parameters.declare_len(v));
        let tile_columns = parameters.declare_len(tile_columns);
        let mut shader = ShaderBuilder::default();
        let sides = factors.iter().flat_map(|f| [&f.left.0, &f.right]);
        let inputs: Vec<DeviceArray<'_>> = sides.clone().map(|f| f.array).chain(reads.iter().copied()).collect();
        let vectors: Vec<bool> = sides.map(|f| f.quad_axis().is_some()).collect();
        let is_vector = |k: usize| vectors.get(k).is_some_and(|&is_vector| is_vector);
        let bindings = Bindings::with_vectors(&mut shader, &inputs, writes, is_vector);
        shader.return_unless_item("group");
        tile.begin(&mut shader, "group", &tile_columns);
        let tiles = tile.declare_product(&mut shader, tile_k);
        let mut builder = StepShader { shader, parameters, bindings, times, tile, limits, groups };
        for (k, factor) in factors.iter().enumerate() {
            let left = builder.factor(&factor.left.0, builder.bindings.input(2 * k), factor.left.1);
            let right = builder.factor(&factor.right, builder.bindings.input(2 * k + 1), None);
            let depth = builder.parameters.declare_len(factor.depth);
            let end = match factor.left.1 {
                Some(TimeIndex::Done) => builder.shader.define(format!("{depth} * {}", times.is_any_done.expr())),
                _ => depth,
            };
            let limits = builder.limits.each_ref().map(|limit| &**limit);
            let bounds = TileBounds { first: ["first_row", "first_column"], limits };
            let operands = ([&left, &right], [&tiles[0], &tiles[1]]);
            builder.tile.accumulate(&mut builder.shader, "sum", operands, bounds, ("0u", &end));
        }
        builder
    }

    fn factor(&mut self, array: &TiledArray<'_>, binding: usize, time: Option<TimeIndex>) -> ArrayExprs {
        let base = self.base(array.start, &array.array, time);
        array.declare(&mut self.parameters, binding, base)
    }

    /// Adds the line that computes the offset of the first element of the matrix of a time.
    fn base(&mut self, start: isize, array: &DeviceArray<'_>, time: Option<TimeIndex>) -> String {
        let start = self.parameters.declare(start);
        match time {
            None => start,
            Some(time) => {
                let stride = self.parameters.declare(array.layout.strides()[0]);
                self.shader.define(format!("{start} + {} * {stride}", self.times.expr(time)))
            }
        }
    }

    /// Declares an array of the epilogue: `[N, width]`, `[width]`, or `[T, N, width]` at a time.
    pub(super) fn array(&mut self, array: &DeviceArray<'_>, time: Option<TimeIndex>) -> StepArray {
        let strides = array.layout.strides();
        let (row, column) = match array.shape().rank() {
            1 => (0, strides[0]),
            rank => (strides[rank - 2], strides[rank - 1]),
        };
        let base = self.base(array.layout.offset() as isize, array, time);
        let [row, column] = [row, column].map(|v| self.parameters.declare(v));
        let binding = self.bindings.binding_of(array.buffer);
        StepArray { binding, compute: array.dtype.compute(), base, row, column }
    }

    /// Declares the lengths of the sequences.
    pub(super) fn lengths(&mut self, lengths: &DeviceArray<'_>) -> SequenceLengths {
        SequenceLengths { lengths: self.array(lengths, None), step: self.times.expr(TimeIndex::Step) }
    }

    /// Adds a length to the parameters and returns its expression.
    pub(super) fn length(&mut self, value: usize) -> String {
        self.parameters.declare_len(value)
    }

    /// Adds the epilogue and the dispatch. `lines` receives a row, a column and the product of each element; if
    /// `is_grouped`, four neighbouring columns are the gates of one unit, and `lines` receives the unit and the four
    /// products.
    ///
    /// Returns the dispatch, which can be repeated at other times.
    pub(super) fn finish(
        self,
        list: &mut DispatchList<'_>,
        is_grouped: bool,
        times: StepTimes,
        lines: impl FnOnce(&mut ShaderBuilder, &str, &str, &[String]),
    ) -> Result<StepDispatch> {
        let StepShader { mut shader, parameters, bindings, times: slots, tile, limits, groups } = self;
        let [rows, columns] = limits;
        if groups == 0 {
            return Ok(StepDispatch { index: None, parameters, slots });
        }
        if is_grouped {
            tile.loop_over_quads(&mut shader, "sum", |shader| {
                let products = [0, 1, 2, 3].map(|k| format!("quad[{k}]"));
                let visit_unit = shader.collect_lines(|shader| lines(shader, "row", "column", &products));
                shader.template(VISIT_UNIT, values![rows, columns, visit_unit]);
            });
        } else {
            let bounds = TileBounds { first: ["first_row", "first_column"], limits: [&rows, &columns] };
            tile.loop_over_elements(&mut shader, "sum", bounds, |shader| {
                lines(shader, "row", "column", &["value".into()]);
            });
        }
        list.dispatch("recurrent", shader, slots.with_times(&parameters, times), &bindings.buffers, groups)?;
        Ok(StepDispatch { index: Some(list.len() - 1), parameters, slots })
    }
}

/// A quad of the product whose columns are the gates of one unit.
const VISIT_UNIT: &str = "
    let row = first_row + quad_row;
    let column = (first_column + quad_column) / 4u;
    if (row < $rows && column * 4u < $columns) {
        $visit_unit
    }
";

/// A dispatch of a step.
pub(super) struct StepDispatch {
    /// The index in the list of dispatches, unless the product has no elements.
    index: Option<usize>,
    parameters: Parameters,
    slots: TimeSlots,
}

impl StepDispatch {
    /// Adds the dispatch for other times.
    pub(super) fn repeat(&self, list: &mut DispatchList<'_>, times: StepTimes) {
        if let Some(index) = self.index {
            list.repeat(index, self.slots.with_times(&self.parameters, times));
        }
    }
}
