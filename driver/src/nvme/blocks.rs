//! A queue pair and a namespace as a block device.

use core::time::Duration;
use std::collections::VecDeque;

use vdk_descriptors::nvme::DatasetRange;
use vdk_descriptors::sg::SgEntry;
use vdk_hal::address::ByteLength;

use super::bring_up::ControllerFacts;
use super::command::{CommandError, RejectReason, WaitError};
use super::error::{OpenQueueError, QueueError, RecoverError, ResetError};
use super::namespace::Namespace;
use super::pair::QueuePair;
use super::{CompletionMode, Controller, QueueOptions};
use crate::block::{
    BlockDevice, BlockEnd, BlockError, BlockFailure, BlockGeometry, BlockMemory, BlockOperation,
    BlockRequest, RefuseReason, Refused, RequestId,
};

/// The most blocks that one command names.
const MAX_BLOCKS: u64 = 0x1_0000;

/// A namespace behind one queue pair. Requests of any length are taken: what is longer than
/// one command carries is split, and what does not fit the queue yet follows when there is
/// room. Submitting and polling allocate nothing, but for the text of an error.
///
/// Dropping it deletes the queues first, then drops the memory of what is outstanding; where
/// nothing stops the controller, that memory is never freed.
#[derive(Debug)]
pub struct BlockQueue<M> {
    pair: QueuePair<Part>,
    namespace: Namespace,
    geometry: BlockGeometry,
    mode: CompletionMode,
    requests: Box<[Option<Request<M>>]>,
    free: Vec<u32>,
    /// Requests of which parts are still to be submitted, oldest first.
    unfinished: VecDeque<u32>,
    /// Requests whose next part was rejected while nothing of them is in flight.
    rejected: Vec<u32>,
    next_id: u64,
}

/// A request in flight.
#[derive(Debug)]
struct Request<M> {
    id: RequestId,
    operation: BlockOperation,
    lba: u64,
    blocks: u64,
    /// Blocks that were submitted.
    submitted: u64,
    /// Commands that have not ended.
    commands: u32,
    failure: Option<(u64, u64, PartError)>,
    memory: Option<M>,
}

/// A command: which request, and which part of it.
#[derive(Clone, Copy, Debug)]
struct Part {
    request: u32,
    lba: u64,
    blocks: u64,
}

#[derive(Debug)]
enum PartError {
    Command(CommandError),
    Rejected(RejectReason),
}

impl<M: BlockMemory> BlockQueue<M> {
    /// Opens a queue pair of `controller` for `namespace`.
    ///
    /// # Errors
    ///
    /// [`OpenQueueError`].
    pub fn open(
        controller: &Controller,
        namespace: Namespace,
        options: QueueOptions,
        mode: CompletionMode,
    ) -> Result<Self, OpenQueueError> {
        let pair = controller.queue_pair(options)?;
        let depth = pair.depth();
        let geometry = geometry_of(controller.facts(), &namespace, pair.max_transfer(), depth);
        Ok(Self {
            pair,
            namespace,
            geometry,
            mode,
            requests: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            // CAST: a depth of at most 65,535.
            unfinished: VecDeque::with_capacity(depth as usize),
            // CAST: as above.
            rejected: Vec::with_capacity(depth as usize),
            next_id: 0,
        })
    }

    /// The queue pair.
    #[must_use]
    pub fn statistics(&self) -> super::Statistics {
        self.pair.statistics()
    }

    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn check(&self, request: &BlockRequest<M>) -> Result<(), RefuseReason> {
        let (operation, geometry) = (request.operation, &self.geometry);
        let read_only = geometry.read_only && operation.changes();
        let is_there = match operation {
            BlockOperation::WriteZeroes => geometry.write_zeroes,
            BlockOperation::Discard => geometry.discard,
            _ => true,
        };
        if read_only || !is_there {
            return Err(RefuseReason::NotSupported { operation, read_only });
        }
        if operation == BlockOperation::Flush {
            return Ok(());
        }
        let (lba, blocks, size) = (request.lba, request.blocks, geometry.blocks);
        if blocks == 0 || lba >= size || blocks > size - lba {
            return Err(RefuseReason::Range { lba, blocks, size });
        }
        if operation.has_memory() {
            let needed = blocks << self.namespace.block_exponent();
            let length = request.memory.as_ref().map_or(0, |memory| memory.length().as_u64());
            if length < needed {
                return Err(RefuseReason::Memory { blocks, needed, length });
            }
            let start = request.memory.as_ref().and_then(|memory| memory.segment(0, 1).ok());
            let alignment = geometry.alignment.as_u64();
            if let Some(start) = start.filter(|start| !start.iova.is_aligned_to(geometry.alignment)) {
                return Err(RefuseReason::Unaligned { iova: start.iova.as_u64(), alignment });
            }
        }
        Ok(())
    }

