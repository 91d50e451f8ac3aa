use proptest::prelude::*;

use super::*;

fn text(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

/// One pair of each kind of value, then tensors of (type, shape).
fn file(pairs: &[(&str, u32)], tensors: &[(u32, &[u64])]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((pairs.len() as u64 + 3).to_le_bytes());
    for (key, value) in pairs {
        text(&mut out, key);
        out.extend(4u32.to_le_bytes());
        out.extend(value.to_le_bytes());
    }
    text(&mut out, "general.name");
    out.extend(8u32.to_le_bytes());
    text(&mut out, "a model");
    text(&mut out, "tokens");
    out.extend(9u32.to_le_bytes());
    out.extend(8u32.to_le_bytes());
    out.extend(2u64.to_le_bytes());
    text(&mut out, "one");
    text(&mut out, "two");
    text(&mut out, "scores");
    out.extend(9u32.to_le_bytes());
    out.extend(6u32.to_le_bytes());
    out.extend(2u64.to_le_bytes());
    out.extend([0; 8]);
    let mut offset = 0;
    // The parts of a split hold different tensors.
    let part = pairs.iter().find(|p| p.0 == "split.no").map_or(0, |p| p.1);
    for (i, (kind, shape)) in tensors.iter().enumerate() {
        text(&mut out, &format!("t{}", 10 * part as usize + i));
        out.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend(u64::to_le_bytes(offset));
        if let Length::Bytes(n) = length(u64::from(*kind), shape) {
            offset = (offset + n).next_multiple_of(32);
        }
    }
    if !tensors.is_empty() {
        out.resize(out.len().next_multiple_of(32) + offset as usize, 1);
    }
    out
}

fn look(bytes: &[u8]) -> Result<(Header, Vec<Fault>), Fault> {
    read(&mut &bytes[..], bytes.len() as u64)
}

const TWO: &[(u32, &[u64])] = &[(0, &[3, 5]), (8, &[64, 2])];

#[test]
fn every_cut_is_called_truncated_and_a_tail_is_malformed() {
    let whole = file(&[], TWO);
    assert_eq!(look(&whole).unwrap().1, []);
    // The last tensor is padded, or not.
    let unpadded = whole.len() - (64 + 136usize).next_multiple_of(32) + 64 + 136;
    assert_eq!(look(&whole[..unpadded]).unwrap().1, []);
    for cut in 0..unpadded {
        let fault = match look(&whole[..cut]) {
            Err(fault) => fault,
            Ok((_, mut faults)) => faults.remove(0),
        };
        assert_eq!(fault.kind, StructureKind::GgufTruncated, "{cut}");
    }
    let tail = [&whole[..], &[0]].concat();
    assert_eq!(look(&tail).unwrap().1[0].kind, StructureKind::GgufMalformed);
    assert_eq!(look(&file(&[], &[])).unwrap().1, []);
}

#[test]
fn what_the_format_forbids_is_malformed() {
    for (bytes, says) in [
        (b"GGML".repeat(9), "begin with GGUF"),
        (file(&[("general.alignment", 24)], TWO), "alignment"),
        (file(&[], &[(8, &[33])]), "cannot have the shape"),
        (
            file(&[], &[(0, &[1 << 40, 1 << 40])]),
            "cannot have the shape",
        ),
    ] {
        let fault = look(&bytes).unwrap_err();
        assert_eq!(fault.kind, StructureKind::GgufMalformed, "{says}");
        assert!(fault.detail.contains(says), "{}", fault.detail);
    }
    // An offset that leaves a gap: the last eight bytes of the table.
    let mut gap = file(&[], TWO);
    let at = gap
        .windows(8)
        .rposition(|w| w == 64u64.to_le_bytes())
        .unwrap();
    gap[at] = 96;
    assert!(look(&gap).unwrap_err().detail.contains("begins at byte 96"));
}

#[test]
fn a_name_that_stands_twice_is_malformed() {
    // Equally long names, so that nothing else changes.
    let whole = file(&[("split.no", 0), ("split.mo", 0)], TWO);
    assert_eq!(look(&whole).unwrap().1, []);
    for (from, to, says) in [
        (
            &b"split.mo"[..],
            &b"split.no"[..],
            "key \"split.no\" stands twice",
        ),
        (&b"\0t1"[..], &b"\0t0"[..], "tensor \"t0\" stands twice"),
    ] {
        let mut twice = whole.clone();
        let at = twice.windows(from.len()).position(|w| w == from).unwrap();
        twice[at..at + from.len()].copy_from_slice(to);
        let fault = look(&twice).unwrap_err();
        assert_eq!(fault.kind, StructureKind::GgufMalformed);
        assert!(fault.detail.contains(says), "{}", fault.detail);
    }
    // Across the parts of a split as well.
    let (one, two) = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf");
    let part = |no, of| {
        let pairs = [
            ("split.no", no),
            ("split.count", 2),
            ("split.tensors.count", 4),
        ];
        let mut bytes = file(&pairs, TWO);
        let at = bytes.windows(9).position(|w| w == b"split.no\x04").unwrap();
        bytes[at + 12..at + 16].copy_from_slice(&u32::to_le_bytes(of));
        Some(look(&bytes).unwrap().0)
    };
    let problems = |second| {
        let files = [(one, part(0, 0)), (two, second)];
        let files = files.map(|(n, h)| (RelPath::parse(n).unwrap(), h));
        compare_splits(&files.into())
    };
    assert_eq!(problems(part(1, 1)), []);
    // The tensors of part 0 in a file that calls itself part 1.
    let found = problems(part(0, 1));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].detail.contains("another part"));
}

