//! Boxes that somebody drew on a canvas: where things go in a picture, and what they are.

mod letters;

use std::sync::Arc;

use fresco_graph::{
    Cx, Map, Node, NodeEntry, NodeError, NodeOutput, NodeResult, Output, Value, entry, json, map,
    wrong_kind,
};
use fresco_tensor::{Crop, ResizeMethod, Tensor};

use crate::image::{check_room, hex_color, resize, unsigned};
use crate::types::Image;

pub static NODES: &[NodeEntry] = &[entry::<CreateBoundingBoxes>()];

/// Boxes on one canvas.
const MAX_BOXES: usize = 1000;
/// Boxes of elements are in thousandths of the canvas.
const WHOLE: f64 = 1000.0;

/// One box, in pixels of the canvas.
#[derive(Clone, Debug, PartialEq)]
struct DrawnBox {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
    is_text: bool,
    text: Arc<str>,
    about: Arc<str>,
    colors: Vec<Arc<str>>,
}

fn text_of(value: Option<&Value>) -> Arc<str> {
    value.and_then(Value::as_str).unwrap_or_default().into()
}

impl DrawnBox {
    /// A box of the editor: `{x, y, width, height, metadata}`.
    fn from_editor(value: &Map) -> Result<Self, NodeError> {
        let number = |key: &str| {
            let found = value.get(key).and_then(Value::as_f64);
            found
                .filter(|v| v.is_finite())
                .ok_or_else(|| NodeError::value_error(format!("a box has no number for {key}")))
        };
        let metadata = value.get("metadata");
        let about = |key: &str| metadata.and_then(|m| m.get(key));
        Ok(Self {
            x: number("x")?,
            y: number("y")?,
            width: number("width")?.max(0.0),
            height: number("height")?.max(0.0),
            is_text: about("type").and_then(Value::as_str) == Some("text"),
            text: text_of(about("text")),
            about: text_of(about("desc")),
            colors: colors(about("palette")),
        })
    }

    /// An element: `{type, bbox: [top, left, bottom, right] in thousandths, text, desc, color_palette}`.
    fn from_element(value: &Map, bounds: &[Value], size: (f64, f64)) -> Result<Self, NodeError> {
        let sides: Vec<f64> = bounds
            .iter()
            .filter_map(Value::as_f64)
            .filter(|v| v.is_finite())
            .collect();
        let &[top, left, bottom, right] = sides.as_slice() else {
            return Err(NodeError::value_error(
                "the bbox of an element has four numbers: top, left, bottom, right",
            ));
        };
        let (width, height) = size;
        Ok(Self {
            x: left / WHOLE * width,
            y: top / WHOLE * height,
            width: (right - left).max(0.0) / WHOLE * width,
            height: (bottom - top).max(0.0) / WHOLE * height,
            is_text: value.get("type").and_then(Value::as_str) == Some("text"),
            text: text_of(value.get("text")),
            about: text_of(value.get("desc")),
            colors: colors(value.get("color_palette").or_else(|| value.get("palette"))),
        })
    }

    fn pixels(&self) -> Value {
        let whole = |v: f64| Value::from(v.round_ties_even() as i64);
        map! {
            "x" => whole(self.x),
            "y" => whole(self.y),
            "width" => whole(self.width),
            "height" => whole(self.height),
        }
        .into()
    }

    fn element(&self, (width, height): (f64, f64)) -> Value {
        let part = |v: f64, of: f64| {
            let v = (v / of * WHOLE).round_ties_even().clamp(0.0, WHOLE);
            Value::from(v as i64)
        };
        let bounds = vec![
            part(self.y, height),
            part(self.x, width),
            part(self.y + self.height, height),
            part(self.x + self.width, width),
        ];
        let mut element = map! {
            "type" => if self.is_text { "text" } else { "obj" },
            "bbox" => bounds,
        };
        if self.is_text {
            element.insert("text".into(), (&self.text).into());
        }
        element.insert("desc".into(), (&self.about).into());
        if !self.colors.is_empty() {
            let colors: Vec<Value> = self.colors.iter().map(Value::from).collect();
            element.insert("color_palette".into(), colors.into());
        }
        element.into()
    }
}

