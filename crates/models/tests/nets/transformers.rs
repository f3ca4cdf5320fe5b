//! Families of transformers: full-size files by their lists of tensors, other people's names, and what is missing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use fresco_models::anima::AnimaConfig;
use fresco_models::flux3::Flux3Config;
use fresco_models::hidream::HiDreamConfig;
use fresco_models::hunyuan::HunyuanConfig;
use fresco_models::kandinsky::KandinskyConfig;
use fresco_models::krea2::KreaConfig;
use fresco_models::lumina::LuminaConfig;
use fresco_models::lumina::control::{ControlConfig, Refiners};
use fresco_models::model_patch::PatchStore;
use fresco_models::omnigen2::OmniGenConfig;
use fresco_models::{Checkpoint, detect_checkpoint};
use fresco_tensor::{Device, Dtype, Stored, Tensor, WeightError, WeightFile, WeightInfo};

use crate::gold::{Gold, MemoryFile};

/// A file of which only names and shapes are known: what is read of it is zero.
pub(crate) struct Listed(pub(crate) BTreeMap<String, Vec<usize>>);

impl Listed {
    pub(crate) fn of(list: &str) -> Self {
        let mut all = BTreeMap::new();
        for line in list.lines() {
            let (name, shape) = line.split_once(' ').unwrap();
            // A single number has no sizes.
            let sizes = shape.split(',').filter(|n| *n != "-");
            let shape: Vec<usize> = sizes.map(|n| n.parse().unwrap()).collect();
            for name in expand(name) {
                all.insert(name, shape.clone());
            }
        }
        Self(all)
    }

    pub(crate) fn shared(self) -> Arc<dyn WeightFile> {
        Arc::new(self)
    }
}

/// All names of a pattern.
fn expand(pattern: &str) -> Vec<String> {
    let Some((before, rest)) = pattern.split_once('{') else {
        return vec![pattern.to_owned()];
    };
    let (ranges, after) = rest.split_once('}').unwrap();
    let mut names = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        for number in first.parse::<usize>().unwrap()..=last.parse().unwrap() {
            let tails = expand(after).into_iter();
            names.extend(tails.map(|tail| format!("{before}{number}{tail}")));
        }
    }
    names
}

impl WeightFile for Listed {
    fn path(&self) -> &Path {
        Path::new("listed.safetensors")
    }

    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        self.0.get(name).map(|shape| WeightInfo {
            dtype: Dtype::Bf16,
            shape: shape.clone(),
        })
    }

    fn read(&self, name: &str) -> Result<Stored, WeightError> {
        let missing = || WeightError::Missing {
            path: self.path().to_path_buf(),
            name: name.to_owned(),
        };
        let shape = self.0.get(name).ok_or_else(missing)?;
        let bytes = vec![0; shape.iter().product::<usize>() * 2];
        Stored::new(Dtype::Bf16, shape.clone(), bytes).map_err(|_| missing())
    }

    fn metadata(&self) -> &[(String, String)] {
        &[]
    }
}

macro_rules! list {
    ($name:literal) => {
        include_str!(concat!("../../../../tools/synth/lists/", $name, ".txt"))
    };
}

/// What a full-size file is; every weight that its network asks for is there.
pub(crate) fn detected(list: &str) -> Checkpoint {
    let file = Listed::of(list).shared();
    let found = detect_checkpoint(&file).unwrap();
    let layout = found.network.layout().unwrap();
    let store = found.store(&file, Device::cpu());
    layout.verify(&store, "the network").unwrap();
    assert_eq!(layout.items().len(), found.keys.len(), "{}", found.family);
    let units = store.units();
    let blocks: Vec<u32> = units.iter().filter_map(|unit| unit.block).collect();
    assert!(!blocks.is_empty());
    let bytes: u64 = units.iter().map(|unit| unit.bytes).sum();
    assert_eq!(
        bytes,
        store.total_bytes(),
        "{}: every weight is in a unit",
        found.family
    );
    found
}

pub(crate) fn config<T: Clone + 'static>(found: &Checkpoint) -> T {
    found.network.config().downcast_ref::<T>().unwrap().clone()
}

/// A few levels of the table say which way it is sampled.
#[track_caller]
fn sampled(found: &Checkpoint, percent: f64, expected: f64) {
    let sampling = found.network.facts().sampling;
    let sigma = sampling.percent_to_sigma(percent);
    assert!(
        (sigma - expected).abs() < 1e-6,
        "{sigma} and not {expected}"
    );
    assert_eq!(sampling.timestep(0.5), 0.5, "a level is told as it is");
}

