//! The network and what goes into it.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Linear, Mask, Value, gelu_tanh, modulate};
use fresco_tensor::{Device, Tensor};

use super::blocks::Block;
use super::config::{KreaConfig, PATCH};
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, CONTROL, HookPoints, OWN};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{
    CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput, PassMemory,
    names,
};
use crate::error::Result;
use crate::latent_format;
use crate::model_sampling::ModelSampling;
use crate::store::{Bias, Walk};
use crate::transformer::{
    AdaLn, Blocks, LessOneNorm, Mlp, MlpLayers, PatchOrder, PictureTokens, Rope, TimeEmbed,
    TokenGrid, TokenMask, grid_positions, hides,
};

/// Values of a token that a pass holds at its fullest, in widths of the network.
const HELD: usize = 14;

/// Tokens of a prompt that memory is counted with.
const PROMPT: usize = 512;

/// A prompt's states become one vector for each token.
struct TextFusion {
    layerwise: Vec<Block>,
    projector: Arc<Linear>,
    refiners: Vec<Block>,
    norm: LessOneNorm,
    into: Mlp,
}

impl TextFusion {
    fn new(weights: &Walk<'_>, config: &KreaConfig) -> Result<Self> {
        let (text, dim, eps) = (&config.text, config.block.dim, config.eps);
        let fusion = weights.at("txtfusion");
        let blocks = |name: &str, count: usize| -> Result<Vec<Block>> {
            let list = fusion.at(name);
            list.each(count, |weights| Block::new(weights, text, eps))
        };
        let mlp = weights.at("txtmlp");
        Ok(Self {
            layerwise: blocks("layerwise_blocks", config.layerwise)?,
            projector: fusion.matrix("projector", 1, config.text_states)?,
            refiners: blocks("refiner_blocks", config.refiners)?,
            norm: LessOneNorm::new(&mlp, "0.scale", text.dim, eps)?,
            into: Mlp::between(
                &mlp,
                MlpLayers::Plain(["1", "3"], Act::GeluTanh),
                [text.dim, dim, dim],
                Bias::With,
            )?,
        })
    }

    /// (b, n, states, c) to (b, n, dim).
    fn forward(&self, states: &Tensor, mask: Mask<'_>) -> Result<Tensor> {
        let [b, n, count, width] = states.dims4()?;
        let mut x = states.reshape([b * n, count, width])?;
        for block in &self.layerwise {
            x = block.plain(&x, Mask::None)?;
        }
        let x = x.reshape([b, n, count, width])?.permute(&[0, 1, 3, 2])?;
        let mut x = self.projector.forward(&x)?.reshape([b, n, width])?;
        for block in &self.refiners {
            x = block.plain(&x, mask)?;
        }
        self.into.forward(&self.norm.forward(&x)?)
    }
}

pub struct KreaNetwork {
    device: Device,
    config: KreaConfig,
    cells: PictureTokens,
    time: TimeEmbed,
    modulation: Arc<Linear>,
    text: TextFusion,
    blocks: Vec<(AdaLn<6>, Block)>,
    last_table: Arc<Value>,
    last_norm: LessOneNorm,
}

conds! {
    /// What the network is told besides the latent.
    struct KreaConds<'a> {
        prompt: &'a Tensor = names::PROMPT,
        mask: Option<&'a Tensor> = names::MASK,
    }
}

impl DiffusionNetwork for KreaNetwork {
    type Config = KreaConfig;

    const HOOKS: HookPoints = HookPoints(&[(BlockKind::SINGLE, &[BLOCKS, CONTROL, OWN])]);

    fn facts(config: &KreaConfig) -> ModelFacts {
        ModelFacts {
            latent: latent_format::WAN21,
            latent_channels: config.channels,
            in_channels: config.channels,
            context: Some(config.context()),
            model_channels: None,
            architecture: None,
            pass: PassMemory::of_cells(PATCH * PATCH, config.block.dim, HELD).with_prompt(PROMPT),
            sampling: ModelSampling::exponential_flow(1.15),
        }
    }

