//! Language models as text encoders, out of files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use fresco_models::detect::stacks;
use fresco_models::text::{Encoded, NoEmbeddings, Prompt, TextEncoder};
use fresco_models::{ModelError, WeightStore};
use fresco_tensor::{
    Device, Stored, Tensor, WeightError, WeightFile, WeightInfo, open_weights, synthetic,
};
use serde_json::json;

/// A file that is nowhere on disk and counts who reads what.
struct Counting {
    path: PathBuf,
    weights: BTreeMap<String, Stored>,
    read: Mutex<BTreeMap<String, usize>>,
}

impl WeightFile for Counting {
    fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Vec<String> {
        self.weights.keys().cloned().collect()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        self.weights.get(name).map(|stored| WeightInfo {
            dtype: stored.dtype(),
            shape: stored.shape().to_vec(),
        })
    }

    fn read(&self, name: &str) -> Result<Stored, WeightError> {
        *self
            .read
            .lock()
            .unwrap()
            .entry(name.to_owned())
            .or_default() += 1;
        self.weights
            .get(name)
            .cloned()
            .ok_or_else(|| WeightError::Missing {
                path: self.path.clone(),
                name: name.to_owned(),
            })
    }

    fn metadata(&self) -> &[(String, String)] {
        &[]
    }
}

const WIDTH: usize = 16;
const LAYERS: usize = 3;

/// Keys and shapes of a small decoder with so many tokens; `normed` for one like Qwen 3.
fn decoder(tokens: usize, normed: bool) -> Vec<(String, Vec<usize>)> {
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![tokens, WIDTH]),
        ("model.norm.weight".to_owned(), vec![WIDTH]),
    ];
    for i in 0..LAYERS {
        let mut layer = |name: &str, shape: &[usize]| {
            shapes.push((format!("model.layers.{i}.{name}.weight"), shape.to_vec()));
        };
        layer("input_layernorm", &[WIDTH]);
        layer("post_attention_layernorm", &[WIDTH]);
        layer("self_attn.q_proj", &[256, WIDTH]);
        layer("self_attn.k_proj", &[128, WIDTH]);
        layer("self_attn.v_proj", &[128, WIDTH]);
        layer("self_attn.o_proj", &[WIDTH, 256]);
        layer("mlp.gate_proj", &[24, WIDTH]);
        layer("mlp.up_proj", &[24, WIDTH]);
        layer("mlp.down_proj", &[WIDTH, 24]);
        if normed {
            layer("self_attn.q_norm", &[128]);
            layer("self_attn.k_norm", &[128]);
        }
    }
    shapes
}

fn counting(
    path: &str,
    shapes: Vec<(String, Vec<usize>)>,
    name: fn(&str) -> String,
) -> Arc<Counting> {
    let weights = shapes.into_iter().map(|(key, shape)| {
        let weight = Stored::from(&synthetic::weight(&key, &shape).unwrap());
        (name(&key), weight)
    });
    Arc::new(Counting {
        path: PathBuf::from(path),
        weights: weights.collect(),
        read: Mutex::default(),
    })
}

fn load(file: &Arc<Counting>, kind: &str) -> Result<TextEncoder, ModelError> {
    let file: Arc<dyn WeightFile> = Arc::clone(file) as _;
    TextEncoder::from_files_as(&[file], Some(kind), &Device::cpu())
}

fn encode(encoder: &TextEncoder, text: &str) -> Encoded {
    let tokens = encoder.tokenize(text, &NoEmbeddings).unwrap();
    encoder.encode(&tokens, None).unwrap()
}

const QWEN_TOKENS: usize = 151_936;

