//! Pages of Ogg files.

use std::io::{ErrorKind, Read};

use crate::container::{Input, read_exact};
use crate::error::{MediaError, Result};

fn checksum(parts: [&[u8]; 2]) -> u32 {
    let mut sum = 0u32;
    for byte in parts.into_iter().flatten() {
        sum ^= u32::from(*byte) << 24;
        for _ in 0..8 {
            sum = sum << 1 ^ if sum >> 31 == 1 { 0x04c1_1db7 } else { 0 };
        }
    }
    sum
}

/// Writes one stream.
#[derive(Debug)]
pub(super) struct OggWriter {
    out: Vec<u8>,
    serial: u32,
    page: u32,
}

impl OggWriter {
    pub(super) fn new(serial: u32) -> Self {
        Self {
            out: Vec::new(),
            serial,
            page: 0,
        }
    }

    /// Whole packets, as many pages as they take. `position` is what has been heard at their end.
    pub(super) fn packets(&mut self, packets: &[Vec<u8>], position: u64, last: bool) {
        let mut lacing = Vec::new();
        let mut content = Vec::new();
        let mut continued = false;
        for packet in packets {
            let mut rest = packet.as_slice();
            loop {
                if lacing.len() == 255 {
                    let more = !rest.is_empty() && rest.len() < packet.len();
                    self.page(&lacing, &content, u64::MAX, continued, false);
                    continued = more;
                    lacing.clear();
                    content.clear();
                }
                let size = rest.len().min(255);
                lacing.push(size as u8);
                content.extend(&rest[..size]);
                rest = &rest[size..];
                if size < 255 {
                    break;
                }
            }
        }
        self.page(&lacing, &content, position, continued, last);
    }

    fn page(&mut self, lacing: &[u8], content: &[u8], position: u64, continued: bool, last: bool) {
        let first = self.page == 0;
        let flags = u8::from(continued) | u8::from(first) << 1 | u8::from(last) << 2;
        let mut head = b"OggS\0".to_vec();
        head.push(flags);
        head.extend(position.to_le_bytes());
        head.extend(self.serial.to_le_bytes());
        head.extend(self.page.to_le_bytes());
        head.extend([0; 4]);
        head.push(lacing.len() as u8);
        head.extend(lacing);
        let sum = checksum([&head, content]);
        head[22..26].copy_from_slice(&sum.to_le_bytes());
        self.out.extend(head);
        self.out.extend(content);
        self.page += 1;
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.out
    }
}

/// Reads the packets of the first stream.
pub(crate) struct OggReader {
    input: Box<dyn Input>,
    serial: Option<u32>,
    ready: std::collections::VecDeque<Vec<u8>>,
    part: Vec<u8>,
    /// What the last page with an end of a packet said.
    pub(crate) position: Option<u64>,
    ended: bool,
}

/// A packet of sound is never so large.
const LARGEST: usize = 16 << 20;

impl OggReader {
    pub(crate) fn new(input: Box<dyn Input>) -> Self {
        Self {
            input,
            serial: None,
            ready: std::collections::VecDeque::new(),
            part: Vec::new(),
            position: None,
            ended: false,
        }
    }

    pub(crate) fn next_packet(&mut self) -> Result<Option<Vec<u8>>> {
        while self.ready.is_empty() && !self.ended {
            self.read_page()?;
        }
        Ok(self.ready.pop_front())
    }

    fn read_page(&mut self) -> Result<()> {
        let mut head = [0; 27];
        match self.input.read_exact(&mut head) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => {
                self.ended = true;
                return Ok(());
            }
            Err(e) => return Err(e.into()),
        }
        if !head.starts_with(b"OggS") {
            return Err(MediaError::damaged("a page without its mark"));
        }
        let lacing = read_exact(&mut *self.input, head[26].into(), "a page")?;
        let size: u64 = lacing.iter().map(|b| u64::from(*b)).sum();
        let content = read_exact(&mut *self.input, size, "a page")?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let serial = word(14);
        if *self.serial.get_or_insert(serial) != serial {
            return Ok(());
        }
        let position = u64::from(word(6)) | u64::from(word(10)) << 32;
        if position != u64::MAX {
            self.position = Some(position);
        }
        if head[5] & 1 == 0 {
            self.part.clear();
        }
        let mut rest = content.as_slice();
        for length in lacing {
            let (piece, behind) = rest.split_at(usize::from(length));
            rest = behind;
            self.part.extend(piece);
            if self.part.len() > LARGEST {
                return Err(MediaError::TooLarge {
                    what: "a packet".into(),
                });
            }
            if length < 255 {
                self.ready.push_back(std::mem::take(&mut self.part));
            }
        }
        self.ended = head[5] & 4 != 0;
        Ok(())
    }
}