fn colors(value: Option<&Value>) -> Vec<Arc<str>> {
    let list = value.and_then(Value::as_list).unwrap_or_default();
    list.iter()
        .filter_map(Value::as_str)
        .take(16)
        .map(Arc::from)
        .collect()
}

/// The boxes of whatever says them: the editor's list, elements, or either as JSON.
fn boxes(value: &Value, size: (f64, f64)) -> Result<Vec<DrawnBox>, NodeError> {
    let parsed;
    let value = match value {
        Value::Str(text) if text.trim().is_empty() => return Ok(Vec::new()),
        Value::Str(text) => {
            parsed = json::parse(text).map_err(|e| {
                NodeError::value_error(format!("the boxes are no well formed JSON: {e}"))
            })?;
            &parsed
        }
        other => other,
    };
    let list: Vec<&Value> = match value {
        Value::Null => Vec::new(),
        // A whole prompt holds its elements further in.
        Value::Map(m) => {
            let inner = m.get("compositional_deconstruction");
            match inner.unwrap_or(value).get("elements") {
                Some(Value::List(list)) => list.iter().collect(),
                _ => vec![value],
            }
        }
        // Boxes of several pictures are lists in a list; a canvas shows the first.
        Value::List(list) => match list.first() {
            Some(Value::List(first)) => first.iter().collect(),
            _ => list.iter().collect(),
        },
        other => return Err(NodeError::type_error(wrong_kind("boxes", other))),
    };
    if list.len() > MAX_BOXES {
        return Err(NodeError::value_error(format!(
            "{} boxes are more than {MAX_BOXES}",
            list.len()
        )));
    }
    list.into_iter()
        .map(|entry| {
            let map = entry
                .as_map()
                .ok_or_else(|| NodeError::type_error(wrong_kind("a box", entry)))?;
            match map.get("bbox") {
                Some(Value::List(bounds)) => DrawnBox::from_element(map, bounds, size),
                _ => DrawnBox::from_editor(map),
            }
        })
        .collect()
}

/// Boxes drawn on a canvas, in pixels and as elements of a prompt, with a picture of them.
#[derive(Node)]
#[node(
    id = "CreateBoundingBoxes",
    v3,
    module = "comfy_extras.nodes_bounding_boxes",
    display = "Create Bounding Boxes",
    category = "utilities",
    outputs(
        Output::new("IMAGE").named("preview"),
        Output::new("BOUNDING_BOX").named("bboxes"),
        Output::new("ARRAY").named("elements")
    )
)]
pub struct CreateBoundingBoxes {
    #[input(default = 1024, min = 64, max = 16384, step = 16)]
    width: i64,
    #[input(default = 1024, min = 64, max = 16384, step = 16)]
    height: i64,
    /// What is drawn: what lies behind comes first.
    #[input(ty = "BOUNDING_BOXES")]
    editor_state: Value,
    /// Behind the boxes.
    #[input(optional)]
    background: Option<Image>,
    /// Boxes, elements or JSON to start from; what was drawn since counts more, until this changes.
    #[input(optional, ty = "BOUNDING_BOX,ARRAY,STRING")]
    bboxes: Option<Value>,
    /// What the canvas was last started from.
    #[input(optional, ty = "BOUNDING_BOXES")]
    last_incoming: Option<Value>,
}

impl Node for CreateBoundingBoxes {
    fn run(self, cx: &Cx) -> NodeResult {
        let (width, height) = (
            unsigned("width", self.width)?,
            unsigned("height", self.height)?,
        );
        if width == 0 || height == 0 {
            return Err(NodeError::value_error("a canvas has a width and a height"));
        }
        let size = (width as f64, height as f64);
        let found = match &self.bboxes {
            Some(incoming) => {
                let now = boxes(incoming, size)?;
                // Compared as boxes: the browser may keep them in another form than they came in.
                let before = self.last_incoming.as_ref();
                let before = before.and_then(|v| boxes(v, size).ok()).unwrap_or_default();
                if now == before {
                    boxes(&self.editor_state, size)?
                } else {
                    now
                }
            }
            None => boxes(&self.editor_state, size)?,
        };
        cx.check_interrupt()?;
        let mut preview = canvas(self.background.as_ref(), width, height)?;
        for (i, drawn) in found.iter().enumerate() {
            cx.check_interrupt()?;
            draw(&mut preview, i, drawn)?;
        }
        let pixels: Vec<Value> = found.iter().map(DrawnBox::pixels).collect();
        let elements: Vec<Value> = found.iter().map(|b| b.element(size)).collect();
        Ok(NodeOutput::slots(vec![
            Image(preview).into(),
            pixels.into(),
            elements.into(),
        ]))
    }
}

