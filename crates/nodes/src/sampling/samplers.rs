//! SAMPLER: which function samples, with which options. The functions themselves come with the models.

use std::fmt;
use std::sync::Arc;

use fresco_graph::{
    Args, Cx, Form, FromValue, Input, Map, Node, NodeError, NodeOutput, NodeResult, NodeRow,
    Opaque, Output, Schema, Value, map, wrong_kind,
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

/// A sampler whose inputs are its options: a row of the table below.
pub struct SamplerRow {
    id: &'static str,
    display: Option<&'static str>,
    module: &'static str,
    about: &'static str,
    name: SamplerName,
    /// The same with noise drawn on the GPU, for those that let the user choose.
    on_gpu: Option<SamplerName>,
    options: fn() -> Vec<Input>,
}

/// Whose random numbers the noise is.
const NOISE_DEVICE: &str = "noise_device";

impl NodeRow for SamplerRow {
    fn schema(&self) -> Schema {
        let mut schema = Schema::new(self.id, Form::V3)
            .module(self.module)
            .category("sampling/custom_sampling/samplers")
            .description(self.about)
            .output(Output::new("SAMPLER"));
        schema.display_name = self.display.map(Into::into);
        let device = || Input::choice(NOISE_DEVICE, &["gpu", "cpu"]);
        let options = (self.options)().into_iter();
        let inputs = options.chain(self.on_gpu.map(|_| device()));
        inputs.fold(schema, Schema::input)
    }

    fn run(&self, mut args: Args, _: &Cx) -> NodeResult {
        let mut options = Map::new();
        for input in (self.options)() {
            let value = match input.ty.name() {
                Some("INT") => args.take::<i64>(&input.name)?.into(),
                Some("FLOAT") => args.take::<f64>(&input.name)?.into(),
                _ => args.take::<Arc<str>>(&input.name)?.into(),
            };
            options.insert(input.name, value);
        }
        let name = match self.on_gpu {
            Some(on_gpu) if args.take::<String>(NOISE_DEVICE)? != "cpu" => on_gpu,
            _ => self.name,
        };
        sampler_output(name, options)
    }
}

/// A number that keeps all of its digits.
fn exact(name: &str, default: f64, most: f64) -> Input {
    Input::float(name, default, [0.0, most, 0.01]).option("round", false)
}

fn eta() -> Input {
    exact("eta", 1.0, 100.0)
}

fn s_noise() -> Input {
    exact("s_noise", 1.0, 100.0)
}

const MIDDLE: &str = "Where in the step the middle evaluation lies.";

const ROW: SamplerRow = SamplerRow {
    id: "",
    display: None,
    module: "comfy_extras.nodes_custom_sampler",
    about: "",
    name: SamplerName::Euler,
    on_gpu: None,
    options: || vec![eta(), s_noise()],
};

pub static EULER_ANCESTRAL: SamplerRow = SamplerRow {
    id: "SamplerEulerAncestral",
    about: "The ancestral Euler sampler.",
    name: SamplerName::EulerAncestral,
    ..ROW
};

pub static EULER_ANCESTRAL_CFG_PP: SamplerRow = SamplerRow {
    id: "SamplerEulerAncestralCFGPP",
    display: Some("SamplerEulerAncestralCFG++"),
    about: "The ancestral Euler sampler with CFG++ guidance.",
    name: SamplerName::EulerAncestralCfgPp,
    options: || vec![exact("eta", 1.0, 1.0), exact("s_noise", 1.0, 10.0)],
    ..ROW
};

pub static LMS: SamplerRow = SamplerRow {
    id: "SamplerLMS",
    about: "The linear multistep sampler.",
    name: SamplerName::Lms,
    options: || {
        let order = Input::int("order", 4, [1, 100]);
        vec![order.tooltip("How many earlier steps are used.")]
    },
    ..ROW
};

pub static DPMPP_3M_SDE: SamplerRow = SamplerRow {
    id: "SamplerDPMPP_3M_SDE",
    about: "The DPM-Solver++ 3M SDE sampler.",
    name: SamplerName::Dpmpp3mSde,
    on_gpu: Some(SamplerName::Dpmpp3mSdeGpu),
    ..ROW
};

pub static DPMPP_2M_SDE: SamplerRow = SamplerRow {
    id: "SamplerDPMPP_2M_SDE",
    about: "The DPM-Solver++ 2M SDE sampler.",
    name: SamplerName::Dpmpp2mSde,
    on_gpu: Some(SamplerName::Dpmpp2mSdeGpu),
    options: || {
        let solver = Input::choice("solver_type", &["midpoint", "heun"]);
        let solver = solver.tooltip("How a step uses the one before it.");
        vec![solver, eta(), s_noise()]
    },
    ..ROW
};

pub static DPMPP_SDE: SamplerRow = SamplerRow {
    id: "SamplerDPMPP_SDE",
    about: "The DPM-Solver++ SDE sampler.",
    name: SamplerName::DpmppSde,
    on_gpu: Some(SamplerName::DpmppSdeGpu),
    options: || vec![eta(), s_noise(), exact("r", 0.5, 100.0).tooltip(MIDDLE)],
    ..ROW
};

pub static DPMPP_2S_ANCESTRAL: SamplerRow = SamplerRow {
    id: "SamplerDPMPP_2S_Ancestral",
    about: "The ancestral DPM-Solver++ 2S sampler.",
    name: SamplerName::Dpmpp2sAncestral,
    ..ROW
};

pub static DPM_ADAPTIVE: SamplerRow = SamplerRow {
    id: "SamplerDPMAdaptative",
    about: "The DPM-Solver with steps of its own choosing.",
    name: SamplerName::DpmAdaptive,
    options: || {
        let number = |name, default, about| exact(name, default, 100.0).tooltip(about);
        let order = Input::int("order", 3, [2, 3]);
        vec![
            order.tooltip("How many evaluations a step has: 3 is more exact."),
            number(
                "rtol",
                0.05,
                "Allowed error in proportion to the latent; lower makes more and smaller steps.",
            ),
            number(
                "atol",
                0.0078,
                "Allowed error in any case; lower makes more and smaller steps.",
            ),
            number("h_init", 0.05, "Size of the first step."),
            number(
                "pcoeff",
                0.0,
                "How much the present error changes the size of steps.",
            ),
            number(
                "icoeff",
                1.0,
                "How much the sum of errors changes the size of steps.",
            ),
            number(
                "dcoeff",
                0.0,
                "How much the change of errors changes the size of steps.",
            ),
            number(
                "accept_safety",
                0.81,
                "How good a step must be to be kept; higher repeats more steps.",
            ),
            exact("eta", 0.0, 100.0),
            s_noise(),
        ]
    },
    ..ROW
};

pub static SEEDS_2: SamplerRow = SamplerRow {
    id: "SamplerSEEDS2",
    about: "The SEEDS-2 sampler.",
    name: SamplerName::Seeds2,
    options: || {
        let solver = Input::choice("solver_type", &["phi_1", "phi_2"]);
        let solver = solver.tooltip("How a step weighs its two evaluations.");
        let middle = Input::float("r", 0.5, [0.01, 1.0, 0.01]).option("round", false);
        vec![solver, eta(), s_noise(), middle.tooltip(MIDDLE)]
    },
    ..ROW
};

pub static LCM: SamplerRow = SamplerRow {
    id: "SamplerLCM",
    display: Some("SamplerLCM"),
    module: "comfy_extras.nodes_advanced_samplers",
    about: "The LCM sampler with control over the noise of each step.",
    name: SamplerName::Lcm,
    options: || {
        let first = Input::float("s_noise", 1.0, [0.0, 64.0, 0.01]);
        let last = Input::float("s_noise_end", 1.0, [0.0, 64.0, 0.01]);
        let most = Input::float("noise_clip_std", 0.0, [0.0, 10.0, 0.01]);
        vec![
            first
                .tooltip("How much noise the first step adds; 1 is what models were trained with."),
            last.tooltip("How much noise the last step adds."),
            most.tooltip("Noise is cut off beyond so many standard deviations; 0 cuts nothing."),
        ]
    },
    ..ROW
};

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
    /// How noise comes in: as in ER-SDE, as in the reverse-time equation, or not at all.
    #[input(choices = ["ER-SDE", "Reverse-time SDE", "ODE"])]
    solver_type: String,
    /// Highest order of a step; higher is more exact.
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
    /// Where in sampling noise begins to be added: 0 is the start, 1 the end.
    #[input(default = 0.2, min = 0.0, max = 1.0, step = 0.001)]
    sde_start_percent: f64,
    /// Where in sampling noise ceases to be added: 0 is the start, 1 the end.
    #[input(default = 0.8, min = 0.0, max = 1.0, step = 0.001)]
    sde_end_percent: f64,
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01, round = false)]
    s_noise: f64,
    /// How many earlier steps the prediction uses.
    #[input(default = 3, min = 1, max = 6)]
    predictor_order: i64,
    /// How many earlier steps the correction uses; 0 corrects nothing.
    #[input(default = 4, min = 0, max = 6)]
    corrector_order: i64,
    /// Evaluates again after the correction: more exact, twice as slow.
    use_pece: bool,
    /// Uses the simpler formula for steps of order 2.
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
    /// Factor of width and height at the end.
    #[input(default = 1.0, min = 0.1, max = 20.0, step = 0.01)]
    scale_ratio: f64,
    /// In how many steps the latent grows; -1 in all.
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
    /// The form of the update: as published, or an alternative.
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
