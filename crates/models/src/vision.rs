//! Vision encoders: CLIP's (L, H, G), SigLIP and DINOv2. A picture in, features of the whole and of its parts out.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Conv2d, Embedding, LayerNorm, Linear, Mask, Padding, Value};
use fresco_tensor::resize::pillow::Filter;
use fresco_tensor::{Device, Tensor, WeightFile};

use crate::error::{ModelError, Result};
use crate::name_table::{NameTable, layer, place, squeezed, transposed, value};
use crate::store::{Blocks, Kernel, Layout, UnitOrder, Walk, WeightStore};
use crate::text::clip::OPEN_CLIP_BLOCK;
use crate::transformer::{
    AttentionLayers, EncoderBlock, EncoderLayers, HeadNorm, Heads, MlpLayers, NormPlace, QkvLayers,
    Rotation,
};

const EPS: f32 = 1e-5;
/// Every published encoder has as many.
const HEADS: usize = 16;
const MOST_LAYERS: usize = 1000;
const CLIP_MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
const PLAIN_MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const PLAIN_STD: [f32; 3] = [0.229, 0.224, 0.225];
const CLIP_STD: [f32; 3] = [0.268_629_55, 0.261_302_6, 0.275_777_1];

/// The shape of the network, read from its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub inner: usize,
    pub act: Act,
    pub patch: usize,
    /// Pixels along a side.
    pub size: usize,
    /// Width of the projected features; none where there is no projection.
    pub projection: Option<usize>,
    /// SigLIP: no class token, features after the last norm.
    pub siglip: bool,
    /// DINOv2: blocks that scale what they add.
    pub scaled: bool,
    /// Gated feed-forwards, of the largest of those.
    pub gated: bool,
}

impl VisionConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let refuse = |reason: &str| Err(ModelError::unsupported(store.file(), reason));
        let patches = store.shape("vision_model.embeddings.patch_embedding.weight");
        let Some(&[hidden, 3, patch, _]) = patches else {
            return refuse("this is not a vision encoder of a known kind");
        };
        let scaled = store.has("vision_model.encoder.layers.0.layer_scale1");
        let gated = store.has("vision_model.encoder.layers.0.mlp.weights_in.weight");
        let first = if gated { "weights_out" } else { "fc1" };
        let layer = |i: usize| format!("vision_model.encoder.layers.{i}.mlp.{first}.weight");
        let layers = (0..MOST_LAYERS).take_while(|i| store.has(&layer(*i)));
        let layers = layers.count();
        let side = usize::from(gated);
        let inner = store.shape(&layer(0)).and_then(|s| s.get(side)).copied();
        let positions = "vision_model.embeddings.position_embedding.weight";
        let positions = store.shape(positions).and_then(|s| s.first()).copied();
        let (Some(inner), Some(positions)) = (inner, positions) else {
            return refuse("the vision encoder has no layers or no positions");
        };
        let siglip = !store.has("vision_model.embeddings.class_embedding");
        let side = positions.saturating_sub(usize::from(!siglip)).isqrt();
        if side == 0 || patch == 0 || hidden == 0 {
            return refuse("the vision encoder has no room for a picture");
        }
        let projection = store.shape("visual_projection.weight");
        let act = match (siglip, layers) {
            _ if scaled => Act::Gelu,
            (true, _) => Act::GeluTanh,
            // Only the smallest of the published ones has the quick form.
            (false, 24) => Act::QuickGelu,
            (false, _) => Act::Gelu,
        };
        Ok(Self {
            hidden,
            layers,
            heads: if scaled { (hidden / 64).max(1) } else { HEADS },
            inner,
            act,
            patch,
            size: side * patch,
            projection: projection.and_then(|s| s.first()).copied(),
            siglip,
            scaled,
            gated,
        })
    }

    /// What norms add to what they divide by.
    fn eps(&self) -> f32 {
        if self.scaled { 1e-6 } else { EPS }
    }

    fn tokens(&self) -> usize {
        (self.size / self.patch).pow(2) + usize::from(!self.siglip)
    }

    /// Every weight with its shape.
    pub fn weights(&self) -> Result<Vec<(String, Vec<usize>)>> {
        let layout = Layout::of(|weights| VisionEncoder::walk(weights, self))?;
        Ok(layout.items().to_vec())
    }
}