#[test]
fn a_language_model_is_read_once_and_its_type_decides() {
    let file = counting("q.safetensors", decoder(QWEN_TOKENS, true), str::to_owned);
    let encoder = load(&file, "lumina2").unwrap();
    assert_eq!(encoder.stack(), &stacks::Z_IMAGE);
    let key = "qwen3_4b.transformer.model.layers.2.mlp.down_proj.weight";
    assert!(encoder.keys().iter().any(|k| k == key));
    assert!(file.read.lock().unwrap().is_empty());
    let found = encode(&encoder, "a photo of a cat");
    assert_eq!(found.cond.shape(), [1, 13, WIDTH]);
    assert_eq!(found.extras[0].0, "attention_mask");
    encode(&encoder, "another one");
    let read = file.read.lock().unwrap().clone();
    assert_eq!(read.len(), file.weights.len());
    assert!(read.values().all(|times| *times == 1), "{read:?}");
    // Kept as they were read: nothing is expanded.
    let bytes: u64 = file.weights.values().map(|w| w.bytes().len() as u64).sum();
    assert!(encoder.bytes() <= bytes, "{} of {bytes}", encoder.bytes());

    // Three states for each token, filled up to a length.
    let klein = load(&file, "flux2").unwrap();
    assert_eq!(klein.stack(), &stacks::FLUX2_KLEIN_4B);
    assert_eq!(encode(&klein, "a cat").cond.shape(), [1, 512, 3 * WIDTH]);
    // The model reads the words of T5 as well.
    let anima = TextEncoder::from_stores(&stacks::ANIMA, stores(&encoder)).unwrap();
    let found = encode(&anima, "a (cat:1.5)");
    let extra = |name: &str| {
        found
            .extras
            .iter()
            .find(|(n, _)| *n == name)
            .unwrap()
            .1
            .clone()
    };
    assert_eq!(extra("t5xxl_ids").data(), [3.0, 9.0, 1712.0, 1.0]);
    assert_eq!(extra("t5xxl_weights").data(), [1.0, 1.0, 1.5, 1.0]);
}

fn stores(
    encoder: &TextEncoder,
) -> Vec<(&'static fresco_models::text::TextKind, Arc<WeightStore>)> {
    let stores = encoder.stores();
    stores
        .map(|(part, _, store)| (part.kinds[0], Arc::clone(store)))
        .collect()
}

/// The names that GGUF files have.
fn gguf(key: &str) -> String {
    let names = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("model.layers.", "blk."),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
    ];
    let mut name = key.to_owned();
    for (from, to) in names {
        name = name.replace(from, to);
    }
    name
}

#[test]
fn names_of_other_layouts_mean_the_same() {
    let plain = counting("q.safetensors", decoder(QWEN_TOKENS, true), str::to_owned);
    let expected = encode(&load(&plain, "lumina2").unwrap(), "a cat").cond;
    let inside = |key: &str| key.replacen("model.", "model.language_model.", 1);
    for (path, name) in [
        ("q.gguf", gguf as fn(&str) -> String),
        ("q.safetensors", inside),
    ] {
        let other = counting(path, decoder(QWEN_TOKENS, true), name);
        let found = encode(&load(&other, "lumina2").unwrap(), "a cat").cond;
        assert_eq!(found, expected, "{path}");
    }
}

