//! Prompts to chunks of tokens, whichever vocabulary and network they are for.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_tensor::Tensor;

use super::prompt::{self, Segment, is_python_space};
use super::tokens::{EmbeddingSource, NoEmbeddings, Token, Tokens, Weighted};
use super::vocabulary::Vocabulary;
use crate::error::Result;

/// A group of fewer tokens is not torn apart at the end of a chunk.
const LARGE_GROUP: usize = 8;
const MARK: &str = "embedding:";

/// What a user asks for: words, and perhaps pictures that go with them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Prompt<'a> {
    pub text: &'a str,
    /// `(b, h, w, 3)` in 0..1.
    pub pictures: &'a [Tensor],
    /// In place of the network's own: `{}` stands for the text.
    pub template: Option<&'a str>,
    /// Settings of tokenizers by name: `t5xxl_min_length`.
    pub options: Option<&'a BTreeMap<String, i64>>,
}

impl<'a> Prompt<'a> {
    pub fn new(text: &'a str) -> Self {
        Self {
            text,
            ..Self::default()
        }
    }

    /// A setting of a network's tokenizer.
    fn option(&self, network: &str, name: &str) -> Option<usize> {
        let value = self.options?.get(&format!("{network}_{name}"))?;
        usize::try_from(*value).ok()
    }
}

/// How tokens are put into chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRule {
    pub start: Option<u32>,
    pub end: Option<u32>,
    pub pad: u32,
    /// Tokens in a chunk, start and end included; none for one chunk of any length.
    pub most: Option<usize>,
    /// Whether every chunk is filled up to that.
    pub fill: bool,
    /// Tokens that the last chunk has at least.
    pub least: usize,
    /// The length of the last chunk is a multiple of this.
    pub multiple: usize,
    /// Whether the pads go in front.
    pub pad_left: bool,
}

impl ChunkRule {
    /// One chunk without marks of its own, as long as the prompt.
    pub const OPEN: Self = Self {
        start: None,
        end: None,
        pad: 0,
        most: None,
        fill: false,
        least: 1,
        multiple: 1,
        pad_left: false,
    };
}

/// What `(more:1.3)` means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptWeights {
    /// It counts more.
    Count,
    /// It is read like the others, and counts as much.
    Drop,
    /// Brackets are plain text.
    Plain,
}

/// How one network of a set reads prompts.
#[derive(Clone)]
pub struct PromptRule {
    /// What it is given: the text in its template; none if it gets nothing.
    pub text: fn(&Prompt<'_>) -> Option<String>,
    pub weights: PromptWeights,
    pub chunks: ChunkRule,
    /// The token in whose place a picture goes.
    pub picture: Option<u32>,
}

impl PromptRule {
    /// The text as it is, weighted, in chunks like these.
    pub const fn plain(chunks: ChunkRule) -> Self {
        Self {
            text: |prompt| Some(prompt.text.to_owned()),
            weights: PromptWeights::Count,
            chunks,
            picture: None,
        }
    }
}

/// The tokenizer of one network: its words, its rules, and what embeddings call it.
pub(super) struct Tokenizer<'a> {
    pub(super) vocabulary: &'a dyn Vocabulary,
    pub(super) name: &'a str,
    pub(super) width: usize,
}

