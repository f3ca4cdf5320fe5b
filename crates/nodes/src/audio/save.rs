//! Sound into files: one for each item of a batch.

use std::sync::Arc;

use fresco_files::dirs::DirType;
use fresco_files::naming::temp_prefix;
use fresco_graph::{
    Choices, Cx, Input, Map, Node, NodeError, NodeOutput, NodeResult, Output, Value, map,
};
use fresco_media::{MEMORY_PER_SAMPLE, SoundFormat, encode_sound};
use fresco_tensor::with_memory;

use super::{Audio, resample};
use crate::save::{Presence, begin, entry_of, metadata_text, save_error};
use crate::video::{media_error, to_sound};

/// Writes each item and gives what clients are shown.
fn save(
    cx: &Cx,
    audio: &Audio,
    kind: DirType,
    prefix: &str,
    format: SoundFormat,
) -> Result<Map, NodeError> {
    let waveform = audio.waveform()?;
    let [batch, channels, length] = waveform.dims3()?;
    if channels == 0 || length == 0 {
        return Err(NodeError::value_error(format!(
            "there is nothing to save in sound of {channels} channels and {length} samples"
        )));
    }
    let rate = audio.sample_rate()?;
    let usable = format.usable_rate(rate);
    let tags = metadata_text(cx, Presence::NotEmpty);
    let mut files = begin(cx, kind, prefix, 0, 0)?;
    let mut entries = Vec::new();
    // Of more than two channels, which these files would not say the meaning of, the first two are kept.
    let most = channels.min(2);
    for item in 0..batch {
        cx.check_interrupt()?;
        let one = waveform.narrow(0, item, 1)?;
        let one = resample::resample(&one, rate, usable)?;
        let sound = to_sound(&one, usable, most)?;
        let bytes = sound.samples.len() as u64 * MEMORY_PER_SAMPLE + (4 << 20);
        let file = with_memory(bytes, || encode_sound(&sound, format, &tags))?;
        let file = file.map_err(|e| media_error("the sound cannot be written", e))?;
        let saved = files.save(format.extension(), &file).map_err(save_error)?;
        entries.push(entry_of(&saved, kind));
        cx.progress((item + 1) as f64, batch as f64, None)?;
    }
    Ok(map! {"audio" => entries})
}

/// `V0`, or kilobits a second as `128k`.
fn mp3(quality: &str) -> SoundFormat {
    SoundFormat::Mp3 {
        kbps: quality.strip_suffix('k').and_then(|n| n.parse().ok()),
    }
}

fn opus(quality: &str) -> SoundFormat {
    let kbps = quality.strip_suffix('k').and_then(|n| n.parse().ok());
    SoundFormat::Opus {
        kbps: kbps.unwrap_or(128),
    }
}

/// Saves sound as FLAC, without loss.
#[derive(Node)]
#[node(
    id = "SaveAudio",
    v3,
    module = "comfy_extras.nodes_audio",
    display = "Save Audio (FLAC)",
    category = "audio",
    output_node
)]
pub(super) struct SaveAudio {
    audio: Audio,
    #[input(default = "audio/ComfyUI")]
    filename_prefix: String,
}

impl Node for SaveAudio {
    fn run(self, cx: &Cx) -> NodeResult {
        let prefix = &self.filename_prefix;
        let ui = save(cx, &self.audio, DirType::Output, prefix, SoundFormat::Flac)?;
        Ok(NodeOutput::ui(ui))
    }
}

/// Saves sound as MP3.
#[derive(Node)]
#[node(
    id = "SaveAudioMP3",
    v3,
    module = "comfy_extras.nodes_audio",
    display = "Save Audio (MP3)",
    category = "audio",
    output_node
)]
pub(super) struct SaveAudioMp3 {
    audio: Audio,
    #[input(default = "audio/ComfyUI")]
    filename_prefix: String,
    /// Bits a second; V0 varies and is about 245 kbit/s, the others are constant.
    #[input(choices = ["V0", "128k", "320k"], default = "V0")]
    quality: String,
}

