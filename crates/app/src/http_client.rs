//! Asks a server one thing at a time. Plain HTTP/1.0 over a socket: a whole client would be a large guest for so little.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use anyhow::{Context as _, bail};
use fresco_graph::{Value, json};

/// How long a server may take to take the call, and to say something.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(30);
/// More than any answer that is read here.
const MOST: u64 = 64 << 20;

/// Where a server is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Server {
    host: String,
    port: u16,
    /// What stands before every path.
    base: String,
    token: Option<String>,
}

/// What a server said.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Server {
    /// Reads `http://HOST[:PORT][/PATH]`; the scheme may be left out.
    pub(crate) fn new(url: &str, token: Option<String>) -> anyhow::Result<Self> {
        let rest = match url.split_once("://") {
            None => url,
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("https") => {
                bail!("{url}: only http is spoken here; ask the server on its own machine")
            }
            Some(_) => bail!("{url} is not an address: it should be like http://127.0.0.1:8188"),
        };
        let (place, base) = rest.find('/').map_or((rest, ""), |i| rest.split_at(i));
        let base = base.split(['?', '#']).next().unwrap_or_default();
        let wrong = || format!("{url} is not an address: it should be like http://127.0.0.1:8188");
        let (host, port) = match place.strip_prefix('[') {
            Some(inner) => {
                let (host, after) = inner.split_once(']').with_context(wrong)?;
                (host, after.strip_prefix(':'))
            }
            None => match place.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (place, None),
            },
        };
        let plain = |c: char| !c.is_whitespace() && !c.is_control();
        if host.is_empty() || !url.chars().all(plain) {
            bail!(wrong());
        }
        let port = match port {
            None => 80,
            Some(port) => port.parse().ok().with_context(wrong)?,
        };
        Ok(Self {
            host: host.to_owned(),
            port,
            base: base.trim_end_matches('/').to_owned(),
            token,
        })
    }

    fn name(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// `patient`: the answer may take as long as a prompt.
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        body: &str,
        patient: bool,
    ) -> anyhow::Result<Answer> {
        let name = self.name();
        let mut stream = self.connect().with_context(|| {
            format!("no server answers at http://{name}; is Fresco running there? (--url)")
        })?;
        let broken = || format!("the server at http://{name} broke off");
        let wait = (!patient).then_some(ANSWER);
        stream.set_read_timeout(wait).with_context(broken)?;
        let token = match &self.token {
            Some(token) => format!("Authorization: Bearer {token}\r\n"),
            None => String::new(),
        };
        let request = format!(
            "{method} {}{path} HTTP/1.0\r\nHost: {name}\r\n{token}Content-Length: {}\r\n\r\n{body}",
            self.base,
            body.len()
        );
        stream.write_all(request.as_bytes()).with_context(broken)?;
        let mut bytes = Vec::new();
        let mut limited = stream.take(MOST);
        if let Err(error) = limited.read_to_end(&mut bytes) {
            use std::io::ErrorKind::{TimedOut, WouldBlock};
            if matches!(error.kind(), TimedOut | WouldBlock) {
                let seconds = ANSWER.as_secs();
                bail!("the server at http://{name} did not answer within {seconds} s");
            }
            return Err(error).with_context(broken);
        }
        understand(&bytes).with_context(|| format!("http://{name} does not speak HTTP"))
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// As [`Server::ask`], for JSON; what is refused is an error that says why.
    pub(crate) fn json(
        &self,
        method: &str,
        path: &str,
        body: &str,
        patient: bool,
    ) -> anyhow::Result<Value> {
        let answer = self.ask(method, path, body, patient)?;
        let value = json::parse(&answer.body);
        match (answer.status, value) {
            (200..=299, Ok(value)) => Ok(value),
            (200..=299, Err(error)) => bail!("the server's answer is not JSON: {error}"),
            (401, _) => bail!("this server needs its secret: --token TEXT or --token-file FILE"),
            (404, Err(_)) => bail!("this server does not know {path}; is it Fresco, and as new?"),
            (status, value) => bail!("{}", refusal(status, value.as_ref().ok())),
        }
    }
}

fn understand(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let mut words = head.lines().next()?.split(' ');
    words.next()?.strip_prefix("HTTP/")?;
    let status = words.next()?.parse().ok()?;
    let body = String::from_utf8_lossy(&bytes[end + 4..]).into_owned();
    Some(Answer { status, body })
}

fn refusal(status: u16, body: Option<&Value>) -> String {
    let error = body.and_then(|b| b.get("error"));
    let part = |key: &str| error.and_then(|e| e.get(key)).and_then(Value::as_str);
    match (part("message"), part("details")) {
        (_, Some(details)) if !details.is_empty() => details.to_owned(),
        (Some(message), _) => message.to_owned(),
        _ => format!("the server answered with {status}"),
    }
}

/// Percent-encodes one segment of a path.
pub(crate) fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let read = |url: &str| {
            let server = Server::new(url, None).unwrap();
            (server.name(), server.base)
        };
        let is = |name: &str, base: &str| (name.to_owned(), base.to_owned());
        assert_eq!(read("http://127.0.0.1:8188"), is("127.0.0.1:8188", ""));
        assert_eq!(read("localhost:1/"), is("localhost:1", ""));
        assert_eq!(read("HTTP://a/fresco/"), is("a:80", "/fresco"));
        assert_eq!(read("http://[::1]:5/x?y"), is("[::1]:5", "/x"));
        for bad in [
            "",
            "http://",
            "ftp://a",
            "https://a",
            "http://a:b",
            "http://a:99999",
            "http://[::1",
            "http://a b",
        ] {
            assert!(Server::new(bad, None).is_err(), "{bad}");
        }
    }

    #[test]
    fn answers_are_read() {
        let answer = understand(b"HTTP/1.1 404 Not Found\r\nA: b\r\n\r\nbody").unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (404, "body"));
        for bad in [
            "",
            "HTTP/1.1 200 OK",
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 x\r\n\r\n",
        ] {
            assert!(understand(bad.as_bytes()).is_none(), "{bad}");
        }
        let body = json::parse(r#"{"error":{"message":"m","details":"d"}}"#).unwrap();
        assert_eq!(refusal(400, Some(&body)), "d");
        assert_eq!(refusal(500, None), "the server answered with 500");
        assert_eq!(segment("a.b#c@d/e"), "a.b%23c%40d%2Fe");
    }

    #[test]
    fn nobody_there_is_said_clearly() {
        // A port that was just free.
        let port = {
            let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            socket.local_addr().unwrap().port()
        };
        let server = Server::new(&format!("127.0.0.1:{port}"), None).unwrap();
        let error = server.json("GET", "/memory", "", false).unwrap_err();
        assert!(error.to_string().contains("no server answers"), "{error}");
    }
}
