//! The values of built-in nodes in parts, for whoever talks to other processes. Models and what is made of them are not
//! among these: they stay where they are.

use std::sync::Arc;

use fresco_graph::{Codec, CodecError, Map, Opaque, Parts, Value, ValueCodec, map};
use fresco_nodes::audio::Audio;
use fresco_nodes::frames::{FrameSet, StreamedImage};
use fresco_nodes::mesh::Voxels;
use fresco_nodes::types::{TensorValue, as_tensor, tensor};
use fresco_nodes::video::{FilmFrames, Video};
use fresco_nodes::vision::VisionOutput;
use fresco_tensor::Tensor;

pub(crate) fn value_codec() -> ValueCodec<Tensor> {
    ValueCodec(Arc::new(NodeValues))
}

struct NodeValues;

impl Codec<Tensor> for NodeValues {
    fn split(&self, object: &dyn Opaque) -> Option<Parts<Tensor>> {
        let any: &dyn std::any::Any = object;
        let parts = |kind: &str, plain, tensors| Parts {
            kind: kind.into(),
            plain,
            tensors,
        };
        if let Some(value) = any.downcast_ref::<TensorValue>() {
            return Some(parts("tensor", Map::new(), vec![value.0.clone()]));
        }
        if let Some(streamed) = any.downcast_ref::<StreamedImage>() {
            let whole = streamed.tensor().ok()?.clone();
            return Some(parts("tensor", Map::new(), vec![whole]));
        }
        if let Some(voxels) = any.downcast_ref::<Voxels>() {
            return Some(parts("voxels", Map::new(), vec![voxels.0.clone()]));
        }
        if let Some(video) = any.downcast_ref::<Video>() {
            let (numerator, denominator) = match video {
                Video::Frames(film) => film.frame_rate,
                Video::File(film) => {
                    let rate = film.video().ok()?.rate;
                    (rate.num.into(), rate.den.into())
                }
            };
            let mut plain =
                map! {"frame_rate" => vec![Value::Int(numerator), Value::Int(denominator)]};
            // Who asks for the parts of a film wants its frames.
            let mut tensors = vec![video.frames().to_tensor().ok()?];
            if let Some(audio) = &video.audio().ok()? {
                plain.insert("sample_rate".into(), audio.sample_rate().ok()?.into());
                tensors.push(audio.waveform().ok()?.clone());
            }
            return Some(parts("video", plain, tensors));
        }
        let output = any.downcast_ref::<VisionOutput>()?;
        let mut names = Vec::new();
        let mut tensors = Vec::new();
        for (name, value) in output.0.iter() {
            names.push(Value::from(name));
            tensors.push(as_tensor(value)?.clone());
        }
        Some(parts("vision_output", map! {"names" => names}, tensors))
    }

    fn join(&self, parts: Parts<Tensor>) -> Result<Value, CodecError> {
        let Parts {
            kind,
            plain,
            tensors,
        } = parts;
        let wrong = |problem: &str| CodecError::Parts {
            kind: kind.clone(),
            problem: problem.to_owned(),
        };
        let mut given = tensors.into_iter();
        let mut next = || given.next().ok_or_else(|| wrong("too few tensors"));
        let value = match &*kind {
            "tensor" => tensor(next()?),
            "voxels" => Value::object(Voxels(next()?)),
            "video" => {
                let rate = plain.get("frame_rate").and_then(Value::as_list);
                let Some([Value::Int(numerator), Value::Int(denominator @ 1..)]) = rate else {
                    return Err(wrong("no usable frame rate"));
                };
                let images = next()?;
                let audio = match plain.get("sample_rate").map(Value::as_int) {
                    None => None,
                    Some(rate) => {
                        let rate = rate.and_then(|r| u32::try_from(r).ok()).filter(|r| *r > 0);
                        let rate = rate.ok_or_else(|| wrong("no usable sample rate"))?;
                        Some(Audio::new(next()?, rate))
                    }
                };
                Value::object(Video::Frames(FilmFrames {
                    images: FrameSet::Tensor(images),
                    audio,
                    frame_rate: (*numerator, *denominator),
                }))
            }
            "vision_output" => {
                let names = plain.get("names").and_then(Value::as_list);
                let mut output = Map::new();
                for name in names.ok_or_else(|| wrong("no names"))? {
                    let name = name.as_str().ok_or_else(|| wrong("a name that is none"))?;
                    output.insert(name.into(), tensor(next()?));
                }
                VisionOutput(Arc::new(output)).into()
            }
            _ => return Err(CodecError::Unknown { kind }),
        };
        match given.next() {
            None => Ok(value),
            Some(_) => Err(wrong("too many tensors")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize) -> Tensor {
        let data: Vec<f32> = (0..count).map(|n| n as f32).collect();
        Tensor::from_vec([1, count, 1, 1], data).unwrap()
    }

    /// Apart and together again, without knowing what it is.
    fn round(value: &Value) -> (Arc<str>, Value) {
        let Value::Object(object) = value else {
            panic!("not opaque: {value:?}")
        };
        let codec = value_codec();
        let parts = codec.0.split(&**object).expect("it can be split");
        (parts.kind.clone(), codec.0.join(parts).unwrap())
    }

    #[test]
    fn tensors_are_handed_over_without_a_copy() {
        let picture = numbers(6);
        let (kind, back) = round(&tensor(picture.clone()));
        assert_eq!(&*kind, "tensor");
        let back = as_tensor(&back).unwrap();
        assert_eq!(back.storage_address(), picture.storage_address());
    }

    #[test]
    fn what_nodes_make_comes_back_as_it_was() {
        let video = Video::Frames(FilmFrames {
            images: FrameSet::Tensor(numbers(4)),
            audio: Some(Audio::new(Tensor::full([1, 2, 4], 0.5).unwrap(), 44_100)),
            frame_rate: (30_000, 1001),
        });
        let (kind, back) = round(&Value::object(video));
        let Some(Video::Frames(back)) = back.downcast::<Video>() else {
            panic!("not frames")
        };
        assert_eq!((&*kind, back.frame_rate), ("video", (30_000, 1001)));
        assert_eq!(back.audio.as_ref().unwrap().sample_rate().unwrap(), 44_100);
        let output = VisionOutput(Arc::new(
            map! {"image_embeds" => tensor(numbers(2)), "last" => tensor(numbers(3))},
        ));
        let (_, back) = round(&output.into());
        let back = back.downcast::<VisionOutput>().unwrap();
        assert_eq!(back.tensor("last").unwrap().len(), 3);
        let (kind, _) = round(&Value::object(Voxels(numbers(8))));
        assert_eq!(&*kind, "voxels");
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let join = |kind: &str, plain, tensors| {
            let parts = Parts {
                kind: kind.into(),
                plain,
                tensors,
            };
            value_codec().0.join(parts).unwrap_err().to_string()
        };
        assert!(join("dragon", Map::new(), vec![]).contains("unknown kind of value \"dragon\""));
        assert!(join("tensor", Map::new(), vec![]).contains("too few tensors"));
        assert!(join("tensor", Map::new(), vec![numbers(1), numbers(1)]).contains("too many"));
        let zero = map! {"frame_rate" => vec![1, 0]};
        assert!(join("video", zero, vec![numbers(1)]).contains("frame rate"));
    }
}
