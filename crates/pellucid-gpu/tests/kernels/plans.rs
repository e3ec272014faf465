//! Prepared plans: results, objects that a launch creates, and checks of indices inside a plan.

use super::harness::{ProgramBuilder, device};
use crate::backend::{CHECKED_SUBMISSIONS, open};
use pellucid_cpu::Cpu;
use pellucid_ir::backend::{Backend, CompiledPlan, Storage, View};
use pellucid_ir::formula::{Binary, Op, RowOp, UniformSource};
use pellucid_ir::kernel::{AxisSet, Distribution, Gather, Index, Kernel, Map, MatMul, Random, Reduce, ReduceOp, Row};
use pellucid_ir::plan::{Launch, Passes, Plan, SlotRole, SlotView};
use pellucid_ir::{Compute, DType, Error, Layout, Scalar};
use std::sync::Arc;

const F32: DType = DType::F32;

fn slot(slot: usize, shape: &[usize], dtype: DType) -> SlotView {
    SlotView { slot, layout: Layout::contiguous(shape.into()), dtype }
}

/// Returns the map y = x₀ + factor·x₁.
fn scaled_sum(factor: f64) -> Kernel {
    let mut b = ProgramBuilder::default();
    let (x, y) = (b.x(F32), b.x(F32));
    let scale = b.uniform(UniformSource::Param(0), Compute::F32);
    let scaled = b.step(Op::Binary(Binary::Mul), Compute::F32, Compute::F32, &[y, scale]);
    let sum = b.step(Op::Binary(Binary::Add), Compute::F32, Compute::F32, &[x, scaled]);
    let program = b.build(&[(sum, Compute::F32, F32, false)]);
    Kernel::Map(Map { program, params: [Scalar::Float(factor)].into() })
}

/// Returns the sum over the axes of an array.
fn sum(axes: AxisSet) -> Kernel {
    let mut b = ProgramBuilder::default();
    let x = b.x(F32);
    let program = b.build(&[(x, Compute::F32, F32, false)]);
    let (params, finish_params) = Default::default();
    Kernel::Reduce(Reduce { op: ReduceOp::Sum, axes, program, params, finish: None, finish_params, output: F32 })
}

/// Returns the row program y = x − max x.
fn centred() -> Kernel {
    let mut b = ProgramBuilder::default();
    let x = b.x(F32);
    let largest = b.row_step(Op::Reduce(RowOp::Max), Compute::F32, &[x]);
    let y = b.step(Op::Binary(Binary::Sub), Compute::F32, Compute::F32, &[x, largest]);
    let program = b.build(&[(y, Compute::F32, F32, false)]);
    let axes = [1].into_iter().fold(AxisSet::default(), |mut set, axis| {
        set.insert(axis);
        set
    });
    Kernel::Row(Row { axes, program, params: Default::default() })
}

fn gather() -> Kernel {
    Kernel::Gather(Gather { op: "gather", from_end: true, index: Index::Axes([0].into_iter().collect()) })
}

