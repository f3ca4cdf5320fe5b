//! The network with which the smaller Gemma 4 see pictures: squares of pixels keep the picture's shape, know their column and
//! row, and nine neighbours become one row of the text network.

use std::sync::Arc;

use fresco_tensor::nn::{
    Embedding, Linear, Mask, RmsNorm, Value, attention, avg_pool2d, gelu_tanh,
};
use fresco_tensor::{Buffer, Device, Tensor};

use super::clipped::ClippedLinear;
use super::layout::SQUARES;
use super::network::Eyes;
use crate::error::{ModelError, Result};
use crate::store::{Walk, WeightStore};
use crate::text::sequence::SeenPicture;
use crate::transformer::Rope;
use crate::vision::resize_bicubic;

const EPS: f32 = 1e-6;
/// More layers than any of these has.
const MAX_LAYERS: usize = 256;
/// Squares side by side, and above each other, that become one row.
const MERGED: usize = 3;
/// Rows of text that a picture becomes at most.
const MOST_ROWS: usize = 280;
/// Frequencies fall from 1 towards one over this.
const THETA: f64 = 100.0;

/// Sizes of such a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TilesConfig {
    pub hidden: usize,
    pub inner: usize,
    pub layers: usize,
    pub heads: usize,
    /// Channels of a head.
    pub head: usize,
    /// Pixels along a side of a square.
    pub side: usize,
    /// Columns, and rows, that are known.
    pub places: usize,
    /// Numbers of a row of the text network.
    pub text: usize,
    /// Whether matrices hold down what goes in and what comes out.
    pub clipped: bool,
    /// Whether rows are made even by a mean and a deviation at the end.
    pub even: bool,
}

fn key(layer: usize, name: &str) -> String {
    format!("vision_tower.encoder.layers.{layer}.{name}")
}

impl TilesConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shape = |key: &str| {
            store.shape(key).ok_or_else(|| ModelError::Missing {
                file: store.file().to_owned(),
                key: key.to_owned(),
            })
        };
        let table = "vision_tower.patch_embedder.position_embedding_table";
        let projection = "embed_vision.embedding_projection.weight";
        let queries = key(0, "self_attn.q_proj.linear.weight");
        let (gate, norm) = (
            key(0, "mlp.gate_proj.linear.weight"),
            key(0, "self_attn.q_norm.weight"),
        );
        let (&[hidden, pixels], &[2, places, _], &[text, _], &[rows, _], &[inner, _], &[head]) = (
            shape(SQUARES)?,
            shape(table)?,
            shape(projection)?,
            shape(&queries)?,
            shape(&gate)?,
            shape(&norm)?,
        ) else {
            let reason = "the weights of its network for pictures have shapes that are not known";
            return Err(ModelError::unsupported(store.file(), reason));
        };
        let side = (pixels / 3).isqrt();
        let layers = |i: &usize| store.has(&key(*i, "self_attn.q_norm.weight"));
        let heads = rows.checked_div(head).unwrap_or(0);
        let whole = side > 0 && side * side * 3 == pixels && heads * head == rows && heads > 0;
        if !whole || !head.is_multiple_of(4) || hidden == 0 {
            let reason = format!(
                "its network for pictures has squares of {pixels} numbers and {rows} channels in heads of {head}, which do \
                 not fit"
            );
            return Err(ModelError::unsupported(store.file(), reason));
        }
        Ok(Self {
            hidden,
            inner,
            layers: (0..MAX_LAYERS).take_while(layers).count(),
            heads,
            head,
            side,
            places,
            text,
            clipped: store.has(&key(0, "self_attn.q_proj.input_max")),
            even: store.has("vision_tower.std_scale"),
        })
    }

    /// Rows and columns of squares that a picture of so many pixels becomes: as many as fit without another shape.
    pub fn grid(&self, height: usize, width: usize) -> (usize, usize) {
        let unit = (MERGED * self.side) as f64;
        let (h, w) = (height as f64, width as f64);
        let grow = (MOST_ROWS as f64 * unit * unit / (h * w)).sqrt();
        let fitting = |n: f64| (n * grow / unit).floor() as usize;
        let long = |n: f64, other: f64| ((n / other).floor() as usize).clamp(1, MOST_ROWS);
        let (rows, columns) = match (fitting(h), fitting(w)) {
            (0, _) => (1, long(w, h)),
            (_, 0) => (long(h, w), 1),
            found => found,
        };
        let most = self.places.max(MERGED) / MERGED;
        (rows.min(most) * MERGED, columns.min(most) * MERGED)
    }
}

struct TileLayer {
    input_layernorm: Arc<RmsNorm>,
    q_proj: ClippedLinear,
    k_proj: ClippedLinear,
    v_proj: ClippedLinear,
    o_proj: ClippedLinear,
    q_norm: Arc<RmsNorm>,
    k_norm: Arc<RmsNorm>,
    v_norm: RmsNorm,
    post_attention_layernorm: Arc<RmsNorm>,
    pre_feedforward_layernorm: Arc<RmsNorm>,
    gate_proj: ClippedLinear,
    up_proj: ClippedLinear,
    down_proj: ClippedLinear,
    post_feedforward_layernorm: Arc<RmsNorm>,
}

