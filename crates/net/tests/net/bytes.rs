//! A client and a server made of raw bytes, which may violate the protocol.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use hmac::{Hmac, Mac};
use outcore_core::wire::*;
use outcore_core::*;
use outcore_net::Address;
use sha2::Sha256;

use crate::pool::{KEY, LONG, SERVER, write_of};
use crate::tls_peer;

/// A byte stream in both directions, encrypted or not.
pub trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

pub struct Raw {
    stream: Box<dyn Stream + Send>,
    tcp: TcpStream,
    /// The binding of an encrypted connection, to which the server's proof is bound, and the one for the own
    /// proof.
    binding: Vec<u8>,
    own_binding: Vec<u8>,
}

/// A proof as in docs/protocol.md.
fn proof(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

pub fn frame(kind: Kind, control: &[u8]) -> Vec<u8> {
    [&Header::of(kind, control).encode().unwrap()[..], control].concat()
}

pub fn frame_of_write(handle: u64, offset: u64, payload: &[u8]) -> Vec<u8> {
    numbered_write(1, 1, handle, offset, payload)
}

pub fn numbered_write(request: u64, settled: u64, handle: u64, offset: u64, payload: &[u8]) -> Vec<u8> {
    let control = encode(&write_of(handle, offset, payload.len() as u64));
    let header = Header {
        request,
        settled,
        payload_bytes: payload.len() as u64,
        payload_crc: crc32c(payload),
        ..Header::of(Kind::IoRequest, &control)
    };
    [&header.encode().unwrap()[..], &control, payload].concat()
}

impl Raw {
    pub fn new(address: &Address) -> Self {
        let (Address::Tcp(place) | Address::Tls(place)) = address else { panic!("a TCP address") };
        let tcp = TcpStream::connect(place).unwrap();
        tcp.set_read_timeout(Some(LONG)).unwrap();
        tcp.set_nodelay(true).unwrap();
        let stream = tcp.try_clone().unwrap();
        if let Address::Tcp(_) = address {
            return Self { stream: Box::new(stream), tcp, binding: vec![], own_binding: vec![] };
        }
        let (stream, binding) = tls_peer::client(stream).unwrap();
        Self { stream: Box::new(stream), tcp, own_binding: binding.clone(), binding }
    }

    /// Binds the own proof to another connection.
    pub fn bound_to(mut self, binding: &[u8]) -> Self {
        self.own_binding = binding.to_vec();
        self
    }

    /// Receives all remaining bytes.
    pub fn rest(&mut self) -> std::io::Result<Vec<u8>> {
        let mut rest = vec![];
        self.stream.read_to_end(&mut rest).map(|_| rest)
    }

    /// Ends the sending direction.
    pub fn shut(&self) {
        self.tcp.shutdown(Shutdown::Write).unwrap();
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    pub fn receive(&mut self) -> (Header, Vec<u8>) {
        let mut bytes = [0; HEADER_BYTES];
        self.stream.read_exact(&mut bytes).unwrap();
        let header = Header::decode(&bytes).unwrap();
        let mut control = vec![0; header.control_bytes as usize];
        self.stream.read_exact(&mut control).unwrap();
        assert_eq!(crc32c(&control), header.control_crc);
        (header, control)
    }

    /// Receives and checks the payload of a frame, after its header and control part.
    pub fn receive_payload(&mut self, header: &Header) -> Vec<u8> {
        let mut payload = vec![0; header.payload_bytes as usize];
        self.stream.read_exact(&mut payload).unwrap();
        assert_eq!(crc32c(&payload), header.payload_crc);
        payload
    }

    /// Whether the server has ended the connection.
    pub fn is_over(&mut self) -> bool {
        self.tcp.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut bytes = [0; 4096];
        match self.stream.read(&mut bytes) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }

    /// Receives a refusal, and then the end of the connection.
    pub fn refusal(&mut self) -> Error {
        let (header, control) = self.receive();
        assert_eq!(header.kind, Kind::Refused);
        assert_eq!(self.stream.read(&mut [0; 1]).unwrap_or(0), 0, "and then the connection ends");
        decode::<Refused>(&control).unwrap().error
    }

    pub fn introduced(address: &Address) -> Self {
        Self::introduced_as(address, rand())
    }

    pub fn introduced_as(address: &Address, client: u128) -> Self {
        let mut raw = Self::new(address);
        raw.introduce(client, &KEY);
        let (header, control) = raw.receive();
        assert_eq!(header.kind, Kind::Welcome);
        decode::<Welcome>(&control).unwrap();
        raw
    }

    /// A connection of a user with this id and its own key.
    pub fn user(address: &Address, uid: u32) -> Self {
        let mut raw = Self::new(address);
        raw.introduce_user(&format!("raw:{uid}:{uid}"), &KEY);
        assert_eq!(raw.receive().0.kind, Kind::Welcome);
        raw
    }

    /// Says hello and proves it with `key`; checks the server's proof with the pool's key.
    pub fn introduce(&mut self, client: u128, key: &[u8]) {
        let (name, nonce) = ("raw".into(), [5; 32]);
        let hello = Hello { client, nonce, key: KeyKind::Pool, name, uid: 1, gids: vec![1] };
        self.prove(&hello, &KEY, key);
    }

    /// Claims to be user `NAME:UID:GID,GID...` and proves it with the user's key, derived from the pool's
    /// `key`.
    pub fn introduce_user(&mut self, text: &str, key: &[u8]) {
        let parts: Vec<&str> = text.split(':').collect();
        let gids = parts[2].split(',').map(|gid| gid.parse().unwrap()).collect();
        let (name, uid) = (parts[0].into(), parts[1].parse().unwrap());
        let hello = Hello { client: rand(), nonce: [5; 32], key: KeyKind::User, name, uid, gids };
        let of_user = |key: &[u8]| proof(key, &[b"outcore user 1\0", text.as_bytes()]);
        self.prove(&hello, &of_user(&KEY), &of_user(key));
    }

    /// Says hello and proves it with `key`; checks the server's proof with `expected`.
    fn prove(&mut self, hello: &Hello, expected: &[u8], key: &[u8]) {
        let hello = encode(hello);
        self.send(&frame(Kind::Hello, &hello));
        let (header, challenge) = self.receive();
        assert_eq!(header.kind, Kind::Challenge);
        let asked = decode::<Challenge>(&challenge).unwrap();
        let open = encode(&Challenge { proof: [0; 32], ..asked.clone() });
        assert_eq!(asked.proof, proof(expected, &[b"outcore server 1\0", &hello, &open, &self.binding]));
        let proof = proof(key, &[b"outcore client 1\0", &hello, &challenge, &self.own_binding]);
        self.send(&frame(Kind::Proof, &encode(&Proof { proof })));
    }
}

/// A server that proves itself with any key, and answers every request with an error before it reads the
/// payload.
pub struct RawServer {
    pub address: Address,
    proofs: Arc<AtomicUsize>,
}

impl RawServer {
    pub fn new(key: [u8; 32]) -> Self {
        Self::at(Address::Tcp, move |stream, proofs| serve(stream, &[], &key, proofs))
    }

    pub fn over_tls(key: [u8; 32]) -> Self {
        Self::at(Address::Tls, move |stream, proofs| {
            let (stream, binding) = tls_peer::server(stream)?;
            serve(stream, &binding, &key, proofs)
        })
    }

    fn at(
        address: impl Fn(String) -> Address,
        serve: impl Fn(TcpStream, &AtomicUsize) -> std::io::Result<()> + Clone + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = address(listener.local_addr().unwrap().to_string());
        let proofs = Arc::<AtomicUsize>::default();
        let server = Self { address, proofs: proofs.clone() };
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let (serve, proofs) = (serve.clone(), proofs.clone());
                thread::spawn(move || drop(serve(stream, &proofs)));
            }
        });
        server
    }

    /// Number of clients that proved that they have the key.
    pub fn proofs(&self) -> usize {
        self.proofs.load(Ordering::SeqCst)
    }
}

