//! Reports that are signed on their node, saved, judged again later, and used to
//! leave files out.

mod remote_support;
mod weights_support;

use std::fs;
use std::time::Duration;

use remote_support::*;
use runseal::keys::{SigningKey, save_pair};
use weights_support::*;

fn key(c: &Cluster, name: &str) {
    let key = SigningKey::generate().unwrap();
    let (secret, public) = (format!("{name}.pem"), format!("{name}.pub.pem"));
    save_pair(&key, &c.at(&secret), &c.at(&public)).unwrap();
}

/// Two nodes that sign, and their saved reports in `saved/`.
fn signed() -> Cluster {
    let c = Cluster::new();
    key(&c, "k0");
    key(&c, "k1");
    let host = |i: usize| format!("good-{i}\nnode_key = {:?}", c.at(&format!("k{i}.pem")));
    c.inventory(&[&host(0), &host(1)]);
    let keys = ["--node-key", "r0=k0.pub.pem", "--node-key", "r1=k1.pub.pem"];
    let answer = c.verify(&[&["--save-reports", "saved", "--replicas", "2"], &keys[..]].concat());
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!(answer.stdout.matches("signed by SHA256:").count(), 2);
    c
}

const JUDGE: [&str; 7] = [
    "weights",
    "--manifest",
    "manifest.json",
    "--format",
    "json",
    "--report",
    "saved",
];

