//! SHA-256 (FIPS 180-4), one stream or two at a time.
//!
//! A [`Sha256`] is a stream that can be fed and finished on its own. [`update2`]
//! feeds two of them at once: where the processor has SHA instructions (x86-64
//! SHA-NI, ARMv8 SHA2, found at run time), their rounds are interleaved. Nothing
//! ties the two together: each may be anywhere in its message, and may go on alone
//! or with another partner afterwards. On other processors, and for the surplus of
//! the longer one, the `sha2` crate does the work.

use std::fmt;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86;

/// Bytes that one call of the compression function takes.
const BLOCK: usize = 64;

/// The first 32 bits of the fractional parts of the square roots of the first
/// eight primes.
const INITIAL: [u32; 8] = [
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
];

/// The first 32 bits of the fractional parts of the cube roots of the first 64
/// primes, four to a row: a row is what four rounds need.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const K: [[u32; 4]; 16] = [
    [0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5],
    [0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5],
    [0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3],
    [0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174],
    [0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc],
    [0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da],
    [0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7],
    [0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967],
    [0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13],
    [0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85],
    [0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3],
    [0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070],
    [0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5],
    [0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3],
    [0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208],
    [0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2],
];

/// One SHA-256 computation in progress.
#[derive(Clone)]
pub struct Sha256 {
    state: [u32; 8],
    /// Bytes fed so far.
    length: u64,
    /// The first `length % 64` bytes are fed and not yet compressed.
    pending: [u8; BLOCK],
}

impl Default for Sha256 {
    fn default() -> Self {
        Self {
            state: INITIAL,
            length: 0,
            pending: [0; BLOCK],
        }
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sha256 {{ length: {} }}", self.length)
    }
}

impl Sha256 {
    /// A stream that was fed nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Feeds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        let blocks = self.take_up_to_a_boundary(bytes);
        let (blocks, tail) = blocks.as_chunks();
        sha2::block_api::compress256(&mut self.state, blocks);
        self.keep(tail);
    }

    /// The digest of everything that was fed.
    pub fn finalize(mut self) -> [u8; 32] {
        let filled = self.filled();
        let bits = self.length.wrapping_mul(8);
        let mut padding = [[0; BLOCK]; 2];
        padding[0][..filled].copy_from_slice(&self.pending[..filled]);
        padding[0][filled] = 0x80;
        // The eight bytes of the length share the last block if they fit.
        let last = usize::from(filled + 1 + 8 > BLOCK);
        padding[last][BLOCK - 8..].copy_from_slice(&bits.to_be_bytes());
        sha2::block_api::compress256(&mut self.state, &padding[..=last]);

        let mut digest = [0; 32];
        for (out, word) in digest.chunks_exact_mut(4).zip(self.state) {
            out.copy_from_slice(&word.to_be_bytes());
        }
        digest
    }

    fn filled(&self) -> usize {
        (self.length % BLOCK as u64) as usize
    }

    /// Completes a pending block from the front of `bytes`. What is left starts a
    /// new block, or is empty.
    fn take_up_to_a_boundary<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let filled = self.filled();
        self.length = self.length.wrapping_add(bytes.len() as u64);
        if filled == 0 {
            return bytes;
        }
        let (head, rest) = bytes.split_at(bytes.len().min(BLOCK - filled));
        self.pending[filled..filled + head.len()].copy_from_slice(head);
        if filled + head.len() == BLOCK {
            sha2::block_api::compress256(&mut self.state, &[self.pending]);
        }
        rest
    }

    /// Less than a block, starting at a boundary.
    fn keep(&mut self, tail: &[u8]) {
        self.pending[..tail.len()].copy_from_slice(tail);
    }
}

