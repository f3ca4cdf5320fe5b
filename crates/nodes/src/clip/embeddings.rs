//! Textual-inversion embeddings in the embedding folders.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fresco_files::{Folders, contain_file, walk};
use fresco_graph::Cx;
use fresco_models::ModelError;
use fresco_models::text::{EmbeddingSource, read_embedding, unpickle_embedding};
use fresco_tensor::open_weights;
use fresco_tensor::weights::pickle;

/// Looks names up in the embedding folders and below, never outside of them: a prompt may come from a stranger.
pub struct FolderEmbeddings(Arc<Folders>);

impl FolderEmbeddings {
    /// None where the assembly gives nodes no model folders.
    pub fn of(cx: &Cx) -> Option<Self> {
        cx.resources.get::<Folders>().map(Self)
    }

    /// The file a name stands for: in the folders themselves first, then below them.
    fn find(&self, name: &str) -> Option<PathBuf> {
        let roots = self.0.roots("embeddings")?;
        let file = |root: &PathBuf, name: &str| {
            let ends = ["", ".safetensors", ".pt", ".bin"];
            ends.iter()
                .find_map(|end| contain_file(root, &format!("{name}{end}")).ok())
        };
        let direct = roots.iter().find_map(|root| file(root, name));
        direct.or_else(|| {
            roots.iter().find_map(|root| {
                let below = walk::subfolders(root);
                below
                    .iter()
                    .find_map(|sub| file(root, &format!("{sub}/{name}")))
            })
        })
    }
}

impl EmbeddingSource for FolderEmbeddings {
    fn load(&self, name: &str, key: &str, width: usize) -> Option<Vec<Arc<[f32]>>> {
        let path = self.find(name)?;
        match read(&path, key, width) {
            Ok(rows) => Some(rows),
            Err(error) => {
                let error = with_causes(&error);
                tracing::warn!(path = %path.display(), error, "cannot read the embedding, leaving it out");
                None
            }
        }
    }
}

/// By content, not by extension. A file of torch need not have named tensors, which is what opening it as weights asks.
fn read(path: &Path, key: &str, width: usize) -> Result<Vec<Arc<[f32]>>, ModelError> {
    match pickle::load(path) {
        Ok(file) => unpickle_embedding(&file, key, width),
        Err(_) => read_embedding(&*open_weights(path)?, key),
    }
}

/// An error with its causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}
