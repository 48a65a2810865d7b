//! `vdk nvme write`: a file to blocks.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::OFlags;
use serde::Serialize;
use vdk_driver::block::BlockOperation;
use vdk_driver::nvme::Namespace;

use super::arguments::WriteArguments;
use super::stream::{CHUNK, LEFT, Stream};
use crate::output;
use crate::signal::StopRequest;

/// What was done.
#[derive(Debug, Serialize)]
struct Summary {
    device: String,
    nsid: u32,
    lba: u64,
    blocks: u64,
    /// Bytes of the input; the last block is filled up with zeros.
    bytes: u64,
    seconds: f64,
    /// CRC-32 (IEEE 802.3) of the blocks, in hexadecimal.
    crc32: String,
    flushed: bool,
    /// Whether everything was read back and compared; absent when that was not asked for.
    verified: Option<bool>,
}

/// What was moved.
struct Moved {
    bytes: u64,
    blocks: u64,
    crc32: u32,
}

/// Runs the command.
pub(super) fn run(arguments: &WriteArguments, json: bool) -> Result<()> {
    super::demand_consent(arguments.yes, "writing destroys what the blocks hold")?;
    let stop = StopRequest::listen()?;
    let mut source = open(arguments.input.as_deref())?;
    let target = &arguments.target.target;
    let controller = super::start(target, "vdk nvme write", 1, CHUNK)?;
    let namespace = super::namespace(&controller, &arguments.target)?;
    refuse_too_long(arguments.lba, &namespace, &mut source)?;
    let begin = Instant::now();
    let mut stream = Stream::open(&controller, namespace, stop)?;
    let result = transfer(arguments, &namespace, &mut stream, &mut source);
    drop(stream);
    let stopped = controller.stop();
    let (moved, verified) = result?;
    stopped?;
    let time = begin.elapsed();
    let summary = Summary {
        device: target.device.clone(),
        nsid: namespace.id(),
        lba: arguments.lba,
        blocks: moved.blocks,
        bytes: moved.bytes,
        seconds: time.as_secs_f64(),
        crc32: format!("{:08x}", moved.crc32),
        flushed: arguments.flush,
        verified,
    };
    if json {
        return output::print_json(&summary);
    }
    output::print(&format!(
        "wrote {} ({} blocks from LBA {}) in {}, {}, crc32 {}{}{}\n",
        output::size(moved.bytes),
        moved.blocks,
        arguments.lba,
        output::duration(time),
        output::rate(moved.bytes, time),
        summary.crc32,
        if arguments.flush { ", flushed" } else { "" },
        if verified == Some(true) { ", read back and the same" } else { "" },
    ))
}

/// The file, or the standard input without the buffer of this process.
fn open(path: Option<&Path>) -> Result<File> {
    match path.filter(|path| *path != Path::new("-")) {
        Some(path) => {
            // Neither opening nor reading a pipe waits for a writer then: `await_readable` does.
            let flags = i32::try_from(OFlags::NONBLOCK.bits())?;
            let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
            file.with_context(|| format!("cannot read {}", path.display()))
        }
        None => Ok(io::stdin().as_fd().try_clone_to_owned().context("cannot use the standard input")?.into()),
    }
}

/// Refuses before anything is written what has no place, as far as that can be known.
fn refuse_too_long(lba: u64, namespace: &Namespace, source: &mut File) -> Result<()> {
    let left = namespace.blocks().checked_sub(lba).filter(|left| *left > 0).with_context(|| {
        format!(
            "LBA {lba} is not inside namespace {}, which has {} blocks",
            namespace.id(),
            namespace.blocks()
        )
    })?;
    let metadata = source.metadata().context("cannot examine the input")?;
    ensure!(!metadata.is_dir(), "cannot read the input: it is a folder");
    if !metadata.is_file() {
        return Ok(());
    }
    let length = metadata.len().saturating_sub(source.stream_position()?);
    let blocks = length.div_ceil(namespace.block_length().as_u64());
    ensure!(
        blocks <= left,
        "the input has {length} bytes, which is {blocks} blocks, and from LBA {lba} to the end of namespace {} there \
         are {left}: nothing was written",
        namespace.id()
    );
    Ok(())
}

