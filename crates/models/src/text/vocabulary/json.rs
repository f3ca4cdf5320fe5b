//! Tokenizers from a `tokenizer.json` beside a model's file, for vocabularies that may not be shipped.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::byte_pairs::{BytePairs, Parts};
use super::charsmap::CharsMap;
use super::merge::{Merge, byte_of};
use super::pieces::Pieces;
use super::sentencepiece::SentencePiece;
use super::splitting::Cuts;
use super::unigram::Unigram;
use super::word_pieces::WordPieces;
use super::{Marks, Vocabulary};
use crate::error::{ModelError, Result};
use crate::store::WeightStore;

/// The name of such files.
pub const FILE: &str = "tokenizer.json";

/// The tokenizer beside the file of a store, if there is one.
pub fn beside(store: &WeightStore) -> Result<Option<Arc<dyn Vocabulary>>> {
    let found = store.beside(FILE)?;
    found.map(|json| parse(&json, store.file())).transpose()
}

/// Says that a vocabulary is in neither place.
pub fn missing(key: &str) -> String {
    format!(
        "its vocabulary is not part of this program and not in the file: use a file with the tensor {key:?}, or put the \
         model's {FILE} beside it (model.{FILE} where several models share a folder)"
    )
}

/// The tokenizer in such a file; `what` names the model in messages.
pub fn parse(json: &[u8], what: &str) -> Result<Arc<dyn Vocabulary>> {
    read(json).map_err(|reason| {
        let reason = format!("its {FILE} cannot be used: {reason}");
        ModelError::unsupported(what, reason)
    })
}

type Read<T> = std::result::Result<T, String>;

fn read(json: &[u8]) -> Read<Arc<dyn Vocabulary>> {
    let value: Value = serde_json::from_slice(json).map_err(|e| e.to_string())?;
    let model = &value["model"];
    let kind = model["type"].as_str().unwrap_or_default();
    match kind {
        "BPE" if byte_level(&value) => Ok(Arc::new(byte_pairs(&value)?)),
        "BPE" => Ok(Arc::new(scored_pairs(&value)?)),
        "Unigram" => Ok(Arc::new(unigram(&value)?)),
        "WordPiece" => Ok(Arc::new(word_pieces(&value)?)),
        other => Err(format!("tokenizers of type {other:?} are not known")),
    }
}

/// All objects of a step, itself and those in a sequence of them.
fn steps<'a>(step: &'a Value, list: &str) -> Vec<&'a Value> {
    match step[list].as_array() {
        Some(inner) => inner.iter().flat_map(|s| steps(s, list)).collect(),
        None => vec![step],
    }
}

fn has_step(value: &Value, kind: &str) -> bool {
    let before = steps(&value["pre_tokenizer"], "pretokenizers");
    let normal = steps(&value["normalizer"], "normalizers");
    before.into_iter().chain(normal).any(|s| s["type"] == kind)
}

fn byte_level(value: &Value) -> bool {
    has_step(value, "ByteLevel")
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|n| u32::try_from(n).ok())
}

/// The tokens that are found anywhere in a text.
fn marks(value: &Value) -> Marks {
    let added = value["added_tokens"].as_array();
    let named = added.into_iter().flatten().filter_map(|token| {
        let text = token["content"].as_str()?;
        Some((text.to_owned(), number(&token["id"])?))
    });
    Marks::new(named)
}

/// Words with their numbers.
fn numbered(model: &Value) -> Read<Vec<(&str, u32)>> {
    let words = model["vocab"].as_object().ok_or("it has no words")?;
    let words = words
        .iter()
        .map(|(word, id)| Some((word.as_str(), number(id)?)));
    words
        .collect::<Option<_>>()
        .ok_or_else(|| "a word has no number".to_owned())
}

/// Pairs that merge, in order.
fn merges(model: &Value) -> impl Iterator<Item = (&str, &str)> {
    let list = model["merges"].as_array().into_iter().flatten();
    list.filter_map(|pair| match pair {
        Value::String(pair) => pair.split_once(' '),
        pair => Some((pair[0].as_str()?, pair[1].as_str()?)),
    })
}

