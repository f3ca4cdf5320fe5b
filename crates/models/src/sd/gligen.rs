//! Boxes with words for a UNet (Li et al. 2023): tokens for boxes, which every transformer looks at through a layer of its
//! own between its two attentions.

use std::sync::Arc;

use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask, Value, add_gated, attention, tanh};
use fresco_tensor::{Device, Tensor, WeightFile};

use crate::denoise::hooks::{AttnOutput, BlockInfo, BlockKind, Hooks};
use crate::epilogue::then;
use crate::error::{ModelError, Result};
use crate::store::{Layout, Walk, WeightStore};
use crate::transformer::Shapes;

const EPS: f32 = 1e-5;

/// Boxes that a picture can have.
pub const MOST_BOXES: usize = 30;

/// Frequencies of a coordinate.
const FREQUENCIES: usize = 8;
/// Numbers that a box becomes.
const BOX_WIDTH: usize = 4 * 2 * FREQUENCIES;

/// Width of the prompt of the first model; its transformers have eight heads, others heads of 64 channels.
const FIRST_CONTEXT: usize = 768;

/// The network in messages.
const WHAT: &str = "the GLIGEN model";

/// The parts of a UNet, as files name them and in the order they run.
const PARTS: [(&str, BlockKind); 3] = [
    ("input_blocks", BlockKind::INPUT),
    ("middle_block", BlockKind::MIDDLE),
    ("output_blocks", BlockKind::OUTPUT),
];

/// One layer of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuserConfig {
    /// What stands before its keys, without the dot.
    pub name: String,
    kind: BlockKind,
    number: usize,
    pub query: usize,
    pub heads: usize,
    inner: usize,
}

/// The shape of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GligenConfig {
    pub fusers: Vec<FuserConfig>,
    /// Width of a prompt's vector, inside the layers that make tokens, and of a token.
    pub text: usize,
    inner: usize,
    pub token: usize,
}

impl GligenConfig {
    /// Whether a file is one.
    pub fn is_in(file: &dyn WeightFile) -> bool {
        file.info("position_net.null_positive_feature").is_some()
    }

    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (token, inner) = shapes.matrix("position_net.linears.4.weight")?;
        let mut fusers = Vec::new();
        for (part, kind) in PARTS {
            let mut found: Vec<(usize, String)> = Vec::new();
            for key in store.keys() {
                let Some(name) = key.strip_suffix(".fuser.linear.weight") else {
                    continue;
                };
                let number = name.strip_prefix(part).and_then(|r| r.strip_prefix('.'));
                let number = number.and_then(|r| r.split('.').next()?.parse().ok());
                found.extend(number.map(|number| (number, format!("{name}.fuser"))));
            }
            found.sort();
            for (number, name) in found {
                fusers.push(FuserConfig::detect(store, name, (kind, number), None)?);
            }
        }
        Ok(Self {
            fusers,
            text: shapes.vector("position_net.null_positive_feature")?,
            inner,
            token,
        })
    }
}

impl FuserConfig {
    /// `heads` where they are not those of the published models.
    pub fn detect(
        store: &WeightStore,
        name: String,
        (kind, number): (BlockKind, usize),
        heads: Option<usize>,
    ) -> Result<Self> {
        let shapes = Shapes(store);
        let (query, context) = shapes.matrix(&format!("{name}.linear.weight"))?;
        let usual = if context == FIRST_CONTEXT {
            8
        } else {
            (query / 64).max(1)
        };
        let (inner, _) = shapes.matrix(&format!("{name}.ff.net.0.proj.weight"))?;
        Ok(Self {
            name,
            kind,
            number,
            query,
            heads: heads.unwrap_or(usual),
            inner: inner / 2,
        })
    }
}

/// Tokens of boxes and words.
pub struct PositionNet {
    null_text: Arc<Value>,
    null_box: Arc<Value>,
    layers: [Arc<Linear>; 3],
}

impl PositionNet {
    pub fn new(weights: &Walk<'_>, config: &GligenConfig) -> Result<Self> {
        let (text, inner) = (config.text, config.inner);
        Ok(Self {
            null_text: weights.value("null_positive_feature", &[text])?,
            null_box: weights.value("null_position_feature", &[BOX_WIDTH])?,
            layers: [
                weights.linear("linears.0", inner, text + BOX_WIDTH)?,
                weights.linear("linears.2", inner, inner)?,
                weights.linear("linears.4", config.token, inner)?,
            ],
        })
    }

