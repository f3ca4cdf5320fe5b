//! Files that are written, read again, cut short and made to lie.

#![expect(
    clippy::unwrap_used,
    reason = "a step that fails in a test should fail the test"
)]

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use fresco_media::{
    Frame, Info, MediaError, Next, Rate, Reader, Sound, SoundFormat, Span, VideoCodec, VideoSpec,
    VideoWriter, encode_sound,
};

const WIDTH: usize = 64;
const HEIGHT: usize = 48;

/// A picture whose brightness says which frame it is.
fn picture(number: usize, width: usize, height: usize) -> Vec<u8> {
    (0..height)
        .flat_map(|y| (0..width).map(move |x| (x, y)))
        .flat_map(|(x, y)| {
            let level = (20 + number * 7 % 200) as u8;
            [level, (x * 2 % 256) as u8 / 4 + level / 2, (y % 256) as u8]
        })
        .collect()
}

fn tone(seconds: f64, rate: u32, channels: usize) -> Sound {
    let count = (seconds * f64::from(rate)).round() as usize;
    let samples = (0..count)
        .flat_map(|i| {
            let wave = (i as f32 / rate as f32 * 440.0 * std::f32::consts::TAU).sin() * 0.5;
            vec![wave; channels]
        })
        .collect();
    Sound {
        rate,
        channels,
        samples,
    }
}

