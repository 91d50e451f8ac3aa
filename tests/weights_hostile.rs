//! What a hostile first-time user tried at the command line: nothing of it may pass
//! silently, and every answer says what is wrong and what to do.

mod weights_support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use runseal::keys::{SigningKey, save_pair};
use weights_support::hub::{COMMIT, Cache};
use weights_support::*;

fn run(f: &Fixture, args: &[&str]) -> Answer {
    verify_in(f.dir.path(), args)
}

const PLAIN: [&str; 4] = ["weights", "model", "--manifest", "manifest.json"];

fn plain(f: &Fixture, more: &[&str]) -> Answer {
    run(f, &[&PLAIN[..], more].concat())
}

fn pipe(path: &Path) {
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
}

#[test]
fn reports_are_not_saved_inside_a_checkpoint_by_any_name() {
    let f = Fixture::new();
    symlink("model", f.dir.path().join("link")).unwrap();
    symlink("model/original", f.dir.path().join("deep")).unwrap();
    fs::create_dir(f.dir.path().join("beside")).unwrap();
    symlink("../model", f.dir.path().join("beside/up")).unwrap();
    let absolute = f.at("saved").display().to_string();
    let absolute_link = f.dir.path().join("link/a/b").display().to_string();
    for dir in [
        "model",
        "model/",
        "model/saved",
        "./model/saved/deeper",
        "model/original",
        "model/original/..",
        "model/../model/saved",
        "beside/../model/saved",
        "link",
        "link/saved",
        "deep",
        "deep/x",
        "beside/up/saved",
        &absolute,
        &absolute_link,
    ] {
        let answer = plain(&f, &["--save-reports", dir]);
        assert_eq!((answer.code, answer.stdout.as_str()), (2, ""), "{dir}");
        assert!(
            answer.stderr.contains("inside the checkpoint"),
            "{answer:?}"
        );
        assert!(answer.stderr.contains("hint:"), "{answer:?}");
        // From within, a path without a folder.
        let args = ["weights", ".", "--manifest", "../manifest.json"];
        let answer = verify_in(&f.root(), &[&args[..], &["--save-reports", "x"]].concat());
        assert_eq!(answer.code, 2, "{answer:?}");
    }
    let answer = plain(&f, &["--save-reports", "absent/../model/saved"]);
    assert_eq!(answer.code, 2, "{answer:?}");
    // Nothing was made there, and a folder beside it is as good as any.
    assert_eq!(plain(&f, &[]).code, 0);
    for dir in ["saved", "model-saved", "beside/saved", "model/../more"] {
        let answer = plain(&f, &["--save-reports", dir]);
        assert_eq!(answer.code, 0, "{dir}: {answer:?}");
        assert!(f.dir.path().join(dir).join("model.json").is_file());
    }
    assert_eq!(plain(&f, &[]).code, 0);
}

#[test]
fn nor_inside_that_of_another_replica_or_in_a_cache() {
    let f = Fixture::new();
    checkpoint(&f.dir.path().join("m1"));
    let inventory = "format = \"runseal.cluster/v1\"\nmanifest = \"manifest.json\"\n\
        [[replica]]\nname = \"r0\"\ntransport = \"local\"\npath = \"model\"\n\
        [[replica]]\nname = \"r1\"\ntransport = \"local\"\npath = \"m1\"\n";
    fs::write(f.dir.path().join("cluster.toml"), inventory).unwrap();
    let answer = run(&f, &["weights", "--save-reports", "m1/saved"]);
    assert_eq!(answer.code, 2);
    assert!(answer.stderr.contains("checkpoint m1"), "{answer:?}");
    assert_eq!(run(&f, &["weights", "--save-reports", "saved"]).code, 0);

    let cache = Cache::new(f.dir.path());
    let snapshot = format!("models--org--tiny/snapshots/{COMMIT}");
    for path in ["models--org--tiny", &snapshot] {
        for dir in ["blobs/x", "snapshots/x", "saved"] {
            let dir = cache.root.join(dir).display().to_string();
            let args = ["weights", path, "--save-reports", &dir];
            let answer = run(&f, &args);
            assert_eq!(answer.code, 2, "{path} {dir}: {answer:?}");
        }
    }
    // Beside a GGUF file other files may lie.
    fs::write(f.at("x.gguf"), b"GGUF").unwrap();
    let args = ["weights", "model/x.gguf", "--save-reports", "model/saved"];
    assert_eq!(run(&f, &args).code, 1);
}

