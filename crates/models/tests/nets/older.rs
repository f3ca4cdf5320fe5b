//! Older families of pictures: files in other people's names, what conditions become, what is missing.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_models::denoise::{Cond, EncodeArgs, SeenPicture};
use fresco_models::sd::unclip;
use fresco_models::{ModelError, detect_checkpoint};
use fresco_tensor::weights::InMemory;
use fresco_tensor::{Device, Stored, Tensor, WeightFile, synthetic};

use crate::gold;

fn weights(golden: &str) -> BTreeMap<String, Vec<usize>> {
    let about = gold::json(golden);
    let keys = about["keys"].as_object().unwrap().iter();
    keys.map(|(key, shape)| (key.clone(), gold::sizes(shape)))
        .collect()
}

/// A file of made-up weights.
fn file(keys: &BTreeMap<String, Vec<usize>>) -> Arc<dyn WeightFile> {
    let weights = keys.iter().map(|(key, shape)| {
        let weight = synthetic::weight(key, shape).unwrap();
        (key.clone(), Stored::from(&weight))
    });
    let weights = weights.collect();
    Arc::new(InMemory::new("model.safetensors", weights, Vec::new()))
}

#[test]
fn every_family_is_known_and_says_what_it_lacks() {
    for (golden, family) in [
        ("pixart_alpha_small", "PixArt Alpha"),
        ("pixart_sigma_small", "PixArt Sigma"),
        ("auraflow_small", "AuraFlow"),
        ("hydit_small", "HunyuanDiT 1.2"),
        ("hydit1_small", "HunyuanDiT 1.1"),
        ("cascade_b_small", "Stable Cascade B"),
        ("cascade_c_small", "Stable Cascade C"),
    ] {
        let mut keys = weights(golden);
        let whole = file(&keys);
        let found = detect_checkpoint(&whole).unwrap();
        assert_eq!(found.family, family);
        found.open(&whole, Device::cpu()).unwrap();
        // A bias of a block, which nothing but its own layer speaks of.
        let lost = keys
            .keys()
            .rfind(|key| key.contains("locks.") && key.strip_suffix(".bias").is_some())
            .or_else(|| keys.keys().rfind(|key| key.contains("single_layers.")))
            .cloned()
            .unwrap();
        keys.remove(&lost);
        let part = file(&keys);
        let error = detect_checkpoint(&part)
            .and_then(|found| found.open(&part, Device::cpu()).map(drop))
            .unwrap_err()
            .to_string();
        assert!(error.contains(&lost), "{golden}: {error}");
    }
}