/// The order of the parts.
pub static UNITS: UnitOrder = UnitOrder {
    parts: &[
        "vision_model",
        "embeddings",
        "class_embedding",
        "patch_embedding",
        "position_embedding",
        "pre_layrnorm",
        "encoder",
        "post_layernorm",
        "visual_projection",
    ],
    blocks: &[Blocks::Within("layers")],
    values: &["class_embedding", "layer_scale1", "layer_scale2"],
};

/// The weights of an encoder under the names of transformers, from files with those or OpenCLIP's.
pub fn store(file: &Arc<dyn WeightFile>, device: Device) -> Arc<WeightStore> {
    store_in(file, "", device)
}

/// Where checkpoints that begin with a picture have the network that looks at it.
const IN_CHECKPOINTS: [&str; 3] = [
    "conditioner.embedders.0.open_clip.model.",
    "cond_stage_model.model.",
    "conditioner.main_image_encoder.model.",
];

/// The prefix of such a network in a checkpoint; none if it has none.
pub fn prefix_in(file: &Arc<dyn WeightFile>) -> Option<&'static str> {
    let there = |prefix: &&&str| {
        let visual = format!("{prefix}visual.conv1.weight");
        file.info(&visual).is_some() || has_scaled(file, prefix)
    };
    IN_CHECKPOINTS.iter().find(there).copied()
}

/// Whether a DINOv2 under the names of transformers is there.
fn has_scaled(file: &Arc<dyn WeightFile>, prefix: &str) -> bool {
    let name = format!("{prefix}encoder.layer.0.layer_scale1.lambda1");
    file.info(&name).is_some()
}

/// The same for one that is a part of a file.
pub fn store_in(file: &Arc<dyn WeightFile>, prefix: &str, device: Device) -> Arc<WeightStore> {
    let scaled = SCALED_PREFIXES
        .into_iter()
        .find(|prefix| has_scaled(file, prefix));
    let names = file.names();
    let prefix = scaled.unwrap_or(prefix);
    let inside: Vec<&str> = names
        .iter()
        .filter_map(|name| name.strip_prefix(prefix))
        .collect();
    if scaled.is_some() {
        let keys = SCALED.origins(&**file, prefix, &inside);
        return WeightStore::mapped(Arc::clone(file), keys, device).with_units(&UNITS);
    }
    if file.info(&format!("{prefix}visual.conv1.weight")).is_some() {
        let keys = OPEN_CLIP.origins(&**file, prefix, &inside);
        return WeightStore::mapped(Arc::clone(file), keys, device).with_units(&UNITS);
    }
    // Some files bring the text encoder, too.
    let mut keys = NameTable::OWN.origins(&**file, prefix, &inside);
    keys.retain(|key, _| key.starts_with("vision_model.") || key.starts_with("visual_"));
    WeightStore::mapped(Arc::clone(file), keys, device).with_units(&UNITS)
}

/// Where files keep a DINOv2.
const SCALED_PREFIXES: [&str; 2] = ["", "conditioner.main_image_encoder.model."];

