//! Failures of the model room as the engine reports them.

use std::error::Error;

use fresco_graph::NodeError;
use fresco_models::ModelError;
use fresco_models::samplers::SampleError;
use fresco_tensor::TensorError;

use crate::sampling::own::Foreign;

/// A failure of the model room as the engine reports it.
pub fn failure(error: ModelError) -> NodeError {
    match error {
        ModelError::Cancelled => NodeError::Interrupted,
        ModelError::Tensor(e) => tensor_failure(e),
        ModelError::Layer {
            file,
            key,
            source: source @ TensorError::DeviceFull { .. },
        } => NodeError::OutOfMemory {
            message: format!("{file}: no room for the weight {key}: {source}"),
        },
        ModelError::NoRoom { reason } => NodeError::OutOfMemory { message: reason },
        other => other.into(),
    }
}

fn tensor_failure(error: TensorError) -> NodeError {
    match error {
        TensorError::Cancelled => NodeError::Interrupted,
        TensorError::NoMemory { .. }
        | TensorError::TooLarge { .. }
        | TensorError::DeviceFull { .. } => NodeError::OutOfMemory {
            message: error.to_string(),
        },
        other => other.into(),
    }
}

/// The same for samplers, which carry errors of models along.
pub fn sample_failure(error: SampleError) -> NodeError {
    match error {
        SampleError::Cancelled => NodeError::Interrupted,
        SampleError::Tensor(e) => tensor_failure(e),
        SampleError::Model(e) => boxed_failure(e),
        other => NodeError::value_error(other.to_string()),
    }
}

fn boxed_failure(error: Box<dyn Error + Send + Sync>) -> NodeError {
    let error = match error.downcast::<Foreign>() {
        Ok(e) => return e.0,
        Err(e) => e,
    };
    match error.downcast::<ModelError>() {
        Ok(e) => failure(*e),
        Err(e) => NodeError::runtime(e.to_string()),
    }
}
