//! Vision encoders: CLIP's (L, H, G) and SigLIP. A picture in, features of the whole and of its parts out.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_tensor::nn::{
    Act, After, Conv2d, Embedding, LayerNorm, Linear, Mask, Padding, Value, attention,
};
use fresco_tensor::resize::pillow::Filter;
use fresco_tensor::{Device, Tensor, WeightFile};

use crate::error::{ModelError, Result};
use crate::layout::Layout;
use crate::store::{Origin, Store};

const EPS: f32 = 1e-5;
/// Every published encoder has as many.
const HEADS: usize = 16;
const MOST_LAYERS: usize = 1000;
const CLIP_MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
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
}

impl VisionConfig {
    pub fn detect(store: &Store) -> Result<Self> {
        let refuse = |reason: &str| Err(ModelError::unsupported(store.file(), reason));
        let patches = store.shape("vision_model.embeddings.patch_embedding.weight");
        let Some(&[hidden, 3, patch, _]) = patches else {
            return refuse("this is no vision encoder of a known kind");
        };
        let layer = |i: usize| format!("vision_model.encoder.layers.{i}.mlp.fc1.weight");
        let layers = (0..MOST_LAYERS).take_while(|i| store.has(&layer(*i)));
        let layers = layers.count();
        let inner = store.shape(&layer(0)).and_then(|s| s.first()).copied();
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
            (true, _) => Act::GeluTanh,
            // Only the smallest of the published ones has the quick form.
            (false, 24) => Act::QuickGelu,
            (false, _) => Act::Gelu,
        };
        Ok(Self {
            hidden,
            layers,
            heads: HEADS,
            inner,
            act,
            patch,
            size: side * patch,
            projection: projection.and_then(|s| s.first()).copied(),
            siglip,
        })
    }

    fn tokens(&self) -> usize {
        (self.size / self.patch).pow(2) + usize::from(!self.siglip)
    }

    /// Every weight with its shape.
    pub fn weights(&self) -> Vec<(String, Vec<usize>)> {
        self.layout().items().to_vec()
    }

    fn layout(&self) -> Layout {
        let mut to = Layout::default();
        let (hidden, key) = (self.hidden, "vision_model.embeddings");
        let kernel = [hidden, 3, self.patch, self.patch];
        to.tensor(format!("{key}.patch_embedding.weight"), kernel);
        to.tensor(
            format!("{key}.position_embedding.weight"),
            [self.tokens(), hidden],
        );
        if self.siglip {
            to.tensor(format!("{key}.patch_embedding.bias"), [hidden]);
        } else {
            to.tensor(format!("{key}.class_embedding"), [hidden]);
            to.norm("vision_model.pre_layrnorm", hidden);
        }
        for layer in 0..self.layers {
            let key = format!("vision_model.encoder.layers.{layer}");
            to.norm(&format!("{key}.layer_norm1"), hidden);
            for name in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                to.linear(&format!("{key}.self_attn.{name}"), hidden, hidden);
            }
            to.norm(&format!("{key}.layer_norm2"), hidden);
            to.linear(&format!("{key}.mlp.fc1"), self.inner, hidden);
            to.linear(&format!("{key}.mlp.fc2"), hidden, self.inner);
        }
        to.norm("vision_model.post_layernorm", hidden);
        if let Some(width) = self.projection {
            to.matrix("visual_projection", width, hidden);
        }
        to
    }
}

/// The weights of an encoder under the names of transformers, from files with those or OpenCLIP's.
pub fn store(file: &Arc<dyn WeightFile>, device: Device) -> Arc<Store> {
    let mut keys = BTreeMap::new();
    if file.info("visual.conv1.weight").is_none() {
        // Some files bring the text encoder, too.
        let ours = |name: &String| name.starts_with("vision_model.") || name.starts_with("visual_");
        for name in file.names().into_iter().filter(ours) {
            keys.insert(name.clone(), Origin::Whole(name));
        }
        return Store::mapped(Arc::clone(file), keys, device);
    }
    for name in file.names() {
        let Some(rest) = name.strip_prefix("visual.") else {
            continue;
        };
        let whole = Origin::Whole(name.clone());
        let embeddings = "vision_model.embeddings";
        match rest {
            "conv1.weight" => {
                keys.insert(format!("{embeddings}.patch_embedding.weight"), whole);
            }
            "class_embedding" => {
                keys.insert(format!("{embeddings}.class_embedding"), whole);
            }
            "positional_embedding" => {
                keys.insert(format!("{embeddings}.position_embedding.weight"), whole);
            }
            "proj" => {
                let turned = Origin::Transposed(name.clone());
                keys.insert("visual_projection.weight".to_owned(), turned);
            }
            _ => converted(&mut keys, file, &name, rest),
        }
    }
    Store::mapped(Arc::clone(file), keys, device)
}