/// Half of the way with a linear shift, and with an exponential one.
fn shifted(shift: f64) -> f64 {
    shift * 0.5 / (1.0 + (shift - 1.0) * 0.5)
}

#[test]
fn z_image() {
    let found = detected(list!("z_image"));
    let facts = found.network.facts();
    assert_eq!((found.family, facts.latent.name), ("Z-Image", "Flux"));
    sampled(&found, 0.5, shifted(3.0));
    let config: LuminaConfig = config(&found);
    let block = config.block;
    assert_eq!((block.dim, block.heads, block.kv_heads), (3840, 30, 30));
    assert_eq!(
        (block.ffn, block.signal, config.caption),
        (10240, 256, 2560)
    );
    assert_eq!((config.layers, config.channels), (30, 16));
    assert_eq!((config.axes, config.theta), (vec![32, 48, 48], 256.0));
    assert_eq!((config.time_scale, config.pad), (1000.0, Some(32)));
}

#[test]
fn lumina_2_and_newbie() {
    let found = detected(list!("lumina2"));
    assert_eq!(found.family, "Lumina 2");
    sampled(&found, 0.5, shifted(6.0));
    let own: LuminaConfig = config(&found);
    let block = own.block;
    assert_eq!((block.dim, block.heads, block.kv_heads), (2304, 24, 8));
    assert_eq!((own.layers, own.caption, own.pad), (26, 2304, None));
    assert_eq!((own.axes, own.theta), (vec![32; 3], 10000.0));
    let newbie = detected(list!("newbie"));
    assert_eq!(newbie.family, "NewBie");
    let config: LuminaConfig = config(&newbie);
    assert_eq!((config.layers, config.pooled), (36, Some(1024)));
    assert_eq!(config.caption, 2560);
}

#[test]
fn krea_2() {
    let found = detected(list!("krea2"));
    let facts = found.network.facts();
    assert_eq!((found.family, facts.latent.name), ("Krea 2", "Wan21"));
    assert_eq!(facts.context, Some(12 * 2560));
    let e = 1.15f64.exp();
    sampled(&found, 0.5, e / (e + 1.0));
    let config: KreaConfig = config(&found);
    assert_eq!((config.block.heads, config.block.kv_heads), (48, 12));
    assert_eq!((config.layers, config.text.heads), (28, 20));
    assert_eq!((config.layerwise, config.refiners), (2, 2));
    assert_eq!(config.axes, [32, 48, 48]);
}

#[test]
fn anima() {
    let found = detected(list!("anima"));
    let facts = found.network.facts();
    assert_eq!((found.family, facts.latent.name), ("Anima", "Wan21"));
    assert_eq!(facts.latent_channels, 16);
    sampled(&found, 0.5, shifted(3.0));
    let config: AnimaConfig = config(&found);
    assert_eq!((config.dit.blocks, config.dit.heads), (28, 16));
    assert_eq!(config.dit.ratios, [1.0, 4.0, 4.0]);
    assert_eq!((config.text.layers, config.text.heads), (6, 16));
    assert_eq!((config.text.vocabulary, config.text.rows), (32128, 512));
}

#[test]
fn flux_3() {
    let found = detected(list!("flux3_klein"));
    let facts = found.network.facts();
    assert_eq!((found.family, facts.latent.name), ("FLUX.3 klein", "Flux2"));
    sampled(&found, 0.5, shifted(6.93));
    let distilled: Flux3Config = config(&found);
    assert_eq!(
        (distilled.heads, distilled.early, distilled.single),
        (24, 5, 28)
    );
    assert!(distilled.looks_ahead);
    let mut base = Listed::of(list!("flux3_klein"));
    base.0.retain(|name, _| !name.starts_with("ref_time_in."));
    base.0
        .insert("repa_projectors.0.weight".to_owned(), vec![8, 8]);
    let found = detect_checkpoint(&base.shared()).unwrap();
    assert_eq!(found.family, "FLUX.3 klein base");
    assert!(!config::<Flux3Config>(&found).looks_ahead);
}

#[test]
fn omnigen_2() {
    let found = detected(list!("omnigen2"));
    let facts = found.network.facts();
    assert_eq!((found.family, facts.latent.name), ("OmniGen 2", "Flux"));
    sampled(&found, 0.5, shifted(2.6));
    let config: OmniGenConfig = config(&found);
    assert_eq!((config.dim, config.heads, config.kv_heads), (2520, 21, 7));
    assert_eq!((config.layers, config.refiners, config.ffn), (32, 2, 10240));
    assert_eq!((config.axes, config.caption), (vec![40; 3], 2048));
}

