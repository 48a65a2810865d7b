//! Requests that come again because their answer was lost. They change nothing.

use vdk_descriptors::roce::{Extension, Operation, Packet};

use super::Responder;
use super::checks::remote_rights;
use crate::roce::memory::{Memory, Reach};

impl Responder {
    /// Answers the request at `psn`, which was carried out before.
    pub(super) fn duplicate(&mut self, psn: u64, packet: &Packet<'_>, memory: &impl Memory) {
        match (packet.bth.opcode.operation(), packet.extension) {
            (Operation::Send | Operation::Write, _) => {
                self.responses.acknowledge_again(self.acknowledged, self.finished);
            }
            (Operation::ReadRequest, Extension::Remote(reth)) => {
                // The memory is read anew, which the queue pair may allow no longer.
                if !self.settings.rights.allow(remote_rights(Operation::ReadRequest)) {
                    return;
                }
                let reach = Reach {
                    key: reth.key.0,
                    address: reth.address,
                    length: reth.length,
                    rights: remote_rights(Operation::ReadRequest),
                    domain: self.settings.domain,
                };
                // A key that died meanwhile gives no data, and no error either: the request
                // was good when it was new.
                if reth.length == 0 || memory.check(&reach).is_ok() {
                    self.responses.read_again(psn, &reth, self.settings.mtu);
                }
            }
            (Operation::CompareSwap | Operation::FetchAdd, _) => self.responses.atomic_again(psn),
            _ => {}
        }
    }
}
