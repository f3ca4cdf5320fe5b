//! Networks of the published kinds, narrow enough for a test. Most have the keys of a golden network with other widths.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::tiny::{self, Keys, Tiny};

/// Numbers that any reduced text encoder gives for a token, so that all of them fit all networks.
pub const TEXT: usize = 64;

/// What a file holds.
#[derive(Clone, Debug, Default)]
pub struct Network {
    pub keys: Keys,
    /// Tensors of bytes: vocabularies.
    pub bytes: BTreeMap<String, Vec<u8>>,
    /// What lies beside the file as `NAME.tokenizer.json`.
    pub tokenizer: Option<String>,
}

impl From<Keys> for Network {
    fn from(keys: Keys) -> Self {
        Self {
            keys,
            ..Self::default()
        }
    }
}

impl Network {
    /// With the keys of a golden network.
    pub fn golden(name: &str) -> Self {
        let keys = tiny::golden(name, &[]);
        keys.unwrap_or_else(|error| panic!("the golden network {name}: {error:#}"))
            .into()
    }

    /// With keys that a golden has in another place than the usual one.
    pub fn golden_part(name: &str, place: &str) -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("gold/{name}.json"));
        let text = fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let about: serde_json::Value = serde_json::from_slice(&text).expect("a golden is JSON");
        let keys = about.pointer(place).cloned().unwrap_or_default();
        let keys: Keys = serde_json::from_value(keys)
            .unwrap_or_else(|error| panic!("{place} of the golden {name}: {error}"));
        keys.into()
    }

    /// With the keys of a list of a full-size file: a pattern of names and a shape in each line.
    pub fn listed(list: &str) -> Self {
        let mut keys = Keys::new();
        for line in list.lines() {
            let (names, shape) = line.split_once(' ').expect("names and a shape");
            let shape = shape.split(',').map(|n| n.parse().expect("a size"));
            let shape: Vec<usize> = shape.collect();
            for name in expanded(names) {
                keys.insert(name, shape.clone());
            }
        }
        keys.into()
    }

    /// Other columns for a weight.
    pub fn inputs(self, key: &str, width: usize) -> Self {
        self.changed(key, |shape| *shape.last_mut().expect("no scalar") = width)
    }

    /// Other rows for a weight and its bias, if it has one.
    pub fn outputs(mut self, key: &str, width: usize) -> Self {
        if let Some(bias) = self.keys.get_mut(&format!("{key}.bias")) {
            bias[0] = width;
        }
        self.changed(&format!("{key}.weight"), |shape| shape[0] = width)
    }

    fn changed(mut self, key: &str, change: impl Fn(&mut Vec<usize>)) -> Self {
        let found = self.keys.get_mut(key);
        change(found.unwrap_or_else(|| panic!("no weight is called {key}")));
        self
    }

    /// Other sizes, all at once, in weights whose names begin so.
    pub fn sizes(mut self, start: &str, changes: &[(usize, usize)]) -> Self {
        for (_, shape) in self
            .keys
            .iter_mut()
            .filter(|(key, _)| key.starts_with(start))
        {
            for size in shape {
                let change = changes.iter().find(|(from, _)| from == size);
                *size = change.map_or(*size, |(_, to)| *to);
            }
        }
        self
    }

    /// As many blocks as wanted, each like the first.
    pub fn blocks(mut self, start: &str, count: usize) -> Self {
        let first = format!("{start}.0.");
        let block = self.keys.iter();
        let block: Vec<(String, Vec<usize>)> = block
            .filter_map(|(key, shape)| Some((key.strip_prefix(&first)?.to_owned(), shape.clone())))
            .collect();
        for number in 1..count {
            for (rest, shape) in &block {
                let key = format!("{start}.{number}.{rest}");
                self.keys.insert(key, shape.clone());
            }
        }
        self
    }

    /// Without weights whose names begin so.
    pub fn without(mut self, start: &str) -> Self {
        self.keys.retain(|key, _| !key.starts_with(start));
        self
    }

    /// With this before every name.
    pub fn under(self, prefix: &str) -> Self {
        let named = |key: String| format!("{prefix}{key}");
        Self {
            keys: self.keys.into_iter().map(|(k, v)| (named(k), v)).collect(),
            bytes: self.bytes.into_iter().map(|(k, v)| (named(k), v)).collect(),
            tokenizer: self.tokenizer,
        }
    }

    /// Two in one file.
    pub fn and(mut self, other: Self) -> Self {
        self.keys.extend(other.keys);
        self.bytes.extend(other.bytes);
        self.tokenizer = self.tokenizer.or(other.tokenizer);
        self
    }

    /// A LoRA of rank 4 for some matrices of this network, under the names that most files have.
    pub fn lora(&self) -> Self {
        let matrices = self.keys.iter().filter(|(_, shape)| shape.len() == 2);
        let mut keys = Keys::new();
        for (key, shape) in matrices.step_by(3).take(12) {
            let Some(layer) = key.strip_suffix(".weight") else {
                continue;
            };
            let name = |part: &str| format!("diffusion_model.{layer}.lora_{part}.weight");
            keys.insert(name("A"), vec![4, shape[1]]);
            keys.insert(name("B"), vec![shape[0], 4]);
        }
        keys.into()
    }
}

