//! TLS for those who give a key and a certificate.

use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use fresco_server::serve::Wrap;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

pub(crate) struct Tls(TlsAcceptor);

impl Tls {
    /// Reads PEM files; clients are not asked for certificates.
    pub(crate) fn load(key: &Path, certificate: &Path) -> anyhow::Result<Self> {
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .with_context(|| format!("cannot read the certificate {}", certificate.display()))?;
        let secret = PrivateKeyDer::from_pem_file(key)
            .with_context(|| format!("cannot read the key {}", key.display()))?;
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, secret)
            .context("key and certificate do not go together")?;
        // The server speaks nothing newer.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }
}

impl Wrap for Tls {
    type Stream = TlsStream<TcpStream>;

    async fn wrap(&self, stream: TcpStream) -> io::Result<Self::Stream> {
        self.0.accept(stream).await
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};

    use super::*;

    /// Self-signed for `localhost`, made with openssl for this test.
    fn data(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/data")
            .join(name)
    }

    #[tokio::test]
    async fn a_client_that_trusts_the_certificate_gets_through() {
        let tls = Tls::load(&data("key.pem"), &data("cert.pem")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = tls.wrap(stream).await.unwrap();
            stream.write_all(b"hello").await.unwrap();
            stream.shutdown().await.unwrap();
        });
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(data("cert.pem")).unwrap())
            .unwrap();
        let config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(address).await.unwrap();
        let name = "localhost".try_into().unwrap();
        let mut stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
            .unwrap();
        let mut heard = String::new();
        stream.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "hello");
        server.await.unwrap();
    }

    #[test]
    fn bad_files_are_named() {
        let error = |key: &str, certificate: &str| {
            Tls::load(&data(key), &data(certificate))
                .err()
                .unwrap()
                .to_string()
        };
        assert!(error("key.pem", "missing.pem").contains("missing.pem"));
        assert!(error("cert.pem", "cert.pem").contains("cannot read the key"));
        assert!(error("other-key.pem", "cert.pem").contains("do not go together"));
    }
}
