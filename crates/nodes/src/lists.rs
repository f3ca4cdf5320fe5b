//! Lists on links: made of single values, and taken apart again.

use fresco_graph::{
    Cx, Grown, Input, Node, NodeEntry, NodeError, NodeOutput, NodeResult, Output, Value, entry,
};

pub static NODES: &[NodeEntry] = &[entry::<CreateList>(), entry::<GetItemFromList>()];

fn list_inputs() -> Input {
    Input::autogrow(
        "inputs",
        Input::match_type("input", "type", "*").tooltip("A value of the list."),
        "input",
        1,
        100,
    )
}

/// Puts all values of its inputs into one list, in their order.
#[derive(Node)]
#[node(
    id = "CreateList",
    v3,
    module = "comfy_extras.nodes_logic",
    display = "Create List",
    category = "logic",
    outputs(Output::matching("type", "list").list()),
    input_is_list
)]
pub struct CreateList {
    /// The values, in this order; as many as are connected.
    #[input(spec = list_inputs())]
    inputs: Grown<Vec<Value>>,
}

impl Node for CreateList {
    fn run(self, _: &Cx) -> NodeResult {
        let all: Vec<Value> = self.inputs.0.into_iter().flatten().collect();
        Ok(NodeOutput::one(all))
    }
}

/// Takes one value out of a list.
#[derive(Node)]
#[node(
    id = "GetItemFromList",
    v3,
    module = "comfy_extras.nodes_logic",
    display = "GetItemFromList",
    category = "logic",
    outputs("*"),
    input_is_list
)]
pub struct GetItemFromList {
    /// The list to take from.
    #[input(ty = "*")]
    list: Vec<Value>,
    /// Its place: 0 is the first; negative ones count from the end.
    #[input(default = 0)]
    index: Vec<i64>,
}

impl Node for GetItemFromList {
    fn run(self, _: &Cx) -> NodeResult {
        let index = self.index.first().copied().unwrap_or(0);
        let place = if index < 0 {
            index + self.list.len() as i64
        } else {
            index
        };
        let found = usize::try_from(place).ok().and_then(|i| self.list.get(i));
        found.cloned().map(NodeOutput::one).ok_or_else(|| {
            NodeError::failed(
                "IndexError",
                format!("there is no item {index} in a list of {}", self.list.len()),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use fresco_graph::{Args, NodeSchema, Resources, Slots, map};

    #[test]
    fn items_come_back_by_their_place() {
        let cx = Cx::detached(Arc::new(Resources::default()));
        let inputs = map! {"input0" => vec![1, 2], "input1" => vec![3]};
        let node = CreateList::from_args(Args(map! {"inputs" => inputs})).unwrap();
        let Slots::Values(list) = node.run(&cx).unwrap().slots else {
            panic!("no value");
        };
        assert_eq!(list, [Value::from(vec![1, 2, 3])]);
        for (index, wanted) in [
            (0, Some(1)),
            (2, Some(3)),
            (-1, Some(3)),
            (3, None),
            (-4, None),
        ] {
            let args = map! {"list" => list[0].clone(), "index" => vec![index]};
            let node = GetItemFromList::from_args(Args(args)).unwrap();
            let out = node.run(&cx).ok().map(|out| match out.slots {
                Slots::Values(values) => values[0].clone(),
                _ => Value::Null,
            });
            assert_eq!(out, wanted.map(|n: i64| Value::from(n)), "{index}");
        }
    }
}
