//! From a prompt as sent to one that may run. Collects every problem; never recurses, so a chain of any length is fine.

use std::collections::HashSet;
use std::sync::Arc;

use indexmap::IndexMap;

use crate::dynamic::{Declared, last_segment};
use crate::json::{python_repr, python_text};
use crate::types::{coerce, input_config, number_text, python_type, types_match};
use crate::{
    Args, Cx, Input, InputGroup, Link, LinkQuestion, LinkSources, Listings, Map, NodeError,
    NodeRegistry, PromptClass, PromptClasses, Resources, ValidatorInputs, Value, Verdict, map,
};

/// Steps spent on telling exactly which outputs depend on which problem.
const REPORT_STEPS: usize = 1_000_000;

/// One problem, in the reference's shape.
#[derive(Clone, Debug)]
pub struct Problem {
    pub kind: &'static str,
    pub message: String,
    pub details: String,
    pub extra_info: Map,
}

/// Problems of one node.
#[derive(Clone, Debug)]
pub struct NodeProblems {
    pub errors: Vec<Problem>,
    pub dependent_outputs: Vec<Arc<str>>,
    pub class: Arc<str>,
}

pub type ProblemsByNode = IndexMap<Arc<str>, NodeProblems>;

/// The prompt cannot run at all.
#[derive(Clone, Debug)]
pub struct PromptError {
    /// Boxed: errors travel by value through every caller.
    pub problem: Box<Problem>,
    pub nodes: ProblemsByNode,
    /// The class that nobody here knows, where that is the problem.
    pub unknown_class: Option<Arc<str>>,
}

impl PromptError {
    pub fn new(kind: &'static str, message: impl Into<String>, details: impl Into<String>) -> Self {
        let problem = Problem {
            kind,
            message: message.into(),
            details: details.into(),
            extra_info: Map::new(),
        };
        Self {
            problem: Box::new(problem),
            nodes: ProblemsByNode::new(),
            unknown_class: None,
        }
    }
}

impl std::fmt::Display for PromptError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Problem {
            message, details, ..
        } = &*self.problem;
        if details.is_empty() {
            write!(f, "{message}")?;
        } else {
            // Messages of the reference are sentences with a full stop.
            write!(f, "{}: {details}", message.trim_end_matches('.'))?;
        }
        for (id, node) in &self.nodes {
            for e in &node.errors {
                write!(
                    f,
                    "\n  node {id} ({}): {}: {}",
                    node.class, e.message, e.details
                )?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for PromptError {}

/// A prompt whose listed outputs may run.
#[derive(Clone, Debug)]
pub struct ValidPrompt {
    /// The prompt with literals unwrapped and coerced in place.
    pub prompt: Arc<Map>,
    /// Good output nodes, in prompt order.
    pub outputs: Vec<Arc<str>>,
    /// Problems of outputs that were dropped.
    pub problems: ProblemsByNode,
}

/// Sizes a prompt may have.
#[derive(Clone, Copy, Debug)]
pub struct PromptLimits {
    pub nodes: usize,
    /// Inputs over all nodes.
    pub inputs: usize,
}

impl Default for PromptLimits {
    fn default() -> Self {
        Self {
            nodes: 100_000,
            inputs: 1_000_000,
        }
    }
}

/// What validation needs to know.
pub struct Rules<'a> {
    /// As it is now; all of the prompt is checked against it.
    pub registry: &'a Arc<NodeRegistry>,
    pub listings: &'a dyn Listings,
    pub resources: &'a Arc<Resources>,
    pub limits: PromptLimits,
}

impl Rules<'_> {
    /// Checks a whole prompt; with `targets` only those output nodes count.
    pub fn validate(
        &self,
        mut prompt: Map,
        targets: Option<&[Arc<str>]>,
    ) -> Result<ValidPrompt, PromptError> {
        self.check_size(&prompt)?;
        let classes = PromptClasses::new(self.registry.clone());
        let targets: Option<HashSet<&str>> = targets.map(|t| t.iter().map(AsRef::as_ref).collect());
        let mut outputs = Vec::new();
        for (id, node) in &prompt {
            let class = class_of(&classes, id, node)?;
            if class.schema.output_node && targets.as_ref().is_none_or(|t| t.contains(&**id)) {
                outputs.push(id.clone());
            }
        }
        if outputs.is_empty() {
            return Err(PromptError::new(
                "prompt_no_outputs",
                "Prompt has no outputs",
                "",
            ));
        }

        let mut walk = Walk {
            rules: self,
            classes: &classes,
            prompt: &mut prompt,
            done: IndexMap::new(),
            on_path: HashSet::new(),
        };
        let mut good = Vec::new();
        let mut bad = Vec::new();
        for id in outputs {
            if walk.output(&id) {
                good.push(id);
            } else {
                bad.push(id);
            }
        }
        let problems = walk.report(&bad);
        if good.is_empty() {
            let lines: Vec<String> = bad
                .iter()
                .filter_map(|id| problems.get(id))
                .flat_map(|n| {
                    n.errors
                        .iter()
                        .map(|e| format!("{}: {}", e.message, e.details))
                })
                .collect();
            let mut error = PromptError::new(
                "prompt_outputs_failed_validation",
                "Prompt outputs failed validation",
                lines.join("\n"),
            );
            error.nodes = problems;
            return Err(error);
        }
        Ok(ValidPrompt {
            prompt: Arc::new(prompt),
            outputs: good,
            problems,
        })
    }

    fn check_size(&self, prompt: &Map) -> Result<(), PromptError> {
        let too_large = |what: &str, n: usize, limit: usize| {
            PromptError::new(
                "invalid_prompt",
                format!("Cannot execute because the prompt has too many {what}."),
                format!("{n} {what}, the limit is {limit}"),
            )
        };
        if prompt.len() > self.limits.nodes {
            return Err(too_large("nodes", prompt.len(), self.limits.nodes));
        }
        let inputs = prompt
            .values()
            .filter_map(|n| n.get("inputs")?.as_map())
            .map(Map::len)
            .sum();
        if inputs > self.limits.inputs {
            return Err(too_large("inputs", inputs, self.limits.inputs));
        }
        Ok(())
    }
}

