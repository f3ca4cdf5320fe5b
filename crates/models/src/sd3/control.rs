//! Control nets of this family: some blocks like those of the model, whose results are added after the model's own.
//! Both forms see the hint as a latent.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_tensor::nn::{Act, Conv2d, Embedding, Linear, silu};
use fresco_tensor::{Buffer, Device, Tensor, WeightFile};

use super::blocks::{JointBlock, Stream, StreamRole};
use super::config::{PATCH, Sd3Config};
use super::detect::UNITS;
use super::model::{WAVES, window};
use super::names::CONTROL;
use crate::control::{ControlConds, ControlInput, ControlNetwork, ControlStore, SeenHint, Steers};
use crate::denoise::hooks::{BlockKind, ControlFeatures};
use crate::detect::FileKeys;
use crate::epilogue::then;
use crate::error::{ModelError, Result};
use crate::latent_format::{self, LatentFormat};
use crate::store::{Bias, Origin, Walk, WeightStore};
use crate::transformer::{Embedder, circular_pad, patch_conv, sinusoid, spread_tokens};

/// The network in messages.
const WHAT: &str = "the control net";
const MOST_BLOCKS: usize = 512;
/// Channels of a head in published nets.
const HEAD: usize = 64;

const QKV: &str = "joint_blocks.0.x_block.attn.qkv.weight";

const STEERS: Steers = Steers {
    models: "SD3 and SD3.5",
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
    if !has("controlnet_blocks.0.weight") || !has("pos_embed_input.proj.weight") {
        return Ok(None);
    }
    let own = has("transformer_blocks.0.adaLN_modulation.1.bias");
    let store = WeightStore::mapped(Arc::clone(file), keys(file, names, own), device.clone());
    let store = store.with_units(&UNITS);
    let channels = |key: &str| store.shape(key).and_then(|s| s.get(1).copied());
    let wants_mask =
        channels("pos_embed_input.proj.weight") > channels("x_embedder.proj.weight") && !own;
    let mut found = if own {
        PictureNetConfig::detect(&store)?;
        let build = |store: &WeightStore| -> Result<Box<dyn ControlNetwork>> {
            let config = PictureNetConfig::detect(store)?;
            Ok(Box::new(PictureNet::new(store, config)?))
        };
        ControlStore::new(store, build, STEERS)
    } else {
        JointNetConfig::detect(&store)?;
        let build = |store: &WeightStore| -> Result<Box<dyn ControlNetwork>> {
            let config = JointNetConfig::detect(store)?;
            Ok(Box::new(JointNet::new(store, config)?))
        };
        ControlStore::new(store, build, STEERS)
    };
    found.wants_mask = wants_mask;
    Ok(Some(found))
}

/// Our keys and where they are. `own`: the blocks have our names already.
fn keys(file: &Arc<dyn WeightFile>, names: &[String], own: bool) -> BTreeMap<String, Origin> {
    let mut keys = FileKeys::whole(file, names).origins_by(&CONTROL);
    let mut kept = vec![
        "controlnet_blocks.",
        "pos_embed_input.",
        "x_embedder.",
        "t_embedder.",
        "y_embedder.",
        "context_embedder.",
        "joint_blocks.",
    ];
    if own {
        kept.push("transformer_blocks.");
    }
    for name in names {
        let whole = matches!(name.as_str(), "pos_embed" | "control_type");
        if whole || kept.iter().any(|start| name.starts_with(start)) {
            keys.insert(name.clone(), Origin::Whole(name.clone()));
        }
    }
    keys
}

fn shape(store: &WeightStore, key: &str, rank: usize) -> Result<Vec<usize>> {
    let found = store.shape(key).ok_or_else(|| ModelError::Missing {
        file: store.file().to_owned(),
        key: key.to_owned(),
    })?;
    if found.len() != rank || found.contains(&0) {
        let reason = format!("{key} is not of a shape that this network can have");
        return Err(ModelError::unsupported(store.file(), reason));
    }
    Ok(found.to_vec())
}

