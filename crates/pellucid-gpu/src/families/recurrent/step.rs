//! [`StepShader`]: one dispatch of a time step, a tiled product whose epilogue reads and writes arrays of the step.

use crate::dispatch_list::{DispatchList, ShaderIndex};
use crate::families::shared::tile::{ArrayExprs, MatrixUnit, TileBounds, TiledArray, WorkgroupTile, choose_tile};
use crate::operand::{Bindings, DeviceArray};
use crate::shader::{
    CollectLines, ElementAccess, ElementRef, ParameterSlot, Parameters, ShaderBuilder, WgslFloat, i64_from_word, values,
};

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
    Finished,
    /// Whether there is a step whose gradients are already computed and can be multiplied: 1 or 0.
    IsAnyFinished,
}

/// The parameters that differ between the dispatches of the steps, in the order of [`TimeIndex`].
#[derive(Clone, Copy)]
struct TimeSlots([ParameterSlot; 5]);

impl TimeSlots {
    /// Returns the expression of a time index.
    fn expr(&self, time: TimeIndex) -> String {
        self.0[time as usize].expr()
    }

    /// Sets the time indices of parameters.
    fn set(&self, parameters: &mut Parameters, StepTimes { step, states, finished }: StepTimes) {
        let values = [step, states[0], states[1], finished.unwrap_or(0), usize::from(finished.is_some())];
        self.0.into_iter().zip(values).for_each(|(slot, value)| parameters.set(slot, value));
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
    pub(super) finished: Option<usize>,
}

/// An array that the epilogue accesses at the time of a step.
pub(super) struct StepArray {
    elements: ElementAccess,
    base: String,
    row: String,
    column: String,
}

impl StepArray {
    /// Adds the lines that load the element at `row` and `column`.
    pub(super) fn load(&self, shader: &mut ShaderBuilder) -> String {
        self.load_at(shader, "row", "column")
    }

    /// Adds the lines that load the element at the given row and column.
    pub(super) fn load_at(&self, shader: &mut ShaderBuilder, row: &str, column: &str) -> String {
        let offset = self.offset(shader, row, column);
        self.elements.define(shader, &offset)
    }

    /// Adds the lines that add the element at `row` and `column` to `value`, and returns the sum.
    pub(super) fn sum(&self, shader: &mut ShaderBuilder, float: WgslFloat, value: &str) -> String {
        let element = self.load(shader);
        shader.define(float.add(value, &element))
    }

    /// Adds the lines that store the element at `row` and `column`.
    pub(super) fn store(&self, shader: &mut ShaderBuilder, value: &str) {
        self.store_at(shader, "column", value);
    }

    /// Adds the lines that store the element at `row` and a column.
    pub(super) fn store_at(&self, shader: &mut ShaderBuilder, column: &str, value: &str) {
        let offset = self.offset(shader, "row", column);
        self.elements.store(shader, value, &offset);
    }

