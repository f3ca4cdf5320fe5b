//! SAMPLER: which function samples, with which options. The functions themselves come with the models.

use std::fmt;

use fresco_graph::{
    Cx, FromValue, Map, Node, NodeError, NodeOutput, NodeResult, Opaque, Value, map, wrong_kind,
};
use fresco_models::samplers::{
    NoiseInterval, NoiseScaler, SamplerName, SamplerOptions, SdeSolver, SeedsSolver,
};
use fresco_tensor::ResizeMethod;

use super::Model;
use super::own::OwnSampler;

/// SAMPLER.
#[derive(Clone, Debug)]
pub struct Sampler {
    pub name: SamplerName,
    /// Keyword options of its function.
    pub options: Map,
    /// How the noise of an inpainted region is made: `random` draws it anew.
    pub inpaint_options: Map,
    /// A function of another process in place of the named one.
    pub own: Option<OwnSampler>,
}

impl Sampler {
    /// With options of a node; they are read when it samples.
    pub fn new(name: SamplerName, options: Map) -> Self {
        Self {
            name,
            options,
            inpaint_options: Map::new(),
            own: None,
        }
    }

    /// The sampler behind an entry of the sampler list.
    pub fn listed(name: SamplerName) -> Self {
        if name.redraws_inpaint_noise() {
            // ddim is Euler with another way to inpaint.
            return Self {
                inpaint_options: map! {"random" => true},
                ..Self::new(SamplerName::Euler, Map::new())
            };
        }
        Self::new(name, Map::new())
    }

    /// The sampler in a value.
    pub fn try_from_value(value: Value) -> Result<Self, NodeError> {
        Self::from_value(value).map_err(NodeError::type_error)
    }

    /// Whether the noise around an inpainted part is not that of the part.
    pub fn redraws_inpaint_noise(&self) -> bool {
        self.inpaint_options
            .get("random")
            .is_some_and(Value::truthy)
    }

    /// The options as the model room takes them.
    pub fn parse_options(&self) -> Result<SamplerOptions, NodeError> {
        let mut options = SamplerOptions::default();
        if self.own.is_some() {
            // They go to the function as they are.
            return Ok(options);
        }
        for (key, value) in &self.options {
            set_option(&mut options, key, value)?;
        }
        Ok(options)
    }
}

/// Sets one keyword option. Those that are null keep their default.
fn set_option(options: &mut SamplerOptions, key: &str, value: &Value) -> Result<(), NodeError> {
    let wrong = |wanted: &str| {
        NodeError::type_error(format!(
            "sampler option {key}: {}",
            wrong_kind(wanted, value)
        ))
    };
    let number = || value.as_f64().ok_or_else(|| wrong("a number"));
    let count = || {
        let n = value.as_int().and_then(|n| usize::try_from(n).ok());
        n.ok_or_else(|| wrong("a whole number"))
    };
    if value.is_null() {
        return Ok(());
    }
    match key {
        "eta" => options.eta = Some(number()?),
        "s_noise" => options.s_noise = Some(number()?),
        "s_noise_end" => options.s_noise_end = Some(number()?),
        "noise_clip_std" => options.noise_limit = number()?,
        "s_churn" => options.s_churn = number()?,
        "s_tmin" => options.s_tmin = number()?,
        "s_tmax" => options.s_tmax = number()?,
        "order" => options.order = Some(count()?),
        "r" => options.r = number()?,
        "rtol" => options.rtol = number()?,
        "atol" => options.atol = number()?,
        "h_init" => options.h_init = number()?,
        "pcoeff" => options.pcoeff = number()?,
        "icoeff" => options.icoeff = number()?,
        "dcoeff" => options.dcoeff = number()?,
        "accept_safety" => options.accept_safety = number()?,
        "max_stage" => options.max_stage = count()?,
        "predictor_order" => options.predictor_order = count()?,
        "corrector_order" => options.corrector_order = count()?,
        "use_pece" => options.use_pece = value.truthy(),
        "simple_order_2" => options.simple_order_2 = value.truthy(),
        "total_upscale" => options.total_upscale = number()?,
        "upscale_steps" => options.upscale_steps = Some(count()?),
        "solver_type" => match value.as_str() {
            Some("midpoint") => options.sde_solver = SdeSolver::Midpoint,
            Some("heun") => options.sde_solver = SdeSolver::Heun,
            Some("phi_1") => options.seeds_solver = SeedsSolver::Phi1,
            Some("phi_2") => options.seeds_solver = SeedsSolver::Phi2,
            _ => return Err(wrong("midpoint, heun, phi_1 or phi_2")),
        },
        "upscale_method" => {
            let method = value.as_str().and_then(ResizeMethod::parse);
            options.upscale_method = method.ok_or_else(|| wrong("a resize method"))?;
        }
        "noise_scaler" => {
            let scaler = value.downcast::<FunctionOption<NoiseScaler>>();
            options.noise_scaler = scaler.ok_or_else(|| wrong("a noise scaler"))?.0;
        }
        "tau_func" => {
            let interval = value.downcast::<FunctionOption<NoiseInterval>>();
            let interval = interval.ok_or_else(|| wrong("a noise interval"))?;
            options.noise_interval = Some(interval.0);
        }
        _ => {
            return Err(NodeError::value_error(format!(
                "the sampler has no option '{key}'"
            )));
        }
    }
    Ok(())
}

