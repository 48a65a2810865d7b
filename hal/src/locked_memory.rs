//! The limit of locked memory, which memory that devices reach counts against.

/// The kibibytes of a field of `/proc/self/status`, such as `VmLck:`.
pub(crate) fn kib(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Whether the limit does not hold, by `/proc/self/status`: the process has `CAP_IPC_LOCK`.
pub(crate) fn may_lock_anything(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & CAP_IPC_LOCK != 0)
}

/// The command that raises the limit to so many bytes for a shell and what it starts. `hard` is
/// the limit that only root can raise; `None` is no limit.
pub(crate) fn remedy(bytes: u64, hard: Option<u64>) -> String {
    let kib = bytes.div_ceil(1024);
    match hard {
        Some(hard) if hard < bytes => {
            let bytes = kib.saturating_mul(1024);
            format!("as root, for this shell: prlimit --pid $$ --memlock={bytes}:{bytes}")
        }
        _ => format!("in this shell: ulimit -l {kib}"),
    }
}

/// Bit 14 in Linux's `include/uapi/linux/capability.h`.
const CAP_IPC_LOCK: u64 = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_may_not_raise_the_limit_is_told_what_root_can_do() {
        assert_eq!(remedy(4097, None), "in this shell: ulimit -l 5");
        assert_eq!(remedy(4096, Some(4096)), "in this shell: ulimit -l 4");
        let root = "as root, for this shell: prlimit --pid $$ --memlock=5120:5120";
        assert_eq!(remedy(4097, Some(4096)), root);
    }

    #[test]
    fn fields_and_capabilities_are_read_from_the_status() {
        let status = "Name:\tx\nVmLck:\t    4096 kB\nCapEff:\t0000000000004000\n";
        assert_eq!((kib(status, "VmLck:"), kib(status, "VmPin:")), (Some(4096), None));
        assert!(may_lock_anything(status) && !may_lock_anything("CapEff:\t000000000000bfff\n"));
    }
}
