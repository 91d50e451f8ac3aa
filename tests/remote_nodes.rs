//! Replicas on other nodes: what each way of failing is called, and that none of
//! them stops the others or hangs.

mod remote_support;
mod weights_support;

use std::fs;

use remote_support::*;
use weights_support::*;

#[test]
fn four_nodes_are_rehashed_by_their_own_agents() {
    let c = Cluster::new();
    c.inventory(&["good-0", "good-1", "good-2", "good-3"]);
    let answer = c.verify(&["--replicas", "4"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(answer.stdout.contains("r3  verified     5 of 5 files"));
    assert!(
        answer
            .stdout
            .ends_with("verified; replicas: 4, machines: 1\n")
    );
    let says = format!("starting {} for r0, r1, r2, r3\n", c.at("ssh").display());
    assert_eq!(answer.stderr, says);
    // Nothing of ours stays behind.
    let calls = fs::read_to_string(c.at("calls")).unwrap();
    let private = calls.split("ControlPath=").nth(1).unwrap();
    let private = private.split(".s ").next().unwrap();
    let private = private.rsplit_once('/').unwrap().0;
    assert!(private.contains("runseal-"), "{private}");
    assert!(!std::path::Path::new(private).exists());
}

#[test]
fn each_failure_has_its_own_name_and_stops_nobody_else() {
    let c = Cluster::new();
    // A program for another machine: the kernel refuses it.
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(64, 0);
    (elf[16], elf[18]) = (2, 0xfe);
    c.script("bin-alien/verify", &elf);
    c.script(
        "bin-dies/verify",
        "#!/bin/sh\necho 'no memory' >&2\nexit 9\n",
    );
    let hello = |version: &str| {
        format!(
            "#!/bin/sh\necho '{{\"message\":\"hello\",\"is\":{{\"protocol\":1,\"version\":\"{version}\",\
             \"binary_sha256\":\"{:064}\",\"boot_id\":\"b\",\"arch\":\"x\",\"more\":1}}}}'\ncat >/dev/null\n",
            0
        )
    };
    c.script("bin-old/verify", hello("0.0.1"));
    c.script(
        "bin-sudo/sudo",
        "#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n",
    );
    for (host, code, says) in [
        ("refused", "node-unreachable", "Connection refused"),
        ("noroute", "node-unreachable", "No route to host"),
        ("timeout", "node-timeout", "Connection timed out"),
        ("banner", "node-timeout", "banner exchange"),
        ("key", "node-key-refused", "Permission denied"),
        ("changed", "node-host-key-changed", "HAS CHANGED"),
        ("unknown", "node-host-key-unknown", "is known for unknown"),
        ("missing", "agent-missing", "not found"),
        ("alien", "agent-exec-format", "xec format error"),
        (
            "old",
            "agent-wrong-version",
            "version 0.0.1 (protocol 1) on the node",
        ),
        (
            "dies",
            "agent-failed",
            "no memory (it ended with exit code 9)",
        ),
        (
            "sudo\nsudo = true",
            "sudo-refused",
            "a password is required",
        ),
        ("motd", "agent-protocol", "Welcome to motd"),
        ("endless", "agent-protocol", "longer than 65536 bytes"),
        ("lost", "connection-lost", "Broken pipe"),
        ("gone", "node-timeout", "Timeout, server gone"),
        ("otherboot", "agent-protocol", "boot_id is not the one"),
        ("otherreplica", "agent-protocol", "replica is not the one"),
    ] {
        c.inventory(&["good", host]);
        let answer = c.json(&["--replicas", "2"]);
        let found = answer.findings();
        assert_eq!(answer.code, 1, "{host}: {answer:?}");
        assert_eq!(
            found,
            [
                (code.to_owned(), "r1".to_owned()),
                ("replica-count".to_owned(), "replicas".to_owned())
            ],
            "{host}"
        );
        let json = answer.json();
        let detail = json["findings"][0]["detail"].as_str().unwrap();
        assert!(detail.contains(says), "{host}: {detail}");
        let states = [0, 1].map(|i| json["replicas"][i]["integrity"]["state"].clone());
        assert_eq!(states, ["verified", "not_checked"], "{host}");
    }
}

#[test]
fn a_failure_brings_its_hint() {
    let c = Cluster::new();
    c.inventory(&["good", "key"]);
    let answer = c.verify(&[]);
    let text = "r1  unreachable\n\nnode-key-refused  r1\n    u@key: Permission denied (publickey). \
                (it ended with exit code 255)\n    hint: Check user and identity in the inventory";
    assert!(answer.stdout.contains(text), "{}", answer.stdout);
}

#[test]
fn silence_and_stalls_end() {
    let c = Cluster::new();
    for (host, says) in [
        ("silent", "no answer for 1 s"),
        ("mute", "no answer for 1 s"),
        ("chatty", "it read only 1 bytes in 10 s"),
    ] {
        let (code, codes, detail) = c.one(host, &["--timeout", "1"]);
        assert_eq!(
            (code, codes),
            (1, vec!["node-timeout".to_owned()]),
            "{host}"
        );
        assert_eq!(detail, says);
    }
}

#[test]
fn a_program_that_cannot_be_started_is_named() {
    let c = Cluster::new();
    c.inventory(&["good"]);
    let args = ["weights", "--inventory", "nodes.toml", "--format", "json"];
    let answer = c.run(&[&args[..], &["--ssh", "/nonexistent/ssh"]].concat());
    assert_eq!(codes(&answer), ["transport-missing"]);
}

#[test]
fn a_pinned_host_key_that_is_not_shown_is_a_changed_one() {
    let c = Cluster::new();
    let pin = "SHA256:0123456789012345678901234567890123456789abc";
    let (_, codes, _) = c.one(&format!("unknown\nhost_key = \"{pin}\""), &[]);
    assert_eq!(codes, ["node-host-key-changed"]);
    let calls = fs::read_to_string(c.at("calls")).unwrap();
    assert!(calls.contains("StrictHostKeyChecking=yes"));
    assert!(calls.contains(pin) && calls.contains("KnownHostsCommand="));
}

#[test]
fn one_flipped_byte_on_one_of_four_nodes() {
    let c = Cluster::new();
    c.flip(&format!("m2/{}", SHARDS[1]));
    c.inventory(&["good-0", "good-1", "good-2", "good-3"]);
    let answer = c.verify(&["--replicas", "4"]);
    assert_eq!(answer.code, 1);
    for part in [
        "r2  mismatch     4 of 5 files verified",
        "the other three agree on sha256:",
        "r0, r1, r3 agree on sha256:",
        "not verified: 2 findings; replicas: 4",
    ] {
        assert!(answer.stdout.contains(part), "{part}: {}", answer.stdout);
    }
    // A folder that is not there, on a node that answers.
    fs::remove_dir_all(c.at("m1")).unwrap();
    let answer = c.json(&[]);
    assert_eq!(codes(&answer)[0], "replica-unreachable");
}

#[test]
fn a_report_edited_on_the_way_is_noticed() {
    let c = Cluster::new();
    c.flip(&format!("m0/{}", SHARDS[1]));
    let (code, codes, _) = c.one("liar", &[]);
    assert_eq!(code, 1);
    assert!(
        codes.contains(&"replica-report-mismatch".to_owned()),
        "{codes:?}"
    );
}

#[test]
fn another_binary_is_noted_and_a_pin_makes_it_fatal() {
    let c = Cluster::new();
    let mut bytes = fs::read(assert_cmd::cargo::cargo_bin!("verify")).unwrap();
    let own = runseal::digest::Sha256Digest::of(&bytes).hex();
    bytes.push(0);
    let other = runseal::digest::Sha256Digest::of(&bytes).hex();
    c.script("bin-other/verify", &bytes);
    let (code, codes, _) = c.one("other", &[]);
    assert_eq!((code, codes), (0, vec!["agent-binary-differs".to_owned()]));
    for (host, pin, expected) in [
        ("good", &own, vec![]),
        ("other", &other, vec![]),
        ("other", &own, vec!["agent-digest-mismatch".to_owned()]),
    ] {
        let (_, codes, _) = c.one(&format!("{host}\nagent_sha256 = \"{pin}\""), &[]);
        assert_eq!(codes, expected);
    }
}

#[test]
fn one_copy_reached_in_two_ways_counts_once() {
    let c = Cluster::new();
    let path = c.at("m0");
    let text = format!(
        "format = \"runseal.cluster/v1\"\nmanifest = \"manifest.json\"\n\
         [[replica]]\nname = \"near\"\ntransport = \"local\"\npath = \"m0\"\n\
         [[replica]]\nname = \"far\"\ntransport = \"ssh\"\nhost = \"good\"\npath = {path:?}\n\
         [[replica]]\nname = \"template\"\ntransport = \"command\"\ncommand = [\"./on\", \"{{host}}\", \"{{agent}}\"]\npath = {path:?}\n"
    );
    c.write("nodes.toml", &text);
    c.script(
        "on",
        "#!/bin/sh\n[ \"$1\" = template ] || exit 3\nshift\nPATH=\"$FAKE/bin-good:$PATH\" exec \"$@\"\n",
    );
    let answer = c.json(&["--replicas", "3"]);
    assert_eq!(codes(&answer), ["replica-duplicate", "replica-count"]);
    assert_eq!(answer.json()["agreement"]["replicas"], 1);
    assert_eq!(answer.json()["agreement"]["duplicates"][0][2], "template");
    assert_eq!(c.verify(&["--replicas", "1"]).code, 1);
    assert!(answer.stderr.contains("starting ./on for template"));

    // An inventory that nobody named must not choose what runs here.
    fs::rename(c.at("nodes.toml"), c.at("cluster.toml")).unwrap();
    let answer = c.run(&["weights"]);
    assert_eq!((answer.code, answer.stdout.as_str()), (2, ""));
    assert!(answer.stderr.contains("--inventory cluster.toml"));
}

#[test]
fn several_checkpoints_each_with_its_manifest() {
    let c = Cluster::new();
    let mut text = "format = \"runseal.cluster/v1\"\nmanifest = \"manifest.json\"\n\
                    manifests.draft = \"draft.json\"\n"
        .to_owned();
    for i in 0..2 {
        let draft = c.at(&format!("d{i}"));
        fs::create_dir(&draft).unwrap();
        fs::write(draft.join("config.json"), "draft").unwrap();
        let path = c.at(&format!("m{i}"));
        text.push_str(&format!(
            "[[replica]]\nname = \"r{i}\"\ntransport = \"ssh\"\nhost = \"good\"\npath = {path:?}\npaths.draft = {draft:?}\n"
        ));
    }
    c.write("nodes.toml", &text);
    fs::write(c.at("draft.json"), pin(&c.at("d0")).to_bytes()).unwrap();
    let answer = c.verify(&["--replicas", "2"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(
        answer
            .stdout
            .contains("draft     draft.json: 1 file, 5 bytes")
    );
    assert!(
        answer.stdout.contains("r1:draft  verified     1 of 1 file"),
        "{}",
        answer.stdout
    );

    fs::write(c.at("d1/config.json"), "darft").unwrap();
    let answer = c.json(&["--replicas", "2"]);
    assert_eq!(
        answer.findings(),
        [
            (
                "digest-mismatch".to_owned(),
                "r1:draft/config.json".to_owned()
            ),
            (
                "replicas-disagree".to_owned(),
                "draft:config.json".to_owned()
            ),
        ]
    );
    // One shared draft folder: not two replicas, although the targets are two.
    let one = text.replace("/d1\"", "/d0\"");
    c.write("nodes.toml", &one);
    let answer = c.json(&["--replicas", "2"]);
    assert_eq!(codes(&answer), ["replica-duplicate", "replica-count"]);
}

#[test]
fn the_agent_serves_programs_and_not_people() {
    let c = Cluster::new();
    let mut agent = assert_cmd::Command::cargo_bin("verify").unwrap();
    let out = agent.args(["weights", "--agent"]).write_stdin("").output();
    let out = out.unwrap();
    assert_eq!(out.status.code(), Some(0));
    assert!(out.stdout.starts_with(b"{\"is\":{\"arch\""));
    let mut agent = assert_cmd::Command::cargo_bin("verify").unwrap();
    let out = agent.args(["weights", "--agent"]).write_stdin("hello\n");
    let out = out.output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("does not speak"));
    for args in [
        &["weights", "--agent", "--inventory", "x"][..],
        &["weights", "--agent", "--node-key", "nowhere.pem"],
        &["weights", "--push-agent"],
    ] {
        assert_eq!(c.run(args).code, 2, "{args:?}");
    }
}

/// A middleman without any key plays back what a node once said and signed.
#[test]
fn an_old_answer_is_not_taken_for_the_new_one() {
    let c = Cluster::new();
    c.script(
        "tape",
        "#!/bin/sh\nif [ -e said ]; then cat said; exec cat >/dev/null; fi\n\"$@\" | tee tape.new\n",
    );
    let verify = assert_cmd::cargo::cargo_bin!("verify")
        .display()
        .to_string();
    let inventory = format!(
        "format = \"runseal.cluster/v1\"\nmanifest = \"manifest.json\"\n[[replica]]\nname = \"r0\"\n\
         transport = \"command\"\ncommand = [\"./tape\", \"{{agent}}\"]\nagent = \"{verify}\"\npath = {:?}\n",
        c.at("m0")
    );
    fs::write(c.at("tape.toml"), inventory).unwrap();
    let args = ["weights", "--inventory", "tape.toml", "--format", "json"];
    assert_eq!(c.run(&args).code, 0);
    fs::rename(c.at("tape.new"), c.at("said")).unwrap();
    c.flip(&format!("m0/{}", SHARDS[1]));
    let answer = c.run(&args);
    assert_eq!(
        (answer.code, codes(&answer)),
        (1, vec!["agent-protocol".to_owned()])
    );
}
