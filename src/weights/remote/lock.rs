//! One run at a time per cluster: an advisory lock on the head, held by the agent for
//! as long as its caller stays connected. The system lets it go when the agent ends,
//! however it ends; a connection that breaks therefore frees the cluster.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Who wants a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockRequest {
    /// Name of the cluster: a-z, 0-9, "-" and "_".
    pub cluster: String,
    /// Who, in words for the next one who asks.
    pub owner: String,
}

/// Who has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holder {
    /// Who; unknown when the file says nothing.
    pub owner: Option<String>,
    /// For how long, in seconds.
    pub age_s: Option<u64>,
}

/// What became of asking.
#[derive(Debug)]
pub(super) enum Taken {
    /// It is held while this lives.
    Held(File),
    /// Somebody else has it.
    Busy(Holder),
}

#[derive(Serialize, Deserialize)]
struct Text {
    owner: String,
    since_unix_s: u64,
}

/// Where every user of the node may put a lock.
pub(super) fn folder() -> PathBuf {
    let shared = Path::new("/run/lock");
    match shared.is_dir() {
        true => shared.to_owned(),
        false => PathBuf::from("/tmp"),
    }
}

/// Takes the lock of a cluster in `folder`, or says who has it.
pub(super) fn take(folder: &Path, request: &LockRequest, now_s: u64) -> io::Result<Taken> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    if request.cluster.is_empty() || !request.cluster.chars().all(plain) {
        return Err(io::Error::other("the cluster's name is not one"));
    }
    let path = folder.join(format!("runseal-{}.lock", request.cluster));
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let open = |create: bool| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(create)
            .mode(0o666)
            .custom_flags(no_follow)
            .open(&path)
    };
    // Another user's file in a sticky folder may not be opened with "create".
    let mut file = open(false).or_else(|_| open(true))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(Taken::Busy(holder(&mut file, now_s))),
        Err(TryLockError::Error(e)) => return Err(e),
    }
    let text = Text {
        owner: request.owner.clone(),
        since_unix_s: now_s,
    };
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&serde_json::to_vec(&text)?)?;
    Ok(Taken::Held(file))
}

fn holder(file: &mut File, now_s: u64) -> Holder {
    let mut text = String::new();
    let read = file.take(4096).read_to_string(&mut text);
    let known = read
        .ok()
        .and_then(|_| serde_json::from_str::<Text>(&text).ok());
    Holder {
        age_s: known.as_ref().map(|t| now_s.saturating_sub(t.since_unix_s)),
        owner: known.map(|t| t.owner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_has_it_and_the_third_gets_it() {
        let dir = tempfile::tempdir().unwrap();
        let ask = |owner: &str, now_s| {
            let request = LockRequest {
                cluster: "spark4".to_owned(),
                owner: owner.to_owned(),
            };
            take(dir.path(), &request, now_s).unwrap()
        };
        let first = ask("a long name of the first", 1000);
        assert!(matches!(first, Taken::Held(_)));
        let Taken::Busy(holder) = ask("second", 1060) else {
            panic!("two have it")
        };
        assert_eq!(holder.owner.as_deref(), Some("a long name of the first"));
        assert_eq!(holder.age_s, Some(60));
        drop(first);
        let third = ask("third", 2000);
        let Taken::Busy(holder) = ask("fourth", 2001) else {
            panic!("two have it")
        };
        assert_eq!(holder.owner.as_deref(), Some("third"));
        drop(third);
    }

    #[test]
    fn a_name_that_is_a_path_and_a_link_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut request = LockRequest {
            cluster: "../x".to_owned(),
            owner: String::new(),
        };
        assert!(take(dir.path(), &request, 0).is_err());
        request.cluster = "x".to_owned();
        std::os::unix::fs::symlink("/dev/null", dir.path().join("runseal-x.lock")).unwrap();
        assert!(take(dir.path(), &request, 0).is_err());
    }
}
