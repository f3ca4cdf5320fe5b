//! Prompts that say what is where in the picture.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output, Value, wrong_kind};

/// Adds a table of what is where to a prompt, as FLUX.3 reads it.
#[derive(Node)]
#[node(
    id = "Flux3LayoutPrompt",
    v3,
    module = "comfy_extras.nodes_flux",
    display = "FLUX 3 Image Layout Prompt",
    category = "conditioning",
    outputs(Output::new("STRING").named("prompt"))
)]
pub(super) struct Flux3LayoutPrompt {
    prompt: String,
    /// Boxes with what is in them, as the node that draws boxes gives them.
    #[input(ty = "ARRAY")]
    element: Value,
}

impl Node for Flux3LayoutPrompt {
    fn run(self, _: &Cx) -> NodeResult {
        let Some(elements) = self.element.as_list() else {
            let message = wrong_kind("a list of boxes", &self.element);
            return Err(NodeError::type_error(message));
        };
        let rows: Vec<String> = elements
            .iter()
            .enumerate()
            .map(|(number, element)| row(number + 1, element))
            .collect::<Result<_, _>>()?;
        if rows.is_empty() {
            return Ok(NodeOutput::one(self.prompt));
        }
        let table = format!("| id | box | content |\n|---|---|---|\n{}", rows.join("\n"));
        let prompt = self.prompt.trim_end();
        let joined = if prompt.is_empty() {
            table
        } else {
            format!("{prompt}\n\n{table}")
        };
        Ok(NodeOutput::one(joined))
    }
}

/// One line of the table: what is drawn, and where, in thousandths of the picture from its left upper corner.
fn row(number: usize, element: &Value) -> Result<String, NodeError> {
    let wrong = || {
        NodeError::value_error(format!(
            "box {number} has no bbox of four numbers: top, left, bottom, right"
        ))
    };
    let sides = element
        .get("bbox")
        .and_then(Value::as_list)
        .ok_or_else(wrong)?;
    let sides: Option<Vec<f64>> = sides.iter().map(Value::as_f64).collect();
    let sides = sides.filter(|s| s.len() == 4 && s.iter().all(|v| v.is_finite()));
    let sides = sides.ok_or_else(wrong)?;
    let whole = |v: f64| v.round_ties_even().clamp(0.0, 1000.0) as i64;
    let [top, left, bottom, right] = [0, 1, 2, 3].map(|side| whole(sides[side]));
    // A table has one line for each box.
    let words = |key: &str| {
        let text = element.get(key).and_then(Value::as_str).unwrap_or_default();
        let words: Vec<&str> = text.split_whitespace().collect();
        words.join(" ").replace('|', "/")
    };
    let (about, text) = (words("desc"), words("text"));
    let content = match (about.is_empty(), text.is_empty()) {
        (true, true) => String::new(),
        (false, true) => about,
        (true, false) => format!("\"{text}\""),
        (false, false) => format!("\"{text}\", {about}"),
    };
    Ok(format!(
        "| {number} | {left}, {top}, {right}, {bottom} | {content} |"
    ))
}

#[cfg(test)]
mod tests {
    use fresco_graph::{Map, map};

    use super::*;

    fn element(bounds: [i64; 4], more: Map) -> Value {
        let bounds: Vec<Value> = bounds.into_iter().map(Value::from).collect();
        let mut element = map! {"bbox" => bounds};
        element.extend(more);
        element.into()
    }

    #[test]
    fn boxes_are_lines_of_a_table() {
        let cat = element([100, 200, 300, 400], map! {"desc" => "a cat\nasleep"});
        assert_eq!(
            row(1, &cat).unwrap(),
            "| 1 | 200, 100, 400, 300 | a cat asleep |"
        );
        let sign = element(
            [0, 0, 2000, 500],
            map! {"text" => "Open|now", "desc" => "a sign"},
        );
        assert_eq!(
            row(2, &sign).unwrap(),
            "| 2 | 0, 0, 500, 1000 | \"Open/now\", a sign |"
        );
        assert!(row(3, &map! {"desc" => "nowhere"}.into()).is_err());
        assert!(row(3, &map! {"bbox" => vec![Value::from(1)]}.into()).is_err());
    }
}
