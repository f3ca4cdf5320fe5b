//! PNG and animated PNG.

use std::io::{BufRead, Cursor, Seek};

use png::{BitDepth, BlendOp, ColorType, Decoder, DisposeOp, Info, Reader, Transformations};

use super::{Budget, Frame, ImageError, Mode, Raw, corrupt, grey, mix};

const FORMAT: &str = "PNG";

/// Bytes of the rows that are decoded at once.
const BAND: usize = 1 << 20;

pub(super) fn decode(bytes: &[u8], budget: &mut Budget) -> Result<Raw, ImageError> {
    let rows = Rows::open(Cursor::new(bytes))?;
    let info = &rows.info;
    budget.frame(info.width, info.height)?;
    let animated = info.animation_control.is_some_and(|a| a.num_frames > 0);
    if info.interlaced || (animated && !budget.limits.first_only) {
        return whole(rows, budget);
    }
    let exif = rows.exif();
    budget.claim(info.width, info.height, rows.bytes_a_pixel())?;
    let (frame, truncated) = rows.collect(budget)?;
    Ok(Raw {
        frames: vec![frame],
        truncated,
        exif,
        ..Raw::default()
    })
}

/// A picture that is decoded row by row.
pub(super) struct Rows<R: BufRead + Seek> {
    reader: Reader<R>,
    pub(super) info: Info<'static>,
    line: usize,
    /// Rows decoded so far.
    done: u32,
    /// The file ended or is damaged; further rows are black.
    pub(super) truncated: bool,
}

impl<R: BufRead + Seek> Rows<R> {
    pub(super) fn open(from: R) -> Result<Self, ImageError> {
        let mut decoder = Decoder::new(from);
        decoder.set_transformations(Transformations::IDENTITY);
        // Texts are read elsewhere, with bounds; colour profiles are not used.
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        // A wrong checksum is no reason to show nothing.
        decoder.ignore_checksums(true);
        let reader = decoder.read_info().map_err(|e| corrupt(FORMAT, e))?;
        let info = reader.info().clone();
        let line = reader
            .output_line_size(info.width)
            .ok_or_else(|| corrupt(FORMAT, "its size cannot be expressed"))?;
        Ok(Self {
            reader,
            info,
            line,
            done: 0,
            truncated: false,
        })
    }

    pub(super) fn exif(&self) -> Option<Vec<u8>> {
        let exif = self.info.exif_metadata.as_ref();
        exif.map(|e| e.clone().into_owned())
    }

    /// What a decoded frame has: colour, alpha, and a second alpha for a transparent colour.
    fn bytes_a_pixel(&self) -> u64 {
        match (self.info.color_type, &self.info.trns) {
            (ColorType::Grayscale | ColorType::Rgb | ColorType::Indexed, None) => 3,
            _ => 4,
        }
    }

    /// The next rows as a frame of their own; none after the last.
    pub(super) fn band(&mut self) -> Option<Frame> {
        let left = self.info.height - self.done;
        let rows = (BAND / self.line.max(1)).clamp(1, left.max(1) as usize) as u32;
        let rows = rows.min(left);
        if rows == 0 {
            return None;
        }
        let mut data = vec![0; self.line * rows as usize];
        for line in data.chunks_exact_mut(self.line.max(1)) {
            if self.truncated {
                break;
            }
            match self.reader.next_row() {
                Ok(Some(row)) => line.copy_from_slice(row.data()),
                _ => self.truncated = true,
            }
        }
        self.done += rows;
        Some(frame(&self.info, self.info.width, rows, &data))
    }

    fn collect(mut self, budget: &Budget) -> Result<(Frame, bool), ImageError> {
        let (width, height) = (self.info.width, self.info.height);
        let pixels = width as usize * height as usize;
        let Some(mut first) = self.band() else {
            return Err(corrupt(FORMAT, "it has no pixels"));
        };
        first.rgb.reserve_exact(pixels * 3 - first.rgb.len());
        for plane in [&mut first.alpha, &mut first.key_alpha]
            .into_iter()
            .flatten()
        {
            plane.reserve_exact(pixels - plane.len());
        }
        while let Some(band) = self.band() {
            budget.on_time()?;
            first.rgb.extend(band.rgb);
            let planes = [
                (&mut first.alpha, band.alpha),
                (&mut first.key_alpha, band.key_alpha),
            ];
            for (plane, more) in planes {
                if let (Some(plane), Some(more)) = (plane, more) {
                    plane.extend(more);
                }
            }
        }
        first.height = height;
        Ok((first, self.truncated))
    }
}

