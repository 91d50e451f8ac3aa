//! attest
fn main() {}
