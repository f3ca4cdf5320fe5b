//! What a decoder is like: sizes from its weights, the rest from whose it is.

use fresco_tensor::nn::{Act, DeltaSizes};

use super::layout::{EXPERTS, REMEMBERS, SCALAR, TABLE};
use super::uneven;
use crate::error::{ModelError, Result};
use crate::store::{Bias, WeightStore};

/// More layers than any of these has.
const MAX_LAYERS: usize = 1024;

/// Whose decoder it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    Qwen25,
    Qwen3,
    Qwen3Vl,
    Qwen35,
    Gemma2,
    Gemma3,
    Gemma4,
    Mistral,
    Llama,
}

/// How far positions turn pairs of channels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeRule {
    /// Frequencies fall from 1 towards one over this.
    pub theta: f64,
    /// Frequencies are divided by this.
    pub slower: f64,
    /// The share of the pairs that is turned, the first ones; the others stay as they are wherever a row is.
    pub share: f64,
}

/// Layers that see only so far back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sliding {
    pub window: usize,
    /// One of so many layers, the last of them, sees everything.
    pub every: usize,
    pub rope: RopeRule,
}

/// Sizes of one layer, and how it looks at what was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerSizes {
    /// Channels of a head.
    pub head: usize,
    /// Channels of a head that positions turn, the first ones.
    pub turned: usize,
    /// Heads of keys and values, each for several of queries.
    pub kv_heads: usize,
    pub inner: usize,
    /// Whether it sees only so far back.
    pub slides: bool,
    /// Whether there is no matrix for values: keys, before their norm and their place, are the values too.
    pub keys_are_values: bool,
    /// The layer before it whose keys and values it looks at; none where it has its own.
    pub shares: Option<usize>,
    /// Whether later layers look at its keys and values.
    pub lends: bool,
}

/// What each layer is told of every token by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerLayer {
    /// Rows of the table that tells it.
    pub vocabulary: usize,
    /// Numbers for one layer.
    pub width: usize,
    /// Numbers for all layers.
    pub all: usize,
}

/// Which pairs of channels are turned by which of three positions: time, row, column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sections {
    /// So many by each, one after the other.
    Chunks([usize; 3]),
    /// In turn, as long as each has some left; the rest by time.
    Interleaved([usize; 3]),
}

impl Sections {
    /// The axis that turns a pair.
    pub(super) fn axis(self, pair: usize) -> usize {
        match self {
            Self::Chunks([time, row, _]) if pair < time + row => usize::from(pair >= time),
            Self::Chunks(_) => 2,
            Self::Interleaved(counts) => match pair % 3 {
                axis @ 1..=2 if pair < 3 * counts[axis] => axis,
                _ => 0,
            },
        }
    }
}

/// Layers that remember by the gated delta rule instead of looking at everything.
#[derive(Debug, Clone, PartialEq)]
pub struct Remembering {
    pub sizes: DeltaSizes,
    /// Tokens that the convolution before it takes together.
    pub taps: usize,
    /// Which layers do.
    pub layers: Vec<bool>,
}

impl Remembering {
    pub(super) fn at(&self, layer: usize) -> bool {
        self.layers.get(layer).copied().unwrap_or(false)
    }
}

/// Sizes and rules of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    pub hidden: usize,
    pub inner: usize,
    pub layers: usize,
    pub heads: usize,
    /// Heads of keys and values, each for several of queries.
    pub kv_heads: usize,
    /// Channels of a head.
    pub head: usize,
    pub vocabulary: usize,
    pub eps: f32,
    pub act: Act,
    /// Whether queries, keys and values have a bias.
    pub bias: Bias,
    /// Whether queries and keys are normalised head by head.
    pub normed: bool,
    /// Whether there are norms after attention and feed-forward too, before they are added (Gemma).
    pub sandwiched: bool,
    /// Whether norms have their weights stored minus one.
    pub minus_one: bool,
    /// Whether embeddings are multiplied by the root of their width.
    pub scaled: bool,
    /// Whether there is a norm after the last layer.
    pub final_norm: bool,
    pub rope: RopeRule,
    /// Channels of a head that positions turn, the first ones.
    pub turned: usize,
    /// Whether each head has a gate for what it found, in the matrix of its queries.
    pub gated: bool,
    pub remembering: Option<Remembering>,
    /// Whether neighbouring channels are a pair, not those half a head apart.
    pub neighbours: bool,
    pub sliding: Option<Sliding>,
    pub sections: Option<Sections>,
    /// The sizes of each layer, where they are not all alike.
    pub uneven: Vec<LayerSizes>,
    /// What products of queries and keys are multiplied with, where that is not one over the root of a head's width.
    pub scale: Option<f32>,
    /// Whether values are normalised head by head, without a weight.
    pub values_normed: bool,
    /// Whether what a layer gives is multiplied with a number of its own.
    pub scalars: bool,
    pub per_layer: Option<PerLayer>,
    /// Whether a square of a picture sees only those before it, as a word does.
    pub seen_in_order: bool,
}