impl Tokenizer<'_> {
    pub(super) fn tokenize(
        &self,
        prompt: &Prompt<'_>,
        rule: &PromptRule,
        embeddings: &dyn EmbeddingSource,
    ) -> Result<Tokens> {
        let Some(text) = (rule.text)(prompt) else {
            return Ok(Tokens::default());
        };
        let mut segments = match rule.weights {
            PromptWeights::Count | PromptWeights::Drop => prompt::parse(&text)?,
            PromptWeights::Plain => vec![prompt::whole(&text)],
        };
        if rule.weights == PromptWeights::Drop {
            for segment in &mut segments {
                segment.weight = 1.0;
            }
        }
        let mut missing = Vec::new();
        let mut groups = Vec::new();
        for segment in segments {
            self.segment(&segment, embeddings, &mut groups, &mut missing);
        }
        let mut chunks = rule.chunks;
        if let Some(least) = prompt.option(self.name, "min_length") {
            chunks.least = least;
        }
        let padding = prompt.option(self.name, "min_padding").unwrap_or(0);
        let mut chunks = chunks.chunks(groups, padding);
        if let Some(id) = rule.picture {
            place_pictures(&mut chunks, id, prompt.pictures);
        }
        Ok(Tokens { chunks, missing })
    }

    fn segment(
        &self,
        segment: &Segment,
        embeddings: &dyn EmbeddingSource,
        groups: &mut Vec<(Vec<Token>, f64)>,
        missing: &mut Vec<String>,
    ) {
        for part in parts(&segment.text) {
            let named = part.strip_prefix(MARK).filter(|_| embeddings.exists());
            let Some(named) = named else {
                groups.push((self.ids(part), segment.weight));
                continue;
            };
            let (rows, leftover) = self.embedding(named, embeddings, missing);
            if let Some(rows) = rows {
                let tokens = rows.into_iter().map(Token::Vector).collect();
                groups.push((tokens, segment.weight));
            }
            if !leftover.is_empty() {
                groups.push((self.ids(&leftover), segment.weight));
            }
        }
    }

    fn ids(&self, text: &str) -> Vec<Token> {
        let ids = self.vocabulary.encode(text).into_iter();
        ids.map(Token::Id).collect()
    }

    /// The embedding that `named` begins with, and the text that follows its name.
    fn embedding(
        &self,
        named: &str,
        embeddings: &dyn EmbeddingSource,
        missing: &mut Vec<String>,
    ) -> (Option<Vec<Arc<[f32]>>>, String) {
        let mut words = named.split(is_python_space).filter(|w| !w.is_empty());
        let name = words.next().unwrap_or_default();
        let leftover = words.collect::<Vec<_>>().join(" ");
        let load = |name: &str| {
            let named = !name.is_empty();
            named.then(|| embeddings.load(name, self.name, self.width))?
        };
        let mut found = (load(name), leftover);
        let stripped = name.trim_matches(',');
        if found.0.is_none() && stripped.len() < name.len() {
            // The rest of the name is counted from its front, also when a comma was there.
            let rest = name.get(stripped.len()..).unwrap_or_default();
            found = (load(stripped), format!("{rest} {}", found.1));
        }
        if found.0.is_none() {
            missing.push(name.to_owned());
        }
        found
    }
}

/// A prompt as tokens of a vocabulary, where there are no embeddings.
pub fn tokenize(
    vocabulary: &dyn Vocabulary,
    prompt: &Prompt<'_>,
    rule: &PromptRule,
) -> Result<Tokens> {
    let tokenizer = Tokenizer {
        vocabulary,
        name: "",
        width: 0,
    };
    tokenizer.tokenize(prompt, rule, &NoEmbeddings)
}

/// Puts pictures, in order, where their token stands. Tokens without a picture stay.
fn place_pictures(chunks: &mut [Vec<Weighted>], id: u32, pictures: &[Tensor]) {
    let mut pictures = pictures.iter();
    for weighted in chunks.iter_mut().flatten() {
        if weighted.token == Token::Id(id) {
            let Some(picture) = pictures.next() else {
                return;
            };
            weighted.token = Token::Picture(Arc::new(picture.clone()));
        }
    }
}

impl ChunkRule {
    fn plain(id: u32) -> Weighted {
        Weighted {
            token: Token::Id(id),
            weight: 1.0,
            word: 0,
        }
    }

    fn begin(&self) -> Vec<Weighted> {
        self.start.into_iter().map(Self::plain).collect()
    }

    /// Pads up to a length.
    fn pad_to(&self, chunk: &mut Vec<Weighted>, length: usize) {
        let missing = length.saturating_sub(chunk.len());
        let pads = std::iter::repeat_n(Self::plain(self.pad), missing);
        if self.pad_left {
            chunk.splice(..0, pads);
        } else {
            chunk.extend(pads);
        }
    }

    fn close(&self, chunk: &mut Vec<Weighted>, padding: usize) {
        chunk.extend(self.end.map(Self::plain));
        let padded = chunk.len() + padding;
        self.pad_to(chunk, padded);
        if let Some(most) = self.most.filter(|_| self.fill) {
            self.pad_to(chunk, most);
        }
    }

