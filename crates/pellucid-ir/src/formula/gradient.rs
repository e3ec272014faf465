//! Gradients as formulas: the request, the values to save, and the cache.

use super::Formula;
use super::graph::{Input, ValueKind};
use super::memo::Memo;
use smallvec::SmallVec;

/// The requested gradients and their outputs, in four bits for each input; the lowest bits are for input 0. The value 0
/// means *not requested*, k means *added into output k − 1*.
///
/// `0x21` requests separate gradients of two inputs, `0x11` their sum: a tensor that is passed as both inputs gets one
/// fused gradient. Only the first 16 inputs can be requested together, in at most 15 outputs. A later input can only be
/// requested alone ([`GradientRequest::for_input`]): the bits `ALONE` and the index of the input.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct GradientRequest(pub u64);

impl GradientRequest {
    /// The maximum number of inputs whose gradients can be requested together.
    pub const MAX_INPUTS: usize = 16;
    /// The maximum number of outputs of one request.
    pub const MAX_OUTPUTS: usize = 15;
    /// The mark of a request for one input beyond the 16th, whose index is in the lowest bits. A request that adds the
    /// gradient of input 15 into output 14 sets these bits too, but its other outputs 0 to 13 also set bits above any
    /// index.
    const ALONE: u64 = 15 << 60;

    /// Requests separate gradients of the first `inputs` inputs.
    pub fn all(inputs: usize) -> GradientRequest {
        (0..inputs).fold(GradientRequest(0), |request, i| request.with(i, i))
    }

    /// Requests the gradient of one input.
    #[inline]
    pub fn for_input(input: usize) -> GradientRequest {
        if input < GradientRequest::MAX_INPUTS {
            GradientRequest(0).with(input, 0)
        } else {
            GradientRequest(GradientRequest::ALONE | input as u64)
        }
    }

    /// Returns the requested input if it is beyond the 16th, so that it is requested alone.
    #[inline(always)]
    fn single_input(self) -> Option<usize> {
        let input = (self.0 ^ GradientRequest::ALONE) as usize;
        (GradientRequest::MAX_INPUTS..=255).contains(&input).then_some(input)
    }

    /// Also requests the gradient of `input`, added into `output`. In a complete request, the outputs must be numbered
    /// without gaps.
    ///
    /// # Panics
    /// Panics for an input beyond the 16th or an output beyond the 15th.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn with(self, input: usize, output: usize) -> GradientRequest {
        let fits = input < GradientRequest::MAX_INPUTS && output < GradientRequest::MAX_OUTPUTS;
        assert!(fits, "a gradient request must be for one of the first 16 inputs, in one of the first 15 outputs");
        GradientRequest(self.0 & !(15 << (4 * input)) | (output as u64 + 1) << (4 * input))
    }

    /// Returns the output into which the gradient of `input` is added; `None` if this gradient is not requested.
    #[inline]
    pub fn output_of(self, input: usize) -> Option<usize> {
        if let Some(single_input) = self.single_input() {
            return (input == single_input).then_some(0);
        }
        let nibble = if input < GradientRequest::MAX_INPUTS { self.0 >> (4 * input) & 15 } else { 0 };
        (nibble as usize).checked_sub(1)
    }

    /// Returns, for each output, the index of the first input whose gradient is added to it.
    pub fn first_inputs(self) -> SmallVec<[u8; 4]> {
        if let Some(single_input) = self.single_input() {
            return SmallVec::from_slice(&[single_input as u8]);
        }
        let first = |output| (0..GradientRequest::MAX_INPUTS).find(|&input| self.output_of(input) == Some(output));
        let first = |output| first(output).expect("outputs must be numbered without gaps") as u8;
        (0..self.outputs()).map(first).collect()
    }

    /// Returns the number of outputs.
    pub fn outputs(self) -> usize {
        if self.single_input().is_some() {
            return 1;
        }
        (0..GradientRequest::MAX_INPUTS).filter_map(|i| self.output_of(i)).max().map_or(0, |k| k + 1)
    }
}

/// The value that an input of a gradient formula reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum GradientInput {
    /// An input of the formula, which must be saved.
    Input(usize),
    /// An output of the formula, which must be saved.
    Output(usize),
    /// The incoming gradient of an output.
    Gradient(usize),
}

/// The gradient of a formula: again a formula, so it has gradients itself.
#[derive(Clone)]
pub struct Gradient {
    /// The gradient as a formula. `reads` lists the sources of its inputs; its outputs are the requested gradients, in
    /// order. Parameters keep their indices.
    pub formula: Formula,
    /// The source of every input of `formula`: inputs of the differentiated formula, then its outputs, then incoming
    /// gradients, each in ascending order.
    pub reads: Vec<GradientInput>,
    /// For each output of `formula`, the index of the first input whose gradient is added to it.
    pub first_inputs: SmallVec<[u8; 4]>,
    pub(super) results: SmallVec<[GradientStructure; 2]>,
}

