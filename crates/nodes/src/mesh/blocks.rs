//! A mesh of the cube faces between solid and empty cells.

use fresco_graph::{Cx, NodeError};

use super::{Field, Surface};

/// Direction to the neighbour and the corners of the face towards it, as `(z, y, x)` offsets.
const FACES: [([isize; 3], [[u8; 3]; 4]); 6] = [
    ([0, 0, 1], [[0, 0, 1], [0, 1, 1], [1, 1, 1], [1, 0, 1]]),
    ([0, 0, -1], [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]]),
    ([0, 1, 0], [[0, 1, 0], [1, 1, 0], [1, 1, 1], [0, 1, 1]]),
    ([0, -1, 0], [[0, 0, 0], [0, 0, 1], [1, 0, 1], [1, 0, 0]]),
    ([1, 0, 0], [[1, 0, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0]]),
    ([-1, 0, 0], [[0, 1, 0], [0, 1, 1], [0, 0, 1], [0, 0, 0]]),
];

/// Faces grouped by direction; of each group first all first triangles, then all second ones.
pub(super) fn mesh(cx: &Cx, field: Field, threshold: f32) -> Result<Surface, NodeError> {
    let [depth, height, width] = field.size;
    // Outside counts as empty whatever the threshold.
    let solid = |z: isize, y: isize, x: isize| {
        let inside = z >= 0
            && y >= 0
            && x >= 0
            && (z as usize) < depth
            && (y as usize) < height
            && (x as usize) < width;
        inside && field.at(z, y, x) > threshold
    };
    let mut out = Surface::default();
    for (step, corners) in FACES {
        cx.check_interrupt()?;
        let start = out.vertices.len();
        for z in 0..depth as isize {
            for y in 0..height as isize {
                for x in 0..width as isize {
                    if !solid(z, y, x) || solid(z + step[0], y + step[1], x + step[2]) {
                        continue;
                    }
                    for c in corners {
                        let at = [z as f32, y as f32, x as f32];
                        let point = [0, 1, 2].map(|i| at[i] + f32::from(c[i]));
                        out.vertices.push(field.place(point));
                    }
                }
            }
        }
        let quads = (start..out.vertices.len()).step_by(4);
        if u32::try_from(out.vertices.len()).is_err() {
            return Err(NodeError::value_error("the mesh has too many points"));
        }
        out.faces
            .extend(quads.clone().map(|q| [q, q + 1, q + 2].map(|i| i as u32)));
        out.faces
            .extend(quads.map(|q| [q, q + 2, q + 3].map(|i| i as u32)));
    }
    if out.vertices.is_empty() {
        // The reference gives one point and one degenerate triangle for an empty field.
        out.vertices.push(field.place([0.0; 3]));
        out.faces.push([0; 3]);
    }
    Ok(out)
}
