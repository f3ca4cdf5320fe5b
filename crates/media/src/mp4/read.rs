//! Reading: the index is in memory, packets are read when they are wanted.

use std::io::SeekFrom;

use crate::container::{Bytes, Codec, Container, Input, TimedPacket, Track, TrackKind, read_exact};
use crate::error::{MediaError, Result};
use crate::rate::Rate;

/// The largest index that is read.
const LARGEST_INDEX: u64 = 128 << 20;
/// Packets of all tracks: days of film.
const MOST_PACKETS: usize = 16 << 20;

#[derive(Clone, Copy, Debug)]
struct Place {
    offset: u64,
    size: u32,
    /// When it is shown, in ticks of the track.
    time: i64,
    key: bool,
}

/// What is known of a track besides what everybody sees.
struct Inner {
    id: u32,
    scale: u32,
    places: Vec<Place>,
    /// Ticks and how many packets of fragments came so far.
    next_time: u64,
    defaults: [u32; 3],
}

pub(crate) struct Mp4 {
    input: Box<dyn Input>,
    tracks: Vec<Track>,
    inner: Vec<Inner>,
    duration: Option<f64>,
    current: (usize, usize),
}

/// The boxes in some bytes, each with its name; stops at the first that is cut off.
pub(crate) fn boxes(mut data: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let (size, rest) = data.split_first_chunk::<4>()?;
        let (name, rest) = rest.split_first_chunk::<4>()?;
        let size = u32::from_be_bytes(*size) as usize;
        let (content, rest) = match size {
            0 => (rest, &rest[rest.len()..]),
            1 => {
                let (size, rest) = rest.split_first_chunk::<8>()?;
                let size = usize::try_from(u64::from_be_bytes(*size)).ok()?;
                rest.split_at_checked(size.checked_sub(16)?)?
            }
            size => rest.split_at_checked(size.checked_sub(8)?)?,
        };
        data = rest;
        Some((*name, content))
    })
}

pub(super) fn find<'a>(data: &'a [u8], path: &[&[u8; 4]]) -> Option<&'a [u8]> {
    let (first, rest) = path.split_first()?;
    let (_, content) = boxes(data).find(|(name, _)| name == *first)?;
    if rest.is_empty() {
        Some(content)
    } else {
        find(content, rest)
    }
}

impl Mp4 {
    pub(crate) fn open(mut input: Box<dyn Input>) -> Result<Self> {
        let end = input.seek(SeekFrom::End(0))?;
        let mut position = 0;
        let mut index = None;
        let mut fragments = Vec::new();
        while position + 8 <= end {
            input.seek(SeekFrom::Start(position))?;
            let head = read_exact(&mut input, 8, "a box")?;
            let mut size = u64::from(u32::from_be_bytes([head[0], head[1], head[2], head[3]]));
            let mut content = position + 8;
            if size == 1 {
                let long = read_exact(&mut input, 8, "a box")?;
                size = Bytes(&long).u64()?;
                content += 8;
            } else if size == 0 {
                size = end - position;
            }
            let length = size
                .checked_sub(content - position)
                .ok_or_else(|| MediaError::damaged("a box is smaller than its header"))?;
            match &head[4..8] {
                b"moov" | b"moof" if length > LARGEST_INDEX => {
                    return Err(MediaError::TooLarge {
                        what: "its index".into(),
                    });
                }
                b"moov" => index = Some(read_exact(&mut input, length, "the index")?),
                b"moof" if index.is_some() => {
                    let data = read_exact(&mut input, length, "a fragment")?;
                    fragments.push((position, data));
                }
                _ => {}
            }
            position = position
                .checked_add(size)
                .ok_or_else(|| MediaError::damaged("a box without end"))?;
        }
        let index = index.ok_or_else(|| MediaError::damaged("it has no index"))?;
        let mut file = Self {
            input,
            tracks: Vec::new(),
            inner: Vec::new(),
            duration: None,
            current: (0, 0),
        };
        file.read_index(&index)?;
        for (position, data) in fragments {
            file.read_fragment(position, &data)?;
        }
        file.measure();
        Ok(file)
    }

