//! Coders of sound and the files that hold nothing else.

pub(crate) mod aac;
pub(crate) mod decode;
mod flac;
mod mp3;
pub(crate) mod ogg;
mod opus;
pub(crate) mod wav;

use crate::error::{MediaError, Result};
use crate::packet::{Sound, Tags};

/// What a sound file is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoundFormat {
    /// 16 bits without loss.
    Flac,
    /// Of about 245 kbit/s, or of a constant rate.
    Mp3 {
        kbps: Option<u32>,
    },
    Opus {
        kbps: u32,
    },
}

impl SoundFormat {
    pub fn extension(self) -> &'static str {
        match self {
            Self::Flac => "flac",
            Self::Mp3 { .. } => "mp3",
            Self::Opus { .. } => "opus",
        }
    }

    /// The rate that sound has to have: the given one, or the next that the format knows.
    pub fn usable_rate(self, rate: u32) -> u32 {
        match self {
            Self::Flac => rate,
            Self::Mp3 { .. } => next_of(&mp3::RATES, rate),
            Self::Opus { .. } => next_of(&opus::RATES, rate),
        }
    }
}

/// The rate of a film's sound: the given one, or the next that AAC knows.
pub fn usable_film_rate(rate: u32) -> u32 {
    next_of(&aac::RATES, rate)
}

/// The first that is not lower; the highest if all are.
fn next_of(rates: &[u32], rate: u32) -> u32 {
    let found = rates.iter().find(|r| **r >= rate).or(rates.last());
    found.copied().unwrap_or(rate)
}

/// Bytes a sample in memory while a file is made: the samples as integers, the file, and what coders keep.
pub const MEMORY_PER_SAMPLE: u64 = 12;

/// A whole file. The sound has a rate that the format knows, and one or two channels (FLAC: up to eight).
pub fn encode_sound(sound: &Sound, format: SoundFormat, tags: &Tags) -> Result<Vec<u8>> {
    if sound.channels == 0 || sound.rate == 0 {
        return Err(MediaError::encode("sound without channels or a rate"));
    }
    match format {
        SoundFormat::Flac => flac::encode(sound, tags),
        SoundFormat::Mp3 { kbps } => mp3::encode(sound, kbps, tags),
        SoundFormat::Opus { kbps } => opus::encode(sound, kbps, tags),
    }
}

/// Comments as FLAC and Ogg files have them: who wrote it, then `key=value`.
fn vorbis_comments(tags: &Tags) -> Vec<u8> {
    let vendor = "Fresco";
    let mut out = (vendor.len() as u32).to_le_bytes().to_vec();
    out.extend(vendor.as_bytes());
    out.extend((tags.len() as u32).to_le_bytes());
    for (key, value) in tags {
        let entry = format!("{key}={value}");
        out.extend((entry.len() as u32).to_le_bytes());
        out.extend(entry.as_bytes());
    }
    out
}
