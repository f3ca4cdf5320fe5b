//! Encoders that look both ways and normalise after each part: BERT (Devlin et al. 2019), and the text network of
//! Jina CLIP 2, which turns positions instead of adding them and gives the mean of its rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_tensor::nn::{Act, Embedding, LayerNorm, Mask};
use fresco_tensor::{Buffer, Device, Tensor, WeightFile};

use super::network::words_origin;
use super::sequence::{KeptStates, RowEncoder, RowKind, RowNetwork, Rows, State};
use super::vocabulary::{SentencePiece, Vocabulary, json};
use super::{KeptIn, TextKind};
use crate::error::{ModelError, Result};
use crate::store::{Blocks, Origin, UnitOrder, Walk, WeightStore};
use crate::transformer::{
    AttentionLayers, EncoderBlock, EncoderLayers, HeadNorm, Heads, MlpLayers, NormPlace, Pairs,
    QkvLayers, Rope,
};

const MAX_LAYERS: usize = 256;
const WORDS_KEY: &str = "spiece_model";

/// The text network of Jina CLIP 2.
pub static JINA: TextKind = TextKind {
    name: "Jina CLIP 2",
    keys: |file, prefix| keys(file, prefix, Layout::Jina),
    units: &UNITS,
    kept_in: KeptIn::Short,
    open: |store| Ok(RowEncoder::open(row(&JINA, Layout::Jina), store)),
};

/// BERT.
pub static BERT: TextKind = TextKind {
    name: "BERT",
    keys: |file, prefix| keys(file, prefix, Layout::Bert),
    units: &UNITS,
    kept_in: KeptIn::Short,
    open: |store| Ok(RowEncoder::open(row(&BERT, Layout::Bert), store)),
};

static UNITS: UnitOrder = UnitOrder {
    parts: &["embeddings", "emb_ln", "encoder"],
    blocks: &[Blocks::Within("layers"), Blocks::Within("layer")],
    values: &[],
};

fn row(kind: &'static TextKind, layout: Layout) -> RowKind<PostNorm> {
    RowKind {
        kind,
        build: match layout {
            Layout::Jina => {
                |store| PostNorm::new(store, &PostNormConfig::detect(store, Layout::Jina)?)
            }
            Layout::Bert => {
                |store| PostNorm::new(store, &PostNormConfig::detect(store, Layout::Bert)?)
            }
        },
        words,
        width: |store| {
            let tables = [Layout::Jina, Layout::Bert].map(|layout| store.shape(&layout.table()));
            let table = tables.into_iter().flatten().next();
            table.and_then(|shape| shape.get(1)).copied().unwrap_or(0)
        },
    }
}

fn words(store: &WeightStore) -> Result<Arc<dyn Vocabulary>> {
    if store.has(WORDS_KEY) {
        let model = store.raw(WORDS_KEY)?;
        return Ok(Arc::new(SentencePiece::parse(model.bytes(), store.file())?));
    }
    let missing = || ModelError::unsupported(store.file(), json::missing(WORDS_KEY));
    json::beside(store)?.ok_or_else(missing)
}

/// Which of them a file of its own holds.
pub(crate) fn find(file: &dyn WeightFile) -> Option<&'static TextKind> {
    let kinds = [(Layout::Jina, &JINA), (Layout::Bert, &BERT)];
    let mut found = kinds
        .into_iter()
        .filter(|(layout, _)| !keys(file, "", *layout).is_empty());
    found.next().map(|(_, kind)| kind)
}

/// How weights are named and divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    Jina,
    Bert,
}

impl Layout {
    fn root(self) -> &'static str {
        match self {
            Self::Jina => "model",
            Self::Bert => "bert",
        }
    }

    fn table(self) -> String {
        format!("{}.embeddings.word_embeddings.weight", self.root())
    }

    fn layer(self, i: usize) -> String {
        match self {
            Self::Jina => format!("model.encoder.layers.{i}"),
            Self::Bert => format!("bert.encoder.layer.{i}"),
        }
    }

    fn first(self) -> String {
        match self {
            Self::Jina => format!("{}.mixer.Wqkv.weight", self.layer(0)),
            Self::Bert => format!("{}.attention.self.query.weight", self.layer(0)),
        }
    }
}