/// Returns a plan of several families. Slots: 0 is a given input [4, 6] of `f32`, 1 a given index [4], 2 a state [4,
/// 6], 3 the state of a generator; the others belong to the plan. The output is a scalar.
pub(crate) fn plan(passes: Passes) -> Plan {
    let all = AxisSet::all(2);
    let launch = |kernel, inputs: Vec<SlotView>, output| Launch::new(kernel, inputs, vec![output]);
    let (x, index, state) = (slot(0, &[4, 6], F32), slot(1, &[4], DType::I64), slot(2, &[4, 6], F32));
    let own = |k: usize| slot(k, &[4, 6], F32);
    let mut transposed = own(4);
    transposed.layout = transposed.layout.permute(&[1, 0]);
    let launches = vec![
        launch(gather(), vec![x.clone(), index], own(4)),
        launch(centred(), vec![own(4)], own(5)),
        launch(Kernel::MatMul(MatMul::default()), vec![own(5), transposed], slot(6, &[4, 4], F32)),
        Launch::new(
            Kernel::Random(Random { distribution: Distribution::Uniform }),
            vec![],
            vec![slot(3, &[2], DType::I64), own(7)],
        ),
        launch(scaled_sum(0.5), vec![own(5), own(7)], own(8)),
        // The state is updated in place.
        launch(scaled_sum(-0.25), vec![state.clone(), own(8)], state.clone()),
        launch(sum(all), vec![slot(6, &[4, 4], F32)], slot(9, &[1, 1], F32)),
        launch(sum(all), vec![state], slot(10, &[1, 1], F32)),
        launch(scaled_sum(3.0), vec![slot(9, &[1, 1], F32), slot(10, &[1, 1], F32)], slot(11, &[1, 1], F32)),
    ];
    let own_bytes = [96, 96, 64, 96, 96, 4, 4, 4];
    let roles = vec![SlotRole::ExternalRead, SlotRole::ExternalRead, SlotRole::State, SlotRole::State];
    let slots = [96, 32, 96, 16].into_iter().chain(own_bytes).collect();
    let outputs = vec![slot(11, &[1, 1], F32)];
    Plan { slots, roles, launches, outputs, ..Plan::default() }.after(passes)
}

/// A prepared plan with one storage for each slot.
pub(crate) struct TestStep {
    compiled: Box<dyn CompiledPlan>,
    pub(crate) storages: Vec<Arc<Storage>>,
    output: SlotView,
}

fn bytes<const N: usize, T: Copy>(values: &[T], encode: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&v| encode(v)).collect()
}

fn upload_index(backend: &dyn Backend, to: &Storage, index: [i64; 4]) {
    backend.upload(&bytes(&index, i64::to_ne_bytes), to).unwrap();
}

impl TestStep {
    pub(crate) fn new(backend: &dyn Backend, plan: &Plan) -> TestStep {
        let storages: Vec<Arc<Storage>> = plan.slots.iter().map(|&bytes| backend.storage(bytes).unwrap()).collect();
        let values: Vec<f32> = (0..24).map(|k| (k * 7 % 11) as f32 * 0.5 - 2.0).collect();
        for (to, factor) in [(0, 1.0), (2, 0.5)] {
            let values: Vec<f32> = values.iter().map(|v| v * factor).collect();
            backend.upload(&bytes(&values, f32::to_ne_bytes), &storages[to]).unwrap();
        }
        upload_index(backend, &storages[1], [3, 0, -1, 1]);
        backend.upload(&bytes(&[42i64, 7], i64::to_ne_bytes), &storages[3]).unwrap();
        let compiled = backend.prepare(plan).unwrap().expect("the plan must be compiled");
        TestStep { compiled, storages, output: plan.outputs[0].clone() }
    }

    pub(crate) fn launch(&self) -> Result<(), Error> {
        self.compiled.run(&self.storages).map_err(|failed| failed.error)
    }

    pub(crate) fn output(&self, backend: &dyn Backend) -> Result<f32, Error> {
        let mut value = [0; 4];
        backend.download(&self.storages[self.output.slot], 4 * self.output.layout.offset(), &mut value)?;
        Ok(f32::from_ne_bytes(value))
    }

    fn slot(&self, backend: &dyn Backend, slot: usize) -> Result<Vec<u8>, Error> {
        let mut values = vec![0; self.storages[slot].buffer().bytes()];
        backend.download(&self.storages[slot], 0, &mut values)?;
        Ok(values)
    }
}

fn all_passes() -> [Passes; 3] {
    [Passes::none(), Passes::none().with("arena").unwrap(), Passes::all()]
}

