//! Packets of sound to samples.

use std::io::{Read, Seek, SeekFrom};

use rusty_aac::AacDecoder;
use rusty_mp3::Mp3Decoder;
use rusty_opus::OpusDecoder;

use super::ogg::OggReader;
use super::wav;
use crate::container::{Codec, Container, Input, Track, TrackKind, read_exact};
use crate::error::{MediaError, Result};

/// Takes samples of all channels as they come.
pub(crate) trait SoundSink {
    /// How many samples of a channel are to come, where the file says so: what is too long is refused before it is read.
    fn announce(&mut self, rate: u32, channels: usize, moments: u64) -> Result<()> {
        let _ = (rate, channels, moments);
        Ok(())
    }

    /// The same rate and channels each time; the sink says when it has enough.
    fn samples(&mut self, rate: u32, channels: usize, samples: &[f32]) -> Result<Enough>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enough {
    No,
    Yes,
}

fn broken(e: impl ToString) -> MediaError {
    MediaError::damaged(format!("sound cannot be decoded ({})", e.to_string()))
}

/// Leaves out what is before the start and after the end, in samples of one channel.
struct Cut<'a> {
    sink: &'a mut dyn SoundSink,
    skip: u64,
    left: u64,
}

impl Cut<'_> {
    fn give(&mut self, rate: u32, channels: usize, samples: &[f32]) -> Result<Enough> {
        if channels == 0 || rate == 0 {
            return Err(MediaError::damaged("sound without channels"));
        }
        let count = (samples.len() / channels) as u64;
        let skip = self.skip.min(count);
        self.skip -= skip;
        let keep = (count - skip).min(self.left);
        self.left -= keep;
        let from = skip as usize * channels;
        let kept = &samples[from..from + keep as usize * channels];
        if kept.is_empty() {
            return Ok(Enough::No);
        }
        let enough = self.sink.samples(rate, channels, kept)?;
        Ok(if self.left == 0 { Enough::Yes } else { enough })
    }
}

/// Decodes a track of a container to its end.
pub(crate) fn track(
    file: &mut dyn Container,
    number: usize,
    sink: &mut dyn SoundSink,
) -> Result<()> {
    let track = file.tracks()[number].clone();
    let TrackKind::Sound { rate, channels } = track.kind else {
        return Err(MediaError::NoTrack { what: "sound" });
    };
    let mut decoder = PacketDecoder::new(&track, rate, channels)?;
    let rate = decoder.rate.unwrap_or(rate);
    let length = track.duration.map_or(u64::MAX, |seconds| {
        (seconds * f64::from(rate)).round() as u64
    });
    let mut cut = Cut {
        sink,
        skip: (track.skip * f64::from(rate)).round() as u64,
        left: length,
    };
    file.start(number)?;
    let mut samples = Vec::new();
    while let Some(packet) = file.next_packet()? {
        samples.clear();
        let (rate, channels) = decoder.decode(&packet.data, &mut samples)?;
        if cut.give(rate, channels, &samples)? == Enough::Yes {
            return Ok(());
        }
    }
    Ok(())
}

enum Inner {
    Aac(Box<AacDecoder>),
    Mp3(Box<Mp3Decoder>),
    Opus(Box<OpusDecoder>),
    Vorbis(Box<rusty_vorbis::decode::Decoder>),
    Pcm { bits: u16, float: bool, big: bool },
}

struct PacketDecoder {
    inner: Inner,
    rate: Option<u32>,
    channels: usize,
    given_rate: u32,
}

/// Samples of one packet of Opus at most: 120 ms.
const OPUS_MOST: usize = 5760;