    /// Groups of tokens as chunks. The last one gets `padding` more pads.
    fn chunks(&self, groups: Vec<(Vec<Token>, f64)>, padding: usize) -> Vec<Vec<Weighted>> {
        // The last place is for the end.
        let room = match self.most {
            Some(most) => most.saturating_sub(usize::from(self.end.is_some())),
            None => usize::MAX,
        };
        let mut done = Vec::new();
        let mut chunk = self.begin();
        let empty = chunk.len();
        for (index, (tokens, weight)) in groups.into_iter().enumerate() {
            let large = tokens.len() >= LARGE_GROUP;
            let mut tokens = tokens.into_iter().map(|token| Weighted {
                token,
                weight,
                word: index + 1,
            });
            while tokens.len() > 0 {
                let free = room.saturating_sub(chunk.len());
                if tokens.len() <= free {
                    chunk.extend(tokens.by_ref());
                    break;
                }
                // A short group goes whole into the next chunk, unless it would not fit there either.
                if large || chunk.len() == empty {
                    chunk.extend(tokens.by_ref().take(free.max(1)));
                }
                self.close(&mut chunk, 0);
                done.push(std::mem::replace(&mut chunk, self.begin()));
            }
        }
        self.close(&mut chunk, padding);
        self.pad_to(&mut chunk, self.least);
        let length = chunk.len().next_multiple_of(self.multiple.max(1));
        self.pad_to(&mut chunk, length);
        done.push(chunk);
        done
    }
}

/// The stretches of a segment that begin with an embedding, and what is before the first. The space or line end before an
/// embedding belongs to neither.
fn parts(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut start = 0;
    for (at, _) in text.match_indices(MARK) {
        let separated = at > start && matches!(text.as_bytes()[at - 1], b' ' | b'\n');
        if separated {
            found.push(&text[start..at - 1]);
            start = at;
        }
    }
    found.push(&text[start..]);
    found.retain(|part| !part.is_empty());
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::vocabulary::Bytes;

    /// Ids with their weights where they are not 1; chunks divided by bars, pictures as `P`.
    fn shown(prompt: &Prompt<'_>, rule: &PromptRule) -> String {
        let tokenizer = Tokenizer {
            vocabulary: &Bytes { first: 0 },
            name: "net",
            width: 4,
        };
        let tokens = tokenizer.tokenize(prompt, rule, &NoEmbeddings).unwrap();
        let chunk = |chunk: &Vec<Weighted>| {
            let shown = chunk.iter().map(|t| match (&t.token, t.weight) {
                (Token::Id(id), 1.0) => id.to_string(),
                (Token::Id(id), weight) => format!("{id}@{weight}"),
                (Token::Vector(_), _) => "V".to_owned(),
                (Token::Picture(_) | Token::Sound(_), _) => "P".to_owned(),
            });
            shown.collect::<Vec<_>>().join(" ")
        };
        let chunks: Vec<String> = tokens.chunks.iter().map(chunk).collect();
        chunks.join(" | ")
    }

    #[test]
    fn open_chunks_end_and_are_padded_to_a_length() {
        let rule = PromptRule::plain(ChunkRule {
            end: Some(1),
            least: 6,
            ..ChunkRule::OPEN
        });
        assert_eq!(shown(&Prompt::new("A(B:2)"), &rule), "65 66@2 1 0 0 0");
        assert_eq!(shown(&Prompt::new(""), &rule), "1 0 0 0 0 0");
        let options: BTreeMap<String, i64> = [("net_min_length", 2), ("net_min_padding", 1)]
            .map(|(k, v)| (k.to_owned(), v))
            .into();
        let prompt = Prompt {
            options: Some(&options),
            ..Prompt::new("ABC")
        };
        assert_eq!(shown(&prompt, &rule), "65 66 67 1 0");
    }

    #[test]
    fn pads_can_go_in_front_and_long_prompts_into_several_chunks() {
        let left = PromptRule::plain(ChunkRule {
            start: Some(7),
            pad: 9,
            least: 4,
            pad_left: true,
            ..ChunkRule::OPEN
        });
        assert_eq!(shown(&Prompt::new("A"), &left), "9 9 7 65");
        let short = PromptRule::plain(ChunkRule {
            end: Some(1),
            most: Some(4),
            least: 4,
            ..ChunkRule::OPEN
        });
        assert_eq!(
            shown(&Prompt::new("ABCDEFGHI"), &short),
            "65 66 67 1 | 68 69 70 1 | 71 72 73 1"
        );
    }

    #[test]
    fn pictures_take_the_places_of_their_token() {
        let rule = PromptRule {
            text: |p| Some(format!("<{}>", p.text)),
            weights: PromptWeights::Plain,
            chunks: ChunkRule::OPEN,
            picture: Some(u32::from(b'#')),
        };
        let pictures = [Tensor::zeros([1, 2, 2, 3]).unwrap()];
        let prompt = Prompt {
            pictures: &pictures,
            ..Prompt::new(r"#\((:2)#")
        };
        assert_eq!(shown(&prompt, &rule), "60 P 40 40 58 50 41 35 62");
    }
}