/// All names of a pattern: `a.{0-2,5}.b`.
fn expanded(pattern: &str) -> Vec<String> {
    let Some((before, rest)) = pattern.split_once('{') else {
        return vec![pattern.to_owned()];
    };
    let (ranges, after) = rest.split_once('}').expect("a closed range");
    let mut names = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<usize>().expect("a number");
        for number in number(first)..=number(last) {
            let tails = expanded(after).into_iter();
            names.extend(tails.map(|tail| format!("{before}{number}{tail}")));
        }
    }
    names
}

/// A language model that reads prompts.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    pub hidden: usize,
    pub layers: usize,
    pub vocabulary: usize,
    /// Channels of a head.
    pub head: usize,
    /// Whether queries, keys and values have a bias (Qwen 2.5).
    pub biased: bool,
    /// Whether queries and keys are normalised (Qwen 3, Gemma 3).
    pub normed: bool,
    /// Whether attention and feed-forward are normalised once more (Gemma).
    pub sandwiched: bool,
}

/// Rows of the table of Qwen.
const QWEN_WORDS: usize = 151_936;

impl Decoder {
    pub const QWEN25: Self = Self {
        hidden: TEXT,
        layers: 4,
        vocabulary: QWEN_WORDS,
        head: 128,
        biased: true,
        normed: false,
        sandwiched: false,
    };
    pub const QWEN3: Self = Self {
        layers: 36,
        head: 16,
        biased: false,
        normed: true,
        ..Self::QWEN25
    };
    pub const GEMMA2: Self = Self {
        vocabulary: 1000,
        head: 256,
        biased: false,
        sandwiched: true,
        ..Self::QWEN25
    };
    pub const GEMMA3: Self = Self {
        head: 16,
        normed: true,
        ..Self::GEMMA2
    };
    pub const MISTRAL: Self = Self {
        layers: 32,
        vocabulary: 1000,
        biased: false,
        ..Self::QWEN25
    };
    pub const LLAMA: Self = Self {
        vocabulary: 128_256,
        ..Self::MISTRAL
    };

    pub fn network(self) -> Network {
        let mut keys = Keys::new();
        let mut put = |key: String, shape: &[usize]| {
            keys.insert(key, shape.to_vec());
        };
        let (width, inner) = (self.hidden, self.hidden * 2);
        put(
            "model.embed_tokens.weight".into(),
            &[self.vocabulary, width],
        );
        put("model.norm.weight".into(), &[width]);
        for layer in 0..self.layers {
            let name = |key: &str| format!("model.layers.{layer}.{key}");
            for (part, heads) in [("q", 2), ("k", 1), ("v", 1)] {
                let rows = heads * self.head;
                put(
                    name(&format!("self_attn.{part}_proj.weight")),
                    &[rows, width],
                );
                if self.biased {
                    put(name(&format!("self_attn.{part}_proj.bias")), &[rows]);
                }
            }
            put(name("self_attn.o_proj.weight"), &[width, 2 * self.head]);
            if self.normed {
                put(name("self_attn.q_norm.weight"), &[self.head]);
                put(name("self_attn.k_norm.weight"), &[self.head]);
            }
            put(name("mlp.gate_proj.weight"), &[inner, width]);
            put(name("mlp.up_proj.weight"), &[inner, width]);
            put(name("mlp.down_proj.weight"), &[width, inner]);
            put(name("input_layernorm.weight"), &[width]);
            put(name("post_attention_layernorm.weight"), &[width]);
            if self.sandwiched {
                put(name("pre_feedforward_layernorm.weight"), &[width]);
                put(name("post_feedforward_layernorm.weight"), &[width]);
            }
        }
        keys.into()
    }
}