    fn read_index(&mut self, index: &[u8]) -> Result<()> {
        let header = find(index, &[b"mvhd"]).map(duration_of).transpose()?;
        if let Some((scale, ticks)) = header {
            let seconds = ticks as f64 / f64::from(scale.max(1));
            self.duration = (seconds > 0.0).then_some(seconds);
        }
        let movie_scale = header.map_or(1000, |h| h.0.max(1));
        for (name, content) in boxes(index) {
            if &name == b"trak"
                && let Some((track, inner)) = read_track(content, movie_scale)?
            {
                self.tracks.push(track);
                self.inner.push(inner);
            }
        }
        let defaults = find(index, &[b"mvex"]).unwrap_or_default();
        for (name, content) in boxes(defaults) {
            if &name == b"trex" {
                let mut b = Bytes(content);
                b.u32()?;
                let id = b.u32()?;
                b.u32()?;
                let defaults = [b.u32()?, b.u32()?, b.u32()?];
                for inner in self.inner.iter_mut().filter(|i| i.id == id) {
                    inner.defaults = defaults;
                }
            }
        }
        if self.inner.iter().map(|i| i.places.len()).sum::<usize>() > MOST_PACKETS {
            return Err(MediaError::TooLarge {
                what: "its index".into(),
            });
        }
        Ok(())
    }

    fn read_fragment(&mut self, position: u64, data: &[u8]) -> Result<()> {
        for (_, content) in boxes(data).filter(|(name, _)| name == b"traf") {
            let header = find(content, &[b"tfhd"])
                .ok_or_else(|| MediaError::damaged("a fragment of no track"))?;
            let mut b = Bytes(header);
            let flags = b.u32()? & 0xff_ffff;
            let id = b.u32()?;
            let Some(inner) = self.inner.iter_mut().find(|i| i.id == id) else {
                continue;
            };
            let base = if flags & 1 != 0 { b.u64()? } else { position };
            if flags & 2 != 0 {
                b.u32()?;
            }
            let mut defaults = inner.defaults;
            for (bit, value) in [8, 16, 32].into_iter().zip(&mut defaults) {
                if flags & bit != 0 {
                    *value = b.u32()?;
                }
            }
            if let Some(time) = find(content, &[b"tfdt"]) {
                let mut b = Bytes(time);
                let version = b.u32()? >> 24;
                inner.next_time = if version == 1 {
                    b.u64()?
                } else {
                    b.u32()?.into()
                };
            }
            let mut offset = base;
            for (_, run) in boxes(content).filter(|(name, _)| name == b"trun") {
                read_run(run, base, &mut offset, defaults, inner)?;
            }
        }
        Ok(())
    }

    /// Counts, durations and rates from the packets themselves.
    fn measure(&mut self) {
        for (track, inner) in self.tracks.iter_mut().zip(&self.inner) {
            track.count = Some(inner.places.len() as u64);
            let scale = f64::from(inner.scale.max(1));
            let ticks = inner.next_time;
            if ticks > 0 {
                let shown = ticks as f64 / scale - track.skip;
                let said = track.duration.unwrap_or(shown);
                // The edit is in thousandths of a second; a difference below that is none.
                let cut = said > 0.0 && said < shown - 0.001;
                track.duration = Some(if cut { said } else { shown });
            }
            if let TrackKind::Video { .. } = track.kind
                && ticks > 0
            {
                let count = inner.places.len() as u64;
                track.rate = Rate::new(count * u64::from(inner.scale), ticks);
            }
        }
        let longest = self.tracks.iter().filter_map(|t| t.duration);
        self.duration = self.duration.or(longest.reduce(f64::max));
    }
}

fn duration_of(header: &[u8]) -> Result<(u32, u64)> {
    let mut b = Bytes(header);
    let version = b.u32()? >> 24;
    if version == 1 {
        b.take(16)?;
        Ok((b.u32()?, b.u64()?))
    } else {
        b.take(8)?;
        Ok((b.u32()?, b.u32()?.into()))
    }
}