fn class_of(
    classes: &PromptClasses,
    id: &str,
    node: &Value,
) -> Result<Arc<PromptClass>, PromptError> {
    let details = || format!("Node ID '#{id}'");
    let Some(class) = node.get("class_type") else {
        let message = "Cannot execute because a node is missing the class_type property.";
        return Err(PromptError::new("invalid_prompt", message, details()));
    };
    class
        .as_str()
        .and_then(|name| classes.get(name))
        .ok_or_else(|| {
            let message = format!(
                "Cannot execute because node {} does not exist.",
                python_text(class)
            );
            PromptError {
                unknown_class: class.as_str().map(Into::into),
                ..PromptError::new("invalid_prompt", message, details())
            }
        })
}

/// Outcome of one node.
#[derive(Default)]
struct Checked {
    valid: bool,
    errors: Vec<Problem>,
}

/// A node whose inputs are being looked at.
struct Frame {
    id: Arc<str>,
    class: Arc<PromptClass>,
    validator: Option<Arc<ValidatorInputs>>,
    /// Declared inputs by dotted name, owned so that the prompt can be changed meanwhile.
    inputs: Vec<Input>,
    next: usize,
    result: Checked,
    received_types: Map,
    sources: LinkSources,
}

/// The link being followed from the frame below the top.
struct Via {
    input: Input,
    link: Link,
}

/// What Python would have raised.
struct Raised {
    kind: String,
    message: String,
}

impl From<&NodeError> for Raised {
    fn from(error: &NodeError) -> Self {
        Self::new(error.kind(), error.message())
    }
}

impl Raised {
    fn new(kind: &str, message: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            message: message.into(),
        }
    }
}

enum WalkStep {
    Done,
    Follow(Box<Via>),
}

struct Walk<'a, 'r> {
    rules: &'a Rules<'r>,
    classes: &'a PromptClasses,
    prompt: &'a mut Map,
    done: IndexMap<Arc<str>, Checked>,
    on_path: HashSet<Arc<str>>,
}

