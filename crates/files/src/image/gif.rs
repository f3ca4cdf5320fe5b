//! GIF: the first frame as it is stored, later ones laid over it.

use std::io::Cursor;

use gif::{ColorOutput, DecodeOptions, DisposalMethod, MemoryLimit};

use super::{Budget, Frame, ImageError, Mode, Raw, corrupt};

const FORMAT: &str = "GIF";

pub(super) fn decode(bytes: &[u8], budget: &mut Budget) -> Result<Raw, ImageError> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    // Sizes are checked here, before every frame.
    options.set_memory_limit(MemoryLimit::Unlimited);
    let mut decoder = options
        .read_info(Cursor::new(bytes))
        .map_err(|e| corrupt(FORMAT, e))?;
    let background = decoder.bg_color().unwrap_or(0);
    let mut canvas: Option<Canvas> = None;
    let mut raw = Raw::default();
    let mut disposal = DisposalMethod::Any;
    loop {
        let part = match decoder.next_frame_info() {
            Ok(Some(info)) => info.clone(),
            Ok(None) => break,
            Err(e) if raw.frames.is_empty() => return Err(corrupt(FORMAT, e)),
            Err(_) => {
                raw.truncated = true;
                break;
            }
        };
        let area = Area {
            x: usize::from(part.left),
            y: usize::from(part.top),
            w: usize::from(part.width),
            h: usize::from(part.height),
        };
        // The first frame may be larger than the screen that was announced; later ones are cut to it.
        let (width, height) = canvas.as_ref().map_or_else(
            || {
                let w = usize::from(decoder.width()).max(area.x + area.w);
                let h = usize::from(decoder.height()).max(area.y + area.h);
                (w, h)
            },
            |c| (c.width, c.height),
        );
        if width == 0 || height == 0 || area.w == 0 || area.h == 0 {
            return Err(corrupt(FORMAT, "a frame has no pixels"));
        }
        budget.frame(width as u32, height as u32)?;
        budget.frame(u32::from(part.width), u32::from(part.height))?;
        budget.frames -= 1;
        // The frame; with the first one the canvas and its indices too.
        let first = if raw.frames.is_empty() { 9 } else { 0 };
        budget.claim(width as u32, height as u32, 4 + first)?;
        let palette = match (&part.palette, decoder.global_palette()) {
            (Some(local), _) => local.clone(),
            (None, Some(global)) => global.to_vec(),
            (None, None) => (0..=255).flat_map(|i| [i; 3]).collect(),
        };
        let mut indices = vec![part.transparent.unwrap_or(0); area.w * area.h];
        // What was decoded before an error stays in the buffer.
        raw.truncated = decoder.read_into_buffer(&mut indices).is_err();
        if part.dispose != DisposalMethod::Any {
            disposal = part.dispose;
        }
        let layer = Layer {
            area,
            palette: &palette,
            transparent: part.transparent,
            indices: &indices,
        };
        let canvas = match &mut canvas {
            Some(c) => {
                c.put(&layer, disposal, background);
                c
            }
            none => none.insert(Canvas::start(width, height, &layer, disposal, background)),
        };
        raw.frames.push(canvas.shown());
        if raw.truncated || budget.limits.first_only {
            break;
        }
    }
    if raw.frames.is_empty() {
        return Err(corrupt(FORMAT, "it has no frame"));
    }
    Ok(raw)
}

#[derive(Clone, Copy)]
struct Area {
    x: usize,
    y: usize,
    w: usize,
    h: usize,
}

struct Layer<'a> {
    area: Area,
    palette: &'a [u8],
    transparent: Option<u8>,
    indices: &'a [u8],
}

impl Layer<'_> {
    fn colour(&self, index: u8) -> [u8; 3] {
        let at = usize::from(index) * 3;
        self.palette
            .get(at..at + 3)
            .map_or([0; 3], |c| [c[0], c[1], c[2]])
    }

    /// Colour with alpha: 0 for the transparent index.
    fn pixel(&self, index: u8) -> [u8; 4] {
        let [r, g, b] = self.colour(index);
        [
            r,
            g,
            b,
            if self.transparent == Some(index) {
                0
            } else {
                255
            },
        ]
    }

    fn fill(&self, index: u8) -> Vec<[u8; 4]> {
        vec![self.pixel(index); self.indices.len()]
    }

    /// What "background" means: transparency where the frame has a transparent colour, else the background colour.
    fn background(&self, index: usize) -> Vec<[u8; 4]> {
        self.fill(self.transparent.unwrap_or(index as u8))
    }
}

struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<[u8; 4]>,
    /// Whether the first frame had a transparent colour: then all have an alpha channel, else none has.
    has_alpha: bool,
    mode: Mode,
    /// Put back before the next frame.
    restore: Option<(Area, Vec<[u8; 4]>)>,
}

impl Canvas {
    fn start(
        width: usize,
        height: usize,
        first: &Layer,
        disposal: DisposalMethod,
        background: usize,
    ) -> Self {
        let is_grey = first
            .palette
            .chunks_exact(3)
            .enumerate()
            .all(|(i, c)| c == [i as u8; 3]);
        let mut canvas = Self {
            width,
            height,
            pixels: vec![first.pixel(first.transparent.unwrap_or(0)); width * height],
            // A grey first frame is of mode L, which has no transparency of its own.
            has_alpha: first.transparent.is_some() && !is_grey,
            mode: if is_grey { Mode::L } else { Mode::P },
            restore: None,
        };
        canvas.each(first.area, |px, i| *px = first.pixel(first.indices[i]));
        canvas.restore = match (disposal, first.transparent) {
            // There is nothing before the first frame; it gives way to transparency if it knows any.
            (DisposalMethod::Previous, Some(index)) => Some((first.area, first.fill(index))),
            (DisposalMethod::Background, _) => Some((first.area, first.background(background))),
            _ => None,
        };
        canvas
    }

    fn put(&mut self, layer: &Layer, disposal: DisposalMethod, background: usize) {
        if let Some((area, saved)) = self.restore.take() {
            self.each(area, |px, i| *px = saved[i]);
        }
        if self.mode == Mode::P {
            self.mode = if self.has_alpha {
                Mode::Rgba
            } else {
                Mode::Rgb
            };
        }
        let restore = match disposal {
            DisposalMethod::Background => Some(layer.background(background)),
            DisposalMethod::Previous => {
                let mut saved = vec![[0; 4]; layer.indices.len()];
                self.each(layer.area, |px, i| saved[i] = *px);
                Some(saved)
            }
            _ => None,
        };
        self.restore = restore.map(|pixels| (layer.area, pixels));
        self.each(layer.area, |px, i| {
            let new = layer.pixel(layer.indices[i]);
            if new[3] > 0 {
                *px = new;
            }
        });
    }

    fn each(&mut self, area: Area, mut f: impl FnMut(&mut [u8; 4], usize)) {
        for y in 0..area.h.min(self.height.saturating_sub(area.y)) {
            for x in 0..area.w.min(self.width.saturating_sub(area.x)) {
                f(
                    &mut self.pixels[(area.y + y) * self.width + area.x + x],
                    y * area.w + x,
                );
            }
        }
    }

    fn shown(&self) -> Frame {
        let rgb = self
            .pixels
            .iter()
            .flat_map(|p| [p[0], p[1], p[2]])
            .collect();
        let alpha = self
            .has_alpha
            .then(|| self.pixels.iter().map(|p| p[3]).collect());
        Frame::new(self.width as u32, self.height as u32, self.mode, rgb, alpha)
    }
}
