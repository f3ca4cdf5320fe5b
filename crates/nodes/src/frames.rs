//! Frames that need not be in memory all at once: a film on disk, or one that is computed while it is written.
//!
//! On an IMAGE link such frames are a [`StreamedImage`]. Nodes that know how to (films and their savers) take one frame after
//! the other; for all others the batch is made when they ask for it.

use std::sync::{Arc, OnceLock};

use fresco_graph::{FromValue, NodeError, Opaque, Pieces, Value, wrong_kind};
use fresco_tensor::{Buffer, Tensor};

use crate::types::{add_tensor, as_tensor, tensor};

/// Takes `(n, h, w, c)`, some frames at a time.
pub type FrameSink<'a> = dyn FnMut(&Tensor) -> Result<(), NodeError> + 'a;

/// Frames that are made when they are wanted. They may be wanted more than once.
pub trait FrameStream: Send + Sync {
    /// Frames, height, width, channels. The count is what is expected; a file may hold fewer or more.
    fn shape(&self) -> [usize; 4];

    /// Hands out all frames in order. Ends early with the error of the sink.
    fn read(&self, sink: &mut FrameSink<'_>) -> Result<(), NodeError>;
}

/// A batch of frames, in memory or not.
#[derive(Clone)]
pub enum FrameSet {
    /// `(b, h, w, c)`.
    Tensor(Tensor),
    Stream(Arc<dyn FrameStream>),
}

impl FrameSet {
    /// Frames, height, width, channels.
    pub fn shape(&self) -> Result<[usize; 4], NodeError> {
        match self {
            Self::Tensor(t) => Ok(t.dims4()?),
            Self::Stream(s) => Ok(s.shape()),
        }
    }

    /// Hands out all frames in order.
    pub fn read(&self, sink: &mut FrameSink<'_>) -> Result<(), NodeError> {
        match self {
            Self::Tensor(t) => {
                for i in 0..t.dims4()?[0] {
                    sink(&t.narrow(0, i, 1)?)?;
                }
                Ok(())
            }
            Self::Stream(s) => s.read(sink),
        }
    }

    /// All frames in memory.
    pub fn to_tensor(&self) -> Result<Tensor, NodeError> {
        match self {
            Self::Tensor(t) => Ok(t.clone()),
            Self::Stream(s) => gather(&**s),
        }
    }

    /// A part of the frames; what is beyond the end is left out.
    pub fn narrow(&self, start: usize, count: usize) -> Result<Self, NodeError> {
        match self {
            Self::Tensor(t) => {
                let all = t.dims4()?[0];
                let start = start.min(all);
                Ok(Self::Tensor(t.narrow(0, start, count.min(all - start))?))
            }
            Self::Stream(s) => Ok(Self::Stream(Arc::new(Part {
                whole: s.clone(),
                start,
                count,
            }))),
        }
    }
}

impl FromValue for FrameSet {
    const IO: &'static str = "IMAGE";
    fn from_value(value: Value) -> Result<Self, String> {
        if let Some(streamed) = value.downcast::<StreamedImage>() {
            return Ok(streamed.set());
        }
        let found = as_tensor(&value).cloned().map(Self::Tensor);
        found.ok_or_else(|| wrong_kind("IMAGE", &value))
    }
}

impl From<FrameSet> for Value {
    fn from(set: FrameSet) -> Self {
        match set {
            FrameSet::Tensor(t) => tensor(t),
            FrameSet::Stream(s) => Self::object(StreamedImage::new(s)),
        }
    }
}

/// Puts all frames of a stream into one batch. The stream says how many it expects, and may be wrong.
fn gather(stream: &dyn FrameStream) -> Result<Tensor, NodeError> {
    let [expected, height, width, channels] = stream.shape();
    let size = height * width * channels;
    let mut values: Buffer<f32> = Buffer::with_room(expected.saturating_mul(size))?;
    let mut rest = Vec::new();
    let mut count = 0;
    stream.read(&mut |frames| {
        let [n, h, w, c] = frames.dims4()?;
        if (h, w, c) != (height, width, channels) {
            return Err(NodeError::value_error(format!(
                "a frame of {w} x {h} among frames of {width} x {height}"
            )));
        }
        count += n;
        let data = frames.data();
        if values.len() + data.len() <= expected * size {
            values.extend_from_slice(data);
        } else {
            // Behind what was announced.
            rest.push(frames.clone());
        }
        Ok(())
    })?;
    let announced = values.len() / size.max(1);
    let batch = Tensor::from_buffer([announced, height, width, channels], values)?;
    if rest.is_empty() {
        return Ok(batch);
    }
    let mut parts = vec![&batch];
    parts.extend(&rest);
    Ok(Tensor::cat(&parts, 0)?)
}

/// Some frames of a stream.
struct Part {
    whole: Arc<dyn FrameStream>,
    start: usize,
    count: usize,
}

/// Ends a stream of which enough was seen. It never leaves this room.
const ENOUGH: &str = "enough frames";

impl FrameStream for Part {
    fn shape(&self) -> [usize; 4] {
        let [count, h, w, c] = self.whole.shape();
        let left = count.saturating_sub(self.start);
        [left.min(self.count), h, w, c]
    }

