//! CLIP's text encoders (Radford et al. 2021): their tokenizer ([`bpe`]), their network and how their files name it.

pub mod bpe;
mod encoder;
mod layout;
pub(crate) mod lora;
mod network;
mod tokenizer;
mod unicode;

use fresco_tensor::nn::Act;
use fresco_tensor::{Dtype, WeightFile};

use super::{EncodeRule, KeptIn, LayerRule, PromptRule, Specials, TextKind};
use crate::store::{Blocks, UnitOrder};

pub use encoder::ClipEncoder;
pub use layout::{OPEN_CLIP, OPEN_CLIP_BLOCK, OWN_PROJECTION};
pub use network::{ClipConfig, ClipLayer, ClipOutput};
pub use tokenizer::{ClipTokenizer, Words, chunks};

/// The sizes that are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClipKind {
    /// ViT-L/14 of OpenAI.
    L,
    /// ViT-H/14 of OpenCLIP.
    H,
    /// ViT-bigG/14 of OpenCLIP.
    G,
}

impl ClipKind {
    /// Its row.
    pub fn row(self) -> &'static TextKind {
        match self {
            Self::L => &CLIP_L,
            Self::H => &CLIP_H,
            Self::G => &CLIP_G,
        }
    }

    /// Its name in keys of models and embeddings.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Numbers in a token of the full-size encoder.
    pub fn width(self) -> usize {
        match self {
            Self::L => 768,
            Self::H => 1024,
            Self::G => 1280,
        }
    }

    /// The token after the end.
    pub fn pad(self) -> u32 {
        match self {
            Self::L => bpe::END,
            Self::H | Self::G => 0,
        }
    }

    fn act(self) -> Act {
        match self {
            Self::L => Act::QuickGelu,
            Self::H | Self::G => Act::Gelu,
        }
    }
}

pub static CLIP_L: TextKind = TextKind {
    name: "clip_l",
    open: |store| ClipEncoder::open(ClipKind::L, store),
    ..ROW
};

pub static CLIP_H: TextKind = TextKind {
    name: "clip_h",
    open: |store| ClipEncoder::open(ClipKind::H, store),
    ..ROW
};

pub static CLIP_G: TextKind = TextKind {
    name: "clip_g",
    open: |store| ClipEncoder::open(ClipKind::G, store),
    ..ROW
};

/// What all of them have.
const ROW: TextKind = TextKind {
    name: "",
    keys: layout::keys,
    units: &UNITS,
    // The reference keeps them in f16, whatever the file has, and pictures depend on it.
    kept_in: KeptIn::Always(Dtype::F16),
    open: |store| ClipEncoder::open(ClipKind::L, store),
};

/// How prompts are read: weighted, in chunks that end with this padding.
pub const fn prompt(pad: u32) -> PromptRule {
    PromptRule::plain(chunks(pad))
}

/// How the network is run. Which tokens start, end and fill a prompt it knows by itself.
pub const fn rule(layer: LayerRule, projected: bool) -> EncodeRule {
    let specials = Specials {
        start: Some(bpe::START),
        end: Some(bpe::END),
        pad: 0,
    };
    EncodeRule {
        projected,
        ..EncodeRule::layer(layer, specials)
    }
}

static UNITS: UnitOrder = UnitOrder {
    parts: &[
        "text_model",
        "embeddings",
        "token_embedding",
        "position_embedding",
        "encoder",
        "final_layer_norm",
        "text_projection",
    ],
    blocks: &[Blocks::Within("layers")],
    values: &[],
};

/// Which of them a file of its own holds, by the number of layers; a small one counts as the smallest.
pub(crate) fn find(file: &dyn WeightFile) -> Option<&'static TextKind> {
    layout::kind(&layout::keys(file, "")).map(ClipKind::row)
}
