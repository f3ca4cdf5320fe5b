//! Text encoders as models use them: which networks, which of their layers, and how their outputs come together.

use std::fmt;
use std::sync::Arc;

use fresco_tensor::{Device, Tensor, WeightFile};

use super::chunks::{Prompt, PromptRule, Tokenizer};
use super::decoder::{PICTURE, SOUND, TURNS, Turns};
use super::network::{EncodeRule, TextKind, TextNetwork, TextOutput};
use super::tokens::{EmbeddingSource, NoEmbeddings, PromptTokens, Token, Tokens, Weighted};
use super::vocabulary::Vocabulary;
use super::writing::WritingRule;
use crate::error::{ModelError, Result};
use crate::network::Network;
use crate::store::WeightStore;

/// How checkpoints of a family have the weights of a text network.
#[derive(Debug, PartialEq, Eq)]
pub enum SavedAs {
    /// Under their own names behind a prefix, but for those that are left out.
    Plain {
        prefix: &'static str,
        without: &'static [&'static str],
    },
    /// In the layout of OpenCLIP, whose attentions have one matrix for queries, keys and values, behind a prefix.
    Joined { prefix: &'static str },
}

/// One network of a set.
pub struct StackPart {
    /// As keys of models, embeddings and patches call it.
    pub name: &'static str,
    /// The kinds that can take this place.
    pub kinds: &'static [&'static TextKind],
    /// Whether the set works without it.
    pub optional: bool,
    /// Where checkpoints have it: the first prefix that holds one counts.
    pub prefixes: &'static [&'static str],
    pub prompt: PromptRule,
    pub rule: EncodeRule,
    pub saved: SavedAs,
}

impl fmt::Debug for StackPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// What one network of a set gave, and for which tokens.
pub struct PartOutput<'a> {
    pub tokens: &'a Tokens,
    pub output: TextOutput,
}

/// The outputs of a set by the places of its networks; none where there is no network.
pub type PartOutputs<'a> = Vec<Option<PartOutput<'a>>>;

/// A set of text networks that models use together.
pub struct TextStack {
    /// For reports.
    pub name: &'static str,
    pub parts: &'static [StackPart],
    /// Words that the model itself reads as numbers, beside what networks make of them.
    pub words: &'static [WordsPart],
    /// What the outputs of all networks, in their order, make together.
    pub join: fn(PartOutputs<'_>, &PromptTokens) -> Result<Encoded>,
}

/// A vocabulary without a network.
pub struct WordsPart {
    pub name: &'static str,
    pub vocabulary: fn() -> Arc<dyn Vocabulary>,
    pub prompt: PromptRule,
}

impl PartialEq for TextStack {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl fmt::Debug for TextStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Widths next to each other, cut to the shortest; the last network's vector.
pub fn join_widths(outputs: PartOutputs<'_>, _: &PromptTokens) -> Result<Encoded> {
    let mut outputs: Vec<TextOutput> = outputs.into_iter().flatten().map(|o| o.output).collect();
    let lengths = outputs.iter().map(|o| o.hidden.shape()[1]);
    let shortest = lengths.min().unwrap_or(0);
    let cut = outputs.iter().map(|o| o.hidden.narrow(1, 0, shortest));
    let conds = cut.collect::<Result<Vec<Tensor>, _>>()?;
    Ok(Encoded {
        cond: Tensor::cat(&conds.iter().collect::<Vec<_>>(), 2)?,
        pooled: outputs.pop().and_then(|o| o.pooled),
        extras: Vec::new(),
    })
}

/// An encoded prompt.
#[derive(Debug, Clone)]
pub struct Encoded {
    /// `(1, tokens, width)`.
    pub cond: Tensor,
    /// `(1, width)`.
    pub pooled: Option<Tensor>,
    /// What else models of a family take, by the names in conditionings: `attention_mask`.
    pub extras: Vec<(&'static str, Tensor)>,
}

impl Encoded {
    /// Tokens alone.
    pub fn new(cond: Tensor) -> Self {
        Self {
            cond,
            pooled: None,
            extras: Vec::new(),
        }
    }

    /// With something more.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: Option<Tensor>) -> Self {
        self.extras.extend(value.map(|value| (name, value)));
        self
    }
}

/// Networks are built when the first prompt comes.
pub struct TextEncoder {
    stack: &'static TextStack,
    /// By the places of the stack.
    parts: Vec<Option<Arc<dyn TextNetwork>>>,
}

impl TextEncoder {
    /// The encoder of a checkpoint; none if the file brings no text encoder.
    pub fn from_checkpoint(
        file: &Arc<dyn WeightFile>,
        stack: &'static TextStack,
        device: &Device,
    ) -> Result<Option<Self>> {
        let mut stores = Vec::new();
        for part in stack.parts {
            let places = part.prefixes.iter().flat_map(|prefix| {
                let kinds = part.kinds.iter();
                kinds.map(move |kind| (*kind, kind.store(file, prefix, device)))
            });
            let mut found = places.filter_map(|(kind, store)| Some((kind, store?)));
            stores.push(found.next());
        }
        if stores.iter().all(Option::is_none) {
            return Ok(None);
        }
        Self::with_parts(stack, stores).map(Some)
    }

