//! A member of a cluster that says whatever a test wants: a client of the NATS server that knows nothing but its text protocol.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result};

/// Something that was heard.
pub struct Message {
    pub subject: String,
    /// Where an answer is wanted.
    pub reply: Option<String>,
    pub body: Vec<u8>,
}

/// Sends messages. Clones send through the same connection.
#[derive(Clone)]
pub struct Voice(Arc<Mutex<TcpStream>>);

impl Voice {
    pub fn say(&self, subject: &str, body: &[u8]) -> Result<()> {
        let mut text = format!("PUB {subject} {}\r\n", body.len()).into_bytes();
        text.extend_from_slice(body);
        text.extend_from_slice(b"\r\n");
        self.send(&text)
    }

    fn send(&self, text: &[u8]) -> Result<()> {
        let mut stream = self.0.lock().expect("nobody panics with it");
        Ok(stream.write_all(text)?)
    }
}

/// The member; silent once it is dropped.
pub struct Member {
    pub voice: Voice,
    ended: Arc<AtomicBool>,
}

impl Member {
    /// Joins, and has `hear` hear what is said on these subjects.
    pub fn join(
        port: u16,
        subjects: &[&str],
        mut hear: impl FnMut(&Voice, Message) + Send + 'static,
    ) -> Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let voice = Voice(Arc::new(Mutex::new(stream)));
        voice.send(b"CONNECT {\"verbose\":false,\"pedantic\":false}\r\n")?;
        for (number, subject) in subjects.iter().enumerate() {
            voice.send(format!("SUB {subject} {number}\r\n").as_bytes())?;
        }
        let ended = Arc::<AtomicBool>::default();
        let (own, over) = (voice.clone(), ended.clone());
        thread::spawn(move || {
            while !over.load(Ordering::SeqCst) {
                match read(&mut reader, &own) {
                    Ok(Some(message)) => hear(&own, message),
                    Ok(None) => {}
                    Err(_) => return,
                }
            }
        });
        Ok(Self { voice, ended })
    }

    /// Says the same again and again, as signs of life are.
    pub fn repeat(&self, subject: &str, body: Vec<u8>) {
        let (voice, ended, subject) = (self.voice.clone(), self.ended.clone(), subject.to_owned());
        thread::spawn(move || {
            while !ended.load(Ordering::SeqCst) && voice.say(&subject, &body).is_ok() {
                thread::park_timeout(Duration::from_millis(100));
            }
        });
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
    }
}

/// The next line of the server, and the message behind it if it announces one.
fn read(reader: &mut BufReader<TcpStream>, voice: &Voice) -> Result<Option<Message>> {
    let mut line = String::new();
    let read = reader.read_line(&mut line)?;
    anyhow::ensure!(read > 0, "the server is gone");
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["PING"] => voice.send(b"PONG\r\n").map(|()| None),
        // Subject, number, perhaps where to answer, and length.
        ["MSG", subject, _, ref rest @ ..] => {
            let length: usize = rest.last().context("no length")?.parse()?;
            let mut body = vec![0; length + 2];
            reader.read_exact(&mut body)?;
            body.truncate(length);
            Ok(Some(Message {
                subject: subject.to_owned(),
                reply: (rest.len() == 2).then(|| rest[0].to_owned()),
                body,
            }))
        }
        // With headers, which nobody here reads.
        ["HMSG", subject, _, ref rest @ ..] => {
            let [.., headers, length] = rest else {
                anyhow::bail!("no length");
            };
            let (headers, length): (usize, usize) = (headers.parse()?, length.parse()?);
            let mut body = vec![0; length + 2];
            reader.read_exact(&mut body)?;
            body.truncate(length);
            Ok(Some(Message {
                subject: subject.to_owned(),
                reply: (rest.len() == 3).then(|| rest[0].to_owned()),
                body: body.split_off(headers),
            }))
        }
        _ => Ok(None),
    }
}