    fn read(&self, sink: &mut FrameSink<'_>) -> Result<(), NodeError> {
        let end = self.start.saturating_add(self.count);
        let mut seen = 0;
        let mut done = false;
        let read = self.whole.read(&mut |frames| {
            let n = frames.dims4()?[0];
            let from = self.start.clamp(seen, seen + n) - seen;
            let to = end.clamp(seen, seen + n) - seen;
            seen += n;
            if from < to {
                sink(&frames.narrow(0, from, to - from)?)?;
            }
            if seen >= end {
                done = true;
                return Err(NodeError::failed(ENOUGH, ENOUGH));
            }
            Ok(())
        });
        match read {
            Err(e) if done && e.kind() == ENOUGH => Ok(()),
            other => other,
        }
    }
}

/// Frames on an IMAGE link that are not in memory until somebody needs them there.
pub struct StreamedImage {
    stream: Arc<dyn FrameStream>,
    whole: OnceLock<Tensor>,
}

impl StreamedImage {
    pub fn new(stream: Arc<dyn FrameStream>) -> Self {
        Self {
            stream,
            whole: OnceLock::new(),
        }
    }

    /// The frames as they are cheapest to read.
    pub fn set(&self) -> FrameSet {
        match self.whole.get() {
            Some(t) => FrameSet::Tensor(t.clone()),
            None => FrameSet::Stream(self.stream.clone()),
        }
    }

    /// All frames in memory; they stay there as long as this value does.
    pub fn tensor(&self) -> Result<&Tensor, NodeError> {
        if let Some(whole) = self.whole.get() {
            return Ok(whole);
        }
        let made = gather(&*self.stream)?;
        Ok(self.whole.get_or_init(|| made))
    }
}

impl Opaque for StreamedImage {
    fn describe(&self) -> String {
        format!("frames{:?}", self.stream.shape())
    }

    fn bytes(&self) -> u64 {
        self.whole.get().map_or(0, |t| t.len() as u64 * 4)
    }

    fn pieces(&self, pieces: &mut Pieces) {
        if let Some(t) = self.whole.get() {
            add_tensor(pieces, t);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says five, has seven.
    struct Liar;

    impl FrameStream for Liar {
        fn shape(&self) -> [usize; 4] {
            [5, 1, 2, 1]
        }

        fn read(&self, sink: &mut FrameSink<'_>) -> Result<(), NodeError> {
            for i in 0..7 {
                sink(&Tensor::full([1, 1, 2, 1], i as f32)?)?;
            }
            Ok(())
        }
    }

    #[test]
    fn a_stream_is_a_batch_when_it_has_to_be() {
        let value: Value = FrameSet::Stream(Arc::new(Liar)).into();
        assert_eq!(value.bytes(), 0);
        let whole = as_tensor(&value).unwrap();
        assert_eq!(whole.shape(), [7, 1, 2, 1]);
        assert_eq!(whole.data()[12], 6.0);
        assert_eq!(value.bytes(), 56);
        let image = crate::types::Image::from_value(value).unwrap();
        assert_eq!(image.0.shape(), [7, 1, 2, 1]);
    }

    #[test]
    fn parts_of_streams_are_those_of_tensors() {
        let stream = FrameSet::Stream(Arc::new(Liar));
        let tensor = FrameSet::Tensor(stream.to_tensor().unwrap());
        for (start, count) in [(0, 7), (2, 3), (6, 9), (0, 1), (4, usize::MAX)] {
            let data = |set: &FrameSet| {
                let part = set.narrow(start, count).unwrap();
                part.to_tensor().unwrap().data().to_vec()
            };
            assert_eq!(data(&stream), data(&tensor), "{start} {count}");
        }
    }
}
