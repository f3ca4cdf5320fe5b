//! An autoencoder of solids: a latent says for every point of a cube whether it is inside (Zhang et al. 2023).

use std::sync::Arc;

use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask, attention};
use fresco_tensor::{Buffer, Device, Tensor};

use super::autoencoder::{Autoencoder, AutoencoderConfig, Subject, VaeFacts};
use super::images::Vae;
use super::kl::Check;
use super::memory::VaeMemory;
use crate::epilogue::{plus, then};
use crate::error::{ModelError, Result};
use crate::store::{Layout, Walk, WeightStore};
use crate::transformer::{Shapes, part};

/// Of norms inside of attention, and of all others.
const EPS: f32 = 1e-6;
const LAST_EPS: f32 = 1e-5;
/// Where the cube ends on all sides.
const REACH: f32 = 1.01;
const WHAT: &str = "the autoencoder of solids";
const SIGN: &str = "geo_decoder.cross_attn_decoder.ln_1.bias";
/// Cells along a side that anybody asks for, and points that are looked at at once.
const MOST_CELLS: usize = 512;
const MOST_POINTS: usize = 500_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeVaeConfig {
    pub latent: usize,
    pub width: usize,
    pub heads: usize,
    pub layers: usize,
    pub inner: usize,
    /// Waves of each of a point's coordinates.
    pub waves: usize,
    /// Whether heads have norms of their own.
    pub normed: bool,
}

/// Channels of a head of all published ones.
const HEAD: usize = 64;

impl ShapeVaeConfig {
    pub fn is_in(store: &WeightStore) -> bool {
        store.has(SIGN)
    }

    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (width, latent) = shapes.matrix("post_kl.weight")?;
        let (_, point) = shapes.matrix("geo_decoder.query_proj.weight")?;
        let norm = "transformer.resblocks.0.attn.attention.q_norm.weight";
        let normed = store.has(norm);
        let head = if normed { shapes.vector(norm)? } else { HEAD };
        if !width.is_multiple_of(head) || point < 3 || !(point - 3).is_multiple_of(6) {
            let reason = format!("a width of {width} in heads of {head}, points of {point}");
            return Err(shapes.unsupported(reason));
        }
        Ok(Self {
            latent,
            width,
            heads: width / head,
            layers: shapes.count("transformer.resblocks"),
            inner: shapes.matrix("transformer.resblocks.0.mlp.c_fc.weight")?.0,
            waves: (point - 3) / 6,
            normed,
        })
    }

    /// The network over its weights.
    pub fn open(&self, store: &WeightStore) -> Result<ShapeVae> {
        store.build(WHAT, |weights| ShapeVae::new(weights, self))
    }
}

impl AutoencoderConfig for ShapeVaeConfig {
    fn facts(&self) -> VaeFacts {
        VaeFacts {
            subject: Subject::Solids,
            memory: VaeMemory::Solids,
            ..VaeFacts::pictures(self.latent, 1)
        }
    }

    fn verify(&self, store: &WeightStore) -> Result<()> {
        Layout::of(|weights| ShapeVae::new(weights, self))?.verify(store, WHAT)
    }

    fn build(&self, store: &WeightStore) -> Result<Vae> {
        Ok(self.open(store)?.into())
    }
}

/// Attention whose layer gives the parts of each head side by side.
struct Attention {
    norms: Option<[Arc<LayerNorm>; 2]>,
    out: Arc<Linear>,
    heads: usize,
}

impl Attention {
    fn new(weights: &Walk<'_>, config: &ShapeVaeConfig) -> Result<Self> {
        let head = config.width / config.heads;
        let inside = weights.at("attention");
        let norm = |name: &str| inside.layer_norm(name, head, EPS);
        Ok(Self {
            norms: if config.normed {
                Some([norm("q_norm")?, norm("k_norm")?])
            } else {
                None
            },
            out: weights.linear("c_proj", config.width, config.width)?,
            heads: config.heads,
        })
    }

    /// So many parts of every head: (b, n, width) each.
    fn parts<const N: usize>(&self, all: &Tensor) -> Result<[Tensor; N]> {
        let [b, n, wide] = all.dims3()?;
        let width = wide / N;
        let d = width / self.heads;
        let each = all.reshape([b, n, self.heads, N * d])?;
        let parts = (0..N)
            .map(|i| -> Result<Tensor> { Ok(part(&each, i * d, d)?.reshape([b, n, width])?) });
        let parts: Vec<Tensor> = parts.collect::<Result<_>>()?;
        parts
            .try_into()
            .map_err(|_| ModelError::invalid("attention", "a layer has no such parts"))
    }

