//! Tells the program which commit it was built from, when there is one.

use std::process::Command;

fn main() {
    let git = |args: &[&str]| {
        // Without the lock, git would refresh its index on looking, and the changed
        // index would build this again each time.
        let out = Command::new("git")
            .arg("--no-optional-locks")
            .args(args)
            .output()
            .ok()?;
        let text = String::from_utf8(out.stdout).ok()?;
        out.status.success().then(|| text.trim().to_owned())
    };
    if let Some(commit) = git(&["rev-parse", "HEAD"]) {
        let clean =
            git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|s| s.is_empty());
        let mark = if clean { "" } else { "-modified" };
        println!("cargo:rustc-env=RUNSEAL_COMMIT={commit}{mark}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../.git/HEAD");
    println!("cargo:rerun-if-changed=../.git/index");
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rerun-if-changed=../src");
}
