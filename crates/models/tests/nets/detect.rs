//! What files are.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_models::denoise::hooks::Hooks;
use fresco_models::sd::unet::UNet;
use fresco_models::sd::{SdConfig, Variant, text};
use fresco_models::{Checkpoint, ModelError, Prediction, detect_checkpoint, nan_keys};
use fresco_tensor::{Device, Dtype, Stored, Tensor, WeightFile};

use crate::gold::{Gold, MemoryFile, assert_near, config, store};

fn file(weights: BTreeMap<String, Stored>) -> Arc<dyn WeightFile> {
    Arc::new(MemoryFile::new(weights))
}

fn prefixed(weights: BTreeMap<String, Stored>, prefix: &str) -> BTreeMap<String, Stored> {
    let renamed = weights
        .into_iter()
        .map(|(k, v)| (format!("{prefix}{k}"), v));
    renamed.collect()
}

fn detect(weights: BTreeMap<String, Stored>) -> Result<Checkpoint, ModelError> {
    detect_checkpoint(&file(weights))
}

/// What the family read from the keys.
fn config_of(found: &Checkpoint) -> &SdConfig {
    found.network.config().downcast_ref().expect("a UNet")
}

fn predicts(found: &Checkpoint) -> Prediction {
    found.network.facts().sampling.prediction
}

fn zeros(shape: &[usize]) -> Stored {
    Stored::from(&Tensor::zeros(shape).unwrap())
}

/// The small SD1 network with its published heads, as a whole checkpoint.
fn checkpoint() -> BTreeMap<String, Stored> {
    let mut weights = prefixed(
        Gold::open("unet_sd1_small").weights(),
        "model.diffusion_model.",
    );
    let vae = Gold::open("vae_kl_small").weights();
    weights.extend(prefixed(vae, "first_stage_model."));
    let text = "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight";
    weights.insert(text.to_owned(), zeros(&[2, 2]));
    weights
}

#[test]
fn whole_checkpoints() {
    let found = detect(checkpoint()).unwrap();
    assert_eq!(found.family, "SD1.x");
    assert_eq!(config_of(&found).variant, Variant::Plain);
    assert_eq!(predicts(&found), Prediction::Eps);
    assert_eq!(found.network.facts().latent.name, "SD15");
    assert_eq!(found.vae_prefix, Some("first_stage_model."));
    assert_eq!(found.text, Some(&text::SD1));
    let vae = found.vae_store(&file(checkpoint()), Device::cpu()).unwrap();
    assert!(fresco_models::vae::KlVae::new(&vae).is_ok());
    let mut weights = checkpoint();
    weights.insert("v_pred".to_owned(), zeros(&[]));
    assert_eq!(predicts(&detect(weights).unwrap()), Prediction::V);
}

#[test]
fn networks_alone_under_any_prefix() {
    let gold = Gold::open("unet_sd1_small");
    for prefix in ["", "model.", "model.diffusion_model.", "net."] {
        let found = detect(prefixed(gold.weights(), prefix)).unwrap();
        assert_eq!(found.family, "SD1.x", "{prefix}");
        assert_eq!((found.vae_prefix, found.text), (None, None));
        let net = file(prefixed(gold.weights(), prefix));
        let store = found.store(&net, Device::cpu());
        let layout = found.network.layout().unwrap();
        assert!(layout.verify(&store, "the network").is_ok());
    }
    let found = detect(Gold::open("unet_sdxl_small").weights()).unwrap();
    let facts = found.network.facts();
    assert_eq!((found.family, facts.latent.name), ("SDXL", "SDXL"));
}

#[test]
fn channels_tell_the_variants() {
    for (channels, variant) in [(9, Variant::Inpaint), (8, Variant::InstructPix2Pix)] {
        let mut weights = checkpoint();
        let key = "model.diffusion_model.input_blocks.0.0.weight";
        weights.insert(key.to_owned(), zeros(&[32, channels, 3, 3]));
        let found = detect(weights).unwrap();
        assert_eq!(config_of(&found).variant, variant);
    }
    let mut weights = checkpoint();
    let key = "model.diffusion_model.input_blocks.0.0.weight";
    weights.insert(key.to_owned(), zeros(&[32, 5, 3, 3]));
    assert!(detect(weights).is_err());
}

