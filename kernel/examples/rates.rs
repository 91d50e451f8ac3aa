//! What this processor gains from a second stream:
//!
//!     cargo run --release -p runseal-kernel --example rates
//!
//! Bytes per second on one core, without reading files; the best of several rounds,
//! because others may be using the core.

use std::time::Instant;

use runseal_kernel::sha256::{Sha256, interleaving, update2};

const CHUNK: usize = 128 * 1024;
const CHUNKS: usize = 8;

fn best(mut work: impl FnMut() -> usize) -> f64 {
    let round = |_| {
        let started = Instant::now();
        let bytes = work();
        bytes as f64 / started.elapsed().as_secs_f64() / 1e9
    };
    (0..3000).map(round).fold(0.0, f64::max)
}

fn main() {
    let (x, y) = (vec![1; CHUNK], vec![2; CHUNK]);
    let one = best(|| {
        let mut a = Sha256::new();
        for _ in 0..CHUNKS {
            a.update(&x);
        }
        std::hint::black_box(a.finalize());
        CHUNKS * CHUNK
    });
    let two = best(|| {
        let (mut a, mut b) = (Sha256::new(), Sha256::new());
        for _ in 0..CHUNKS {
            update2(&mut a, &x, &mut b, &y);
        }
        std::hint::black_box((a.finalize(), b.finalize()));
        2 * CHUNKS * CHUNK
    });
    println!("interleaving  {:?}", interleaving());
    println!("one stream    {one:.2} GB/s");
    println!("two streams   {two:.2} GB/s, {:.2} x", two / one);
}
