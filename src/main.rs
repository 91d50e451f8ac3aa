//! verify
fn main() {}