impl Walk<'_, '_> {
    /// Checks one output and everything it depends on.
    fn output(&mut self, id: &Arc<str>) -> bool {
        if let Some(known) = self.done.get(id) {
            return known.valid;
        }
        let mut stack: Vec<(Frame, Option<Via>)> = Vec::new();
        match self.open(id) {
            Ok(frame) => stack.push((frame, None)),
            Err(raised) => {
                self.done.insert(id.clone(), raised_at_output(raised));
                return false;
            }
        }
        while let Some((frame, _)) = stack.last_mut() {
            match self.advance(frame) {
                Ok(WalkStep::Follow(via)) => {
                    if let Some(known) = self.done.get(&via.link.node) {
                        frame.result.valid &= known.valid;
                    } else if self.on_path.contains(&via.link.node) {
                        // A cycle: everything on the way is invalid, nobody in particular is to blame.
                        frame.result.valid = false;
                    } else {
                        match self.open(&via.link.node) {
                            Ok(inner) => stack.push((inner, Some(*via))),
                            Err(raised) => {
                                frame.result.valid = false;
                                let problem = raised_inside(raised, &via, self.rules.listings);
                                self.done.insert(via.link.node.clone(), problem);
                            }
                        }
                    }
                }
                Ok(WalkStep::Done) => {
                    let (frame, _) = stack.pop().expect("the loop condition saw a frame");
                    self.close(frame.id, frame.result, &mut stack);
                }
                Err(raised) => {
                    let (frame, via) = stack.pop().expect("the loop condition saw a frame");
                    let result = match via {
                        Some(via) => raised_inside(raised, &via, self.rules.listings),
                        None => raised_at_output(raised),
                    };
                    self.close(frame.id, result, &mut stack);
                }
            }
        }
        self.done.get(id).is_some_and(|c| c.valid)
    }

    fn close(&mut self, id: Arc<str>, result: Checked, stack: &mut [(Frame, Option<Via>)]) {
        if let Some((parent, _)) = stack.last_mut() {
            parent.result.valid &= result.valid;
        }
        self.on_path.remove(&id);
        self.done.insert(id, result);
    }

    fn node(&self, id: &str) -> Result<&Map, Raised> {
        self.prompt
            .get(id)
            .and_then(Value::as_map)
            .ok_or_else(|| Raised::new("KeyError", python_repr(&id.into())))
    }

    fn inputs(&self, id: &str) -> Result<&Map, Raised> {
        self.node(id)?
            .get("inputs")
            .and_then(Value::as_map)
            .ok_or_else(|| Raised::new("KeyError", "'inputs'"))
    }

    fn open(&mut self, id: &Arc<str>) -> Result<Frame, Raised> {
        let class = self.source_class(id)?;
        let supplied = self.inputs(id)?;
        let inputs = Declared::new(&class.schema, supplied)
            .inputs()
            .cloned()
            .collect();
        self.on_path.insert(id.clone());
        let result = Checked {
            valid: true,
            errors: Vec::new(),
        };
        Ok(Frame {
            id: id.clone(),
            validator: class.class.validator(),
            class,
            inputs,
            next: 0,
            result,
            received_types: Map::new(),
            sources: LinkSources::new(),
        })
    }

    fn source_class(&self, id: &str) -> Result<Arc<PromptClass>, Raised> {
        let node = self.node(id)?;
        // Every node's class was looked up before any output is checked.
        let class = node
            .get("class_type")
            .and_then(Value::as_str)
            .and_then(|c| self.classes.get(c))
            .ok_or_else(|| Raised::new("KeyError", "'class_type'"))?;
        match &class.problem {
            Some(problem) => Err(problem.into()),
            None => Ok(class),
        }
    }

    /// Looks at inputs until one has to be followed, then at the class's own validator.
    fn advance(&mut self, frame: &mut Frame) -> Result<WalkStep, Raised> {
        while frame.next < frame.inputs.len() {
            let input = frame.inputs[frame.next].clone();
            frame.next += 1;
            if let Some(via) = self.input(frame, input)? {
                return Ok(WalkStep::Follow(Box::new(via)));
            }
        }
        self.own_validator(frame)?;
        frame.result.valid &= frame.result.errors.is_empty();
        Ok(WalkStep::Done)
    }

    /// Checks one declared input. Gives the link to follow, if it is a good one.
    fn input(&mut self, frame: &mut Frame, input: Input) -> Result<Option<Via>, Raised> {
        let listings = self.rules.listings;
        let validator = frame.validator.clone();
        let Some(value) = self.inputs(&frame.id)?.get(&input.name).cloned() else {
            if input.group == InputGroup::Required {
                let details = if frame.class.schema.form == crate::Form::V3 {
                    last_segment(&input.name)
                } else {
                    &input.name
                };
                let extra = map! {"input_name" => &input.name};
                frame.add(
                    "required_input_missing",
                    "Required input is missing",
                    details,
                    extra,
                );
            }
            return Ok(None);
        };
        if let Value::List(items) = &value {
            let [source, slot] = items.as_slice() else {
                let message = "Bad linked input, must be a length-2 list of [node_id, slot_index]";
                let extra = map! {
                    "input_name" => &input.name,
                    "input_config" => input_config(&input, listings),
                    "received_value" => value.clone(),
                };
                frame.add("bad_linked_input", message, &input.name, extra);
                return Ok(None);
            };
            let own_types = validator.is_some_and(|v| v.input_types);
            return self.link(frame, input, source, slot, own_types);
        }
        self.literal(
            frame,
            &input,
            value,
            validator.is_some_and(|v| v.takes(&input.name)),
        )?;
        Ok(None)
    }

