//! The inputs that say where a model goes, and what they mean. A family is added to every loader in the same way.

use fresco_graph::{Args, Choices, Cx, Input, NodeError, Validator, Value, Verdict};
use fresco_memory::{
    DeviceTotal, EjectOthers, ModelRegistry, Placement, Policy, PolicySource, parse_expert,
};
use fresco_tensor::Device;

use super::bases::Loader;
use crate::resident::{LoadOptions, registry};

pub(crate) const RETENTION: [&str; 3] = ["auto", "keep", "eject_after"];
pub(super) const EXPERT: &str = "expert_mode_allocations";
const KEEP_LOADED: &str = "keep_loaded";

/// The devices that inputs may name.
pub(crate) struct Known {
    /// The main memory, then accelerators by number.
    pub(crate) devices: Vec<Device>,
    pub(crate) totals: Vec<DeviceTotal>,
}

impl Known {
    pub(crate) fn new(registry: &ModelRegistry) -> Self {
        Self {
            devices: registry.devices(),
            totals: registry.totals(),
        }
    }

    pub(crate) fn of(cx: &Cx) -> Self {
        Self::new(&registry(cx))
    }

    /// What a device input starts with: the first accelerator if there is one.
    pub(crate) fn preset(&self) -> Device {
        let accelerator = self.devices.get(1).or(self.devices.first());
        accelerator.cloned().unwrap_or_default()
    }

    pub(crate) fn device(&self, input: &str, name: &str) -> Result<Device, NodeError> {
        let found = self.devices.iter().find(|d| d.name() == name);
        found.cloned().ok_or_else(|| {
            let known: Vec<String> = self.devices.iter().map(Device::name).collect();
            let known = known.join(", ");
            NodeError::value_error(format!(
                "{input}: unknown device {name:?}; there are {known}"
            ))
        })
    }

    /// The device an input names; its preset where the prompt does not have the input.
    pub(crate) fn take(&self, args: &mut Args, input: &str) -> Result<Device, NodeError> {
        match args.take::<Option<String>>(input)? {
            Some(name) => self.device(input, &name),
            None => Ok(self.preset()),
        }
    }
}

/// A list of devices; without a default it starts with the first accelerator.
pub(super) fn device_input(name: &str) -> Input {
    Input::combo(name, Choices::Listed("devices/all".into()))
}

pub(super) fn virtual_input(name: &str, default: f64, most: f64) -> Input {
    Input::new(name, "FLOAT")
        .option("default", default)
        .option("min", 0.0)
        .option("max", most)
        .option("step", 0.1)
        .tooltip("GB of the model that are kept elsewhere and brought over while they are used.")
}

pub(super) fn donor_input(name: &str) -> Input {
    device_input(name)
        .option("default", "cpu")
        .tooltip("Where that part is kept.")
}

pub(super) fn expert_input(name: &str) -> Input {
    Input::new(name, "STRING")
        .option("multiline", false)
        .option("default", "")
        .tooltip("Which device gets how much, like cuda:0,2.5gb;cpu,* or cuda:0,25%;cpu,75%. It then decides alone.")
}

pub(super) fn eject_input(default: bool) -> Input {
    Input::new("eject_models", "BOOLEAN")
        .option("default", default)
        .tooltip("Clear the computing device of all other models before this one is loaded.")
}

pub(super) fn retention_input() -> Input {
    let choices = RETENTION.into_iter().map(Value::from).collect();
    Input::combo("retention", Choices::Fixed(std::sync::Arc::new(choices)))
        .option("default", "auto")
        .tooltip("How long the model stays. auto: until its place is needed. keep (keep_loaded on): it stays. eject_after \
             (keep_loaded off): it leaves all memory when the prompt ends.")
}

/// The input that version 2.5 of the extension had. Without a widget: a switch always has a value, and workflows that say
/// nothing must not keep or eject anything.
pub(super) fn keep_loaded_input() -> Input {
    Input::new(KEEP_LOADED, "BOOLEAN")
        .option("forceInput", true)
        .tooltip("The older name of retention: true is keep, false is eject_after. retention counts unless it says auto.")
}

/// What every loader with devices can be told about staying, last in its list: older files end before them.
fn staying_inputs(eject: bool) -> [Input; 3] {
    [eject_input(eject), retention_input(), keep_loaded_input()]
}

