//! In which numbers a GPU keeps what it computes with.

/// What a network is for, by which formats can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkPart {
    Diffusion,
    Autoencoder,
    Text,
}

/// Formats that were asked for, whatever the weights are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FormatChoices {
    pub diffusion: Option<Format>,
    pub autoencoder: Option<Format>,
    pub text: Option<Format>,
}

impl FormatChoices {
    pub(crate) fn of(self, part: NetworkPart) -> Option<Format> {
        match part {
            NetworkPart::Diffusion => self.diffusion,
            NetworkPart::Autoencoder => self.autoencoder,
            NetworkPart::Text => self.text,
        }
    }
}

/// How elements are kept on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Format {
    #[default]
    F32,
    F16,
    Bf16,
}

impl Format {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// As it stands in names of modules.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}