fn canvas(background: Option<&Image>, width: usize, height: usize) -> Result<Tensor, NodeError> {
    check_room(&[1, height, width, 3])?;
    let Some(image) = background else {
        return Ok(Tensor::zeros([1, height, width, 3])?);
    };
    let [count, h, w, channels] = image.0.dims4()?;
    if count == 0 || h == 0 || w == 0 || channels < 3 {
        return Err(NodeError::value_error("the background is not a picture"));
    }
    let first = image.0.narrow(0, 0, 1)?.narrow(3, 0, 3)?;
    if (w, h) == (width, height) {
        return Ok(first);
    }
    resize(
        &first,
        width,
        height,
        ResizeMethod::Bilinear,
        Crop::Disabled,
    )
}

/// Colours of boxes without one of their own.
const COLORS: [[f32; 3]; 6] = [
    [0.94, 0.33, 0.31],
    [0.30, 0.69, 0.31],
    [0.26, 0.65, 0.96],
    [1.0, 0.76, 0.03],
    [0.67, 0.28, 0.74],
    [0.0, 0.74, 0.83],
];

/// Paints rectangles and letters on a picture, whatever lies outside.
struct Brush<'a> {
    data: &'a mut [f32],
    width: i64,
    height: i64,
}

impl Brush<'_> {
    fn fill(&mut self, x: i64, y: i64, width: i64, height: i64, color: [f32; 3]) {
        let end = |start: i64, length: i64, size: i64| start.saturating_add(length).min(size);
        for y in y.max(0)..end(y, height, self.height) {
            for x in x.max(0)..end(x, width, self.width) {
                let at = ((y * self.width + x) * 3) as usize;
                self.data[at..at + 3].copy_from_slice(&color);
            }
        }
    }

    fn text(&mut self, x: i64, y: i64, text: &str, scale: i64, color: [f32; 3]) {
        for (i, letter) in text.chars().enumerate() {
            let left = x + (i * letters::WIDTH) as i64 * scale;
            if left > self.width {
                return;
            }
            for dy in 0..letters::HEIGHT {
                for dx in 0..letters::WIDTH {
                    if letters::dot(letter, dx, dy) {
                        let (dx, dy) = (dx as i64 * scale, dy as i64 * scale);
                        self.fill(left + dx, y + dy, scale, scale, color);
                    }
                }
            }
        }
    }
}

