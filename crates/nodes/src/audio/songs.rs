//! Prompts and empty latents of models of songs.

use fresco_graph::{Cx, Map, Node, NodeError, NodeOutput, NodeResult};
use fresco_memory::Need;
use fresco_models::ModelError;
use fresco_models::ace_step::lyrics::{self, LyricsVocabulary, VOCABULARY_FILE};
use fresco_models::ace_step::{CodeSampling, CodeWriter, SongPlan};
use fresco_models::text::{Prompt, Token};
use fresco_tensor::Tensor;

use crate::clip::{Clip, required};
use crate::resident::InUse;
use crate::sampling::run::failure;
use crate::types::{Conditioning, Latent, tensor};

/// Turns tags and lyrics into the conditioning of a song.
#[derive(Node)]
#[node(
    id = "TextEncodeAceStepAudio",
    v3,
    module = "comfy_extras.nodes_ace",
    category = "conditioning",
    outputs("CONDITIONING")
)]
pub(super) struct TextEncodeAceStepAudio {
    clip: Option<Clip>,
    /// Genre, instruments, mood, tempo.
    #[input(multiline = true, dynamicPrompts = true)]
    tags: String,
    /// Lines to sing, with marks as [verse] between them.
    #[input(multiline = true, dynamicPrompts = true)]
    lyrics: String,
    /// How closely the song keeps to the lyrics.
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    lyrics_strength: f64,
}

/// The vocabulary of lyrics beside the encoder's files, if there is one.
fn vocabulary(clip: &Clip) -> Result<Option<LyricsVocabulary>, NodeError> {
    for (_, store) in clip.stores() {
        if let Some(json) = store.beside(VOCABULARY_FILE).map_err(failure)? {
            return Ok(Some(LyricsVocabulary::parse(&json).map_err(failure)?));
        }
    }
    Ok(None)
}

impl Node for TextEncodeAceStepAudio {
    fn run(self, cx: &Cx) -> NodeResult {
        let clip = required(self.clip)?;
        let tokens = clip.tokenize(&self.tags, cx)?;
        let words = if lyrics::is_empty(&self.lyrics) {
            None
        } else {
            vocabulary(&clip)?
        };
        let numbers = lyrics::numbers(&self.lyrics, words.as_ref()).map_err(failure)?;
        let numbers: Vec<f32> = numbers.into_iter().map(|n| n as f32).collect();
        let numbers = Tensor::from_vec([1, numbers.len()], numbers)?;
        let made = clip.encode(&tokens, Map::new(), cx)?;
        let made = made
            .set("conditioning_lyrics", tensor(numbers))
            .set("lyrics_strength", self.lyrics_strength);
        Ok(NodeOutput::one(made))
    }
}

/// Tokens that the encoder of version 1.5 reads of tags and of lyrics.
const MOST_TAGS: usize = 256;
const MOST_LYRICS: usize = 2048;
/// The network that reads them.
const READER: &str = "qwen3_06b";

