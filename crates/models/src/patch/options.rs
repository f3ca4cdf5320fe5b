//! How patches are applied, and what becomes of the changed weights.

use fresco_tensor::{Dtype, Result, Stored, Tensor};

/// Where the changed weights of a patch are. Ordered by how far they are from being merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PatchMode {
    /// In memory next to the model's own, made once.
    #[default]
    Merged,
    /// Nowhere: made again for every use, and not rounded to the format of the model's own.
    OnTheFly,
    /// Nowhere: the layer adds what the patch's matrices make of its input. Only for LoRA on linear layers and
    /// convolutions; other patches are made for every use.
    Bypass,
}

/// How strong rotations of weights are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OftStrength {
    /// As in the reference, where the strength counts twice.
    #[default]
    Compat,
    /// Half the strength is half the way.
    Linear,
}

/// The numbers that weights are merged in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MergeDtype {
    /// Those that the device computes in. All devices compute in f32 as yet, and so do the weights whose range f16 lacks
    /// on any device.
    #[default]
    Auto,
    Fp16,
    Fp32,
}

/// The format that merged weights are kept in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LoraStorage {
    /// That of the weight in its file.
    #[default]
    StoredDtype,
    /// bf16, for all formats but f16, which has as many bits and more precision.
    Bf16,
    /// Eight bits, rounded by chance.
    F8E4M3,
}

/// What holds for all patches of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PatchOptions {
    pub merge: MergeDtype,
    pub storage: LoraStorage,
}

/// The value of a name in a table.
fn named<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(n, _)| *n == name).map(|(_, v)| *v)
}

impl PatchMode {
    pub const NAMES: [(&str, Self); 3] = [
        ("merge", Self::Merged),
        ("on_the_fly", Self::OnTheFly),
        ("bypass", Self::Bypass),
    ];

    /// By the name it has in settings and nodes.
    pub fn parse(name: &str) -> Option<Self> {
        named(&Self::NAMES, name)
    }
}

impl OftStrength {
    pub const NAMES: [(&str, Self); 2] = [("compat", Self::Compat), ("linear", Self::Linear)];

    /// By the name it has in settings and nodes.
    pub fn parse(name: &str) -> Option<Self> {
        named(&Self::NAMES, name)
    }
}

impl MergeDtype {
    pub const NAMES: [(&str, Self); 3] = [
        ("auto", Self::Auto),
        ("fp16", Self::Fp16),
        ("fp32", Self::Fp32),
    ];

    /// By the name it has in settings.
    pub fn parse(name: &str) -> Option<Self> {
        named(&Self::NAMES, name)
    }

    /// A value as it is between two steps of a merge.
    pub(crate) fn rounded(self, value: Tensor) -> Result<Tensor> {
        match self {
            Self::Auto | Self::Fp32 => Ok(value),
            Self::Fp16 => Stored::from_f32(&value, Dtype::F16)?.to_f32(),
        }
    }
}

impl LoraStorage {
    pub const NAMES: [(&str, Self); 3] = [
        ("stored_dtype", Self::StoredDtype),
        ("bf16", Self::Bf16),
        ("fp8_e4m3", Self::F8E4M3),
    ];

    /// By the name it has in nodes.
    pub fn parse(name: &str) -> Option<Self> {
        named(&Self::NAMES, name)
    }

    /// The format for weights of a format, where it is not their own.
    pub(crate) fn format(self, dtype: Dtype) -> Option<Dtype> {
        match self {
            Self::StoredDtype => None,
            _ if !dtype.is_float() => None,
            Self::Bf16 if dtype == Dtype::F16 => None,
            Self::Bf16 => Some(Dtype::Bf16),
            // Without scales eight bits would lose more than their own format does.
            Self::F8E4M3 if matches!(dtype, Dtype::Rows(_)) => None,
            Self::F8E4M3 => Some(Dtype::F8E4M3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read() {
        assert_eq!(PatchMode::parse("bypass"), Some(PatchMode::Bypass));
        assert_eq!(OftStrength::parse("linear"), Some(OftStrength::Linear));
        assert_eq!(MergeDtype::parse("fp16"), Some(MergeDtype::Fp16));
        assert_eq!(LoraStorage::parse("fp8_e4m3"), Some(LoraStorage::F8E4M3));
        assert_eq!(LoraStorage::parse("fp8"), None);
        assert_eq!(PatchMode::NAMES[0].1, PatchMode::default());
        assert_eq!(OftStrength::NAMES[0].1, OftStrength::default());
        assert_eq!(MergeDtype::NAMES[0].1, MergeDtype::default());
        assert_eq!(LoraStorage::NAMES[0].1, LoraStorage::default());
    }
}
