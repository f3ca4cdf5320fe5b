//! Qwen-Image and its autoencoder: full-size files by their names, results by formula, and what is wrong with bad input.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use fresco_models::control::{ControlInput, ControlStore};
use fresco_models::denoise::hooks::{BlockKind, ControlFeatures, Hooks};
use fresco_models::denoise::{CallConds, Cond, CondValue, EncodeArgs};
use fresco_models::model_patch::PatchStore;
use fresco_models::qwen_image::fun_control::FunControlConfig;
use fresco_models::qwen_image::patch::PatchConfig;
use fresco_models::qwen_image::{Inputs, QwenConfig, QwenNetwork, ReferenceMethod};
use fresco_models::store::Layout;
use fresco_models::vae::causal::{CausalHalf, CausalLevel, CausalStep};
use fresco_models::vae::{Autoencoder, CausalConfig, CausalVae, Vae, VaeConfig, names};
use fresco_models::{
    Checkpoint, Diffusion, DiffusionNetwork, ModelError, Spacing, WeightStore, detect_checkpoint,
};
use fresco_tensor::{Device, Dtype, Stored, Tensor, WeightError, WeightFile, WeightInfo};
use serde_json::Value;

use crate::gold::{Gold, MemoryFile, assert_near, assert_summary, json, sizes, store, wave, waves};

/// A file that can only be asked what is in it.
struct Names(BTreeMap<String, Vec<usize>>);

impl WeightFile for Names {
    fn path(&self) -> &Path {
        Path::new("full.safetensors")
    }

    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        let shape = self.0.get(name)?.clone();
        let dtype = Dtype::Bf16;
        Some(WeightInfo { dtype, shape })
    }

    fn read(&self, name: &str) -> Result<Stored, WeightError> {
        Err(WeightError::Missing {
            path: self.path().to_path_buf(),
            name: name.to_owned(),
        })
    }

    fn metadata(&self) -> &[(String, String)] {
        &[]
    }
}

/// `a.{0..2}.{x,y}` as the names it stands for.
fn expand(pattern: &str) -> Vec<String> {
    let Some((before, rest)) = pattern.split_once('{') else {
        return vec![pattern.to_owned()];
    };
    let (inside, after) = rest.split_once('}').unwrap();
    let choices: Vec<String> = match inside.split_once("..") {
        Some((first, last)) => {
            let number = |text: &str| text.parse::<usize>().unwrap();
            let all = number(first)..=number(last);
            all.map(|n| n.to_string()).collect()
        }
        None => inside.split(',').map(str::to_owned).collect(),
    };
    let mut all = Vec::new();
    for choice in choices {
        for end in expand(after) {
            all.push(format!("{before}{choice}{end}"));
        }
    }
    all
}

fn full_size(name: &str) -> BTreeMap<String, Vec<usize>> {
    let list: Value = serde_json::from_str(include_str!("full_size_qwen.json")).unwrap();
    let mut all = BTreeMap::new();
    for entry in list[name].as_array().unwrap() {
        for key in expand(entry[0].as_str().unwrap()) {
            all.insert(key, sizes(&entry[1]));
        }
    }
    all
}

pub(crate) fn names_only(names: BTreeMap<String, Vec<usize>>) -> Arc<dyn WeightFile> {
    Arc::new(Names(names))
}

fn config_of(found: &Checkpoint) -> &QwenConfig {
    found.network.config().downcast_ref().expect("Qwen-Image")
}

