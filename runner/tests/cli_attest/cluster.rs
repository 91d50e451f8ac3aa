//! Plans that run on a cluster.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;

use crate::support::attest;

fn in_folder(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(attest());
    command.current_dir(dir).args(args);
    command
}

const NODES: &str = r#"
[[node]]
name = "gx0"
rank = 0
transport = "ssh"
host = "gx0.lan"
address = "10.0.0.1"
fabric = ["enp1s0f1np1"]
hcas = ["rocep1s0f1"]
gid_index = "auto"
path = "/data/model"
[[node]]
name = "gx1"
rank = 1
transport = "ssh"
host = "gx1.lan"
address = "10.0.0.2"
path = "/data/model"
"#;

const CLUSTER: &str = r#"
format = "runseal.cluster/v1"
manifest = "target.json"
[cluster]
name = "spark2"
head = "gx0"
rendezvous = "10.0.0.1:29501"
[engine]
recipe = "sglang"
launch = "docker"
served_name = "big"
port = 30000
args = ["--reasoning-parser", "glm45"]
[image]
reference = "sg:1"
[[mount]]
target = "/models/target"
checkpoint = "target"
"#;

/// A folder with a cluster's plan, its inventory and the manifest of some file.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("model")).unwrap();
    fs::write(dir.path().join("model/config.json"), "{}").unwrap();
    in_folder(
        dir.path(),
        &["pin", "weights", "model", "-o", "target.json"],
    )
    .assert()
    .success();
    let plan = include_str!("../../src/import/plan.toml");
    let plan = plan.replace("model = \"served\"", "model = \"big\"");
    fs::write(dir.path().join("attest.toml"), plan).unwrap();
    fs::write(dir.path().join("cluster.toml"), format!("{CLUSTER}{NODES}")).unwrap();
    dir
}

#[test]
fn plan_show_prints_every_command_in_its_order() {
    let dir = folder();
    let out = in_folder(dir.path(), &["plan", "show"]).assert().success();
    let text = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
    let at = text.find("engine       ").unwrap();
    assert_eq!(
        &text[at..],
        "engine       sglang (SGLang: one server per node, the head serves), launch docker\n\
         image        sg:1\n             not pinned by any digest: the record will say so\n\
         mount        /models/target ro: the node's target, pinned by its manifest\n\
         launch, in this order:\n\
         \x20 1. serve, rank 1 on gx1\n\
         \x20    docker run --detach --name runseal-RUN-1 --label runseal.run=RUN --label runseal.rank=1 \
         --network host --ipc host --shm-size 32g --gpus all --device /dev/infiniband --cap-add IPC_LOCK \
         --ulimit memlock=-1:-1 --init --volume /data/model:/models/target:ro sg:1 \
         python3 -m sglang.launch_server --model-path /models/target --served-model-name big --host 0.0.0.0 \
         --port 30000 --tp-size 2 --nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:29501 --reasoning-parser glm45\n\
         \x20 2. serve, rank 0 on gx0\n\
         \x20    docker run --detach --name runseal-RUN-0 --label runseal.run=RUN --label runseal.rank=0 \
         --network host --ipc host --shm-size 32g --gpus all --device /dev/infiniband --cap-add IPC_LOCK \
         --ulimit memlock=-1:-1 --init --volume /data/model:/models/target:ro \
         --env GLOO_SOCKET_IFNAME=enp1s0f1np1 --env NCCL_IB_GID_INDEX=auto --env NCCL_IB_HCA=rocep1s0f1 \
         --env NCCL_SOCKET_IFNAME=enp1s0f1np1 --env TP_SOCKET_IFNAME=enp1s0f1np1 --env UCX_NET_DEVICES=enp1s0f1np1 sg:1 \
         python3 -m sglang.launch_server --model-path /models/target --served-model-name big --host 0.0.0.0 \
         --port 30000 --tp-size 2 --nnodes 2 --node-rank 0 --dist-init-addr 10.0.0.1:29501 --reasoning-parser glm45\n\
         \x20 gid_index auto is looked up before the launch on gx0\n\
         teardown in the opposite order\n"
    );
    // plan.json names no machine, and is a plan.
    let out = in_folder(dir.path(), &["plan", "show", "--format", "json"])
        .assert()
        .success();
    let bytes = &out.get_output().stdout;
    let plan = runseal::plan::RunPlan::parse(bytes).unwrap();
    assert_eq!(plan.engine.layout.as_ref().unwrap().programs.len(), 2);
    assert_eq!(plan.endpoints[0].replicas, ["gx0", "gx1"]);
    let text = String::from_utf8_lossy(bytes);
    assert!(
        !text.contains("10.0.0.") && !text.contains(".lan"),
        "{text}"
    );
}