/// Qwen 2.5 with what sees pictures.
pub fn qwen25_vl() -> Network {
    let eyes = Network::golden("qwen_image_te_small").without("model.");
    let eyes = eyes.outputs("visual.merger.mlp.2", TEXT);
    Decoder::QWEN25.network().and(eyes)
}

/// Qwen 3 with what sees pictures.
pub fn qwen3_vl() -> Network {
    // Sixteen heads, as all published sizes have, and squares of the usual size.
    let wider = [(32, 256), (96, 768), (128, 1024), (48, TEXT), (4, 16)];
    let eyes = Network::golden("qwen3vl_small").without("language_model.");
    Decoder::QWEN3.network().and(eyes.sizes("visual.", &wider))
}

/// Qwen 3.5 with what sees pictures: three of four layers remember instead of looking at everything.
pub fn qwen35() -> Network {
    const HEAD: usize = 16;
    let decoder = Decoder {
        layers: 4,
        head: HEAD,
        vocabulary: 512,
        ..Decoder::QWEN3
    };
    // Each head has a gate beside its query.
    let looking = "model.layers.3.self_attn.q_proj.weight";
    let mut network = decoder.network().with(looking, &[4 * HEAD, TEXT]);
    for layer in 0..3 {
        network = network.without(&format!("model.layers.{layer}.self_attn."));
        let name = |rest: &str| format!("model.layers.{layer}.linear_attn.{rest}");
        // Two heads of keys for four of values.
        let (keys, values) = (2 * HEAD, 4 * HEAD);
        let mixed = 2 * keys + values;
        for (part, shape) in [
            ("in_proj_qkv.weight", vec![mixed, TEXT]),
            ("in_proj_z.weight", vec![values, TEXT]),
            ("in_proj_a.weight", vec![4, TEXT]),
            ("in_proj_b.weight", vec![4, TEXT]),
            ("conv1d.weight", vec![mixed, 1, 4]),
            ("A_log", vec![4]),
            ("dt_bias", vec![4]),
            ("norm.weight", vec![HEAD]),
            ("out_proj.weight", vec![TEXT, values]),
        ] {
            network = network.with(&name(part), &shape);
        }
    }
    let eyes = qwen3_vl().without("model.");
    let eyes = eyes.without("visual.deepstack_merger_list.");
    Network {
        tokenizer: Some(chat_bytes()),
        ..network.and(eyes)
    }
}

/// A language model whose vocabulary lies beside it.
pub fn with_pieces(decoder: Decoder) -> Network {
    Network {
        tokenizer: Some(pieces()),
        ..decoder.network()
    }
}

/// Gemma 3 with its network for pictures.
pub fn gemma3() -> Network {
    with_pieces(Decoder::GEMMA3)
        .and(vision(None))
        .with("multi_modal_projector.mm_soft_emb_norm.weight", &[TEXT])
        .with(
            "multi_modal_projector.mm_input_projection_weight",
            &[TEXT, TEXT],
        )
}

/// Layers of the reduced Gemma 4: the last of each half sees everything and has wider heads.
const HALVES: [bool; 4] = [false, true, false, true];

/// Gemma 4 as its larger sizes are: keys of layers that see everything are the values too.
pub fn gemma4_large() -> Network {
    let mut network = uneven(HALVES.len());
    for (layer, _) in HALVES.iter().enumerate().filter(|(_, wide)| **wide) {
        network = network.without(&format!("model.layers.{layer}.self_attn.v_proj."));
    }
    network
}