fn read_track(data: &[u8], movie_scale: u32) -> Result<Option<(Track, Inner)>> {
    let need = |path: &[&[u8; 4]]| {
        find(data, path).ok_or_else(|| MediaError::damaged("a track lacks part of its index"))
    };
    let handler = need(&[b"mdia", b"hdlr"])?;
    let is_video = match handler.get(8..12) {
        Some(b"vide") => true,
        Some(b"soun") => false,
        _ => return Ok(None),
    };
    let mut header = Bytes(need(&[b"tkhd"])?);
    let version = header.u32()? >> 24;
    header.take(if version == 1 { 16 } else { 8 })?;
    let id = header.u32()?;
    let (scale, ticks) = duration_of(need(&[b"mdia", b"mdhd"])?)?;
    if scale == 0 {
        return Err(MediaError::damaged("a track without a clock"));
    }
    let table = need(&[b"mdia", b"minf", b"stbl"])?;
    let described = find(table, &[b"stsd"]).unwrap_or_default();
    let entry = boxes(described.get(8..).unwrap_or_default()).next();
    let (kind, codec, config) = match entry {
        Some((name, content)) if is_video => video_entry(name, content)?,
        Some((name, content)) => sound_entry(name, content)?,
        None => return Ok(None),
    };
    let mut inner = Inner {
        id,
        scale,
        places: Vec::new(),
        next_time: 0,
        defaults: [0; 3],
    };
    read_places(table, &mut inner)?;
    let (mut skip, mut shown) = (0.0, None);
    if let Some(edits) = find(data, &[b"edts", b"elst"]) {
        let (ticks, duration) = read_edits(edits, movie_scale)?;
        skip = ticks as f64 / f64::from(scale);
        shown = duration;
    }
    let duration = shown.or_else(|| (ticks > 0).then(|| ticks as f64 / f64::from(scale)));
    let track = Track {
        kind,
        codec,
        config,
        duration,
        count: None,
        rate: None,
        skip,
    };
    Ok(Some((track, inner)))
}

/// Ticks that are cut off the front, and how long what is shown lasts.
fn read_edits(edits: &[u8], movie_scale: u32) -> Result<(i64, Option<f64>)> {
    let mut b = Bytes(edits);
    let version = b.u32()? >> 24;
    let count = b.u32()?;
    for _ in 0..count.min(16) {
        let (duration, start) = if version == 1 {
            (b.u64()?, b.u64()? as i64)
        } else {
            (u64::from(b.u32()?), i64::from(b.u32()? as i32))
        };
        b.u32()?;
        // Negative: nothing is shown for a while.
        if start >= 0 {
            let seconds = duration as f64 / f64::from(movie_scale);
            return Ok((start, (seconds > 0.0 && count == 1).then_some(seconds)));
        }
    }
    Ok((0, None))
}

fn video_entry(name: [u8; 4], content: &[u8]) -> Result<(TrackKind, Codec, Vec<u8>)> {
    let mut b = Bytes(content);
    b.take(24)?;
    let (width, height) = (b.u16()?.into(), b.u16()?.into());
    b.take(50)?;
    let part = |name: &[u8; 4]| find(b.0, &[name]).unwrap_or_default().to_vec();
    let (codec, config) = match &name {
        b"avc1" | b"avc3" => (Codec::H264, part(b"avcC")),
        b"vp09" => (Codec::Vp9, Vec::new()),
        b"av01" => (Codec::Av1, part(b"av1C")),
        other => (Codec::unknown(other), Vec::new()),
    };
    Ok((TrackKind::Video { width, height }, codec, config))
}

fn sound_entry(name: [u8; 4], content: &[u8]) -> Result<(TrackKind, Codec, Vec<u8>)> {
    let mut b = Bytes(content);
    b.take(8)?;
    let version = b.u16()?;
    b.take(6)?;
    let (mut channels, bits) = (b.u16()?, b.u16()?);
    b.take(4)?;
    let mut rate = b.u32()? >> 16;
    if version == 1 {
        b.take(16)?;
    } else if version == 2 {
        b.take(4)?;
        rate = f64::from_bits(b.u64()?) as u32;
        channels = b.u32()? as u16;
        b.take(20)?;
    }
    // QuickTime files keep these one level further down.
    let part = |name: &[u8; 4]| find(b.0, &[name]).or_else(|| find(b.0, &[b"wave", name]));
    let pcm = |bits, float, big| Codec::Pcm { bits, float, big };
    let (codec, config) = match &name {
        b"mp4a" => elementary(part(b"esds").unwrap_or_default())?,
        b"Opus" => (Codec::Opus, part(b"dOps").unwrap_or_default().to_vec()),
        b"fLaC" => (Codec::Flac, part(b"dfLa").unwrap_or_default().to_vec()),
        b".mp3" => (Codec::Mp3, Vec::new()),
        b"sowt" => (pcm(bits.max(8), false, false), Vec::new()),
        b"twos" => (pcm(bits.max(8), false, true), Vec::new()),
        b"in24" => (pcm(24, false, true), Vec::new()),
        b"in32" => (pcm(32, false, true), Vec::new()),
        b"fl32" => (pcm(32, true, true), Vec::new()),
        other => (Codec::unknown(other), Vec::new()),
    };
    Ok((TrackKind::Sound { rate, channels }, codec, config))
}

