//! Names of a UNet in diffusers' layout, translated to the original's.

/// Pairs of our key and the file's name. Names that have no place in a UNet are left out.
pub(crate) fn unet_keys<'a>(names: &[&'a str]) -> Vec<(String, &'a str)> {
    let layout = Layout::of(names);
    names
        .iter()
        .filter_map(|name| Some((layout.translate(name)?, *name)))
        .collect()
}

struct Layout {
    /// Residual blocks per level of the encoder.
    residuals: usize,
    /// Levels of the decoder that have attention, where the enlargement is one place further.
    attended: Vec<bool>,
}

const MOST: usize = 100;

impl Layout {
    fn of(names: &[&str]) -> Self {
        let residuals = names
            .iter()
            .filter_map(|n| {
                n.strip_prefix("down_blocks.0.resnets.")?
                    .split('.')
                    .next()?
                    .parse()
                    .ok()
            })
            .filter(|&n: &usize| n < MOST)
            .max()
            .map_or(0, |n| n + 1);
        let mut attended = Vec::new();
        for name in names {
            let Some(rest) = name.strip_prefix("up_blocks.") else {
                continue;
            };
            let mut parts = rest.split('.');
            let level = parts.next().and_then(|n| n.parse::<usize>().ok());
            if let (Some(level), Some("attentions")) = (level.filter(|&l| l < MOST), parts.next()) {
                if attended.len() <= level {
                    attended.resize(level + 1, false);
                }
                attended[level] = true;
            }
        }
        Self {
            residuals,
            attended,
        }
    }

    fn translate(&self, name: &str) -> Option<String> {
        let parts: Vec<&str> = name.split('.').collect();
        let number = |text: &str| text.parse::<usize>().ok().filter(|&n| n < MOST);
        let per_level = self.residuals + 1;
        Some(match parts.as_slice() {
            ["conv_in", last] => format!("input_blocks.0.0.{last}"),
            ["conv_norm_out", last] => format!("out.0.{last}"),
            ["conv_out", last] => format!("out.2.{last}"),
            ["time_embedding", "linear_1", last] => format!("time_embed.0.{last}"),
            ["time_embedding", "linear_2", last] => format!("time_embed.2.{last}"),
            ["class_embedding" | "add_embedding", "linear_1", last] => {
                format!("label_emb.0.0.{last}")
            }
            ["class_embedding" | "add_embedding", "linear_2", last] => {
                format!("label_emb.0.2.{last}")
            }
            ["down_blocks", level, "resnets", i, rest @ ..] => {
                let place = 1 + per_level * number(level)? + number(i)?;
                format!("input_blocks.{place}.0.{}", residual(rest)?)
            }
            ["down_blocks", level, "attentions", i, rest @ ..] => {
                let place = 1 + per_level * number(level)? + number(i)?;
                format!("input_blocks.{place}.1.{}", rest.join("."))
            }
            ["down_blocks", level, "downsamplers", _, "conv", last] => {
                let place = 1 + per_level * number(level)? + self.residuals;
                format!("input_blocks.{place}.0.op.{last}")
            }
            ["mid_block", "resnets", i, rest @ ..] => {
                format!("middle_block.{}.{}", 2 * number(i)?, residual(rest)?)
            }
            ["mid_block", "attentions", _, rest @ ..] => {
                format!("middle_block.1.{}", rest.join("."))
            }
            ["up_blocks", level, "resnets", i, rest @ ..] => {
                let place = per_level * number(level)? + number(i)?;
                format!("output_blocks.{place}.0.{}", residual(rest)?)
            }
            ["up_blocks", level, "attentions", i, rest @ ..] => {
                let place = per_level * number(level)? + number(i)?;
                format!("output_blocks.{place}.1.{}", rest.join("."))
            }
            ["up_blocks", level, "upsamplers", _, "conv", last] => {
                let level = number(level)?;
                let attended = self.attended.get(level).copied().unwrap_or(false);
                let place = per_level * level + self.residuals;
                format!(
                    "output_blocks.{place}.{}.conv.{last}",
                    1 + usize::from(attended)
                )
            }
            _ => return None,
        })
    }
}

fn residual(rest: &[&str]) -> Option<String> {
    let [part, last] = rest else {
        return None;
    };
    let part = match *part {
        "norm1" => "in_layers.0",
        "conv1" => "in_layers.2",
        "time_emb_proj" => "emb_layers.1",
        "norm2" => "out_layers.0",
        "conv2" => "out_layers.3",
        "conv_shortcut" => "skip_connection",
        _ => return None,
    };
    Some(format!("{part}.{last}"))
}

