//! An address that is freed twice would be handed out twice.
use vdk_iommu::{IovaAllocation, IovaAllocator};

fn free(allocator: &mut IovaAllocator, allocation: IovaAllocation) {
    let _ = allocator.free(allocation);
    let _ = allocator.free(allocation);
}

fn main() {
    let _ = free;
}
