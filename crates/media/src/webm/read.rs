//! Reading: one element after the other, blocks as they come.

use std::collections::VecDeque;
use std::io::SeekFrom;

use super::id;
use crate::container::{
    Bytes, Codec, Container, Input, LARGEST_PACKET, TimedPacket, Track, TrackKind, read_exact,
};
use crate::error::{MediaError, Result};
use crate::rate::Rate;

/// Headers larger than this are not read.
const LARGEST_HEADER: u64 = 64 << 20;

pub(crate) struct Webm {
    input: Box<dyn Input>,
    format: &'static str,
    tracks: Vec<Track>,
    /// Numbers that blocks name tracks by, and the longest time of a frame without one in its block.
    numbers: Vec<u64>,
    duration: Option<f64>,
    /// Seconds of a tick.
    tick: f64,
    end: u64,
    first_cluster: u64,
    position: u64,
    cluster_time: u64,
    current: usize,
    /// Packets of a block that had several.
    ready: VecDeque<TimedPacket>,
}

/// A name, with its marker, and a size; none for a size that is not known.
fn head(input: &mut dyn Input, limit: u64) -> Result<Option<(u32, Option<u64>, u64)>> {
    let mut first = [0];
    if limit == 0 || input.read(&mut first)? == 0 {
        return Ok(None);
    }
    let length = first[0].leading_zeros() as u64 + 1;
    if length > 4 {
        return Err(MediaError::damaged("an element without a name"));
    }
    let rest = read_exact(input, length - 1, "an element")?;
    let id = rest
        .iter()
        .fold(u32::from(first[0]), |id, b| id << 8 | u32::from(*b));
    let start = read_exact(input, 1, "an element")?[0];
    let width = u64::from(start.leading_zeros()) + 1;
    if width > 8 {
        return Err(MediaError::damaged("an element without a size"));
    }
    let rest = read_exact(input, width - 1, "an element")?;
    let mask = if width == 8 { 0 } else { 0xff >> width };
    let size = rest
        .iter()
        .fold(u64::from(start & mask), |size, b| size << 8 | u64::from(*b));
    let unknown = size == (1u64 << (7 * width)) - 1;
    Ok(Some((id, (!unknown).then_some(size), length + width)))
}

/// A number of variable length without its marker.
fn variable(b: &mut Bytes<'_>) -> Result<u64> {
    let first = b.u8()?;
    let width = first.leading_zeros() as usize + 1;
    if width > 8 {
        return Err(MediaError::damaged("a block without a track"));
    }
    let mask = if width == 8 { 0 } else { 0xff >> width };
    let rest = b.take(width - 1)?;
    Ok(rest
        .iter()
        .fold(u64::from(first & mask), |v, b| v << 8 | u64::from(*b)))
}

/// The elements in some bytes; stops at the first that is cut off.
pub(crate) fn elements(mut data: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    std::iter::from_fn(move || {
        let mut b = Bytes(data);
        let first = b.u8().ok()?;
        let length = first.leading_zeros() as usize;
        if length > 3 {
            return None;
        }
        let id = b.take(length).ok()?.iter();
        let id = id.fold(u32::from(first), |id, b| id << 8 | u32::from(*b));
        let size = usize::try_from(variable(&mut b).ok()?).ok()?;
        let content = b.take(size).ok()?;
        data = b.0;
        Some((id, content))
    })
}

fn child(data: &[u8], wanted: u32) -> Option<&[u8]> {
    elements(data).find(|(id, _)| *id == wanted).map(|(_, c)| c)
}

fn number(data: &[u8]) -> Option<u64> {
    (data.len() <= 8).then(|| data.iter().fold(0, |v, b| v << 8 | u64::from(*b)))
}

fn float(data: &[u8]) -> Option<f64> {
    match data.len() {
        4 => Some(f32::from_be_bytes(data.try_into().ok()?).into()),
        8 => Some(f64::from_be_bytes(data.try_into().ok()?)),
        _ => None,
    }
}

impl Webm {
    pub(crate) fn open(mut input: Box<dyn Input>) -> Result<Self> {
        let end = input.seek(SeekFrom::End(0))?;
        input.seek(SeekFrom::Start(0))?;
        let mut file = Self {
            input,
            format: "matroska,webm",
            tracks: Vec::new(),
            numbers: Vec::new(),
            duration: None,
            tick: 1e-3,
            end,
            first_cluster: 0,
            position: 0,
            cluster_time: 0,
            current: 0,
            ready: VecDeque::new(),
        };
        file.read_headers()?;
        Ok(file)
    }