    fn normed(&self, x: &Tensor, which: usize) -> Result<Tensor> {
        let Some(norms) = &self.norms else {
            return Ok(x.clone());
        };
        let [b, n, width] = x.dims3()?;
        let each = x.reshape([b, n, self.heads, width / self.heads])?;
        Ok(norms[which].forward(&each)?.reshape([b, n, width])?)
    }

    /// `k` as it comes out of [`Self::normed`], so that it need not be made for every piece of a cube.
    fn look(&self, q: &Tensor, k: &Tensor, v: &Tensor, x: &Tensor) -> Result<Tensor> {
        let q = self.normed(q, 0)?;
        let seen = attention(&q, k, v, self.heads, Mask::None, None)?;
        Ok(self.out.forward_with(&seen, plus(x))?)
    }
}

struct Mlp([Arc<Linear>; 2]);

impl Mlp {
    fn new(weights: &Walk<'_>, config: &ShapeVaeConfig) -> Result<Self> {
        let (width, inner) = (config.width, config.inner);
        Ok(Self([
            weights.linear("c_fc", inner, width)?,
            weights.linear("c_proj", width, inner)?,
        ]))
    }

    fn forward(&self, input: &Tensor, x: &Tensor) -> Result<Tensor> {
        let inner = self.0[0].forward_with(input, then(Act::Gelu))?;
        Ok(self.0[1].forward_with(&inner, plus(x))?)
    }
}

struct Layer {
    qkv: Arc<Linear>,
    attention: Attention,
    norms: [Arc<LayerNorm>; 2],
    mlp: Mlp,
}

