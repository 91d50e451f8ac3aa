//! The commands that people start on four GB10 boxes, word by word.

use super::*;
use crate::engine_recipe::recipe;

/// Four nodes, with an engine and whatever else is given.
fn inventory(engine: &str) -> Inventory {
    let mut text = format!(
        "format = \"runseal.cluster/v1\"\nmanifest = \"t.json\"\nmanifests = {{ draft = \"d.json\" }}\n\
         [cluster]\nname = \"spark4\"\nhead = \"gx0\"\nrendezvous = \"10.0.0.1:29501\"\n{engine}\n"
    );
    for i in 0..4 {
        text.push_str(&format!(
            "[[node]]\nname = \"gx{i}\"\nrank = {i}\ntransport = \"ssh\"\nhost = \"gx{i}.lan\"\n\
             address = \"10.0.0.{}\"\nfabric = [\"enp1s0f1np1\", \"enP2p1s0f1np1\"]\n\
             hcas = [\"rocep1s0f1\", \"roceP2p1s0f1\"]\ngid_index = {}\n\
             path = \"/data/model\"\npaths.draft = \"/data/draft\"\n",
            i + 1,
            3 + i % 2
        ));
    }
    Inventory::parse(&text).unwrap()
}

const IMAGE: &str = "[image]\nreference = \"IMG\"\n[[mount]]\ntarget = \"/m\"\ncheckpoint = \"target\"\n\
                     [[mount]]\ntarget = \"/draft\"\ncheckpoint = \"draft\"\n";

fn started(name: &str, engine: &str) -> Vec<Filled> {
    let inventory = inventory(&format!(
        "[engine]\nrecipe = \"{name}\"\nport = 8000\n{engine}"
    ));
    programs(&recipe(name).unwrap(), &inventory).unwrap()
}

fn lines(programs: &[Filled]) -> Vec<String> {
    let each = programs.iter();
    each.map(|p| format!("{} {}: {}", p.rank, p.step, p.argv.join(" ")))
        .collect()
}

#[test]
fn sglang_on_four_nodes() {
    let args = "--kv-cache-dtype fp8_e4m3 --reasoning-parser glm45 --tool-call-parser glm47 \
        --speculative-algorithm NEXTN --speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6 \
        --speculative-adaptive --chunked-prefill-size 2048 --context-length 131072 --max-running-requests 8 --mem-fraction-static 0.80";
    let list: Vec<String> = args.split_whitespace().map(|w| format!("{w:?}")).collect();
    let programs = started(
        "sglang",
        &format!(
            "launch = \"docker\"\nserved_name = \"NAME\"\nargs = [{}]\n{IMAGE}",
            list.join(", ")
        ),
    );
    let args: Vec<&str> = args.split_whitespace().collect();
    let wanted: Vec<String> = [3, 2, 1, 0]
        .iter()
        .map(|r| {
            format!(
                "{r} serve: python3 -m sglang.launch_server --model-path /m --served-model-name NAME --host 0.0.0.0 \
                 --port 8000 --tp-size 4 --nnodes 4 --node-rank {r} --dist-init-addr 10.0.0.1:29501 {}",
                args.join(" ")
            )
        })
        .collect();
    assert_eq!(lines(&programs), wanted);
    let env = &programs[0].env;
    assert_eq!(env["NCCL_IB_HCA"], "rocep1s0f1,roceP2p1s0f1");
    assert_eq!(env["NCCL_IB_GID_INDEX"], "4");
    assert_eq!(programs[3].env["NCCL_IB_GID_INDEX"], "3");
    for name in [
        "NCCL_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
        "TP_SOCKET_IFNAME",
        "UCX_NET_DEVICES",
    ] {
        assert_eq!(env[name], "enp1s0f1np1", "{name}");
    }
}

