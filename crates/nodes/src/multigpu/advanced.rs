//! Loaders with a device for each part, and the node that only names one.

use fresco_graph::{
    Args, Cx, Map, Node, NodeError, NodeOutput, NodeResult, Output, Validator, Verdict,
};

use super::family::{
    self, Known, device_input, donor_input, eject_input, eject_others, expert_input,
    keep_loaded_input, retention_input, virtual_input,
};
use crate::loaders::{CheckpointOptions, load_checkpoint, load_diffusion_model};
use crate::resident::LoadOptions;

/// Names a device.
#[derive(Node)]
#[node(
    id = "DeviceSelectorMultiGPU",
    v1,
    module = "custom_nodes.ComfyUI-MultiGPU",
    category = "multigpu",
    outputs(Output::new("MULTIGPUDEVICE").named("device"))
)]
pub(super) struct DeviceSelector {
    /// The device to choose.
    #[input(spec = device_input("device"))]
    device: String,
}

impl Node for DeviceSelector {
    fn run(self, cx: &Cx) -> NodeResult {
        let device = Known::of(cx).device("device", &self.device)?;
        Ok(NodeOutput::one(device.name()))
    }
}

/// Loads a checkpoint, each part to compute on a device of its own.
#[derive(Node)]
#[node(
    id = "CheckpointLoaderAdvancedMultiGPU",
    v1,
    module = "custom_nodes.ComfyUI-MultiGPU",
    category = "multigpu",
    outputs("MODEL", "CLIP", "VAE")
)]
pub(crate) struct CheckpointAdvanced {
    #[input(listed = "models/checkpoints")]
    ckpt_name: String,
    /// The device on which the diffusion model computes.
    #[input(spec = device_input("unet_device"))]
    unet_device: String,
    /// The device on which the text encoder computes.
    #[input(spec = device_input("clip_device"))]
    clip_device: String,
    /// The device on which the autoencoder computes.
    #[input(spec = device_input("vae_device"))]
    vae_device: String,
    #[input(spec = eject_input(false).optional(), or = false)]
    eject_models: bool,
    #[input(spec = retention_input().optional())]
    retention: Option<String>,
    #[input(spec = keep_loaded_input().optional())]
    keep_loaded: Option<bool>,
}

impl CheckpointAdvanced {
    pub(crate) fn parts(self, known: &Known) -> Result<(String, CheckpointOptions), NodeError> {
        let (policy, source) = family::policy_of(self.retention.as_deref(), self.keep_loaded)?;
        let on = |input: &str, name: &str| {
            Ok::<_, NodeError>(LoadOptions {
                compute: Some(known.device(input, name)?),
                policy,
                source,
                ..LoadOptions::default()
            })
        };
        let parts = CheckpointOptions {
            model: LoadOptions {
                eject_others: eject_others(self.eject_models),
                ..on("unet_device", &self.unet_device)?
            },
            clip: on("clip_device", &self.clip_device)?,
            vae: on("vae_device", &self.vae_device)?,
        };
        Ok((self.ckpt_name, parts))
    }
}

impl Node for CheckpointAdvanced {
    fn run(self, cx: &Cx) -> NodeResult {
        let (name, parts) = self.parts(&Known::of(cx))?;
        load_checkpoint(cx, &name, &parts)
    }
}

/// Loads a checkpoint, each part to compute on a device of its own, with part of the weights of its model and of its text
/// encoder on other devices.
#[derive(Node)]
#[node(
    id = "CheckpointLoaderAdvancedDisTorch2MultiGPU",
    v1,
    module = "custom_nodes.ComfyUI-MultiGPU",
    display = "CheckpointLoaderAdvanced (DisTorch2)",
    category = "multigpu/distorch_2",
    outputs("MODEL", "CLIP", "VAE")
)]
pub(crate) struct CheckpointAdvancedDisTorch2 {
    #[input(listed = "models/checkpoints")]
    ckpt_name: String,
    /// The device on which the diffusion model computes.
    #[input(spec = device_input("unet_compute_device"))]
    unet_compute_device: String,
    #[input(spec = virtual_input("unet_virtual_vram_gb", 4.0, 128.0))]
    unet_virtual_vram_gb: f64,
    #[input(spec = donor_input("unet_donor_device"))]
    unet_donor_device: String,
    /// The device on which the text encoder computes.
    #[input(spec = device_input("clip_compute_device").option("default", "cpu"))]
    clip_compute_device: String,
    #[input(spec = virtual_input("clip_virtual_vram_gb", 2.0, 128.0))]
    clip_virtual_vram_gb: f64,
    #[input(spec = donor_input("clip_donor_device"))]
    clip_donor_device: String,
    /// The device on which the autoencoder computes.
    #[input(spec = device_input("vae_device"))]
    vae_device: String,
    #[input(spec = expert_input("unet_expert_mode_allocations").optional())]
    unet_expert_mode_allocations: Option<String>,
    #[input(spec = expert_input("clip_expert_mode_allocations").optional())]
    clip_expert_mode_allocations: Option<String>,
    /// Whether weights that a LoRA changes keep the format they are stored in; if not, those of a model of mostly eight
    /// bits have eight bits, too.
    #[input(optional, default = true)]
    high_precision_loras: Option<bool>,
    #[input(spec = eject_input(true).optional(), or = true)]
    eject_models: bool,
    #[input(spec = retention_input().optional())]
    retention: Option<String>,
    #[input(spec = keep_loaded_input().optional())]
    keep_loaded: Option<bool>,
}

