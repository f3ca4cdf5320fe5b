//! Control nets of Flux 1: some of its blocks again, with a hint added to the picture's tokens. Three publishers, three ways to
//! see the hint and to spread what few blocks make over the many of the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_tensor::nn::{Act, Conv2d, Embedding, Linear, Padding};
use fresco_tensor::{Device, Tensor, WeightFile};

use super::conditions::FluxConds;
use super::config::FluxConfig;
use super::detect::UNITS;
use super::names;
use super::positions::Picture;
use super::trunk::Trunk;
use crate::control::{ControlInput, ControlNetwork, ControlStore, SeenHint, Steers};
use crate::denoise::NetworkInput;
use crate::denoise::hooks::{BlockKind, ControlFeatures, Hooks};
use crate::detect::FileKeys;
use crate::epilogue::{plus, then};
use crate::error::{ModelError, Result};
use crate::latent_format::{self, LatentFormat};
use crate::store::{Kernel, Origin, Walk, WeightStore};
use crate::transformer::{PatchOrder, circular_pad, to_tokens};

/// The network in messages.
const WHAT: &str = "the control net";
/// Blocks of the model that is steered.
const DOUBLE: usize = 19;
const SINGLE: usize = 38;
/// Pixels along a side of a latent's cell.
const CELL: usize = 8;

/// Whose net it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlKind {
    /// Sees the hint's latent; each of its blocks is for several of the model in a row.
    InstantX,
    /// See the hint's pixels; their blocks are for the model's in turn.
    XLabs,
    Mistoline,
}

/// A layer of the small network that looks at a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HintLayer {
    number: usize,
    side: usize,
    input: usize,
    out: usize,
    stride: usize,
}

/// The shape of a control net.
#[derive(Clone, Debug, PartialEq)]
pub struct FluxControlConfig {
    pub kind: ControlKind,
    pub trunk: FluxConfig,
    /// Channels of the hint when it is added to the picture.
    pub hint: usize,
    /// Kinds of hints that it knows.
    pub types: Option<usize>,
    layers: Vec<HintLayer>,
}

impl FluxControlConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let kind = if store.has("controlnet_blocks.0.linear.weight") {
            ControlKind::Mistoline
        } else if store.has("input_hint_block.0.weight") {
            ControlKind::XLabs
        } else {
            ControlKind::InstantX
        };
        let mut trunk = FluxConfig::detect(store)?;
        trunk.out_channels = trunk.in_channels;
        let columns = store.shape("pos_embed_input.weight");
        let columns = columns.and_then(|shape| shape.get(1).copied());
        let columns = columns.ok_or_else(|| ModelError::Missing {
            file: store.file().to_owned(),
            key: "pos_embed_input.weight".to_owned(),
        })?;
        let types = store.shape("controlnet_mode_embedder.weight");
        Ok(Self {
            kind,
            hint: columns / (trunk.patch * trunk.patch),
            types: types.and_then(|shape| shape.first().copied()),
            layers: kind.layers(store)?,
            trunk,
        })
    }

    /// Whether the hint has a mask as a further channel.
    fn wants_mask(&self) -> bool {
        self.kind == ControlKind::InstantX && self.hint == self.trunk.in_channels + 1
    }
}

impl ControlKind {
    /// Where its small network is, which layers it has and which of them halve the size.
    fn hint_block(self) -> Option<(&'static str, &'static [usize], &'static [usize])> {
        match self {
            Self::InstantX => None,
            Self::XLabs => Some((
                "input_hint_block",
                &[0, 2, 4, 6, 8, 10, 12, 14],
                &[4, 8, 12],
            )),
            Self::Mistoline => Some((
                "input_cond_block.encoder",
                &[0, 2, 4, 6, 8, 10, 12, 14, 16, 18],
                &[6, 10, 14],
            )),
        }
    }

    fn layers(self, store: &WeightStore) -> Result<Vec<HintLayer>> {
        let Some((place, numbers, halving)) = self.hint_block() else {
            return Ok(Vec::new());
        };
        let layer = |&number: &usize| {
            let key = format!("{place}.{number}.weight");
            match store.shape(&key) {
                Some(&[out, input, side, _]) => Ok(HintLayer {
                    number,
                    side,
                    input,
                    out,
                    stride: if halving.contains(&number) { 2 } else { 1 },
                }),
                _ => Err(ModelError::Missing {
                    file: store.file().to_owned(),
                    key,
                }),
            }
        };
        numbers.iter().map(layer).collect()
    }
}