/// The names that transformers has for a DINOv2.
pub static SCALED: NameTable = NameTable::new(&[
    place(
        "encoder.layer.{i}.",
        "vision_model.encoder.layers.{i}.",
        &[
            layer("norm1", "layer_norm1"),
            layer("norm2", "layer_norm2"),
            layer("attention.attention.query", "self_attn.q_proj"),
            layer("attention.attention.key", "self_attn.k_proj"),
            layer("attention.attention.value", "self_attn.v_proj"),
            layer("attention.output.dense", "self_attn.out_proj"),
            value("layer_scale1.lambda1", "layer_scale1"),
            value("layer_scale2.lambda1", "layer_scale2"),
            layer("mlp.fc1", "mlp.fc1"),
            layer("mlp.fc2", "mlp.fc2"),
            layer("mlp.weights_in", "mlp.weights_in"),
            layer("mlp.weights_out", "mlp.weights_out"),
        ],
    ),
    place(
        "embeddings.",
        "vision_model.embeddings.",
        &[
            squeezed("cls_token", "class_embedding"),
            squeezed("position_embeddings", "position_embedding.weight"),
            layer("patch_embeddings.projection", "patch_embedding"),
        ],
    ),
    place("layernorm", "vision_model.post_layernorm", &[layer("", "")]),
]);

/// OpenCLIP's names.
pub static OPEN_CLIP: NameTable = NameTable::new(&[
    place(
        "visual.transformer.resblocks.{i}.",
        "vision_model.encoder.layers.{i}.",
        OPEN_CLIP_BLOCK,
    ),
    place(
        "visual.",
        "vision_model.",
        &[
            value("conv1.weight", "embeddings.patch_embedding.weight"),
            value("class_embedding", "embeddings.class_embedding"),
            value(
                "positional_embedding",
                "embeddings.position_embedding.weight",
            ),
            layer("ln_pre", "pre_layrnorm"),
            layer("ln_post", "post_layernorm"),
        ],
    ),
    place(
        "visual.",
        "",
        &[transposed("proj", "visual_projection.weight")],
    ),
]);

fn block(weights: &Walk<'_>, config: &VisionConfig) -> Result<EncoderBlock> {
    let hidden = config.hidden;
    let heads = Heads::new(config.heads, hidden / config.heads, HeadNorm::None);
    let qkv = QkvLayers::Apart(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]);
    let layers = EncoderLayers {
        attention: AttentionLayers::new(qkv, "self_attn.out_proj", hidden, heads),
        mlp: if config.gated {
            MlpLayers::GateFirst(["mlp.weights_in", "mlp.weights_out"])
        } else {
            MlpLayers::Plain(["mlp.fc1", "mlp.fc2"], config.act)
        },
        inner: config.inner,
        norms: ["layer_norm1", "layer_norm2"],
        place: NormPlace::Before,
        eps: config.eps(),
        // What is added is multiplied with these.
        scales: config.scaled.then_some(["layer_scale1", "layer_scale2"]),
    };
    EncoderBlock::new(weights, &layers)
}

/// Layers after those whose states tell a style: the eleventh and the twentieth from the end.
const DEEPER: [usize; 2] = [10, 19];

/// What an encoder sees in a batch of pictures.
#[derive(Clone, Debug)]
pub struct VisionFeatures {
    /// `(b, n, c)`
    pub last: Tensor,
    /// The layer before the last.
    pub penultimate: Tensor,
    /// A middle and an early layer, by which styles are told: of networks that have so many.
    pub deeper: Option<[Tensor; 2]>,
    /// `(b, projection)`
    pub embeds: Tensor,
    /// The token for all of a picture before the projection, `(b, c)`, where there is one.
    pub class: Option<Tensor>,
}

/// See the [module](self).
pub struct VisionEncoder {
    config: VisionConfig,
    /// Where it computes.
    device: Device,
    patches: Arc<Conv2d>,
    class: Option<Arc<Value>>,
    positions: Arc<Embedding>,
    pre: Option<Arc<LayerNorm>>,
    blocks: Vec<EncoderBlock>,
    post: Arc<LayerNorm>,
    projection: Option<Arc<Linear>>,
}

impl VisionEncoder {
    pub fn new(store: &WeightStore, config: &VisionConfig) -> Result<Self> {
        store.build("the vision encoder", |weights| Self::walk(weights, config))
    }