fn keys(file: &dyn WeightFile, prefix: &str, layout: Layout) -> BTreeMap<String, Origin> {
    let names = file.names();
    let inside = names.iter().filter_map(|name| {
        let key = name.strip_prefix(prefix)?;
        let own = key.starts_with(layout.root()) || key == WORDS_KEY;
        own.then(|| (key.to_owned(), Origin::Whole(name.clone())))
    });
    let mut keys: BTreeMap<String, Origin> = inside.collect();
    if let Some(words) = words_origin(file, prefix, WORDS_KEY) {
        keys.insert(WORDS_KEY.to_owned(), words);
    }
    if !keys.contains_key(&layout.first()) || !keys.contains_key(&layout.table()) {
        keys.clear();
    }
    keys
}

/// Sizes of such an encoder.
#[derive(Debug, Clone, PartialEq)]
pub struct PostNormConfig {
    pub layout: Layout,
    pub hidden: usize,
    pub inner: usize,
    pub layers: usize,
    pub heads: usize,
    pub vocabulary: usize,
    /// Kinds of rows, of which the first is used.
    pub types: usize,
    /// Rows of the table of positions; none where positions are turned.
    pub positions: Option<usize>,
    pub eps: f32,
    /// The base of the angles by which positions are turned.
    pub theta: f64,
}

impl PostNormConfig {
    pub fn detect(store: &WeightStore, layout: Layout) -> Result<Self> {
        let matrix = |key: &str| match store.shape(key) {
            Some(&[rows, columns]) => Ok((rows, columns)),
            _ => Err(ModelError::Missing {
                file: store.file().to_owned(),
                key: key.to_owned(),
            }),
        };
        let (vocabulary, hidden) = matrix(&layout.table())?;
        let embeddings = format!("{}.embeddings", layout.root());
        let (types, _) = matrix(&format!("{embeddings}.token_type_embeddings.weight"))?;
        let marker = |i: usize| match layout {
            Layout::Jina => format!("{}.mlp.fc1.weight", layout.layer(i)),
            Layout::Bert => format!("{}.intermediate.dense.weight", layout.layer(i)),
        };
        let layers = (0..MAX_LAYERS).take_while(|i| store.has(&marker(*i)));
        let layers = layers.count();
        let (inner, _) = matrix(&marker(0))?;
        let positions = store.shape(&format!("{embeddings}.position_embeddings.weight"));
        Ok(Self {
            layout,
            hidden,
            inner,
            layers,
            heads: (hidden / 64).max(1),
            vocabulary,
            types,
            positions: positions.and_then(|shape| shape.first()).copied(),
            eps: match layout {
                Layout::Jina => 1e-5,
                Layout::Bert => 1e-12,
            },
            theta: 20_000.0,
        })
    }
}

fn layer(weights: &Walk<'_>, config: &PostNormConfig) -> Result<EncoderBlock> {
    let hidden = config.hidden;
    let heads = Heads::new(config.heads, hidden / config.heads, HeadNorm::None);
    let (qkv, out, mlp, norms) = match config.layout {
        Layout::Jina => (
            QkvLayers::Joined("mixer.Wqkv"),
            "mixer.out_proj",
            ["mlp.fc1", "mlp.fc2"],
            ["norm1", "norm2"],
        ),
        Layout::Bert => (
            QkvLayers::Apart([
                "attention.self.query",
                "attention.self.key",
                "attention.self.value",
            ]),
            "attention.output.dense",
            ["intermediate.dense", "output.dense"],
            ["attention.output.LayerNorm", "output.LayerNorm"],
        ),
    };
    let layers = EncoderLayers {
        attention: AttentionLayers::new(qkv, out, hidden, heads),
        mlp: MlpLayers::Plain(mlp, Act::Gelu),
        inner: config.inner,
        norms,
        place: NormPlace::Behind,
        eps: config.eps,
        scales: None,
    };
    EncoderBlock::new(weights, &layers)
}

/// See the [module](self).
pub struct PostNorm {
    config: PostNormConfig,
    device: Device,
    words: Arc<Embedding>,
    types: Arc<Embedding>,
    positions: Option<Arc<Embedding>>,
    norm: Arc<LayerNorm>,
    layers: Vec<EncoderBlock>,
}

impl PostNorm {
    pub fn new(store: &WeightStore, config: &PostNormConfig) -> Result<Self> {
        store.build("the text encoder", |weights| Self::walk(weights, config))
    }

