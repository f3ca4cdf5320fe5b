//! The half of a UNet that control nets have too: the embedding of the noise level, the encoder and the middle.

use std::sync::Arc;

use fresco_tensor::nn::{Act, After, ChannelParts, Conv2d, Linear};
use fresco_tensor::{Device, Tensor};

use super::config::{First, Stage, UNetConfig};
use super::layers::{Pass, Residual, Transformer, TransformerShape};
use crate::denoise::hooks::BlockKind;
use crate::epilogue::{before_norm, then};
use crate::error::{ModelError, Result};
use crate::store::Walk;
use crate::transformer::sinusoid;

/// A residual block or a convolution, perhaps a transformer after it.
pub(crate) enum UNetLayer {
    Conv(Arc<Conv2d>),
    Residual(Residual),
    Transformer(Transformer),
}

impl UNetLayer {
    pub(crate) fn forward(
        &self,
        x: impl Into<ChannelParts>,
        pass: &Pass<'_>,
        kind: BlockKind,
        number: usize,
    ) -> Result<Tensor> {
        let x = x.into();
        match self {
            Self::Conv(conv) => Ok(conv.forward_with(&x.joined()?, before_norm(After::default()))?),
            Self::Residual(block) => block.forward(x, pass),
            Self::Transformer(block) => block.forward(x.joined()?, pass, kind, number),
        }
    }
}

/// The layers with which the blocks among layers make the noise level their own.
pub(crate) fn level_layers<'a>(
    layers: impl Iterator<Item = &'a UNetLayer>,
) -> Vec<&'a Arc<Linear>> {
    let of_blocks = layers.filter_map(|layer| match layer {
        UNetLayer::Residual(block) => Some(block.level()),
        UNetLayer::Conv(_) | UNetLayer::Transformer(_) => None,
    });
    of_blocks.collect()
}

pub(crate) struct Trunk {
    config: UNetConfig,
    device: Device,
    time_in: Arc<Linear>,
    time_out: Arc<Linear>,
    label: Option<(Arc<Linear>, Arc<Linear>)>,
    input: Vec<Vec<UNetLayer>>,
    middle: Vec<UNetLayer>,
    /// Transformer blocks so far.
    pub(crate) slots: usize,
}

impl UNetConfig {
    pub(crate) fn transformer(&self, channels: usize, depth: usize) -> TransformerShape {
        TransformerShape {
            channels,
            depth,
            context: self.context_dim.unwrap_or(channels),
            heads: self.heads.of(channels),
            timed: self.timed,
        }
    }

    /// Channels between the encoder and the decoder.
    pub(crate) fn inner(&self) -> usize {
        self.input
            .last()
            .map_or(self.model_channels, |s| s.channels)
    }

    /// Channels of the skip connections, in the order the encoder makes them.
    pub(crate) fn skips(&self) -> Vec<usize> {
        self.input.iter().map(|stage| stage.channels).collect()
    }
}

impl Trunk {
    pub(crate) fn new(weights: &Walk<'_>, config: UNetConfig) -> Result<Self> {
        let (base, emb) = (config.model_channels, 4 * config.model_channels);
        let time_in = weights.linear("time_embed.0", emb, base)?;
        let time_out = weights.linear("time_embed.2", emb, emb)?;
        let label = match config.adm {
            Some(adm) => Some((
                weights.linear("label_emb.0.0", emb, adm)?,
                weights.linear("label_emb.0.2", emb, emb)?,
            )),
            None => None,
        };
        let mut slots = 0;
        let mut input = Vec::new();
        let mut at = config.in_channels;
        for (number, stage) in config.input.iter().enumerate() {
            let weights = weights.at("input_blocks").at(number);
            input.push(Self::stage(&weights, &config, at, *stage, &mut slots)?);
            at = stage.channels;
        }
        let inside = weights.at("middle_block");
        let mut middle = Vec::new();
        if config.middle.residuals > 0 {
            let block = Residual::new(&inside.at(0), (at, at), emb, config.timed)?;
            middle.push(UNetLayer::Residual(block));
        }
        if config.middle.depth > 0 {
            let shape = config.transformer(at, config.middle.depth);
            let block = Transformer::new(&inside.at(1), shape, &mut slots)?;
            middle.push(UNetLayer::Transformer(block));
        }
        if config.middle.residuals > 1 {
            let block = Residual::new(&inside.at(2), (at, at), emb, config.timed)?;
            middle.push(UNetLayer::Residual(block));
        }
        Ok(Self {
            time_in,
            time_out,
            label,
            input,
            middle,
            slots,
            device: weights.device().clone(),
            config,
        })
    }