impl Opaque for Sampler {
    fn describe(&self) -> String {
        format!("sampler {}", self.name.function())
    }
}

impl FromValue for Sampler {
    const IO: &'static str = "SAMPLER";
    fn from_value(value: Value) -> Result<Self, String> {
        if let Value::Object(object) = &value
            && object.callback().is_some()
        {
            return Ok(Self {
                own: Some(OwnSampler(value)),
                ..Self::new(SamplerName::Euler, Map::new())
            });
        }
        value
            .downcast::<Self>()
            .cloned()
            .ok_or_else(|| wrong_kind(Self::IO, &value))
    }
}

impl From<Sampler> for Value {
    fn from(v: Sampler) -> Self {
        Self::object(v)
    }
}

/// A choice from a list of samplers or schedules: one of ours by its name, or one that a pack added to the list.
#[derive(Clone, Debug)]
pub enum Choice {
    Named(String),
    Own(Value),
}

impl FromValue for Choice {
    const IO: &'static str = "STRING";
    fn from_value(value: Value) -> Result<Self, String> {
        match &value {
            Value::Str(name) => Ok(Self::Named(name.to_string())),
            Value::Object(object) if object.callback().is_some() => Ok(Self::Own(value)),
            _ => Err(wrong_kind("text", &value)),
        }
    }
}

/// The names that KSampler and its relatives offer, in their order.
pub fn sampler_names() -> [&'static str; 44] {
    SamplerName::ALL.map(|(name, _)| name)
}

/// An option that is a function in the reference and a setting here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FunctionOption<T>(pub T);

impl<T: fmt::Debug + Send + Sync + 'static> Opaque for FunctionOption<T> {
    fn describe(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// The SDE samplers draw their noise on the device or on the CPU.
fn by_device(device: &str, cpu: SamplerName, gpu: SamplerName) -> SamplerName {
    if device == "cpu" { cpu } else { gpu }
}

fn sampler_output(name: SamplerName, options: Map) -> NodeResult {
    Ok(NodeOutput::one(Sampler::new(name, options)))
}

/// A sampler by its name.
#[derive(Node)]
#[node(
    id = "KSamplerSelect",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/samplers",
    outputs("SAMPLER")
)]
pub struct KSamplerSelect {
    #[input(choices = sampler_names())]
    sampler_name: Choice,
}

