//! The network itself.

use std::sync::Arc;

use fresco_tensor::nn::{Embedding, Linear, Value};
use fresco_tensor::{Buffer, Device, Tensor};

use super::attention::{Attention, Norm, Reading, SharedKeysValues, Sight};
use super::config::{DecoderConfig, RopeRule};
use super::delta::DeltaNet;
use super::ears::{self, Ears};
use super::eyes;
use super::layout::{SCALAR, TABLE, WORDS};
use super::per_layer::{InputGate, LayerInputs};
use super::positions::positions;
use super::tiles;
use crate::epilogue::plus;
use crate::error::{ModelError, Result};
use crate::store::{Bias, Walk, WeightStore};
use crate::text::Memory;
use crate::text::qwen_vision;
use crate::text::sequence::{
    DEAF, KeptStates, PicturePlace, RowNetwork, Rows, SeenPicture, State, WordScores,
};
use crate::transformer::{Mlp, MlpLayers, Pairs, Rope};

/// Scores of words never reach this where they are held down (Gemma 4).
const MOST_SCORE: f32 = 30.0;

/// A network that turns a picture into rows.
pub trait Eyes: Send + Sync {
    fn see(&self, picture: &Tensor) -> Result<SeenPicture>;
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
        reading: &mut Reading<'_>,
    ) -> Result<Tensor> {
        match self {
            Self::Looking(attention) => attention.heads(x, sight, config, reading),
            Self::Remembering(net) => net.read(x, sight.kept, reading.past.as_deref_mut()),
        }
    }

    fn last_matrix(&self) -> &Linear {
        match self {
            Self::Looking(attention) => &attention.o_proj,
            Self::Remembering(net) => &net.out_proj,
        }
    }
}

struct Layer {
    input_layernorm: Norm,
    mixer: Mixer,
    post_attention_layernorm: Norm,
    mlp: Mlp,
    /// Before and after the feed-forward, where there are norms on both sides.
    around: Option<(Norm, Norm)>,
    /// Adds what the layer is told of each token by itself.
    told: Option<InputGate>,
    /// What the layer's output is multiplied with.
    scalar: Option<Arc<Value>>,
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
            None => Mixer::Looking(Attention::new(&weights.at("self_attn"), config, at)?),
        };
        let around = || -> Result<(Norm, Norm)> {
            Ok((
                norm("pre_feedforward_layernorm")?,
                norm("post_feedforward_layernorm")?,
            ))
        };
        let told = config.per_layer.as_ref();
        let told = told.map(|sizes| InputGate::new(weights, config, sizes.width));
        let scalar = || weights.value("layer_scalar", &[1]);
        let inner = config.layer(at).inner;
        let gated = MlpLayers::GatedBy(["gate_proj", "up_proj", "down_proj"], config.act);
        Ok(Self {
            input_layernorm: norm("input_layernorm")?,
            mixer,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            mlp: Mlp::new(
                &weights.at("mlp"),
                gated,
                (config.hidden, inner),
                Bias::Without,
            )?,
            around: config.sandwiched.then(around).transpose()?,
            told: told.transpose()?,
            scalar: config.scalars.then(scalar).transpose()?,
        })
    }

    /// `(b, n, c)` to the same.
    fn forward(
        &self,
        x: &Tensor,
        sight: &Sight<'_>,
        config: &DecoderConfig,
        reading: &mut Reading<'_>,
    ) -> Result<Tensor> {
        let h = self.input_layernorm.forward(x)?;
        let h = self.mixer.forward(&h, sight, config, reading)?;
        let out = self.mixer.last_matrix();
        let Some((before, after)) = &self.around else {
            let x = out.forward_with(&h, plus(x))?;
            let h = self.post_attention_layernorm.forward(&x)?;
            return self.mlp.add(&self.mlp.inner(&h)?, &x);
        };
        let x = x.add(&self.post_attention_layernorm.forward(&out.forward(&h)?)?)?;
        let h = after.forward(&self.mlp.forward(&before.forward(&x)?)?)?;
        Ok(x.add(&h)?)
    }

    /// What follows in layers that are told of each token by themselves, or have a number for all they give.
    fn finish(
        &self,
        mut x: Tensor,
        inputs: Option<&Tensor>,
        config: &DecoderConfig,
        at: usize,
    ) -> Result<Tensor> {
        if let (Some(told), Some(inputs)) = (&self.told, inputs) {
            x = told.forward(&x, inputs, at, config.act)?;
        }
        match &self.scalar {
            Some(scalar) => Ok(x.mul(&scalar.at(&x.device())?)?),
            None => Ok(x),
        }
    }
}

