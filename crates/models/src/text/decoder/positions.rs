//! Where rows are: words one after the other, the squares of a picture at one time on a grid.

use fresco_tensor::{Buffer, Tensor};

use super::config::{RopeRule, Sections};
use crate::error::Result;
use crate::text::sequence::PicturePlace;
use crate::transformer::Rope;

/// Time, row and column of each row. After a picture, words go on beyond its longer side.
pub(super) fn positions(rows: usize, pictures: &[PicturePlace]) -> Vec<[f32; 3]> {
    let mut found = Vec::with_capacity(rows);
    let mut next = 0.0;
    let words = |found: &mut Vec<[f32; 3]>, up_to: usize, next: &mut f32| {
        while found.len() < up_to {
            found.push([*next; 3]);
            *next += 1.0;
        }
    };
    for picture in pictures {
        words(&mut found, picture.start, &mut next);
        let (height, width) = picture.grid;
        for row in 0..height {
            for column in 0..width {
                found.push([next, next + row as f32, next + column as f32]);
            }
        }
        next += height.max(width) as f32;
    }
    words(&mut found, rows, &mut next);
    found.truncate(rows);
    found
}

impl RopeRule {
    /// The tables for rows at these positions, of which so many channels of a head are turned. Angles are f32, as in
    /// published code.
    pub(super) fn tables(
        &self,
        turned: usize,
        sections: Option<Sections>,
        positions: &[[f32; 3]],
    ) -> Result<Rope> {
        let half = turned / 2;
        let turning = (self.share * half as f64) as usize;
        let frequency = |pair: usize| {
            if pair >= turning {
                return 0.0;
            }
            let exponent = -2.0 * pair as f64 / turned as f64;
            (self.theta.powf(exponent) / self.slower) as f32
        };
        let frequencies: Vec<f32> = (0..half).map(frequency).collect();
        let axis = |pair: usize| sections.map_or(0, |sections| sections.axis(pair));
        let axes: Vec<usize> = (0..half).map(axis).collect();
        let mut cos = Buffer::with_room(positions.len() * half)?;
        let mut sin = Buffer::with_room(positions.len() * half)?;
        for position in positions {
            let angles = frequencies.iter().zip(&axes);
            let angles = angles.map(|(f, axis)| f64::from(position[*axis] * f));
            for angle in angles {
                cos.extend([angle.cos() as f32]);
                sin.extend([angle.sin() as f32]);
            }
        }
        let shape = [positions.len(), half];
        Ok(Rope::from_tables(
            Tensor::from_buffer(shape, cos)?,
            Tensor::from_buffer(shape, sin)?,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_go_on_after_a_picture() {
        let picture = PicturePlace {
            start: 1,
            len: 6,
            grid: (2, 3),
            deeper: Vec::new(),
        };
        let found = positions(9, &[picture]);
        assert_eq!(found[0], [0.0; 3]);
        assert_eq!(found[1], [1.0; 3]);
        assert_eq!(found[6], [1.0, 2.0, 3.0]);
        assert_eq!((found[7], found[8]), ([4.0; 3], [5.0; 3]));
        assert_eq!(positions(2, &[]), [[0.0; 3], [1.0; 3]]);
    }
}
