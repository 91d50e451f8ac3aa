//! Two streams with the SHA2 instructions of ARMv8.
//!
//! `sha256h` and `sha256h2` do four rounds together and the next four need their
//! results; a second stream fills the wait. The state is held as A to D in one
//! register and E to H in another.
#![allow(unsafe_code)]

use std::arch::aarch64::*;
use std::arch::is_aarch64_feature_detected;

use super::{BLOCK, Block, K, State};

/// The processor has what [`compress2`] needs. The standard library caches the
/// answer.
pub fn available() -> bool {
    is_aarch64_feature_detected!("neon") && is_aarch64_feature_detected!("sha2")
}

/// Compresses blocks into both states and says so, or touches nothing when the
/// processor lacks the instructions.
pub fn compress2(a: &mut State, x: &[Block], b: &mut State, y: &[Block]) -> bool {
    if !available() {
        return false;
    }
    // SAFETY: every feature that the function is compiled for was just detected.
    unsafe { compress2_sha2(a, x, b, y) };
    true
}

#[target_feature(enable = "neon,sha2")]
fn compress2_sha2(a: &mut State, x: &[Block], b: &mut State, y: &[Block]) {
    let mut s = Lane::load(a);
    let mut t = Lane::load(b);
    for (x, y) in x.iter().zip(y) {
        let (s_before, t_before) = (s, t);
        let mut v = message(x);
        let mut w = message(y);
        for k in &K[..4] {
            s.rounds4(v[0], k);
            t.rounds4(w[0], k);
            v.rotate_left(1);
            w.rotate_left(1);
        }
        for k in &K[4..] {
            let (next_v, next_w) = (schedule(v), schedule(w));
            s.rounds4(next_v, k);
            t.rounds4(next_w, k);
            v = [v[1], v[2], v[3], next_v];
            w = [w[1], w[2], w[3], next_w];
        }
        s.add(s_before);
        t.add(t_before);
    }
    s.store(a);
    t.store(b);
}

#[derive(Clone, Copy)]
struct Lane {
    abcd: uint32x4_t,
    efgh: uint32x4_t,
}

impl Lane {
    #[inline]
    #[target_feature(enable = "neon,sha2")]
    fn load(state: &State) -> Self {
        let [a, b, c, d, e, f, g, h] = *state;
        Self {
            abcd: load_words(&[a, b, c, d]),
            efgh: load_words(&[e, f, g, h]),
        }
    }

    #[inline]
    #[target_feature(enable = "neon,sha2")]
    fn store(self, state: &mut State) {
        *state = [
            vgetq_lane_u32::<0>(self.abcd),
            vgetq_lane_u32::<1>(self.abcd),
            vgetq_lane_u32::<2>(self.abcd),
            vgetq_lane_u32::<3>(self.abcd),
            vgetq_lane_u32::<0>(self.efgh),
            vgetq_lane_u32::<1>(self.efgh),
            vgetq_lane_u32::<2>(self.efgh),
            vgetq_lane_u32::<3>(self.efgh),
        ];
    }

    /// Four rounds with four words of the schedule and their constants.
    #[inline]
    #[target_feature(enable = "neon,sha2")]
    fn rounds4(&mut self, words: uint32x4_t, k: &[u32; 4]) {
        let sum = vaddq_u32(words, load_words(k));
        let abcd = self.abcd;
        self.abcd = vsha256hq_u32(abcd, self.efgh, sum);
        self.efgh = vsha256h2q_u32(self.efgh, abcd, sum);
    }

    #[inline]
    #[target_feature(enable = "neon,sha2")]
    fn add(&mut self, other: Self) {
        self.abcd = vaddq_u32(self.abcd, other.abcd);
        self.efgh = vaddq_u32(self.efgh, other.efgh);
    }
}

#[inline]
#[target_feature(enable = "neon,sha2")]
fn load_words(words: &[u32; 4]) -> uint32x4_t {
    // SAFETY: the array holds the four words that are read.
    unsafe { vld1q_u32(words.as_ptr()) }
}

/// The sixteen words of a block, in the order of the lanes.
#[inline]
#[target_feature(enable = "neon,sha2")]
fn message(block: &Block) -> [uint32x4_t; 4] {
    const QUARTER: usize = BLOCK / 4;
    let (quarters, _) = block.as_chunks::<QUARTER>();
    std::array::from_fn(|i| {
        // SAFETY: a quarter is the 16 bytes that are read, at any alignment.
        let bytes = unsafe { vld1q_u8(quarters[i].as_ptr()) };
        vreinterpretq_u32_u8(vrev32q_u8(bytes))
    })
}

/// The four words of the message schedule that follow the sixteen in `v`.
#[inline]
#[target_feature(enable = "neon,sha2")]
fn schedule([v0, v1, v2, v3]: [uint32x4_t; 4]) -> uint32x4_t {
    vsha256su1q_u32(vsha256su0q_u32(v0, v1), v2, v3)
}
