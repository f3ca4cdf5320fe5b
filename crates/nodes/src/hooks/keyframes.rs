//! Keyframes: from which part of sampling on a hook has which strength.

use fresco_graph::{
    Cx, FromValue, Node, NodeError, NodeOutput, NodeResult, Opaque, Output, Value, wrong_kind,
};

use crate::python_rules::linspace;

/// From `start_percent` of sampling on the hook's strength is multiplied by `strength`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HookKeyframe {
    pub strength: f64,
    pub start_percent: f64,
    /// It is in force for at least this many steps, whatever the next one says.
    pub guarantee_steps: u32,
}

/// HOOK_KEYFRAMES: by start, those of the same start in the order they were added.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HookKeyframes(Vec<HookKeyframe>);

impl HookKeyframes {
    pub fn all(&self) -> &[HookKeyframe] {
        &self.0
    }

    pub fn add(&mut self, keyframe: HookKeyframe) {
        let at = self
            .0
            .partition_point(|k| k.start_percent <= keyframe.start_percent);
        self.0.insert(at, keyframe);
    }

    /// Adds a series; only its first keyframe is sure of a step of its own.
    fn add_series(&mut self, series: impl IntoIterator<Item = (f64, f64)>, log: bool) {
        for (i, (strength, start_percent)) in series.into_iter().enumerate() {
            if log {
                tracing::info!("hook keyframe: start_percent {start_percent}, strength {strength}");
            }
            self.add(HookKeyframe {
                strength,
                start_percent,
                guarantee_steps: u32::from(i == 0),
            });
        }
    }
}

impl Opaque for HookKeyframes {
    fn describe(&self) -> String {
        format!("{} hook keyframes", self.0.len())
    }
}

impl FromValue for HookKeyframes {
    const IO: &'static str = "HOOK_KEYFRAMES";
    fn from_value(value: Value) -> Result<Self, String> {
        value
            .downcast::<Self>()
            .cloned()
            .ok_or_else(|| wrong_kind(Self::IO, &value))
    }
}

impl From<HookKeyframes> for Value {
    fn from(v: HookKeyframes) -> Self {
        Self::object(v)
    }
}

/// Sets the strength of hooks from a point of sampling on.
#[derive(Node)]
#[node(id = "CreateHookKeyframe", v1, module = "comfy_extras.nodes_hooks", display = "Create Hook Keyframe", category = "advanced/hooks/scheduling", outputs(Output::new("HOOK_KEYFRAMES").named("HOOK_KF")), experimental)]
pub struct CreateHookKeyframe {
    /// Factor of the hooks' strength from here on.
    #[input(default = 1.0, min = -20.0, max = 20.0, step = 0.01)]
    strength_mult: f64,
    #[input(default = 0.0, min = 0.0, max = 1.0, step = 0.001)]
    start_percent: f64,
    #[input(optional)]
    prev_hook_kf: Option<HookKeyframes>,
}

impl Node for CreateHookKeyframe {
    fn run(self, _: &Cx) -> NodeResult {
        let mut keyframes = self.prev_hook_kf.unwrap_or_default();
        keyframes.add(HookKeyframe {
            strength: self.strength_mult,
            start_percent: self.start_percent,
            guarantee_steps: 1,
        });
        Ok(NodeOutput::one(keyframes))
    }
}

/// `count` values from one number to another, in f32 like the reference's.
fn eased(from: f64, to: f64, count: usize, method: &str) -> Result<Vec<f64>, NodeError> {
    let curve: fn(f32) -> f32 = match method {
        "linear" => {
            let line = linspace(from as f32, to as f32, count);
            return Ok(line.into_iter().map(f64::from).collect());
        }
        "ease_in" => |t| t * t,
        "ease_out" => |t| 1.0 - (1.0 - t) * (1.0 - t),
        "ease_in_out" => |t| (1.0 - (t * std::f32::consts::PI).cos()) / 2.0,
        other => {
            return Err(NodeError::value_error(format!(
                "unknown interpolation '{other}'"
            )));
        }
    };
    let gap = (to - from) as f32;
    Ok(linspace(0.0, 1.0, count)
        .into_iter()
        .map(|t| f64::from(gap * curve(t) + from as f32))
        .collect())
}

