//! The network as the general path sees it.

use std::sync::Arc;

use fresco_tensor::nn::{Conv2d, Linear, Padding};
use fresco_tensor::{Device, Tensor};

use super::blocks::LastLayer;
use super::conditions::{self, FluxConds};
use super::config::{FluxConfig, FluxKind};
use super::positions::Picture;
use super::radiance::PixelHead;
use super::style_tokens::StyleReference;
use super::trunk::Trunk;
use crate::DiffusionNetwork;
use crate::denoise::hook_points::{BLOCKS, CONTROL, HookPoints, OWN, OWN_INSIDE};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{EncodeArgs, ModelConds, ModelFacts, NetworkInput, PassMemory};
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_sampling::ModelSampling;
use crate::store::{Kernel, Walk};
use crate::transformer::{PatchOrder, circular_pad, from_tokens};

/// Feature maps that a pass holds at once, in widths of the network: what the widest layer makes, and what goes into it.
const HELD: usize = 20;

/// The transformer.
pub struct FluxNetwork {
    config: FluxConfig,
    trunk: Trunk,
    ends: Ends,
}

/// What goes in first and comes out last.
enum Ends {
    /// Of latents.
    Latent {
        image_in: Arc<Linear>,
        last: Box<LastLayer>,
    },
    /// Of pixels.
    Pixels {
        image_in: Arc<Conv2d>,
        head: Box<PixelHead>,
    },
}

impl Ends {
    fn new(weights: &Walk<'_>, config: &FluxConfig) -> Result<Self> {
        if let Some(pixels) = &config.pixels {
            let kernel = Kernel {
                out: config.hidden,
                input: config.in_channels,
                side: config.patch,
                bias: true,
            };
            let padding = Padding::Same(0);
            return Ok(Self::Pixels {
                image_in: weights.conv_with("img_in_patch", kernel, config.patch, padding)?,
                head: Box::new(PixelHead::new(weights, config, pixels)?),
            });
        }
        let tokens = config.in_channels * config.patch * config.patch;
        Ok(Self::Latent {
            image_in: weights.linear_with("img_in", config.hidden, tokens, config.bias)?,
            last: Box::new(LastLayer::new(&weights.at("final_layer"), config)?),
        })
    }
}

impl DiffusionNetwork for FluxNetwork {
    type Config = FluxConfig;

    const HOOKS: HookPoints = HookPoints(&[
        (BlockKind::DOUBLE, &[BLOCKS, CONTROL, OWN]),
        (BlockKind::SINGLE, &[BLOCKS, CONTROL, OWN_INSIDE]),
    ]);

    fn facts(config: &FluxConfig) -> ModelFacts {
        let (latent, sampling) = match config.kind {
            FluxKind::Flux2 => (latent_format::FLUX2, ModelSampling::exponential_flow(2.02)),
            FluxKind::Chroma if config.pixels.is_some() => (
                latent_format::CHROMA_RADIANCE,
                ModelSampling::exponential_flow(1.15),
            ),
            FluxKind::Chroma => (latent_format::FLUX, ModelSampling::exponential_flow(1.15)),
            FluxKind::Flux1 if config.guidance => {
                (latent_format::FLUX, ModelSampling::exponential_flow(1.15))
            }
            FluxKind::Flux1 | FluxKind::Ovis => {
                (latent_format::FLUX, ModelSampling::flow(1.0, 1.0))
            }
        };
        ModelFacts {
            latent,
            latent_channels: config.out_channels,
            in_channels: config.in_channels,
            context: Some(config.context),
            model_channels: None,
            architecture: match config.kind {
                FluxKind::Flux1 if config.guidance => Some("flux-1-dev"),
                FluxKind::Flux1 => Some("flux-1-schnell"),
                _ => None,
            },
            pass: PassMemory::of_cells(config.patch * config.patch, config.hidden, HELD)
                .with_prompt(conditions::USUAL_TEXT),
            sampling,
        }
    }

    fn new(weights: &Walk<'_>, config: &FluxConfig) -> Result<Self> {
        Ok(Self {
            config: config.clone(),
            trunk: Trunk::new(weights, config)?,
            ends: Ends::new(weights, config)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let conds = FluxConds::read(input.conds)?;
        let config = &self.config;
        let [_, channels, h, w] = input.x.dims4()?;
        if channels != config.in_channels {
            let reason = format!(
                "the network takes {} channels, not {channels}",
                config.in_channels
            );
            return Err(ModelError::invalid("latent", reason));
        }
        let device = &self.trunk.device;
        let out = match &self.ends {
            Ends::Latent { image_in, last } => {
                let picture = Picture::new(input.x, conds.references, conds.method, config)?;
                let picture = picture.moved(input.hooks.beside().last());
                let image = image_in.forward(&picture.tokens.to(device)?)?;
                let style = input.hooks.beside::<StyleReference>().last();
                let items = image.dim(0)?;
                let style = style.map(|style| style.tokens(items, config.hidden, device));
                let style = style.transpose()?;
                let front = style.as_ref();
                let tokens = (image, front);
                let seen =
                    self.trunk
                        .forward(input, &conds, &picture, tokens, &mut |_, _, _| Ok(()))?;
                let norm = self.trunk.norm();
                let out = last.forward(&seen.image, norm, seen.vector.as_ref(), seen.last)?;
                let out = out.to(&Device::cpu())?;
                from_tokens(&out, picture.size, config.patch, PatchOrder::ChannelFirst)?
            }
            Ends::Pixels { image_in, head } => {
                let x = circular_pad(input.x, config.patch)?;
                let [b, _, tall, wide] = x.dims4()?;
                let size = (tall / config.patch, wide / config.patch);
                let image = image_in.forward(&x.nchw_to_nhwc()?.to(device)?)?;
                let image = image.reshape([b, size.0 * size.1, config.hidden])?;
                let picture = Picture::of_size(size);
                let seen = self.trunk.forward(
                    input,
                    &conds,
                    &picture,
                    (image, None),
                    &mut |_, _, _| Ok(()),
                )?;
                let out = head.forward(&x, &seen.image, size)?;
                if config.pixels.as_ref().is_some_and(|pixels| pixels.clean) {
                    velocity(&x, &out, input.timesteps)?
                } else {
                    out
                }
            }
        };
        Ok(out.narrow(2, 0, h)?.narrow(3, 0, w)?)
    }

    fn encode(config: &FluxConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        conditions::encode(config, file, args)
    }
}

/// Where a network gives the clean picture: the way there from what it was given.
fn velocity(x: &Tensor, clean: &Tensor, levels: &[f32]) -> Result<Tensor> {
    let inverse: Vec<f32> = levels.iter().map(|t| 1.0 / t).collect();
    let inverse = Tensor::from_vec([levels.len(), 1, 1, 1], inverse)?;
    Ok(x.sub(clean)?.mul(&inverse)?)
}