/// Angles by column and by row.
type GridRope = [Rope; 2];

impl TileLayer {
    fn new(weights: &Walk<'_>, config: &TilesConfig) -> Result<Self> {
        let (hidden, inner) = (config.hidden, config.inner);
        let own = config.heads * config.head;
        let matrix = |name: &str, out: usize, input: usize| {
            ClippedLinear::new(&weights.at(name), out, input, config.clipped)
        };
        let norm =
            |name: &str, width: usize| weights.rms_norm(&format!("{name}.weight"), width, EPS);
        Ok(Self {
            input_layernorm: norm("input_layernorm", hidden)?,
            q_proj: matrix("self_attn.q_proj", own, hidden)?,
            k_proj: matrix("self_attn.k_proj", own, hidden)?,
            v_proj: matrix("self_attn.v_proj", own, hidden)?,
            o_proj: matrix("self_attn.o_proj", hidden, own)?,
            q_norm: norm("self_attn.q_norm", config.head)?,
            k_norm: norm("self_attn.k_norm", config.head)?,
            v_norm: RmsNorm::new(None, EPS)?,
            post_attention_layernorm: norm("post_attention_layernorm", hidden)?,
            pre_feedforward_layernorm: norm("pre_feedforward_layernorm", hidden)?,
            gate_proj: matrix("mlp.gate_proj", inner, hidden)?,
            up_proj: matrix("mlp.up_proj", inner, hidden)?,
            down_proj: matrix("mlp.down_proj", hidden, inner)?,
            post_feedforward_layernorm: norm("post_feedforward_layernorm", hidden)?,
        })
    }

    /// `(1, n, c)` to the same.
    fn forward(&self, x: &Tensor, ropes: &GridRope, config: &TilesConfig) -> Result<Tensor> {
        let h = self.attend(&self.input_layernorm.forward(x)?, ropes, config)?;
        let x = x.add(&self.post_attention_layernorm.forward(&h)?)?;
        let h = self.pre_feedforward_layernorm.forward(&x)?;
        let gate = gelu_tanh(&self.gate_proj.forward(&h)?);
        let h = self
            .down_proj
            .forward(&gate.mul(&self.up_proj.forward(&h)?)?)?;
        Ok(x.add(&self.post_feedforward_layernorm.forward(&h)?)?)
    }

    fn attend(&self, x: &Tensor, ropes: &GridRope, config: &TilesConfig) -> Result<Tensor> {
        let [_, n, _] = x.dims3()?;
        let (heads, head) = (config.heads, config.head);
        let by_head = |x: Tensor, norm: &RmsNorm| -> Result<Tensor> {
            Ok(norm.forward(&x.reshape([1, n, heads, head])?)?)
        };
        // The first half of a head's channels is turned by the column, the second by the row.
        let placed = |x: Tensor| -> Result<Tensor> {
            let half = |at: usize| -> Result<Tensor> {
                let part = x.narrow(3, at * head / 2, head / 2)?;
                let part = part.reshape([1, n, heads * head / 2])?;
                let part = ropes[at].half(&part, heads)?;
                Ok(part.reshape([1, n, heads, head / 2])?)
            };
            let joined = Tensor::cat(&[&half(0)?, &half(1)?], 3)?;
            Ok(joined.reshape([1, n, heads * head])?)
        };
        let q = placed(by_head(self.q_proj.forward(x)?, &self.q_norm)?)?;
        let k = placed(by_head(self.k_proj.forward(x)?, &self.k_norm)?)?;
        let v = by_head(self.v_proj.forward(x)?, &self.v_norm)?;
        let v = v.reshape([1, n, heads * head])?;
        let found = attention(&q, &k, &v, heads, Mask::None, Some(1.0))?;
        self.o_proj.forward(&found)
    }
}

/// See the module.
pub struct Tiles {
    config: TilesConfig,
    device: Device,
    input_proj: Arc<Linear>,
    /// Columns, then rows.
    places: Arc<Embedding>,
    layers: Vec<TileLayer>,
    even: Option<[Arc<Value>; 2]>,
    norm: RmsNorm,
    projection: Arc<Linear>,
}

/// The network in a file that brings one.
pub(super) fn find(store: &WeightStore) -> Result<Option<Box<dyn Eyes>>> {
    if !store.has(SQUARES) {
        return Ok(None);
    }
    let config = TilesConfig::detect(store)?;
    Ok(Some(Box::new(Tiles::new(store, &config)?)))
}

