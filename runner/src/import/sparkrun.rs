//! sparkrun's YAML files: a cluster (`hosts`, `user`) or a recipe (`model`, `container`,
//! `defaults`, `env`, `command`). Which one it is follows from its keys.

use serde_json::{Map, Value};

use super::{ImportError, Imported, dotenv, words, yaml};

/// Keys of a cluster file that say nothing about a run.
const CLUSTER_ONLY: [&str; 3] = ["cache_dir", "transfer_mode", "transfer_interface"];
/// Reads either kind.
pub fn read(text: &str) -> Result<Imported, ImportError> {
    let value = yaml::parse(text).map_err(|e| ImportError(e.to_string()))?;
    let Value::Object(map) = value else {
        return Err(ImportError("the file is not a table of keys".to_owned()));
    };
    if map.contains_key("hosts") {
        cluster(&map)
    } else if map.contains_key("model") || map.contains_key("command") {
        recipe(&map)
    } else {
        Err(ImportError(
            "it has neither `hosts`, as a cluster has, nor `model`, as a recipe has".to_owned(),
        ))
    }
}

fn cluster(map: &Map<String, Value>) -> Result<Imported, ImportError> {
    let mut out = Imported {
        name: text(map, "name")?,
        user: text(map, "user")?,
        ..Imported::default()
    };
    let Some(Value::Array(hosts)) = map.get("hosts") else {
        return Err(ImportError("`hosts` is not a list".to_owned()));
    };
    for host in hosts {
        let host = host.as_str();
        let host = host.ok_or_else(|| ImportError("a host is no text".to_owned()))?;
        out.hosts.push(host.to_owned());
    }
    if out.hosts.is_empty() {
        return Err(ImportError("`hosts` is empty".to_owned()));
    }
    for key in map.keys() {
        if CLUSTER_ONLY.contains(&key.as_str()) {
            out.note(format!("{key} is of no use here"));
        } else if !["name", "hosts", "user", "description"].contains(&key.as_str()) {
            out.note(format!("{key} is not known and was left out"));
        }
    }
    Ok(out)
}

fn recipe(map: &Map<String, Value>) -> Result<Imported, ImportError> {
    let mut out = Imported {
        model: text(map, "model")?,
        revision: text(map, "model_revision")?,
        image: text(map, "container")?,
        ..Imported::default()
    };
    out.nodes = number(map, "min_nodes")?;
    let defaults = table(map, "defaults")?;
    out.port = match defaults.get("port") {
        None => None,
        Some(port) => {
            let port = port.as_u64().and_then(|p| u16::try_from(p).ok());
            Some(
                port.filter(|p| *p != 0)
                    .ok_or_else(|| ImportError("defaults.port is no port".to_owned()))?,
            )
        }
    };
    out.tensor_parallel = number(&defaults, "tensor_parallel")?;
    out.served_name = text(&defaults, "served_model_name")?;
    for (name, value) in table(map, "env")? {
        if dotenv::secret(&name) {
            out.note(format!("env.{name} looks like a secret and was left out"));
            continue;
        }
        let value = plain(&value).ok_or_else(|| ImportError(format!("env.{name} is no text")))?;
        out.env.insert(name, value);
    }
    let command = text(map, "command")?.unwrap_or_default();
    let runtime = text(map, "runtime")?;
    out.recipe = engine(runtime.as_deref(), &command).map(str::to_owned);
    if out.recipe.is_none() {
        out.note("which engine it is could not be told".to_owned());
    }
    if !command.is_empty() {
        match arguments(&command, &defaults, out.recipe.as_deref()) {
            Ok(args) => out.args = args,
            Err(why) => out.note(format!("the command was left out: {why}")),
        }
    }
    for key in map.keys() {
        let known = [
            "recipe_version",
            "sparkrun_version",
            "name",
            "description",
            "model",
            "model_revision",
            "runtime",
            "container",
            "min_nodes",
            "max_nodes",
            "defaults",
            "env",
            "command",
            "metadata",
            "cluster_only",
            "solo_only",
            "mode",
        ];
        if !known.contains(&key.as_str()) {
            out.note(format!("{key} was left out: look whether the run needs it"));
        }
    }
    Ok(out)
}