    /// Submits parts as long as the queue has room.
    fn feed(&mut self) {
        while self.pair.free() > 0
            && self.pair.failure().is_none()
            && let Some(index) = self.unfinished.front().copied()
        {
            let (pair, namespace) = (&mut self.pair, &self.namespace);
            // PANIC, CAST: the indices in the queue are those of requests in flight.
            let Some(request) = self.requests[index as usize].as_mut() else {
                self.unfinished.pop_front();
                continue;
            };
            if !request.submit_part(index, pair, namespace) {
                if request.commands == 0 {
                    self.rejected.push(index);
                }
                self.unfinished.pop_front();
            }
        }
    }

    /// Notes the end of a part, and gives the request back with its last one.
    fn part_ended(
        requests: &mut [Option<Request<M>>],
        free: &mut Vec<u32>,
        part: Part,
        result: Result<u32, CommandError>,
        ended: &mut dyn FnMut(BlockEnd<M>),
    ) -> u32 {
        // PANIC, CAST: parts carry the indices of requests in flight.
        let place = &mut requests[part.request as usize];
        let Some(request) = place else { return 0 };
        request.commands -= 1;
        if let Err(error) = result {
            request.failure.get_or_insert((part.lba, part.blocks, PartError::Command(error)));
        }
        if request.commands > 0 || !request.is_submitted() {
            return 0;
        }
        Self::give_back(place, free, part.request, ended)
    }

    fn give_back(
        place: &mut Option<Request<M>>,
        free: &mut Vec<u32>,
        index: u32,
        ended: &mut dyn FnMut(BlockEnd<M>),
    ) -> u32 {
        let Some(request) = place.take() else { return 0 };
        free.push(index);
        let operation = request.operation;
        let result = match request.failure {
            None => Ok(()),
            Some((lba, blocks, error)) => {
                let error = match error {
                    PartError::Command(error) => error.into(),
                    PartError::Rejected(error) => error.into(),
                };
                Err(BlockFailure { operation, lba, blocks, error })
            }
        };
        ended(BlockEnd { id: request.id, result, memory: request.memory });
        1
    }

    /// Gives back requests none of whose parts is in flight although not all were submitted.
    fn give_up_unfinished(&mut self, error: CommandError, ended: &mut dyn FnMut(BlockEnd<M>)) {
        while let Some(index) = self.unfinished.pop_front() {
            // PANIC, CAST: as in `feed`.
            let place = &mut self.requests[index as usize];
            if let Some(request) = place {
                let rest = (request.lba + request.submitted, request.blocks - request.submitted);
                request.failure.get_or_insert((rest.0, rest.1, PartError::Command(error)));
            }
            Self::give_back(place, &mut self.free, index, ended);
        }
    }
}

impl<M> Drop for BlockQueue<M> {
    fn drop(&mut self) {
        if let Err(error) = self.pair.shut_down(&mut drop) {
            log::error!("{error}; the memory of the requests is lost");
            core::mem::forget(core::mem::take(&mut self.requests));
        }
    }
}

impl<M: BlockMemory> Request<M> {
    /// Whether nothing of it is left to be submitted: all was, or a part has failed.
    fn is_submitted(&self) -> bool {
        self.submitted >= self.blocks || self.failure.is_some()
    }

    /// Submits the next part. Returns whether more are to follow.
    fn submit_part(&mut self, index: u32, pair: &mut QueuePair<Part>, namespace: &Namespace) -> bool {
        if self.is_submitted() {
            return false;
        }
        let lba = self.lba + self.submitted;
        let most = match self.operation {
            BlockOperation::Read | BlockOperation::Write => {
                (pair.max_transfer().as_u64() >> namespace.block_exponent()).min(MAX_BLOCKS)
            }
            BlockOperation::Discard => u64::from(u32::MAX),
            BlockOperation::WriteZeroes | BlockOperation::Flush => MAX_BLOCKS,
        };
        let blocks = (self.blocks - self.submitted).min(most.max(1));
        let part = Part { request: index, lba, blocks };
        // The cut above keeps it within 32 bits.
        let count = u32::try_from(blocks).unwrap_or(u32::MAX);
        let submitted = match self.operation {
            BlockOperation::Read => self
                .entry(blocks, namespace)
                .and_then(|entry| Ok(pair.read(namespace, lba, &[entry], part)?)),
            BlockOperation::Write => self
                .entry(blocks, namespace)
                .and_then(|entry| Ok(pair.write(namespace, lba, &[entry], part)?)),
            BlockOperation::Flush => pair.flush(namespace, part).map_err(PartError::from),
            BlockOperation::WriteZeroes => {
                pair.write_zeroes(namespace, lba, count, true, part).map_err(PartError::from)
            }
            BlockOperation::Discard => {
                let range = DatasetRange { attributes: 0, blocks: count, starting_lba: lba };
                pair.deallocate(namespace, &[range], part).map_err(PartError::from)
            }
        };
        match submitted {
            Ok(_) => {
                self.submitted += blocks;
                self.commands += 1;
            }
            Err(error) => self.failure = Some((lba, blocks, error)),
        }
        !self.is_submitted()
    }

