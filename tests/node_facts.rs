//! Facts of nodes, read from outputs in the shape that GB10 machines give, and the
//! findings that follow from them.

use std::collections::BTreeMap;

use runseal::codes::Code;
use runseal::node_facts::check::{Node, check};
use runseal::node_facts::clock::Offset;
use runseal::node_facts::{Facts, Output, Raw, Throttle};
use runseal::weights::Inventory;

macro_rules! source {
    ($name:literal) => {
        include_str!(concat!("node_facts/", $name))
    };
}

/// A GB10 node as its programs describe it.
fn raw() -> Raw {
    let sources = [
        ("nvidia-smi", source!("nvidia-smi.csv")),
        ("ibdev2netdev", source!("ibdev2netdev.txt")),
        ("ip-addr", source!("ip-addr.json")),
        ("ethtool:enp1s0f1np1", source!("ethtool.txt")),
        ("gids:rocep1s0f1", source!("gids.txt")),
        ("/etc/dgx-release", source!("dgx-release")),
        ("/etc/os-release", source!("os-release")),
        ("/proc/meminfo", source!("meminfo")),
        ("/proc/sys/kernel/osrelease", "6.14.0-1013-nvidia\n"),
        (
            "/proc/sys/kernel/random/boot_id",
            "0b7c1ee5-1d2c-4a5d-9c11-3a8a2e1b0c01\n",
        ),
        ("/proc/net/tcp", source!("tcp")),
        ("/proc/net/tcp6", source!("tcp6")),
        ("pressure:memory", source!("pressure")),
        ("docker-info", source!("docker-info.json")),
        ("docker-image", source!("docker-image.json")),
        ("timedatectl", "NTPSynchronized=yes\n"),
        ("disk:/models/target", "500000000000"),
    ];
    let each = sources.map(|(n, t)| (n.to_owned(), Output::Text(t.to_owned())));
    Raw(each.into())
}

fn with(source: &str, text: &str) -> Raw {
    let mut raw = raw();
    raw.0
        .insert(source.to_owned(), Output::Text(text.to_owned()));
    raw
}

fn without(source: &str) -> Raw {
    let mut raw = raw();
    let why = Output::Absent(format!("{source}: not there"));
    raw.0.insert(source.to_owned(), why);
    raw
}

#[test]
fn a_gb10_node_is_read_and_what_it_does_not_say_is_absent() {
    let facts = Facts::read(&raw());
    let gpu = facts.gpu().unwrap();
    assert_eq!(gpu.name.as_deref(), Some("NVIDIA GB10"));
    assert_eq!(gpu.driver.as_deref(), Some("580.95.05"));
    assert_eq!(gpu.vbios.as_deref(), Some("9A.0B.13.00.03"));
    assert_eq!((gpu.sm_mhz, gpu.sm_max_mhz), (Some(2405), Some(3003)));
    assert_eq!((gpu.power_mw, gpu.temperature_c), (Some(12_340), Some(47)));
    // `[N/A]` is not zero.
    assert_eq!((gpu.memory_mib, gpu.power_limit_mw), (None, None));
    assert_eq!(gpu.throttle, Some(Throttle(1)));
    assert_eq!(facts.dgx_version.as_deref(), Some("7.4.0"));
    assert_eq!(facts.os.as_deref(), Some("Ubuntu 24.04.3 LTS"));
    assert_eq!(facts.kernel.as_deref(), Some("6.14.0-1013-nvidia"));
    assert_eq!(facts.memory.total, Some(125_513_340 * 1024));
    assert_eq!(facts.memory.available, Some(118_420_104 * 1024));
    assert_eq!(facts.memory.swap_free, Some(16_777_212 * 1024));
    assert_eq!(facts.pressure["memory"].some10, Some(123));
    assert_eq!(facts.pressure["memory"].full10, Some(7));
    let link = &facts.links.as_ref().unwrap()["enp1s0f1np1"];
    assert_eq!(
        (link.mtu, link.up, link.mbps),
        (Some(9000), Some(true), Some(200_000))
    );
    assert!(link.addresses.contains(&"10.0.0.1".parse().unwrap()));
    assert_eq!(facts.links.as_ref().unwrap()["enp1s0f0np0"].up, Some(false));
    assert_eq!(facts.links.as_ref().unwrap()["lo"].up, None);
    let hcas = facts.hcas.as_ref().unwrap();
    let hca = &hcas["rocep1s0f1"];
    assert_eq!(
        (hca.netdev.as_deref(), hca.up),
        (Some("enp1s0f1np1"), Some(true))
    );
    assert_eq!(hca.auto_index(), Some(3));
    assert_eq!(hcas["rocep1s0f0"].up, Some(false));
    let container = facts.container_engine.as_ref().unwrap();
    assert_eq!(container.version.as_deref(), Some("28.3.3"));
    assert!(!container.containerd_store);
    assert_eq!(facts.image.as_ref().unwrap().diff_ids.len(), 2);
    assert_eq!(facts.clock_synchronised, Some(true));
    let listening: Vec<u16> = facts.listening.clone().unwrap().into_iter().collect();
    assert_eq!(listening, [22, 53, 11000]);

    let nothing = Facts::read(&Raw::default());
    assert_eq!(nothing, Facts::default());
}

