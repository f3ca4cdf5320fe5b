//! What loaders say about the format that changed weights are kept in.

use std::sync::Arc;

use fresco_files::Folders;
use fresco_files::dirs::Dirs;
use fresco_graph::{Cx, Resources, map};
use fresco_models::LoraStorage;
use fresco_nodes::sampling::Model;
use fresco_tensor::{Dtype, Stored, safetensors, synthetic};

use crate::harness::*;

/// Eight bits for what LoRAs change: only where a loader says so and most of the model has them.
#[test]
fn low_precision_is_for_models_of_eight_bits() {
    let base = tempfile::tempdir().unwrap();
    let folder = base.path().join("models/diffusion_models");
    std::fs::create_dir_all(&folder).unwrap();
    for (name, dtype) in [("eight", Dtype::F8E5M2), ("half", Dtype::F16)] {
        let weights = keys("unet_sd1_small").into_iter().map(|(key, shape)| {
            let plain = synthetic::weight(&key, &shape).unwrap();
            (key, Stored::from_f32(&plain, dtype).unwrap())
        });
        let weights: Vec<(String, Stored)> = weights.collect();
        let list: Vec<(&str, &Stored)> = weights.iter().map(|(n, v)| (&**n, v)).collect();
        safetensors::write(folder.join(format!("{name}.safetensors")), &list, &[]).unwrap();
    }
    let mut resources = Resources::default();
    resources.insert(Folders::new(&Dirs::under(base.path())));
    let cx = Cx::detached(Arc::new(resources));
    let storage = |class: &str, file: &str| {
        let args = map! {"unet_name" => format!("{file}.safetensors"), "weight_dtype" => "default"};
        let out = call_in(class, args, &cx).unwrap();
        out[0].downcast::<Model>().unwrap().lora_storage()
    };
    assert_eq!(storage("UNetLoaderLP", "eight"), LoraStorage::F8E4M3);
    assert_eq!(storage("UNetLoaderLP", "half"), LoraStorage::StoredDtype);
    assert_eq!(storage("UNETLoader", "eight"), LoraStorage::StoredDtype);
}