fn blocks(store: &WeightStore, start: &str) -> usize {
    let there = |i: &usize| store.has(&format!("{start}{i}.weight"));
    (0..MOST_BLOCKS).take_while(there).count()
}

/// The hint's latent as tokens, in main memory.
fn see_latent(cells: &Conv2d, device: &Device, hint: &Tensor) -> Result<SeenHint> {
    let (tokens, _) = spread_tokens(cells, &circular_pad(hint, PATCH)?.to(device)?)?;
    Ok(SeenHint::Map(tokens.to(&Device::cpu())?))
}

/// The tokens that a hint became, checked against those of the latent.
fn seen_tokens(seen: &SeenHint, x: &Tensor, device: &Device) -> Result<Tensor> {
    let SeenHint::Map(seen) = seen else {
        return Err(ModelError::invalid("control net", "not a control net"));
    };
    if seen.shape().get(1..) != x.shape().get(1..) {
        let reason = format!("a hint of shape {:?} for {:?}", seen.shape(), x.shape());
        return Err(ModelError::invalid("control net", reason));
    }
    Ok(seen.to(device)?)
}

/// The shape of a net that sees the prompt.
#[derive(Clone, Debug)]
pub struct JointNetConfig {
    pub model: Sd3Config,
    /// Channels of the hint's latent.
    pub hint: usize,
    /// Blocks of the model that is steered.
    pub depth: usize,
}

impl JointNetConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let cells = shape(store, "x_embedder.proj.weight", 4)?;
        let (width, in_channels) = (cells[0], cells[1]);
        let places = shape(store, "pos_embed", 3)?[1];
        let positions = (places as f64).sqrt().round() as usize;
        let inner = shape(store, "joint_blocks.0.x_block.mlp.fc1.weight", 2)?[0];
        let head = width / HEAD;
        let count = blocks(store, "controlnet_blocks.");
        let dual = |i| store.has(&format!("joint_blocks.{i}.x_block.attn2.qkv.weight"));
        if head == 0 || positions.checked_mul(positions) != Some(places) {
            let reason = "its table of positions or its width is of no model of this family";
            return Err(ModelError::unsupported(store.file(), reason));
        }
        Ok(Self {
            model: Sd3Config {
                width,
                heads: head,
                dual: (0..count).map(dual).collect(),
                qk_norm: store.has("joint_blocks.0.context_block.attn.ln_q.weight"),
                context: shape(store, "context_embedder.weight", 2)?[1],
                pooled: shape(store, "y_embedder.mlp.0.weight", 2)?[1],
                in_channels,
                out_channels: in_channels,
                positions,
                mlp: (inner / width).max(1),
            },
            hint: shape(store, "pos_embed_input.proj.weight", 4)?[1],
            depth: head,
        })
    }
}

/// A control net with both streams of tokens.
pub struct JointNet {
    device: Device,
    config: JointNetConfig,
    cells: Arc<Conv2d>,
    hint: Arc<Conv2d>,
    places: Arc<Embedding>,
    time: Embedder,
    vector: Embedder,
    prompt: Arc<Linear>,
    blocks: Vec<JointBlock>,
    out: Vec<Arc<Linear>>,
}

impl JointNet {
    pub fn new(store: &WeightStore, config: JointNetConfig) -> Result<Self> {
        store.build(WHAT, |weights| Self::walk(weights, &config))
    }

    fn walk(weights: &Walk<'_>, config: &JointNetConfig) -> Result<Self> {
        let model = &config.model;
        let width = model.width;
        let places = [1, model.positions * model.positions, width];
        let embedder = |name: &str, input: usize| {
            Embedder::new(
                &weights.at(name),
                ["mlp.0", "mlp.2"],
                input,
                width,
                Bias::With,
            )
        };
        let joint = weights.at("joint_blocks");
        let block = |(i, &dual): (usize, &bool)| {
            let roles = [StreamRole::Plain, StreamRole::of_picture(dual)];
            JointBlock::new(&joint.at(i), model, roles)
        };
        let out = weights.at("controlnet_blocks");
        let out = |i: usize| out.linear(&i.to_string(), width, width);
        Ok(Self {
            device: weights.device().clone(),
            config: config.clone(),
            cells: patch_conv(weights, "x_embedder.proj", width, model.in_channels, PATCH)?,
            hint: patch_conv(weights, "pos_embed_input.proj", width, config.hint, PATCH)?,
            places: weights.rows("pos_embed", &places)?,
            time: embedder("t_embedder", WAVES)?,
            vector: embedder("y_embedder", model.pooled)?,
            prompt: weights.linear("context_embedder", width, model.context)?,
            blocks: model
                .dual
                .iter()
                .enumerate()
                .map(block)
                .collect::<Result<_>>()?,
            out: (0..model.dual.len()).map(out).collect::<Result<_>>()?,
        })
    }
}

