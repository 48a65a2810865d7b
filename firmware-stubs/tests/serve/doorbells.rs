//! A page of doorbells that a client maps.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use vdk_firmware_stubs::shell::{BarProfile, DeviceModel, Profile, Surroundings, Work};
use vdk_firmware_stubs::{DriverFaultKind, StubNode};
use vdk_hal::address::{BarIndex, ByteLength};
use vdk_hal::bar::{BarKind, Liveness, MappedArea, RegionInfo};
use vdk_hal::function::PciIdentity;
use vdk_hal::memory::{MemoryError, Pages, SharedMemory};
use vdk_hal::mmio::{Kick, Width};
use vdk_hal::vfio_user::message::{Command, RegionDescription};
use vdk_iommu::soft::BusMaster;
use zerocopy::IntoBytes;

use crate::harness::*;

/// A device with a page of registers and a page with a doorbell.
struct Bell {
    page: Option<SharedMemory>,
    heard: Arc<AtomicU32>,
}

impl DeviceModel for Bell {
    fn open(&mut self, kick: &Arc<Kick>) -> Result<Vec<(BarIndex, MappedArea)>, MemoryError> {
        // At the same place in the file as in the BAR.
        let memory = SharedMemory::allocate(ByteLength::new(0x2000), Pages::Base)?;
        let page = memory.slice(0x1000, 0x1000).expect("it is inside");
        self.page = Some(page.clone());
        let area = MappedArea { offset: 0x1000, memory: page, kick: Some(Arc::clone(kick)) };
        Ok(vec![(BarIndex::new(0).expect("there is a BAR 0"), area)])
    }

    fn read(
        &mut self,
        _bar: BarIndex,
        _offset: u64,
        _width: Width,
        _surroundings: &mut Surroundings<'_>,
    ) -> Result<u64, DriverFaultKind> {
        Ok(u64::from(self.heard.load(Ordering::Relaxed)))
    }

    fn write(
        &mut self,
        _bar: BarIndex,
        _offset: u64,
        _width: Width,
        _value: u64,
        _surroundings: &mut Surroundings<'_>,
    ) -> Result<(), DriverFaultKind> {
        Ok(())
    }

    fn reset(&mut self) {}

    fn work(&mut self, _bus: &mut BusMaster, _surroundings: &mut Surroundings<'_>) -> Work {
        let rung = self.page.as_ref().and_then(|page| page.load::<u32>(8, Ordering::Acquire).ok());
        let rung = rung.unwrap_or_default();
        if self.heard.swap(rung, Ordering::Relaxed) == rung { Work::Idle } else { Work::Busy }
    }
}

#[test]
fn a_doorbell_in_a_mapped_page_is_heard_without_a_message() {
    let heard = Arc::new(AtomicU32::new(0));
    let bar = BarIndex::new(0).unwrap();
    let profile = Profile {
        name: "stub:bell".to_owned(),
        identity: PciIdentity { vendor: 0x1234, device: 1, ..PciIdentity::default() },
        bars: vec![BarProfile {
            index: bar,
            kind: BarKind::Memory32,
            prefetchable: false,
            size: ByteLength::new(0x2000),
        }],
        intx: false,
        msi: None,
        msix: None,
        power: None,
        express: None,
        registers: Vec::new(),
        serial_number: 0,
    };
    let model = Bell { page: None, heard: Arc::clone(&heard) };
    let served = serve_node(StubNode::with_model(profile, Box::new(model), options()).unwrap());
    let client = served.client();
    client.enable();

    let ask = |room: u32| {
        let request = RegionDescription { argument_size: room, ..RegionDescription::default() };
        client.call(Command::DEVICE_GET_REGION_INFO, &[request.as_bytes()])
    };
    assert_eq!(ask(31).err(), Some(EINVAL));
    let short = ask(32).unwrap();
    let (fixed, rest) = short.parse::<RegionDescription>().unwrap();
    assert_eq!((fixed.argument_size, fixed.flags, fixed.capability_offset), (64, 0xf, 32));
    assert!(rest.is_empty(), "there was no room");
    let reply = ask(64).unwrap();
    let region = RegionInfo::parse(&reply.payload).unwrap();
    assert_eq!((region.size, region.file_offset), (0x2000, 0));
    let area = region.sparse.unwrap()[0];
    assert_eq!((area.offset, area.length), (0x1000, 0x1000));
    let file = File::from(reply.files.into_iter().next().unwrap());
    let page = SharedMemory::map_guarded(&file, 0x1000, ByteLength::new(0x1000), &Liveness::new()).unwrap();

    for value in [1, 2, 0xdead_beef] {
        // Long enough for the device thread to be asleep.
        std::thread::sleep(std::time::Duration::from_millis(20));
        page.store::<u32>(8, value, Ordering::Release).unwrap();
        wait_until("the doorbell", || heard.load(Ordering::Relaxed) == value);
        assert_eq!(client.read32(0), value);
    }
    client.write32(0x1008, 77);
    wait_until("the doorbell by a message", || heard.load(Ordering::Relaxed) == 77);
}
