//! What packs write to their standard output and errors: whose it is, how it goes to the log, and what an error shows of it.
//!
//! The process says in the streams themselves whose words follow: a mark is what comes between two `MARK` bytes, beginning
//! with [`SAYS`]. What the engine knows from its own channel may be ahead of the streams, or behind them.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead as _, BufReader, Read};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fresco_graph::lock;

/// Bytes of one line of output; what is longer is cut into several.
const LINE: u64 = 8 << 10;
/// Bytes a second that are passed on to the log.
const FLOOD: u64 = 1 << 20;
/// Lines of output that an error shows.
const TAIL: usize = 60;
/// Lines that are kept of each pack.
const KEPT: usize = 100;
/// Before and behind a mark: a byte that no text has.
const MARK: char = '\u{1d}';
const SAYS: &str = "fresco:";

/// What packs wrote last, by their names; it outlives their processes.
#[derive(Default)]
pub(crate) struct Logs(Mutex<HashMap<Arc<str>, VecDeque<String>>>);

impl Logs {
    fn add(&self, name: &Arc<str>, line: &str) {
        let mut logs = lock(&self.0);
        let lines = logs.entry(name.clone()).or_default();
        if lines.len() == KEPT {
            lines.pop_front();
        }
        lines.push_back(line.to_owned());
    }

    pub(crate) fn of(&self, name: &str) -> Vec<String> {
        let logs = lock(&self.0);
        let lines = logs.get(name).map(|lines| lines.iter().cloned().collect());
        lines.unwrap_or_default()
    }
}

/// Both streams of one process.
#[derive(Clone, Default)]
pub(crate) struct Output(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The lines of each stream since its last mark.
    tails: Vec<VecDeque<String>>,
    readers: usize,
}

impl Output {
    /// The reader of one more stream.
    pub(crate) fn reader(&self, speaker: &Arc<Mutex<Arc<str>>>, logs: &Arc<Logs>) -> StreamReader {
        let mut state = lock(&self.0);
        state.readers += 1;
        state.tails.push(VecDeque::new());
        StreamReader {
            number: state.tails.len() - 1,
            output: self.clone(),
            known: speaker.clone(),
            marked: None,
            logs: logs.clone(),
        }
    }

    /// Whether there may still be something on its way.
    pub(crate) fn is_open(&self) -> bool {
        lock(&self.0).readers > 0
    }

    /// What was written since the last mark: the words of the pack at whose work the process ended.
    pub(crate) fn last_words(&self) -> Vec<String> {
        let state = lock(&self.0);
        let lines: Vec<String> = state.tails.iter().flatten().cloned().collect();
        own_trace(lines)
    }
}

/// Of the traces that Python writes when a process ends for good, that of the thread that ended it.
fn own_trace(lines: Vec<String>) -> Vec<String> {
    let fatal = |line: &String| line.starts_with("Fatal Python error");
    let Some(start) = lines.iter().rposition(fatal) else {
        return lines;
    };
    let mut kept = vec![lines[start].clone()];
    let mut own = true;
    for line in &lines[start + 1..] {
        if line.starts_with("Current thread") {
            own = true;
        } else if line.starts_with("Thread 0x") || line.starts_with("Extension modules") {
            own = false;
        }
        if own && !line.is_empty() {
            kept.push(line.clone());
        }
    }
    kept
}

/// Passes the lines of a stream to the log, with the name of the pack; a flood is cut.
pub(crate) struct StreamReader {
    number: usize,
    output: Output,
    /// Who is at work, as far as the engine knows.
    known: Arc<Mutex<Arc<str>>>,
    /// Who is at work, as the stream itself said last.
    marked: Option<Arc<str>>,
    logs: Arc<Logs>,
}