fn draw(preview: &mut Tensor, index: usize, drawn: &DrawnBox) -> Result<(), NodeError> {
    let [_, height, width, _] = preview.dims4()?;
    let own = drawn.colors.first().and_then(|c| hex_color(c).ok());
    let color = own.unwrap_or(COLORS[index % COLORS.len()]);
    let (x, y) = (
        drawn.x.round_ties_even() as i64,
        drawn.y.round_ties_even() as i64,
    );
    let limit = 1 << 20;
    let (x, y) = (x.clamp(-limit, limit), y.clamp(-limit, limit));
    let (w, h) = (drawn.width as i64, drawn.height as i64);
    let (w, h) = (w.min(2 * limit), h.min(2 * limit));
    let line = (width.min(height) as i64 / 256).max(1);
    let scale = (width.min(height) as i64 / 512).max(1);
    let mut brush = Brush {
        data: preview.data_mut(),
        width: width as i64,
        height: height as i64,
    };
    brush.fill(x, y, w, line, color);
    brush.fill(x, y + h - line, w, line, color);
    brush.fill(x, y, line, h, color);
    brush.fill(x + w - line, y, line, h, color);
    let mut label = format!("{}", index + 1);
    let words = if drawn.is_text {
        &drawn.text
    } else {
        &drawn.about
    };
    if !words.is_empty() {
        label.push(' ');
        label.extend(
            words
                .chars()
                .map(|c| if c.is_control() { ' ' } else { c })
                .take(60),
        );
    }
    let room = ((w / scale - 4) / letters::WIDTH as i64).max(2) as usize;
    let label: String = label.chars().take(room).collect();
    let tall = (letters::HEIGHT as i64 + 4) * scale;
    let wide = (label.chars().count() * letters::WIDTH) as i64 * scale + 3 * scale;
    brush.fill(x, y, wide, tall, color);
    let bright = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2] > 0.5;
    let ink = if bright { [0.0; 3] } else { [1.0; 3] };
    brush.text(x + 2 * scale, y + 2 * scale, &label, scale, ink);
    for (i, color) in drawn.colors.iter().enumerate() {
        if let Ok(color) = hex_color(color) {
            let side = 8 * scale;
            let left = x + line + i as i64 * side;
            brush.fill(left, y + h - line - side, side, side, color);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fresco_graph::{Args, NodeSchema, Resources, Slots};

    fn run(args: Map) -> Result<Vec<Value>, NodeError> {
        let cx = Cx::detached(Arc::new(Resources::default()));
        match CreateBoundingBoxes::from_args(Args(args))?.run(&cx)?.slots {
            Slots::Values(values) => Ok(values),
            _ => Ok(Vec::new()),
        }
    }

    fn state() -> Value {
        json::parse(
            r##"[{"x": 100, "y": 50, "width": 200, "height": 100,
                "metadata": {"type": "text", "text": "Hi", "desc": "a title", "palette": ["#ff0000"]}},
                {"x": 0, "y": 0, "width": 400, "height": 200, "metadata": {"type": "obj", "desc": "é\n"}}]"##,
        )
        .unwrap()
    }

    #[test]
    fn boxes_become_elements() {
        let out = run(map! {"width" => 400, "height" => 200, "editor_state" => state()}).unwrap();
        assert_eq!(
            json::to_string(&out[1]),
            r#"[{"x":100,"y":50,"width":200,"height":100},{"x":0,"y":0,"width":400,"height":200}]"#
        );
        assert_eq!(
            json::to_string(&out[2]),
            concat!(
                r##"[{"type":"text","bbox":[250,250,750,750],"text":"Hi","desc":"a title","color_palette":["#ff0000"]},"##,
                r#"{"type":"obj","bbox":[0,0,1000,1000],"desc":"é\n"}]"#
            )
        );
        let preview = crate::types::as_tensor(&out[0]).unwrap();
        assert_eq!(preview.shape(), [1, 200, 400, 3]);
        assert_eq!(
            &preview.data()[(149 * 400 + 299) * 3..][..3],
            [1.0, 0.0, 0.0]
        );
    }

    #[test]
    fn what_comes_in_counts_until_it_is_drawn_over() {
        let elements = json::parse(r#"[{"type": "obj", "bbox": [0, 0, 500, 500], "desc": "x"}]"#);
        let elements = elements.unwrap();
        let base = map! {"width" => 400, "height" => 200, "editor_state" => state()};
        for incoming in [
            elements.clone(),
            json::to_string(&elements).into(),
            vec![Value::from(
                map! {"x" => 0, "y" => 0, "width" => 200, "height" => 100},
            )]
            .into(),
        ] {
            let mut args = base.clone();
            args.insert("bboxes".into(), incoming.clone());
            let out = run(args.clone()).unwrap();
            assert_eq!(
                json::to_string(&out[1]),
                r#"[{"x":0,"y":0,"width":200,"height":100}]"#
            );
            args.insert("last_incoming".into(), incoming);
            let out = run(args).unwrap();
            assert_eq!(out[1].as_list().unwrap().len(), 2);
        }
    }

    #[test]
    fn odd_boxes_are_told_or_drawn_outside() {
        let one = |state: &str| {
            let state = json::parse(state).unwrap();
            run(map! {"width" => 64, "height" => 64, "editor_state" => state})
        };
        assert!(one(r#"[{"x": 1}]"#).is_err());
        assert!(one("[5]").is_err());
        assert!(one("5").is_err());
        assert!(one(r#"[{"bbox": [1, 2]}]"#).is_err());
        assert!(one("[]").is_ok());
        assert!(one(r#"[{"x": -1e300, "y": 1e300, "width": 1e300, "height": 5}]"#).is_ok());
        assert!(run(map! {"width" => 64, "height" => 64, "editor_state" => "not json"}).is_err());
    }
}
