//! Noise levels cut, turned, changed and typed in.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output, Value};
use fresco_models::schedules::{self, Ease};
use fresco_tensor::Tensor;

use super::{sigmas_output, steps};
use crate::python_rules::{round, slice};
use crate::types::Sigmas;

fn two(
    sigmas: &[f32],
    first: std::ops::Range<usize>,
    second: std::ops::Range<usize>,
) -> NodeResult {
    let part = |range| Value::from(Sigmas(Tensor::from_slice(&sigmas[range])));
    Ok(NodeOutput::slots(vec![part(first), part(second)]))
}

/// Cuts a schedule in two at a step; both parts have the level of the cut.
#[derive(Node)]
#[node(id = "SplitSigmas", v3, module = "comfy_extras.nodes_custom_sampler", category = "sampling/custom_sampling/sigmas", outputs(Output::new("SIGMAS").named("high_sigmas"), Output::new("SIGMAS").named("low_sigmas")))]
pub struct SplitSigmas {
    sigmas: Sigmas,
    /// Number of steps of the first part.
    #[input(default = 0, min = 0, max = 10000)]
    step: i64,
}

impl Node for SplitSigmas {
    fn run(self, _: &Cx) -> NodeResult {
        let sigmas = self.sigmas.0.data();
        let len = sigmas.len();
        two(
            sigmas,
            slice(0, self.step.saturating_add(1), len),
            slice(self.step, i64::MAX, len),
        )
    }
}

/// Cuts off the last part of a schedule, given as a part of its steps.
#[derive(Node)]
#[node(id = "SplitSigmasDenoise", v3, module = "comfy_extras.nodes_custom_sampler", category = "sampling/custom_sampling/sigmas", outputs(Output::new("SIGMAS").named("high_sigmas"), Output::new("SIGMAS").named("low_sigmas")))]
pub struct SplitSigmasDenoise {
    sigmas: Sigmas,
    /// Share of the steps that the second part has.
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.01)]
    denoise: f64,
}

impl Node for SplitSigmasDenoise {
    fn run(self, _: &Cx) -> NodeResult {
        let sigmas = self.sigmas.0.data();
        let len = sigmas.len();
        let all = len as i64;
        let kept = round(len.saturating_sub(1) as f64 * self.denoise).clamp(-all, all);
        // With nothing kept the first part is empty, as a slice up to -0 is.
        two(
            sigmas,
            slice(0, -kept, len),
            slice(-(kept + 1), i64::MAX, len),
        )
    }
}

/// Turns a schedule around, to go from picture to noise.
#[derive(Node)]
#[node(
    id = "FlipSigmas",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/sigmas",
    outputs("SIGMAS")
)]
pub struct FlipSigmas {
    sigmas: Sigmas,
}

impl Node for FlipSigmas {
    fn run(self, _: &Cx) -> NodeResult {
        let mut sigmas = self.sigmas.0.into_vec();
        sigmas.reverse();
        // Samplers divide by the first level.
        if let Some(first) = sigmas.first_mut()
            && *first == 0.0
        {
            *first = 0.0001;
        }
        Ok(NodeOutput::one(Sigmas(Tensor::from_slice(&sigmas))))
    }
}

/// Replaces the first noise level.
#[derive(Node)]
#[node(
    id = "SetFirstSigma",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/sigmas",
    outputs("SIGMAS")
)]
pub struct SetFirstSigma {
    sigmas: Sigmas,
    /// The noise level that takes the place of the first.
    #[input(default = 136.0, min = 0.0, max = 20000.0, step = 0.001, round = false)]
    sigma: f64,
}

impl Node for SetFirstSigma {
    fn run(self, _: &Cx) -> NodeResult {
        let mut sigmas = self.sigmas.0;
        let Some(first) = sigmas.data_mut().first_mut() else {
            return Err(NodeError::failed(
                "IndexError",
                "the schedule is empty, it has no first level",
            ));
        };
        *first = self.sigma as f32;
        Ok(NodeOutput::one(Sigmas(sigmas)))
    }
}

/// Puts further noise levels between those of a schedule.
#[derive(Node)]
#[node(
    id = "ExtendIntermediateSigmas",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/sigmas",
    outputs("SIGMAS")
)]
pub struct ExtendIntermediateSigmas {
    sigmas: Sigmas,
    /// Into how many steps each one is divided.
    #[input(default = 2, min = 1, max = 100)]
    steps: i64,
    /// Highest noise level at which a step is divided; -1 for any.
    #[input(default = -1.0, min = -1.0, max = 20000.0, step = 0.01, round = false)]
    start_at_sigma: f64,
    /// Lowest noise level at which a step is divided.
    #[input(default = 12.0, min = 0.0, max = 20000.0, step = 0.01, round = false)]
    end_at_sigma: f64,
    /// How new levels are spread.
    #[input(choices = ["linear", "cosine", "sine"])]
    spacing: String,
}

impl Node for ExtendIntermediateSigmas {
    fn run(self, _: &Cx) -> NodeResult {
        let start = if self.start_at_sigma < 0.0 {
            f32::INFINITY
        } else {
            self.start_at_sigma as f32
        };
        let ease = match self.spacing.as_str() {
            "linear" => Ease::Linear,
            "cosine" => Ease::Cosine,
            "sine" => Ease::Sine,
            other => return Err(NodeError::failed("KeyError", format!("'{other}'"))),
        };
        sigmas_output(schedules::extended(
            self.sigmas.0.data(),
            steps(self.steps),
            start,
            self.end_at_sigma as f32,
            ease,
        ))
    }
}

/// Noise levels typed in as numbers; everything between them is ignored.
#[derive(Node)]
#[node(
    id = "ManualSigmas",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "_for_testing/custom_sampling",
    outputs("SIGMAS"),
    experimental
)]
pub struct ManualSigmas {
    /// The noise levels as numbers with commas or blanks between them, highest first.
    #[input(default = "1, 0.5")]
    sigmas: String,
}

impl Node for ManualSigmas {
    fn run(self, _: &Cx) -> NodeResult {
        let sigmas = numbers(&self.sigmas)?;
        Ok(NodeOutput::one(Sigmas(Tensor::from_slice(&sigmas))))
    }
}

/// A sign, digits, dots and digits, of which only the last digits must be there; no exponents.
fn numbers(text: &str) -> Result<Vec<f32>, NodeError> {
    let bytes = text.as_bytes();
    let run = |from: usize, wanted: fn(&u8) -> bool| {
        from + bytes[from..].iter().take_while(|b| wanted(b)).count()
    };
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let start = at + usize::from(matches!(bytes[at], b'+' | b'-'));
        let whole = run(start, u8::is_ascii_digit);
        let dots = run(whole, |b| *b == b'.');
        let decimals = run(dots, u8::is_ascii_digit);
        let end = if decimals > dots {
            decimals
        } else if whole > start {
            whole
        } else {
            at += 1;
            continue;
        };
        // Only ASCII was matched, so these are character borders.
        let number = &text[at..end];
        let value: f64 = number.parse().map_err(|_| {
            NodeError::value_error(format!("could not convert string to float: '{number}'"))
        })?;
        out.push(value as f32);
        at = end;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_text() {
        assert_eq!(
            numbers("14.6 é7.0,3 -.5 +2e3").unwrap(),
            [14.6, 7.0, 3.0, -0.5, 2.0, 3.0]
        );
        assert_eq!(numbers("1. 5- .").unwrap(), [1.0, 5.0]);
        assert!(numbers("1..5").is_err());
        assert!(numbers("").unwrap().is_empty());
    }
}
