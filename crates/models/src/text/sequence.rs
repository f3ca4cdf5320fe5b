//! Runs prompts through a network: tokens become rows, chunks and the empty prompt run together, weights are applied.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use fresco_tensor::nn::{Embedding, Linear, matmul, tanh};
use fresco_tensor::{Device, Tensor};

use super::network::{EncodeRule, Specials, States, TextKind, TextNetwork, TextOutput};
use super::tokens::{Token, Tokens, Weighted};
use super::vocabulary::Vocabulary;
use super::writing::{Chooser, Memory, WritingRule};
use crate::error::{ModelError, Result};
use crate::network::{Lazy, Network};
use crate::store::WeightStore;

/// How likely each word comes next.
pub enum WordScores {
    /// By a matrix of its own.
    Matrix(Arc<Linear>),
    /// By the table that embeds words: its rows are compared with what was read.
    Table(Arc<Embedding>),
    /// By another, held down so that no score reaches this.
    Capped(Box<WordScores>, f32),
}

/// Rows of the table that are compared at once.
const AT_ONCE: usize = 8192;

impl WordScores {
    /// Scores (1, n, words) of rows (1, n, c).
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let table = match self {
            Self::Matrix(matrix) => return Ok(matrix.forward(x)?),
            Self::Capped(scores, most) => {
                let share = scores.forward(x)?.mul_scalar(most.recip());
                return Ok(tanh(&share).mul_scalar(*most));
            }
            Self::Table(table) => table,
        };
        let ids: Vec<u32> = (0..table.entries() as u32).collect();
        let rows = |some: &[u32]| Ok(table.lookup_on(some, &x.device())?.unsqueeze(0)?);
        compared(ids.chunks(AT_ONCE).map(rows), x)
    }
}

/// Why a sound cannot be a part of a prompt.
pub(super) const DEAF: &str =
    "this text encoder cannot hear: leave the sound out, or use a file with a network for it";

/// Scores (1, n, words) of rows (1, n, c) by rows (1, some, c) of a table, of which there are several parts.
fn compared(table: impl Iterator<Item = Result<Tensor>>, x: &Tensor) -> Result<Tensor> {
    let columns = x.transpose(1, 2)?;
    let mut parts = Vec::new();
    for rows in table {
        parts.push(matmul(&rows?, &columns)?.transpose(1, 2)?);
    }
    Ok(Tensor::cat(&parts.iter().collect::<Vec<_>>(), 2)?)
}

/// Sequences that run at once; more would only take memory.
const BATCH: usize = 8;

/// A picture as rows of a text network.
pub struct SeenPicture {
    /// `(n, c)` on the network's device.
    pub rows: Tensor,
    /// Rows and columns of its grid.
    pub grid: (usize, usize),
    /// What is added to the same rows after the first layers, one for each.
    pub deeper: Vec<Tensor>,
}

/// Where a picture is in a sequence.
pub struct PicturePlace {
    pub start: usize,
    pub len: usize,
    pub grid: (usize, usize),
    pub deeper: Vec<Tensor>,
}

/// Stands for a row that is no word, as padding is none.
pub const NO_WORD: u32 = 0;

/// Rows that run through a network together.
pub struct Rows<'a> {
    /// `(b, n, c)`.
    pub embedded: Tensor,
    /// The tokens of each sequence, [`NO_WORD`] for rows that are none.
    pub ids: Vec<&'a [u32]>,
    /// Which rows are no padding, for each sequence; none if everybody may look at everything.
    pub masks: Option<Vec<&'a [bool]>>,
    /// Only of a sequence that is alone.
    pub pictures: &'a [PicturePlace],
    /// The position of padding, where it is not counted like words.
    pub pads_at: Option<u32>,
}

/// One state inside a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// After so many layers, as it is.
    After(usize),
    /// The same with the final norm.
    Normed(usize),
}

/// The states that were asked for, as they come up.
pub struct KeptStates<'a> {
    wanted: &'a [State],
    found: Vec<Option<Tensor>>,
}

impl<'a> KeptStates<'a> {
    pub fn new(wanted: &'a [State]) -> Self {
        Self {
            wanted,
            found: vec![None; wanted.len()],
        }
    }

    /// After how many layers nothing is wanted any more.
    pub fn depth(&self) -> usize {
        let depths = self.wanted.iter().map(|state| match state {
            State::After(at) | State::Normed(at) => *at,
        });
        depths.max().unwrap_or(0)
    }

