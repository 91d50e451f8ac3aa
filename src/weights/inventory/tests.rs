use super::*;
use proptest::prelude::*;

const FULL: &str = r#"
format = "runseal.cluster/v1"
manifest = "target.json"
[manifests]
draft = "draft.json"
[[replica]]
name = "a"
transport = "local"
path = "here"
paths = { draft = "here-draft" }
[[replica]]
name = "b"
transport = "ssh"
host = "gx1"
user = "rs"
port = 2222
identity = "~/.ssh/id"
host_key = "SHA256:0123456789012345678901234567890123456789abc"
path = "/models/t"
sudo = true
agent = "/opt/verify"
node_key = "/etc/runseal/node.pem"
paths.draft = "/models/d"
[[replica]]
name = "c"
transport = "command"
command = ["srun", "-w", "{host}", "{agent}"]
host = "gx2"
path = "/models/t"
paths.draft = "/models/d"
"#;

fn complaint(text: &str) -> String {
    Inventory::parse(text).unwrap_err().to_string()
}

#[test]
fn every_option_is_read_and_written() {
    let inventory = Inventory::parse(FULL).unwrap();
    let [a, b, c] = inventory.replicas() else {
        panic!("{inventory:?}")
    };
    assert_eq!(a.transport, Transport::Local);
    assert_eq!(b.paths[&Role::Draft], "/models/d");
    let Transport::Ssh(ssh) = &b.transport else {
        panic!("{b:?}")
    };
    assert_eq!((ssh.host.as_str(), ssh.port), ("gx1", Some(2222)));
    assert!(b.sudo && !c.sudo);
    assert_eq!(c.transport.name(), "command");
    assert_eq!(Inventory::parse(&inventory.render()).unwrap(), inventory);
    assert_eq!(
        inventory.manifest_paths(Path::new("x"))[&Role::Draft],
        Path::new("x/draft.json")
    );
}

#[test]
fn mistakes_are_named() {
    for (from, to, says) in [
        ("runseal.cluster/v1", "runseal.cluster/v9", "v9"),
        ("\"local\"", "\"scp\"", "transport \"scp\""),
        ("\"a\"", "\"../r0\"", "not a replica name"),
        ("\"a\"", "\"\"", "not a replica name"),
        ("\"a\"", "\"b\"", "\"b\" twice"),
        (
            "path = \"here\"",
            "paht = \"here\"",
            "line 9: unknown field `paht`",
        ),
        ("path = \"here\"", "paht = \"here\"", "did you mean `path`?"),
        ("user = ", "usr = ", "did you mean `user`?"),
        ("[manifests]", "[manifest]", "line 4"),
        (
            "draft = \"draft.json\"",
            "drfat = \"draft.json\"",
            "did you mean `draft`?",
        ),
        ("host_key", "hostkey", "did you mean `host_key`?"),
        ("sudo = true", "completely_other = 1", "docs/replicas.md"),
        ("\"here\"", "\"\"", "the target has an empty path"),
        ("draft = \"draft.json\"", "", "the same checkpoints: draft"),
        (
            "paths = { draft = \"here-draft\" }",
            "",
            "\"a\" and the manifests",
        ),
        (
            "draft = \"draft.json\"",
            "draft = \"\"",
            "manifest of the draft",
        ),
        ("host = \"gx1\"", "", "needs a host"),
        (
            "host = \"gx1\"",
            "host = \"-oProxyCommand=x\"",
            "not a host",
        ),
        ("host = \"gx1\"", "host = \"u@gx1\"", "give the user as"),
        ("user = \"rs\"", "user = \"a b\"", "not a user"),
        ("port = 2222", "port = 0", "port 0"),
        ("SHA256:01", "MD5:01", "not a fingerprint"),
        ("port = 2222", "known_hosts = \"k\"", "exclude each other"),
        (
            "path = \"/models/t\"",
            "path = \"models/t\"",
            "not absolute",
        ),
        ("\"/opt/verify\"", "\"-x\"", "not a file name"),
        ("\"{agent}\"", "\"verify\"", "has no {agent}"),
        ("\"-w\"", "\"{node}\"", "\"{node}\" is not a placeholder"),
        ("\"srun\", ", "", "does not begin with a program"),
        (
            "transport = \"local\"",
            "transport = \"local\"\nport = 1",
            "means nothing",
        ),
        ("name =", "name", "line 7"),
    ] {
        assert!(FULL.contains(from), "{from}");
        let e = complaint(&FULL.replacen(from, to, 1));
        assert!(e.contains(says), "{from} -> {to}: {e}");
    }
    assert!(matches!(
        Inventory::new("m", vec![]),
        Err(InventoryError::Empty)
    ));
}

proptest! {
    #[test]
    fn rendering_round_trips(manifest in "[^\0]{1,20}", paths in prop::collection::vec("[^\0]{1,20}", 1..5)) {
        let replicas = paths.iter().enumerate().map(|(i, p)| Replica::local(format!("r{i}"), p));
        let inventory = Inventory::new(manifest, replicas.collect()).unwrap();
        prop_assert_eq!(Inventory::parse(&inventory.render()).unwrap(), inventory);
    }
}

#[test]
fn names_whose_reports_would_be_one_file_are_refused() {
    for (from, to) in [
        ("\"b\"", "\"A\""),
        ("\"b\"", "\"a.draft\""),
        ("\"b\"", "\"A.DSSE\""),
        ("\"b\"", "\"a.Draft.dsse\""),
    ] {
        let said = complaint(&FULL.replacen(from, to, 1));
        assert!(said.contains("would be one file"), "{to}: {said}");
    }
    assert!(complaint(&FULL.replacen("\"b\"", "\"a\"", 1)).contains("twice"));
    let fine = FULL.replacen("\"b\"", "\"a.adapter\"", 1);
    assert!(Inventory::parse(&fine).is_ok());
}

#[test]
fn what_is_quoted_is_quoted_as_it_was_written() {
    for (from, to) in [
        ("user = \"rs\"", "user = \"-oProxyCommand=x\""),
        ("host = \"gx2\"", "host = \"-oProxyCommand=x\""),
        ("host = \"gx1\"", "host = \"-oProxyCommand=x\""),
    ] {
        let said = complaint(&FULL.replacen(from, to, 1));
        assert!(said.contains(": \"-oProxyCommand=x\" is not a"), "{said}");
    }
}
