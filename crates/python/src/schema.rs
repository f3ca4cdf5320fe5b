//! What a class of a pack says of itself, as the schema that the rest of the program knows.

use std::sync::Arc;

use fresco_graph::{
    CatchAll, Choices, ComboOption, Form, GrowNames, Input, InputGroup, IoType, Kind, Magic, Map,
    Output, Schema, ValidatorInputs, Value,
};

/// A class as its process described it.
#[derive(Clone)]
pub(crate) struct Described {
    pub(crate) schema: Arc<Schema>,
    pub(crate) is_async: bool,
    pub(crate) lazy: bool,
    pub(crate) changed: bool,
    pub(crate) validator: Option<Arc<ValidatorInputs>>,
    /// Inputs and outputs whose types compare by rules of their own.
    pub(crate) own_inputs: Vec<Arc<str>>,
    pub(crate) own_outputs: Vec<usize>,
}

impl Described {
    /// A class that could not say anything yet.
    pub(crate) fn unknown(name: &str, module: &str) -> Self {
        Self {
            schema: Arc::new(Schema::new(name, Form::V1).module(module)),
            is_async: false,
            lazy: false,
            changed: false,
            validator: None,
            own_inputs: Vec::new(),
            own_outputs: Vec::new(),
        }
    }

    pub(crate) fn read(name: &str, said: &Value) -> Option<Self> {
        let text = |key: &str| said.get(key).and_then(Value::as_str);
        let flag = |key: &str| said.get(key).is_some_and(Value::truthy);
        let v3 = said.get("form").and_then(Value::as_int) == Some(3);
        let mut schema = Schema::new(name, if v3 { Form::V3 } else { Form::V1 })
            .category(text("category")?)
            .module(text("module")?);
        schema.description = text("description").unwrap_or("").into();
        schema.display_name = text("display").map(Into::into);
        schema.output_node = flag("output_node");
        schema.input_is_list = flag("input_is_list");
        schema.not_idempotent = flag("not_idempotent");
        schema.deprecated = flag("deprecated");
        schema.experimental = flag("experimental");
        schema.api_node = said.get("api").and_then(Value::as_bool);
        schema.catch_all = said
            .get("catch_all")
            .and_then(Value::as_map)
            .map(|all| CatchAll {
                lazy: all.get("lazy").is_some_and(Value::truthy),
                raw_link: all.get("raw").is_some_and(Value::truthy),
            });
        let mut own_inputs = Vec::new();
        for input in said.get("inputs")?.as_list()? {
            let read = read_input(input)?;
            if input.get("custom").is_some_and(Value::truthy) {
                own_inputs.push(read.name.clone());
            }
            schema.inputs.push(read);
        }
        for hidden in said
            .get("hidden")
            .and_then(Value::as_list)
            .unwrap_or_default()
        {
            let pair = hidden.as_list()?;
            let magic = pair
                .get(1)
                .and_then(Value::as_str)
                .and_then(Magic::from_wire);
            schema.hidden.push((pair.first()?.as_str()?.into(), magic));
        }
        let mut own_outputs = Vec::new();
        for (slot, output) in said.get("outputs")?.as_list()?.iter().enumerate() {
            if output.get("custom").is_some_and(Value::truthy) {
                own_outputs.push(slot);
            }
            schema.outputs.push(read_output(output)?);
        }
        let validator = said
            .get("validator")
            .and_then(Value::as_map)
            .map(|validator| {
                let params = validator
                    .get("params")
                    .and_then(Value::as_list)
                    .unwrap_or_default();
                Arc::new(ValidatorInputs {
                    params: params
                        .iter()
                        .filter_map(Value::as_str)
                        .map(Into::into)
                        .collect(),
                    all: validator.get("all").is_some_and(Value::truthy),
                    input_types: validator.get("types").is_some_and(Value::truthy),
                })
            });
        Some(Self {
            schema: Arc::new(schema),
            is_async: flag("async"),
            lazy: flag("lazy"),
            changed: flag("changed"),
            validator,
            own_inputs,
            own_outputs,
        })
    }
}

fn read_type(ty: &Value) -> Option<IoType> {
    match ty {
        Value::Str(name) => Some(IoType::Name(name.clone())),
        Value::List(entries) => Some(IoType::List(Choices::Fixed(entries.clone()))),
        _ => None,
    }
}

