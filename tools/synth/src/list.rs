//! Lists of tensors: the built-in ones and files of the same two kinds.
//!
//! A line is a name, a shape (`-` for a single number) and sometimes `I64arange` for 0, 1, 2, ... A name may hold ranges:
//! `block.{0-2,5}.weight` is four tensors. The other kind is JSON: `[["name", [4, 3], "I64arange"], ..]`.

use anyhow::{Context, Result, bail, ensure};

/// A full model of each kind.
const LISTS: &[(&str, &str)] = &[
    ("sd15", include_str!("../lists/sd15.txt")),
    ("sdxl", include_str!("../lists/sdxl.txt")),
    ("clip_l", include_str!("../lists/clip_l.txt")),
    ("clip_g", include_str!("../lists/clip_g.txt")),
    ("ae", include_str!("../lists/ae.txt")),
    ("flux_2x2", include_str!("../lists/flux_2x2.txt")),
    ("sd3_h384d6", include_str!("../lists/sd3_h384d6.txt")),
    ("t5xxl_2layer", include_str!("../lists/t5xxl_2layer.txt")),
    ("z_image", include_str!("../lists/z_image.txt")),
    ("lumina2", include_str!("../lists/lumina2.txt")),
    ("newbie", include_str!("../lists/newbie.txt")),
    (
        "z_image_control_15",
        include_str!("../lists/z_image_control_15.txt"),
    ),
    (
        "z_image_control_6",
        include_str!("../lists/z_image_control_6.txt"),
    ),
    ("krea2", include_str!("../lists/krea2.txt")),
    ("anima", include_str!("../lists/anima.txt")),
    ("flux3_klein", include_str!("../lists/flux3_klein.txt")),
    ("omnigen2", include_str!("../lists/omnigen2.txt")),
    (
        "kandinsky5_image",
        include_str!("../lists/kandinsky5_image.txt"),
    ),
    ("hidream_i1", include_str!("../lists/hidream_i1.txt")),
    (
        "hunyuan_image21",
        include_str!("../lists/hunyuan_image21.txt"),
    ),
    ("qwen_image", include_str!("../lists/qwen_image.txt")),
    ("wan22_14b", include_str!("../lists/wan22_14b.txt")),
    ("flux1", include_str!("../lists/flux1.txt")),
    ("flux2", include_str!("../lists/flux2.txt")),
    ("hunyuan15", include_str!("../lists/hunyuan15.txt")),
    ("hunyuan15_vae", include_str!("../lists/hunyuan15_vae.txt")),
    ("qwen3_4b", include_str!("../lists/qwen3_4b.txt")),
    ("qwen25_7b", include_str!("../lists/qwen25_7b.txt")),
    ("mistral_30", include_str!("../lists/mistral_30.txt")),
    ("t5xxl", include_str!("../lists/t5xxl.txt")),
    ("umt5_xxl", include_str!("../lists/umt5_xxl.txt")),
    ("byt5", include_str!("../lists/byt5.txt")),
    ("wan_vae", include_str!("../lists/wan_vae.txt")),
    ("flux2_vae", include_str!("../lists/flux2_vae.txt")),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// From the name.
    Made,
    /// 0, 1, 2, ... as 64-bit integers.
    Counted,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub name: String,
    pub shape: Vec<usize>,
    pub values: Values,
}

pub fn names() -> impl Iterator<Item = &'static str> {
    LISTS.iter().map(|(name, _)| *name)
}

/// A built-in list by name, or a file.
pub fn load(name: &str) -> Result<Vec<Item>> {
    if let Some((_, text)) = LISTS.iter().find(|(n, _)| *n == name) {
        return lines(text);
    }
    let text = std::fs::read_to_string(name)
        .with_context(|| format!("{name:?} is neither a built-in list nor a file"))?;
    let items = if text.starts_with('[') {
        json(&text)
    } else {
        lines(&text)
    };
    items.with_context(|| format!("cannot read the list {name}"))
}

