//! `fresco nodes`.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::{Context as _, bail};
use fresco_graph::{Map, Value, json, map};

use crate::assembly::Assembly;
use crate::cli::NodesArgs;
use crate::convert::PRETTY;
use crate::settings::FolderSettings;

pub(crate) fn nodes(args: NodesArgs) -> anyhow::Result<()> {
    let assembly = Assembly::open(&FolderSettings::resolve(args.dirs))?;
    let text = match (&args.class, args.json) {
        (None, true) => pretty(assembly.object_info()),
        (None, false) => table(&assembly.object_info()),
        (Some(class), as_json) => {
            let Some(info) = assembly.node_info(class) else {
                bail!("unknown node '{class}'{}", suggest(&assembly, class));
            };
            if as_json {
                pretty(map! { &**class => info })
            } else {
                page(class, &info)
            }
        }
    };
    std::io::stdout()
        .lock()
        .write_all(text.as_bytes())
        .context("cannot write to standard output")
}

fn pretty(value: Map) -> String {
    let mut text = String::new();
    json::write(&mut text, &value.into(), PRETTY);
    text + "\n"
}

/// Names that are nearly the same.
fn suggest(assembly: &Assembly, class: &str) -> String {
    let wanted = class.to_lowercase();
    let close: Vec<String> = assembly
        .registry
        .snapshot()
        .iter()
        .map(|c| c.schema().id.to_string())
        .filter(|id| {
            let id = id.to_lowercase();
            id.contains(&wanted) || wanted.contains(&id)
        })
        .take(5)
        .collect();
    if close.is_empty() {
        String::new()
    } else {
        format!("; did you mean {}?", close.join(", "))
    }
}

fn text<'a>(info: &'a Value, key: &str) -> &'a str {
    info.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn table(all: &Map) -> String {
    let width = all.keys().map(|k| k.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for (class, info) in all {
        let _ = writeln!(out, "{class:width$}  {}", text(info, "category"));
    }
    out
}

fn page(class: &str, info: &Value) -> String {
    let mut out = format!("{class}: {}\n", text(info, "display_name"));
    for (label, key) in [("category", "category"), ("module", "python_module")] {
        let _ = writeln!(out, "  {label}: {}", text(info, key));
    }
    let description = text(info, "description");
    if !description.is_empty() {
        let _ = writeln!(out, "\n{description}");
    }
    for group in ["required", "optional"] {
        let inputs = info
            .get("input")
            .and_then(|i| i.get(group))
            .and_then(Value::as_map);
        let Some(inputs) = inputs.filter(|i| !i.is_empty()) else {
            continue;
        };
        let _ = writeln!(out, "\n{group} inputs");
        for (name, declared) in inputs {
            let _ = writeln!(out, "  {name}: {}", input(declared));
        }
    }
    let list = |key: &str| info.get(key).and_then(Value::as_list).unwrap_or_default();
    if !list("output").is_empty() {
        out.push_str("\noutputs\n");
        for (i, ty) in list("output").iter().enumerate() {
            let name = list("output_name")
                .get(i)
                .and_then(Value::as_str)
                .unwrap_or_default();
            let _ = writeln!(out, "  {i} {name}: {}", type_text(ty));
        }
    }
    out
}

fn input(declared: &Value) -> String {
    let parts = declared.as_list().unwrap_or_default();
    let mut out = parts.first().map(type_text).unwrap_or_default();
    let Some(options) = parts.get(1).and_then(Value::as_map) else {
        return out;
    };
    if let Some(choices) = options.get("options") {
        let _ = write!(out, " of {}", type_text(choices));
    }
    for key in ["default", "min", "max"] {
        if let Some(value) = options.get(key) {
            let _ = write!(out, ", {key} {}", json::to_string(value));
        }
    }
    if let Some(tooltip) = options.get("tooltip").and_then(Value::as_str) {
        let _ = write!(out, "\n      {tooltip}");
    }
    out
}

/// A type, or the choices of a combo.
fn type_text(ty: &Value) -> String {
    match ty {
        Value::Str(name) => name.to_string(),
        Value::List(choices) => {
            let shown: Vec<String> = choices.iter().take(12).map(json::python_text).collect();
            let more = if choices.len() > 12 {
                format!(", ... ({} in all)", choices.len())
            } else {
                String::new()
            };
            format!("one of {}{more}", shown.join(", "))
        }
        other => json::to_string(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_shown_for_people() {
        let info = json::parse(
            r#"{"input":{"required":{"n":["INT",{"default":1,"max":5,"tooltip":"How many"}],"m":[["a","b"]],
                "c":["COMBO",{"options":["x"]}]},"optional":{}},"output":["IMAGE"],"output_name":["picture"],
                "display_name":"Thing","category":"image","python_module":"nodes","description":"Does."}"#,
        )
        .unwrap();
        let shown = page("Thing1", &info);
        expect_test::expect![[r"
            Thing1: Thing
              category: image
              module: nodes

            Does.

            required inputs
              n: INT, default 1, max 5
                  How many
              m: one of a, b
              c: COMBO of one of x

            outputs
              0 picture: IMAGE
        "]]
        .assert_eq(&shown);
    }
}
