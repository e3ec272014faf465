//! Compilation of formulas to programs: lowers primitives to the operations of each compute type, schedules them, and
//! allocates registers.

use super::Formula;
use super::graph::{FormulaNode, Literal, NodeId, NodeInfo, ValueKind};
use super::memo::Memo;
use super::primitive::{Binary, Unary};
use super::program::{InstructionOperand, Load, MAX_STEPS, Op, Program, Store, Uniform, UniformSource};
use super::registers::{self, UnallocatedProgram, Value};
use crate::dtype::{Compute, DType, Scalar};
use crate::error::{Error, Result};
use smallvec::SmallVec;
use std::sync::{Arc, OnceLock};

/// The dtypes for which a formula is compiled.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Signature {
    /// The dtype of every input in memory.
    pub inputs: SmallVec<[DType; 4]>,
    /// The promoted dtype of the number inputs, which determines the compute type.
    pub number: DType,
    /// The dtype of every output in memory. If the list is empty, numbers are stored as `number`, indices as `i64` and
    /// masks as `bool`.
    pub outputs: SmallVec<[DType; 2]>,
}

impl Signature {
    /// Creates a signature with these inputs and the promoted dtype `number`; each output has the dtype that follows
    /// from its kind.
    pub fn new(inputs: impl IntoIterator<Item = DType>, number: DType) -> Signature {
        Signature { inputs: inputs.into_iter().collect(), number, outputs: SmallVec::new() }
    }

    /// Returns the signature with these output dtypes.
    #[must_use]
    pub fn with_output_dtypes(self, outputs: impl IntoIterator<Item = DType>) -> Signature {
        Signature { outputs: outputs.into_iter().collect(), ..self }
    }

    /// Creates the signature in which every number is `dtype`, every index `i64` and every mask `bool`.
    pub fn uniform(formula: &Formula, dtype: DType) -> Signature {
        Signature::new(formula.inputs().iter().map(|i| default_dtype(i.kind, dtype)), dtype)
    }
}

fn default_dtype(kind: ValueKind, number: DType) -> DType {
    match kind {
        ValueKind::Number => number,
        ValueKind::Index => DType::I64,
        ValueKind::Mask => DType::Bool,
    }
}

/// The cache of compiled programs. The programs of [`Formula::uniform_program`] are indexed by their dtype, without
/// hashing or locking.
#[derive(Default)]
pub(super) struct Programs {
    uniform: [OnceLock<Arc<Program>>; 10],
    others: Memo<Signature, Arc<Program>>,
}

impl Formula {
    /// Returns the program for these dtypes.
    ///
    /// # Errors
    /// `DTypeMismatch` if a primitive does not exist in the compute type; `InvalidArgument` if the formula has more
    /// than 60,000 instructions, or the numbers of inputs and outputs of the signature do not match the formula.
    pub fn program(&self, signature: &Signature) -> Result<&Arc<Program>> {
        let others = &self.inner.programs.others;
        match others.get(signature) {
            Some(known) => Ok(known),
            None => Ok(others.insert(signature.clone(), Arc::new(compile(self, signature)?))),
        }
    }

    /// Returns the program in which every number input or output is `dtype`, every index `i64` and every mask `bool`.
    ///
    /// # Errors
    /// The errors of [`Formula::program`].
    #[inline]
    pub fn uniform_program(&self, dtype: DType) -> Result<&Arc<Program>> {
        let place = &self.inner.programs.uniform[dtype as usize];
        if let Some(known) = place.get() {
            return Ok(known);
        }
        let program = Arc::new(compile(self, &Signature::uniform(self, dtype))?);
        Ok(place.get_or_init(|| program))
    }
}

