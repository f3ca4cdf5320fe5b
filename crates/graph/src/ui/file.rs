//! What somebody hands in, as a prompt: a workflow of the editor, a prompt, a request, or the texts of a picture.

use super::convert::{Converted, WorkflowKind, detect, prompt_of};
use super::defs::NodeDefs;
use super::options::{ConvertError, Options};
use crate::{Map, Value, json};

/// A prompt and where it came from.
#[derive(Clone, Debug)]
pub struct Workflow {
    pub prompt: Map,
    /// The editor's form, if there was one; it travels into saved pictures.
    pub editor: Option<Value>,
    pub warnings: Vec<String>,
}

/// Reads JSON of any kind.
pub fn read(value: &Value, defs: &NodeDefs, options: &Options) -> Result<Workflow, ConvertError> {
    let Converted { prompt, warnings } = prompt_of(value, defs, options)?;
    let editor = match detect(value) {
        WorkflowKind::Ui => Some(value),
        WorkflowKind::Both => value.get("workflow"),
        WorkflowKind::Request => value
            .get("extra_data")
            .and_then(|e| e.get("extra_pnginfo"))
            .and_then(|e| e.get("workflow")),
        WorkflowKind::Api | WorkflowKind::Unknown => None,
    };
    Ok(Workflow {
        prompt,
        editor: editor.filter(|e| detect(e) == WorkflowKind::Ui).cloned(),
        warnings,
    })
}

/// Reads the texts `prompt` and `workflow` of a picture, which usually has both. `prefer_editor`: convert the editor's form
/// instead of taking the prompt that made the picture. None if neither is there.
pub fn read_texts(
    texts: &[(String, String)],
    prefer_editor: bool,
    defs: &NodeDefs,
    options: &Options,
) -> Option<Result<Workflow, ConvertError>> {
    let find = |key: &str| texts.iter().find(|(k, _)| k == key).map(|(_, text)| text);
    let (prompt, workflow) = (find("prompt"), find("workflow"));
    if prompt.is_none() && workflow.is_none() {
        return None;
    }
    // The editor's form may be damaged or of another program; the prompt is then still good, and the other way round.
    let parsed =
        |text: Option<&String>| text.and_then(|t| json::parse_within(t, json::FOREIGN_BYTES).ok());
    let editor = parsed(workflow).filter(|w| detect(w) == WorkflowKind::Ui);
    let api = parsed(prompt).filter(|p| detect(p) == WorkflowKind::Api);
    Some(match (api, editor) {
        (Some(prompt), editor) if !prefer_editor || editor.is_none() => Ok(Workflow {
            prompt: prompt.as_map().cloned().unwrap_or_default(),
            editor,
            warnings: Vec::new(),
        }),
        (_, Some(editor)) => read(&editor, defs, options),
        _ => Err(ConvertError::Unknown),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMPT: &str = r#"{"1":{"class_type":"A","inputs":{}}}"#;
    const EDITOR: &str = r#"{"nodes":[],"links":[],"version":0.4}"#;

    fn read_text(text: &str) -> Result<Workflow, ConvertError> {
        let value = json::parse(text).unwrap();
        read(&value, &NodeDefs::default(), &Options::default())
    }

    #[test]
    fn the_editor_s_form_is_found_wherever_it_is() {
        for (text, nodes, editor) in [
            (PROMPT.to_owned(), 1, false),
            (EDITOR.to_owned(), 0, true),
            (format!("{{\"prompt\":{PROMPT}}}"), 1, false),
            (
                format!(
                    "{{\"prompt\":{PROMPT},\"extra_data\":{{\"extra_pnginfo\":{{\"workflow\":{EDITOR}}}}}}}"
                ),
                1,
                true,
            ),
            (
                format!("{{\"output\":{PROMPT},\"workflow\":{EDITOR}}}"),
                1,
                true,
            ),
            (format!("{{\"output\":{PROMPT},\"workflow\":7}}"), 1, false),
        ] {
            let found = read_text(&text).unwrap();
            assert_eq!(
                (found.prompt.len(), found.editor.is_some()),
                (nodes, editor),
                "{text}"
            );
        }
        for text in ["{}", "[]", "7", r#"{"a":1}"#] {
            assert_eq!(read_text(text).unwrap_err(), ConvertError::Unknown);
        }
    }

    #[test]
    fn a_damaged_text_leaves_the_other() {
        let read = |texts: &[(&str, &str)], prefer| {
            let texts: Vec<(String, String)> = texts
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect();
            let found = read_texts(&texts, prefer, &NodeDefs::default(), &Options::default())?;
            Some(found.map(|w| (w.prompt.len(), w.editor.is_some())))
        };
        let both = [("prompt", PROMPT), ("workflow", EDITOR)];
        assert_eq!(read(&both, false), Some(Ok((1, true))));
        assert_eq!(read(&both, true), Some(Ok((0, true))));
        let damaged = [("prompt", PROMPT), ("workflow", "{")];
        assert_eq!(read(&damaged, true), Some(Ok((1, false))));
        assert_eq!(
            read(&[("prompt", "{")], false),
            Some(Err(ConvertError::Unknown))
        );
        assert_eq!(read(&[("parameters", "x")], false), None);
    }
}
