//! Model files for tests: small, and of some only the header is real.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use fresco_files::{DirOptions, Dirs, Folders};
use fresco_graph::{Map, Value, json, map};

/// Names and shapes of a golden network.
pub(crate) fn keys(file: &str) -> Vec<(String, Vec<u64>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/gold");
    let about = json::parse_bytes(&std::fs::read(folder.join(format!("{file}.json"))).unwrap());
    let about = about.unwrap();
    let keys = about.get("keys").and_then(Value::as_map).unwrap();
    let size = |v: &Value| v.as_int().unwrap() as u64;
    keys.iter()
        .map(|(key, shape)| {
            let shape = shape.as_list().unwrap().iter().map(size).collect();
            (key.to_string(), shape)
        })
        .collect()
}

fn prefixed(prefix: &str, file: &str) -> Vec<(String, Vec<u64>)> {
    let keys = keys(file).into_iter();
    keys.map(|(key, shape)| (format!("{prefix}{key}"), shape))
        .collect()
}

/// A file with these tensors and nothing in them.
pub(crate) fn write(path: &Path, keys: &[(String, Vec<u64>)]) {
    let mut header = Map::new();
    let mut at = 0u64;
    for (key, shape) in keys {
        let end = at + shape.iter().product::<u64>() * 4;
        let entry = map! {
            "dtype" => "F32", "shape" => shape.clone(), "data_offsets" => vec![at, end],
        };
        header.insert(key.as_str().into(), entry.into());
        at = end;
    }
    let header = json::to_string(&header.into());
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes())
        .unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len(8 + header.len() as u64 + at).unwrap();
}

pub(crate) struct ModelFolders {
    pub(crate) base: tempfile::TempDir,
    pub(crate) folders: Folders,
}

/// Folders with a checkpoint and a network by itself.
pub(crate) fn place() -> ModelFolders {
    let base = tempfile::tempdir().unwrap();
    let dirs = Dirs::resolve(&DirOptions {
        program: base.path().into(),
        base: Some(base.path().into()),
        ..DirOptions::default()
    });
    let folders = Folders::new(&dirs.unwrap());
    let mut whole = prefixed("model.diffusion_model.", "unet_sd1_small");
    whole.extend(prefixed("first_stage_model.", "vae_kl_small"));
    whole.extend(prefixed("cond_stage_model.transformer.", "clip_l_small"));
    let models = base.path().join("models");
    write(&models.join("checkpoints/whole.safetensors"), &whole);
    write(
        &models.join("unet/net.safetensors"),
        &keys("unet_sd1_small"),
    );
    ModelFolders { base, folders }
}