/// One of OpenCLIP's layers or norms.
fn converted(
    keys: &mut BTreeMap<String, Origin>,
    file: &Arc<dyn WeightFile>,
    name: &str,
    rest: &str,
) {
    let whole = Origin::Whole(name.to_owned());
    for (from, to) in [("ln_pre", "pre_layrnorm"), ("ln_post", "post_layernorm")] {
        if let Some(part) = rest.strip_prefix(from) {
            keys.insert(format!("vision_model.{to}{part}"), whole);
            return;
        }
    }
    let Some((number, part)) = rest
        .strip_prefix("transformer.resblocks.")
        .and_then(|rest| rest.split_once('.'))
    else {
        return;
    };
    let layer = format!("vision_model.encoder.layers.{number}");
    if let Some(kind) = part.strip_prefix("attn.in_proj_") {
        let rows = file.info(name).and_then(|info| info.shape.first().copied());
        let count = rows.unwrap_or(0) / 3;
        for (i, proj) in ["q_proj", "k_proj", "v_proj"].iter().enumerate() {
            let part = Origin::Rows {
                name: name.to_owned(),
                start: i * count,
                count,
            };
            keys.insert(format!("{layer}.self_attn.{proj}.{kind}"), part);
        }
        return;
    }
    let names = [
        ("ln_1", "layer_norm1"),
        ("ln_2", "layer_norm2"),
        ("attn.out_proj", "self_attn.out_proj"),
        ("mlp.c_fc", "mlp.fc1"),
        ("mlp.c_proj", "mlp.fc2"),
    ];
    if let Some((from, to)) = names.iter().find(|(from, _)| part.starts_with(from)) {
        keys.insert(format!("{layer}.{to}{}", &part[from.len()..]), whole);
    }
}

struct Block {
    norm1: Arc<LayerNorm>,
    q: Arc<Linear>,
    k: Arc<Linear>,
    v: Arc<Linear>,
    out: Arc<Linear>,
    norm2: Arc<LayerNorm>,
    fc1: Arc<Linear>,
    fc2: Arc<Linear>,
}

fn added(x: &Tensor) -> After<'_> {
    After {
        add: Some(x),
        ..After::default()
    }
}

impl Block {
    fn new(store: &Store, number: usize) -> Result<Self> {
        let key = |name: &str| format!("vision_model.encoder.layers.{number}.{name}");
        Ok(Self {
            norm1: store.layer_norm(&key("layer_norm1"), EPS)?,
            q: store.linear(&key("self_attn.q_proj"))?,
            k: store.linear(&key("self_attn.k_proj"))?,
            v: store.linear(&key("self_attn.v_proj"))?,
            out: store.linear(&key("self_attn.out_proj"))?,
            norm2: store.layer_norm(&key("layer_norm2"), EPS)?,
            fc1: store.linear(&key("mlp.fc1"))?,
            fc2: store.linear(&key("mlp.fc2"))?,
        })
    }

    fn forward(&self, x: &Tensor, config: &VisionConfig) -> Result<Tensor> {
        let h = self.norm1.forward(x)?;
        let (q, k, v) = (
            self.q.forward(&h)?,
            self.k.forward(&h)?,
            self.v.forward(&h)?,
        );
        let h = attention(&q, &k, &v, config.heads, Mask::None, None)?;
        let x = self.out.forward_with(&h, added(x))?;
        let h = self.norm2.forward(&x)?;
        let act = After {
            act: config.act,
            ..After::default()
        };
        let h = self.fc1.forward_with(&h, act)?;
        Ok(self.fc2.forward_with(&h, added(&x))?)
    }
}

/// What an encoder sees in a batch of pictures.
#[derive(Clone, Debug)]
pub struct VisionFeatures {
    /// `(b, n, c)`
    pub last: Tensor,
    /// The layer before the last.
    pub penultimate: Tensor,
    /// `(b, projection)`
    pub embeds: Tensor,
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
    blocks: Vec<Block>,
    post: Arc<LayerNorm>,
    projection: Option<Arc<Linear>>,
}

impl VisionEncoder {
    pub fn new(store: &Arc<Store>, config: VisionConfig) -> Result<Self> {
        config.layout().verify(store, "the vision encoder")?;
        if config.heads == 0 || !config.hidden.is_multiple_of(config.heads) {
            let reason = format!(
                "{} channels do not make {} heads",
                config.hidden, config.heads
            );
            return Err(ModelError::unsupported(store.file(), reason));
        }
        let key = "vision_model.embeddings";
        let class = (!config.siglip).then(|| store.value(&format!("{key}.class_embedding")));
        let pre = (!config.siglip).then(|| store.layer_norm("vision_model.pre_layrnorm", EPS));
        let blocks = (0..config.layers).map(|i| Block::new(store, i));
        let patches = format!("{key}.patch_embedding");
        Ok(Self {
            patches: store.conv(&patches, config.patch, Padding::Same(0))?,
            class: class.transpose()?,
            positions: store.embedding(&format!("{key}.position_embedding"))?,
            pre: pre.transpose()?,
            blocks: blocks.collect::<Result<_>>()?,
            post: store.layer_norm("vision_model.post_layernorm", EPS)?,
            projection: config
                .projection
                .map(|_| store.linear("visual_projection"))
                .transpose()?,
            device: store.device().clone(),
            config,
        })
    }

    pub fn config(&self) -> &VisionConfig {
        &self.config
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
        let mut penultimate = x.clone();
        for block in &self.blocks {
            penultimate = x;
            x = block.forward(&penultimate, &self.config)?;
        }
        let home = |t: Tensor| t.to(&Device::cpu());
        if self.config.siglip {
            let last = home(self.post.forward(&x)?)?;
            return Ok(VisionFeatures {
                embeds: last.clone(),
                penultimate: home(penultimate)?,
                last,
            });
        }
        let class = self.post.forward(&x.narrow(1, 0, 1)?)?;
        let class = class.reshape([b, hidden])?;
        let embeds = match &self.projection {
            Some(projection) => projection.forward(&class)?,
            None => class,
        };
        Ok(VisionFeatures {
            last: home(x)?,
            penultimate: home(penultimate)?,
            embeds: home(embeds)?,
        })
    }
}

/// Bicubic with a filter that widens when the picture shrinks, in f32.
fn resize_bicubic(images: &Tensor, height: usize, width: usize) -> Result<Tensor> {
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
