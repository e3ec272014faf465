//! Gradients as formulas: what is asked for, what must be saved for it, and where it is kept.

use super::definition::Formula;
use super::graph::Kind;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Which gradients are wanted, and which of them are added up: four bits per input, the lowest for
/// input 0. 0 is *not wanted*, k is *added into output k − 1*.
///
/// So `0x21` wants both inputs of a formula apart, and `0x11` their sum: one tensor that stands for
/// both gets one fused gradient. Only the first 16 inputs can be wanted, in at most 15 outputs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Wanted(pub u64);

impl Wanted {
    /// Inputs of which gradients can be wanted.
    pub const MOST_INPUTS: usize = 16;

    /// The gradients of the first `inputs` inputs, all apart.
    pub fn all(inputs: usize) -> Wanted {
        (0..inputs).fold(Wanted(0), |w, i| w.with(i, i))
    }

    /// The gradient of one input.
    pub fn only(input: usize) -> Wanted {
        Wanted(0).with(input, 0)
    }

    /// Also wants the gradient of `input`, added into `output`.
    ///
    /// # Panics
    /// For an input beyond the 16th or an output beyond the 15th.
    #[must_use]
    pub fn with(self, input: usize, output: usize) -> Wanted {
        assert!(input < Wanted::MOST_INPUTS && output < 15, "only gradients of 16 inputs in 15 outputs can be wanted");
        Wanted(self.0 & !(15 << (4 * input)) | (output as u64 + 1) << (4 * input))
    }

    /// The output into which the gradient of `input` is added, if it is wanted.
    pub fn output_of(self, input: usize) -> Option<usize> {
        let nibble = if input < Wanted::MOST_INPUTS { self.0 >> (4 * input) & 15 } else { 0 };
        (nibble as usize).checked_sub(1)
    }

    /// The number of outputs.
    pub fn outputs(self) -> usize {
        (0..Wanted::MOST_INPUTS).filter_map(|i| self.output_of(i)).max().map_or(0, |k| k + 1)
    }
}

/// What a gradient reads: its inputs in terms of the formula's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Read {
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
    /// Inputs are what `reads` says; outputs are the wanted gradients, in their order. Parameters
    /// keep their numbers.
    pub formula: Formula,
    /// What every input of `formula` is: inputs, then outputs, then incoming gradients, ascending,
    /// and nothing that is not needed.
    pub reads: Vec<Read>,
    pub(super) results: SmallVec<[Outcome; 2]>,
}

/// What is known of one wanted gradient.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Zero,
    Passes(usize),
    Computed,
}

impl Gradient {
    /// True if the gradient `k` is zero whatever the values are: the formula is flat in these inputs,
    /// or they are no numbers.
    #[inline]
    pub fn is_zero(&self, k: usize) -> bool {
        self.results[k] == Outcome::Zero
    }

    /// The incoming gradient that the gradient `k` *is*, unchanged: it needs no kernel.
    #[inline]
    pub fn passes(&self, k: usize) -> Option<usize> {
        match self.results[k] {
            Outcome::Passes(j) => Some(j),
            _ => None,
        }
    }
}

/// The gradients that were asked for so far.
///
/// The common requests (up to three inputs, up to three outputs, every incoming gradient there) have
/// a place of their own, found without hashing or locking; the others share a table.
#[derive(Default)]
pub(super) struct Gradients {
    common: OnceLock<Box<[OnceLock<Arc<Gradient>>; 64]>>,
    others: Mutex<HashMap<(Wanted, u64), Arc<Gradient>>>,
}

/// The place of a common request: two bits per input.
fn common(wanted: Wanted) -> Option<usize> {
    let w = wanted.0;
    (w & !0x333 == 0).then_some((w & 3 | w >> 2 & 12 | w >> 4 & 48) as usize)
}

impl Formula {
    /// The gradient of the outputs with respect to the wanted inputs, given the incoming gradients
    /// of all outputs.
    ///
    /// # Panics
    /// If an input is wanted that the formula does not have.
    #[track_caller]
    #[inline]
    pub fn gradient(&self, wanted: Wanted) -> Arc<Gradient> {
        self.gradient_given(wanted, u64::MAX)
    }

    /// The same, where incoming gradients are missing and count as zero: bit j of `present` says
    /// that the one of output j is there (outputs beyond the 64th count as there).
    #[track_caller]
    pub fn gradient_given(&self, wanted: Wanted, present: u64) -> Arc<Gradient> {
        // Outputs that are no numbers have no gradient to be missing.
        let numbers = self.inner.outputs.iter().take(64).enumerate().filter(|(_, o)| o.kind == Kind::Number);
        let all = numbers.fold(0, |all, (j, _)| all | 1 << j);
        let present = present & all;
        if let (true, Some(place)) = (present == all, common(wanted)) {
            let table = self.inner.gradients.common.get_or_init(|| Box::new([const { OnceLock::new() }; 64]));
            return table[place].get_or_init(|| Arc::new(self.differentiate(wanted, present))).clone();
        }
        let lock = || self.inner.gradients.others.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&(wanted, present)) {
            return known.clone();
        }
        let made = Arc::new(self.differentiate(wanted, present));
        lock().entry((wanted, present)).or_insert(made).clone()
    }
}
