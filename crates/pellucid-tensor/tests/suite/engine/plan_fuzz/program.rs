//! Random programs: their arrays, their state, and the execution of a step.
//!
//! The seed determines a program: inputs of shapes that broadcast, with axes of length 0 and 1 among them, state that
//! persists across steps, and a sequence of operations on a pool of tensors. Operations are chosen by shapes and dtypes
//! alone, never by values, so that every mode executes the same sequence. Values are used several times, before and
//! after writes in place and through views. A step may return a view of an input, of the state, or of another output.
//!
//! Two of three programs are short. They track gradients: the inputs are leaves, and gradients of some results with
//! respect to them, sometimes also gradients of the gradients, are results too. The others are long and track gradients
//! within single operations only.

use super::PlanCoverage;
use super::operations::OPERATIONS;
use super::rng::SplitMix64;
use pellucid_tensor::{DType, Device, Error, Generator, GradOptions, Shape, Tensor, grad};

/// The maximum number of operations of a short program.
const SHORT: usize = 8;

/// The maximum number of elements of a result in the pool.
const MAX_ELEMENTS: usize = 4096;

/// The arrays of a program, and the generator that chooses its operations.
pub struct PlanProgram {
    leaves: Vec<(Shape, DType)>,
    /// The shape of the mask.
    mask: Shape,
    states: [(Shape, DType); 2],
    /// The length of the index tensors, and of the axes that they index.
    index_len: usize,
    is_differentiated: bool,
    rng: SplitMix64,
}

impl PlanProgram {
    pub fn new(seed: u64) -> PlanProgram {
        let rng = &mut SplitMix64::new(seed);
        let length = |rng: &mut SplitMix64| match rng.below(24) {
            0 => 0,
            1 => 19,
            2 => 40,
            k => [1, 1, 1, 2, 3, 4][k % 6],
        };
        let [a, b, c] = [(); 3].map(|()| length(rng));
        let [a, b, c] = match rng.below(40) {
            // Several tiles and tasks.
            0 => [1, 70, 130],
            // In a square, an operand with one row and an operand with one column have the same size.
            1..10 => [a, b, b],
            _ => [a, b, c],
        };
        let shape = |rng: &mut SplitMix64| -> Shape {
            match rng.below(11) {
                0 => [a, b, c].into(),
                1 => [a, 1, c].into(),
                2 => [b, 1].into(),
                3 => [1, c].into(),
                4 => [c].into(),
                5 => [1].into(),
                6 => Shape::scalar(),
                7 => [c, b].into(),
                _ => [b, c].into(),
            }
        };
        let dtype = |rng: &mut SplitMix64| {
            use DType::{BF16, F16, F32, F64, I32, I64};
            rng.choose(&[F32, F32, F32, F32, F32, F64, F64, BF16, F16, I64, I32, F32])
        };
        // Half of the programs have one dtype, in which more operations fuse.
        let one = rng.choose(&[None, Some(DType::F32)]);
        let array = |rng: &mut SplitMix64| (shape(rng), one.unwrap_or_else(|| dtype(rng)));
        let leaves = (0..2 + rng.below(3)).map(|_| array(rng)).collect();
        let (first, second) = (array(rng), array(rng));
        // An operation updates both states together if their shapes are equal.
        let second = if rng.below(2) == 0 { (first.0.clone(), second.1) } else { second };
        PlanProgram {
            leaves,
            mask: shape(rng),
            states: [first, second],
            index_len: c,
            is_differentiated: rng.below(3) > 0,
            rng: rng.clone(),
        }
    }

    /// Returns the inputs of a step: the leaves, a mask and an index tensor.
    pub fn inputs(&self, step: usize) -> Vec<Tensor> {
        let mut inputs: Vec<Tensor> = self.leaves.iter().enumerate().map(|(k, of)| wave(of, step, k)).collect();
        inputs.push(wave(&(self.mask.clone(), DType::F32), step, 7).gt(-0.2));
        let n = self.index_len;
        inputs.push(Tensor::new((0..n).map(|i| ((i * 7 + step * 3) % n) as i64).collect::<Vec<_>>(), [n]));
        inputs
    }

