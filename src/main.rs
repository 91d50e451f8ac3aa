//! verify
fn main(){}