    /// `boxes` (b, n, 4) from 0 to 1, `mask` (b, n) says which there are, `words` (b, n, c). All in main memory; the result
    /// is (b, n, token) on the device.
    pub fn forward(
        &self,
        boxes: &Tensor,
        mask: &Tensor,
        words: &Tensor,
        device: &Device,
    ) -> Result<Tensor> {
        let [b, n, _] = boxes.dims3()?;
        let mask = mask.reshape([b, n, 1])?.to(device)?;
        let absent = mask.rsub_scalar(1.0);
        let chosen = |x: &Tensor, null: &Value| -> Result<Tensor> {
            let null = null.at(device)?;
            let null = null.reshape([1, 1, null.len()])?;
            Ok(x.mul(&mask)?.add(&null.mul(&absent)?)?)
        };
        let words = chosen(&words.to(device)?, &self.null_text)?;
        let places = chosen(&waves(boxes)?.to(device)?, &self.null_box)?;
        let x = Tensor::cat(&[&words, &places], 2)?;
        let x = self.layers[0].forward_with(&x, then(Act::Silu))?;
        let x = self.layers[1].forward_with(&x, then(Act::Silu))?;
        Ok(self.layers[2].forward(&x)?)
    }
}

/// For each frequency the sines of all four coordinates, then their cosines.
fn waves(boxes: &Tensor) -> Result<Tensor> {
    let [b, n, _] = boxes.dims3()?;
    let mut out = Vec::with_capacity(b * n * BOX_WIDTH);
    for place in boxes.data().chunks_exact(4) {
        for k in 0..FREQUENCIES {
            let frequency = 100_f32.powf(k as f32 / FREQUENCIES as f32);
            out.extend(place.iter().map(|v| (frequency * v).sin()));
            out.extend(place.iter().map(|v| (frequency * v).cos()));
        }
    }
    Ok(Tensor::from_vec([b, n, BOX_WIDTH], out)?)
}

/// What one transformer looks at boxes with.
pub struct Fuser {
    linear: Arc<Linear>,
    alpha: [Arc<Value>; 2],
    q: Arc<Linear>,
    k: Arc<Linear>,
    v: Arc<Linear>,
    out: Arc<Linear>,
    norms: [Arc<LayerNorm>; 2],
    ff: [Arc<Linear>; 2],
    heads: usize,
}

impl Fuser {
    pub fn new(weights: &Walk<'_>, config: &FuserConfig, token: usize) -> Result<Self> {
        let (query, inner) = (config.query, config.inner);
        let attn = weights.at("attn");
        Ok(Self {
            linear: weights.linear("linear", query, token)?,
            alpha: [
                weights.value("alpha_attn", &[])?,
                weights.value("alpha_dense", &[])?,
            ],
            q: attn.matrix("to_q", query, query)?,
            k: attn.matrix("to_k", query, query)?,
            v: attn.matrix("to_v", query, query)?,
            out: attn.linear("to_out.0", query, query)?,
            norms: [
                weights.layer_norm("norm1", query, EPS)?,
                weights.layer_norm("norm2", query, EPS)?,
            ],
            ff: [
                weights.linear("ff.net.0.proj", 2 * inner, query)?,
                weights.linear("ff.net.2", query, inner)?,
            ],
            heads: config.heads,
        })
    }

    /// `x` (b, n, c) with what it sees in the tokens of boxes.
    pub fn forward(&self, x: Tensor, boxes: &Tensor) -> Result<Tensor> {
        let device = x.device();
        let [b, n, c] = x.dims3()?;
        let gate = |alpha: &Value| -> Result<Tensor> {
            let value = tanh(&alpha.at(&device)?.reshape([1])?);
            Ok(value.expand(&[c])?)
        };
        let boxes = self.linear.forward(boxes)?;
        let boxes = fresco_tensor::repeat_to_batch(&boxes, b)?;
        let all = self.norms[0].forward(&Tensor::cat(&[&x, &boxes], 1)?)?;
        let (q, k, v) = (
            self.q.forward(&all)?,
            self.k.forward(&all)?,
            self.v.forward(&all)?,
        );
        let seen = attention(&q, &k, &v, self.heads, Mask::None, None)?;
        let seen = self.out.forward(&seen)?.narrow(1, 0, n)?;
        let x = add_gated(x, &gate(&self.alpha[0])?, &seen)?;
        let inner = self.ff[0].geglu(&self.norms[1].forward(&x)?)?;
        let made = self.ff[1].forward(&inner)?;
        Ok(add_gated(x, &gate(&self.alpha[1])?, &made)?)
    }
}

