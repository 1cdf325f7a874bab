//! Link arguments of the C library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The version of the interface.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,liboutcore.so.0");
    // Only this crate has symbols for C: those of other crates stay inside.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
}