impl ControlNetwork for JointNet {
    fn hint_size(&self, columns: usize, rows: usize) -> (usize, usize) {
        (columns, rows)
    }

    fn hint_channels(&self) -> usize {
        self.config.hint
    }

    fn latent(&self) -> Option<LatentFormat> {
        // These nets were trained on latents without the shift.
        Some(LatentFormat {
            shift: 0.0,
            ..latent_format::SD3
        })
    }

    fn see(&self, hint: &Tensor, _types: &[usize]) -> Result<SeenHint> {
        see_latent(&self.hint, &self.device, hint)
    }

    fn features(&self, input: &ControlInput<'_>) -> Result<ControlFeatures> {
        let device = &self.device;
        let context = ControlConds::read(input.conds)?.steering_prompt()?;
        let (mut x, size) = spread_tokens(&self.cells, &circular_pad(input.x, PATCH)?.to(device)?)?;
        let places = window(self.config.model.positions, size)?;
        let places = self.places.lookup_on(&places, device)?;
        x = x.add(&places.unsqueeze(0)?)?;
        x = x.add(&seen_tokens(input.seen, &x, device)?)?;
        let c = self
            .time
            .forward(&sinusoid(input.timesteps, WAVES)?.to(device)?)?;
        // The prompt's vector does not go in: these nets were trained on zeros.
        let none = Tensor::zeros([1, self.config.model.pooled])?.to(device)?;
        let c = silu(&c.add(&self.vector.forward(&none)?)?);
        let mut context = self.prompt.forward(&context.to(device)?)?;
        let repeat = (self.config.depth / self.blocks.len().max(1)).max(1);
        let mut out = Vec::new();
        for (i, (block, end)) in self.blocks.iter().zip(&self.out).enumerate() {
            (context, x) = block.forward(context, x, &c)?;
            let last = i + 1 == self.blocks.len();
            let features = end.forward(&x)?;
            out.extend(std::iter::repeat_n(
                Some(features),
                repeat - usize::from(last),
            ));
        }
        Ok(ControlFeatures::default().with(BlockKind::OUTPUT, out))
    }
}

/// What a net does to a picture before it becomes a latent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preprocess {
    Nothing,
    /// Edges.
    Canny,
    /// Distances, near ones bright.
    Depth,
}

/// The shape of a net that sees no prompt.
#[derive(Clone, Debug)]
pub struct PictureNetConfig {
    pub width: usize,
    pub heads: usize,
    pub blocks: usize,
    pub in_channels: usize,
    pub mlp: usize,
    /// Width of the vector as the net gets it.
    pub pooled: usize,
    /// The large form: the vector goes through the steered model first, and all blocks see the same.
    pub large: bool,
    /// Blocks of the model that is steered.
    pub depth: usize,
    pub preprocess: Preprocess,
}

impl PictureNetConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let vector = shape(store, "y_embedder.mlp.0.weight", 2)?;
        let width = vector[0];
        let inner = shape(store, "transformer_blocks.0.mlp.fc1.weight", 2)?[0];
        let heads = width / HEAD;
        if heads == 0 {
            let reason = format!("a control net of width {width} is of no model of this family");
            return Err(ModelError::unsupported(store.file(), reason));
        }
        let preprocess = if store.has("control_type") {
            let kind = store.tensor("control_type")?;
            match kind.data().first().map(|kind| kind.round()) {
                Some(1.0) => Preprocess::Canny,
                Some(2.0) => Preprocess::Depth,
                _ => Preprocess::Nothing,
            }
        } else {
            Preprocess::Nothing
        };
        Ok(Self {
            width,
            heads,
            blocks: blocks(store, "controlnet_blocks."),
            in_channels: shape(store, "pos_embed_input.proj.weight", 4)?[1],
            mlp: (inner / width).max(1),
            pooled: vector[1],
            large: vector[0] == vector[1],
            depth: heads,
            preprocess,
        })
    }
}