impl PacketDecoder {
    fn new(track: &Track, rate: u32, channels: u16) -> Result<Self> {
        let mut fixed = None;
        let mut channels = usize::from(channels);
        let inner = match track.codec {
            Codec::Aac if track.config.is_empty() => Inner::Aac(Box::default()),
            Codec::Aac => {
                let decoder = AacDecoder::with_config_bytes(&track.config).map_err(broken)?;
                fixed = decoder.output_sample_rate();
                Inner::Aac(Box::new(decoder))
            }
            Codec::Mp3 => Inner::Mp3(Box::default()),
            Codec::Opus => {
                fixed = Some(48_000);
                channels = opus_channels(&track.config, channels)?;
                Inner::Opus(Box::new(
                    OpusDecoder::new(48_000, channels).map_err(opus_error)?,
                ))
            }
            Codec::Vorbis => {
                let [a, b, c] = xiph_headers(&track.config)?;
                let decoder = rusty_vorbis::decode::Decoder::new(a, b, c).map_err(broken)?;
                fixed = Some(decoder.sample_rate());
                channels = decoder.channels();
                Inner::Vorbis(Box::new(decoder))
            }
            Codec::Pcm { bits, float, big } => Inner::Pcm { bits, float, big },
            other => {
                return Err(MediaError::unsupported(format!(
                    "sound in {}",
                    other.name()
                )));
            }
        };
        Ok(Self {
            inner,
            rate: fixed,
            channels,
            given_rate: rate,
        })
    }

    fn decode(&mut self, data: &[u8], out: &mut Vec<f32>) -> Result<(u32, usize)> {
        let rate = self.rate.unwrap_or(self.given_rate);
        match &mut self.inner {
            Inner::Aac(decoder) => {
                let frame = decoder.decode(data, None).map_err(broken)?;
                out.extend(&frame.samples);
                Ok((frame.sample_rate, frame.channels.into()))
            }
            Inner::Mp3(decoder) => {
                decoder.push(data);
                let mut found = (rate, self.channels);
                while let Ok(frame) = decoder.next_frame() {
                    found = (frame.sample_rate, frame.channels.into());
                    out.extend(&frame.samples);
                }
                Ok(found)
            }
            Inner::Opus(decoder) => {
                out.resize(OPUS_MOST * self.channels, 0.0);
                let count = decoder.decode(data, OPUS_MOST, out).map_err(opus_error)?;
                out.truncate(count * self.channels);
                Ok((rate, self.channels))
            }
            Inner::Vorbis(decoder) => {
                out.resize(decoder.max_frames_per_packet() * self.channels, 0.0);
                let count = decoder.decode_interleaved(data, out).map_err(broken)?;
                out.truncate(count * self.channels);
                Ok((rate, self.channels))
            }
            Inner::Pcm { bits, float, big } => {
                wav::to_floats(data, *bits, *float, *big, out)?;
                Ok((rate, self.channels))
            }
        }
    }
}

fn opus_error(e: rusty_opus::Error) -> MediaError {
    broken(format!("{e:?}"))
}

fn opus_channels(config: &[u8], said: usize) -> Result<usize> {
    // Both forms of the header have the count at a fixed place.
    let at = if config.starts_with(b"OpusHead") {
        9
    } else {
        1
    };
    let channels = config.get(at).map_or(said, |c| usize::from(*c));
    if !(1..=2).contains(&channels) {
        return Err(MediaError::unsupported(format!(
            "Opus of {channels} channels"
        )));
    }
    Ok(channels)
}

/// The three headers of Vorbis as Matroska keeps them.
fn xiph_headers(config: &[u8]) -> Result<[&[u8]; 3]> {
    let bad = || MediaError::damaged("the headers of the sound");
    let (count, mut rest) = config.split_first().ok_or_else(bad)?;
    if *count != 2 {
        return Err(bad());
    }
    let mut sizes = [0; 2];
    for size in &mut sizes {
        loop {
            let (byte, behind) = rest.split_first().ok_or_else(bad)?;
            rest = behind;
            *size += usize::from(*byte);
            if *byte < 255 {
                break;
            }
        }
    }
    let (a, rest) = rest.split_at_checked(sizes[0]).ok_or_else(bad)?;
    let (b, c) = rest.split_at_checked(sizes[1]).ok_or_else(bad)?;
    Ok([a, b, c])
}