    pub(crate) fn walk(weights: &Walk<'_>, config: &VisionConfig) -> Result<Self> {
        let hidden = config.hidden;
        if config.heads == 0 || !hidden.is_multiple_of(config.heads) {
            let reason = format!("{hidden} channels do not make {} heads", config.heads);
            return Err(weights.unsupported(reason));
        }
        let model = weights.at("vision_model");
        let tables = model.at("embeddings");
        let kernel = Kernel {
            out: hidden,
            input: 3,
            side: config.patch,
            bias: config.siglip || config.scaled,
        };
        let patches =
            tables.conv_with("patch_embedding", kernel, config.patch, Padding::Same(0))?;
        let positions = tables.embedding("position_embedding", config.tokens(), hidden)?;
        let (mut class, mut pre) = (None, None);
        if !config.siglip {
            class = Some(tables.value("class_embedding", &[hidden])?);
            if !config.scaled {
                pre = Some(model.layer_norm("pre_layrnorm", hidden, EPS)?);
            }
        }
        let layers = model.at("encoder.layers");
        Ok(Self {
            patches,
            class,
            positions,
            pre,
            blocks: layers.each(config.layers, |weights| block(weights, config))?,
            post: model.layer_norm("post_layernorm", hidden, config.eps())?,
            projection: config
                .projection
                .map(|width| weights.matrix("visual_projection", width, hidden))
                .transpose()?,
            device: weights.device().clone(),
            config: config.clone(),
        })
    }