    fn offset(&self, shader: &mut ShaderBuilder, row: &str, column: &str) -> String {
        shader.define(format!("{} + {row} * {} + {column} * {}", self.base, self.row, self.column))
    }
}

/// The lengths of the sequences, which the epilogue reads.
pub(super) struct SequenceLengths {
    lengths: StepArray,
    step: String,
}

impl SequenceLengths {
    /// Returns the condition that the sequence `row` includes the time step.
    fn is_active(&self, shader: &mut ShaderBuilder) -> String {
        let length = self.lengths.load_at(shader, "0u", "row");
        format!("l_lt({}, {length})", i64_from_word(&self.step))
    }
}

/// Runs `$change_state` for a sequence that has this time step, otherwise `$keep_state`.
const IF_ACTIVE: &str = "
    if ($is_active) {
        $change_state
    } else {
        $keep_state
    }
";

/// Adds lines for sequences whose state the step changes, and lines for sequences that have ended before it.
pub(super) fn if_active(
    shader: &mut ShaderBuilder,
    lengths: Option<&SequenceLengths>,
    change_state: impl FnOnce(&mut ShaderBuilder),
    keep_state: impl FnOnce(&mut ShaderBuilder),
) {
    let is_active = lengths.map_or("true".into(), |lengths| lengths.is_active(shader));
    let (change_state, keep_state) = (shader.collect_lines(change_state), shader.collect_lines(keep_state));
    shader.template(IF_ACTIVE, values![is_active, change_state, keep_state]);
}

/// The two factors of one term of the sum of products. The left factor may depend on a time.
pub(super) struct StepFactors<'a> {
    pub(super) left: (TiledArray<'a>, Option<TimeIndex>),
    pub(super) right: TiledArray<'a>,
    /// The length of k.
    pub(super) depth: usize,
}

/// The shader of a dispatch while it is generated.
pub(super) struct StepShader {
    op: &'static str,
    shader: ShaderBuilder,
    times: TimeSlots,
    tile: WorkgroupTile,
    /// The row and column counts of the product.
    limits: [String; 2],
}

impl StepShader {
    /// Begins a shader of the operation `op`, which may use a matrix unit, with the sum of products of factors,
    /// `[rows, columns]`. `reads` and `writes` are the other arrays that the epilogue reads and writes.
    pub(super) fn new(
        (op, unit): (&'static str, Option<MatrixUnit>),
        [rows, columns]: [usize; 2],
        factors: &[StepFactors<'_>],
        reads: &[DeviceArray<'_>],
        writes: &[DeviceArray<'_>],
    ) -> StepShader {
        let (tile, tile_k) = choose_tile((writes[0].dtype.compute(), unit), 1, [rows, columns]);
        let tile_columns = columns.div_ceil(tile.width());
        let mut shader = ShaderBuilder::for_groups(rows.div_ceil(tile.height()) * tile_columns);
        let times = TimeSlots([0; 5].map(|time| shader.parameters.declare_slot(time)));
        let limits = shader.declare_words([rows, columns]);
        let tile_columns = shader.declare_word(tile_columns);
        let sides = factors.iter().flat_map(|f| [&f.left.0, &f.right]);
        let inputs: Vec<DeviceArray<'_>> = sides.clone().map(|f| f.array).chain(reads.iter().copied()).collect();
        let vectors: Vec<bool> = sides.map(|f| f.quad_axis().is_some()).collect();
        let is_vector = |k: usize| vectors.get(k).is_some_and(|&is_vector| is_vector);
        let bindings = Bindings::with_vectors(&mut shader, &inputs, writes, is_vector);
        tile.begin(&mut shader, "group", &tile_columns);
        let tiles = tile.declare_product(&mut shader, tile_k);
        let mut builder = StepShader { op, shader, times, tile, limits };
        for (k, factor) in factors.iter().enumerate() {
            let left = builder.factor(&factor.left.0, bindings.input(2 * k), factor.left.1);
            let right = builder.factor(&factor.right, bindings.input(2 * k + 1), None);
            let depth = builder.shader.declare_word(factor.depth);
            let end = match factor.left.1 {
                Some(TimeIndex::Finished) => {
                    builder.shader.define(format!("{depth} * {}", times.expr(TimeIndex::IsAnyFinished)))
                }
                _ => depth,
            };
            let limits = builder.limits.each_ref().map(|limit| &**limit);
            let bounds = TileBounds { first: ["first_row", "first_column"], limits };
            let operands = ([&left, &right], [&tiles[0], &tiles[1]]);
            builder.tile.accumulate(&mut builder.shader, "sum", operands, bounds, ("0u", &end));
        }
        builder
    }

    fn factor(&mut self, array: &TiledArray<'_>, elements: ElementAccess, time: Option<TimeIndex>) -> ArrayExprs {
        let offset = self.base(array.start, &array.array, time);
        array.declare(&mut self.shader, ElementRef { elements, offset })
    }

    /// Adds the line that computes the offset of the first element of the matrix of a time.
    fn base(&mut self, start: isize, array: &DeviceArray<'_>, time: Option<TimeIndex>) -> String {
        let start = self.shader.declare(start);
        match time {
            None => start,
            Some(time) => {
                let stride = self.shader.declare(array.layout.strides()[0]);
                self.shader.define(format!("{start} + {} * {stride}", self.times.expr(time)))
            }
        }
    }

    /// Declares an array that the epilogue accesses: `[N, width]` or `[width]`, or `[T, N, width]` at the time `time`.
    pub(super) fn array(&mut self, array: &DeviceArray<'_>, time: Option<TimeIndex>) -> StepArray {
        let strides = array.layout.strides();
        let (row, column) = match array.shape().rank() {
            1 => (0, strides[0]),
            rank => (strides[rank - 2], strides[rank - 1]),
        };
        let base = self.base(array.layout.offset() as isize, array, time);
        let [row, column] = [row, column].map(|v| self.shader.declare(v));
        let binding = self.shader.binding_of(array.buffer).expect("the arrays of the epilogue must be bound");
        StepArray { elements: ElementAccess::new(binding, array.dtype), base, row, column }
    }

    /// Declares the lengths of the sequences.
    pub(super) fn lengths(&mut self, lengths: &DeviceArray<'_>) -> SequenceLengths {
        SequenceLengths { lengths: self.array(lengths, None), step: self.times.expr(TimeIndex::Step) }
    }

    /// Adds a length to the parameters and returns its expression.
    pub(super) fn length(&mut self, value: usize) -> String {
        self.shader.declare_word(value)
    }

    /// Adds the epilogue and the dispatch. `lines` adds the lines for the element at `row` and `column`, whose product
    /// it receives. If `is_grouped`, four neighbouring columns are the gates of one unit: `column` is then the unit,
    /// and `lines` receives the four products.
    ///
    /// Returns the dispatch, which can be repeated at other times.
    pub(super) fn finish(
        self,
        list: &mut DispatchList<'_>,
        is_grouped: bool,
        times: StepTimes,
        lines: impl FnOnce(&mut ShaderBuilder, &[String]),
    ) -> StepDispatch {
        let StepShader { op, mut shader, times: slots, tile, limits: [rows, columns] } = self;
        if is_grouped {
            tile.loop_over_quads(&mut shader, "sum", |shader| {
                let products = [0, 1, 2, 3].map(|k| format!("quad[{k}]"));
                let visit_unit = shader.collect_lines(|shader| lines(shader, &products));
                shader.template(VISIT_UNIT, values![rows, columns, visit_unit]);
            });
        } else {
            let bounds = TileBounds { first: ["first_row", "first_column"], limits: [&rows, &columns] };
            tile.loop_over_elements(&mut shader, "sum", bounds, |shader| lines(shader, &["value".into()]));
        }
        slots.set(&mut shader.parameters, times);
        let parameters = shader.parameters.clone();
        let index = (shader.groups > 0).then(|| list.dispatch(op, shader));
        StepDispatch { index, parameters, slots }
    }
}

/// The lines for a quad of the product, whose columns are the gates of one unit.
const VISIT_UNIT: &str = "
    let row = first_row + quad_row;
    let column = (first_column + quad_column) / 4u;
    if (row < $rows && column * 4u < $columns) {
        $visit_unit
    }
";

/// A dispatch of a step, which can be repeated at other times.
pub(super) struct StepDispatch {
    /// The shader, unless the product has no elements.
    index: Option<ShaderIndex>,
    parameters: Parameters,
    slots: TimeSlots,
}

impl StepDispatch {
    /// Adds the dispatch again, at other times.
    pub(super) fn repeat(&self, list: &mut DispatchList<'_>, times: StepTimes) {
        if let Some(index) = self.index {
            let mut parameters = self.parameters.clone();
            self.slots.set(&mut parameters, times);
            list.repeat(index, parameters);
        }
    }
}
