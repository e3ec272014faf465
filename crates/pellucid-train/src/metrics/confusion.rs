//! The confusion matrix.

use super::input::{ClassBatch, ClassificationOptions, metric_options};
use pellucid_derive::panicking_form;
use pellucid_tensor::{Error, Result, Tensor, unwrap};
use std::fmt;

/// The maximum number of classes. A matrix of this size occupies 2 GiB.
const MAX_CLASSES: usize = 1 << 14;

/// The number of samples for each pair of label (row) and predicted class (column).
///
/// It is updated like a [`Metric`](super::Metric), but has no single value. The matrix accepts all [forms of
/// outputs](super#outputs-and-targets-of-classification). `Display` prints a table.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::train::metrics::ConfusionMatrix;
/// let mut matrix = ConfusionMatrix::new(2).class_names(["cat", "dog"]);
/// matrix.update(&Tensor::from([[2.0, 1.0], [0.1, 0.3], [0.4, 0.2]]), &Tensor::from([0i64, 1, 1]))?;
/// assert_eq!(matrix.counts(), [[1, 0], [1, 1]]);
/// let table = "\
/// label \\ predicted  cat  dog
/// cat                  1    0
/// dog                  1    1
/// ";
/// assert_eq!(matrix.to_string(), table);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ConfusionMatrix {
    options: ClassificationOptions,
    names: Vec<String>,
    counts: Vec<Vec<u64>>,
}

metric_options!(ConfusionMatrix: threshold, ignore_index);

impl ConfusionMatrix {
    /// Creates a matrix for `classes` classes, for logits and without an ignored label.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for 0 or more than 16,384 classes.
    #[panicking_form]
    pub fn try_new(classes: usize) -> Result<ConfusionMatrix> {
        if !(1..=MAX_CLASSES).contains(&classes) {
            let reason = format!("the number of classes must be in 1..={MAX_CLASSES}, got {classes}");
            return Err(Error::invalid("confusion_matrix", reason));
        }
        let options = ClassificationOptions::default();
        Ok(ConfusionMatrix { options, names: Vec::new(), counts: vec![vec![0; classes]; classes] })
    }

    /// Sets the names of the classes, which `Display` prints instead of their indices.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless there is one name for each class.
    #[panicking_form]
    pub fn try_class_names(self, names: impl IntoIterator<Item = impl Into<String>>) -> Result<ConfusionMatrix> {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        if names.len() != self.counts.len() {
            let reason =
                format!("got {} names for {} classes; pass one name for each class", names.len(), self.counts.len());
            return Err(Error::invalid("confusion_matrix", reason));
        }
        Ok(ConfusionMatrix { names, ..self })
    }

    /// Adds the samples of a batch.
    ///
    /// # Errors
    /// The errors of [`Metric::update`](super::Metric::update); [`Error::InvalidArgument`] for a NaN score. The matrix
    /// is then unchanged.
    pub fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        let batch = ClassBatch::read("confusion_matrix", output, target, self.options)?;
        if batch.classes > self.counts.len() {
            let (classes_of_matrix, shape) = (self.counts.len(), output.shape());
            let reason = format!(
                "the matrix has {classes_of_matrix} classes, but an output of shape {shape} has {}",
                batch.classes
            );
            return Err(Error::invalid("confusion_matrix", reason));
        }
        if let Some(sample) = batch.nan_sample {
            let reason = format!("sample {sample} has a score of NaN, which predicts no class; check the model");
            return Err(Error::invalid("confusion_matrix", reason));
        }
        for (class, label) in batch.pairs {
            self.counts[label][class] += 1;
        }
        Ok(())
    }

    /// Returns the counts: a row for each label, with one count for each predicted class.
    pub fn counts(&self) -> &[Vec<u64>] {
        &self.counts
    }

    /// Returns the counts as a tensor `[C, C]` of `i64`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_to_tensor(&self) -> Result<Tensor> {
        let counts: Vec<i64> = self.counts.iter().flatten().map(|&count| count as i64).collect();
        Tensor::try_new(counts, [self.counts.len(), self.counts.len()])
    }

    /// Sets all counts to 0.
    pub fn reset(&mut self) {
        self.counts.iter_mut().for_each(|row| row.fill(0));
    }
}

impl fmt::Display for ConfusionMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |class: usize| self.names.get(class).cloned().unwrap_or_else(|| class.to_string());
        let header = std::iter::once("label \\ predicted".to_string()).chain((0..self.counts.len()).map(name));
        let row = |(label, counts): (usize, &Vec<u64>)| {
            std::iter::once(name(label)).chain(counts.iter().map(u64::to_string)).collect()
        };
        let rows: Vec<Vec<String>> =
            std::iter::once(header.collect()).chain(self.counts.iter().enumerate().map(row)).collect();
        crate::text_table::write_table(f, &rows)
    }
}