#[test]
fn what_is_not_known_is_said() {
    let mut old = file(&[], TWO);
    old[4] = 1;
    assert_eq!(look(&old).unwrap_err().kind, StructureKind::NotKnown);
    let (_, faults) = look(&file(&[], &[(0, &[8]), (999, &[8])])).unwrap();
    assert_eq!(faults[0].kind, StructureKind::NotKnown);
}

#[test]
fn big_endian_files_are_read() {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_be_bytes());
    out.extend(0u64.to_be_bytes());
    out.extend(0u64.to_be_bytes());
    assert_eq!(look(&out).unwrap().1, []);
}

#[test]
fn split_names_have_one_form() {
    assert_eq!(
        split_name(b"a/b-00002-of-00010.gguf"),
        Some((&b"a/b"[..], 2, 10))
    );
    // As with files that are no split, the case of the ending does not matter.
    assert_eq!(
        split_name(b"b-00001-of-00002.GGUF"),
        Some((&b"b"[..], 1, 2))
    );
    for other in [
        "b.gguf",
        "b-00001-of-00002.ggux",
        "-00001-of-00002.gguf",
        "b-0001-of-00002.gguf",
        "b-00001-of-0000x.gguf",
        "b_00001-of-00002.gguf",
    ] {
        assert_eq!(split_name(other.as_bytes()), None, "{other}");
    }
}

/// A file's name, and the number, count and tensor count that it states within.
type Part<'a> = (&'a str, Option<(u32, u32, u32)>);

fn splits(files: &[Part]) -> Vec<String> {
    let files = files
        .iter()
        .map(|(name, within)| {
            let pairs = within.map(|(no, count, all)| {
                [
                    ("split.no", no),
                    ("split.count", count),
                    ("split.tensors.count", all),
                ]
            });
            let bytes = file(pairs.as_ref().map_or(&[], |p| &p[..]), TWO);
            (RelPath::parse(name).unwrap(), Some(look(&bytes).unwrap().0))
        })
        .collect();
    compare_splits(&files)
        .into_iter()
        .map(|p| p.detail)
        .collect()
}

#[test]
fn splits_must_be_complete_and_number_themselves_as_they_are_named() {
    let (one, two) = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf");
    let good = |no| Some((no, 2, 4));
    assert_eq!(splits(&[(one, good(0)), (two, good(1))]), [""; 0]);
    assert_eq!(splits(&[("m.gguf", None)]), [""; 0]);
    let said = |files: &[_], says: &str| {
        let found = splits(files);
        assert!(found.iter().any(|d| d.contains(says)), "{found:?}");
    };
    said(&[(one, good(0))], "not there: 2");
    said(
        &[(one, good(1)), (two, good(0))],
        "named part 1 of 2, and says it is part 2",
    );
    said(&[(one, good(0)), (two, None)], "says nothing");
    said(
        &[(one, good(0)), (two, Some((1, 2, 5)))],
        "hold 4 tensors, but 5",
    );
    said(&[("m.gguf", good(0))], "not named so");
    said(&[("m-00001-of-99999.gguf", None)], "not there: 2, 3");
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300), front in 0usize..3,
    ) {
        let head = [&b""[..], b"GGUF\x03\0\0\0", b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0"][front];
        let _ = look(&[head, &bytes].concat());
    }

    #[test]
    fn edited_files_are_read_without_a_panic(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = file(&[("split.no", 0)], TWO);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = look(&bytes);
    }

    #[test]
    fn any_name_is_a_split_or_not(name in prop::collection::vec(any::<u8>(), 0..40)) {
        let _ = split_name(&name);
        let _ = split_name(&[&name[..], b".gguf"].concat());
    }
}