/// Animations, and pictures whose rows come in another order than they are shown.
fn whole<R: BufRead + Seek>(rows: Rows<R>, budget: &mut Budget) -> Result<Raw, ImageError> {
    let exif = rows.exif();
    let Rows {
        mut reader, info, ..
    } = rows;
    let animation = info.animation_control.filter(|a| a.num_frames > 0);
    let size = reader
        .output_buffer_size()
        .ok_or_else(|| corrupt(FORMAT, "its size cannot be expressed"))?;
    // The samples as they are, two copies while they are converted, and the canvas of an animation.
    let samples = (info.color_type.samples() * info.bit_depth as usize).div_ceil(8);
    let canvas = if animation.is_some() { 8 } else { 0 };
    budget.claim(info.width, info.height, samples as u64 + 8 + canvas)?;
    let mut buffer = vec![0; size];
    let mut raw = Raw {
        // The rows decoded before an error stay in the buffer.
        truncated: reader.next_frame(&mut buffer).is_err(),
        ..Raw::default()
    };
    let first = frame(&info, info.width, info.height, &buffer);

    if let Some(animation) = animation.filter(|_| !budget.limits.first_only) {
        let mut canvas = Canvas::new(&info, &first);
        // A picture before the first frame control is for programs that cannot animate; it counts as a frame too.
        let mut left = animation.num_frames as usize;
        if let Some(control) = info.frame_control.filter(|_| !raw.truncated) {
            canvas.put(&first, control);
            left -= 1;
        }
        raw.frames.push(first);
        while left > 0 && !raw.truncated {
            left -= 1;
            let Ok(control) = reader.next_frame_info().copied() else {
                raw.truncated = true;
                break;
            };
            budget.frame(info.width, info.height)?;
            budget.claim(info.width, info.height, 4)?;
            buffer.fill(0);
            // The decoder wants room for a whole picture and uses the beginning of it.
            let shown = reader.next_frame(&mut buffer);
            raw.truncated = shown.is_err();
            if let Ok(shown) = shown {
                let part = &buffer[..shown.line_size * shown.height as usize];
                let part = frame(&info, shown.width, shown.height, part);
                canvas.put(&part, control);
                raw.frames.push(canvas.shown());
            }
        }
    } else {
        raw.frames.push(first);
    }
    raw.exif = exif;
    Ok(raw)
}

/// Reads packed samples of 1, 2, 4 or 8 bits, row by row.
fn samples(data: &[u8], width: usize, bits: usize) -> impl Iterator<Item = u8> + '_ {
    let stride = (width * bits).div_ceil(8).max(1);
    data.chunks_exact(stride).flat_map(move |row| {
        (0..width).map(move |x| {
            let bit = x * bits;
            let shift = 8 - bits - bit % 8;
            (row[bit / 8] >> shift) & (0xff >> (8 - bits))
        })
    })
}

/// Decoded rows as a frame.
fn frame(info: &Info, width: u32, height: u32, data: &[u8]) -> Frame {
    let w = width as usize;
    let depth = info.bit_depth as usize;
    let wide = info.bit_depth == BitDepth::Sixteen;
    // The high byte of wide samples.
    let step = if wide { 2 } else { 1 };
    let high = || data.iter().step_by(step).copied();
    let trns = info.trns.as_deref();
    // The decoder keeps one byte a sample of the transparent colour, two for wide samples.
    let key = |i: usize| match (trns, wide) {
        (Some(t), false) => t.get(i).map(|b| u16::from(*b)),
        (Some(t), true) => t
            .get(2 * i..2 * i + 2)
            .map(|b| u16::from_be_bytes([b[0], b[1]])),
        (None, _) => None,
    };
    let (mode, rgb, alpha) = match info.color_type {
        ColorType::Grayscale => match depth {
            1 => (
                Mode::Bilevel,
                grey(samples(data, w, 1).map(|v| v * 255)),
                None,
            ),
            2 => (Mode::L, grey(samples(data, w, 2).map(|v| v * 85)), None),
            4 => (Mode::L, grey(samples(data, w, 4).map(|v| v * 17)), None),
            8 => (Mode::L, grey(data.iter().copied()), None),
            _ => {
                let cut = |b: &[u8]| if b[0] > 0 { 255 } else { b[1] };
                (Mode::I16, grey(data.chunks_exact(2).map(cut)), None)
            }
        },
        ColorType::GrayscaleAlpha => (
            Mode::La,
            grey(high().step_by(2)),
            Some(high().skip(1).step_by(2).collect()),
        ),
        ColorType::Rgb => (Mode::Rgb, high().collect(), None),
        ColorType::Rgba => {
            let pixels = w * height as usize;
            let (mut rgb, mut alpha) = (Vec::with_capacity(pixels * 3), Vec::with_capacity(pixels));
            for p in data.chunks_exact(4 * step) {
                rgb.extend_from_slice(&[p[0], p[step], p[2 * step]]);
                alpha.push(p[3 * step]);
            }
            (Mode::Rgba, rgb, Some(alpha))
        }
        ColorType::Indexed => {
            let palette = info.palette.as_deref().unwrap_or_default();
            let colour = |i: u8| {
                let at = usize::from(i) * 3;
                palette
                    .get(at..at + 3)
                    .map_or([0; 3], |c| [c[0], c[1], c[2]])
            };
            let rgb = samples(data, w, depth).flat_map(colour).collect();
            let alpha = trns.map(|t| {
                samples(data, w, depth)
                    .map(|i| t.get(usize::from(i)).copied().unwrap_or(255))
                    .collect()
            });
            (Mode::P, rgb, alpha)
        }
    };
    // One colour can be declared transparent. The declared value is compared with the 8-bit one as it is, which for
    // other depths mostly means it is never met; the reference does the same.
    let key_alpha = match info.color_type {
        ColorType::Grayscale => key(0).map(|k| {
            let k = if depth == 1 && k > 0 { 255 } else { k };
            rgb.chunks_exact(3)
                .map(|c| if u16::from(c[0]) == k { 0 } else { 255 })
                .collect()
        }),
        ColorType::Rgb => match (key(0), key(1), key(2)) {
            (Some(r), Some(g), Some(b)) => Some(
                rgb.chunks_exact(3)
                    .map(|c| {
                        if [c[0], c[1], c[2]].map(u16::from) == [r, g, b] {
                            0
                        } else {
                            255
                        }
                    })
                    .collect(),
            ),
            _ => None,
        },
        _ => None,
    };
    Frame::new(width, height, mode, rgb, alpha).with_key_alpha(key_alpha)
}

