//! The network itself.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Embedding, Linear, Mask, RmsNorm, attention, sigmoid, swiglu};
use fresco_tensor::{Buffer, Device, Tensor};

use super::config::DecoderConfig;
use super::delta::DeltaNet;
use super::eyes;
use super::layout::{TABLE, WORDS};
use super::positions::positions;
use crate::epilogue::{plus, then};
use crate::error::{ModelError, Result};
use crate::store::{Walk, WeightStore};
use crate::text::qwen_vision;
use crate::text::sequence::{
    KeptStates, PicturePlace, RowNetwork, Rows, SeenPicture, State, WordScores,
};
use crate::text::{Memory, Remembered};
use crate::transformer::Rope;

/// A network that turns a picture into rows.
pub trait Eyes: Send + Sync {
    fn see(&self, picture: &Tensor) -> Result<SeenPicture>;
}

/// A norm, whose weight may be stored minus one.
struct Norm {
    weighted: Arc<RmsNorm>,
    plain: Option<RmsNorm>,
}

impl Norm {
    fn new(weights: &Walk<'_>, name: &str, width: usize, config: &DecoderConfig) -> Result<Self> {
        let plain = config.minus_one.then(|| RmsNorm::new(None, config.eps));
        Ok(Self {
            weighted: weights.rms_norm(&format!("{name}.weight"), width, config.eps)?,
            plain: plain.transpose()?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let weighted = self.weighted.forward(x)?;
        match &self.plain {
            Some(plain) => Ok(plain.forward(x)?.add(&weighted)?),
            None => Ok(weighted),
        }
    }
}

struct Attention {
    q_proj: Arc<Linear>,
    k_proj: Arc<Linear>,
    v_proj: Arc<Linear>,
    o_proj: Arc<Linear>,
    norms: Option<(Norm, Norm)>,
}

impl Attention {
    fn new(weights: &Walk<'_>, config: &DecoderConfig) -> Result<Self> {
        let (hidden, head) = (config.hidden, config.head);
        let (own, shared) = (config.heads * head, config.kv_heads * head);
        let norms = || -> Result<(Norm, Norm)> {
            let norm = |name: &str| Norm::new(weights, name, head, config);
            Ok((norm("q_norm")?, norm("k_norm")?))
        };
        let gates = if config.gated { own } else { 0 };
        Ok(Self {
            q_proj: weights.linear_with("q_proj", own + gates, hidden, config.biased)?,
            k_proj: weights.linear_with("k_proj", shared, hidden, config.biased)?,
            v_proj: weights.linear_with("v_proj", shared, hidden, config.biased)?,
            o_proj: weights.matrix("o_proj", hidden, own)?,
            norms: config.normed.then(norms).transpose()?,
        })
    }

    /// The heads' output, before the last matrix. With a past, its keys and values come first, and these join it.
    fn heads(
        &self,
        x: &Tensor,
        sight: &Sight<'_>,
        config: &DecoderConfig,
        past: Option<&mut Option<Remembered>>,
    ) -> Result<Tensor> {
        let [b, n, _] = x.dims3()?;
        let (heads, shared, head) = (config.heads, config.kv_heads, config.head);
        let by_head = |x: Tensor, count: usize, norm: Option<&Norm>| -> Result<Tensor> {
            let Some(norm) = norm else { return Ok(x) };
            let x = norm.forward(&x.reshape([b, n, count, head])?)?;
            Ok(x.reshape([b, n, count * head])?)
        };
        let (q_norm, k_norm) = match &self.norms {
            Some((q, k)) => (Some(q), Some(k)),
            None => (None, None),
        };
        let turned = |x: &Tensor, count: usize| {
            if config.neighbours {
                sight.rope.interleaved(x, count)
            } else if config.turned < head {
                let x = x.reshape([b, n, count, head])?;
                let first = x.narrow(3, 0, config.turned)?;
                let first = first.reshape([b, n, count * config.turned])?;
                let first = sight.rope.half(&first, count)?;
                let first = first.reshape([b, n, count, config.turned])?;
                let rest = x.narrow(3, config.turned, head - config.turned)?;
                let joined = Tensor::cat(&[&first, &rest], 3)?;
                Ok(joined.reshape([b, n, count * head])?)
            } else {
                sight.rope.half(x, count)
            }
        };
        let mut q = self.q_proj.forward(x)?;
        let mut gate = None;
        if config.gated {
            // Each head has its query, then its gate.
            let both = q.reshape([b, n, heads, 2 * head])?;
            let half = |at: usize| {
                both.narrow(3, at * head, head)?
                    .reshape([b, n, heads * head])
            };
            gate = Some(sigmoid(&half(1)?));
            q = half(0)?;
        }
        let q = turned(&by_head(q, heads, q_norm)?, heads)?;
        let k = turned(&by_head(self.k_proj.forward(x)?, shared, k_norm)?, shared)?;
        let v = self.v_proj.forward(x)?;
        let (mut k, mut v, mut seen) = (k, v, n);
        let mut goes_on = false;
        if let Some(past) = past {
            if let Some(Remembered::Rows(keys, values)) = past.take() {
                k = Tensor::cat(&[&keys, &k], 1)?;
                v = Tensor::cat(&[&values, &v], 1)?;
                seen = k.dim(1)?;
                goes_on = true;
            }
            *past = Some(Remembered::Rows(k.clone(), v.clone()));
        }
        if let Some(window) = sight.window.filter(|window| goes_on && *window < seen) {
            k = k.narrow(1, seen - window, window)?;
            v = v.narrow(1, seen - window, window)?;
            seen = window;
        }
        // Each head of keys and values serves several of queries.
        let spread = |x: Tensor| -> Result<Tensor> {
            if shared == heads {
                return Ok(x);
            }
            let x = x.reshape([b, seen, shared, head])?;
            let x = x.repeat_interleave(2, heads / shared)?;
            Ok(x.reshape([b, seen, heads * head])?)
        };
        let mask = match sight.mask {
            // Going on, there is one query, after everything that is remembered.
            _ if goes_on => Mask::None,
            Some(mask) => Mask::Add(mask),
            None => Mask::Causal,
        };
        let found = attention(&q, &spread(k)?, &spread(v)?, heads, mask, None)?;
        match gate {
            Some(gate) => Ok(found.mul(&gate)?),
            None => Ok(found),
        }
    }
}

/// How rows of a layer learn of each other.
enum Mixer {
    Looking(Attention),
    Remembering(DeltaNet),
}

impl Mixer {
    /// What goes into the last matrix.
    fn forward(
        &self,
        x: &Tensor,
        sight: &Sight<'_>,
        config: &DecoderConfig,
        past: Option<&mut Option<Remembered>>,
    ) -> Result<Tensor> {
        match self {
            Self::Looking(attention) => attention.heads(x, sight, config, past),
            Self::Remembering(net) => net.read(x, sight.kept, past),
        }
    }

    fn last_matrix(&self) -> &Linear {
        match self {
            Self::Looking(attention) => &attention.o_proj,
            Self::Remembering(net) => &net.out_proj,
        }
    }
}

struct FeedForward {
    gate: Arc<Linear>,
    up: Arc<Linear>,
    down: Arc<Linear>,
}

impl FeedForward {
    fn new(weights: &Walk<'_>, config: &DecoderConfig) -> Result<Self> {
        let (hidden, inner) = (config.hidden, config.inner);
        Ok(Self {
            gate: weights.matrix("gate_proj", inner, hidden)?,
            up: weights.matrix("up_proj", inner, hidden)?,
            down: weights.matrix("down_proj", hidden, inner)?,
        })
    }

    /// What goes into the last matrix.
    fn inner(&self, x: &Tensor, act: Act) -> Result<Tensor> {
        let up = self.up.forward(x)?;
        if act == Act::Silu {
            return Ok(swiglu(&self.gate.forward(x)?, &up)?);
        }
        Ok(self.gate.forward_with(x, then(act))?.mul(&up)?)
    }
}

/// What a layer may look at, and from where.
struct Sight<'a> {
    rope: &'a Rope,
    /// None: everything before.
    mask: Option<&'a Tensor>,
    /// How far back, where that is not everything.
    window: Option<usize>,
    /// Which rows are no padding, for each sequence.
    kept: Option<&'a [&'a [bool]]>,
}