#[test]
fn what_does_not_fit_is_said() {
    let qwen = counting("q.safetensors", decoder(QWEN_TOKENS, true), str::to_owned);
    // A type that wants other networks leaves it to this one to say what it is for.
    assert_eq!(load(&qwen, "sd3").unwrap().stack(), &stacks::Z_IMAGE);
    // Templates that only write text say this one.
    assert_eq!(load(&qwen, "ideogram4").unwrap().stack(), &stacks::Z_IMAGE);
    let error = load(&qwen, "moss_image").unwrap_err().to_string();
    for part in [
        "q.safetensors",
        "Qwen 3",
        "\"moss_image\"",
        "not supported yet",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let file: Arc<dyn WeightFile> = Arc::clone(&qwen) as _;
    let two = [Arc::clone(&file), file];
    let error = TextEncoder::from_files_as(&two, Some("flux"), &Device::cpu());
    let error = error.unwrap_err().to_string();
    for part in [
        "Qwen 3 and Qwen 3",
        "\"flux\"",
        "clip_l (clip_l), t5xxl (T5)",
    ] {
        assert!(error.contains(part), "{error}");
    }
    // A weight that is missing is named before anything is read.
    let mut shapes = decoder(QWEN_TOKENS, true);
    shapes.retain(|(key, _)| key != "model.layers.1.mlp.up_proj.weight");
    let broken = counting("q.safetensors", shapes, str::to_owned);
    let encoder = load(&broken, "lumina2").unwrap();
    let tokens = encoder.tokenize("a", &NoEmbeddings).unwrap();
    let error = encoder.encode(&tokens, None).unwrap_err().to_string();
    assert!(
        error.contains("model.layers.1.mlp.up_proj.weight"),
        "{error}"
    );
    assert!(broken.read.lock().unwrap().is_empty());
    // Pictures need a network that sees them.
    let picture = [Tensor::zeros([1, 32, 32, 3]).unwrap()];
    let prompt = Prompt {
        pictures: &picture,
        ..Prompt::new("<|image_pad|>")
    };
    let vl = TextEncoder::from_stores(&stacks::QWEN_IMAGE, stores_as(&qwen)).unwrap();
    let tokens = vl.tokenize_prompt(&prompt, &NoEmbeddings).unwrap();
    let error = vl.encode(&tokens, None).unwrap_err().to_string();
    assert!(error.contains("no network that sees pictures"), "{error}");
}

/// The weights of a file as if they were Qwen 2.5's.
fn stores_as(
    file: &Arc<Counting>,
) -> Vec<(&'static fresco_models::text::TextKind, Arc<WeightStore>)> {
    let kind = &fresco_models::text::decoder::QWEN25;
    let file: Arc<dyn WeightFile> = Arc::clone(file) as _;
    vec![(kind, kind.store(&file, "", &Device::cpu()).unwrap())]
}

#[test]
fn a_vocabulary_that_is_not_shipped_lies_beside_the_file() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("llama.safetensors");
    let weights: Vec<(String, Tensor)> = decoder(128_300, false)
        .into_iter()
        .map(|(key, shape)| (key.clone(), synthetic::weight(&key, &shape).unwrap()))
        .collect();
    let listed: Vec<(&str, &Tensor)> = weights.iter().map(|(k, t)| (k.as_str(), t)).collect();
    fresco_tensor::safetensors::write(&path, &listed, &[]).unwrap();
    let open = || {
        let file = open_weights(&path).unwrap();
        TextEncoder::from_files_as(&[file], Some("hidream"), &Device::cpu()).unwrap()
    };
    let error = open()
        .tokenize("a cat", &NoEmbeddings)
        .unwrap_err()
        .to_string();
    for part in ["llama.safetensors", "tokenizer.json", "tekken_model"] {
        assert!(error.contains(part), "{error}");
    }
    // One of a terabyte is not read, and not waited for.
    let words = place.path().join("llama.tokenizer.json");
    let huge = std::fs::File::create(&words).unwrap();
    huge.set_len(1 << 40).unwrap();
    drop(huge);
    let said = open().tokenize("a cat", &NoEmbeddings);
    let said = said.unwrap_err().to_string();
    assert!(said.contains("llama.tokenizer.json"), "{said}");
    std::fs::remove_file(&words).unwrap();
    // Printable letters stand for their bytes, the others for signs from 256 on.
    let mut other = 256..;
    let vocab: serde_json::Map<String, serde_json::Value> = (0..=255_u32)
        .map(|byte| {
            let printable = matches!(byte, 33..=126 | 0xA1..=0xAC | 0xAE..=0xFF);
            let code = if printable {
                byte
            } else {
                other.next().unwrap()
            };
            (char::from_u32(code).unwrap().to_string(), json!(byte))
        })
        .collect();
    let words = json!({
        "pre_tokenizer": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    std::fs::write(place.path().join("llama.tokenizer.json"), words.to_string()).unwrap();
    let encoder = open();
    let tokens = encoder.tokenize("ab", &NoEmbeddings).unwrap();
    let chunk = &tokens.get("llama").unwrap().chunks[0];
    assert_eq!(chunk.len(), 128);
    let found = encoder.encode(&tokens, None).unwrap();
    assert_eq!(found.cond.shape(), [1, 128, 4096]);
    let states = &found.extras[0];
    assert_eq!(
        (states.0, states.1.shape()),
        ("conditioning_llama3", &[1, LAYERS, 128, WIDTH][..])
    );
    assert_eq!(found.pooled.unwrap().shape(), [1, 2048]);
}