/// Feeds `x` to `a` and `y` to `b`, which need not be equally long. Whole blocks
/// that both have are hashed together; the surplus of the longer one goes alone,
/// so callers that can should pass equal lengths.
pub fn update2(a: &mut Sha256, x: &[u8], b: &mut Sha256, y: &[u8]) {
    let (x, x_tail) = a.take_up_to_a_boundary(x).as_chunks();
    let (y, y_tail) = b.take_up_to_a_boundary(y).as_chunks();
    let (x, x_more) = x.split_at(x.len().min(y.len()));
    let (y, y_more) = y.split_at(x.len());
    compress2(&mut a.state, x, &mut b.state, y);
    sha2::block_api::compress256(&mut a.state, x_more);
    sha2::block_api::compress256(&mut b.state, y_more);
    a.keep(x_tail);
    b.keep(y_tail);
}

/// How this processor runs two streams at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interleaving {
    /// With the SHA extensions of x86-64.
    ShaNi,
    /// With the SHA2 instructions of ARMv8.
    Armv8,
    /// Not at all: one after the other, with whatever `sha2` finds.
    None,
}

/// What [`update2`] does on this processor.
pub fn interleaving() -> Interleaving {
    #[cfg(target_arch = "x86_64")]
    if x86::available() {
        return Interleaving::ShaNi;
    }
    #[cfg(target_arch = "aarch64")]
    if aarch64::available() {
        return Interleaving::Armv8;
    }
    Interleaving::None
}

type State = [u32; 8];
type Block = [u8; BLOCK];

/// Compresses equally many blocks into two states.
fn compress2(a: &mut State, x: &[Block], b: &mut State, y: &[Block]) {
    debug_assert_eq!(x.len(), y.len());
    #[cfg(target_arch = "x86_64")]
    if x86::compress2(a, x, b, y) {
        return;
    }
    #[cfg(target_arch = "aarch64")]
    if aarch64::compress2(a, x, b, y) {
        return;
    }
    one_after_the_other(a, x, b, y);
}

fn one_after_the_other(a: &mut State, x: &[Block], b: &mut State, y: &[Block]) {
    sha2::block_api::compress256(a, x);
    sha2::block_api::compress256(b, y);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn blocks(seed: u8, n: usize) -> Vec<Block> {
        (0..n)
            .map(|i| std::array::from_fn(|j| (i * 251 + j * 7) as u8 ^ seed))
            .collect()
    }

    /// Without this a machine lacking the instructions would test `sha2` against
    /// itself and call it a pass. An emulator shows the host's /proc/cpuinfo, so
    /// .ci/aarch64 says what it expects.
    #[test]
    fn the_instructions_are_used_where_they_exist() {
        if let Ok(expected) = std::env::var("RUNSEAL_EXPECT_INTERLEAVING") {
            assert_eq!(format!("{:?}", interleaving()), expected);
            return;
        }
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        if cfg!(target_arch = "x86_64") && info.contains(" sha_ni") {
            assert_eq!(interleaving(), Interleaving::ShaNi);
        }
        if cfg!(target_arch = "aarch64") && info.contains(" sha2") {
            assert_eq!(interleaving(), Interleaving::Armv8);
        }
    }

    #[test]
    fn without_the_instructions_the_result_is_the_same() {
        for n in 0..20 {
            let (x, y) = (blocks(1, n), blocks(77, n));
            let (mut a, mut b) = (INITIAL, INITIAL.map(|w| !w));
            let (mut c, mut d) = (a, b);
            compress2(&mut a, &x, &mut b, &y);
            one_after_the_other(&mut c, &x, &mut d, &y);
            assert_eq!((a, b), (c, d), "{n} blocks");
        }
    }

    proptest! {
        #[test]
        fn any_state_and_any_blocks(
            a in any::<State>(), b in any::<State>(),
            x in any::<[[u8; 32]; 6]>(), y in any::<[[u8; 32]; 6]>(),
        ) {
            let (x, y) = (x.as_flattened().as_chunks().0, y.as_flattened().as_chunks().0);
            let (mut a2, mut b2) = (a, b);
            compress2(&mut a2, x, &mut b2, y);
            let (mut a1, mut b1) = (a, b);
            one_after_the_other(&mut a1, x, &mut b1, y);
            prop_assert_eq!((a2, b2), (a1, b1));
        }
    }
}
