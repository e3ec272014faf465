//! Which public types move between threads (`Send`) and are shared by threads (`Sync`).

use pellucid::data::{BatchPosition, Batches, Digits, Mnist};
use pellucid::nn::graph::{
    BoundGradients, EagerStep, GraphTrainer, InferenceModel, RecordedStep, StepCheck, StepOptions, StepPlan, Stream,
    Timer, TrainingStep,
};
use pellucid::nn::loss::{CrossEntropyLoss, Loss, LossKind, WithTargets};
use pellucid::nn::optim::{Average, AveragedModel, GradScaler, Lbfgs, Muon, Optimizer};
use pellucid::nn::*;
use pellucid::*;

fn is_send<T: Send>() {}
fn is_sync<T: Sync>() {}

macro_rules! both {
    ($($type:ty),* $(,)?) => {$(is_send::<$type>(); is_sync::<$type>();)*};
}

/// Every layer is a [`Module`], which is `Send` and `Sync`, as are losses, optimizers and batches.
#[test]
fn public_types_are_send_and_sync() {
    fn supertraits<M: Module, L: Loss, O: Optimizer, X: graph::Batch>() {
        both![M, L, O, X, WithTargets<L>, Box<dyn Loss>, Box<dyn Optimizer>, Box<dyn Layer>];
    }
    supertraits::<Linear, CrossEntropyLoss, Muon, Tensor>();
    // Tensors, and what operations use.
    both![
        Tensor,
        Array,
        Arrays,
        DType,
        Device,
        Error,
        Shape,
        Layout,
        Scalar,
        Node,
        HookHandle,
        SavedTensors,
        TensorId,
        StorageId,
        Generator,
        HostFlag,
        Formula,
        GradOptions,
        BackwardOptions,
        GradCheckOptions,
        PrintOptions,
        TensorOptions,
        Slice,
        SliceBound,
        IndexItem,
        NodeInput,
        MemoryStats,
        OperationInfo,
        AutocastPolicy,
        DeferredStats,
        KernelWork,
        Ellipsis,
        NewAxis,
        WrongShape,
    ];
    // Captured steps.
    both![CaptureOptions, CacheStats, Placement, Plan, Passes, Outputs<'_>, StepPlan, StepOptions<'_>, Stream, Timer];
    both![StepCheck, BoundGradients, LossKind, AveragedModel];
    // Models and their state.
    both![
        Sequential,
        BoxedLayer,
        ModuleList<Linear>,
        ModuleDict<Linear>,
        Parameter,
        Buffer,
        PathChoice,
        TrainingMode,
        StateDict,
        IncompatibleKeys,
        Summary,
        SummaryRow,
        ModelTree,
        KvCache,
        AttentionMasks<'_>,
        Rotary,
        MultiheadAttentionOptions,
        TransformerOptions,
        RecurrentOptions,
        LstmState,
        GradScaler,
        Average,
        Lbfgs,
    ];
    both![Batches<3>, BatchPosition, Mnist, Digits, train::Progress];
}

/// A call of a step needs exclusive access, so threads share it through a mutex.
#[test]
fn steps_and_trainers_are_send_and_sync() {
    both![Captured<'_>, RecordedStep<'_>, EagerStep<'_>, TrainingStep<'_>, InferenceModel<'_, Sequential>];
    both![GraphTrainer<'_, Sequential, CrossEntropyLoss, Muon>];
    both![GraphTrainer<'_, Sequential, Box<dyn Loss>, Box<dyn Optimizer>, (Tensor, Tensor)>];
}

/// Returns whether a type is `Send`: the inherent constant has precedence over that of the trait.
macro_rules! can_be_sent {
    ($type:ty) => {{
        #[allow(dead_code, reason = "used only if the type is not `Send`")]
        trait Never {
            const IS_SEND: bool = false;
        }
        impl<T: ?Sized> Never for T {}
        struct Probe<T: ?Sized>(std::marker::PhantomData<T>);
        #[allow(dead_code, reason = "used only if the type is `Send`")]
        impl<T: ?Sized + Send> Probe<T> {
            const IS_SEND: bool = true;
        }
        Probe::<$type>::IS_SEND
    }};
}

/// Guards end a mode of their thread, so they stay on it. A local step has a closure that is bound to its thread. A
/// checkpoint borrows its parts for one call, and a part may be a user's type that is not `Sync`.
#[test]
fn guards_local_steps_and_checkpoints_stay_on_their_thread() {
    assert!(can_be_sent!(Tensor));
    let guards = [
        can_be_sent!(GradMode),
        can_be_sent!(AnomalyMode),
        can_be_sent!(Autocast),
        can_be_sent!(Checkpoint<'_>),
        can_be_sent!(GeneratorScope),
        can_be_sent!(LocalCaptured<'_>),
    ];
    assert_eq!(guards, [false; 6]);
}