/// What the reference derives, from names and shapes alone; every key of the file is asked for, and no other.
#[test]
fn full_size_networks_are_known() {
    let with = |name: &str, key: &str| {
        let mut names = full_size(name);
        names.insert(key.to_owned(), Vec::new());
        names
    };
    for (names, family, method, kinds) in [
        (
            full_size("qwen_image"),
            "Qwen-Image",
            ReferenceMethod::Index,
            false,
        ),
        (
            with("qwen_image", "__index_timestep_zero__"),
            "Qwen-Image Edit 2511",
            ReferenceMethod::IndexTimestepZero,
            false,
        ),
        (
            full_size("qwen_image_layered"),
            "Qwen-Image Layered",
            ReferenceMethod::NegativeIndex,
            true,
        ),
    ] {
        for prefix in ["", "model.diffusion_model."] {
            let named = names.clone().into_iter();
            let named = named.map(|(key, shape)| (format!("{prefix}{key}"), shape));
            let file = names_only(named.collect());
            let found = detect_checkpoint(&file).unwrap();
            assert_eq!(found.family, family);
            let config = config_of(&found);
            assert_eq!((config.layers, config.heads(), config.head), (60, 24, 128));
            assert_eq!(
                (config.input, config.context, config.inner),
                (64, 3584, 12288)
            );
            assert_eq!((config.axes, config.method), ([16, 56, 56], method));
            assert_eq!(config.kinds, kinds);
            let facts = found.network.facts();
            assert_eq!((facts.latent.name, facts.latent_channels), ("Wan21", 16));
            assert_eq!(
                facts.sampling.spacing,
                Spacing::ExponentialFlow { shift: 1.15 }
            );
            let store = found.store(&file, Device::cpu());
            let layout = found.network.layout().unwrap();
            layout.verify(&store, "the network").unwrap();
            let marks = usize::from(names.contains_key("__index_timestep_zero__"));
            assert_eq!(layout.items().len() + marks, names.len());
        }
    }
}

#[test]
fn control_files_are_no_models() {
    let control = names_only(full_size("qwen_controlnet_instantx"));
    assert!(
        !ControlStore::find(&control, &Device::cpu())
            .unwrap()
            .wants_mask
    );
    let mut inpaint = full_size("qwen_controlnet_instantx");
    inpaint.insert("controlnet_x_embedder.weight".to_owned(), vec![3072, 68]);
    let inpaint = ControlStore::find(&names_only(inpaint), &Device::cpu());
    assert!(inpaint.unwrap().wants_mask);
    let error = detect_checkpoint(&control).unwrap_err().to_string();
    assert!(error.contains("a control net"), "{error}");
    let patch = names_only(full_size("qwen_diffsynth_control"));
    let error = detect_checkpoint(&patch).unwrap_err().to_string();
    assert!(error.contains("a control net"), "{error}");
    let found = PatchStore::find(&patch, &Device::cpu()).unwrap();
    let config: &PatchConfig = found.config().unwrap();
    assert_eq!((config.layers, config.width, config.hint), (60, 3072, 16));
    assert_eq!(config.mask_channels(16), 0);
    // A model is no control net, and says what it is.
    assert!(ControlStore::find(&names_only(full_size("qwen_image")), &Device::cpu()).is_err());
}

/// A control net sees latents, and what it says goes to the picture's first tokens after each block.
#[test]
fn control_nets_steer() {
    let gold = Gold::open("qwen_controlnet_small");
    let file: Arc<dyn WeightFile> = Arc::new(MemoryFile::new(gold.weights()));
    let found = ControlStore::find(&file, &Device::cpu()).unwrap();
    assert!(found.wants_mask);
    let net = found.build().unwrap();
    assert_eq!(net.latent().unwrap().name, "Wan21");
    assert_eq!(net.hint_size(8, 6), (64, 48));
    let seen = net.see(&gold.tensor("hint"), &[]).unwrap();
    let few = gold.tensor("hint").narrow(1, 0, 16).unwrap();
    let error = net.see(&few, &[]).unwrap_err().to_string();
    assert!(error.contains("17 channels"), "{error}");
    let (x, context) = (gold.tensor("x"), gold.tensor("context"));
    let mut conds = CallConds::default();
    let two = Tensor::cat(&[&context, &context], 0).unwrap();
    conds.0.insert("c_crossattn", CondValue::Regular(two));
    let both = Tensor::cat(&[&x, &x], 0).unwrap();
    let features = net
        .features(&ControlInput {
            x: &both,
            seen: &seen,
            types: &[],
            steered: None,
            timesteps: &[0.7; 2],
            conds: &conds,
        })
        .unwrap();
    let list = features.of(BlockKind::DOUBLE);
    assert_eq!(list.len(), 60);
    assert_eq!(list[0].as_ref().unwrap().shape(), [2, 12, 96]);
    // Weaker features are made once for all blocks that share them.
    let half = features.clone().scaled(0.5, false).unwrap();
    let half = half.of(BlockKind::DOUBLE);
    let place = |at: usize| half[at].as_ref().unwrap().storage_address();
    assert!(place(0) == place(29) && place(0) != place(30));
    let model = Gold::open("qwen_edit_small").store();
    let config = QwenConfig::detect(&model).unwrap();
    let model = model.build("it", |weights| QwenNetwork::new(weights, &config));
    let model = model.unwrap();
    let run = |control: Option<&ControlFeatures>, references: &[Tensor]| {
        model
            .predict(&Inputs {
                x: &both,
                timesteps: &[0.7; 2],
                context: &Tensor::cat(&[&context, &context], 0).unwrap(),
                references,
                method: None,
                kind: 0,
                control,
                hooks: &Hooks::default(),
            })
            .unwrap()
    };
    assert_ne!(run(Some(&features), &[]), run(None, &[]));
    let none = features.clone().scaled(0.0, false).unwrap();
    assert_eq!(run(Some(&none), &[]), run(None, &[]));
    // Tokens of references are not touched.
    let reference = [Tensor::cat(&[&x, &x], 0).unwrap()];
    assert_ne!(run(Some(&features), &reference), run(None, &reference));
}