#[test]
fn launches_compute_what_the_cpu_computes_and_create_nothing_after_the_first() {
    if device().is_none() {
        return;
    }
    let gpu = open(5).unwrap();
    for passes in all_passes() {
        let plan = plan(passes);
        let (on_cpu, on_gpu) = (TestStep::new(&Cpu, &plan), TestStep::new(&gpu, &plan));
        let mut before = gpu.counters();
        for launch in 0..4 {
            on_cpu.launch().unwrap();
            on_gpu.launch().unwrap();
            let now = gpu.counters();
            assert_eq!(
                now.submissions - before.submissions,
                CHECKED_SUBMISSIONS,
                "the dispatches of a launch must be submitted together"
            );
            assert!(now.dispatches - before.dispatches >= plan.launches.len() as u64);
            if launch > 0 {
                let created = [now.buffers - before.buffers, now.bind_groups - before.bind_groups];
                assert_eq!((created, now.pipelines - before.pipelines), ([0, 0], 0), "launch {launch}");
            }
            let (expected, got) = (on_cpu.output(&Cpu).unwrap(), on_gpu.output(&gpu).unwrap());
            assert!((expected - got).abs() <= 1e-5 * expected.abs(), "launch {launch}: {got} instead of {expected}");
            for slot in [2, 3] {
                let (expected, got) = (on_cpu.slot(&Cpu, slot).unwrap(), on_gpu.slot(&gpu, slot).unwrap());
                assert_eq!(expected, got, "slot {slot} after launch {launch}");
            }
            before = gpu.counters();
        }
    }
}

fn expect_out_of_bounds<T: std::fmt::Debug>(result: Result<T, Error>, index: i64) {
    let expected = Error::IndexOutOfBounds { op: "gather", index, axis: 0, len: 4 };
    assert_eq!(result.unwrap_err(), expected);
}

#[test]
fn a_rejected_launch_returns_the_error_and_changes_no_state() {
    if device().is_none() {
        return;
    }
    let gpu = open(7).unwrap();
    for passes in all_passes() {
        let [step, twice] = [0; 2].map(|_| TestStep::new(&gpu, &plan(passes)));
        let upload = |index| upload_index(&gpu, &step.storages[1], index);
        // The first launch is rejected, and a later one.
        for index in [4, -5, i64::MAX] {
            let state = [2, 3].map(|slot| step.slot(&gpu, slot).unwrap());
            upload([0, 1, index, -7]);
            expect_out_of_bounds(step.launch(), index);
            assert_eq!([2, 3].map(|slot| step.slot(&gpu, slot).unwrap()), state);
            gpu.synchronize().unwrap();
            upload([3, 0, -1, 1]);
            step.launch().unwrap();
            twice.launch().unwrap();
            assert_eq!(
                step.output(&gpu).unwrap(),
                twice.output(&gpu).unwrap(),
                "failed launches must not change the state"
            );
        }
    }
}

#[test]
fn a_rejected_launch_names_the_kernel_and_runs_those_before_it() {
    if device().is_none() {
        return;
    }
    let gpu = open(8).unwrap();
    let array = |k: usize| slot(k, &[4, 6], F32);
    let [first, second] = [1, 2].map(|k| slot(k, &[4], DType::I64));
    let launches = vec![
        Launch::new(gather(), vec![array(0), first], vec![array(5)]),
        Launch::new(scaled_sum(1.0), vec![array(3), array(5)], vec![array(3)]),
        Launch::new(gather(), vec![array(0), second], vec![array(6)]),
        Launch::new(scaled_sum(1.0), vec![array(4), array(6)], vec![array(4)]),
    ];
    let plan = Plan { slots: vec![96, 32, 32, 96, 96, 96, 96], launches, ..Plan::default() };
    let storages: Vec<Arc<Storage>> = plan.slots.iter().map(|&bytes| gpu.storage(bytes).unwrap()).collect();
    let ones = bytes(&[1.0f32; 24], f32::to_ne_bytes);
    [0, 3, 4].iter().for_each(|&k| gpu.upload(&ones, &storages[k]).unwrap());
    let compiled = gpu.prepare(&plan).unwrap().expect("the plan must be compiled");
    let mut expected = [1.0f32, 1.0];
    for (indices, rejected) in
        [([0, 0], None), ([0, 9], Some(2)), ([9, 9], Some(0)), ([1, 2], None), ([3, -5], Some(2))]
    {
        for (k, index) in [(1, indices[0]), (2, indices[1])] {
            upload_index(&gpu, &storages[k], [0, index, 1, 2]);
        }
        let failed = compiled.run(&storages).map_err(|failed| failed.launch());
        assert_eq!(failed, rejected.map_or(Ok(()), |launch| Err(Some(launch))));
        expected[0] += if rejected == Some(0) { 0.0 } else { 1.0 };
        expected[1] += if rejected.is_some() { 0.0 } else { 1.0 };
        for (slot, expected) in [3, 4].into_iter().zip(expected) {
            let mut word = [0; 4];
            gpu.download(&storages[slot], 92, &mut word).unwrap();
            assert_eq!(f32::from_ne_bytes(word), expected, "slot {slot} with {indices:?}");
        }
    }
}

