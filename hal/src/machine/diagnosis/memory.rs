//! How much memory may be locked for devices, and huge pages.

use super::{Finding, count};
use crate::address::ByteLength;
use crate::locked_memory::{kib, may_lock_anything, remedy};
use crate::machine::Machine;

impl Machine {
    /// The limit of locked memory, which memory that devices reach counts against.
    pub(super) fn locked_memory(&self) -> Finding {
        const SUBJECT: &str = "locked memory";
        let status = self.text("/proc/self/status").unwrap_or_default();
        let in_use = kib(&status, "VmLck:").unwrap_or(0) + kib(&status, "VmPin:").unwrap_or(0);
        let in_use = ByteLength::new(in_use.saturating_mul(1024));
        let limits = self.text("/proc/self/limits").unwrap_or_default();
        let Some((soft, hard)) = parse_limit(&limits) else {
            return Finding::warning(SUBJECT, "the limit is not known", "ulimit -l");
        };
        if may_lock_anything(&status) {
            return Finding::ok(
                SUBJECT,
                format!("{in_use} in use; this user may lock any amount (CAP_IPC_LOCK)"),
            );
        }
        let Some(limit) = soft else { return Finding::ok(SUBJECT, format!("{in_use} in use, no limit")) };
        let (shown, typical) = (ByteLength::new(limit), ByteLength::new(TYPICAL));
        let text = format!(
            "{in_use} in use, the limit is {shown}; a driver typically needs {typical} for rings and buffers"
        );
        if limit >= TYPICAL {
            return Finding::ok(SUBJECT, text);
        }
        let kib = TYPICAL / 1024;
        let here = remedy(TYPICAL, hard);
        let fix = format!(
            "{here}; for good: echo 'USER - memlock {kib}' > /etc/security/limits.d/vdk.conf and log in again; for a \
             service of systemd: LimitMEMLOCK=64M"
        );
        let finding = if limit < LEAST { Finding::problem } else { Finding::warning };
        finding(SUBJECT.to_owned(), text, fix)
    }

    /// The huge pages that are set aside, by size and by node of memory.
    pub(super) fn huge_pages(&self) -> Finding {
        const SUBJECT: &str = "huge pages";
        let pools = self.pools("/sys/kernel/mm/hugepages");
        if pools.is_empty() {
            return Finding::ok(SUBJECT, "this kernel has none; buffers use ordinary pages");
        }
        let reserve = "for larger buffers: echo 64 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
        let reserved: Vec<&Pool> = pools.iter().filter(|pool| pool.reserved > 0).collect();
        if reserved.is_empty() {
            let sizes: Vec<String> = pools.iter().map(|pool| pool.size.to_string()).collect();
            let text = format!(
                "none reserved, {} would be possible; buffers use ordinary pages",
                sizes.join(" and ")
            );
            return Finding::ok(SUBJECT, text).with_fix(reserve);
        }
        let mut parts = Vec::new();
        for pool in reserved {
            let Pool { size, reserved, free, .. } = pool;
            let mut part = format!("{reserved} of {size}, {free} free");
            let nodes = self.pools_of_nodes(&pool.name);
            if nodes.len() > 1 {
                part.push_str(&format!(" ({})", nodes.join(", ")));
            }
            parts.push(part);
        }
        Finding::ok(SUBJECT, parts.join("; "))
    }

    fn pools(&self, folder: &str) -> Vec<Pool> {
        let pool = |name: String| {
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let number = |file: &str| self.text(&format!("{folder}/{name}/{file}"))?.parse().ok();
            let size = ByteLength::new(kib.checked_mul(1024)?);
            Some(Pool { size, reserved: number("nr_hugepages")?, free: number("free_hugepages")?, name })
        };
        let mut pools: Vec<Pool> = self.names(folder).into_iter().filter_map(pool).collect();
        pools.sort_by_key(|pool| pool.size);
        pools
    }

    fn pools_of_nodes(&self, name: &str) -> Vec<String> {
        let nodes = self.names("/sys/devices/system/node");
        let part = |node: &String| {
            let number = node.strip_prefix("node")?.parse::<u32>().ok()?;
            let pools = self.pools(&format!("/sys/devices/system/node/{node}/hugepages"));
            let pool = pools.iter().find(|pool| pool.name == name)?;
            Some(format!("{} on node {number}", count(usize::try_from(pool.reserved).ok()?, "page")))
        };
        nodes.iter().filter_map(part).collect()
    }
}

/// The huge pages of one size.
struct Pool {
    name: String,
    size: ByteLength,
    reserved: u64,
    free: u64,
}

/// The soft and the hard limit of locked memory in bytes; `None` inside is no limit.
fn parse_limit(limits: &str) -> Option<(Option<u64>, Option<u64>)> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    let mut words = line.split_ascii_whitespace();
    let mut limit = || match words.next()? {
        "unlimited" => Some(None),
        bytes => bytes.parse().ok().map(Some),
    };
    Some((limit()?, limit()?))
}

/// What a driver with a few queues and buffers of some MiB needs.
const TYPICAL: u64 = 64 << 20;
/// With less than this not even the rings of most drivers fit.
const LEAST: u64 = 1 << 20;