struct Layer {
    input_layernorm: Norm,
    mixer: Mixer,
    post_attention_layernorm: Norm,
    mlp: FeedForward,
    /// Before and after the feed-forward, where there are norms on both sides.
    around: Option<(Norm, Norm)>,
}

impl Layer {
    fn new(weights: &Walk<'_>, config: &DecoderConfig, at: usize) -> Result<Self> {
        let norm = |name: &str| Norm::new(weights, name, config.hidden, config);
        let remembering = config.remembering.as_ref().filter(|r| r.at(at));
        let mixer = match remembering {
            Some(rule) => {
                let weights = weights.at("linear_attn");
                Mixer::Remembering(DeltaNet::new(&weights, config, rule)?)
            }
            None => Mixer::Looking(Attention::new(&weights.at("self_attn"), config)?),
        };
        let around = || -> Result<(Norm, Norm)> {
            Ok((
                norm("pre_feedforward_layernorm")?,
                norm("post_feedforward_layernorm")?,
            ))
        };
        Ok(Self {
            input_layernorm: norm("input_layernorm")?,
            mixer,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            mlp: FeedForward::new(&weights.at("mlp"), config)?,
            around: config.sandwiched.then(around).transpose()?,
        })
    }

    /// `(b, n, c)` to the same.
    fn forward(
        &self,
        x: &Tensor,
        sight: &Sight<'_>,
        config: &DecoderConfig,
        past: Option<&mut Option<Remembered>>,
    ) -> Result<Tensor> {
        let h = self.input_layernorm.forward(x)?;
        let h = self.mixer.forward(&h, sight, config, past)?;
        let out = self.mixer.last_matrix();
        let Some((before, after)) = &self.around else {
            let x = out.forward_with(&h, plus(x))?;
            let h = self.post_attention_layernorm.forward(&x)?;
            let h = self.mlp.inner(&h, config.act)?;
            return Ok(self.mlp.down.forward_with(&h, plus(&x))?);
        };
        let x = x.add(&self.post_attention_layernorm.forward(&out.forward(&h)?)?)?;
        let h = self.mlp.inner(&before.forward(&x)?, config.act)?;
        let h = after.forward(&self.mlp.down.forward(&h)?)?;
        Ok(x.add(&h)?)
    }
}