/// Decodes an Ogg file of Opus, Vorbis or FLAC.
pub(crate) fn ogg(input: Box<dyn Input>, sink: &mut dyn SoundSink) -> Result<()> {
    let mut file = OggReader::new(input);
    let first = file
        .next_packet()?
        .ok_or_else(|| MediaError::damaged("it is empty"))?;
    if first.starts_with(b"OpusHead") {
        return ogg_opus(&mut file, &first, sink);
    }
    if first.get(1..7) != Some(b"vorbis") {
        return Err(MediaError::unsupported(
            "an Ogg file of neither Opus nor Vorbis",
        ));
    }
    let missing = || MediaError::damaged("it ends inside its header");
    let second = file.next_packet()?.ok_or_else(missing)?;
    let third = file.next_packet()?.ok_or_else(missing)?;
    let mut decoder =
        rusty_vorbis::decode::Decoder::new(&first, &second, &third).map_err(broken)?;
    let channels = decoder.channels();
    let rate = decoder.sample_rate();
    let mut buffer = vec![0.0; decoder.max_frames_per_packet() * channels];
    while let Some(packet) = file.next_packet()? {
        let count = decoder
            .decode_interleaved(&packet, &mut buffer)
            .map_err(broken)?;
        if count > 0 && sink.samples(rate, channels, &buffer[..count * channels])? == Enough::Yes {
            break;
        }
    }
    Ok(())
}

fn ogg_opus(file: &mut OggReader, head: &[u8], sink: &mut dyn SoundSink) -> Result<()> {
    let channels = opus_channels(head, 0)?;
    let skip = head
        .get(10..12)
        .map_or(0, |b| u16::from_le_bytes([b[0], b[1]]));
    let mut decoder = OpusDecoder::new(48_000, channels).map_err(opus_error)?;
    file.next_packet()?;
    let mut cut = Cut {
        sink,
        skip: skip.into(),
        left: u64::MAX,
    };
    let mut buffer = vec![0.0; OPUS_MOST * channels];
    let mut heard = 0u64;
    let mut packet = file.next_packet()?;
    while let Some(data) = packet {
        let count = decoder
            .decode(&data, OPUS_MOST, &mut buffer)
            .map_err(opus_error)?;
        packet = file.next_packet()?;
        let mut keep = count as u64;
        if packet.is_none()
            && let Some(end) = file.position
        {
            // The last packet may be longer than what is to be heard of it.
            keep = keep.min(end.saturating_sub(heard));
        }
        heard += keep;
        let kept = &buffer[..keep as usize * channels];
        if cut.give(48_000, channels, kept)? == Enough::Yes {
            break;
        }
    }
    Ok(())
}

pub(crate) fn flac(input: Box<dyn Input>, sink: &mut dyn SoundSink) -> Result<()> {
    let mut reader = claxon::FlacReader::new(std::io::BufReader::new(input)).map_err(broken)?;
    let info = reader.streaminfo();
    let channels = info.channels as usize;
    let scale = 1.0 / 2f64.powi(info.bits_per_sample as i32 - 1);
    let mut blocks = reader.blocks();
    let mut block = claxon::Block::empty();
    let mut samples = Vec::new();
    loop {
        let next = blocks.read_next_or_eof(block.into_buffer());
        match next.map_err(broken)? {
            None => return Ok(()),
            Some(found) => block = found,
        }
        samples.clear();
        for moment in 0..block.duration() {
            for channel in 0..block.channels() {
                samples.push((f64::from(block.sample(channel, moment)) * scale) as f32);
            }
        }
        if sink.samples(info.sample_rate, channels, &samples)? == Enough::Yes {
            return Ok(());
        }
    }
}

/// Bytes that are read at once.
const PIECE: usize = 1 << 16;

pub(crate) fn mp3(mut input: Box<dyn Input>, sink: &mut dyn SoundSink) -> Result<()> {
    let start = skip_id3(&mut *input)?;
    let mut head = Vec::new();
    input.by_ref().take(2048).read_to_end(&mut head)?;
    input.seek(SeekFrom::Start(start))?;
    let (skip, left) = gapless(&head).unwrap_or((0, u64::MAX));
    let mut cut = Cut { sink, skip, left };
    let mut decoder = Mp3Decoder::new();
    let mut buffer = vec![0; PIECE];
    let mut any = false;
    loop {
        let count = input.read(&mut buffer)?;
        if count == 0 {
            decoder.flush();
        } else {
            decoder.push(&buffer[..count]);
        }
        while let Ok(frame) = decoder.next_frame() {
            any = true;
            let channels = frame.channels.into();
            if cut.give(frame.sample_rate, channels, &frame.samples)? == Enough::Yes {
                return Ok(());
            }
        }
        if count == 0 {
            break;
        }
    }
    if any {
        Ok(())
    } else {
        Err(MediaError::damaged("no sound in it"))
    }
}