#[test]
fn slips_in_a_clusters_plan_are_named() {
    let dir = folder();
    let plan = fs::read_to_string(dir.path().join("attest.toml")).unwrap();
    let cluster = fs::read_to_string(dir.path().join("cluster.toml")).unwrap();
    let slips = [
        (
            "plan",
            "model = \"big\"",
            "model = \"small\"",
            "the inventory serves \"big\"",
        ),
        (
            "plan",
            "name = \"model\"",
            "name = \"model\"\nmanifest = \"x\"",
            "remove `manifest`",
        ),
        (
            "plan",
            "role = \"target\"",
            "role = \"draft\"",
            "the plan no checkpoint of that role",
        ),
        (
            "plan",
            "[load]",
            "[engine]\nrecipe = \"reference\"\n[load]",
            "stand there",
        ),
        ("plan", "cluster.toml\"", "absent.toml\"", "absent.toml"),
        (
            "cluster",
            "\"sglang\"",
            "\"sglagn\"",
            "did you mean \"sglang\"?",
        ),
        ("cluster", "\"sglang\"", "\"trt\"", "one of sglang, vllm"),
        ("cluster", "\"sglang\"", "\"reference\"", "has no ranks"),
        (
            "cluster",
            "served_name",
            "servedname",
            "did you mean `served_name`?",
        ),
        (
            "cluster",
            "\"glm45\"",
            "\"{nnode}\"",
            "did you mean {nnodes}?",
        ),
        (
            "cluster",
            "rendezvous = \"10.0.0.1:29501\"",
            "",
            "{rendezvous} has no value",
        ),
        (
            "cluster",
            "name = \"spark2\"",
            "name = \"spark2\"\ntopology = \"x\"",
            "unknown variant",
        ),
    ];
    for (which, from, to, says) in slips {
        let (file, text) = match which {
            "plan" => ("attest.toml", &plan),
            _ => ("cluster.toml", &cluster),
        };
        assert!(text.contains(from), "{from}");
        fs::write(dir.path().join(file), text.replacen(from, to, 1)).unwrap();
        in_folder(dir.path(), &["plan", "show"])
            .assert()
            .code(2)
            .stderr(contains(says));
        fs::write(dir.path().join(file), text).unwrap();
    }
    in_folder(dir.path(), &["run"])
        .assert()
        .code(2)
        .stderr(contains("does not launch engines on a cluster yet"));
    assert!(!dir.path().join("evidence").exists());
}

/// A plan whose two nodes are folders of this machine, so that `attest check` works
/// without ssh. `extra` goes into the inventory.
fn local(extra: &str) -> tempfile::TempDir {
    let dir = folder();
    let copy = |to: &str| {
        fs::create_dir(dir.path().join(to)).unwrap();
        fs::copy(
            dir.path().join("model/config.json"),
            dir.path().join(to).join("config.json"),
        )
        .unwrap();
    };
    copy("m1");
    let nodes = "[[node]]\nname = \"gx0\"\nrank = 0\ntransport = \"local\"\npath = \"model\"\n\
                 [[node]]\nname = \"gx1\"\nrank = 1\ntransport = \"local\"\npath = \"m1\"\n";
    let engine = "[engine]\nrecipe = \"sglang\"\nlaunch = \"process\"\nprogram = \"/usr/bin/python3\"\nserved_name = \"big\"\n";
    let head = "format = \"runseal.cluster/v1\"\nmanifest = \"target.json\"\n[cluster]\nname = \"here\"\nhead = \"gx0\"\n\
                rendezvous = \"127.0.0.1:1\"\n";
    fs::write(
        dir.path().join("cluster.toml"),
        format!("{head}{engine}{extra}\n{nodes}"),
    )
    .unwrap();
    dir
}

/// Exit code, and the code of every finding.
fn check(dir: &Path, args: &[&str]) -> (i32, Vec<String>, serde_json::Value) {
    let args: Vec<&str> = ["check", "--format", "json"]
        .iter()
        .chain(args)
        .copied()
        .collect();
    let out = in_folder(dir, &args).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    let value: serde_json::Value =
        serde_json::from_str(text.trim()).unwrap_or_else(|e| panic!("{e}: {text}{err}"));
    let findings = value["findings"].as_array().unwrap().iter();
    let codes = findings
        .map(|f| f["code"].as_str().unwrap().to_owned())
        .collect();
    (out.status.code().unwrap(), codes, value)
}