#[test]
fn kandinsky_5() {
    let found = detected(list!("kandinsky5_image"));
    let facts = found.network.facts();
    assert_eq!((found.family, facts.latent.name), ("Kandinsky 5", "Flux"));
    assert_eq!(facts.sampling.timestep(0.5), 500.0);
    let own: KandinskyConfig = config(&found);
    assert_eq!((own.dim, own.heads, own.axes), (2560, 20, vec![32, 48, 48]));
    // Films take more channels in than they give.
    let mut film = Listed::of(list!("kandinsky5_image"));
    let key = "visual_embeddings.in_layer.weight".to_owned();
    film.0.insert(key, vec![2560, 132]);
    let found = detect_checkpoint(&film.shared()).unwrap();
    assert_eq!(found.family, "Kandinsky 5 video");
}

#[test]
fn hidream() {
    let found = detected(list!("hidream_i1"));
    let facts = found.network.facts();
    assert_eq!((found.family, facts.latent.name), ("HiDream", "Flux"));
    assert_eq!(facts.sampling.timestep(0.5), 500.0);
    let config: HiDreamConfig = config(&found);
    assert_eq!((config.dim, config.heads, config.experts), (2560, 20, 4));
    assert_eq!((config.double, config.single), (16, 32));
    assert_eq!((config.ffn, config.shared_ffn), (6912, 3584));
    assert_eq!(
        (config.context, config.states, config.pooled),
        (4096, 4096, 2048)
    );
    // Heads of another width than published ones: said by name when the file is opened, not in the middle of a run.
    let mut odd = Listed::of(list!("hidream_i1"));
    let values = odd.0["x_embedder.proj.weight"][1];
    odd.0
        .insert("x_embedder.proj.weight".to_owned(), vec![2500, values]);
    let error = detect_checkpoint(&odd.shared()).unwrap_err().to_string();
    assert!(
        error.contains("HiDream") && error.contains("2500"),
        "{error}"
    );
}

#[test]
fn hunyuan_image() {
    let found = detected(list!("hunyuan_image21"));
    let facts = found.network.facts();
    assert_eq!(found.family, "HunyuanImage 2.1");
    assert_eq!(facts.latent_channels, 64);
    let config: HunyuanConfig = config(&found);
    assert_eq!((config.dim, config.heads), (3584, 28));
    assert_eq!((config.axes, config.theta), (vec![64; 2], 256.0));
    assert_eq!(config.letters, Some((1472, 2048)));
    assert!(!config.guidance && !config.looks_ahead);
}

/// The same weights under the names of diffusers: parts of one matrix by themselves, and other words.
fn renamed(
    weights: &BTreeMap<String, Stored>,
    words: &[(&str, &str)],
    (joined, parts): (&str, [&str; 3]),
) -> BTreeMap<String, Stored> {
    let name = |key: &str| {
        words.iter().fold(key.to_owned(), |key, (ours, theirs)| {
            key.replace(ours, theirs)
        })
    };
    let mut out = BTreeMap::new();
    for (key, value) in weights {
        if joined.is_empty() || !key.contains(joined) {
            out.insert(name(key), value.clone());
            continue;
        }
        let tensor = value.to_f32().unwrap();
        // Keys and values share what the queries leave.
        let (rows, queries) = (tensor.shape()[0], tensor.shape()[1]);
        let beside = (rows - queries) / 2;
        for (part, (start, len)) in
            parts
                .iter()
                .zip([(0, queries), (queries, beside), (queries + beside, beside)])
        {
            let key = name(&key.replace(joined, part));
            let rows = tensor.narrow(0, start, len).unwrap();
            out.insert(key, Stored::from(&rows));
        }
    }
    out
}

/// A file and the same one under other names have the same network with the same weights.
fn same(ours: BTreeMap<String, Stored>, theirs: BTreeMap<String, Stored>, family: &str) {
    assert_ne!(
        ours.keys().collect::<Vec<_>>(),
        theirs.keys().collect::<Vec<_>>()
    );
    let [ours, theirs]: [Arc<dyn WeightFile>; 2] =
        [ours, theirs].map(|weights| Arc::new(MemoryFile::new(weights)) as _);
    let [a, b] = [&ours, &theirs].map(|file| {
        let found = detect_checkpoint(file).unwrap();
        assert_eq!(found.family, family);
        found.store(file, Device::cpu())
    });
    assert_eq!(a.keys(), b.keys());
    for key in a.keys() {
        assert_eq!(a.tensor(key).unwrap(), b.tensor(key).unwrap(), "{key}");
    }
}