impl Node for KSamplerSelect {
    fn run(self, _: &Cx) -> NodeResult {
        let name = match self.sampler_name {
            Choice::Named(name) => name,
            Choice::Own(own) => return Ok(NodeOutput::one(Sampler::try_from_value(own)?)),
        };
        let name = SamplerName::named(&name)
            .ok_or_else(|| NodeError::value_error(format!("unknown sampler '{name}'")))?;
        Ok(NodeOutput::one(Sampler::listed(name)))
    }
}

/// The ancestral Euler sampler.
#[derive(Node)]
#[node(
    id = "SamplerEulerAncestral",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/samplers",
    outputs("SAMPLER")
)]
pub struct SamplerEulerAncestral {
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    eta: f64,
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    s_noise: f64,
}

impl Node for SamplerEulerAncestral {
    fn run(self, _: &Cx) -> NodeResult {
        sampler_output(
            SamplerName::EulerAncestral,
            map! {"eta" => self.eta, "s_noise" => self.s_noise},
        )
    }
}

/// The ancestral Euler sampler with CFG++ guidance.
#[derive(Node)]
#[node(
    id = "SamplerEulerAncestralCFGPP",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    display = "SamplerEulerAncestralCFG++",
    category = "sampling/custom_sampling/samplers",
    outputs("SAMPLER")
)]
pub struct SamplerEulerAncestralCFGPP {
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.01, round = false)]
    eta: f64,
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01, round = false)]
    s_noise: f64,
}

impl Node for SamplerEulerAncestralCFGPP {
    fn run(self, _: &Cx) -> NodeResult {
        sampler_output(
            SamplerName::EulerAncestralCfgPp,
            map! {"eta" => self.eta, "s_noise" => self.s_noise},
        )
    }
}

/// The linear multistep sampler.
#[derive(Node)]
#[node(
    id = "SamplerLMS",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/samplers",
    outputs("SAMPLER")
)]
pub struct SamplerLMS {
    #[input(default = 4, min = 1, max = 100)]
    order: i64,
}

impl Node for SamplerLMS {
    fn run(self, _: &Cx) -> NodeResult {
        sampler_output(SamplerName::Lms, map! {"order" => self.order})
    }
}

/// The DPM-Solver++ 3M SDE sampler.
#[derive(Node)]
#[node(
    id = "SamplerDPMPP_3M_SDE",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/samplers",
    outputs("SAMPLER")
)]
pub struct SamplerDPMPP3MSDE {
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    eta: f64,
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    s_noise: f64,
    #[input(choices = ["gpu", "cpu"])]
    noise_device: String,
}

impl Node for SamplerDPMPP3MSDE {
    fn run(self, _: &Cx) -> NodeResult {
        sampler_output(
            by_device(
                &self.noise_device,
                SamplerName::Dpmpp3mSde,
                SamplerName::Dpmpp3mSdeGpu,
            ),
            map! {"eta" => self.eta, "s_noise" => self.s_noise},
        )
    }
}

/// The DPM-Solver++ 2M SDE sampler.
#[derive(Node)]
#[node(
    id = "SamplerDPMPP_2M_SDE",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/samplers",
    outputs("SAMPLER")
)]
pub struct SamplerDPMPP2MSDE {
    #[input(choices = ["midpoint", "heun"])]
    solver_type: String,
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    eta: f64,
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    s_noise: f64,
    #[input(choices = ["gpu", "cpu"])]
    noise_device: String,
}

impl Node for SamplerDPMPP2MSDE {
    fn run(self, _: &Cx) -> NodeResult {
        sampler_output(
            by_device(
                &self.noise_device,
                SamplerName::Dpmpp2mSde,
                SamplerName::Dpmpp2mSdeGpu,
            ),
            map! {"eta" => self.eta, "s_noise" => self.s_noise, "solver_type" => self.solver_type},
        )
    }
}

/// The DPM-Solver++ SDE sampler.
#[derive(Node)]
#[node(
    id = "SamplerDPMPP_SDE",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/samplers",
    outputs("SAMPLER")
)]
pub struct SamplerDPMPPSDE {
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    eta: f64,
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    s_noise: f64,
    #[input(default = 0.5, min = 0.0, max = 100.0, step = 0.01, round = false)]
    r: f64,
    #[input(choices = ["gpu", "cpu"])]
    noise_device: String,
}

