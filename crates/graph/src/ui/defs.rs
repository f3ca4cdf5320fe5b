//! What the converter must know of each node class, read from `/object_info`.

use std::sync::{Arc, Mutex};

use indexmap::IndexMap;

use super::values::{list, text, type_text};
use crate::{Map, Value, lock};

/// Dynamic combos may nest this deep in a definition.
const MAX_NESTING: usize = 16;

/// Widget types without a rule of their own: one stored element, sent as it is.
const OTHER_WIDGETS: [&str; 22] = [
    "AUDIOUPLOAD",
    "AUDIO_RECORD",
    "AUDIO_UI",
    "BOUNDING_BOX",
    "BOUNDING_BOXES",
    "CHART",
    "COLOR",
    "COLORS",
    "CURVE",
    "FILEUPLOAD",
    "GALLERIA",
    "IMAGECOMPARE",
    "IMAGECROP",
    "IMAGEUPLOAD",
    "LOAD_3D",
    "LOAD_3D_ANIMATION",
    "MULTISELECT",
    "PAINTER",
    "PREVIEW_3D",
    "SELECTBUTTON",
    "TREESELECT",
    "WEBCAM",
];

/// Gives the entry that a class has in `/object_info`; none if there is no such class.
type Describe = Box<dyn Fn(&str) -> Option<Value> + Send + Sync>;

/// The node classes a workflow may use. A workflow uses a few of hundreds, so classes can be described when they are
/// asked for.
#[derive(Default)]
pub struct NodeDefs {
    /// Those that are given, and what was found out about others.
    classes: Mutex<IndexMap<Arc<str>, Option<Arc<NodeDef>>>>,
    describe: Option<Describe>,
}

impl NodeDefs {
    /// Reads the object that `GET /object_info` answers; entries of a wrong form are left out.
    pub fn new(object_info: &Value) -> Self {
        let mut defs = Self::default();
        if let Some(map) = object_info.as_map() {
            for (class, info) in map {
                defs.insert(class, info);
            }
        }
        defs
    }

    /// Asks for the entry of a class when a workflow has one of it, once.
    pub fn asking(describe: impl Fn(&str) -> Option<Value> + Send + Sync + 'static) -> Self {
        Self {
            describe: Some(Box::new(describe)),
            ..Self::default()
        }
    }

    /// Adds or replaces one class, given its entry.
    pub fn insert(&mut self, class: &Arc<str>, info: &Value) {
        let def = NodeDef::read(class, info);
        if def.is_some() {
            lock(&self.classes).insert(class.clone(), def);
        }
    }

    pub(super) fn get(&self, class: &str) -> Option<Arc<NodeDef>> {
        let known = lock(&self.classes).get(class).cloned();
        known.unwrap_or_else(|| {
            let info = self.describe.as_ref()?(class);
            let class: Arc<str> = class.into();
            let def = info.and_then(|info| NodeDef::read(&class, &info));
            lock(&self.classes).insert(class, def.clone());
            def
        })
    }
}

#[derive(Clone, Debug)]
pub(super) struct NodeDef {
    pub(super) display_name: Option<Arc<str>>,
    /// In the order of widgets and slots: required, what the editor adds, optional.
    pub(super) inputs: Vec<InputDef>,
    pub(super) outputs: Vec<Arc<str>>,
}

#[derive(Clone, Debug)]
pub(super) struct InputDef {
    pub(super) name: Arc<str>,
    /// `COMBO` for lists of choices.
    pub(super) ty: Arc<str>,
    pub(super) role: Role,
    pub(super) default: Option<Value>,
    /// Elements stored after the value that only say how it changes between runs.
    pub(super) controls: usize,
    /// What the class calls the first of them, where it does.
    pub(super) control_name: Option<Arc<str>>,
    pub(super) dynamic_prompts: bool,
    pub(super) multiline: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Role {
    /// Can only be linked.
    Socket,
    /// A widget type that must be linked; old files store a dummy for it.
    Forced,
    Widget,
    /// The chosen key decides which inputs follow.
    Dynamic(Vec<(Value, Vec<InputDef>)>),
    /// The upload button: stored, not sent.
    Button,
    /// Shown by the editor, sent, but not stored.
    Display,
    /// The same, but stored at this place of a node whose other values are only shown.
    DisplayAt(usize),
}

impl InputDef {
    /// Whether the input has a widget that takes part in the prompt.
    pub(super) fn is_widget(&self) -> bool {
        matches!(
            self.role,
            Role::Widget | Role::Dynamic(_) | Role::Display | Role::DisplayAt(_)
        )
    }

