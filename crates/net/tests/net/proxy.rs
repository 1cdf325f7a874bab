//! A proxy between client and server that can cut, hold and damage the connection.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use outcore_net::Address;

/// One connection through the proxy.
#[derive(Default)]
struct Connection {
    /// Whether the proxy holds bytes on the way to the server.
    is_held: AtomicBool,
    /// The number of its two ways that have ended.
    ways_over: AtomicUsize,
}

#[derive(Default)]
struct Shared {
    streams: Mutex<Vec<TcpStream>>,
    /// In the order in which the proxy accepted them.
    connections: Mutex<Vec<Arc<Connection>>>,
    /// Whether the proxy forwards nothing, without ending connections.
    is_held: AtomicBool,
    is_over: AtomicBool,
    /// Number of bytes until one byte on the way to the server is changed, once.
    damage_after: AtomicUsize,
    /// Number of clients that came, even if no server was there.
    came: AtomicUsize,
    /// Number of bytes forwarded to the server.
    carried: AtomicUsize,
}

pub struct Proxy {
    pub address: Address,
    shared: Arc<Shared>,
}

impl Proxy {
    pub fn new(to: &Address) -> Self {
        let (to, scheme): (_, fn(String) -> Address) = match to.clone() {
            Address::Tcp(to) => (to, Address::Tcp),
            Address::Tls(to) => (to, Address::Tls),
            Address::Unix(_) => panic!("a TCP address"),
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = scheme(listener.local_addr().unwrap().to_string());
        let shared = Arc::new(Shared { damage_after: AtomicUsize::new(usize::MAX), ..Shared::default() });
        let proxy = Self { address, shared: shared.clone() };
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                if shared.is_over.load(Ordering::SeqCst) {
                    return;
                }
                shared.came.fetch_add(1, Ordering::SeqCst);
                let Ok(server) = TcpStream::connect(&to) else { continue };
                let connection = Arc::<Connection>::default();
                shared.connections.lock().unwrap().push(connection.clone());
                for stream in [&client, &server] {
                    stream.set_nodelay(true).unwrap();
                    shared.streams.lock().unwrap().push(stream.try_clone().unwrap());
                }
                let (c, s) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (there, of) = (shared.clone(), connection.clone());
                thread::spawn(move || carry(&there, &of, client, s, true));
                let back = shared.clone();
                thread::spawn(move || carry(&back, &connection, server, c, false));
            }
        });
        proxy
    }

    /// Accepts no more connections.
    pub fn accept_no_more(&self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        let (Address::Tcp(place) | Address::Tls(place)) = &self.address else { unreachable!() };
        // Wake the accepting thread.
        drop(TcpStream::connect(place));
    }

    /// Ends all connections, and accepts no more.
    pub fn end(&self) {
        self.accept_no_more();
        self.cut();
    }

    /// Ends all connections.
    pub fn cut(&self) {
        for stream in self.shared.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Holds all bytes from now on.
    pub fn hold(&self, is_held: bool) {
        self.shared.is_held.store(is_held, Ordering::SeqCst);
    }

    pub fn damage_after(&self, bytes: usize) {
        self.shared.damage_after.store(bytes, Ordering::SeqCst);
    }

    pub fn accepted(&self) -> usize {
        self.shared.connections.lock().unwrap().len()
    }

    pub fn came(&self) -> usize {
        self.shared.came.load(Ordering::SeqCst)
    }

    pub fn carried(&self) -> usize {
        self.shared.carried.load(Ordering::SeqCst)
    }

    /// The number of a connection whose bytes to the server the proxy holds.
    pub fn holding(&self) -> Option<usize> {
        let connections = self.shared.connections.lock().unwrap();
        connections.iter().position(|each| each.is_held.load(Ordering::SeqCst))
    }

    /// Whether both client and server have ended a connection. Then the server has received all of its bytes.
    pub fn is_over(&self, connection: usize) -> bool {
        self.shared.connections.lock().unwrap()[connection].ways_over.load(Ordering::SeqCst) == 2
    }
}

/// Forwards bytes until their sender ends the connection. The other side may be gone before.
fn carry(shared: &Shared, of: &Connection, mut from: TcpStream, mut to: TcpStream, is_to_server: bool) {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let count = match from.read(&mut bytes) {
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        while shared.is_held.load(Ordering::SeqCst) {
            if is_to_server {
                of.is_held.store(true, Ordering::SeqCst);
            }
            thread::sleep(Duration::from_millis(5));
        }
        if is_to_server {
            of.is_held.store(false, Ordering::SeqCst);
            let left = shared.damage_after.load(Ordering::SeqCst);
            if left < count {
                bytes[left] ^= 0x10;
                shared.damage_after.store(usize::MAX, Ordering::SeqCst);
            } else if left != usize::MAX {
                shared.damage_after.store(left - count, Ordering::SeqCst);
            }
        }
        if to.write_all(&bytes[..count]).is_ok() && is_to_server {
            shared.carried.fetch_add(count, Ordering::SeqCst);
        }
    }
    // Bytes may still be on the other way.
    let _ = to.shutdown(Shutdown::Write);
    of.ways_over.fetch_add(1, Ordering::SeqCst);
}
