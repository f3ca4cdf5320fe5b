//! Writing a film of one picture track. Clusters begin at pictures that need no others, and are listed at the end.

use std::io::{self, Seek, SeekFrom, Write};

use super::id;
use crate::packet::{Packet, Tags};
use crate::rate::Rate;

/// A name without its leading zeros.
fn name(id: u32) -> Vec<u8> {
    let bytes = id.to_be_bytes();
    let zeros = bytes.iter().take_while(|b| **b == 0).count();
    bytes[zeros..].to_vec()
}

/// An element whose size takes 8 bytes: any size fits, and it can be filled in later.
fn element(id: u32, content: &[u8]) -> Vec<u8> {
    let mut out = name(id);
    out.extend((1u64 << 56 | content.len() as u64).to_be_bytes());
    out.extend(content);
    out
}

fn number(id: u32, value: u64) -> Vec<u8> {
    let bytes = value.to_be_bytes();
    let zeros = bytes.iter().take_while(|b| **b == 0).count().min(7);
    element(id, &bytes[zeros..])
}

fn text(id: u32, value: &str) -> Vec<u8> {
    element(id, value.as_bytes())
}

fn float(id: u32, value: f64) -> Vec<u8> {
    element(id, &value.to_be_bytes())
}

/// What is said of the pictures.
pub(crate) struct WebmTrack<'a> {
    pub(crate) codec: &'a str,
    pub(crate) config: &'a [u8],
    pub(crate) size: (u32, u32),
    pub(crate) rate: Rate,
    pub(crate) tags: &'a Tags,
}

/// A cluster that is not full yet.
struct Cluster {
    time: u64,
    blocks: Vec<u8>,
}

pub(crate) struct WebmWriter<W> {
    out: W,
    position: u64,
    /// Where the content of the segment begins; positions inside count from here.
    segment: u64,
    duration_at: u64,
    /// Where the list of clusters will be said to be.
    cues_at: u64,
    rate: Rate,
    frames: u64,
    cluster: Option<Cluster>,
    cues: Vec<(u64, u64)>,
}

/// Milliseconds of a cluster at most: times inside have 16 bits.
const LONGEST: u64 = 5_000;
const LARGEST: usize = 5 << 20;