    fn link(
        &mut self,
        frame: &mut Frame,
        input: Input,
        source: &Value,
        slot: &Value,
        own_types: bool,
    ) -> Result<Option<Via>, Raised> {
        let listings = self.rules.listings;
        let id: Arc<str> = match source {
            Value::Str(s) => s.clone(),
            Value::List(_) | Value::Map(_) => {
                let message = format!("unhashable type: '{}'", python_type(source));
                return Err(Raised::new("TypeError", message));
            }
            other => return Err(Raised::new("KeyError", python_repr(other))),
        };
        let class = self.source_class(&id)?;
        let outputs = &class.schema.outputs;
        let Value::List(pair) = Value::from(vec![source.clone(), slot.clone()]) else {
            unreachable!("just built")
        };
        let link = Value::List(pair).as_link();
        // Python counts negative slots from the end.
        let index = link.as_ref().map(|l| {
            if l.slot < 0 {
                l.slot + outputs.len() as i64
            } else {
                l.slot
            }
        });
        let (Some(link), Some(index)) = (link, index) else {
            let message = format!(
                "{} indices must be integers or slices, not {}",
                sequence(class.schema.form),
                python_type(slot)
            );
            return Err(Raised::new("TypeError", message));
        };
        let Some(output) = usize::try_from(index).ok().and_then(|i| outputs.get(i)) else {
            let message = format!("{} index out of range", sequence(class.schema.form));
            return Err(Raised::new("IndexError", message));
        };
        let received = output.ty.to_value(listings);
        let source_name = self
            .node(&id)?
            .get("class_type")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let target_name = self
            .node(&frame.id)?
            .get("class_type")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let question = LinkQuestion {
            source: source_name,
            slot: usize::try_from(index).unwrap_or_default(),
            received: &output.ty,
            target: target_name,
            input: &input.name,
            declared: &input.ty,
        };
        let by_own_rules = || {
            let asked = frame.class.class.matches(&question);
            asked.or_else(|| class.class.matches(&question)) == Some(true)
        };
        let fits = own_types || by_own_rules() || types_match(&output.ty, &input.ty, listings);
        let from: (Arc<str>, usize) = (source_name.into(), question.slot);
        if !fits {
            let declared = input.ty.to_value(listings);
            let details = format!(
                "{}, received_type({}) mismatch input_type({})",
                input.name,
                python_text(&received),
                python_text(&declared)
            );
            let extra = map! {
                "input_name" => &input.name,
                "input_config" => input_config(&input, listings),
                "received_type" => received,
                "linked_node" => link.to_value(),
            };
            frame.add(
                "return_type_mismatch",
                "Return type mismatch between linked nodes",
                &details,
                extra,
            );
            return Ok(None);
        }
        frame.received_types.insert(input.name.clone(), received);
        frame.sources.insert(input.name.clone(), from);
        Ok(Some(Via { input, link }))
    }

