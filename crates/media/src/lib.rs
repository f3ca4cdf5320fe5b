//! Films and sound: containers, coders, and a process of its own for decoding what others made.
//!
//! ```
//! use fresco_media::{Rate, VideoCodec, VideoSpec, VideoWriter};
//! use std::io::Cursor;
//!
//! let spec = VideoSpec {
//!     width: 32,
//!     height: 16,
//!     rate: Rate::from_fps(24.0).ok_or("a rate")?,
//!     codec: VideoCodec::H264,
//!     tags: vec![("prompt".into(), "{}".into())],
//! };
//! let mut writer = VideoWriter::new(Cursor::new(Vec::new()), spec, None)?;
//! for brightness in [0, 100, 200] {
//!     writer.frame(&[brightness; 32 * 16 * 3])?;
//! }
//! let file = writer.finish()?.into_inner();
//! assert_eq!(&file[4..8], b"ftyp");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod container;
mod error;
mod ffmpeg;
mod mp4;
mod packet;
mod rate;
mod reader;
mod sound;
mod source;
mod video;
mod webm;
pub mod worker;
mod writer;
pub mod yuv;

pub use error::{MediaError, Result};
pub use ffmpeg::Ffmpeg;
pub use mp4::copy::copy_mp4;
pub use packet::{Packet, Sound, Tags};
pub use rate::Rate;
pub use reader::{Next, Reader};
pub use sound::{MEMORY_PER_SAMPLE, SoundFormat, encode_sound, usable_film_rate};
pub use source::{Info, SoundInfo, Span, VideoInfo};
pub use video::{Frame, VideoCodec, through_h264};
pub use writer::{VideoSpec, VideoWriter};
