//! Nodes that load models, and what all loaders share.

mod checkpoint;
mod vae;
pub(crate) mod vision;

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fresco_files::Folders;
use fresco_graph::{Cx, NodeEntry, NodeError, entry};
use fresco_memory::ContentKey;
use fresco_tensor::weights::{Recast, shards_of};
use fresco_tensor::{Dtype, WeightFile, open_weights};

pub(crate) use checkpoint::{
    CheckpointOptions, NETWORK_PARTS, TEXT_PARTS, diffusers_part, families, load_checkpoint,
    load_diffusers, load_diffusion_model,
};
pub(crate) use vae::load_vae;
pub(crate) use vision::load_vision;

use crate::resident::{Component, content};

pub static NODES: &[NodeEntry] = &[
    entry::<checkpoint::CheckpointLoaderSimple>(),
    entry::<checkpoint::CheckpointLoader>(),
    entry::<checkpoint::UnclipCheckpointLoader>(),
    entry::<checkpoint::ImageOnlyCheckpointLoader>(),
    entry::<checkpoint::UnetLoader>(),
    entry::<checkpoint::DiffusersLoader>(),
    entry::<vae::VaeLoader>(),
    entry::<vision::ClipVisionLoader>(),
];

/// Where a file of the user's model folders is.
pub(crate) fn find_model(cx: &Cx, folder: &str, name: &str) -> Result<PathBuf, NodeError> {
    let folders = cx.resource::<Folders>()?;
    folders
        .require(folder, name)
        .map_err(|e| NodeError::file_not_found(e.to_string()))
}

/// Opens a file of the user's model folders.
pub(crate) fn open_model(
    cx: &Cx,
    folder: &str,
    name: &str,
) -> Result<Arc<dyn WeightFile>, NodeError> {
    Ok(open_weights(find_model(cx, folder, name)?)?)
}

/// A weight file that is opened when something of it is not in memory yet.
pub(crate) struct WeightSource {
    path: PathBuf,
    /// In place of the file's own number format.
    dtype: Option<Dtype>,
    file: OnceCell<Arc<dyn WeightFile>>,
}

impl WeightSource {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            dtype: None,
            file: OnceCell::new(),
        }
    }

    pub(crate) fn find(cx: &Cx, folder: &str, name: &str) -> Result<Self, NodeError> {
        find_model(cx, folder, name).map(Self::new)
    }

    pub(crate) fn recast(mut self, dtype: Option<Dtype>) -> Self {
        self.dtype = dtype;
        self
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn open(&self) -> Result<&Arc<dyn WeightFile>, NodeError> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let mut file = open_weights(&self.path)?;
        if let Some(dtype) = self.dtype {
            file = Arc::new(Recast::new(file, dtype));
        }
        Ok(self.file.get_or_init(|| file))
    }

    /// What a component of it is called by its content.
    pub(crate) fn key(&self, component: Component) -> Result<ContentKey, NodeError> {
        let options = self.dtype.map_or_else(String::new, |d| format!("{d:?}"));
        let files = shards_of(&self.path);
        let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        content(&files, component, &options)
    }
}
