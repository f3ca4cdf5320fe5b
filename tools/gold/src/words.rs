//! Numbers and made-up inputs that a golden tells of: as fields of its JSON, or else in the words about it. Nothing is assumed
//! where it tells of none: another golden of the same family may have been made with others.

use anyhow::{Context, Result, anyhow};
use fresco_tensor::{Tensor, synthetic};

use crate::golden::{Golden, sizes};

impl Golden {
    /// A number by its name: a field of the golden or its config, or in the words right behind its name or right before it
    /// ("fps 25", "25 fps"). The first that is found under the first of these names.
    pub(crate) fn number_in_words(&self, names: &[&str]) -> Result<f64> {
        self.optional_number_in_words(names)
            .ok_or_else(|| anyhow!("{} does not say its {}", self.name, names.join(" or ")))
    }

    pub(crate) fn optional_number_in_words(&self, names: &[&str]) -> Option<f64> {
        let field = |name: &&str| {
            let value = self.about[*name].as_f64();
            value.or_else(|| self.config()[*name].as_f64())
        };
        let text = self.about["about"].as_str().unwrap_or_default();
        let found = names.iter().find_map(field);
        found.or_else(|| names.iter().find_map(|name| number_beside(text, name)))
    }

    /// An input that is made from a stream of this golden's. Sizes that it does not tell are those given here.
    pub(crate) fn stream(&self, input: &str, shape: Option<&[usize]>) -> Result<Tensor> {
        let stream = self.about["streams"].get(input);
        let text = self.about["about"].as_str().unwrap_or_default();
        let stream = match stream {
            Some(field) => Stream {
                name: field["name"]
                    .as_str()
                    .context("a stream needs a name")?
                    .to_owned(),
                shape: sizes(&field["shape"]),
                scale: field["scale"].as_f64().unwrap_or(1.0),
                offset: field["offset"].as_f64().unwrap_or(0.0),
            },
            None => stream_in(text, input)
                .with_context(|| format!("{} does not say the stream of {input}", self.name))?,
        };
        let shape = stream.shape.as_deref().or(shape);
        let shape =
            shape.with_context(|| format!("{} does not say how large {input} is", self.name))?;
        let made = synthetic::value(&stream.name, shape, stream.scale as f32)?;
        Ok(if stream.offset == 0.0 {
            made
        } else {
            made.add_scalar(stream.offset as f32)
        })
    }
}

#[derive(Debug, PartialEq)]
struct Stream {
    name: String,
    shape: Option<Vec<usize>>,
    scale: f64,
    offset: f64,
}

/// Words and numbers, without what is between them.
fn words(text: &str) -> Vec<&str> {
    let part_of_word = |c: char| c.is_alphanumeric() || "_.+-".contains(c);
    text.split(|c| !part_of_word(c))
        .map(|word| word.trim_matches(['.', '+']))
        .filter(|word| !word.is_empty())
        .collect()
}

/// The number right behind the first place of a name of one or more words that has one beside it, or right before it.
fn number_beside(text: &str, name: &str) -> Option<f64> {
    let (text, name) = (words(text), words(name));
    let at = |place: Option<usize>| text.get(place?)?.parse::<f64>().ok();
    let places = text.windows(name.len()).enumerate();
    places
        .filter(|(_, found)| *found == name.as_slice())
        .find_map(|(place, _)| at(Some(place + name.len())).or_else(|| at(place.checked_sub(1))))
}

/// `INPUT = stream NAME (1,2,3) scale 0.5` or `INPUT = stream NAME * 0.5 + 0.5`, where everything behind the name may be absent.
fn stream_in(text: &str, input: &str) -> Option<Stream> {
    let (_, rest) = text.split_once(&format!("{input} = stream "))?;
    let end = rest.find([' ', '.', ';', ',']).unwrap_or(rest.len());
    let (name, rest) = rest.split_at(end);
    let mut stream = Stream {
        name: name.to_owned(),
        shape: None,
        scale: 1.0,
        offset: 0.0,
    };
    let mut rest = rest.trim_start();
    if let Some((inside, behind)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) {
        let list = inside.split(',').map(|n| n.trim().parse().ok());
        stream.shape = Some(list.collect::<Option<Vec<usize>>>()?);
        rest = behind.trim_start();
    }
    let mut tokens = rest.split_whitespace();
    loop {
        let sign = tokens.next();
        let Some(sign @ ("scale" | "*" | "+")) = sign else {
            return Some(stream);
        };
        let value = tokens
            .next()?
            .trim_end_matches(['.', ',', ';'])
            .parse()
            .ok()?;
        match sign {
            "+" => stream.offset = value,
            _ => stream.scale = value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_behind_their_names_or_before() {
        let text = "sigma = 620. fps 25. v20: LTX-2; mask 0.2 on frame 0, frame_rate 30, text; shift_x -1. no mask, 24 img/s";
        for (name, expected) in [
            ("fps", 25.0),
            ("frame_rate", 30.0),
            ("sigma", 620.0),
            ("shift_x", -1.0),
            ("img", 24.0),
            ("on frame", 0.0),
        ] {
            assert_eq!(number_beside(text, name), Some(expected), "{name}");
        }
        assert_eq!(number_beside(text, "timestep"), None);
        let text = "timestep 0.65; distilled (flow map) also target timestep 0.4. ids";
        assert_eq!(number_beside(text, "timestep"), Some(0.65));
        assert_eq!(number_beside(text, "target timestep"), Some(0.4));
    }

    #[test]
    fn streams_have_names_sizes_and_scales() {
        let whole = stream_in(
            "x. audio_embed = stream h_audio (1,2,8) scale 0.5, not stored",
            "audio_embed",
        );
        let expected = Stream {
            name: "h_audio".to_owned(),
            shape: Some(vec![1, 2, 8]),
            scale: 0.5,
            offset: 0.0,
        };
        assert_eq!(whole, Some(expected));
        let plain = stream_in("pixels = stream px * 0.5 + 0.25, not stored.", "pixels").unwrap();
        assert_eq!((plain.shape, plain.scale, plain.offset), (None, 0.5, 0.25));
        let bare = stream_in("a = stream face. Then", "a").unwrap();
        assert_eq!((&*bare.name, bare.scale), ("face", 1.0));
        assert_eq!(stream_in("a = stream face", "b"), None);
    }
}