impl Node for SamplerDPMPPSDE {
    fn run(self, _: &Cx) -> NodeResult {
        sampler_output(
            by_device(
                &self.noise_device,
                SamplerName::DpmppSde,
                SamplerName::DpmppSdeGpu,
            ),
            map! {"eta" => self.eta, "s_noise" => self.s_noise, "r" => self.r},
        )
    }
}

/// The ancestral DPM-Solver++ 2S sampler.
#[derive(Node)]
#[node(
    id = "SamplerDPMPP_2S_Ancestral",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/samplers",
    outputs("SAMPLER")
)]
pub struct SamplerDPMPP2SAncestral {
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    eta: f64,
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    s_noise: f64,
}

impl Node for SamplerDPMPP2SAncestral {
    fn run(self, _: &Cx) -> NodeResult {
        sampler_output(
            SamplerName::Dpmpp2sAncestral,
            map! {"eta" => self.eta, "s_noise" => self.s_noise},
        )
    }
}

/// The DPM-Solver with steps of its own choosing.
#[derive(Node)]
#[node(
    id = "SamplerDPMAdaptative",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/samplers",
    outputs("SAMPLER")
)]
pub struct SamplerDPMAdaptative {
    #[input(default = 3, min = 2, max = 3)]
    order: i64,
    #[input(default = 0.05, min = 0.0, max = 100.0, step = 0.01, round = false)]
    rtol: f64,
    #[input(default = 0.0078, min = 0.0, max = 100.0, step = 0.01, round = false)]
    atol: f64,
    #[input(default = 0.05, min = 0.0, max = 100.0, step = 0.01, round = false)]
    h_init: f64,
    #[input(default = 0.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    pcoeff: f64,
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    icoeff: f64,
    #[input(default = 0.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    dcoeff: f64,
    #[input(default = 0.81, min = 0.0, max = 100.0, step = 0.01, round = false)]
    accept_safety: f64,
    #[input(default = 0.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    eta: f64,
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    s_noise: f64,
}

impl Node for SamplerDPMAdaptative {
    fn run(self, _: &Cx) -> NodeResult {
        sampler_output(
            SamplerName::DpmAdaptive,
            map! {
                "order" => self.order,
                "rtol" => self.rtol,
                "atol" => self.atol,
                "h_init" => self.h_init,
                "pcoeff" => self.pcoeff,
                "icoeff" => self.icoeff,
                "dcoeff" => self.dcoeff,
                "accept_safety" => self.accept_safety,
                "eta" => self.eta,
                "s_noise" => self.s_noise,
            },
        )
    }
}

/// The ER-SDE sampler and its relatives.
#[derive(Node)]
#[node(
    id = "SamplerER_SDE",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/samplers",
    outputs("SAMPLER")
)]
pub struct SamplerERSDE {
    #[input(choices = ["ER-SDE", "Reverse-time SDE", "ODE"])]
    solver_type: String,
    #[input(default = 3, min = 1, max = 3)]
    max_stage: i64,
    /// How much noise the reverse-time form adds; the others have their own amount.
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    eta: f64,
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    s_noise: f64,
}

impl Node for SamplerERSDE {
    fn run(self, _: &Cx) -> NodeResult {
        let reverse = self.solver_type == "Reverse-time SDE";
        let (mut eta, mut s_noise) = (self.eta, Value::from(self.s_noise));
        if self.solver_type == "ODE" || (reverse && eta == 0.0) {
            (eta, s_noise) = (0.0, Value::from(0));
        }
        let noise_scaler = if self.solver_type == "ER-SDE" {
            Value::Null
        } else {
            Value::object(FunctionOption(NoiseScaler::Power { eta }))
        };
        sampler_output(
            SamplerName::ErSde,
            map! {"s_noise" => s_noise, "noise_scaler" => noise_scaler, "max_stage" => self.max_stage},
        )
    }
}

