//! The limit of locked memory, when the kernel says that memory is out.

use std::fs;

use rustix::process::{Resource, getrlimit};

use crate::address::{ByteLength, IovaRange};
use crate::dma::MapError;
use crate::locked_memory::{kib, may_lock_anything, remedy};

/// How much memory counts as locked, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accounting {
    /// What this process has locked, `VmLck`: type1.
    Process,
    /// What all processes of the user have pinned; those of this one are `VmPin`: iommufd.
    User,
}

/// Why the kernel said "out of memory" when `range` was mapped.
pub(super) fn explain(range: IovaRange, accounting: Accounting) -> MapError {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let limits = getrlimit(Resource::Memlock);
    judge(range, accounting, (limits.current, limits.maximum), &status)
}

/// `limits` are the one that holds and the one up to which it can be raised.
fn judge(
    range: IovaRange,
    accounting: Accounting,
    limits: (Option<u64>, Option<u64>),
    status: &str,
) -> MapError {
    let out_of_memory = MapError::System { range, error: std::io::ErrorKind::OutOfMemory };
    let (Some(limit), hard) = limits else { return out_of_memory };
    let field = match accounting {
        Accounting::Process => "VmLck:",
        Accounting::User => "VmPin:",
    };
    let in_use = kib(status, field).unwrap_or(0).saturating_mul(1024);
    let needed = in_use.saturating_add(range.length().as_u64());
    // Others of the same user may hold the rest.
    let limited = needed > limit || accounting == Accounting::User;
    if may_lock_anything(status) || !limited {
        return out_of_memory;
    }
    let enough = match accounting {
        Accounting::Process => needed,
        Accounting::User => needed.max(limit.saturating_add(range.length().as_u64())),
    };
    MapError::LockedMemory {
        needed: ByteLength::new(needed),
        in_use: ByteLength::new(in_use),
        limit: ByteLength::new(limit),
        fix: remedy(enough, hard),
        per_user: accounting == Accounting::User,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Iova;

    fn of(length: u64, accounting: Accounting, limit: Option<u64>, status: &str) -> String {
        let range = IovaRange::new(Iova::new(0x10_0000), ByteLength::new(length)).unwrap();
        judge(range, accounting, (limit, None), status).to_string()
    }

    #[test]
    fn the_limit_is_told_with_what_is_needed_and_the_command() {
        let status = "Name:\tx\nVmLck:\t    4096 kB\nVmPin:\t   12288 kB\nCapEff:\t0000000000000000\n";
        let text = of(60 << 20, Accounting::Process, Some(8 << 20), status);
        assert_eq!(
            text,
            "needs 64 MiB of locked memory, 4 MiB are in use and the limit is 8 MiB; in this shell: ulimit -l 65536"
        );
        let text = of(1 << 20, Accounting::User, Some(64 << 20), status);
        assert!(text.contains("needs 13 MiB") && text.contains("all processes of this user"), "{text}");
        assert!(text.contains("ulimit -l 66560"), "{text}");
        let range = IovaRange::new(Iova::new(0x10_0000), ByteLength::new(1 << 20)).unwrap();
        let limits = (Some(65536), Some(65536));
        let text = judge(range, Accounting::Process, limits, "CapEff:\t0000000000000000\n").to_string();
        assert!(
            text.ends_with("as root, for this shell: prlimit --pid $$ --memlock=1048576:1048576"),
            "{text}"
        );
    }

    #[test]
    fn without_a_limit_memory_is_out() {
        let free = "VmLck:\t0 kB\nCapEff:\t0000000000000000\n";
        for text in [
            of(4096, Accounting::Process, None, free),
            of(4096, Accounting::Process, Some(65536), free),
            of(1 << 30, Accounting::User, Some(65536), "CapEff:\t000001ffffffffff\n"),
        ] {
            assert!(text.contains("out of memory"), "{text}");
        }
    }
}