    /// Takes what is wanted of the state after so many layers.
    pub fn offer(
        &mut self,
        after: usize,
        x: &Tensor,
        norm: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<()> {
        for (place, state) in self.found.iter_mut().zip(self.wanted) {
            match *state {
                State::After(at) if at == after => *place = Some(x.clone()),
                State::Normed(at) if at == after => *place = Some(norm(x)?),
                _ => {}
            }
        }
        Ok(())
    }

    pub fn finish(self) -> Result<Vec<Tensor>> {
        let all: Option<Vec<Tensor>> = self.found.into_iter().collect();
        all.ok_or_else(|| ModelError::invalid("text encoder", "it has no such layer"))
    }
}

/// A network over rows of numbers.
pub trait RowNetwork: Send + Sync + 'static {
    fn device(&self) -> &Device;

    fn layers(&self) -> usize;

    /// Numbers of a row.
    fn width(&self) -> usize;

    /// Whether there is a norm after the last layer.
    fn has_norm(&self) -> bool {
        true
    }

    /// `(n, c)` on the network's device.
    fn embed(&self, ids: &[u32]) -> Result<Tensor>;

    /// What it sees in a picture.
    fn see(&self, picture: &Tensor) -> Result<SeenPicture> {
        drop(picture.clone());
        let reason = "this text encoder cannot see pictures";
        Err(ModelError::invalid("prompt", reason))
    }

    /// What it hears in a sound: rows `(n, c)` on the network's device.
    fn hear(&self, sound: &Tensor) -> Result<Tensor> {
        drop(sound.clone());
        Err(ModelError::invalid("prompt", DEAF))
    }

    /// The states that are wanted, in their order, each `(b, n, c)` on the device.
    fn forward(&self, rows: &Rows<'_>, wanted: &[State]) -> Result<Vec<Tensor>>;

    /// Reads rows after those it remembers: the last of them after all layers and the norm, `(1, 1, c)` on the device.
    fn read(&self, rows: &Rows<'_>, memory: &mut Memory) -> Result<Tensor> {
        let (_, _) = (rows, memory);
        Err(ModelError::invalid("text encoder", "it cannot write"))
    }

    /// The matrix that tells from such a row how likely each token is.
    fn head(store: &WeightStore) -> Result<WordScores>
    where
        Self: Sized,
    {
        Err(ModelError::unsupported(
            store.file(),
            "it reads prompts, but cannot write",
        ))
    }

    /// One vector for all rows `(n, c)` of a sequence, in main memory.
    fn pool(&self, output: &Tensor, mask: &[bool]) -> Result<Option<Tensor>> {
        let (_, _) = (output, mask);
        Ok(None)
    }
}

/// How a network of rows is opened.
pub struct RowKind<N> {
    pub kind: &'static TextKind,
    /// The network from its weights.
    pub build: fn(&WeightStore) -> Result<N>,
    /// The vocabulary, which may be in a tensor of the file.
    pub words: fn(&WeightStore) -> Result<Arc<dyn Vocabulary>>,
    /// Numbers of a token, told from a shape.
    pub width: fn(&WeightStore) -> usize,
}

impl<N> Clone for RowKind<N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<N> Copy for RowKind<N> {}

/// A network of rows with its vocabulary, as a text network.
pub struct RowEncoder<N> {
    of: RowKind<N>,
    store: Arc<WeightStore>,
    network: Lazy<N>,
    words: Arc<OnceLock<Arc<dyn Vocabulary>>>,
}

impl<N: RowNetwork> RowEncoder<N> {
    pub fn open(of: RowKind<N>, store: Arc<WeightStore>) -> Arc<dyn TextNetwork> {
        Arc::new(Self::with_words(of, store, Arc::default()))
    }

    fn with_words(
        of: RowKind<N>,
        store: Arc<WeightStore>,
        words: Arc<OnceLock<Arc<dyn Vocabulary>>>,
    ) -> Self {
        let weights = Arc::clone(&store);
        let build = move || (of.build)(&weights);
        Self {
            network: Lazy::new(vec![Arc::clone(&store)], Box::new(build)),
            of,
            store,
            words,
        }
    }
}

impl<N: RowNetwork> TextNetwork for RowEncoder<N> {
    fn kind(&self) -> &'static TextKind {
        self.of.kind
    }

