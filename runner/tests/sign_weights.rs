//! `attest keygen --type` and `attest sign weights`, run as programs.

use std::path::Path;

use assert_cmd::Command;
use runseal::ecdsa_keys::load_public;
use runseal::oms::{Where, check_folder};
use runseal::weights::NoProgress;

fn attest(dir: &Path, args: &[&str]) -> std::process::Output {
    let mut command = Command::cargo_bin("attest").unwrap();
    command.current_dir(dir).args(args).output().unwrap()
}

fn stderr(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn model() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("model");
    std::fs::create_dir_all(root.join("sub")).unwrap();
    std::fs::write(root.join("weights.bin"), vec![7; 2500]).unwrap();
    std::fs::write(root.join("sub/config.json"), b"{}").unwrap();
    std::fs::write(root.join(".gitattributes"), b"# nothing\n").unwrap();
    dir
}

#[test]
fn every_curve_and_method_makes_a_bundle_that_verifies() {
    let dir = model();
    for kind in ["p256", "p384", "p521"] {
        let key = format!("{kind}.key.pem");
        let made = attest(dir.path(), &["keygen", &key, "--type", kind]);
        assert!(made.status.success(), "{made:?}");
        for (method, name) in [
            (&["--hash", "sha256"][..], "files"),
            (&["--hash", "blake3"], "blake3"),
            (&["--method", "shards", "--shard-size", "1000"], "shards"),
        ] {
            let bundle = format!("{kind}-{name}.sig");
            let mut args = vec!["sign", "weights", "model", "--key", &key, "-o", &bundle];
            args.extend(method);
            let output = attest(dir.path(), &args);
            assert!(output.status.success(), "{output:?}");
            let said = String::from_utf8(output.stdout).unwrap();
            assert!(said.contains("not signed: .gitattributes"), "{said}");
            let bytes = std::fs::read(dir.path().join(&bundle)).unwrap();
            let public = load_public(&dir.path().join(format!("{kind}.pub.pem"))).unwrap();
            let root = dir.path().join("model");
            let report = check_folder(Where::at(&root), &bytes, Some(&public), &NoProgress);
            assert!(report.verified, "{report:?}");
            assert_eq!(report.files_verified, 2);
            // Nothing is replaced unasked, and the same folder signs to the same bytes.
            assert_eq!(attest(dir.path(), &args).status.code(), Some(2));
            args.push("--force");
            assert!(attest(dir.path(), &args).status.success());
            assert_eq!(std::fs::read(dir.path().join(&bundle)).unwrap(), bytes);
        }
    }
}

#[test]
fn a_bundle_inside_the_folder_leaves_itself_out() {
    let dir = model();
    attest(dir.path(), &["keygen", "k.key.pem", "--type", "p256"]);
    let args = [
        "sign",
        "weights",
        "model",
        "--key",
        "k.key.pem",
        "-o",
        "model/sub/model.sig",
    ];
    assert!(attest(dir.path(), &args).status.success());
    let bytes = std::fs::read(dir.path().join("model/sub/model.sig")).unwrap();
    let public = load_public(&dir.path().join("k.pub.pem")).unwrap();
    let root = dir.path().join("model");
    let report = check_folder(Where::at(&root), &bytes, Some(&public), &NoProgress);
    assert!(report.verified, "{report:?}");
    let ignored = report.statement.unwrap().ignore_paths;
    assert!(ignored.contains(&"sub/model.sig".to_owned()), "{ignored:?}");
}

#[test]
fn force_replaces_bundles_and_nothing_else() {
    let dir = model();
    assert!(
        attest(dir.path(), &["keygen", "key.pem", "--type", "p256"])
            .status
            .success()
    );
    std::fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    for other in ["key.pem", "model/sub/config.json", "notes.txt"] {
        let before = std::fs::read(dir.path().join(other)).unwrap();
        let args = [
            "sign", "weights", "model", "--key", "key.pem", "-o", other, "--force",
        ];
        let output = attest(dir.path(), &args);
        assert_eq!(output.status.code(), Some(2), "{other}");
        assert!(stderr(&output).contains("is no bundle and was left alone"));
        assert_eq!(std::fs::read(dir.path().join(other)).unwrap(), before);
    }
}