fn values(kind: Option<&str>) -> Result<Values> {
    match kind {
        None => Ok(Values::Made),
        Some("I64arange") => Ok(Values::Counted),
        Some(other) => bail!("unknown kind of values {other:?}"),
    }
}

fn json(text: &str) -> Result<Vec<Item>> {
    let rows: Vec<Vec<serde_json::Value>> = serde_json::from_str(text)?;
    rows.iter()
        .map(|row| {
            let name = row.first().and_then(|v| v.as_str());
            let shape = row.get(1).and_then(|v| v.as_array());
            let (Some(name), Some(shape)) = (name, shape) else {
                bail!("a row is not a name and a shape");
            };
            let shape: Option<_> = shape.iter().map(|s| Some(s.as_u64()? as usize)).collect();
            Ok(Item {
                name: name.to_owned(),
                shape: shape.with_context(|| format!("{name}: the shape is not of numbers"))?,
                values: values(row.get(2).and_then(|v| v.as_str()))?,
            })
        })
        .collect()
}

fn lines(text: &str) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let mut words = line.split(' ');
        let (Some(pattern), Some(shape)) = (words.next(), words.next()) else {
            bail!("{line:?} is not a name and a shape");
        };
        let shape: Vec<usize> = match shape {
            "-" => Vec::new(),
            _ => shape
                .split(',')
                .map(str::parse)
                .collect::<Result<_, _>>()
                .with_context(|| format!("{line:?}: the shape is not of numbers"))?,
        };
        let values = values(words.next())?;
        for name in expand(pattern)? {
            let shape = shape.clone();
            items.push(Item {
                name,
                shape,
                values,
            });
        }
    }
    Ok(items)
}

/// All names of a pattern.
fn expand(pattern: &str) -> Result<Vec<String>> {
    let Some((before, rest)) = pattern.split_once('{') else {
        return Ok(vec![pattern.to_owned()]);
    };
    let (ranges, after) = rest
        .split_once('}')
        .with_context(|| format!("{pattern:?}: a brace is not closed"))?;
    let tails = expand(after)?;
    let mut names = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse()?, last.parse()?);
        ensure!(last < 10_000, "{pattern:?}: the range is too long");
        for index in first..=last {
            names.extend(tails.iter().map(|tail| format!("{before}{index}{tail}")));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_lists_have_the_sizes_of_their_models() {
        let found: Vec<_> = names()
            .map(|name| {
                let items = load(name).unwrap();
                let elements: usize = items
                    .iter()
                    .map(|i| i.shape.iter().product::<usize>())
                    .sum();
                (name, items.len(), elements)
            })
            .collect();
        assert_eq!(
            found[..2],
            [("sd15", 1131, 1_066_235_384), ("sdxl", 2514, 3_468_837_868)]
        );
        assert_eq!(found.len(), LISTS.len());
        assert!(found.contains(&("z_image", 453, 6_154_908_736)));
        assert!(found.iter().all(|f| f.1 > 0));
    }

    #[test]
    fn both_kinds_say_the_same() {
        let text = "a.{0,2}.weight 4,3\nids 1,5 I64arange\nx -\n";
        let array =
            r#"[["a.0.weight",[4,3]],["a.2.weight",[4,3]],["ids",[1,5],"I64arange"],["x",[]]]"#;
        assert_eq!(lines(text).unwrap(), json(array).unwrap());
        assert_eq!(expand("{0-1}.{3,5}").unwrap(), ["0.3", "0.5", "1.3", "1.5"]);
        for bad in ["a", "a x", "a{0 1", "a{x} 1", "a 1 F9", "a{0-99999999} 1"] {
            assert!(lines(bad).is_err(), "{bad}");
        }
        for bad in ["[[]]", "[[\"a\"]]", "[[\"a\",[-1]]]", "[1]"] {
            assert!(json(bad).is_err(), "{bad}");
        }
    }
}