/// Keyframes whose strength runs from one value to another.
#[derive(Node)]
#[node(id = "CreateHookKeyframesInterpolated", v1, module = "comfy_extras.nodes_hooks", display = "Create Hook Keyframes Interp.", category = "advanced/hooks/scheduling", outputs(Output::new("HOOK_KEYFRAMES").named("HOOK_KF")), experimental)]
pub struct CreateHookKeyframesInterpolated {
    /// Factor of the hooks' strength at the first keyframe.
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.001)]
    strength_start: f64,
    /// Factor of the hooks' strength at the last keyframe.
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.001)]
    strength_end: f64,
    /// How the strength runs from start to end: evenly, or slower at an end.
    #[input(choices = ["linear", "ease_in", "ease_out", "ease_in_out"])]
    interpolation: String,
    #[input(default = 0.0, min = 0.0, max = 1.0, step = 0.001)]
    start_percent: f64,
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.001)]
    end_percent: f64,
    /// Number of keyframes; more make smaller jumps.
    #[input(default = 5, min = 2, max = 100, step = 1)]
    keyframes_count: i64,
    #[input(default = false)]
    print_keyframes: bool,
    #[input(optional)]
    prev_hook_kf: Option<HookKeyframes>,
}

impl Node for CreateHookKeyframesInterpolated {
    fn run(self, _: &Cx) -> NodeResult {
        let count = self.keyframes_count.clamp(0, 10_000) as usize;
        let starts = eased(self.start_percent, self.end_percent, count, "linear")?;
        let strengths = eased(
            self.strength_start,
            self.strength_end,
            count,
            &self.interpolation,
        )?;
        let mut keyframes = self.prev_hook_kf.unwrap_or_default();
        keyframes.add_series(strengths.into_iter().zip(starts), self.print_keyframes);
        Ok(NodeOutput::one(keyframes))
    }
}

/// Keyframes from a list of strengths.
#[derive(Node)]
#[node(id = "CreateHookKeyframesFromFloats", v1, module = "comfy_extras.nodes_hooks", display = "Create Hook Keyframes From Floats", category = "advanced/hooks/scheduling", outputs(Output::new("HOOK_KEYFRAMES").named("HOOK_KF")), experimental)]
pub struct CreateHookKeyframesFromFloats {
    /// The factors of the hooks' strength, one for each keyframe.
    #[input(ty = "FLOATS", default = -1, min = -1, step = 0.001, forceInput = true)]
    floats_strength: Value,
    #[input(default = 0.0, min = 0.0, max = 1.0, step = 0.001)]
    start_percent: f64,
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.001)]
    end_percent: f64,
    #[input(default = false)]
    print_keyframes: bool,
    #[input(optional)]
    prev_hook_kf: Option<HookKeyframes>,
}

impl Node for CreateHookKeyframesFromFloats {
    fn run(self, _: &Cx) -> NodeResult {
        let strengths = match &self.floats_strength {
            Value::Int(_) | Value::Float(_) => vec![self.floats_strength.clone()],
            Value::List(items) => items.to_vec(),
            other => {
                return Err(NodeError::exception(format!(
                    "floats_strength: {}",
                    wrong_kind("a number or a list of numbers", other)
                )));
            }
        };
        let strengths = strengths
            .into_iter()
            .map(f64::from_value)
            .collect::<Result<Vec<_>, _>>()
            .map_err(NodeError::type_error)?;
        let starts = eased(
            self.start_percent,
            self.end_percent,
            strengths.len(),
            "linear",
        )?;
        let mut keyframes = self.prev_hook_kf.unwrap_or_default();
        keyframes.add_series(strengths.into_iter().zip(starts), self.print_keyframes);
        Ok(NodeOutput::one(keyframes))
    }
}
