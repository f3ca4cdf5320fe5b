//! Joining and mixing conditionings.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_tensor::Tensor;

use super::joined;
use crate::types::{Cond, Conditioning, as_tensor, tensor};

/// The first entry of the conditioning that is mixed in; more are ignored, as in the reference.
fn first_of(from: &Conditioning) -> Result<&Cond, NodeError> {
    if from.0.len() > 1 {
        tracing::warn!("conditioning_from has more than one entry, only the first is used");
    }
    from.0.first().ok_or_else(|| {
        NodeError::failed(
            "IndexError",
            "list index out of range: conditioning_from is empty",
        )
    })
}

/// Uses two conditionings side by side.
#[derive(Node)]
#[node(
    id = "ConditioningCombine",
    v1,
    module = "nodes",
    display = "Conditioning (Combine)",
    category = "conditioning",
    outputs("CONDITIONING")
)]
pub struct ConditioningCombine {
    /// The first conditioning.
    conditioning_1: Conditioning,
    /// The second conditioning.
    conditioning_2: Conditioning,
}

impl Node for ConditioningCombine {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(joined(
            self.conditioning_1,
            self.conditioning_2,
        )))
    }
}

/// Appends the tokens of one conditioning to those of another.
#[derive(Node)]
#[node(
    id = "ConditioningConcat",
    v1,
    module = "nodes",
    display = "Conditioning (Concat)",
    category = "conditioning",
    outputs("CONDITIONING")
)]
pub struct ConditioningConcat {
    conditioning_to: Conditioning,
    conditioning_from: Conditioning,
}

impl Node for ConditioningConcat {
    fn run(mut self, _: &Cx) -> NodeResult {
        let from = first_of(&self.conditioning_from)?.tensor()?;
        for cond in &mut self.conditioning_to.0 {
            cond.tokens = tensor(Tensor::cat(&[cond.tensor()?, from], 1)?);
        }
        Ok(NodeOutput::one(self.conditioning_to))
    }
}

/// Mixes two conditionings.
#[derive(Node)]
#[node(
    id = "ConditioningAverage",
    v1,
    module = "nodes",
    category = "conditioning",
    outputs("CONDITIONING")
)]
pub struct ConditioningAverage {
    #[input(name = "conditioning_to")]
    to: Conditioning,
    #[input(name = "conditioning_from")]
    from: Conditioning,
    /// Share of the conditioning that is added to: 1 keeps it alone, 0 takes only the other.
    #[input(
        name = "conditioning_to_strength",
        default = 1.0,
        min = 0.0,
        max = 1.0,
        step = 0.01
    )]
    strength: f64,
}

impl Node for ConditioningAverage {
    fn run(mut self, _: &Cx) -> NodeResult {
        let first = first_of(&self.from)?;
        let from = first.tensor()?;
        let pooled_from = first.options.get("pooled_output").and_then(as_tensor);
        let (to_part, from_part) = (self.strength as f32, (1.0 - self.strength) as f32);
        let mix =
            |to: &Tensor, from: &Tensor| to.mul_scalar(to_part).add(&from.mul_scalar(from_part));
        for cond in &mut self.to.0 {
            let to = cond.tensor()?;
            let [_, tokens, width] = to.dims3()?;
            let have = from.dim(1)?.min(tokens);
            let mut from = from.narrow(1, 0, have)?;
            if have < tokens {
                let filler = Tensor::zeros([from.dim(0)?, tokens - have, width])?;
                from = Tensor::cat(&[&from, &filler], 1)?;
            }
            cond.tokens = tensor(mix(to, &from)?);
            if let Some(pooled_from) = pooled_from {
                let pooled = match cond.options.get("pooled_output").map(as_tensor) {
                    Some(Some(to)) => mix(to, pooled_from)?,
                    // An entry without one starts from the other's, which mixes to itself.
                    None => mix(pooled_from, pooled_from)?,
                    Some(None) => pooled_from.clone(),
                };
                cond.options.insert("pooled_output".into(), tensor(pooled));
            }
        }
        Ok(NodeOutput::one(self.to))
    }
}

/// A conditioning of zeros, in the shape of the given one.
#[derive(Node)]
#[node(
    id = "ConditioningZeroOut",
    v1,
    module = "nodes",
    category = "advanced/conditioning",
    outputs("CONDITIONING")
)]
pub struct ConditioningZeroOut {
    conditioning: Conditioning,
}

impl Node for ConditioningZeroOut {
    fn run(mut self, _: &Cx) -> NodeResult {
        let zeros = |t: &Tensor| Tensor::zeros(t.shape());
        for cond in &mut self.conditioning.0 {
            cond.tokens = tensor(zeros(cond.tensor()?)?);
            for key in ["pooled_output", "conditioning_lyrics"] {
                if let Some(t) = cond.options.get(key).and_then(as_tensor) {
                    let t = zeros(t)?;
                    cond.options.insert(key.into(), tensor(t));
                }
            }
        }
        Ok(NodeOutput::one(self.conditioning))
    }
}
