//! TLS over a TCP connection: both sides negotiate keys, and two threads read and write concurrently.
//!
//! No certificate identifies the peer. Both sides prove that they have the pool's key, over a value that only
//! the two ends of this connection know ([`Tls::binding`]). An attacker between them negotiates separate keys
//! with each side, and gets valid proofs from neither.

use std::fmt;
use std::io::{self, BufRead, IoSlice, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use outcore_core::wire::MAGIC;
use outcore_core::{Error, ErrorKind, Result};
use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring as provider, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, ServerConfig, ServerConnection,
    SignatureScheme,
};

use crate::socket::{Watch, advance, ended, receive_some, send};

/// Bytes that are encrypted or received in one step. A connection has memory for about five times as many.
const PIECE_BYTES: usize = 32 << 10;

/// RFC 9266, section 2: the label of the exported keying material, and the name of such a binding.
const LABEL: &[u8] = b"EXPORTER-Channel-Binding";
const BINDING: &[u8] = b"tls-exporter";

/// An encrypted connection.
pub(crate) struct Tls {
    stream: TcpStream,
    /// Held while bytes are encrypted or decrypted, but never during a wait for the peer.
    session: Mutex<Connection>,
    /// Received bytes that are not decrypted yet. The reading thread holds the lock.
    incoming: Mutex<Incoming>,
    /// Encrypted bytes that are not sent yet. The sending thread holds the lock, so that records go out in
    /// order.
    outgoing: Mutex<Vec<u8>>,
    begun: OnceLock<Result<Vec<u8>>>,
    /// Whether the peer does not use TLS.
    is_plain: AtomicBool,
}

struct Incoming {
    bytes: Box<[u8]>,
    from: usize,
    to: usize,
    /// The first bytes of the connection.
    first: Vec<u8>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn broken(why: &dyn fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("an encrypted connection was broken: {why}"))
}

fn unusable(why: &dyn fmt::Display) -> Error {
    Error::new(ErrorKind::Io, format!("cannot encrypt connections: {why}"))
}

impl Incoming {
    fn is_empty(&self) -> bool {
        self.from == self.to
    }

    /// Waits for bytes. Returns false at the end of the connection.
    fn receive(&mut self, fd: RawFd, is_inside_frame: bool, watch: &dyn Watch) -> Result<bool> {
        let mut vectors =
            [libc::iovec { iov_base: self.bytes.as_mut_ptr().cast(), iov_len: self.bytes.len() }];
        // SAFETY: the vector is `bytes`, which nothing else borrows during the call.
        let count = unsafe { receive_some(fd, &mut vectors, is_inside_frame, watch)? };
        (self.from, self.to) = (0, count);
        let missing = MAGIC.len() - self.first.len();
        self.first.extend_from_slice(&self.bytes[..count.min(missing)]);
        Ok(count > 0)
    }

    /// Decrypts some of the received bytes.
    fn feed(&mut self, session: &mut Connection) -> Result<()> {
        let mut rest = &self.bytes[self.from..self.to];
        let count = session.read_tls(&mut rest).map_err(|error| broken(&error))?;
        if count == 0 {
            return Err(ended());
        }
        self.from += count;
        session.process_new_packets().map(|_| ()).map_err(|error| broken(&error))
    }
}

/// Moves encrypted bytes into `outgoing`.
fn take_out(session: &mut Connection, outgoing: &mut Vec<u8>) -> Result<()> {
    while session.wants_write() {
        session.write_tls(outgoing).map_err(|error| broken(&error))?;
    }
    Ok(())
}

impl Tls {
    fn new(stream: TcpStream, session: Connection) -> Self {
        let incoming =
            Incoming { bytes: vec![0; PIECE_BYTES].into_boxed_slice(), from: 0, to: 0, first: Vec::new() };
        Self {
            stream,
            session: Mutex::new(session),
            incoming: Mutex::new(incoming),
            outgoing: Mutex::default(),
            begun: OnceLock::new(),
            is_plain: AtomicBool::new(false),
        }
    }