#[test]
fn names_of_diffusers() {
    let qkv = (
        "attention.qkv",
        ["attention.to_q", "attention.to_k", "attention.to_v"],
    );
    let words = [
        ("attention.out.", "attention.to_out.0."),
        ("q_norm", "norm_q"),
        ("k_norm", "norm_k"),
        ("x_embedder.", "all_x_embedder.2-1."),
        ("final_layer.", "all_final_layer.2-1."),
    ];
    let ours = Gold::open("z_image_small").weights();
    same(ours.clone(), renamed(&ours, &words, qkv), "Z-Image");

    // NewBie without what only it has is Lumina 2.
    let mut ours = Gold::open("newbie_small").weights();
    ours.retain(|key, _| !key.starts_with("clip_text") && !key.starts_with("time_text"));
    let words = [
        ("final_layer.adaLN_modulation.1", "norm_out.linear_1"),
        ("final_layer.linear", "norm_out.linear_2"),
        ("attention.out.", "attn.to_out.0."),
        ("attention.q_norm", "attn.norm_q"),
        ("attention.k_norm", "attn.norm_k"),
        ("attention.to_", "attn.to_"),
        ("adaLN_modulation.1", "norm1.linear"),
        ("attention_norm1", "norm1.norm"),
        ("attention_norm2", "norm2"),
        ("context_refiner.0.norm1.norm", "context_refiner.0.norm1"),
        ("context_refiner.1.norm1.norm", "context_refiner.1.norm1"),
        ("feed_forward.w", "feed_forward.linear_"),
        ("cap_embedder", "time_caption_embed.caption_embedder"),
        (
            "t_embedder.mlp.0",
            "time_caption_embed.timestep_embedder.linear_1",
        ),
        (
            "t_embedder.mlp.2",
            "time_caption_embed.timestep_embedder.linear_2",
        ),
    ];
    same(ours.clone(), renamed(&ours, &words, qkv), "Lumina 2");

    let ours = Gold::open("krea2_small").weights();
    let words = [
        ("first.", "img_in."),
        ("txtmlp.0.scale", "txt_in.norm.weight"),
        ("txtmlp.1.", "txt_in.linear_1."),
        ("txtmlp.3.", "txt_in.linear_2."),
        ("tmlp.0.", "time_embed.linear_1."),
        ("tmlp.2.", "time_embed.linear_2."),
        ("tproj.1.", "time_mod_proj."),
        ("txtfusion.", "text_fusion."),
        ("last.linear.", "final_layer.linear."),
        ("last.norm.scale", "final_layer.norm.weight"),
        ("last.modulation.lin", "final_layer.scale_shift_table"),
        ("mod.lin", "scale_shift_table"),
        ("attn.wq.", "attn.to_q."),
        ("attn.wk.", "attn.to_k."),
        ("attn.wv.", "attn.to_v."),
        ("attn.wo.", "attn.to_out.0."),
        ("attn.gate.", "attn.to_gate."),
        ("attn.qknorm.qnorm.scale", "attn.norm_q.weight"),
        ("attn.qknorm.knorm.scale", "attn.norm_k.weight"),
        (".mlp.", ".ff."),
        ("prenorm.scale", "norm1.weight"),
        ("postnorm.scale", "norm2.weight"),
    ];
    let mut theirs = renamed(&ours, &words, ("", [""; 3]));
    theirs = theirs
        .into_iter()
        .map(|(key, value)| match key.strip_prefix("blocks.") {
            Some(rest) if key.ends_with("scale_shift_table") => {
                let width = value.len() / 6;
                (
                    format!("transformer_blocks.{rest}"),
                    value.reshape([6, width]).unwrap(),
                )
            }
            Some(rest) => (format!("transformer_blocks.{rest}"), value),
            None => (key, value),
        })
        .collect();
    same(ours, theirs, "Krea 2");

    let ours = Gold::open("flux3_small").weights();
    let words = [
        ("final_layer.image.linear.", "proj_out."),
        ("emb_in.", "x_embedders."),
        ("txt_in.", "context_embedder."),
        (
            "ref_time_in.in_layer.",
            "target_timestep_embedder.linear_1.",
        ),
        (
            "ref_time_in.out_layer.",
            "target_timestep_embedder.linear_2.",
        ),
        ("time_in.in_layer.", "timestep_embedder.linear_1."),
        ("time_in.out_layer.", "timestep_embedder.linear_2."),
        ("content_mode_blocks.", "mode_blocks."),
        ("single_blocks.", "single_transformer_blocks."),
        (".lin.", ".linear."),
        ("q_proj.", "attn.to_q."),
        ("k_proj.", "attn.to_k."),
        ("v_proj.", "attn.to_v."),
        ("attn_out.", "attn.to_out.0."),
        ("norm.query_norm.scale", "attn.norm_q.weight"),
        ("norm.key_norm.scale", "attn.norm_k.weight"),
        ("mlp_in.", "ff.linear_in."),
        ("mlp_out.", "ff.linear_out."),
    ];
    let mut theirs = renamed(&ours, &words, ("", [""; 3]));
    let last = theirs
        .remove("final_layer.image.adaLN_modulation.1.weight")
        .unwrap();
    let last = last.to_f32().unwrap();
    let half = last.shape()[0] / 2;
    let halves = [half, 0].map(|start| last.narrow(0, start, half).unwrap());
    let swapped = Tensor::cat(&[&halves[0], &halves[1]], 0).unwrap();
    theirs.insert("norm_out.linear.weight".to_owned(), Stored::from(&swapped));
    same(ours, theirs, "FLUX.3 klein");
}

