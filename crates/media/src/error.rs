//! What can go wrong with media files.

use std::io;

pub type Result<T, E = MediaError> = std::result::Result<T, E>;

/// A file could not be read or written. Texts name the thing inside the file; whoever opened it knows its name.
#[derive(Debug, thiserror::Error)]
pub enum MediaError {
    #[error("the file cannot be read or written")]
    Io {
        #[from]
        source: io::Error,
    },
    #[error("this is not a sound or video file that is known here")]
    UnknownFormat,
    #[error("the file is damaged or cut off: {what}")]
    Damaged { what: String },
    #[error(
        "{what} is not supported by the built-in decoders; start Fresco with --use-ffmpeg to have a system ffmpeg read it"
    )]
    Unsupported { what: String },
    #[error("the file has no {what}")]
    NoTrack { what: &'static str },
    #[error("{what} is larger than is allowed here")]
    TooLarge { what: String },
    #[error("cannot encode: {what}")]
    Encode { what: String },
    #[error("the process that decodes ended without an answer ({how})")]
    WorkerEnded { how: String },
    #[error("the process that decodes made no progress for {seconds} seconds and was ended")]
    WorkerStuck { seconds: u64 },
    #[error("cannot start {program}")]
    Start { program: String, source: io::Error },
    /// The process that decodes said so.
    #[error("{0}")]
    Told(String),
    #[error("stopped")]
    Stopped,
}

impl MediaError {
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged { what: what.into() }
    }

    pub(crate) fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported { what: what.into() }
    }

    pub(crate) fn encode(what: impl ToString) -> Self {
        Self::Encode {
            what: what.to_string(),
        }
    }
}
