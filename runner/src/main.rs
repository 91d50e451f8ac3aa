//! attest
fn main(){}
