//! The names that diffusers has for the same weights.

use std::collections::BTreeMap;

/// Whether these are the names of diffusers.
pub(in crate::vae) fn is_foreign(names: &[&str]) -> bool {
    let middle =
        ["decoder", "encoder"].map(|half| format!("{half}.mid_block.resnets.0.norm1.gamma"));
    names.iter().any(|name| middle.iter().any(|m| m == name))
}

/// Pairs of the original's name and that of diffusers; names that are not known stay.
pub(in crate::vae) fn native_names<'a>(names: &[&'a str]) -> Vec<(String, &'a str)> {
    let lists = Lists::of(names);
    let named = names.iter().map(|name| {
        let native = lists.native(name);
        (native.unwrap_or_else(|| (*name).to_owned()), *name)
    });
    named.collect()
}

/// Entries of a level of a decoder whose levels are one list: its residual blocks and the one that doubles.
const LEVEL: usize = 4;

/// How the blocks of a file are listed.
#[derive(Default)]
struct Lists {
    /// Whether levels have lists of their own, and then the number of residual blocks of each.
    nested: bool,
    residuals: BTreeMap<(String, usize), usize>,
}

impl Lists {
    fn of(names: &[&str]) -> Self {
        let mut found = Self::default();
        for name in names {
            let parts: Vec<&str> = name.split('.').collect();
            match parts.as_slice() {
                [
                    half,
                    "down_blocks" | "up_blocks",
                    level,
                    "resnets",
                    number,
                    ..,
                ] => {
                    let numbers = level
                        .parse::<usize>()
                        .ok()
                        .zip(number.parse::<usize>().ok());
                    if let Some((level, number)) = numbers {
                        let count = found
                            .residuals
                            .entry(((*half).to_owned(), level))
                            .or_default();
                        *count = (*count).max(number.saturating_add(1));
                    }
                    found.nested |= parts[1] == "down_blocks";
                }
                [_, _, _, "downsampler" | "upsampler", ..] => found.nested = true,
                _ => {}
            }
        }
        found
    }

    fn native(&self, name: &str) -> Option<String> {
        let parts: Vec<&str> = name.split('.').collect();
        match parts.as_slice() {
            ["quant_conv", last] => Some(format!("conv1.{last}")),
            ["post_quant_conv", last] => Some(format!("conv2.{last}")),
            [half @ ("encoder" | "decoder"), rest @ ..] => {
                let inside = self.inside(half, rest)?;
                Some(format!("{half}.{inside}"))
            }
            _ => None,
        }
    }

    fn inside(&self, half: &str, parts: &[&str]) -> Option<String> {
        Some(match parts {
            ["conv_in", last] => format!("conv1.{last}"),
            ["conv_out", last] => format!("head.2.{last}"),
            ["norm_out", last] => format!("head.0.{last}"),
            ["mid_block", "resnets", number, rest @ ..] => {
                let number = number.parse::<usize>().ok()?.checked_mul(2)?;
                format!("middle.{number}.{}", block(rest)?)
            }
            ["mid_block", "attentions", "0", rest @ ..] => format!("middle.1.{}", rest.join(".")),
            [list @ ("down_blocks" | "up_blocks"), level, rest @ ..] if self.nested => {
                let level: usize = level.parse().ok()?;
                let list = match *list {
                    "down_blocks" => "downsamples",
                    _ => "upsamples",
                };
                let (place, rest) = match rest {
                    ["resnets", number, rest @ ..] => (number.parse().ok()?, rest),
                    ["downsampler" | "upsampler", rest @ ..] => {
                        (*self.residuals.get(&(half.to_owned(), level))?, rest)
                    }
                    _ => return None,
                };
                let place: usize = place;
                format!("{list}.{level}.{list}.{place}.{}", block(rest)?)
            }
            ["down_blocks", number, rest @ ..] => {
                format!("downsamples.{number}.{}", block(rest)?)
            }
            ["up_blocks", level, "resnets", number, rest @ ..] => {
                let (level, number): (usize, usize) = (level.parse().ok()?, number.parse().ok()?);
                let place = level.checked_mul(LEVEL)?.checked_add(number)?;
                format!("upsamples.{place}.{}", block(rest)?)
            }
            ["up_blocks", level, "upsamplers", "0", rest @ ..] => {
                let level: usize = level.parse().ok()?;
                let place = level.checked_mul(LEVEL)?.checked_add(LEVEL - 1)?;
                format!("upsamples.{place}.{}", block(rest)?)
            }
            _ => return None,
        })
    }
}

fn block(parts: &[&str]) -> Option<String> {
    Some(match parts {
        ["norm1", last] => format!("residual.0.{last}"),
        ["conv1", last] => format!("residual.2.{last}"),
        ["norm2", last] => format!("residual.3.{last}"),
        ["conv2", last] => format!("residual.6.{last}"),
        ["conv_shortcut", last] => format!("shortcut.{last}"),
        ["resample" | "time_conv", ..] => parts.join("."),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diffusers_names_become_the_originals() {
        for (theirs, ours) in [
            ("encoder.conv_in.weight", "encoder.conv1.weight"),
            (
                "encoder.down_blocks.3.norm1.gamma",
                "encoder.downsamples.3.residual.0.gamma",
            ),
            (
                "encoder.down_blocks.5.time_conv.bias",
                "encoder.downsamples.5.time_conv.bias",
            ),
            (
                "encoder.down_blocks.3.conv_shortcut.weight",
                "encoder.downsamples.3.shortcut.weight",
            ),
            (
                "decoder.mid_block.resnets.1.conv2.bias",
                "decoder.middle.2.residual.6.bias",
            ),
            (
                "decoder.mid_block.attentions.0.to_qkv.weight",
                "decoder.middle.1.to_qkv.weight",
            ),
            (
                "decoder.up_blocks.1.resnets.2.conv1.weight",
                "decoder.upsamples.6.residual.2.weight",
            ),
            (
                "decoder.up_blocks.1.upsamplers.0.resample.1.weight",
                "decoder.upsamples.7.resample.1.weight",
            ),
            ("decoder.norm_out.gamma", "decoder.head.0.gamma"),
            ("decoder.conv_out.bias", "decoder.head.2.bias"),
            ("quant_conv.weight", "conv1.weight"),
            ("post_quant_conv.bias", "conv2.bias"),
            ("something.else", "something.else"),
        ] {
            assert_eq!(native_names(&[theirs])[0].0, ours);
        }
        let nested = [
            "encoder.down_blocks.1.resnets.0.conv1.bias",
            "encoder.down_blocks.1.resnets.1.conv1.bias",
            "encoder.down_blocks.1.downsampler.resample.1.weight",
            "decoder.up_blocks.0.resnets.2.norm2.gamma",
            "decoder.up_blocks.0.upsampler.time_conv.bias",
        ];
        let found = native_names(&nested).into_iter().map(|(ours, _)| ours);
        let expected = [
            "encoder.downsamples.1.downsamples.0.residual.2.bias",
            "encoder.downsamples.1.downsamples.1.residual.2.bias",
            "encoder.downsamples.1.downsamples.2.resample.1.weight",
            "decoder.upsamples.0.upsamples.2.residual.3.gamma",
            "decoder.upsamples.0.upsamples.3.time_conv.bias",
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
        assert!(is_foreign(&["decoder.mid_block.resnets.0.norm1.gamma"]));
        assert!(!is_foreign(&["decoder.mid_block.resnets.0.norm1.weight"]));
    }
}