fn serve<S: Stream>(mut stream: S, binding: &[u8], key: &[u8], proofs: &AtomicUsize) -> std::io::Result<()> {
    let next = |stream: &mut S| -> std::io::Result<(Header, Vec<u8>)> {
        let mut bytes = [0; HEADER_BYTES];
        stream.read_exact(&mut bytes)?;
        let header = Header::decode(&bytes).unwrap();
        let mut control = vec![0; header.control_bytes as usize];
        stream.read_exact(&mut control)?;
        Ok((header, control))
    };
    let (_, hello) = next(&mut stream)?;
    let open = Challenge { nonce: [6; 32], role: Role::IoServer(SERVER), proof: [0; 32] };
    let proof = proof(key, &[b"outcore server 1\0", &hello, &encode(&open), binding]);
    stream.write_all(&frame(Kind::Challenge, &encode(&Challenge { proof, ..open })))?;
    next(&mut stream)?;
    proofs.fetch_add(1, Ordering::SeqCst);
    let welcome = Welcome { payload_bytes: MAX_PAYLOAD_BYTES, working_ms: 1000, incarnation: Incarnation(1) };
    stream.write_all(&frame(Kind::Welcome, &encode(&welcome)))?;
    loop {
        let (header, _) = next(&mut stream)?;
        let control = encode(&IoReply::Failed(Error::invalid("not today")));
        let answer = Header { request: header.request, ..Header::of(Kind::IoReply, &control) };
        stream.write_all(&[&answer.encode().unwrap()[..], &control].concat())?;
        // The server cannot see when the client has read the answer, and gives it some time.
        thread::sleep(Duration::from_millis(20));
        stream.read_exact(&mut vec![0; header.payload_bytes as usize])?;
    }
}

/// A number that no other client has.
fn rand() -> u128 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1000);
    u128::from(NEXT.fetch_add(1, Ordering::SeqCst))
}
