//! Why models cannot be had, or asked about.

use fresco_tensor::TensorError;

use crate::amount::readable;
use crate::{BoxError, WeightsId};

/// Why a use of models cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error(
        "{device} has no room: {} are wanted, {} of its {} are free. {would_fit}",
        readable(*.wanted), readable(*.free), readable(*.capacity)
    )]
    NoRoom {
        device: String,
        wanted: u64,
        free: u64,
        capacity: u64,
        /// What could be done, in a sentence.
        would_fit: String,
    },
    #[error(
        "the main memory cannot hold the model: {} are wanted, {} can be had",
        readable(*.wanted), readable(*.available)
    )]
    Host { wanted: u64, available: u64 },
    #[error("cannot load {weights}")]
    Load {
        weights: WeightsId,
        source: BoxError,
    },
    #[error(transparent)]
    Device(#[from] TensorError),
}

/// The record of weights is gone although something refers to them: their loader must run again.
#[derive(Debug, thiserror::Error)]
#[error("the weights were removed; run the loader again")]
pub struct WeightsRemoved;