impl DecoderConfig {
    /// The sizes of a layer.
    pub fn layer(&self, at: usize) -> LayerSizes {
        let even = LayerSizes {
            head: self.head,
            turned: self.turned,
            kv_heads: self.kv_heads,
            inner: self.inner,
            slides: self
                .sliding
                .is_some_and(|s| !(at + 1).is_multiple_of(s.every)),
            keys_are_values: false,
            shares: None,
            lends: false,
        };
        self.uneven.get(at).copied().unwrap_or(even)
    }

    /// Channels of a head that are turned in layers that see everything, or in those that do not.
    pub(super) fn turned_where(&self, slides: bool) -> usize {
        let mut all = (0..self.layers).map(|at| self.layer(at));
        all.find(|sizes| sizes.slides == slides)
            .map_or(self.turned, |sizes| sizes.turned)
    }

    pub fn detect(store: &WeightStore, flavour: Flavour) -> Result<Self> {
        Self::detect_with(store, flavour, None)
    }

    /// The same for heads of another width than usual, which weights do not say.
    pub fn detect_with(store: &WeightStore, flavour: Flavour, head: Option<usize>) -> Result<Self> {
        let matrix = |key: &str| match store.shape(key) {
            Some(&[rows, columns]) => Ok((rows, columns)),
            Some(found) => Err(ModelError::Shape {
                file: store.file().to_owned(),
                key: key.to_owned(),
                expected: "a matrix".to_owned(),
                found: found.to_vec(),
            }),
            None => Err(ModelError::Missing {
                file: store.file().to_owned(),
                key: key.to_owned(),
            }),
        };
        let first = |name: &str| format!("model.layers.0.{name}");
        let (vocabulary, hidden) = matrix(TABLE)?;
        let at = |i: usize, name: &str| format!("model.layers.{i}.{name}");
        let query = |i: usize| at(i, "self_attn.q_proj.weight");
        let remembers = |i: usize| store.has(&at(i, REMEMBERS));
        let layers = (0..MAX_LAYERS).take_while(|i| store.has(&query(*i)) || remembers(*i));
        let layers = layers.count();
        // The first that looks at everything says how.
        let looking = (0..layers).find(|i| !remembers(*i)).unwrap_or(0);
        let (mut q_rows, _) = matrix(&query(looking))?;
        let (k_rows, _) = matrix(&at(looking, "self_attn.k_proj.weight"))?;
        let (inner, _) = matrix(&first("mlp.gate_proj.weight"))?;
        let norm = store.shape(&at(looking, "self_attn.q_norm.weight"));
        let gated = flavour == Flavour::Qwen35;
        if gated {
            q_rows /= 2;
        }
        let newest = flavour == Flavour::Gemma4;
        if newest && store.has(EXPERTS) {
            let reason = "it is a mixture of experts (Gemma 4 26B A4B), which is not run: use Gemma 4 E2B, E4B, 12B or 31B";
            return Err(ModelError::unsupported(store.file(), reason));
        }
        let gemma = newest || matches!(flavour, Flavour::Gemma2 | Flavour::Gemma3);
        let head = match (norm.and_then(|shape| shape.first()), head) {
            (Some(width), _) => *width,
            (None, Some(head)) => head,
            (None, None) if gemma => 256,
            (None, None) => 128,
        };
        let divides = head > 0 && q_rows.is_multiple_of(head) && k_rows.is_multiple_of(head);
        let (heads, kv_heads) = (q_rows / head.max(1), k_rows / head.max(1));
        if !divides || kv_heads == 0 || !heads.is_multiple_of(kv_heads) || layers == 0 {
            let reason = format!(
                "{q_rows} channels of queries and {k_rows} of keys do not make heads of {head}"
            );
            return Err(ModelError::unsupported(store.file(), reason));
        }
        // GGUF files have the norms of Gemma as they are used, and pairs of Llama next to each other.
        let gguf = store.file().to_ascii_lowercase().ends_with(".gguf");
        let llama = matches!(flavour, Flavour::Mistral | Flavour::Llama);
        let turned = if gated { head / 8 * 2 } else { head };
        let (mut uneven, mut per_layer) = (Vec::new(), None);
        if newest {
            uneven = uneven::layers(store, layers, heads)?;
            per_layer = uneven::per_layer(store, layers)?;
        }
        Ok(Self {
            hidden,
            inner,
            layers,
            heads,
            kv_heads,
            head,
            vocabulary,
            eps: if llama { 1e-5 } else { 1e-6 },
            act: if gemma { Act::GeluTanh } else { Act::Silu },
            bias: Bias::of(store.has(&first("self_attn.k_proj.bias"))),
            normed: norm.is_some(),
            sandwiched: gemma,
            minus_one: (gemma || gated) && !newest && !gguf,
            scaled: gemma,
            final_norm: store.has("model.norm.weight"),
            rope: flavour.rope(),
            turned,
            gated,
            remembering: remembering(store, layers)?,
            neighbours: llama && gguf,
            sliding: flavour.sliding(per_layer.is_some()),
            sections: flavour.sections(turned / 2),
            uneven,
            scale: newest.then_some(1.0),
            values_normed: newest,
            scalars: newest && store.has(SCALAR),
            seen_in_order: per_layer.is_some(),
            per_layer,
        })
    }
}