    /// From weights under the names they have here, in any order: each goes to the first free place that takes its kind.
    pub fn from_stores(
        stack: &'static TextStack,
        stores: Vec<(&'static TextKind, Arc<WeightStore>)>,
    ) -> Result<Self> {
        let mut places: Vec<Option<_>> = stack.parts.iter().map(|_| None).collect();
        for (kind, store) in stores {
            let mut free = places.iter_mut().zip(stack.parts);
            let free = free.find(|(place, part)| place.is_none() && part.kinds.contains(&kind));
            let Some((place, _)) = free else {
                let reason = format!(
                    "{stack:?} has no place for a text encoder like {}",
                    kind.name
                );
                return Err(ModelError::unsupported(store.file(), reason));
            };
            *place = Some((kind, store));
        }
        Self::with_parts(stack, places)
    }

    /// From weights by the places of the stack.
    fn with_parts(
        stack: &'static TextStack,
        places: Vec<Option<(&'static TextKind, Arc<WeightStore>)>>,
    ) -> Result<Self> {
        let file = places.iter().flatten().next();
        let file = file.map_or("text encoder", |(_, s)| s.file()).to_owned();
        let mut parts = Vec::with_capacity(places.len());
        for (place, part) in places.into_iter().zip(stack.parts) {
            parts.push(match place {
                Some((kind, store)) => Some((kind.open)(store)?),
                None if part.optional => None,
                None => {
                    let reason = format!("the text encoder {} is missing", part.name);
                    return Err(ModelError::unsupported(file, reason));
                }
            });
        }
        Ok(Self { stack, parts })
    }

    /// The same encoder with other weights: for each network, those made from its prefix in [`Self::keys`] and its store.
    pub fn with_stores(
        &self,
        change: impl Fn(&str, &Arc<WeightStore>) -> Arc<WeightStore>,
    ) -> Result<Self> {
        let parts = self
            .parts
            .iter()
            .zip(self.stack.parts)
            .map(|(part, place)| {
                let Some(part) = part else { return Ok(None) };
                let store = change(&prefix(place), part.store());
                part.over(store).map(Some)
            });
        Ok(Self {
            stack: self.stack,
            parts: parts.collect::<Result<_>>()?,
        })
    }

    pub fn stack(&self) -> &'static TextStack {
        self.stack
    }

    /// The networks that there are, with their places.
    pub fn networks(&self) -> impl Iterator<Item = (&'static StackPart, &Arc<dyn TextNetwork>)> {
        let places = self.stack.parts.iter().zip(&self.parts);
        places.filter_map(|(place, part)| Some((place, part.as_ref()?)))
    }

    /// The network of this name, if there is one.
    pub fn network(&self, name: &str) -> Option<&Arc<dyn TextNetwork>> {
        let mut networks = self.networks();
        networks
            .find(|(place, _)| place.name == name)
            .map(|(_, part)| part)
    }

    /// The networks' weights, with their places and the prefix their keys have in [`Self::keys`].
    pub fn stores(&self) -> impl Iterator<Item = (&'static StackPart, String, &Arc<WeightStore>)> {
        self.networks()
            .map(|(place, part)| (place, prefix(place), part.store()))
    }

    /// The keys of all weights, as LoRA files and patches mean them:
    /// `clip_l.transformer.text_model.encoder.layers.0.mlp.fc1.weight`.
    pub fn keys(&self) -> Vec<String> {
        self.stores()
            .flat_map(|(_, prefix, store)| {
                let keys = store.keys().into_iter();
                keys.map(move |key| format!("{prefix}{key}"))
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Memory held by the layers built so far.
    pub fn bytes(&self) -> u64 {
        self.networks().map(|(_, part)| part.store().bytes()).sum()
    }

    pub fn tokenize(&self, text: &str, embeddings: &dyn EmbeddingSource) -> Result<PromptTokens> {
        self.tokenize_prompt(&Prompt::new(text), embeddings)
    }

    /// The same with pictures, another template or other settings.
    pub fn tokenize_prompt(
        &self,
        prompt: &Prompt<'_>,
        embeddings: &dyn EmbeddingSource,
    ) -> Result<PromptTokens> {
        let each = self.networks().map(|(place, part)| {
            let vocabulary = part.vocabulary()?;
            let tokenizer = Tokenizer {
                vocabulary: &*vocabulary,
                name: place.name,
                width: part.width(),
            };
            let mut rule = place.prompt.clone();
            if let (Some(_), Some(positions)) = (rule.chunks.most, part.positions()) {
                rule.chunks.most = Some(positions);
            }
            let tokens = tokenizer.tokenize(prompt, &rule, embeddings)?;
            Ok((place.name, tokens))
        });
        let words = self.stack.words.iter().map(|words| {
            let vocabulary = (words.vocabulary)();
            let tokenizer = Tokenizer {
                vocabulary: &*vocabulary,
                name: words.name,
                width: 0,
            };
            // Nobody looks these up in a table here, so embeddings mean nothing to them.
            let tokens = tokenizer.tokenize(prompt, &words.prompt, &NoEmbeddings)?;
            Ok((words.name, tokens))
        });
        each.chain(words).collect::<Result<_>>().map(PromptTokens)
    }

    /// `layer` is that of CLIPSetLastLayer: -1 for the last layer, -2 for the one before.
    pub fn encode(&self, tokens: &PromptTokens, layer: Option<i64>) -> Result<Encoded> {
        self.encode_by(tokens, layer, None)
    }

    /// The same; the vector for all of a prompt does not go through a projection.
    pub fn encode_unprojected(&self, tokens: &PromptTokens, layer: Option<i64>) -> Result<Encoded> {
        self.encode_by(tokens, layer, Some(false))
    }

    /// What the network of this name makes of tokens by itself, in the way that the set uses it; none if there is no such
    /// network.
    pub fn encode_alone(
        &self,
        name: &str,
        tokens: &Tokens,
        layer: Option<i64>,
        projected: Option<bool>,
    ) -> Result<Option<TextOutput>> {
        let mut networks = self.networks();
        let Some((place, part)) = networks.find(|(place, _)| place.name == name) else {
            return Ok(None);
        };
        let rule = EncodeRule {
            projected: projected.unwrap_or(place.rule.projected),
            ..place.rule
        };
        part.encode(tokens, &rule, layer).map(Some)
    }

    fn encode_by(
        &self,
        tokens: &PromptTokens,
        layer: Option<i64>,
        projected: Option<bool>,
    ) -> Result<Encoded> {
        let none = Tokens::default();
        let mut outputs = Vec::new();
        let all = tokens;
        for (part, place) in self.parts.iter().zip(self.stack.parts) {
            let tokens = all.get(place.name);
            let skipped = place.optional && tokens.is_none_or(|t| t.chunks.is_empty());
            let Some(part) = part.as_ref().filter(|_| !skipped) else {
                outputs.push(None);
                continue;
            };
            let tokens = tokens.unwrap_or(&none);
            let rule = EncodeRule {
                projected: projected.unwrap_or(place.rule.projected),
                ..place.rule
            };
            let output = part.encode(tokens, &rule, layer)?;
            outputs.push(Some(PartOutput { tokens, output }));
        }
        (self.stack.join)(outputs, all)
    }
}

/// The pictures and sounds that come with a question.
#[derive(Debug, Default)]
pub struct QuestionMedia<'a> {
    /// `(b, h, w, 3)` each.
    pub pictures: &'a [Tensor],
    /// `(b, channels, samples)` each, of [`HEARD_RATE`](super::decoder::HEARD_RATE) samples a second.
    pub sounds: &'a [Tensor],
}

/// A network that can write, with its words.
struct Writer<'a> {
    part: &'a Arc<dyn TextNetwork>,
    words: Arc<dyn Vocabulary>,
    turns: &'static Turns,
    /// What every text begins with.
    start: Option<u32>,
}

impl TextEncoder {
    /// The network that can write, with its words: the first that has the marks of a conversation.
    fn writer(&self) -> Result<Writer<'_>> {
        let mut file = "text encoder";
        for (place, part) in self.networks() {
            file = part.store().file();
            let words = part.vocabulary()?;
            let knows = |mark: &&str| words.encode(mark).len() == 1;
            let known = |turns: &&&Turns| turns.known.iter().all(knows);
            if let Some(turns) = TURNS.iter().find(known) {
                return Ok(Writer {
                    part,
                    words,
                    turns,
                    start: place.prompt.chunks.start,
                });
            }
        }
        let reason = "it reads prompts, but cannot write: text is generated by language models that know conversations \
                      (Qwen, Gemma, Llama, Mistral)";
        Err(ModelError::unsupported(file, reason))
    }

    /// A question as the network was trained with conversations.
    pub fn conversation(
        &self,
        system: Option<&str>,
        prompt: &str,
        given: &QuestionMedia<'_>,
        thinks: bool,
    ) -> Result<String> {
        let Writer { words, turns, .. } = self.writer()?;
        let can_think = words.encode(turns.think).len() == 1;
        let system = system.filter(|system| !system.is_empty());
        let asked = (turns.told_to_think && can_think && thinks).then_some(turns.think);
        let told = (system.is_some() || asked.is_some()).then(|| {
            let system = system.unwrap_or_default();
            [
                turns.system[0],
                asked.unwrap_or_default(),
                system,
                turns.system[1],
            ]
            .concat()
        });
        let told = told.unwrap_or_default();
        let (before, within) = if turns.inside {
            ("", &*told)
        } else {
            (&*told, "")
        };
        let mut text = [before, turns.user[0], within].concat();
        let picture = [turns.picture[0], PICTURE, turns.picture[1]].concat();
        text.push_str(&picture.repeat(given.pictures.len()));
        let sound = [turns.sound[0], SOUND, turns.sound[1]].concat();
        text.push_str(&sound.repeat(given.sounds.len()));
        text.extend([prompt, turns.user[1], turns.answer]);
        if can_think {
            if !thinks && self.thinks_first() {
                text.push_str(turns.unthought);
            } else if thinks && self.remembers() {
                text.push_str(turns.thought);
            }
        }
        Ok(text)
    }

    /// Whether most layers remember instead of looking at everything: such networks begin to think only after the mark.
    fn remembers(&self) -> bool {
        let mut networks = self.networks();
        networks.any(|(_, part)| {
            part.store()
                .has("model.layers.0.linear_attn.in_proj_qkv.weight")
        })
    }

    /// Whether the network was trained to think before it answers: those with a norm on their queries were, without eyes or
    /// a table for each layer.
    fn thinks_first(&self) -> bool {
        if self.remembers() {
            return true;
        }
        self.networks().any(|(_, part)| {
            let has = |key: &str| part.store().has(key);
            let quick =
                has("visual.pos_embed.weight") || has("model.embed_tokens_per_layer.weight");
            has("model.layers.0.self_attn.q_norm.weight") && !quick
        })
    }

    /// Goes on with a text, in which marks stand for pictures and sounds. `each` is told how many tokens there are.
    pub fn write(
        &self,
        text: &str,
        given: &QuestionMedia<'_>,
        rule: &WritingRule,
        each: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<String> {
        let Writer {
            part,
            words,
            turns,
            start,
        } = self.writer()?;
        let plain = |token: Token| Weighted {
            token,
            weight: 1.0,
            word: 0,
        };
        let mut chunk: Vec<Weighted> = Vec::new();
        let (mut pictures, mut sounds) = (given.pictures.iter(), given.sounds.iter());
        for (at, part) in text.split(PICTURE).enumerate() {
            if let Some(picture) = (at > 0).then(|| pictures.next()).flatten() {
                chunk.push(plain(Token::Picture(Arc::new(picture.clone()))));
            }
            for (at, words_between) in part.split(SOUND).enumerate() {
                if let Some(sound) = (at > 0).then(|| sounds.next()).flatten() {
                    chunk.push(plain(Token::Sound(Arc::new(sound.clone()))));
                }
                let ids = words.encode(words_between).into_iter();
                chunk.extend(ids.map(|id| plain(Token::Id(id))));
            }
        }
        if chunk.is_empty() {
            return Err(ModelError::invalid(
                "prompt",
                "there is nothing to go on from",
            ));
        }
        let begun = matches!(chunk[0].token, Token::Id(id) if Some(id) == start);
        if let Some(start) = start.filter(|_| !begun) {
            chunk.insert(0, plain(Token::Id(start)));
        }
        let mut rule = rule.clone();
        let ends = turns.ends.iter().map(|mark| words.encode(mark));
        let ends = ends.filter(|ids| ids.len() == 1).flatten();
        rule.stops.extend(ends.chain(words.end()));
        let tokens = Tokens {
            chunks: vec![chunk],
            missing: Vec::new(),
        };
        let written = part.write(&tokens, &rule, each)?;
        let lost = || {
            ModelError::unsupported(part.store().file(), "its tokens cannot be turned into text")
        };
        words.decode(&written).ok_or_else(lost)
    }
}

impl Network for TextEncoder {
    fn stores(&self) -> Vec<Arc<WeightStore>> {
        self.networks()
            .flat_map(|(_, part)| part.stores())
            .collect()
    }

    fn build(&self) -> Result<()> {
        self.networks().try_for_each(|(_, part)| part.build())
    }

    fn is_built(&self) -> bool {
        self.networks().all(|(_, part)| part.is_built())
    }

    fn forget(&self) {
        self.networks().for_each(|(_, part)| part.forget());
    }

    fn rest(&self) {
        self.networks().for_each(|(_, part)| part.rest());
    }

    fn shed(&self) {
        self.networks().for_each(|(_, part)| part.shed());
    }
}

impl fmt::Debug for TextEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextEncoder")
            .field("stack", &self.stack)
            .finish_non_exhaustive()
    }
}

fn prefix(part: &StackPart) -> String {
    format!("{}.transformer.", part.name)
}
