//! The `.env` of spark-vllm-docker: which nodes, which interfaces, and what every
//! container's environment gets.

use super::{ImportError, Imported};

/// Prefix of variables that are handed to the containers.
const CONTAINER: &str = "CONTAINER_";
/// Variables that say nothing about a run.
const PASSED_OVER: [&str; 4] = [
    "LOCAL_IP",
    "COPY_HOSTS",
    "CONTAINER_NAME",
    "DOCKER_GPU_FLAG",
];

/// Reads the file as the project's own launcher does.
pub fn read(text: &str) -> Result<Imported, ImportError> {
    let mut out = Imported {
        recipe: Some("vllm".to_owned()),
        ..Imported::default()
    };
    let mut seen = std::collections::BTreeSet::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let bad = |why: String| ImportError(format!("line {}: {why}", i + 1));
        let Some((key, value)) = line.split_once('=') else {
            return Err(bad(format!("{line:?} is not KEY=VALUE")));
        };
        let (key, value) = (key.trim(), unquoted(value.trim()));
        if !seen.insert(key.to_owned()) {
            return Err(bad(format!("{key} stands twice")));
        }
        match key {
            "CLUSTER_NODES" => out.hosts = list(value),
            "ETH_IF" => out.fabric = list(value),
            "IB_IF" => out.hcas = list(value),
            "MASTER_PORT" => {
                let port = value.parse::<u16>().ok().filter(|p| *p != 0);
                let port = port.ok_or_else(|| bad(format!("MASTER_PORT {value:?} is no port")))?;
                out.master_port = Some(port);
            }
            key if PASSED_OVER.contains(&key) => out.note(format!("{key} is of no use here")),
            key => match key.strip_prefix(CONTAINER) {
                Some(name) if secret(name) => {
                    out.note(format!("{key} looks like a secret and was left out"));
                }
                Some(name) => {
                    out.env.insert(name.to_owned(), value.to_owned());
                }
                None => out.note(format!("{key} is not known and was left out")),
            },
        }
    }
    // The launcher sets these itself; the recipe does it here.
    for name in ["NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"] {
        if out.env.remove(name).is_some() {
            out.note(format!("{name} comes from the nodes' hcas and fabric"));
        }
    }
    if out.hosts.is_empty() {
        return Err(ImportError(
            "CLUSTER_NODES is not set (hint: run the project's own --setup first, or name the nodes in the file)"
                .to_owned(),
        ));
    }
    Ok(out)
}

fn list(value: &str) -> Vec<String> {
    let each = value.split(',').map(str::trim);
    each.filter(|v| !v.is_empty()).map(str::to_owned).collect()
}

fn unquoted(value: &str) -> &str {
    for quote in ['"', '\''] {
        let inner = value
            .strip_prefix(quote)
            .and_then(|v| v.strip_suffix(quote));
        if let Some(inner) = inner {
            return inner;
        }
    }
    value
}

/// Tokens and keys do not belong in a file that is shown to others.
pub(super) fn secret(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    ["TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL"]
        .iter()
        .any(|w| upper.contains(w))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_projects_own_example_is_read() {
        let text = "# comment\nCLUSTER_NODES=\"192.168.177.11, 192.168.177.12\"\nETH_IF=enp1s0f1np1\n\
                    IB_IF=rocep1s0f1,roceP2p1s0f1\nMASTER_PORT=29555\nLOCAL_IP=192.168.177.11\n\
                    CONTAINER_NAME=vllm_node\nCONTAINER_NCCL_DEBUG=INFO\nCONTAINER_HF_TOKEN=abc\n\
                    CONTAINER_NCCL_IB_HCA=x\nOTHER='1'\n";
        let out = read(text).unwrap();
        assert_eq!(out.hosts, ["192.168.177.11", "192.168.177.12"]);
        assert_eq!(out.fabric, ["enp1s0f1np1"]);
        assert_eq!(out.hcas, ["rocep1s0f1", "roceP2p1s0f1"]);
        assert_eq!(out.master_port, Some(29555));
        assert_eq!(out.env.len(), 1, "{:?}", out.env);
        assert_eq!(out.env["NCCL_DEBUG"], "INFO");
        let notes = out.notes.join("\n");
        for part in [
            "LOCAL_IP",
            "CONTAINER_HF_TOKEN looks like a secret",
            "OTHER is not known",
        ] {
            assert!(notes.contains(part), "{part}: {notes}");
        }
        assert!(!notes.contains("abc"));
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, says) in [
            ("A=1\nnonsense\n", "line 2: \"nonsense\""),
            ("A=1\nA=2\n", "line 2: A stands twice"),
            ("MASTER_PORT=x", "line 1: MASTER_PORT \"x\""),
            ("MASTER_PORT=0", "no port"),
            ("ETH_IF=a", "CLUSTER_NODES is not set"),
        ] {
            let e = read(text).unwrap_err().to_string();
            assert!(e.contains(says), "{text:?}: {e}");
        }
    }
}
