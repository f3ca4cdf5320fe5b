//! What is on disk: directories, names, containment, model folders, image files with their metadata.
//!
//! ```
//! use fresco_files::{Dirs, Limits, Picture, Pixels, Saver, decode, encode_png};
//!
//! let base = tempfile::tempdir()?;
//! let dirs = Dirs::under(base.path());
//! let text = vec![("prompt".to_owned(), "{}".to_owned())];
//! let png = encode_png(&Picture::new(1, 1, Pixels::Rgb, &[1, 2, 3])?, &text, 4)?;
//!
//! let mut batch = Saver::new().begin("pics/test", &dirs.output, 1, 1)?;
//! let saved = batch.save("png", &png)?;
//! assert_eq!((saved.subfolder.as_str(), saved.filename.as_str()), ("pics", "test_00001_.png"));
//!
//! let image = decode(&std::fs::read(&saved.path)?, &Limits::default())?;
//! assert_eq!(image.first().rgb8(), [1, 2, 3]);
//! assert_eq!(image.text, text);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod annotated;
pub mod contain;
pub mod content;
pub mod deep_png;
mod deflate;
pub mod dirs;
pub mod exif;
pub mod exr_write;
pub mod extra_paths;
pub mod folders;
pub mod image;
pub mod memory;
pub mod metadata;
pub mod mime;
pub mod naming;
mod png_data;
mod png_filter;
pub mod png_write;
pub mod read_ahead;
pub mod safetensors;
pub mod upload;
pub mod walk;
pub mod webp_write;
pub mod write;

pub use contain::{PathError, contain, contain_file, contain_new};
pub use content::{Content, FilePart, Scratch};
pub use dirs::{DirError, DirOptions, DirType, Dirs};
pub use folders::{FolderError, Folders};
pub use image::{
    Bands, DecodedImage, Frame, ImageError, Limits, SmallerThan, decode, decode_reduced,
    decode_within,
};
pub use memory::{MemoryClaim, MemoryGuard, MemorySource, NoMemory};
pub use metadata::read_metadata;
pub use naming::{Batch, SaveError, Saved, Saver};
pub use png_write::{EncodeError, Picture, Pixels, PngRows, encode_apng, encode_png};
pub use webp_write::{WebpOptions, encode_jpeg, encode_webp, encode_webp_animation};