/// The published control net that goes along with the model: five blocks, and room for painting in.
fn full_size_along() -> BTreeMap<String, Vec<usize>> {
    let model = full_size("qwen_image");
    let mut keys = BTreeMap::new();
    let mut linear = |name: &str, out: usize, input: usize| {
        keys.insert(format!("{name}.weight"), vec![out, input]);
        keys.insert(format!("{name}.bias"), vec![out]);
    };
    linear("control_img_in", 3072, 132);
    linear("control_blocks.0.before_proj", 3072, 3072);
    for number in 0..5 {
        let name = format!("control_blocks.{number}.after_proj");
        linear(&name, 3072, 3072);
    }
    for (key, shape) in &model {
        if let Some(rest) = key.strip_prefix("transformer_blocks.0.") {
            for number in 0..5 {
                keys.insert(format!("control_blocks.{number}.{rest}"), shape.clone());
            }
        }
    }
    keys
}

#[test]
fn control_nets_that_go_along_are_known() {
    let file = names_only(full_size_along());
    let found = ControlStore::find(&file, &Device::cpu()).unwrap();
    assert!(!found.wants_mask);
    assert_eq!(found.store.keys().len(), full_size_along().len());
    let config = FunControlConfig::detect(&found.store).unwrap();
    assert_eq!((config.layers, config.width, config.hint), (5, 3072, 33));
    let error = detect_checkpoint(&file).unwrap_err().to_string();
    assert!(error.contains("a control net"), "{error}");
}

/// What it says changes the picture, less with less strength; other sizes, no model, and another VAE are refused.
#[test]
fn control_nets_go_along() {
    let gold = Gold::open("qwen_fun_control_small");
    let own = gold.weights().into_iter();
    let own = own.filter(|(key, _)| key.starts_with("control_")).collect();
    let file: Arc<dyn WeightFile> = Arc::new(MemoryFile::new(own));
    let net = ControlStore::find(&file, &Device::cpu()).unwrap();
    let model = gold.store();
    net.check(&model).unwrap();
    let net = net.build().unwrap();
    assert_eq!(net.latent().unwrap().name, "Wan21");
    let hint = gold.tensor("hint").narrow(1, 0, 16).unwrap();
    let seen = net.see(&hint, &[]).unwrap();
    let error = net.see(&gold.tensor("hint"), &[]).unwrap_err().to_string();
    assert!(error.contains("16 channels"), "{error}");
    let (x, context) = (gold.tensor("x"), gold.tensor("context"));
    let mut conds = CallConds::default();
    conds
        .0
        .insert("c_crossattn", CondValue::Regular(context.clone()));
    let run = |steered: Option<&Arc<WeightStore>>| {
        net.features(&ControlInput {
            x: &x,
            seen: &seen,
            types: &[],
            steered,
            timesteps: &[0.7, 0.35],
            conds: &conds,
        })
    };
    let features = run(Some(&model)).unwrap();
    let list = features.of(BlockKind::DOUBLE);
    let places: Vec<usize> = (0..list.len()).filter(|i| list[*i].is_some()).collect();
    assert_eq!((list.len(), places), (5, vec![0, 2]));
    assert_eq!(list[2].as_ref().unwrap().shape(), [2, 24, 96]);
    let error = run(None).unwrap_err().to_string();
    assert!(error.contains("no model to go along with"), "{error}");
    let mut short = gold.weights();
    short.retain(|key, _| !key.starts_with("transformer_blocks.") || key.contains("blocks.0."));
    let short: Arc<dyn WeightFile> = Arc::new(MemoryFile::new(short));
    let short = WeightStore::open(short, "", Device::cpu());
    let error = run(Some(&short)).unwrap_err().to_string();
    assert!(error.contains("2 blocks of 96 channels"), "{error}");
}