/// See the [module](self).
pub struct Gligen {
    device: Device,
    config: GligenConfig,
    position: PositionNet,
    fusers: Vec<Fuser>,
}

impl Gligen {
    pub fn new(store: &WeightStore) -> Result<Self> {
        let config = GligenConfig::detect(store)?;
        store.build(WHAT, |weights| Self::walk(weights, &config))
    }

    /// Whether a store has every weight in its shape.
    pub fn verify(store: &WeightStore) -> Result<()> {
        let config = GligenConfig::detect(store)?;
        Layout::of(|weights| Self::walk(weights, &config))?.verify(store, WHAT)
    }

    fn walk(weights: &Walk<'_>, config: &GligenConfig) -> Result<Self> {
        let fuser = |fuser: &FuserConfig| Fuser::new(&weights.at(&fuser.name), fuser, config.token);
        Ok(Self {
            device: weights.device(),
            position: PositionNet::new(&weights.at("position_net"), config)?,
            fusers: config.fusers.iter().map(fuser).collect::<Result<_>>()?,
            config: config.clone(),
        })
    }

    /// The tokens of boxes for a latent of so many rows and columns of cells.
    pub fn tokens(&self, boxes: &[TextBox], (rows, columns): (usize, usize)) -> Result<Tensor> {
        if boxes.len() > MOST_BOXES {
            let reason = format!(
                "{} boxes with text are more than the {MOST_BOXES} that GLIGEN knows",
                boxes.len()
            );
            return Err(ModelError::invalid("conditioning", reason));
        }
        let width = self.config.text;
        let mut places = vec![0.0; MOST_BOXES * 4];
        let mut mask = vec![0.0; MOST_BOXES];
        let mut words = vec![0.0; MOST_BOXES * width];
        let (tall, wide) = (rows.max(1) as f32, columns.max(1) as f32);
        for (at, one) in boxes.iter().enumerate() {
            if one.words.len() != width {
                let reason = format!(
                    "GLIGEN takes vectors of {width} numbers for the text of a box, this one has {}: it was made with \
                     another text encoder",
                    one.words.len()
                );
                return Err(ModelError::invalid("conditioning", reason));
            }
            let [height, length, y, x] = one.cells.map(|n| n as f32);
            let corners = [x / wide, y / tall, (x + length) / wide, (y + height) / tall];
            places[4 * at..4 * at + 4].copy_from_slice(&corners);
            mask[at] = 1.0;
            words[width * at..width * (at + 1)].copy_from_slice(one.words.data());
        }
        self.position.forward(
            &Tensor::from_vec([1, MOST_BOXES, 4], places)?,
            &Tensor::from_vec([1, MOST_BOXES], mask)?,
            &Tensor::from_vec([1, MOST_BOXES, width], words)?,
            &self.device,
        )
    }

    /// Makes a network look at tokens of boxes.
    pub fn look(self: &Arc<Self>, tokens: Tensor, hooks: &mut Hooks) {
        let looking = Looking {
            network: Arc::clone(self),
            tokens,
        };
        hooks.self_attention.after.push(Arc::new(looking));
    }
}

/// A box with words.
#[derive(Clone, Debug)]
pub struct TextBox {
    /// The vector of its words.
    pub words: Tensor,
    /// Height, width, top and left, in cells of the latent.
    pub cells: [usize; 4],
}

struct Looking {
    network: Arc<Gligen>,
    tokens: Tensor,
}

impl AttnOutput for Looking {
    fn kinds(&self) -> &[BlockKind] {
        &BlockKind::LEVELS
    }

    fn apply(&self, x: Tensor, at: &BlockInfo<'_>) -> Result<Tensor> {
        let here = |fuser: &FuserConfig| {
            fuser.kind == at.kind && (fuser.number == at.number || at.kind == BlockKind::MIDDLE)
        };
        let found = self.network.config.fusers.iter().position(here);
        let Some(fuser) = found.and_then(|found| self.network.fusers.get(found)) else {
            return Ok(x);
        };
        let device = x.device();
        let width = x.dims3()?[2];
        if width != fuser.linear.out_features() {
            let reason = "this GLIGEN model was made for another kind of UNet";
            return Err(ModelError::invalid("conditioning", reason));
        }
        fuser.forward(x, &self.tokens.to(&device)?)
    }
}