/// Turns tags, lyrics and what is known of the music into the conditioning of a song.
#[derive(Node)]
#[node(
    id = "TextEncodeAceStepAudio1.5",
    v3,
    module = "comfy_extras.nodes_ace",
    display = "TextEncodeAceStepAudio1.5",
    category = "conditioning",
    outputs("CONDITIONING")
)]
pub(super) struct TextEncodeAceStepAudio15 {
    clip: Option<Clip>,
    /// What the music is like.
    #[input(multiline = true, dynamicPrompts = true)]
    tags: String,
    /// Lines to sing, with marks as [verse] between them.
    #[input(multiline = true, dynamicPrompts = true)]
    lyrics: String,
    /// Number from which the sketch is drawn: the same number gives the same sketch.
    #[input(optional, default = 0, min = 0, max = 18446744073709551615u64)]
    seed: Option<u64>,
    /// Beats a minute.
    #[input(optional, default = 120, min = 10, max = 300)]
    bpm: Option<i64>,
    /// Length of the song in seconds.
    #[input(optional, default = 120.0, min = 0.0, max = 2000.0)]
    duration: Option<f64>,
    /// Beats of a bar.
    #[input(optional, choices = ["2", "3", "4", "6"])]
    timesignature: Option<String>,
    /// The language in which the lyrics are sung.
    #[input(optional, default = "en", choices = [
        "ar", "az", "bg", "bn", "ca", "cs", "da", "de", "el", "en", "es", "fa", "fi", "fr", "he", "hi", "hr", "ht", "hu", "id",
        "is", "it", "ja", "ko", "la", "lt", "ms", "ne", "nl", "no", "pa", "pl", "pt", "ro", "ru", "sa", "sk", "sr", "sv", "sw",
        "ta", "te", "th", "tl", "tr", "uk", "ur", "vi", "yue", "zh", "unknown"])]
    language: Option<String>,
    /// The key the song is in.
    #[input(optional, choices = [
        "C major", "C# major", "Db major", "D major", "D# major", "Eb major", "E major", "F major", "F# major", "Gb major",
        "G major", "G# major", "Ab major", "A major", "A# major", "Bb major", "B major", "C minor", "C# minor", "Db minor",
        "D minor", "D# minor", "Eb minor", "E minor", "F minor", "F# minor", "Gb minor", "G minor", "G# minor", "Ab minor",
        "A minor", "A# minor", "Bb minor", "B minor"])]
    keyscale: Option<String>,
    /// Lets the language model write a sketch of the song first, which takes a while and makes for better songs. Without the
    /// language model none is written.
    #[input(optional, default = true)]
    generate_audio_codes: Option<bool>,
    /// How closely the sketch keeps to what is known of the music; 1 for no guidance.
    #[input(optional, default = 2.0, min = 0.0, max = 100.0)]
    cfg_scale: Option<f64>,
    /// How freely codes are drawn; 0 always takes the likeliest.
    #[input(optional, default = TEMPERATURE, min = 0.0, max = 2.0)]
    temperature: Option<f64>,
    /// Only the likeliest codes that together are so likely; 0, or 1 and more: all.
    #[input(optional, default = TOP_P, min = 0.0, max = 2000.0)]
    top_p: Option<f64>,
    /// Only so many of the likeliest codes; 0: all.
    #[input(optional, default = 0, min = 0, max = 100)]
    top_k: Option<i64>,
    /// Only codes that are so likely compared to the likeliest.
    #[input(optional, default = 0.0, min = 0.0, max = 1.0)]
    min_p: Option<f64>,
}

const TEMPERATURE: f64 = 0.85;
const TOP_P: f64 = 0.9;

/// What the encoder is told to do: models were trained with one for songs made of a sketch, and another for songs made of
/// nothing but a description.
const FROM_SKETCH: &str = "Generate audio semantic tokens based on the given conditions:";
const FROM_NOTHING: &str = "Fill the audio semantic mask based on the given conditions:";

impl TextEncodeAceStepAudio15 {
    fn seconds(&self) -> f64 {
        self.duration.unwrap_or(120.0)
    }

    fn beats(&self) -> i64 {
        self.bpm.unwrap_or(120)
    }

    /// The description as the encoder was trained with it.
    fn described(&self, instruction: &str) -> String {
        let told = |text: Option<&str>| text.unwrap_or("N/A").to_owned();
        format!(
            "# Instruction\n{instruction}\n\n# Caption\n{}\n\n# Metas\n\
             - bpm: {}\n- timesignature: {}\n- keyscale: {}\n- duration: {} seconds\n<|endoftext|>\n",
            self.tags,
            self.beats(),
            told(self.timesignature.as_deref()),
            told(self.keyscale.as_deref()),
            self.seconds() as i64,
        )
    }

    fn sung(&self) -> String {
        let language = self.language.as_deref().unwrap_or("en");
        format!(
            "# Languages\n{language}\n\n# Lyric\n{}<|endoftext|>",
            self.lyrics
        )
    }

