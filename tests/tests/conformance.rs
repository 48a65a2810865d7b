//! The conformance suite on every emulated device, in each of its forms.

use std::sync::{Arc, Mutex, PoisonError};

use vdk_firmware_stubs::{StubKind, StubNode, StubOptions};
use vdk_hal::function::PciNode;
use vdk_tests::conformance::Target;

/// One suite at a time: it counts the files that the process has open.
static ALONE: Mutex<()> = Mutex::new(());

fn conforms(kind: StubKind, options: StubOptions) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let node = StubNode::new(kind, options).expect("the options are valid");
    let shared: Arc<dyn PciNode> = node.clone();
    let failures = Target::new(shared).failures();
    assert!(failures.is_empty(), "stub:{kind}:\n  {}", failures.join("\n  "));
    assert_eq!(node.iommu().faults(), [], "the suite made no device access memory");
}

#[test]
fn edu_conforms() {
    conforms(StubKind::Edu, StubOptions::default());
}

#[test]
fn ioat_conforms() {
    conforms(StubKind::Ioat, StubOptions::default());
}

#[test]
fn ioat_without_mapped_doorbells_and_with_fixed_vectors_conforms() {
    let options = StubOptions {
        mapped_doorbells: false,
        fixed_vectors: true,
        no_soft_reset: true,
        channels: 4,
        ..StubOptions::default()
    };
    conforms(StubKind::Ioat, options);
}

#[test]
fn a_function_that_is_gone_fails_the_suite() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let node = StubNode::new(StubKind::Ioat, StubOptions::default()).expect("the options are valid");
    node.remove();
    let failures = Target::new(node).failures();
    assert!(failures.len() > 20, "only {failures:?}");
}

#[test]
fn nvme_conforms() {
    conforms(StubKind::Nvme, StubOptions::default());
}

#[test]
fn nvme_without_mapped_doorbells_and_with_fixed_vectors_conforms() {
    let options = StubOptions {
        mapped_doorbells: false,
        fixed_vectors: true,
        no_soft_reset: true,
        queue_pairs: 1,
        ..StubOptions::default()
    };
    conforms(StubKind::Nvme, options);
}
