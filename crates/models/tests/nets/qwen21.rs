//! Qwen-Image 2.1: files by their names, places of references, and what is kept from step to step.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_models::denoise::hooks::Hooks;
use fresco_models::denoise::{CallConds, Cond, CondValue, EncodeArgs, ModelConds, NetworkInput};
use fresco_models::qwen_image21::{PrefixCache, Qwen21Config, Qwen21Network, SLOTS};
use fresco_models::store::Layout;
use fresco_models::vae::{CausalConfig, VaeConfig, names};
use fresco_models::{DiffusionNetwork, ModelError, Spacing, detect_checkpoint};
use fresco_tensor::{Device, Stored, Tensor, WeightFile, synthetic};

use crate::gold::{Gold, MemoryFile, wave};
use crate::qwen::names_only;

/// As published, with the feed-forward matrices as a file has them.
fn published(joined: bool) -> Qwen21Config {
    Qwen21Config {
        layers: 32,
        width: 4096,
        head: 128,
        context: 4096,
        input: 64,
        output: 64,
        inner: 3 * 4096,
        joined,
        axes: [16, 56, 56],
    }
}

#[test]
fn full_size_networks_are_known() {
    for joined in [true, false] {
        let config = published(joined);
        let layout = Layout::of(|weights| Qwen21Network::new(weights, &config)).unwrap();
        let each = if joined { 8 } else { 9 };
        assert_eq!(layout.items().len(), 9 + 32 * each);
        for prefix in ["", "model.diffusion_model."] {
            let keys = layout.items().iter();
            let keys = keys.map(|(key, shape)| (format!("{prefix}{key}"), shape.clone()));
            let found = detect_checkpoint(&names_only(keys.collect())).unwrap();
            assert_eq!(found.family, "Qwen-Image 2.1");
            let read: &Qwen21Config = found.network.config().downcast_ref().unwrap();
            assert_eq!(*read, config);
            let facts = found.network.facts();
            assert_eq!((facts.latent.name, facts.latent.ratio), ("QwenImage21", 16));
            assert_eq!(facts.latent_channels, 64);
            assert_eq!(
                facts.sampling.spacing,
                Spacing::ExponentialFlow { shift: 0.69 }
            );
        }
    }
}

fn encoded(cond: &Cond, config: &Qwen21Config) -> Result<ModelConds, ModelError> {
    let noise = Tensor::zeros([1, config.input, 4, 4]).unwrap();
    Qwen21Network::encode(
        config,
        "some.safetensors",
        &EncodeArgs {
            cond,
            noise: &noise,
            latent: None,
            denoise_mask: None,
            width: 64.0,
            height: 64.0,
            prompt_type: "positive",
        },
    )
}

/// Rows of pictures go, and their places stay.
#[test]
fn references_have_places_in_the_prompt() {
    let config = Qwen21Config {
        context: 3,
        ..published(true)
    };
    let mut cond = Cond {
        tokens: Some(Tensor::from_fn([1, 7, 3], |i| (i / 3) as f32).unwrap()),
        ..Cond::default()
    };
    let slots = Tensor::from_vec([1, 7], vec![0.0, 1.0, 1.0, 0.0, 2.0, 0.0, 0.0]).unwrap();
    cond.tensors.insert(SLOTS.into(), slots);
    let rows = |conds: &ModelConds| -> Vec<f32> {
        let tokens = conds["c_crossattn"].tensor().unwrap();
        tokens.data().iter().step_by(3).copied().collect()
    };
    // Without latents, pictures are rows like others.
    let made = encoded(&cond, &config).unwrap();
    assert_eq!(rows(&made).len(), 7);
    assert!(!made.contains_key("ref_latents"));
    let latent = Tensor::zeros([1, 64, 2, 2]).unwrap();
    let list = vec![latent.clone(), latent.clone(), latent];
    cond.lists.insert("reference_latents".into(), list);
    let made = encoded(&cond, &config).unwrap();
    assert_eq!(rows(&made), [0.0, 3.0, 5.0, 6.0]);
    let CondValue::Word(places) = &made["ref_slots"] else {
        panic!("{made:?}");
    };
    // The third is in no row of the prompt, so it stands behind it.
    assert_eq!(&**places, "1,2,4");
    let other = Tensor::zeros([1, 16, 1, 2, 2]).unwrap();
    cond.lists.insert("reference_latents".into(), vec![other]);
    let error = encoded(&cond, &config).unwrap_err().to_string();
    assert!(error.contains("another family"), "{error}");
    cond.tokens = Some(Tensor::zeros([1, 7, 4]).unwrap());
    let error = encoded(&cond, &config).unwrap_err().to_string();
    assert!(
        error.contains("width 3") && error.contains("another family"),
        "{error}"
    );
    let marks = Tensor::zeros([1, 3]).unwrap();
    cond.tokens = Some(Tensor::zeros([1, 7, 3]).unwrap());
    cond.tensors.insert(SLOTS.into(), marks);
    let latent = Tensor::zeros([1, 64, 2, 2]).unwrap();
    cond.lists.insert("reference_latents".into(), vec![latent]);
    assert!(encoded(&cond, &config).is_err());
}

