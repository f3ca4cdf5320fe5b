//! Files that are not as they should be, and what of a good file is used.

use std::path::Path;

use fresco_models::lora::{LoraFile, LoraProblem, NameMap, load};
use fresco_tensor::{Tensor, safetensors};

fn write(folder: &Path, tensors: &[(&str, Tensor)]) -> LoraFile {
    let path = folder.join("a.safetensors");
    let list: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (*n, t)).collect();
    safetensors::write(&path, &list, &[]).unwrap();
    LoraFile::open(&path).unwrap()
}

fn names() -> NameMap {
    NameMap::for_model(&[
        ("a.weight", &[8, 6]),
        ("a.bias", &[8]),
        ("b.weight", &[8, 6]),
    ])
}

fn ones(shape: &[usize]) -> Tensor {
    Tensor::ones(shape).unwrap()
}

#[test]
fn what_matches_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(
        folder.path(),
        &[
            ("lora_unet_a.lora_up.weight", ones(&[8, 2])),
            ("lora_unet_a.lora_down.weight", ones(&[2, 6])),
            ("lora_unet_a.alpha", Tensor::scalar(1.0)),
            ("lora_unet_a.diff_b", ones(&[8])),
            ("lora_unet_z.lora_up.weight", ones(&[8, 2])),
            ("something", ones(&[1])),
        ],
    );
    let loaded = load(&file, &names()).unwrap();
    assert_eq!(loaded.used, 4);
    assert_eq!(loaded.unused, ["lora_unet_z.lora_up.weight", "something"]);
    let keys: Vec<_> = loaded.targets().map(|t| t.key.as_str()).collect();
    assert_eq!(keys, ["diffusion_model.a.weight", "diffusion_model.a.bias"]);
    assert_eq!(loaded.patches(1.0, |key| key.ends_with("bias")).len(), 1);
}

#[test]
fn half_an_adapter_and_values_that_are_no_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(
        folder.path(),
        &[("lora_unet_a.lora_up.weight", ones(&[8, 2]))],
    );
    assert!(matches!(
        load(&file, &names()),
        Err(LoraProblem::Incomplete { missing, .. }) if missing == "lora_unet_a.lora_down.weight"
    ));
    let file = write(
        folder.path(),
        &[
            (
                "lora_unet_a.lora_up.weight",
                Tensor::full([8, 2], f32::NAN).unwrap(),
            ),
            ("lora_unet_a.lora_down.weight", ones(&[2, 6])),
        ],
    );
    assert!(matches!(
        load(&file, &names()),
        Err(LoraProblem::NotFinite { .. })
    ));
    let file = write(
        folder.path(),
        &[
            ("lora_unet_a.lora_up.weight", ones(&[8, 2])),
            ("lora_unet_a.lora_down.weight", ones(&[2, 6])),
            ("lora_unet_a.alpha", ones(&[2])),
        ],
    );
    assert!(matches!(
        load(&file, &names()),
        Err(LoraProblem::Unusable { .. })
    ));
}

#[test]
fn not_a_weight_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    std::fs::write(&path, b"<!DOCTYPE html>").unwrap();
    assert!(matches!(
        LoraFile::open(&path),
        Err(LoraProblem::Weights(_))
    ));
    assert!(LoraFile::open(&folder.path().join("none")).is_err());
}

/// Shapes that fit nothing are reported with both shapes and leave the weight alone.
#[test]
fn l08_changes_that_do_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let cases: &[&[(&str, &[usize])]] = &[
        &[("lora_up.weight", &[9, 2]), ("lora_down.weight", &[2, 6])],
        &[("lora_up.weight", &[8, 3]), ("lora_down.weight", &[2, 6])],
        &[("lora_up.weight", &[8]), ("lora_down.weight", &[2, 6])],
        &[("lora_up.weight", &[8, 0]), ("lora_down.weight", &[0, 7])],
        &[
            ("hada_w1_a", &[8, 2]),
            ("hada_w1_b", &[2, 6]),
            ("hada_w2_a", &[8, 2]),
            ("hada_w2_b", &[3, 6]),
        ],
        &[("lokr_w1", &[2, 2]), ("lokr_w2", &[3, 3])],
        &[("lokr_w1", &[2]), ("lokr_w2", &[3, 3])],
        &[
            ("a1.weight", &[2, 6]),
            ("a2.weight", &[6, 3]),
            ("b1.weight", &[2, 6]),
            ("b2.weight", &[8, 2]),
        ],
        &[("oft_blocks", &[3, 4, 4])],
        &[("oft_blocks", &[2, 4, 3])],
        &[("oft_blocks", &[60, 2, 4, 4])],
        &[("oft_blocks", &[2, 8, 1, 1])],
        &[("diff", &[8, 7])],
        &[
            ("lora_up.weight", &[8, 2]),
            ("lora_down.weight", &[2, 6]),
            ("dora_scale", &[5]),
        ],
    ];
    for case in cases {
        let tensors: Vec<(String, Tensor)> = case
            .iter()
            .map(|(part, shape)| (format!("diffusion_model.a.{part}"), ones(shape)))
            .collect();
        let list: Vec<(&str, Tensor)> = tensors.iter().map(|(n, t)| (&**n, t.clone())).collect();
        let loaded = load(&write(folder.path(), &list), &names()).unwrap();
        let patches = loaded.patches(1.0, |_| true);
        assert_eq!(patches.len(), 1, "{case:?}");
        assert!(patches[0].1.changed_shape(&[8, 6]).is_err(), "{case:?}");
        let set = fresco_models::PatchSet::default().with(patches);
        let weight = Tensor::from_fn([8, 6], |i| i as f32).unwrap();
        let merged = set
            .apply("diffusion_model.a.weight", weight.clone())
            .unwrap();
        assert_eq!(merged, weight, "{case:?}");
    }
}

/// The control files of Black Forest Labs widen the first layer and replace norms.
#[test]
fn l06_control_files_are_renamed() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(
        folder.path(),
        &[
            ("img_in.lora_A.weight", ones(&[2, 10])),
            ("img_in.lora_B.weight", ones(&[8, 2])),
            ("img_in.lora_B.bias", ones(&[8])),
            ("single_blocks.0.norm.key_norm.scale", ones(&[4])),
        ],
    );
    let names = NameMap::for_model(&[
        ("double_blocks.0.img_attn.qkv.weight", &[24, 8]),
        ("img_in.bias", &[8]),
        ("img_in.weight", &[8, 6]),
        ("single_blocks.0.norm.key_norm.scale", &[4]),
    ]);
    let loaded = load(&file, &names).unwrap();
    assert!(loaded.unused.is_empty(), "{:?}", loaded.unused);
    let set = fresco_models::PatchSet::default().with(loaded.patches(1.0, |_| true));
    let weight = Tensor::zeros([8, 6]).unwrap();
    let merged = set.apply("diffusion_model.img_in.weight", weight).unwrap();
    assert_eq!(merged, Tensor::full([8, 10], 2.0).unwrap());
    let norm = "diffusion_model.single_blocks.0.norm.key_norm.scale";
    let merged = set.apply(norm, Tensor::zeros([4]).unwrap()).unwrap();
    assert_eq!(merged, ones(&[4]));
    assert_eq!(set.get("diffusion_model.img_in.bias").len(), 1);
}
