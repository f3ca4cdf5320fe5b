//! The columns that job lists filter, sort and show, derived once from a job and its outcome.

use std::sync::Arc;

use fresco_graph::{Map, Value, json};

use super::record::JobStatus;
use crate::job::JobOutcome;

/// `extra_data.extra_pnginfo.workflow.id` as JSON text.
pub(super) fn workflow_id(extra_data: &Map) -> Option<String> {
    let id = extra_data
        .get("extra_pnginfo")?
        .get("workflow")?
        .get("id")?;
    (!id.is_null()).then(|| json::to_string(id))
}

pub(super) fn create_time(extra_data: &Map) -> Option<i64> {
    milliseconds(extra_data.get("create_time")?)
}

fn milliseconds(value: &Value) -> Option<i64> {
    match value {
        Value::Int(i) => i64::try_from(*i).ok(),
        Value::Float(f) => Some(*f as i64),
        _ => None,
    }
}

/// What a finished job looks like in a list.
#[derive(Debug, PartialEq)]
pub(super) struct Summary {
    pub(super) status: JobStatus,
    pub(super) start_time: Option<i64>,
    pub(super) end_time: Option<i64>,
    pub(super) error: Option<String>,
    pub(super) outputs_count: i64,
    pub(super) previewable_count: i64,
    pub(super) preview_output: Option<String>,
}

impl Summary {
    pub(super) fn of(outcome: &JobOutcome) -> Self {
        let mut summary = Self {
            status: (&outcome.end).into(),
            start_time: None,
            end_time: None,
            error: None,
            outputs_count: 0,
            previewable_count: 0,
            preview_output: None,
        };
        summary.read_messages(&outcome.messages);
        summary.read_outputs(&outcome.outputs);
        summary
    }

    fn read_messages(&mut self, messages: &[Value]) {
        for message in messages {
            let Some([Value::Str(event), data]) = message.as_list() else {
                continue;
            };
            let time = || data.get("timestamp").and_then(milliseconds);
            match &**event {
                "execution_start" => self.start_time = time(),
                "execution_success" | "execution_interrupted" => self.end_time = time(),
                "execution_error" => {
                    self.end_time = time();
                    self.error = Some(json::to_string(data));
                }
                _ => {}
            }
        }
    }

    fn read_outputs(&mut self, outputs: &Map) {
        let mut fallback = None;
        let mut chosen = None;
        for (node, output) in outputs {
            let Some(output) = output.as_map() else {
                continue;
            };
            for (media, items) in output {
                if &**media == "animated" {
                    continue;
                }
                for item in items.as_list().unwrap_or_default() {
                    let Some(item) = item.as_map() else {
                        continue;
                    };
                    self.outputs_count += 1;
                    if !previewable(media, item) {
                        continue;
                    }
                    self.previewable_count += 1;
                    let saved = item.get("type").and_then(Value::as_str) == Some("output");
                    if saved && chosen.is_none() {
                        chosen = Some((node, media, item));
                    } else if fallback.is_none() {
                        fallback = Some((node, media, item));
                    }
                }
            }
        }
        self.preview_output = chosen.or(fallback).map(|(node, media, item)| {
            let mut shown = item.clone();
            shown.insert(Arc::from("nodeId"), node.into());
            shown.insert(Arc::from("mediaType"), media.into());
            json::to_string(&shown.into())
        });
    }
}

fn previewable(media: &str, item: &Map) -> bool {
    if matches!(media, "images" | "video" | "audio") {
        return true;
    }
    let text = |key| item.get(key).and_then(Value::as_str).unwrap_or_default();
    let format = text("format");
    if format.starts_with("video/") || format.starts_with("audio/") {
        return true;
    }
    let name = text("filename").to_lowercase();
    [".obj", ".fbx", ".gltf", ".glb"]
        .iter()
        .any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobEnd;

    #[track_caller]
    fn outputs(text: &str, count: i64, previewable: i64, preview: Option<&str>) {
        let outcome = JobOutcome {
            outputs: json::parse(text).unwrap().as_map().unwrap().clone(),
            ..JobEnd::Finished.into()
        };
        let summary = Summary::of(&outcome);
        assert_eq!(summary.outputs_count, count, "{text}");
        assert_eq!(summary.previewable_count, previewable, "{text}");
        assert_eq!(summary.preview_output.as_deref(), preview, "{text}");
    }

    #[test]
    fn counts_outputs_and_prefers_saved_ones() {
        outputs("{}", 0, 0, None);
        outputs(r#"{"1":{"text":["a","b"]}}"#, 0, 0, None);
        outputs(
            r#"{"1":{"images":[{"filename":"a"}],"animated":[{"x":1}]}}"#,
            1,
            1,
            Some(r#"{"filename":"a","nodeId":"1","mediaType":"images"}"#),
        );
        outputs(
            r#"{"1":{"images":[{"type":"temp"}]},"2":{"other":[{"a":1}],"audio":[{"type":"output"}]}}"#,
            3,
            2,
            Some(r#"{"type":"output","nodeId":"2","mediaType":"audio"}"#),
        );
        outputs(
            r#"{"1":{"3d":[{"filename":"A.GLB"}],"gifs":[{"format":"video/mp4"}],"x":[{"format":"image/png"}]}}"#,
            3,
            2,
            Some(r#"{"filename":"A.GLB","nodeId":"1","mediaType":"3d"}"#),
        );
        outputs(r#"{"1":null,"2":{"images":"none"}}"#, 0, 0, None);
    }
}
