//! Every path against a walk that knows nothing of layouts, tiles or threads.

mod copies;
mod maps;
mod naive;
mod reductions;
mod rows;
mod sweep;

use crate::operand::Operand;
use crate::testing::Guarded;
use pellucid_ir::formula::{self, Binary, Load, Op, Program, RowOp, Step, Store, Unary, Uniform, UniformSource};
use pellucid_ir::{Compute, DType, Layout, Scalar, Shape};

/// A linear congruential generator: the tests are the same every time.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }

    fn flip(&mut self) -> bool {
        self.below(2) == 1
    }

    /// A small number, often an integer.
    fn value(&mut self) -> Scalar {
        match self.below(8) {
            0 => Scalar::Int(0),
            1 => Scalar::Float(-0.0),
            2..4 => Scalar::Int(self.below(200) as i64 - 100),
            _ => Scalar::Float((self.below(2_000_001) as f64 - 1e6) / 3e5),
        }
    }
}

/// An array with memory of its own, in any layout.
#[derive(Clone)]
pub(crate) struct Array {
    memory: Guarded<u8>,
    layout: Layout,
    dtype: DType,
}

impl Array {
    /// An array of `shape` that lies as one would after a random sequence of views.
    fn random(rng: &mut Rng, shape: &[usize], dtype: DType, stretch: bool) -> Array {
        let rank = shape.len();
        let mut order: Vec<usize> = (0..rank).collect();
        if rng.flip() {
            (1..rank).for_each(|i| order.swap(i, rng.below(i + 1)));
        }
        // In memory, axis `order[k]` is k-th; some are longer there, or stepped, or backwards.
        let mut steps = vec![1isize; rank];
        let mut starts = vec![0; rank];
        let mut dims = Vec::new();
        let plain = rank > 8 || rng.below(3) > 0;
        for &axis in &order {
            let len = shape[axis];
            let (step, spare) = if plain { (1, 0) } else { (1 + rng.below(2), rng.below(3)) };
            let full = len * step + spare;
            let back = !plain && rng.below(3) == 0 && len > 0;
            steps[axis] = if back { -(step as isize) } else { step as isize };
            starts[axis] = if back { (len - 1) * step } else { 0 };
            dims.push(full);
        }
        // A stretched axis is one element long in memory.
        for (k, &axis) in order.iter().enumerate() {
            if stretch && shape[axis] > 0 && rng.below(4) == 0 {
                (dims[k], steps[axis], starts[axis]) = (1, 0, 0);
            }
        }
        let base = Layout::contiguous(Shape::from(dims.clone()));
        let mut layout = base.clone();
        for (k, &axis) in order.iter().enumerate() {
            layout = if steps[axis] == 0 { layout } else { layout.slice(k, starts[axis], steps[axis], shape[axis]) };
        }
        let mut back = vec![0; rank];
        order.iter().enumerate().for_each(|(k, &axis)| back[axis] = k);
        let layout = layout.permute(&back).broadcast_to(&Shape::from(shape)).expect("stretches to the shape");
        let mut array = Array::zeros(base.shape().size(), layout, dtype);
        array.fill(|| rng.value());
        array
    }

    fn contiguous(rng: &mut Rng, shape: &[usize], dtype: DType) -> Array {
        let layout = Layout::contiguous(Shape::from(shape));
        let mut array = Array::zeros(layout.shape().size(), layout, dtype);
        array.fill(|| rng.value());
        array
    }

    fn zeros(elements: usize, layout: Layout, dtype: DType) -> Array {
        Array { memory: Guarded::of(&vec![0; elements * dtype.size()]), layout, dtype }
    }

    fn fill(&mut self, mut value: impl FnMut() -> Scalar) {
        for place in 0..self.memory.len() / self.dtype.size() {
            let bits = naive::encode(value(), self.dtype);
            self.write(place as isize, bits);
        }
    }

    fn write(&mut self, place: isize, bits: u64) {
        let size = self.dtype.size();
        self.memory[place as usize * size..][..size].copy_from_slice(&bits.to_ne_bytes()[..size]);
    }

    /// The bits of element number `flat` of the array stretched to `shape`.
    fn at(&self, shape: &[usize], flat: usize) -> u64 {
        let place = self.place(shape, flat);
        let size = self.dtype.size();
        let mut bits = [0; 8];
        bits[..size].copy_from_slice(&self.memory[place * size..][..size]);
        u64::from_ne_bytes(bits)
    }

    fn place(&self, shape: &[usize], mut flat: usize) -> usize {
        let lead = shape.len() - self.layout.shape().rank();
        let mut place = self.layout.offset() as isize;
        for axis in (0..shape.len()).rev() {
            let index = flat % shape[axis];
            flat /= shape[axis];
            if axis >= lead && self.layout.shape()[axis - lead] != 1 {
                place += index as isize * self.layout.strides()[axis - lead];
            }
        }
        place as usize
    }