    fn walk(weights: &Walk<'_>, config: &PostNormConfig) -> Result<Self> {
        let (hidden, layout) = (config.hidden, config.layout);
        let root = weights.at(layout.root());
        let tables = root.at("embeddings");
        let norm = match layout {
            Layout::Jina => root.layer_norm("emb_ln", hidden, config.eps)?,
            Layout::Bert => tables.layer_norm("LayerNorm", hidden, config.eps)?,
        };
        let positions = config
            .positions
            .map(|rows| tables.embedding("position_embeddings", rows, hidden));
        let layers = (0..config.layers).map(|i| layer(&weights.at(layout.layer(i)), config));
        Ok(Self {
            words: tables.embedding("word_embeddings", config.vocabulary, hidden)?,
            types: tables.embedding("token_type_embeddings", config.types, hidden)?,
            positions: positions.transpose()?,
            norm,
            layers: layers.collect::<Result<_>>()?,
            device: weights.device().clone(),
            config: config.clone(),
        })
    }
}

impl RowNetwork for PostNorm {
    fn device(&self) -> &Device {
        &self.device
    }

    fn layers(&self) -> usize {
        self.layers.len()
    }

    fn width(&self) -> usize {
        self.config.hidden
    }

    /// Every layer ends with a norm; there is none for all of them.
    fn has_norm(&self) -> bool {
        false
    }

    fn embed(&self, ids: &[u32]) -> Result<Tensor> {
        Ok(self.words.lookup_on(ids, &self.device)?)
    }

    fn forward(&self, rows: &Rows<'_>, wanted: &[State]) -> Result<Vec<Tensor>> {
        let [_, n, _] = rows.embedded.dims3()?;
        let kind = self.types.lookup_on(&[0], &self.device)?;
        let mut x = rows.embedded.add(&kind)?;
        let mut rope = None;
        if let Some(table) = &self.positions {
            if n > table.entries() {
                let reason = format!("{n} tokens are more than its {}", table.entries());
                return Err(ModelError::invalid("text encoder", reason));
            }
            let places: Vec<u32> = (0..n as u32).collect();
            x = x.add(&table.lookup_on(&places, &self.device)?)?;
        } else {
            let places: Vec<f64> = (0..n).map(|i| i as f64).collect();
            let head = self.config.hidden / self.config.heads;
            let turns = Rope::new(&places, &[head], self.config.theta)?;
            rope = Some(turns.pairing(Pairs::Halves).to(&self.device)?);
        }
        x = self.norm.forward(&x)?;
        let mask = match &rows.masks {
            Some(masks) => {
                let mut values = Buffer::with_room(masks.len() * n)?;
                for mask in masks {
                    values.extend(mask.iter().map(|kept| if *kept { 0.0 } else { f32::MIN }));
                }
                let mask = Tensor::from_buffer([masks.len(), 1, 1, n], values)?;
                Some(mask.to(&self.device)?)
            }
            None => None,
        };
        let mut kept = KeptStates::new(wanted);
        let norm = |x: &Tensor| Ok(x.clone());
        kept.offer(0, &x, norm)?;
        for (i, layer) in self.layers.iter().enumerate().take(kept.depth()) {
            let mask = mask.as_ref().map_or(Mask::None, Mask::Add);
            x = layer.forward(&x, rope.as_ref(), mask)?;
            kept.offer(i + 1, &x, norm)?;
        }
        kept.finish()
    }

    /// The mean of the rows that are no padding.
    fn pool(&self, output: &Tensor, mask: &[bool]) -> Result<Option<Tensor>> {
        if self.config.layout == Layout::Bert {
            return Ok(None);
        }
        let width = self.config.hidden;
        let mut sum = vec![0.0_f64; width];
        let rows = output
            .data()
            .chunks_exact(width)
            .zip(mask)
            .filter(|(_, kept)| **kept);
        let mut count = 0.0;
        for (row, _) in rows {
            count += 1.0;
            for (s, v) in sum.iter_mut().zip(row) {
                *s += f64::from(*v);
            }
        }
        let mean = sum.iter().map(|s| (s / f64::max(count, 1.0)) as f32);
        Ok(Some(Tensor::from_vec([1, width], mean.collect())?))
    }
}