/// See the [module](self).
pub struct FluxControl {
    config: FluxControlConfig,
    trunk: Trunk,
    image_in: Arc<Linear>,
    hint_in: Arc<Linear>,
    types: Option<Arc<Embedding>>,
    layers: Vec<Arc<Conv2d>>,
    double: Vec<Arc<Linear>>,
    single: Vec<Arc<Linear>>,
}

impl FluxControl {
    pub fn new(store: &WeightStore, config: FluxControlConfig) -> Result<Self> {
        store.build(WHAT, |weights| Self::walk(weights, &config))
    }

    fn walk(weights: &Walk<'_>, config: &FluxControlConfig) -> Result<Self> {
        let trunk = &config.trunk;
        let (hidden, square) = (trunk.hidden, trunk.patch * trunk.patch);
        let end = match config.kind {
            ControlKind::Mistoline => ".linear",
            _ => "",
        };
        let list = |name: &str, count: usize| -> Result<Vec<Arc<Linear>>> {
            let one = |n: usize| weights.linear(&format!("{name}.{n}{end}"), hidden, hidden);
            (0..count).map(one).collect()
        };
        let place = config.kind.hint_block().map_or("", |(place, ..)| place);
        let layer = |layer: &HintLayer| {
            let kernel = Kernel {
                out: layer.out,
                input: layer.input,
                side: layer.side,
                bias: true,
            };
            let name = format!("{place}.{}", layer.number);
            weights.conv_with(&name, kernel, layer.stride, Padding::Same(layer.side / 2))
        };
        Ok(Self {
            config: config.clone(),
            image_in: weights.linear("img_in", hidden, trunk.in_channels * square)?,
            hint_in: weights.linear("pos_embed_input", hidden, config.hint * square)?,
            types: config
                .types
                .map(|count| weights.embedding("controlnet_mode_embedder", count, hidden))
                .transpose()?,
            layers: config.layers.iter().map(layer).collect::<Result<_>>()?,
            double: list("controlnet_blocks", trunk.double)?,
            single: list("controlnet_single_blocks", trunk.single)?,
            trunk: Trunk::new(weights, trunk)?,
        })
    }

    /// What few blocks made, for each of many.
    fn spread(&self, made: &[Tensor], count: usize) -> Vec<Option<Tensor>> {
        if made.is_empty() {
            return Vec::new();
        }
        let each = count.div_ceil(made.len());
        let at = |n: usize| match self.config.kind {
            ControlKind::InstantX => n / each,
            ControlKind::XLabs | ControlKind::Mistoline => n % made.len(),
        };
        (0..count).map(|n| made.get(at(n)).cloned()).collect()
    }
}

impl ControlNetwork for FluxControl {
    fn hint_size(&self, columns: usize, rows: usize) -> (usize, usize) {
        (columns * CELL, rows * CELL)
    }

    fn hint_channels(&self) -> usize {
        3
    }

    fn latent(&self) -> Option<LatentFormat> {
        (self.config.kind == ControlKind::InstantX).then_some(latent_format::FLUX)
    }

    fn see(&self, hint: &Tensor, _: &[usize]) -> Result<SeenHint> {
        let device = &self.trunk.device;
        let mut hint = hint.clone();
        if !self.layers.is_empty() {
            let pixels = hint.mul_scalar(2.0).sub_scalar(1.0);
            let mut h = pixels.nchw_to_nhwc()?.to(device)?;
            for (n, layer) in self.layers.iter().enumerate() {
                let last = n + 1 == self.layers.len();
                let act = if last { Act::None } else { Act::Silu };
                h = layer.forward_with(&h, then(act))?;
            }
            hint = h.to(&Device::cpu())?.nhwc_to_nchw()?;
        }
        let channels = hint.dim(1)?;
        if channels != self.config.hint {
            let reason = format!(
                "the hint has {channels} channels, this net wants {}",
                self.config.hint
            );
            return Err(ModelError::invalid("control net", reason));
        }
        let patch = self.config.trunk.patch;
        let tokens = to_tokens(
            &circular_pad(&hint, patch)?,
            patch,
            PatchOrder::ChannelFirst,
        )?;
        Ok(SeenHint::Map(tokens))
    }

