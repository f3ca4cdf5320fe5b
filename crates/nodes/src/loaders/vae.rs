//! Autoencoders from files of their own.

use std::sync::Arc;

use fresco_files::Folders;
use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_models::store::WeightStore;
use fresco_models::taehv;
use fresco_models::taesd::{self, Taesd};
use fresco_tensor::{Device, on_reader_thread};

use super::{WeightSource, open_model};
use crate::resident::LoadOptions;
use crate::vae::{LoadedSound, LoadedVae, PixelSpace, Vae};

/// Loads a VAE from a file.
#[derive(Node)]
#[node(
    id = "VAELoader",
    v1,
    module = "nodes",
    display = "Load VAE",
    category = "loaders",
    outputs("VAE")
)]
pub(super) struct VaeLoader {
    /// The file of the autoencoder.
    #[input(listed = "vae/all")]
    vae_name: String,
}

impl Node for VaeLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let vae = load_vae(cx, &self.vae_name, &LoadOptions::default())?;
        Ok(NodeOutput::one(vae))
    }
}

/// The autoencoder of a name that the loader offers.
pub(crate) fn load_vae(cx: &Cx, name: &str, options: &LoadOptions) -> Result<Vae, NodeError> {
    if name == "pixel_space" {
        return Ok(Vae(Arc::new(PixelSpace)));
    }
    let small = taesd::KINDS.iter().find(|kind| kind.0 == name);
    if let Some(&(name, scale, shift)) = small {
        return Ok(Vae(Arc::new(taesd(cx, name, scale, shift)?)));
    }
    // Small ones of films lie among those of previews, and are named by their files.
    let among_previews = taehv::is_published(name) && {
        let (folders, name) = (cx.resource::<Folders>()?, name.to_owned());
        on_reader_thread(move || folders.full_path("vae", &name).is_none())?
    };
    let folder = if among_previews { "vae_approx" } else { "vae" };
    let source = WeightSource::find(cx, folder, name)?;
    if let Some(sound) = LoadedSound::maybe(cx, &source, options)? {
        return Ok(Vae(Arc::new(sound)));
    }
    Ok(Vae(Arc::new(LoadedVae::load(cx, &source, "", options)?)))
}

/// The encoder and the decoder of that name in `vae_approx`.
fn taesd(cx: &Cx, name: &str, scale: f32, shift: f32) -> Result<LoadedVae, NodeError> {
    let folders = cx.resource::<Folders>()?;
    let listed = folders.list("vae_approx")?;
    let part = |half: &str| {
        let start = format!("{name}_{half}.");
        let found = listed.iter().find(|file| file.starts_with(&start));
        let found = found.ok_or_else(|| {
            let message = format!("the folder vae_approx has no {start}*");
            NodeError::file_not_found(message)
        })?;
        let file = open_model(cx, "vae_approx", found)?;
        Ok::<_, NodeError>(WeightStore::open(file, "", Device::cpu()))
    };
    let (encoder, decoder) = (part("encoder")?, part("decoder")?);
    let net = Taesd::new(Some(&encoder), Some(&decoder), scale, shift)?;
    Ok(LoadedVae::taesd(net))
}