/// What the retention inputs say: the newer one wins unless it says `auto`.
pub(crate) fn policy(args: &mut Args) -> Result<(Policy, PolicySource), NodeError> {
    let retention = args.take::<Option<String>>("retention")?;
    let legacy = args.take::<Option<bool>>(KEEP_LOADED)?;
    policy_of(retention.as_deref(), legacy)
}

pub(super) fn policy_of(
    retention: Option<&str>,
    legacy: Option<bool>,
) -> Result<(Policy, PolicySource), NodeError> {
    let policy = match retention {
        Some("keep") => Policy::Keep,
        Some("eject_after") => Policy::EjectAfter,
        None | Some("auto") => match legacy {
            Some(true) => Policy::Keep,
            Some(false) => Policy::EjectAfter,
            None => return Ok((Policy::Auto, PolicySource::Default)),
        },
        Some(other) => {
            let known = RETENTION.join(", ");
            return Err(NodeError::value_error(format!(
                "retention: {other:?} is none of {known}"
            )));
        }
    };
    Ok((policy, PolicySource::NodeInput))
}

/// Where a model's layers go: an expert string decides alone, else so many GB go to donors. None: all on one device.
pub(crate) fn placement(
    compute: &Device,
    expert: &str,
    gb: f64,
    donors: Vec<String>,
    known: &Known,
) -> Result<Option<Placement>, NodeError> {
    let parsed = parse_expert(expert, &known.totals);
    if let Some(expert) = parsed.map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        NodeError::value_error(errors.join("; "))
    })? {
        return Ok(Some(Placement::Expert(expert)));
    }
    if !(0.0..=1e6).contains(&gb) {
        return Err(NodeError::value_error(format!(
            "{gb} GB of virtual memory cannot be meant"
        )));
    }
    // What computes in main memory is there already.
    let pointless = compute.is_cpu() && donors.iter().all(|donor| donor == "cpu");
    Ok((gb > 0.0 && !pointless).then_some(Placement::Virtual { gb, donors }))
}

/// All that is wrong with the expert strings of a prompt's node.
pub(super) fn check_expert(args: &Args, inputs: &[&'static str], cx: &Cx) -> Verdict {
    let known = Known::of(cx);
    let mut wrong = Vec::new();
    for &input in inputs {
        // A linked text is checked when it is there.
        let Some(text) = args.get(input).and_then(Value::as_str) else {
            continue;
        };
        if let Err(errors) = parse_expert(text, &known.totals) {
            wrong.extend(errors.iter().map(|e| (input.into(), e.to_string())));
        }
    }
    if wrong.is_empty() {
        Verdict::Ok
    } else {
        Verdict::Inputs(wrong)
    }
}

/// Inputs that all loaders can have.
pub(crate) trait LoaderForm: Send + 'static {
    /// What the name of a loader ends with.
    const SUFFIX: &'static str;
    const CATEGORY: &'static str;
    /// Behind the loader's title.
    const TITLE: Option<&'static str> = None;
    const ABOUT: &'static str;
    const VALIDATOR: Option<Validator> = None;

    fn inputs(loader: &Loader) -> Vec<Input>;

    fn options(loader: &Loader, args: &mut Args, known: &Known) -> Result<LoadOptions, NodeError>;
}

const CHECKS_EXPERT: Option<Validator> = Some(Validator {
    params: &[EXPERT],
    all: false,
    input_types: false,
});

/// One device for everything.
pub(crate) struct OnDevice;

impl LoaderForm for OnDevice {
    const SUFFIX: &'static str = "MultiGPU";
    const CATEGORY: &'static str = "multigpu";
    const ABOUT: &'static str = "It computes on the device you choose.";

    fn inputs(_: &Loader) -> Vec<Input> {
        let device = std::iter::once(device_input("device"));
        let inputs = device.chain(staying_inputs(false));
        inputs.map(Input::optional).collect()
    }

    fn options(_: &Loader, args: &mut Args, known: &Known) -> Result<LoadOptions, NodeError> {
        let eject = args.take_or("eject_models", false)?;
        let (policy, source) = policy(args)?;
        Ok(LoadOptions {
            compute: Some(known.take(args, "device")?),
            eject_others: eject_others(eject),
            policy,
            source,
            ..LoadOptions::default()
        })
    }
}