    fn read_headers(&mut self) -> Result<()> {
        let mut ticks = None;
        loop {
            self.input.seek(SeekFrom::Start(self.position))?;
            let left = self.end - self.position;
            let Some((id, size, header)) = head(&mut *self.input, left)? else {
                break;
            };
            let content = self.position + header;
            match id {
                id::SEGMENT => {
                    self.position = content;
                    continue;
                }
                id::CLUSTER => {
                    self.first_cluster = self.position;
                    break;
                }
                id::INFO | id::TRACKS => {
                    let size = size.unwrap_or(u64::MAX);
                    if size > LARGEST_HEADER {
                        return Err(MediaError::TooLarge {
                            what: "its header".into(),
                        });
                    }
                    let data = read_exact(&mut *self.input, size, "a header")?;
                    if id == id::INFO {
                        let scale = child(&data, id::SCALE).and_then(number);
                        self.tick = scale.filter(|s| *s > 0).unwrap_or(1_000_000) as f64 * 1e-9;
                        ticks = child(&data, id::DURATION).and_then(float);
                    } else {
                        for (_, entry) in elements(&data).filter(|(id, _)| *id == id::TRACK) {
                            self.add_track(entry);
                        }
                    }
                }
                _ => {}
            }
            let size = size.ok_or_else(|| MediaError::damaged("a header without end"))?;
            self.position = content
                .checked_add(size)
                .filter(|p| *p <= self.end)
                .ok_or_else(|| MediaError::damaged("it ends inside its header"))?;
        }
        if self.first_cluster == 0 {
            return Err(MediaError::damaged("it has no content"));
        }
        let duration = ticks.map(|t| t * self.tick);
        self.duration = duration.filter(|d| d.is_finite() && *d > 0.0);
        Ok(())
    }

    fn add_track(&mut self, entry: &[u8]) {
        let value = |id| child(entry, id).and_then(number);
        let config = child(entry, id::CODEC_PRIVATE).unwrap_or_default();
        let name = child(entry, id::CODEC).unwrap_or_default();
        let inner = |part, id| child(entry, part).and_then(|p| child(p, id));
        let kind = match value(id::KIND) {
            Some(1) => TrackKind::Video {
                width: inner(id::VIDEO, id::WIDTH).and_then(number).unwrap_or(0) as u32,
                height: inner(id::VIDEO, id::HEIGHT).and_then(number).unwrap_or(0) as u32,
            },
            Some(2) => TrackKind::Sound {
                rate: inner(id::SOUND, id::RATE).and_then(float).unwrap_or(8000.0) as u32,
                channels: inner(id::SOUND, id::CHANNELS).and_then(number).unwrap_or(1) as u16,
            },
            _ => return,
        };
        let bits = inner(id::SOUND, id::BIT_DEPTH)
            .and_then(number)
            .unwrap_or(16) as u16;
        let pcm = |float, big| Codec::Pcm { bits, float, big };
        let codec = match name {
            b"V_MPEG4/ISO/AVC" => Codec::H264,
            b"V_VP9" => Codec::Vp9,
            b"V_AV1" => Codec::Av1,
            b"A_OPUS" => Codec::Opus,
            b"A_VORBIS" => Codec::Vorbis,
            b"A_FLAC" => Codec::Flac,
            b"A_MPEG/L3" => Codec::Mp3,
            b"A_PCM/INT/LIT" => pcm(false, false),
            b"A_PCM/INT/BIG" => pcm(false, true),
            b"A_PCM/FLOAT/IEEE" => pcm(true, false),
            other if other.starts_with(b"A_AAC") => Codec::Aac,
            other => Codec::unknown(other),
        };
        let step = value(id::DEFAULT_DURATION).filter(|n| *n > 0);
        let rate = step.and_then(|n| Rate::from_fps(1e9 / n as f64));
        let delay = value(id::CODEC_DELAY).unwrap_or(0) as f64 * 1e-9;
        self.numbers.push(value(id::NUMBER).unwrap_or(0));
        self.tracks.push(Track {
            kind,
            codec,
            config: config.to_vec(),
            duration: None,
            count: None,
            rate,
            skip: delay,
        });
    }

