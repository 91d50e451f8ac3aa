//! Plans that run on a cluster.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
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
    in_folder(dir.path(), &["pin", "weights", "model", "-o", "target.json"])
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
    assert!(!text.contains("10.0.0.") && !text.contains(".lan"), "{text}");
}

#[test]
fn slips_in_a_clusters_plan_are_named() {
    let dir = folder();
    let plan = fs::read_to_string(dir.path().join("attest.toml")).unwrap();
    let cluster = fs::read_to_string(dir.path().join("cluster.toml")).unwrap();
    let slips = [
        ("plan", "model = \"big\"", "model = \"small\"", "the inventory serves \"big\""),
        ("plan", "name = \"model\"", "name = \"model\"\nmanifest = \"x\"", "remove `manifest`"),
        ("plan", "role = \"target\"", "role = \"draft\"", "the plan no checkpoint of that role"),
        ("plan", "[load]", "[engine]\nrecipe = \"reference\"\n[load]", "stand there"),
        ("plan", "cluster.toml\"", "absent.toml\"", "absent.toml"),
        ("cluster", "\"sglang\"", "\"sglagn\"", "did you mean \"sglang\"?"),
        ("cluster", "\"sglang\"", "\"trt\"", "one of sglang, vllm"),
        ("cluster", "\"sglang\"", "\"reference\"", "has no ranks"),
        ("cluster", "served_name", "servedname", "did you mean `served_name`?"),
        ("cluster", "\"glm45\"", "\"{nnode}\"", "did you mean {nnodes}?"),
        ("cluster", "rendezvous = \"10.0.0.1:29501\"", "", "{rendezvous} has no value"),
        ("cluster", "name = \"spark2\"", "name = \"spark2\"\ntopology = \"x\"", "unknown variant"),
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