/// The SEEDS-2 sampler.
#[derive(Node)]
#[node(
    id = "SamplerSEEDS2",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/samplers",
    outputs("SAMPLER")
)]
pub struct SamplerSEEDS2 {
    #[input(choices = ["phi_1", "phi_2"])]
    solver_type: String,
    /// How much noise is added.
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    eta: f64,
    /// The noise is multiplied by this.
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    s_noise: f64,
    /// Where in the step the middle evaluation lies.
    #[input(default = 0.5, min = 0.01, max = 1.0, step = 0.01, round = false)]
    r: f64,
}

impl Node for SamplerSEEDS2 {
    fn run(self, _: &Cx) -> NodeResult {
        sampler_output(
            SamplerName::Seeds2,
            map! {
                "eta" => self.eta,
                "s_noise" => self.s_noise,
                "r" => self.r,
                "solver_type" => self.solver_type,
            },
        )
    }
}

/// The SA-Solver.
#[derive(Node)]
#[node(
    id = "SamplerSASolver",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/samplers",
    outputs("SAMPLER")
)]
pub struct SamplerSASolver {
    model: Model,
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01, round = false)]
    eta: f64,
    #[input(default = 0.2, min = 0.0, max = 1.0, step = 0.001)]
    sde_start_percent: f64,
    #[input(default = 0.8, min = 0.0, max = 1.0, step = 0.001)]
    sde_end_percent: f64,
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    s_noise: f64,
    #[input(default = 3, min = 1, max = 6)]
    predictor_order: i64,
    #[input(default = 4, min = 0, max = 6)]
    corrector_order: i64,
    use_pece: bool,
    simple_order_2: bool,
}

impl Node for SamplerSASolver {
    fn run(self, _: &Cx) -> NodeResult {
        let sampling = &self.model.sampling;
        let interval = NoiseInterval {
            eta: self.eta,
            start_sigma: sampling.percent_to_sigma(self.sde_start_percent),
            end_sigma: sampling.percent_to_sigma(self.sde_end_percent),
        };
        sampler_output(
            SamplerName::SaSolver,
            map! {
                "tau_func" => Value::object(FunctionOption(interval)),
                "s_noise" => self.s_noise,
                "predictor_order" => self.predictor_order,
                "corrector_order" => self.corrector_order,
                "use_pece" => self.use_pece,
                "simple_order_2" => self.simple_order_2,
            },
        )
    }
}

/// The LCM sampler, growing the latent as it goes.
#[derive(Node)]
#[node(
    id = "SamplerLCMUpscale",
    v3,
    module = "comfy_extras.nodes_advanced_samplers",
    category = "sampling/custom_sampling/samplers",
    outputs("SAMPLER")
)]
pub struct SamplerLCMUpscale {
    #[input(default = 1.0, min = 0.1, max = 20.0, step = 0.01)]
    scale_ratio: f64,
    #[input(default = -1, min = -1, max = 1000, step = 1)]
    scale_steps: i64,
    #[input(choices = ["bislerp", "nearest-exact", "bilinear", "area", "bicubic"])]
    upscale_method: String,
}

impl Node for SamplerLCMUpscale {
    fn run(self, _: &Cx) -> NodeResult {
        sampler_output(
            SamplerName::LcmUpscale,
            map! {
                "total_upscale" => self.scale_ratio,
                "upscale_steps" => (self.scale_steps >= 0).then_some(self.scale_steps),
                "upscale_method" => self.upscale_method,
            },
        )
    }
}

/// The LCM sampler with control over the noise of each step.
#[derive(Node)]
#[node(
    id = "SamplerLCM",
    v3,
    module = "comfy_extras.nodes_advanced_samplers",
    display = "SamplerLCM",
    category = "sampling/custom_sampling/samplers",
    outputs("SAMPLER")
)]
pub struct SamplerLCM {
    /// How much noise the first step adds; 1 is what models were trained with.
    #[input(default = 1.0, min = 0.0, max = 64.0, step = 0.01)]
    s_noise: f64,
    /// How much the last step adds.
    #[input(default = 1.0, min = 0.0, max = 64.0, step = 0.01)]
    s_noise_end: f64,
    /// Noise is cut off beyond so many standard deviations; 0 cuts nothing.
    #[input(default = 0.0, min = 0.0, max = 10.0, step = 0.01)]
    noise_clip_std: f64,
}