/// The network of such a decoder.
pub struct Decoder {
    config: DecoderConfig,
    device: Device,
    embed_tokens: Arc<Embedding>,
    inputs: Option<LayerInputs>,
    layers: Vec<Layer>,
    norm: Option<Norm>,
    eyes: Option<Box<dyn Eyes>>,
    ears: Option<Ears>,
}

impl Decoder {
    pub fn new(store: &WeightStore, config: &DecoderConfig) -> Result<Self> {
        // Larger networks with eyes like these show their squares to each other in some layers only, which is not run.
        let tiles = config.seen_in_order.then(|| tiles::find(store));
        let eyes = match (qwen_vision::find(store)?, tiles.transpose()?.flatten()) {
            (Some(eyes), _) | (None, Some(eyes)) => Some(eyes),
            (None, None) => eyes::find(store, config.hidden)?,
        };
        let mut decoder = Self::with_eyes(store, config, eyes)?;
        decoder.ears = ears::find(store)?;
        Ok(decoder)
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
        let inputs = config.per_layer.as_ref();
        let inputs = inputs.map(|sizes| LayerInputs::new(&model, config, sizes));
        Ok(Self {
            embed_tokens: model.embedding("embed_tokens", config.vocabulary, config.hidden)?,
            inputs: inputs.transpose()?,
            layers: layers.collect::<Result<_>>()?,
            norm: config.final_norm.then(norm).transpose()?,
            device: weights.device().clone(),
            config: config.clone(),
            eyes: None,
            ears: None,
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
            let reason = "the file of this text encoder has no network that sees pictures, or none that is run: leave the \
                          picture out";
            return Err(ModelError::invalid("prompt", reason));
        };
        eyes.see(picture)
    }

    fn hear(&self, sound: &Tensor) -> Result<Tensor> {
        let ears = self.ears.as_ref();
        let ears = ears.ok_or_else(|| ModelError::invalid("prompt", DEAF))?;
        ears.hear(sound)
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
        let scores = store.build("the words of the text encoder", |weights| {
            if store.has(WORDS) {
                return Ok(WordScores::Matrix(weights.matrix("lm_head", words, width)?));
            }
            let table = weights
                .at("model")
                .embedding("embed_tokens", words, width)?;
            Ok(WordScores::Table(table))
        })?;
        if store.has(SCALAR) {
            return Ok(WordScores::Capped(Box::new(scores), MOST_SCORE));
        }
        Ok(scores)
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
            None if config.seen_in_order => (&[][..], &[][..]),
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
        let tables = |rule: &RopeRule, slides: bool| -> Result<Rope> {
            let turned = config.turned_where(slides);
            let pairs = if config.neighbours {
                Pairs::Neighbours
            } else {
                Pairs::Halves
            };
            let tables = rule.tables(turned, config.sections, &places)?;
            tables.pairing(pairs).to(&self.device)
        };
        let rope = tables(&config.rope, false)?;
        let mask = self.mask(n, masks, None, in_line)?;
        // The layers that see only so far.
        let near = match &config.sliding {
            Some(sliding) => Some((
                tables(&sliding.rope, true)?,
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
        let inputs = self.inputs.as_ref();
        let inputs = inputs.map(|inputs| inputs.of(&rows.ids, &x)).transpose()?;
        let mut lent = SharedKeysValues::default();
        for (i, layer) in self.layers.iter().enumerate().take(kept.depth()) {
            let sight = match near.filter(|_| config.layer(i).slides) {
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
            let mut reading = Reading {
                past: memory.as_deref_mut().map(|memory| &mut memory.layers[i]),
                lent: &mut lent,
            };
            x = layer.forward(&x, &sight, config, &mut reading)?;
            x = layer.finish(x, inputs.as_ref(), config, i)?;
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

    /// Layers as Gemma 4 has them: two that see little before one that sees everything, in which keys are values; only the
    /// first have keys of their own, and all are told of each token by themselves.
    fn uneven_store(layers: usize, keyed: usize) -> Arc<WeightStore> {
        let (hidden, inner, told) = (16, 24, 4);
        let mut weights = BTreeMap::new();
        let mut add = |name: String, shape: &[usize]| {
            let weight = synthetic::weight(&name, shape).expect("a small weight");
            weights.insert(name, Stored::from(&weight));
        };
        add(TABLE.to_owned(), &[WORDS_IN_TABLE, hidden]);
        add("model.norm.weight".to_owned(), &[hidden]);
        let model = |name: &str| format!("model.{name}.weight");
        let all = layers * told;
        add(model("embed_tokens_per_layer"), &[WORDS_IN_TABLE, all]);
        add(model("per_layer_model_projection"), &[all, hidden]);
        add(model("per_layer_projection_norm"), &[told]);
        for i in 0..layers {
            let at = |name: &str| format!("model.layers.{i}.{name}.weight");
            let full = i % 3 == 2;
            let head = if full { 16 } else { 8 };
            for norm in [
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
                "post_per_layer_input_norm",
            ] {
                add(at(norm), &[hidden]);
            }
            add(format!("model.layers.{i}.layer_scalar"), &[1]);
            add(at("per_layer_input_gate"), &[told, hidden]);
            add(at("per_layer_projection"), &[hidden, told]);
            add(at("mlp.gate_proj"), &[inner, hidden]);
            add(at("mlp.up_proj"), &[inner, hidden]);
            add(at("mlp.down_proj"), &[hidden, inner]);
            add(at("self_attn.q_proj"), &[4 * head, hidden]);
            add(at("self_attn.o_proj"), &[hidden, 4 * head]);
            add(at("self_attn.q_norm"), &[head]);
            if i < keyed {
                add(at("self_attn.k_proj"), &[2 * head, hidden]);
                add(at("self_attn.k_norm"), &[head]);
            }
            if i < keyed && !full {
                add(at("self_attn.v_proj"), &[2 * head, hidden]);
            }
        }
        WeightStore::from_stored("small", weights, Device::cpu())
    }

    fn rows<'a>(decoder: &Decoder, ids: &'a [u32]) -> Rows<'a> {
        let embedded = decoder.embed(ids).expect("known tokens");
        Rows {
            embedded: embedded.unsqueeze(0).expect("a matrix"),
            ids: vec![ids],
            masks: None,
            pictures: &[],
            pads_at: None,
        }
    }

    /// Reading in pieces gives what reading at once gives.
    fn check(flavour: Flavour, window: Option<usize>) {
        let store = match flavour {
            Flavour::Gemma4 => uneven_store(6, 3),
            _ => store(flavour),
        };
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
        let mut memory = Memory::default();
        decoder
            .read(&rows(&decoder, &ids[..5]), &mut memory)
            .expect("it reads");
        for n in 6..=ids.len() {
            let next = decoder
                .read(&rows(&decoder, &ids[n - 1..n]), &mut memory)
                .expect("it goes on");
            let whole = decoder.read(&rows(&decoder, &ids[..n]), &mut Memory::default());
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
        check(Flavour::Gemma4, Some(4));
        check(Flavour::Qwen35, None);
    }

    #[test]
    fn layers_that_share_keys_are_known() {
        let config = DecoderConfig::detect(&uneven_store(6, 3), Flavour::Gemma4);
        let config = config.expect("a decoder");
        let shares: Vec<_> = (0..6).map(|at| config.layer(at).shares).collect();
        assert_eq!(shares, [None, None, None, Some(1), Some(1), Some(2)]);
        let slides: Vec<_> = (0..6).map(|at| config.layer(at).slides).collect();
        assert_eq!(slides, [true, true, false, true, true, false]);
        assert!(config.layer(2).keys_are_values && !config.layer(1).keys_are_values);
        assert_eq!(config.sliding.map(|sliding| sliding.window), Some(512));
    }

    #[test]
    fn published_files_have_keys_that_nobody_uses() {
        let config = DecoderConfig::detect(&uneven_store(42, 42), Flavour::Gemma4);
        let config = config.expect("a decoder");
        let shares: Vec<_> = (22..27).map(|at| config.layer(at).shares).collect();
        assert_eq!(shares, [None, None, Some(22), Some(22), Some(23)]);
    }
}