/// What the first frame says of samples that coders add: how many are before the sound, and how long the sound is.
fn gapless(head: &[u8]) -> Option<(u64, u64)> {
    /// What every decoder adds.
    const DECODER: u64 = 529;
    let version = head.get(1)? >> 3 & 3;
    let samples: u64 = if version == 3 { 1152 } else { 576 };
    let first = head.get(..200)?;
    let tag = |name: &[u8]| first.windows(4).position(|w| w == name);
    let at = tag(b"Info").or_else(|| tag(b"Xing"))?;
    let flags = *head.get(at + 7)?;
    let frames = head.get(at + 8..at + 12)?;
    let frames = u64::from(u32::from_be_bytes(frames.try_into().ok()?));
    let sizes = [(1, 4), (2, 4), (4, 100), (8, 4)];
    let behind: usize = sizes
        .iter()
        .filter(|(bit, _)| flags & bit != 0)
        .map(|(_, n)| n)
        .sum();
    let lame = head.get(at + 8 + behind..)?;
    if flags & 1 == 0
        || ![b"LAME", b"Lavf", b"Lavc"]
            .iter()
            .any(|name| lame.starts_with(*name))
    {
        // The frame itself is silence that nobody wrote.
        return Some((samples, u64::MAX));
    }
    let [a, b, c] = *lame.get(21..)?.first_chunk::<3>()?;
    let delay = u64::from(a) << 4 | u64::from(b) >> 4;
    let padding = u64::from(b & 15) << 8 | u64::from(c);
    let length = (frames * samples).checked_sub(delay + padding)?;
    Some((samples + delay + DECODER, length))
}

/// Where the sound begins; the input is there.
fn skip_id3(input: &mut dyn Input) -> Result<u64> {
    input.seek(SeekFrom::Start(0))?;
    let mut head = [0; 10];
    let mut start = 0;
    if input.read_exact(&mut head).is_ok() && head.starts_with(b"ID3") {
        let size = head[6..10]
            .iter()
            .fold(0u64, |size, b| size << 7 | u64::from(b & 0x7f));
        start = 10 + size;
    }
    input.seek(SeekFrom::Start(start))?;
    Ok(start)
}

/// AAC without a container.
pub(crate) fn adts(mut input: Box<dyn Input>, sink: &mut dyn SoundSink) -> Result<()> {
    input.seek(SeekFrom::Start(0))?;
    let mut decoder = AacDecoder::new();
    loop {
        let mut frame = vec![0; 7];
        if input.read_exact(&mut frame).is_err() {
            return Ok(());
        }
        let header = rusty_aac::parse_adts(&frame).map_err(broken)?;
        let rest = header
            .frame_length
            .checked_sub(7)
            .ok_or_else(|| MediaError::damaged("a packet is smaller than its header"))?;
        frame.extend(read_exact(&mut *input, rest as u64, "a packet")?);
        let decoded = decoder.decode(&frame, None).map_err(broken)?;
        let channels = decoded.channels.into();
        if sink.samples(decoded.sample_rate, channels, &decoded.samples)? == Enough::Yes {
            return Ok(());
        }
    }
}

pub(crate) fn wav(mut input: Box<dyn Input>, sink: &mut dyn SoundSink) -> Result<()> {
    let file = wav::open(&mut *input)?;
    let Codec::Pcm { bits, float, big } = file.codec else {
        return Err(MediaError::UnknownFormat);
    };
    let channels = usize::from(file.channels);
    let moment = usize::from(bits.div_ceil(8)) * channels;
    let mut left = file.size;
    sink.announce(file.rate, channels, left / moment.max(1) as u64)?;
    let mut samples = Vec::new();
    while left >= moment as u64 {
        let size = ((PIECE / moment.max(1)).max(1) * moment) as u64;
        let data = read_exact(
            &mut *input,
            size.min(left / moment as u64 * moment as u64),
            "samples",
        )?;
        left -= data.len() as u64;
        samples.clear();
        wav::to_floats(&data, bits, float, big, &mut samples)?;
        if sink.samples(file.rate, channels, &samples)? == Enough::Yes {
            break;
        }
    }
    Ok(())
}
