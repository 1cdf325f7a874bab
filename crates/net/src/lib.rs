//! The real link: frames over TCP and UNIX sockets.
