//! Why a model cannot be loaded or run.

use fresco_tensor::{TensorError, WeightError};

/// Result of loading or running a network.
pub(crate) type Result<T, E = ModelError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error(transparent)]
    Weights(Box<WeightError>),
    #[error("{file} lacks the weight {key:?}")]
    Missing { file: String, key: String },
    #[error("{file}: weight {key:?} has shape {found:?}, but {expected} is needed")]
    Shape {
        file: String,
        key: String,
        expected: String,
        found: Vec<usize>,
    },
    #[error("{file}: weight {key:?} cannot be used")]
    Layer {
        file: String,
        key: String,
        source: TensorError,
    },
    #[error("{file}: {reason}")]
    Unsupported { file: String, reason: String },
    #[error("{what}: {reason}")]
    Invalid { what: &'static str, reason: String },
    /// Memory ran out, and everything that could be done about it was done.
    #[error("{reason}")]
    NoRoom { reason: String },
    #[error("the run was cancelled")]
    Cancelled,
}

impl ModelError {
    pub fn invalid(what: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid {
            what,
            reason: reason.into(),
        }
    }

    pub fn unsupported(file: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Unsupported {
            file: file.into(),
            reason: reason.into(),
        }
    }
}

impl From<WeightError> for ModelError {
    fn from(error: WeightError) -> Self {
        // The largest of the errors; boxed so that every other result stays small.
        Self::Weights(Box::new(error))
    }
}
