//! Where the weights of a CLIP text encoder are in the files that bring one, and under which names.
//!
//! Inside Fresco the names are those of the `transformers` library (`text_model.encoder.layers.0.mlp.fc1.weight`).

use std::collections::BTreeMap;

use fresco_tensor::WeightFile;

use super::ClipKind;
use crate::name_table::{NameTable, Rule, cut, layer, place, transposed, value, within};
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
        let mut keys = OPEN_CLIP.origins(file, prefix, &inside);
        keys.append(&mut OWN_PROJECTION.origins(file, prefix, &inside));
        keys
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

/// A block in the layout of OpenCLIP: the three projections of attention are one tensor.
pub const OPEN_CLIP_BLOCK: &[Rule] = &[
    layer("ln_1", "layer_norm1"),
    layer("ln_2", "layer_norm2"),
    layer("mlp.c_fc", "mlp.fc1"),
    layer("mlp.c_proj", "mlp.fc2"),
    layer("attn.out_proj", "self_attn.out_proj"),
    cut("attn.in_proj_", "self_attn.q_proj", 0, 3),
    cut("attn.in_proj_", "self_attn.k_proj", 1, 3),
    cut("attn.in_proj_", "self_attn.v_proj", 2, 3),
];

/// The layout of OpenCLIP.
pub static OPEN_CLIP: NameTable = NameTable::new(&[
    place(
        "transformer.resblocks.{i}.",
        "text_model.encoder.layers.{i}.",
        OPEN_CLIP_BLOCK,
    ),
    place(
        "",
        "text_model.",
        &[
            value(
                "positional_embedding",
                "embeddings.position_embedding.weight",
            ),
            value(
                "token_embedding.weight",
                "embeddings.token_embedding.weight",
            ),
            layer("ln_final", "final_layer_norm"),
        ],
    ),
    within(
        "",
        &[value("text_projection.weight", "text_projection.weight")],
    ),
]);

/// The projection in files that keep it as a matrix of its own.
pub static OWN_PROJECTION: NameTable = NameTable::new(&[within(
    "",
    &[transposed("text_projection", "text_projection.weight")],
)]);

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
