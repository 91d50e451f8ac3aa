//! Many streams and large bodies at once, against the loopback server of the
//! self-test in its own process. What is asserted is that nothing is lost, cut or
//! made to wait for a slot of the client's own; how fast it is, is the bench's to say.

use std::process::Command;
use std::time::Duration;

use runseal::trace::{Trace, Transport};
use runseal_runner::client;
use runseal_runner::selftest::load::{self, Cost, Load, Pattern};
use runseal_runner::selftest::process::ServerProcess;
use runseal_runner::selftest::server::{Script, Truth};

fn run(
    requests: u32,
    streams: usize,
    script: Script,
    body: usize,
) -> (Cost, Vec<Trace>, Vec<Truth>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_attest"));
    command.args(["self-test", "--serve"]);
    let server = ServerProcess::start(command).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let load = Load {
        addr: server.addr,
        script,
        requests,
        pattern: Pattern::Closed(streams),
        body,
        // Against hanging only.
        limit: Duration::from_secs(240),
    };
    let runtime = client::runtime().unwrap();
    let cost = runtime.block_on(load::run(&load, dir.path())).unwrap();
    (
        cost,
        load::traces(dir.path()).unwrap(),
        server.finish().unwrap(),
    )
}

fn peak(traces: &[Trace]) -> i32 {
    let spans = traces.iter().map(|t| (t.send.unwrap(), t.end.unwrap()));
    let mut edges: Vec<(u64, i32)> = spans.flat_map(|(s, e)| [(s, 1), (e, -1)]).collect();
    edges.sort_unstable();
    let open = edges.iter().scan(0, |open, (_, step)| {
        *open += step;
        Some(*open)
    });
    open.max().unwrap()
}

#[test]
fn two_thousand_streams_are_open_at_once_and_whole() {
    // Long enough that the last is sent before the first has ended.
    let script = Script {
        chunks: 8,
        per_write: 1,
        pace_us: 2_000_000,
        stepped: false,
    };
    let (cost, traces, truths) = run(2000, 2000, script, 64);
    assert_eq!((traces.len(), truths.len()), (2000, 2000));
    assert!(traces.iter().all(|t| t.transport() == Transport::Completed));
    assert_eq!(cost.events, 2000 * 8);
    assert!(traces.iter().all(|t| t.chunks.len() == 8));
    assert_eq!(peak(&traces), 2000);
    assert!(traces.iter().all(|t| !t.reused));
}

#[test]
fn connections_are_kept_alive_for_as_many_streams_as_there_are() {
    let script = Script {
        chunks: 2,
        per_write: 1,
        pace_us: 1000,
        stepped: false,
    };
    let (_, traces, _) = run(1500, 150, script, 64);
    let made = traces.iter().filter(|t| !t.reused).count();
    assert!(traces.iter().all(|t| t.transport() == Transport::Completed));
    // A pool that were smaller than the load would make new ones all the time. One
    // may be closed over a pause of the machine.
    assert!(
        (1..=300).contains(&made),
        "{made} connections for 1500 requests"
    );
}

#[test]
fn bodies_of_three_megabytes_on_64_streams_wait_for_no_slot() {
    const BODY: usize = 3 << 20;
    let script = Script {
        chunks: 4,
        per_write: 1,
        pace_us: 1_000_000,
        stepped: false,
    };
    let (cost, traces, truths) = run(64, 64, script, BODY);
    assert!(traces.iter().all(|t| t.transport() == Transport::Completed));
    assert!(truths.iter().all(|t| t.body == BODY as u64));
    assert_eq!((truths.len(), cost.events), (64, 64 * 4));
    // All are on the wire together: none waited until another was through.
    assert_eq!(peak(&traces), 64);
    assert!(traces.iter().all(|t| t.body.unwrap().0 == BODY as u64));
}