    pub fn config(&self) -> &VisionConfig {
        &self.config
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Pictures `(b, h, w, c)` in 0..1 as the network takes them: `(b, size, size, 3)`, normalised. `crop` takes the
    /// middle square, otherwise the whole picture is squeezed.
    pub fn prepare(&self, images: &Tensor, crop: bool) -> Result<Tensor> {
        let [_, h, w, c] = images.dims4()?;
        if h == 0 || w == 0 || c < 3 {
            let reason = format!("a picture of {w}x{h} with {c} channels");
            return Err(ModelError::invalid("vision encoder", reason));
        }
        let size = self.config.size;
        let images = images.narrow(3, 0, 3)?;
        let mut x = if (h, w) == (size, size) {
            images
        } else if crop {
            let scale = size as f64 / h.min(w) as f64;
            let scaled = |n: usize| (scale * n as f64).round_ties_even().max(1.0) as usize;
            let (rows, columns) = (scaled(h).max(size), scaled(w).max(size));
            let grown = resize_bicubic(&images, rows, columns)?;
            let top = grown.narrow(1, (rows - size) / 2, size)?;
            top.narrow(2, (columns - size) / 2, size)?
        } else {
            resize_bicubic(&images, size, size)?
        };
        let (mean, std) = if self.config.siglip {
            ([0.5; 3], [0.5; 3])
        } else if self.config.scaled {
            (PLAIN_MEAN, PLAIN_STD)
        } else {
            (CLIP_MEAN, CLIP_STD)
        };
        for pixel in x.data_mut().chunks_exact_mut(3) {
            for ((v, mean), std) in pixel.iter_mut().zip(mean).zip(std) {
                let byte = (*v * 255.0).clamp(0.0, 255.0).round_ties_even();
                *v = (byte / 255.0 - mean) / std;
            }
        }
        Ok(x)
    }

    /// Features of pictures `(b, h, w, c)` in 0..1.
    pub fn encode(&self, images: &Tensor, crop: bool) -> Result<VisionFeatures> {
        self.forward(&self.prepare(images, crop)?)
    }

    fn forward(&self, pixels: &Tensor) -> Result<VisionFeatures> {
        let hidden = self.config.hidden;
        let device = &self.device;
        let parts = self.patches.forward(&pixels.to(device)?)?; // (b, rows, columns, c)
        let [b, rows, columns, _] = parts.dims4()?;
        let mut x = parts.reshape([b, rows * columns, hidden])?;
        if let Some(class) = &self.class {
            let class = class
                .at(device)?
                .reshape([1, 1, hidden])?
                .expand(&[b, 1, hidden])?;
            x = Tensor::cat(&[&class, &x], 1)?;
        }
        let places: Vec<u32> = (0..self.config.tokens() as u32).collect();
        let positions = self.positions.lookup_on(&places, device)?;
        x = x.add(&positions.reshape([1, places.len(), hidden])?)?;
        drop(positions);
        if let Some(norm) = &self.pre {
            x = norm.forward(&x)?;
        }
        let home = |t: Tensor| t.to(&Device::cpu());
        let mut penultimate = x.clone();
        let mut deeper = Vec::new();
        for (number, block) in self.blocks.iter().enumerate() {
            penultimate = x;
            x = block.forward(&penultimate, Rotation::NONE, Mask::None)?;
            let left = self.blocks.len() - number - 1;
            if self.config.siglip && DEEPER.contains(&left) {
                deeper.push(home(x.clone())?);
            }
        }
        deeper.reverse();
        let deeper = <[Tensor; 2]>::try_from(deeper).ok();
        if self.config.siglip {
            let last = home(self.post.forward(&x)?)?;
            return Ok(VisionFeatures {
                embeds: last.clone(),
                penultimate: home(penultimate)?,
                deeper,
                last,
                class: None,
            });
        }
        if self.config.scaled {
            let last = home(self.post.forward(&x)?)?;
            return Ok(VisionFeatures {
                embeds: last.select(1, 0)?,
                penultimate: home(penultimate)?,
                deeper: None,
                last,
                class: None,
            });
        }
        let class = self.post.forward(&x.narrow(1, 0, 1)?)?;
        let class = class.reshape([b, hidden])?;
        let embeds = match &self.projection {
            Some(projection) => projection.forward(&class)?,
            None => class.clone(),
        };
        Ok(VisionFeatures {
            last: home(x)?,
            penultimate: home(penultimate)?,
            deeper: None,
            embeds: home(embeds)?,
            class: Some(home(class)?),
        })
    }
}

/// Bicubic with a filter that widens when the picture shrinks, in f32.
pub(crate) fn resize_bicubic(images: &Tensor, height: usize, width: usize) -> Result<Tensor> {
    let across = along(images, 2, width)?;
    along(&across, 1, height)
}

/// One dimension of `(b, h, w, c)` at another size.
fn along(images: &Tensor, dim: usize, size: usize) -> Result<Tensor> {
    let from = images.dim(dim)?;
    if from == size {
        return Ok(images.clone());
    }
    let scale = from as f64 / size as f64;
    let widen = scale.max(1.0);
    let weights: Vec<(usize, Vec<f32>)> = (0..size)
        .map(|i| {
            let centre = (i as f64 + 0.5) * scale;
            let first = (centre - 2.0 * widen + 0.5).max(0.0) as usize;
            let end = ((centre + 2.0 * widen + 0.5) as usize).min(from);
            let raw: Vec<f64> = (first..end)
                .map(|x| Filter::Bicubic.weight((x as f64 - centre + 0.5) / widen))
                .collect();
            let sum: f64 = raw.iter().sum();
            (first, raw.iter().map(|w| (w / sum) as f32).collect())
        })
        .collect();
    let shape = images.shape();
    let before: usize = shape[..dim].iter().product();
    let after: usize = shape[dim + 1..].iter().product();
    let mut out_shape = shape.to_vec();
    out_shape[dim] = size;
    let mut out = Tensor::zeros(out_shape)?;
    let source = images.data();
    for (at, row) in out.data_mut().chunks_exact_mut(after).enumerate() {
        let (outer, i) = (at / size, at % size);
        debug_assert!(outer < before);
        let (first, weights) = &weights[i];
        for (k, weight) in weights.iter().enumerate() {
            let start = (outer * from + first + k) * after;
            for (o, v) in row.iter_mut().zip(&source[start..start + after]) {
                *o += weight * v;
            }
        }
    }
    Ok(out)
}