fn byte_pairs(value: &Value) -> Read<BytePairs> {
    let model = &value["model"];
    let words = numbered(model)?;
    let ids: HashMap<&str, u32> = words.iter().copied().collect();
    let mut bytes = [None; 256];
    for (word, id) in &words {
        let mut chars = word.chars();
        if let (Some(c), None) = (chars.next(), chars.next())
            && let Some(byte) = byte_of(c)
        {
            bytes[usize::from(byte)] = Some(*id);
        }
    }
    let bytes: Option<Vec<u32>> = bytes.into_iter().collect();
    let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
    let mut ranked = HashMap::new();
    for ((left, right), rank) in merges(model).zip(0..) {
        let joined = format!("{left}{right}");
        let found = (ids.get(left), ids.get(right), ids.get(&*joined));
        if let (Some(&left), Some(&right), Some(&token)) = found {
            ranked.entry((left, right)).or_insert(Merge { rank, token });
        }
    }
    let whole = if model["ignore_merges"] == true {
        let spelled = words.iter().filter_map(|(word, id)| {
            let bytes: Option<Vec<u8>> = word.chars().map(byte_of).collect();
            Some((bytes?, *id))
        });
        spelled.collect()
    } else {
        HashMap::new()
    };
    let before = value["pre_tokenizer"].to_string();
    Ok(BytePairs::new(Parts {
        bytes: bytes.ok_or("it does not know every byte")?,
        merges: ranked,
        whole,
        marks: marks(value),
        cuts: Cuts {
            digits: if before.contains("{1,3}") { 3 } else { 1 },
            accents: before.contains("p{M}"),
        },
        composed: has_step(value, "NFC"),
    }))
}

/// Pair encoding over letters, as SentencePiece models become when they are converted: words that merge early are worth
/// more.
fn scored_pairs(value: &Value) -> Read<SentencePiece> {
    let model = &value["model"];
    let mut words = numbered(model)?;
    words.sort_by_key(|(_, id)| *id);
    if words.iter().zip(0..).any(|((_, id), at)| *id != at) {
        return Err("the numbers of its words have gaps".to_owned());
    }
    let ids: HashMap<&str, u32> = words.iter().copied().collect();
    let mut scores = vec![f32::MIN; words.len()];
    for ((left, right), rank) in merges(model).zip(0u32..) {
        if let Some(id) = ids.get(&*format!("{left}{right}")) {
            let score = &mut scores[*id as usize];
            *score = score.max(-(rank as f32));
        }
    }
    let unknown = model["unk_token"].as_str().and_then(|word| ids.get(word));
    let marks = marks(value);
    let texts: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    // A space before the first word, wherever the file says so.
    let normal = steps(&value["normalizer"], "normalizers");
    let before = steps(&value["pre_tokenizer"], "pretokenizers");
    let prepended = normal.iter().any(|s| s["type"] == "Prepend");
    let spaced = before.iter().any(|s| {
        let never = s["prepend_scheme"] == "never" || s["add_prefix_space"] == false;
        s["type"] == "Metaspace" && !never
    });
    Ok(SentencePiece::of_pairs(
        &texts,
        scores,
        unknown.copied().unwrap_or(0),
        |text| marks.id(text).is_some(),
        prepended || spaced,
    ))
}

fn unigram(value: &Value) -> Read<Unigram> {
    let model = &value["model"];
    let list = model["vocab"].as_array().ok_or("it has no words")?;
    let entries: Option<Vec<(&str, f32)>> = list
        .iter()
        .map(|entry| Some((entry[0].as_str()?, entry[1].as_f64()? as f32)))
        .collect();
    let entries = entries.ok_or("a word has no score")?;
    let texts: Vec<&[u8]> = entries.iter().map(|(text, _)| text.as_bytes()).collect();
    let unknown = number(&model["unk_id"]).filter(|id| (*id as usize) < texts.len());
    let unknown = unknown.ok_or("it has no piece for what is unknown")?;
    let normal = steps(&value["normalizer"], "normalizers");
    let mut tables = normal
        .iter()
        .filter_map(|s| s["precompiled_charsmap"].as_str());
    let table = match tables.next() {
        Some(text) => STANDARD.decode(text).ok().and_then(|t| CharsMap::parse(&t)),
        None => Some(CharsMap::default()),
    };
    Ok(Unigram::new(
        Pieces::new(&texts),
        entries.iter().map(|(_, score)| *score).collect(),
        unknown,
        table.ok_or("its table of characters is damaged")?,
        marks(value),
    ))
}