impl Tiles {
    pub fn new(store: &WeightStore, config: &TilesConfig) -> Result<Self> {
        store.build("the network for pictures", |weights| {
            let own = weights.at("vision_tower");
            let embedder = own.at("patch_embedder");
            let table = [2, config.places, config.hidden];
            let layers = own.at("encoder").at("layers");
            let layers = (0..config.layers).map(|i| TileLayer::new(&layers.at(i), config));
            let even = || -> Result<[Arc<Value>; 2]> {
                Ok([
                    own.value("std_bias", &[config.hidden])?,
                    own.value("std_scale", &[config.hidden])?,
                ])
            };
            let pixels = 3 * config.side * config.side;
            Ok(Self {
                input_proj: embedder.matrix("input_proj", config.hidden, pixels)?,
                places: embedder.rows("position_embedding_table", &table)?,
                layers: layers.collect::<Result<_>>()?,
                even: config.even.then(even).transpose()?,
                norm: RmsNorm::new(None, EPS)?,
                projection: weights.at("embed_vision").matrix(
                    "embedding_projection",
                    config.text,
                    config.hidden,
                )?,
                device: weights.device(),
                config: config.clone(),
            })
        })
    }

    /// The squares of a picture `(1, h, w, c)` of 0 to 1, row by row, `(n, side * side * 3)` of -1 to 1, and their grid.
    fn cut(&self, picture: &Tensor) -> Result<(Tensor, (usize, usize))> {
        let [count, h, w, channels] = picture.dims4()?;
        if count == 0 || h == 0 || w == 0 || channels < 3 {
            let reason = format!("a picture of {w}x{h} with {channels} channels cannot be seen");
            return Err(ModelError::invalid("prompt", reason));
        }
        let first = picture.narrow(0, 0, 1)?.narrow(3, 0, 3)?;
        let side = self.config.side;
        let (rows, columns) = self.config.grid(h, w);
        let sized = resize_bicubic(&first, rows * side, columns * side)?;
        let pixels = sized.data();
        let line = columns * side * 3;
        let mut out = Buffer::with_room(rows * columns * side * side * 3)?;
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |c| (row, c))) {
            for y in 0..side {
                let at = (row * side + y) * line + column * side * 3;
                let part = pixels[at..at + side * 3].iter();
                out.extend(part.map(|v| 2.0 * (v.clamp(0.0, 1.0) - 0.5)));
            }
        }
        let squares = Tensor::from_buffer([rows * columns, side * side * 3], out)?;
        Ok((squares, (rows, columns)))
    }

    /// Rows of the text network `(n, c)`, each of nine squares of a grid.
    pub fn see_squares(&self, squares: &Tensor, rows: usize, columns: usize) -> Result<Tensor> {
        let config = &self.config;
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (column, row)));
        let places: Vec<(usize, usize)> = places.collect();
        let ids = |at: fn(&(usize, usize)) -> usize, from: usize| -> Vec<u32> {
            let ids = places.iter().map(|place| (from + at(place)) as u32);
            ids.collect()
        };
        let table = |ids: &[u32]| self.places.lookup_on(ids, &self.device);
        let (column, row) = (
            table(&ids(|p| p.0, 0))?,
            table(&ids(|p| p.1, config.places))?,
        );
        let x = self.input_proj.forward(&squares.to(&self.device)?)?;
        let mut x = x.add(&column.add(&row)?)?.unsqueeze(0)?;
        let rope = |at: fn(&(usize, usize)) -> usize| -> Result<Rope> {
            let positions: Vec<f64> = places.iter().map(|place| at(place) as f64).collect();
            Rope::new(&positions, &[config.head / 2], THETA)?.to(&self.device)
        };
        let ropes = [rope(|p| p.0)?, rope(|p| p.1)?];
        for layer in &self.layers {
            x = layer.forward(&x, &ropes, config)?;
        }
        let few = avg_pool2d(&x.reshape([1, rows, columns, config.hidden])?, MERGED)?;
        let mut few = few.mul_scalar((config.hidden as f32).sqrt());
        if let Some([bias, scale]) = &self.even {
            few = few.sub(&bias.at(&self.device)?)?;
            few = few.mul(&scale.at(&self.device)?)?;
        }
        let count = rows / MERGED * (columns / MERGED);
        let few = self.norm.forward(&few.reshape([count, config.hidden])?)?;
        Ok(self.projection.forward(&few)?)
    }
}

impl Eyes for Tiles {
    fn see(&self, picture: &Tensor) -> Result<SeenPicture> {
        let (squares, (rows, columns)) = self.cut(picture)?;
        let seen = self.see_squares(&squares, rows, columns)?;
        // Rows of pictures are not scaled as those of words are, which the text network does to all.
        let unscaled = (self.config.text as f32).sqrt().recip();
        Ok(SeenPicture {
            rows: seen.mul_scalar(unscaled),
            grid: (rows / MERGED, columns / MERGED),
            deeper: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_keep_the_shape_of_pictures() {
        let config = TilesConfig {
            hidden: 8,
            inner: 8,
            layers: 1,
            heads: 1,
            head: 8,
            side: 16,
            places: 10_240,
            text: 8,
            clipped: false,
            even: false,
        };
        // Sides in pixels as the published code has them, for 280 rows of text.
        for ((height, width), found) in [
            ((64, 96), (624, 960)),
            ((1080, 1920), (576, 1056)),
            ((1000, 1000), (768, 768)),
            ((1, 2000), (48, 13_440)),
            ((2000, 1), (13_440, 48)),
        ] {
            let (rows, columns) = config.grid(height, width);
            assert_eq!((rows * 16, columns * 16), found, "{height} x {width}");
        }
    }
}
