//! Checks which public types are `Send` and `Sync`.

use pellucid::autograd::*;
use pellucid::data::{
    BatchPosition, Batches, BucketBatchSampler, CachedDataset, ConcatDataset, DataLoader, Digits, DistributedSampler,
    EpochIter, EpochSeed, FirstRecords, FnDataset, FnRecords, LoaderOptions, MapDataset, MapRecords, Mnist,
    PaddedSequences, RandomSampler, RecordShard, SequentialSampler, ShuffledRecords, SplitMix64, StratifiedSampler,
    StreamIter, StreamLoader, Subset, TensorDataset, TextLines, VecDataset, WeightedRandomSampler,
};
use pellucid::data::{
    Categories, CharTokenizer, Cifar10, Cifar100, CifarImages, Column, ColumnType, CutMix, FillValue, Imputer,
    LabelEncoder, MinMaxScaler, MixUp, OneHotEncoder, StandardScaler, Table, TableTensorOptions, TokenWindows,
    UnknownCategory,
};
use pellucid::engine::*;
use pellucid::nn::graph::mirror::*;
use pellucid::nn::graph::{GraphTrainer, InferenceModel, StepCheck, StepOptions, TrainingStep};
use pellucid::nn::hook::HookGuard;
use pellucid::nn::init::{Fan, Nonlinearity};
use pellucid::nn::loss::{BatchWeight, CrossEntropyLoss, Loss, WithTargets};
use pellucid::nn::optim::{schedule::*, *};
use pellucid::nn::*;
use pellucid::ops::*;
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
    // Tensors, and types that operations use.
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
    both![CaptureOptions, LossKind, CacheStats, Plan, Passes, Outputs<'_>, CapturePlan, Buf, StepOptions<'_>];
    both![StepCheck, Rebound, BatchWeight, AveragedModel];
    // Models and their state.
    both![
        Sequential,
        BoxedLayer,
        ModuleList<Linear>,
        ModuleDict<Linear>,
        Parameter,
        Buffer,
        PathChoice,
        StateFlag,
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
        pellucid::nn::PackedSequence,
        pellucid::ops::InterpOptions,
        LstmState,
        GradScaler,
        Average,
        Lbfgs,
    ];
    // Schedules, and the parts of optimizers.
    both![ConstantLr, ExponentialLr, LambdaLr, LinearLr, MultiStepLr, MultiplicativeLr, NoamLr, PolynomialLr, StepLr];
    both![SwaLr, WarmupLr, CosineWithWarmupLr, CosineAnnealingLr, CosineAnnealingWarmRestarts, OneCycleLr, CyclicLr];
    both![ChainedScheduler, SequentialLr, ReduceLrOnPlateau, Scheduler<StepLr>, AnnealStrategy, CyclicMode];
    both![ThresholdMode, ReduceLrOnPlateauOptions, SchedulePoint, PerGroup];
    both![ClipGradNormOptions, GradScalerOptions, LbfgsOptions, ParamGroup, MuonLr, Momentum, Unscaled<'static, Sgd>];
    both![AdadeltaOptions, AdafactorOptions, AdagradOptions, AdamOptions, AdamWOptions, AdamaxOptions];
    both![AsgdOptions, LambOptions, LionOptions, MuonOptions, NAdamOptions, RAdamOptions, RmsPropOptions, RpropOptions];
    both![SgdOptions];
    // The parts of layers and of plans.
    both![Fan, Nonlinearity, GradKind, Elman, GatedRecurrentUnit, LongShortTermMemory, InProj, RotaryPairing];
    both![
        PerAxis<2>,
        Windows<2>,
        ModuleInfo,
        ModuleRole,
        pellucid_tensor::OptionRange,
        Padding<2>,
        PoolOptions,
        ParameterList,
        HookGuard<'_>,
        OrthogonalMap
    ];
    both![prune::PruneAmount, prune::SparsityReport, prune::SparsityRow];
    both![PerLayerBufs, LossBufs];
    // The options and results of operations.
    both![
        AttentionOptions<'_>,
        AvgPoolDivisor,
        Axes,
        BatchNormOptions,
        Bins<'_>,
        ConvOptions,
        FoldOptions,
        ConvPadding,
        ConvolveMode
    ];
    both![CovOptions<'_>, CrossEntropyOptions<'_>, CtcLossOptions, Cutoff, EmbeddingBagOptions<'_>, EmbeddingOptions];
    both![IntList, GridSampleMode, Lstsq, MatrixNorm, MeshgridIndexing, MultiMarginLossOptions<'_>];
    both![
        NllLossOptions<'_>,
        PaddingMode,
        PadWidth,
        GridSamplePadding,
        PoissonNllLossOptions,
        QrMode,
        QuantileInterpolation
    ];
    both![RecurrenceOptions<'_>, RecurrentWeights<'_>, Reduction, Resize, InterpolationMode, RnnNonlinearity];
    both![RunningStatistics<'_>, ScatterReduceOp, Sections, Spacing<'_>, Spatial, SplitSizes, TensorOrScalar<'_>];
    both![TripletMarginLossOptions, Unique, WindowFunction<'_>, NeedsInputGrad];
    both![SaveForBackward<'_>];
    both![Batches<3>, BatchPosition, Mnist, Digits, train::Progress];
    both![TensorDataset, FnDataset<fn(usize)>, VecDataset<f32>, MapDataset<TensorDataset, fn(f32)>];
    both![Subset<TensorDataset>, ConcatDataset<TensorDataset, TensorDataset>, CachedDataset<TensorDataset>];
    both![SequentialSampler, RandomSampler, WeightedRandomSampler, StratifiedSampler];
    both![DistributedSampler<RandomSampler>, BucketBatchSampler, EpochSeed, SplitMix64, PaddedSequences];
    both![DataLoader<Tensor>, LoaderOptions];
    both![FirstRecords<TextLines>, FnRecords<fn(EpochSeed)>, MapRecords<TextLines, fn(String)>, RecordShard<TextLines>];
    both![ShuffledRecords<TextLines>, StreamLoader<Tensor>, TextLines];
    // Only the thread that reads the batches owns the iterator.
    is_send::<EpochIter<Tensor>>();
    is_send::<StreamIter<Tensor>>();
    both![Categories, CharTokenizer, Cifar10, Cifar100, CifarImages, Column, ColumnType, CutMix, FillValue, MixUp];
    both![
        Imputer,
        LabelEncoder,
        MinMaxScaler,
        OneHotEncoder,
        StandardScaler,
        Table,
        TableTensorOptions,
        TokenWindows,
        UnknownCategory
    ];
}

#[cfg(feature = "csv")]
#[test]
fn readers_of_tables_are_send_and_sync() {
    both![pellucid::data::CsvOptions<'_>];
}

#[cfg(feature = "image")]
#[test]
fn images_and_their_transforms_are_send_and_sync() {
    use pellucid::data::transforms::{functional::AffineMatrix, *};
    use pellucid::data::{DecodeOptions, Image, ImageFolder};
    both![Image, ImageFolder, DecodeOptions, AffineMatrix, AutoAugment, AutoAugmentPolicy, CenterCrop, ColorJitter];
    both![Compose, GaussianBlur, Grayscale, Normalize, Pad, RandAugment, RandomApply<Pad>, RandomCrop, RandomErasing];
    both![RandomHorizontalFlip, RandomResizedCrop, RandomRotation, RandomVerticalFlip, ResizeImage, TrivialAugmentWide];
}

#[cfg(feature = "distributions")]
#[test]
fn distributions_are_send_and_sync() {
    use pellucid::distributions::*;
    both![Bernoulli, Beta, Binomial, Categorical, Cauchy, Chi2, ContinuousBernoulli, Dirichlet, Exponential, Gamma];
    both![Geometric, Gumbel, HalfCauchy, HalfNormal, Independent<Normal>, Kumaraswamy, Laplace, LogNormal, Logistic];
    both![MixtureSameFamily<Normal>, Multinomial, MultivariateNormal, NegativeBinomial, Normal, OneHotCategorical];
    both![Pareto, Poisson, RelaxedBernoulli, RelaxedOneHotCategorical, StudentT, Uniform, VonMises, Weibull];
    both![TransformedDistribution<Normal, ExpTransform>, AffineTransform, ComposeTransform, PowerTransform, Constraint];
    both![FisherSnedecor, SigmoidTransform, SoftplusTransform, TanhTransform];
}

#[test]
fn metrics_and_logs_are_send_and_sync() {
    use pellucid::train::metrics::*;
    use pellucid::train::*;
    both![MultiLabelAccuracy, MultiLabelF1Score, LabelAverage, NamedMetric<Accuracy>];
    both![Accuracy, TopKAccuracy, Precision, Recall, F1Score, IntersectionOverUnion, ConfusionMatrix, RocAuc];
    both![AveragePrecision, LogLoss, Perplexity, MeanSquaredError, RootMeanSquaredError, MeanAbsoluteError, R2Score];
    both![Mean, MeanLoss<CrossEntropyLoss>, ClassAverage, ScoreKind, Goal];
    both![CsvLogger, JsonLinesLogger, History];
    both![BatchScores, EarlyStopping, FindLrOptions, FitControl, LrCurve, ScheduleUnit, Scores, StopReason];
    both![TrainingEvent<'_>];
    both![Supervised<'_, Sequential, Muon>];
    // A trainer runs on one thread at a time, and may move between threads.
    is_send::<Trainer<'_, Supervised<'_, Sequential, Muon>>>();
    is_send::<Vec<Box<dyn Metric>>>();
    is_send::<Vec<Box<dyn Logger>>>();
}

#[cfg(feature = "tensorboard")]
#[test]
fn event_files_are_send_and_sync() {
    use pellucid::train::{HyperparameterValue, TensorBoard};
    both![TensorBoard, HyperparameterValue];
}

/// A call of a step needs exclusive access, so threads share it through a mutex.
#[test]
fn steps_and_trainers_are_send_and_sync() {
    both![Captured<'_>, GraphExecLike<'_>, TrainGraph<'_>, InferenceModel<'_, Sequential>, TrainingStep<'_>];
    both![CudaGraphTrainer<'_, Sequential, Muon>];
    both![GraphTrainer<'_, Sequential, Muon>];
    both![GraphTrainer<'_, Sequential, Box<dyn Optimizer>, (Tensor, Tensor)>];
}

/// Returns true if a type is `Send`: the inherent constant has precedence over the constant of the trait.
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

/// Guards end a mode of their thread, so they are not `Send`. A local step has a closure that is bound to its thread. A
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
    // Arguments of callbacks, which borrow from one call.
    let arguments = [
        can_be_sent!(Visitor<'_>),
        can_be_sent!(ModulePart<'_>),
        can_be_sent!(StateLoad<'_>),
        can_be_sent!(UpdateContext<'_>),
        can_be_sent!(OutputGradients<'_>),
    ];
    assert_eq!(arguments, [false; 5]);
}