#[test]
fn outputs_that_are_something_else_say_nothing() {
    let of = |source: &str, text: &str| Facts::read(&with(source, text));
    for text in [
        "",
        "NVIDIA-SMI has failed because it couldn't communicate\n",
        "name, uuid\nNVIDIA GB10\n",
    ] {
        assert_eq!(of("nvidia-smi", text).gpus, None, "{text}");
    }
    // An older driver's names and units.
    let old = "name, driver_version, clocks.current.sm [MHz], power.draw [W], clocks_throttle_reasons.active\n\
               NVIDIA GB10, 570.1, 1500 MHz, [N/A], 0x0000000000000060\n";
    let gpu = of("nvidia-smi", old).gpus.unwrap().remove(0);
    assert_eq!((gpu.sm_mhz, gpu.power_mw), (Some(1500), None));
    assert_eq!(
        gpu.throttle.unwrap().names(),
        ["sw-thermal-slowdown", "hw-thermal-slowdown"]
    );
    assert_eq!(Throttle(0x1001).names(), ["gpu-idle", "0x1000"]);
    for text in ["Unknown!", "-1"] {
        let text = format!("Settings for x:\n\tSpeed: {text}\n");
        assert_eq!(
            of("ethtool:enp1s0f1np1", &text).links.unwrap()["enp1s0f1np1"].mbps,
            None
        );
    }
    assert_eq!(of("ip-addr", "[").links, None);
    assert_eq!(
        of("ibdev2netdev", "ibdev2netdev: not found\n")
            .hcas
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        of("docker-info", "{\"ServerErrors\":[\"x\"]}").container_engine,
        None
    );
    assert_eq!(of("docker-image", "[]").image, None);
    let snapshotter = "{\"ServerVersion\":\"29\",\"Driver\":\"overlayfs\",\
                       \"DriverStatus\":[[\"driver-type\",\"io.containerd.snapshotter.v1\"]]}";
    assert!(
        of("docker-info", snapshotter)
            .container_engine
            .unwrap()
            .containerd_store
    );
    assert_eq!(
        of("timedatectl", "NTPSynchronized=no\n").clock_synchronised,
        Some(false)
    );
    let chrony = "A29FC87B,ntp,3,1733059200.1,0.000012,-0.00001,0.0000123,-12.3,0.01,0.05,0.01,0.001,64.2,Not synchronised\n";
    let mut raw = without("timedatectl");
    raw.0
        .insert("chronyc".to_owned(), Output::Text(chrony.to_owned()));
    assert_eq!(Facts::read(&raw).clock_synchronised, Some(false));
    assert_eq!(
        of("/etc/dgx-release", "DGX_SWBUILD_VERSION=\"7.2.3\"\n")
            .dgx_version
            .as_deref(),
        Some("7.2.3")
    );
    assert_eq!(of("/proc/meminfo", "MemTotal: x kB\n").memory.total, None);
    assert_eq!(
        of("pressure:memory", "some avg10=x\n")
            .pressure
            .get("memory"),
        None
    );
    assert_eq!(of("disk:/models/target", "much").disk_free.len(), 0);
    assert_eq!(Facts::read(&without("/proc/net/tcp")).listening, None);
}