    /// All layers, in their order.
    pub(crate) fn layers(&self) -> impl Iterator<Item = &UNetLayer> {
        self.input.iter().flatten().chain(&self.middle)
    }

    fn stage(
        weights: &Walk<'_>,
        config: &UNetConfig,
        input: usize,
        stage: Stage,
        slots: &mut usize,
    ) -> Result<Vec<UNetLayer>> {
        let (out, emb) = (stage.channels, 4 * config.model_channels);
        let mut steps = vec![match stage.first {
            First::Conv => UNetLayer::Conv(weights.conv("0", out, input, 3, 1)?),
            First::Down => UNetLayer::Conv(weights.conv("0.op", out, input, 3, 2)?),
            First::Residual => {
                let block = Residual::new(&weights.at(0), (input, out), emb, config.timed)?;
                UNetLayer::Residual(block)
            }
        }];
        if stage.depth > 0 {
            let shape = config.transformer(out, stage.depth);
            let block = Transformer::new(&weights.at(1), shape, slots)?;
            steps.push(UNetLayer::Transformer(block));
        }
        Ok(steps)
    }

    pub(crate) fn config(&self) -> &UNetConfig {
        &self.config
    }

    /// Refuses what the network cannot take.
    pub(crate) fn check(
        &self,
        x: &Tensor,
        timesteps: &[f32],
        context: Option<&Tensor>,
        y: Option<&Tensor>,
    ) -> Result<()> {
        let refuse = |reason: String| Err(ModelError::invalid("unet", reason));
        let [b, c, h, w] = *x.shape() else {
            return refuse(format!(
                "a latent of shape {:?} is not a picture",
                x.shape()
            ));
        };
        if b == 0 || h == 0 || w == 0 {
            return refuse(format!("a latent of shape {:?} is empty", x.shape()));
        }
        if c != self.config.in_channels {
            return refuse(format!(
                "the network takes {} channels, the latent has {c}",
                self.config.in_channels
            ));
        }
        if timesteps.len() != b {
            return refuse(format!("{} noise levels for {b} items", timesteps.len()));
        }
        match (self.config.context_dim, context) {
            (Some(width), Some(context)) => match *context.shape() {
                [items, n, found] => {
                    if found != width {
                        return refuse(format!(
                            "the prompt is {found} values wide, the network wants {width}: it was \
                             encoded for another kind of model"
                        ));
                    }
                    if items != b || n == 0 {
                        return refuse(format!(
                            "a prompt of shape {:?} for {b} items",
                            context.shape()
                        ));
                    }
                }
                _ => return refuse(format!("a prompt of shape {:?}", context.shape())),
            },
            (Some(_), None) => return refuse("the network needs a prompt".to_owned()),
            (None, _) => {}
        }
        match (self.config.adm, y) {
            (Some(adm), Some(y)) if y.shape() != [b, adm] => refuse(format!(
                "the network takes a vector of {adm} values per item, got shape {:?}",
                y.shape()
            )),
            (Some(_), None) => refuse("the network needs a vector of sizes".to_owned()),
            _ => Ok(()),
        }
    }

    /// Where the network computes.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// The noise level, and what goes in with it, as the residual blocks see it before SiLU.
    pub(crate) fn embed(&self, timesteps: &[f32], y: Option<&Tensor>) -> Result<Tensor> {
        let silu = then(Act::Silu);
        let waves = sinusoid(timesteps, self.config.model_channels)?.to(self.device())?;
        let emb = self
            .time_out
            .forward(&self.time_in.forward_with(&waves, silu)?)?;
        match (&self.label, y) {
            (Some((first, second)), Some(y)) => {
                let y = y.to(self.device())?;
                let label = second.forward(&first.forward_with(&y, silu)?)?;
                Ok(emb.add(&label)?)
            }
            _ => Ok(emb),
        }
    }

    /// One input block.
    pub(crate) fn input(&self, number: usize, x: Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        pass.hooks.check()?;
        let mut h = x;
        for step in &self.input[number] {
            h = step.forward(h, pass, BlockKind::INPUT, number)?;
        }
        Ok(h)
    }

    pub(crate) fn middle(&self, x: Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let mut h = x;
        for step in &self.middle {
            pass.hooks.check()?;
            h = step.forward(h, pass, BlockKind::MIDDLE, 0)?;
        }
        Ok(h)
    }
}
