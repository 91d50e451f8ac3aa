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

const CLUSTER: &str = r#"
format = "runseal.cluster/v1"
manifest = "target.json"
[manifests]
draft = "draft.json"
[cluster]
name = "spark2"
head = "gx0"
topology = "direct"
rendezvous = "10.0.0.1:29501"
[image]
reference = "reg.lan/sglang:1"
config = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
[env]
NCCL_NET = "IB"
[engine]
recipe = "sglang"
launch = "docker"
served_name = "big"
port = 30000
args = ["--x"]
[limits]
ready_s = 1800
[expect]
driver = "580.95.05"
alike = ["kernel", "mtu"]
[[mount]]
target = "/models/target"
checkpoint = "target"
[[mount]]
target = "/cache"
source = "/var/cache/engine"
writable = true
unpinned = "made anew"
[[node]]
name = "gx1"
rank = 1
transport = "ssh"
host = "gx1.lan"
address = "10.0.0.2"
fabric = ["enp1s0f1np1"]
hcas = ["rocep1s0f1"]
gid_index = 3
path = "/m/t"
paths.draft = "/m/d"
env.NCCL_DEBUG = "INFO"
[[node]]
name = "gx0"
rank = 0
transport = "ssh"
host = "gx0.lan"
address = "10.0.0.1"
gid_index = "auto"
path = "/m/t"
paths.draft = "/m/d"
"#;

#[test]
fn a_whole_cluster_is_read_and_written() {
    let inventory = Inventory::parse(CLUSTER).unwrap();
    let ranks: Vec<_> = inventory.ranks();
    let names: Vec<_> = ranks.iter().map(|(n, r)| (*n, r.name.as_str())).collect();
    assert_eq!(names, [(0, "gx0"), (1, "gx1")]);
    assert_eq!(ranks[1].1.node.gid_index, Some(GidIndex::Index(3)));
    assert_eq!(ranks[0].1.node.gid_index, Some(GidIndex::Auto(Auto::Auto)));
    assert_eq!(ranks[1].1.node.env["NCCL_DEBUG"], "INFO");
    let extra = &inventory.extra;
    let cluster = extra.cluster.as_ref().unwrap();
    assert_eq!(cluster.rendezvous(), Some(("10.0.0.1", 29501)));
    assert_eq!(extra.engine.as_ref().unwrap().docker_words(), ["docker"]);
    assert_eq!(extra.expect.alike.len(), 2);
    assert_eq!(extra.limits.ready_s, Some(1800));
    assert_eq!(Inventory::parse(&inventory.render()).unwrap(), inventory);
    // What has no ranks has none of this.
    assert!(Inventory::parse(FULL).unwrap().ranks().is_empty());
}

#[test]
fn mistakes_in_a_cluster_are_named() {
    for (from, to, says) in [
        ("[cluster]", "[clutser]", "did you mean `cluster`?"),
        ("rendezvous =", "rendevous =", "did you mean `rendezvous`?"),
        ("hcas =", "hca =", "did you mean `hcas`?"),
        ("[expect]", "[expects]", "did you mean `expect`?"),
        ("driver =", "drivers =", "did you mean `driver`?"),
        (
            "[[node]]\nname = \"gx1\"",
            "[[nodes]]\nname = \"gx1\"",
            "did you mean `node`?",
        ),
        (
            "launch = \"docker\"",
            "launch = \"doker\"",
            "did you mean `docker`?",
        ),
        (
            "topology = \"direct\"",
            "topology = \"star\"",
            "unknown variant `star`",
        ),
        ("\"kernel\", ", "\"kernal\", ", "did you mean `kernel`?"),
        ("\"spark2\"", "\"Spark 2\"", "[cluster]: name"),
        (
            "head = \"gx0\"",
            "head = \"gx7\"",
            "no node of this inventory",
        ),
        ("head = \"gx0\"", "head = \"gx1\"", "does not have rank 0"),
        ("10.0.0.1:29501", "10.0.0.1", "not ADDRESS:PORT"),
        ("10.0.0.1:29501", "10.0.0.1:0", "not ADDRESS:PORT"),
        ("rank = 1", "rank = 0", "not 0 to 1"),
        ("rank = 1", "rank = 2", "not 0 to 1"),
        ("rank = 1", "", "has no rank while others have"),
        (
            "address = \"10.0.0.2\"",
            "address = \"10.0.0.2 x\"",
            "not an address",
        ),
        ("\"rocep1s0f1\"", "\"a b\"", "name of a device"),
        ("gid_index = 3", "gid_index = \"three\"", "line "),
        ("NCCL_NET", "\"1X\"", "[env]: \"1X\" is not the name"),
        ("NCCL_DEBUG", "\"A-B\"", "\"A-B\" is not the name"),
        ("sha256:00", "sha512:00", "[image]: "),
        (
            "reference = \"reg.lan/sglang:1\"",
            "reference = \"-v\"",
            "is not an image",
        ),
        ("port = 30000", "port = 0", "port 0"),
        ("port = 30000", "port = 70000", "line "),
        (
            "launch = \"docker\"",
            "launch = \"docker\"\nprogram = \"/x\"",
            "means nothing",
        ),
        (
            "launch = \"docker\"",
            "launch = \"process\"\nprogram = \"x\"",
            "not an absolute path",
        ),
        ("ready_s = 1800", "ready_s = 0", "[limits]: ready_s"),
        (
            "checkpoint = \"target\"",
            "",
            "either a source or a checkpoint",
        ),
        (
            "checkpoint = \"target\"",
            "checkpoint = \"adapter\"",
            "no checkpoint has the role",
        ),
        (
            "checkpoint = \"target\"",
            "checkpoint = \"target\"\nwritable = true",
            "not mounted writable",
        ),
        (
            "checkpoint = \"target\"",
            "checkpoint = \"target\"\nunpinned = \"x\"",
            "by its manifest",
        ),
        ("unpinned = \"made anew\"", "", "needs either a sha256"),
        ("source = \"/var", "source = \"var", "not an absolute path"),
        (
            "target = \"/cache\"",
            "target = \"/models/target\"",
            "mounted twice",
        ),
        (
            "target = \"/cache\"",
            "target = \"/ca:che\"",
            "not an absolute path",
        ),
    ] {
        assert!(CLUSTER.contains(from), "{from}");
        let e = complaint(&CLUSTER.replacen(from, to, 1));
        assert!(e.contains(says), "{from} -> {to}: {e}");
    }
    let without =
        CLUSTER
            .replace("[image]", "[limits]")
            .replacen("reference = \"reg.lan/sglang:1\"", "", 1);
    assert!(complaint(&without).contains("line "));
    let start = CLUSTER.find("[image]").unwrap();
    let end = CLUSTER.find("[env]").unwrap();
    let without = format!("{}{}", &CLUSTER[..start], &CLUSTER[end..]);
    assert!(complaint(&without).contains("needs an [image]"));
}