#[test]
fn what_a_reader_could_misunderstand_is_not_signed() {
    let dir = model();
    attest(dir.path(), &["keygen", "k.key.pem", "--type", "p256"]);
    let sign = |more: &[&str]| {
        let mut args = vec!["sign", "weights", "model", "--key", "k.key.pem"];
        args.extend(more);
        let output = attest(dir.path(), &args);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(!dir.path().join("model.sig").exists());
        stderr(&output)
    };
    let root = dir.path().join("model");
    assert!(sign(&["--method", "shards", "--hash", "blake3"]).contains("hint"));
    assert!(sign(&["--shard-size", "5"]).contains("hint"));
    assert!(sign(&["--ignore", "../x"]).contains("hint"));
    assert!(sign(&["--ignore", "weights.bin", "--ignore", "sub"]).contains("no files to sign"));
    std::fs::write(root.join("a:b"), b"x").unwrap();
    assert!(sign(&["--method", "shards"]).contains("colon"));
    std::fs::remove_file(root.join("a:b")).unwrap();
    std::fs::write(root.join("empty"), b"").unwrap();
    assert!(sign(&["--method", "shards"]).contains("empty"));
    std::fs::write(root.join("Weights.bin"), b"x").unwrap();
    assert!(sign(&[]).contains("case does not matter"));
    std::fs::remove_file(root.join("Weights.bin")).unwrap();
    std::os::unix::fs::symlink("weights.bin", root.join("link")).unwrap();
    assert!(sign(&[]).contains("symbolic link"));
    std::fs::remove_file(root.join("link")).unwrap();
    let bad: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff");
    std::fs::write(root.join(bad), b"x").unwrap();
    assert!(sign(&[]).contains("UTF-8"));
}

#[test]
fn paths_to_leave_out_may_be_typed_as_shells_complete_them() {
    let dir = model();
    attest(dir.path(), &["keygen", "k.key.pem", "--type", "p256"]);
    let args = ["sign", "weights", "model", "--key", "k.key.pem"];
    let signed = attest(dir.path(), &[&args[..], &["--ignore", "./sub/"]].concat());
    assert!(signed.status.success(), "{signed:?}");
    let bytes = std::fs::read(dir.path().join("model.sig")).unwrap();
    let root = dir.path().join("model");
    let report = check_folder(Where::at(&root), &bytes, None, &NoProgress);
    let ignored = report.statement.unwrap().ignore_paths;
    assert!(ignored.contains(&"sub".to_owned()), "{ignored:?}");
    // The public half in place of the secret one is called that.
    let args = ["sign", "weights", "model", "--key", "k.pub.pem", "--force"];
    let public = attest(dir.path(), &args);
    assert_eq!(public.status.code(), Some(2));
    assert!(stderr(&public).contains("is a public key"), "{public:?}");
    assert!(!stderr(&public).contains("mode"), "{public:?}");
}

#[test]
fn keys_of_other_kinds_and_open_ones_are_refused() {
    let dir = model();
    attest(dir.path(), &["keygen", "ed.key.pem"]);
    let ed = attest(
        dir.path(),
        &["sign", "weights", "model", "--key", "ed.key.pem"],
    );
    assert_eq!(ed.status.code(), Some(2));
    assert!(stderr(&ed).contains("--type p256"), "{ed:?}");
    attest(dir.path(), &["keygen", "ec.key.pem", "--type", "p384"]);
    let path = dir.path().join("ec.key.pem");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let open = attest(
        dir.path(),
        &["sign", "weights", "model", "--key", "ec.key.pem"],
    );
    assert_eq!(open.status.code(), Some(2));
    assert!(stderr(&open).contains("others can read it"), "{open:?}");
}

#[test]
fn a_hub_cache_is_signed_with_the_bundle_beside_or_among_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let root = dir.path().join("models--org--tiny");
    let snapshot = root.join("snapshots").join(commit);
    for folder in [&root.join("refs"), &root.join("blobs"), &snapshot] {
        std::fs::create_dir_all(folder).unwrap();
    }
    std::fs::write(root.join("refs/main"), commit).unwrap();
    std::fs::write(root.join("blobs/one"), b"{}").unwrap();
    std::os::unix::fs::symlink("../../blobs/one", snapshot.join("config.json")).unwrap();
    attest(dir.path(), &["keygen", "k.key.pem", "--type", "p256"]);
    let public = load_public(&dir.path().join("k.pub.pem")).unwrap();
    let below = format!("models--org--tiny/snapshots/{commit}");
    for (path, output) in [
        ("models--org--tiny", "beside.sig".to_owned()),
        ("models--org--tiny", format!("{below}/by-cache.sig")),
        (&below, format!("{below}/by-snapshot.sig")),
    ] {
        let sign = ["sign", "weights", path, "--key", "k.key.pem", "-o", &output];
        // Earlier bundles among the files are not part of the model.
        let more = ["--ignore", "by-cache.sig", "--revision", commit];
        let output_of = attest(dir.path(), &[&sign[..], &more].concat());
        assert!(output_of.status.success(), "{output_of:?}");
        let bytes = std::fs::read(dir.path().join(&output)).unwrap();
        for at in [&root, &snapshot] {
            let report = check_folder(Where::at(at), &bytes, Some(&public), &NoProgress);
            assert!(report.verified, "{output}: {report:?}");
            assert_eq!(report.files_verified, 1);
            assert_eq!(report.statement.unwrap().name, "org/tiny");
        }
    }
    let mut missing = vec!["sign", "weights", "models--org--tiny", "--key", "k.key.pem"];
    missing.extend(["--revision", "missing"]);
    let refused = attest(dir.path(), &missing);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("not in the cache"), "{refused:?}");
}