const INVENTORY: &str = r#"
format = "runseal.cluster/v1"
manifest = "t.json"
[cluster]
name = "spark2"
head = "gx0"
rendezvous = "10.0.0.1:29501"
[engine]
recipe = "sglang"
launch = "docker"
served_name = "big"
port = 30000
[image]
reference = "sg:1"
diff_ids = ["sha256:1111111111111111111111111111111111111111111111111111111111111111", "sha256:2222222222222222222222222222222222222222222222222222222222222222"]
[expect]
gpu = "NVIDIA GB10"
driver = "580.95.05"
mtu = 9000
link_mbps = 200000
mem_available = 100000000000
disk_free = 1000000000
clock_offset_ms = 50
alike = ["driver", "mtu"]
[[node]]
name = "gx0"
rank = 0
transport = "ssh"
host = "gx0"
address = "10.0.0.1"
fabric = ["enp1s0f1np1"]
hcas = ["rocep1s0f1"]
gid_index = "auto"
path = "/models/target"
[[node]]
name = "gx1"
rank = 1
transport = "ssh"
host = "gx1"
fabric = ["enp1s0f1np1"]
hcas = ["rocep1s0f1"]
gid_index = 3
path = "/models/target"
"#;

/// Codes and subjects of what is found when gx0 says this and gx1 what it should.
fn found_in(inventory: &str, first: Raw, offset_us: i64) -> Vec<(Code, String)> {
    let node = |raw: Raw, boot: &str, offset_us| {
        let mut facts = Facts::read(&raw);
        facts.boot_id = Some(boot.to_owned());
        let clock = Some(Offset {
            offset_us,
            error_us: 200,
            exchanges: 8,
        });
        Node { facts, raw, clock }
    };
    let nodes = BTreeMap::from([
        ("gx0".to_owned(), node(first, "a", offset_us)),
        ("gx1".to_owned(), node(raw(), "b", 0)),
    ]);
    let inventory = Inventory::parse(inventory).unwrap();
    let findings = check(&inventory, &nodes);
    findings.into_iter().map(|f| (f.code, f.subject)).collect()
}

fn found(first: Raw) -> Vec<(Code, String)> {
    found_in(INVENTORY, first, 0)
}

fn gx0(code: Code) -> Vec<(Code, String)> {
    vec![(code, "gx0".to_owned())]
}

/// A node as expected gives nothing; each change gives exactly its code.
#[test]
fn each_fault_has_its_code() {
    assert_eq!(found(raw()), []);
    let swap = |source: &str, from: &str, to: &str| {
        let raw = raw();
        let text = raw.text(source).unwrap().to_owned();
        assert!(text.contains(from), "{source}: {from}");
        with(source, &text.replace(from, to))
    };
    for (change, code) in [
        (
            swap("nvidia-smi", "NVIDIA GB10", "NVIDIA GB20"),
            Code::NodeFactUnexpected,
        ),
        (without("/proc/meminfo"), Code::NodeFactUnknown),
        (without("disk:/models/target"), Code::NodeFactUnknown),
        (
            swap("/proc/meminfo", "118420104 kB", "8420104 kB"),
            Code::NodeMemoryLow,
        ),
        (with("disk:/models/target", "999999999"), Code::NodeDiskLow),
        (
            swap("ethtool:enp1s0f1np1", "200000Mb/s", "100000Mb/s"),
            Code::NodeLinkSlow,
        ),
        (
            swap("ethtool:enp1s0f1np1", "200000Mb/s", "Unknown!"),
            Code::NodeFactUnknown,
        ),
        (
            swap("ip-addr", "10.0.0.1\"", "10.0.0.7\""),
            Code::NodeAddress,
        ),
        (
            swap(
                "ibdev2netdev",
                "rocep1s0f1 port 1 ==> enp1s0f1np1 (Up)",
                "rocep1s0f1 port 1 ==> enp1s0f1np1 (Down)",
            ),
            Code::NodeHca,
        ),
        (
            with("gids:rocep1s0f1", "0 fe80::1 RoCE v2\n"),
            Code::NodeHca,
        ),
        (
            with("/proc/net/tcp", source!("tcp-busy")),
            Code::NodePortBusy,
        ),
        (swap("docker-image", "2222", "3333"), Code::NodeImage),
        (without("docker-image"), Code::NodeImage),
        (without("docker-info"), Code::NodeFactUnknown),
        (
            with("timedatectl", "NTPSynchronized=no\n"),
            Code::NodeClockFree,
        ),
        (
            swap("nvidia-smi", "0x0000000000000001", "0x0000000000000020"),
            Code::NodeThrottled,
        ),
    ] {
        let expected = match code {
            // These two nodes now differ as well, which is worth a note.
            Code::NodeFactUnexpected | Code::NodeLinkSlow => {
                vec![
                    (code, "gx0".to_owned()),
                    (Code::NodesDiffer, "cluster".to_owned()),
                ]
            }
            _ => gx0(code),
        };
        assert_eq!(found(change), expected);
    }
    // An interface that is down or gone.
    let down = swap("ip-addr", "\"operstate\":\"UP\"", "\"operstate\":\"DOWN\"");
    assert_eq!(found(down), gx0(Code::NodeInterface));
    let gone = found(swap("ip-addr", "\"enp1s0f1np1\"", "\"enp9\""));
    assert_eq!(gone[0], (Code::NodeInterface, "gx0".to_owned()), "{gone:?}");
    // MTU and driver must be alike besides.
    let low = found(swap("ip-addr", "\"mtu\":9000", "\"mtu\":1500"));
    assert_eq!(
        low,
        [
            (Code::NodeMtuLow, "gx0".to_owned()),
            (Code::NodesNotAlike, "cluster".to_owned())
        ]
    );
    let driver = found(swap("nvidia-smi", "580.95.05", "570.1"));
    assert_eq!(
        driver,
        [
            (Code::NodeFactUnexpected, "gx0".to_owned()),
            (Code::NodesNotAlike, "cluster".to_owned())
        ]
    );
    // Without any word of the driver, that the nodes are alike is not known either.
    let silent = found(without("nvidia-smi"));
    assert_eq!(silent.len(), 3, "{silent:?}");
    assert!(
        silent
            .iter()
            .all(|(code, _)| *code == Code::NodeFactUnknown)
    );
}