    fn features(&self, input: &ControlInput<'_>) -> Result<ControlFeatures> {
        let SeenHint::Map(hint) = input.seen else {
            return Err(ModelError::invalid("control net", "not a control net"));
        };
        let (config, device) = (&self.config.trunk, &self.trunk.device);
        // What goes in beside the latent is not for the control net.
        let x = input.x.narrow(1, 0, config.in_channels)?;
        let picture = Picture::new(&x, &[], None, config)?;
        if hint.dim(1)? != picture.own {
            let reason = format!("a hint of {} tokens for {}", hint.dim(1)?, picture.own);
            return Err(ModelError::invalid("control net", reason));
        }
        let items = x.dim(0)?;
        let hint = fresco_tensor::repeat_to_batch(hint, items)?.to(device)?;
        let image = self.image_in.forward(&picture.tokens.to(device)?)?;
        let image = self.hint_in.forward_with(&hint, plus(&image))?;
        drop(hint);
        let kind = input.types.first();
        let front = match (&self.types, kind) {
            (Some(table), Some(&kind)) if kind < table.entries() => {
                let row = table.lookup_on(&[kind as u32], device)?;
                let row = row.reshape([1, 1, config.hidden])?;
                Some(row.expand(&[items, 1, config.hidden])?)
            }
            _ => None,
        };
        let pass = NetworkInput {
            x: &x,
            timesteps: input.timesteps,
            conds: input.conds,
            control: None,
            hooks: &Hooks::default(),
        };
        let (mut double, mut single) = (Vec::new(), Vec::new());
        let activation = match self.config.kind {
            ControlKind::Mistoline => Act::Silu,
            _ => Act::None,
        };
        let mut observe = |kind: BlockKind, number: usize, x: &Tensor| -> Result<()> {
            let (layers, list) = match kind {
                BlockKind::DOUBLE => (&self.double, &mut double),
                _ => (&self.single, &mut single),
            };
            let Some(layer) = layers.get(number) else {
                return Ok(());
            };
            let made = layer.forward_with(x, then(activation))?;
            list.push(made.to(&Device::cpu())?);
            Ok(())
        };
        let conds = FluxConds::read(input.conds)?;
        let tokens = (image, front.as_ref());
        self.trunk
            .forward(&pass, &conds, &picture, tokens, &mut observe)?;
        let features =
            ControlFeatures::default().with(BlockKind::DOUBLE, self.spread(&double, DOUBLE));
        Ok(features.with(BlockKind::SINGLE, self.spread(&single, SINGLE)))
    }
}

const QKV: &str = "double_blocks.0.img_attn.qkv.weight";

const STEERS: Steers = Steers {
    models: "Flux.1 and Chroma",
    key: QKV,
    columns: &[(QKV, QKV)],
};

/// What is in a file, if it steers a model of this family.
pub(crate) fn find(
    file: &Arc<dyn WeightFile>,
    names: &[String],
    device: &Device,
) -> Result<Option<ControlStore>> {
    let has = |name: &str| names.iter().any(|n| n == name);
    let keys = FileKeys::whole(file, names);
    let native = has("double_blocks.0.img_attn.norm.key_norm.scale");
    let origins: BTreeMap<String, Origin> = if native
        && (has("controlnet_blocks.0.weight") || has("controlnet_blocks.0.linear.weight"))
    {
        let ours = |name: &String| {
            // One of the publishers has another name for the second list.
            let key = name.strip_prefix("single_controlnet_blocks.");
            let key = key.map_or_else(
                || name.clone(),
                |rest| format!("controlnet_single_blocks.{rest}"),
            );
            (key, Origin::Whole(name.clone()))
        };
        names.iter().map(ours).collect()
    } else if has("controlnet_blocks.0.weight")
        && has("controlnet_x_embedder.weight")
        && has("transformer_blocks.0.attn.norm_added_k.weight")
        && !has("transformer_blocks.0.img_mlp.net.0.proj.weight")
    {
        let mut origins = names::origins(&keys);
        for name in names {
            let key = match name.strip_prefix("controlnet_x_embedder.") {
                Some(rest) => format!("pos_embed_input.{rest}"),
                None if name.starts_with("controlnet_") => name.clone(),
                None => continue,
            };
            origins.insert(key, Origin::Whole(name.clone()));
        }
        origins
    } else {
        return Ok(None);
    };
    let store = WeightStore::mapped(Arc::clone(file), origins, device.clone());
    let store = store.with_units(&UNITS);
    let config = FluxControlConfig::detect(&store)?;
    let build = |store: &WeightStore| -> Result<Box<dyn ControlNetwork>> {
        let config = FluxControlConfig::detect(store)?;
        Ok(Box::new(FluxControl::new(store, config)?))
    };
    let mut found = ControlStore::new(store, build, STEERS);
    found.wants_mask = config.wants_mask();
    Ok(Some(found))
}
