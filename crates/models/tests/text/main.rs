//! Text encoders against `tests/gold`.

#![expect(
    clippy::unwrap_used,
    reason = "a step that fails in a test should fail the test"
)]

mod encoders;
mod files;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fresco_models::WeightStore;
use fresco_models::text::clip::{ClipConfig, ClipEncoder, ClipKind, ClipLayer, ClipTokenizer};
use fresco_models::text::{EmbeddingSource, NoEmbeddings, Token, prompt};
use fresco_tensor::{Device, SafeTensors, Stored, Tensor, synthetic};
use serde_json::Value;

fn gold(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/gold")
        .join(name)
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(gold(name)).unwrap()).unwrap()
}

/// A place for embeddings with nothing in it.
struct Empty;

impl EmbeddingSource for Empty {
    fn load(&self, _: &str, _: &str, _: usize) -> Option<Vec<Arc<[f32]>>> {
        None
    }
}

/// Chunks of `(id, weight, word)`; the golden leaves out repetitions of the last entry.
fn expected(chunks: &Value) -> Vec<Vec<(u64, f64, u64)>> {
    let chunk = |chunk: &Value| {
        let entries = chunk["t"].as_array().unwrap().iter();
        let mut list: Vec<_> = entries
            .map(|t| {
                let word = t[2].as_u64().unwrap();
                (t[0].as_u64().unwrap(), t[1].as_f64().unwrap(), word)
            })
            .collect();
        let last = *list.last().unwrap();
        list.resize(chunk["n"].as_u64().unwrap() as usize, last);
        list
    };
    chunks.as_array().unwrap().iter().map(chunk).collect()
}

fn found(kind: ClipKind, text: &str, source: &dyn EmbeddingSource) -> Vec<Vec<(u64, f64, u64)>> {
    let tokens = ClipTokenizer::new(kind).tokenize(text, source).unwrap();
    let chunk = |chunk: Vec<fresco_models::text::Weighted>| {
        chunk
            .into_iter()
            .map(|t| match t.token {
                Token::Id(id) => (u64::from(id), t.weight, t.word as u64),
                other => panic!("{other:?} out of nowhere"),
            })
            .collect()
    };
    tokens.chunks.into_iter().map(chunk).collect()
}

#[test]
fn prompts_become_the_same_tokens() {
    let file = json("tokenizers.json");
    let prompts = file["prompts"].as_array().unwrap();
    assert_eq!(prompts.len(), 75);
    for case in prompts {
        let text = case["prompt"].as_str().unwrap();
        let parsed: Vec<(String, f64)> = case["parsed"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| {
                let text = p[0].as_str().unwrap();
                let text = text.replace("\0\u{1}", ")").replace("\0\u{2}", "(");
                (text, p[1].as_f64().unwrap())
            })
            .collect();
        let segments = prompt::parse(text).unwrap();
        let segments: Vec<_> = segments.into_iter().map(|s| (s.text, s.weight)).collect();
        assert_eq!(segments, parsed, "{text:?}");

        let want = expected(&case["clip_l"]);
        assert_eq!(found(ClipKind::L, text, &NoEmbeddings), want, "{text:?}");
        if let Some(chunks) = case.get("clip_l_with_embedding_directory") {
            assert_eq!(
                found(ClipKind::L, text, &Empty),
                expected(chunks),
                "{text:?}"
            );
        }
        // The other encoders pad with zeros after the end.
        let mut padded = want;
        for chunk in &mut padded {
            let end = chunk
                .iter()
                .rposition(|t| *t != (49407, 1.0, 0))
                .map_or(1, |at| at + 2);
            for t in chunk.iter_mut().skip(end) {
                t.0 = 0;
            }
        }
        assert_eq!(found(ClipKind::G, text, &NoEmbeddings), padded, "{text:?}");
    }
}

/// Synthetic weights of the names and shapes a golden lists.
fn weights(keys: &Value) -> BTreeMap<String, Stored> {
    let keys = keys.as_object().unwrap().iter();
    keys.map(|(name, shape)| {
        let shape: Vec<usize> = serde_json::from_value(shape.clone()).unwrap();
        let weight = synthetic::weight(name, &shape).unwrap();
        (name.clone(), Stored::from(&weight))
    })
    .collect()
}

fn relative_error(found: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(found.shape(), expected.shape());
    let pairs = found.data().iter().zip(expected.data());
    let (mut difference, mut size) = (0.0, 0.0);
    for (f, e) in pairs {
        difference += (f64::from(*f) - f64::from(*e)).powi(2);
        size += f64::from(*e).powi(2);
    }
    (difference / size).sqrt()
}

#[track_caller]
fn check_network(name: &str, kind: ClipKind) {
    let about = json(&format!("{name}.json"));
    let tensors = SafeTensors::open(gold(&format!("{name}.safetensors"))).unwrap();
    let store = WeightStore::from_stored(name, weights(&about["keys"]), Device::cpu());
    let detected = ClipConfig::detect(&store, kind).unwrap();
    assert_eq!(
        (detected.hidden, detected.layers, detected.positions),
        (64, 3, 77)
    );
    let config = ClipConfig {
        heads: 4, // narrower heads than any real encoder has
        ..detected
    };
    let encoder = ClipEncoder::new(kind, store, config).unwrap();
    let hidden = |norm| ClipLayer::Hidden { index: -2, norm };
    let mut compared = 0;
    for (variant, layer) in [
        ("last_projected", ClipLayer::Last),
        ("last_unprojected", ClipLayer::Last),
        ("hidden-2_noln", hidden(false)),
        ("hidden-2_ln", hidden(true)),
    ] {
        for (i, prompt) in about["prompts"].as_array().unwrap().iter().enumerate() {
            let prompt = prompt.as_str().unwrap();
            let tokens = encoder.tokenizer().tokenize(prompt, &NoEmbeddings).unwrap();
            let output = encoder.encode(&tokens.chunks, layer).unwrap();
            let pooled = if matches!(variant, "last_unprojected" | "hidden-2_ln") {
                &output.pooled
            } else {
                &output.projected
            };
            for (part, value) in [("cond", &output.hidden), ("pooled", pooled)] {
                let key = format!("{variant}/{i}/{part}");
                let error = relative_error(value, &tensors.tensor(&key).unwrap());
                assert!(error < 1e-5, "{name} {key}: {error}");
                compared += 1;
            }
        }
    }
    assert_eq!(compared, about["tensors"].as_object().unwrap().len());
}

#[test]
fn clip_l_gives_the_same_numbers() {
    check_network("clip_l_small", ClipKind::L);
}

#[test]
fn clip_g_gives_the_same_numbers() {
    check_network("clip_g_small", ClipKind::G);
}