    fn store(&self) -> &Arc<WeightStore> {
        &self.store
    }

    fn over(&self, store: Arc<WeightStore>) -> Result<Arc<dyn TextNetwork>> {
        let words = Arc::clone(&self.words);
        Ok(Arc::new(Self::with_words(self.of, store, words)))
    }

    fn vocabulary(&self) -> Result<Arc<dyn Vocabulary>> {
        if let Some(words) = self.words.get() {
            return Ok(Arc::clone(words));
        }
        let words = (self.of.words)(&self.store)?;
        Ok(Arc::clone(self.words.get_or_init(|| words)))
    }

    fn width(&self) -> usize {
        (self.of.width)(&self.store)
    }

    fn encode(
        &self,
        tokens: &Tokens,
        rule: &EncodeRule,
        chosen: Option<i64>,
    ) -> Result<TextOutput> {
        let network = &*self.network.get()?;
        encode(network, tokens, rule, chosen).map_err(|error| match error {
            ModelError::Invalid {
                what: NOT_NUMBERS,
                reason,
            } => ModelError::unsupported(self.store.file(), reason),
            other => other,
        })
    }

    fn write(
        &self,
        tokens: &Tokens,
        rule: &WritingRule,
        each: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<Vec<u32>> {
        let head = N::head(&self.store)?;
        write(&*self.network.get()?, head, tokens, rule, each)
    }
}

/// Scores of the tokens that may come next.
struct NextScores {
    head: WordScores,
    only: Option<Range<u32>>,
    /// The rows of the table for those alone, which are not looked up again for each token.
    rows: Vec<Tensor>,
}

impl NextScores {
    fn new(head: WordScores, only: Option<Range<u32>>, device: &Device) -> Result<Self> {
        let mut rows = Vec::new();
        if let (WordScores::Table(table), Some(only)) = (&head, &only) {
            let ids: Vec<u32> = only.clone().collect();
            for some in ids.chunks(AT_ONCE) {
                rows.push(table.lookup_on(some, device)?.unsqueeze(0)?);
            }
        }
        Ok(Self { head, only, rows })
    }

    /// Scores (1, n, tokens) of rows (1, n, c).
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match &self.only {
            None => self.head.forward(x),
            Some(only) if self.rows.is_empty() => {
                let (first, count) = (only.start as usize, only.len());
                Ok(self.head.forward(x)?.narrow(2, first, count)?)
            }
            Some(_) => compared(self.rows.iter().cloned().map(Ok), x),
        }
    }
}

/// A prompt and what was written after it, as far as a network has read it.
struct Reading {
    /// What it reads next, (1, n, c), and the tokens of it.
    embedded: Tensor,
    ids: Vec<u32>,
    pictures: Vec<PicturePlace>,
    memory: Memory,
}

impl Reading {
    fn new<N: RowNetwork>(network: &N, tokens: &Tokens) -> Result<Self> {
        let prompt: Vec<Weighted> = tokens.chunks.iter().flatten().cloned().collect();
        let nothing = Specials {
            start: None,
            end: None,
            pad: u32::MAX,
        };
        let start = sequence(network, &prompt, &nothing)?;
        Ok(Self {
            embedded: start.embedded.unsqueeze(0)?,
            ids: start.ids,
            pictures: start.pictures,
            memory: Memory::default(),
        })
    }

    /// The state after the last row, (1, 1, c).
    fn read<N: RowNetwork>(&mut self, network: &N) -> Result<Tensor> {
        let rows = Rows {
            embedded: self.embedded.clone(),
            ids: vec![&self.ids],
            masks: None,
            pictures: &self.pictures,
            pads_at: None,
        };
        network.read(&rows, &mut self.memory)
    }

    fn go_on<N: RowNetwork>(&mut self, network: &N, id: u32) -> Result<()> {
        self.embedded = network.embed(&[id])?.unsqueeze(0)?;
        self.ids = vec![id];
        self.pictures.clear();
        Ok(())
    }
}