#[test]
fn the_full_size_autoencoder_is_known() {
    let keys = full_size("wan21_vae");
    let named = names_only(keys.clone());
    let error = detect_checkpoint(&named).unwrap_err().to_string();
    assert!(error.contains("this is a VAE, not a model"), "{error}");
    let store = names::store(&named, "", Device::cpu());
    let config = VaeConfig::detect(&store).unwrap();
    config.verify(&store).unwrap();
    let facts = config.facts();
    assert_eq!((facts.latent_channels, facts.ratio), (16, 8));
    assert_eq!((facts.temporal_ratio, facts.picture_channels), (Some(4), 3));
    let Some(causal) = config.get::<CausalConfig>() else {
        panic!("{config:?}");
    };
    assert_eq!(causal.weights().unwrap().len(), keys.len());
    let later = full_size("wan22_vae");
    let store = names::store(&names_only(later.clone()), "", Device::cpu());
    let config = VaeConfig::detect(&store).unwrap();
    config.verify(&store).unwrap();
    let facts = config.facts();
    assert_eq!((facts.latent_channels, facts.ratio), (48, 16));
    assert_eq!((facts.temporal_ratio, facts.picture_channels), (Some(4), 3));
    let Some(causal) = config.get::<CausalConfig>() else {
        panic!("{config:?}");
    };
    assert_eq!(causal.weights().unwrap().len(), later.len());
    let mut part = keys;
    part.remove("decoder.upsamples.3.time_conv.bias");
    part.insert("decoder.head.2.weight".to_owned(), vec![3, 95, 3, 3, 3]);
    let store = names::store(&names_only(part), "", Device::cpu());
    let error = VaeConfig::detect(&store).unwrap().verify(&store);
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("decoder.upsamples.3.time_conv.bias"),
        "{error}"
    );
}

fn small(about: &Value) -> QwenConfig {
    let get = |name: &str| about[name].as_u64().unwrap() as usize;
    let width = get("attention_head_dim") * get("num_attention_heads");
    QwenConfig {
        layers: get("num_layers"),
        width,
        head: get("attention_head_dim"),
        context: get("joint_attention_dim"),
        input: get("in_channels"),
        output: get("out_channels") * 4,
        inner: 4 * width,
        axes: sizes(&about["axes_dims_rope"]).try_into().unwrap(),
        method: ReferenceMethod::Index,
        kinds: false,
    }
}

/// With weights of the second scheme.
#[test]
fn networks_by_formula() {
    let nets = json("nets");
    for (name, references) in [
        ("qwen_image", vec![]),
        ("qwen_image_ref", vec![wave(&[1, 4, 1, 6, 8], 0.05)]),
    ] {
        let about = &nets[name];
        let config = small(&about["config"]);
        let layout = Layout::of(|weights| QwenNetwork::new(weights, &config)).unwrap();
        let store = store(waves(layout.items().to_vec()));
        let net = store.build("it", |weights| QwenNetwork::new(weights, &config));
        let found = net.unwrap().predict(&Inputs {
            x: &wave(&[1, 4, 1, 7, 8], 0.11),
            timesteps: &[0.3],
            context: &wave(&[1, 7, 48], 0.07),
            references: &references,
            method: None,
            kind: 0,
            control: None,
            hooks: &Hooks::default(),
        });
        assert_summary(&found.unwrap(), &about["out"], name);
    }
}

