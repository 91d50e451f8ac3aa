//! Two streams with the SHA extensions of x86-64.
//!
//! `sha256rnds2` does two rounds and the next one needs its result, several cycles
//! later; with two streams there is always another one ready. The state is held as
//! the instruction wants it: one register with words A, B, E, F and one with C, D,
//! G, H (named from the highest lane down). Two streams fit the sixteen registers,
//! three do not and are slower.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{BLOCK, Block, K, State};

/// The processor has what [`compress2`] needs. The standard library caches the
/// answer.
pub fn available() -> bool {
    is_x86_feature_detected!("sha")
        && is_x86_feature_detected!("sse2")
        && is_x86_feature_detected!("ssse3")
        && is_x86_feature_detected!("sse4.1")
}

/// Compresses blocks into both states and says so, or touches nothing when the
/// processor lacks the instructions.
pub fn compress2(a: &mut State, x: &[Block], b: &mut State, y: &[Block]) -> bool {
    if !available() {
        return false;
    }
    // SAFETY: every feature that the function is compiled for was just detected.
    unsafe { compress2_sha_ni(a, x, b, y) };
    true
}

#[target_feature(enable = "sha,sse2,ssse3,sse4.1")]
fn compress2_sha_ni(a: &mut State, x: &[Block], b: &mut State, y: &[Block]) {
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
    abef: __m128i,
    cdgh: __m128i,
}

impl Lane {
    #[inline]
    #[target_feature(enable = "sha,sse2,ssse3,sse4.1")]
    fn load(state: &State) -> Self {
        let [a, b, c, d, e, f, g, h] = state.map(u32::cast_signed);
        Self {
            abef: _mm_set_epi32(a, b, e, f),
            cdgh: _mm_set_epi32(c, d, g, h),
        }
    }

    #[inline]
    #[target_feature(enable = "sha,sse2,ssse3,sse4.1")]
    fn store(self, state: &mut State) {
        let word = |n: i32| n.cast_unsigned();
        *state = [
            word(_mm_extract_epi32::<3>(self.abef)),
            word(_mm_extract_epi32::<2>(self.abef)),
            word(_mm_extract_epi32::<3>(self.cdgh)),
            word(_mm_extract_epi32::<2>(self.cdgh)),
            word(_mm_extract_epi32::<1>(self.abef)),
            word(_mm_extract_epi32::<0>(self.abef)),
            word(_mm_extract_epi32::<1>(self.cdgh)),
            word(_mm_extract_epi32::<0>(self.cdgh)),
        ];
    }

    /// Four rounds with four words of the schedule and their constants.
    #[inline]
    #[target_feature(enable = "sha,sse2,ssse3,sse4.1")]
    fn rounds4(&mut self, words: __m128i, k: &[u32; 4]) {
        let [k0, k1, k2, k3] = k.map(u32::cast_signed);
        let sum = _mm_add_epi32(words, _mm_set_epi32(k3, k2, k1, k0));
        self.cdgh = _mm_sha256rnds2_epu32(self.cdgh, self.abef, sum);
        let upper = _mm_shuffle_epi32::<0b1110>(sum);
        self.abef = _mm_sha256rnds2_epu32(self.abef, self.cdgh, upper);
    }

    #[inline]
    #[target_feature(enable = "sha,sse2,ssse3,sse4.1")]
    fn add(&mut self, other: Self) {
        self.abef = _mm_add_epi32(self.abef, other.abef);
        self.cdgh = _mm_add_epi32(self.cdgh, other.cdgh);
    }
}

/// The sixteen words of a block, in the order of the lanes.
#[inline]
#[target_feature(enable = "sha,sse2,ssse3,sse4.1")]
fn message(block: &Block) -> [__m128i; 4] {
    const QUARTER: usize = BLOCK / 4;
    let big_endian = _mm_set_epi64x(0x0C0D0E0F08090A0B, 0x0405060700010203);
    let (quarters, _) = block.as_chunks::<QUARTER>();
    std::array::from_fn(|i| {
        // SAFETY: a quarter is 16 bytes long, which is what is read; the
        // instruction asks for no alignment.
        let words = unsafe { _mm_loadu_si128(quarters[i].as_ptr().cast()) };
        _mm_shuffle_epi8(words, big_endian)
    })
}

/// The four words of the message schedule that follow the sixteen in `v`.
#[inline]
#[target_feature(enable = "sha,sse2,ssse3,sse4.1")]
fn schedule([v0, v1, v2, v3]: [__m128i; 4]) -> __m128i {
    let sum = _mm_add_epi32(_mm_sha256msg1_epu32(v0, v1), _mm_alignr_epi8::<4>(v3, v2));
    _mm_sha256msg2_epu32(sum, v3)
}
