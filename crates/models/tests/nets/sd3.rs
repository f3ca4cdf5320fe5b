//! Stable Diffusion 3: files of other layouts, blocks that are left out, what a condition must have.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_models::denoise::hooks::{BlockKind, ControlFeatures, Hooks};
use fresco_models::denoise::{CallConds, Cond, EncodeArgs, NetworkInput};
use fresco_models::sd3::{Mmdit, Sd3Config};
use fresco_models::{DiffusionNetwork, WeightStore, detect_checkpoint};
use fresco_tensor::{Device, Stored, Tensor, WeightFile};

use crate::gold::{Gold, MemoryFile, assert_near, distance};

fn network(store: &WeightStore) -> (Mmdit, Sd3Config) {
    let config = Sd3Config::detect(store).unwrap();
    let built = store.build(Mmdit::WHAT, |weights| {
        <Mmdit as DiffusionNetwork>::new(weights, &config)
    });
    (built.unwrap(), config)
}

fn pass(net: &Mmdit, gold: &Gold, control: Option<&ControlFeatures>, hooks: &Hooks) -> Tensor {
    let (x, times) = (gold.tensor("x"), gold.tensor("t"));
    let input = NetworkInput {
        x: &x,
        timesteps: times.data(),
        conds: &CallConds::default(),
        control,
        hooks,
    };
    net.forward(&input, &gold.tensor("context"), &gold.tensor("y"))
        .unwrap()
}

fn rows(value: &Stored, start: usize, count: usize) -> Stored {
    let tensor = value.to_f32().unwrap().narrow(0, start, count).unwrap();
    Stored::from(&tensor)
}

fn swapped(value: &Stored) -> Stored {
    let half = value.shape()[0] / 2;
    let tensor = value.to_f32().unwrap();
    let (first, second) = (tensor.narrow(0, 0, half), tensor.narrow(0, half, half));
    Stored::from(&Tensor::cat(&[&second.unwrap(), &first.unwrap()], 0).unwrap())
}

/// The weights as diffusers names and keeps them.
fn diffusers(weights: &BTreeMap<String, Stored>) -> BTreeMap<String, Stored> {
    let mut out = BTreeMap::new();
    for (key, value) in weights {
        let (path, part) = key.rsplit_once('.').unwrap_or(("", key));
        let theirs = |name: &str| format!("{name}.{part}");
        let simple = match path {
            "" => Some("pos_embed".to_owned()),
            "x_embedder.proj" => Some("pos_embed.proj".to_owned()),
            "t_embedder.mlp.0" => Some("time_text_embed.timestep_embedder.linear_1".to_owned()),
            "t_embedder.mlp.2" => Some("time_text_embed.timestep_embedder.linear_2".to_owned()),
            "y_embedder.mlp.0" => Some("time_text_embed.text_embedder.linear_1".to_owned()),
            "y_embedder.mlp.2" => Some("time_text_embed.text_embedder.linear_2".to_owned()),
            "context_embedder" => Some("context_embedder".to_owned()),
            "final_layer.linear" => Some("proj_out".to_owned()),
            _ => None,
        };
        if let Some(name) = simple {
            out.insert(theirs(&name), value.clone());
            continue;
        }
        if path == "final_layer.adaLN_modulation.1" {
            out.insert(theirs("norm_out.linear"), swapped(value));
            continue;
        }
        let rest = path.strip_prefix("joint_blocks.").unwrap();
        let (number, rest) = rest.split_once('.').unwrap();
        let (stream, layer) = rest.split_once('.').unwrap();
        let context = stream == "context_block";
        let block = format!("transformer_blocks.{number}");
        let width = value.shape()[0] / 3;
        if let Some(attention) = layer.strip_suffix(".qkv") {
            let names = if context {
                ["add_q_proj", "add_k_proj", "add_v_proj"]
            } else {
                ["to_q", "to_k", "to_v"]
            };
            for (i, name) in names.into_iter().enumerate() {
                let name = theirs(&format!("{block}.{attention}.{name}"));
                out.insert(name, rows(value, i * width, width));
            }
            continue;
        }
        let name = match (layer, context) {
            ("attn.proj", false) => "attn.to_out.0",
            ("attn.proj", true) => "attn.to_add_out",
            ("attn2.proj", _) => "attn2.to_out.0",
            ("attn.ln_q", false) => "attn.norm_q",
            ("attn.ln_k", false) => "attn.norm_k",
            ("attn.ln_q", true) => "attn.norm_added_q",
            ("attn.ln_k", true) => "attn.norm_added_k",
            ("attn2.ln_q", _) => "attn2.norm_q",
            ("attn2.ln_k", _) => "attn2.norm_k",
            ("mlp.fc1", false) => "ff.net.0.proj",
            ("mlp.fc2", false) => "ff.net.2",
            ("mlp.fc1", true) => "ff_context.net.0.proj",
            ("mlp.fc2", true) => "ff_context.net.2",
            ("adaLN_modulation.1", false) => "norm1.linear",
            ("adaLN_modulation.1", true) => "norm1_context.linear",
            other => panic!("{other:?}"),
        };
        // The prompt's half of the last block has no gate, and the other order.
        let last = context && layer == "adaLN_modulation.1" && number == "1";
        let value = if last { swapped(value) } else { value.clone() };
        out.insert(theirs(&format!("{block}.{name}")), value);
    }
    out
}

