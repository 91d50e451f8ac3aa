//! Edits of weights, machines and processes.

use super::*;

fn report(raw: &mut RawBundle, pointer: &'static str, value: Value) {
    set(raw, "replicas/r1.json", pointer, value);
}

fn ups(raw: &mut RawBundle, edit: fn(&mut [&mut EventLine])) {
    edit_events(raw, |l| {
        let mut ups: Vec<&mut EventLine> = l
            .iter_mut()
            .filter(|l| matches!(l.event, Event::RankUp { .. }))
            .collect();
        edit(&mut ups);
    });
}

/// What the report of the good replica says of the file that differs.
fn mend(raw: &mut RawBundle, with_digest: bool) {
    let good = raw.files[&path("replicas/r0.json")].clone();
    let good = json::parse(&good).unwrap();
    edit_json(raw, "replicas/r1.json", |r| {
        let files = r["files"].as_array_mut().unwrap();
        for (file, good) in files.iter_mut().zip(good["files"].as_array().unwrap()) {
            file["state"] = json!("verified");
            file.as_object_mut().unwrap().remove("reason");
            if with_digest {
                file["sha256"] = good["sha256"].clone();
            }
        }
        r["findings"] = json!([]);
        if with_digest {
            r["observed_root"] = good["observed_root"].clone();
        }
    });
}

