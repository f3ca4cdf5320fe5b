//! T5's encoders (Raffel et al. 2020): the first version and 1.1, the multilingual ones, and the one that reads bytes.

mod layout;
mod network;

use std::sync::Arc;

use fresco_tensor::WeightFile;

use super::sequence::{RowEncoder, RowKind};
use super::vocabulary::{Bytes, SentencePiece, Unigram, Vocabulary, json};
use super::{KeptIn, TextKind};
use crate::error::{ModelError, Result};
use crate::store::{Blocks, UnitOrder, WeightStore};

pub use layout::GGUF;
pub use network::{T5, T5Config};

/// The key of the vocabulary that files of multilingual encoders bring.
pub const WORDS_KEY: &str = "spiece_model";

/// One table of distances for all layers, English words.
pub static T5_ENGLISH: TextKind = TextKind {
    name: "T5",
    open: |store| Ok(RowEncoder::open(row(&T5_ENGLISH), store)),
    ..ROW
};

/// A table of distances for each layer: UMT5 and Pile-T5. Its vocabulary is in the file, or that of UMT5.
pub static UMT5: TextKind = TextKind {
    name: "UMT5",
    open: |store| Ok(RowEncoder::open(row(&UMT5), store)),
    ..ROW
};

/// Bytes for words.
pub static BYT5: TextKind = TextKind {
    name: "ByT5",
    open: |store| Ok(RowEncoder::open(row(&BYT5), store)),
    ..ROW
};

const ROW: TextKind = TextKind {
    name: "",
    keys: layout::keys,
    units: &UNITS,
    kept_in: KeptIn::Short,
    open: |store| Ok(RowEncoder::open(row(&T5_ENGLISH), store)),
};

static UNITS: UnitOrder = UnitOrder {
    parts: &["shared", "encoder", "block", "final_layer_norm"],
    blocks: &[Blocks::Within("block")],
    values: &[],
};

const fn row(kind: &'static TextKind) -> RowKind<T5> {
    RowKind {
        kind,
        build: |store| T5::new(store, &T5Config::detect(store)?),
        words,
        width: |store| {
            let shared = store.shape("shared.weight");
            shared.and_then(|shape| shape.get(1)).copied().unwrap_or(0)
        },
    }
}

/// Rows of the table of tokens below which it is one of bytes.
const FEW_TOKENS: usize = 4096;

/// Rows of the table of tokens for the English words.
const ENGLISH: std::ops::RangeInclusive<usize> = 32_000..=32_200;

/// The words of an encoder: those of its file, or those that its table of tokens has room for.
fn words(store: &WeightStore) -> Result<Arc<dyn Vocabulary>> {
    if store.has(WORDS_KEY) {
        let model = store.raw(WORDS_KEY)?;
        let words = SentencePiece::parse(model.bytes(), store.file())?;
        return Ok(Arc::new(words));
    }
    if let Some(words) = json::beside(store)? {
        return Ok(words);
    }
    let rows = store
        .shape("shared.weight")
        .and_then(|s| s.first())
        .copied();
    let per_layer = network::has_own_bias(store);
    match rows.unwrap_or(0) {
        rows if rows < FEW_TOKENS => Ok(Arc::new(Bytes { first: 3 })),
        rows if ENGLISH.contains(&rows) && !per_layer => Ok(Unigram::t5()),
        rows if rows >= 256_000 && per_layer => Ok(SentencePiece::umt5()),
        _ => Err(ModelError::unsupported(
            store.file(),
            json::missing(WORDS_KEY),
        )),
    }
}

/// Which of them a file of its own holds.
pub(crate) fn find(file: &dyn WeightFile) -> Option<&'static TextKind> {
    let keys = layout::keys(file, "");
    let table = keys.get("shared.weight")?;
    let rows = file.info(table.names().first()?)?.shape.first().copied()?;
    if rows < FEW_TOKENS {
        return Some(&BYT5);
    }
    let own = keys.contains_key(&network::bias_key(1));
    Some(if own { &UMT5 } else { &T5_ENGLISH })
}