/// The blocks of a small autoencoder with one residual block to a level.
fn small_vae() -> CausalConfig {
    let residual = |input, out| CausalStep::Residual { input, out };
    let resample = |input, out, frames| CausalStep::Resample { input, out, frames };
    let all = |steps| {
        vec![CausalLevel {
            steps,
            around: None,
        }]
    };
    CausalConfig {
        nested: false,
        flat: false,
        patch: 1,
        encoder: Some(CausalHalf {
            first: (3, 8),
            levels: all(vec![
                residual(8, 8),
                resample(8, 8, false),
                residual(8, 16),
                resample(16, 16, true),
                residual(16, 32),
                resample(32, 32, true),
                residual(32, 32),
            ]),
            middle: 32,
            last: 32,
            out: 8,
        }),
        decoder: Some(CausalHalf {
            first: (4, 32),
            levels: all(vec![
                residual(32, 32),
                residual(32, 32),
                resample(32, 16, true),
                residual(16, 32),
                residual(32, 32),
                resample(32, 16, true),
                residual(16, 16),
                residual(16, 16),
                resample(16, 8, false),
                residual(8, 8),
                residual(8, 8),
            ]),
            middle: 32,
            last: 8,
            out: 3,
        }),
    }
}

fn go() -> Result<(), ModelError> {
    Ok(())
}

#[test]
fn autoencoders_by_formula() {
    let config = small_vae();
    let about = &json("nets")["wan_vae"]["out"];
    let store = store(waves(config.weights().unwrap()));
    assert_eq!(CausalConfig::detect(&store).unwrap(), config);
    let vae = CausalVae::new(&store).unwrap();
    let encoded = vae.encode(&wave(&[1, 3, 9, 32, 32], 0.0013), &go).unwrap();
    assert_summary(&encoded, &about["encode"], "encode");
    let latent = wave(&[1, 4, 3, 4, 4], 0.11);
    let decoded = vae.decode(&latent, &go).unwrap();
    assert_summary(&decoded, &about["decode"], "decode");
    // A first frame is the same whatever follows, and batches are worked on one by one.
    let first = vae.decode(&latent.narrow(2, 0, 1).unwrap(), &go).unwrap();
    assert_near(&first, &decoded.narrow(2, 0, 1).unwrap(), "the first frame");
    let two = Tensor::cat(&[&latent, &latent], 0).unwrap();
    let two = vae.decode(&two, &go).unwrap();
    assert_eq!(two.narrow(0, 1, 1).unwrap(), decoded);
    // A picture is a video of one frame.
    let picture = latent.select(2, 0).unwrap();
    let picture = vae.decode(&picture, &go).unwrap();
    assert_eq!(picture, first.select(2, 0).unwrap());
    let error = vae.decode(&Tensor::zeros([1, 4, 4]).unwrap(), &go);
    assert!(error.unwrap_err().to_string().contains("[1, 4, 4]"));
}

/// The later form of the autoencoder, with ways around its levels and pixels in squares.
#[test]
fn later_autoencoders_by_formula() {
    let residual = |input, out| CausalStep::Residual { input, out };
    let resample = |channels, frames| CausalStep::Resample {
        input: channels,
        out: channels,
        frames,
    };
    let level = |steps, around| CausalLevel { steps, around };
    let config = CausalConfig {
        nested: true,
        flat: false,
        patch: 2,
        encoder: Some(CausalHalf {
            first: (12, 8),
            levels: vec![
                level(vec![residual(8, 8), resample(8, false)], Some((8, 8))),
                level(vec![residual(8, 16), resample(16, true)], Some((8, 16))),
                level(vec![residual(16, 32), resample(32, true)], Some((16, 32))),
                level(vec![residual(32, 32)], Some((32, 32))),
            ],
            middle: 32,
            last: 32,
            out: 8,
        }),
        decoder: Some(CausalHalf {
            first: (4, 32),
            levels: vec![
                level(
                    vec![residual(32, 32), residual(32, 32), resample(32, true)],
                    Some((32, 32)),
                ),
                level(
                    vec![residual(32, 32), residual(32, 32), resample(32, true)],
                    Some((32, 32)),
                ),
                level(
                    vec![residual(32, 16), residual(16, 16), resample(16, false)],
                    Some((32, 16)),
                ),
                level(vec![residual(16, 8), residual(8, 8)], None),
            ],
            middle: 32,
            last: 8,
            out: 12,
        }),
    };
    let about = &json("nets")["wan22_vae"]["out"];
    let store = store(waves(config.weights().unwrap()));
    assert_eq!(CausalConfig::detect(&store).unwrap(), config);
    assert_eq!((config.ratio(), config.temporal_ratio()), (16, Some(4)));
    assert_eq!(
        (config.latent_channels(), config.picture_channels()),
        (4, 3)
    );
    let vae = CausalVae::new(&store).unwrap();
    let encoded = vae.encode(&wave(&[1, 3, 9, 32, 32], 0.0013), &go).unwrap();
    assert_summary(&encoded, &about["encode"], "encode");
    let decoded = vae.decode(&wave(&[1, 4, 3, 2, 2], 0.11), &go).unwrap();
    assert_summary(&decoded, &about["decode"], "decode");
}

