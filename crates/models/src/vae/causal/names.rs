//! The names that diffusers has for the same weights.

use crate::name_table::{NameTable, Place, Rule, blocks, layer, place, starting, tree};

/// Whether these are the names of diffusers.
pub(in crate::vae) fn is_foreign(names: &[&str]) -> bool {
    let middle =
        ["decoder", "encoder"].map(|half| format!("{half}.mid_block.resnets.0.norm1.gamma"));
    names.iter().any(|name| middle.iter().any(|m| m == name))
}

/// Entries of a level of a decoder whose levels are one list: its residual blocks and the one that doubles.
const LEVEL: usize = 4;

const BLOCK: &[Rule] = &[
    layer("norm1", "residual.0"),
    layer("conv1", "residual.2"),
    layer("norm2", "residual.3"),
    layer("conv2", "residual.6"),
    layer("conv_shortcut", "shortcut"),
    tree("resample", "resample"),
    layer("time_conv", "time_conv"),
];

const CONVS: &[Rule] = &[
    layer("quant_conv", "conv1"),
    layer("post_quant_conv", "conv2"),
];

const OUTER: &[Place] = &[place("", "", CONVS)];

const OUTSIDE: &[Rule] = &[
    layer("conv_in", "conv1"),
    layer("conv_out", "head.2"),
    layer("norm_out", "head.0"),
    tree("mid_block.attentions.0", "middle.1"),
];

/// The layout of a file of these sorted names.
pub(in crate::vae) fn diffusers(names: &[&str]) -> NameTable {
    let mut places = Vec::new();
    // Levels are lists of their own where they have lists of blocks in the encoder, or a block that changes sizes.
    let within = |start: &str| !starting(names, start).is_empty();
    let nested = within("encoder.down_blocks.0.resnets.")
        || ["encoder.down_blocks.", "decoder.up_blocks."]
            .iter()
            .any(|list| {
                let mut list = starting(names, list).iter();
                list.any(|name| name.contains(".downsampler.") || name.contains(".upsampler."))
            });
    for (half, theirs, ours, change) in [
        ("encoder", "down_blocks", "downsamples", "downsampler"),
        ("decoder", "up_blocks", "upsamples", "upsampler"),
    ] {
        let mut add = |theirs: &str, ours: &str, rules| {
            places.push(Place::at(
                format!("{half}.{theirs}"),
                format!("{half}.{ours}"),
                rules,
            ));
        };
        add("", "", OUTSIDE);
        add("mid_block.resnets.0.", "middle.0.", BLOCK);
        add("mid_block.resnets.1.", "middle.2.", BLOCK);
        for level in 0..blocks(names, &format!("{half}.{theirs}.")) {
            let from = format!("{theirs}.{level}");
            let count = blocks(names, &format!("{half}.{from}.resnets."));
            if nested {
                let to = format!("{ours}.{level}.{ours}");
                add(
                    &format!("{from}.resnets.{{j}}."),
                    &format!("{to}.{{j}}."),
                    BLOCK,
                );
                add(
                    &format!("{from}.{change}."),
                    &format!("{to}.{count}."),
                    BLOCK,
                );
            } else if half == "encoder" {
                add(&format!("{from}."), &format!("{ours}.{level}."), BLOCK);
            } else {
                let first = level * LEVEL;
                for block in 0..count {
                    let to = format!("{ours}.{}.", first + block);
                    add(&format!("{from}.resnets.{block}."), &to, BLOCK);
                }
                let to = format!("{ours}.{}.", first + LEVEL - 1);
                add(&format!("{from}.upsamplers.0."), &to, BLOCK);
            }
        }
    }
    NameTable::new(OUTER).keeping_others().with(places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name_table::tests::{key_of, keys_of};

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
            assert_eq!(key_of(diffusers, theirs), ours);
        }
        let nested = [
            "decoder.up_blocks.0.resnets.0.norm2.gamma",
            "decoder.up_blocks.0.resnets.1.norm2.gamma",
            "decoder.up_blocks.0.resnets.2.norm2.gamma",
            "decoder.up_blocks.0.upsampler.time_conv.bias",
            "encoder.down_blocks.0.resnets.0.conv1.bias",
            "encoder.down_blocks.1.downsampler.resample.1.weight",
            "encoder.down_blocks.1.resnets.0.conv1.bias",
            "encoder.down_blocks.1.resnets.1.conv1.bias",
        ];
        let expected = [
            "decoder.upsamples.0.upsamples.0.residual.3.gamma",
            "decoder.upsamples.0.upsamples.1.residual.3.gamma",
            "decoder.upsamples.0.upsamples.2.residual.3.gamma",
            "decoder.upsamples.0.upsamples.3.time_conv.bias",
            "encoder.downsamples.0.downsamples.0.residual.2.bias",
            "encoder.downsamples.1.downsamples.2.resample.1.weight",
            "encoder.downsamples.1.downsamples.0.residual.2.bias",
            "encoder.downsamples.1.downsamples.1.residual.2.bias",
        ];
        assert_eq!(keys_of(&diffusers(&nested), &nested), expected);
        assert!(is_foreign(&["decoder.mid_block.resnets.0.norm1.gamma"]));
        assert!(!is_foreign(&["decoder.mid_block.resnets.0.norm1.weight"]));
    }
}