impl<W: Write + Seek> WebmWriter<W> {
    pub(crate) fn new(mut out: W, track: &WebmTrack<'_>) -> io::Result<Self> {
        let mut head = element(
            id::EBML,
            &[
                number(0x4286, 1),
                number(0x42F7, 1),
                number(0x42F2, 4),
                number(0x42F3, 8),
                text(0x4282, "webm"),
                number(0x4287, 4),
                number(0x4285, 2),
            ]
            .concat(),
        );
        head.extend(name(id::SEGMENT));
        // Until it is known how large it becomes.
        head.extend([0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        let segment = head.len() as u64;
        let seek = element(
            id::SEEK,
            &[
                element(id::SEEK_ID, &name(id::CUES)),
                element(id::SEEK_POSITION, &[0; 8]),
            ]
            .concat(),
        );
        head.extend(element(id::SEEK_HEAD, &seek));
        let cues_at = head.len() as u64 - 8;
        let info = [
            number(id::SCALE, 1_000_000),
            text(id::MUXER, "Fresco"),
            text(id::WRITER, "Fresco"),
            float(id::DURATION, 0.0),
        ];
        head.extend(element(id::INFO, &info.concat()));
        let duration_at = head.len() as u64 - 8;
        head.extend(element(
            id::TRACKS,
            &element(id::TRACK, &track_entry(track)),
        ));
        if !track.tags.is_empty() {
            head.extend(element(id::TAGS, &tag_entries(track.tags)));
        }
        out.write_all(&head)?;
        Ok(Self {
            out,
            position: head.len() as u64,
            segment,
            duration_at,
            cues_at,
            rate: track.rate,
            frames: 0,
            cluster: None,
            cues: Vec::new(),
        })
    }

    fn milliseconds(&self, frame: u64) -> u64 {
        let (num, den) = (u128::from(self.rate.num), u128::from(self.rate.den));
        ((u128::from(frame) * 1000 * den + num / 2) / num) as u64
    }

    pub(crate) fn picture(&mut self, packet: &Packet) -> io::Result<()> {
        let time = self.milliseconds(self.frames);
        self.frames += 1;
        let full = self
            .cluster
            .as_ref()
            .is_some_and(|c| packet.key || time - c.time > LONGEST || c.blocks.len() > LARGEST);
        if full {
            self.end_cluster()?;
        }
        let begins = self.cluster.is_none();
        if begins && packet.key {
            self.cues.push((time, self.position - self.segment));
        }
        let cluster = self.cluster.get_or_insert(Cluster {
            time,
            blocks: Vec::new(),
        });
        let mut block = vec![0x81];
        block.extend(((time - cluster.time) as i16).to_be_bytes());
        block.push(if packet.key { 0x80 } else { 0 });
        block.extend(&packet.data);
        cluster.blocks.extend(element(id::SIMPLE_BLOCK, &block));
        Ok(())
    }

    fn end_cluster(&mut self) -> io::Result<()> {
        let Some(cluster) = self.cluster.take() else {
            return Ok(());
        };
        let content = [number(id::TIME, cluster.time), cluster.blocks].concat();
        self.write(&element(id::CLUSTER, &content))
    }

    fn write(&mut self, data: &[u8]) -> io::Result<()> {
        self.position += data.len() as u64;
        self.out.write_all(data)
    }

    fn patch(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.out.seek(SeekFrom::Start(at))?;
        self.out.write_all(bytes)
    }

    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.end_cluster()?;
        let cues_position = self.position - self.segment;
        let cues: Vec<u8> = std::mem::take(&mut self.cues)
            .into_iter()
            .flat_map(|(time, position)| {
                let place = [number(id::CUE_TRACK, 1), number(id::CUE_CLUSTER, position)];
                let place = element(id::CUE_POSITIONS, &place.concat());
                element(id::CUE, &[number(id::CUE_TIME, time), place].concat())
            })
            .collect();
        self.write(&element(id::CUES, &cues))?;
        let size = self.position - self.segment;
        let duration = self.rate.time_of(self.frames) * 1000.0;
        self.patch(self.duration_at, &duration.to_be_bytes())?;
        self.patch(self.cues_at, &cues_position.to_be_bytes())?;
        self.patch(self.segment - 8, &(1u64 << 56 | size).to_be_bytes())?;
        self.out.flush()?;
        Ok(self.out)
    }
}

fn track_entry(track: &WebmTrack<'_>) -> Vec<u8> {
    let size = [
        number(id::WIDTH, track.size.0.into()),
        number(id::HEIGHT, track.size.1.into()),
    ];
    let nanoseconds = (1e9 / track.rate.fps()).round() as u64;
    let mut entry = [
        number(id::NUMBER, 1),
        number(id::TRACK_UID, 1),
        number(id::KIND, 1),
        number(id::LACING, 0),
        text(id::CODEC, track.codec),
        number(id::DEFAULT_DURATION, nanoseconds),
        element(id::VIDEO, &size.concat()),
    ]
    .concat();
    if !track.config.is_empty() {
        entry.extend(element(id::CODEC_PRIVATE, track.config));
    }
    entry
}

/// Names are upper case in this container.
fn tag_entries(tags: &Tags) -> Vec<u8> {
    let mut entry = element(id::TARGETS, &[]);
    for (key, value) in tags {
        let simple = [
            text(id::TAG_NAME, &key.to_uppercase()),
            text(id::TAG_STRING, value),
        ];
        entry.extend(element(id::SIMPLE_TAG, &simple.concat()));
    }
    element(id::TAG, &entry)
}