/// The SD2 layout at a reduced size: matrices at the ends of transformers, and enough blocks for the rule.
fn sd2(spread: f32) -> BTreeMap<String, Stored> {
    let about = serde_json::json!({
        "model_channels": 32, "in_channels": 4, "out_channels": 4,
        "num_res_blocks": [2, 2, 2, 2], "channel_mult": [1, 1, 1, 1],
        "transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0],
        "transformer_depth_output": [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
        "transformer_depth_middle": 1, "context_dim": 16, "num_heads": 8,
        "use_linear_in_transformer": true,
    });
    let mut weights: BTreeMap<String, Stored> = config(&about)
        .weights()
        .unwrap()
        .into_iter()
        .map(|(key, shape)| (key, zeros(&shape)))
        .collect();
    let alternating = Tensor::from_fn([32], |i| if i % 2 == 0 { spread } else { -spread });
    let key = "output_blocks.11.1.transformer_blocks.0.norm1.bias".to_owned();
    weights.insert(key, Stored::from(&alternating.unwrap()));
    weights
}

#[test]
fn sd2_says_what_it_predicts() {
    for (spread, prediction) in [(0.08, Prediction::Eps), (0.1, Prediction::V)] {
        let found = detect(prefixed(sd2(spread), "model.diffusion_model.")).unwrap();
        assert_eq!((found.family, predicts(&found)), ("SD2.x", prediction));
    }
}

#[test]
fn diffusers_networks_give_the_same_result() {
    let gold = Gold::open("unet_sd1_small");
    // One residual block per level.
    let weights = gold.weights().into_iter();
    let theirs: BTreeMap<String, Stored> = weights
        .map(|(key, value)| (diffusers_name(&key), value))
        .collect();
    assert!(theirs.contains_key("up_blocks.1.upsamplers.0.conv.weight"));
    let net = file(theirs);
    let found = detect_checkpoint(&net).unwrap();
    let mut config = config_of(&found).unet.clone();
    config.heads = crate::gold::config(&gold.about["config"]).heads;
    let unet = UNet::new(&found.store(&net, Device::cpu()), &config).unwrap();
    let (x, t) = (gold.tensor("x"), gold.tensor("t"));
    let context = gold.tensor("context");
    let hooks = Hooks::default();
    let out = unet
        .forward(&x, t.data(), Some(&context), None, None, &hooks)
        .unwrap();
    assert_near(&out, &gold.tensor("out"), "diffusers");
}

/// Names of a network with one residual block per level.
pub(crate) fn diffusers_name(key: &str) -> String {
    let mut name = key.to_owned();
    for (ours, theirs) in [
        ("time_embed.0", "time_embedding.linear_1"),
        ("time_embed.2", "time_embedding.linear_2"),
        ("input_blocks.0.0.", "conv_in."),
        ("middle_block.0.", "mid_block.resnets.0."),
        ("middle_block.1.", "mid_block.attentions.0."),
        ("middle_block.2.", "mid_block.resnets.1."),
        ("in_layers.0", "norm1"),
        ("in_layers.2", "conv1"),
        ("emb_layers.1", "time_emb_proj"),
        ("out_layers.0", "norm2"),
        ("out_layers.3", "conv2"),
        ("skip_connection", "conv_shortcut"),
    ] {
        name = name.replace(ours, theirs);
    }
    for (ours, theirs) in [("out.0.", "conv_norm_out."), ("out.2.", "conv_out.")] {
        if let Some(rest) = name.strip_prefix(ours) {
            name = format!("{theirs}{rest}");
        }
    }
    for n in 0..6 {
        let (level, i) = (n / 2, n % 2);
        for slot in 1..3 {
            let up = format!("output_blocks.{n}.{slot}.conv.");
            name = name.replace(&up, &format!("up_blocks.{level}.upsamplers.0.conv."));
        }
        name = name.replace(
            &format!("output_blocks.{n}.0."),
            &format!("up_blocks.{level}.resnets.{i}."),
        );
        name = name.replace(
            &format!("output_blocks.{n}.1."),
            &format!("up_blocks.{level}.attentions.{i}."),
        );
    }
    for n in 1..6 {
        let level = (n - 1) / 2;
        name = name.replace(
            &format!("input_blocks.{n}.0.op."),
            &format!("down_blocks.{level}.downsamplers.0.conv."),
        );
        name = name.replace(
            &format!("input_blocks.{n}.0."),
            &format!("down_blocks.{level}.resnets.0."),
        );
        name = name.replace(
            &format!("input_blocks.{n}.1."),
            &format!("down_blocks.{level}.attentions.0."),
        );
    }
    name
}

fn message(keys: &[&str]) -> String {
    let weights = keys.iter().map(|k| ((*k).to_owned(), zeros(&[2, 2])));
    detect(weights.collect()).unwrap_err().to_string()
}

#[test]
fn other_files_are_called_by_name() {
    for (keys, name) in [
        (
            &["lora_unet_x.lora_down.weight", "lora_unet_x.lora_up.weight"][..],
            "a LoRA",
        ),
        (&["emb_params"], "an embedding"),
        (&["decoder.conv_in.weight"], "a VAE"),
        (
            &["text_model.encoder.layers.0.mlp.fc1.weight"],
            "a text encoder",
        ),
        (&["control_model.zero_convs.0.0.weight"], "a control net"),
        (&["model.1.sub.0.RDB1.conv1.0.weight"], "an upscale model"),
        (
            &["vision_model.encoder.layers.0.mlp.fc1.weight"],
            "a CLIP vision model",
        ),
        (&["something", "else"], "no known model has its 2 tensors"),
        (&[], "holds no tensors"),
    ] {
        let said = message(keys);
        assert!(said.contains(name), "{said}");
        assert!(said.starts_with("memory.safetensors: "), "{said}");
    }
}

#[test]
fn incomplete_files_say_what_is_missing() {
    let drop = |gone: &dyn Fn(&str) -> bool| {
        let mut weights = checkpoint();
        weights.retain(|key, _| !gone(key));
        let net = file(weights);
        let found = detect_checkpoint(&net)?;
        found.open(&net, Device::cpu()).map(|_| ())
    };
    let said = |gone: &dyn Fn(&str) -> bool| drop(gone).unwrap_err().to_string();
    assert!(drop(&|_| false).is_ok());
    let one = said(&|k| k.ends_with("input_blocks.3.1.transformer_blocks.0.norm2.bias"));
    assert!(
        one.contains("lacks the weight \"input_blocks.3.1.transformer_blocks.0.norm2.bias\""),
        "{one}"
    );
    let many = said(&|k| k.contains("attn2.to_q"));
    assert!(
        many.contains("7 of the 326 weights of the UNet are missing"),
        "{many}"
    );
    assert!(
        many.contains("input_blocks.1.1.transformer_blocks.0.attn2.to_q.weight")
            && many.ends_with(", .."),
        "{many}"
    );
    // The end of the file never came.
    let half = said(&|k| k.contains("output_blocks.4.") || k.contains("output_blocks.5."));
    assert!(half.contains("output_blocks.4"), "{half}");
    let hole = said(&|k| k.contains("input_blocks.3."));
    assert!(hole.contains("input_blocks.3"), "{hole}");
    let last = said(&|k| k.contains("model.out.2.weight"));
    assert!(last.contains("out.2.weight"), "{last}");
    let deep = |k: &str| k.contains("input_blocks.1.1.transformer_blocks.0.attn2.to_k");
    assert!(said(&deep).contains("attn2.to_k"));
}

#[test]
fn hostile_names_do_no_harm() {
    let mut weights = checkpoint();
    let far = "model.diffusion_model.input_blocks.999999999999999999.0.in_layers.0.weight";
    weights.insert(far.to_owned(), zeros(&[1]));
    assert!(detect(weights).is_err());
    let mut weights = checkpoint();
    let odd =
        "model.diffusion_model.input_blocks.1.1.transformer_blocks.18446744073709551615.norm1.bias";
    weights.insert(odd.to_owned(), zeros(&[1]));
    assert!(detect(weights).is_err());
    for shape in [&[][..], &[3], &[0, 0, 0, 0], &[32, 4, 3]] {
        let mut weights = checkpoint();
        let key = "model.diffusion_model.input_blocks.0.0.weight";
        weights.insert(key.to_owned(), zeros(shape));
        assert!(detect(weights).is_err(), "{shape:?}");
    }
}

#[test]
fn weights_that_are_no_numbers_are_found() {
    let gold = Gold::open("unet_sd1_small");
    let mut weights = gold.weights();
    let bad = |v: f32| Stored::from_f32(&Tensor::full([32], v).unwrap(), Dtype::F16).unwrap();
    weights.insert("out.0.bias".to_owned(), bad(f32::NAN));
    weights.insert("input_blocks.0.0.bias".to_owned(), bad(f32::INFINITY));
    let store = store(weights);
    let keys = nan_keys(&store, 10).unwrap();
    assert_eq!(keys, ["input_blocks.0.0.bias", "out.0.bias"]);
    assert_eq!(nan_keys(&store, 1).unwrap().len(), 1);
    assert!(nan_keys(&gold.store(), 10).unwrap().is_empty());
}
