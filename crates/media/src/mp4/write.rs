//! Writing: the coded data as it comes, the index behind it. Sizes and positions are known at the end only.

use std::io::{self, Seek, SeekFrom, Write};

use super::{full, wrap};
use crate::packet::{CodedSound, Packet, Tags};
use crate::rate::Rate;

/// What the index says of one track.
#[derive(Debug, Default)]
struct Index {
    sizes: Vec<u32>,
    /// Numbers from 1 of those that need no others.
    keys: Vec<u32>,
    /// Where a run of packets begins, and how many it has.
    chunks: Vec<(u64, u32)>,
}

impl Index {
    fn add(&mut self, position: u64, size: usize, key: bool, continues: bool) -> io::Result<()> {
        let size = u32::try_from(size).map_err(|_| io::Error::other("a packet of over 4 GiB"))?;
        self.sizes.push(size);
        if key {
            self.keys.push(self.sizes.len() as u32);
        }
        match self.chunks.last_mut() {
            Some((_, count)) if continues => *count += 1,
            _ => self.chunks.push((position, 1)),
        }
        Ok(())
    }

    /// Everything but the description of samples and their times.
    fn boxes(&self, all_keys: bool) -> Vec<u8> {
        let mut out = Vec::new();
        if !all_keys {
            let keys = self.keys.iter().flat_map(|k| k.to_be_bytes());
            let count = (self.keys.len() as u32).to_be_bytes();
            let body: Vec<u8> = count.into_iter().chain(keys).collect();
            out.extend(full(b"stss", 0, 0, &body));
        }
        let mut runs: Vec<[u32; 3]> = Vec::new();
        for (number, (_, count)) in self.chunks.iter().enumerate() {
            if runs.last().is_none_or(|run| run[1] != *count) {
                runs.push([number as u32 + 1, *count, 1]);
            }
        }
        out.extend(full(b"stsc", 0, 0, &table(runs.into_iter().flatten(), 3)));
        let mut sizes = 0u32.to_be_bytes().to_vec();
        sizes.extend(table(self.sizes.iter().copied(), 1));
        out.extend(full(b"stsz", 0, 0, &sizes));
        let large = self.chunks.iter().any(|(p, _)| *p > u64::from(u32::MAX));
        let mut positions = (self.chunks.len() as u32).to_be_bytes().to_vec();
        for (position, _) in &self.chunks {
            if large {
                positions.extend(position.to_be_bytes());
            } else {
                positions.extend((*position as u32).to_be_bytes());
            }
        }
        let name = if large { b"co64" } else { b"stco" };
        out.extend(full(name, 0, 0, &positions));
        out
    }
}

/// The count of rows, and the rows.
fn table(values: impl Iterator<Item = u32>, columns: usize) -> Vec<u8> {
    let rows: Vec<u8> = values.flat_map(u32::to_be_bytes).collect();
    let mut out = ((rows.len() / 4 / columns) as u32).to_be_bytes().to_vec();
    out.extend(rows);
    out
}

/// A film of one picture track and perhaps one of sound.
pub(crate) struct Mp4Writer<W> {
    out: W,
    position: u64,
    data_start: u64,
    rate: Rate,
    size: (u16, u16),
    video: Index,
    sound: Option<(CodedSound, Index)>,
    /// Packets of sound that were written.
    heard: usize,
    last_was_sound: Option<bool>,
}

impl<W: Write + Seek> Mp4Writer<W> {
    pub(crate) fn new(
        mut out: W,
        rate: Rate,
        size: (u16, u16),
        sound: Option<CodedSound>,
    ) -> io::Result<Self> {
        let mut brands = b"isom".to_vec();
        brands.extend(512u32.to_be_bytes());
        brands.extend(b"isomiso2avc1mp41");
        let mut head = wrap(b"ftyp", &brands);
        // A size of 1 says that the real one, in 64 bits, follows.
        head.extend(1u32.to_be_bytes());
        head.extend(b"mdat");
        let data_start = head.len() as u64 - 8;
        head.extend(0u64.to_be_bytes());
        out.write_all(&head)?;
        Ok(Self {
            out,
            position: head.len() as u64,
            data_start,
            rate,
            size,
            video: Index::default(),
            sound: sound.map(|s| (s, Index::default())),
            heard: 0,
            last_was_sound: None,
        })
    }

    /// The next picture, and the sound that is heard before it ends.
    pub(crate) fn picture(&mut self, packet: &Packet) -> io::Result<()> {
        let continues = self.last_was_sound == Some(false);
        self.video
            .add(self.position, packet.data.len(), packet.key, continues)?;
        self.write(&packet.data)?;
        self.last_was_sound = Some(false);
        let until = self.rate.time_of(self.video.sizes.len() as u64);
        self.sound_until(until)
    }

