//! Text encoders out of files of every layout, and files that are no such thing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use fresco_models::sd::text as stacks;
use fresco_models::text::{
    EmbeddingSource, NoEmbeddings, TextEncoder, TextStack, read_embedding, unpickle_embedding,
};
use fresco_models::{ModelError, Network, WeightPatches};
use fresco_tensor::weights::pickle;
use fresco_tensor::{
    Device, Dtype, Stored, Tensor, WeightError, WeightFile, WeightInfo, synthetic,
};

/// A weight file that is nowhere on disk.
struct Memory(BTreeMap<String, Stored>);

impl WeightFile for Memory {
    fn path(&self) -> &Path {
        Path::new("memory.safetensors")
    }

    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        self.0.get(name).map(|stored| WeightInfo {
            dtype: stored.dtype(),
            shape: stored.shape().to_vec(),
        })
    }

    fn read(&self, name: &str) -> Result<Stored, WeightError> {
        self.0
            .get(name)
            .cloned()
            .ok_or_else(|| WeightError::Missing {
                path: self.path().to_path_buf(),
                name: name.to_owned(),
            })
    }

    fn metadata(&self) -> &[(String, String)] {
        &[]
    }
}

const HIDDEN: usize = 64;

/// A small encoder under the names used inside.
fn small(layers: usize) -> BTreeMap<String, Tensor> {
    let mut shapes = vec![
        (
            "text_model.embeddings.token_embedding.weight".to_owned(),
            vec![49408, HIDDEN],
        ),
        (
            "text_model.embeddings.position_embedding.weight".to_owned(),
            vec![77, HIDDEN],
        ),
        (
            "text_model.final_layer_norm.weight".to_owned(),
            vec![HIDDEN],
        ),
        ("text_model.final_layer_norm.bias".to_owned(), vec![HIDDEN]),
        ("text_projection.weight".to_owned(), vec![HIDDEN, HIDDEN]),
    ];
    for i in 0..layers {
        let mut layer = |name: &str, out: usize, inner: Option<usize>| {
            let key = format!("text_model.encoder.layers.{i}.{name}");
            let weight = [Some(out), inner].into_iter().flatten().collect();
            shapes.push((format!("{key}.weight"), weight));
            shapes.push((format!("{key}.bias"), vec![out]));
        };
        layer("layer_norm1", HIDDEN, None);
        layer("layer_norm2", HIDDEN, None);
        for projection in ["q_proj", "k_proj", "v_proj", "out_proj"] {
            layer(&format!("self_attn.{projection}"), HIDDEN, Some(HIDDEN));
        }
        layer("mlp.fc1", 4 * HIDDEN, Some(HIDDEN));
        layer("mlp.fc2", HIDDEN, Some(4 * HIDDEN));
    }
    shapes
        .into_iter()
        .map(|(key, shape)| {
            let weight = synthetic::weight(&key, &shape).unwrap();
            (key, weight)
        })
        .collect()
}

fn file(weights: impl IntoIterator<Item = (String, Tensor)>) -> Arc<dyn WeightFile> {
    let stored = weights.into_iter().map(|(key, t)| (key, Stored::from(&t)));
    Arc::new(Memory(stored.collect()))
}

fn prefixed(prefix: &str, weights: BTreeMap<String, Tensor>) -> Vec<(String, Tensor)> {
    let named = weights.into_iter();
    named
        .map(|(key, t)| (format!("{prefix}{key}"), t))
        .collect()
}

