//! Strings that are tokens wherever they stand in a text: `<|im_start|>`, `</s>`.

/// Marks that stand in a text for themselves.
#[derive(Debug, Clone, Default)]
pub struct Marks {
    /// The longest first, so that the first that fits is the one.
    marks: Vec<(String, u32)>,
}

impl Marks {
    pub fn new(marks: impl IntoIterator<Item = (String, u32)>) -> Self {
        let mut marks: Vec<_> = marks.into_iter().filter(|(m, _)| !m.is_empty()).collect();
        marks.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.cmp(b)));
        Self { marks }
    }

    /// The number of a mark.
    pub fn id(&self, mark: &str) -> Option<u32> {
        let found = self.marks.iter().find(|(text, _)| text == mark);
        found.map(|(_, id)| *id)
    }

    /// The mark with a number.
    pub fn text(&self, id: u32) -> Option<&str> {
        let found = self.marks.iter().find(|(_, number)| *number == id);
        found.map(|(text, _)| text.as_str())
    }

    /// The tokens of a text: marks by their numbers, what is between them by `encode`.
    pub fn encode(&self, text: &str, mut encode: impl FnMut(&str, &mut Vec<u32>)) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut plain = 0;
        let mut at = 0;
        while at < text.len() {
            let rest = &text[at..];
            let Some((mark, id)) = self
                .marks
                .iter()
                .find(|(m, _)| rest.starts_with(m.as_str()))
            else {
                at += rest.chars().next().map_or(1, char::len_utf8);
                continue;
            };
            if plain < at {
                encode(&text[plain..at], &mut ids);
            }
            ids.push(*id);
            at += mark.len();
            plain = at;
        }
        if plain < text.len() {
            encode(&text[plain..], &mut ids);
        }
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_mark_wins_and_text_between_is_handed_on() {
        let marks = Marks::new([
            ("<a".to_owned(), 1),
            ("<a>".to_owned(), 2),
            (String::new(), 9),
        ]);
        let mut seen = Vec::new();
        let ids = marks.encode("x<a>é<ab", |text, ids| {
            seen.push(text.to_owned());
            ids.push(7);
        });
        assert_eq!(ids, [7, 2, 7, 1, 7]);
        assert_eq!(seen, ["x", "é", "b"]);
        assert_eq!((marks.id("<a>"), marks.id("b")), (Some(2), None));
        assert!(marks.encode("", |_, _| unreachable!()).is_empty());
    }
}
