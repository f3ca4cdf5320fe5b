//! Lyrics as numbers: lines with their language, numbers and signs as words, and the pairs of a vocabulary.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use crate::error::{ModelError, Result};

/// The name of the file with the vocabulary, beside that of the text encoder.
pub const VOCABULARY_FILE: &str = "ace_lyrics_vocab.json";

/// Before everything, and after each line.
const START: u32 = 261;
const LINE: u32 = 2;
const UNKNOWN: u32 = 1;

/// Languages that a line may name.
const LANGUAGES: [&str; 17] = [
    "en", "de", "fr", "es", "it", "pt", "pl", "tr", "ru", "cs", "nl", "ar", "zh", "ja", "hu", "ko",
    "hi",
];

/// A vocabulary of lyrics.
pub struct LyricsVocabulary {
    tokens: HashMap<String, u32>,
    /// Pairs by how early they are joined.
    merges: HashMap<(String, String), usize>,
    /// Tokens that are found in a text as they are, the longest first.
    marks: Vec<(String, u32)>,
}

impl LyricsVocabulary {
    /// From the tokenizer's file.
    pub fn parse(json: &[u8]) -> Result<Self> {
        let bad = |reason: String| {
            let reason = format!("it cannot be used: {reason}");
            ModelError::unsupported(VOCABULARY_FILE, reason)
        };
        let value: Value = serde_json::from_slice(json).map_err(|e| bad(e.to_string()))?;
        let model = &value["model"];
        let number = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
        let vocab = model["vocab"]
            .as_object()
            .ok_or_else(|| bad("it has no tokens".to_owned()))?;
        let tokens = vocab
            .iter()
            .filter_map(|(token, id)| Some((token.clone(), number(id)?)))
            .collect();
        let pair = |value: &Value| match value {
            Value::String(text) => {
                let (left, right) = text.split_once(' ')?;
                Some((left.to_owned(), right.to_owned()))
            }
            Value::Array(two) => {
                let [left, right] = two.as_slice() else {
                    return None;
                };
                Some((left.as_str()?.to_owned(), right.as_str()?.to_owned()))
            }
            _ => None,
        };
        let merges = model["merges"].as_array().into_iter().flatten();
        let merges = merges.enumerate();
        let merges = merges
            .filter_map(|(rank, value)| Some((pair(value)?, rank)))
            .collect();
        let added = value["added_tokens"].as_array().into_iter().flatten();
        let mut marks: Vec<(String, u32)> = added
            .filter_map(|token| {
                let text = token["content"].as_str()?;
                Some((text.to_owned(), number(&token["id"])?))
            })
            .filter(|(text, _)| !text.is_empty())
            .collect();
        marks.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.cmp(b)));
        Ok(Self {
            tokens,
            merges,
            marks,
        })
    }

    /// The numbers of a text in which marks stand as they are.
    fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut rest = text;
        let mut plain = String::new();
        while let Some(first) = rest.chars().next() {
            let mark = self.marks.iter().find(|(mark, _)| rest.starts_with(mark));
            if let Some((mark, id)) = mark {
                self.words(&plain, out);
                plain.clear();
                out.push(*id);
                rest = &rest[mark.len()..];
            } else {
                plain.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
        self.words(&plain, out);
    }

    /// Runs of letters and runs of signs, each by itself.
    fn words(&self, text: &str, out: &mut Vec<u32>) {
        let letter = |c: char| c.is_alphanumeric() || c == '_';
        let mut word = String::new();
        for c in text.chars() {
            let goes_on = word
                .chars()
                .last()
                .is_none_or(|last| letter(last) == letter(c));
            if c.is_whitespace() || !goes_on {
                self.word(&word, out);
                word.clear();
            }
            if !c.is_whitespace() {
                word.push(c);
            }
        }
        self.word(&word, out);
    }

    fn word(&self, word: &str, out: &mut Vec<u32>) {
        let mut parts: Vec<String> = word.chars().map(String::from).collect();
        loop {
            let pairs = parts.windows(2).enumerate().filter_map(|(at, pair)| {
                let pair = (pair[0].clone(), pair[1].clone());
                Some((*self.merges.get(&pair)?, at))
            });
            let Some((_, at)) = pairs.min() else { break };
            let right = parts.remove(at + 1);
            parts[at].push_str(&right);
        }
        out.extend(
            parts
                .iter()
                .map(|part| self.tokens.get(part).copied().unwrap_or(UNKNOWN)),
        );
    }
}