/// The codec and its configuration from an elementary stream descriptor.
fn elementary(data: &[u8]) -> Result<(Codec, Vec<u8>)> {
    let mut b = Bytes(data.get(4..).unwrap_or_default());
    let mut kind = 0x40;
    let mut config = Vec::new();
    while !b.0.is_empty() {
        let tag = b.u8()?;
        let mut length = 0usize;
        for _ in 0..4 {
            let byte = b.u8()?;
            length = length << 7 | usize::from(byte & 0x7f);
            if byte & 0x80 == 0 {
                break;
            }
        }
        match tag {
            // These hold the others.
            3 => {
                b.take(2)?;
                let flags = b.u8()?;
                if flags & 0xe0 != 0 {
                    return Err(MediaError::unsupported("a track that depends on others"));
                }
            }
            4 => {
                kind = b.u8()?;
                b.take(12)?;
            }
            5 => config = b.take(length)?.to_vec(),
            _ => {
                b.take(length.min(b.0.len()))?;
            }
        }
    }
    Ok(match kind {
        0x40 | 0x66..=0x68 => (Codec::Aac, config),
        0x69 | 0x6b => (Codec::Mp3, Vec::new()),
        other => (
            Codec::unknown(format!("mp4a {other:x}").as_bytes()),
            Vec::new(),
        ),
    })
}

/// Where the packets are, from the tables of the index.
fn read_places(table: &[u8], inner: &mut Inner) -> Result<()> {
    let part = |name: &[u8; 4]| Bytes(find(table, &[name]).unwrap_or_default());
    let mut sizes = part(b"stsz");
    if sizes.0.is_empty() {
        return Ok(());
    }
    sizes.u32()?;
    let (same, count) = (sizes.u32()?, sizes.u32()? as usize);
    if count > MOST_PACKETS {
        return Err(MediaError::TooLarge {
            what: "its index".into(),
        });
    }
    let mut times = Runs::new(part(b"stts"));
    let mut shifts = Runs::new(part(b"ctts"));
    let mut keys = part(b"stss");
    let all_keys = keys.0.is_empty();
    keys.take(8.min(keys.0.len()))?;
    let mut next_key = keys.u32().unwrap_or(u32::MAX);
    let mut chunks = Chunks::new(table)?;
    let mut time = 0u64;
    // An index may promise more than it has: memory is taken as entries come.
    for number in 0..count {
        let size = if same == 0 { sizes.u32()? } else { same };
        let Some(offset) = chunks.place(size)? else {
            break;
        };
        let shift = shifts.next().unwrap_or(0) as i32;
        let key = all_keys || next_key == number as u32 + 1;
        if key && !all_keys {
            next_key = keys.u32().unwrap_or(u32::MAX);
        }
        inner.places.push(Place {
            offset,
            size,
            time: time as i64 + i64::from(shift),
            key,
        });
        let Some(step) = times.next() else {
            break;
        };
        time += u64::from(step);
    }
    inner.next_time = time;
    Ok(())
}

/// A table of how often a value repeats.
struct Runs<'a> {
    rows: Bytes<'a>,
    left: u32,
    value: u32,
}

impl<'a> Runs<'a> {
    fn new(mut table: Bytes<'a>) -> Self {
        let _ = table.take(8);
        Self {
            rows: table,
            left: 0,
            value: 0,
        }
    }

    fn next(&mut self) -> Option<u32> {
        while self.left == 0 {
            self.left = self.rows.u32().ok()?;
            self.value = self.rows.u32().ok()?;
        }
        self.left -= 1;
        Some(self.value)
    }
}

/// Walks through the chunks that packets are in.
struct Chunks<'a> {
    positions: Bytes<'a>,
    long: bool,
    runs: Bytes<'a>,
    next_first: u32,
    per_chunk: u32,
    chunk: u32,
    left: u32,
    offset: u64,
}

