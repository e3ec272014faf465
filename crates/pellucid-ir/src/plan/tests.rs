//! Tests of each pass on its own, on hand-written plans.

use super::*;
use crate::formula;
use crate::formula::{Formula, Program};
use crate::kernel::{
    AxisSet, Distribution, Factorization, Index, Map, MatMul, Params, Pool, PoolPart, Random, Reduce, ReduceOp, Row,
    Scatter, ScatterOp, SvdVectors, Window,
};
use crate::shape::Shape;
use std::sync::Arc;

/// A builder of plans: every slot holds `f32` and is created on demand.
#[derive(Default)]
struct PlanBuilder {
    plan: Plan,
}

impl PlanBuilder {
    fn slot(&mut self, role: SlotRole, shape: impl Into<Shape>) -> SlotView {
        let layout = Layout::contiguous(shape.into());
        self.plan.slots.push(layout.shape().size() * 4);
        self.plan.roles.push(role);
        SlotView { slot: self.plan.slots.len() - 1, layout, dtype: DType::F32 }
    }

    fn launch(&mut self, kernel: Kernel, inputs: &[&SlotView], outputs: &[&SlotView]) {
        let own = |list: &[&SlotView]| list.iter().map(|&o| o.clone()).collect();
        self.plan.launches.push(Launch::new(kernel, own(inputs), own(outputs)));
    }

    /// Appends a map of `f` over the inputs into a new buffer of the broadcast shape.
    fn map(&mut self, f: &Formula, inputs: &[&SlotView]) -> SlotView {
        let shape = inputs.iter().fold(Shape::scalar(), |s, o| s.broadcast(o.layout.shape()).unwrap());
        let out = self.slot(SlotRole::Scratch, shape);
        self.launch(map(f), inputs, &[&out]);
        out
    }

    fn matmul(&mut self, a: &SlotView, b: &SlotView) -> SlotView {
        let out = self.slot(SlotRole::Scratch, [a.layout.shape()[0], b.layout.shape()[1]]);
        self.launch(Kernel::MatMul(MatMul::default()), &[a, b], &[&out]);
        out
    }

    fn copy(&mut self, from: &SlotView) -> SlotView {
        let out = self.slot(SlotRole::Scratch, from.layout.shape().clone());
        self.launch(Kernel::Copy, &[from], &[&out]);
        out
    }

    fn after(self, names: &[&str]) -> Plan {
        let passes = names.iter().fold(Passes::none(), |p, name| p.with(name).unwrap());
        self.plan.after(passes)
    }
}

fn program(f: &Formula) -> Arc<Program> {
    f.uniform_program(DType::F32).unwrap().clone()
}

fn map(f: &Formula) -> Kernel {
    let program = program(f);
    Kernel::Map(Map { params: Params::repeated(1.0.into(), program.params()), program })
}

fn sum(axis: usize) -> Kernel {
    let program = program(formula!(|x| x));
    let axes = AxisSet::from_iter([axis]);
    let (params, finish_params) = (Params::new(), Params::new());
    Kernel::Reduce(Reduce { op: ReduceOp::Sum, axes, program, params, finish: None, finish_params, output: DType::F32 })
}

fn add() -> &'static Formula {
    formula!(|x, y| x + y)
}

fn exp() -> &'static Formula {
    formula!(|x| x.exp())
}

fn families(plan: &Plan) -> Vec<&'static str> {
    plan.launches.iter().map(|l| l.kernel.family()).collect()
}

#[test]
fn passes_are_chosen_by_name() {
    let all = Passes::all();
    let without = PASSES.iter().fold(all, |p, pass| p.without(pass.name).unwrap());
    assert_eq!(without, Passes::none());
    assert_eq!(PASSES.iter().fold(without, |p, pass| p.with(pass.name).unwrap()), all);
    assert!(all.without("fusion").unwrap_err().to_string().contains("fuse"));
}