    fn sound_until(&mut self, seconds: f64) -> io::Result<()> {
        let Some((sound, mut index)) = self.sound.take() else {
            return Ok(());
        };
        let time = |packet: usize| packet as f64 * f64::from(sound.step) / f64::from(sound.rate);
        while self.heard < sound.packets.len() && time(self.heard) < seconds {
            let data = &sound.packets[self.heard];
            let continues = self.last_was_sound == Some(true);
            index.add(self.position, data.len(), true, continues)?;
            self.write(data)?;
            self.last_was_sound = Some(true);
            self.heard += 1;
        }
        self.sound = Some((sound, index));
        Ok(())
    }

    fn write(&mut self, data: &[u8]) -> io::Result<()> {
        self.position += data.len() as u64;
        self.out.write_all(data)
    }

    /// Writes the index. `config` is what a decoder of the pictures needs first.
    pub(crate) fn finish(mut self, config: &[u8], tags: &Tags) -> io::Result<W> {
        self.sound_until(f64::INFINITY)?;
        let size = self.position - self.data_start;
        let index = self.index(config, tags);
        self.out.write_all(&index)?;
        self.out.seek(SeekFrom::Start(self.data_start + 8))?;
        self.out.write_all(&size.to_be_bytes())?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn index(&self, config: &[u8], tags: &Tags) -> Vec<u8> {
        let (scale, step) = self.rate.ticks();
        let frames = self.video.sizes.len() as u64;
        // The whole film has the clock of its pictures, so that its length is exact.
        let pictures = Track {
            id: 1,
            movie_scale: scale,
            scale,
            duration: frames * u64::from(step),
            shown: (frames * u64::from(step), 0),
            step,
            size: Some(self.size),
            entry: video_entry(self.size, config),
            index: &self.video,
        };
        let mut tracks = vec![pictures];
        if let Some((sound, index)) = &self.sound {
            tracks.push(Track {
                id: 2,
                movie_scale: scale,
                scale: sound.rate,
                duration: index.sizes.len() as u64 * u64::from(sound.step),
                shown: (sound.length, sound.skip),
                step: sound.step,
                size: None,
                entry: sound_entry(sound),
                index,
            });
        }
        let longest = tracks.iter().map(Track::movie_duration).max().unwrap_or(0);
        let mut body = movie_header(scale, longest, tracks.len() as u32 + 1);
        for track in &tracks {
            body.extend(track.boxes());
        }
        if !tags.is_empty() {
            body.extend(wrap(b"udta", &tag_box(tags)));
        }
        wrap(b"moov", &body)
    }
}

/// Units of the unit matrix that every header has.
fn matrix() -> Vec<u8> {
    [0x10000u32, 0, 0, 0, 0x10000, 0, 0, 0, 0x4000_0000]
        .into_iter()
        .flat_map(u32::to_be_bytes)
        .collect()
}

fn movie_header(scale: u32, duration: u64, next: u32) -> Vec<u8> {
    let mut body = Vec::new();
    for value in [0u32, 0, scale, duration as u32, 0x10000] {
        body.extend(value.to_be_bytes());
    }
    body.extend([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    body.extend(matrix());
    body.extend([0; 24]);
    body.extend(next.to_be_bytes());
    full(b"mvhd", 0, 0, &body)
}

struct Track<'a> {
    id: u32,
    movie_scale: u32,
    scale: u32,
    duration: u64,
    /// How much is shown, from where on; in ticks.
    shown: (u64, u32),
    step: u32,
    /// None for sound.
    size: Option<(u16, u16)>,
    entry: Vec<u8>,
    index: &'a Index,
}

impl Track<'_> {
    fn movie_duration(&self) -> u64 {
        let scale = u64::from(self.scale.max(1));
        (self.shown.0 * u64::from(self.movie_scale) + scale / 2) / scale
    }

    fn boxes(&self) -> Vec<u8> {
        let mut body = self.header();
        // Nothing is cut off the pictures.
        if self.size.is_none() {
            let mut edit = 1u32.to_be_bytes().to_vec();
            edit.extend((self.movie_duration() as u32).to_be_bytes());
            edit.extend(self.shown.1.to_be_bytes());
            edit.extend(0x10000u32.to_be_bytes());
            body.extend(wrap(b"edts", &full(b"elst", 0, 0, &edit)));
        }
        body.extend(wrap(b"mdia", &self.media()));
        wrap(b"trak", &body)
    }

    fn header(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for value in [0u32, 0, self.id, 0, self.movie_duration() as u32, 0, 0] {
            body.extend(value.to_be_bytes());
        }
        // Layer, group, volume.
        body.extend([0, 0, 0, 0]);
        body.extend(if self.size.is_some() {
            [0; 4]
        } else {
            [1, 0, 0, 0]
        });
        body.extend(matrix());
        let (width, height) = self.size.unwrap_or_default();
        body.extend((u32::from(width) << 16).to_be_bytes());
        body.extend((u32::from(height) << 16).to_be_bytes());
        // Enabled, and part of the film.
        full(b"tkhd", 0, 3, &body)
    }

    fn media(&self) -> Vec<u8> {
        let mut header = Vec::new();
        let long = self.duration > u64::from(u32::MAX);
        if long {
            header.extend([0; 16]);
            header.extend(self.scale.to_be_bytes());
            header.extend(self.duration.to_be_bytes());
        } else {
            header.extend([0; 8]);
            header.extend(self.scale.to_be_bytes());
            header.extend((self.duration as u32).to_be_bytes());
        }
        // No language said.
        header.extend([0x55, 0xc4, 0, 0]);
        let mut body = full(b"mdhd", u8::from(long), 0, &header);
        let (kind, name): (&[u8; 4], &[u8]) = match self.size {
            Some(_) => (b"vide", b"VideoHandler\0"),
            None => (b"soun", b"SoundHandler\0"),
        };
        body.extend(handler(kind, name));
        let mut info = match self.size {
            Some(_) => full(b"vmhd", 0, 1, &[0; 8]),
            None => full(b"smhd", 0, 0, &[0; 4]),
        };
        let mut reference = 1u32.to_be_bytes().to_vec();
        // The data is in this file.
        reference.extend(full(b"url ", 0, 1, &[]));
        info.extend(wrap(b"dinf", &full(b"dref", 0, 0, &reference)));
        info.extend(wrap(b"stbl", &self.samples()));
        body.extend(wrap(b"minf", &info));
        body
    }

    fn samples(&self) -> Vec<u8> {
        let mut entries = 1u32.to_be_bytes().to_vec();
        entries.extend(&self.entry);
        let mut out = full(b"stsd", 0, 0, &entries);
        let count = self.index.sizes.len() as u32;
        let times = [count, self.step].into_iter();
        out.extend(full(b"stts", 0, 0, &table(times, 2)));
        out.extend(self.index.boxes(self.size.is_none()));
        out
    }
}

fn handler(kind: &[u8], name: &[u8]) -> Vec<u8> {
    let mut body = vec![0; 4];
    body.extend(kind);
    body.extend([0; 12]);
    body.extend(name);
    full(b"hdlr", 0, 0, &body)
}

fn video_entry((width, height): (u16, u16), config: &[u8]) -> Vec<u8> {
    let mut body = vec![0, 0, 0, 0, 0, 0, 0, 1];
    body.extend([0; 16]);
    body.extend(width.to_be_bytes());
    body.extend(height.to_be_bytes());
    // 72 dots an inch in both directions, one frame a sample, no name of the compressor.
    body.extend([0, 0x48, 0, 0, 0, 0x48, 0, 0, 0, 0, 0, 0, 0, 1]);
    body.extend([0; 32]);
    body.extend([0, 0x18, 0xff, 0xff]);
    body.extend(wrap(b"avcC", config));
    // Pixels are square.
    let square: Vec<u8> = [1u32, 1].into_iter().flat_map(u32::to_be_bytes).collect();
    body.extend(wrap(b"pasp", &square));
    wrap(b"avc1", &body)
}

fn sound_entry(sound: &CodedSound) -> Vec<u8> {
    let mut body = vec![0, 0, 0, 0, 0, 0, 0, 1];
    body.extend([0; 8]);
    body.extend(sound.channels.to_be_bytes());
    body.extend([0, 16, 0, 0, 0, 0]);
    // Rates of more than 16 bits are in the configuration.
    let rate = if sound.rate > 0xffff { 0 } else { sound.rate };
    body.extend((rate << 16).to_be_bytes());
    let mut decoder = vec![0x40, 0x15, 0, 0, 0];
    let bytes: usize = sound.packets.iter().map(Vec::len).sum();
    let seconds = sound.packets.len() as f64 * f64::from(sound.step) / f64::from(sound.rate);
    let bits = (bytes as f64 * 8.0 / seconds.max(1e-3)) as u32;
    decoder.extend(bits.to_be_bytes());
    decoder.extend(bits.to_be_bytes());
    decoder.extend(descriptor(5, &sound.config));
    let mut stream = vec![0, 2, 0];
    stream.extend(descriptor(4, &decoder));
    stream.extend(descriptor(6, &[2]));
    body.extend(full(b"esds", 0, 0, &descriptor(3, &stream)));
    wrap(b"mp4a", &body)
}

fn descriptor(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len() as u32;
    let mut out = vec![tag];
    for shift in [21, 14, 7] {
        out.push((length >> shift) as u8 & 0x7f | 0x80);
    }
    out.push(length as u8 & 0x7f);
    out.extend(content);
    out
}

/// Free keys with texts.
pub(super) fn tag_box(tags: &Tags) -> Vec<u8> {
    let mut keys = (tags.len() as u32).to_be_bytes().to_vec();
    let mut items = Vec::new();
    for (number, (key, text)) in tags.iter().enumerate() {
        keys.extend(wrap(b"mdta", key.as_bytes()));
        // Text in UTF-8, of no language.
        let mut data = vec![0, 0, 0, 1, 0, 0, 0, 0];
        data.extend(text.as_bytes());
        let item = wrap(b"data", &data);
        items.extend(wrap(&(number as u32 + 1).to_be_bytes(), &item));
    }
    let mut body = handler(b"mdta", b"\0");
    body.extend(full(b"keys", 0, 0, &keys));
    body.extend(wrap(b"ilst", &items));
    full(b"meta", 0, 0, &body)
}