/// Our recipe for a runtime or, without one, for what the command starts.
fn engine(runtime: Option<&str>, command: &str) -> Option<&'static str> {
    match runtime {
        Some("sglang") => Some("sglang"),
        Some("vllm-ray") => Some("vllm-ray"),
        Some("vllm" | "vllm-distributed" | "eugr-vllm") => Some("vllm"),
        Some("llama-cpp") => Some("llama-cpp"),
        Some(_) => None,
        None if command.contains("sglang.launch_server") || command.contains("sglang serve") => {
            Some("sglang")
        }
        None if command.contains("vllm serve") => Some("vllm"),
        None if command.contains("llama-server") => Some("llama-cpp"),
        None => None,
    }
}

/// Options that the engine's recipe sets itself, with their number of values.
const OURS: [(&str, usize); 24] = [
    ("--host", 1),
    ("--port", 1),
    ("--model", 1),
    ("--model-path", 1),
    ("-m", 1),
    ("--served-model-name", 1),
    ("--tensor-parallel-size", 1),
    ("-tp", 1),
    ("--tp", 1),
    ("--tp-size", 1),
    ("--nnodes", 1),
    ("--node-rank", 1),
    ("--master-addr", 1),
    ("--master-port", 1),
    ("--dist-init-addr", 1),
    ("--distributed-executor-backend", 1),
    ("--headless", 0),
    ("--rpc", 1),
    ("-ngl", 1),
    ("--n-gpu-layers", 1),
    ("--metrics", 0),
    ("--slots", 0),
    ("--props", 0),
    ("--alias", 1),
];

/// The command's words without those that the recipe makes itself. An option that
/// several engines have belongs to the recipe of the engine at hand.
fn arguments(
    command: &str,
    defaults: &Map<String, Value>,
    recipe: Option<&str>,
) -> Result<Vec<String>, String> {
    let words = words::split(command).map_err(|e| e.to_string())?;
    let after = |name: &str| {
        let at = words.iter().position(|w| w == name).map(|i| i + 1);
        at.ok_or_else(|| format!("it does not start {name}"))
    };
    let start = match recipe {
        Some("sglang") => after("sglang.launch_server").or_else(|_| after("serve"))?,
        Some("vllm" | "vllm-ray") => after("serve")?,
        // The program, and then its options.
        _ => 1,
    };
    let mut rest = words.into_iter().skip(start).peekable();
    let mut out = Vec::new();
    // `vllm serve MODEL`
    if rest.peek().is_some_and(|w| !w.starts_with('-')) {
        rest.next();
    }
    while let Some(word) = rest.next() {
        let (name, joined) = match word.split_once('=') {
            Some((name, _)) if word.starts_with('-') => (name, true),
            _ => (word.as_str(), false),
        };
        if let Some((_, values)) = OURS.iter().find(|(option, _)| *option == name) {
            for _ in 0..*values * usize::from(!joined) {
                rest.next();
            }
            continue;
        }
        out.push(filled(&word, defaults)?);
    }
    Ok(out)
}

/// `{name}` of the recipe's defaults becomes its value. Other braces stay.
fn filled(word: &str, defaults: &Map<String, Value>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = word;
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let name: String = rest[1..]
            .chars()
            .take_while(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '_')
            .collect();
        if name.is_empty() || rest.as_bytes().get(name.len() + 1) != Some(&b'}') {
            out.push('{');
            rest = &rest[1..];
            continue;
        }
        let value = defaults.get(&name).and_then(plain);
        out.push_str(&value.ok_or_else(|| format!("{{{name}}} has no default"))?);
        rest = &rest[name.len() + 2..];
    }
    Ok(out + rest)
}

fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(n) => Some(n.to_string()),
        Value::Bool(b) => Some(b.to_string()),
        _ => None,
    }
}

fn text(map: &Map<String, Value>, key: &str) -> Result<Option<String>, ImportError> {
    match map.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => plain(value)
            .map(Some)
            .ok_or_else(|| ImportError(format!("`{key}` is no text"))),
    }
}

fn number(map: &Map<String, Value>, key: &str) -> Result<Option<u32>, ImportError> {
    match map.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let n = value.as_u64().and_then(|n| u32::try_from(n).ok());
            let n = n.filter(|n| (1..=1024).contains(n));
            n.map(Some)
                .ok_or_else(|| ImportError(format!("`{key}` is not a number from 1 to 1024")))
        }
    }
}

