//! The shape of a network, read from keys and shapes.

use crate::error::{ModelError, Result};
use crate::store::WeightStore;
use crate::transformer::Shapes;

/// Channels of a head of the published networks; no shape says it.
const HEAD: usize = 64;

/// More parts of a level than any network has.
const MOST: usize = 1000;

/// What a level is made of, in the order they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A block of convolutions.
    Cells,
    /// What is told of the noise level.
    Time,
    Attention,
}

/// One level on the way down or up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CascadeLevel {
    pub channels: usize,
    pub heads: usize,
    pub parts: Vec<Part>,
    /// How often they run.
    pub repeats: usize,
}

/// Which of the two networks it is, with what it is told beside the noise level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CascadeStage {
    B {
        /// Width of the prompt's vector.
        pooled: usize,
        /// Channels of stage C's latent, and inside the layers that look at it.
        prior: usize,
        prior_inner: usize,
        /// Inside the layers that would look at a picture.
        pixels: usize,
    },
    C {
        text: usize,
        pooled: usize,
        /// Width of a picture's vector.
        picture: usize,
    },
}

impl CascadeStage {
    /// Cells along a side that one cell inside covers.
    pub fn patch(&self) -> usize {
        match self {
            Self::B { .. } => 2,
            Self::C { .. } => 1,
        }
    }

    /// The names of numbers beside the noise level. All of them are zero.
    pub(super) fn numbers(&self) -> &'static [&'static str] {
        match self {
            Self::B { .. } => &["sca"],
            Self::C { .. } => &["sca", "crp"],
        }
    }
}

/// A network of this family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CascadeConfig {
    pub stage: CascadeStage,
    pub channels: usize,
    pub out_channels: usize,
    /// Width of a number that it is told.
    pub waves: usize,
    /// Width of the tokens that attention looks at, and how many one vector becomes.
    pub cond: usize,
    pub tokens: usize,
    /// From the outside inwards.
    pub down: Vec<CascadeLevel>,
    /// From the inside outwards.
    pub up: Vec<CascadeLevel>,
}

impl CascadeConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let columns = |key: &str| -> Result<(usize, usize)> {
            match store.shape(key) {
                Some(&[rows, columns] | &[rows, columns, 1, 1]) => Ok((rows, columns)),
                _ => Err(shapes.unsupported(format!("{key} is not a matrix"))),
            }
        };
        let (cond, stage, joined) = if shapes.has("clip_txt_mapper.weight") {
            let (cond, text) = columns("clip_txt_mapper.weight")?;
            let (joined, pooled) = columns("clip_txt_pooled_mapper.weight")?;
            let (_, picture) = columns("clip_img_mapper.weight")?;
            let stage = CascadeStage::C {
                text,
                pooled,
                picture,
            };
            (cond, stage, joined)
        } else {
            let (joined, pooled) = columns("clip_mapper.weight")?;
            let (prior_inner, prior) = columns("effnet_mapper.0.weight")?;
            let stage = CascadeStage::B {
                pooled,
                prior,
                prior_inner,
                pixels: columns("pixels_mapper.0.weight")?.0,
            };
            // Where nobody attends the width of tokens does not matter.
            let mut keys = store.keys().into_iter();
            let seen = keys.find(|key| key.ends_with(".kv_mapper.1.weight"));
            let cond = seen.map_or(Ok(joined), |key| Ok::<_, ModelError>(columns(key)?.1))?;
            (cond, stage, joined)
        };
        if cond == 0 || !joined.is_multiple_of(cond) {
            return Err(shapes.unsupported(format!("{joined} values are no tokens of {cond}")));
        }
        let square = stage.patch() * stage.patch();
        let (_, input) = columns("embedding.1.weight")?;
        let (out, _) = columns("clf.1.weight")?;
        let mut keys = store.keys().into_iter();
        let time = keys.find(|key| key.ends_with(".mapper.weight"));
        let Some(time) = time else {
            return Err(shapes.unsupported("nothing in it looks at the noise level"));
        };
        let waves = columns(time)?.1;
        let down = levels(store, "down")?;
        let up = levels(store, "up")?;
        let rising = up.iter().rev().map(|level| level.channels);
        if down.is_empty() || !rising.eq(down.iter().map(|level| level.channels)) || waves < 4 {
            return Err(shapes.unsupported("its ways down and up have not the same levels"));
        }
        Ok(Self {
            stage,
            channels: input / square,
            out_channels: out / square,
            waves,
            cond,
            tokens: joined / cond,
            down,
            up,
        })
    }
}

/// The levels of one way.
fn levels(store: &WeightStore, way: &str) -> Result<Vec<CascadeLevel>> {
    let shapes = Shapes(store);
    let mut levels = Vec::new();
    for number in 0..shapes.count(&format!("{way}_blocks")) {
        let list = format!("{way}_blocks.{number}");
        let count = shapes.count(&list);
        if count > MOST {
            return Err(shapes.unsupported(format!("{list} has too many parts")));
        }
        let mut parts = Vec::new();
        let mut channels = 0;
        for at in 0..count {
            let has = |name: &str| shapes.has(&format!("{list}.{at}.{name}"));
            parts.push(if has("depthwise.weight") {
                channels = shapes.vector(&format!("{list}.{at}.depthwise.bias"))?;
                Part::Cells
            } else if has("mapper.weight") {
                Part::Time
            } else if has("kv_mapper.1.weight") {
                Part::Attention
            } else {
                let reason = format!("{list}.{at} is not a part that is known");
                return Err(shapes.unsupported(reason));
            });
        }
        let between = shapes.count(&format!("{way}_repeat_mappers.{number}"));
        levels.push(CascadeLevel {
            channels,
            heads: (channels / HEAD).max(1),
            parts,
            repeats: between.min(MOST) + 1,
        });
    }
    Ok(levels)
}
