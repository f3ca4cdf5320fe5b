//! Where the weights of a CLIP text encoder are in the files that bring one, and under which names.
//!
//! Inside Fresco the names are those of the `transformers` library (`text_model.encoder.layers.0.mlp.fc1.weight`).

use std::collections::BTreeMap;

use fresco_tensor::WeightFile;

use super::ClipKind;
use crate::store::Origin;

/// Internal names of the tensors under `prefix`, whichever of the two layouts they have there. Empty if there is no text
/// encoder.
pub(super) fn keys(file: &dyn WeightFile, prefix: &str) -> BTreeMap<String, Origin> {
    let names = file.names();
    let inside: Vec<&str> = names
        .iter()
        .filter_map(|n| n.strip_prefix(prefix))
        .collect();
    if inside.contains(&"transformer.resblocks.0.ln_1.weight") {
        open_clip(file, prefix, &inside)
    } else {
        transformers(prefix, &inside)
    }
}

/// The layout of `transformers`. Old files leave out `text_model.`; the projection may lack `.weight`.
fn transformers(prefix: &str, inside: &[&str]) -> BTreeMap<String, Origin> {
    const ROOTS: [&str; 3] = ["embeddings.", "encoder.", "final_layer_norm."];
    let mut keys = BTreeMap::new();
    for name in inside {
        let full = format!("{prefix}{name}");
        let (key, origin) = match *name {
            "text_projection" => (
                "text_projection.weight".to_owned(),
                Origin::Transposed(full),
            ),
            "text_projection.weight" => ((*name).to_owned(), Origin::Whole(full)),
            _ if name.ends_with("position_ids") => continue,
            _ if name.starts_with("text_model.") => ((*name).to_owned(), Origin::Whole(full)),
            _ if ROOTS.iter().any(|root| name.starts_with(root)) => {
                (format!("text_model.{name}"), Origin::Whole(full))
            }
            _ => continue,
        };
        keys.insert(key, origin);
    }
    keys
}

/// The layout of OpenCLIP: other names, and the three projections of attention in one tensor.
fn open_clip(file: &dyn WeightFile, prefix: &str, inside: &[&str]) -> BTreeMap<String, Origin> {
    const RENAMED: [(&str, &str); 4] = [
        (
            "positional_embedding",
            "text_model.embeddings.position_embedding.weight",
        ),
        (
            "token_embedding.weight",
            "text_model.embeddings.token_embedding.weight",
        ),
        ("ln_final.weight", "text_model.final_layer_norm.weight"),
        ("ln_final.bias", "text_model.final_layer_norm.bias"),
    ];
    const IN_BLOCK: [(&str, &str); 5] = [
        ("ln_1.", "layer_norm1."),
        ("ln_2.", "layer_norm2."),
        ("mlp.c_fc.", "mlp.fc1."),
        ("mlp.c_proj.", "mlp.fc2."),
        ("attn.out_proj.", "self_attn.out_proj."),
    ];
    let mut keys = BTreeMap::new();
    for name in inside {
        let full = format!("{prefix}{name}");
        if let Some((_, key)) = RENAMED.iter().find(|(from, _)| from == name) {
            keys.insert((*key).to_owned(), Origin::Whole(full));
            continue;
        }
        match *name {
            "text_projection" => {
                keys.insert(
                    "text_projection.weight".to_owned(),
                    Origin::Transposed(full),
                );
                continue;
            }
            "text_projection.weight" => {
                keys.insert((*name).to_owned(), Origin::Whole(full));
                continue;
            }
            _ => {}
        }
        let block = name.strip_prefix("transformer.resblocks.");
        let Some((number, rest)) = block.and_then(|b| b.split_once('.')) else {
            continue;
        };
        let layer = format!("text_model.encoder.layers.{number}");
        for (from, to) in IN_BLOCK {
            if let Some(part) = rest.strip_prefix(from) {
                keys.insert(format!("{layer}.{to}{part}"), Origin::Whole(full.clone()));
            }
        }
        if let Some(part) = rest.strip_prefix("attn.in_proj_") {
            let rows = file.info(&full).and_then(|i| i.shape.first().copied());
            let count = rows.unwrap_or(0) / 3;
            for (third, projection) in ["q_proj", "k_proj", "v_proj"].into_iter().enumerate() {
                let origin = Origin::Rows {
                    name: full.clone(),
                    start: third * count,
                    count,
                };
                keys.insert(format!("{layer}.self_attn.{projection}.{part}"), origin);
            }
        }
    }
    keys
}

/// Which encoder the keys are of, by its number of layers; a small one counts as the smallest.
pub(super) fn kind(keys: &BTreeMap<String, Origin>) -> Option<ClipKind> {
    let layer =
        |i: usize| keys.contains_key(&format!("text_model.encoder.layers.{i}.mlp.fc1.weight"));
    if layer(30) {
        Some(ClipKind::G)
    } else if layer(22) {
        Some(ClipKind::H)
    } else {
        layer(0).then_some(ClipKind::L)
    }
}