fn table(map: &Map<String, Value>, key: &str) -> Result<Map<String, Value>, ImportError> {
    match map.get(key) {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(table)) => Ok(table.clone()),
        Some(_) => Err(ImportError(format!("`{key}` is not a table"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: &str = "recipe_version: \"1\"\nname: Big-4Node\nmodel: someone/Big-Int4\ncontainer: vllm-big:probe\n\
        cluster_only: true\nmods:\n  - mods/drop-caches\nenv:\n  CUTE_DSL_ARCH: \"sm_121a\" # why\n  HF_TOKEN: x\n\
        defaults:\n  port: 8000\n  host: 0.0.0.0\n  tensor_parallel: 4\n  gpu_memory_utilization: 0.88\n\
        command: |\n  vllm serve someone/Big-Int4 \\\n    --host {host} \\\n    --port {port} \\\n\
        \x20   --tensor-parallel-size {tensor_parallel} \\\n    --kv-cache-dtype=fp8 \\\n\
        \x20   --gpu-memory-utilization {gpu_memory_utilization} \\\n\
        \x20   --speculative-config '{\"method\":\"mtp\",\"num_speculative_tokens\":3}'\n";

    #[test]
    fn a_recipe_gives_engine_image_environment_and_arguments() {
        let out = read(RECIPE).unwrap();
        assert_eq!(out.recipe.as_deref(), Some("vllm"));
        assert_eq!(out.image.as_deref(), Some("vllm-big:probe"));
        assert_eq!(out.model.as_deref(), Some("someone/Big-Int4"));
        assert_eq!((out.port, out.tensor_parallel), (Some(8000), Some(4)));
        assert_eq!(
            out.args,
            [
                "--kv-cache-dtype=fp8",
                "--gpu-memory-utilization",
                "0.88",
                "--speculative-config",
                "{\"method\":\"mtp\",\"num_speculative_tokens\":3}"
            ]
        );
        assert_eq!(out.env.len(), 1);
        let notes = out.notes.join("\n");
        assert!(
            notes.contains("mods was left out") && notes.contains("HF_TOKEN looks"),
            "{notes}"
        );
    }

    #[test]
    fn a_cluster_gives_nodes() {
        let out =
            read("name: four\nhosts: [10.0.0.1, gx1]\ndescription: ''\nuser: nv\ncache_dir: /c\n")
                .unwrap();
        assert_eq!(out.hosts, ["10.0.0.1", "gx1"]);
        assert_eq!(
            (out.name.as_deref(), out.user.as_deref()),
            (Some("four"), Some("nv"))
        );
        assert!(out.notes[0].contains("cache_dir"));
    }

    #[test]
    fn engines_are_told_by_runtime_or_command() {
        for (text, recipe) in [
            ("model: m\nruntime: sglang\n", Some("sglang")),
            ("model: m\nruntime: vllm-ray\n", Some("vllm-ray")),
            (
                "model: m\ncommand: python3 -m sglang.launch_server --x 1\n",
                Some("sglang"),
            ),
            (
                "model: m\ncommand: llama-server -m x --jinja\n",
                Some("llama-cpp"),
            ),
            ("model: m\ncommand: sglang serve m --x 1\n", Some("sglang")),
            ("model: m\nruntime: trtllm\ncommand: vllm serve x\n", None),
        ] {
            assert_eq!(read(text).unwrap().recipe.as_deref(), recipe, "{text}");
        }
        let out = read("model: m\ncommand: python3 -m sglang.launch_server --model-path m --x 1\n");
        assert_eq!(out.unwrap().args, ["--x", "1"]);
        let out = read("model: m\nruntime: vllm\ncommand: python3 x.py --y\n").unwrap();
        assert!(out.args.is_empty() && out.notes[0].contains("does not start serve"));
        let out = read("model: m\ncommand: llama-server -m x --jinja -c 8\n");
        assert_eq!(out.unwrap().args, ["--jinja", "-c", "8"]);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, says) in [
            ("- a\n", "not a table of keys"),
            ("a: 1\n", "neither `hosts`"),
            ("hosts: x\n", "not a list"),
            ("hosts: []\n", "is empty"),
            ("hosts: [1]\n", "no text"),
            ("model: m\nenv: 3\n", "`env` is not a table"),
            ("model: m\nmin_nodes: none\n", "`min_nodes`"),
            ("model: m\ndefaults:\n  port: 70000\n", "no port"),
            ("model: [\n", "line 2"),
        ] {
            let e = read(text).unwrap_err().to_string();
            assert!(e.contains(says), "{text:?}: {e}");
        }
        let out = read("model: m\ncommand: vllm serve m --x {nosuch}\n").unwrap();
        assert!(out.args.is_empty() && out.notes[0].contains("{nosuch} has no default"));
        let out = read("model: m\ncommand: cd /x && vllm serve m\n").unwrap();
        assert!(out.args.is_empty() && out.notes[0].contains("a shell would interpret"));
    }
}
