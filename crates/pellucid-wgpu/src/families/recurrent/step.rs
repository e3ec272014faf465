//! [`StepShader`]: one dispatch of a time step, a tiled product whose epilogue reads and writes arrays of the step.

use crate::dispatch_list::DispatchList;
use crate::families::shared::tile::{ArrayText, SharedTile, TiledArray, WorkgroupTile, choose_tile};
use crate::operand::{Bindings, DeviceArray};
use crate::shader::parameters::Parameters;
use crate::shader::types::FloatText;
use crate::shader::{ShaderBuilder, access};
use pellucid_ir::{Compute, Result};

/// A time index that is a parameter of every dispatch. The variants are in the order of the parameters.
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

impl TimeIndex {
    /// Returns the text that reads the index.
    pub(super) fn text(self) -> String {
        format!("params[{}]", TIMES_AT + self as usize)
    }
}

/// The parameter index of [`TimeIndex::Step`].
const TIMES_AT: usize = 2;

/// The parameter index of the flag that a step is done, so its gradients can be multiplied.
const FLAG_AT: usize = TIMES_AT + 4;

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
    fn position(&self, shader: &mut ShaderBuilder, row: &str, column: &str) -> String {
        shader.define(format!("{} + {row} * {} + {column} * {}", self.base, self.row, self.column))
    }

    /// Adds the lines that load an element.
    pub(super) fn load(&self, shader: &mut ShaderBuilder, row: &str, column: &str) -> String {
        let at = self.position(shader, row, column);
        let text = access::load(shader, self.binding, self.compute.storage(), self.compute, &at);
        shader.define(text)
    }

    /// Adds the lines that store an element.
    pub(super) fn store(&self, shader: &mut ShaderBuilder, row: &str, column: &str, value: &str) {
        let at = self.position(shader, row, column);
        access::store(shader, self.binding, self.compute, self.compute.storage(), value, &at);
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
    tile: WorkgroupTile,
    /// The numbers of rows and columns of the product.
    limits: [String; 2],
    groups: usize,
}

impl StepShader {
    /// Begins a shader with the sum of products of factors, `[rows, columns]`. `reads` are the other arrays that the
    /// epilogue reads, `writes` those that it writes.
    pub(super) fn new(
        float: FloatText,
        [rows, columns]: [usize; 2],
        factors: &[StepFactors<'_>],
        (reads, writes): (&[DeviceArray<'_>], &[DeviceArray<'_>]),
    ) -> StepShader {
        let compute = float.0;
        let (tile, depth) = choose_tile(compute, 1, [rows, columns]);
        let tile_columns = columns.div_ceil(tile.width());
        let groups = rows.div_ceil(tile.height()) * tile_columns;
        let mut parameters = Parameters::for_items(groups);
        // The time indices and the flag.
        (0..5).for_each(|_| drop(parameters.declare_len(0)));
        let limits = [rows, columns].map(|v| parameters.declare_len(v));
        let tile_columns = parameters.declare_len(tile_columns);
        let mut shader = ShaderBuilder::default();
        let sides = factors.iter().flat_map(|f| [&f.left.0, &f.right]);
        let inputs: Vec<DeviceArray<'_>> = sides.clone().map(|f| f.array).chain(reads.iter().copied()).collect();
        let vectors: Vec<bool> = sides.map(|f| f.quad_axis().is_some()).collect();
        let is_vector = |k: usize| vectors.get(k).is_some_and(|&is_vector| is_vector);
        let bindings = Bindings::with_vectors(&mut shader, &inputs, writes, is_vector);
        shader.line("if (group >= params[0]) { return; }");
        shader.line(format!("let first_row = group / {tile_columns} * {}u;", tile.height()));
        shader.line(format!("let first_column = group % {tile_columns} * {}u;", tile.width()));
        tile.declare_grid(&mut shader);
        let tiles = [("tile_a", tile.height()), ("tile_b", tile.width())]
            .map(|(name, width)| SharedTile::declare(&mut shader, name, compute, (width, depth)));
        tile.declare(&mut shader, "sum");
        let mut text = StepShader { shader, parameters, bindings, tile, limits, groups };
        for (k, factor) in factors.iter().enumerate() {
            let left = text.factor(&factor.left.0, text.bindings.input(2 * k), factor.left.1);
            let right = text.factor(&factor.right, text.bindings.input(2 * k + 1), None);
            let depth = text.parameters.declare_len(factor.depth);
            let end = match factor.left.1 {
                Some(TimeIndex::Done) => text.shader.define(format!("{depth} * params[{FLAG_AT}]")),
                _ => depth,
            };
            let place = (["first_row", "first_column"], [&*text.limits[0], &*text.limits[1]]);
            let operands = ([&left, &right], [&tiles[0], &tiles[1]]);
            text.tile.accumulate(&mut text.shader, "sum", operands, place, ("0u", &end));
        }
        text
    }

    fn factor(&mut self, array: &TiledArray<'_>, binding: usize, time: Option<TimeIndex>) -> ArrayText {
        let base = self.base(array.start, &array.array, time);
        array.declare(&mut self.parameters, binding, base)
    }

    /// Adds the line that computes the position of the first element of the matrix of a time.
    fn base(&mut self, start: isize, array: &DeviceArray<'_>, time: Option<TimeIndex>) -> String {
        let start = self.parameters.declare(start);
        match time {
            None => start,
            Some(time) => {
                let stride = self.parameters.declare(array.layout.strides()[0]);
                self.shader.define(format!("{start} + {} * {stride}", time.text()))
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

    /// Adds a length to the parameters and returns its text.
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
        let StepShader { mut shader, parameters, bindings, tile, limits, groups, .. } = self;
        let [rows, columns] = limits;
        if groups == 0 {
            return Ok(StepDispatch { index: None, parameters });
        }
        if is_grouped {
            tile.loop_over_quads(&mut shader, "sum", |shader, quad, quad_row, quad_column| {
                shader.line(format!("let row = first_row + {quad_row};"));
                shader.line(format!("let column = (first_column + {quad_column}) / 4u;"));
                shader.line(format!("if (row < {rows} && column * 4u < {columns}) {{"));
                let products: Vec<String> = (0..4).map(|k| format!("{quad}[{k}]")).collect();
                lines(shader, "row", "column", &products);
                shader.line("}");
            });
        } else {
            let place = (["first_row", "first_column"], [&*rows, &*columns]);
            tile.loop_over_elements(&mut shader, "sum", place, |shader, product| {
                lines(shader, "row", "column", &[product.into()]);
            });
        }
        list.dispatch("recurrent", shader, at_times(&parameters, times), &bindings.buffers, groups)?;
        Ok(StepDispatch { index: Some(list.len() - 1), parameters })
    }
}

/// A dispatch of a step.
pub(super) struct StepDispatch {
    /// The index in the list of dispatches, unless the product has no elements.
    index: Option<usize>,
    parameters: Parameters,
}

impl StepDispatch {
    /// Adds the dispatch for other times.
    pub(super) fn repeat(&self, list: &mut DispatchList<'_>, times: StepTimes) {
        if let Some(index) = self.index {
            list.repeat(index, at_times(&self.parameters, times));
        }
    }
}

/// Returns the parameters of a dispatch with its time indices.
fn at_times(parameters: &Parameters, times: StepTimes) -> Parameters {
    let mut result = parameters.clone();
    let words = [times.step, times.states[0], times.states[1], times.done.unwrap_or(0)];
    for (to, word) in result[TIMES_AT..].iter_mut().zip(words) {
        *to = word as u32;
    }
    result[FLAG_AT] = u32::from(times.done.is_some());
    result
}