#[test]
fn a_clock_is_too_far_when_it_may_be() {
    for (offset_us, expected) in [
        (49_000, vec![]),
        (-49_000, vec![]),
        // The bound counts: 49.9 ms known to 0.2 ms may be 50.1 ms.
        (49_900, gx0(Code::NodeClockOffset)),
        (-90_000, gx0(Code::NodeClockOffset)),
    ] {
        assert_eq!(
            found_in(INVENTORY, raw(), offset_us),
            expected,
            "{offset_us}"
        );
    }
}

#[test]
fn what_is_not_expected_is_not_checked() {
    let start = INVENTORY.find("[expect]").unwrap();
    let end = INVENTORY.find("[[node]]").unwrap();
    let lax = format!("{}{}", &INVENTORY[..start], &INVENTORY[end..]);
    for source in [
        "nvidia-smi",
        "/proc/meminfo",
        "disk:/models/target",
        "ethtool:enp1s0f1np1",
    ] {
        assert_eq!(found_in(&lax, without(source), 9_000_000), [], "{source}");
    }
    let text = raw()
        .text("nvidia-smi")
        .unwrap()
        .replace("580.95.05", "570.1");
    let other = with("nvidia-smi", &text);
    assert_eq!(
        found_in(&lax, other, 0),
        [(Code::NodesDiffer, "cluster".to_owned())]
    );
}

#[test]
fn images_are_compared_by_what_both_sides_have() {
    let pins = |body: &str| {
        let start = INVENTORY.find("diff_ids").unwrap();
        let end = INVENTORY.find("[expect]").unwrap();
        format!("{}{body}\n{}", &INVENTORY[..start], &INVENTORY[end..])
    };
    let config =
        "config = \"sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"";
    let manifest =
        "manifests = [\"sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\"]";
    for body in [config, manifest] {
        assert_eq!(found_in(&pins(body), raw(), 0), []);
        let other = pins(&body.replace("aaaa", "acac").replace("bbbb", "bcbc"));
        let both = [
            (Code::NodeImage, "gx0".to_owned()),
            (Code::NodeImage, "gx1".to_owned()),
        ];
        assert_eq!(found_in(&other, raw(), 0), both);
    }
    // After `docker load` there is no manifest digest to compare with.
    let text = raw().text("docker-image").unwrap().to_owned();
    let loaded = with("docker-image", &text.replace("RepoDigests", "Other"));
    assert_eq!(
        found_in(&pins(manifest), loaded, 0),
        gx0(Code::NodeImageUnpinned)
    );
    let nothing = found_in(&pins(""), raw(), 0);
    assert!(
        nothing
            .iter()
            .all(|(code, _)| *code == Code::NodeImageUnpinned)
            && nothing.len() == 2
    );
}

#[test]
fn two_names_of_one_machine_are_noted() {
    let inventory = Inventory::parse(INVENTORY).unwrap();
    let one = |_| Node {
        facts: Facts::read(&raw()),
        raw: raw(),
        clock: None,
    };
    let nodes = BTreeMap::from(["gx0", "gx1"].map(|n| (n.to_owned(), one(n))));
    let findings = check(&inventory, &nodes);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(
        (findings[0].code, findings[0].subject.as_str()),
        (Code::NodesOneMachine, "gx0, gx1")
    );
}
