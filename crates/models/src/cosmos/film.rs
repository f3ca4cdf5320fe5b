//! The network as a model of films by itself: what goes into it.

use fresco_tensor::{Axes, Tensor};

use super::config::CosmosConfig;
use super::model::CosmosDit;
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, HookPoints, OWN, PROMPT};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{
    CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput, names,
};
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_sampling::{ModelSampling, Prediction};
use crate::store::Walk;

/// Deviation of the latents of the first generation.
const DEVIATION: f64 = 0.5;
/// What the network is told of frames a second, and of what is known.
const RATE: &str = "fps";
const KNOWN: &str = "denoise_mask";

pub struct CosmosNetwork(CosmosDit);

conds! {
    /// What the network is told besides the latent.
    struct CosmosConds<'a> {
        prompt: &'a Tensor = names::PROMPT,
        rate: Option<f64> = RATE,
        known: Option<&'a Tensor> = KNOWN,
    }
}

impl DiffusionNetwork for CosmosNetwork {
    type Config = CosmosConfig;

    const HOOKS: HookPoints = HookPoints(&[(BlockKind::DOUBLE, &[BLOCKS, OWN, PROMPT])]);

    fn facts(config: &CosmosConfig) -> ModelFacts {
        let first = config.places.is_some();
        ModelFacts {
            latent: if first {
                latent_format::COSMOS
            } else {
                latent_format::WAN21
            },
            latent_channels: config.out_channels,
            in_channels: config.in_channels,
            context: Some(config.context),
            model_channels: None,
            architecture: None,
            pass: config.pass(),
            sampling: if first {
                ModelSampling::continuous_edm(Prediction::Edm, 0.002, 80.0, DEVIATION)
            } else {
                ModelSampling::ratio_flow(0.002, 80.0, 1.0)
            },
        }
    }

    fn new(weights: &Walk<'_>, config: &CosmosConfig) -> Result<Self> {
        Ok(Self(CosmosDit::new(weights, config)?))
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let conds = CosmosConds::read(input.conds)?;
        let prompt = conds.prompt;
        let rate = conds.rate.filter(|rate| *rate > 0.0);
        let levels = match conds.known {
            Some(mask) => by_frame(input.timesteps, mask)?,
            None => input.timesteps.to_vec(),
        };
        self.0
            .forward_at(input.x, &levels, prompt, rate, input.hooks)
    }

    fn encode(config: &CosmosConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let tokens = args.prompt_of_width(config.context, file)?;
        conds.insert(names::PROMPT, CondValue::Regular(tokens.clone()));
        let &[count, _, frames, h, w] = args.noise.shape() else {
            let reason = format!("{:?} is not the shape of a film", args.noise.shape());
            return Err(ModelError::invalid("latent", reason));
        };
        let first = config.places.is_some();
        if let Some(rate) = args.cond.numbers.get("frame_rate").filter(|_| first) {
            conds.insert(RATE, CondValue::Constant(*rate));
        }
        let mask = args.denoise_mask.filter(|mask| mask.rank() == 5);
        match config.in_channels - config.out_channels {
            0 => {}
            1 => {
                // Ones where it is known.
                let known = match mask {
                    Some(mask) => mask.narrow(1, 0, 1)?.rsub_scalar(1.0),
                    None => Tensor::zeros([count, 1, frames, h, w])?,
                };
                conds.insert(names::BESIDE, CondValue::NoiseShape(known));
            }
            extra => {
                let reason =
                    format!("it takes {extra} channels beside the latent, which is not known");
                return Err(ModelError::unsupported(file, reason));
            }
        }
        if let Some(mask) = mask.filter(|_| !first) {
            let mask = mask.mean(&[1], Axes::Keep)?;
            conds.insert(KNOWN, CondValue::NoiseShape(mask));
        }
        Ok(conds)
    }

    fn sees_known_clean(_: &CosmosConfig) -> bool {
        true
    }

    fn known_scale(config: &CosmosConfig, sigma: f32) -> f32 {
        if config.places.is_some() {
            // As if it had no noise, whatever the level.
            let deviation = DEVIATION as f32;
            (sigma * sigma + deviation * deviation).sqrt() / deviation
        } else {
            1.0 / (1.0 - sigma / (sigma + 1.0))
        }
    }
}

/// The level of each frame: the less of it there is to make, the lower.
fn by_frame(levels: &[f32], mask: &Tensor) -> Result<Vec<f32>> {
    let frames = mask.mean(&[1, 3, 4], Axes::Drop)?;
    let per_item = frames.dim(1)?;
    let frames = frames.data().chunks(per_item.max(1)).zip(levels);
    Ok(frames
        .flat_map(|(frames, level)| frames.iter().map(move |share| share * level))
        .collect())
}