/// The same weights as OpenCLIP names and keeps them.
fn open_clip(mut weights: BTreeMap<String, Tensor>, layers: usize) -> BTreeMap<String, Tensor> {
    let mut out = BTreeMap::new();
    let mut take = |key: &str| weights.remove(key).unwrap();
    let mut put = |key: String, t: Tensor| {
        out.insert(key, t);
    };
    let inner = "text_model.embeddings";
    put(
        "positional_embedding".to_owned(),
        take(&format!("{inner}.position_embedding.weight")),
    );
    put(
        "token_embedding.weight".to_owned(),
        take(&format!("{inner}.token_embedding.weight")),
    );
    let projection = take("text_projection.weight");
    put(
        "text_projection".to_owned(),
        projection.transpose(0, 1).unwrap(),
    );
    for part in ["weight", "bias"] {
        put(
            format!("ln_final.{part}"),
            take(&format!("text_model.final_layer_norm.{part}")),
        );
        for i in 0..layers {
            let from = format!("text_model.encoder.layers.{i}");
            let to = format!("transformer.resblocks.{i}");
            for (a, b) in [
                ("layer_norm1", "ln_1"),
                ("layer_norm2", "ln_2"),
                ("mlp.fc1", "mlp.c_fc"),
                ("mlp.fc2", "mlp.c_proj"),
                ("self_attn.out_proj", "attn.out_proj"),
            ] {
                put(
                    format!("{to}.{b}.{part}"),
                    take(&format!("{from}.{a}.{part}")),
                );
            }
            let thirds =
                ["q", "k", "v"].map(|p| take(&format!("{from}.self_attn.{p}_proj.{part}")));
            let [q, k, v] = &thirds;
            put(
                format!("{to}.attn.in_proj_{part}"),
                Tensor::cat(&[q, k, v], 0).unwrap(),
            );
        }
    }
    assert!(weights.is_empty(), "{:?}", weights.keys());
    out
}

fn load(
    file: &Arc<dyn WeightFile>,
    stack: &'static TextStack,
) -> Result<Option<TextEncoder>, ModelError> {
    TextEncoder::from_checkpoint(file, stack, &Device::cpu())
}

fn encode(encoder: &TextEncoder, text: &str, layer: Option<i64>) -> (Tensor, Tensor) {
    let tokens = encoder.tokenize(text, &NoEmbeddings).unwrap();
    let encoded = encoder.encode(&tokens, layer).unwrap();
    (encoded.cond, encoded.pooled.unwrap())
}

const TEXT: &str = "a (red:1.3) cat";

#[test]
fn layouts_are_the_same_encoder() {
    let plain = file(prefixed("cond_stage_model.transformer.", small(2)));
    let plain = load(&plain, &stacks::SD1).unwrap().unwrap();
    let (cond, pooled) = encode(&plain, TEXT, None);
    assert_eq!(cond.shape(), [1, 77, HIDDEN]);

    let old = small(2).into_iter().map(|(key, t)| {
        let key = key.strip_prefix("text_model.").unwrap_or(&key).to_owned();
        (format!("cond_stage_model.transformer.{key}"), t)
    });
    let ids = Tensor::from_fn([1, 77], |i| i as f32).unwrap();
    let ids = (
        "cond_stage_model.transformer.embeddings.position_ids".to_owned(),
        ids,
    );
    let old = load(&file(old.chain([ids])), &stacks::SD1)
        .unwrap()
        .unwrap();
    assert_eq!(encode(&old, TEXT, None), (cond.clone(), pooled.clone()));
    assert_eq!(old.keys(), plain.keys());

    let alone = TextEncoder::from_files(&[file(small(2))], &Device::cpu()).unwrap();
    assert_eq!(alone.stack(), &stacks::SD1);
    assert_eq!(encode(&alone, TEXT, None), (cond, pooled));

    let other = file(prefixed("cond_stage_model.model.", open_clip(small(2), 2)));
    let other = load(&other, &stacks::SD2).unwrap().unwrap();
    let same = file(prefixed("conditioner.embedders.0.model.", small(2)));
    let same = load(&same, &stacks::SD2).unwrap().unwrap();
    assert_eq!(encode(&other, TEXT, None), encode(&same, TEXT, None));
    let key = "clip_h.transformer.text_model.encoder.layers.1.self_attn.k_proj.weight";
    assert!(other.keys().iter().any(|k| k == key));
}

