//! Autoencoders from files of their own.

use std::sync::Arc;

use fresco_files::Folders;
use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_models::store::Store;
use fresco_models::taesd::{self, Taesd};
use fresco_tensor::Device;

use super::{device, open_model};
use crate::sampling::run::failure;
use crate::vae::{LoadedVae, PixelSpace, Vae};

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
    #[input(listed = "vae/all")]
    vae_name: String,
}

impl Node for VaeLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        if self.vae_name == "pixel_space" {
            return Ok(NodeOutput::one(Vae(Arc::new(PixelSpace))));
        }
        let small = taesd::KINDS.iter().find(|kind| kind.0 == self.vae_name);
        let model = if let Some(&(name, scale, shift)) = small {
            taesd(cx, name, scale, shift)?
        } else {
            let file = open_model(cx, "vae", &self.vae_name)?;
            LoadedVae::open(&file, "", device(cx)).map_err(failure)?
        };
        Ok(NodeOutput::one(Vae(Arc::new(model))))
    }
}

/// The encoder and the decoder of that name in `vae_approx`.
fn taesd(cx: &Cx, name: &str, scale: f32, shift: f32) -> Result<LoadedVae, NodeError> {
    let folders = cx.resource::<Folders>()?;
    let listed = folders.list("vae_approx")?;
    let part = |half: &str| {
        let start = format!("{name}_{half}.");
        let found = listed.iter().find(|file| file.starts_with(&start));
        let found = found.ok_or_else(|| {
            let message = format!("there is no {start}* in the folder vae_approx");
            NodeError::file_not_found(message)
        })?;
        let file = open_model(cx, "vae_approx", found)?;
        Ok::<_, NodeError>(Store::open(file, "", Device::cpu()))
    };
    let (encoder, decoder) = (part("encoder")?, part("decoder")?);
    let net = Taesd::new(Some(&encoder), Some(&decoder), scale, shift)?;
    Ok(LoadedVae::taesd(net))
}