impl<'a> Chunks<'a> {
    fn new(table: &'a [u8]) -> Result<Self> {
        let (positions, long) = match find(table, &[b"co64"]) {
            Some(found) => (found, true),
            None => (find(table, &[b"stco"]).unwrap_or_default(), false),
        };
        let mut positions = Bytes(positions);
        let mut runs = Bytes(find(table, &[b"stsc"]).unwrap_or_default());
        positions.take(8)?;
        runs.take(8)?;
        let next_first = runs.u32().unwrap_or(u32::MAX);
        Ok(Self {
            positions,
            long,
            runs,
            next_first,
            per_chunk: 0,
            chunk: 0,
            left: 0,
            offset: 0,
        })
    }

    /// Where the next packet is; none behind the last chunk.
    fn place(&mut self, size: u32) -> Result<Option<u64>> {
        while self.left == 0 {
            self.chunk += 1;
            if self.chunk >= self.next_first {
                self.per_chunk = self.runs.u32()?;
                self.runs.u32()?;
                self.next_first = self.runs.u32().unwrap_or(u32::MAX);
            }
            let position = if self.long {
                self.positions.u64()
            } else {
                self.positions.u32().map(u64::from)
            };
            let Ok(position) = position else {
                return Ok(None);
            };
            self.offset = position;
            self.left = self.per_chunk;
        }
        self.left -= 1;
        let place = self.offset;
        self.offset = place
            .checked_add(size.into())
            .ok_or_else(|| MediaError::damaged("a packet beyond all files"))?;
        Ok(Some(place))
    }
}

/// Packets of one run of a fragment.
fn read_run(
    run: &[u8],
    base: u64,
    offset: &mut u64,
    defaults: [u32; 3],
    inner: &mut Inner,
) -> Result<()> {
    let mut b = Bytes(run);
    let flags = b.u32()? & 0xff_ffff;
    let count = b.u32()?;
    if flags & 1 != 0 {
        let shift = i64::from(b.u32()? as i32);
        *offset = base.saturating_add_signed(shift);
    }
    let mut first = if flags & 4 != 0 { Some(b.u32()?) } else { None };
    for _ in 0..count {
        if inner.places.len() >= MOST_PACKETS {
            return Err(MediaError::TooLarge {
                what: "its index".into(),
            });
        }
        let mut read = |bit: u32, default: u32| {
            if flags & bit != 0 {
                b.u32()
            } else {
                Ok(default)
            }
        };
        let step = read(0x100, defaults[0])?;
        let size = read(0x200, defaults[1])?;
        let mark = read(0x400, defaults[2])?;
        let shift = read(0x800, 0)? as i32;
        let mark = first.take().unwrap_or(mark);
        if flags & 0xf00 == 0 && size == 0 {
            return Err(MediaError::damaged("a fragment of empty packets"));
        }
        inner.places.push(Place {
            offset: *offset,
            size,
            time: inner.next_time as i64 + i64::from(shift),
            key: mark & 0x1_0000 == 0,
        });
        *offset = offset
            .checked_add(size.into())
            .ok_or_else(|| MediaError::damaged("a packet beyond all files"))?;
        inner.next_time += u64::from(step);
    }
    Ok(())
}

impl Container for Mp4 {
    fn format(&self) -> &'static str {
        "mov,mp4,m4a,3gp,3g2,mj2"
    }

    fn tracks(&self) -> &[Track] {
        &self.tracks
    }

    fn duration(&self) -> Option<f64> {
        self.duration
    }

    fn start(&mut self, track: usize) -> Result<()> {
        self.current = (track, 0);
        Ok(())
    }

    fn next_packet(&mut self) -> Result<Option<TimedPacket>> {
        let (track, number) = self.current;
        let inner = &self.inner[track];
        let Some(place) = inner.places.get(number).copied() else {
            return Ok(None);
        };
        self.current.1 += 1;
        let time = place.time as f64 / f64::from(inner.scale) - self.tracks[track].skip;
        self.input.seek(SeekFrom::Start(place.offset))?;
        let data = read_exact(&mut self.input, place.size.into(), "a packet")?;
        Ok(Some(TimedPacket {
            time,
            data,
            key: place.key,
        }))
    }

    fn seek(&mut self, time: f64) -> Result<()> {
        let (track, _) = self.current;
        let inner = &self.inner[track];
        let wanted = (time + self.tracks[track].skip) * f64::from(inner.scale);
        let before = |p: &Place| p.key && p.time as f64 <= wanted + 0.5;
        self.current.1 = inner.places.iter().rposition(before).unwrap_or(0);
        Ok(())
    }
}
