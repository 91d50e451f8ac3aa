//! Reading past the page cache with `O_DIRECT`.
//!
//! The way for kernels that can neither drop what a read brought in nor say what was
//! cached before. Nothing reads ahead here but we ourselves: a few threads per file
//! take blocks in turn, so that the disk always has several requests, and each hands
//! its block over in the order of the file. A block that is in the page cache is
//! left there.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};

use rustix::fs::OFlags;

use super::buffer::{ALIGN, Buffer};

/// Bytes of one request.
pub(super) const BLOCK: usize = 128 * 1024;
/// Bytes of all buffers together.
const MEMORY: usize = 8 << 20;

/// Reads in flight per file, when so many files are read at a time.
pub(super) fn depth(files: usize) -> usize {
    (MEMORY / BLOCK / files.max(1)).clamp(2, 8)
}

/// A file read with `O_DIRECT`, from the front to the back.
pub(super) struct Direct {
    file: Arc<File>,
    blocks: u64,
    depth: usize,
    stream: Option<Stream>,
    /// The block that the reader is in.
    current: Option<(u64, Block)>,
}

impl Direct {
    /// Turns `O_DIRECT` on for the file and tries it, or leaves it off: not every
    /// file system can.
    pub(super) fn new(file: &Arc<File>, size: u64, depth: usize) -> io::Result<Self> {
        let before = rustix::fs::fcntl_getfl(&**file)?;
        rustix::fs::fcntl_setfl(&**file, before | OFlags::DIRECT)?;
        let mut block = Block::new();
        if let Err(e) = block.fill(file, 0) {
            rustix::fs::fcntl_setfl(&**file, before)?;
            return Err(e);
        }
        Ok(Self {
            file: Arc::clone(file),
            blocks: size.div_ceil(BLOCK as u64),
            depth,
            stream: None,
            current: Some((0, block)),
        })
    }

    /// Reads up to a buffer; 0 at the end of the file.
    pub(super) fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let wanted = offset / BLOCK as u64;
        let within = (offset % BLOCK as u64) as usize;
        if self.current.as_ref().is_none_or(|(at, _)| *at != wanted) {
            self.go_to(wanted)?;
        }
        let Some((_, block)) = &self.current else {
            return Ok(0);
        };
        let bytes = block.bytes().get(within..).unwrap_or_default();
        let n = bytes.len().min(buffer.len());
        buffer[..n].copy_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn go_to(&mut self, wanted: u64) -> io::Result<()> {
        let done = self.current.take().map(|(_, block)| block);
        if self.stream.as_ref().is_none_or(|s| s.next != wanted) {
            self.stream = None;
            let left = self.blocks.saturating_sub(wanted);
            let threads = left.min(self.depth as u64) as usize;
            self.stream = Some(Stream::start(&self.file, wanted, self.blocks, threads)?);
        } else if let (Some(stream), Some(block)) = (&self.stream, done) {
            stream.give_back(wanted - 1, block);
        }
        let Some(stream) = &mut self.stream else {
            return Ok(());
        };
        self.current = Some((wanted, stream.take()?));
        Ok(())
    }
}

/// Threads that read ahead. Thread `i` of `n` has every `n`th block.
struct Stream {
    first: u64,
    next: u64,
    readers: Vec<Reader>,
}

struct Reader {
    filled: Receiver<io::Result<Block>>,
    empty: Sender<Block>,
    thread: JoinHandle<()>,
}

impl Stream {
    fn start(file: &Arc<File>, first: u64, blocks: u64, threads: usize) -> io::Result<Self> {
        let mut readers = Vec::new();
        for i in 0..threads as u64 {
            // Room for the one block that the thread has: it never waits to hand
            // it over.
            let (fill, filled) = sync_channel(1);
            let (empty, emptied) = channel();
            let file = Arc::clone(file);
            let step = threads as u64;
            let work = move || read_blocks(&file, first + i, blocks, step, &fill, &emptied);
            readers.push(Reader {
                filled,
                empty,
                thread: thread::Builder::new().spawn(work)?,
            });
        }
        Ok(Self {
            first,
            next: first,
            readers,
        })
    }

    fn reader(&self, block: u64) -> Option<&Reader> {
        let n = self.readers.len().max(1) as u64;
        self.readers.get(((block - self.first) % n) as usize)
    }

