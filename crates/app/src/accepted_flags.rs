//! Flags of the reference that parse and change nothing here.

use clap::{Arg, ArgAction, Command};

/// How an accepted flag takes its value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Takes {
    Nothing,
    Text,
    /// An integer that may be left out.
    MaybeInt,
    /// One of these words.
    One(&'static [&'static str]),
}

/// Why some flags have nothing to do.
const ONE_ATTENTION: &str = "there is one attention, which never makes the matrix of scores";
const OTHER_FILES: &str =
    "weights stay in the format of their file; `fresco quantize` writes one of 8 bits";

/// Flags of the reference that parse and do nothing here, each with the reason. Flags of one group exclude each other.
pub(crate) const ACCEPTED: &[(&str, Takes, &str, &str)] = &[
    (
        "cuda-malloc",
        Takes::Nothing,
        "malloc",
        "memory always comes from the driver's stream-ordered pool",
    ),
    (
        "disable-cuda-malloc",
        Takes::Nothing,
        "malloc",
        "memory always comes from the driver's stream-ordered pool",
    ),
    (
        "fp64-unet",
        Takes::Nothing,
        "unet",
        "networks compute in f32, f16 or bf16; --fp32-unet is the most exact",
    ),
    ("fp8_e4m3fn-unet", Takes::Nothing, "unet", OTHER_FILES),
    ("fp8_e5m2-unet", Takes::Nothing, "unet", OTHER_FILES),
    ("fp8_e8m0fnu-unet", Takes::Nothing, "unet", OTHER_FILES),
    (
        "fp8_e4m3fn-text-enc",
        Takes::Nothing,
        "text-enc",
        OTHER_FILES,
    ),
    ("fp8_e5m2-text-enc", Takes::Nothing, "text-enc", OTHER_FILES),
    (
        "force-channels-last",
        Takes::Nothing,
        "",
        "channels are always last",
    ),
    (
        "directml",
        Takes::MaybeInt,
        "",
        "GPUs are used through NVIDIA's driver only",
    ),
    (
        "oneapi-device-selector",
        Takes::Text,
        "",
        "GPUs are used through NVIDIA's driver only",
    ),
    (
        "disable-ipex-optimize",
        Takes::Nothing,
        "",
        "there is no such pass",
    ),
    (
        "supports-fp8-compute",
        Takes::Nothing,
        "",
        "what a GPU can compute in is asked of its driver",
    ),
    (
        "use-split-cross-attention",
        Takes::Nothing,
        "attention",
        ONE_ATTENTION,
    ),
    (
        "use-quad-cross-attention",
        Takes::Nothing,
        "attention",
        ONE_ATTENTION,
    ),
    (
        "use-pytorch-cross-attention",
        Takes::Nothing,
        "attention",
        ONE_ATTENTION,
    ),
    (
        "use-sage-attention",
        Takes::Nothing,
        "attention",
        ONE_ATTENTION,
    ),
    (
        "use-flash-attention",
        Takes::Nothing,
        "attention",
        ONE_ATTENTION,
    ),
    ("disable-xformers", Takes::Nothing, "", ONE_ATTENTION),
    (
        "force-upcast-attention",
        Takes::Nothing,
        "upcast",
        "attention always sums in f32",
    ),
    (
        "dont-upcast-attention",
        Takes::Nothing,
        "upcast",
        "attention always sums in f32",
    ),
    (
        "enable-manager",
        Takes::Nothing,
        "",
        "its buttons for memory are built in",
    ),
    (
        "disable-manager-ui",
        Takes::Nothing,
        "manager-ui",
        "there is no such page",
    ),
    (
        "enable-manager-legacy-ui",
        Takes::Nothing,
        "manager-ui",
        "there is no such page",
    ),
    (
        "force-non-blocking",
        Takes::Nothing,
        "",
        "copies beside the work never block it",
    ),
    (
        "deterministic",
        Takes::Nothing,
        "",
        "the same device always gives the same bits",
    ),
    (
        "default-hashing-function",
        Takes::One(&["md5", "sha1", "sha256", "sha512"]),
        "",
        "uploads are compared byte by byte",
    ),
    (
        "mmap-torch-files",
        Takes::Nothing,
        "",
        "files are read, never mapped",
    ),
    (
        "disable-mmap",
        Takes::Nothing,
        "",
        "files are read, never mapped",
    ),
    (
        "comfy-api-base",
        Takes::Text,
        "",
        "there are no nodes of that service",
    ),
];

/// Names of the flags in [`ACCEPTED`], and why they do nothing.
pub(crate) fn accepted() -> impl Iterator<Item = (&'static str, &'static str)> {
    ACCEPTED.iter().map(|(name, _, _, reason)| (*name, *reason))
}

/// Adds them to a command.
pub(crate) fn accept(command: Command) -> Command {
    ACCEPTED
        .iter()
        .fold(command, |command, &(name, takes, group, reason)| {
            let mut arg = Arg::new(name)
                .long(name)
                .hide_short_help(true)
                .help(format!("Accepted; no effect: {reason}"));
            arg = arg.help_heading("Models and devices");
            arg = match takes {
                Takes::Nothing => arg.action(ArgAction::SetTrue),
                Takes::Text => arg.value_name("TEXT"),
                Takes::MaybeInt => arg
                    .value_name("N")
                    .num_args(0..=1)
                    .default_missing_value("-1")
                    .allow_negative_numbers(true)
                    .value_parser(clap::value_parser!(i64)),
                Takes::One(words) => arg.value_name("WHICH").value_parser(words.to_vec()),
            };
            if !group.is_empty() {
                arg = arg.group(group);
            }
            command.arg(arg)
        })
}
