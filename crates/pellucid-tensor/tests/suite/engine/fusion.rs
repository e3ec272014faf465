//! Every rule of fusion, on plans over axes of length 0, 1 and more: with all passes, by the rules of the CPU and of
//! launch-bound devices, a plan is bit-identical to the recorded one.

use pellucid_cpu::Cpu;
use pellucid_ir::backend::{Backend, Storage};
use pellucid_ir::formula::Formula;
use pellucid_ir::kernel::{AxisSet, Kernel, Map, MatMul, Params, Reduce, ReduceOp, Row};
use pellucid_ir::plan::{Launch, Passes, Plan, SlotRole, SlotView};
use pellucid_ir::{DType, Layout, Scalar, Shape, formula};
use std::sync::Arc;

/// A plan of `f32` arrays under construction. Every result has a separate slot.
#[derive(Default)]
struct PlanOfRule {
    plan: Plan,
}

impl PlanOfRule {
    fn slot(&mut self, role: SlotRole, shape: Shape) -> SlotView {
        self.plan.slots.push(shape.size() * 4);
        self.plan.roles.push(role);
        SlotView { slot: self.plan.slots.len() - 1, layout: Layout::contiguous(shape), dtype: DType::F32 }
    }

    fn given(&mut self, shape: impl Into<Shape>) -> SlotView {
        self.slot(SlotRole::ExternalRead, shape.into())
    }

    fn state(&mut self, shape: impl Into<Shape>) -> SlotView {
        self.slot(SlotRole::State, shape.into())
    }

    fn launch(&mut self, kernel: Kernel, inputs: &[&SlotView], output: &SlotView) {
        let inputs = inputs.iter().map(|&o| o.clone()).collect();
        self.plan.launches.push(Launch::new(kernel, inputs, vec![output.clone()]));
    }

    fn map(&mut self, f: &Formula, inputs: &[&SlotView]) -> SlotView {
        let shape = inputs.iter().fold(Shape::scalar(), |s, o| s.broadcast(o.layout.shape()).unwrap());
        let output = self.slot(SlotRole::Scratch, shape);
        self.map_to(f, inputs, &output);
        output
    }

    fn map_to(&mut self, f: &Formula, inputs: &[&SlotView], output: &SlotView) {
        let program = f.uniform_program(DType::F32).unwrap().clone();
        self.launch(Kernel::Map(Map { program, params: Params::new() }), inputs, output);
    }

    /// Appends a reduction of `program` over `axis`, with a finishing program.
    fn reduce(&mut self, op: ReduceOp, inputs: &[&SlotView], axis: usize, finish: Option<&Formula>) -> SlotView {
        let shape = inputs.iter().fold(Shape::scalar(), |s, o| s.broadcast(o.layout.shape()).unwrap());
        let axes = AxisSet::from_iter([axis]);
        let output = self.slot(SlotRole::Scratch, axes.keepdims(&shape));
        let of = |f: &Formula| f.uniform_program(DType::F32).unwrap().clone();
        let program = of(if inputs.len() == 1 { formula!(|x| x) } else { formula!(|x, y| x * y) });
        let (params, finish_params, finish) = (Params::new(), Params::new(), finish.map(of));
        let reduce = Reduce { op, axes, program, params, finish, finish_params, output: DType::F32 };
        self.launch(Kernel::Reduce(reduce), inputs, &output);
        output
    }

    fn sum(&mut self, x: &SlotView, axis: usize) -> SlotView {
        self.reduce(ReduceOp::Sum, &[x], axis, None)
    }

    /// Appends a row kernel over `axis` whose result has one value for each row, or for each element.
    fn row(&mut self, f: &Formula, x: &SlotView, axis: usize, is_per_row: bool) -> SlotView {
        let axes = AxisSet::from_iter([axis]);
        let shape = x.layout.shape();
        let output = self.slot(SlotRole::Scratch, if is_per_row { axes.keepdims(shape) } else { shape.clone() });
        let program = f.uniform_program(DType::F32).unwrap().clone();
        self.launch(Kernel::Row(Row { axes, program, params: Params::new() }), &[x], &output);
        output
    }

    fn matmul(&mut self, a: &SlotView, b: &SlotView) -> SlotView {
        let output = self.slot(SlotRole::Scratch, [a.layout.shape()[0], b.layout.shape()[1]].into());
        self.launch(Kernel::MatMul(MatMul::default()), &[a, b], &output);
        output
    }

    fn copy(&mut self, from: &SlotView, to: &SlotView) {
        self.launch(Kernel::Copy, &[from], to);
    }
}

fn exp() -> &'static Formula {
    formula!(|x| (x * 0.5).exp())
}

fn shift() -> &'static Formula {
    formula!(|x| x * 1.5 + 0.25)
}