impl Node for SamplerLCM {
    fn run(self, _: &Cx) -> NodeResult {
        sampler_output(
            SamplerName::Lcm,
            map! {
                "s_noise" => self.s_noise,
                "s_noise_end" => self.s_noise_end,
                "noise_clip_std" => self.noise_clip_std,
            },
        )
    }
}

/// The Euler sampler with CFG++ guidance.
#[derive(Node)]
#[node(
    id = "SamplerEulerCFGpp",
    v3,
    module = "comfy_extras.nodes_advanced_samplers",
    display = "SamplerEulerCFG++",
    category = "_for_testing",
    outputs("SAMPLER"),
    experimental
)]
pub struct SamplerEulerCFGpp {
    #[input(choices = ["regular", "alternative"])]
    version: String,
}

impl Node for SamplerEulerCFGpp {
    fn run(self, _: &Cx) -> NodeResult {
        let name = if self.version == "regular" {
            SamplerName::EulerCfgPp
        } else {
            SamplerName::EulerPp
        };
        sampler_output(name, Map::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_sampler() {
        for (name, own) in SamplerName::ALL {
            let sampler = Sampler::listed(own);
            // ddim is euler with another way to inpaint.
            let wanted = if name == "ddim" { "euler" } else { name };
            assert_eq!(sampler.name.name(), wanted);
            assert_eq!(sampler.redraws_inpaint_noise(), name == "ddim");
            let options = sampler.parse_options().unwrap();
            assert_eq!(options, SamplerOptions::default());
        }
        assert_eq!(sampler_names()[0], "euler");
    }

    #[test]
    fn options_arrive() {
        let interval = NoiseInterval {
            eta: 0.5,
            start_sigma: 9.0,
            end_sigma: 1.0,
        };
        let options = map! {
            "tau_func" => Value::object(FunctionOption(interval)),
            "noise_scaler" => Value::object(FunctionOption(NoiseScaler::Power { eta: 0.25 })),
            "s_noise" => 0,
            "predictor_order" => 2,
            "use_pece" => true,
            "upscale_steps" => Value::Null,
            "upscale_method" => "area",
            "solver_type" => "phi_2",
        };
        let options = Sampler::new(SamplerName::SaSolver, options).parse_options();
        let options = options.unwrap();
        assert_eq!(options.noise_interval, Some(interval));
        assert_eq!(options.noise_scaler, NoiseScaler::Power { eta: 0.25 });
        assert_eq!(options.s_noise, Some(0.0));
        assert_eq!(options.predictor_order, 2);
        assert!(options.use_pece);
        assert_eq!(options.upscale_steps, None);
        assert_eq!(options.upscale_method, ResizeMethod::Area);
        assert_eq!(options.seeds_solver, SeedsSolver::Phi2);
    }

    #[test]
    fn what_no_sampler_knows_is_an_error() {
        for (name, options) in [
            (SamplerName::Lms, map! {"order" => -3}),
            (SamplerName::Lms, map! {"depth" => 3}),
            (SamplerName::Seeds2, map! {"solver_type" => "phi_9"}),
            (SamplerName::ErSde, map! {"noise_scaler" => 1.0}),
            (SamplerName::LcmUpscale, map! {"upscale_method" => "magic"}),
        ] {
            assert!(Sampler::new(name, options).parse_options().is_err());
        }
        let magic = KSamplerSelect {
            sampler_name: Choice::Named("magic".to_owned()),
        };
        let cx = Cx::detached(std::sync::Arc::default());
        assert!(magic.run(&cx).is_err());
    }
}