impl Flavour {
    fn rope(self) -> RopeRule {
        let (theta, slower) = match self {
            Self::Qwen25 | Self::Qwen3 | Self::Gemma4 => (1e6, 1.0),
            Self::Qwen3Vl => (5e6, 1.0),
            Self::Qwen35 => (1e7, 1.0),
            Self::Gemma2 => (1e4, 1.0),
            Self::Gemma3 => (1e6, 8.0),
            Self::Mistral => (1e9, 1.0),
            Self::Llama => (5e5, 1.0),
        };
        let share = if self == Self::Gemma4 { 0.25 } else { 1.0 };
        RopeRule {
            theta,
            slower,
            share,
        }
    }

    /// The layers that see only so far; not as far where each is told of every token by itself.
    fn sliding(self, told: bool) -> Option<Sliding> {
        let window = match self {
            Self::Gemma4 if told => 512,
            Self::Gemma3 | Self::Gemma4 => 1024,
            _ => return None,
        };
        Some(Sliding {
            window,
            every: uneven::EVERY,
            rope: RopeRule {
                theta: 1e4,
                slower: 1.0,
                share: 1.0,
            },
        })
    }

    /// Of so many pairs, in the proportions of the published sizes.
    fn sections(self, pairs: usize) -> Option<Sections> {
        match self {
            Self::Qwen25 => {
                let (time, row) = (pairs / 4, pairs * 3 / 8);
                Some(Sections::Chunks([time, row, pairs - time - row]))
            }
            Self::Qwen3Vl => {
                let each = pairs * 5 / 16;
                Some(Sections::Interleaved([pairs - 2 * each, each, each]))
            }
            Self::Qwen35 => {
                let column = pairs / 3;
                let row = (pairs - column) / 2;
                Some(Sections::Interleaved([pairs - row - column, row, column]))
            }
            _ => None,
        }
    }
}

/// The layers that remember, and their sizes: none where all look at everything.
fn remembering(store: &WeightStore, layers: usize) -> Result<Option<Remembering>> {
    let at = |i: usize, name: &str| format!("model.layers.{i}.{name}");
    let which: Vec<bool> = (0..layers).map(|i| store.has(&at(i, REMEMBERS))).collect();
    let Some(first) = which.iter().position(|remembers| *remembers) else {
        return Ok(None);
    };
    let shape = |name: &str| {
        let key = at(first, &format!("linear_attn.{name}"));
        store.shape(&key).ok_or_else(|| ModelError::Missing {
            file: store.file().to_owned(),
            key,
        })
    };
    let (mixed, kernel) = (shape("in_proj_qkv.weight")?[0], shape("conv1d.weight")?);
    let (heads, value) = (shape("dt_bias")?.iter().product(), shape("norm.weight")?[0]);
    // Keys are as wide as values in all published sizes; weights do not say.
    let keys = mixed.saturating_sub(heads * value) / 2;
    let sizes = DeltaSizes {
        key_heads: keys / value.max(1),
        value_heads: heads,
        key: value,
        value,
    };
    let grouped = sizes.key_heads > 0 && heads.is_multiple_of(sizes.key_heads);
    if !grouped || sizes.mixed() != mixed {
        let reason = format!(
            "{mixed} channels of queries, keys and values do not make heads of {value} for {heads} heads of values"
        );
        return Err(ModelError::unsupported(store.file(), reason));
    }
    Ok(Some(Remembering {
        sizes,
        taps: kernel.last().copied().unwrap_or(0),
        layers: which,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_shared_by_three_axes() {
        let axes = |sections: Sections, pairs: usize| -> Vec<usize> {
            (0..pairs).map(|pair| sections.axis(pair)).collect()
        };
        assert_eq!(
            Flavour::Qwen25.sections(64),
            Some(Sections::Chunks([16, 24, 24]))
        );
        assert_eq!(
            Flavour::Qwen3Vl.sections(64),
            Some(Sections::Interleaved([24, 20, 20]))
        );
        assert_eq!(
            Flavour::Qwen35.sections(32),
            Some(Sections::Interleaved([11, 11, 10]))
        );
        assert_eq!(
            axes(Sections::Chunks([2, 3, 3]), 8),
            [0, 0, 1, 1, 1, 2, 2, 2]
        );
        assert_eq!(
            axes(Sections::Interleaved([6, 3, 3]), 12),
            [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 0]
        );
    }
}
