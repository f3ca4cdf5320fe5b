//! Conditions in a network's own type, which is read once, at its door.

use fresco_tensor::Tensor;

use super::call::{CallConds, CondValue};
use crate::error::{ModelError, Result};

/// Names of conditions that several families know.
pub mod names {
    /// The prompt's tokens (b, n, c).
    pub const PROMPT: &str = "c_crossattn";
    /// Which of the prompt's tokens are seen.
    pub const MASK: &str = "attention_mask";
    /// The prompt in one vector.
    pub const POOLED: &str = "y";
    pub const GUIDANCE: &str = "guidance";
    /// The latents of pictures to look at.
    pub const REFERENCES: &str = "ref_latents";
    /// How those stand beside the picture that is made.
    pub const REFERENCE_METHOD: &str = "ref_latents_method";
    /// What goes in on further channels of the latent.
    pub const BESIDE: &str = "c_concat";
    /// The prompt of control nets, where they have their own.
    pub const CONTROL_PROMPT: &str = "crossattn_controlnet";
}

/// What a condition is to a network.
pub trait ReadCond<'a>: Sized {
    fn read(conds: &'a CallConds, name: &'static str) -> Result<Self>;
}

impl<'a> ReadCond<'a> for Option<&'a Tensor> {
    fn read(conds: &'a CallConds, name: &'static str) -> Result<Self> {
        Ok(conds.0.get(name).and_then(CondValue::tensor))
    }
}

/// A condition without which the network cannot run.
impl<'a> ReadCond<'a> for &'a Tensor {
    fn read(conds: &'a CallConds, name: &'static str) -> Result<Self> {
        let what = match name {
            names::PROMPT => "prompt",
            names::POOLED => "pooled prompt",
            other => other,
        };
        let found = Option::<&Tensor>::read(conds, name)?;
        found.ok_or_else(|| ModelError::invalid(what, "this model needs one"))
    }
}

/// Tensors of any sizes; empty if there are none.
impl<'a> ReadCond<'a> for &'a [Tensor] {
    fn read(conds: &'a CallConds, name: &'static str) -> Result<Self> {
        Ok(conds.0.get(name).map_or(&[], CondValue::list))
    }
}

impl<'a> ReadCond<'a> for Option<&'a str> {
    fn read(conds: &'a CallConds, name: &'static str) -> Result<Self> {
        Ok(match conds.0.get(name) {
            Some(CondValue::Word(word)) => Some(word),
            _ => None,
        })
    }
}

impl<'a> ReadCond<'a> for Option<f64> {
    fn read(conds: &'a CallConds, name: &'static str) -> Result<Self> {
        Ok(match conds.0.get(name) {
            Some(CondValue::Constant(number)) => Some(*number),
            _ => None,
        })
    }
}

/// Declares what a network is told besides its latent: fields with the names of the conditions that they are read from.
#[macro_export]
macro_rules! conds {
    (
        $(#[$about:meta])*
        $seen:vis struct $name:ident<$life:lifetime> {
            $($(#[$about_field:meta])* $field:ident: $kind:ty = $key:expr),* $(,)?
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy)]
        $seen struct $name<$life> {
            $($(#[$about_field])* $seen $field: $kind),*
        }

        impl<$life> $name<$life> {
            $seen fn read(
                conds: &$life $crate::denoise::CallConds,
            ) -> ::std::result::Result<Self, $crate::ModelError> {
                Ok(Self {
                    $($field: $crate::denoise::ReadCond::read(conds, $key)?),*
                })
            }
        }
    };
}