#[test]
fn invalid_plans_and_launches_are_typed_errors() {
    let Some(gpu) = device() else { return };
    let prepare = |launch: Launch| {
        let plan = Plan { slots: vec![40, 40], launches: vec![launch], ..Plan::default() };
        gpu.prepare(&plan).map(|_| ())
    };
    let part =
        |slot, offset, len: usize| SlotView { slot, layout: Layout::contiguous_from([len].into(), offset), dtype: F32 };
    let add = |a, b, y| Launch::new(scaled_sum(1.0), vec![a, b], vec![y]);
    prepare(add(part(0, 0, 3), part(0, 3, 3), part(0, 6, 3))).unwrap();
    let is_invalid = |launch| matches!(prepare(launch), Err(Error::InvalidArgument { .. }));
    assert!(
        is_invalid(add(part(0, 0, 3), part(0, 3, 3), part(0, 8, 3))),
        "an output that exceeds its slot must be rejected"
    );
    assert!(
        is_invalid(add(part(0, 0, 3), part(2, 3, 3), part(0, 6, 3))),
        "a slot that does not exist must be rejected"
    );
    assert!(
        is_invalid(add(part(0, 0, 3), part(0, 3, 3), part(0, 2, 3))),
        "an output that overlaps an input must be rejected"
    );
    assert!(
        is_invalid(Launch::new(scaled_sum(1.0), vec![part(0, 0, 3)], vec![part(1, 0, 3)])),
        "a missing input must be rejected"
    );
    let mut kernel = scaled_sum(1.0);
    if let Kernel::Map(map) = &mut kernel {
        map.params = Default::default();
    }
    let launch = Launch::new(kernel, vec![part(0, 0, 3), part(0, 3, 3)], vec![part(1, 0, 3)]);
    assert!(is_invalid(launch), "a missing run-time parameter must be rejected");

    let launches = vec![add(part(0, 0, 3), part(0, 3, 3), part(1, 0, 3))];
    let plan = Plan { slots: vec![40, 12], launches, ..Plan::default() };
    let compiled = gpu.prepare(&plan).unwrap().unwrap();
    let [x, y, small] = [40, 12, 8].map(|bytes| gpu.storage(bytes).unwrap());
    let launch = |slots: &[&Arc<Storage>]| {
        let slots: Vec<Arc<Storage>> = slots.iter().map(|&slot| slot.clone()).collect();
        compiled.run(&slots).map_err(|failed| failed.error)
    };
    assert!(matches!(launch(&[&x]), Err(Error::InvalidArgument { .. })), "a missing slot must be rejected");
    assert!(
        matches!(launch(&[&x, &y]), Err(Error::InvalidArgument { .. })),
        "an input without memory must be rejected"
    );
    gpu.upload(&[0; 40], &x).unwrap();
    assert!(
        matches!(launch(&[&x, &small]), Err(Error::InvalidArgument { .. })),
        "a buffer smaller than its slot must be rejected"
    );
    let on_cpu = Cpu.storage(12).unwrap();
    assert!(matches!(launch(&[&x, &on_cpu]), Err(Error::DeviceMismatch { .. })));
    launch(&[&x, &y]).unwrap();
    gpu.download(&y, 0, &mut [0; 12]).unwrap();
}

