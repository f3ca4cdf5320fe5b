//! Asks a server one thing at a time, with TLS where its address says so.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use fresco_graph::{Value, json};
use tokio_rustls::rustls;
use ureq::http::{Request, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

/// How long a server may take to take the call, and to say something.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(30);
/// More than any answer that is read here.
const MOST: u64 = 64 << 20;

/// Where a server is, and how to speak with it.
pub(crate) struct Server {
    address: Address,
    token: Option<String>,
    agent: Agent,
}

/// What a server said.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Scheme, host and port, and what stands before every path.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    tls: bool,
    origin: String,
    base: String,
}

impl Address {
    /// Reads `http[s]://HOST[:PORT][/PATH]`; without a scheme it is plain.
    fn read(url: &str) -> anyhow::Result<Self> {
        let wrong = || format!("{url} is not an address: it should be like http://127.0.0.1:8188");
        let whole = if url.contains("://") {
            url.to_owned()
        } else {
            format!("http://{url}")
        };
        let uri: Uri = whole.parse().ok().with_context(wrong)?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            bail!(wrong());
        };
        let tls = match scheme {
            "http" => false,
            "https" => true,
            _ => bail!(wrong()),
        };
        let host = authority.host();
        let port = match authority.port_u16() {
            Some(port) => port,
            None if !authority.as_str().ends_with(host) || host.is_empty() => bail!(wrong()),
            None if tls => 443,
            None => 80,
        };
        Ok(Self {
            tls,
            origin: format!("{scheme}://{host}:{port}"),
            base: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

impl Server {
    /// `authority`: a file of certificates to trust in place of the system's.
    pub(crate) fn new(
        url: &str,
        token: Option<String>,
        authority: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let address = Address::read(url)?;
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            // The address is the one that was given, whatever the environment says.
            .proxy(None)
            .timeout_connect(Some(CONNECT));
        if address.tls {
            config = config.tls_config(tls(authority)?);
        } else if authority.is_some() {
            bail!("certificates are of no use with {url}: it does not begin with https://");
        }
        Ok(Self {
            address,
            token,
            agent: config.build().new_agent(),
        })
    }

    /// `patient`: the answer may take as long as a prompt.
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        body: &str,
        patient: bool,
    ) -> anyhow::Result<Answer> {
        let origin = &self.address.origin;
        let wait = (!patient).then_some(ANSWER);
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{origin}{}{path}", self.address.base));
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let unusable = || format!("{method} {path} cannot be asked of {origin}");
        let answer = if body.is_empty() {
            let request = request.body(()).with_context(unusable)?;
            let request = self.agent.configure_request(request);
            let request = request.timeout_recv_response(wait).build();
            self.agent.run(request)
        } else {
            let request = request.body(body).with_context(unusable)?;
            let request = self.agent.configure_request(request);
            let request = request.timeout_recv_response(wait).build();
            self.agent.run(request)
        };
        answer
            .and_then(|mut answer| {
                Ok(Answer {
                    status: answer.status().as_u16(),
                    body: text(answer.body_mut())?,
                })
            })
            .map_err(|error| self.explain(error))
    }

    /// What went wrong, in words for the person at the terminal.
    fn explain(&self, error: ureq::Error) -> anyhow::Error {
        use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
        let origin = &self.address.origin;
        let away = matches!(
            &error,
            ureq::Error::HostNotFound
                | ureq::Error::ConnectionFailed
                | ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve)
        ) || matches!(&error, ureq::Error::Io(e) if
            matches!(e.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable));
        let text = match &error {
            _ if away => {
                format!("no server answers at {origin}; is Fresco running there? (--url)")
            }
            ureq::Error::Timeout(_) => {
                let seconds = ANSWER.as_secs();
                format!("the server at {origin} did not answer within {seconds} s")
            }
            ureq::Error::Protocol(_) => format!("{origin} does not speak HTTP"),
            _ if rejected_certificate(&error) => format!(
                "the certificate of {origin} is not trusted here (--tls-cafile names one to trust)"
            ),
            _ => format!("the server at {origin} broke off"),
        };
        anyhow::Error::new(error).context(text)
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

fn text(body: &mut Body) -> Result<String, ureq::Error> {
    let bytes = body.with_config().limit(MOST).read_to_vec()?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Errors of TLS come by themselves or inside those of the connection.
fn rejected_certificate(error: &ureq::Error) -> bool {
    let inner = match error {
        ureq::Error::Rustls(error) => Some(error),
        ureq::Error::Io(error) => error.get_ref().and_then(|e| e.downcast_ref()),
        _ => None,
    };
    matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
}

fn tls(authority: Option<&Path>) -> anyhow::Result<TlsConfig> {
    let trusted = match authority {
        Some(path) => named_certificates(path)?,
        None => system_certificates()?,
    };
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(trusted)))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build())
}

fn named_certificates(path: &Path) -> anyhow::Result<Vec<Certificate<'static>>> {
    let shown = || format!("cannot read the certificates in {}", path.display());
    let bytes = std::fs::read(path).with_context(shown)?;
    let mut found = Vec::new();
    for item in parse_pem(&bytes) {
        if let PemItem::Certificate(certificate) = item.with_context(shown)? {
            found.push(certificate);
        }
    }
    if found.is_empty() {
        bail!("there is no certificate in {}", path.display());
    }
    Ok(found)
}

