//! The network, and what of a condition goes into it.

use std::sync::Arc;

use fresco_tensor::nn::{Embedding, LayerNorm, Linear, silu};
use fresco_tensor::{Device, Tensor};

use super::blocks::{EPS, JointBlock, StreamRole};
use super::config::{PATCH, Sd3Config};
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, CONTROL, HookPoints, OWN};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{
    CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput, PassMemory,
    names,
};
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_sampling::ModelSampling;
use crate::store::{Bias, Walk};
use crate::transformer::{
    AdaLn, BlockControl, Blocks, ControlOrder, Embedder, PatchOrder, PictureTokens, TimeEmbed,
    patch_conv,
};

/// Width of the waves that a noise level becomes.
pub(crate) const WAVES: usize = 256;

/// Values per token and channel of a token that a pass holds at its fullest, with room.
const HELD: usize = 24;

/// Tokens of a prompt, roughly.
const PROMPT: usize = 512;

/// See the [module](super).
pub struct Mmdit {
    device: Device,
    config: Sd3Config,
    cells: PictureTokens,
    places: Arc<Embedding>,
    time: TimeEmbed,
    vector: Embedder,
    prompt: Arc<Linear>,
    blocks: Vec<JointBlock>,
    norm: LayerNorm,
    modulation: AdaLn<2>,
}

/// The numbers of a table's rows for a picture of `rows` by `columns` tokens: a window in the middle of it.
pub(crate) fn window(side: usize, (rows, columns): (usize, usize)) -> Result<Vec<u32>> {
    if rows > side || columns > side {
        let reason = format!(
            "this model knows pictures of at most {side} by {side} tokens, this one has {columns} by {rows}"
        );
        return Err(ModelError::invalid("positions", reason));
    }
    let (top, left) = ((side - rows) / 2, (side - columns) / 2);
    let places = (top..top + rows).flat_map(|row| {
        let first = row * side + left;
        first..first + columns
    });
    Ok(places.map(|place| place as u32).collect())
}

impl Mmdit {
    /// One pass. `y` is the prompt's vector, (b, width).
    pub fn forward(
        &self,
        input: &NetworkInput<'_>,
        context: &Tensor,
        y: &Tensor,
    ) -> Result<Tensor> {
        let device = &self.device;
        let (x, cells) = self.cells.enter(input.x, device)?;
        let [_, rows, columns] = cells.grid;
        let places = window(self.config.positions, (rows, columns))?;
        let places = self.places.lookup_on(&places, device)?;
        let x = x.add(&places.unsqueeze(0)?)?;
        let c = self.time.forward(input.timesteps, 1.0, device)?;
        let c = c.add(&self.vector.forward(&y.to(device)?)?)?;
        let c = silu(&c);
        let context = self.prompt.forward(&context.to(device)?)?;
        let (kind, heads) = (BlockKind::DOUBLE, self.config.heads);
        let mut blocks = Blocks::new(kind, self.blocks.len(), heads, cells.grid, input);
        blocks.control = input.control.map(|control| BlockControl {
            features: control.of(BlockKind::OUTPUT),
            start: 0,
            order: ControlOrder::BeforeHooks,
        });
        let (x, _) = blocks.run_pair((x, context), |number, x, context| {
            let (context, x) = self.blocks[number].forward(context, x, &c)?;
            Ok((x, context))
        })?;
        let [shift, scale] = self.modulation.forward(&c)?;
        let x = self.norm.modulated(&x, &shift, &scale)?;
        self.cells.leave(&x, &cells)
    }
}

conds! {
    /// What the network is told besides the latent.
    struct Sd3Conds<'a> {
        text: &'a Tensor = names::PROMPT,
        pooled: &'a Tensor = names::POOLED,
    }
}

impl DiffusionNetwork for Mmdit {
    type Config = Sd3Config;

    const HOOKS: HookPoints = HookPoints(&[
        (BlockKind::DOUBLE, &[BLOCKS, OWN]),
        (BlockKind::OUTPUT, &[CONTROL]),
    ]);