/// Lyrics without a word need no vocabulary.
pub fn is_empty(lyrics: &str) -> bool {
    lyrics.lines().all(|line| line.trim().is_empty())
}

/// The numbers of lyrics; `vocabulary` may be absent where there is no word.
pub fn numbers(lyrics: &str, vocabulary: Option<&LyricsVocabulary>) -> Result<Vec<u32>> {
    let mut out = vec![START];
    for line in lyrics.split('\n') {
        let line = line.trim();
        if !line.is_empty() {
            let Some(vocabulary) = vocabulary else {
                let reason = format!(
                    "the vocabulary of lyrics is not part of this program: put the model's vocab.json beside its text \
                     encoder, named {VOCABULARY_FILE}"
                );
                return Err(ModelError::invalid("lyrics", reason));
            };
            vocabulary.encode(&prepared(line), &mut out);
        }
        out.push(LINE);
    }
    Ok(out)
}

/// A line as the vocabulary takes it: its language, then its words with `[SPACE]` between them.
fn prepared(line: &str) -> String {
    let mut language = "en";
    let mut text = line.to_owned();
    for known in LANGUAGES {
        if let Some(rest) = line.strip_prefix(&format!("[{known}]")) {
            language = known;
            rest.clone_into(&mut text);
        }
    }
    let kana = text.chars().any(is_kana);
    if kana {
        language = "ja";
        text = romaji(&text);
    }
    let text = text.to_lowercase().replace('"', "");
    let text = if language == "en" && !text.starts_with('[') {
        english(&text)
    } else {
        text
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    let language = if language == "zh" { "zh-cn" } else { language };
    format!("[{language}]{}", words.join("[SPACE]"))
}

const ABBREVIATIONS: [(&str, &str); 18] = [
    ("mrs.", "misess"),
    ("mr.", "mister"),
    ("dr.", "doctor"),
    ("st.", "saint"),
    ("co.", "company"),
    ("jr.", "junior"),
    ("maj.", "major"),
    ("gen.", "general"),
    ("drs.", "doctors"),
    ("rev.", "reverend"),
    ("lt.", "lieutenant"),
    ("hon.", "honorable"),
    ("sgt.", "sergeant"),
    ("capt.", "captain"),
    ("esq.", "esquire"),
    ("ltd.", "limited"),
    ("col.", "colonel"),
    ("ft.", "fort"),
];

const SIGNS: [(char, &str); 7] = [
    ('&', " and "),
    ('@', " at "),
    ('%', " percent "),
    ('#', " hash "),
    ('$', " dollar "),
    ('£', " pound "),
    ('°', " degree "),
];

/// Numbers, abbreviations and signs as English words.
fn english(text: &str) -> String {
    let numbers = spelled_numbers(text);
    let words = numbers.split_whitespace().map(|word| {
        let found = ABBREVIATIONS.iter().find(|(short, _)| word == *short);
        found.map_or(word, |(_, long)| *long)
    });
    let mut out = words.collect::<Vec<_>>().join(" ");
    for (sign, word) in SIGNS {
        out = out.replace(sign, word);
    }
    out
}

/// Every number of a text in words. Amounts of money lose their sign and are spelt as fractions.
fn spelled_numbers(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let (mut out, mut at) = (String::new(), 0);
    while at < chars.len() {
        let money =
            "$£€".contains(chars[at]) && chars.get(at + 1).is_some_and(char::is_ascii_digit);
        let start = at + usize::from(money);
        if !chars[start].is_ascii_digit() {
            out.push(chars[at]);
            at += 1;
            continue;
        }
        let mut end = start;
        let digit = |i: usize| chars.get(i).is_some_and(char::is_ascii_digit);
        let mut fraction = false;
        while digit(end)
            || (chars.get(end) == Some(&',') && digit(end + 1) && !fraction)
            || (chars.get(end) == Some(&'.') && digit(end + 1) && !fraction)
        {
            fraction |= chars[end] == '.';
            end += 1;
        }
        let mut number: String = chars[start..end].iter().filter(|c| **c != ',').collect();
        if money && !number.contains('.') {
            number.push_str(".0");
        }
        let ending: String = chars[end..].iter().take(2).collect();
        let alone = !chars.get(end + 2).is_some_and(|c| c.is_alphanumeric());
        let ordinal = !fraction && alone && ["st", "nd", "rd", "th"].contains(&ending.as_str());
        if ordinal {
            out.push_str(&ordinal_words(&number));
            end += 2;
        } else {
            out.push_str(&number_words(&number));
        }
        at = end;
    }
    out
}

const SMALL: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 10] = [
    "", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
];
const LARGE: [(u64, &str); 4] = [
    (1_000_000_000_000, "trillion"),
    (1_000_000_000, "billion"),
    (1_000_000, "million"),
    (1_000, "thousand"),
];