/// The picture on which the frames of an animation are laid.
struct Canvas {
    width: usize,
    height: usize,
    /// What frames are reported as.
    mode: Mode,
    has_alpha: bool,
    pixels: Vec<u8>,
    /// Applied before the next frame: the area and what to put there.
    dispose: Option<(png::FrameControl, Option<Vec<u8>>)>,
}

impl Canvas {
    fn new(info: &Info, first: &Frame) -> Self {
        let (width, height) = (info.width as usize, info.height as usize);
        Self {
            width,
            height,
            mode: first.mode,
            has_alpha: first.has_alpha(),
            pixels: vec![0; width * height * 4],
            dispose: None,
        }
    }

    /// Lays a frame at its place. The decoder has checked that it lies inside the picture; it is clipped all the same.
    fn put(&mut self, part: &Frame, control: png::FrameControl) {
        let start = self.dispose.is_none();
        if let Some((area, saved)) = self.dispose.take() {
            match (area.dispose_op, saved) {
                (DisposeOp::Previous, Some(saved)) => self.pixels = saved,
                (DisposeOp::None, _) => {}
                _ => self.each(area, |px, _| *px = [0; 4]),
            }
        }
        let over = control.blend_op == BlendOp::Over && !start;
        // The reference loses the earlier picture when it blends onto it: "previous" then means "keep".
        let mut control = control;
        if over && control.dispose_op == DisposeOp::Previous {
            control.dispose_op = DisposeOp::None;
        }
        let saved =
            (control.dispose_op == DisposeOp::Previous && !start).then(|| self.pixels.clone());
        let source = part.rgba8();
        self.each(control, |px, i| {
            let s = &source[i * 4..i * 4 + 4];
            let mask = if over { s[3] } else { 255 };
            for (p, s) in px.iter_mut().zip(s) {
                *p = mix(*s, *p, mask);
            }
        });
        self.dispose = Some((control, saved));
    }

    /// Calls `f` with every pixel of an area and its index in that area.
    fn each(&mut self, area: png::FrameControl, mut f: impl FnMut(&mut [u8; 4], usize)) {
        let (x0, y0) = (area.x_offset as usize, area.y_offset as usize);
        for y in 0..(area.height as usize).min(self.height.saturating_sub(y0)) {
            for x in 0..(area.width as usize).min(self.width.saturating_sub(x0)) {
                let at = ((y0 + y) * self.width + x0 + x) * 4;
                if let Some(px) = self.pixels.get_mut(at..).and_then(|p| p.first_chunk_mut()) {
                    f(px, y * area.width as usize + x);
                }
            }
        }
    }

    fn shown(&self) -> Frame {
        let mut frame = Frame::from_rgba(self.width as u32, self.height as u32, &self.pixels);
        frame.mode = self.mode;
        if !self.has_alpha {
            frame.alpha = None;
        }
        frame
    }
}