fn read_input(said: &Value) -> Option<Input> {
    let mut input = Input::new(said.get("name")?.as_str()?, read_type(said.get("type")?)?);
    if said.get("group").and_then(Value::as_str) == Some("optional") {
        input.group = InputGroup::Optional;
    }
    if let Some(Value::Map(options)) = said.get("options") {
        input.options.clone_from(options);
        input.lazy = options.get("lazy").is_some_and(Value::truthy);
        input.raw_link = options.get("rawLink").is_some_and(Value::truthy);
    }
    if input.ty.name() == Some("COMBO")
        && let Some(Value::List(entries)) = input.options.get("options")
    {
        input.choices = Some(Choices::Fixed(entries.clone()));
    }
    if let Some(kind) = said.get("kind").and_then(Value::as_map) {
        input.kind = read_kind(kind)?;
    }
    Some(input)
}

fn read_inputs(said: &Value) -> Option<Vec<Input>> {
    said.as_list()?.iter().map(read_input).collect()
}

fn read_kind(said: &Map) -> Option<Kind> {
    let text = |key: &str| said.get(key).and_then(Value::as_str);
    Some(match text("is")? {
        "match" => Kind::Match {
            template: text("template")?.into(),
            allowed: text("allowed")?.into(),
        },
        "autogrow" => {
            let count = |key: &str| {
                said.get(key)
                    .and_then(Value::as_int)
                    .and_then(|n| usize::try_from(n).ok())
            };
            let names = match said.get("names").and_then(Value::as_list) {
                Some(names) => GrowNames::List(
                    names
                        .iter()
                        .filter_map(Value::as_str)
                        .map(Into::into)
                        .collect(),
                ),
                None => GrowNames::Prefix {
                    prefix: text("prefix")?.into(),
                    max: count("max")?,
                },
            };
            Kind::Autogrow {
                template: Box::new(read_input(said.get("template")?)?),
                names,
                min: count("min").unwrap_or(0),
            }
        }
        "combo" => {
            let options: Option<Vec<ComboOption>> = said
                .get("options")?
                .as_list()?
                .iter()
                .map(|option| {
                    Some(ComboOption {
                        key: option.get("key")?.as_str()?.into(),
                        inputs: read_inputs(option.get("inputs")?)?,
                    })
                })
                .collect();
            Kind::DynamicCombo(options?)
        }
        "slot" => Kind::DynamicSlot {
            slot: text("slot")?.into(),
            inputs: read_inputs(said.get("inputs")?)?,
        },
        _ => return None,
    })
}

fn read_output(said: &Value) -> Option<Output> {
    let mut output = Output::new("*");
    output.ty = read_type(said.get("type")?)?;
    output.name = said
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or("")
        .into();
    output.is_list = said.get("list").is_some_and(Value::truthy);
    output.tooltip = said.get("tooltip").and_then(Value::as_str).map(Into::into);
    output.template = said.get("template").and_then(Value::as_str).map(Into::into);
    Some(output)
}

#[cfg(test)]
mod tests {
    use fresco_graph::{NoListings, json, object_info};

    use super::*;

    #[test]
    fn a_description_becomes_object_info() {
        let said = json::parse(
            r#"{"form":1,"category":"test","module":"custom_nodes.p","display":"A b","description":"","inputs":[
                {"name":"n","group":"required","type":"INT","options":{"default":1,"max":18446744073709551615}},
                {"name":"c","group":"required","type":["a","b"],"options":null},
                {"name":"x","group":"optional","type":"*","options":{"lazy":true},"custom":true}],
                "hidden":[["id","UNIQUE_ID"],["other",null]],
                "outputs":[{"type":"IMAGE","name":"out","list":true,"tooltip":null,"custom":false}],
                "output_node":true,"validator":{"params":["n"],"all":false,"types":true},"async":true}"#,
        )
        .unwrap();
        let read = Described::read("X", &said).unwrap();
        assert!(read.is_async && !read.lazy);
        assert!(read.schema.inputs[2].lazy);
        assert_eq!(read.own_inputs, [Arc::from("x")]);
        assert!(read.validator.unwrap().input_types);
        let info = json::to_string(&object_info::node_info(&read.schema, &NoListings));
        let wanted = r#"{"input":{"required":{"n":["INT",{"default":1,"max":18446744073709551615}],"c":[["a","b"]]},"optional":{"x":["*",{"lazy":true}]},"hidden":{"id":"UNIQUE_ID","other":["*"]}}"#;
        assert!(info.starts_with(wanted), "{info}");
        assert!(Described::read("X", &json::parse("{}").unwrap()).is_none());
    }
}