fn transfer(
    arguments: &WriteArguments,
    namespace: &Namespace,
    stream: &mut Stream,
    source: &mut File,
) -> Result<(Moved, Option<bool>)> {
    let moved = write(arguments.lba, namespace, stream, source)?;
    if arguments.flush {
        stream.run(BlockOperation::Flush, 0, 0)?;
    }
    if !arguments.verify || moved.blocks == 0 {
        return Ok((moved, arguments.verify.then_some(true)));
    }
    let mut checksum = crc32fast::Hasher::new();
    stream.read(namespace, arguments.lba, moved.blocks, |bytes| {
        checksum.update(bytes);
        Ok(())
    })?;
    let found = checksum.finalize();
    if found != moved.crc32 {
        bail!("what was read back has crc32 {found:08x}, what was written has {:08x}", moved.crc32);
    }
    Ok((moved, Some(true)))
}

fn write(lba: u64, namespace: &Namespace, stream: &mut Stream, source: &mut File) -> Result<Moved> {
    let block = usize::try_from(namespace.block_length().as_u64())?;
    let mut checksum = crc32fast::Hasher::new();
    let mut moved = Moved { bytes: 0, blocks: 0, crc32: 0 };
    let mut bytes = vec![0; usize::try_from(CHUNK)?];
    loop {
        let length = fill(source, &mut bytes, |source| stream.stop_request().await_readable(source, LEFT))?;
        if length == 0 {
            break;
        }
        let whole = length.next_multiple_of(block);
        bytes[length..whole].fill(0);
        checksum.update(&bytes[..whole]);
        let blocks = u64::try_from(whole / block)?;
        let next = lba.checked_add(moved.blocks).and_then(|next| Some((next, next.checked_add(blocks)?)));
        let Some((next, _)) = next.filter(|(_, end)| *end <= namespace.blocks()) else {
            bail!(
                "the input is longer than the {} blocks from LBA {lba} to the end of namespace {}: {} blocks were \
                 written",
                namespace.blocks().saturating_sub(lba),
                namespace.id(),
                moved.blocks
            );
        };
        let buffer = match stream.buffer() {
            Some(buffer) => buffer,
            None => stream.next()?.context("a write without memory")?,
        };
        buffer.write(0, &bytes[..whole])?;
        stream.submit(BlockOperation::Write, next, blocks, Some(buffer))?;
        moved.blocks += blocks;
        moved.bytes += u64::try_from(length)?;
    }
    while stream.is_busy() {
        if let Some(buffer) = stream.next()? {
            stream.put(buffer);
        }
    }
    moved.crc32 = checksum.finalize();
    Ok(moved)
}

/// Reads until the bytes are full or the input ends; before each read it waits for it.
fn fill<R: Read>(source: &mut R, bytes: &mut [u8], wait: impl Fn(&R) -> Result<()>) -> Result<usize> {
    let mut length = 0;
    while length < bytes.len() {
        wait(source)?;
        match source.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error).context("cannot read the input"),
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one byte at a time.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            let count = self.0.len().min(bytes.len()).min(1);
            bytes[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    #[test]
    fn an_input_that_comes_in_pieces_fills_the_buffer() {
        let mut bytes = [0; 4];
        let mut slow = Slow(b"abcdef");
        assert_eq!(fill(&mut slow, &mut bytes, |_| Ok(())).unwrap(), 4);
        assert_eq!(&bytes, b"abcd");
        assert_eq!(fill(&mut slow, &mut bytes, |_| Ok(())).unwrap(), 2);
        assert_eq!(fill(&mut slow, &mut bytes, |_| Ok(())).unwrap(), 0);
    }
}