/// The network of such a decoder.
pub struct Decoder {
    config: DecoderConfig,
    device: Device,
    embed_tokens: Arc<Embedding>,
    layers: Vec<Layer>,
    norm: Option<Norm>,
    eyes: Option<Box<dyn Eyes>>,
}

impl Decoder {
    pub fn new(store: &WeightStore, config: &DecoderConfig) -> Result<Self> {
        let eyes = match qwen_vision::find(store)? {
            Some(eyes) => Some(eyes),
            None => eyes::find(store, config.hidden)?,
        };
        Self::with_eyes(store, config, eyes)
    }

    /// With a network for pictures of which more is known than its weights say.
    pub fn with_eyes(
        store: &WeightStore,
        config: &DecoderConfig,
        eyes: Option<Box<dyn Eyes>>,
    ) -> Result<Self> {
        let mut decoder = store.build("the text encoder", |weights| Self::walk(weights, config))?;
        decoder.eyes = eyes;
        Ok(decoder)
    }

    fn walk(weights: &Walk<'_>, config: &DecoderConfig) -> Result<Self> {
        let model = weights.at("model");
        let layers = (0..config.layers).map(|i| Layer::new(&model.at("layers").at(i), config, i));
        let norm = || Norm::new(&model, "norm", config.hidden, config);
        Ok(Self {
            embed_tokens: model.embedding("embed_tokens", config.vocabulary, config.hidden)?,
            layers: layers.collect::<Result<_>>()?,
            norm: config.final_norm.then(norm).transpose()?,
            device: weights.device().clone(),
            config: config.clone(),
            eyes: None,
        })
    }