#[test]
fn check_looks_at_the_nodes_and_rehashes_them() {
    // A port that nobody listens on.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    let dir = local(&format!("port = {port}"));
    // Somebody does.
    let (code, codes, _) = check(dir.path(), &[]);
    assert_eq!(
        (code, codes),
        (
            1,
            vec!["node-port-busy".to_owned(), "nodes-one-machine".to_owned()]
        )
    );
    drop(free);
    let (code, codes, value) = check(dir.path(), &[]);
    assert_eq!((code, codes), (0, vec!["nodes-one-machine".to_owned()]));
    assert_eq!(value["good"], true);
    assert_eq!(value["weights"]["replicas"].as_array().unwrap().len(), 2);
    assert!(
        value["nodes"]["gx0"]["facts"]["memory"]["total"]
            .as_u64()
            .unwrap()
            > 0
    );
    in_folder(dir.path(), &["check"]).assert().success().stdout(
        contains("gx1 (rank 1)")
            .and(contains("gx1  target: verified"))
            .and(contains("ready\n")),
    );

    // One byte on one node.
    fs::write(dir.path().join("m1/config.json"), "[]").unwrap();
    let (code, codes, _) = check(dir.path(), &[]);
    assert_eq!(code, 1);
    assert!(codes.contains(&"digest-mismatch".to_owned()), "{codes:?}");
    let out = in_folder(dir.path(), &["check"]).assert().code(1);
    let text = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
    assert!(
        text.contains("gx1  target: MISMATCH") && text.contains("NOT READY"),
        "{text}"
    );
    // Nobody looks when told not to, and that is said.
    let (code, codes, value) = check(dir.path(), &["--no-weights"]);
    assert_eq!((code, codes), (0, vec!["nodes-one-machine".to_owned()]));
    assert_eq!(value.get("weights"), None);
    // One folder under two names.
    let text = fs::read_to_string(dir.path().join("cluster.toml")).unwrap();
    fs::write(
        dir.path().join("cluster.toml"),
        text.replace("\"m1\"", "\"model\""),
    )
    .unwrap();
    let (code, codes, _) = check(dir.path(), &[]);
    assert_eq!(code, 1);
    assert!(codes.contains(&"replica-duplicate".to_owned()), "{codes:?}");
    // Nothing was made, but what plan and pin made before.
    assert!(!dir.path().join("evidence").exists() && !dir.path().join("keys").exists());
}

#[test]
fn check_fails_what_is_expected_and_not_known_and_nodes_that_do_not_answer() {
    let dir = local("port = 1\n[expect]\ngpu = \"NVIDIA GB10\"\nmem_available = 1");
    let (code, codes, _) = check(dir.path(), &["--no-weights"]);
    let gpus = Path::new("/proc/driver/nvidia").exists();
    let first = if gpus {
        "node-fact-unexpected"
    } else {
        "node-fact-unknown"
    };
    assert_eq!(code, 1);
    assert_eq!(codes, [first, first, "nodes-one-machine"]);

    let dir = local("port = 1");
    let file = dir.path().join("cluster.toml");
    let text = fs::read_to_string(&file).unwrap();
    let at = text.rfind("transport = \"local\"").unwrap();
    let dead = format!(
        "{}transport = \"command\"\ncommand = [\"sh\", \"-c\", \"exit 3\", \"{{agent}}\"]\npath = \"/m1\"\n",
        &text[..at]
    );
    fs::write(&file, dead).unwrap();
    let (code, codes, value) = check(dir.path(), &[]);
    assert_eq!(code, 1);
    assert!(codes.contains(&"agent-failed".to_owned()), "{codes:?}");
    assert!(value["nodes"].get("gx1").is_none() && value["nodes"].get("gx0").is_some());
    in_folder(dir.path(), &["check"])
        .assert()
        .code(1)
        .stdout(contains("gx1 (rank 1)  not looked at").and(contains("gx0  target: verified")))
        .stderr(contains("starting sh for gx1"));

    // A plan without a cluster.
    let dir = tempfile::tempdir().unwrap();
    in_folder(dir.path(), &["check"])
        .assert()
        .code(2)
        .stderr(contains("names no inventory"));
}