    /// The client's side of a connection.
    pub(crate) fn client(stream: TcpStream) -> Result<Self> {
        static CONFIG: OnceLock<Result<Arc<ClientConfig>>> = OnceLock::new();
        let config = CONFIG.get_or_init(client_config).clone()?;
        // The name is neither sent nor checked.
        let name = ServerName::try_from("outcore").map_err(|error| unusable(&error))?;
        let session = ClientConnection::new(config, name).map_err(|error| unusable(&error))?;
        Ok(Self::new(stream, session.into()))
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// See [`crate::socket::Socket::begin`].
    pub(crate) fn begin(&self, watch: &dyn Watch) -> Result<()> {
        self.begun.get_or_init(|| self.agree(watch)).clone().map(|_| ())
    }

    /// See [`crate::socket::Socket::binding`].
    pub(crate) fn binding(&self) -> &[u8] {
        match self.begun.get() {
            Some(Ok(binding)) => binding,
            // Nothing is sent or received before that.
            _ => &[],
        }
    }

    fn agree(&self, watch: &dyn Watch) -> Result<Vec<u8>> {
        let (mut incoming, mut outgoing) = (lock(&self.incoming), lock(&self.outgoing));
        loop {
            let mut session = lock(&self.session);
            let mut fed = Ok(());
            while fed.is_ok() && session.is_handshaking() && !incoming.is_empty() {
                fed = incoming.feed(&mut session);
            }
            if fed.is_err() && incoming.first == MAGIC {
                self.is_plain.store(true, Ordering::SeqCst);
                return Err(plain(&session));
            }
            take_out(&mut session, &mut outgoing)?;
            let binding = (fed.is_ok() && !session.is_handshaking()).then(|| {
                // RFC 9266, section 2: 32 bytes, without a context.
                session.export_keying_material([0_u8; 32], LABEL, Some(&[]))
            });
            drop(session);
            // Also after a failure, so that the peer gets the reason.
            let sent = self.flush(&mut outgoing, watch);
            fed.and(sent)?;
            if let Some(binding) = binding {
                return Ok([BINDING, &binding.map_err(|error| broken(&error))?].concat());
            }
            if !incoming.receive(self.stream.as_raw_fd(), true, watch)? {
                return Err(Error::new(ErrorKind::Io, "the other side ended the connection as it began"));
            }
        }
    }

    fn check_begun(&self) -> Result<()> {
        match self.begun.get() {
            Some(begun) => begun.as_ref().map(|_| ()).map_err(Clone::clone),
            None => Err(Error::invalid("an encrypted connection was used before it began")),
        }
    }

    /// Sends the encrypted bytes.
    fn flush(&self, outgoing: &mut Vec<u8>, watch: &dyn Watch) -> Result<()> {
        let mut vectors = [libc::iovec { iov_base: outgoing.as_mut_ptr().cast(), iov_len: outgoing.len() }];
        // SAFETY: the vector is `outgoing`, which nothing else borrows during the call.
        unsafe { send(self.stream.as_raw_fd(), &mut vectors, watch)? };
        outgoing.clear();
        Ok(())
    }

    /// See [`crate::socket::Socket::send`].
    ///
    /// # Safety
    /// The vectors must be valid for reads during the call.
    pub(crate) unsafe fn send(&self, mut vectors: &mut [libc::iovec], watch: &dyn Watch) -> Result<()> {
        if self.is_plain.load(Ordering::SeqCst) {
            // SAFETY: the caller's promise.
            return unsafe { send(self.stream.as_raw_fd(), vectors, watch) };
        }
        self.check_begun()?;
        let mut outgoing = lock(&self.outgoing);
        if !outgoing.is_empty() {
            return Err(Error::new(ErrorKind::Io, "the connection was lost"));
        }
        loop {
            advance(&mut vectors, 0);
            if vectors.is_empty() {
                return Ok(());
            }
            // SAFETY: the caller's promise.
            let piece = unsafe { piece_of(vectors) };
            let mut session = lock(&self.session);
            let taken = session.writer().write_vectored(&piece).map_err(|error| broken(&error))?;
            take_out(&mut session, &mut outgoing)?;
            drop(session);
            self.flush(&mut outgoing, watch)?;
            advance(&mut vectors, taken);
        }
    }

    /// Waits until decrypted bytes are available, or the connection ends.
    fn decrypted(
        &self,
        incoming: &mut Incoming,
        is_inside_frame: bool,
        watch: &dyn Watch,
    ) -> Result<MutexGuard<'_, Connection>> {
        self.check_begun()?;
        loop {
            let mut session = lock(&self.session);
            loop {
                let nothing = session.reader().fill_buf().err();
                if nothing.is_none_or(|error| error.kind() != io::ErrorKind::WouldBlock) {
                    return Ok(session);
                }
                if incoming.is_empty() {
                    break;
                }
                if let Err(error) = incoming.feed(&mut session) {
                    drop(session);
                    self.say_last(|_| ());
                    return Err(error);
                }
            }
            drop(session);
            if !incoming.receive(self.stream.as_raw_fd(), is_inside_frame, watch)? {
                let mut session = lock(&self.session);
                session.read_tls(&mut io::empty()).map_err(|error| broken(&error))?;
            }
        }
    }

    /// See [`crate::socket::Socket::receive`].
    ///
    /// # Safety
    /// The vectors must be valid for writes during the call.
    pub(crate) unsafe fn receive(
        &self,
        mut vectors: &mut [libc::iovec],
        mut is_inside_frame: bool,
        watch: &dyn Watch,
    ) -> Result<bool> {
        let mut incoming = lock(&self.incoming);
        loop {
            advance(&mut vectors, 0);
            if vectors.is_empty() {
                return Ok(true);
            }
            let mut session = self.decrypted(&mut incoming, is_inside_frame, watch)?;
            let mut reader = session.reader();
            // A connection may end without a TLS `close_notify`, because frames contain their own length.
            let mut bytes = reader.fill_buf().unwrap_or_default();
            if bytes.is_empty() {
                return if is_inside_frame { Err(ended()) } else { Ok(false) };
            }
            is_inside_frame = true;
            let there = bytes.len();
            while let (Some(first), false) = (vectors.first(), bytes.is_empty()) {
                let count = first.iov_len.min(bytes.len());
                // SAFETY: `bytes` has `count` bytes, and the vector has space for them, as the caller
                // promised.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), first.iov_base.cast(), count) };
                bytes = &bytes[count..];
                advance(&mut vectors, count);
            }
            let taken = there - bytes.len();
            reader.consume(taken);
        }
    }