#[test]
fn names_of_diffusers_lead_to_the_same_weights() {
    // Queries, keys and values are matrices of their own there.
    let mut theirs = BTreeMap::new();
    for (key, shape) in weights("pixart_alpha_small") {
        let renamed = [
            ("blocks.", "transformer_blocks."),
            (".attn.proj.", ".attn1.to_out.0."),
            (".cross_attn.q_linear.", ".attn2.to_q."),
            (".cross_attn.proj.", ".attn2.to_out.0."),
            (".mlp.fc1.", ".ff.net.0.proj."),
            (".mlp.fc2.", ".ff.net.2."),
            ("x_embedder.proj.", "pos_embed.proj."),
            ("t_block.1.", "adaln_single.linear."),
            ("final_layer.linear.", "proj_out."),
            ("final_layer.scale_shift_table", "scale_shift_table"),
            ("y_embedder.y_proj.fc1.", "caption_projection.linear_1."),
            ("y_embedder.y_proj.fc2.", "caption_projection.linear_2."),
        ];
        let embedders = [
            ("t", "timestep"),
            ("csize", "resolution"),
            ("ar", "aspect_ratio"),
        ];
        let mut name = key.clone();
        for (ours, their) in embedders {
            for (number, layer) in [(0, 1), (2, 2)] {
                name = name.replace(
                    &format!("{ours}_embedder.mlp.{number}."),
                    &format!("adaln_single.emb.{their}_embedder.linear_{layer}."),
                );
            }
        }
        if name == key {
            for (ours, their) in renamed {
                if name.starts_with(ours) || (ours.starts_with('.') && name.contains(ours)) {
                    name = name.replacen(ours, their, 1);
                }
            }
        }
        let (parts, base): (&[&str], &str) = match &name {
            n if n.contains(".attn.qkv.") => {
                (&["attn1.to_q", "attn1.to_k", "attn1.to_v"], "attn.qkv")
            }
            n if n.contains(".cross_attn.kv_linear.") => {
                (&["attn2.to_k", "attn2.to_v"], "cross_attn.kv_linear")
            }
            _ => (&[], ""),
        };
        if parts.is_empty() {
            if !key.ends_with("y_embedding") {
                theirs.insert(name, shape);
            }
            continue;
        }
        let mut part = shape.clone();
        part[0] /= parts.len();
        for their in parts {
            theirs.insert(name.replace(base, their), part.clone());
        }
    }
    let file = file(&theirs);
    let found = detect_checkpoint(&file).unwrap();
    assert_eq!(found.family, "PixArt Alpha");
    found.open(&file, Device::cpu()).unwrap();
    let store = found.store(&file, Device::cpu());
    let keys = store.tensor("blocks.1.attn.qkv.weight").unwrap();
    let k = synthetic::weight("transformer_blocks.1.attn1.to_k.weight", &[96, 96]).unwrap();
    assert_eq!(keys.narrow(0, 96, 96).unwrap(), k);
}

fn encoded(golden: &str, cond: &Cond) -> Result<(), ModelError> {
    let file = file(&weights(golden));
    let model = detect_checkpoint(&file)?.open(&file, Device::cpu())?;
    let noise = Tensor::zeros([1, 4, 36, 36]).unwrap();
    let args = EncodeArgs {
        cond,
        noise: &noise,
        latent: None,
        denoise_mask: None,
        width: 288.0,
        height: 288.0,
        prompt_type: "positive",
    };
    model.extra_conds(&args).map(drop)
}

#[test]
fn text_of_another_family_is_refused_by_name() {
    let narrow = Cond::new(Tensor::zeros([1, 5, 8]).unwrap());
    for golden in [
        "pixart_alpha_small",
        "auraflow_small",
        "hydit_small",
        "cascade_c_small",
    ] {
        let error = encoded(golden, &narrow).unwrap_err().to_string();
        assert!(
            error.contains("model.safetensors") && error.contains("width 8"),
            "{golden}: {error}"
        );
    }
    let error = encoded("cascade_b_small", &narrow).unwrap_err();
    assert!(error.to_string().contains("no pooled text"), "{error}");
    let alone = Cond::new(Tensor::zeros([1, 6, 32]).unwrap());
    let error = encoded("hydit_small", &alone).unwrap_err().to_string();
    assert!(error.contains("multilingual T5 of width 48"), "{error}");
}

#[test]
fn pictures_that_lead_have_the_width_of_the_model() {
    let seen = |width: usize| SeenPicture {
        embeds: Tensor::ones([2, width]).unwrap(),
        strength: 0.5,
        noise: 0.0,
    };
    let none = unclip::vector(&[], 1, 0.05, 32).unwrap();
    assert!(none.shape() == [1, 32] && none.data().iter().all(|v| *v == 0.0));
    // Two pictures are one more than one: they are summed, and noise is put on the sum.
    let two = unclip::vector(&[seen(16)], 1, 0.0, 32).unwrap();
    assert_eq!(two.shape(), [1, 32]);
    assert!((two.data()[0] - 1.0).abs() < 0.1, "{:?}", two.data());
    assert_eq!(unclip::vector(&[seen(16)], 1, 0.0, 32).unwrap(), two);
    let error = unclip::vector(&[seen(8)], 1, 0.0, 32).unwrap_err();
    assert!(
        error.to_string().contains("vectors of 16 numbers"),
        "{error}"
    );
}
