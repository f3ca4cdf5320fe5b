//! The base folder of a run: copies of packs, pictures, sounds, and small models under fixed names.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use super::pack_name;
use crate::{
    picture, server,
    templates::{self, Network},
    tiny::{self, Keys, Tiny},
};

/// A folder and what makes a model of ours in it.
type Made = (&'static str, fn() -> Network);

/// Models that fit each other or the starter model; others are made by the table of the templates.
const MODELS: &[Made] = &[
    ("checkpoints/tiny.safetensors", || {
        Tiny::default().checkpoint().into()
    }),
    ("controlnet/tiny.safetensors", || {
        Tiny::default().control().into()
    }),
    ("vae/tiny.safetensors", || Tiny::default().vae().into()),
    ("diffusion_models/tiny.safetensors", || {
        Tiny::default().unet().into()
    }),
    ("text_encoders/tiny.safetensors", || {
        Tiny::default().text().into()
    }),
    ("loras/starter.safetensors", starter_lora),
];

/// A LoRA of rank 4 for some matrices of the starter model.
fn starter_lora() -> Network {
    let mut keys = Keys::new();
    for (layer, from) in [
        ("attn1.to_q", 288),
        ("attn2.to_k", 256),
        ("attn2.to_out.0", 288),
    ] {
        let name = format!("middle_block.1.transformer_blocks.0.{layer}").replace('.', "_");
        keys.insert(format!("lora_unet_{name}.lora_down.weight"), vec![4, from]);
        keys.insert(format!("lora_unet_{name}.lora_up.weight"), vec![288, 4]);
    }
    keys.into()
}

/// A temporary base folder of the program.
pub struct Base {
    folder: TempDir,
}

impl Base {
    /// A base folder with copies of these packs, and with what workflows load.
    pub fn new(packs: &[&Path]) -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a temporary base folder")?;
        let root = folder.path().join("custom_nodes");
        fs::create_dir_all(&root)?;
        for pack in packs {
            copy(
                pack,
                &root.join(pack.file_name().context("a pack has a name")?),
            )
            .with_context(|| format!("cannot copy the pack {}", pack_name(pack)))?;
        }
        let input = folder.path().join("input");
        fs::create_dir_all(&input)?;
        fs::write(input.join("picture.png"), picture::sample(256, 256)?)?;
        fs::write(input.join("small.png"), picture::sample(96, 64)?)?;
        fs::write(input.join("sound.wav"), templates::sound())?;
        Ok(Self { folder })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Makes a model file, `FOLDER/NAME`, if it is not there.
    pub fn make_model(&self, model: &str) -> Result<()> {
        let models = self.folder.path().join("models");
        let path = models.join(model);
        if path.exists() {
            return Ok(());
        }
        fs::create_dir_all(path.parent().context("a model is in a folder")?)?;
        let (folder, name) = model.split_once('/').context("a model is FOLDER/NAME")?;
        if let Some((_, make)) = MODELS.iter().find(|(known, _)| *known == model) {
            return tiny::write(&path, &make().keys);
        }
        if let Some(stem) = model.strip_suffix(".gguf") {
            let plain = format!("{stem}.safetensors");
            self.make_model(&plain)?;
            return quantize(&models.join(plain), &path);
        }
        match templates::write_model(&models, folder, name)? {
            Some(_) => Ok(()),
            None => bail!("no model is known under the name {model}"),
        }
    }
}

/// Writes a file of weights as a GGUF file.
fn quantize(from: &Path, to: &Path) -> Result<()> {
    let output = Command::new(server::program())
        .arg("quantize")
        .args([from, to])
        .args(["--format", "Q8_0"])
        .stdin(Stdio::null())
        .output()?;
    ensure!(
        output.status.success(),
        "cannot write {}: {}",
        to.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// Copies a pack without its history, because some write into their own folders.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let kind = fs::symlink_metadata(from)?;
    if kind.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let name = entry.file_name();
            if name != ".git" && name != "__pycache__" {
                copy(&entry.path(), &to.join(name))?;
            }
        }
    } else if kind.is_file() {
        fs::copy(from, to)?;
    } else {
        // A link inside of a pack goes where it went.
        let target: PathBuf = fs::canonicalize(from)?;
        if target.is_file() {
            fs::copy(target, to)?;
        }
    }
    Ok(())
}