/// The diffusers name of a key of a UNet with so many residual blocks per level; the opposite of what files need, for
/// those who write or look for such names.
#[cfg(test)]
fn to_diffusers(key: &str, residuals: usize) -> Option<String> {
    let parts: Vec<&str> = key.split('.').collect();
    let inner = |rest: &[&str]| match rest {
        ["in_layers", "0", last] => Some(format!("norm1.{last}")),
        ["in_layers", "2", last] => Some(format!("conv1.{last}")),
        ["emb_layers", "1", last] => Some(format!("time_emb_proj.{last}")),
        ["out_layers", "0", last] => Some(format!("norm2.{last}")),
        ["out_layers", "3", last] => Some(format!("conv2.{last}")),
        ["skip_connection", last] => Some(format!("conv_shortcut.{last}")),
        _ => None,
    };
    Some(match parts.as_slice() {
        ["time_embed", "0", last] => format!("time_embedding.linear_1.{last}"),
        ["time_embed", "2", last] => format!("time_embedding.linear_2.{last}"),
        ["label_emb", "0", "0", last] => format!("add_embedding.linear_1.{last}"),
        ["label_emb", "0", "2", last] => format!("add_embedding.linear_2.{last}"),
        ["input_blocks", "0", "0", last] => format!("conv_in.{last}"),
        ["out", "0", last] => format!("conv_norm_out.{last}"),
        ["out", "2", last] => format!("conv_out.{last}"),
        ["middle_block", "1", rest @ ..] => format!("mid_block.attentions.0.{}", rest.join(".")),
        ["middle_block", i, rest @ ..] => {
            let i: usize = i.parse().ok()?;
            format!("mid_block.resnets.{}.{}", i / 2, inner(rest)?)
        }
        ["input_blocks", n, slot, rest @ ..] => {
            let at = n.parse::<usize>().ok()? - 1;
            let (level, i) = (at / (residuals + 1), at % (residuals + 1));
            match (*slot, rest) {
                ("0", ["op", last]) => format!("down_blocks.{level}.downsamplers.0.conv.{last}"),
                ("0", rest) => format!("down_blocks.{level}.resnets.{i}.{}", inner(rest)?),
                (_, rest) => format!("down_blocks.{level}.attentions.{i}.{}", rest.join(".")),
            }
        }
        ["output_blocks", n, slot, rest @ ..] => {
            let at = n.parse::<usize>().ok()?;
            let (level, i) = (at / (residuals + 1), at % (residuals + 1));
            match (*slot, rest) {
                (_, ["conv", last]) => format!("up_blocks.{level}.upsamplers.0.conv.{last}"),
                ("0", rest) => format!("up_blocks.{level}.resnets.{i}.{}", inner(rest)?),
                (_, rest) => format!("up_blocks.{level}.attentions.{i}.{}", rest.join(".")),
            }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_there_and_back() {
        // The blocks of SD1.5 that show every rule.
        let keys = [
            "input_blocks.0.0.weight",
            "input_blocks.1.0.in_layers.0.weight",
            "input_blocks.2.0.in_layers.2.weight",
            "input_blocks.2.1.transformer_blocks.0.attn1.to_out.0.bias",
            "input_blocks.3.0.op.weight",
            "input_blocks.4.0.skip_connection.weight",
            "middle_block.0.emb_layers.1.bias",
            "middle_block.1.proj_in.weight",
            "middle_block.2.out_layers.3.weight",
            "output_blocks.2.0.out_layers.0.weight",
            "output_blocks.2.1.conv.weight",
            "output_blocks.5.1.norm.weight",
            "output_blocks.5.2.conv.bias",
            "out.0.weight",
            "out.2.bias",
            "time_embed.2.weight",
        ];
        let theirs: Vec<String> = keys.iter().map(|k| to_diffusers(k, 2).unwrap()).collect();
        assert_eq!(theirs[10], "up_blocks.0.upsamplers.0.conv.weight");
        assert_eq!(
            theirs[3],
            "down_blocks.0.attentions.1.transformer_blocks.0.attn1.to_out.0.bias"
        );
        let mut names: Vec<&str> = theirs.iter().map(String::as_str).collect();
        names.push("down_blocks.0.resnets.1.norm1.weight");
        names.push("unknown.thing");
        let back = unet_keys(&names);
        for (key, name) in keys.iter().zip(&theirs) {
            assert!(back.contains(&((*key).to_owned(), name)), "{key}");
        }
        assert_eq!(back.len(), keys.len() + 1);
    }
}