    fn new(weights: &Walk<'_>, config: &KreaConfig) -> Result<Self> {
        let dim = config.block.dim;
        let values = config.channels * PATCH * PATCH;
        let block = |number: usize| -> Result<(AdaLn<6>, Block)> {
            let weights = weights.at("blocks").at(number);
            let level = AdaLn::table(&weights, "mod.lin", &[6 * dim])?;
            Ok((level, Block::new(&weights, &config.block, config.eps)?))
        };
        Ok(Self {
            device: weights.device().clone(),
            config: config.clone(),
            cells: PictureTokens::new(
                weights.linear("first", dim, values)?,
                weights.linear("last.linear", values, dim)?,
                PATCH,
                [PatchOrder::ChannelFirst; 2],
            ),
            time: TimeEmbed::between(
                weights,
                MlpLayers::Plain(["tmlp.0", "tmlp.2"], Act::GeluTanh),
                [config.waves, dim, dim],
                Bias::With,
            )?,
            modulation: weights.linear("tproj.1", 6 * dim, dim)?,
            text: TextFusion::new(weights, config)?,
            blocks: (0..config.layers).map(block).collect::<Result<_>>()?,
            last_table: weights.value("last.modulation.lin", &[2, dim])?,
            last_norm: LessOneNorm::new(weights, "last.norm.scale", dim, config.eps)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let conds = KreaConds::read(input.conds)?;
        let device = &self.device;
        let prompt = conds.prompt;
        let states = self.states(prompt)?;
        let (tokens, places) = self.cells.enter(input.x, device)?;
        let (count, cells) = (states.dim(1)?, tokens.dim(1)?);
        let mask = conds.mask;
        let text_mask = TokenMask::new(mask, 0, device)?;
        let mask = TokenMask::new(mask, cells, device)?;
        let text = self.text.forward(&states.to(device)?, text_mask.mask())?;
        let x = Tensor::cat(&[&text, &tokens], 1)?;
        drop((text, tokens));
        let time = self.time.forward(input.timesteps, 1000.0, device)?;
        let shared = self.modulation.forward(&gelu_tanh(&time))?;
        let rope = self.rope(count, places.grid)?;
        let (kind, heads) = (BlockKind::SINGLE, self.config.block.heads);
        let blocks = Blocks::new(kind, self.blocks.len(), heads, places.grid, input);
        let blocks = blocks.with_control(input.control, count);
        let x = blocks.run(x, |number, x| {
            let (level, block) = &self.blocks[number];
            block.forward(x, mask.mask(), &rope, &level.forward(&shared)?)
        })?;
        let x = x.narrow(1, count, cells)?;
        let table = self.last_table.at(device)?;
        let row = |number: usize| -> Result<Tensor> { Ok(time.add(&table.narrow(0, number, 1)?)?) };
        let x = modulate(self.last_norm.forward(&x)?, &row(0)?, Some(&row(1)?))?;
        self.cells.leave(&x, &places)
    }

    fn encode(config: &KreaConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let tokens = match &args.cond.tokens {
            // The states of a token by themselves.
            Some(tokens)
                if tokens.shape().get(2..) == Some(&[config.text_states, config.text.dim]) =>
            {
                let (b, n) = (tokens.dim(0)?, tokens.dim(1)?);
                tokens.reshape([b, n, config.context()])?
            }
            _ => args.prompt_of_width(config.context(), file)?.clone(),
        };
        conds.insert(names::PROMPT, CondValue::Regular(tokens));
        let mask = args.cond.tensors.get("attention_mask");
        if let Some(mask) = mask.filter(|mask| hides(mask)) {
            conds.insert(names::MASK, CondValue::Regular(mask.clone()));
        }
        Ok(conds)
    }
}

impl KreaNetwork {
    /// A prompt (b, n, states * c) as (b, n, states, c).
    fn states(&self, prompt: &Tensor) -> Result<Tensor> {
        let (b, n) = (prompt.dim(0)?, prompt.dim(1)?);
        let (states, width) = (self.config.text_states, self.config.text.dim);
        Ok(prompt.reshape([b, n, states, width])?)
    }

    fn rope(&self, prompt: usize, [frames, rows, columns]: TokenGrid) -> Result<Rope> {
        let mut positions = vec![[0.0; 3]; prompt];
        for frame in 0..frames {
            positions.extend(grid_positions(frame as f64, (rows, columns), (0.0, 0.0)));
        }
        let config = &self.config;
        Rope::new(positions.as_flattened(), &config.axes, config.theta)?.to(&self.device)
    }
}
