//! Compares all paths of the interpreter with a scalar reference that has no layouts, tiles or threads.

mod copies;
mod maps;
mod naive;
mod reductions;
mod rows;
mod selections;
mod sweep;

use crate::operand::Operand;
use crate::testing::Guarded;
use pellucid_ir::formula::{self, Binary, Load, Op, Program, RowOp, Step, Store, Unary, Uniform, UniformSource};
use pellucid_ir::{Compute, DType, Layout, Scalar, Shape};

/// A linear congruential generator, so the tests are the same in every run.
pub(crate) struct Rng(u64);

impl Rng {
    /// Returns a pseudorandom integer below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }

    /// Returns a pseudorandom boolean.
    fn flip(&mut self) -> bool {
        self.below(2) == 1
    }

    /// Returns a small number, often an integer.
    fn value(&mut self) -> Scalar {
        match self.below(8) {
            0 => Scalar::Int(0),
            1 => Scalar::Float(-0.0),
            2..4 => Scalar::Int(self.below(200) as i64 - 100),
            _ => Scalar::Float((self.below(2_000_001) as f64 - 1e6) / 3e5),
        }
    }
}

/// An array with its own memory, in any layout.
#[derive(Clone)]
pub(crate) struct TestArray {
    memory: Guarded<u8>,
    layout: Layout,
    dtype: DType,
}

impl TestArray {
    /// Returns a random array of `shape`, with the layout of a random sequence of views. `stretch` allows broadcast
    /// axes.
    fn random(rng: &mut Rng, shape: &[usize], dtype: DType, stretch: bool) -> TestArray {
        let rank = shape.len();
        let mut order: Vec<usize> = (0..rank).collect();
        if rng.flip() {
            (1..rank).for_each(|i| order.swap(i, rng.below(i + 1)));
        }
        // In memory, axis `order[k]` is the k-th axis. Some axes are slices, with a step or reversed.
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
        // A broadcast axis has length 1 in memory.
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
        let layout =
            layout.permute(&back).broadcast_to(&Shape::from(shape)).expect("the layout must broadcast to the shape");
        let mut array = TestArray::zeros(base.shape().size(), layout, dtype);
        array.fill(|| rng.value());
        array
    }

    /// Returns a random array of `shape` in row-major order.
    fn contiguous(rng: &mut Rng, shape: &[usize], dtype: DType) -> TestArray {
        let layout = Layout::contiguous(Shape::from(shape));
        let mut array = TestArray::zeros(layout.shape().size(), layout, dtype);
        array.fill(|| rng.value());
        array
    }

    /// Returns an array of zeros with `elements` elements of memory.
    fn zeros(elements: usize, layout: Layout, dtype: DType) -> TestArray {
        TestArray { memory: Guarded::from_slice(&vec![0; elements * dtype.size()]), layout, dtype }
    }

    /// Writes a value to every element of the memory.
    fn fill(&mut self, mut value: impl FnMut() -> Scalar) {
        for index in 0..self.memory.len() / self.dtype.size() {
            let bits = naive::encode(value(), self.dtype);
            self.write(index as isize, bits);
        }
    }

    /// Writes the bits of one element of the memory.
    fn write(&mut self, index: isize, bits: u64) {
        let size = self.dtype.size();
        self.memory[index as usize * size..][..size].copy_from_slice(&bits.to_ne_bytes()[..size]);
    }

    /// Returns the bits of element `flat` of the array broadcast to `shape`.
    fn element_bits(&self, shape: &[usize], flat: usize) -> u64 {
        let index = self.memory_index(shape, flat);
        let size = self.dtype.size();
        let mut bits = [0; 8];
        bits[..size].copy_from_slice(&self.memory[index * size..][..size]);
        u64::from_ne_bytes(bits)
    }

    /// Returns the memory index of element `flat` of the array broadcast to `shape`.
    fn memory_index(&self, shape: &[usize], mut flat: usize) -> usize {
        let lead = shape.len() - self.layout.shape().rank();
        let mut memory_index = self.layout.offset() as isize;
        for axis in (0..shape.len()).rev() {
            let index = flat % shape[axis];
            flat /= shape[axis];
            if axis >= lead && self.layout.shape()[axis - lead] != 1 {
                memory_index += index as isize * self.layout.strides()[axis - lead];
            }
        }
        memory_index as usize
    }

    /// Returns the bits of all elements, in logical order.
    fn bits(&self) -> Vec<u64> {
        let shape = self.layout.shape();
        (0..shape.size()).map(|i| self.element_bits(shape, i)).collect()
    }

