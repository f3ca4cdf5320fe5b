//! The order of the sequence: the prompt's rows with reference pictures at their places, then the picture that is made.

use crate::error::{ModelError, Result};
use crate::transformer::grid_positions;

/// A part of the sequence before the picture that is made. Rows of the prompt see what is before them, pictures all of
/// themselves, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    /// Some rows of the prompt.
    Text { start: usize, len: usize },
    /// A reference picture by its number.
    Picture {
        number: usize,
        rows: usize,
        columns: usize,
    },
}

impl Segment {
    pub(super) fn len(self) -> usize {
        match self {
            Self::Text { len, .. } => len,
            Self::Picture { rows, columns, .. } => rows * columns,
        }
    }
}

/// The segments for a prompt of so many rows. `slots` says how many of them stand before each picture; pictures without a
/// place stand behind the prompt.
pub(super) fn segments(
    text: usize,
    slots: &[usize],
    pictures: &[(usize, usize)],
) -> Result<Vec<Segment>> {
    let mut found = Vec::new();
    let mut done = 0;
    for (number, &(rows, columns)) in pictures.iter().enumerate() {
        let before = slots.get(number).copied().unwrap_or(text);
        if before < done || before > text {
            let reason =
                format!("a picture after row {before} of {text}, of which {done} are past");
            return Err(ModelError::invalid("reference", reason));
        }
        if before > done {
            found.push(Segment::Text {
                start: done,
                len: before - done,
            });
        }
        done = before;
        found.push(Segment::Picture {
            number,
            rows,
            columns,
        });
    }
    if text > done {
        found.push(Segment::Text {
            start: done,
            len: text - done,
        });
    }
    Ok(found)
}

/// Positions one after the other: index, row, column.
#[derive(Default)]
pub(super) struct Places {
    next: usize,
    pub(super) positions: Vec<f64>,
}

impl Places {
    /// Rows and columns of a picture count from its middle; what follows is as far away as its longer side.
    pub(super) fn picture(&mut self, rows: usize, columns: usize) {
        let middle = |n: usize| -((n - n / 2) as f64);
        let start = (middle(rows), middle(columns));
        let places = grid_positions(self.next as f64, (rows, columns), start);
        self.positions.extend(places.flatten());
        self.next += rows.max(columns);
    }

    pub(super) fn text(&mut self, len: usize) {
        for at in self.next..self.next + len {
            self.positions.extend([at as f64; 3]);
        }
        self.next += len;
    }

    pub(super) fn segment(&mut self, segment: Segment) {
        match segment {
            Segment::Text { len, .. } => self.text(len),
            Segment::Picture { rows, columns, .. } => self.picture(rows, columns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_stand_at_their_places() {
        let found = segments(8, &[3, 4], &[(4, 4), (2, 6)]).unwrap();
        let lens: Vec<usize> = found.iter().map(|s| s.len()).collect();
        assert_eq!(lens, [3, 16, 1, 12, 4]);
        let behind = segments(2, &[], &[(1, 1)]).unwrap();
        assert_eq!(behind.len(), 2);
        assert_eq!(behind[0], Segment::Text { start: 0, len: 2 });
        assert_eq!(segments(2, &[0, 0], &[(1, 1), (1, 1)]).unwrap().len(), 3);
        assert!(segments(2, &[3], &[(1, 1)]).is_err());
        assert!(segments(4, &[3, 2], &[(1, 1), (1, 1)]).is_err());
    }

    #[test]
    fn positions_go_on_behind_a_picture() {
        let mut places = Places::default();
        places.text(2);
        places.picture(2, 3);
        places.text(1);
        assert_eq!(places.positions[..6], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        assert_eq!(places.positions[6..9], [2.0, -1.0, -2.0]);
        assert_eq!(places.positions[24..], [5.0; 3]);
    }
}