    /// See [`crate::socket::Socket::wait_for_bytes`].
    pub(crate) fn wait_for_bytes(&self, watch: &dyn Watch) -> Result<()> {
        self.decrypted(&mut lock(&self.incoming), true, watch).map(|_| ())
    }

    /// See [`crate::socket::Socket::shut`].
    pub(crate) fn shut(&self, how: Shutdown) -> io::Result<()> {
        if how != Shutdown::Read && self.check_begun().is_ok() {
            self.say_last(|session| session.send_close_notify());
        }
        self.stream.shutdown(how)
    }

    /// Sends a last TLS message, if no thread is sending and the system takes it immediately.
    fn say_last(&self, say: impl FnOnce(&mut Connection)) {
        let Ok(mut outgoing) = self.outgoing.try_lock() else { return };
        let mut session = lock(&self.session);
        // After a partial record it would be garbage.
        if outgoing.is_empty() {
            say(&mut session);
            if take_out(&mut session, &mut outgoing).is_ok() {
                let (fd, flags) = (self.stream.as_raw_fd(), libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
                // SAFETY: the call reads `outgoing`, which nothing changes meanwhile.
                unsafe { libc::send(fd, outgoing.as_ptr().cast(), outgoing.len(), flags) };
                outgoing.clear();
            }
        }
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.shut(Shutdown::Both);
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("stream", &self.stream).finish_non_exhaustive()
    }
}

/// The first bytes of some memory, as many as are encrypted in one step.
///
/// # Safety
/// The vectors must be valid for reads as long as the result is used.
unsafe fn piece_of<'a>(vectors: &[libc::iovec]) -> Vec<IoSlice<'a>> {
    let mut left = PIECE_BYTES;
    let mut piece = Vec::new();
    for vector in vectors {
        if left == 0 {
            break;
        }
        let count = vector.iov_len.min(left);
        // SAFETY: the caller's promise; the pointer is not dangling, since vectors are made of slices and
        // blocks.
        let bytes = unsafe { std::slice::from_raw_parts(vector.iov_base.cast::<u8>(), count) };
        piece.push(IoSlice::new(bytes));
        left -= count;
    }
    piece
}

/// The error for a peer that does not use TLS.
fn plain(session: &Connection) -> Error {
    Error::invalid(match session {
        Connection::Client(_) => {
            "need an address with TLS, this one is without; write tcp:HOST:PORT, or outcore://HOST:PORT"
        }
        Connection::Server(_) => "need TLS at this address; write tls:HOST:PORT, or outcore+tls://HOST:PORT",
    })
}

fn client_config() -> Result<Arc<ClientConfig>> {
    let verifier = AnyKey(provider::default_provider().signature_verification_algorithms);
    let mut config = ClientConfig::builder_with_provider(ring_provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| unusable(&error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

fn ring_provider() -> Arc<CryptoProvider> {
    Arc::new(provider::default_provider())
}

/// The TLS state of a listening server.
#[derive(Debug)]
pub(crate) struct TlsServer(Arc<ServerConfig>);

impl TlsServer {
    /// Generates a key for this server (RFC 7250), which is never stored.
    pub(crate) fn new() -> Result<Self> {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|error| unusable(&error))?;
        let private = PrivatePkcs8KeyDer::from(made.as_ref());
        let signing = provider::sign::any_eddsa_type(&private).map_err(|error| unusable(&error))?;
        let public = signing.public_key().ok_or_else(|| unusable(&"a key without its public part"))?;
        let public = CertificateDer::from(public.to_vec());
        let resolver =
            AlwaysResolvesServerRawPublicKeys::new(Arc::new(CertifiedKey::new(vec![public], signing)));
        let mut config = ServerConfig::builder_with_provider(ring_provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| unusable(&error))?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(resolver));
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self(Arc::new(config)))
    }

    /// The server's side of an accepted connection.
    pub(crate) fn accept(&self, stream: TcpStream) -> io::Result<Tls> {
        let session = ServerConnection::new(self.0.clone()).map_err(io::Error::other)?;
        Ok(Tls::new(stream, session.into()))
    }
}

/// Accepts any server that has the private part of its key. The server proves its identity afterwards.
#[derive(Debug)]
struct AnyKey(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        _key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature_with_raw_key(
            message,
            &SubjectPublicKeyInfoDer::from(key.as_ref()),
            signed,
            &self.0,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