/// How a requested gradient is obtained: it is zero, an incoming gradient, or computed by a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GradientStructure {
    Zero,
    /// The gradient equals the incoming gradient of this output.
    Passes(usize),
    Computed,
}

impl Gradient {
    /// Returns true if gradient `k` is zero for all values: the formula is constant in these inputs, or they are not
    /// numbers.
    #[inline]
    pub fn is_zero(&self, k: usize) -> bool {
        self.results[k] == GradientStructure::Zero
    }

    /// Returns the output whose incoming gradient equals gradient `k`, which then needs no kernel; `None` otherwise.
    #[inline]
    pub fn passes(&self, k: usize) -> Option<usize> {
        match self.results[k] {
            GradientStructure::Passes(j) => Some(j),
            _ => None,
        }
    }
}

/// The cache of [`Formula::with_accumulators`], by the set of outputs.
pub(super) type Sums = Memo<u64, Formula>;

/// The cache of [`Formula::gradient_given`], by the request and the set of present incoming gradients.
pub(super) type Gradients = Memo<(GradientRequest, u64), Gradient>;

impl Formula {
    /// Returns the gradient with respect to the requested inputs, given the incoming gradients of all outputs.
    ///
    /// # Panics
    /// Panics if the formula does not have a requested input.
    #[track_caller]
    #[inline]
    pub fn gradient(&self, request: GradientRequest) -> &Gradient {
        self.gradient_given(request, u64::MAX)
    }

    /// Returns the gradient for the case that some incoming gradients are missing and count as zero. Bit j of `present`
    /// is set if the incoming gradient of output j is present; incoming gradients of outputs beyond the 64th are always
    /// present.
    #[track_caller]
    #[inline]
    pub fn gradient_given(&self, request: GradientRequest, present: u64) -> &Gradient {
        let key = (request, present & self.inner.numbers);
        match self.inner.gradients.get(&key) {
            Some(known) => known,
            None => self.new_gradient(key),
        }
    }

    #[cold]
    #[track_caller]
    fn new_gradient(&self, key: (GradientRequest, u64)) -> &Gradient {
        let mut gradient = self.differentiate(key.0, key.1);
        if self.is_leaked() {
            gradient.formula = gradient.formula.leak();
        }
        self.inner.gradients.insert(key, gradient)
    }

    /// Returns the formula with some outputs added to accumulators. For every bit k that is set in `outputs`, the
    /// formula has one more input s, in order, and output k is s + yₖ. The addition is rounded separately, so the
    /// result is bit-identical to a separate addition if the compute type is the storage type.
    ///
    /// ```
    /// # extern crate pellucid_ir as pellucid;
    /// use pellucid::formula;
    /// let formula = formula! { parts(x, y) = (x * y, x - y) };
    /// assert_eq!(formula.with_accumulators(0b01).to_string(), "parts(x, y, s) = (s + x * y, x - y)");
    /// ```
    ///
    /// # Panics
    /// Panics if a bit refers to no output, or to an output that is not a number.
    #[track_caller]
    pub fn with_accumulators(&self, outputs: u64) -> &Formula {
        let sums = &self.inner.sums;
        sums.get(&outputs).unwrap_or_else(|| {
            let formula = self.build_with_accumulators(outputs);
            sums.insert(outputs, if self.is_leaked() { formula.leak() } else { formula })
        })
    }

    #[track_caller]
    fn build_with_accumulators(&self, outputs: u64) -> Formula {
        let (inner, inputs_before) = (&self.inner, self.inner.inputs.len());
        let added = |k: usize| k < 64 && outputs >> k & 1 == 1;
        let sum = |o: &super::graph::Output| Input { kind: ValueKind::Number, per_row: o.per_row };
        let (mut inputs, mut names) = (inner.inputs.clone(), inner.input_names.clone());
        inputs.extend(inner.outputs.iter().enumerate().filter(|(k, _)| added(*k)).map(|(_, o)| sum(o)));
        assert!(
            inputs.len() - inputs_before == outputs.count_ones() as usize,
            "formula `{}`: with_accumulators() can only add to outputs that exist",
            inner.name
        );
        names.extend(
            (inputs_before..inputs.len()).map(|i| {
                if inputs.len() == inputs_before + 1 { "s".into() } else { format!("s{}", i - inputs_before) }
            }),
        );
        let formula = Formula::new(inner.name, &inputs, inner.param_names.len(), |inputs, params| {
            let (inputs, sums) = inputs.split_at(inputs_before);
            let mut sums = sums.iter();
            let mut add_sum = |(k, y)| {
                if added(k) {
                    *sums.next().expect("each added output must have its own additional input") + y
                } else {
                    y
                }
            };
            self.call(inputs, params).into_iter().enumerate().map(&mut add_sum).collect()
        });
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        formula.with_names(&names, &inner.param_names.iter().map(String::as_str).collect::<Vec<_>>())
    }
}
