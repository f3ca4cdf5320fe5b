//! Prompts: the states of all layers of a language model, made as wide as connectors read them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use fresco_tensor::nn::{Linear, RmsNorm};
use fresco_tensor::{Axes, Device, Stored, Tensor, WeightError, WeightFile, WeightInfo};

use super::layers::EPS;
use crate::error::{ModelError, Result};
use crate::network::{Lazy, Network};
use crate::store::{Blocks, Origin, UnitOrder, Walk, WeightStore};
use crate::text::decoder::{GEMMA3, GEMMA4};
use crate::text::vocabulary::Vocabulary;
use crate::text::{EncodeRule, KeptIn, TextKind, TextNetwork, TextOutput, Tokens, WritingRule};
use crate::transformer::Shapes;

/// What stands before the names of the layers that make states narrower.
pub const PREFIX: &str = "text_embedding_projection.";

const JOINT: &str = "text_embedding_projection.aggregate_embed";
const VIDEO: &str = "text_embedding_projection.video_aggregate_embed";
const SOUND: &str = "text_embedding_projection.audio_aggregate_embed";

/// How states become narrower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProjectionConfig {
    /// One width for both streams.
    Joint { from: usize, to: usize },
    /// One for each.
    Each { from: usize, to: [usize; 2] },
}

impl ProjectionConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let matrix = |name: &str| shapes.matrix(&format!("{name}.weight"));
        if shapes.has(&format!("{VIDEO}.weight")) {
            let ((video, from), (sound, _)) = (matrix(VIDEO)?, matrix(SOUND)?);
            return Ok(Self::Each {
                from,
                to: [video, sound],
            });
        }
        let (to, from) = matrix(JOINT)?;
        Ok(Self::Joint { from, to })
    }
}

/// See [`ProjectionConfig`].
pub struct Projection {
    device: Device,
    config: ProjectionConfig,
    layers: Vec<Arc<Linear>>,
    norm: RmsNorm,
}

impl Projection {
    pub fn new(weights: &Walk<'_>, config: &ProjectionConfig) -> Result<Self> {
        let layers = match *config {
            ProjectionConfig::Joint { from, to } => vec![weights.matrix(JOINT, to, from)?],
            ProjectionConfig::Each { from, to } => vec![
                weights.linear(VIDEO, to[0], from)?,
                weights.linear(SOUND, to[1], from)?,
            ],
        };
        Ok(Self {
            device: weights.device(),
            config: config.clone(),
            layers,
            norm: RmsNorm::new(None, EPS)?,
        })
    }

    /// States (1, layers, n, c) of words, none of them padding, as (1, n, width) in main memory. Vectors for pictures and
    /// for sound are next to each other where they are not the same.
    pub fn forward(&self, states: &Tensor) -> Result<Tensor> {
        let [_, layers, n, c] = states.dims4()?;
        let (ProjectionConfig::Joint { from, .. } | ProjectionConfig::Each { from, .. }) =
            self.config;
        if layers * c != from {
            let reason = format!(
                "{layers} states of width {c} are not the {from} numbers that the projection takes: the text encoder is \
                 not the one of this model"
            );
            return Err(ModelError::invalid("text encoder", reason));
        }
        let states = states.to(&self.device)?;
        // Numbers of one channel are next to each other.
        let flat = |states: &Tensor| -> Result<Tensor> {
            Ok(states.permute(&[0, 2, 3, 1])?.reshape([1, n, from])?)
        };
        let cpu = Device::cpu();
        match self.config {
            ProjectionConfig::Joint { .. } => {
                let mean = states.mean(&[2, 3], Axes::Keep)?;
                let (most, least) = (
                    states.max(&[2, 3], Axes::Keep)?,
                    states.min(&[2, 3], Axes::Keep)?,
                );
                let range = most.sub(&least)?.add_scalar(1e-6);
                let even = states.sub(&mean)?.div(&range)?.mul_scalar(8.0);
                Ok(self.layers[0].forward(&flat(&even)?)?.to(&cpu)?)
            }
            ProjectionConfig::Each { to, .. } => {
                let even = flat(&self.norm.forward(&states)?)?;
                let one = |layer: &Linear, width: usize| -> Result<Tensor> {
                    let scale = (width as f64 / c as f64).sqrt() as f32;
                    Ok(layer.forward(&even.mul_scalar(scale))?.to(&cpu)?)
                };
                let video = one(&self.layers[0], to[0])?;
                let sound = one(&self.layers[1], to[1])?;
                Ok(Tensor::cat(&[&video, &sound], 2)?)
            }
        }
    }
}

static UNITS: UnitOrder = UnitOrder {
    parts: &[
        "model",
        "embed_tokens",
        "layers",
        "norm",
        "text_embedding_projection",
    ],
    blocks: &[Blocks::Within("layers")],
    values: &["layer_scalar"],
};

/// Gemma 3 with what makes its states narrower, as LTX-2 and 2.3 read prompts.
pub static GEMMA3_PROJECTED: TextKind = TextKind {
    name: "Gemma 3 with a projection",
    keys: |file, prefix| keys(&GEMMA3, file, prefix),
    units: &UNITS,
    kept_in: KeptIn::Short,
    open: |store| Projected::open(&GEMMA3_PROJECTED, &GEMMA3, store),
};

/// Gemma 4 with the same, as LTX-2.5 reads them.
pub static GEMMA4_PROJECTED: TextKind = TextKind {
    name: "Gemma 4 with a projection",
    keys: |file, prefix| keys(&GEMMA4, file, prefix),
    units: &UNITS,
    kept_in: KeptIn::Short,
    open: |store| Projected::open(&GEMMA4_PROJECTED, &GEMMA4, store),
};