#[test]
fn saved_reports_are_judged_without_the_replicas() {
    let c = signed();
    let mut names: Vec<_> = fs::read_dir(c.at("saved"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["r0.dsse.json", "r0.json", "r1.dsse.json", "r1.json"]
    );
    for i in 0..4 {
        fs::remove_dir_all(c.at(&format!("m{i}"))).unwrap();
    }
    let judge = |more: &[&str]| c.run(&[&JUDGE[..], more].concat());
    let answer = judge(&["--replicas", "2"]);
    assert_eq!((answer.code, codes(&answer)), (0, vec![]), "{answer:?}");
    assert_eq!(answer.json()["basis"], "reports");
    for (more, expected) in [
        (&["--replicas", "3"][..], &["replica-count"][..]),
        (&["--node-key", "k0.pub.pem"], &["report-signature"]),
        (&["--node-key", "r1=k0.pub.pem"], &["report-signature"]),
        // A key for one replica leaves no room for the general one.
        (
            &["--node-key", "r1=k0.pub.pem", "--node-key", "k1.pub.pem"],
            &["report-signature", "report-signature"],
        ),
        (
            &["--node-key", "k0.pub.pem", "--node-key", "k1.pub.pem"],
            &[],
        ),
        (&["--node-key", "r0=k0.pub.pem"], &[]),
    ] {
        let answer = judge(more);
        assert_eq!(codes(&answer), expected, "{more:?}");
        assert_eq!(answer.code, i32::from(!expected.is_empty()));
    }
    let answer = judge(&["--node-key", "r9=k0.pub.pem"]);
    assert_eq!(answer.code, 2);
    assert!(answer.stderr.contains("no replica here"));
    // With the inventory, every replica in it must have its report.
    fs::remove_file(c.at("saved/r1.json")).unwrap();
    fs::remove_file(c.at("saved/r1.dsse.json")).unwrap();
    let answer = c.json(&["--report", "saved"]);
    assert_eq!(codes(&answer), ["report-missing"]);
    assert_eq!(answer.code, 1);
}

#[test]
fn an_edited_report_or_a_missing_signature_is_found() {
    let c = signed();
    let judge = |more: &[&str]| codes(&c.run(&[&JUDGE[..], more].concat()));
    let good = fs::read_to_string(c.at("saved/r0.json")).unwrap();
    let keys = ["--node-key", "r0=k0.pub.pem"];

    // Only the signature covers the boot id.
    let boot = runseal::weights::boot_id().unwrap();
    let edited = good.replace(&boot, "00000000-0000-4000-8000-000000000000");
    fs::remove_file(c.at("saved/r0.dsse.json")).unwrap();
    fs::write(c.at("saved/r0.json"), &edited).unwrap();
    assert_eq!(judge(&[]), Vec::<String>::new());
    assert_eq!(judge(&keys), ["report-not-signed"]);

    // A digest follows from nothing, but the verdict follows from the digest.
    let sha = runseal::digest::Sha256Digest::of(&content(SHARDS[0])).hex();
    let edited = good.replace(&sha, &"0".repeat(64));
    fs::write(c.at("saved/r0.json"), edited).unwrap();
    let found = judge(&[]);
    assert!(found.contains(&"replica-report-mismatch".to_owned()));
    assert!(found.contains(&"replicas-disagree".to_owned()));

    // An envelope whose payload was exchanged.
    let other = fs::read_to_string(c.at("saved/r1.dsse.json")).unwrap();
    fs::write(
        c.at("saved/r1.dsse.json"),
        other.replace("\"sig\":\"", "\"sig\":\"AAAA"),
    )
    .unwrap();
    fs::write(c.at("saved/r0.json"), &good).unwrap();
    assert_eq!(
        judge(&["--node-key", "r1=k1.pub.pem"]),
        ["report-signature"]
    );

    fs::write(c.at("saved/r0.json"), "{}").unwrap();
    let answer = c.run(&JUDGE);
    assert_eq!(answer.code, 2);
    assert!(answer.stderr.contains("r0.json: not a replica report"));
}

#[test]
fn saved_reports_are_never_overwritten_and_that_is_said_first() {
    let c = signed();
    let calls = fs::read_to_string(c.at("calls")).unwrap();
    let answer = c.verify(&["--save-reports", "saved"]);
    assert_eq!((answer.code, answer.stdout.as_str()), (2, ""));
    assert!(answer.stderr.contains("already exists"));
    assert_eq!(fs::read_to_string(c.at("calls")).unwrap(), calls);
}

#[test]
fn a_key_others_can_read_does_not_sign() {
    use std::os::unix::fs::PermissionsExt;
    let c = Cluster::new();
    key(&c, "k0");
    fs::set_permissions(c.at("k0.pem"), fs::Permissions::from_mode(0o644)).unwrap();
    let host = format!("good\nnode_key = {:?}", c.at("k0.pem"));
    let (code, codes, detail) = c.one(&host, &[]);
    assert_eq!((code, codes), (1, vec!["agent-failed".to_owned()]));
    assert!(detail.contains("k0.pem"), "{detail}");
}

#[test]
fn what_has_not_moved_is_not_re_read_and_not_verified() {
    let c = Cluster::new();
    c.inventory(&["good-0", "good-1"]);
    // Files that changed just before a rehash are always read again.
    std::thread::sleep(Duration::from_millis(2100));
    assert_eq!(c.verify(&["--save-reports", "saved"]).code, 0);
    let since = ["--changed-since", "saved"];
    let answer = c.verify(&[&since[..], &["--replicas", "2"]].concat());
    assert_eq!(answer.code, 1);
    for part in [
        "r0  not checked  0 of 5 files verified, 0 bytes read, 5 files not re-read",
        "replica-count",
        "not verified: 1 finding, 10 files not re-read",
    ] {
        assert!(answer.stdout.contains(part), "{part}: {}", answer.stdout);
    }
    let answer = c.verify(&since);
    assert!(
        answer
            .stdout
            .contains("\nnot verified: 10 files not re-read;")
    );
    let json = c.json(&since).json();
    assert_eq!(
        json["replicas"][0]["integrity"]["reason"],
        "5 of 5 files not re-read"
    );
    assert_eq!(json["verdict"], "not_verified");
    let file = &json["replicas"][0]["report"]["files"][0];
    assert_eq!(
        (&file["state"], &file["sha256"]),
        (&"not_checked".into(), &().into())
    );
    assert_eq!(file["problem"]["kind"], "not_re_read");

    // A changed file is read, with the same size and its mtime set back.
    let path = c.at(&format!("m1/{}", SHARDS[0]));
    let mtime = fs::metadata(&path).unwrap().modified().unwrap();
    c.flip(&format!("m1/{}", SHARDS[0]));
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(mtime).unwrap();
    let answer = c.json(&since);
    let mismatch = ("digest-mismatch".to_owned(), format!("r1/{}", SHARDS[0]));
    assert!(answer.findings().contains(&mismatch), "{answer:?}");
    assert_eq!(answer.code, 1);

    // A local replica, and a report of one that was found wrong.
    let local = "format = \"runseal.cluster/v1\"\nmanifest = \"manifest.json\"\n\
                 [[replica]]\nname = \"r0\"\ntransport = \"local\"\npath = \"m0\"\n";
    c.write("nodes.toml", local);
    let json = c.json(&["--changed-since", "saved/r0.json"]).json();
    let why = |json: &serde_json::Value| json["findings"][0]["detail"].to_string();
    assert!(!why(&json).contains("restarted"), "{json}");
    let old = fs::read_to_string(c.at("saved/r0.json")).unwrap();
    let boot = runseal::weights::boot_id().unwrap();
    c.write("before.json", &old.replace(&boot, "an earlier start"));
    let restarted = c.json(&["--changed-since", "before.json"]).json();
    assert!(why(&restarted).contains("restarted"), "{restarted}");
    assert_eq!(
        json["replicas"][0]["integrity"]["reason"],
        "5 of 5 files not re-read"
    );
    c.write("nodes.toml", &local.replace("m0", "m1").replace("r0", "r1"));
    std::thread::sleep(Duration::from_millis(2100));
    assert_eq!(c.verify(&["--save-reports", "bad"]).code, 1);
    let answer = c.json(&["--changed-since", "bad/r1.json"]);
    assert!(answer.findings().contains(&mismatch), "{answer:?}");
}

#[test]
fn a_freshly_changed_file_is_read_whatever_the_report_says() {
    let c = Cluster::new();
    c.inventory(&["good"]);
    assert_eq!(c.verify(&["--save-reports", "saved"]).code, 0);
    // A rehash that began before the files' last change proves nothing about a
    // second change within the same tick.
    let saved = c.at("saved/r0.json");
    let mut report: serde_json::Value = serde_json::from_slice(&fs::read(&saved).unwrap()).unwrap();
    report["started"] = "2001-02-03T04:05:06Z".into();
    fs::write(&saved, report.to_string()).unwrap();
    assert_eq!(c.verify(&["--changed-since", "saved"]).code, 0);
}
