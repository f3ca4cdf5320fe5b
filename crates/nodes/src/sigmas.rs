//! SIGMAS: noise levels to sample at, and what can be done with them.

pub mod edit;
pub mod of_model;
pub mod schedulers;

use fresco_graph::{NodeEntry, NodeError, NodeOutput, NodeResult, entry, row};
use fresco_models::ScheduleError;
use fresco_tensor::Tensor;

use crate::types::Sigmas;

pub static NODES: &[NodeEntry] = &[
    entry::<of_model::BasicScheduler>(),
    row(&schedulers::KARRAS),
    row(&schedulers::EXPONENTIAL),
    row(&schedulers::POLYEXPONENTIAL),
    row(&schedulers::LAPLACE),
    row(&schedulers::VARIANCE_PRESERVING),
    entry::<of_model::BetaSamplingScheduler>(),
    entry::<of_model::SDTurboScheduler>(),
    entry::<edit::SplitSigmas>(),
    entry::<edit::SplitSigmasDenoise>(),
    entry::<edit::FlipSigmas>(),
    entry::<edit::SetFirstSigma>(),
    entry::<edit::ExtendIntermediateSigmas>(),
    entry::<of_model::SamplingPercentToSigma>(),
    entry::<edit::ManualSigmas>(),
    entry::<schedulers::AlignYourStepsScheduler>(),
    entry::<schedulers::GITSScheduler>(),
    entry::<schedulers::OptimalStepsScheduler>(),
    entry::<schedulers::Flux2Scheduler>(),
    entry::<schedulers::LTXVScheduler>(),
    entry::<schedulers::Ideogram4Scheduler>(),
];

fn sigmas_output(sigmas: Result<Vec<f32>, ScheduleError>) -> NodeResult {
    let sigmas = sigmas.map_err(failure)?;
    Ok(NodeOutput::one(Sigmas(Tensor::from_slice(&sigmas))))
}

fn failure(error: ScheduleError) -> NodeError {
    let kind = match &error {
        ScheduleError::NoTable { .. } | ScheduleError::UnknownModel { .. } => "KeyError",
        _ => "ValueError",
    };
    NodeError::failed(kind, error.to_string())
}

/// A number of steps from a widget or a link.
fn steps(value: i64) -> usize {
    usize::try_from(value).unwrap_or(0)
}
