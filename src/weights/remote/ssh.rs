//! Options for the system's ssh. The user's configuration stays in force
//! (aliases, jump hosts, agents); what safety rests on is set here.

use std::path::{Path, PathBuf};

use super::command::Reach;
use crate::weights::Ssh;

/// Everything but host and remote command.
pub(super) fn arguments(options: &Ssh, reach: &Reach, name: &str, log: &Path) -> Vec<String> {
    let control = control_socket(reach, name);
    let mut settings = vec![
        // Never a question, never an unknown host.
        "BatchMode=yes".to_owned(),
        "StrictHostKeyChecking=yes".to_owned(),
        // One connection for push and rehash; it ends by itself if we are killed.
        "ControlMaster=auto".to_owned(),
        format!("ControlPath={}", percent(&control.to_string_lossy())),
        "ControlPersist=30".to_owned(),
        format!("ConnectTimeout={}", reach.connect_timeout),
        "ConnectionAttempts=1".to_owned(),
        "ServerAliveInterval=5".to_owned(),
        "ServerAliveCountMax=3".to_owned(),
        // The reasons of failures are read from the log: always the same detail.
        "LogLevel=INFO".to_owned(),
        "RequestTTY=no".to_owned(),
        "RemoteCommand=none".to_owned(),
        "PermitLocalCommand=no".to_owned(),
        "ForwardAgent=no".to_owned(),
        "ForwardX11=no".to_owned(),
        "ClearAllForwardings=yes".to_owned(),
    ];
    if let Some(pin) = &options.host_key {
        // ssh asks this command which keys it may accept; the pin alone decides.
        // %f is the fingerprint of the key shown, %H, %t, %K make its line.
        settings.extend([
            format!(
                r#"KnownHostsCommand=/bin/sh -c 'test "$1" = "$2" && echo "$3 $4 $5"; exit 0' sh {pin} %f %H %t %K"#
            ),
            "UserKnownHostsFile=/dev/null".to_owned(),
            "GlobalKnownHostsFile=/dev/null".to_owned(),
        ]);
    } else if let Some(file) = &options.known_hosts {
        settings.extend([
            format!("UserKnownHostsFile={}", percent(&reach.path_here(file))),
            "GlobalKnownHostsFile=/dev/null".to_owned(),
        ]);
    }
    let mut args = vec!["-T".to_owned(), "-E".to_owned()];
    args.push(log.to_string_lossy().into_owned());
    if let Some(identity) = &options.identity {
        settings.push("IdentitiesOnly=yes".to_owned());
        args.extend(["-i".to_owned(), reach.path_here(identity)]);
    }
    for setting in settings {
        args.extend(["-o".to_owned(), setting]);
    }
    if let Some(user) = &options.user {
        args.extend(["-l".to_owned(), user.clone()]);
    }
    if let Some(port) = options.port {
        args.extend(["-p".to_owned(), port.to_string()]);
    }
    args
}

/// Where the shared connection's socket lies.
pub(super) fn control_socket(reach: &Reach, name: &str) -> PathBuf {
    reach.private.join(format!("{}.s", short(name)))
}

/// The words that end the connection shared by several commands.
pub(super) fn goodbye(options: &Ssh, reach: &Reach, name: &str) -> Vec<String> {
    let log = reach.private.join(format!("{name}.log"));
    let mut args = arguments(options, reach, name, &log);
    args.extend(["-O", "exit", "--", &options.host].map(str::to_owned));
    args
}

/// A Unix socket's path may have 107 bytes, and ssh adds 17 while it makes one.
fn short(name: &str) -> String {
    if name.len() <= 12 {
        return name.to_owned();
    }
    crate::digest::Sha256Digest::of(name.as_bytes()).hex()[..12].to_owned()
}

/// ssh replaces percent signs in file names.
fn percent(path: &str) -> String {
    path.replace('%', "%%")
}