    /// Whether the node has a slot for it.
    pub(super) fn has_slot(&self) -> bool {
        !matches!(self.role, Role::Button | Role::Display | Role::DisplayAt(_))
    }

    fn extra(name: &str, ty: &str, role: Role, default: Option<Value>) -> Self {
        Self {
            name: name.into(),
            ty: ty.into(),
            role,
            default,
            controls: 0,
            control_name: None,
            dynamic_prompts: false,
            multiline: false,
        }
    }

    fn parse(name: &Arc<str>, spec: &Value, depth: usize) -> Self {
        let (ty, options) = match spec {
            Value::List(l) => (l.first(), l.get(1)),
            other => (Some(other), None),
        };
        let none = Value::Null;
        let ty = ty.unwrap_or(&none);
        let options = options.unwrap_or(&none);
        let choices = ty.as_list().or_else(|| options.get("options")?.as_list());
        let slot_type = type_text(Some(ty));
        let widget_type = options
            .get("widgetType")
            .and_then(Value::as_str)
            .unwrap_or(&slot_type);
        let forced = options.get("forceInput").is_some_and(Value::truthy);

        let known = matches!(
            widget_type,
            "INT"
                | "FLOAT"
                | "BOOLEAN"
                | "STRING"
                | "COMBO"
                | "MARKDOWN"
                | "TEXTAREA"
                | "COMFY_DYNAMICCOMBO_V3"
        ) || OTHER_WIDGETS.contains(&widget_type);
        let role = match (known, forced) {
            (false, _) => Role::Socket,
            (true, true) => Role::Forced,
            (true, false) if widget_type == "COMFY_DYNAMICCOMBO_V3" => {
                Role::Dynamic(dynamic_choices(options, depth))
            }
            (true, false) => Role::Widget,
        };

        let option = options.get("control_after_generate");
        let asked = option.is_some_and(Value::truthy);
        // Seeds that a choice brings have no control unless the class asks for one.
        let seed = depth == 0 && matches!(&**name, "seed" | "noise_seed");
        let controls = match widget_type {
            "INT" if asked || (seed && option.is_none_or(Value::is_null)) => 1,
            "FLOAT" if asked => 1,
            "COMBO" if asked => 2,
            _ => 0,
        };
        let first_choice = || match &role {
            Role::Dynamic(c) => c.first().map(|(key, _)| key.clone()),
            _ => choices.and_then(|c| c.first().cloned()),
        };
        let default = match options.get("default") {
            Some(value) if !value.is_null() => Some(value.clone()),
            _ => match widget_type {
                "INT" | "FLOAT" => Some(Value::from(0)),
                "BOOLEAN" => Some(Value::from(false)),
                "STRING" | "MARKDOWN" | "TEXTAREA" => Some(Value::from("")),
                "COMBO" | "COMFY_DYNAMICCOMBO_V3" => first_choice(),
                // Its picture is not stored, but what the server asks for must be there.
                "IMAGECOMPARE" => Some(Map::new().into()),
                "BOUNDING_BOXES" | "COLORS" => Some(Vec::<Value>::new().into()),
                "COLOR" => Some(Value::from("#000000")),
                _ => None,
            },
        };
        Self {
            name: name.clone(),
            dynamic_prompts: widget_type == "STRING"
                && options.get("dynamicPrompts").is_some_and(Value::truthy),
            multiline: widget_type == "STRING"
                && options.get("multiline").is_some_and(Value::truthy),
            ty: slot_type,
            role,
            default,
            controls,
            control_name: text(option),
        }
    }
}

fn dynamic_choices(options: &Value, depth: usize) -> Vec<(Value, Vec<InputDef>)> {
    if depth >= MAX_NESTING {
        return Vec::new();
    }
    list(options.get("options"))
        .iter()
        .filter_map(|o| {
            let inputs = ["required", "optional"]
                .iter()
                .filter_map(|g| o.get("inputs")?.get(g)?.as_map())
                .flatten()
                .map(|(name, spec)| InputDef::parse(name, spec, depth + 1))
                .collect();
            Some((o.get("key")?.clone(), inputs))
        })
        .collect()
}

impl NodeDef {
    /// None if the entry is of a wrong form.
    fn read(class: &Arc<str>, info: &Value) -> Option<Arc<Self>> {
        info.as_map()?;
        Some(Arc::new(Self::parse(class, info)))
    }