impl StreamReader {
    pub(crate) fn run(mut self, stream: impl Read) {
        let mut lines = BufReader::new(stream);
        let mut second = Instant::now();
        let mut bytes = 0_u64;
        let mut line = Vec::new();
        loop {
            line.clear();
            match lines.by_ref().take(LINE).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
            if second.elapsed() > Duration::from_secs(1) {
                (second, bytes) = (Instant::now(), 0);
            }
            let before = bytes;
            bytes += line.len() as u64;
            let text = String::from_utf8_lossy(&line);
            self.read(&text, bytes > FLOOD);
            if bytes > FLOOD && before <= FLOOD {
                tracing::warn!(
                    "[{}] writes more than 1 MB a second; the rest of it is left out",
                    self.speaker()
                );
            }
        }
        lock(&self.output.0).readers -= 1;
    }

    fn speaker(&self) -> Arc<str> {
        self.marked
            .clone()
            .unwrap_or_else(|| lock(&self.known).clone())
    }

    /// Words and marks of one line, in their order.
    fn read(&mut self, line: &str, cut: bool) {
        let line = line.trim_end_matches(['\n', '\r']);
        let mut marked = false;
        for part in line.split(MARK) {
            if let Some(name) = part.strip_prefix(SAYS) {
                self.marked = (!name.is_empty()).then(|| name.into());
                lock(&self.output.0).tails[self.number].clear();
                marked = true;
            } else if !cut && !(part.is_empty() && (marked || line.contains(MARK))) {
                self.pass(part);
            }
        }
    }

    fn pass(&self, part: &str) {
        let text = plain(part);
        let name = self.speaker();
        tracing::info!("[{name}] {text}");
        self.logs.add(&name, &text);
        let tail = &mut lock(&self.output.0).tails[self.number];
        if tail.len() == TAIL {
            tail.pop_front();
        }
        tail.push_back(text);
    }
}

/// A line as a terminal would show it, without colours: of a bar that is drawn again and again, its last state.
fn plain(line: &str) -> String {
    let line = line.trim_end_matches('\r');
    let line = line.rsplit('\r').next().unwrap_or(line);
    let mut text = String::with_capacity(line.len());
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        if letter != '\u{1b}' {
            text.push(letter);
            continue;
        }
        match letters.next() {
            // Parameters, then one letter.
            Some('[') => {
                letters.find(|c| ('\u{40}'..='\u{7e}').contains(c));
            }
            // A text up to a bell, or to an escape and a backslash.
            Some(']') => {
                let end = letters.find(|c| matches!(c, '\u{7}' | '\u{1b}'));
                if end == Some('\u{1b}') {
                    letters.next();
                }
            }
            _ => {}
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_belong_to_who_is_marked() {
        let (output, logs) = (Output::default(), Arc::<Logs>::default());
        let speaker: Arc<Mutex<Arc<str>>> = Arc::new(Mutex::new("later".into()));
        let text = "before\n\u{1d}fresco:a\u{1d}of a\n\u{1b}[31mred\u{1b}[0m\n10%\r20%\nhalf\u{1d}fresco:b\u{1d}of b\n\n";
        output.reader(&speaker, &logs).run(text.as_bytes());
        assert_eq!(logs.of("later"), ["before"]);
        assert_eq!(logs.of("a"), ["of a", "red", "20%", "half"]);
        assert_eq!(logs.of("b"), ["of b", ""]);
        assert_eq!(output.last_words(), ["of b", ""]);
        assert!(!output.is_open());
    }

    #[test]
    fn of_a_fatal_error_its_own_trace() {
        let lines = [
            "words",
            "Fatal Python error: Segmentation fault",
            "",
            "Thread 0x01 (most recent call first):",
            "  File \"threading.py\", line 1 in wait",
            "",
            "Current thread 0x02 (most recent call first):",
            "  File \"pack/__init__.py\", line 7 in run",
            "",
            "Extension modules: numpy (total: 1)",
        ];
        let own = own_trace(lines.map(str::to_owned).to_vec());
        assert_eq!(
            own,
            [
                "Fatal Python error: Segmentation fault",
                "Current thread 0x02 (most recent call first):",
                "  File \"pack/__init__.py\", line 7 in run",
            ]
        );
    }
}
