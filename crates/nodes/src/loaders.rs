//! Nodes that load models, and what all loaders share.

mod checkpoint;
mod vae;
pub(crate) mod vision;

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fresco_files::Folders;
use fresco_files::read_ahead::read_ahead;
use fresco_graph::{Cx, NodeEntry, NodeError, entry};
use fresco_memory::ContentKey;
use fresco_tensor::weights::{Recast, shards_of, with_fp8_products};
use fresco_tensor::{
    Dtype, WeightFile, available_memory, on_reader_thread, open_weights, weights_were_read_within,
};

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
    let (kind, entry) = (folder.to_owned(), name.to_owned());
    on_reader_thread(move || folders.require(&kind, &entry))?
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

/// Whether plain fp8 weights of diffusion models are multiplied as fp8 where the device can, their inputs rounded too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fp8Products(pub bool);

/// How the weights of a diffusion model are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Reading {
    /// In place of the file's own number format.
    dtype: Option<Dtype>,
    fp8_products: bool,
}

impl Reading {
    /// As loaders let people choose it.
    pub(crate) fn chosen(weight_dtype: &str) -> Self {
        Self {
            dtype: match weight_dtype {
                "fp8_e4m3fn" | "fp8_e4m3fn_fast" => Some(Dtype::F8E4M3),
                "fp8_e5m2" => Some(Dtype::F8E5M2),
                _ => None,
            },
            fp8_products: weight_dtype == "fp8_e4m3fn_fast",
        }
    }

    /// The network of a file.
    pub(crate) fn network(self, file: &Arc<dyn WeightFile>) -> Arc<dyn WeightFile> {
        let mut file = Arc::clone(file);
        if let Some(dtype) = self.dtype {
            file = Arc::new(Recast::new(file, dtype));
        }
        if self.fp8_products {
            file = with_fp8_products(file);
        }
        file
    }

    /// What sets it apart from the file as it is; empty for that.
    pub(crate) fn name(self) -> String {
        let dtype = self.dtype.map_or_else(String::new, |d| format!("{d:?}"));
        if self.fp8_products {
            dtype + " with fp8 products"
        } else {
            dtype
        }
    }
}

/// Nobody reads for a GPU when nothing was read for so long.
const READING: Duration = Duration::from_millis(30);

/// A weight file that is opened when something of it is not in memory yet.
pub(crate) struct WeightSource {
    path: PathBuf,
    reading: Reading,
    file: OnceCell<Arc<dyn WeightFile>>,
}

impl WeightSource {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            reading: Reading::default(),
            file: OnceCell::new(),
        }
    }

    pub(crate) fn find(cx: &Cx, folder: &str, name: &str) -> Result<Self, NodeError> {
        find_model(cx, folder, name).map(Self::new)
    }

    pub(crate) fn read_as(mut self, reading: Reading) -> Self {
        self.reading = reading;
        self
    }

    /// How its diffusion model is read here.
    pub(crate) fn reading(&self, cx: &Cx) -> Reading {
        let all = cx.resource::<Fp8Products>().is_ok_and(|all| all.0);
        Reading {
            fp8_products: all || self.reading.fp8_products,
            ..self.reading
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn open(&self) -> Result<&Arc<dyn WeightFile>, NodeError> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = open_weights(&self.path)?;
        // The prompt will be encoded first, or another model is used before this one.
        let most = available_memory().map_or(0, |free| free / 2);
        read_ahead(&self.path, most, || weights_were_read_within(READING));
        Ok(self.file.get_or_init(|| file))
    }

    /// What a component of it is called by its content.
    pub(crate) fn key(&self, component: Component) -> Result<ContentKey, NodeError> {
        self.key_as(component, "")
    }

    /// The same for one that is read in some way.
    pub(crate) fn key_as(
        &self,
        component: Component,
        reading: &str,
    ) -> Result<ContentKey, NodeError> {
        let path = self.path.clone();
        let files = on_reader_thread(move || shards_of(&path))?;
        let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        content(&files, component, reading)
    }
}