/// Goes on with a prompt.
fn write<N: RowNetwork>(
    network: &N,
    head: WordScores,
    tokens: &Tokens,
    rule: &WritingRule,
    each: &mut dyn FnMut(usize) -> Result<()>,
) -> Result<Vec<u32>> {
    let words = tokens
        .chunks
        .iter()
        .flatten()
        .filter_map(|t| match t.token {
            Token::Id(id) => Some(id),
            Token::Vector(_) | Token::Picture(_) | Token::Sound(_) => None,
        });
    let first = rule.only.as_ref().map_or(0, |only| only.start);
    let mut chooser = Chooser::new(rule.draw, words).starting_at(first);
    // A scale of 1 leaves nothing of the other prompt.
    let guidance = rule.guidance.as_ref().filter(|g| g.scale != 1.0);
    let mut readings = vec![Reading::new(network, tokens)?];
    if let Some(guidance) = guidance {
        readings.push(Reading::new(network, &guidance.away_from)?);
    }
    let head = NextScores::new(head, rule.only.clone(), network.device())?;
    let mut written = Vec::new();
    while written.len() < rule.most {
        each(written.len())?;
        let last = readings.iter_mut().map(|reading| reading.read(network));
        let last = last.collect::<Result<Vec<Tensor>>>()?;
        let last = Tensor::cat(&last.iter().collect::<Vec<_>>(), 1)?;
        let mut scores = head.forward(&last)?.to(&Device::cpu())?.into_vec();
        let each_prompt = scores.len() / readings.len();
        let (own, other) = scores.split_at_mut(each_prompt);
        if let Some(guidance) = guidance {
            guidance.apply(own, other);
        }
        let next = chooser.next(own);
        if rule.stops.contains(&next) {
            break;
        }
        written.push(next);
        for reading in &mut readings {
            reading.go_on(network, next)?;
        }
    }
    Ok(written)
}

impl<N: RowNetwork> Network for RowEncoder<N> {
    fn stores(&self) -> Vec<Arc<WeightStore>> {
        self.network.stores()
    }

    fn build(&self) -> Result<()> {
        self.network.build()
    }

    fn is_built(&self) -> bool {
        self.network.is_built()
    }

    fn forget(&self) {
        self.network.forget();
    }
}

/// Marks an error whose file is not known yet.
const NOT_NUMBERS: &str = "text encoder output";

/// A sequence that is ready to run.
struct Sequence {
    /// `(n, c)`.
    embedded: Tensor,
    /// The tokens of the rows, [`NO_WORD`] where there is none.
    ids: Vec<u32>,
    mask: Vec<bool>,
    pictures: Vec<PicturePlace>,
}

/// Runs a prompt through a network.
pub fn encode<N: RowNetwork>(
    network: &N,
    tokens: &Tokens,
    rule: &EncodeRule,
    chosen: Option<i64>,
) -> Result<TextOutput> {
    let chunks = &tokens.chunks;
    let mut sequences = Vec::with_capacity(chunks.len() + 1);
    for chunk in chunks {
        sequences.push(sequence(network, chunk, &rule.specials)?);
    }
    let weighted = chunks.iter().flatten().any(|t| t.weight != 1.0);
    if weighted || chunks.is_empty() {
        let longest = chunks.iter().map(Vec::len).max().unwrap_or(0);
        let empty = empty_prompt(&rule.specials, longest);
        sequences.push(sequence(network, &empty, &rule.specials)?);
    }
    if weighted && sequences.iter().any(|s| !s.pictures.is_empty()) {
        let reason = "pictures and weights cannot be in one prompt of this text encoder";
        return Err(ModelError::invalid("prompt", reason));
    }
    let wanted = output_states(rule.states, chosen, network);
    let mut outputs = run(network, &sequences, rule, &wanted)?;
    // The vector is made from what the network gives at its end.
    let pooled = match outputs.first() {
        Some(first) => network.pool(first, &sequences[0].mask)?,
        None => None,
    };
    if weighted {
        let empty = outputs.pop().expect("the empty sequence was the last");
        for (output, chunk) in outputs.iter_mut().zip(chunks) {
            weigh(output, &empty, chunk);
        }
    }
    let count = outputs.len();
    let rows: Vec<&Tensor> = outputs.iter().collect();
    let along = outputs.first().map_or(0, |first| first.rank() - 2);
    let mask = sequences[..count].iter().flat_map(|s| &s.mask);
    let mask: Vec<f32> = mask.map(|kept| f32::from(u8::from(*kept))).collect();
    Ok(TextOutput {
        hidden: Tensor::cat(&rows, along)?.unsqueeze(0)?,
        pooled,
        mask: Some(Tensor::from_vec([1, mask.len()], mask)?),
        pictures: picture_rows(&sequences[..count]),
    })
}

