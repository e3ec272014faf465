//! Checkpoints of training runs in files.

use crate::{Description, read, write};
use pellucid_nn::Checkpoint;
use pellucid_tensor::{Error, Result};
use std::borrow::Borrow;
use std::path::Path;

/// The metadata key that marks a file as a checkpoint. Its value is the version of the naming scheme.
const MARK: &str = "pellucid_checkpoint";
const VERSION: &str = "1";

/// Writes a checkpoint to one safetensors file, atomically, as [`save`](crate::save) does. An existing file is
/// replaced.
///
/// Save after a step, not between `backward` and the step: gradients are not part of a checkpoint. The checkpoint may
/// be borrowed or owned.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("pellucid-doc-checkpoint-{}", std::process::id()));
/// use pellucid::nn::Checkpoint;
/// use pellucid::prelude::*;
/// use pellucid::io;
///
/// /// The parts of a training run.
/// struct Run {
///     model: Linear,
///     optimizer: AdamW,
///     batches: Batches<1>,
/// }
///
/// impl Run {
///     fn new() -> Result<Run> {
///         let model = Linear::new(3, 1);
///         let optimizer = AdamW::new(model.parameters(), AdamWOptions::default());
///         let batches = Batches::new(&[&Tensor::ones([8, 3], DType::F32)], 2).shuffled(0);
///         Ok(Run { model, optimizer, batches })
///     }
///
///     fn checkpoint(&self, step: usize) -> Checkpoint<'_> {
///         Checkpoint::new().model(&self.model).optimizer(&self.optimizer).batches(&self.batches).step(step)
///     }
/// }
///
/// let run = Run::new()?;
/// io::save_checkpoint(&path, run.checkpoint(100))?;
///
/// // Another process continues.
/// let resumed = Run::new()?;
/// let step = io::load_checkpoint(&path, resumed.checkpoint(0))?;
/// assert_eq!(step, 100);
/// assert_eq!(resumed.model.weight.to_vec::<f32>(), run.model.weight.to_vec::<f32>());
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), Error>(())
/// ```
///
/// Every value is a tensor with the name of its part, so [`load`](crate::load) can also read the file: the weights are
/// the tensors whose names start with `model.`.
///
/// # Errors
/// The errors of [`save`](crate::save) and [`Checkpoint::state`]. On error the old file is unchanged.
pub fn save_checkpoint<'a>(path: impl AsRef<Path>, checkpoint: impl Borrow<Checkpoint<'a>>) -> Result<()> {
    write("save_checkpoint", path.as_ref(), &checkpoint.borrow().state()?, Some((MARK, VERSION)))
}

/// Restores the parts of a checkpoint in place, from a file written by [`save_checkpoint`], and returns the number of
/// steps. Training then continues bit for bit as if it had not been stopped.
///
/// # Errors
/// [`Error::File`](pellucid_tensor::Error::File) for a file that is not a checkpoint, or that [`load`](crate::load)
/// rejects; the errors of [`Checkpoint::load_state_dict`] for parts, names, shapes and dtypes that do not match. On
/// error nothing is changed.
pub fn load_checkpoint<'a>(path: impl AsRef<Path>, checkpoint: impl Borrow<Checkpoint<'a>>) -> Result<usize> {
    let path = path.as_ref();
    let state = read("load_checkpoint", path, check_mark)?;
    checkpoint.borrow().load_state_dict(&state).map_err(|error| with_path(error, path))
}

/// Restores some parts of a checkpoint from a file written by [`save_checkpoint`] in place, as
/// [`Checkpoint::load_parts`] does: the file may have further parts. For example, an inference program loads the input
/// scaler before it creates the model.
///
/// # Errors
/// [`Error::File`](pellucid_tensor::Error::File) as for [`load_checkpoint`]; the errors of [`Checkpoint::load_parts`].
/// On error nothing is changed.
pub fn load_checkpoint_parts<'a>(path: impl AsRef<Path>, checkpoint: impl Borrow<Checkpoint<'a>>) -> Result<()> {
    let path = path.as_ref();
    let state = read("load_checkpoint_parts", path, check_mark)?;
    checkpoint.borrow().load_parts(&state).map_err(|error| with_path(error, path))
}

/// Adds the path to the error for a part that does not match.
fn with_path(error: Error, path: &Path) -> Error {
    match error {
        Error::Checkpoint { part, source, .. } => {
            Error::Checkpoint { path: Some(path.display().to_string()), part, source }
        }
        other => other,
    }
}

fn check_mark(description: &Description<'_>) -> std::result::Result<(), String> {
    match description.get(MARK).copied() {
        Some(VERSION) => Ok(()),
        Some(other) => Err(format!("the checkpoint has version {other}, but this library reads version {VERSION}")),
        None => Err("this safetensors file is not a checkpoint of save_checkpoint(); load() reads its tensors".into()),
    }
}