pub fn edits() -> Vec<Edit> {
    vec![
        edit!("manifest-edited", COMPLETED, [EvidenceMalformed], |raw| {
            set(
                raw,
                "checkpoints/target.manifest.json",
                "/files/0/size",
                json!(1),
            );
        }),
        edit!(
            "manifest-of-other-weights",
            COMPLETED,
            [ManifestMismatch, ReplicaReportMismatch],
            other_manifest
        ),
        edit!(
            "manifest-of-other-weights-in-a-refused-run",
            REFUSED_ALONE,
            [ManifestMismatch],
            |raw| {
                raw.files
                    .retain(|name, _| !name.to_string().starts_with("replicas/"));
                other_manifest(raw);
            }
        ),
        edit!(
            "report-state-flipped",
            REFUSED,
            [ReplicaReportMismatch],
            |raw| mend(raw, false)
        ),
        edit!(
            "report-digest-and-state-mended",
            REFUSED,
            [EventInconsistent],
            |raw| mend(raw, true)
        ),
        says!(
            "report-mended-and-refusal-dropped",
            REFUSED,
            "/run/cause",
            "states-incomplete",
            |raw| {
                mend(raw, true);
                edit_events(raw, |l| {
                    l.retain(|l| !matches!(l.event, Event::Refusal { .. }))
                });
            }
        ),
        edit!(
            "report-digest-edited",
            COMPLETED,
            [ReplicaReportMismatch],
            |raw| {
                report(raw, "/files/0/sha256", json!("ab".repeat(32)));
            }
        ),
        edit!(
            "report-for-another-plan",
            COMPLETED,
            [ReplicaReportMismatch],
            |raw| {
                report(raw, "/plan_digest", json!("ab".repeat(32)));
            }
        ),
        edit!("report-for-another-run", COMPLETED, [WrongRun], |raw| {
            report(raw, "/run_id", json!("20261201T000000Z-golden-v1-000000"));
        }),
        edit!(
            "report-of-another-manifest",
            COMPLETED,
            [ReplicaReportMismatch],
            |raw| {
                report(raw, "/manifest_root", json!("ab".repeat(32)));
            }
        ),
        edit!(
            "report-of-another-boot",
            COMPLETED,
            [ReplicaReportMismatch],
            |raw| {
                report(
                    raw,
                    "/boot_id",
                    json!("00000000-0000-0000-0000-000000000000"),
                );
            }
        ),
        edit!(
            "report-of-another-replica",
            COMPLETED,
            [EvidenceMalformed],
            |raw| {
                report(raw, "/replica", json!("r0"));
            }
        ),
        edit!(
            "report-copied-from-the-other-replica",
            COMPLETED,
            [EvidenceMalformed],
            |raw| {
                let bytes = raw.files[&path("replicas/r0.json")].clone();
                *file(raw, "replicas/r1.json") = bytes;
            }
        ),
        edit!(
            "report-older-than-the-run",
            COMPLETED,
            [ReplicaReportMismatch],
            |raw| {
                report(raw, "/started", json!("2020-01-01T00:00:00Z"));
            }
        ),
        edit!(
            "report-newer-than-the-launch",
            COMPLETED,
            [ReplicaReportMismatch],
            |raw| {
                report(raw, "/finished", json!("2099-01-01T00:00:00Z"));
            }
        ),
        edit!(
            "second-look-before-the-run",
            COMPLETED,
            [ReplicaReportMismatch],
            |raw| {
                report(raw, "/after/finished", json!("2020-01-01T00:00:00Z"));
            }
        ),
        edit!(
            "second-look-says-unchanged-with-changes",
            TAINTED,
            [ReplicaReportMismatch],
            |raw| {
                set(raw, "replicas/r0.json", "/after/unchanged", json!(true));
            }
        ),
        edit!(
            "second-look-says-changed-without-changes",
            COMPLETED,
            [ReplicaReportMismatch],
            |raw| {
                report(raw, "/after/unchanged", json!(false));
            }
        ),
        says!(
            "second-look-dropped",
            COMPLETED,
            "/attribution/verified",
            "2",
            |raw| {
                edit_json(raw, "replicas/r1.json", |r| {
                    r.as_object_mut().unwrap().remove("after");
                });
            }
        ),
        says!(
            "one-folder-under-two-names",
            COMPLETED,
            "/integrity/distinct",
            "1",
            |raw| {
                let r0 = json::parse(&raw.files[&path("replicas/r0.json")].clone()).unwrap();
                report(raw, "/root_identity", r0["root_identity"].clone());
            }
        ),
        edit!("one-folder-made-to-look-like-two", COMPLETED, [], |raw| {
            report(raw, "/root_identity/ino", json!(4242));
        }),
        edit!("node-facts-edited", COMPLETED, [], |raw| {
            set(
                raw,
                "nodes/n0.json",
                "/before/cpu_model",
                json!("A Faster Processor"),
            );
        }),
        edit!("accelerator-invented", COMPLETED, [], |raw| {
            set(raw, "nodes/n0.json", "/before/gpus", json!(["NVIDIA GB10"]));
        }),
        edit!(
            "boot-id-before-edited",
            COMPLETED,
            [ReplicaReportMismatch],
            |raw| {
                set(
                    raw,
                    "nodes/n0.json",
                    "/before/boot_id",
                    json!("00000000-0000-0000-0000-000000000000"),
                );
            }
        ),
        says!(
            "machine-rebooted",
            COMPLETED,
            "/attribution/verified",
            "0",
            |raw| {
                set(
                    raw,
                    "nodes/n0.json",
                    "/after/boot_id",
                    json!("00000000-0000-0000-0000-000000000000"),
                );
            }
        ),
        edit!(
            "node-named-otherwise",
            COMPLETED,
            [EvidenceMalformed],
            |raw| {
                set(raw, "nodes/n0.json", "/node", json!("n1"));
            }
        ),
        edit!("image-pinned-otherwise", COMPLETED, [PlanMismatch], |raw| {
            set(raw, "image.json", "/pinned/sha256", json!("ab".repeat(32)));
        }),
        says!(
            "image-seen-otherwise",
            COMPLETED,
            "/attribution/verified",
            "2",
            |raw| {
                set(raw, "image.json", "/observed/r1", json!("ab".repeat(32)));
            }
        ),
        edit!(
            "image-of-a-rank-that-was-never-up",
            COMPLETED,
            [EventInconsistent],
            |raw| {
                edit_json(raw, "image.json", |i| {
                    i["observed"]["r9"] = i["observed"]["r1"].clone()
                });
            }
        ),
        says!(
            "image-not-seen",
            COMPLETED,
            "/attribution/verified",
            "2",
            |raw| {
                edit_json(raw, "image.json", |i| {
                    i["observed"].as_object_mut().unwrap().remove("r1");
                });
            }
        ),
        says!(
            "engine-arguments-edited",
            COMPLETED,
            "/attribution/verified",
            "2",
            |raw| {
                edit_json(raw, "engine/r1.json", |e| {
                    e["argv"].as_array_mut().unwrap().push(json!("--draft"));
                });
            }
        ),
        edit!(
            "engine-of-another-process",
            COMPLETED,
            [EventInconsistent],
            |raw| {
                set(raw, "engine/r1.json", "/pid", json!(1));
            }
        ),
        edit!(
            "engine-on-another-port",
            COMPLETED,
            [EventInconsistent],
            |raw| {
                set(raw, "engine/r1.json", "/listen", json!("127.0.0.1:1"));
            }
        ),
        edit!(
            "engine-of-another-replica",
            COMPLETED,
            [EvidenceMalformed],
            |raw| {
                set(raw, "engine/r1.json", "/replica", json!("r0"));
            }
        ),
        edit!("engine-version-edited", COMPLETED, [], |raw| {
            for r in ["r0", "r1"] {
                edit_json(raw, &format!("engine/{r}.json"), |e| {
                    e["before"]["/version"] = json!({"version": "99.0"});
                });
            }
        }),
        edit!("engine-log-edited", COMPLETED, [], |raw| {
            file(raw, "engine/r1.log").extend(b"all fine\n");
        }),
        edit!("engine-log-header-edited", COMPLETED, [WrongRun], |raw| {
            file(raw, "engine/r1.log")[8] ^= 1;
        }),
        edit!(
            "rank-up-dropped",
            COMPLETED,
            [EventInconsistent, PeerNotTheEndpoint],
            |raw| {
                edit_events(raw, |l| {
                    let i = at(l, |l| matches!(l.event, Event::RankUp { .. }));
                    l.remove(i);
                })
            }
        ),
        edit!("rank-up-twice", COMPLETED, [EventInconsistent], |raw| {
            edit_events(raw, |l| {
                let i = at(l, |l| matches!(l.event, Event::RankUp { .. }));
                l.insert(i, l[i].clone());
            })
        }),
        edit!(
            "rank-up-after-launch",
            COMPLETED,
            [EventInconsistent],
            |raw| edit_events(raw, |l| {
                let i = at(l, |l| matches!(l.event, Event::RankUp { .. }));
                let line = l.remove(i);
                let to = at(l, state(State::Measure));
                l.insert(to, line);
            })
        ),
        edit!(
            "one-process-for-both-replicas",
            COMPLETED,
            [EventInconsistent, PeerNotTheEndpoint],
            |raw| {
                ups(raw, |ups| {
                    let (
                        Event::RankUp {
                            pid: p,
                            start_ticks: s,
                            listen: o,
                            ..
                        },
                        [_, second],
                    ) = (ups[0].event.clone(), ups)
                    else {
                        panic!("two ranks");
                    };
                    if let Event::RankUp {
                        pid,
                        start_ticks,
                        listen,
                        ..
                    } = &mut second.event
                    {
                        (*pid, *start_ticks, *listen) = (p, s, o);
                    }
                });
                let r0 = json::parse(&raw.files[&path("engine/r0.json")].clone()).unwrap();
                edit_json(raw, "engine/r1.json", |e| {
                    for key in ["pid", "start_ticks", "listen"] {
                        e[key] = r0[key].clone();
                    }
                });
            }
        ),
        edit!(
            "rank-of-no-replica",
            COMPLETED,
            [EventInconsistent, EvidenceMissing, PeerNotTheEndpoint],
            |raw| {
                ups(raw, |ups| {
                    if let Event::RankUp { replica, .. } = &mut ups[1].event {
                        *replica = "r9".into();
                    }
                });
                raw.files.remove(&path("engine/r1.json")).unwrap();
            }
        ),
        says!(
            "look-at-a-rank-dropped",
            COMPLETED,
            "/attribution/verified",
            "2",
            |raw| edit_events(raw, |l| {
                let i = at(l, |l| matches!(l.event, Event::RankAlive { .. }));
                l.remove(i);
            })
        ),
        edit!(
            "look-at-a-rank-before-its-requests",
            COMPLETED,
            [EventInconsistent],
            |raw| {
                edit_events(raw, |l| {
                    let i = at(l, |l| matches!(l.event, Event::RankAlive { .. }));
                    let line = l.remove(i);
                    let to = at(l, state(State::Measure));
                    l.insert(to, line);
                });
            }
        ),
        edit!(
            "rank-death-made-expected",
            FAILED,
            [EventInconsistent],
            |raw| edit_events(raw, |l| {
                let i = at(l, |l| {
                    matches!(
                        l.event,
                        Event::RankExit {
                            expected: false,
                            ..
                        }
                    )
                });
                if let Event::RankExit { expected, .. } = &mut l[i].event {
                    *expected = true;
                }
            })
        ),
        edit!(
            "rank-exit-of-no-rank",
            COMPLETED,
            [EventInconsistent],
            |raw| edit_events(raw, |l| {
                let i = at(l, |l| matches!(l.event, Event::RankExit { .. }));
                if let Event::RankExit { replica, .. } = &mut l[i].event {
                    *replica = "r9".into();
                }
            })
        ),
        says!(
            "rank-exit-dropped",
            COMPLETED,
            "/run/cause",
            "rank-did-not-end",
            |raw| edit_events(raw, |l| {
                let i = at(l, |l| matches!(l.event, Event::RankExit { .. }));
                l.remove(i);
            })
        ),
    ]
}

/// A refused run has no launch that its reports must come before.
const REFUSED_ALONE: &str = REFUSED;

/// A sound manifest, of one file less.
fn other_manifest(raw: &mut RawBundle) {
    let name = "checkpoints/target.manifest.json";
    let manifest = runseal::weights::Manifest::parse(file(raw, name)).unwrap();
    let files: Vec<_> = manifest.files().skip(1).cloned().collect();
    let other = runseal::weights::Manifest::new(files, manifest.source().cloned()).unwrap();
    *file(raw, name) = other.to_bytes();
}
