//! Sound from files.

use fresco_graph::{
    Args, Cx, Map, Node, NodeError, NodeOutput, NodeResult, Validator, Value, Verdict,
};
use fresco_media::Span;
use fresco_tensor::with_memory;

use super::Audio;
use crate::load;
use crate::video::{media_error, reader, stop, to_audio};

const VALIDATOR: Option<Validator> = Some(Validator {
    params: &["audio"],
    all: false,
    input_types: false,
});

/// What a compressed file becomes at most, for each of its bytes: quiet speech of few bits a second.
const GROWS: u64 = 64;
/// What is asked for at most: more is refused as the samples come.
const MOST: u64 = 2 << 30;

/// The whole sound of a file.
fn load(cx: &Cx, name: &str) -> Result<Audio, NodeError> {
    let path = load::resolve(cx, name)?;
    let size = std::fs::metadata(&path).map_or(0, |data| data.len());
    let read = || reader(cx).sound(&path, Span::ALL, &stop());
    let sound = with_memory(size.saturating_mul(GROWS).min(MOST) / 4, read)?;
    let sound = sound.map_err(|e| media_error(&path.display().to_string(), e))?;
    to_audio(&sound)
}

/// Loads the sound of an audio or video file.
#[derive(Node)]
#[node(
    id = "LoadAudio",
    v3,
    module = "comfy_extras.nodes_audio",
    display = "Load Audio",
    category = "audio",
    outputs("AUDIO")
)]
pub(super) struct LoadAudio {
    /// The sound file in the input directory.
    #[input(listed = "input/audio", audio_upload = true)]
    audio: String,
}

impl Node for LoadAudio {
    fn run(self, cx: &Cx) -> NodeResult {
        Ok(NodeOutput::one(load(cx, &self.audio)?))
    }

    const FINGERPRINT: bool = true;
    fn fingerprint(args: Args, cx: &Cx) -> Result<Value, NodeError> {
        load::file_token(cx, &args, "audio")
    }

    const VALIDATOR: Option<Validator> = VALIDATOR;
    fn validate(args: Args, _: &Map, cx: &Cx) -> Result<Verdict, NodeError> {
        Ok(load::file_verdict(cx, &args, "audio", "audio"))
    }
}

/// Sound that was recorded in the browser.
#[derive(Node)]
#[node(
    id = "RecordAudio",
    v3,
    module = "comfy_extras.nodes_audio",
    display = "Record Audio",
    category = "audio",
    outputs("AUDIO")
)]
pub(super) struct RecordAudio {
    /// The recording that the browser made.
    #[input(ty = "AUDIO_RECORD")]
    audio: String,
}

impl Node for RecordAudio {
    fn run(self, cx: &Cx) -> NodeResult {
        Ok(NodeOutput::one(load(cx, &self.audio)?))
    }

    const FINGERPRINT: bool = true;
    fn fingerprint(args: Args, cx: &Cx) -> Result<Value, NodeError> {
        load::file_token(cx, &args, "audio")
    }
}