    fn literal(
        &mut self,
        frame: &mut Frame,
        input: &Input,
        value: Value,
        own: bool,
    ) -> Result<(), Raised> {
        let listings = self.rules.listings;
        let mut value = value;
        let mut changed = false;
        if let Some(inner) = value.get("__value__") {
            value = inner.clone();
            self.store(&frame.id, &input.name, value.clone());
        }
        if let Some(declared) = input.ty.name() {
            match coerce(declared, &value) {
                Ok(Some(v)) => {
                    changed |= !identical(&v, &value);
                    value = v;
                }
                Ok(None) => {}
                Err(e) => {
                    let details = format!("{}, {}, {}", input.name, python_text(&value), e.0);
                    let extra = map! {
                        "input_name" => &input.name,
                        "input_config" => input_config(input, listings),
                        "received_value" => value,
                        "exception_message" => e.0,
                    };
                    let message = format!("Failed to convert an input value to a {declared} value");
                    frame.add("invalid_input_type", &message, &details, extra);
                    return Ok(());
                }
            }
        }
        if changed {
            self.store(&frame.id, &input.name, value.clone());
        }
        if own {
            return Ok(());
        }
        let extra = |value: &Value, config: Value| {
            map! {"input_name" => &input.name, "input_config" => config, "received_value" => value.clone()}
        };
        for (bound, kind, word, sign) in [
            ("min", "value_smaller_than_min", "smaller than min", '<'),
            ("max", "value_bigger_than_max", "bigger than max", '>'),
        ] {
            if let Some(limit) = input.options.get(bound)
                && beyond(&value, sign, limit)?
            {
                let message = format!(
                    "Value {} {word} of {}",
                    number_text(&value),
                    number_text(limit)
                );
                frame.add(
                    kind,
                    &message,
                    &input.name,
                    extra(&value, input_config(input, listings)),
                );
                return Ok(());
            }
        }
        let lacks = |entries: &Arc<Vec<Value>>| !entries.iter().any(|e| e.same(&value));
        let lacking = input.entries(listings).filter(lacks);
        let lacking = lacking.map(|old| input.renewed_entries(listings).unwrap_or(old));
        if let Some(entries) = lacking.filter(lacks) {
            let (list, config) = if entries.len() > 20 {
                (format!("(list of length {})", entries.len()), Value::Null)
            } else {
                (
                    python_repr(&Value::List(entries)),
                    input_config(input, listings),
                )
            };
            let mut details = format!("{}: '{}' not in {list}", input.name, python_text(&value));
            if let Some(trouble) = input.trouble(listings) {
                details.push_str("; ");
                details.push_str(&trouble);
            }
            frame.add(
                "value_not_in_list",
                "Value not in list",
                &details,
                extra(&value, config),
            );
        }
        Ok(())
    }

    fn store(&mut self, id: &str, name: &str, value: Value) {
        if let Some(Value::Map(node)) = self.prompt.get_mut(id)
            && let Some(Value::Map(inputs)) = Arc::make_mut(node).get_mut("inputs")
            && let Some(slot) = Arc::make_mut(inputs).get_mut(name)
        {
            *slot = value;
        }
    }

    fn own_validator(&mut self, frame: &mut Frame) -> Result<(), Raised> {
        let Some(validator) = frame.validator.clone() else {
            return Ok(());
        };
        let mut args = Map::new();
        for (name, value) in self.inputs(&frame.id)? {
            let declared = frame.inputs.iter().find(|i| i.name == *name);
            let is_link = value.as_link().is_some() && !declared.is_some_and(|i| i.raw_link);
            let taken = declared.is_some() || frame.class.schema.catch_all.is_some();
            if validator.takes(name) && (is_link || taken) {
                args.insert(
                    name.clone(),
                    if is_link { Value::Null } else { value.clone() },
                );
            }
        }
        let mut kept: Vec<Arc<str>> = args.keys().cloned().collect();
        if kept.is_empty() && validator.input_types {
            // Somebody has to be blamed.
            kept.push("input_types".into());
        }
        let mut cx = Cx::detached(self.rules.resources.clone());
        cx.node_id = frame.id.clone();
        let class = &frame.class.class;
        let verdict = class
            .validate_linked(Args(args), &frame.received_types, &frame.sources, &cx)
            .map_err(|error| Raised::from(&error))?;
        let blamed: Vec<(Arc<str>, String)> = match verdict {
            Verdict::Ok => return Ok(()),
            Verdict::Rejected => kept.into_iter().map(|n| (n, String::new())).collect(),
            Verdict::Because(text) => {
                let all = kept.into_iter();
                all.map(|name| (name, format!(" - {text}"))).collect()
            }
            Verdict::Inputs(inputs) => {
                let each = inputs.into_iter();
                each.map(|(name, text)| (name, format!(" - {text}")))
                    .collect()
            }
        };
        for (name, suffix) in blamed {
            let extra = map! {"input_name" => &name};
            frame.add(
                "custom_validation_failed",
                "Custom validation failed for node",
                &format!("{name}{suffix}"),
                extra,
            );
        }
        Ok(())
    }

