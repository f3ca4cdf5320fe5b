//! Naive surface nets: one point in every cell the surface passes through, quads between neighbouring points.

use std::collections::HashMap;

use fresco_graph::{Cx, NodeError};

use super::{Field, Surface};

/// Corners of a cell as `(z, y, x)`.
const CORNERS: [[u8; 3]; 8] = [
    [0, 0, 0],
    [1, 0, 0],
    [0, 1, 0],
    [1, 1, 0],
    [0, 0, 1],
    [1, 0, 1],
    [0, 1, 1],
    [1, 1, 1],
];

const EDGES: [[usize; 2]; 12] = [
    [0, 1],
    [0, 2],
    [0, 4],
    [1, 3],
    [1, 5],
    [2, 3],
    [2, 6],
    [3, 7],
    [4, 5],
    [4, 6],
    [5, 7],
    [6, 7],
];

/// A cell with corners on both sides of the surface.
struct Cell {
    at: [u32; 3],
    values: [f32; 8],
    inside: [bool; 8],
}

pub(super) fn mesh(cx: &Cx, field: Field, threshold: f32) -> Result<Surface, NodeError> {
    let cells = active_cells(cx, field, threshold)?;
    let (vertices, number) = points(&cells, field, threshold);
    let mut out = Surface {
        vertices,
        faces: Vec::new(),
    };
    let index: HashMap<[u32; 3], u32> =
        cells.iter().zip(&number).map(|(c, n)| (c.at, *n)).collect();
    let normals: Vec<[f32; 3]> = cells.iter().map(towards_inside).collect();
    // The cross product of the two directions of each plane.
    let planes: [([u32; 3], [u32; 3], [f32; 3]); 3] = [
        ([1, 0, 0], [0, 1, 0], [0.0, 0.0, 1.0]),
        ([1, 0, 0], [0, 0, 1], [0.0, -1.0, 0.0]),
        ([0, 1, 0], [0, 0, 1], [1.0, 0.0, 0.0]),
    ];
    for (a, b, cross) in planes {
        cx.check_interrupt()?;
        for (cell, normal) in cells.iter().zip(&normals) {
            let find = |steps: &[[u32; 3]]| {
                let mut at = cell.at;
                for step in steps {
                    at = [at[0] + step[0], at[1] + step[1], at[2] + step[2]];
                }
                index.get(&at).copied()
            };
            let corners = (find(&[]), find(&[a]), find(&[b]), find(&[a, b]));
            let (Some(v0), Some(v1), Some(v2), Some(v3)) = corners else {
                continue;
            };
            let along: f32 = (0..3).map(|i| normal[i] * cross[i]).sum();
            out.faces.extend(if along > 0.0 {
                [[v0, v1, v3], [v0, v3, v2]]
            } else {
                [[v0, v3, v1], [v0, v2, v3]]
            });
        }
    }
    Ok(out)
}

/// Cells between voxel centres, the lowest ones reaching outside, where the field is zero. As in the reference there is no
/// such border at the high end.
fn active_cells(cx: &Cx, field: Field, threshold: f32) -> Result<Vec<Cell>, NodeError> {
    let [depth, height, width] = field.size;
    let mut cells = Vec::new();
    for z in 0..depth {
        cx.check_interrupt()?;
        for y in 0..height {
            for x in 0..width {
                let values = CORNERS.map(|c| {
                    let shift = |v: usize, i: usize| v as isize + isize::from(c[i]) - 1;
                    field.at(shift(z, 0), shift(y, 1), shift(x, 2))
                });
                let inside = values.map(|v| v > threshold);
                if inside.contains(&true) && inside.contains(&false) {
                    let at = [z as u32, y as u32, x as u32];
                    cells.push(Cell { at, values, inside });
                }
            }
        }
    }
    Ok(cells)
}

/// The point of each cell: the mean of where its edges cross the surface. Points are numbered by the first edge that
/// crosses, then by cell; the second list gives each cell's number.
fn points(cells: &[Cell], field: Field, threshold: f32) -> (Vec<[f32; 3]>, Vec<u32>) {
    let mut sums = vec![([0.0f32; 3], 0u32); cells.len()];
    let mut order = Vec::with_capacity(cells.len());
    for [from, to] in EDGES {
        for (i, cell) in cells.iter().enumerate() {
            if cell.inside[from] == cell.inside[to] {
                continue;
            }
            let (v1, v2) = (cell.values[from], cell.values[to]);
            let step = v2 - v1;
            let t = if step == 0.0 {
                0.5
            } else {
                (threshold - v1) / step
            };
            let (sum, count) = &mut sums[i];
            for axis in 0..3 {
                let (p, q) = (f32::from(CORNERS[from][axis]), f32::from(CORNERS[to][axis]));
                sum[axis] += p + t * (q - p);
            }
            if *count == 0 {
                order.push(i);
            }
            *count += 1;
        }
    }
    let mut number = vec![0; cells.len()];
    let mut vertices = Vec::with_capacity(cells.len());
    for i in order {
        number[i] = vertices.len() as u32;
        let (sum, count) = sums[i];
        let at = cells[i].at;
        vertices.push(field.place([0, 1, 2].map(|a| sum[a] / count as f32 + at[a] as f32)));
    }
    (vertices, number)
}

/// From the middle of the outer corners to the middle of the inner ones.
fn towards_inside(cell: &Cell) -> [f32; 3] {
    let middle = |which: bool| {
        let mut sum = [0.0f32; 3];
        let mut count = 0.0;
        for (corner, inside) in CORNERS.iter().zip(cell.inside) {
            if inside == which {
                count += 1.0;
                for axis in 0..3 {
                    sum[axis] += f32::from(corner[axis]);
                }
            }
        }
        sum.map(|s| s / count)
    };
    let (inner, outer) = (middle(true), middle(false));
    [0, 1, 2].map(|i| inner[i] - outer[i])
}