    /// All elements' bits, in logical order.
    fn bits(&self) -> Vec<u64> {
        let shape = self.layout.shape();
        (0..shape.size()).map(|i| self.at(shape, i)).collect()
    }

    pub(crate) fn operand(&mut self) -> Operand<'_> {
        Operand { base: self.memory.as_mut_ptr(), layout: &self.layout, dtype: self.dtype }
    }

    /// An operand over memory that another one may share.
    pub(crate) fn shared(&self) -> Operand<'_> {
        Operand { base: self.memory.as_ptr().cast_mut(), layout: &self.layout, dtype: self.dtype }
    }
}

/// Both, or both NaN.
#[track_caller]
fn assert_same(got: &[u64], expected: &[u64], dtype: DType, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (&g, &e)) in got.iter().zip(expected).enumerate() {
        let nan = naive::is_nan(g, dtype) && naive::is_nan(e, dtype);
        assert!(
            g == e || nan,
            "{what}: element {i} is {:?}, not {:?}",
            naive::decode(g, dtype),
            naive::decode(e, dtype)
        );
    }
}

/// Builds programs by hand.
pub(crate) struct Builder {
    inputs: Vec<Load>,
    uniforms: Vec<Uniform>,
    steps: Vec<Step>,
    registers: Vec<Compute>,
    rows: Vec<Compute>,
}

pub(crate) use formula::Operand as Value;

impl Builder {
    pub(crate) fn new() -> Builder {
        Builder { inputs: vec![], uniforms: vec![], steps: vec![], registers: vec![], rows: vec![] }
    }

    pub(crate) fn input(&mut self, storage: DType, compute: Compute, per_row: bool) -> Value {
        self.inputs.push(Load { storage, compute, per_row });
        Value::Input(self.inputs.len() as u8 - 1)
    }

    pub(crate) fn x(&mut self, storage: DType) -> Value {
        self.input(storage, storage.compute(), false)
    }

    pub(crate) fn uniform(&mut self, source: UniformSource, compute: Compute) -> Value {
        self.uniforms.push(Uniform { source, compute });
        Value::Uniform(self.uniforms.len() as u16 - 1)
    }

    pub(crate) fn literal(&mut self, value: f64, compute: Compute) -> Value {
        self.uniform(UniformSource::Literal(Scalar::Float(value)), compute)
    }

    pub(crate) fn step(&mut self, op: Op, compute: Compute, result: Compute, args: &[Value]) -> Value {
        self.registers.push(result);
        let into = Value::Register(self.registers.len() as u16 - 1);
        self.steps.push(Step { op, compute, into, args: args.into() });
        into
    }

    pub(crate) fn row_step(&mut self, op: Op, compute: Compute, args: &[Value]) -> Value {
        self.rows.push(compute);
        let into = Value::Row(self.rows.len() as u16 - 1);
        self.steps.push(Step { op, compute, into, args: args.into() });
        into
    }

    pub(crate) fn unary(&mut self, op: Unary, compute: Compute, a: Value) -> Value {
        self.step(Op::Unary(op), compute, compute, &[a])
    }

    pub(crate) fn binary(&mut self, op: Binary, compute: Compute, a: Value, b: Value) -> Value {
        let result = if op.gives_mask() { Compute::Mask } else { compute };
        self.step(Op::Binary(op), compute, result, &[a, b])
    }

    pub(crate) fn reduce(&mut self, op: RowOp, compute: Compute, a: Value) -> Value {
        self.row_step(Op::Reduce(op), compute, &[a])
    }

    /// Ends with these outputs: value, compute type, dtype, per row.
    pub(crate) fn build(self, outputs: &[(Value, Compute, DType, bool)]) -> Program {
        let outputs =
            outputs.iter().map(|&(value, compute, storage, per_row)| Store { value, compute, storage, per_row });
        let registers = (self.registers, self.rows);
        Program::new("test", self.inputs, self.uniforms, self.steps, registers, outputs.collect())
    }
}

/// Runs `f` with one, two and eight threads.
pub(crate) fn with_threads(mut f: impl FnMut(usize) + Send) {
    for threads in [1, 2, 8] {
        pellucid_runtime::threads::with_threads(threads, || f(threads));
    }
}

/// Shapes that make every path: short and long, deep, empty, 0-d.
pub(crate) fn shapes() -> Vec<Vec<usize>> {
    vec![
        vec![],
        vec![1],
        vec![7],
        vec![300],
        vec![5000],
        vec![3, 5],
        vec![64, 10],
        vec![10, 64],
        vec![5, 129],
        vec![37, 150],
        vec![130, 200],
        vec![2, 3, 4, 5],
        vec![4, 1, 33, 6],
        vec![3, 0, 5],
        vec![0],
        vec![6, 40, 40],
        vec![2, 1, 2, 1, 2, 2, 3, 1, 2],
        vec![2, 70_000],
        vec![9000, 12],
    ]
}