/// Names of diffusers lead to the same network.
#[test]
fn autoencoders_with_foreign_names() {
    let gold = Gold::open("wan_vae_tiled_small");
    let foreign = gold.weights().into_iter().map(|(key, value)| {
        let parts: Vec<&str> = key.split('.').collect();
        let block = |rest: &[&str]| match rest {
            ["residual", "0", last] => format!("norm1.{last}"),
            ["residual", "2", last] => format!("conv1.{last}"),
            ["residual", "3", last] => format!("norm2.{last}"),
            ["residual", "6", last] => format!("conv2.{last}"),
            ["shortcut", last] => format!("conv_shortcut.{last}"),
            _ => rest.join("."),
        };
        let theirs = match parts.as_slice() {
            ["conv1", last] => format!("quant_conv.{last}"),
            ["conv2", last] => format!("post_quant_conv.{last}"),
            [half, "conv1", last] => format!("{half}.conv_in.{last}"),
            [half, "head", "0", last] => format!("{half}.norm_out.{last}"),
            [half, "head", "2", last] => format!("{half}.conv_out.{last}"),
            [half, "middle", "1", rest @ ..] => {
                format!("{half}.mid_block.attentions.0.{}", rest.join("."))
            }
            [half, "middle", n, rest @ ..] => {
                let n = n.parse::<usize>().unwrap() / 2;
                format!("{half}.mid_block.resnets.{n}.{}", block(rest))
            }
            ["encoder", "downsamples", n, rest @ ..] => {
                format!("encoder.down_blocks.{n}.{}", block(rest))
            }
            ["decoder", "upsamples", n, rest @ ..] => {
                let n: usize = n.parse().unwrap();
                match n % 4 {
                    3 => format!("decoder.up_blocks.{}.upsamplers.0.{}", n / 4, block(rest)),
                    m => format!("decoder.up_blocks.{}.resnets.{m}.{}", n / 4, block(rest)),
                }
            }
            _ => panic!("{key}"),
        };
        (theirs, value)
    });
    let file: Arc<dyn WeightFile> = Arc::new(MemoryFile::new(foreign.collect()));
    let theirs = Vae::open(&file, "", Device::cpu()).unwrap();
    let ours = CausalVae::new(&gold.store()).unwrap();
    let z = gold.tensor("z").narrow(2, 0, 2).unwrap();
    let found = theirs.decode(&z, &go).unwrap();
    let expected = ours.decode(&z, &go).unwrap();
    let expected = expected.permute(&[0, 2, 3, 4, 1]).unwrap();
    let expected = expected.map(|v| f32::midpoint(v, 1.0).clamp(0.0, 1.0));
    assert_near(&found, &expected, "foreign names");
}

/// The variant with opacity: pictures without it are opaque.
#[test]
fn autoencoders_with_opacity() {
    let mut config = small_vae();
    if let (Some(encoder), Some(decoder)) = (&mut config.encoder, &mut config.decoder) {
        (encoder.first.0, decoder.out) = (4, 4);
    }
    let store = store(waves(config.weights().unwrap()));
    let vae = VaeConfig::detect(&store).unwrap();
    assert_eq!(vae.facts().picture_channels, 4);
    let vae = vae.build(&store).unwrap();
    let rgba = wave(&[1, 16, 16, 4], 0.3).mul_scalar(0.5).add_scalar(0.5);
    let rgb = rgba.narrow(3, 0, 3).unwrap();
    let opaque = Tensor::cat(&[&rgb, &Tensor::ones([1, 16, 16, 1]).unwrap()], 3).unwrap();
    let seen = |images: &Tensor| vae.encode(images, &go).unwrap();
    assert_eq!(seen(&rgb), seen(&opaque));
    assert_ne!(seen(&rgb), seen(&rgba));
    // Layers are frames of a latent; a latent without frames is one picture.
    let decoded = vae.decode(&wave(&[1, 4, 2, 2], 0.1), &go).unwrap();
    assert_eq!(decoded.shape(), [1, 1, 16, 16, 4]);
    assert!(vae.decode(&wave(&[1, 5, 1, 2, 2], 0.1), &go).is_err());
    assert!(vae.encode(&wave(&[1, 4, 4, 3], 0.1), &go).is_err());
}