fn system_certificates() -> anyhow::Result<Vec<Certificate<'static>>> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let reason = found.errors.first().map(ToString::to_string);
        bail!(
            "this system names no certificates to trust ({}); --tls-cafile names one",
            reason.as_deref().unwrap_or("none found")
        );
    }
    let own = |der: &rustls::pki_types::CertificateDer<'_>| Certificate::from_der(der).to_owned();
    Ok(found.certs.iter().map(own).collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let read = |url: &str| {
            let address = Address::read(url).unwrap();
            (address.origin, address.base)
        };
        let is = |origin: &str, base: &str| (origin.to_owned(), base.to_owned());
        assert_eq!(
            read("http://127.0.0.1:8188"),
            is("http://127.0.0.1:8188", "")
        );
        assert_eq!(read("localhost:1/"), is("http://localhost:1", ""));
        assert_eq!(read("HTTP://a/fresco/"), is("http://a:80", "/fresco"));
        assert_eq!(read("http://[::1]:5/x?y"), is("http://[::1]:5", "/x"));
        assert_eq!(read("https://a"), is("https://a:443", ""));
        assert_eq!(read("HTTPS://a:8188/x"), is("https://a:8188", "/x"));
        for bad in [
            "",
            "http://",
            "ftp://a",
            "http://a:b",
            "http://a:99999",
            "http://[::1",
            "http://a b",
        ] {
            assert!(Address::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn refusals_are_put_into_words() {
        let body = json::parse(r#"{"error":{"message":"m","details":"d"}}"#).unwrap();
        assert_eq!(refusal(400, Some(&body)), "d");
        assert_eq!(refusal(500, None), "the server answered with 500");
    }

    #[test]
    fn nobody_there_is_said_clearly() {
        // A port that was just free.
        let port = {
            let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            socket.local_addr().unwrap().port()
        };
        let server = Server::new(&format!("127.0.0.1:{port}"), None, None).unwrap();
        let error = server.json("GET", "/memory", "", false).unwrap_err();
        assert!(error.to_string().contains("no server answers"), "{error}");
    }

    #[test]
    fn what_is_no_server_is_said_clearly() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let other = std::thread::spawn(move || {
            use std::io::{Read as _, Write as _};
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            stream.write_all(b"SSH-2.0-other\r\n\r\n").unwrap();
        });
        let server = Server::new(&address.to_string(), None, None).unwrap();
        let error = server.json("GET", "/memory", "", false).unwrap_err();
        assert!(
            error.to_string().contains("does not speak HTTP"),
            "{error:#}"
        );
        other.join().unwrap();
    }

    #[test]
    fn certificates_that_cannot_be_read_are_named() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        let error = |url: &str, name: &str| {
            let file = data.join(name);
            let server = Server::new(url, None, Some(&file));
            server.err().unwrap().to_string()
        };
        assert!(error("https://a", "missing.pem").contains("missing.pem"));
        assert!(error("https://a", "key.pem").contains("no certificate"));
        assert!(error("http://a", "cert.pem").contains("of no use"));
    }
}