    fn parse(class: &Arc<str>, info: &Value) -> Self {
        let mut inputs = Vec::new();
        for group in ["required", "optional"] {
            inputs.extend(group_inputs(info, group));
            if group == "required" {
                inputs.extend(editor_inputs(class, info));
            }
        }
        let name = |key| text(info.get(key)).filter(|n| !n.is_empty());
        Self {
            display_name: name("display_name").or_else(|| name("name")),
            inputs,
            outputs: list(info.get("output"))
                .iter()
                .map(|t| type_text(Some(t)))
                .collect(),
        }
    }
}

/// The inputs of one group in `input_order`, those the order forgets at its end.
fn group_inputs(info: &Value, group: &str) -> Vec<InputDef> {
    let Some(entries) = info
        .get("input")
        .and_then(|i| i.get(group))
        .and_then(Value::as_map)
    else {
        return Vec::new();
    };
    let order = list(info.get("input_order").and_then(|o| o.get(group)));
    let mut ordered = IndexMap::with_capacity(entries.len());
    for name in order.iter().filter_map(Value::as_str) {
        if let Some((name, spec)) = entries.get_key_value(name) {
            ordered.insert(name, spec);
        }
    }
    for (name, spec) in entries {
        ordered.entry(name).or_insert(spec);
    }
    ordered
        .into_iter()
        .map(|(name, spec)| InputDef::parse(name, spec, 0))
        .collect()
}

/// Widgets the editor itself adds at the end of the required group.
fn editor_inputs(class: &str, info: &Value) -> Vec<InputDef> {
    let flag = |names: &[&str]| {
        let required = info
            .get("input")
            .and_then(|i| i.get("required"))
            .and_then(Value::as_map);
        required.is_some_and(|entries| {
            entries.values().any(|spec| {
                let options = spec.as_list().and_then(|l| l.get(1));
                names
                    .iter()
                    .any(|n| options.and_then(|o| o.get(n)).is_some_and(Value::truthy))
            })
        })
    };
    let empty = || Some(Value::from(""));
    let mut added = Vec::new();
    match class {
        "LoadAudio" | "PreviewAudio" | "SaveAudio" | "SaveAudioMP3" | "SaveAudioOpus" => {
            added.push(InputDef::extra(
                "audioUI",
                "AUDIO_UI",
                Role::Display,
                empty(),
            ));
        }
        "PreviewAny" => {
            added.push(InputDef::extra(
                "preview",
                "MARKDOWN",
                Role::Display,
                empty(),
            ));
            let off = Some(Value::from(false));
            // Behind the text, which is stored twice: as Markdown and plain.
            added.push(InputDef::extra(
                "previewMode",
                "BOOLEAN",
                Role::DisplayAt(2),
                off,
            ));
        }
        "Preview3D" | "SaveGLB" => {
            added.push(InputDef::extra(
                "image",
                "PREVIEW_3D",
                Role::Display,
                empty(),
            ));
        }
        _ => {}
    }
    if flag(&["image_upload", "video_upload", "animated_image_upload"]) {
        added.push(InputDef::extra("upload", "IMAGEUPLOAD", Role::Button, None));
    }
    if flag(&["audio_upload"]) {
        added.push(InputDef::extra("upload", "AUDIOUPLOAD", Role::Button, None));
    }
    added
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map;

    #[test]
    fn classes_are_described_once_and_only_when_they_are_wanted() {
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&asked);
        let defs = NodeDefs::asking(move |class| {
            lock(&log).push(class.to_owned());
            (class != "Gone").then(|| map! {"display_name" => class}.into())
        });
        for _ in 0..2 {
            let here = defs.get("Here").unwrap();
            assert_eq!(here.display_name.as_deref(), Some("Here"));
            assert!(defs.get("Gone").is_none());
        }
        assert_eq!(*lock(&asked), ["Here", "Gone"]);
    }
}
