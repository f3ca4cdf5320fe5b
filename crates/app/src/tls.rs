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