#[test]
fn dead_removes_unused_launches_and_outputs() {
    let mut w = PlanBuilder::default();
    let (x, state) = (w.slot(SlotRole::Input, [4]), w.slot(SlotRole::State, [4]));
    let y = w.map(exp(), &[&x]);
    let unread = w.map(exp(), &[&y]);
    w.map(exp(), &[&unread]);
    w.launch(map(add()), &[&state, &y], &[&state]);
    // A generator advances even if its numbers are unused.
    let (state, numbers) = (w.slot(SlotRole::State, [4]), w.slot(SlotRole::Scratch, [4]));
    let generator = SlotView { layout: Layout::contiguous([2].into()), dtype: DType::I64, ..state };
    w.launch(Kernel::Random(Random { distribution: Distribution::Uniform }), &[], &[&generator, &numbers]);
    // A map with two outputs, of which only one is read.
    let [both, other] = [(); 2].map(|()| w.slot(SlotRole::Scratch, [4]));
    let two = Formula::new("two", &[crate::formula::Input::NUMBER], 0, |x, _| vec![x[0].exp(), x[0].sin()]);
    w.launch(map(&two), &[&x], &[&both, &other]);
    w.plan.outputs.push(other.clone());
    let plan = w.after(&["dead"]);
    assert_eq!(families(&plan), ["map", "map", "random", "map"]);
    assert_eq!(plan.launches[3].outputs, [other]);
    let Kernel::Map(kernel) = &plan.launches[3].kernel else { unreachable!() };
    assert_eq!((kernel.program.outputs.len(), kernel.program.steps.len()), (1, 1), "the plan must not contain exp");
    let dead: Vec<Slot> = plan.report.elided.iter().map(|(slot, _)| *slot).collect();
    assert!(dead.contains(&unread.slot) && dead.contains(&both.slot) && !dead.contains(&y.slot));
}

#[test]
fn constants_moves_constant_launches_to_the_setup() {
    let mut w = PlanBuilder::default();
    let (x, c) = (w.slot(SlotRole::Input, [4]), w.slot(SlotRole::Constant, [4]));
    let table = w.map(exp(), &[&c]);
    let table = w.map(exp(), &[&table]);
    let y = w.map(add(), &[&x, &table]);
    // A constant value that a later launch overwrites.
    let mixed = w.map(exp(), &[&c]);
    w.launch(map(add()), &[&mixed, &x], &[&mixed]);
    w.plan.outputs = vec![y, mixed];
    let plan = w.after(&["constants"]);
    assert_eq!((plan.setup.len(), plan.launches.len()), (2, 3));
    // Results of the setup are live in all launches.
    let plan = plan.after(Passes::none().with("arena").unwrap());
    let allocation = plan.arena.as_ref().unwrap().allocation(table.slot).unwrap();
    assert_eq!((allocation.first, allocation.last), (0, 3));
}

#[test]
fn constants_keeps_a_value_that_is_written_again() {
    let mut w = PlanBuilder::default();
    let (x, c) = (w.slot(SlotRole::Input, [4]), w.slot(SlotRole::Constant, [4]));
    let value = w.map(exp(), &[&c]);
    let before = w.map(add(), &[&x, &value]);
    w.launch(map(exp()), &[&c], &[&value]);
    let after = w.map(add(), &[&x, &value]);
    w.plan.outputs = vec![before, after];
    let plan = w.after(&["constants"]);
    assert_eq!((plan.setup.len(), plan.launches.len()), (0, 4));
}

/// On a plan of this length, a pass that takes quadratic time would be noticeably slow.
#[test]
fn constants_of_a_long_plan_are_found() {
    const LENGTH: usize = 20_000;
    let mut w = PlanBuilder::default();
    let (mut y, mut z) = (w.slot(SlotRole::Input, [4]), w.slot(SlotRole::Constant, [4]));
    for _ in 0..LENGTH {
        (y, z) = (w.map(exp(), &[&y]), w.map(exp(), &[&z]));
    }
    let sum = w.map(add(), &[&z, &z]);
    w.plan.outputs = vec![y, sum];
    let plan = w.after(&["constants"]);
    assert_eq!((plan.setup.len(), plan.launches.len()), (LENGTH + 1, LENGTH));
}