#[test]
fn weights_are_rounded_to_half_precision() {
    let halved = small(1).into_iter().map(|(key, t)| {
        let half = Stored::from_f32(&t, Dtype::F16).unwrap();
        (key, half.to_f32().unwrap())
    });
    let device = Device::cpu();
    let halved = TextEncoder::from_files(&[file(halved)], &device).unwrap();
    let full = TextEncoder::from_files(&[file(small(1))], &device).unwrap();
    assert_eq!(encode(&halved, TEXT, None), encode(&full, TEXT, None));
    let dtypes = full.stores().flat_map(|(_, _, store)| {
        let keys = store.keys().into_iter();
        keys.map(|key| store.dtype(key)).collect::<Vec<_>>()
    });
    assert!(dtypes.into_iter().all(|dtype| dtype == Some(Dtype::F16)));
}

#[test]
fn layers_can_be_chosen() {
    let encoder = TextEncoder::from_files(&[file(small(3))], &Device::cpu()).unwrap();
    let (last, pooled) = encode(&encoder, TEXT, None);
    // With the final norm the last hidden layer is the output, and there is none below the first.
    assert_eq!(
        encode(&encoder, TEXT, Some(-1)),
        (last.clone(), pooled.clone())
    );
    assert_eq!(encode(&encoder, TEXT, Some(-4)).0, last);
    let (skipped, same) = encode(&encoder, TEXT, Some(-2));
    assert_ne!(skipped, last);
    assert_eq!(same, pooled);
    assert_eq!(encode(&encoder, TEXT, Some(1)).0, skipped);
}

#[test]
fn the_two_of_sdxl_stand_side_by_side() {
    let mut weights = prefixed("conditioner.embedders.0.transformer.", small(2));
    weights.extend(prefixed(
        "conditioner.embedders.1.model.",
        open_clip(small(3), 3),
    ));
    let both = load(&file(weights), &stacks::SDXL).unwrap().unwrap();
    let long = "cat ".repeat(80);
    let (cond, pooled) = encode(&both, &long, None);
    assert_eq!(cond.shape(), [1, 154, 2 * HIDDEN]);

    let g = file(prefixed(
        "conditioner.embedders.0.model.",
        open_clip(small(3), 3),
    ));
    let g = load(&g, &stacks::SDXL_REFINER).unwrap().unwrap();
    let (half, pooled_g) = encode(&g, &long, None);
    assert_eq!(cond.narrow(2, HIDDEN, HIDDEN).unwrap(), half);
    assert_eq!(pooled, pooled_g);
}

#[test]
fn many_chunks_are_what_each_would_be() {
    let encoder = TextEncoder::from_files(&[file(small(1))], &Device::cpu()).unwrap();
    let (cond, _) = encode(&encoder, &"cat ".repeat(75 * 20), None);
    let (one, _) = encode(&encoder, &"cat ".repeat(75), None);
    assert_eq!(cond.shape(), [1, 77 * 20, HIDDEN]);
    for i in 0..20 {
        assert_eq!(cond.narrow(1, 77 * i, 77).unwrap(), one);
    }
}

/// One embedding: rows of the encoder's own table, and one of another width.
struct OwnRows(Tensor);

impl EmbeddingSource for OwnRows {
    fn load(&self, name: &str, _: &str, _: usize) -> Option<Vec<Arc<[f32]>>> {
        let row = |id: usize| self.0.select(0, id).unwrap().into_vec().into();
        match name {
            "redcat" => Some(vec![row(736), row(2368)]),
            "narrow" => Some(vec![[1.0, 2.0].into()]),
            _ => None,
        }
    }
}

