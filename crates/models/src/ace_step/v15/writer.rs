//! The sketch of a song: audio codes, five for each second, that a language model writes before the song is made.
//!
//! The prompt is that of the authors (ACE-Step 1.5, `acestep/llm_inference.py`, MIT): what is known of the music stands as
//! the model's thoughts, so that only codes are left to write. Guidance is against the same prompt without thoughts.

use std::ops::Range;
use std::sync::Arc;

use super::codes::CODES;
use crate::error::{ModelError, Result};
use crate::store::WeightStore;
use crate::text::{
    Draw, TextEncoder, TextNetwork, Token, Tokens, Weighted, WritingGuidance, WritingRule,
};
use crate::transformer::Shapes;

/// The token of code 0; the others follow.
const FIRST_CODE: u32 = 151_669;
/// Codes that stand for a second.
const CODES_A_SECOND: usize = 5;
/// The table of tokens.
const TABLE: &str = "model.embed_tokens.weight";
/// A matrix of keys, which are as many numbers as the values.
const KEYS: &str = "model.layers.0.self_attn.k_proj.weight";

/// What a sketch is of.
#[derive(Debug, Clone, Copy)]
pub struct SongPlan<'a> {
    pub caption: &'a str,
    pub lyrics: &'a str,
    /// Beats a minute.
    pub bpm: i64,
    /// Whole seconds.
    pub seconds: usize,
    pub key: Option<&'a str>,
    /// Beats of a bar.
    pub time_signature: Option<&'a str>,
}

/// How codes are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CodeSampling {
    /// Of guidance; 1 for none.
    pub scale: f64,
    /// 0: always the likeliest.
    pub temperature: f64,
    /// Outside of 0 to 1: off.
    pub top_p: f64,
    /// 0: off.
    pub top_k: usize,
    pub min_p: f64,
    pub seed: u64,
}

impl CodeSampling {
    fn draw(&self) -> Option<Draw> {
        let narrowed = self.top_p > 0.0 && self.top_p < 1.0;
        (self.temperature > 0.0).then_some(Draw {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: if narrowed { self.top_p } else { 1.0 },
            min_p: self.min_p,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            seed: self.seed,
        })
    }
}

impl SongPlan<'_> {
    /// How many codes the sketch has.
    pub fn codes(&self) -> usize {
        self.seconds.saturating_mul(CODES_A_SECOND)
    }

    /// What is known of the music, in the order of the alphabet.
    fn thoughts(&self) -> String {
        let known = [
            ("bpm", Some(self.bpm.to_string())),
            ("duration", Some(self.seconds.to_string())),
            ("keyscale", self.key.map(ToOwned::to_owned)),
            ("timesignature", self.time_signature.map(ToOwned::to_owned)),
        ];
        let line = |(name, value): (&str, Option<String>)| Some(format!("{name}: {}\n", value?));
        let lines: Vec<String> = known.into_iter().filter_map(line).collect();
        lines.concat()
    }

    /// The conversation up to the place where codes follow.
    fn conversation(&self, thoughts: &str) -> String {
        let (caption, lyrics) = (self.caption.trim(), self.lyrics.trim());
        format!(
            "<|im_start|>system\n# Instruction\nGenerate audio semantic tokens based on the given conditions:\n\n<|im_end|>\n\
             <|im_start|>user\n# Caption\n{caption}\n\n# Lyric\n{lyrics}\n<|im_end|>\n\
             <|im_start|>assistant\n<think>\n{thoughts}</think>\n\n<|im_end|>\n"
        )
    }

    /// The prompt with all that is known.
    fn prompt(&self) -> String {
        self.conversation(&self.thoughts())
    }

    /// The prompt that guidance leads away from.
    fn without_thoughts(&self) -> String {
        self.conversation("\n")
    }
}

/// The language model that writes codes.
pub struct CodeWriter<'a> {
    network: &'a Arc<dyn TextNetwork>,
}

impl<'a> CodeWriter<'a> {
    /// What its place in a set of text networks is called.
    pub const PART: &'static str = "qwen3_lm";

    /// Whether the vocabulary of a language model has the codes.
    pub fn knows_codes(store: &WeightStore) -> bool {
        words(store) >= tokens().end as usize
    }