#[test]
fn files_of_diffusers_give_the_same_result() {
    for name in ["mmdit_sd3_small", "mmdit_sd35_small"] {
        let gold = Gold::open(name);
        for prefix in ["", "model.diffusion_model."] {
            let weights = diffusers(&gold.weights()).into_iter();
            let weights = weights.map(|(key, value)| (format!("{prefix}{key}"), value));
            let file: Arc<dyn WeightFile> = Arc::new(MemoryFile::new(weights.collect()));
            let found = detect_checkpoint(&file).unwrap();
            assert!(found.family.starts_with("SD3"));
            let store = found.store(&file, Device::cpu());
            assert_eq!(store.keys().len(), gold.weights().len(), "{prefix}");
            let (net, _) = network(&store);
            let out = pass(&net, &gold, None, &Hooks::default());
            assert_near(&out, &gold.tensor("out"), name);
        }
    }
}

#[test]
fn blocks_can_be_left_out_and_steered() {
    let gold = Gold::open("mmdit_sd35_small");
    let (net, config) = network(&gold.store());
    let plain = pass(&net, &gold, None, &Hooks::default());
    let mut hooks = Hooks::default();
    hooks.skipped.push((BlockKind::DOUBLE, 1));
    let without = pass(&net, &gold, None, &hooks);
    assert!(distance(&without, &plain) > 1e-2);
    // Blocks of another kind are not meant.
    hooks.skipped = vec![(BlockKind::SINGLE, 1)];
    assert_eq!(distance(&pass(&net, &gold, None, &hooks), &plain), 0.0);
    let tokens = Tensor::from_fn([2, 24, config.width], |i| (i as f32 * 0.1).sin()).unwrap();
    let control = |list| ControlFeatures::default().with(BlockKind::OUTPUT, list);
    let nothing = control(vec![None]);
    let steered = control(vec![None, Some(tokens)]);
    let run = |control| pass(&net, &gold, Some(control), &Hooks::default());
    assert_eq!(distance(&run(&nothing), &plain), 0.0);
    assert!(distance(&run(&steered), &plain) > 1e-2);
}

#[test]
fn text_of_another_family_is_refused_by_name() {
    let gold = Gold::open("mmdit_sd3_small");
    let (_, config) = network(&gold.store());
    let noise = Tensor::zeros([1, 16, 8, 8]).unwrap();
    let encode = |tokens: Option<Tensor>, pooled: Option<Tensor>| {
        let cond = Cond {
            tokens,
            pooled,
            ..Cond::default()
        };
        let args = EncodeArgs {
            cond: &cond,
            noise: &noise,
            latent: None,
            denoise_mask: None,
            width: 64.0,
            height: 64.0,
            prompt_type: "positive",
        };
        Mmdit::encode(&config, "small.safetensors", &args)
    };
    let tokens = |width| Some(Tensor::zeros([1, 3, width]).unwrap());
    let pooled = |width| Some(Tensor::zeros([1, width]).unwrap());
    let conds = encode(tokens(80), pooled(48)).unwrap();
    assert!(conds.contains_key("c_crossattn") && conds.contains_key("y"));
    for (tokens, pooled, said) in [
        (tokens(768), pooled(48), "text of width 80"),
        (tokens(80), pooled(768), "pooled text of width 48"),
        (None, pooled(48), "no text"),
        (tokens(80), None, "no pooled text"),
    ] {
        let error = encode(tokens, pooled).unwrap_err().to_string();
        assert!(
            error.contains(said) && error.contains("positive"),
            "{error}"
        );
    }
}

#[test]
fn files_with_holes_say_what_is_missing() {
    let gold = Gold::open("mmdit_sd3_small");
    let said = |gone: &str| {
        let mut weights = gold.weights();
        assert!(weights.remove(gone).is_some());
        let file: Arc<dyn WeightFile> = Arc::new(MemoryFile::new(weights));
        let opened = detect_checkpoint(&file).and_then(|found| found.open(&file, Device::cpu()));
        opened.err().expect("it is not whole").to_string()
    };
    for key in [
        "joint_blocks.1.x_block.mlp.fc2.bias",
        "pos_embed",
        "context_embedder.weight",
    ] {
        assert!(said(key).contains(key), "{}", said(key));
    }
}