/// Returns a map that multiplies the sum of `inputs` inputs by a factor.
fn scaled_sum_of(inputs: usize, factor: f64) -> Kernel {
    let mut b = ProgramBuilder::default();
    let inputs: Vec<_> = (0..inputs).map(|_| b.x(F32)).collect();
    let scale = b.uniform(UniformSource::Param(0), Compute::F32);
    let add = |sum, &x| b.step(Op::Binary(Binary::Add), Compute::F32, Compute::F32, &[sum, x]);
    let total = inputs[1..].iter().fold(inputs[0], add);
    let scaled = b.step(Op::Binary(Binary::Mul), Compute::F32, Compute::F32, &[total, scale]);
    let program = b.build(&[(scaled, Compute::F32, F32, false)]);
    Kernel::Map(Map { program, params: [Scalar::Float(factor)].into() })
}

/// CUDA passes up to 768 words of parameters by value. These kernels have more: 13 strides for each of 58 operands.
/// An adapter of wgpu can bind fewer buffers than they have operands.
#[test]
fn kernels_with_many_parameters_read_those_of_their_own_dispatch() {
    let Some(gpu) = device().filter(|gpu| !gpu.name().starts_with("wgpu")) else { return };
    const AXES: usize = 13;
    const INPUTS: usize = 57;
    let shape = [2; AXES];
    let size = 4 << AXES;
    // No two axes are neighbours in all inputs, so none are merged.
    let rotated = |k: usize| SlotView {
        layout: slot(0, &shape, F32).layout.permute(&(0..AXES).map(|axis| (axis + k) % AXES).collect::<Vec<_>>()),
        ..slot(0, &shape, F32)
    };
    let launch = |factor, output| {
        let inputs = (0..INPUTS).map(rotated).collect();
        Launch::new(scaled_sum_of(INPUTS, factor), inputs, vec![slot(output, &shape, F32)])
    };
    let plan = Plan { slots: vec![size; 3], launches: vec![launch(0.5, 1), launch(-3.0, 2)], ..Plan::default() };
    let values: Vec<f32> = (0..1 << AXES).map(|k| (k % 97) as f32 - 40.0).collect();
    let storages = |backend: &dyn Backend| -> Vec<Arc<Storage>> {
        let storages: Vec<Arc<Storage>> = plan.slots.iter().map(|&bytes| backend.storage(bytes).unwrap()).collect();
        backend.upload(&bytes(&values, f32::to_ne_bytes), &storages[0]).unwrap();
        storages
    };
    let contents = |backend: &dyn Backend, storages: &[Arc<Storage>]| {
        [1, 2].map(|k| {
            let mut bytes = vec![0; size];
            backend.download(&storages[k], 0, &mut bytes).unwrap();
            bytes
        })
    };
    let run = |backend: &dyn Backend, storages: &[Arc<Storage>]| {
        for Launch { kernel, inputs, outputs, .. } in &plan.launches {
            let [inputs, outputs] = [inputs, outputs].map(|views| {
                let views = views.iter();
                let views = views.map(|v| View { storage: &storages[v.slot], layout: &v.layout, dtype: v.dtype });
                views.collect::<Vec<_>>()
            });
            backend.run(kernel, &inputs, &outputs).unwrap();
        }
    };
    let (on_cpu, eager, prepared) = (storages(&Cpu), storages(gpu), storages(gpu));
    run(&Cpu, &on_cpu);
    run(gpu, &eager);
    assert!(contents(gpu, &eager) == contents(&Cpu, &on_cpu), "single kernels");
    let compiled = gpu.prepare(&plan).unwrap().expect("the plan must be compiled");
    compiled.run(&prepared).unwrap();
    assert!(contents(gpu, &prepared) == contents(&Cpu, &on_cpu), "a plan");
}
