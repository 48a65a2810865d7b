//! Blocks moved in order: several requests in flight, taken back in the order of their
//! blocks.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use vdk_driver::block::{BlockDevice, BlockEnd, BlockError, BlockOperation, BlockRequest, RequestId};
use vdk_driver::iommu::{DmaBuffer, DmaPool, PoolOptions};
use vdk_driver::nvme::{BlockQueue, CompletionMode, Controller, Namespace, QueueOptions};

use crate::signal::StopRequest;

/// How much one request moves.
pub(super) const CHUNK: u64 = 1 << 20;
/// How many requests are in flight.
const REQUESTS: usize = 8;
/// How long a wait lasts before it looks whether the user wants to stop.
const SLICE: Duration = Duration::from_millis(100);
/// How long a request may take.
const LIMIT: Duration = Duration::from_secs(30);

/// A namespace that is read or written from one end to the other.
pub(super) struct Stream {
    // In the order in which they are to be dropped: the queue first.
    queue: BlockQueue<DmaBuffer>,
    buffers: Vec<DmaBuffer>,
    /// What has ended out of order.
    ended: BTreeMap<u64, BlockEnd<DmaBuffer>>,
    /// Requests in flight, oldest first, with their blocks.
    posted: std::collections::VecDeque<RequestId>,
    stop: StopRequest,
    _pool: DmaPool,
}

impl Stream {
    /// Opens a queue and takes buffers. It stops on `stop`, and when something happens to the
    /// controller.
    pub(super) fn open(controller: &Controller, namespace: Namespace, stop: StopRequest) -> Result<Self> {
        let chunk = usize::try_from(CHUNK)?;
        let slabs = REQUESTS.div_ceil(2);
        let mut pool = DmaPool::new(controller.domain(), PoolOptions { slabs, ..PoolOptions::default() })?;
        let buffers = (0..REQUESTS).map(|_| pool.take(chunk)).collect::<Result<Vec<_>, _>>()?;
        let limit = controller.facts().queue_entries - 1;
        let options = QueueOptions { depth: limit.min(64), time_limit: LIMIT, ..QueueOptions::default() };
        let queue = BlockQueue::open(controller, namespace, options, CompletionMode::Adaptive)?;
        Ok(Self {
            queue,
            buffers,
            ended: BTreeMap::new(),
            posted: std::collections::VecDeque::new(),
            stop: stop.watching(controller.device_events()),
            _pool: pool,
        })
    }

    /// What ends it.
    pub(super) fn stop_request(&self) -> &StopRequest {
        &self.stop
    }

    /// A buffer of [`CHUNK`] bytes; `None` when all are in flight.
    pub(super) fn buffer(&mut self) -> Option<DmaBuffer> {
        self.buffers.pop()
    }

    /// Gives a buffer back.
    pub(super) fn put(&mut self, buffer: DmaBuffer) {
        self.buffers.push(buffer);
    }

    /// Whether requests are in flight.
    pub(super) fn is_busy(&self) -> bool {
        !self.posted.is_empty()
    }

    /// Submits a request.
    pub(super) fn submit(
        &mut self,
        operation: BlockOperation,
        lba: u64,
        blocks: u64,
        memory: Option<DmaBuffer>,
    ) -> Result<()> {
        let id = self.queue.submit(BlockRequest { operation, lba, blocks, memory })?;
        self.queue.commit()?;
        self.posted.push_back(id);
        Ok(())
    }

    /// Waits for the oldest request and gives its memory back.
    pub(super) fn next(&mut self) -> Result<Option<DmaBuffer>> {
        let Some(id) = self.posted.front().copied() else { bail!("nothing is in flight") };
        loop {
            let ended = &mut self.ended;
            if let Err(error) = self.queue.poll(&mut |end| drop(ended.insert(end.id.0, end))) {
                return Err(self.give_up(error));
            }
            if let Some(end) = self.ended.remove(&id.0) {
                self.posted.pop_front();
                end.result?;
                return Ok(end.memory);
            }
            self.stop.check(LEFT)?;
            match self.queue.wait(SLICE) {
                Ok(()) | Err(BlockError::TimedOut(_)) => {}
                Err(error) => return Err(self.give_up(error)),
            }
        }
    }

    /// Resets the controller so that it lets go of the buffers.
    fn give_up(&mut self, error: BlockError) -> anyhow::Error {
        let ended = &mut self.ended;
        let recovered = self.queue.recover(&mut |end| drop(ended.insert(end.id.0, end)));
        self.posted.clear();
        match recovered {
            Ok(()) => anyhow!(error).context("the controller was reset"),
            Err(lost) => anyhow!(error).context(format!("the controller did not come back: {lost}")),
        }
    }

    /// Runs one request that has no memory.
    pub(super) fn run(&mut self, operation: BlockOperation, lba: u64, blocks: u64) -> Result<()> {
        self.submit(operation, lba, blocks, None)?;
        self.next().map(|_| ())
    }

    /// Reads blocks in order and gives the bytes to `take`.
    pub(super) fn read(
        &mut self,
        namespace: &Namespace,
        lba: u64,
        blocks: u64,
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let per_chunk = CHUNK >> namespace.block_exponent();
        let (mut next, end) = (lba, lba + blocks);
        let mut lengths = std::collections::VecDeque::new();
        let mut bytes = vec![0; usize::try_from(CHUNK)?];
        while next < end || self.is_busy() {
            while next < end
                && let Some(buffer) = self.buffer()
            {
                self.stop.check(LEFT)?;
                let count = per_chunk.min(end - next);
                self.submit(BlockOperation::Read, next, count, Some(buffer))?;
                lengths.push_back(usize::try_from(count << namespace.block_exponent())?);
                next += count;
            }
            let (buffer, length) = (self.next()?, lengths.pop_front().unwrap_or(0));
            let buffer = buffer.context("a read without memory")?;
            buffer.read(0, &mut bytes[..length])?;
            self.put(buffer);
            take(&bytes[..length])?;
        }
        Ok(())
    }
}

/// What an interruption leaves.
pub(super) const LEFT: &str = "the device was stopped; blocks that were moved before stay moved";

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vdk_driver::hal::function::PciNode;
    use vdk_driver::kit::Session;
    use vdk_driver::nvme::ControllerOptions;
    use vdk_firmware_stubs::{StubKind, StubNode, StubOptions};

    use super::*;

    #[test]
    fn a_release_request_and_a_removal_end_the_stream() {
        for removed in [false, true] {
            let node = StubNode::new(StubKind::Nvme, StubOptions::default()).unwrap();
            let opened: Arc<dyn PciNode> = node.clone();
            let session = Session::open(&opened, "test").unwrap();
            let controller = Controller::start(session, ControllerOptions::default()).unwrap();
            let namespace = controller.namespace(1).unwrap();
            let before = controller.domain().statistics().mappings;
            let mut stream = Stream::open(&controller, namespace, StopRequest::listen().unwrap()).unwrap();
            let mut bytes = 0;
            let ended = stream.read(&namespace, 0, namespace.blocks(), |part| {
                bytes += part.len();
                if removed {
                    node.remove();
                } else {
                    node.request_release();
                }
                Ok(())
            });
            let error = ended.unwrap_err().to_string();
            assert!(bytes < 64 << 20, "it read on to the end");
            let text = if removed { "removed" } else { "asked for the device back" };
            assert!(error.contains(text), "{error}");
            drop(stream);
            controller.stop().unwrap();
            assert_eq!(controller.domain().statistics().mappings, before, "memory is left behind");
        }
    }
}
