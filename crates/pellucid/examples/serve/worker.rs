//! The thread that computes embeddings.

use crate::batching::next_batch;
use crate::bert::{Bert, padded};
use pellucid::nn::graph::InferenceModel;
use pellucid::prelude::*;
use std::sync::mpsc::Receiver;
use std::time::Duration;
use tokio::sync::oneshot;

/// The encoder with its recordings.
pub(crate) type Encoder = InferenceModel<'static, Bert, (Tensor, Tensor)>;

/// The embedding of a text, or an error message.
pub(crate) type Answer = std::result::Result<Vec<f32>, String>;

/// A text to embed.
pub(crate) struct Job {
    /// The token ids.
    pub(crate) ids: Vec<i64>,
    /// The channel of the answer. It is closed if the request has timed out.
    pub(crate) reply: oneshot::Sender<Answer>,
}

/// Answers jobs in batches until all senders are dropped.
pub(crate) fn run(encoder: &mut Encoder, jobs: &Receiver<Job>, max_batch: usize, max_wait: Duration) {
    while let Some(mut batch) = next_batch(jobs, max_batch, max_wait) {
        batch.retain(|job| !job.reply.is_closed());
        if !batch.is_empty() {
            answer(encoder, batch);
        }
    }
}

fn answer(encoder: &mut Encoder, batch: Vec<Job>) {
    let (ids, replies): (Vec<_>, Vec<_>) = batch.into_iter().map(|job| (job.ids, job.reply)).unzip();
    let embeddings = encoder.run(&padded(&ids, usize::MAX));
    for (row, reply) in replies.into_iter().enumerate() {
        let own = match &embeddings {
            Ok(all) => Ok(all.select(0, row as isize).to_vec()),
            Err(error) => Err(error.to_string()),
        };
        // An error means that the request has timed out.
        let _ = reply.send(own);
    }
}
