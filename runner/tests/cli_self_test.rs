//! `attest self-test`: the real program, its server process included.

use assert_cmd::Command;
use serde_json::Value;

fn attest() -> Command {
    let mut command = Command::cargo_bin("attest").unwrap();
    command.arg("self-test");
    command
}

#[test]
fn measures_and_says_what_it_measured() {
    let out = attest().args(["--format", "json"]).assert().success();
    let report: Value = serde_json::from_slice(&out.get_output().stdout).unwrap();
    assert_eq!(report["format"], "runseal.self-test/v1");
    assert_eq!(report["failed"], 0);
    let n = |path: &str| report.pointer(path).and_then(Value::as_u64).unwrap();
    for i in 0..2 {
        assert!(n(&format!("/throughput/{i}/events")) > 0);
        assert!(n(&format!("/throughput/{i}/cpu_ns")) > 0);
    }
    for spread in ["first_token_error", "dispatch_lag"] {
        assert!(n(&format!("/{spread}/n")) > 0);
        assert!(n(&format!("/{spread}/median_ns")) <= n(&format!("/{spread}/p99_ns")));
        assert!(n(&format!("/{spread}/p99_ns")) <= n(&format!("/{spread}/max_ns")));
    }
    assert_eq!(n("/finest_median_ns"), 100 * n("/client_lag_p99_ns"));
}

#[test]
fn its_server_ends_with_the_one_who_started_it() {
    // Standard input is empty, so the server ends at once, having done nothing.
    let out = attest().arg("--serve").assert().success();
    let text = String::from_utf8(out.get_output().stdout.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text.trim().parse::<u16>().unwrap();
}