    /// Problems by node, each with the failed outputs that really depend on it.
    ///
    /// Thousands of outputs at the end of a long broken chain would cost their product, in time and in the answer. Beyond
    /// a budget each node is listed under the first output that reaches it.
    fn report(self, bad: &[Arc<str>]) -> ProblemsByNode {
        let mut problems = ProblemsByNode::new();
        let mut budget = REPORT_STEPS;
        let mut shared: HashSet<Arc<str>> = HashSet::new();
        for output in bad {
            if budget > 0 {
                let mut seen = HashSet::new();
                let steps = self.blame(output, &mut seen, &mut problems);
                budget = budget.saturating_sub(steps);
                shared.extend(seen);
            } else {
                self.blame(output, &mut shared, &mut problems);
            }
        }
        problems
    }

    /// Adds `output` to the problems of all invalid nodes it depends on that are not in `seen`; returns the steps taken.
    fn blame(
        &self,
        output: &Arc<str>,
        seen: &mut HashSet<Arc<str>>,
        problems: &mut ProblemsByNode,
    ) -> usize {
        let mut steps = 0;
        if !seen.insert(output.clone()) {
            return steps;
        }
        let mut todo = vec![output.clone()];
        while let Some(id) = todo.pop() {
            steps += 1;
            let Some(checked) = self.done.get(&id).filter(|c| !c.valid) else {
                continue;
            };
            if !checked.errors.is_empty() {
                let class = self
                    .prompt
                    .get(&id)
                    .and_then(|n| n.get("class_type")?.as_str())
                    .unwrap_or("");
                problems
                    .entry(id.clone())
                    .or_insert_with(|| NodeProblems {
                        errors: checked.errors.clone(),
                        dependent_outputs: Vec::new(),
                        class: class.into(),
                    })
                    .dependent_outputs
                    .push(output.clone());
            }
            let inputs = self.prompt.get(&id).and_then(|n| n.get("inputs")?.as_map());
            for link in inputs
                .into_iter()
                .flat_map(Map::values)
                .filter_map(Value::as_link)
            {
                steps += 1;
                if seen.insert(link.node.clone()) {
                    todo.push(link.node);
                }
            }
        }
        steps
    }
}

impl Frame {
    fn add(&mut self, kind: &'static str, message: &str, details: &str, extra_info: Map) {
        self.result.errors.push(Problem {
            kind,
            message: message.into(),
            details: details.into(),
            extra_info,
        });
    }
}

/// Same kind and same value; `1` and `1.0` are not identical, so that a coerced literal is stored back.
fn identical(a: &Value, b: &Value) -> bool {
    std::mem::discriminant(a) == std::mem::discriminant(b) && a.same(b)
}

/// What Python keeps the outputs of a class in.
fn sequence(form: crate::Form) -> &'static str {
    match form {
        crate::Form::V1 => "tuple",
        crate::Form::V3 => "list",
    }
}

/// `value < limit` or `value > limit` for numbers, as Python has it; anything else raises.
fn beyond(value: &Value, sign: char, limit: &Value) -> Result<bool, Raised> {
    use std::cmp::Ordering::{Greater, Less};
    let order = if let (Value::Int(a), Value::Int(b)) = (value, limit) {
        Some(a.cmp(b))
    } else if let (Some(a), Some(b)) = (value.as_f64(), limit.as_f64()) {
        // None for NaN, which is neither smaller nor bigger.
        a.partial_cmp(&b)
    } else {
        let message = format!(
            "'{sign}' not supported between instances of '{}' and '{}'",
            python_type(value),
            python_type(limit)
        );
        return Err(Raised::new("TypeError", message));
    };
    Ok(order == Some(if sign == '<' { Less } else { Greater }))
}

fn raised_at_output(raised: Raised) -> Checked {
    let extra = map! {
        "exception_type" => raised.kind.clone(),
        "traceback" => vec![format!("{}: {}", raised.kind, raised.message)],
    };
    let problem = Problem {
        kind: "exception_during_validation",
        message: "Exception when validating node".into(),
        details: raised.message,
        extra_info: extra,
    };
    Checked {
        valid: false,
        errors: vec![problem],
    }
}

fn raised_inside(raised: Raised, via: &Via, listings: &dyn Listings) -> Checked {
    let extra = map! {
        "input_name" => &via.input.name,
        "input_config" => input_config(&via.input, listings),
        "exception_message" => raised.message.clone(),
        "exception_type" => raised.kind.clone(),
        "traceback" => vec![format!("{}: {}", raised.kind, raised.message)],
        "linked_node" => via.link.to_value(),
    };
    let problem = Problem {
        kind: "exception_during_inner_validation",
        message: "Exception when validating inner node".into(),
        details: raised.message,
        extra_info: extra,
    };
    Checked {
        valid: false,
        errors: vec![problem],
    }
}
