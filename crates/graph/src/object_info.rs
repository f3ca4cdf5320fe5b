//! `/object_info`: a schema in the form clients know.

use std::sync::Arc;

use crate::{
    Form, GrowNames, Input, InputGroup, IoType, Kind, Listings, Magic, Map, Schema, Value, map,
};

/// One class's entry.
pub fn node_info(schema: &Schema, listings: &dyn Listings) -> Value {
    let mut groups = input_groups(schema.inputs.iter(), schema.form, listings);
    let hidden = hidden_entries(schema);
    if !hidden.is_empty() {
        groups.insert("hidden".into(), hidden.into());
    }
    let order: Map = groups
        .iter()
        .map(|(group, entries)| {
            let names: Vec<Value> = entries
                .as_map()
                .map(|m| m.keys().map(Value::from).collect())
                .unwrap_or_default();
            (group.clone(), Value::from(names))
        })
        .collect();

    let mut info = map! {
        "input" => groups,
        "input_order" => order,
        "output" => schema.outputs.iter().map(|o| o.ty.to_value(listings)).collect::<Vec<_>>(),
        "output_is_list" => schema.outputs.iter().map(|o| (!o.list_unset).then_some(o.is_list)).collect::<Vec<_>>(),
        "output_name" => schema.outputs.iter().map(|o| Value::from(&o.name)).collect::<Vec<_>>(),
    };
    let tooltips = || {
        schema
            .outputs
            .iter()
            .map(|o| Value::from(o.tooltip.clone()))
            .collect::<Vec<_>>()
    };
    if schema.form == Form::V3 {
        let templates: Vec<Value> = schema
            .outputs
            .iter()
            .map(|o| Value::from(o.template.clone()))
            .collect();
        let any = schema.outputs.iter().any(|o| o.template.is_some());
        info.insert("output_tooltips".into(), tooltips().into());
        info.insert(
            "output_matchtypes".into(),
            if any { templates.into() } else { Value::Null },
        );
    }
    info.insert("name".into(), (&schema.id).into());
    let display = match (&schema.display_name, schema.form) {
        (Some(name), _) => Value::from(name),
        (None, Form::V1) => Value::from(&schema.id),
        (None, Form::V3) => Value::Null,
    };
    info.insert("display_name".into(), display);
    info.insert("description".into(), (&schema.description).into());
    info.insert("python_module".into(), (&schema.module).into());
    info.insert("category".into(), (&schema.category).into());
    info.insert("output_node".into(), schema.output_node.into());
    if schema.form == Form::V3 {
        info.insert("deprecated".into(), schema.deprecated.into());
        info.insert("experimental".into(), schema.experimental.into());
        info.insert("api_node".into(), schema.api_node.unwrap_or(false).into());
    } else {
        if schema.outputs.iter().any(|o| o.tooltip.is_some()) {
            info.insert("output_tooltips".into(), tooltips().into());
        }
        if schema.deprecated {
            info.insert("deprecated".into(), true.into());
        }
        if schema.experimental {
            info.insert("experimental".into(), true.into());
        }
        if let Some(api) = schema.api_node {
            info.insert("api_node".into(), api.into());
        }
    }
    info.into()
}

fn hidden_entries(schema: &Schema) -> Map {
    let mut entries = schema.hidden.clone();
    if schema.form == Form::V3 {
        let mut imply = |name: &str, magic| {
            if !entries.iter().any(|(_, m)| *m == Some(magic)) {
                entries.push((name.into(), Some(magic)));
            }
        };
        if schema.api_node == Some(true) {
            imply("auth_token_comfy_org", Magic::AuthToken);
            imply("api_key_comfy_org", Magic::ApiKey);
        }
        if schema.output_node {
            imply("prompt", Magic::Prompt);
            imply("extra_pnginfo", Magic::ExtraPngInfo);
        }
    }
    entries
        .into_iter()
        .map(|(name, magic)| {
            let text = Value::from(magic.map_or("*", Magic::wire));
            (
                name,
                if schema.form == Form::V3 || magic.is_none() {
                    Value::from(vec![text])
                } else {
                    text
                },
            )
        })
        .collect()
}

fn input_groups<'a>(
    inputs: impl Iterator<Item = &'a Input>,
    form: Form,
    listings: &dyn Listings,
) -> Map {
    let mut required = Map::new();
    let mut optional = Map::new();
    for input in inputs {
        let group = if input.group == InputGroup::Required {
            &mut required
        } else {
            &mut optional
        };
        group.insert(input.name.clone(), input_spec(input, form, listings));
    }
    let mut groups = map! {"required" => required};
    if !optional.is_empty() {
        groups.insert("optional".into(), optional.into());
    }
    groups
}