#[test]
fn copies_lets_the_producer_write_to_the_destination() {
    let mut w = PlanBuilder::default();
    let (x, grad) = (w.slot(SlotRole::Input, [4]), w.slot(SlotRole::State, [4]));
    let y = w.map(exp(), &[&x]);
    let z = w.map(exp(), &[&y]);
    w.launch(Kernel::Copy, &[&y], &[&grad]);
    w.plan.outputs.push(z);
    let plan = w.after(&["copies"]);
    assert_eq!(plan.launches.len(), 2);
    assert_eq!((plan.launches[0].outputs[0].slot, plan.launches[1].inputs[0].slot), (grad.slot, grad.slot));
    assert_eq!(plan.report.elided, [(y.slot, Elision::Same(grad.slot))]);
    assert!(!plan.launches[0].shares_result);
}

/// The copy of a gradient whose parts are written by several kernels is removed, unless one of them runs after the
/// copy.
#[test]
fn copies_removes_the_copy_of_a_value_that_several_kernels_write() {
    let write = |late: bool| {
        let mut w = PlanBuilder::default();
        let (x, grad) = (w.slot(SlotRole::Input, [4]), w.slot(SlotRole::State, [8]));
        let buffer = w.slot(SlotRole::Scratch, [8]);
        let part = |offset| SlotView { layout: Layout::contiguous_from([4].into(), offset), ..buffer.clone() };
        w.launch(map(exp()), &[&x], &[&part(0)]);
        w.launch(map(formula!(|x| x.sin())), &[&x], &[&part(4)]);
        w.launch(Kernel::Copy, &[&buffer], &[&grad]);
        if late {
            w.launch(map(exp()), &[&x], &[&part(4)]);
        }
        let y = w.map(exp(), &[&buffer]);
        w.plan.outputs.push(y);
        w.after(&["copies"])
    };
    let plan = write(false);
    assert_eq!(families(&plan), ["map"; 3]);
    let places = plan.launches[..2].iter().map(|l| (l.outputs[0].slot, l.outputs[0].layout.offset()));
    assert_eq!(places.collect::<Vec<_>>(), [(1, 0), (1, 4)]);
    assert_eq!(plan.launches[2].inputs[0].slot, 1);
    assert_eq!(plan.launches.iter().map(|l| l.shares_result).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(families(&write(true)), ["map", "map", "copy", "map", "map"]);
}

#[test]
fn copies_keeps_a_copy_that_broadcasts() {
    for shape in [vec![0], vec![2, 0, 3], vec![5]] {
        let mut w = PlanBuilder::default();
        let (scalar, state) = (w.slot(SlotRole::Scratch, Shape::scalar()), w.slot(SlotRole::State, shape));
        w.launch(map(&Formula::new("fill", &[], 1, |_, p| vec![p[0]])), &[], &[&scalar]);
        w.launch(Kernel::Copy, &[&scalar], &[&state]);
        let plan = w.after(&["copies"]);
        assert_eq!(families(&plan), ["map", "copy"], "{plan}");
    }
}

#[test]
fn copies_keeps_a_copy_whose_destination_is_read_before() {
    let mut w = PlanBuilder::default();
    let (x, state) = (w.slot(SlotRole::Input, [4]), w.slot(SlotRole::State, [4]));
    let y = w.map(exp(), &[&x]);
    let old = w.map(exp(), &[&state]);
    w.launch(Kernel::Copy, &[&y], &[&state]);
    w.plan.outputs.push(old);
    assert_eq!(w.after(&["copies"]).launches.len(), 3);
    // The source of the copy is also an output of the plan, so the copy must stay.
    let mut w = PlanBuilder::default();
    let (x, state) = (w.slot(SlotRole::Input, [4]), w.slot(SlotRole::State, [4]));
    let y = w.map(exp(), &[&x]);
    w.launch(Kernel::Copy, &[&y], &[&state]);
    w.plan.outputs.push(y);
    assert_eq!(w.after(&["copies"]).launches.len(), 2);
}

/// If the iteration of `svd` or `eigh` does not converge, the states of a plan keep their values.
#[test]
fn states_are_written_after_decompositions_that_may_fail() {
    for kernel in [Factorization::Svd(SvdVectors::Without), Factorization::Eigh { vectors: false }] {
        let mut w = PlanBuilder::default();
        let (x, state) = (w.slot(SlotRole::Input, [4, 4]), w.slot(SlotRole::State, [4]));
        let (values, counter) = (w.slot(SlotRole::Scratch, [4]), w.slot(SlotRole::State, [1]));
        w.launch(Kernel::Factorization(kernel), &[&x], &[&values]);
        w.launch(Kernel::Copy, &[&values], &[&state]);
        w.launch(map(formula!(|count| count + 1.0)), &[&counter], &[&counter]);
        let plan = w.after(&["copies", "early"]);
        assert_eq!(families(&plan)[0], "factorization", "{plan}");
        assert_eq!(plan.launches[0].outputs[0].slot, values.slot, "{plan}");
    }
}

#[test]
fn copies_lets_matrix_products_read_a_transposed_view() {
    let mut w = PlanBuilder::default();
    let (x, y) = (w.slot(SlotRole::Input, [8, 4]), w.slot(SlotRole::Input, [8, 6]));
    let transposed = SlotView { layout: x.layout.permute(&[1, 0]), ..x.clone() };
    let dense = w.copy(&transposed);
    let z = w.matmul(&dense, &y);
    w.plan.outputs.push(z);
    let plan = w.after(&["copies"]);
    assert_eq!(families(&plan), ["matmul"]);
    assert_eq!(plan.launches[0].inputs[0], transposed);
}

#[test]
fn fuse_stores_values_of_a_map_chain_that_others_read() {
    let mut w = PlanBuilder::default();
    let (x, b) = (w.slot(SlotRole::Input, [3, 4]), w.slot(SlotRole::State, [4]));
    let y = w.map(add(), &[&x, &b]);
    let z = w.map(exp(), &[&y]);
    let total = w.slot(SlotRole::Scratch, [1, 4]);
    w.launch(sum(0), &[&y], &[&total]);
    w.plan.outputs = vec![z, total];
    let plan = w.after(&["fuse"]);
    assert_eq!(families(&plan), ["map", "reduce"]);
    assert_eq!((plan.launches[0].outputs.len(), plan.launches[0].parts.len()), (2, 2));
}

#[test]
fn fuse_merges_maps_into_rows_reductions_and_products() {
    let mut w = PlanBuilder::default();
    let (x, weight, bias) =
        (w.slot(SlotRole::Input, [3, 4]), w.slot(SlotRole::State, [4, 5]), w.slot(SlotRole::State, [5]));
    let y = w.matmul(&x, &weight);
    let y = w.map(add(), &[&y, &bias]);
    let y = w.map(formula!(|x| x.relu()), &[&y]);
    let softmax = formula!(|x| {
        let e = (x - x.row_max()).exp();
        e / e.row_sum()
    });
    // A row kernel cannot be part of the epilogue of the product.
    let soft = w.slot(SlotRole::Scratch, [3, 5]);
    let row = Kernel::Row(Row { axes: AxisSet::from_iter([1]), program: program(softmax), params: Params::new() });
    w.launch(row, &[&y], &[&soft]);
    let soft = w.map(exp(), &[&soft]);
    let soft = w.map(add(), &[&soft, &y]);
    let squares = w.map(formula!(|x| x * x), &[&x]);
    let total = w.slot(SlotRole::Scratch, [3, 1]);
    w.launch(sum(1), &[&squares], &[&total]);
    let mean = w.map(formula!(|x| x / 4.0), &[&total]);
    w.plan.outputs = vec![soft, mean];
    let plan = w.after(&["fuse"]);
    assert_eq!(families(&plan), ["matmul", "row", "reduce"], "{plan}");
    assert_eq!(plan.launches.iter().map(|l| l.parts.len()).collect::<Vec<_>>(), [3, 3, 3]);
    let Kernel::Reduce(reduce) = &plan.launches[2].kernel else { unreachable!() };
    assert_eq!((reduce.program.steps.len(), reduce.finish.as_ref().unwrap().steps.len()), (1, 1));
    assert_eq!(plan.launches[0].inputs[2], bias);
}

/// A reduction whose result updates a state and is read by the caller, and a value of one element.
fn reduction_with_update() -> PlanBuilder {
    let mut w = PlanBuilder::default();
    let (x, state) = (w.slot(SlotRole::Input, [8, 4]), w.slot(SlotRole::State, [4]));
    let (step, total) = (w.slot(SlotRole::Input, ()), w.slot(SlotRole::ExternalWrite, [1, 4]));
    let rate = w.map(exp(), &[&step]);
    w.launch(sum(0), &[&x], &[&total]);
    let gradient = SlotView { layout: Layout::contiguous([4].into()), ..total };
    let scaled = w.map(formula!(|x, k| x * k), &[&gradient, &rate]);
    w.launch(map(add()), &[&state, &scaled], &[&state]);
    w
}

#[test]
fn fuse_updates_states_in_reductions_where_launches_are_expensive() {
    let plan = reduction_with_update().after(&["fuse"]);
    assert_eq!(families(&plan), ["map", "reduce", "map"], "{plan}");
    let mut w = reduction_with_update();
    w.plan.is_launch_bound = true;
    let plan = w.after(&["fuse"]);
    assert_eq!(families(&plan), ["reduce"], "{plan}");
    let Kernel::Reduce(reduce) = &plan.launches[0].kernel else { unreachable!() };
    assert_eq!(reduce.wide_finish().map(|finish| (finish.inputs.len(), finish.outputs.len())), Some((3, 2)));
    assert!(plan.launches[0].is_sound());
}

/// A reduction over an axis of length 1 has as many results as operand elements, so its finishing program can also read
/// the operand.
#[test]
fn fuse_stores_a_map_that_a_reduction_and_its_finish_read() {
    for (length, families_of_plan) in [(1, ["map", "reduce"].as_slice()), (2, &["map", "reduce", "map"])] {
        let mut w = PlanBuilder::default();
        w.plan.is_launch_bound = true;
        let x = w.slot(SlotRole::Input, [8, length]);
        let (y, total) = (w.map(exp(), &[&x]), w.slot(SlotRole::Scratch, [8, 1]));
        w.launch(sum(1), &[&y], &[&total]);
        let ratio = w.map(formula!(|x, y| x / y), &[&y, &total]);
        w.plan.outputs.push(ratio);
        // In debug builds, `after` panics if a launch reads a slot that no launch writes.
        let plan = w.after(&["fuse"]);
        assert_eq!(families(&plan), families_of_plan, "{plan}");
        assert!(plan.launches[0].writes(y.slot), "{plan}");
    }
}

/// In a launch-bound plan, the functions of a kernel dominate its compile time, so a kernel contains few of them.
#[test]
fn fuse_bounds_the_functions_of_a_kernel_where_launches_are_expensive() {
    for (is_launch_bound, f, launches) in [(false, exp(), 1), (true, exp(), 3), (true, formula!(|x| x * 0.5), 1)] {
        let mut w = PlanBuilder::default();
        w.plan.is_launch_bound = is_launch_bound;
        let mut x = w.slot(SlotRole::Input, [8]);
        for _ in 0..40 {
            x = w.map(f, &[&x]);
        }
        w.plan.roles[x.slot] = SlotRole::ExternalWrite;
        let plan = w.after(&["fuse"]);
        assert_eq!(plan.launches.len(), launches, "{plan}");
    }
}

/// A softmax that is fused with a preceding softmax recomputes the preceding one in each pass, so the source of a chain
/// of softmaxes grows quadratically.
#[test]
fn fuse_bounds_the_functions_of_the_passes_of_a_row() {
    let softmax = formula!(
        softmax | x | {
            let e = (x - x.row_max()).exp();
            e / e.row_sum()
        }
    );
    for (is_launch_bound, launches) in [(false, 1), (true, 4)] {
        let mut w = PlanBuilder::default();
        w.plan.is_launch_bound = is_launch_bound;
        let mut x = w.slot(SlotRole::Input, [4, 8]);
        for _ in 0..10 {
            let y = w.slot(SlotRole::Scratch, [4, 8]);
            let axes = AxisSet::from_iter([1]);
            let row = Row { axes, program: program(softmax), params: Params::new() };
            w.launch(Kernel::Row(row), &[&x], &[&y]);
            x = y;
        }
        w.plan.roles[x.slot] = SlotRole::ExternalWrite;
        let plan = w.after(&["fuse"]);
        assert_eq!(plan.launches.len(), launches, "{plan}");
    }
}

#[test]
fn positions_of_a_pool_are_checked_indices() {
    for (length, can_fail) in [(36, false), (35, true)] {
        let mut w = PlanBuilder::default();
        let (x, values) = (w.slot(SlotRole::Input, [2, 1, 6, 6]), w.slot(SlotRole::Scratch, [2, 1, 3, 3]));
        let found = w.slot(SlotRole::Scratch, [2, 1, 3, 6]);
        let layout = Layout::contiguous([2, 1, 3, 3].into());
        let found = SlotView { layout, dtype: DType::I64, ..found };
        let window = Window { size: [1, 2, 2], stride: [1, 2, 2], dilation: [1; 3], before: [0; 3] };
        w.launch(Kernel::Pool(Pool { windows: window.into(), part: PoolPart::Maximum }), &[&x], &[&values, &found]);
        let spread = w.slot(SlotRole::Scratch, [2, length]);
        let flat = |o: &SlotView| SlotView { layout: Layout::contiguous([2, 9].into()), ..o.clone() };
        let scatter = Scatter { op: "scatter", from_end: true, index: Index::Along(1), reduction: ScatterOp::Add };
        w.launch(Kernel::Scatter(scatter), &[&flat(&values), &flat(&found)], &[&spread]);
        w.plan.mark_rejections();
        assert_eq!(w.plan.launches[1].can_fail, can_fail, "{length}");
    }
}

#[test]
fn fuse_reshapes_index_spaces_of_equal_order() {
    let mut w = PlanBuilder::default();
    let (x, bias) = (w.slot(SlotRole::Input, [6, 4]), w.slot(SlotRole::State, [4]));
    let y = w.map(add(), &[&x, &bias]);
    let seen = SlotView { layout: Layout::contiguous([2, 3, 4].into()), ..y };
    let z = w.map(exp(), &[&seen]);
    w.plan.outputs.push(z);
    let plan = w.after(&["fuse"]);
    assert_eq!(plan.launches.len(), 1);
    assert_eq!(*plan.launches[0].outputs[0].layout.shape(), [6, 4]);
}

#[test]
fn fuse_makes_an_update_the_epilogue_of_its_gradient_product() {
    let mut w = PlanBuilder::default();
    let [x, g, weight] = [(SlotRole::Input, [2048, 3]), (SlotRole::Input, [3, 1024]), (SlotRole::State, [2048, 1024])]
        .map(|(role, shape)| w.slot(role, shape));
    let inner = w.map(exp(), &[&g]);
    let grad = w.matmul(&x, &inner);
    // The weight is read between its gradient and its update.
    let transposed = SlotView { layout: weight.layout.permute(&[1, 0]), ..weight.clone() };
    let back = w.matmul(&inner, &transposed);
    let back = w.map(exp(), &[&back]);
    w.launch(map(formula!(|p, g| p - g * 0.1)), &[&weight, &grad], &[&weight]);
    w.plan.outputs.push(back);
    let plan = w.after(&["fuse"]);
    assert_eq!(families(&plan), ["map", "matmul", "matmul"], "{plan}");
    let update = plan.launches.iter().position(|l| l.writes(weight.slot)).unwrap();
    let read = plan.launches.iter().position(|l| l.inputs.contains(&transposed)).unwrap();
    assert!(read < update, "the weight must be read before its update\n{plan}");
    assert!(plan.report.elided.iter().any(|(slot, _)| *slot == grad.slot));
}

#[test]
fn fuse_respects_a_dependency_in_between() {
    let mut w = PlanBuilder::default();
    let x = w.slot(SlotRole::Input, [4]);
    let y = w.map(exp(), &[&x]);
    let total = w.slot(SlotRole::Scratch, [1]);
    w.launch(sum(0), &[&y], &[&total]);
    let z = w.map(add(), &[&y, &total]);
    w.plan.outputs.push(z);
    let plan = w.after(&["fuse"]);
    assert_eq!(plan.launches.len(), 3);
    assert!(plan.to_string().contains("not fused"), "{plan}");
}

#[test]
fn fuse_and_early_keep_the_order_of_writes() {
    let mut w = PlanBuilder::default();
    let (x, state) = (w.slot(SlotRole::Input, [4]), w.slot(SlotRole::State, [4]));
    let y = w.map(add(), &[&x, &state]);
    w.launch(map(exp()), &[&x], &[&state]);
    let z = w.map(add(), &[&y, &state]);
    w.plan.outputs.push(z);
    let plan = w.after(&["fuse", "early"]);
    // One kernel may read the old state and write the new one, element by element.
    assert_eq!(plan.launches.len(), 1, "{plan}");
    let mut w = PlanBuilder::default();
    let (x, state) = (w.slot(SlotRole::Input, [4, 4]), w.slot(SlotRole::State, [4, 4]));
    let transposed = SlotView { layout: state.layout.permute(&[1, 0]), ..state.clone() };
    let y = w.matmul(&x, &transposed);
    w.launch(map(add()), &[&y, &state], &[&state]);
    w.plan.outputs.push(y);
    let plan = w.after(&["fuse"]);
    assert_eq!(plan.launches.len(), 2, "a product must not overwrite its inputs\n{plan}");
}

#[test]
fn fuse_reads_an_operand_before_a_launch_in_between_overwrites_it() {
    let mut w = PlanBuilder::default();
    let (x, state) = (w.slot(SlotRole::Input, [3, 4]), w.slot(SlotRole::State, [1, 4]));
    let y = w.map(exp(), &[&state]);
    w.launch(sum(0), &[&x], &[&state]);
    let z = w.map(exp(), &[&y]);
    w.plan.outputs.push(z);
    let plan = w.after(&["fuse"]);
    assert_eq!(families(&plan), ["map", "reduce"], "the fused map must read the state before its update\n{plan}");
}

#[test]
fn fuse_recomputes_a_fill_for_each_reader() {
    let mut w = PlanBuilder::default();
    let (x, ones) = (w.slot(SlotRole::Input, [4]), w.slot(SlotRole::Scratch, [4]));
    w.launch(map(&Formula::new("fill", &[], 1, |_, p| vec![p[0]])), &[], &[&ones]);
    let (y, z) = (w.map(add(), &[&x, &ones]), w.map(formula!(|x, y| x * y), &[&x, &ones]));
    w.plan.outputs = vec![y, z];
    let plan = w.after(&["fuse"]);
    assert_eq!(plan.launches.len(), 2);
    assert!(plan.launches.iter().all(|l| l.inputs.len() == 1 && l.outputs.len() == 1));
}

#[test]
fn arena_shares_memory_only_between_disjoint_lifetimes() {
    let mut w = PlanBuilder::default();
    let x = w.slot(SlotRole::Input, [64, 64]);
    let mut values = vec![w.matmul(&x, &x)];
    for k in 0..6 {
        let next = match k % 3 {
            0 => w.matmul(&values[k], &x),
            1 => w.map(exp(), &[&values[k]]),
            _ => w.map(add(), &[&values[k], &values[0]]),
        };
        values.push(next);
    }
    w.plan.outputs.push(values.pop().unwrap());
    let before = w.plan.clone();
    let plan = w.after(&["arena"]);
    let arena = plan.arena.as_ref().unwrap();
    assert!(arena.bytes < arena.unshared_bytes);
    assert_eq!(arena.bytes, plan.slots[arena.slot]);
    for (i, a) in arena.allocations.iter().enumerate() {
        assert!(a.offset.is_multiple_of(64) && a.offset + a.bytes <= arena.bytes);
        for b in &arena.allocations[i + 1..] {
            let is_disjoint = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
            let (early, late) = if a.first < b.first { (a, b) } else { (b, a) };
            // A map writes one buffer in place over the other.
            let handed =
                early.last == late.first && families(&plan)[late.first] == "map" && early.offset == late.offset;
            assert!(
                is_disjoint || early.last < late.first || handed,
                "two live buffers must not share memory: {a:?} and {b:?}"
            );
        }
    }
    let moved = |o: &SlotView| arena.allocation(o.slot).unwrap().offset / 4;
    for (launch, old) in plan.launches.iter().zip(&before.launches) {
        assert!(launch.is_sound());
        for (o, old) in launch.operands().zip(old.operands()) {
            assert_eq!((o.slot, o.layout.offset()), (arena.slot, moved(old)));
        }
    }
}

#[test]
fn early_runs_updates_directly_after_their_gradients() {
    let mut w = PlanBuilder::default();
    let (x, p, q) = (w.slot(SlotRole::Input, [4]), w.slot(SlotRole::State, [4]), w.slot(SlotRole::State, [4]));
    let first = w.map(exp(), &[&x]);
    let second = w.map(exp(), &[&first]);
    w.launch(map(add()), &[&p, &first], &[&p]);
    w.launch(map(add()), &[&q, &second], &[&q]);
    let written = w.after(&["early"]).launches.iter().map(|l| l.outputs[0].slot).collect::<Vec<_>>();
    assert_eq!(written, [first.slot, p.slot, second.slot, q.slot]);
}

#[test]
fn early_does_not_move_an_update_before_a_reader_of_its_state() {
    let mut w = PlanBuilder::default();
    // The maps write more bytes than a launch that is moved.
    let (x, p) = (w.slot(SlotRole::Input, [32]), w.slot(SlotRole::State, [32]));
    let [gradient, output] = [&x, &p].map(|operand| w.map(exp(), &[operand]));
    let last = w.map(exp(), &[&gradient]);
    w.launch(map(add()), &[&p, &gradient], &[&p]);
    let written = w.after(&["early"]).launches.iter().map(|l| l.outputs[0].slot).collect::<Vec<_>>();
    assert_eq!(written, [gradient.slot, output.slot, p.slot, last.slot]);
}

#[test]
fn display_and_svg_show_the_plan() {
    let mut w = PlanBuilder::default();
    let (x, weight, bias) =
        (w.slot(SlotRole::Input, [3, 4]), w.slot(SlotRole::State, [4, 5]), w.slot(SlotRole::State, [5]));
    let y = w.matmul(&x, &weight);
    let y = w.map(add(), &[&y, &bias]);
    w.plan.outputs.push(y);
    let plan = w.after(&["fuse", "arena"]);
    let text = plan.to_string();
    for line in
        ["plan: 1 kernels of 2 recorded; 135 FLOPs", "state: 2 external tensors, 100 B", "arena: 2 buffers in 128 B"]
    {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
    assert!(text.contains("matmul matmul + formula(@64 f32[3, 4], state1 f32[4, 5], state2 f32[5])"), "{text}");
    let svg = plan.to_svg();
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    assert_eq!(svg.matches("<rect").count(), 1 + 2 + 1);
}