fn compile(formula: &Formula, signature: &Signature) -> Result<Program> {
    let inner = &*formula.inner;
    let fits = signature.inputs.len() == inner.inputs.len()
        && (signature.outputs.is_empty() || signature.outputs.len() == inner.outputs.len());
    if !fits {
        let reason =
            "a signature must have one dtype for each input, and either one for each output or no output dtypes";
        return Err(Error::invalid(inner.name, reason));
    }
    let mut lowering = Lowering {
        formula,
        signature,
        number: signature.number.compute(),
        uniforms: Vec::new(),
        values: vec![None; inner.graph.len()],
        draft: UnallocatedProgram::default(),
    };
    for id in schedule(formula) {
        let value = lowering.lower(id)?;
        lowering.values[id.index()] = Some(value);
    }
    let mut outputs = Vec::with_capacity(inner.outputs.len());
    for (k, output) in inner.outputs.iter().enumerate() {
        let default = default_dtype(output.kind, signature.number);
        let storage = signature.outputs.get(k).copied().unwrap_or(default);
        let compute = lowering.compute(output.kind);
        outputs.push((
            lowering.value(output.node),
            Store { value: InstructionOperand::Input(0), compute, storage, per_row: output.per_row },
        ));
    }
    let load = |(i, &storage): (usize, &DType)| {
        let input = inner.inputs[i];
        Load { storage, compute: lowering.compute(input.kind), per_row: input.per_row }
    };
    let inputs = signature.inputs.iter().enumerate().map(load).collect();
    let allocated = registers::allocate(&lowering.draft, outputs);
    let steps = allocated.steps.len();
    if steps > MAX_STEPS {
        let what = match inner.order {
            0 => String::from("the formula"),
            order => format!("its derivative of order {order}"),
        };
        let reason = format!(
            "{what} has {steps} instructions, more than {MAX_STEPS}; split the formula into several operations"
        );
        return Err(Error::invalid(inner.name, reason));
    }
    let registers = (allocated.registers, allocated.row_registers);
    Ok(Program::new(inner.name, inputs, lowering.uniforms, allocated.steps, registers, allocated.outputs))
}

/// Returns the nodes in the order of their computation: the operands of the first row reductions, these reductions, the
/// missing operands of the reductions that depend on them, and so on; the outputs are last. This minimizes the number
/// of passes over a row.
fn schedule(formula: &Formula) -> Vec<NodeId> {
    let graph = &formula.inner.graph;
    let mut level = vec![0; graph.len()];
    for (id, node) in graph.iter() {
        let below = node.operands().iter().map(|a| level[a.index()]).max().unwrap_or(0);
        level[id.index()] = below + usize::from(matches!(node, FormulaNode::RowReduce(..)));
    }
    let reductions = |l: usize| {
        let level = &level;
        let is_one = move |&(id, node): &(NodeId, FormulaNode)| {
            matches!(node, FormulaNode::RowReduce(..)) && level[id.index()] == l
        };
        graph.iter().filter(is_one).map(|(id, _)| id).collect::<Vec<_>>()
    };
    let mut order = Vec::with_capacity(graph.len());
    let mut placed = vec![false; graph.len()];
    let mut place = |roots: &[NodeId]| {
        let mut needed = vec![false; graph.len()];
        roots.iter().for_each(|r| needed[r.index()] = true);
        for (id, node) in graph.iter().rev() {
            needed[id.index()] &= !placed[id.index()];
            if needed[id.index()] {
                node.operands().iter().for_each(|a| needed[a.index()] = true);
            }
        }
        for (id, _) in graph.iter().filter(|(id, _)| needed[id.index()]) {
            placed[id.index()] = true;
            order.push(id);
        }
    };
    for l in 1.. {
        let ends = reductions(l);
        if ends.is_empty() {
            break;
        }
        let operands: Vec<NodeId> = ends.iter().flat_map(|&r| graph.node(r).operands()).collect();
        place(&operands);
        place(&ends);
    }
    place(&formula.inner.outputs.iter().map(|o| o.node).collect::<Vec<_>>());
    order
}

struct Lowering<'a> {
    formula: &'a Formula,
    signature: &'a Signature,
    number: Compute,
    uniforms: Vec<Uniform>,
    values: Vec<Option<Value>>,
    draft: UnallocatedProgram,
}