/// `[type]` or `[type, options]`.
fn input_spec(input: &Input, form: Form, listings: &dyn Listings) -> Value {
    let options = input_options(input, form, listings);
    let ty = input.ty.to_value(listings);
    if form == Form::V1 && options.is_empty() {
        vec![ty].into()
    } else {
        vec![ty, options.into()].into()
    }
}

/// Wire options, with the entries and templates that live outside [`Input::options`] put in their place.
fn input_options(input: &Input, form: Form, listings: &dyn Listings) -> Map {
    let mut options = input.options.clone();
    if let Some(preset) = input.source().and_then(|source| listings.preset(source))
        && !options.contains_key("default")
    {
        options.shift_insert(0, "default".into(), preset.into());
    }
    if form == Form::V3 && matches!(&input.ty, IoType::Name(n) if &**n == "COMBO") {
        let late: Vec<(Arc<str>, Value)> = [
            "control_after_generate",
            "image_upload",
            "audio_upload",
            "video_upload",
            "file_upload",
            "image_folder",
            "remote",
            "advanced",
        ]
        .iter()
        .filter_map(|k| options.shift_remove_entry(*k))
        .collect();
        options
            .entry("multiselect".into())
            .or_insert(Value::Bool(false));
        let entries = input.entries(listings).unwrap_or_default();
        options.insert("options".into(), Value::List(entries));
        options.extend(late);
    }
    if form == Form::V3 && matches!(&input.ty, IoType::Name(n) if &**n == "STRING") {
        options
            .entry("multiline".into())
            .or_insert(Value::Bool(false));
    }
    match &input.kind {
        Kind::Plain => {}
        Kind::Match { template, allowed } => {
            options.insert(
                "template".into(),
                map! {"template_id" => template, "allowed_types" => allowed}.into(),
            );
        }
        Kind::Autogrow {
            template,
            names,
            min,
        } => {
            let mut t =
                map! {"input" => input_groups(std::iter::once(&**template), form, listings)};
            match names {
                GrowNames::Prefix { prefix, max } => {
                    t.extend(map! {"prefix" => prefix, "min" => *min, "max" => *max});
                }
                GrowNames::List(list) => {
                    t.extend(map! {"names" => list.iter().map(Value::from).collect::<Vec<_>>(), "min" => *min});
                }
            }
            options.insert("template".into(), t.into());
        }
        Kind::DynamicCombo(list) => {
            let entries: Vec<Value> = list
                .iter()
                .map(|o| map! {"key" => &o.key, "inputs" => input_groups(o.inputs.iter(), form, listings)}.into())
                .collect();
            options.insert("options".into(), entries.into());
        }
        Kind::DynamicSlot { slot, inputs } => {
            options.insert("slotType".into(), slot.into());
            options.insert(
                "inputs".into(),
                input_groups(inputs.iter(), form, listings).into(),
            );
            options.insert("forceInput".into(), true.into());
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Choices;

    struct Devices;

    impl Listings for Devices {
        fn list(&self, _: &str) -> Vec<String> {
            vec!["cpu".into(), "gpu".into()]
        }

        fn preset(&self, source: &str) -> Option<String> {
            (source == "devices/all").then(|| "gpu".into())
        }
    }

    #[test]
    fn listed_inputs_start_with_the_preset_unless_they_say_otherwise() {
        let listed = |source: &str| Input::combo("d", Choices::Listed(source.into()));
        let spec = |form, input| {
            let schema = Schema::new("X", form).input(input);
            crate::json::to_string(&input_spec(&schema.inputs[0], form, &Devices))
        };
        let devices = listed("devices/all");
        assert_eq!(
            spec(Form::V1, devices.clone()),
            r#"[["cpu","gpu"],{"default":"gpu"}]"#
        );
        assert_eq!(
            spec(Form::V1, devices.clone().option("default", "cpu")),
            r#"[["cpu","gpu"],{"default":"cpu"}]"#
        );
        assert_eq!(spec(Form::V1, listed("models/x")), r#"[["cpu","gpu"]]"#);
        assert_eq!(
            spec(Form::V3, devices),
            r#"["COMBO",{"default":"gpu","multiselect":false,"options":["cpu","gpu"]}]"#
        );
    }
}
