//! The family: a transformer over cells and prompt. All that is written for a model is in this file.

use std::sync::Arc;

use fresco_models::conds;
use fresco_models::denoise::hook_points::{BLOCKS, CONTROL, HookPoints, PROMPT};
use fresco_models::denoise::hooks::{BlockKind, Hooks};
use fresco_models::denoise::{
    CallConds, CondValue, Found, ModelFacts, NetworkInput, PassMemory, names,
};
use fresco_models::detect::{Checkpoint, Family, FileKeys};
use fresco_models::preview::PreviewHints;
use fresco_models::store::{Layout, Walk};
use fresco_models::transformer::{
    Attention, AttentionBias, AttentionLayers, Blocks, HeadNorm, Heads, Looks, QkvLayers, Rotation,
};
use fresco_models::{
    DiffusionNetwork, LatentFormat, ModelError, ModelSampling, UnitOrder, WeightStore,
};
use fresco_tensor::nn::{LayerNorm, Linear, Mask};
use fresco_tensor::{Device, Stored, Tensor, synthetic};

/// The blocks of this network, to hooks.
pub(crate) const BLOCK: BlockKind = BlockKind("toy_block");

const HEADS: usize = 2;

#[derive(Clone, Copy, Debug)]
pub(crate) struct ToyConfig {
    pub(crate) channels: usize,
    pub(crate) width: usize,
    pub(crate) context: usize,
    pub(crate) blocks: usize,
    pub(crate) layers_per_block: usize,
}

pub(crate) const TOY: ToyConfig = ToyConfig {
    channels: 6,
    width: 32,
    context: 16,
    blocks: 2,
    layers_per_block: 4,
};

/// Cells look at all cells and the prompt.
struct Block {
    norm: Arc<LayerNorm>,
    attention: Attention,
}

impl Block {
    fn new(weights: &Walk<'_>, width: usize) -> Result<Self, ModelError> {
        let heads = Heads::new(HEADS, width / HEADS, HeadNorm::None);
        let layers = AttentionLayers {
            bias: AttentionBias::Out,
            looks: Looks::Prompt(width),
            ..AttentionLayers::new(QkvLayers::Paired(["q", "kv"]), "out", width, heads)
        };
        Ok(Self {
            norm: weights.layer_norm("norm", width, 1e-5)?,
            attention: Attention::new(weights, &layers)?,
        })
    }

    fn forward(&self, x: &Tensor, prompt: &Tensor) -> Result<Tensor, ModelError> {
        let normed = self.norm.forward(x)?;
        let all = Tensor::cat(&[&normed, prompt], 1)?;
        let qkv = self.attention.qkv_to(&normed, &all)?;
        self.attention
            .add(&qkv.attend(Rotation::NONE, Mask::None)?, x)
    }
}

pub(crate) struct Toy {
    device: Device,
    config: ToyConfig,
    cells: Arc<Linear>,
    prompt: Arc<Linear>,
    blocks: Vec<Block>,
    out: Arc<Linear>,
}

conds! {
    struct ToyConds<'a> {
        prompt: &'a Tensor = names::PROMPT,
    }
}

impl DiffusionNetwork for Toy {
    type Config = ToyConfig;

    const WHAT: &'static str = "the toy";

    const HOOKS: HookPoints = HookPoints(&[(BLOCK, &[BLOCKS, CONTROL, PROMPT])]);

    fn facts(config: &ToyConfig) -> ModelFacts {
        ModelFacts {
            latent: LatentFormat {
                channels: config.channels,
                dimensions: 3,
                ..LatentFormat::scaled(0.5)
            },
            latent_channels: config.channels,
            in_channels: config.channels,
            context: Some(config.context),
            model_channels: None,
            architecture: None,
            pass: PassMemory::of_cells(1, config.width, 16),
            sampling: ModelSampling::flow(3.0, 1000.0),
        }
    }

    fn new(weights: &Walk<'_>, config: &ToyConfig) -> Result<Self, ModelError> {
        let width = config.width;
        let blocks = weights.at("blocks");
        Ok(Self {
            device: weights.device().clone(),
            config: *config,
            cells: weights.linear("cells", width, config.channels)?,
            prompt: weights.linear("prompt", width, config.context)?,
            blocks: blocks.each(config.blocks, |weights| Block::new(weights, width))?,
            out: weights.linear("out", config.channels, width)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor, ModelError> {
        let shape = input.x.shape().to_vec();
        let &[b, c, frames, h, w] = shape.as_slice() else {
            return Err(ModelError::invalid("toy", format!("no video: {shape:?}")));
        };
        let tokens = ToyConds::read(input.conds)?.prompt;
        let (device, count) = (&self.device, frames * h * w);
        let cells = input
            .x
            .reshape([b, c, count])?
            .permute(&[0, 2, 1])?
            .to(device)?; // (b, n, c)
        let x = self.cells.forward(&cells)?;
        let prompt = self.prompt.forward(&tokens.to(device)?)?;
        let blocks = Blocks::new(BLOCK, self.blocks.len(), HEADS, [frames, h, w], input);
        let x = blocks.run(x, |number, x| self.blocks[number].forward(&x, &prompt))?;
        let out = self
            .out
            .forward(&x)?
            .to(&Device::cpu())?
            .permute(&[0, 2, 1])?;
        Ok(out.reshape(shape)?)
    }
}

/// The row of the detection table.
pub(crate) struct ToyFamily;

impl Family for ToyFamily {
    fn names(&self) -> &'static [&'static str] {
        &["toy"]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>, ModelError> {
        if !keys.has("blocks.0.kv.weight") {
            return Ok(None);
        }
        let own = keys.inside.iter().map(|key| ((*key).to_owned(), *key));
        Ok(Some(Checkpoint {
            family: "toy",
            network: Arc::new(Found::<Toy>(TOY)),
            keys: keys.origins(own),
            units: &UnitOrder::PLAIN,
            vae_prefix: keys.vae_prefix(),
            text: None,
            preview: PreviewHints::default(),
        }))
    }
}

/// All weights, made up from their names.
pub(crate) fn weights() -> Vec<(String, Stored)> {
    let layout = Layout::of(|weights| Toy::new(weights, &TOY)).unwrap();
    let each = layout.items().iter();
    each.map(|(key, shape)| {
        (
            key.clone(),
            Stored::from(&synthetic::weight(key, shape).unwrap()),
        )
    })
    .collect()
}

impl Toy {
    pub(crate) fn in_memory() -> Self {
        let weights = weights().into_iter().collect();
        let store = WeightStore::from_stored("toy", weights, Device::cpu());
        store
            .build(Self::WHAT, |weights| Self::new(weights, &TOY))
            .unwrap()
    }

    /// A pass by itself.
    pub(crate) fn pass(&self, x: &Tensor, prompt: &Tensor) -> Tensor {
        assert_eq!(x.shape()[1], self.config.channels);
        let mut conds = CallConds::default();
        conds
            .0
            .insert("c_crossattn", CondValue::CrossAttn(prompt.clone()));
        self.forward(&NetworkInput {
            x,
            timesteps: &vec![0.0; x.shape()[0]],
            conds: &conds,
            control: None,
            hooks: &Hooks::default(),
        })
        .unwrap()
    }
}