fn whole_words(n: u64) -> String {
    for (value, name) in LARGE {
        if n >= value {
            let rest = n % value;
            let first = format!("{} {name}", whole_words(n / value));
            return if rest == 0 {
                first
            } else {
                format!("{first} {}", whole_words(rest))
            };
        }
    }
    match n {
        0..20 => SMALL[n as usize].to_owned(),
        20..100 if n.is_multiple_of(10) => TENS[n as usize / 10].to_owned(),
        20..100 => format!("{} {}", TENS[n as usize / 10], SMALL[n as usize % 10]),
        _ if n.is_multiple_of(100) => format!("{} hundred", SMALL[n as usize / 100]),
        _ => format!(
            "{} hundred {}",
            SMALL[n as usize / 100],
            whole_words(n % 100)
        ),
    }
}

/// Digits one after the other.
fn digit_words(digits: &str) -> String {
    let words = digits
        .bytes()
        .filter_map(|b| SMALL.get(usize::from(b.wrapping_sub(b'0'))));
    words.copied().collect::<Vec<_>>().join(" ")
}

fn number_words(number: &str) -> String {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = match whole.parse::<u64>() {
        Ok(n) if n < 1_000_000_000_000_000 => whole_words(n),
        // Longer ones are read digit by digit.
        _ => digit_words(whole),
    };
    if fraction.is_empty() {
        whole
    } else {
        format!("{whole} point {}", digit_words(fraction))
    }
}

fn ordinal_words(number: &str) -> String {
    let words = number_words(number);
    let (before, last) = words.rsplit_once(' ').unwrap_or(("", &words));
    let irregular: BTreeMap<&str, &str> = [
        ("one", "first"),
        ("two", "second"),
        ("three", "third"),
        ("five", "fifth"),
        ("eight", "eighth"),
        ("nine", "ninth"),
        ("twelve", "twelfth"),
    ]
    .into_iter()
    .collect();
    let last = match (irregular.get(last), last.strip_suffix('y')) {
        (Some(word), _) => (*word).to_owned(),
        (None, Some(stem)) => format!("{stem}ieth"),
        (None, None) => format!("{last}th"),
    };
    format!("{before} {last}").trim().to_owned()
}

fn is_kana(c: char) -> bool {
    ('\u{3041}'..='\u{3096}').contains(&c) || ('\u{30a1}'..='\u{30fa}').contains(&c)
}

/// Syllables from U+3041 on, in the order of their numbers; a small one begins with a dot.
const SYLLABLES: &str = ".a a .i i .u u .e e .o o ka ga ki gi ku gu ke ge ko go sa za shi ji su zu se ze so zo ta da chi ji \
    .tsu tsu zu te de to do na ni nu ne no ha ba pa hi bi pi fu bu pu he be pe ho bo po ma mi mu me mo .ya ya .yu yu .yo yo \
    ra ri ru re ro .wa wa i e o n vu .ka .ke";