/// As everything else sees it: a pass with a cache and without, joined feed-forward matrices and not, is the same.
#[test]
fn passes_with_and_without_a_cache() {
    let gold = Gold::open("qwen_image21_small");
    let apart = gold.weights();
    let mut joined: BTreeMap<String, Stored> = BTreeMap::new();
    for (key, value) in &apart {
        if let Some(block) = key.strip_suffix(".gate_layer.weight") {
            let gate = value.to_f32().unwrap();
            let up = apart[&format!("{block}.proj.weight")].to_f32().unwrap();
            let both = Tensor::cat(&[&gate, &up], 0).unwrap();
            joined.insert(format!("{block}.gate_up.weight"), Stored::from(&both));
        } else if !key.ends_with("img_mlp.proj.weight") {
            joined.insert(key.clone(), value.clone());
        }
    }
    let open = |weights: BTreeMap<String, Stored>| {
        let file: Arc<dyn WeightFile> = Arc::new(MemoryFile::new(weights));
        let found = detect_checkpoint(&file).unwrap();
        let store = found.store(&file, Device::cpu());
        let config: &Qwen21Config = found.network.config().downcast_ref().unwrap();
        let build = |weights: &fresco_models::Walk<'_>| Qwen21Network::new(weights, config);
        store.build("it", build).unwrap()
    };
    let nets = [open(apart), open(joined)];
    let mut conds = CallConds::default();
    let context = wave(&[2, 5, 48], 0.07);
    conds.0.insert("c_crossattn", CondValue::Regular(context));
    let reference = synthetic::value("ref", &[2, 8, 2, 4], 1.0).unwrap();
    conds
        .0
        .insert("ref_latents", CondValue::List(vec![reference]));
    conds.0.insert("ref_slots", CondValue::Word("2".into()));
    let x = synthetic::value("x", &[2, 8, 4, 2], 1.0).unwrap();
    let pass = |net: &Qwen21Network, level: f32, hooks: &Hooks| {
        net.forward(&NetworkInput {
            x: &x,
            timesteps: &[level; 2],
            conds: &conds,
            control: None,
            hooks,
        })
        .unwrap()
    };
    for in_main_memory in [false, true] {
        let mut hooks = Hooks::default();
        hooks
            .beside
            .push(Arc::new(PrefixCache::new(in_main_memory)));
        for level in [1.0, 0.4] {
            let plain = pass(&nets[0], level, &Hooks::default());
            assert_eq!(plain.shape(), x.shape());
            assert_eq!(pass(&nets[0], level, &hooks), plain);
            let other = pass(&nets[1], level, &Hooks::default());
            for (a, b) in other.data().iter().zip(plain.data()) {
                assert!((a - b).abs() < 1e-5, "{a} {b}");
            }
        }
    }
    // A word that names no places.
    conds.0.insert("ref_slots", CondValue::Word("two".into()));
    let wrong = nets[0].forward(&NetworkInput {
        x: &x,
        timesteps: &[1.0; 2],
        conds: &conds,
        control: None,
        hooks: &Hooks::default(),
    });
    assert!(wrong.unwrap_err().to_string().contains("two"));
}

fn go() -> Result<(), ModelError> {
    Ok(())
}

/// Pictures only, each by itself, with opacity.
#[test]
fn the_autoencoder_knows_pictures() {
    let gold = Gold::open("qwen_image21_vae_small");
    let file: Arc<dyn WeightFile> = Arc::new(MemoryFile::new(gold.weights()));
    let store = names::store(&file, "", Device::cpu());
    let config = VaeConfig::detect(&store).unwrap();
    config.verify(&store).unwrap();
    let facts = config.facts();
    assert_eq!((facts.temporal_ratio, facts.picture_channels), (None, 4));
    assert_eq!((facts.latent_channels, facts.ratio), (6, 4));
    let vae = config.build(&store).unwrap();
    let images = wave(&[3, 16, 24, 3], 0.2).mul_scalar(0.5).add_scalar(0.5);
    let latent = vae.encode(&images, &go).unwrap();
    assert_eq!(latent.shape(), [3, 6, 4, 6]);
    let one = vae.encode(&images.narrow(0, 2, 1).unwrap(), &go).unwrap();
    assert_eq!(latent.narrow(0, 2, 1).unwrap(), one);
    let decoded = vae.decode(&latent, &go).unwrap();
    assert_eq!(decoded.shape(), [3, 16, 24, 4]);
    let Some(causal) = config.get::<CausalConfig>() else {
        panic!("another autoencoder");
    };
    assert!(causal.is_still());
    let video = vae.decode(&Tensor::zeros([1, 6, 2, 4, 6]).unwrap(), &go);
    assert!(video.is_err());
}