#[test]
fn vllm_on_four_nodes() {
    let engine = |launch: &str| {
        format!(
            "{launch}\nserved_name = \"DIR\"\nargs = [\"--kv-cache-dtype\", \"fp8_e4m3\", \"--speculative-config\",\n\
             '{{\"method\":\"dflash\",\"model\":\"{{draft}}\",\"num_speculative_tokens\":5}}']\n"
        )
    };
    let docker = engine("launch = \"docker\"") + &IMAGE.replace("\"/m\"", "\"/DIR\"");
    let docker = docker.replace("served_name = \"DIR\"", "served_name = \"/DIR\"");
    let wanted = |first: &str, draft: &str| -> Vec<String> {
        let line = |r: u32| {
            let last = if r == 0 {
                "--host 0.0.0.0 --port 8000"
            } else {
                "--headless"
            };
            format!(
                "{r} serve: {first} --tensor-parallel-size 4 --nnodes 4 --node-rank {r} --master-addr 10.0.0.1 --master-port \
                 29501 --distributed-executor-backend mp --kv-cache-dtype fp8_e4m3 --speculative-config \
                 {{\"method\":\"dflash\",\"model\":\"{draft}\",\"num_speculative_tokens\":5}} {last}"
            )
        };
        [3, 2, 1, 0].map(line).into()
    };
    let programs = started("vllm", &docker);
    assert_eq!(lines(&programs), wanted("/DIR", "/draft"));
    assert_eq!(programs[0].env["VLLM_HOST_IP"], "10.0.0.4");

    // As a process there is no image with an entry point, and a name of its own is
    // told to the server.
    let process = engine("launch = \"process\"\nprogram = \"/opt/vllm/bin/vllm\"");
    let programs = started("vllm", &process.replace("\"DIR\"", "\"/data/model\""));
    let first = "/opt/vllm/bin/vllm serve /data/model";
    assert_eq!(lines(&programs), wanted(first, "/data/draft"));
    let programs = started("vllm", &process.replace("\"DIR\"", "\"big\""));
    assert!(
        programs[0]
            .argv
            .join(" ")
            .contains(" mp --served-model-name big --kv-cache-dtype")
    );
}

#[test]
fn the_whole_docker_command() {
    let inventory = inventory(&format!(
        "[env]\nNCCL_NET = \"IB\"\n[engine]\nrecipe = \"vllm\"\nport = 8000\nlaunch = \"docker\"\nserved_name = \"/m\"\n\
         docker = [\"sudo\", \"-n\", \"docker\"]\n{IMAGE}"
    ));
    let recipe = recipe("vllm").unwrap();
    let programs = programs(&recipe, &inventory).unwrap();
    let engine = inventory.extra.engine.as_ref().unwrap();
    let words = docker(engine, &recipe.docker_args, "IMG", "RUN", &programs[3]);
    assert_eq!(
        words.join(" "),
        "sudo -n docker run --detach --name runseal-RUN-0 --label runseal.run=RUN --label runseal.rank=0 \
         --network host --ipc host --shm-size 32g --gpus all --device /dev/infiniband --cap-add IPC_LOCK \
         --ulimit memlock=-1:-1 --init --volume /data/model:/m:ro --volume /data/draft:/draft:ro \
         --env GLOO_SOCKET_IFNAME=enp1s0f1np1 --env NCCL_IB_GID_INDEX=3 --env NCCL_IB_HCA=rocep1s0f1,roceP2p1s0f1 \
         --env NCCL_NET=IB --env NCCL_SOCKET_IFNAME=enp1s0f1np1 --env TP_SOCKET_IFNAME=enp1s0f1np1 \
         --env UCX_NET_DEVICES=enp1s0f1np1 --env VLLM_HOST_IP=10.0.0.1 \
         IMG /m --tensor-parallel-size 4 --nnodes 4 --node-rank 0 --master-addr 10.0.0.1 --master-port 29501 \
         --distributed-executor-backend mp --host 0.0.0.0 --port 8000"
    );
}

