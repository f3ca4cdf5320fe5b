//! What all containers say of their tracks.

use std::io::{Read, Seek};

use crate::error::{MediaError, Result};
use crate::rate::Rate;

/// A file that can be read from any place.
pub(crate) trait Input: Read + Seek + Send {}

impl<T: Read + Seek + Send> Input for T {}

/// Who can decode a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    H264,
    Vp9,
    Av1,
    Aac,
    Mp3,
    Opus,
    Vorbis,
    Flac,
    /// Numbers as they are: bits of each, whether they are floats, whether the high byte comes first.
    Pcm {
        bits: u16,
        float: bool,
        big: bool,
    },
    Unknown([u8; 16]),
}

impl Codec {
    pub(crate) fn unknown(name: &[u8]) -> Self {
        let mut short = [b' '; 16];
        let count = name.len().min(16);
        short[..count].copy_from_slice(&name[..count]);
        Self::Unknown(short)
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Self::H264 => "h264".into(),
            Self::Vp9 => "vp9".into(),
            Self::Av1 => "av1".into(),
            Self::Aac => "aac".into(),
            Self::Mp3 => "mp3".into(),
            Self::Opus => "opus".into(),
            Self::Vorbis => "vorbis".into(),
            Self::Flac => "flac".into(),
            Self::Pcm { .. } => "pcm".into(),
            Self::Unknown(name) => {
                let text: String = name
                    .iter()
                    .map(|b| char::from(*b))
                    .filter(|c| c.is_ascii_graphic() || *c == ' ')
                    .collect();
                text.trim().to_owned()
            }
        }
    }
}

/// Pictures or sound of a file.
#[derive(Clone, Debug)]
pub(crate) enum TrackKind {
    Video { width: u32, height: u32 },
    Sound { rate: u32, channels: u16 },
}

#[derive(Clone, Debug)]
pub(crate) struct Track {
    pub(crate) kind: TrackKind,
    pub(crate) codec: Codec,
    /// What the decoder needs first, as the container keeps it.
    pub(crate) config: Vec<u8>,
    /// Seconds, where the header says so.
    pub(crate) duration: Option<f64>,
    /// Packets, where the header says so.
    pub(crate) count: Option<u64>,
    pub(crate) rate: Option<Rate>,
    /// Seconds at the front of the coded data that are not to be shown.
    pub(crate) skip: f64,
}

/// A packet with its time in seconds.
#[derive(Clone, Debug)]
pub(crate) struct TimedPacket {
    pub(crate) time: f64,
    pub(crate) data: Vec<u8>,
    pub(crate) key: bool,
}

/// A container that was opened. Packets come in the order of decoding.
pub(crate) trait Container: Send {
    /// As the reference's demuxers are called.
    fn format(&self) -> &'static str;
    fn tracks(&self) -> &[Track];
    fn duration(&self) -> Option<f64>;
    /// Begins with the packets of a track; all of them come again.
    fn start(&mut self, track: usize) -> Result<()>;
    fn next_packet(&mut self) -> Result<Option<TimedPacket>>;
    /// Positions at the last packet not after `time` that needs no others, if the container knows; otherwise at the start.
    fn seek(&mut self, _time: f64) -> Result<()> {
        Ok(())
    }
}

/// A packet may not be larger: real ones of uncompressed 8K pictures are about that.
pub(crate) const LARGEST_PACKET: u64 = 128 << 20;

/// Reads exactly so many bytes, which a header promised.
pub(crate) fn read_exact(
    input: &mut (impl Read + ?Sized),
    count: u64,
    what: &str,
) -> Result<Vec<u8>> {
    if count > LARGEST_PACKET {
        return Err(MediaError::TooLarge {
            what: format!("{what} of {count} bytes"),
        });
    }
    let mut data = Vec::new();
    // The promise may be a lie: memory is taken as bytes come.
    input.take(count).read_to_end(&mut data)?;
    if data.len() as u64 != count {
        return Err(MediaError::damaged(format!("{what} ends early")));
    }
    Ok(data)
}

/// A cursor over bytes that never reads past their end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (head, rest) = self
            .0
            .split_at_checked(count)
            .ok_or_else(|| MediaError::damaged("a header ends early"))?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.array()?))
    }
}