    /// Executes one step. Returns its results, its log and its coverage.
    pub fn execute(&self, state: &ProgramState, inputs: &[Tensor]) -> (Vec<Tensor>, String, PlanCoverage) {
        let tracked = |x: &Tensor| {
            if self.is_differentiated && x.dtype().is_float() { x.detach().requires_grad_(true) } else { x.clone() }
        };
        let mut pool: Vec<Tensor> = inputs.iter().map(tracked).collect();
        let leaves = pool[..self.leaves.len()].to_vec();
        pool.extend(state.arrays.iter().chain([&state.index]).cloned());
        let own = pool.len();
        let mut run = ProgramRun {
            rng: self.rng.clone(),
            program: self,
            state,
            pool: vec![],
            max_elements: MAX_ELEMENTS.max(4 * self.leaves.iter().map(|(shape, _)| shape.size()).max().unwrap_or(0)),
            operands: vec![],
            log: vec![],
            coverage: PlanCoverage { operations: vec![0; OPERATIONS.len()], ..PlanCoverage::default() },
        };
        run.note(0, &pool, "inputs and state".into());
        run.pool = pool;
        let operations = if self.is_differentiated { 1 + run.rng.below(SHORT) } else { 10 + run.rng.below(31) };
        for _ in 0..operations {
            run.apply_random_operation();
        }
        let gradients = if self.is_differentiated { run.differentiate(&leaves) } else { Vec::new() };
        run.operands.clear();
        let mut outputs: Vec<Tensor> = (0..1 + run.rng.below(5)).filter_map(|_| run.pick(|_| true)).collect();
        // The newest result is always read.
        outputs.extend(run.pool[own..].last().cloned());
        run.log.push(format!("returns {:?}, the newest result and the gradients", run.operands));
        outputs.extend(gradients);
        let outputs = outputs.iter().map(Tensor::detach).collect();
        (outputs, run.log.join("\n"), run.coverage)
    }
}

/// Returns values that depend only on the step and the index of the tensor.
fn wave((shape, dtype): &(Shape, DType), step: usize, number: usize) -> Tensor {
    let phase = 0.3 + step as f64 + 0.7 * number as f64;
    let value = |i: usize| 2.0 * (phase + (1.3 + 0.4 * number as f64) * i as f64).sin();
    Tensor::new((0..shape.size()).map(value).collect::<Vec<f64>>(), shape.clone()).to_dtype(*dtype)
}

/// The state of a program, which persists across steps.
pub struct ProgramState {
    /// Two arrays that are written in place.
    pub arrays: [Tensor; 2],
    /// `i64 [n]`, an index into axes of length n.
    pub index: Tensor,
    /// A leaf `[n, 3]` that the program trains.
    pub weight: Tensor,
    /// A leaf `[n]` whose gradient every step may add to.
    pub total: Tensor,
    pub generator: Generator,
}

impl ProgramState {
    /// Creates the state on a device.
    ///
    /// # Errors
    /// The errors of the device.
    pub fn new(program: &PlanProgram, seed: u64, device: Device) -> Result<ProgramState, Error> {
        let n = program.index_len;
        let dtypes = || program.leaves.iter().map(|(_, dtype)| *dtype);
        let dtype = dtypes().find(|dtype| dtype.is_float()).unwrap_or(DType::F32);
        let [first, second] = [0, 1].map(|k| wave(&program.states[k], 3, k).try_to(device));
        let total = Tensor::zeros([n], dtype).try_to(device)?.requires_grad_(true);
        total.set_grad(Some(Tensor::ones([n], dtype).try_to(device)?));
        Ok(ProgramState {
            arrays: [first?, second?],
            index: Tensor::new((0..n).map(|i| ((i * 5 + 1) % n) as i64).collect::<Vec<_>>(), [n]).try_to(device)?,
            weight: wave(&([n, 3].into(), dtype), 3, 5).try_to(device)?.requires_grad_(true),
            total,
            generator: Generator::new(seed),
        })
    }

    /// Returns all tensors that a step may change.
    pub fn all(&self) -> Vec<Tensor> {
        let gradient = self.total.grad().expect("`ProgramState::new` must set a gradient");
        let mut all = self.arrays.to_vec();
        all.extend([self.index.clone(), self.weight.detach(), gradient]);
        let states = [self.generator.states(), Generator::default().states()];
        all.extend(states.into_iter().flatten().map(|(_, state)| state));
        all
    }
}

/// A program in execution: the tensors that it may use, and a log of its operations.
pub struct ProgramRun<'p> {
    pub rng: SplitMix64,
    program: &'p PlanProgram,
    pub state: &'p ProgramState,
    /// The inputs, then the state, then the results.
    pool: Vec<Tensor>,
    /// The maximum number of elements of a result in the pool.
    pub max_elements: usize,
    /// The positions in the pool of the operands of the current operation.
    operands: Vec<usize>,
    log: Vec<String>,
    coverage: PlanCoverage,
}