#[test]
fn what_is_missing_is_named() {
    let cases = [
        ("z_image_small", "layers.1.attention.out.weight"),
        ("newbie_small", "context_refiner.0.ffn_norm1.weight"),
        ("krea2_small", "txtmlp.3.bias"),
        ("anima_small", "net.llm_adapter.out_proj.bias"),
        ("flux3_small", "single_blocks.1.mlp_out.weight"),
    ];
    for (name, gone) in cases {
        let mut weights = Gold::open(name).weights();
        weights.remove(gone).unwrap();
        let file: Arc<dyn WeightFile> = Arc::new(MemoryFile::new(weights));
        let found = detect_checkpoint(&file).unwrap();
        let error = found.open(&file, Device::cpu()).err().unwrap().to_string();
        let key = gone.trim_start_matches("net.");
        assert!(
            error.contains(key) && error.contains("memory.safetensors"),
            "{error}"
        );
    }
    // One that says what the network is like.
    let mut weights = Gold::open("z_image_small").weights();
    weights.remove("layers.0.attention.q_norm.weight").unwrap();
    let file: Arc<dyn WeightFile> = Arc::new(MemoryFile::new(weights));
    let error = detect_checkpoint(&file).unwrap_err().to_string();
    assert!(
        error.contains("layers.0.attention.q_norm.weight"),
        "{error}"
    );
}

#[test]
fn control_nets_of_z_image() {
    let found = |list: &str| {
        let file = Listed::of(list).shared();
        PatchStore::find(&file, &Device::cpu()).unwrap()
    };
    let patch = found(list!("z_image_control_6"));
    let config: &ControlConfig = patch.config().unwrap();
    assert_eq!((config.layers, config.channels), (6, 16));
    assert_eq!(config.refiners, Refiners::Plain);
    assert!(!config.inpaints(16));
    // What is listed is all zero, and so was never trained.
    let patch = found(list!("z_image_control_15"));
    let config: &ControlConfig = patch.config().unwrap();
    assert_eq!((config.layers, config.channels), (15, 33));
    assert_eq!(
        (config.refiners, config.inpaints(16)),
        (Refiners::Untrained, true)
    );
    let weights = Gold::open("z_image_control_small").weights();
    let find = |weights: BTreeMap<String, Stored>| {
        let file: Arc<dyn WeightFile> = Arc::new(MemoryFile::new(weights));
        PatchStore::find(&file, &Device::cpu())
    };
    let trained = find(weights.clone()).unwrap();
    let config: &ControlConfig = trained.config().unwrap();
    assert_eq!(config.refiners, Refiners::Control);
    // Under the names of diffusers.
    let qkv = (
        "attention.qkv",
        ["attention.to_q", "attention.to_k", "attention.to_v"],
    );
    let words = [
        ("attention.out.", "attention.to_out.0."),
        ("q_norm", "norm_q"),
        ("k_norm", "norm_k"),
    ];
    let other = find(renamed(&weights, &words, qkv)).unwrap();
    assert_eq!(trained.store.keys(), other.store.keys());
    let mut less = weights;
    less.remove("control_layers.1.after_proj.bias").unwrap();
    let error = find(less).unwrap_err().to_string();
    assert!(
        error.contains("control_layers.1.after_proj.bias"),
        "{error}"
    );
    let error = find(Gold::open("vae_kl_small").weights()).unwrap_err();
    assert!(
        error.to_string().contains("a VAE, not a model patch"),
        "{error}"
    );
}