    /// What queries may look at, `(b or 1, 1, n, n)` on the device; none if that is everything before them.
    fn mask(
        &self,
        n: usize,
        masks: Option<&[&[bool]]>,
        window: Option<usize>,
        pictures: &[PicturePlace],
    ) -> Result<Option<Tensor>> {
        let window = window.filter(|window| *window < n);
        if masks.is_none() && window.is_none() && pictures.is_empty() {
            return Ok(None);
        }
        let items = masks.map_or(1, <[&[bool]]>::len);
        let mut values = Buffer::with_room(items * n * n)?;
        for item in 0..items {
            for query in 0..n {
                let first = window.map_or(0, |window| (query + 1).saturating_sub(window));
                let whole = pictures.iter().map(|p| p.start..p.start + p.len);
                let whole: Vec<_> = whole.filter(|rows| rows.contains(&query)).collect();
                let seen = |key: usize| {
                    let kept = masks.is_none_or(|masks| masks[item][key]);
                    let near = (first..=query).contains(&key);
                    kept && (near || whole.iter().any(|rows| rows.contains(&key)))
                };
                // Whoever may look at nothing looks at itself, so that it stays a number; nobody looks at it.
                let alone = !(first..=query).any(seen);
                values.extend((0..n).map(|key| {
                    if seen(key) || (alone && key == query) {
                        0.0
                    } else {
                        f32::NEG_INFINITY
                    }
                }));
            }
        }
        let mask = Tensor::from_buffer([items, 1, n, n], values)?;
        Ok(Some(mask.to(&self.device)?))
    }

    /// Adds what deeper layers of a picture's network saw to its rows.
    fn deepen(x: &mut Tensor, layer: usize, pictures: &[PicturePlace]) -> Result<()> {
        for picture in pictures {
            if let Some(deeper) = picture.deeper.get(layer) {
                let own = x.narrow(1, picture.start, picture.len)?;
                let sum = own.add(&deeper.unsqueeze(0)?)?;
                x.paste(&[0, picture.start, 0], &sum)?;
            }
        }
        Ok(())
    }
}

impl RowNetwork for Decoder {
    fn device(&self) -> &Device {
        &self.device
    }

    fn layers(&self) -> usize {
        self.layers.len()
    }

    fn width(&self) -> usize {
        self.config.hidden
    }

    fn has_norm(&self) -> bool {
        self.norm.is_some()
    }

    fn embed(&self, ids: &[u32]) -> Result<Tensor> {
        Ok(self.embed_tokens.lookup_on(ids, &self.device)?)
    }

    fn see(&self, picture: &Tensor) -> Result<SeenPicture> {
        let Some(eyes) = &self.eyes else {
            let reason = "the file of this text encoder has no network that sees pictures";
            return Err(ModelError::invalid("prompt", reason));
        };
        eyes.see(picture)
    }

    fn forward(&self, rows: &Rows<'_>, wanted: &[State]) -> Result<Vec<Tensor>> {
        self.run(rows, wanted, None)
    }

    fn read(&self, rows: &Rows<'_>, memory: &mut Memory) -> Result<Tensor> {
        let end = State::Normed(self.layers.len());
        let mut states = self.run(rows, &[end], Some(memory))?;
        let all = states.swap_remove(0);
        Ok(all.narrow(1, all.dim(1)? - 1, 1)?)
    }