fn add() -> &'static Formula {
    formula!(|x, y| x + y)
}

fn ratio() -> &'static Formula {
    formula!(|x, y| x / (y * y + 1.0))
}

fn softmax() -> &'static Formula {
    formula!(|x| {
        let e = (x - x.row_max()).exp();
        e / e.row_sum()
    })
}

fn logsumexp() -> &'static Formula {
    formula!(|x| (x - x.row_max()).exp().row_sum().ln() + x.row_max())
}

/// Returns a transposed view of a matrix.
fn transposed(x: &SlotView) -> SlotView {
    SlotView { layout: x.layout.permute(&[1, 0]), ..x.clone() }
}

fn reshaped(x: &SlotView, shape: impl Into<Shape>) -> SlotView {
    SlotView { layout: x.layout.reshape(&shape.into()).unwrap(), ..x.clone() }
}

/// A name, and the launches of a rule over matrices `[m, n]` that are reduced over the last axis. Returns the results.
type Rule = (&'static str, fn(&mut PlanOfRule, usize, usize) -> Vec<SlotView>);

const RULES: &[Rule] = &[
    ("a map of a map", |p, m, n| {
        let x = p.given([m, n]);
        let y = p.map(exp(), &[&x]);
        vec![p.map(shift(), &[&y])]
    }),
    ("a map of a map, both read later", |p, m, n| {
        let (x, row) = (p.given([m, n]), p.given([n]));
        let y = p.map(ratio(), &[&x, &row]);
        let z = p.map(add(), &[&y, &row]);
        vec![p.map(ratio(), &[&z, &y]), y]
    }),
    ("a map of another shape", |p, m, n| {
        let x = p.given([m, n]);
        let y = p.map(exp(), &[&x]);
        vec![p.map(shift(), &[&reshaped(&y, [m * n])])]
    }),
    ("a map of a transposed map", |p, m, n| {
        let (x, z) = (p.given([m, n]), p.given([n, m]));
        let y = p.map(exp(), &[&x]);
        vec![p.map(add(), &[&transposed(&y), &z]), p.map(ratio(), &[&x, &y])]
    }),
    ("a map of a broadcast map", |p, m, n| {
        let (x, column) = (p.given([m, n]), p.given([m, 1]));
        let y = p.map(exp(), &[&column]);
        vec![p.map(ratio(), &[&x, &y])]
    }),
    ("a reduction of a map", |p, m, n| {
        let x = p.given([m, n]);
        let y = p.map(exp(), &[&x]);
        vec![p.sum(&y, 1)]
    }),
    ("a reduction of a broadcast map", |p, m, n| {
        let (x, column) = (p.given([m, n]), p.given([m, 1]));
        let y = p.map(exp(), &[&column]);
        vec![p.reduce(ReduceOp::Sum, &[&x, &y], 1, None)]
    }),
    ("a map of a reduction", |p, m, n| {
        let x = p.given([m, n]);
        let total = p.sum(&x, 1);
        vec![p.map(exp(), &[&total])]
    }),
    ("a map of a reduction with a finish", |p, m, n| {
        let x = p.given([m, n]);
        let total = p.reduce(ReduceOp::Prod, &[&x], 1, Some(exp()));
        vec![p.map(shift(), &[&total]), total]
    }),
    ("a map of a reduction and another operand", |p, m, n| {
        let (x, column) = (p.given([m, n]), p.given([m, 1]));
        let total = p.sum(&x, 1);
        vec![p.map(ratio(), &[&column, &total])]
    }),
    ("a map of a reduction and of the reduced map", |p, m, n| {
        let x = p.given([m, n]);
        let y = p.map(exp(), &[&x]);
        let total = p.sum(&y, 1);
        vec![p.map(ratio(), &[&y, &total])]
    }),
    ("maps of a reduction and of the reduced map, twice", |p, m, n| {
        let x = p.given([m, n]);
        let y = p.map(exp(), &[&x]);
        let total = p.reduce(ReduceOp::Sum, &[&y, &x], 1, None);
        let z = p.map(ratio(), &[&y, &total]);
        let z = p.map(add(), &[&z, &y]);
        vec![p.map(ratio(), &[&x, &z])]
    }),
    ("a map of a reduction and of another map", |p, m, n| {
        let (x, column) = (p.given([m, n]), p.given([m, 1]));
        let y = p.map(exp(), &[&column]);
        let total = p.sum(&x, 1);
        vec![p.map(ratio(), &[&y, &total]), y]
    }),
    ("a map of two reductions of one map", |p, m, n| {
        let x = p.given([m, n]);
        let y = p.map(shift(), &[&x]);
        let (total, product) = (p.sum(&y, 1), p.reduce(ReduceOp::Prod, &[&y], 1, None));
        vec![p.map(ratio(), &[&total, &product])]
    }),
    ("a reduction of a reduction", |p, m, n| {
        let x = p.given([m, n]);
        let total = p.sum(&x, 1);
        let y = p.map(ratio(), &[&total, &x]);
        let again = p.sum(&y, 0);
        vec![p.map(add(), &[&again, &total])]
    }),
    ("a map of one element for a map", |p, m, n| {
        let (x, step) = (p.given([m, n]), p.given(()));
        let rate = p.map(exp(), &[&step]);
        vec![p.map(ratio(), &[&x, &rate])]
    }),
    ("a map of one element for a reduction and its finish", |p, m, n| {
        let (x, step) = (p.given([m, n]), p.given([1, 1]));
        let rate = p.map(exp(), &[&step]);
        let total = p.reduce(ReduceOp::Sum, &[&x, &rate], 1, None);
        vec![p.map(ratio(), &[&total, &rate])]
    }),
    ("a map of one element for a row", |p, m, n| {
        let (x, step) = (p.given([m, n]), p.given([1, 1]));
        let rate = p.map(exp(), &[&step]);
        let y = p.map(ratio(), &[&x, &rate]);
        vec![p.row(softmax(), &y, 1, false)]
    }),
    ("a row of a map", |p, m, n| {
        let x = p.given([m, n]);
        let y = p.map(exp(), &[&x]);
        vec![p.row(softmax(), &y, 1, false), y]
    }),
    ("a map of a row", |p, m, n| {
        let (x, row) = (p.given([m, n]), p.given([n]));
        let y = p.row(softmax(), &x, 1, false);
        vec![p.map(ratio(), &[&y, &row])]
    }),
    ("a row of a row, and a map of both", |p, m, n| {
        let x = p.given([m, n]);
        let y = p.row(softmax(), &x, 1, false);
        let z = p.row(softmax(), &y, 1, false);
        vec![p.map(ratio(), &[&y, &z])]
    }),
    ("a value of each row", |p, m, n| {
        let x = p.given([m, n]);
        let y = p.map(exp(), &[&x]);
        let total = p.row(logsumexp(), &y, 1, true);
        let scaled = p.map(shift(), &[&total]);
        vec![p.map(ratio(), &[&y, &scaled])]
    }),
    ("a row along another axis", |p, m, n| {
        let x = p.given([m, n]);
        let y = p.row(softmax(), &x, 0, false);
        let z = p.row(softmax(), &y, 1, false);
        vec![p.sum(&z, 0)]
    }),
    ("a map of a product", |p, m, n| {
        let (a, b, row) = (p.given([m, n]), p.given([n, 3]), p.given([3]));
        let y = p.matmul(&a, &b);
        let y = p.map(add(), &[&y, &row]);
        vec![p.map(exp(), &[&y]), y]
    }),
    ("a map of a product and of its factor", |p, m, n| {
        let (x, b) = (p.given([m, n]), p.given([n, n]));
        let a = p.map(exp(), &[&x]);
        let y = p.matmul(&a, &b);
        vec![p.map(ratio(), &[&a, &y])]
    }),
    ("a reduction of a product", |p, m, n| {
        let (a, b, row) = (p.given([m, n]), p.given([n, 1]), p.given([1]));
        let y = p.matmul(&a, &b);
        let y = p.map(add(), &[&y, &row]);
        let total = p.sum(&y, 1);
        vec![p.map(ratio(), &[&total, &y])]
    }),
    ("a product of a transposed copy", |p, m, n| {
        let (a, b) = (p.given([n, m]), p.given([n, 2]));
        let copy = p.slot(SlotRole::Scratch, [m, n].into());
        p.copy(&transposed(&a), &copy);
        let y = p.matmul(&copy, &b);
        vec![p.map(shift(), &[&y])]
    }),
    ("a fill", |p, m, n| {
        let x = p.given([m, n]);
        let ones = p.slot(SlotRole::Scratch, [m, n].into());
        let program = Formula::new("fill", &[], 1, |_, params| vec![params[0]]);
        let program = program.uniform_program(DType::F32).unwrap().clone();
        p.launch(Kernel::Map(Map { program, params: [Scalar::Float(1.0)].into_iter().collect() }), &[], &ones);
        let total = p.reduce(ReduceOp::Sum, &[&x, &ones], 1, None);
        vec![p.map(ratio(), &[&ones, &total]), p.map(add(), &[&ones, &x])]
    }),
    ("a state updated by a reduction", |p, m, n| {
        let (x, state) = (p.given([m, n]), p.state([m, 1]));
        let y = p.map(ratio(), &[&x, &state]);
        let total = p.sum(&y, 1);
        p.map_to(add(), &[&state, &total], &state.clone());
        vec![p.map(ratio(), &[&state, &total])]
    }),
    ("a state updated by a reduction over its own elements", |p, m, n| {
        let (x, state) = (p.given([m, n]), p.state([m, n]));
        let y = p.map(ratio(), &[&x, &state]);
        let total = p.sum(&y, 1);
        p.map_to(add(), &[&state, &total], &state.clone());
        vec![p.map(ratio(), &[&y, &state])]
    }),
    ("a row state replaced by values of rows", |p, m, _| {
        // The row kernel reads the state along its rows, and its result for each row is copied to the state.
        let m = 30 * m;
        let (x, state) = (p.given([m, m]), p.state([m]));
        let y = p.map(add(), &[&x, &state]);
        let total = p.row(logsumexp(), &y, 1, true);
        p.copy(&reshaped(&total, [m]), &state);
        vec![]
    }),
    ("a column state replaced by values of rows", |p, m, n| {
        let (x, state) = (p.given([m, n]), p.state([m, 1]));
        let y = p.map(ratio(), &[&x, &state]);
        let total = p.row(logsumexp(), &y, 1, true);
        let z = p.map(ratio(), &[&y, &total]);
        p.copy(&total, &state);
        vec![z]
    }),
    ("a state updated by a product", |p, m, n| {
        let (a, b, state) = (p.given([m, n]), p.given([n, n]), p.state([m, n]));
        let y = p.matmul(&a, &b);
        p.map_to(add(), &[&state, &y], &state.clone());
        vec![p.matmul(&state, &b)]
    }),
    ("a state written between a map and its reader", |p, m, n| {
        let (x, state) = (p.given([m, n]), p.state([m, n]));
        let y = p.map(ratio(), &[&x, &state]);
        p.map_to(exp(), &[&x], &state.clone());
        let total = p.sum(&y, 1);
        vec![p.map(ratio(), &[&state, &total]), y]
    }),
];

/// Runs a plan once and returns the bytes of all slots that are visible, and of the outputs.
fn run_plan(plan: &Plan) -> Vec<Vec<u8>> {
    let storages: Vec<Arc<Storage>> = plan.slots.iter().map(|&bytes| Cpu.storage(bytes).unwrap()).collect();
    for (slot, storage) in storages.iter().enumerate() {
        // A read of a slot that no launch has written differs from the recorded plan.
        let is_given = matches!(plan.role(slot), SlotRole::ExternalRead | SlotRole::State);
        let value = |i: usize| if is_given { (0.4 + slot as f32 + 1.7 * i as f32).sin() } else { f32::NAN };
        let bytes: Vec<u8> = (0..plan.slots[slot] / 4).flat_map(|i| value(i).to_ne_bytes()).collect();
        Cpu.upload(&bytes, storage).unwrap();
    }
    for launches in [&plan.setup, &plan.launches] {
        let part = Plan { launches: launches.clone(), setup: Vec::new(), ..plan.clone() };
        Cpu.prepare(&part).unwrap().expect("the CPU must prepare every plan").run(&storages).unwrap();
    }
    let states = (0..plan.slots.len()).filter(|&slot| plan.role(slot) == SlotRole::State);
    let states = states.map(|slot| (slot, 0, plan.slots[slot]));
    let outputs = plan.outputs.iter().map(|o| (o.slot, o.layout.offset() * 4, o.bytes()));
    let read = |(slot, offset, bytes): (usize, usize, usize)| {
        let mut contents = vec![0; bytes];
        Cpu.download(&storages[slot], offset, &mut contents).unwrap();
        contents
    };
    states.chain(outputs).map(read).collect()
}

#[test]
fn every_rule_computes_the_recorded_bits_for_all_lengths() {
    let mut fused = 0;
    for (name, rule) in RULES {
        for (m, n) in [0, 1, 2, 5].into_iter().flat_map(|m| [0, 1, 2, 17].map(|n| (m, n))) {
            for is_launch_bound in [false, true] {
                let mut built = PlanOfRule::default();
                built.plan.is_launch_bound = is_launch_bound;
                let outputs = rule(&mut built, m, n);
                built.plan.outputs = outputs;
                let expected = run_plan(&built.plan);
                // Each pass alone, and all of them.
                let fuse = Passes::none().with("fuse").unwrap();
                for passes in [fuse, Passes::all().without("fuse").unwrap(), Passes::all()] {
                    let plan = built.plan.clone().after(passes);
                    fused += built.plan.launches.len() - plan.launches.len() - plan.setup.len();
                    let found = run_plan(&plan);
                    assert_eq!(found, expected, "{name} [{m}, {n}], launch-bound: {is_launch_bound}\n{plan}");
                }
            }
        }
    }
    assert!(fused > 1000, "{fused}");
}