#[test]
fn vectors_take_the_place_of_tokens() {
    let encoder = TextEncoder::from_files(&[file(small(2))], &Device::cpu()).unwrap();
    let (_, _, store) = encoder.stores().next().unwrap();
    let table = store.tensor("text_model.embeddings.token_embedding.weight");
    let source = OwnRows(table.unwrap());
    let with = |text: &str| {
        let tokens = encoder.tokenize(text, &source).unwrap();
        let encoded = encoder.encode(&tokens, None).unwrap();
        (encoded.cond, encoded.pooled.unwrap())
    };
    assert_eq!(
        with("a embedding:redcat sat"),
        encode(&encoder, "a red cat sat", None)
    );
    assert_eq!(
        with("a (embedding:redcat:1.4) sat"),
        encode(&encoder, "a (red cat:1.4) sat", None)
    );
    // One of another width is left out.
    assert_eq!(
        with("a embedding:narrow cat"),
        encode(&encoder, "a cat", None)
    );
}

struct Doubled;

impl WeightPatches for Doubled {
    fn keys(&self) -> Vec<String> {
        vec!["text_model.encoder.layers.0.mlp.fc1.weight".to_owned()]
    }

    fn apply(&self, _: &str, weight: Tensor) -> Result<Tensor, ModelError> {
        Ok(weight.mul_scalar(2.0))
    }
}

#[test]
fn patches_change_a_copy() {
    let encoder = TextEncoder::from_files(&[file(small(2))], &Device::cpu()).unwrap();
    let before = encode(&encoder, TEXT, None);
    let with = |wanted: &str| {
        let changed = encoder.with_stores(|prefix, store| {
            if prefix == wanted {
                store.patched(Arc::new(Doubled))
            } else {
                Arc::clone(store)
            }
        });
        encode(&changed.unwrap(), TEXT, None)
    };
    assert_ne!(with("clip_l.transformer."), before);
    assert_eq!(with("clip_g.transformer."), before);
    assert_eq!(encode(&encoder, TEXT, None), before);
}

#[track_caller]
fn refused(weights: impl IntoIterator<Item = (String, Tensor)>, reason: &str) {
    let loaded = TextEncoder::from_files(&[file(weights)], &Device::cpu());
    let result = loaded.and_then(|encoder| {
        let tokens = encoder.tokenize(TEXT, &NoEmbeddings)?;
        encoder.encode(&tokens, None)
    });
    let error = result.unwrap_err().to_string();
    assert!(
        error.contains("memory.safetensors") && error.contains(reason),
        "{error}"
    );
}

#[test]
fn bad_files_are_refused() {
    let nothing = file([("model.weight".to_owned(), Tensor::zeros([2]).unwrap())]);
    assert!(load(&nothing, &stacks::SD1).unwrap().is_none());
    refused(
        [("model.weight".to_owned(), Tensor::zeros([2]).unwrap())],
        "not a text encoder that is known",
    );
    let t5 = "encoder.block.0.layer.0.SelfAttention.k.weight".to_owned();
    let alone = [(t5, Tensor::zeros([2, 2]).unwrap())];
    refused(alone, "not a text encoder that is known");

    let with = |key: &str, t: Option<Tensor>| {
        let mut weights = small(2);
        weights.remove(key).unwrap();
        weights.extend(t.map(|t| (key.to_owned(), t)));
        weights
    };
    let zeros = |shape: &[usize]| Some(Tensor::zeros(shape).unwrap());
    let layer = "text_model.encoder.layers.1";
    refused(
        with(&format!("{layer}.mlp.fc2.weight"), None),
        "lacks the weight",
    );
    refused(
        with(&format!("{layer}.mlp.fc2.weight"), zeros(&[64, 9])),
        "[64, 256]",
    );
    refused(
        with(&format!("{layer}.layer_norm1.weight"), zeros(&[9])),
        "layer_norm1",
    );
    refused(
        with("text_projection.weight", zeros(&[9, 9])),
        "text_projection",
    );
    let embeddings = "text_model.embeddings";
    let table = format!("{embeddings}.token_embedding.weight");
    refused(with(&table, zeros(&[10, 64])), "tokens");
    refused(with(&table, zeros(&[49408])), "matrix");
    refused(with(&table, zeros(&[49408, 32])), "[77, 32]");
    let positions = format!("{embeddings}.position_embedding.weight");
    refused(with(&positions, zeros(&[2, 64])), "positions");
    let broken = Tensor::full([HIDDEN], f32::NAN).unwrap();
    refused(
        with("text_model.final_layer_norm.bias", Some(broken)),
        "not numbers",
    );

    let pair = TextEncoder::from_files(&[file(small(1)), file(small(1))], &Device::cpu());
    assert!(pair.unwrap_err().to_string().contains("clip_l and clip_l"));
}

