//! A client, and a server, made of bytes, which need not keep any rule.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use hmac::{Hmac, Mac};
use outcore_core::wire::*;
use outcore_core::*;
use outcore_net::Address;
use sha2::Sha256;

use crate::pool::{KEY, SERVER, write_of};

pub struct Raw(TcpStream);

/// As docs/protocol.md has it.
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
        let Address::Tcp(place) = address else { panic!("a TCP address") };
        let stream = TcpStream::connect(place).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    pub fn receive(&mut self) -> (Header, Vec<u8>) {
        let mut bytes = [0; HEADER_BYTES];
        self.0.read_exact(&mut bytes).unwrap();
        let header = Header::decode(&bytes).unwrap();
        let mut control = vec![0; header.control_bytes as usize];
        self.0.read_exact(&mut control).unwrap();
        assert_eq!(crc32c(&control), header.control_crc);
        (header, control)
    }

    /// Whether the server has ended the connection.
    pub fn is_over(&mut self) -> bool {
        self.0.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut bytes = [0; 4096];
        match self.0.read(&mut bytes) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }

    /// The refusal that comes next, and the end after it.
    pub fn refusal(&mut self) -> Error {
        let (header, control) = self.receive();
        assert_eq!(header.kind, Kind::Refused);
        assert_eq!(self.0.read(&mut [0; 1]).unwrap_or(0), 0, "and then the connection ends");
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

    /// Says hello and proves it by `key`; the server's proof is checked against the right one.
    pub fn introduce(&mut self, client: u128, key: &[u8]) {
        let hello = encode(&Hello {
            client,
            nonce: [5; 32],
            key: KeyKind::Pool,
            name: "raw".into(),
            uid: 1,
            gids: vec![1],
        });
        self.send(&frame(Kind::Hello, &hello));
        let (header, challenge) = self.receive();
        assert_eq!(header.kind, Kind::Challenge);
        let asked = decode::<Challenge>(&challenge).unwrap();
        let open = encode(&Challenge { proof: [0; 32], ..asked.clone() });
        assert_eq!(asked.proof, proof(&KEY, &[b"outcore server 1\0", &hello, &open]));
        let proof = proof(key, &[b"outcore client 1\0", &hello, &challenge]);
        self.send(&frame(Kind::Proof, &encode(&Proof { proof })));
    }
}

/// A server that proves itself by some key, and answers every request with an error before it reads the payload.
pub struct RawServer {
    pub address: Address,
    proofs: Arc<AtomicUsize>,
}

impl RawServer {
    pub fn new(key: [u8; 32]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap().to_string());
        let proofs = Arc::<AtomicUsize>::default();
        let server = Self { address, proofs: proofs.clone() };
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let proofs = proofs.clone();
                thread::spawn(move || drop(serve(stream, &key, &proofs)));
            }
        });
        server
    }

    /// How many clients proved that they have the key.
    pub fn proofs(&self) -> usize {
        self.proofs.load(Ordering::SeqCst)
    }
}

fn serve(mut stream: TcpStream, key: &[u8], proofs: &AtomicUsize) -> std::io::Result<()> {
    let next = |stream: &mut TcpStream| -> std::io::Result<(Header, Vec<u8>)> {
        let mut bytes = [0; HEADER_BYTES];
        stream.read_exact(&mut bytes)?;
        let header = Header::decode(&bytes).unwrap();
        let mut control = vec![0; header.control_bytes as usize];
        stream.read_exact(&mut control)?;
        Ok((header, control))
    };
    let (_, hello) = next(&mut stream)?;
    let open = Challenge { nonce: [6; 32], role: Role::IoServer(SERVER), proof: [0; 32] };
    let proof = proof(key, &[b"outcore server 1\0", &hello, &encode(&open)]);
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