impl Lowering<'_> {
    fn compute(&self, kind: ValueKind) -> Compute {
        match kind {
            ValueKind::Number => self.number,
            ValueKind::Index => Compute::I64,
            ValueKind::Mask => Compute::Mask,
        }
    }

    fn value(&self, id: NodeId) -> Value {
        self.values[id.index()].expect("operands must be lowered before their users")
    }

    fn node_info(&self, id: NodeId) -> NodeInfo {
        self.formula.inner.graph.node_info(id)
    }

    /// Creates the error for a primitive that does not exist in the compute type.
    fn unsupported(&self, what: &str, help: &str) -> Error {
        let help = format!("{what} is not defined for {}; {help}", self.signature.number);
        Error::dtypes(self.formula.name(), self.signature.inputs.iter().copied(), help)
    }

    fn uniform(&mut self, source: UniformSource, compute: Compute) -> Value {
        let uniform = Uniform { source, compute };
        // Literals are compared by bits: −0 is not 0, and NaN equals itself.
        let bits = |u: &Uniform| match u.source {
            UniformSource::Literal(Scalar::Float(x)) => Some(x.to_bits()),
            _ => None,
        };
        let same = |u: &Uniform| {
            u.compute == compute
                && match (bits(u), bits(&uniform)) {
                    (Some(a), Some(b)) => a == b,
                    (None, None) => u.source == source,
                    _ => false,
                }
        };
        let place = self.uniforms.iter().position(same).unwrap_or_else(|| {
            self.uniforms.push(uniform);
            self.uniforms.len() - 1
        });
        Value::Uniform(place)
    }

    fn literal(&mut self, literal: Literal, compute: Compute) -> Result<Value> {
        let x = literal.value.to_f64();
        let fits = match compute {
            Compute::F32 | Compute::F64 => true,
            Compute::I32 | Compute::I64 => x == x.trunc() && x.is_finite(),
            Compute::Mask => x == 0.0 || x == 1.0,
        };
        if !fits {
            let help = "first convert the input with to_dtype() to a dtype that represents the literal";
            return Err(self.unsupported(&format!("the literal {x}"), help));
        }
        Ok(self.uniform(UniformSource::Literal(literal.value), compute))
    }

    fn step(&mut self, op: Op, compute: Compute, id: NodeId, args: &[Value]) -> Value {
        let per_row = self.formula.is_row() && self.node_info(id).per_row;
        self.draft.push(op, compute, args, op.result(compute), per_row)
    }

    fn lower(&mut self, id: NodeId) -> Result<Value> {
        let node = self.formula.inner.graph.node(id);
        let kind = self.node_info(id).kind;
        let args: SmallVec<[Value; 3]> = node.operands().iter().map(|&a| self.value(a)).collect();
        let operand_kind = node.operands().last().map_or(kind, |&a| self.node_info(a).kind);
        let compute = self.compute(operand_kind);
        Ok(match node {
            FormulaNode::Input(i) => Value::Input(i),
            FormulaNode::Param(k) => self.uniform(UniformSource::Param(k), compute),
            FormulaNode::RowLength => self.uniform(UniformSource::RowLength, compute),
            FormulaNode::Literal(literal) => self.literal(literal, compute)?,
            FormulaNode::RowIndex => self.step(Op::RowIndex, Compute::I64, id, &[]),
            FormulaNode::Unary(op, _) => self.unary(op, compute, id, args[0])?,
            FormulaNode::Binary(op, ..) => self.binary(op, compute, id, args[0], args[1])?,
            FormulaNode::Select(..) => self.step(Op::Select, compute, id, &args),
            FormulaNode::MulAdd(..) if !compute.is_float() => {
                // Integer arithmetic does not round, so a multiplication followed by an addition equals a fused
                // instruction.
                let product = self.binary(Binary::Mul, compute, id, args[0], args[1])?;
                self.binary(Binary::Add, compute, id, product, args[2])?
            }
            FormulaNode::MulAdd(..) => self.step(Op::MulAdd, compute, id, &args),
            FormulaNode::Cast(to, a) => self.cast(a, compute, self.compute(to), id)?,
            FormulaNode::Round(dtype, _) if dtype == compute.storage() => args[0],
            FormulaNode::Round(dtype, _) => self.step(Op::Round(dtype), compute, id, &args),
            FormulaNode::RowReduce(op, _) if compute == Compute::Mask => {
                let what = format!("`{}`", op.name());
                return Err(self.unsupported(&what, "first convert the mask with to_number()"));
            }
            FormulaNode::RowReduce(op, _) => self.step(Op::Reduce(op), compute, id, &args),
        })
    }

    /// Lowers a conversion. A parameter, a literal or the row length is rounded only once, from full width.
    fn cast(&mut self, a: NodeId, from: Compute, to: Compute, id: NodeId) -> Result<Value> {
        Ok(match self.formula.inner.graph.node(a) {
            _ if from == to => self.value(a),
            FormulaNode::Param(k) => self.uniform(UniformSource::Param(k), to),
            FormulaNode::RowLength => self.uniform(UniformSource::RowLength, to),
            FormulaNode::Literal(literal) => self.uniform(UniformSource::Literal(literal.value), to),
            _ => self.step(Op::Convert(to), from, id, &[self.value(a)]),
        })
    }

    fn unary(&mut self, op: Unary, compute: Compute, id: NodeId, x: Value) -> Result<Value> {
        use Unary::*;
        let float = compute.is_float();
        Ok(match op {
            Not if !float => self.step(Op::Unary(Not), compute, id, &[x]),
            Neg | Abs | Sign if !float && compute != Compute::Mask => self.step(Op::Unary(op), compute, id, &[x]),
            // Integers are unchanged by rounding, and never NaN or infinite.
            Floor | Ceil | Round | Trunc if !float => x,
            Abs | Sign if compute == Compute::Mask => x,
            IsNan if !float => self.binary(Binary::Ne, compute, id, x, x)?,
            IsFinite if !float => self.binary(Binary::Eq, compute, id, x, x)?,
            _ if float && op != Not => self.step(Op::Unary(op), compute, id, &[x]),
            _ => return Err(self.unsupported_op(op.name(), compute)),
        })
    }

    fn binary(&mut self, op: Binary, compute: Compute, id: NodeId, a: Value, b: Value) -> Result<Value> {
        use Binary::*;
        let exists = match compute {
            Compute::F32 | Compute::F64 => !matches!(op, And | Or | Xor | Shl | Shr),
            Compute::I32 | Compute::I64 => !op.is_real(),
            Compute::Mask => return self.logic(op, id, a, b),
        };
        match exists {
            true => Ok(self.step(Op::Binary(op), compute, id, &[a, b])),
            false => Err(self.unsupported_op(op.name(), compute)),
        }
    }

    /// Lowers an operation on masks: + and max are *or*, · and min are *and*, and comparisons use false < true.
    fn logic(&mut self, op: Binary, id: NodeId, a: Value, b: Value) -> Result<Value> {
        use Binary::*;
        let mask = Compute::Mask;
        let (op, a, b, negate) = match op {
            And | Mul | Min => (And, a, b, false),
            Or | Add | Max => (Or, a, b, false),
            Xor | Ne => (Xor, a, b, false),
            Eq => (Xor, a, b, true),
            Lt => (And, self.step(Op::Unary(Unary::Not), mask, id, &[a]), b, false),
            Gt => (And, self.step(Op::Unary(Unary::Not), mask, id, &[b]), a, false),
            Le => (Or, self.step(Op::Unary(Unary::Not), mask, id, &[a]), b, false),
            Ge => (Or, self.step(Op::Unary(Unary::Not), mask, id, &[b]), a, false),
            _ => return Err(self.unsupported_op(op.name(), mask)),
        };
        let value = self.step(Op::Binary(op), mask, id, &[a, b]);
        Ok(if negate { self.step(Op::Unary(Unary::Not), mask, id, &[value]) } else { value })
    }

    fn unsupported_op(&self, name: &str, compute: Compute) -> Error {
        let what = format!("`{name}`");
        match compute {
            Compute::F32 | Compute::F64 => {
                self.unsupported(&what, "the operands must be integers or masks; convert the input with to_dtype()")
            }
            _ => self.unsupported(&what, "convert the input to a float dtype first, with to_dtype()"),
        }
    }
}