#[test]
fn encoders_with_more_positions_take_longer_chunks() {
    let mut weights = small(1);
    let key = "text_model.embeddings.position_embedding.weight";
    weights.insert(
        key.to_owned(),
        synthetic::weight(key, &[248, HIDDEN]).unwrap(),
    );
    let encoder = TextEncoder::from_files(&[file(weights)], &Device::cpu()).unwrap();
    let (cond, _) = encode(&encoder, &"cat ".repeat(100), None);
    assert_eq!(cond.shape(), [1, 248, HIDDEN]);
}

#[test]
fn embedding_files() {
    let rows = |first: f32, shape: &[usize]| Tensor::from_fn(shape, |i| first + i as f32).unwrap();
    let check = |weights: &[(&str, Tensor)], expected: &[&[f32]]| {
        let weights = weights
            .iter()
            .map(|(key, t)| ((*key).to_owned(), t.clone()));
        let found = read_embedding(&*file(weights), "clip_l").unwrap();
        let found: Vec<&[f32]> = found.iter().map(|row| &**row).collect();
        assert_eq!(found, expected);
    };
    check(
        &[("emb_params", rows(1.0, &[2, 2]))],
        &[&[1.0, 2.0], &[3.0, 4.0]],
    );
    check(&[("emb_params", rows(1.0, &[3]))], &[&[1.0, 2.0, 3.0]]);
    check(
        &[
            ("clip_g", rows(1.0, &[1, 3])),
            ("clip_l", rows(7.0, &[1, 2])),
        ],
        &[&[7.0, 8.0]],
    );
    check(
        &[
            ("bundle_emb.a.clip_g", rows(1.0, &[1, 3])),
            ("bundle_emb.a.clip_l", rows(5.0, &[1, 2])),
            ("bundle_emb.b.clip_l", rows(7.0, &[1, 2])),
        ],
        &[&[5.0, 6.0], &[7.0, 8.0]],
    );
    check(
        &[
            ("bundle_emb.a.string_to_param.*", rows(5.0, &[1, 2])),
            ("lora.down", rows(1.0, &[1, 3])),
        ],
        &[&[5.0, 6.0]],
    );
    assert!(read_embedding(&*file([]), "clip_l").is_err());
}

#[test]
fn embeddings_of_torch() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tensor/tests/files");
    let wanted: Vec<Arc<[f32]>> = vec![
        [0.0, 0.125, 0.25, 0.375].into(),
        [0.5, 0.625, 0.75, 0.875].into(),
    ];
    for (name, count) in [
        ("inversion.pt", 2),
        ("inversion_old.pt", 2),
        ("concept.bin", 1),
    ] {
        let file = pickle::load(folder.join(name)).unwrap();
        let rows = unpickle_embedding(&file, "clip_l", 4).unwrap();
        assert_eq!(rows.len(), count, "{name}");
        assert!(count == 1 || rows == wanted, "{name}: {rows:?}");
    }
    // Tensors deeper inside are no embeddings.
    let file = pickle::load(folder.join("nested.pth")).unwrap();
    assert!(unpickle_embedding(&file, "clip_l", 4).is_err());
}

