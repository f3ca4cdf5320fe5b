//! What is on disk: directories, names, containment, model folders, image files with their metadata.

pub mod annotated;
pub mod contain;
pub mod dirs;
pub mod extra_paths;
pub mod folders;
pub mod mime;
pub mod naming;
pub mod png_write;
pub mod safetensors;
pub mod walk;
pub mod write;

pub use contain::{PathError, contain, contain_file, contain_new};
pub use dirs::{DirError, DirOptions, DirType, Dirs};
pub use folders::{FolderError, Folders};
pub use naming::{Batch, SaveError, Saved, Saver};
