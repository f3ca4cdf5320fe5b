//! A plain blocking HTTP/1.1 client: what goes over the wire is what the test wrote.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Nothing the tests ask for takes longer; a hang becomes a failure.
pub const PATIENCE: Duration = Duration::from_mins(5);

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(found, _)| found == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(error) => panic!(
                "status {}, not JSON ({error}): {}",
                self.status,
                self.text()
            ),
        }
    }

    /// The response, if it has this status.
    #[track_caller]
    pub fn expect_status(self, status: u16) -> Self {
        assert_eq!(self.status, status, "body: {}", self.text());
        self
    }
}

/// One keep-alive connection.
pub struct Connection {
    stream: BufReader<TcpStream>,
    host: String,
    /// Sent with every request, for example a token.
    pub headers: Vec<(String, String)>,
}

impl Connection {
    pub fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)
            .with_context(|| format!("cannot connect to {address}"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: BufReader::new(stream),
            host: address.to_string(),
            headers: Vec::new(),
        })
    }

    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response> {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("host"))
        {
            head.push_str(&format_header("Host", &self.host));
        }
        for (name, value) in &self.headers {
            head.push_str(&format_header(name, value));
        }
        for (name, value) in headers {
            head.push_str(&format_header(name, value));
        }
        if !body.is_empty() || matches!(method, "POST" | "PUT" | "PATCH") {
            head.push_str(&format_header("Content-Length", &body.len().to_string()));
        }
        head.push_str("\r\n");
        let mut message = head.into_bytes();
        message.extend_from_slice(body);
        self.stream.get_mut().write_all(&message)?;
        self.receive(method == "HEAD")
            .with_context(|| format!("{method} {path}"))
    }

    pub fn get(&mut self, path: &str) -> Result<Response> {
        self.request("GET", path, &[], &[])
    }

    pub fn post(&mut self, path: &str, body: &Value) -> Result<Response> {
        let headers = [("Content-Type", "application/json")];
        self.request("POST", path, &headers, body.to_string().as_bytes())
    }

    fn receive(&mut self, head_only: bool) -> Result<Response> {
        let status_line = self.line()?;
        let status = status_line
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .with_context(|| format!("bad status line {status_line:?}"))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line
                .split_once(':')
                .with_context(|| format!("bad header line {line:?}"))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut response = Response {
            status,
            headers,
            body: Vec::new(),
        };
        if head_only || matches!(status, 204 | 304) {
            return Ok(response);
        }
        if response.header("transfer-encoding") == Some("chunked") {
            response.body = self.chunks()?;
        } else if let Some(length) = response.header("content-length") {
            let mut body = vec![0; length.parse()?];
            self.stream.read_exact(&mut body)?;
            response.body = body;
        } else {
            self.stream.read_to_end(&mut response.body)?;
        }
        Ok(response)
    }

    fn chunks(&mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.line()?;
            let size = usize::from_str_radix(line.split(';').next().unwrap_or_default(), 16)?;
            let start = body.len();
            body.resize(start + size, 0);
            self.stream.read_exact(&mut body[start..])?;
            self.line()?;
            if size == 0 {
                return Ok(body);
            }
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            bail!("the server closed the connection");
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// Writes bytes as they are, for requests no client library would send.
    pub fn raw(&mut self, bytes: &[u8]) -> Result<Response> {
        self.stream.get_mut().write_all(bytes)?;
        self.receive(false)
    }

    /// Reads one line of a response that goes on, such as an event stream, after [`Connection::raw_head`].
    pub fn next_line(&mut self) -> Result<String> {
        self.line()
    }

    /// Sends a GET and reads the response up to its body, which the caller reads with [`Connection::next_line`].
    pub fn raw_head(&mut self, path: &str, headers: &[(&str, &str)]) -> Result<Response> {
        let mut head = format!("GET {path} HTTP/1.1\r\n");
        head.push_str(&format_header("Host", &self.host));
        for (name, value) in headers {
            head.push_str(&format_header(name, value));
        }
        head.push_str("\r\n");
        self.stream.get_mut().write_all(head.as_bytes())?;
        self.receive(true)
    }
}

fn format_header(name: &str, value: &str) -> String {
    format!("{name}: {value}\r\n")
}

/// A multipart body with text fields and at most one file, and its content type.
pub fn multipart(fields: &[(&str, &str)], file: Option<(&str, &str, &[u8])>) -> (String, Vec<u8>) {
    let boundary = "----fresco-test-boundary";
    let mut body = Vec::new();
    for (name, value) in fields {
        let part = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
        );
        body.extend_from_slice(part.as_bytes());
    }
    if let Some((name, filename, bytes)) = file {
        let part = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{filename}\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        );
        body.extend_from_slice(part.as_bytes());
        body.extend_from_slice(bytes);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    (format!("multipart/form-data; boundary={boundary}"), body)
}