impl CheckpointAdvancedDisTorch2 {
    pub(crate) fn parts(self, known: &Known) -> Result<(String, CheckpointOptions), NodeError> {
        let (policy, source) = family::policy_of(self.retention.as_deref(), self.keep_loaded)?;
        let plain = |input: &str, device: &str| {
            Ok::<_, NodeError>(LoadOptions {
                compute: Some(known.device(input, device)?),
                policy,
                source,
                ..LoadOptions::default()
            })
        };
        let spread = |options: LoadOptions, expert: Option<String>, gb, donor| {
            let compute = options.compute.clone().unwrap_or_default();
            let donors = vec![donor];
            let expert = expert.unwrap_or_default();
            Ok::<_, NodeError>(LoadOptions {
                placement: family::placement(&compute, &expert, gb, donors, known)?,
                ..options
            })
        };
        let donor = |input: &str, name: &str| known.device(input, name).map(|d| d.name());
        let model = spread(
            plain("unet_compute_device", &self.unet_compute_device)?,
            self.unet_expert_mode_allocations,
            self.unet_virtual_vram_gb,
            donor("unet_donor_device", &self.unet_donor_device)?,
        )?;
        let clip = spread(
            plain("clip_compute_device", &self.clip_compute_device)?,
            self.clip_expert_mode_allocations,
            self.clip_virtual_vram_gb,
            donor("clip_donor_device", &self.clip_donor_device)?,
        )?;
        let parts = CheckpointOptions {
            model: LoadOptions {
                eject_others: eject_others(self.eject_models),
                low_precision_loras: self.high_precision_loras == Some(false),
                ..model
            },
            clip,
            vae: plain("vae_device", &self.vae_device)?,
        };
        Ok((self.ckpt_name, parts))
    }
}

impl Node for CheckpointAdvancedDisTorch2 {
    fn run(self, cx: &Cx) -> NodeResult {
        let (name, parts) = self.parts(&Known::of(cx))?;
        load_checkpoint(cx, &name, &parts)
    }

    const VALIDATOR: Option<Validator> = Some(Validator {
        params: &[
            "unet_expert_mode_allocations",
            "clip_expert_mode_allocations",
        ],
        all: false,
        input_types: false,
    });

    fn validate(args: Args, _: &Map, cx: &Cx) -> Result<Verdict, NodeError> {
        let inputs = Self::VALIDATOR.map_or(&[][..], |v| v.params);
        Ok(family::check_expert(&args, inputs, cx))
    }
}

/// Loads a diffusion model. If most of its weights have eight bits, those that a LoRA changes are kept in eight bits
/// altogether.
#[derive(Node)]
#[node(
    id = "UNetLoaderLP",
    v1,
    module = "custom_nodes.ComfyUI-MultiGPU",
    display = "UNet Loader (LP)",
    category = "multigpu",
    outputs("MODEL")
)]
pub(super) struct UnetLowPrecision {
    #[input(listed = "models/diffusion_models")]
    unet_name: String,
}

impl Node for UnetLowPrecision {
    fn run(self, cx: &Cx) -> NodeResult {
        let options = LoadOptions {
            low_precision_loras: true,
            ..LoadOptions::default()
        };
        let model = load_diffusion_model(cx, &self.unet_name, "default", &options)?;
        Ok(NodeOutput::one(model))
    }
}