/// A control net with the picture's tokens alone.
pub struct PictureNet {
    device: Device,
    config: PictureNetConfig,
    /// The large form has its own; the others take the steered model's.
    cells: Option<Arc<Conv2d>>,
    hint: Arc<Conv2d>,
    time: Embedder,
    vector: Embedder,
    blocks: Vec<Stream>,
    out: Vec<Arc<Linear>>,
}

impl PictureNet {
    pub fn new(store: &WeightStore, config: PictureNetConfig) -> Result<Self> {
        store.build(WHAT, |weights| Self::walk(weights, &config))
    }

    fn walk(weights: &Walk<'_>, config: &PictureNetConfig) -> Result<Self> {
        let width = config.width;
        let model = Sd3Config {
            width,
            heads: config.heads,
            dual: Vec::new(),
            qk_norm: false,
            context: 0,
            pooled: config.pooled,
            in_channels: config.in_channels,
            out_channels: config.in_channels,
            positions: 0,
            mlp: config.mlp,
        };
        let embedder = |name: &str, input: usize| {
            Embedder::new(
                &weights.at(name),
                ["mlp.0", "mlp.2"],
                input,
                width,
                Bias::With,
            )
        };
        let inner = weights.at("transformer_blocks");
        let ends = weights.at("controlnet_blocks");
        let block = |i: usize| Stream::new(&inner.at(i), &model, StreamRole::Plain);
        let end = |i: usize| ends.linear(&i.to_string(), width, width);
        let own = || patch_conv(weights, "x_embedder.proj", width, config.in_channels, PATCH);
        Ok(Self {
            device: weights.device().clone(),
            config: config.clone(),
            cells: config.large.then(own).transpose()?,
            hint: patch_conv(
                weights,
                "pos_embed_input.proj",
                width,
                config.in_channels,
                PATCH,
            )?,
            time: embedder("t_embedder", WAVES)?,
            vector: embedder("y_embedder", config.pooled)?,
            blocks: (0..config.blocks).map(block).collect::<Result<_>>()?,
            out: (0..config.blocks).map(end).collect::<Result<_>>()?,
        })
    }

    /// Tokens of the latent, with positions where this form has them.
    fn tokens(&self, x: &Tensor, steered: &WeightStore) -> Result<Tensor> {
        let x = circular_pad(x, PATCH)?.to(&self.device)?;
        if let Some(cells) = &self.cells {
            return Ok(spread_tokens(cells, &x)?.0);
        }
        let padding = fresco_tensor::nn::Padding::Same(0);
        let cells = steered.conv("x_embedder.proj", PATCH, padding)?;
        let (x, size) = spread_tokens(&cells, &x)?;
        if x.shape().last() != Some(&self.config.width) {
            return Err(other_size());
        }
        let places = wave_places(self.config.width, size)?.to(&self.device)?;
        Ok(x.add(&places)?)
    }

    /// The prompt's vector as the net takes it.
    fn vector(&self, y: &Tensor, steered: &WeightStore) -> Result<Tensor> {
        let mut y = y.to(&self.device)?;
        if self.config.large {
            let first = steered.linear("y_embedder.mlp.0")?;
            let inner = first.forward_with(&y, then(Act::Silu))?;
            y = steered.linear("y_embedder.mlp.2")?.forward(&inner)?;
        }
        if y.shape().last() != Some(&self.config.pooled) {
            return Err(other_size());
        }
        self.vector.forward(&y)
    }
}

fn other_size() -> ModelError {
    let reason = "the model that it should steer is of another size or family";
    ModelError::invalid("control net", reason)
}