    /// The writer of a text encoder; none if it was loaded without one.
    pub fn of(encoder: &'a TextEncoder) -> Result<Option<Self>> {
        let Some(network) = encoder.network(Self::PART) else {
            return Ok(None);
        };
        let store = network.store();
        if !Self::knows_codes(store) {
            let reason = format!(
                "its vocabulary of {} tokens has no audio codes, so it cannot write the sketch of a song: load \
                 qwen_1.7b_ace15 or qwen_4b_ace15 as the second text encoder, or set generate_audio_codes to false",
                words(store)
            );
            return Err(ModelError::unsupported(store.file(), reason));
        }
        Ok(Some(Self { network }))
    }

    /// Bytes that writing takes beside the weights: the rows that codes are compared with, and what is kept of the tokens of
    /// both prompts.
    pub fn memory(&self, song: &SongPlan<'_>) -> Result<u64> {
        let (store, vocabulary) = (self.network.store(), self.network.vocabulary()?);
        let prompt = vocabulary.encode(&song.prompt()).len();
        let read = prompt.saturating_add(song.codes()) as u64;
        let shared = store.shape(KEYS).and_then(<[usize]>::first);
        let layers = Shapes(store).count("model.layers") as u64;
        let row = layers.saturating_mul(2 * shared.copied().unwrap_or(0) as u64);
        let rows = u64::from(CODES).saturating_mul(self.network.width() as u64);
        let values = rows.saturating_add(read.saturating_mul(2).saturating_mul(row));
        Ok(values.saturating_mul(size_of::<f32>() as u64))
    }

    /// The codes of a song. `each` is told how many there are.
    pub fn write(
        &self,
        song: &SongPlan<'_>,
        sampling: &CodeSampling,
        each: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<Vec<u32>> {
        let vocabulary = self.network.vocabulary()?;
        let read = |text: &str| read(vocabulary.encode(text));
        let rule = WritingRule {
            most: song.codes(),
            draw: sampling.draw(),
            stops: Vec::new(),
            only: Some(tokens()),
            guidance: Some(WritingGuidance {
                scale: sampling.scale as f32,
                away_from: read(&song.without_thoughts()),
            }),
        };
        let written = self.network.write(&read(&song.prompt()), &rule, each)?;
        Ok(written.into_iter().map(|id| id - FIRST_CODE).collect())
    }
}

/// The tokens that are codes.
fn tokens() -> Range<u32> {
    FIRST_CODE..FIRST_CODE + CODES
}

/// How many tokens a language model knows.
fn words(store: &WeightStore) -> usize {
    store
        .shape(TABLE)
        .and_then(<[usize]>::first)
        .copied()
        .unwrap_or(0)
}

fn read(ids: Vec<u32>) -> Tokens {
    let plain = |id| Weighted {
        token: Token::Id(id),
        weight: 1.0,
        word: 0,
    };
    Tokens {
        chunks: vec![ids.into_iter().map(plain).collect()],
        missing: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SONG: SongPlan<'static> = SongPlan {
        caption: " calm piano\n",
        lyrics: "[Instrumental]",
        bpm: 124,
        seconds: 220,
        key: Some("F# minor"),
        time_signature: Some("4"),
    };

    #[test]
    fn prompts_are_those_of_the_authors() {
        let head = "<|im_start|>system\n# Instruction\nGenerate audio semantic tokens based on the given conditions:\n\n\
            <|im_end|>\n<|im_start|>user\n# Caption\ncalm piano\n\n# Lyric\n[Instrumental]\n<|im_end|>\n\
            <|im_start|>assistant\n<think>\n";
        let end = "</think>\n\n<|im_end|>\n";
        let known = "bpm: 124\nduration: 220\nkeyscale: F# minor\ntimesignature: 4\n";
        assert_eq!(SONG.prompt(), [head, known, end].concat());
        assert_eq!(SONG.without_thoughts(), [head, "\n", end].concat());
        let less = SongPlan { key: None, ..SONG };
        assert_eq!(
            less.thoughts(),
            "bpm: 124\nduration: 220\ntimesignature: 4\n"
        );
        assert_eq!(SONG.codes(), 1100);
    }

    #[test]
    fn settings_outside_of_their_range_are_off() {
        let sampling = CodeSampling {
            scale: 2.0,
            temperature: 0.85,
            top_p: 0.9,
            top_k: 0,
            min_p: 0.0,
            seed: 1,
        };
        let top_p = |top_p| {
            let drawn = CodeSampling { top_p, ..sampling }.draw();
            drawn.expect("a temperature above 0 draws").top_p
        };
        assert_eq!([0.9, 0.0, 1.0, 2000.0].map(top_p), [0.9, 1.0, 1.0, 1.0]);
        let cold = CodeSampling {
            temperature: 0.0,
            ..sampling
        };
        assert_eq!(cold.draw(), None);
    }
}
