//! Switches and choices.

use fresco_graph::{
    Args, Cx, Input, Map, Node, NodeEntry, NodeError, NodeOutput, NodeResult, Output, Validator,
    Value, Verdict, entry,
};

pub static NODES: &[NodeEntry] = &[entry::<ComfySwitchNode>(), entry::<CustomCombo>()];

fn branch(name: &str) -> Input {
    Input::match_type(name, "switch", "*").option("lazy", true)
}

/// Passes on one of two inputs; the other is not computed.
#[derive(Node)]
#[node(
    id = "ComfySwitchNode",
    v3,
    module = "comfy_extras.nodes_logic",
    display = "Switch",
    category = "logic",
    outputs(Output::matching("switch", "output")),
    experimental
)]
pub struct ComfySwitchNode {
    /// Which input is passed on.
    switch: bool,
    /// What is passed on while the switch is off.
    #[input(spec = branch("on_false"))]
    on_false: Option<Value>,
    /// What is passed on while the switch is on.
    #[input(spec = branch("on_true"))]
    on_true: Option<Value>,
}

impl Node for ComfySwitchNode {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(if self.switch {
            self.on_true
        } else {
            self.on_false
        }))
    }

    const LAZY: bool = true;
    fn check_lazy(args: Args, _: &Cx) -> Result<Vec<String>, NodeError> {
        let wanted = if args.get("switch").is_some_and(Value::truthy) {
            "on_true"
        } else {
            "on_false"
        };
        let missing = args.get(wanted).is_none_or(Value::is_null);
        Ok(missing.then(|| wanted.to_owned()).into_iter().collect())
    }
}

/// A choice among entries that the user writes into the node; what was chosen comes out as text.
#[derive(Node)]
#[node(
    id = "CustomCombo",
    v3,
    module = "comfy_extras.nodes_logic",
    display = "Custom Combo",
    category = "utils",
    outputs("STRING"),
    experimental
)]
pub struct CustomCombo {
    /// The entry that is chosen.
    #[input(choices = [""; 0])]
    choice: String,
}

impl Node for CustomCombo {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(self.choice))
    }

    // The entries live in the front-end, so none is wrong here.
    const VALIDATOR: Option<Validator> = Some(Validator {
        params: &["choice"],
        all: false,
        input_types: false,
    });
    fn validate(_: Args, _: &Map, _: &Cx) -> Result<Verdict, NodeError> {
        Ok(Verdict::Ok)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fresco_graph::{Resources, map};

    use super::*;

    #[test]
    fn the_switch_asks_for_its_branch_only() {
        let cx = Cx::detached(Arc::new(Resources::default()));
        let ask = |args: Map| ComfySwitchNode::check_lazy(Args(args), &cx).unwrap();
        assert_eq!(ask(map! {"switch" => true}), ["on_true"]);
        assert_eq!(ask(map! {"switch" => false, "on_true" => 1}), ["on_false"]);
        assert!(ask(map! {"switch" => true, "on_true" => 1}).is_empty());
    }
}