/// Gemma 4 as its smaller sizes are, with what sees and hears: each layer is told of every token, and the second half looks
/// at keys of the first.
pub fn gemma4() -> Network {
    const TOLD: usize = 8;
    let layers = HALVES.len();
    let mut network = uneven(layers / 2)
        .with(
            "model.embed_tokens_per_layer.weight",
            &[1000, layers * TOLD],
        )
        .with(
            "model.per_layer_model_projection.weight",
            &[layers * TOLD, TEXT],
        )
        .with("model.per_layer_projection_norm.weight", &[TOLD]);
    for layer in 0..layers {
        let name = |rest: &str| format!("model.layers.{layer}.{rest}.weight");
        network = network
            .with(&name("per_layer_input_gate"), &[TOLD, TEXT])
            .with(&name("per_layer_projection"), &[TEXT, TOLD])
            .with(&name("post_per_layer_input_norm"), &[TEXT]);
    }
    network.and(tiles()).and(ears())
}

/// The decoder of Gemma 4, whose first layers have keys of their own.
fn uneven(own: usize) -> Network {
    let decoder = Decoder {
        layers: HALVES.len(),
        ..Decoder::GEMMA3
    };
    let mut network = decoder.network();
    for (layer, wide) in HALVES.into_iter().enumerate() {
        let start = format!("model.layers.{layer}.self_attn.");
        if wide {
            network = network.sizes(&start, &[(16, 32), (32, 64)]);
        }
        if layer >= own {
            for part in ["k_proj", "v_proj", "k_norm"] {
                network = network.without(&format!("{start}{part}."));
            }
        }
        network = network.with(&format!("model.layers.{layer}.layer_scalar"), &[1]);
    }
    let marks = [
        "<|turn>",
        "<turn|>",
        "<|image>",
        "<image|>",
        "<|audio>",
        "<audio|>",
        "<|think|>",
        "<|channel>",
        "<channel|>",
    ];
    Network {
        tokenizer: Some(pieces_with(&marks)),
        ..network
    }
}

/// The network with which Gemma 4 sees pictures.
fn tiles() -> Network {
    const HEAD: usize = 16;
    let tower = |rest: &str| format!("vision_tower.{rest}");
    let mut network = Network::default()
        .with(
            &tower("patch_embedder.input_proj.weight"),
            &[TEXT, 3 * 16 * 16],
        )
        .with(
            &tower("patch_embedder.position_embedding_table"),
            &[2, 64, TEXT],
        )
        .with("embed_vision.embedding_projection.weight", &[TEXT, TEXT]);
    for layer in 0..2 {
        let name = |rest: &str| tower(&format!("encoder.layers.{layer}.{rest}"));
        for part in ["q", "k", "v", "o"] {
            let key = name(&format!("self_attn.{part}_proj.linear.weight"));
            network = network.with(&key, &[TEXT, TEXT]);
        }
        for (part, shape) in [
            ("self_attn.q_norm", vec![HEAD]),
            ("self_attn.k_norm", vec![HEAD]),
            ("mlp.gate_proj.linear", vec![2 * TEXT, TEXT]),
            ("mlp.up_proj.linear", vec![2 * TEXT, TEXT]),
            ("mlp.down_proj.linear", vec![TEXT, 2 * TEXT]),
            ("input_layernorm", vec![TEXT]),
            ("post_attention_layernorm", vec![TEXT]),
            ("pre_feedforward_layernorm", vec![TEXT]),
            ("post_feedforward_layernorm", vec![TEXT]),
        ] {
            network = network.with(&name(&format!("{part}.weight")), &shape);
        }
    }
    network
}