fn encoded(cond: &Cond, config: &QwenConfig) -> Result<Vec<Vec<usize>>, ModelError> {
    let noise = Tensor::zeros([1, config.channels(), 1, 4, 4]).unwrap();
    let conds = QwenNetwork::encode(
        config,
        "some.safetensors",
        &EncodeArgs {
            cond,
            noise: &noise,
            latent: None,
            denoise_mask: None,
            width: 32.0,
            height: 32.0,
            prompt_type: "positive",
        },
    )?;
    let references = conds.get("ref_latents").map_or(&[][..], CondValue::list);
    Ok(references.iter().map(|t| t.shape().to_vec()).collect())
}

#[test]
fn bad_conditions_are_told() {
    let config = QwenConfig {
        output: 64,
        ..small(&json("nets")["qwen_image"]["config"])
    };
    let text = |width| Cond {
        tokens: Some(Tensor::zeros([1, 3, width]).unwrap()),
        ..Cond::default()
    };
    assert!(encoded(&text(48), &config).is_ok());
    let error = encoded(&text(4096), &config).unwrap_err().to_string();
    assert!(
        error.contains("some.safetensors") && error.contains("another family"),
        "{error}"
    );
    let error = encoded(&Cond::default(), &config).unwrap_err().to_string();
    assert!(error.contains("no text for this model"), "{error}");
    let with = |shape: &[usize]| {
        let mut cond = text(48);
        let latent = Tensor::zeros(shape).unwrap();
        cond.lists.insert("reference_latents".into(), vec![latent]);
        encoded(&cond, &config)
    };
    // A picture's latent is one of a video.
    assert_eq!(with(&[1, 16, 6, 4]).unwrap(), [[1, 16, 1, 6, 4]]);
    let error = with(&[1, 4, 1, 6, 4]).unwrap_err().to_string();
    assert!(error.contains("another family"), "{error}");
}

#[test]
fn bad_files_are_told() {
    let gold = Gold::open("qwen_edit_small");
    let open = |weights: BTreeMap<String, Stored>| {
        let file: Arc<dyn WeightFile> = Arc::new(MemoryFile::new(weights));
        let found = detect_checkpoint(&file)?;
        found.open(&file, Device::cpu()).map(|_| ())
    };
    open(gold.weights()).unwrap();
    let mut part = gold.weights();
    part.remove("transformer_blocks.1.attn.to_add_out.bias");
    let error = open(part).unwrap_err().to_string();
    assert!(
        error.contains("transformer_blocks.1.attn.to_add_out.bias"),
        "{error}"
    );
    let mut odd = gold.weights();
    let wrong = Stored::from(&Tensor::zeros([97]).unwrap());
    odd.insert("img_in.bias".to_owned(), wrong);
    let error = open(odd).unwrap_err().to_string();
    assert!(
        error.contains("img_in.bias") && error.contains("97"),
        "{error}"
    );
}

/// As a model: latents of five dimensions, and the same whatever the number of threads.
#[test]
fn models_predict_latents_of_five_dimensions() {
    let gold = Gold::open("qwen_edit_small");
    let config = QwenConfig::detect(&gold.store()).unwrap();
    let model = Diffusion::<QwenNetwork>::open(gold.store(), config).unwrap();
    assert_eq!(model.facts().latent.dimensions, 3);
    let net = model.network().unwrap();
    let (x, context) = (gold.tensor("x"), gold.tensor("context"));
    let run = || {
        net.predict(&Inputs {
            x: &x,
            timesteps: &[0.5],
            context: &context,
            references: &[gold.tensor("ref0")],
            method: Some(ReferenceMethod::IndexTimestepZero),
            kind: 0,
            control: None,
            hooks: &Hooks::default(),
        })
        .unwrap()
    };
    let many = run();
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    assert_eq!(one.unwrap().install(run), many);
    // Inputs that do not go together.
    let wrong = net.predict(&Inputs {
        x: &x,
        timesteps: &[0.5, 0.5],
        context: &context,
        references: &[],
        method: None,
        kind: 0,
        control: None,
        hooks: &Hooks::default(),
    });
    assert!(wrong.is_err());
}
