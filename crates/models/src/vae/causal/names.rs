//! The names that diffusers has for the same weights.

/// Whether these are the names of diffusers.
pub(in crate::vae) fn is_foreign(names: &[&str]) -> bool {
    let middle =
        ["decoder", "encoder"].map(|half| format!("{half}.mid_block.resnets.0.norm1.gamma"));
    names.iter().any(|name| middle.iter().any(|m| m == name))
}

/// The original's name of a diffusers name; names that are not known stay.
pub(in crate::vae) fn native_name(name: &str) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    let found = match parts.as_slice() {
        ["quant_conv", last] => Some(format!("conv1.{last}")),
        ["post_quant_conv", last] => Some(format!("conv2.{last}")),
        [half @ ("encoder" | "decoder"), rest @ ..] => {
            inside(rest).map(|inside| format!("{half}.{inside}"))
        }
        _ => None,
    };
    found.unwrap_or_else(|| name.to_owned())
}

/// Entries of a level of a decoder: its residual blocks and the one that doubles.
const LEVEL: usize = 4;

fn inside(parts: &[&str]) -> Option<String> {
    Some(match parts {
        ["conv_in", last] => format!("conv1.{last}"),
        ["conv_out", last] => format!("head.2.{last}"),
        ["norm_out", last] => format!("head.0.{last}"),
        ["mid_block", "resnets", number, rest @ ..] => {
            let number = 2 * number.parse::<usize>().ok()?;
            format!("middle.{number}.{}", block(rest)?)
        }
        ["mid_block", "attentions", "0", rest @ ..] => format!("middle.1.{}", rest.join(".")),
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
            assert_eq!(native_name(theirs), ours);
        }
        assert!(is_foreign(&["decoder.mid_block.resnets.0.norm1.gamma"]));
        assert!(!is_foreign(&["decoder.mid_block.resnets.0.norm1.weight"]));
    }
}