    fn head(store: &WeightStore) -> Result<WordScores> {
        let table = store.shape(TABLE).unwrap_or_default();
        let &[words, width] = table else {
            return Err(ModelError::unsupported(
                store.file(),
                "it has no table of tokens",
            ));
        };
        store.build("the words of the text encoder", |weights| {
            if store.has(WORDS) {
                return Ok(WordScores::Matrix(weights.matrix("lm_head", words, width)?));
            }
            let table = weights
                .at("model")
                .embedding("embed_tokens", words, width)?;
            Ok(WordScores::Table(table))
        })
    }
}

impl Decoder {
    /// The states that are wanted. With a memory, rows come after those it has, and join them.
    fn run(
        &self,
        rows: &Rows<'_>,
        wanted: &[State],
        mut memory: Option<&mut Memory>,
    ) -> Result<Vec<Tensor>> {
        let config = &self.config;
        let mut x = rows.embedded.clone();
        let [_, n, _] = x.dims3()?;
        if config.scaled {
            x = x.mul_scalar((config.hidden as f32).sqrt());
        }
        let masks = rows.masks.as_deref();
        // Without axes for rows and columns, a picture's squares stand one after the other, and see each other.
        let (on_grids, in_line) = match config.sections {
            Some(_) => (rows.pictures, &[][..]),
            None => (&[][..], rows.pictures),
        };
        let mut places = positions(n, on_grids);
        if let Some(memory) = memory.as_deref_mut() {
            for place in &mut places {
                *place = place.map(|at| at + memory.next);
            }
            memory.next = places.last().map_or(memory.next, |place| place[0] + 1.0);
            memory.layers.resize_with(self.layers.len(), || None);
        }
        if let (Some(at), Some([mask])) = (rows.pads_at, masks) {
            let pads = places.iter_mut().zip(*mask).filter(|(_, kept)| !**kept);
            pads.for_each(|(place, _)| *place = [at as f32; 3]);
        }
        let rope = config.rope.tables(config, &places)?.to(&self.device)?;
        let mask = self.mask(n, masks, None, in_line)?;
        // The layers that see only so far.
        let near = match &config.sliding {
            Some(sliding) => Some((
                sliding.rope.tables(config, &places)?.to(&self.device)?,
                self.mask(n, masks, Some(sliding.window), in_line)?,
            )),
            None => None,
        };
        let near = near.as_ref();
        let mut kept = KeptStates::new(wanted);
        let norm = |x: &Tensor| match &self.norm {
            Some(norm) => norm.forward(x),
            None => Ok(x.clone()),
        };
        kept.offer(0, &x, norm)?;
        for (i, layer) in self.layers.iter().enumerate().take(kept.depth()) {
            let slides = config
                .sliding
                .is_some_and(|s| !(i + 1).is_multiple_of(s.every));
            let sight = match near.filter(|_| slides) {
                Some((rope, mask)) => Sight {
                    rope,
                    mask: mask.as_ref(),
                    window: config.sliding.map(|sliding| sliding.window),
                    kept: masks,
                },
                None => Sight {
                    rope: &rope,
                    mask: mask.as_ref(),
                    window: None,
                    kept: masks,
                },
            };
            let past = memory.as_deref_mut().map(|memory| &mut memory.layers[i]);
            x = layer.forward(&x, &sight, config, past)?;
            kept.offer(i + 1, &x, norm)?;
            Self::deepen(&mut x, i, rows.pictures)?;
        }
        kept.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fresco_tensor::{Stored, synthetic};

    use super::*;
    use crate::text::decoder::{Flavour, Sliding};

    const WORDS_IN_TABLE: usize = 20;

    fn store(flavour: Flavour) -> Arc<WeightStore> {
        let (sandwiched, gated) = (flavour == Flavour::Gemma3, flavour == Flavour::Qwen35);
        let (hidden, head, inner) = (16, 8, 24);
        let mut weights = BTreeMap::new();
        let mut add = |name: String, shape: &[usize]| {
            let weight = synthetic::weight(&name, shape).expect("a small weight");
            weights.insert(name, Stored::from(&weight));
        };
        add(TABLE.to_owned(), &[WORDS_IN_TABLE, hidden]);
        add("model.norm.weight".to_owned(), &[hidden]);
        for i in 0..3 {
            let at = |name: &str| format!("model.layers.{i}.{name}.weight");
            add(at("input_layernorm"), &[hidden]);
            add(at("post_attention_layernorm"), &[hidden]);
            if sandwiched {
                add(at("pre_feedforward_layernorm"), &[hidden]);
                add(at("post_feedforward_layernorm"), &[hidden]);
            }
            add(at("mlp.gate_proj"), &[inner, hidden]);
            add(at("mlp.up_proj"), &[inner, hidden]);
            add(at("mlp.down_proj"), &[hidden, inner]);
            if gated && i < 2 {
                // Two heads of keys for four of values.
                add(at("linear_attn.in_proj_qkv"), &[8 * head, hidden]);
                add(at("linear_attn.in_proj_z"), &[4 * head, hidden]);
                add(at("linear_attn.in_proj_a"), &[4, hidden]);
                add(at("linear_attn.in_proj_b"), &[4, hidden]);
                add(at("linear_attn.conv1d"), &[8 * head, 1, 4]);
                add(at("linear_attn.norm"), &[head]);
                add(at("linear_attn.out_proj"), &[hidden, 4 * head]);
                add(format!("model.layers.{i}.linear_attn.A_log"), &[4]);
                add(format!("model.layers.{i}.linear_attn.dt_bias"), &[4]);
                continue;
            }
            let gates = if gated { 4 * head } else { 0 };
            add(at("self_attn.q_proj"), &[4 * head + gates, hidden]);
            add(at("self_attn.k_proj"), &[2 * head, hidden]);
            add(at("self_attn.v_proj"), &[2 * head, hidden]);
            add(at("self_attn.o_proj"), &[hidden, 4 * head]);
            add(at("self_attn.q_norm"), &[head]);
            add(at("self_attn.k_norm"), &[head]);
        }
        WeightStore::from_stored("small", weights, Device::cpu())
    }

    /// Reading in pieces gives what reading at once gives.
    fn check(flavour: Flavour, window: Option<usize>) {
        let store = store(flavour);
        let mut config = DecoderConfig::detect(&store, flavour).expect("a small decoder");
        if let (Some(sliding), Some(window)) = (config.sliding, window) {
            config.sliding = Some(Sliding {
                window,
                every: 2,
                ..sliding
            });
        }
        let decoder = Decoder::with_eyes(&store, &config, None).expect("all weights are there");
        let head = Decoder::head(&store).expect("the table is the matrix");
        let ids = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5];
        let rows = |ids: &[u32]| Rows {
            embedded: decoder
                .embed(ids)
                .and_then(|x| Ok(x.unsqueeze(0)?))
                .expect("known tokens"),
            masks: None,
            pictures: &[],
            pads_at: None,
        };
        let mut memory = Memory::default();
        decoder
            .read(&rows(&ids[..5]), &mut memory)
            .expect("it reads");
        for n in 6..=ids.len() {
            let next = decoder
                .read(&rows(&ids[n - 1..n]), &mut memory)
                .expect("it goes on");
            let whole = decoder.read(&rows(&ids[..n]), &mut Memory::default());
            let whole = whole.expect("it reads");
            for (a, b) in next.data().iter().zip(whole.data()) {
                assert!((a - b).abs() < 1e-4, "{flavour:?} at {n}: {a} {b}");
            }
            let scores = head.forward(&next).expect("rows fit the matrix");
            assert_eq!(scores.len(), WORDS_IN_TABLE);
        }
    }

    #[test]
    fn what_is_remembered_is_as_if_it_were_read_again() {
        check(Flavour::Qwen3, None);
        check(Flavour::Gemma3, Some(4));
        check(Flavour::Qwen35, None);
    }
}