/// Where pictures are in the rows of all sequences.
fn picture_rows(sequences: &[Sequence]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut before = 0;
    for sequence in sequences {
        let own = sequence.pictures.iter();
        found.extend(own.map(|picture| (before + picture.start, picture.len)));
        before += sequence.mask.len();
    }
    found
}

/// Start, end and padding.
fn empty_prompt(specials: &Specials, length: usize) -> Vec<Weighted> {
    let mut ids: Vec<u32> = specials.start.into_iter().chain(specials.end).collect();
    let length = length.max(ids.len()).max(1);
    ids.resize(length, specials.pad);
    let plain = |id| Weighted {
        token: Token::Id(id),
        weight: 1.0,
        word: 0,
    };
    ids.into_iter().map(plain).collect()
}

/// Which states the output is made of.
fn output_states<N: RowNetwork>(states: States, chosen: Option<i64>, network: &N) -> Vec<State> {
    let layers = network.layers();
    let end = if network.has_norm() {
        State::Normed(layers)
    } else {
        State::After(layers)
    };
    let entering = |layer: usize| {
        if layer < layers {
            State::After(layer)
        } else {
            end
        }
    };
    match states {
        States::One(rule) => {
            let Some(index) = rule.choose(chosen, layers) else {
                return vec![end];
            };
            let at = if index < 0 {
                layers as i64 + index
            } else {
                index
            };
            let after = (at.max(0) as usize + 1).min(layers);
            if rule.norm && network.has_norm() {
                vec![State::Normed(after)]
            } else {
                vec![State::After(after)]
            }
        }
        States::Entering(list) => list.iter().map(|layer| entering(*layer)).collect(),
        States::All => (0..=layers).map(entering).collect(),
    }
}

/// Tokens as rows. Vectors of another width are left out, and rows of padding stand for them at the end.
fn sequence<N: RowNetwork>(
    network: &N,
    chunk: &[Weighted],
    specials: &Specials,
) -> Result<Sequence> {
    let width = network.width();
    let fits = |t: &&Weighted| match &t.token {
        Token::Vector(v) => v.len() == width,
        Token::Id(_) | Token::Picture(_) | Token::Sound(_) => true,
    };
    let kept: Vec<&Token> = chunk.iter().filter(fits).map(|t| &t.token).collect();
    let left_out = chunk.len() - kept.len();
    // The end token is the last that counts; padding does not count at all.
    let (stop, counted) = match specials.end {
        Some(end) => (end, true),
        None => (specials.pad, false),
    };
    let mut parts: Vec<Tensor> = Vec::new();
    let (mut ids, mut all) = (Vec::new(), Vec::new());
    let (mut mask, mut pictures) = (Vec::new(), Vec::new());
    let mut ended = false;
    for token in kept {
        match token {
            Token::Id(id) => {
                let stops = *id == stop;
                mask.push(!ended && (!stops || counted));
                ended |= stops;
                ids.push(*id);
                all.push(*id);
            }
            Token::Vector(vector) => {
                flush(network, &mut ids, &mut parts)?;
                let row = Tensor::from_vec([1, width], vector.to_vec())?;
                parts.push(row.to(network.device())?);
                mask.push(true);
                all.push(NO_WORD);
            }
            Token::Picture(picture) => {
                flush(network, &mut ids, &mut parts)?;
                let seen = network.see(picture)?;
                let len = seen.rows.dim(0)?;
                pictures.push(PicturePlace {
                    start: mask.len(),
                    len,
                    grid: seen.grid,
                    deeper: seen.deeper,
                });
                mask.extend(std::iter::repeat_n(true, len));
                all.extend(std::iter::repeat_n(NO_WORD, len));
                parts.push(seen.rows);
            }
            Token::Sound(sound) => {
                flush(network, &mut ids, &mut parts)?;
                let rows = network.hear(sound)?;
                let len = rows.dim(0)?;
                mask.extend(std::iter::repeat_n(true, len));
                all.extend(std::iter::repeat_n(NO_WORD, len));
                parts.push(rows);
            }
        }
    }
    ids.extend(std::iter::repeat_n(specials.pad, left_out));
    all.extend(std::iter::repeat_n(specials.pad, left_out));
    mask.extend(std::iter::repeat_n(false, left_out));
    flush(network, &mut ids, &mut parts)?;
    let embedded = match parts.as_slice() {
        [all] => all.clone(),
        parts => Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)?,
    };
    Ok(Sequence {
        embedded,
        ids: all,
        mask,
        pictures,
    })
}