#[test]
fn another_device_gives_the_same_numbers() {
    let device = Device::register_sim(71, 64 << 20).unwrap();
    let there = TextEncoder::from_files(&[file(small(2))], &device).unwrap();
    let here = TextEncoder::from_files(&[file(small(2))], &Device::cpu()).unwrap();
    for layer in [None, Some(-2)] {
        let (cond, pooled) = encode(&there, TEXT, layer);
        assert!(cond.device().is_cpu() && pooled.device().is_cpu());
        assert_eq!((cond, pooled), encode(&here, TEXT, layer));
    }
    // Weights come for the time of their use.
    assert!(device.peak() > 0);
    assert_eq!(device.used(), 0);
}

#[test]
fn the_units_of_an_encoder_come_in_order() {
    let encoder = TextEncoder::from_files(&[file(small(12))], &Device::cpu()).unwrap();
    let store = Network::stores(&encoder).remove(0);
    let units = store.units();
    let names: Vec<&str> = units.iter().map(|unit| unit.name.as_str()).collect();
    let mut expected = vec![
        "text_model.embeddings.token_embedding".to_owned(),
        "text_model.embeddings.position_embedding".to_owned(),
    ];
    for layer in 0..12 {
        expected.extend(
            [
                "layer_norm1",
                "layer_norm2",
                "mlp.fc1",
                "mlp.fc2",
                "self_attn.k_proj",
                "self_attn.out_proj",
                "self_attn.q_proj",
                "self_attn.v_proj",
            ]
            .map(|part| format!("text_model.encoder.layers.{layer}.{part}")),
        );
    }
    expected.extend(["text_model.final_layer_norm", "text_projection"].map(str::to_owned));
    assert_eq!(names, expected);
    for (i, unit) in units.iter().enumerate() {
        let block = (2..98).contains(&i).then(|| (i as u32 - 2) / 8);
        assert_eq!(unit.block, block, "{}", unit.name);
        assert_eq!((unit.embedding, unit.biased), (i < 2, i >= 2));
        assert!(unit.castable && !unit.own);
    }
    // Encoders are kept in f16, and so they count.
    let elements: usize = small(12).values().map(Tensor::len).sum();
    assert_eq!(store.total_bytes(), 2 * elements as u64);
    assert_eq!(store.read_bytes(), 0);
}

#[test]
fn an_encoder_runs_wherever_its_weights_are_and_again() {
    let device = Device::register_sim(72, 64 << 20).unwrap();
    let encoder = TextEncoder::from_files(&[file(small(2))], &Device::cpu()).unwrap();
    let (expected, total) = (encode(&encoder, TEXT, Some(-2)), encoder.bytes());
    let store = Network::stores(&encoder).remove(0);
    assert_eq!((total, store.read_bytes()), (store.total_bytes(), total));
    let there = encoder
        .with_stores(|_, store| store.on(device.clone()))
        .unwrap();
    assert_eq!(encode(&there, TEXT, Some(-2)), expected);
    // Of the tables only the rows of two sequences of 77 tokens came.
    let rows = store.units()[..2]
        .iter()
        .map(|unit| unit.bytes)
        .sum::<u64>();
    let streamed = store.group().stats().bytes;
    assert!(
        streamed < total - rows + 5 * 77 * 2 * HIDDEN as u64,
        "{streamed}"
    );
    for unit in store.units() {
        store.move_unit(&unit.name, &device).unwrap();
    }
    assert_eq!(device.used(), total);
    assert_eq!(encode(&there, TEXT, Some(-2)), expected);
    assert_eq!(store.group().stats().bytes, streamed);
    assert_eq!(
        encode(&encoder, TEXT, Some(-2)),
        expected,
        "from there to here"
    );
    assert_eq!((device.used(), store.read_bytes()), (total, total));
    for network in [&encoder, &there] {
        assert!(network.is_built());
        network.forget();
        assert!(!network.is_built());
    }
    store.forget();
    assert_eq!((device.used(), encoder.bytes()), (0, 0));
    assert_eq!(encode(&there, TEXT, Some(-2)), expected);
    assert_eq!(store.read_bytes(), 2 * total);
    assert_eq!(device.used(), 0);
}