fn word_pieces(value: &Value) -> Read<WordPieces> {
    let model = &value["model"];
    let words = numbered(model)?;
    let unknown = model["unk_token"].as_str().unwrap_or("[UNK]");
    let ids: HashMap<String, u32> = words.iter().map(|(w, id)| ((*w).to_owned(), *id)).collect();
    let unknown = *ids
        .get(unknown)
        .ok_or("it has no word for what is unknown")?;
    let normal = steps(&value["normalizer"], "normalizers");
    let lower = normal
        .iter()
        .any(|s| s["lowercase"] == true || s["type"] == "Lowercase");
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or("##");
    Ok(WordPieces::new(
        ids,
        unknown,
        prefix.to_owned(),
        lower,
        marks(value),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parsed(value: &Value) -> Arc<dyn Vocabulary> {
        parse(value.to_string().as_bytes(), "x").unwrap()
    }

    #[test]
    fn byte_level_pairs() {
        let mut vocab: serde_json::Map<String, Value> = (0..=u8::MAX)
            .map(|byte| {
                let c = (0..400)
                    .filter_map(char::from_u32)
                    .find(|c| byte_of(*c) == Some(byte));
                (c.unwrap().to_string(), json!(byte))
            })
            .collect();
        vocab.insert("ab".to_owned(), json!(300));
        vocab.insert("abc".to_owned(), json!(301));
        let mut value = json!({
            "added_tokens": [{"id": 400, "content": "<m>"}],
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}"}}, {"type": "ByteLevel"}]},
            "model": {"type": "BPE", "vocab": vocab, "merges": ["a b"]},
        });
        assert_eq!(parsed(&value).encode("abc<m>"), [300, 99, 400]);
        value["model"]["ignore_merges"] = json!(true);
        assert_eq!(parsed(&value).encode("abc"), [301]);
        value["model"]["vocab"].as_object_mut().unwrap().remove("!");
        let error = parse(value.to_string().as_bytes(), "x").err().unwrap();
        assert!(error.to_string().contains("every byte"), "{error}");
    }

    #[test]
    fn pairs_of_letters_and_unigrams() {
        let value = json!({
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}]},
            "model": {"type": "BPE", "unk_token": "<unk>", "merges": [["▁", "a"], ["a", "b"]],
                "vocab": {"<unk>": 0, "▁": 1, "a": 2, "b": 3, "▁a": 4, "ab": 5}},
        });
        assert_eq!(parsed(&value).encode("ab ab?"), [4, 3, 4, 3, 0]);
        let value = json!({
            "normalizer": null,
            "model": {"type": "Unigram", "unk_id": 0,
                "vocab": [["<unk>", 0.0], ["▁a", -1.0], ["b", -2.0], ["▁ab", -4.0]]},
        });
        assert_eq!(parsed(&value).encode("ab"), [1, 2]);
    }

    #[test]
    fn pieces_of_words() {
        let value = json!({
            "normalizer": {"type": "BertNormalizer", "lowercase": true},
            "added_tokens": [{"id": 9, "content": "[SEP]"}],
            "model": {"type": "WordPiece", "unk_token": "[UNK]",
                "vocab": {"[UNK]": 0, "un": 1, "##able": 2, "cat": 3, "!": 4}},
        });
        assert_eq!(
            parsed(&value).encode("Unable CAT! dog[SEP]"),
            [1, 2, 3, 4, 0, 9]
        );
    }

    #[test]
    fn what_is_no_tokenizer_is_refused() {
        for (json, part) in [
            ("[", "EOF"),
            ("{}", "not known"),
            (r#"{"model": {"type": "Unigram"}}"#, "no words"),
            (r#"{"model": {"type": "BPE", "vocab": {"a": 1}}}"#, "gaps"),
        ] {
            let error = parse(json.as_bytes(), "x.safetensors").err().unwrap();
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