    /// Returns an operand with exclusive access to the memory.
    pub(crate) fn operand(&mut self) -> Operand<'_> {
        Operand { base: self.memory.as_mut_ptr(), layout: &self.layout, dtype: self.dtype }
    }

    /// Returns an operand that may share the memory with other operands.
    pub(crate) fn shared(&self) -> Operand<'_> {
        Operand { base: self.memory.as_ptr().cast_mut(), layout: &self.layout, dtype: self.dtype }
    }
}

/// Asserts that all elements are bitwise equal or both NaN.
#[track_caller]
fn assert_same(got: &[u64], expected: &[u64], dtype: DType, context: &str) {
    assert_eq!(got.len(), expected.len(), "{context}");
    for (i, (&g, &e)) in got.iter().zip(expected).enumerate() {
        let nan = naive::is_nan(g, dtype) && naive::is_nan(e, dtype);
        assert!(
            g == e || nan,
            "{context}: element {i} is {:?}, expected {:?}",
            naive::decode(g, dtype),
            naive::decode(e, dtype)
        );
    }
}

/// Builds programs instruction by instruction.
pub(crate) struct ProgramBuilder {
    inputs: Vec<Load>,
    uniforms: Vec<Uniform>,
    steps: Vec<Step>,
    registers: Vec<Compute>,
    rows: Vec<Compute>,
}

pub(crate) use formula::InstructionOperand as Value;

impl ProgramBuilder {
    /// Returns a builder of an empty program.
    pub(crate) fn new() -> ProgramBuilder {
        ProgramBuilder { inputs: vec![], uniforms: vec![], steps: vec![], registers: vec![], rows: vec![] }
    }

    /// Adds an input that is stored as `storage` and loaded as `compute`.
    pub(crate) fn input(&mut self, storage: DType, compute: Compute, per_row: bool) -> Value {
        self.inputs.push(Load { storage, compute, per_row });
        Value::Input(self.inputs.len() as u8 - 1)
    }

    /// Adds an input with one value per element, in the compute type of its dtype.
    pub(crate) fn x(&mut self, storage: DType) -> Value {
        self.input(storage, storage.compute(), false)
    }

    /// Adds a uniform value.
    pub(crate) fn uniform(&mut self, source: UniformSource, compute: Compute) -> Value {
        self.uniforms.push(Uniform { source, compute });
        Value::Uniform(self.uniforms.len() as u16 - 1)
    }

    /// Adds a constant.
    pub(crate) fn literal(&mut self, value: f64, compute: Compute) -> Value {
        self.uniform(UniformSource::Literal(Scalar::Float(value)), compute)
    }

    /// Adds an instruction whose result is one value of type `result` per element.
    pub(crate) fn step(&mut self, op: Op, compute: Compute, result: Compute, args: &[Value]) -> Value {
        self.registers.push(result);
        let into = Value::Register(self.registers.len() as u16 - 1);
        self.steps.push(Step { op, compute, into, args: args.into() });
        into
    }

    /// Adds an instruction whose result is one value per row.
    pub(crate) fn row_step(&mut self, op: Op, compute: Compute, args: &[Value]) -> Value {
        self.rows.push(compute);
        let into = Value::Row(self.rows.len() as u16 - 1);
        self.steps.push(Step { op, compute, into, args: args.into() });
        into
    }

    /// Adds an instruction of one operand.
    pub(crate) fn unary(&mut self, op: Unary, compute: Compute, a: Value) -> Value {
        self.step(Op::Unary(op), compute, compute, &[a])
    }

    /// Adds an instruction of two operands.
    pub(crate) fn binary(&mut self, op: Binary, compute: Compute, a: Value, b: Value) -> Value {
        let result = if op.gives_mask() { Compute::Mask } else { compute };
        self.step(Op::Binary(op), compute, result, &[a, b])
    }

    /// Adds a reduction over the row.
    pub(crate) fn reduce(&mut self, op: RowOp, compute: Compute, a: Value) -> Value {
        self.row_step(Op::Reduce(op), compute, &[a])
    }

    /// Returns the program with these outputs: value, compute type, dtype, and whether there is one value per row.
    pub(crate) fn build(self, outputs: &[(Value, Compute, DType, bool)]) -> Program {
        let outputs =
            outputs.iter().map(|&(value, compute, storage, per_row)| Store { value, compute, storage, per_row });
        let registers = (self.registers, self.rows);
        Program::new("test", self.inputs, self.uniforms, self.steps, registers, outputs.collect())
    }
}

/// Runs `f` with one, two and eight threads.
pub(crate) fn for_each_thread_count(mut f: impl FnMut(usize) + Send) {
    for threads in [1, 2, 8] {
        pellucid_runtime::threads::with_threads(threads, || f(threads));
    }
}

/// Returns shapes that reach all paths: short and long rows, many axes, empty and zero-dimensional arrays.
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
