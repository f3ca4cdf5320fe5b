//! Voxel fields and the meshes made of them.

use fresco_graph::{
    Cx, Node, NodeEntry, NodeError, NodeOutput, NodeResult, Opaque, Pieces, Value, entry,
    wrong_kind,
};
use fresco_tensor::{Tensor, with_memory};

use crate::types::add_tensor;

mod blocks;
mod surface_net;
mod voxels;

pub static NODES: &[NodeEntry] = &[
    entry::<VoxelToMeshBasic>(),
    entry::<VoxelToMesh>(),
    entry::<voxels::VaeDecodeVoxels>(),
];

/// Density fields `(batch, depth, height, width)` on a link.
pub struct Voxels(pub Tensor);

impl Opaque for Voxels {
    fn describe(&self) -> String {
        format!("voxels{:?}", self.0.shape())
    }

    fn bytes(&self) -> u64 {
        self.0.len() as u64 * 4
    }

    fn pieces(&self, pieces: &mut Pieces) {
        add_tensor(pieces, &self.0);
    }
}

/// Triangles over shared points.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Surface {
    pub vertices: Vec<[f32; 3]>,
    pub faces: Vec<[u32; 3]>,
}

/// A batch of surfaces on a link; unlike the reference's stacked tensors they may differ in size.
pub struct Mesh(pub Vec<Surface>);

impl Opaque for Mesh {
    fn describe(&self) -> String {
        let faces: usize = self.0.iter().map(|s| s.faces.len()).sum();
        format!("{} meshes with {faces} triangles", self.0.len())
    }

    fn bytes(&self) -> u64 {
        self.0
            .iter()
            .map(|s| (s.vertices.len() + s.faces.len()) as u64 * 12)
            .sum()
    }
}

/// One density field.
#[derive(Clone, Copy)]
struct Field<'a> {
    values: &'a [f32],
    /// Depth, height, width.
    size: [usize; 3],
}

impl Field<'_> {
    /// The value at a cell, zero outside.
    fn at(&self, z: isize, y: isize, x: isize) -> f32 {
        let [d, h, w] = self.size;
        match (usize::try_from(z), usize::try_from(y), usize::try_from(x)) {
            (Ok(z), Ok(y), Ok(x)) if z < d && y < h && x < w => self.values[(z * h + y) * w + x],
            _ => 0.0,
        }
    }

    /// From cell coordinates `(z, y, x)` to points `(x, y, z)` in -1..1 over the longest side.
    fn place(&self, p: [f32; 3]) -> [f32; 3] {
        let half = *self.size.iter().max().expect("three sizes") as f32 / 2.0;
        let scaled = p.map(|v| {
            if half > 0.0 {
                (v - half) / half
            } else {
                v - half
            }
        });
        [scaled[2], scaled[1], scaled[0]]
    }
}

/// Cells are numbered with 32 bits in the mesh, several points a cell.
const MAX_CELLS: usize = 1 << 27;

fn convert(
    cx: &Cx,
    voxel: &Value,
    make: impl Fn(&Cx, Field, f32) -> Result<Surface, NodeError>,
    threshold: f64,
) -> NodeResult {
    let voxels = voxel
        .downcast::<Voxels>()
        .ok_or_else(|| NodeError::type_error(wrong_kind("VOXEL", voxel)))?;
    let [count, d, h, w] = voxels.0.dims4()?;
    let cells = d * h * w;
    if cells > MAX_CELLS {
        return Err(NodeError::value_error(format!(
            "{d} x {h} x {w} voxels are too many for one mesh"
        )));
    }
    let mut surfaces = Vec::with_capacity(count);
    for i in 0..count {
        cx.check_interrupt()?;
        let field = Field {
            values: &voxels.0.data()[i * cells..(i + 1) * cells],
            size: [d, h, w],
        };
        // A few numbers for every cell; full ones are few in what is a surface.
        let size = 32 * cells as u64;
        surfaces.push(with_memory(size, || make(cx, field, threshold as f32))??);
    }
    Ok(NodeOutput::one(Value::object(Mesh(surfaces))))
}

/// Turns voxels into a mesh of their outer cube faces.
#[derive(Node)]
#[node(
    id = "VoxelToMeshBasic",
    v3,
    module = "comfy_extras.nodes_hunyuan3d",
    category = "3d",
    outputs("MESH")
)]
pub struct VoxelToMeshBasic {
    /// The voxels.
    #[input(ty = "VOXEL")]
    voxel: Value,
    /// Cells above this are solid.
    #[input(default = 0.6, min = -1.0, max = 1.0, step = 0.01)]
    threshold: f64,
}

impl Node for VoxelToMeshBasic {
    fn run(self, cx: &Cx) -> NodeResult {
        convert(cx, &self.voxel, blocks::mesh, self.threshold)
    }
}

/// Turns voxels into a mesh, smooth or of cubes.
#[derive(Node)]
#[node(
    id = "VoxelToMesh",
    v3,
    module = "comfy_extras.nodes_hunyuan3d",
    category = "3d",
    outputs("MESH")
)]
pub struct VoxelToMesh {
    /// The voxels.
    #[input(ty = "VOXEL")]
    voxel: Value,
    /// A smooth surface net, or the cubes as they are.
    #[input(choices = ["surface net", "basic"])]
    algorithm: String,
    /// Cells above this are solid.
    #[input(default = 0.6, min = -1.0, max = 1.0, step = 0.01)]
    threshold: f64,
}

impl Node for VoxelToMesh {
    fn run(self, cx: &Cx) -> NodeResult {
        match self.algorithm.as_str() {
            "basic" => convert(cx, &self.voxel, blocks::mesh, self.threshold),
            "surface net" => convert(cx, &self.voxel, surface_net::mesh, self.threshold),
            other => Err(NodeError::value_error(format!(
                "unknown mesh algorithm {other:?}"
            ))),
        }
    }
}
