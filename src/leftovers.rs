//! What a signal that ends the program must not leave behind.
//!
//! Folders and files of ours, programs that were started, and goodbyes that have to
//! be said to others are entered in one list. [`watch`] waits for SIGINT, SIGTERM
//! and SIGHUP; when one comes, the programs are ended with their process groups,
//! the goodbyes said, the files removed, and then the signal ends this program as if
//! nobody had waited for it. A signal that the parent had ignored (`nohup`) stays
//! ignored.
//!
//! SIGXFSZ is taken and otherwise ignored: by default a file that meets the limit on
//! file sizes kills the process without a word; with a handler in place the write
//! fails instead, which is an error like a full disk.
//!
//! Whoever would start or make something once the end has begun waits for it.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// Number of SIGXFSZ on Linux (all of x86-64, arm64, riscv64).
const SIGXFSZ: i32 = 25;
/// How long programs may take to end by themselves.
const PATIENCE: Duration = Duration::from_millis(300);

type Goodbye = Box<dyn FnOnce() + Send>;

struct List {
    ending: bool,
    next: u64,
    /// Started programs, each the first of its process group.
    groups: Vec<u32>,
    paths: BTreeMap<u64, PathBuf>,
    goodbyes: BTreeMap<u64, Goodbye>,
}

static LIST: Mutex<List> = Mutex::new(List {
    ending: false,
    next: 0,
    groups: Vec::new(),
    paths: BTreeMap::new(),
    goodbyes: BTreeMap::new(),
});

/// The list, unless the end has begun: then this thread waits for it.
fn list() -> MutexGuard<'static, List> {
    // An entry is made or taken in one step, so the list is whole at all times.
    let list = LIST.lock().unwrap_or_else(PoisonError::into_inner);
    if !list.ending {
        return list;
    }
    drop(list);
    loop {
        std::thread::park();
    }
}

/// An entry of the list. It is taken off when this is dropped.
#[must_use]
pub struct Entry(u64);

impl Drop for Entry {
    fn drop(&mut self) {
        let mut list = LIST.lock().unwrap_or_else(PoisonError::into_inner);
        list.paths.remove(&self.0);
        list.goodbyes.remove(&self.0);
    }
}

/// Makes a temporary file or folder, and enters its path.
pub fn made<T>(
    make: impl FnOnce() -> io::Result<T>,
    path: impl FnOnce(&T) -> &Path,
) -> io::Result<(T, Entry)> {
    let mut list = list();
    // Made under the lock: there is no moment in which it exists and is not listed.
    let thing = make()?;
    let id = list.id();
    list.paths.insert(id, path(&thing).to_owned());
    Ok((thing, Entry(id)))
}

/// A folder that only this user can enter, for ssh's sockets. Their paths must be
/// short, so a long temporary folder is passed over.
pub fn private_folder() -> io::Result<(tempfile::TempDir, Entry)> {
    let temp = std::env::temp_dir();
    let temp = match temp.as_os_str().len() <= 40 {
        true => temp,
        false => PathBuf::from("/tmp"),
    };
    let mine = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    let folder = || {
        tempfile::Builder::new()
            .prefix("runseal-")
            .permissions(mine)
            .tempdir_in(temp)
    };
    made(folder, |f| f.path())
}

/// Enters something to do before the program ends.
pub fn goodbye(say: impl FnOnce() + Send + 'static) -> Entry {
    let mut list = list();
    let id = list.id();
    list.goodbyes.insert(id, Box::new(say));
    Entry(id)
}

/// Starts a program, which must be told to lead a process group of its own.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    let mut list = list();
    let child = command.spawn()?;
    list.groups.push(child.id());
    Ok(child)
}

/// [`Child::try_wait`] for a program of [`spawn`].
pub fn try_wait(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let mut list = list();
    let status = child.try_wait()?;
    // Once it has been waited for, its number may belong to somebody else.
    if status.is_some() {
        list.forget(child);
    }
    Ok(status)
}

/// Ends a program of [`spawn`] and all of its process group, if it still runs.
pub fn kill(child: &mut Child) {
    let mut list = list();
    let running = matches!(child.try_wait(), Ok(None));
    if running {
        end_group(child.id(), Signal::KILL);
    }
    list.forget(child);
    drop(list);
    if running {
        let _ = child.wait();
    }
}

fn end_group(id: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(id.cast_signed()) {
        // It may have ended meanwhile, or belong to root.
        let _ = kill_process_group(pid, signal);
    }
}

impl List {
    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn forget(&mut self, child: &Child) {
        self.groups.retain(|id| *id != child.id());
    }
}

/// Waits for signals for the rest of the program's life.
pub fn watch() -> io::Result<()> {
    survive_file_limit()?;
    let (mut wait, wake) = io::pipe()?;
    let came = Arc::new(AtomicUsize::new(0));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if ignored(signal) {
            continue;
        }
        // Actions of a signal run in the order in which they were registered.
        flag::register_usize(signal, Arc::clone(&came), signal.unsigned_abs() as usize)?;
        low_level::pipe::register(signal, wake.try_clone()?)?;
    }
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            // Held here as well, so that the pipe does not end without a signal.
            let _wake = wake;
            if wait.read_exact(&mut [0]).is_ok() {
                end(i32::try_from(came.load(Ordering::SeqCst)).unwrap_or(SIGTERM));
            }
        })?;
    Ok(())
}

/// Lets a write past the limit on file sizes fail instead of ending the program.
pub fn survive_file_limit() -> io::Result<()> {
    if !ignored(SIGXFSZ) {
        flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    }
    Ok(())
}

/// True when the parent had this signal ignored.
fn ignored(signal: i32) -> bool {
    let Ok(text) = std::fs::read_to_string("/proc/self/status") else {
        return false;
    };
    let mask = text
        .lines()
        .find_map(|l| l.strip_prefix("SigIgn:"))
        .and_then(|v| u64::from_str_radix(v.trim(), 16).ok());
    mask.is_some_and(|m| m >> (signal - 1) & 1 == 1)
}

fn end(signal: i32) -> ! {
    let (groups, paths, goodbyes) = {
        let mut list = LIST.lock().unwrap_or_else(PoisonError::into_inner);
        list.ending = true;
        let goodbyes = std::mem::take(&mut list.goodbyes);
        (list.groups.clone(), list.paths.clone(), goodbyes)
    };
    // Nobody waits for them any more, so their numbers stay theirs.
    for id in &groups {
        end_group(*id, Signal::TERM);
    }
    if !groups.is_empty() {
        std::thread::sleep(PATIENCE);
    }
    for id in &groups {
        end_group(*id, Signal::KILL);
    }
    let said: Vec<_> = goodbyes.into_values().map(std::thread::spawn).collect();
    for goodbye in said {
        let _ = goodbye.join();
    }
    for path in paths.values() {
        let _ = match path.is_dir() {
            true => std::fs::remove_dir_all(path),
            false => std::fs::remove_file(path),
        };
    }
    // Does not return; if it could not end the program, its usual code for that does.
    let _ = low_level::emulate_default_handler(signal);
    std::process::exit(128 + signal)
}