impl ProgramRun<'_> {
    /// Returns a tensor of the pool that satisfies `wanted`. Half of the draws are from the three newest tensors.
    pub fn pick(&mut self, wanted: impl Fn(&Tensor) -> bool) -> Option<Tensor> {
        for _ in 0..24 {
            let len = self.pool.len();
            let at = if self.rng.below(2) == 0 { len - 1 - self.rng.below(len.min(3)) } else { self.rng.below(len) };
            if wanted(&self.pool[at]) {
                self.operands.push(at);
                return Some(self.pool[at].clone());
            }
        }
        None
    }

    /// Returns a leaf, untracked.
    pub fn leaf(&mut self) -> Tensor {
        let at = self.rng.below(self.program.leaves.len());
        self.operands.push(at);
        self.pool[at].detach()
    }

    /// Returns the mask among the inputs.
    pub fn mask(&self) -> &Tensor {
        &self.pool[self.program.leaves.len()]
    }

    /// Returns the index tensor among the inputs.
    pub fn index_input(&self) -> &Tensor {
        &self.pool[self.program.leaves.len() + 1]
    }

    /// Returns true if a tensor shares the storage of an input.
    pub fn has_input_storage(&self, x: &Tensor) -> bool {
        self.pool[..self.program.leaves.len() + 2].iter().any(|input| input.array().shares_storage(x.array()))
    }

    fn note(&mut self, first: usize, results: &[Tensor], what: String) {
        let each = results.iter().enumerate().map(|(k, t)| format!("%{} {}{}", first + k, t.dtype(), t.shape()));
        self.log.push(format!("{} = {what}", each.collect::<Vec<_>>().join(", ")));
        for (axis, seen) in self.coverage.has_axes.iter_mut().enumerate() {
            *seen |= results.iter().any(|t| t.shape().contains(&axis));
        }
    }

    /// Executes one random operation, if one of eight draws is applicable.
    fn apply_random_operation(&mut self) {
        for _ in 0..8 {
            let which = self.rng.below(OPERATIONS.len());
            let (name, apply) = OPERATIONS[which];
            self.operands.clear();
            let Some(mut results) = apply(self) else { continue };
            results.retain(|t| t.size() <= self.max_elements);
            self.coverage.operations[which] += 1;
            let what = format!("{name} of {:?}", self.operands);
            self.note(self.pool.len(), &results, what);
            let is_differentiated = self.program.is_differentiated;
            self.pool.extend(results.into_iter().map(|t| if is_differentiated { t } else { t.detach() }));
            return;
        }
    }

    /// Returns the gradients of two of the newest results with respect to the leaves, and sometimes the gradients of
    /// the gradients.
    fn differentiate(&mut self, leaves: &[Tensor]) -> Vec<Tensor> {
        self.operands.clear();
        let is_target = |t: &Tensor| t.requires_grad() && !t.is_leaf();
        let targets: Vec<Tensor> = (0..2).filter_map(|_| self.pick(is_target)).collect();
        let create_graph = self.rng.below(3) == 0;
        let sources: Vec<&Tensor> = leaves.iter().filter(|t| t.requires_grad()).collect();
        if targets.is_empty() || sources.is_empty() {
            return Vec::new();
        }
        let of = |targets: &[Tensor], create_graph| {
            let options = GradOptions { create_graph, retain_graph: true, allow_unused: true, ..Default::default() };
            grad(&targets.iter().collect::<Vec<_>>(), &sources, options)
        };
        let what = format!("the gradients of {:?}", self.operands);
        let mut all = match of(&targets, create_graph) {
            Ok(first) => first,
            Err(error) => {
                // The message ends with the versions of tensors, which count differently in recorded steps.
                let text = error.to_string();
                let reason = text.split('(').next().unwrap_or_default();
                self.log.push(format!("no gradients of {:?}: {reason}", self.operands));
                return Vec::new();
            }
        };
        self.note(self.pool.len(), &all, what);
        self.coverage.gradients[0] += all.len();
        if create_graph {
            let squares: Vec<Tensor> = all.iter().filter(|g| g.requires_grad()).map(Tensor::square).collect();
            if let Ok(second) = of(&squares, false) {
                self.note(self.pool.len() + all.len(), &second, "their gradients".into());
                self.coverage.gradients[1] += second.len();
                all.extend(second);
            }
        }
        all
    }
}
