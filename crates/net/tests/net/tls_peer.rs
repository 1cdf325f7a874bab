//! Ends of encrypted connections, written from docs/protocol.md. They can bind proofs to any value.

use std::io::{Error, Result};
use std::net::TcpStream;
use std::sync::Arc;

use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{default_provider, sign::any_ecdsa_type};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::{
    CipherSuiteCommon, ClientConfig, ClientConnection, ConnectionCommon, DigitallySignedStruct, ServerConfig,
    ServerConnection, SideData, SignatureScheme, StreamOwned, SupportedCipherSuite, Tls13CipherSuite,
};

pub type Client = StreamOwned<ClientConnection, TcpStream>;
pub type Server = StreamOwned<ServerConnection, TcpStream>;

/// Number of records after which an end changes its keys and asks the peer to do so; in reality that is after
/// 256 GiB.
pub const RECORDS_BY_ONE_KEY: u64 = 20;

fn provider() -> CryptoProvider {
    let all = default_provider();
    let suite = all.cipher_suites[0].tls13().expect("a suite of TLS 1.3");
    let common = CipherSuiteCommon { confidentiality_limit: RECORDS_BY_ONE_KEY, ..suite.common };
    let suite = Tls13CipherSuite { common, ..*suite };
    CryptoProvider { cipher_suites: vec![SupportedCipherSuite::Tls13(Box::leak(Box::new(suite)))], ..all }
}

/// A client that checks nothing, and the binding of its proofs.
pub fn client(mut tcp: TcpStream) -> Result<(Client, Vec<u8>)> {
    let mut session = client_session()?;
    while session.is_handshaking() {
        session.complete_io(&mut tcp)?;
    }
    let binding = binding(&session)?;
    Ok((StreamOwned::new(session, tcp), binding))
}

pub fn client_session() -> Result<ClientConnection> {
    let config = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_safe_default_protocol_versions()
        .map_err(Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth();
    let name = ServerName::try_from("anybody").map_err(Error::other)?;
    ClientConnection::new(Arc::new(config), name).map_err(Error::other)
}

/// A server with a fresh key, and the binding of its proofs.
pub fn server(mut tcp: TcpStream) -> Result<(Server, Vec<u8>)> {
    let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new());
    let made = made.map_err(|_| Error::other("no key could be made"))?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.as_ref()));
    let key = any_ecdsa_type(&key).map_err(Error::other)?;
    let public = CertificateDer::from(key.public_key().expect("a public key").to_vec());
    let key = Arc::new(CertifiedKey::new(vec![public], key));
    let config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_safe_default_protocol_versions()
        .map_err(Error::other)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key)));
    let mut session = ServerConnection::new(Arc::new(config)).map_err(Error::other)?;
    while session.is_handshaking() {
        session.complete_io(&mut tcp)?;
    }
    let binding = binding(&session)?;
    Ok((StreamOwned::new(session, tcp), binding))
}

fn binding<S: SideData>(session: &ConnectionCommon<S>) -> Result<Vec<u8>> {
    let exported = session.export_keying_material([0; 32], b"EXPORTER-Channel-Binding", None);
    Ok([&b"tls-exporter"[..], &exported.map_err(Error::other)?].concat())
}

#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