/// The network with which Gemma 4 hears.
fn ears() -> Network {
    const HEAD: usize = 16;
    let tower = |rest: &str| format!("audio_tower.{rest}");
    let start = |rest: &str| tower(&format!("subsample_conv_projection.{rest}.weight"));
    let mut network = Network::default()
        .with(&start("layer0.conv"), &[16, 1, 3, 3])
        .with(&start("layer0.norm"), &[16])
        .with(&start("layer1.conv"), &[8, 16, 3, 3])
        .with(&start("layer1.norm"), &[8])
        .with(&start("input_proj_linear"), &[TEXT, 32 * 8])
        .with(&tower("output_proj.weight"), &[TEXT, TEXT])
        .with(&tower("output_proj.bias"), &[TEXT])
        .with("embed_audio.embedding_projection.weight", &[TEXT, TEXT]);
    for layer in 0..2 {
        let name = |rest: &str| tower(&format!("layers.{layer}.{rest}"));
        let shapes = [
            ("self_attn.per_dim_scale", vec![HEAD]),
            ("self_attn.relative_k_proj.weight", vec![TEXT, TEXT]),
            ("lconv1d.linear_start.linear.weight", vec![2 * TEXT, TEXT]),
            ("lconv1d.linear_end.linear.weight", vec![TEXT, TEXT]),
            ("lconv1d.depthwise_conv1d.weight", vec![TEXT, 1, 5]),
            ("lconv1d.pre_layer_norm.weight", vec![TEXT]),
            ("lconv1d.conv_norm.weight", vec![TEXT]),
            ("norm_pre_attn.weight", vec![TEXT]),
            ("norm_post_attn.weight", vec![TEXT]),
            ("norm_out.weight", vec![TEXT]),
        ];
        for part in ["q_proj", "k_proj", "v_proj", "post"] {
            let key = name(&format!("self_attn.{part}.linear.weight"));
            network = network.with(&key, &[TEXT, TEXT]);
        }
        for part in ["feed_forward1", "feed_forward2"] {
            for (rest, shape) in [
                ("ffw_layer_1.linear.weight", vec![4 * TEXT, TEXT]),
                ("ffw_layer_2.linear.weight", vec![TEXT, 4 * TEXT]),
                ("pre_layer_norm.weight", vec![TEXT]),
                ("post_layer_norm.weight", vec![TEXT]),
            ] {
                network = network.with(&name(&format!("{part}.{rest}")), &shape);
            }
        }
        for (part, shape) in shapes {
            network = network.with(&name(part), &shape);
        }
    }
    network
}

/// Letters and the marks of Gemma 3's conversations.
pub fn pieces() -> String {
    pieces_with(&[
        "<start_of_turn>",
        "<end_of_turn>",
        "<start_of_image>",
        "<end_of_image>",
    ])
}

/// Letters and a few marks, as a unigram tokenizer of the `tokenizers` library.
fn pieces_with(added: &[&str]) -> String {
    let added: Vec<_> = added
        .iter()
        .zip(900..)
        .map(|(content, id)| serde_json::json!({"id": id, "content": content}))
        .collect();
    let marks = ["<pad>", "<eos>", "<bos>", "<unk>", "\u{2581}"];
    let letters = ('!'..='~').map(|letter| letter.to_string());
    let words = marks.into_iter().map(str::to_owned).chain(letters);
    let vocab: Vec<_> = words
        .enumerate()
        .map(|(at, word)| serde_json::json!([word, -(at as f64)]))
        .collect();
    serde_json::json!({
        "model": {"type": "Unigram", "unk_id": 3, "vocab": vocab},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always"},
        "added_tokens": added,
    })
    .to_string()
}

/// Single bytes and the marks of conversations.
pub fn chat_bytes() -> String {
    let marks = [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<think>",
        "</think>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|image_pad|>",
    ];
    let marks = marks.iter().zip(256..);
    let marks: Vec<_> = marks
        .map(|(content, id)| serde_json::json!({"id": id, "content": content}))
        .collect();
    bytes_with(&marks)
}

/// Single bytes, as a byte-level tokenizer of the `tokenizers` library.
pub fn single_bytes() -> String {
    bytes_with(&[])
}

fn bytes_with(added: &[serde_json::Value]) -> String {
    // Bytes that are no letter have a letter of their own after the first 256.
    let letters = ('!'..='~')
        .chain('\u{a1}'..='\u{ac}')
        .chain('\u{ae}'..='\u{ff}');
    let others = '\u{100}'..='\u{143}';
    let letters = letters.chain(others);
    let vocab: serde_json::Map<_, _> = letters
        .enumerate()
        .map(|(at, letter)| (letter.to_string(), at.into()))
        .collect();
    serde_json::json!({
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
        "added_tokens": added,
    })
    .to_string()
}

/// CLIP's larger text network, which is known by its many layers.
pub fn clip_g() -> Network {
    Network::golden("clip_g_small").blocks("text_model.encoder.layers", 32)
}