/// Weights on several devices, computed on one.
pub(crate) struct DisTorch2;

impl DisTorch2 {
    /// Encoders call their device as their loaders always did.
    fn device_name(loader: &Loader) -> &'static str {
        if loader.encoder {
            "device"
        } else {
            "compute_device"
        }
    }
}

impl LoaderForm for DisTorch2 {
    const SUFFIX: &'static str = "DisTorch2MultiGPU";
    const CATEGORY: &'static str = "multigpu/distorch_2";
    const TITLE: Option<&'static str> = Some(" (DisTorch2)");
    const ABOUT: &'static str =
        "It computes on one device; part of its weights can be kept on others.";
    const VALIDATOR: Option<Validator> = CHECKS_EXPERT;

    fn inputs(loader: &Loader) -> Vec<Input> {
        let inputs = [
            device_input(Self::device_name(loader)),
            virtual_input("virtual_vram_gb", 4.0, 128.0),
            donor_input("donor_device"),
            expert_input(EXPERT),
        ];
        let inputs = inputs.into_iter().chain(staying_inputs(!loader.encoder));
        inputs.map(Input::optional).collect()
    }

    fn options(loader: &Loader, args: &mut Args, known: &Known) -> Result<LoadOptions, NodeError> {
        let compute = known.take(args, Self::device_name(loader))?;
        let gb = args.take_or("virtual_vram_gb", 4.0)?;
        let donor = args.take::<Option<String>>("donor_device")?;
        let donor = known.device("donor_device", donor.as_deref().unwrap_or("cpu"))?;
        let expert = args.take::<Option<String>>(EXPERT)?.unwrap_or_default();
        let eject = args.take_or("eject_models", !loader.encoder)?;
        let (policy, source) = policy(args)?;
        Ok(LoadOptions {
            placement: placement(&compute, &expert, gb, vec![donor.name()], known)?,
            compute: Some(compute),
            eject_others: eject_others(eject),
            policy,
            source,
            ..LoadOptions::default()
        })
    }
}

pub(super) fn eject_others(eject: bool) -> EjectOthers {
    if eject {
        EjectOthers::ComputeDevice
    } else {
        EjectOthers::None
    }
}

/// The first version of the same, for quantised files.
pub(crate) struct Legacy;

impl LoaderForm for Legacy {
    const SUFFIX: &'static str = "DisTorchMultiGPU";
    const CATEGORY: &'static str = "multigpu/legacy";
    const TITLE: Option<&'static str> = Some(" (Legacy)");
    const ABOUT: &'static str = "It computes on one device; part of its weights can be kept on others. Older workflows use it.";
    const VALIDATOR: Option<Validator> = CHECKS_EXPERT;

    fn inputs(_: &Loader) -> Vec<Input> {
        let other = Input::new("use_other_vram", "BOOLEAN")
            .option("default", false)
            .tooltip("Use other accelerators before the main memory.");
        let inputs = [
            device_input("device"),
            virtual_input("virtual_vram_gb", 4.0, 24.0),
            other,
            expert_input(EXPERT),
        ];
        let inputs = inputs.into_iter().chain(staying_inputs(false));
        inputs.map(Input::optional).collect()
    }

    fn options(_: &Loader, args: &mut Args, known: &Known) -> Result<LoadOptions, NodeError> {
        let compute = known.take(args, "device")?;
        let gb = args.take_or("virtual_vram_gb", 4.0)?;
        let others = args.take_or("use_other_vram", false)?;
        let expert = args.take::<Option<String>>(EXPERT)?.unwrap_or_default();
        let accelerators = known.devices.iter().filter(|d| !d.is_cpu());
        let mut donors: Vec<String> = accelerators
            .filter(|d| others && **d != compute)
            .map(Device::name)
            .collect();
        donors.push("cpu".to_owned());
        let eject = args.take_or("eject_models", false)?;
        let (policy, source) = policy(args)?;
        Ok(LoadOptions {
            placement: placement(&compute, &expert, gb, donors, known)?,
            compute: Some(compute),
            eject_others: eject_others(eject),
            policy,
            source,
            ..LoadOptions::default()
        })
    }
}