/// Waves of columns, then of rows, for each place of a picture: (1, rows * columns, width).
fn wave_places(width: usize, (rows, columns): (usize, usize)) -> Result<Tensor> {
    // The shorter side goes from 0 to 15.
    const MIDDLE: f64 = 7.5;
    let least = rows.min(columns).max(1) as f64;
    let line = |count: usize| -> Vec<f64> {
        let reach = MIDDLE * count as f64 / least;
        let step = if count > 1 {
            2.0 * reach / (count - 1) as f64
        } else {
            0.0
        };
        (0..count)
            .map(|i| MIDDLE - reach + step * i as f64)
            .collect()
    };
    let quarter = width / 4;
    let wave = |k: usize| 10000f64.powf(-(k as f64) / quarter.max(1) as f64);
    let (down, across) = (line(rows), line(columns));
    let mut out = Buffer::with_room(rows * columns * width)?;
    for y in &down {
        for x in &across {
            for at in [x, y] {
                out.extend((0..quarter).map(|k| (at * wave(k)).sin() as f32));
                out.extend((0..quarter).map(|k| (at * wave(k)).cos() as f32));
            }
            out.extend(std::iter::repeat_n(0.0, width - 4 * quarter));
        }
    }
    Ok(Tensor::from_buffer([1, rows * columns, width], out)?)
}

impl ControlNetwork for PictureNet {
    fn hint_size(&self, columns: usize, rows: usize) -> (usize, usize) {
        (columns, rows)
    }

    fn hint_channels(&self) -> usize {
        self.config.in_channels
    }

    fn latent(&self) -> Option<LatentFormat> {
        Some(latent_format::SD3)
    }

    fn prepare(&self, hint: Tensor) -> Result<Tensor> {
        Ok(match self.config.preprocess {
            Preprocess::Nothing => hint,
            Preprocess::Canny => hint.map(|v| v * 255.0 * 0.5 + 0.5),
            Preprocess::Depth => hint.rsub_scalar(1.0),
        })
    }

    fn see(&self, hint: &Tensor, _types: &[usize]) -> Result<SeenHint> {
        see_latent(&self.hint, &self.device, hint)
    }

    fn features(&self, input: &ControlInput<'_>) -> Result<ControlFeatures> {
        let device = &self.device;
        let pooled = ControlConds::read(input.conds)?
            .pooled
            .ok_or_else(|| ModelError::invalid("conditioning", "it has no pooled text"))?;
        let steered = input.steered.ok_or_else(other_size)?;
        if !steered.has("y_embedder.mlp.0.weight") || !steered.has("x_embedder.proj.weight") {
            return Err(other_size());
        }
        let mut x = self.tokens(input.x, steered)?;
        x = x.add(&seen_tokens(input.seen, &x, device)?)?;
        let c = self
            .time
            .forward(&sinusoid(input.timesteps, WAVES)?.to(device)?)?;
        let y = self.vector(pooled, steered)?;
        let c = silu(&c.add(&y)?);
        let repeat = self.config.depth.div_ceil(self.blocks.len().max(1));
        let mut out = Vec::new();
        for (block, end) in self.blocks.iter().zip(&self.out) {
            let next = block.alone(x.clone(), &c)?;
            out.extend(std::iter::repeat_n(Some(end.forward(&next)?), repeat));
            if !self.config.large {
                x = next;
            }
        }
        Ok(ControlFeatures::default().with(BlockKind::OUTPUT, out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shorter_side_has_places_from_0_to_15() {
        let places = wave_places(8, (2, 3)).unwrap();
        assert_eq!(places.shape(), [1, 6, 8]);
        // The first column of the first row: -3.75 across and 0 down.
        let first = &places.data()[..8];
        assert!((f64::from(first[0]) - (-3.75f64).sin()).abs() < 1e-6);
        assert_eq!(first[4], 0.0);
        assert_eq!(first[6], 1.0);
        let last = &places.data()[5 * 8..];
        assert!((f64::from(last[4]) - 15f64.sin()).abs() < 1e-6);
    }
}