    /// The packets of a block, if they are of the wanted track.
    fn block(&mut self, data: &[u8], key: Option<bool>) -> Result<()> {
        let mut b = Bytes(data);
        let track = variable(&mut b)?;
        if self.numbers.get(self.current) != Some(&track) {
            return Ok(());
        }
        let shift = b.u16()? as i16;
        let flags = b.u8()?;
        let key = key.unwrap_or(flags & 0x80 != 0);
        let time = (self.cluster_time as f64 + f64::from(shift)) * self.tick;
        for data in laced(b, flags >> 1 & 3)? {
            self.ready.push_back(TimedPacket {
                time,
                data: data.to_vec(),
                key,
            });
        }
        Ok(())
    }
}

/// The pieces of a block.
fn laced(mut b: Bytes<'_>, kind: u8) -> Result<Vec<&[u8]>> {
    if kind == 0 {
        return Ok(vec![b.0]);
    }
    let count = usize::from(b.u8()?) + 1;
    let mut sizes = Vec::new();
    match kind {
        1 => {
            for _ in 1..count {
                let mut size = 0;
                loop {
                    let part = b.u8()?;
                    size += usize::from(part);
                    if part < 255 {
                        break;
                    }
                }
                sizes.push(size);
            }
        }
        2 => sizes = vec![b.0.len() / count; count - 1],
        _ => {
            let mut size = variable(&mut b)? as i64;
            sizes.push(size as usize);
            for _ in 2..count {
                let before = b.0.len();
                let raw = variable(&mut b)? as i64;
                let width = (before - b.0.len()) as u32;
                size += raw - ((1i64 << (7 * width - 1)) - 1);
                let size = usize::try_from(size)
                    .map_err(|_| MediaError::damaged("a block with a piece of negative size"))?;
                sizes.push(size);
            }
        }
    }
    let mut pieces = Vec::with_capacity(count);
    for size in sizes {
        pieces.push(b.take(size)?);
    }
    pieces.push(b.0);
    Ok(pieces)
}

impl Container for Webm {
    fn format(&self) -> &'static str {
        self.format
    }

    fn tracks(&self) -> &[Track] {
        &self.tracks
    }

    fn duration(&self) -> Option<f64> {
        self.duration
    }

    fn start(&mut self, track: usize) -> Result<()> {
        self.current = track;
        self.position = self.first_cluster;
        self.ready.clear();
        Ok(())
    }

    fn next_packet(&mut self) -> Result<Option<TimedPacket>> {
        loop {
            if let Some(packet) = self.ready.pop_front() {
                return Ok(Some(packet));
            }
            self.input.seek(SeekFrom::Start(self.position))?;
            let left = self.end.saturating_sub(self.position);
            let Some((id, size, header)) = head(&mut *self.input, left)? else {
                return Ok(None);
            };
            let content = self.position + header;
            // Clusters and segments are entered, everything else is skipped or read.
            if matches!(id, id::CLUSTER | id::SEGMENT) {
                self.position = content;
                continue;
            }
            let size = size.ok_or_else(|| MediaError::damaged("an element without end"))?;
            self.position = content
                .checked_add(size)
                .ok_or_else(|| MediaError::damaged("an element without end"))?;
            match id {
                id::TIME | id::SIMPLE_BLOCK | id::BLOCK_GROUP if size <= LARGEST_PACKET => {
                    let data = read_exact(&mut *self.input, size, "a block")?;
                    match id {
                        id::TIME => self.cluster_time = number(&data).unwrap_or(0),
                        id::SIMPLE_BLOCK => self.block(&data, None)?,
                        _ => {
                            let alone = child(&data, id::REFERENCE).is_none();
                            if let Some(block) = child(&data, id::BLOCK) {
                                self.block(block, Some(alone))?;
                            }
                        }
                    }
                }
                id::SIMPLE_BLOCK | id::BLOCK_GROUP => {
                    return Err(MediaError::TooLarge {
                        what: format!("a block of {size} bytes"),
                    });
                }
                _ if self.position > self.end => {
                    return Err(MediaError::damaged("it ends inside an element"));
                }
                _ => {}
            }
        }
    }
}