    /// The next block of the file.
    fn take(&mut self) -> io::Result<Block> {
        let gone = || io::Error::other("a reading thread ended early");
        let reader = self.reader(self.next).ok_or_else(gone)?;
        let block = reader.filled.recv().map_err(|_| gone())?;
        self.next += 1;
        block
    }

    /// Lets the thread that read `block` go on with its buffer.
    fn give_back(&self, block: u64, buffer: Block) {
        if block >= self.first
            && let Some(reader) = self.reader(block)
        {
            // A thread that has no more blocks is gone.
            let _ = reader.empty.send(buffer);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Without the channels' other ends the threads end after the read they are in.
        for reader in self.readers.drain(..) {
            drop((reader.filled, reader.empty));
            let _ = reader.thread.join();
        }
    }
}

fn read_blocks(
    file: &File,
    first: u64,
    blocks: u64,
    step: u64,
    fill: &SyncSender<io::Result<Block>>,
    emptied: &Receiver<Block>,
) {
    let mut block = Block::new();
    let mut at = first;
    while at < blocks {
        let read = block.fill(file, at * BLOCK as u64);
        let failed = read.is_err();
        if fill.send(read.map(|()| block)).is_err() || failed {
            return;
        }
        at += step;
        match emptied.recv() {
            Ok(b) => block = b,
            Err(_) => return,
        }
    }
}

/// A piece of the file, and how much of it is filled.
struct Block {
    memory: Buffer,
    filled: usize,
}

impl Block {
    fn new() -> Self {
        Self {
            memory: Buffer::new(BLOCK),
            filled: 0,
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[..self.filled]
    }

    /// Reads a whole block, or as much as the file has.
    fn fill(&mut self, file: &File, offset: u64) -> io::Result<()> {
        self.filled = 0;
        while self.filled < BLOCK {
            let to = &mut self.memory[self.filled..];
            let at = offset + self.filled as u64;
            let n = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *to, at))?;
            self.filled += n;
            // Only the end of the file is not aligned.
            if n == 0 || !n.is_multiple_of(ALIGN) {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn depth_is_bounded_by_memory() {
        assert_eq!(depth(0), 8);
        assert_eq!(depth(4), 8);
        assert_eq!(depth(16), 4);
        assert_eq!(depth(1000), 2);
    }

    /// Blocks come in order whatever the depth; a jump starts anew; a file that
    /// became shorter ends early.
    #[test]
    fn any_order_gives_the_bytes_of_the_file() {
        const SIZE: usize = 5 * BLOCK + 777;
        let content: Vec<u8> = (0..SIZE).map(|i| ((i / 3) ^ (i / 4096)) as u8).collect();
        // The build's own folder: /tmp may be memory, which has no O_DIRECT.
        let program = std::env::current_exe().unwrap();
        let mut file = tempfile::tempfile_in(program.parent().unwrap()).unwrap();
        file.write_all(&content).unwrap();
        file.sync_all().unwrap();
        let file = Arc::new(file);
        for depth in [1, 2, 3, 8] {
            let mut direct = match Direct::new(&file, SIZE as u64, depth) {
                Ok(direct) => direct,
                Err(e) => {
                    eprintln!("not performed: no O_DIRECT here ({e})");
                    return;
                }
            };
            let mut buffer = vec![0; BLOCK];
            let mut read = |direct: &mut Direct, offset: usize| {
                let n = direct.read_at(&mut buffer, offset as u64).unwrap();
                assert_eq!(buffer[..n], content[offset..offset + n], "at {offset}");
                n
            };
            for _ in 0..2 {
                let mut at = 0;
                while at < SIZE {
                    let n = read(&mut direct, at);
                    assert!(n > 0);
                    at += n;
                }
            }
            for at in [3 * BLOCK + 5, BLOCK, BLOCK + 4096, 5 * BLOCK, 0] {
                assert!(read(&mut direct, at) > 0);
            }
            assert_eq!(read(&mut direct, SIZE), 0);
        }
        let mut direct = Direct::new(&file, SIZE as u64, 2).unwrap();
        file.set_len(BLOCK as u64 + 100).unwrap();
        let mut buffer = vec![0; BLOCK];
        assert_eq!(direct.read_at(&mut buffer, BLOCK as u64).unwrap(), 100);
        assert_eq!(direct.read_at(&mut buffer, 2 * BLOCK as u64).unwrap(), 0);
    }
}