#[test]
fn a_path_that_is_no_folder_is_called_what_it_is() {
    let f = Fixture::new();
    pipe(&f.dir.path().join("pipe"));
    fs::write(f.dir.path().join("model.bin"), b"x").unwrap();
    std::os::unix::net::UnixListener::bind(f.dir.path().join("s")).unwrap();
    for (path, what) in [
        ("pipe", "a named pipe"),
        ("s", "a socket"),
        ("/dev/null", "a device"),
        ("model.bin", "a single file"),
        ("model/model-00001-of-00003.safetensors", "a single file"),
    ] {
        let answer = run(&f, &["weights", path, "--manifest", "manifest.json"]);
        assert_eq!(answer.code, 1, "{answer:?}");
        let says =
            format!("the path is that of {what} and not of a checkpoint (hint: give the folder");
        assert!(answer.stdout.contains(&says), "{path}: {}", answer.stdout);
    }
}

#[test]
fn an_earlier_report_on_another_replica_is_said() {
    let f = Fixture::new();
    assert_eq!(plain(&f, &["--save-reports", "saved"]).code, 0);
    let text = fs::read_to_string(f.dir.path().join("saved/model.json")).unwrap();
    let text = text.replace("\"replica\":\"model\"", "\"replica\":\"gx7\"");
    fs::write(f.dir.path().join("other.json"), text).unwrap();
    let answer = f.verify(&["--changed-since", "other.json"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    let note = ("no-earlier-report".to_owned(), "model".to_owned());
    assert_eq!(answer.findings(), [note]);
    let said = plain(&f, &["--changed-since", "other.json"]).stdout;
    assert!(said.contains("there are reports on gx7"), "{said}");
    let same = f.verify(&["--changed-since", "saved"]).findings();
    assert!(same.iter().all(|(code, _)| code != "no-earlier-report"));
}

#[test]
fn an_edited_report_beside_its_signed_one_is_no_second_replica() {
    let f = Fixture::new();
    let key = SigningKey::generate().unwrap();
    let at = |name: &str| f.dir.path().join(name);
    save_pair(&key, &at("k.pem"), &at("k.pub.pem")).unwrap();
    let inventory = format!(
        "format = \"runseal.cluster/v1\"\nmanifest = \"manifest.json\"\n\
         [[replica]]\nname = \"r0\"\ntransport = \"local\"\npath = \"model\"\nnode_key = {:?}\n",
        at("k.pem")
    );
    fs::write(at("cluster.toml"), inventory).unwrap();
    let answer = run(&f, &["weights", "--save-reports", "saved"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    let good = fs::read_to_string(at("saved/r0.json")).unwrap();
    let boot = runseal::weights::boot_id().unwrap();
    let judge = |more: &[&str]| {
        let args = ["weights", "--manifest", "manifest.json", "--format", "json"];
        run(&f, &[&args[..], more].concat())
    };
    let altered = vec![("report-not-as-signed".to_owned(), "r0".to_owned())];
    for (from, to) in [
        (boot.as_str(), "00000000-0000-4000-8000-000000000000"),
        ("\"replica\":\"r0\"", "\"replica\":\"r1\""),
    ] {
        fs::write(at("saved/r0.json"), good.replace(from, to)).unwrap();
        for given in [
            &["saved"][..],
            &["saved/r0.json", "saved/r0.dsse.json"],
            &["saved/r0.dsse.json", "saved/r0.json", "saved"],
        ] {
            for keys in [&[][..], &["--node-key", "r0=k.pub.pem"]] {
                let answer = judge(&[&["--report"][..], given, keys].concat());
                assert_eq!(answer.findings(), altered, "{answer:?}");
                assert_eq!(answer.code, 1);
                let json = answer.json();
                assert_eq!(json["replicas"].as_array().unwrap().len(), 1);
                assert_eq!(json["agreement"]["replicas"], 1);
                // What was signed is what was judged.
                assert_eq!(json["replicas"][0]["report"]["boot_id"], boot.as_str());
            }
        }
        let answer = run(&f, &["weights", "--changed-since", "saved"]);
        assert_eq!(answer.code, 2, "{answer:?}");
    }
    // Two reports that claim one name are two answers to one question, not two copies.
    fs::write(at("saved/r0.json"), &good).unwrap();
    fs::create_dir(at("later")).unwrap();
    let later = good.replace(&boot, "00000000-0000-4000-8000-000000000000");
    fs::write(at("later/r0.json"), later).unwrap();
    let answer = judge(&["--report", "saved", "later", "--replicas", "2"]);
    assert_eq!(answer.code, 2);
    assert!(
        answer
            .stderr
            .contains("a second report on the target of replica r0")
    );
    assert_eq!(judge(&["--report", "saved", "saved/r0.json"]).code, 0);
}

#[test]
fn without_a_finding_the_last_line_says_what_was_not_done() {
    let f = Fixture::new();
    let commit = "0123456789abcdef0123456789abcdef01234567";
    fs::create_dir(f.dir.path().join("objects")).unwrap();
    let more = ["--git-objects", "objects", "--revision", commit];
    let answer = plain(&f, &more);
    assert_eq!(answer.code, 1);
    let last = answer.stdout.lines().last().unwrap();
    let says = format!(
        "not verified: revision-bound was not performed: the commit {commit} is not in objects (hint:"
    );
    assert!(last.starts_with(&says), "{last}");
    assert!(!answer.stdout.contains("0 findings"));
}

#[test]
fn paths_to_ignore_may_be_typed_as_shells_complete_them() {
    let f = Fixture::new();
    fs::create_dir(f.at("notes")).unwrap();
    fs::write(f.at("notes/x"), b"x").unwrap();
    for typed in ["notes", "notes/", "./notes", ".//notes//"] {
        let answer = f.verify(&["--ignore", typed]);
        assert_eq!(answer.code, 0, "{typed}: {answer:?}");
        let ignored = ("ignored-by-manifest".to_owned(), "model/notes".to_owned());
        assert_eq!(answer.findings(), [ignored]);
    }
    for (bad, why) in [
        (".", "the folder itself"),
        ("/notes", "absolute"),
        ("../notes", "'..'"),
    ] {
        let answer = plain(&f, &["--ignore", bad]);
        assert_eq!(answer.code, 2);
        assert!(answer.stderr.contains(why), "{answer:?}");
    }
}

#[test]
fn an_error_is_said_once_and_a_key_called_what_it_is() {
    let f = Fixture::new();
    fs::write(f.dir.path().join("bad.json"), b"{\"format\": nonsense}").unwrap();
    let answer = run(&f, &["weights", "model", "--manifest", "bad.json"]);
    assert_eq!(answer.code, 2);
    for once in ["expected ident", "not acceptable JSON", "hint:"] {
        let n = answer.stderr.matches(once).count();
        assert_eq!(n, 1, "{once}: {}", answer.stderr);
    }

    let key = SigningKey::generate().unwrap();
    let at = |name: &str| f.dir.path().join(name);
    save_pair(&key, &at("k.pem"), &at("k.pub.pem")).unwrap();
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(at("k.pub.pem"), fs::Permissions::from_mode(0o644)).unwrap();
    let e = runseal::keys::load_secret(&at("k.pub.pem")).unwrap_err();
    assert!(e.to_string().contains("is a public key"), "{e}");
    assert!(!e.to_string().contains("mode"), "{e}");
    let e = runseal::ecdsa_keys::load_secret(&at("k.pub.pem")).unwrap_err();
    assert!(e.to_string().contains("is a public key"), "{e}");
    let e = runseal::keys::load_public(&at("k.pem")).unwrap_err();
    assert!(e.to_string().contains("is a secret key"), "{e}");
    let e = runseal::ecdsa_keys::load_public(&at("k.pem")).unwrap_err();
    assert!(e.to_string().contains("is a secret key"), "{e}");
    fs::set_permissions(at("k.pem"), fs::Permissions::from_mode(0o644)).unwrap();
    let e = runseal::keys::load_secret(&at("k.pem")).unwrap_err();
    assert!(e.to_string().contains("mode 0644"), "{e}");
}

#[test]
fn a_column_that_is_named_twice_decides_nothing() {
    let (d, e) = ("1".repeat(64), "2".repeat(64));
    let read = |columns: &str, line: &str| {
        let text = format!("%%%% HASHDEEP-1.0\n%%%% {columns}\n{line}\n");
        runseal::weights::Listing::read(text.as_bytes(), None).map_err(|e| e.to_string())
    };
    assert!(read("size,sha256,filename", &format!("1,{d},a")).is_ok());
    for (columns, twice) in [
        ("size,sha256,sha256,filename", "sha256"),
        ("size,size,sha256,filename", "size"),
        ("size,md5,sha256,md5,filename", "md5"),
        ("size,filename,sha256,filename", "filename"),
    ] {
        let n = columns.split(',').count();
        let line = ["1", &d, &e, &d, "a"][..n].join(",");
        let said = read(columns, &line).unwrap_err();
        let says = format!("line 2 of the manifest: it names the column {twice} twice");
        assert!(said.starts_with(&says), "{said}");
    }
}