/// CLIP's larger text network under the names of OpenCLIP, as checkpoints have it.
pub fn open_clip_g(width: usize, layers: usize) -> Network {
    const INNER: usize = 4 * TEXT;
    let mut network = Network::default()
        .with("token_embedding.weight", &[49408, width])
        .with("positional_embedding", &[77, width])
        .with("text_projection", &[width, width]);
    let mut norms = vec!["ln_final".to_owned()];
    for layer in 0..layers {
        let name = |rest: &str| format!("transformer.resblocks.{layer}.{rest}");
        network = network
            .with(&name("attn.in_proj_weight"), &[3 * width, width])
            .with(&name("attn.in_proj_bias"), &[3 * width])
            .with(&name("attn.out_proj.weight"), &[width, width])
            .with(&name("attn.out_proj.bias"), &[width])
            .with(&name("mlp.c_fc.weight"), &[INNER, width])
            .with(&name("mlp.c_fc.bias"), &[INNER])
            .with(&name("mlp.c_proj.weight"), &[width, INNER])
            .with(&name("mlp.c_proj.bias"), &[width]);
        norms.extend(["ln_1", "ln_2"].map(name));
    }
    norms.iter().fold(network, |network, norm| {
        let network = network.with(&format!("{norm}.weight"), &[width]);
        network.with(&format!("{norm}.bias"), &[width])
    })
}

/// An autoencoder of pictures that makes them eight times smaller.
pub fn picture_vae(channels: usize) -> Network {
    let network: Network = Tiny::default().vae().into();
    network
        .outputs("encoder.conv_out", 2 * channels)
        .outputs("quant_conv", 2 * channels)
        .inputs_at("quant_conv.weight", 1, 2 * channels)
        .outputs("post_quant_conv", channels)
        .inputs_at("post_quant_conv.weight", 1, channels)
        .inputs_at("decoder.conv_in.weight", 1, channels)
}

impl Network {
    /// Another size of a weight.
    pub fn inputs_at(self, key: &str, axis: usize, width: usize) -> Self {
        self.changed(key, |shape| shape[axis] = width)
    }

    /// One more weight.
    pub fn with(mut self, key: &str, shape: &[usize]) -> Self {
        self.keys.insert(key.to_owned(), shape.to_vec());
        self
    }
}

/// What sees pictures for the models of CLIP (with a projection) and SigLIP (without).
pub fn vision(projection: Option<usize>) -> Network {
    const SIDE: usize = 4;
    const PATCH: usize = 14;
    let mut keys = Keys::new();
    let mut put = |key: &str, shape: &[usize]| {
        keys.insert(key.to_owned(), shape.to_vec());
    };
    let clip = projection.is_some();
    let at = "vision_model.embeddings";
    put(
        &format!("{at}.patch_embedding.weight"),
        &[TEXT, 3, PATCH, PATCH],
    );
    if clip {
        put(&format!("{at}.class_embedding"), &[TEXT]);
    } else {
        put(&format!("{at}.patch_embedding.bias"), &[TEXT]);
    }
    let positions = SIDE * SIDE + usize::from(clip);
    put(
        &format!("{at}.position_embedding.weight"),
        &[positions, TEXT],
    );
    let mut norms = vec!["vision_model.post_layernorm".to_owned()];
    if clip {
        norms.push("vision_model.pre_layrnorm".to_owned());
    }
    for layer in 0..3 {
        let name = format!("vision_model.encoder.layers.{layer}");
        for part in ["q_proj", "k_proj", "v_proj", "out_proj"] {
            put(&format!("{name}.self_attn.{part}.weight"), &[TEXT, TEXT]);
            put(&format!("{name}.self_attn.{part}.bias"), &[TEXT]);
        }
        put(&format!("{name}.mlp.fc1.weight"), &[2 * TEXT, TEXT]);
        put(&format!("{name}.mlp.fc1.bias"), &[2 * TEXT]);
        put(&format!("{name}.mlp.fc2.weight"), &[TEXT, 2 * TEXT]);
        put(&format!("{name}.mlp.fc2.bias"), &[TEXT]);
        norms.extend(["layer_norm1", "layer_norm2"].map(|norm| format!("{name}.{norm}")));
    }
    for norm in norms {
        put(&format!("{norm}.weight"), &[TEXT]);
        put(&format!("{norm}.bias"), &[TEXT]);
    }
    if let Some(width) = projection {
        put("visual_projection.weight", &[width, TEXT]);
    }
    keys.into()
}