/// Kana in Latin letters, as they are spelt.
fn romaji(text: &str) -> String {
    let syllables: Vec<&str> = SYLLABLES.split(' ').filter(|s| !s.is_empty()).collect();
    let spelt = |c: char| {
        let number = match c {
            '\u{3041}'..='\u{3096}' => c as usize - 0x3041,
            '\u{30a1}'..='\u{30f6}' => c as usize - 0x30a1,
            _ => return None,
        };
        syllables.get(number).copied()
    };
    let (mut out, mut doubled) = (String::new(), false);
    for c in text.chars() {
        match (c, spelt(c)) {
            ('っ' | 'ッ', _) => doubled = true,
            (_, Some(syllable)) => {
                if let Some(small) = syllable.strip_prefix('.') {
                    join_small(&mut out, small);
                    continue;
                }
                if doubled {
                    out.extend(syllable.chars().next());
                }
                doubled = false;
                out.push_str(syllable);
            }
            ('ー', None) => {
                let last = out.chars().last().filter(|c| "aiueo".contains(*c));
                out.extend(last);
            }
            (other, None) => out.push(other),
        }
    }
    out
}

/// A small syllable takes the place of the vowel before it: ki and small yo are kyo, shi and small ya are sha.
fn join_small(out: &mut String, small: &str) {
    let before = out.chars().last();
    let (Some(vowel), true) = (before, small.len() > 1 || before == Some('u')) else {
        out.push_str(small);
        return;
    };
    if !"iueo".contains(vowel) {
        out.push_str(small);
        return;
    }
    out.pop();
    let soft = ["sh", "ch", "j"].iter().any(|end| out.ends_with(end));
    let small = if soft {
        small.trim_start_matches('y')
    } else {
        small
    };
    out.push_str(small);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_spelt_out() {
        for (line, want) in [
            ("Neon lights", "[en]neon[SPACE]lights"),
            ("[verse]", "[en][verse]"),
            ("[Chorus]", "[en][chorus]"),
            ("[es]hola 12", "[es]hola[SPACE]12"),
            ("[zh]你好", "[zh-cn]你好"),
            ("きょうは いい てんき", "[ja]kyouha[SPACE]ii[SPACE]tenki"),
            ("[ja]こんにちは", "[ja]konnichiha"),
            ("シャッター", "[ja]shattaa"),
            (
                "the 21st and 3rd",
                "[en]the[SPACE]twenty[SPACE]first[SPACE]and[SPACE]third",
            ),
            (
                "I have 3 dogs & $25, Dr. Who 1,234.5%",
                "[en]i[SPACE]have[SPACE]three[SPACE]dogs[SPACE]and[SPACE]twenty[SPACE]five[SPACE]point[SPACE]zero,\
                 [SPACE]doctor[SPACE]who[SPACE]one[SPACE]thousand[SPACE]two[SPACE]hundred[SPACE]thirty[SPACE]four\
                 [SPACE]point[SPACE]five[SPACE]percent",
            ),
        ] {
            assert_eq!(prepared(line), want);
        }
    }

    #[test]
    fn words_are_joined_by_pairs_and_marks_stand_alone() {
        let json = br#"{"model": {"vocab": {"h": 10, "i": 11, "hi": 12, ",": 13},
            "merges": ["h i"]}, "added_tokens": [{"id": 259, "content": "[en]"}, {"id": 2, "content": "[SPACE]"}]}"#;
        let vocabulary = LyricsVocabulary::parse(json).unwrap();
        let found = numbers("hi, hx\n\n", Some(&vocabulary)).unwrap();
        assert_eq!(found, [261, 259, 12, 13, 2, 10, 1, 2, 2, 2]);
        assert_eq!(numbers("", None).unwrap(), [261, 2]);
        let error = numbers("la", None).unwrap_err().to_string();
        assert!(error.contains(VOCABULARY_FILE), "{error}");
        assert!(LyricsVocabulary::parse(b"[]").is_err());
    }
}