    /// The memory of the next part.
    fn entry(&self, blocks: u64, namespace: &Namespace) -> Result<SgEntry, PartError> {
        let (offset, length) =
            (self.submitted << namespace.block_exponent(), blocks << namespace.block_exponent());
        let bounds = (usize::try_from(offset), usize::try_from(length));
        let part = match (&self.memory, bounds) {
            (Some(memory), (Ok(offset), Ok(length))) => memory.segment(offset, length).ok(),
            _ => None,
        };
        let too_short = RejectReason::PartialBlock { length, block: namespace.block_length().as_u64() };
        part.map(|part| SgEntry { iova: part.iova, length: part.length })
            .ok_or(PartError::Rejected(too_short))
    }
}

impl<T> From<super::Rejected<T>> for PartError {
    fn from(rejected: super::Rejected<T>) -> Self {
        Self::Rejected(rejected.reason)
    }
}

impl<M: BlockMemory> BlockDevice<M> for BlockQueue<M> {
    fn geometry(&self) -> BlockGeometry {
        self.geometry
    }

    fn submit(&mut self, request: BlockRequest<M>) -> Result<RequestId, Refused<M>> {
        if let Some(failure) = self.pair.failure() {
            return Err(Refused { request, reason: failed(failure.clone()).into() });
        }
        if let Err(reason) = self.check(&request) {
            return Err(Refused { request, reason });
        }
        let Some(index) = self.free.pop() else {
            return Err(Refused { request, reason: RefuseReason::Full { requests: self.geometry.requests } });
        };
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let blocks = if request.operation == BlockOperation::Flush { 1 } else { request.blocks };
        // PANIC, CAST: free indices are below the number of requests.
        self.requests[index as usize] = Some(Request {
            id,
            operation: request.operation,
            lba: request.lba,
            blocks,
            submitted: 0,
            commands: 0,
            failure: None,
            memory: request.memory,
        });
        self.unfinished.push_back(index);
        self.feed();
        Ok(id)
    }

    fn commit(&mut self) -> Result<(), BlockError> {
        self.pair.commit().map_err(failed)
    }

    fn outstanding(&self) -> u32 {
        // CAST: as many as there are requests, a 32-bit number.
        self.geometry.requests - u32::try_from(self.free.len()).unwrap_or(self.geometry.requests)
    }

    fn poll(&mut self, ended: &mut dyn FnMut(BlockEnd<M>)) -> Result<u32, BlockError> {
        let (requests, free) = (&mut self.requests, &mut self.free);
        let mut count = 0;
        let budget = self.pair.outstanding();
        let polled = self.pair.poll(budget, |completion| {
            count += Self::part_ended(requests, free, completion.owner, completion.result, ended);
        });
        polled.map_err(failed)?;
        self.feed();
        while let Some(index) = self.rejected.pop() {
            // PANIC, CAST: as in `feed`.
            count += Self::give_back(&mut self.requests[index as usize], &mut self.free, index, ended);
        }
        self.pair.commit().and_then(|()| self.pair.look_after()).map_err(failed)?;
        Ok(count)
    }

    fn wait(&mut self, within: Duration) -> Result<(), BlockError> {
        self.pair.wait(self.mode, within).map_err(|error| match error {
            WaitError::TimedOut(error) => error.into(),
            error => BlockError::Failed(error.into()),
        })
    }

    fn recover(&mut self, ended: &mut dyn FnMut(BlockEnd<M>)) -> Result<(), BlockError> {
        let (requests, free) = (&mut self.requests, &mut self.free);
        // What was not submitted is not submitted any more.
        for index in &self.unfinished {
            // PANIC, CAST: as in `feed`.
            if let Some(request) = requests[*index as usize].as_mut() {
                let rest = (request.lba + request.submitted, request.blocks - request.submitted);
                request.failure.get_or_insert((rest.0, rest.1, PartError::Command(CommandError::Reset)));
            }
        }
        let recovered = self.pair.recover(|completion| {
            Self::part_ended(requests, free, completion.owner, completion.result, ended);
        });
        match recovered {
            Err(RecoverError::Reset(error @ ResetError::NotStopped(_))) => {
                Err(BlockError::Lost(error.into()))
            }
            recovered => {
                let rejected = core::mem::take(&mut self.rejected);
                self.unfinished.extend(rejected);
                self.give_up_unfinished(CommandError::Reset, ended);
                recovered.map_err(|error| BlockError::Failed(error.into()))
            }
        }
    }
}

fn geometry_of(
    facts: &ControllerFacts,
    namespace: &Namespace,
    max_transfer: ByteLength,
    requests: u32,
) -> BlockGeometry {
    BlockGeometry {
        block_length: namespace.block_length(),
        blocks: namespace.blocks(),
        max_transfer,
        alignment: ByteLength::new(4),
        requests,
        read_only: namespace.is_read_only(),
        write_cache: facts.write_cache,
        write_zeroes: facts.commands.write_zeroes(),
        discard: facts.commands.dataset_management(),
    }
}

fn failed(error: QueueError) -> BlockError {
    BlockError::Failed(error.into())
}
