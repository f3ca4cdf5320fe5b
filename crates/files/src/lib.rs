//! What is on disk: directories, names, containment, model folders, image files with their metadata.

pub mod contain;
pub mod dirs;
pub mod naming;
pub mod png_write;
pub mod write;

pub use contain::{PathError, contain, contain_file, contain_new};
pub use dirs::{DirError, DirOptions, DirType, Dirs};
pub use naming::{Batch, SaveError, Saved, Saver};
