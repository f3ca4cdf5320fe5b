//! Nodes that load models, and what all loaders share.

mod checkpoint;
mod vae;
mod vision;

use std::sync::Arc;

use fresco_files::Folders;
use fresco_graph::{Cx, NodeEntry, NodeError, entry};
use fresco_tensor::{Device, WeightFile, open_weights};

pub static NODES: &[NodeEntry] = &[
    entry::<checkpoint::CheckpointLoaderSimple>(),
    entry::<checkpoint::CheckpointLoader>(),
    entry::<checkpoint::UnetLoader>(),
    entry::<checkpoint::DiffusersLoader>(),
    entry::<vae::VaeLoader>(),
    entry::<vision::ClipVisionLoader>(),
];

/// Where models are loaded, as the program was told.
#[derive(Clone, Debug, Default)]
pub struct Runtime {
    pub device: Device,
}

/// The device for new models.
pub(crate) fn device(cx: &Cx) -> Device {
    // Without a word from the assembly: main memory.
    cx.resource::<Runtime>()
        .map_or_else(|_| Device::cpu(), |runtime| runtime.device.clone())
}

/// Opens a file of the user's model folders.
pub(crate) fn open_model(
    cx: &Cx,
    folder: &str,
    name: &str,
) -> Result<Arc<dyn WeightFile>, NodeError> {
    let folders = cx.resource::<Folders>()?;
    let path = folders
        .require(folder, name)
        .map_err(|e| NodeError::file_not_found(e.to_string()))?;
    Ok(open_weights(path)?)
}