impl Layer {
    fn new(weights: &Walk<'_>, config: &ShapeVaeConfig) -> Result<Self> {
        let width = config.width;
        Ok(Self {
            qkv: weights.matrix("attn.c_qkv", 3 * width, width)?,
            attention: Attention::new(&weights.at("attn"), config)?,
            norms: [
                weights.layer_norm("ln_1", width, EPS)?,
                weights.layer_norm("ln_2", width, EPS)?,
            ],
            mlp: Mlp::new(&weights.at("mlp"), config)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let all = self.qkv.forward(&self.norms[0].forward(x)?)?;
        let [q, k, v] = self.attention.parts(&all)?;
        let k = self.attention.normed(&k, 1)?;
        let x = self.attention.look(&q, &k, &v, x)?;
        self.mlp.forward(&self.norms[1].forward(&x)?, &x)
    }
}

pub struct ShapeVae {
    device: Device,
    config: ShapeVaeConfig,
    first: Arc<Linear>,
    layers: Vec<Layer>,
    point: Arc<Linear>,
    q: Arc<Linear>,
    kv: Arc<Linear>,
    attention: Attention,
    /// Of points, of the latent, and before the feed-forward.
    norms: [Arc<LayerNorm>; 3],
    mlp: Mlp,
    last_norm: Arc<LayerNorm>,
    last: Arc<Linear>,
}

impl ShapeVae {
    fn new(weights: &Walk<'_>, config: &ShapeVaeConfig) -> Result<Self> {
        let width = config.width;
        let list = weights.at("transformer.resblocks");
        let decoder = weights.at("geo_decoder");
        let cross = decoder.at("cross_attn_decoder");
        let norm = |name: &str| cross.layer_norm(name, width, EPS);
        Ok(Self {
            device: weights.device(),
            config: config.clone(),
            first: weights.linear("post_kl", width, config.latent)?,
            layers: (0..config.layers)
                .map(|number| Layer::new(&list.at(number), config))
                .collect::<Result<_>>()?,
            point: decoder.linear("query_proj", width, 3 + 6 * config.waves)?,
            q: cross.matrix("attn.c_q", width, width)?,
            kv: cross.matrix("attn.c_kv", 2 * width, width)?,
            attention: Attention::new(&cross.at("attn"), config)?,
            norms: [norm("ln_1")?, norm("ln_2")?, norm("ln_3")?],
            mlp: Mlp::new(&cross.at("mlp"), config)?,
            last_norm: decoder.layer_norm("ln_post", width, LAST_EPS)?,
            last: decoder.linear("output_proj", 1, width)?,
        })
    }

    pub fn config(&self) -> &ShapeVaeConfig {
        &self.config
    }

    /// Coordinates with their waves, (1, points, 3 + 6 waves), of points with these numbers.
    fn points(&self, numbers: std::ops::Range<usize>, side: usize) -> Result<Tensor> {
        let (waves, count) = (self.config.waves, numbers.len());
        let width = 3 + 6 * waves;
        let step = 2.0 * REACH / (side.max(2) - 1) as f32;
        let mut out = Buffer::with_room(count * width)?;
        for number in numbers {
            let at = [number / side / side, number / side % side, number % side];
            let place = at.map(|i| i as f32 * step - REACH);
            out.extend(place);
            let angles = place
                .iter()
                .flat_map(|v| (0..waves).map(move |k| v * (1u64 << k.min(63)) as f32));
            out.extend(angles.clone().map(f32::sin));
            out.extend(angles.map(f32::cos));
        }
        Ok(Tensor::from_buffer([1, count, width], out)?)
    }

    /// What the network says of every point of a cube with so many cells along a side, (b, x, z, y): about -1 outside and 1
    /// inside. Only `chunk` points are looked at at once.
    pub fn field(
        &self,
        latent: &Tensor,
        cells: usize,
        chunk: usize,
        check: Check<'_>,
    ) -> Result<Tensor> {
        let [b, channels, tokens] = latent.dims3()?;
        if channels != self.config.latent || b == 0 || tokens == 0 {
            let reason = format!(
                "this VAE takes latents of {} channels, got shape {:?}",
                self.config.latent,
                latent.shape()
            );
            return Err(ModelError::invalid("VAE decode", reason));
        }
        if cells == 0 || cells > MOST_CELLS || chunk == 0 {
            let reason = format!("{cells} cells along a side, at most {MOST_CELLS} are possible");
            return Err(ModelError::invalid("VAE decode", reason));
        }
        let x = latent.permute(&[0, 2, 1])?.to(&self.device)?;
        let mut x = self.first.forward(&x)?;
        for layer in &self.layers {
            check()?;
            x = layer.forward(&x)?;
        }
        let kv = self.kv.forward(&self.norms[1].forward(&x)?)?;
        let [k, v] = self.attention.parts(&kv)?;
        let k = self.attention.normed(&k, 1)?;
        let side = cells + 1;
        let all = side * side * side;
        let chunk = chunk.min(MOST_POINTS);
        let mut field = Buffer::with_room(b * all)?;
        for item in 0..b {
            let (k, v) = (k.narrow(0, item, 1)?, v.narrow(0, item, 1)?);
            let mut at = 0;
            while at < all {
                check()?;
                let end = (at + chunk).min(all);
                let points = self.points(at..end, side)?.to(&self.device)?;
                let said = self.field_values(&points, &k, &v)?.to(&Device::cpu())?;
                field.extend_from_slice(said.data());
                at = end;
            }
        }
        let field = Tensor::from_buffer([b, side, side, side], field)?;
        // The second axis of the cube is up.
        Ok(field.permute(&[0, 1, 3, 2])?)
    }

    /// (1, points, 1).
    fn field_values(&self, points: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let x = self.point.forward(points)?;
        let q = self.q.forward(&self.norms[0].forward(&x)?)?;
        let x = self.attention.look(&q, k, v, &x)?;
        let x = self.mlp.forward(&self.norms[2].forward(&x)?, &x)?;
        Ok(self.last.forward(&self.last_norm.forward(&x)?)?)
    }

    /// Voxels (b, z, y, x) between 0 and 1.
    pub fn decode(
        &self,
        latent: &Tensor,
        cells: usize,
        chunk: usize,
        check: Check<'_>,
    ) -> Result<Tensor> {
        let field = self.field(latent, cells, chunk, check)?;
        let field = field.map(|v| f32::midpoint(v, 1.0).clamp(0.0, 1.0));
        Ok(field.movedim(1, 3)?)
    }
}

impl Autoencoder for ShapeVae {
    fn facts(&self) -> VaeFacts {
        self.config.facts()
    }

    fn solids(&self) -> Option<&ShapeVae> {
        Some(self)
    }
}