/// Looks up the tokens that wait.
fn flush<N: RowNetwork>(network: &N, ids: &mut Vec<u32>, parts: &mut Vec<Tensor>) -> Result<()> {
    if !ids.is_empty() {
        parts.push(network.embed(ids)?);
        ids.clear();
    }
    Ok(())
}

/// The output of each sequence in main memory, `(n, c)` or `(s, n, c)`.
fn run<N: RowNetwork>(
    network: &N,
    sequences: &[Sequence],
    rule: &EncodeRule,
    wanted: &[State],
) -> Result<Vec<Tensor>> {
    let mut outputs = Vec::with_capacity(sequences.len());
    let mut at = 0;
    while let Some(first) = sequences.get(at) {
        // Alike ones run together; pictures make a sequence unlike all others.
        let alike = |s: &&Sequence| {
            s.embedded.shape() == first.embedded.shape()
                && s.pictures.is_empty()
                && first.pictures.is_empty()
        };
        let more = sequences[at + 1..].iter().take(BATCH - 1);
        let count = 1 + more.take_while(alike).count();
        let batch = &sequences[at..at + count];
        at += count;
        let rows: Vec<&Tensor> = batch.iter().map(|s| &s.embedded).collect();
        let padded = batch.iter().any(|s| s.mask.contains(&false));
        let masks =
            (rule.masked && padded).then(|| batch.iter().map(|s| s.mask.as_slice()).collect());
        let rows = Rows {
            embedded: Tensor::stack(&rows, 0)?,
            ids: batch.iter().map(|s| s.ids.as_slice()).collect(),
            masks,
            pictures: &first.pictures,
            pads_at: rule.pads_at,
        };
        let states = network.forward(&rows, wanted)?;
        drop(rows);
        let states: Result<Vec<Tensor>, _> = states
            .iter()
            .map(|state| state.to(&Device::cpu()))
            .collect();
        let states = states?;
        for (item, sequence) in batch.iter().enumerate() {
            outputs.push(output(&states, item, sequence, rule)?);
        }
    }
    Ok(outputs)
}

/// The output of one item of a batch.
fn output(
    states: &[Tensor],
    item: usize,
    sequence: &Sequence,
    rule: &EncodeRule,
) -> Result<Tensor> {
    let own: Result<Vec<Tensor>, _> = states.iter().map(|s| s.select(0, item)).collect();
    let own = own?;
    let own: Vec<&Tensor> = own.iter().collect();
    let mut output = match (rule.states, own.as_slice()) {
        (States::All, states) => Tensor::stack(states, 0)?,
        (_, [one]) => (*one).clone(),
        (_, states) => Tensor::cat(states, 1)?,
    };
    if rule.masked && !sequence.mask.contains(&true) {
        // Nothing to look at: what a network makes of it is no number, so it counts as nothing.
        return Ok(Tensor::zeros(output.shape())?);
    }
    if !output.data().iter().all(|v| v.is_finite()) {
        let reason = "it gives values that are not numbers; the file, or an embedding of the prompt, is damaged";
        return Err(ModelError::invalid(NOT_NUMBERS, reason));
    }
    if rule.zero_masked {
        let width = output.shape().last().copied().unwrap_or(1).max(1);
        let rows = output.data_mut().chunks_exact_mut(width);
        for (row, kept) in rows.zip(sequence.mask.iter().cycle()) {
            if !kept {
                row.fill(0.0);
            }
        }
    }
    Ok(output)
}

/// Moves tokens away from, or towards, what an empty prompt gives at the same place. Where an output has all states, the
/// weight of a token goes to the state of its number, as the reference does it.
fn weigh(output: &mut Tensor, empty: &Tensor, chunk: &[Weighted]) {
    let each: usize = output.shape()[1..].iter().product();
    let each = each.max(1);
    let rows = output.data_mut().chunks_exact_mut(each);
    for ((row, base), token) in rows.zip(empty.data().chunks_exact(each)).zip(chunk) {
        if token.weight != 1.0 {
            let weight = token.weight as f32;
            for (v, b) in row.iter_mut().zip(base) {
                *v = (*v - b) * weight + b;
            }
        }
    }
}