fn film(
    codec: VideoCodec,
    fps: f64,
    frames: usize,
    size: (usize, usize),
    sound: Option<&Sound>,
) -> Vec<u8> {
    let spec = VideoSpec {
        width: size.0,
        height: size.1,
        rate: Rate::from_fps(fps).unwrap(),
        codec,
        tags: vec![
            ("workflow".into(), r#"{"nodes": []}"#.into()),
            ("prompt".into(), r#"{"1": "ü"}"#.into()),
        ],
    };
    let mut writer = VideoWriter::new(Cursor::new(Vec::new()), spec, sound).unwrap();
    for number in 0..frames {
        writer.frame(&picture(number, size.0, size.1)).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

const GO_ON: &dyn Fn() -> bool = &|| false;

fn info(path: &Path) -> Info {
    Reader::here().info(path, GO_ON).unwrap()
}

fn frames(path: &Path, span: Span) -> Vec<Frame> {
    let mut found = Vec::new();
    let read = Reader::here().frames(path, span, GO_ON, &mut |frame| {
        found.push(frame);
        Ok(Next::More)
    });
    read.unwrap();
    found
}

/// How far the mean brightness of red is from what was written.
fn distance(frame: &Frame, number: usize) -> f64 {
    let written = picture(number, frame.width as usize, frame.height as usize);
    let sum: u64 = frame
        .rgb
        .iter()
        .zip(&written)
        .map(|(a, b)| u64::from(a.abs_diff(*b)))
        .sum();
    sum as f64 / written.len() as f64
}

#[test]
fn films_come_back_with_every_frame_at_its_rate() {
    let place = Place::new();
    let cases = [
        (VideoCodec::H264, "mp4", 24.0, 50),
        (VideoCodec::H264, "mp4", 23.976, 31),
        (VideoCodec::H264, "mp4", 1.0, 1),
        (VideoCodec::Vp9 { crf: 20.0 }, "webm", 30.0, 20),
    ];
    for (codec, ending, fps, count) in cases {
        let path = place.put(
            &format!("film.{ending}"),
            &film(codec, fps, count, (WIDTH, HEIGHT), None),
        );
        let info = info(&path);
        let video = info.video.unwrap();
        let wanted = Rate::from_fps(fps).unwrap();
        assert_eq!((video.width, video.height), (64, 48), "{codec:?} {fps}");
        assert_eq!(video.frames, count as u64, "{codec:?} {fps}");
        assert_eq!(video.rate, wanted, "{codec:?} {fps}");
        assert!(
            (video.duration - wanted.time_of(count as u64)).abs() < 1e-6,
            "{codec:?} {fps}"
        );
        assert_eq!(info.sound, None);
        let found = frames(&path, Span::ALL);
        assert_eq!(found.len(), count, "{codec:?} {fps}");
        for (number, frame) in found.iter().enumerate() {
            let off = distance(frame, number);
            assert!(off < 12.0, "{codec:?} frame {number} is off by {off}");
        }
    }
}

#[test]
fn av1_files_say_what_is_in_them() {
    let place = Place::new();
    let file = film(
        VideoCodec::Av1 { crf: 40.0 },
        24.0,
        12,
        (WIDTH, HEIGHT),
        None,
    );
    let path = place.put("film.webm", &file);
    let video = info(&path).video.unwrap();
    assert_eq!((video.codec.as_str(), video.frames), ("av1", 12));
    let error = Reader::here()
        .frames(&path, Span::ALL, GO_ON, &mut |_| Ok(Next::More))
        .unwrap_err();
    assert!(error.to_string().contains("ffmpeg"), "{error}");
}

#[test]
fn odd_sizes_are_refused_or_written_as_they_are() {
    let spec = |codec| VideoSpec {
        width: 33,
        height: 17,
        rate: Rate::from_fps(8.0).unwrap(),
        codec,
        tags: Vec::new(),
    };
    let error = VideoWriter::new(Cursor::new(Vec::new()), spec(VideoCodec::H264), None).err();
    let text = error.unwrap().to_string();
    assert!(text.contains("even") && text.contains("33 x 17"), "{text}");
    let place = Place::new();
    let path = place.put(
        "odd.webm",
        &film(VideoCodec::Vp9 { crf: 10.0 }, 8.0, 3, (33, 17), None),
    );
    let found = frames(&path, Span::ALL);
    assert_eq!(found.len(), 3);
    assert_eq!((found[0].width, found[0].height), (33, 17));
}

#[test]
fn a_span_of_a_film_has_its_frames_and_its_sound() {
    let place = Place::new();
    let sound = tone(2.0, 44_100, 1);
    let file = film(VideoCodec::H264, 10.0, 20, (WIDTH, HEIGHT), Some(&sound));
    let path = place.put("film.mp4", &file);
    let said = info(&path).sound.unwrap();
    assert_eq!(
        (said.codec.as_str(), said.rate, said.channels),
        ("aac", 44_100, 2)
    );
    let whole = Reader::here().sound(&path, Span::ALL, GO_ON).unwrap();
    assert_eq!((whole.channels, whole.len()), (2, sound.len()));
    // Away from the ends it is nearly the same wave, at the same place.
    let off = (10_000..50_000)
        .map(|i| (whole.samples[2 * i] - sound.samples[i]).abs())
        .fold(0.0, f32::max);
    assert!(off < 0.15, "{off}");
    let span = Span {
        start: 0.5,
        end: 1.2,
    };
    let found = frames(&path, span);
    assert_eq!(found.len(), 7);
    assert!(distance(&found[0], 5) < distance(&found[0], 6));
    let part = Reader::here().sound(&path, span, GO_ON).unwrap();
    assert_eq!(part.len(), 30_870);
}

#[test]
fn sound_files_come_back() {
    let place = Place::new();
    let cases = [
        (SoundFormat::Flac, 44_100, 2, 1.0 / 32768.0),
        (SoundFormat::Flac, 8000, 1, 1.0 / 32768.0),
        (SoundFormat::Opus { kbps: 128 }, 48_000, 2, 0.1),
        (SoundFormat::Opus { kbps: 64 }, 48_000, 1, 0.1),
    ];
    for (format, rate, channels, tolerance) in cases {
        let sound = tone(0.7, rate, channels);
        let tags = vec![("prompt".to_owned(), "{}".to_owned())];
        let file = encode_sound(&sound, format, &tags).unwrap();
        let path = place.put(&format!("s.{}", format.extension()), &file);
        let found = Reader::here().sound(&path, Span::ALL, GO_ON).unwrap();
        assert_eq!((found.rate, found.channels), (rate, channels), "{format:?}");
        assert_eq!(found.len(), sound.len(), "{format:?}");
        let middle = sound.samples.len() / 4..sound.samples.len() / 2;
        let off = middle
            .map(|i| (found.samples[i] - sound.samples[i]).abs())
            .fold(0.0, f32::max);
        assert!(off <= tolerance, "{format:?} is off by {off}");
    }
    for kbps in [None, Some(128), Some(320)] {
        let format = SoundFormat::Mp3 { kbps };
        let sound = tone(0.7, 44_100, 2);
        let file = encode_sound(&sound, format, &Vec::new()).unwrap();
        let path = place.put("s.mp3", &file);
        let found = Reader::here().sound(&path, Span::ALL, GO_ON).unwrap();
        assert_eq!((found.rate, found.channels), (44_100, 2));
        // What the coder adds is cut off again.
        assert_eq!(found.len(), sound.len());
        let off = (10_000..20_000)
            .map(|i| (found.samples[i] - sound.samples[i]).abs())
            .fold(0.0, f32::max);
        assert!(off < 0.1, "{kbps:?} is off by {off}");
        let loudest = found.samples.iter().fold(0.0f32, |m, s| m.max(s.abs()));
        assert!((loudest - 0.5).abs() < 0.1, "{kbps:?}: {loudest}");
    }
}

#[test]
fn plain_samples_are_read() {
    let place = Place::new();
    let wav = |kind: u16, bits: u16, data: &[u8]| {
        let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0".to_vec();
        file.extend(kind.to_le_bytes());
        file.extend([1, 0]);
        file.extend(8000u32.to_le_bytes());
        file.extend([0; 6]);
        file.extend(bits.to_le_bytes());
        file.extend(b"data");
        file.extend((data.len() as u32).to_le_bytes());
        file.extend(data);
        place.put("a.wav", &file)
    };
    let read = |path: PathBuf| {
        Reader::here()
            .sound(&path, Span::ALL, GO_ON)
            .unwrap()
            .samples
    };
    assert_eq!(read(wav(1, 16, &[0, 0x40, 0, 0x80])), [0.5, -1.0]);
    assert_eq!(read(wav(1, 8, &[128, 192, 0])), [0.0, 0.5, -1.0]);
    assert_eq!(read(wav(1, 24, &[0, 0, 0x40])), [0.5]);
    assert_eq!(read(wav(3, 32, &0.3f32.to_le_bytes())), [0.3]);
}

/// Everything that can be asked of a file; errors are fine, panics and endless loops are not.
fn poke(path: &Path) {
    let reader = Reader::here();
    let _ = reader.info(path, GO_ON);
    let mut left = 40;
    let _ = reader.frames(path, Span::ALL, GO_ON, &mut |_| {
        left -= 1;
        Ok(if left == 0 { Next::Enough } else { Next::More })
    });
    let _ = reader.sound(path, Span::ALL, GO_ON);
}

#[test]
fn damaged_files_are_errors() {
    let place = Place::new();
    let sound = tone(0.3, 48_000, 2);
    let files = [
        film(VideoCodec::H264, 10.0, 4, (32, 32), Some(&sound)),
        film(VideoCodec::Vp9 { crf: 30.0 }, 10.0, 4, (32, 32), None),
        encode_sound(&sound, SoundFormat::Flac, &Vec::new()).unwrap(),
        encode_sound(&sound, SoundFormat::Opus { kbps: 64 }, &Vec::new()).unwrap(),
        encode_sound(&sound, SoundFormat::Mp3 { kbps: Some(128) }, &Vec::new()).unwrap(),
    ];
    for (kind, file) in files.iter().enumerate() {
        for cut in (0..file.len()).step_by(file.len() / 23 + 1) {
            poke(&place.put("cut", &file[..cut]));
        }
        // Bytes of headers and of data, changed one after the other.
        let step = file.len() / 61 + 1;
        for at in (0..file.len().min(200)).chain((0..file.len()).step_by(step)) {
            let mut changed = file.clone();
            changed[at] ^= 0xff;
            poke(&place.put("changed", &changed));
        }
        assert!(kind < files.len());
    }
    for junk in [
        &b""[..],
        b"x",
        b"GIF89a",
        &[0xff; 64],
        b"OggS",
        b"fLaC",
        b"RIFF\0\0\0\0WAVE",
    ] {
        let path = place.put("junk", junk);
        assert!(
            Reader::here().info(&path, GO_ON).is_err()
                || Reader::here().sound(&path, Span::ALL, GO_ON).is_err()
        );
        poke(&path);
    }
}

#[test]
fn a_film_without_sound_says_so() {
    let place = Place::new();
    let path = place.put("film.mp4", &film(VideoCodec::H264, 8.0, 2, (32, 32), None));
    let error = Reader::here().sound(&path, Span::ALL, GO_ON).unwrap_err();
    assert!(
        matches!(error, MediaError::NoTrack { what: "sound" }),
        "{error}"
    );
    let stopped = Reader::here().frames(&path, Span::ALL, &|| true, &mut |_| Ok(Next::More));
    assert!(matches!(stopped, Err(MediaError::Stopped)));
}

#[test]
fn a_picture_looks_like_a_frame_of_a_film() {
    let (width, height) = (48, 32);
    let level = |at: usize| ((at * 37 + at / 144 * 11) % 251) as u8;
    let picture: Vec<u8> = (0..width * height * 3).map(level).collect();
    let far = |quantizer: u8| -> u64 {
        let coded = fresco_media::through_h264(&picture, width, height, quantizer).unwrap();
        assert_eq!(coded.len(), picture.len());
        let each = coded
            .iter()
            .zip(&picture)
            .map(|(a, b)| u64::from(a.abs_diff(*b)));
        each.sum()
    };
    assert!(far(51) > far(5), "{} {}", far(51), far(5));
    assert_eq!(far(200), far(51));
    for (width, height) in [(47, 32), (0, 0), (48, 31)] {
        let bytes = vec![0; width * height * 3];
        assert!(fresco_media::through_h264(&bytes, width, height, 30).is_err());
    }
    assert!(fresco_media::through_h264(&picture, 2, 2, 30).is_err());
}