fn keys(inner: &TextKind, file: &dyn WeightFile, prefix: &str) -> BTreeMap<String, Origin> {
    let mut keys = (inner.keys)(file, prefix);
    let own = file.names().into_iter().filter_map(|name| {
        let at = name.find(PREFIX)?;
        Some((name[at..].to_owned(), Origin::Whole(name)))
    });
    let own: Vec<_> = own.collect();
    if keys.is_empty() || own.is_empty() {
        return BTreeMap::new();
    }
    keys.extend(own);
    keys
}

/// Whether a file of its own holds one.
pub(crate) fn find(file: &dyn WeightFile) -> Option<&'static TextKind> {
    if !file.names().iter().any(|name| name.contains(PREFIX)) {
        return None;
    }
    let found = crate::text::decoder::find(file)?;
    let kinds = [(&GEMMA3, &GEMMA3_PROJECTED), (&GEMMA4, &GEMMA4_PROJECTED)];
    let (_, projected) = kinds.into_iter().find(|(inner, _)| *inner == found)?;
    Some(projected)
}

/// A language model and the projection behind it.
struct Projected {
    kind: &'static TextKind,
    inner_kind: &'static TextKind,
    inner: Arc<dyn TextNetwork>,
    store: Arc<WeightStore>,
    projection: Lazy<Projection>,
}

impl Projected {
    fn open(
        kind: &'static TextKind,
        inner_kind: &'static TextKind,
        store: Arc<WeightStore>,
    ) -> Result<Arc<dyn TextNetwork>> {
        let config = ProjectionConfig::detect(&store)?;
        let weights = Arc::clone(&store);
        let build = move || {
            weights.build("the text projection", |weights| {
                Projection::new(weights, &config)
            })
        };
        Ok(Arc::new(Self {
            kind,
            inner_kind,
            inner: (inner_kind.open)(Arc::clone(&store))?,
            projection: Lazy::new(vec![Arc::clone(&store)], Box::new(build)),
            store,
        }))
    }
}

impl TextNetwork for Projected {
    fn kind(&self) -> &'static TextKind {
        self.kind
    }

    fn store(&self) -> &Arc<WeightStore> {
        &self.store
    }

    fn over(&self, store: Arc<WeightStore>) -> Result<Arc<dyn TextNetwork>> {
        Self::open(self.kind, self.inner_kind, store)
    }

    fn vocabulary(&self) -> Result<Arc<dyn Vocabulary>> {
        self.inner.vocabulary()
    }

    fn width(&self) -> usize {
        self.inner.width()
    }

    fn encode(
        &self,
        tokens: &Tokens,
        rule: &EncodeRule,
        chosen: Option<i64>,
    ) -> Result<TextOutput> {
        let output = self.inner.encode(tokens, rule, chosen)?;
        let mut states = output.hidden;
        if let Some(mask) = &output.mask {
            let words = mask.data().iter().enumerate().filter(|(_, v)| **v != 0.0);
            let words: Vec<usize> = words.map(|(at, _)| at).collect();
            if words.len() < mask.len() {
                states = states.index_select(2, &words)?;
            }
        }
        Ok(TextOutput {
            hidden: self.projection.get()?.forward(&states)?,
            pooled: None,
            mask: None,
            pictures: Vec::new(),
        })
    }

    fn write(
        &self,
        tokens: &Tokens,
        rule: &WritingRule,
        each: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<Vec<u32>> {
        self.inner.write(tokens, rule, each)
    }
}

impl Network for Projected {
    fn stores(&self) -> Vec<Arc<WeightStore>> {
        vec![Arc::clone(&self.store)]
    }

    fn build(&self) -> Result<()> {
        self.inner.build()?;
        self.projection.build()
    }

    fn is_built(&self) -> bool {
        self.inner.is_built() && self.projection.is_built()
    }

    fn forget(&self) {
        self.inner.forget();
        self.projection.forget();
    }

    fn rest(&self) {
        self.inner.rest();
    }

    fn shed(&self) {
        self.inner.shed();
    }
}

/// A text encoder's file with the projection of a checkpoint.
pub struct WithProjection {
    text: Arc<dyn WeightFile>,
    checkpoint: Arc<dyn WeightFile>,
    own: Vec<String>,
}

impl WithProjection {
    /// An error if the checkpoint has none.
    pub fn new(text: Arc<dyn WeightFile>, checkpoint: Arc<dyn WeightFile>) -> Result<Self> {
        let names = checkpoint.names().into_iter();
        let own: Vec<String> = names.filter(|name| name.contains(PREFIX)).collect();
        if own.is_empty() {
            return Err(ModelError::unsupported(
                checkpoint.path().display().to_string(),
                format!(
                    "it has no {PREFIX}*, which makes prompts for its model: choose an LTX-2 checkpoint"
                ),
            ));
        }
        Ok(Self {
            text,
            checkpoint,
            own,
        })
    }

    fn of(&self, name: &str) -> &Arc<dyn WeightFile> {
        if self.own.iter().any(|own| own == name) {
            &self.checkpoint
        } else {
            &self.text
        }
    }
}

impl WeightFile for WithProjection {
    fn path(&self) -> &Path {
        self.text.path()
    }

    fn names(&self) -> Vec<String> {
        let mut names = self.text.names();
        names.retain(|name| !self.own.contains(name));
        names.extend(self.own.iter().cloned());
        names.sort();
        names
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        self.of(name).info(name)
    }

    fn read(&self, name: &str) -> Result<Stored, WeightError> {
        self.of(name).read(name)
    }

    fn metadata(&self) -> &[(String, String)] {
        self.text.metadata()
    }

    fn beside(&self, name: &str) -> Result<Option<Vec<u8>>, WeightError> {
        self.text.beside(name)
    }
}
