//! The streams against the published vectors and against the `sha2` crate.

use proptest::prelude::*;
use runseal_kernel::sha256::{Sha256, update2};
use sha2::Digest;

fn reference(bytes: &[u8]) -> [u8; 32] {
    sha2::Sha256::digest(bytes).into()
}

fn message(seed: u8, len: usize) -> Vec<u8> {
    let mut x = u32::from(seed).wrapping_mul(2_654_435_761) | 1;
    let byte = |_| {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x as u8
    };
    (0..len).map(byte).collect()
}

fn hex(digest: [u8; 32]) -> String {
    digest.iter().map(|b| format!("{b:02x}")).collect()
}

fn both(x: &[u8], y: &[u8]) -> ([u8; 32], [u8; 32]) {
    let (mut a, mut b) = (Sha256::new(), Sha256::new());
    update2(&mut a, x, &mut b, y);
    (a.finalize(), b.finalize())
}

/// FIPS 180-4 and NIST's "Examples with Intermediate Values".
const NIST: [(&str, &str); 4] = [
    (
        "",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    ),
    (
        "abc",
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    ),
    (
        "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
    ),
    (
        "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
        "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1",
    ),
];
const MILLION_A: &str = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";

#[test]
fn nist_vectors_alone_and_in_either_lane() {
    for (x, x_digest) in NIST {
        let mut alone = Sha256::new();
        alone.update(x.as_bytes());
        assert_eq!(hex(alone.finalize()), x_digest);
        for (y, y_digest) in NIST {
            let (a, b) = both(x.as_bytes(), y.as_bytes());
            assert_eq!((hex(a).as_str(), hex(b).as_str()), (x_digest, y_digest));
        }
    }
}

#[test]
fn a_million_times_a() {
    let text = vec![b'a'; 1_000_000];
    let (a, b) = both(&text, &text[..999_999]);
    assert_eq!(hex(a), MILLION_A);
    assert_eq!(b, reference(&text[..999_999]));
}

#[test]
fn every_length_in_both_lanes() {
    let (x, y) = (message(1, 300), message(2, 300));
    for n in 0..=300 {
        // Another length in the other lane, and every pair of residues of 64.
        for m in [n, 300 - n, (n * 7 + 3) % 301] {
            let (a, b) = both(&x[..n], &y[..m]);
            assert_eq!(a, reference(&x[..n]), "{n} bytes beside {m}");
            assert_eq!(b, reference(&y[..m]), "{m} bytes beside {n}");
        }
        let mut alone = Sha256::default();
        alone.update(&x[..n]);
        assert_eq!(alone.finalize(), reference(&x[..n]), "{n} bytes alone");
    }
}

#[test]
fn a_partner_may_change_midway() {
    let parts: Vec<Vec<u8>> = (0..3).map(|i| message(i, 1000 + 77 * i as usize)).collect();
    let (mut a, mut b, mut c) = (Sha256::new(), Sha256::new(), Sha256::new());
    update2(&mut a, &parts[0][..500], &mut b, &parts[1][..400]);
    update2(&mut c, &parts[2][..130], &mut a, &parts[0][500..]);
    b.update(&parts[1][400..410]);
    let copy = b.clone();
    update2(&mut c, &parts[2][130..], &mut b, &parts[1][410..]);
    assert_eq!(a.finalize(), reference(&parts[0]));
    assert_eq!(b.finalize(), reference(&parts[1]));
    assert_eq!(c.finalize(), reference(&parts[2]));
    assert_eq!(copy.finalize(), reference(&parts[1][..410]));
}

proptest! {
    #[test]
    fn any_split_of_any_two_messages(
        x in prop::collection::vec(any::<u8>(), 0..3000),
        y in prop::collection::vec(any::<u8>(), 0..3000),
        cuts in prop::collection::vec((0usize..700, 0usize..700, 0u8..4), 0..20),
    ) {
        let (mut a, mut b) = (Sha256::new(), Sha256::new());
        let (mut rest_x, mut rest_y) = (x.as_slice(), y.as_slice());
        for (n, m, way) in cuts {
            let (head_x, tail_x) = rest_x.split_at(n.min(rest_x.len()));
            let (head_y, tail_y) = rest_y.split_at(m.min(rest_y.len()));
            match way {
                0 => { a.update(head_x); rest_x = tail_x; }
                1 => { b.update(head_y); rest_y = tail_y; }
                2 => {
                    update2(&mut b, head_y, &mut a, head_x);
                    (rest_x, rest_y) = (tail_x, tail_y);
                }
                _ => {
                    update2(&mut a, head_x, &mut b, head_y);
                    (rest_x, rest_y) = (tail_x, tail_y);
                }
            }
        }
        update2(&mut a, rest_x, &mut b, rest_y);
        prop_assert_eq!(a.finalize(), reference(&x));
        prop_assert_eq!(b.finalize(), reference(&y));
    }
}
