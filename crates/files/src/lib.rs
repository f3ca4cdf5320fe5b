//! What is on disk: directories, names, containment, model folders, image files with their metadata.

pub mod annotated;
pub mod contain;
pub mod dirs;
pub mod exif;
pub mod extra_paths;
pub mod folders;
pub mod image;
pub mod metadata;
pub mod mime;
pub mod naming;
pub mod png_write;
pub mod safetensors;
pub mod walk;
pub mod webp_write;
pub mod write;

pub use contain::{PathError, contain, contain_file, contain_new};
pub use dirs::{DirError, DirOptions, DirType, Dirs};
pub use folders::{FolderError, Folders};
pub use image::{DecodedImage, Frame, ImageError, Limits, decode};
pub use metadata::read_metadata;
pub use naming::{Batch, SaveError, Saved, Saver};
pub use png_write::{EncodeError, Picture, Pixels, encode_apng, encode_png};
pub use webp_write::{WebpOptions, encode_jpeg, encode_webp, encode_webp_animation};
