//! NOISE: where sampling starts from.

use std::collections::BTreeSet;

use fresco_graph::{
    Cx, FromValue, Node, NodeError, NodeOutput, NodeResult, Opaque, Value, wrong_kind,
};
use fresco_tensor::{Generator, Tensor};

use super::Model;
use crate::types::{Latent, Sigmas};

/// A latent whose `batch_index` asks for noise beyond this is refused: each number up to it costs a draw.
const MAX_BATCH_INDEX: usize = 1 << 20;

/// NOISE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noise {
    Random {
        seed: u64,
    },
    /// Zeros.
    Disabled,
}

impl Noise {
    /// What samplers that draw noise themselves start from.
    pub fn seed(self) -> u64 {
        match self {
            Self::Random { seed } => seed,
            Self::Disabled => 0,
        }
    }

    /// Noise in the shape of a latent, always drawn on the CPU so that a picture does not depend on the device. Items
    /// with a `batch_index` get the noise they would have at that place of a batch.
    pub fn generate(self, latent: &Latent) -> Result<Tensor, NodeError> {
        self.draw(latent).map(|(noise, _)| noise)
    }

    /// The same, with the generator after the draw: a few samplers go on with it.
    pub fn draw(self, latent: &Latent) -> Result<(Tensor, Generator), NodeError> {
        let mut generator = Generator::new(self.seed());
        let noise = self.draw_for(latent.samples()?, latent, &mut generator)?;
        Ok((noise, generator))
    }

    /// Noise for each part of a latent that has several, one after the other.
    pub fn draw_parts(
        self,
        parts: &[Tensor],
        latent: &Latent,
    ) -> Result<(Vec<Tensor>, Generator), NodeError> {
        let mut generator = Generator::new(self.seed());
        let noise = parts
            .iter()
            .map(|part| self.draw_for(part, latent, &mut generator));
        let noise = noise.collect::<Result<_, _>>()?;
        Ok((noise, generator))
    }

    /// Noise in the shape of these samples of a latent.
    fn draw_for(
        self,
        samples: &Tensor,
        latent: &Latent,
        generator: &mut Generator,
    ) -> Result<Tensor, NodeError> {
        if self == Self::Disabled {
            return Ok(Tensor::zeros(samples.shape())?);
        }
        let Some(index) = latent.0.get("batch_index").and_then(Value::as_list) else {
            return Ok(generator.randn(samples.shape())?);
        };
        let index = index
            .iter()
            .map(|v| usize::from_value(v.clone()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| NodeError::type_error(format!("batch_index: {e}")))?;
        let wanted: BTreeSet<usize> = index.iter().copied().collect();
        let Some(&last) = wanted.last() else {
            return Err(NodeError::value_error("batch_index is empty"));
        };
        if last > MAX_BATCH_INDEX {
            return Err(NodeError::value_error(format!(
                "batch_index {last} is beyond {MAX_BATCH_INDEX}"
            )));
        }
        let mut shape = samples.shape().to_vec();
        let Some(batch) = shape.first_mut() else {
            return Err(NodeError::runtime("a latent needs a batch dimension"));
        };
        *batch = 1;
        let mut kept = Vec::with_capacity(wanted.len());
        for i in 0..=last {
            let noise = generator.randn(&shape)?;
            if wanted.contains(&i) {
                kept.push(noise);
            }
        }
        let unique: Vec<usize> = wanted.into_iter().collect();
        let items: Vec<&Tensor> = index
            .iter()
            .filter_map(|i| unique.binary_search(i).ok())
            .map(|at| &kept[at])
            .collect();
        Ok(Tensor::cat(&items, 0)?)
    }
}

/// What a run starts from: noise that is drawn, or somebody else's.
#[derive(Clone)]
pub enum StartNoise {
    Drawn(Noise),
    /// As it is, with the seed it was made of.
    Given(Tensor, u64),
    /// An object of another process draws it.
    Own(Value),
}

impl StartNoise {
    /// What samplers that draw noise themselves start from.
    pub fn seed(&self) -> u64 {
        match self {
            Self::Drawn(noise) => noise.seed(),
            Self::Given(_, seed) => *seed,
            Self::Own(value) => super::own::seed_of(value),
        }
    }

    /// Noise in the shape of a latent, and the generator with which a few samplers go on.
    pub fn draw(&self, latent: &Latent) -> Result<(Tensor, Generator), NodeError> {
        let noise = match self {
            Self::Drawn(noise) => return noise.draw(latent),
            Self::Given(noise, _) => noise.clone(),
            Self::Own(value) => super::own::draw(value, latent)?,
        };
        let wanted = latent.samples()?.shape();
        if noise.shape() != wanted {
            return Err(NodeError::value_error(format!(
                "the noise has shape {:?}, but the latent to sample has {wanted:?}",
                noise.shape()
            )));
        }
        Ok((noise, Generator::new(self.seed())))
    }

