//! Meshes as binary glTF.

use fresco_files::dirs::DirType;
use fresco_graph::{
    Cx, Map, Node, NodeError, NodeOutput, NodeResult, Value, json, map, wrong_kind,
};
use fresco_tensor::with_memory;

use super::{Presence, begin, entry_of, metadata_text, save_error};
use crate::mesh::{Mesh, Surface};

/// Saves meshes as GLB files.
#[derive(Node)]
#[node(
    id = "SaveGLB",
    v3,
    module = "comfy_extras.nodes_hunyuan3d",
    category = "3d",
    output_node
)]
pub(super) struct SaveGlb {
    /// The meshes.
    #[input(ty = "MESH")]
    mesh: Value,
    #[input(default = "mesh/ComfyUI")]
    filename_prefix: String,
}

impl Node for SaveGlb {
    fn run(self, cx: &Cx) -> NodeResult {
        let mesh = self
            .mesh
            .downcast::<Mesh>()
            .ok_or_else(|| NodeError::type_error(wrong_kind("MESH", &self.mesh)))?;
        let mut batch = begin(cx, DirType::Output, &self.filename_prefix, 0, 0)?;
        let extras: Map = metadata_text(cx, Presence::NotEmpty)
            .into_iter()
            .map(|(k, v)| (k.into(), v.into()))
            .collect();
        let mut entries = Vec::new();
        for surface in &mesh.0 {
            cx.check_interrupt()?;
            // The numbers by themselves, and again in the file.
            let size = 24 * (surface.vertices.len() + surface.faces.len()) as u64;
            let bytes = with_memory(size, || encode(surface, &extras))??;
            let saved = batch.save("glb", &bytes).map_err(save_error)?;
            entries.push(entry_of(&saved, DirType::Output));
        }
        Ok(NodeOutput::ui(map! {"3d" => entries}))
    }
}

/// One mesh with positions and indices in a single buffer.
fn encode(surface: &Surface, extras: &Map) -> Result<Vec<u8>, NodeError> {
    let mut low = [f32::INFINITY; 3];
    let mut high = [f32::NEG_INFINITY; 3];
    let mut bin = Vec::with_capacity((surface.vertices.len() + surface.faces.len()) * 12);
    for vertex in &surface.vertices {
        for axis in 0..3 {
            low[axis] = low[axis].min(vertex[axis]);
            high[axis] = high[axis].max(vertex[axis]);
            bin.extend(vertex[axis].to_le_bytes());
        }
    }
    let positions = bin.len();
    for face in &surface.faces {
        for index in face {
            bin.extend(index.to_le_bytes());
        }
    }
    let indices = bin.len() - positions;
    if positions == 0 || indices == 0 {
        return Err(NodeError::value_error("an empty mesh cannot be saved"));
    }
    let mut asset = map! {"version" => "2.0", "generator" => "ComfyUI"};
    if !extras.is_empty() {
        asset.insert("extras".into(), extras.clone().into());
    }
    let view = |offset: usize, length: usize, target: u32| {
        map! {"buffer" => 0, "byteOffset" => offset, "byteLength" => length, "target" => target}
    };
    let scene = map! {
        "asset" => asset,
        "buffers" => vec![map! {"byteLength" => bin.len()}],
        "bufferViews" => vec![view(0, positions, 34962), view(positions, indices, 34963)],
        "accessors" => vec![
            map! {
                "bufferView" => 0, "byteOffset" => 0, "componentType" => 5126,
                "count" => surface.vertices.len(), "type" => "VEC3",
                "max" => high.to_vec(), "min" => low.to_vec(),
            },
            map! {
                "bufferView" => 1, "byteOffset" => 0, "componentType" => 5125,
                "count" => surface.faces.len() * 3, "type" => "SCALAR",
            },
        ],
        "meshes" => vec![map! {"primitives" => vec![map! {
            "attributes" => map! {"POSITION" => 0}, "indices" => 1, "mode" => 4,
        }]}],
        "nodes" => vec![map! {"mesh" => 0}],
        "scenes" => vec![map! {"nodes" => vec![0]}],
        "scene" => 0,
    };
    let mut text = json::to_python(&scene.into()).into_bytes();
    text.resize(text.len().next_multiple_of(4), b' ');

    let total = 12 + 8 + text.len() + 8 + bin.len();
    let mut out = Vec::with_capacity(total);
    let word = |n: usize| {
        u32::try_from(n)
            .map(u32::to_le_bytes)
            .map_err(|_| NodeError::value_error("the mesh is too large for a GLB file"))
    };
    out.extend(b"glTF");
    out.extend(2u32.to_le_bytes());
    out.extend(word(total)?);
    out.extend(word(text.len())?);
    out.extend(b"JSON");
    out.extend(text);
    out.extend(word(bin.len())?);
    out.extend(b"BIN\0");
    out.extend(bin);
    Ok(out)
}