#[test]
fn engines_of_several_programs() {
    let engine = format!("launch = \"docker\"\nserved_name = \"big\"\n{IMAGE}");
    let ray = started("vllm-ray", &engine);
    assert_eq!(
        lines(&ray),
        [
            "0 ray-head: ray start --head --block --port 6379 --node-ip-address 10.0.0.1",
            "3 ray-worker: ray start --block --address 10.0.0.1:6379 --node-ip-address 10.0.0.4",
            "2 ray-worker: ray start --block --address 10.0.0.1:6379 --node-ip-address 10.0.0.3",
            "1 ray-worker: ray start --block --address 10.0.0.1:6379 --node-ip-address 10.0.0.2",
            "0 serve: vllm serve /m --tensor-parallel-size 4 --distributed-executor-backend ray \
             --served-model-name big --host 0.0.0.0 --port 8000",
        ]
    );
    assert!(ray[4].exec && !ray[0].exec);
    let mentat = started("vllm-mentat", &engine);
    assert_eq!(mentat.len(), 5);
    assert_eq!(
        lines(&mentat)[0],
        "3 agent: mentatd start --address 10.0.0.1:6379 --block"
    );
    assert_eq!(mentat[0].env["MENTAT_GROUP"], "big");
    let llama = started(
        "llama-cpp",
        "launch = \"process\"\nprogram = \"/opt/llama/bin\"\nserved_name = \"big\"\nargs = [\"--jinja\"]\n",
    );
    assert_eq!(
        lines(&llama)[2..],
        [
            "1 rpc-server: /opt/llama/bin/rpc-server -H 10.0.0.2 -p 50052",
            "0 serve: /opt/llama/bin/llama-server -m /data/model --rpc 10.0.0.2:50052,10.0.0.3:50052,10.0.0.4:50052 \
             -ngl 99 --metrics --slots --props --alias big --jinja --host 0.0.0.0 --port 8000",
        ]
    );
}

#[test]
fn the_plan_names_no_machine() {
    let engine = format!("launch = \"docker\"\nserved_name = \"big\"\n{IMAGE}");
    for name in ["sglang", "vllm", "vllm-ray", "vllm-mentat"] {
        let inventory = inventory(&format!(
            "[engine]\nrecipe = \"{name}\"\nport = 8000\n{engine}"
        ));
        let plan = layout(&recipe(name).unwrap(), &inventory).unwrap();
        let text = serde_json::to_string(&plan).unwrap();
        for hidden in ["10.0.0.", "gx0.lan", "/data/", "IMG"] {
            assert!(!text.contains(hidden), "{name}: {hidden}: {text}");
        }
        assert!(
            text.contains("{rendezvous") || text.contains("{head:"),
            "{name}: {text}"
        );
    }
}

#[test]
fn what_does_not_go_together_is_named() {
    let complaint = |name: &str, engine: &str| {
        let inventory = inventory(&format!(
            "[engine]\nrecipe = \"{name}\"\nport = 8000\nserved_name = \"x\"\n{engine}"
        ));
        programs(&recipe(name).unwrap(), &inventory)
            .unwrap_err()
            .to_string()
    };
    let e = complaint(
        "sglang",
        &format!("launch = \"docker\"\nargs = [\"{{adress}}\"]\n{IMAGE}"),
    );
    assert!(
        e.contains("serve of rank 3") && e.contains("did you mean {address}?"),
        "{e}"
    );
    let e = complaint("sglang", "launch = \"process\"\n");
    assert!(e.contains("needs `program`"), "{e}");
    let e = complaint("reference", "launch = \"process\"\nprogram = \"/x\"\n");
    assert!(e.contains("has no ranks"), "{e}");
    // Not mounted: the engine could not find it.
    let e = complaint(
        "sglang",
        "launch = \"docker\"\n[image]\nreference = \"IMG\"\n",
    );
    assert!(e.contains("{model} has no value"), "{e}");
    let e = complaint(
        "sglang",
        &format!("launch = \"docker\"\n[env]\nX = \"{{adapter}}\"\n{IMAGE}")
            .replace("[env]", "[env]"),
    );
    assert!(e.contains("X of rank 3: {adapter} has no value"), "{e}");
}