    /// The same for a latent of several parts.
    pub fn draw_parts(
        &self,
        parts: &[Tensor],
        latent: &Latent,
    ) -> Result<(Vec<Tensor>, Generator), NodeError> {
        match self {
            Self::Drawn(noise) => noise.draw_parts(parts, latent),
            Self::Given(..) | Self::Own(_) => Err(NodeError::value_error(format!(
                "a latent of {} parts takes noise from a seed: noise that a pack made is one tensor",
                parts.len()
            ))),
        }
    }
}

impl From<Noise> for StartNoise {
    fn from(noise: Noise) -> Self {
        Self::Drawn(noise)
    }
}

impl FromValue for StartNoise {
    const IO: &'static str = "NOISE";
    fn from_value(value: Value) -> Result<Self, String> {
        if let Value::Object(object) = &value
            && object.callback().is_some()
        {
            return Ok(Self::Own(value));
        }
        Noise::from_value(value).map(Self::Drawn)
    }
}

impl Opaque for Noise {
    fn describe(&self) -> String {
        match self {
            Self::Random { seed } => format!("noise of seed {seed}"),
            Self::Disabled => "no noise".into(),
        }
    }
}

impl FromValue for Noise {
    const IO: &'static str = "NOISE";
    fn from_value(value: Value) -> Result<Self, String> {
        value
            .downcast::<Self>()
            .copied()
            .ok_or_else(|| wrong_kind(Self::IO, &value))
    }
}

impl From<Noise> for Value {
    fn from(v: Noise) -> Self {
        Self::object(v)
    }
}

/// Noise from a seed.
#[derive(Node)]
#[node(
    id = "RandomNoise",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/noise",
    outputs("NOISE")
)]
pub struct RandomNoise {
    #[input(default = 0, min = 0, max = u64::MAX, control_after_generate = true)]
    noise_seed: u64,
}

impl Node for RandomNoise {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(Noise::Random {
            seed: self.noise_seed,
        }))
    }
}

/// No noise: sampling goes on from the latent as it is.
#[derive(Node)]
#[node(
    id = "DisableNoise",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/noise",
    outputs("NOISE")
)]
pub struct DisableNoise;

impl Node for DisableNoise {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(Noise::Disabled))
    }
}

/// Puts noise of a schedule's strength onto a latent.
#[derive(Node)]
#[node(
    id = "AddNoise",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "_for_testing/custom_sampling/noise",
    outputs("LATENT"),
    experimental
)]
pub struct AddNoise {
    model: Model,
    /// The noise to add.
    noise: Noise,
    sigmas: Sigmas,
    latent_image: Latent,
}

impl Node for AddNoise {
    fn run(self, _: &Cx) -> NodeResult {
        let scale = match *self.sigmas.0.data() {
            [] => return Ok(NodeOutput::one(self.latent_image)),
            [only] => only,
            [first, .., last] => (first - last).abs(),
        };
        let noise = self.noise.generate(&self.latent_image)?;
        let mut samples = self.latent_image.samples()?.clone();
        // An empty latent stays empty, whatever the format would make of zeros.
        if samples.data().iter().any(|v| *v != 0.0) {
            samples = self.model.process_latent_in(&samples)?;
        }
        let noisy = self
            .model
            .sampling
            .noise_scaling(scale, &noise, &samples, false)?;
        let noisy = self
            .model
            .process_latent_out(&noisy)?
            .map(|v| if v.is_finite() { v } else { 0.0 });
        Ok(NodeOutput::one(
            self.latent_image.with_tensor("samples", noisy),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latent(count: usize) -> Latent {
        Latent::new(Tensor::zeros([count, 4, 8, 8]).unwrap())
    }

    #[test]
    fn batch_index_picks_the_noise_of_a_place() {
        let noise = Noise::Random { seed: 42 };
        let batch = noise.generate(&latent(3)).unwrap();
        let picked = noise
            .generate(&latent(3).with("batch_index", vec![2, 0, 2]))
            .unwrap();
        let order = batch.index_select(0, &[2, 0, 2]).unwrap();
        assert_eq!(picked.data(), order.data());
        let absurd = latent(1).with("batch_index", vec![i64::MAX]);
        assert!(noise.generate(&absurd).is_err());
        let negative = latent(1).with("batch_index", vec![-1]);
        assert!(noise.generate(&negative).is_err());
    }
}