    fn facts(config: &Sd3Config) -> ModelFacts {
        ModelFacts {
            latent: latent_format::SD3,
            latent_channels: config.out_channels,
            in_channels: config.in_channels,
            context: Some(config.context),
            model_channels: None,
            architecture: Some("stable-diffusion-v3-medium"),
            pass: PassMemory::of_cells(PATCH * PATCH, config.width, HELD).with_prompt(PROMPT),
            sampling: ModelSampling::flow(3.0, 1000.0),
        }
    }

    fn new(weights: &Walk<'_>, config: &Sd3Config) -> Result<Self> {
        let width = config.width;
        let places = [1, config.positions * config.positions, width];
        let blocks = weights.at("joint_blocks");
        let last = config.dual.len().saturating_sub(1);
        let block = |(number, &dual): (usize, &bool)| {
            let context = if number == last {
                StreamRole::Ends
            } else {
                StreamRole::Plain
            };
            let roles = [context, StreamRole::of_picture(dual)];
            JointBlock::new(&blocks.at(number), config, roles)
        };
        let end = weights.at("final_layer");
        let out = config.out_channels * PATCH * PATCH;
        let (time, vector) = (weights.at("t_embedder"), weights.at("y_embedder"));
        let layers = ["mlp.0", "mlp.2"];
        Ok(Self {
            device: weights.device().clone(),
            config: config.clone(),
            cells: PictureTokens::convolved(
                patch_conv(weights, "x_embedder.proj", width, config.in_channels, PATCH)?,
                end.linear("linear", out, width)?,
                PATCH,
                PatchOrder::ChannelLast,
            ),
            places: weights.rows("pos_embed", &places)?,
            time: TimeEmbed::new(&time, layers, WAVES, width)?,
            vector: Embedder::new(&vector, layers, config.pooled, width, Bias::With)?,
            prompt: weights.linear("context_embedder", width, config.context)?,
            blocks: config
                .dual
                .iter()
                .enumerate()
                .map(block)
                .collect::<Result<_>>()?,
            norm: LayerNorm::new(None, None, EPS)?,
            modulation: AdaLn::new(&end, "adaLN_modulation.1", width, width, Bias::With)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let Sd3Conds { text, pooled } = Sd3Conds::read(input.conds)?;
        Self::forward(self, input, text, pooled)
    }

    fn encode(config: &Sd3Config, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let wrong = |reason: String| Err(ModelError::unsupported(file, reason));
        let kind = args.prompt_type;
        let wide = |of: &Tensor| of.shape().last().copied().unwrap_or(0);
        let other = "it was made with the text encoder of another family of models. Load the one that belongs to this model";
        let mut conds = ModelConds::new();
        match &args.cond.tokens {
            Some(tokens) if tokens.rank() == 3 && wide(tokens) == config.context => {
                // Tokens are not repeated to join prompts of different lengths: this attention would notice.
                conds.insert(names::PROMPT, CondValue::Regular(tokens.clone()));
            }
            Some(tokens) => {
                return wrong(format!(
                    "this model takes text of width {}, but the {kind} conditioning has width {}: {other}",
                    config.context,
                    wide(tokens)
                ));
            }
            None => {
                return wrong(format!(
                    "the {kind} conditioning has no text for this model"
                ));
            }
        }
        match &args.cond.pooled {
            Some(pooled) if pooled.rank() == 2 && wide(pooled) == config.pooled => {
                conds.insert(names::POOLED, CondValue::Regular(pooled.clone()));
            }
            Some(pooled) => {
                return wrong(format!(
                    "this model takes pooled text of width {}, but that of the {kind} conditioning has width {}: {other}",
                    config.pooled,
                    wide(pooled)
                ));
            }
            None => {
                return wrong(format!(
                    "the {kind} conditioning has no pooled text, which this model needs"
                ));
            }
        }
        // Text that only control nets see.
        if let Some(tokens) = args.cond.tensors.get("cross_attn_controlnet") {
            conds.insert(names::CONTROL_PROMPT, CondValue::Regular(tokens.clone()));
        }
        Ok(conds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_a_window_in_the_middle() {
        assert_eq!(window(4, (2, 3)).unwrap(), [4, 5, 6, 8, 9, 10]);
        assert_eq!(window(3, (3, 3)).unwrap(), (0..9).collect::<Vec<_>>());
        let error = window(4, (5, 1)).unwrap_err().to_string();
        assert!(error.contains("at most 4 by 4"), "{error}");
    }
}