    fn plan(&self) -> SongPlan<'_> {
        SongPlan {
            caption: &self.tags,
            lyrics: &self.lyrics,
            bpm: self.beats(),
            seconds: self.seconds().ceil().max(0.0) as usize,
            key: self.keyscale.as_deref(),
            time_signature: self.timesignature.as_deref(),
        }
    }

    fn sampling(&self) -> CodeSampling {
        CodeSampling {
            scale: self.cfg_scale.unwrap_or(2.0),
            temperature: self.temperature.unwrap_or(TEMPERATURE),
            top_p: self.top_p.unwrap_or(TOP_P),
            top_k: usize::try_from(self.top_k.unwrap_or(0)).unwrap_or(0),
            min_p: self.min_p.unwrap_or(0.0),
            seed: self.seed.unwrap_or(0),
        }
    }

    /// The sketch of the song, (1, codes); none if none is wanted or nobody is there to write it.
    fn sketch(&self, clip: &Clip, cx: &Cx) -> Result<Option<Tensor>, NodeError> {
        let song = self.plan();
        if !self.generate_audio_codes.unwrap_or(true) || song.codes() == 0 {
            return Ok(None);
        }
        let encoder = clip.encoder();
        let Some(writer) = CodeWriter::of(encoder).map_err(failure)? else {
            tracing::info!(
                "no language model writes a sketch of the song; it is made of tags and lyrics alone"
            );
            return Ok(None);
        };
        let (sampling, most) = (self.sampling(), song.codes() as f64);
        let write = || {
            writer.write(&song, &sampling, &mut |count| {
                let shown = cx.progress(count as f64, most, None);
                shown.map_err(|_| ModelError::Cancelled)
            })
        };
        let need = Need {
            required: writer.memory(&song).map_err(failure)?,
            ..Need::default()
        };
        let codes = match clip.hold() {
            Some(hold) => InUse::of(cx, &[hold.handle()], need)?.run(write),
            None => write(),
        };
        let codes: Vec<f32> = codes
            .map_err(failure)?
            .into_iter()
            .map(|code| code as f32)
            .collect();
        Ok(Some(Tensor::from_vec([1, codes.len()], codes)?))
    }
}

/// The numbers of a text's tokens, at most so many.
fn numbers(clip: &Clip, text: &str, most: usize, cx: &Cx) -> Result<Vec<u32>, NodeError> {
    let tokens = clip.tokenize_prompt(Prompt::new(text), cx)?;
    let chunk = tokens.get(READER).and_then(|tokens| tokens.chunks.first());
    let chunk = chunk.ok_or_else(|| {
        NodeError::value_error(
            "this text encoder is not that of ACE-Step 1.5: load qwen_0.6b_ace15 with the type \"ace\"",
        )
    })?;
    let ids = chunk.iter().filter_map(|token| match token.token {
        Token::Id(id) => Some(id),
        _ => None,
    });
    Ok(ids.take(most).collect())
}

/// What the encoder's table has for tokens, (1, n, width): lyrics are read by the model itself.
fn looked_up(clip: &Clip, ids: &[u32]) -> Result<Tensor, NodeError> {
    let stores = clip.encoder().stores();
    for (place, _, store) in stores {
        if place.name == READER {
            let table = store.embedding("model.embed_tokens").map_err(failure)?;
            return Ok(table.lookup(ids)?.unsqueeze(0)?);
        }
    }
    Err(NodeError::value_error(
        "the text encoder has no table of tokens",
    ))
}

impl Node for TextEncodeAceStepAudio15 {
    fn run(self, cx: &Cx) -> NodeResult {
        let clip = required(self.clip.clone())?;
        let sketch = self.sketch(&clip, cx)?;
        let instruction = match sketch {
            Some(_) => FROM_SKETCH,
            None => FROM_NOTHING,
        };
        let mut tokens = clip.tokenize_prompt(Prompt::new(&self.described(instruction)), cx)?;
        if let Some(tokens) = tokens.get_mut(READER) {
            tokens.chunks.truncate(1);
            for chunk in &mut tokens.chunks {
                chunk.truncate(MOST_TAGS);
            }
        }
        let ids = numbers(&clip, &self.sung(), MOST_LYRICS, cx)?;
        let lyrics = looked_up(&clip, &ids)?;
        let made: Conditioning = clip.encode(&tokens, Map::new(), cx)?;
        let made = made.set("conditioning_lyrics", tensor(lyrics));
        Ok(NodeOutput::one(match sketch {
            Some(codes) => made.set("audio_codes", tensor(codes)),
            None => made,
        }))
    }
}

/// An empty latent of a song, 25 frames a second.
#[derive(Node)]
#[node(
    id = "EmptyAceStep1.5LatentAudio",
    v3,
    module = "comfy_extras.nodes_ace",
    display = "EmptyAceStep1.5LatentAudio",
    category = "latent/audio",
    outputs("LATENT")
)]
pub(super) struct EmptyAceStep15LatentAudio {
    #[input(default = 120.0, min = 1.0, max = 1000.0, step = 0.01)]
    seconds: f64,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: usize,
}

impl Node for EmptyAceStep15LatentAudio {
    fn run(self, _: &Cx) -> NodeResult {
        let frames = (self.seconds * 48_000.0 / 1920.0)
            .round_ties_even()
            .max(1.0) as usize;
        let latent = Tensor::zeros([self.batch_size, 64, frames])?;
        Ok(NodeOutput::one(Latent::new(latent).with("type", "audio")))
    }
}