impl Node for SaveAudioMp3 {
    fn run(self, cx: &Cx) -> NodeResult {
        let prefix = &self.filename_prefix;
        let format = mp3(&self.quality);
        let ui = save(cx, &self.audio, DirType::Output, prefix, format)?;
        Ok(NodeOutput::ui(ui))
    }
}

/// Saves sound as Opus.
#[derive(Node)]
#[node(
    id = "SaveAudioOpus",
    v3,
    module = "comfy_extras.nodes_audio",
    display = "Save Audio (Opus)",
    category = "audio",
    output_node
)]
pub(super) struct SaveAudioOpus {
    audio: Audio,
    #[input(default = "audio/ComfyUI")]
    filename_prefix: String,
    /// Bits a second; more sound better and make larger files.
    #[input(choices = ["64k", "96k", "128k", "192k", "320k"], default = "128k")]
    quality: String,
}

impl Node for SaveAudioOpus {
    fn run(self, cx: &Cx) -> NodeResult {
        let prefix = &self.filename_prefix;
        let format = opus(&self.quality);
        let ui = save(cx, &self.audio, DirType::Output, prefix, format)?;
        Ok(NodeOutput::ui(ui))
    }
}

/// Lets sound be heard without keeping it.
#[derive(Node)]
#[node(
    id = "PreviewAudio",
    v3,
    module = "comfy_extras.nodes_audio",
    display = "Preview Audio",
    category = "audio",
    output_node
)]
pub(super) struct PreviewAudio {
    /// The sound to play.
    audio: Audio,
}

impl Node for PreviewAudio {
    fn run(self, cx: &Cx) -> NodeResult {
        let prefix = temp_prefix("ComfyUI");
        let ui = save(cx, &self.audio, DirType::Temp, &prefix, SoundFormat::Flac)?;
        Ok(NodeOutput::ui(ui))
    }
}

fn formats() -> Input {
    let quality = |default: &str, entries: &[&str]| {
        let entries = entries.iter().map(|e| Value::from(*e)).collect();
        Input::combo("quality", Choices::Fixed(Arc::new(entries)))
            .option("default", default)
            .tooltip("Bits a second; more sound better and make larger files.")
    };
    let mp3 = vec![quality("V0", &["V0", "128k", "320k"])];
    let opus = vec![quality("128k", &["64k", "96k", "128k", "192k", "320k"])];
    Input::dynamic_combo(
        "format",
        vec![("flac", Vec::new()), ("mp3", mp3), ("opus", opus)],
    )
}

/// Saves sound as FLAC, MP3 or Opus, and passes it on.
#[derive(Node)]
#[node(
    id = "SaveAudioAdvanced",
    v3,
    module = "comfy_extras.nodes_audio",
    display = "Save Audio (Advanced)",
    category = "audio",
    outputs(Output::new("AUDIO").named("audio")),
    output_node
)]
pub(super) struct SaveAudioAdvanced {
    audio: Audio,
    #[input(default = "audio/ComfyUI")]
    filename_prefix: String,
    /// The format of the file: flac is lossless, mp3 and opus are smaller.
    #[input(spec = formats())]
    format: Arc<Map>,
}

impl Node for SaveAudioAdvanced {
    fn run(self, cx: &Cx) -> NodeResult {
        let word = |key: &str| self.format.get(key).and_then(Value::as_str).unwrap_or("");
        let format = match word("format") {
            "mp3" => mp3(word("quality")),
            "opus" => opus(word("quality")),
            _ => SoundFormat::Flac,
        };
        let prefix = &self.filename_prefix;
        let ui = save(cx, &self.audio, DirType::Output, prefix, format)?;
        Ok(NodeOutput::one(self.audio).with_ui(ui))
    }
}
