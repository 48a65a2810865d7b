//! The cases, in one file for each device or subject.

mod bind;
mod conformance;
mod edu;
mod ioat;
mod nvme;
mod vfio;
mod vfio_dma;
mod vfio_process;
mod vfio_reset;
mod vfio_virtual;

use anyhow::{Context, Result};

use super::Case;

/// Every table of cases.
const TABLES: &[&[Case]] = &[
    bind::CASES,
    conformance::CASES,
    edu::CASES,
    ioat::CASES,
    nvme::CASES,
    vfio::CASES,
    vfio_dma::CASES,
    vfio_process::CASES,
    vfio_reset::CASES,
    vfio_virtual::CASES,
];

/// Every case.
pub fn all() -> impl Iterator<Item = &'static Case> {
    TABLES.iter().copied().flatten()
}

/// The case with a name.
///
/// # Errors
///
/// When there is none.
pub fn find(name: &str) -> Result<&'static Case> {
    all()
        .find(|case| case.name == name)
        .with_context(|| format!("there is no case {name:?}; --list shows them"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_cases_have_one_name() {
        let names: BTreeSet<&str> = all().map(|case| case.name).collect();
        assert_eq!(names.len(), all().count());
        assert!(find("no-such-case").is_err());
    }
}
