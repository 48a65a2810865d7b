use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::config::{ConfigSpace, capabilities, identity};

/// A folder that looks like `/sys`, removed when dropped.
struct FakeSysfs(PathBuf);

impl FakeSysfs {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("vdk-sysfs-{}-{number}", std::process::id()));
        fs::create_dir_all(path.join("devices")).unwrap();
        Self(path)
    }

    fn devices(&self) -> PathBuf {
        self.0.join("devices")
    }

    fn file(&self, address: &str, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.devices().join(address).join(name), content).unwrap();
    }

    /// A network function at `address` with the files that every function has.
    fn function(&self, address: &str) {
        fs::create_dir_all(self.devices().join(address)).unwrap();
        for (name, content) in [
            ("vendor", "0x8086\n"),
            ("device", "0x0b25\n"),
            ("class", "0x020000\n"),
            ("revision", "0x04\n"),
            ("subsystem_vendor", "0x1028\n"),
            ("subsystem_device", "0x0a01\n"),
            ("numa_node", "1\n"),
            ("enable", "1\n"),
            ("power_state", "D0\n"),
        ] {
            self.file(address, name, content);
        }
    }

    fn bind(&self, address: &str, driver: &str) {
        let target = self.0.join("drivers").join(driver);
        fs::create_dir_all(&target).unwrap();
        symlink(target, self.devices().join(address).join("driver")).unwrap();
    }

    fn group(&self, number: &str, members: &[&str]) {
        let group = self.0.join("iommu_groups").join(number);
        fs::create_dir_all(group.join("devices")).unwrap();
        for member in members {
            let device = self.devices().join(member);
            symlink(&device, group.join("devices").join(member)).unwrap();
            if device.exists() {
                symlink(&group, device.join("iommu_group")).unwrap();
            }
        }
    }

    fn read(&self, address: &str) -> Result<SysfsFunction, SysfsError> {
        SysfsFunction::read(&self.devices(), address.parse().unwrap())
    }
}

impl Drop for FakeSysfs {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

const ONE: &str = "0000:01:00.0";
const TWO: &str = "0000:01:00.1";

#[test]
fn a_function_is_read_with_everything_that_sysfs_knows() {
    let sysfs = FakeSysfs::new();
    sysfs.function(TWO);
    sysfs.function(ONE);
    sysfs.bind(ONE, "ixgbe");
    sysfs.group("7", &[TWO, ONE]);
    let listing = SysfsListing::read(&sysfs.devices()).unwrap();
    assert_eq!(listing.faults, []);
    let names: Vec<_> = listing.functions.iter().map(PciNode::name).collect();
    assert_eq!(names, [ONE, TWO], "by address");
    let one = &listing.functions[0];
    assert_eq!(one.identity.to_string(), "8086:0b25");
    assert_eq!((one.identity.class, one.identity.revision), (0x02_0000, 4));
    assert_eq!((one.identity.subsystem_vendor, one.identity.subsystem), (0x1028, 0x0a01));
    assert_eq!((one.driver.as_deref(), one.numa_node, one.enabled), (Some("ixgbe"), Some(1), Some(true)));
    assert_eq!(one.power_state.as_deref(), Some("D0"));
    let group = one.iommu_group.as_ref().unwrap();
    assert_eq!((group.number, group.without_iommu), (7, false));
    let members = [(ONE, Some("ixgbe")), (TWO, None)];
    let members = members.map(|(address, driver)| (address.parse().unwrap(), driver.map(str::to_owned)));
    assert_eq!(group.members, members);
}

#[test]
fn a_machine_without_pci_has_an_empty_listing() {
    let sysfs = FakeSysfs::new();
    let listing = SysfsListing::read(&sysfs.0.join("absent")).unwrap();
    assert!(listing.functions.is_empty() && listing.faults.is_empty());
    let file = sysfs.0.join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(SysfsListing::read(&file), Err(SysfsError::Read { .. })));
}

#[test]
fn one_malformed_function_does_not_hide_the_others() {
    let sysfs = FakeSysfs::new();
    for address in [ONE, TWO, "0000:02:00.0", "0000:03:00.0", "0000:04:00.0"] {
        sysfs.function(address);
    }
    sysfs.file(TWO, "vendor", "8086\n");
    sysfs.file("0000:02:00.0", "device", [0xff, 0xfe]);
    sysfs.file("0000:03:00.0", "class", "");
    fs::remove_file(sysfs.devices().join("0000:04:00.0").join("vendor")).unwrap();
    fs::create_dir(sysfs.devices().join("nonsense")).unwrap();
    let listing = SysfsListing::read(&sysfs.devices()).unwrap();
    assert_eq!(listing.functions.len(), 1);
    assert_eq!(listing.faults.len(), 5);
    let error = sysfs.read(TWO).unwrap_err().to_string();
    assert!(error.contains("vendor holds \"8086\" instead of a hexadecimal number"), "{error}");
}

#[test]
fn what_is_optional_and_wrong_is_unknown() {
    let sysfs = FakeSysfs::new();
    sysfs.function(ONE);
    for (name, content) in
        [("numa_node", "-1\n"), ("enable", "yes\n"), ("revision", "0x1ff\n"), ("resource", "x")]
    {
        sysfs.file(ONE, name, content);
    }
    sysfs.file(ONE, "subsystem_device", "0x+1\n");
    fs::remove_file(sysfs.devices().join(ONE).join("power_state")).unwrap();
    symlink(sysfs.0.join("iommu_groups/many"), sysfs.devices().join(ONE).join("iommu_group")).unwrap();
    let function = sysfs.read(ONE).unwrap();
    assert_eq!((function.numa_node, function.enabled, function.power_state), (None, None, None));
    assert_eq!((function.identity.revision, function.identity.subsystem), (0, 0));
    assert_eq!((function.iommu_group, function.bars), (None, BarLayout::default()));
}

#[test]
fn the_resource_file_gives_bars_and_rom() {
    let path = Path::new("resource");
    let text = "0x0000004000000000 0x000000400007ffff 0x0000000000140204\n\
                0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                0x000000000000e000 0x000000000000e01f 0x0000000000040101\n\
                0x00000000fe000000 0x00000000fe000fff 0x0000000000042208\n\
                0x0000000000000000 0x0000000000003fff 0x0000000020040200\n\
                0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                0x00000000feb00000 0x00000000feb0ffff 0x0000000000046201\n\
                0x0000000000000000 0x0000000000000fff 0x0000000000040200\n";
    let layout = parse_resources(path, text).unwrap();
    let bars: Vec<_> = layout
        .bars()
        .map(|bar| (bar.index.as_u8(), bar.kind, bar.prefetchable, bar.size.as_u64(), bar.address))
        .collect();
    assert_eq!(
        bars,
        [
            (0, BarKind::Memory64, false, 0x8_0000, 0x40_0000_0000),
            (2, BarKind::Io, false, 0x20, 0xe000),
            (3, BarKind::Memory32, true, 0x1000, 0xfe00_0000),
            (4, BarKind::Memory32, false, 0x4000, 0),
        ]
    );
    let rom = layout.rom().unwrap();
    assert_eq!((rom.size.as_u64(), rom.address, rom.enabled), (0x1_0000, 0xfeb0_0000, true));
    let zeros = "0x0 0x0 0x0\n";
    for bad in [
        "0x0 0x0".to_owned(),
        "0x0 0x0 0x0 0x0".to_owned(),
        "0x2000 0x1000 0x200".to_owned(),
        "0x0 0xffffffffffffffff 0x200".to_owned(),
        "1 2 3".to_owned(),
        zeros.repeat(5) + "0x4000 0x4fff 0x100200",
        "0x4000 0x4fff 0x100200\n0x8000 0x8fff 0x200".to_owned(),
    ] {
        assert!(matches!(parse_resources(path, &bad), Err(SysfsError::Malformed { .. })), "{bad}");
    }
    assert_eq!(parse_resources(path, ""), Ok(BarLayout::default()));
}

#[test]
fn configuration_space_is_read_only_and_says_where_privilege_cuts_it() {
    let sysfs = FakeSysfs::new();
    sysfs.function(ONE);
    let mut bytes = vec![0; 256];
    bytes[..16].copy_from_slice(&[0x86, 0x80, 0x25, 0x0b, 7, 0, 0x10, 0, 4, 0, 0, 2, 0, 0, 0, 0]);
    (bytes[0x34], bytes[0x40]) = (0x40, 0x11);
    sysfs.file(ONE, "config", &bytes);
    let config = sysfs.read(ONE).unwrap().config().unwrap();
    assert_eq!((config.size(), identity(&config).unwrap().device), (256, 0x0b25));
    assert_eq!(capabilities(&config).map(|found| found.unwrap().id.0).collect::<Vec<_>>(), [0x11]);
    assert_eq!((config.read8(1), config.read16(2)), (Ok(0x80), Ok(0x0b25)));
    assert_eq!(config.write16(4, 0), Err(ConfigError::ReadOnly));
    assert!(matches!(config.read32(256), Err(ConfigError::OutOfBounds { .. })));

    sysfs.file(ONE, "config", &bytes[..64]);
    assert_eq!(identity(&config).unwrap().device, 0x0b25);
    let cut = ConfigError::Privilege { offset: 0x40, readable: 64 };
    assert_eq!(config.read16(0x40), Err(cut.clone()));
    assert_eq!(capabilities(&config).collect::<Vec<_>>(), [Err(cut)]);
    fs::remove_file(sysfs.devices().join(ONE).join("config")).unwrap();
    assert_eq!(sysfs.read(ONE).unwrap().config().unwrap_err(), ConfigError::DeviceGone);
}

#[test]
fn each_obstacle_comes_with_its_fix() {
    let sysfs = FakeSysfs::new();
    sysfs.function(ONE);
    let address: Bdf = ONE.parse().unwrap();
    let not_bound = Obstacle::NotBound { address };
    assert_eq!(sysfs.read(ONE).unwrap().obstacles(), [Obstacle::NoIommuGroup, not_bound]);

    sysfs.function(TWO);
    sysfs.bind(ONE, "ixgbe");
    sysfs.bind(TWO, "ixgbe");
    sysfs.group("7", &[ONE, TWO]);
    let others = vec![(TWO.parse().unwrap(), "ixgbe".to_owned())];
    let shared = Obstacle::GroupShared { group: 7, others };
    let bound = Obstacle::BoundToDriver { address, driver: "ixgbe".to_owned() };
    let function = sysfs.read(ONE).unwrap();
    assert_eq!(function.obstacles(), [bound, shared]);
    let Err(refusal) = function.open() else { panic!("it was opened") };
    let refusal = refusal.to_string();
    for part in [
        "bound to driver ixgbe",
        "echo 0000:01:00.0 > /sys/bus/pci/drivers/ixgbe/unbind",
        "group 7 also holds 0000:01:00.1 (ixgbe)",
    ] {
        assert!(refusal.contains(part), "{part} is not in {refusal}");
    }
}

#[test]
fn a_function_on_vfio_pci_lacks_nothing_and_a_fake_iommu_is_no_iommu() {
    let sysfs = FakeSysfs::new();
    for address in [ONE, TWO] {
        sysfs.function(address);
    }
    sysfs.bind(ONE, "vfio-pci");
    sysfs.bind(TWO, "pcieport");
    sysfs.group("7", &[ONE, TWO]);
    assert_eq!(sysfs.read(ONE).unwrap().obstacles(), []);
    fs::remove_file(sysfs.devices().join(ONE).join("driver")).unwrap();
    sysfs.bind(ONE, "mlx5_vfio_pci");
    assert_eq!(sysfs.read(ONE).unwrap().obstacles(), [], "a variant for one device");
    fs::write(sysfs.0.join("iommu_groups/7/name"), "vfio-noiommu\n").unwrap();
    assert_eq!(sysfs.read(ONE).unwrap().obstacles()[0], Obstacle::WithoutIommu { group: 7 });
    sysfs.file(TWO, "class", "0x060400\n");
    assert_eq!(sysfs.read(TWO).unwrap().obstacles(), [Obstacle::Bridge]);
}

#[test]
fn nodes_that_are_missing_are_named_and_one_interface_is_enough() {
    let sysfs = FakeSysfs::new();
    sysfs.function(ONE);
    let dev = sysfs.0.join("dev");
    assert_eq!(sysfs.read(ONE).unwrap().node_obstacles(&dev), [], "without a group there is no node");
    sysfs.group("7", &[ONE]);
    let missing = |node: &str| Obstacle::NodeMissing { node: dev.join(node) };
    let found = || sysfs.read(ONE).unwrap().node_obstacles(&dev);
    assert_eq!(found(), [missing("vfio/vfio"), missing("vfio/7")]);
    assert!(found()[0].fix().contains("vfio_iommu_type1") && found()[1].fix().contains("vfio-pci"));
    fs::create_dir_all(dev.join("vfio/devices")).unwrap();
    fs::write(dev.join("vfio/7"), "").unwrap();
    assert_eq!(found(), [missing("vfio/vfio")]);
    fs::create_dir_all(sysfs.devices().join(ONE).join("vfio-dev/vfio3")).unwrap();
    fs::write(dev.join("vfio/devices/vfio3"), "").unwrap();
    assert_eq!(found(), [missing("vfio/vfio")]);
    fs::write(dev.join("iommu"), "").unwrap();
    assert_eq!(found(), []);
    assert_eq!(sysfs.read(ONE).unwrap().vfio_device().as_deref(), Some("vfio3"));
}

#[test]
fn every_function_of_this_machine_is_listed_or_named_as_a_fault() {
    let listing = SysfsListing::read(Path::new(DEVICES)).unwrap();
    let entries = fs::read_dir(DEVICES).map_or(0, Iterator::count);
    assert_eq!(listing.functions.len() + listing.faults.len(), entries, "{:?}", listing.faults);
    for function in &listing.functions {
        let size = function.config().unwrap().size();
        assert!(size == 256 || size == 4096);
        let bound = function.obstacles().iter().any(|one| matches!(one, Obstacle::NotBound { .. }));
        assert!(!bound || function.driver.is_none(), "{}", function.address);
    }
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config {
        cases: if cfg!(miri) { 4 } else { 256 },
        failure_persistence: None,
        ..proptest::test_runner::Config::default()
    })]

    #[test]
    fn resource_files_of_any_text_are_parsed_or_refused(
        lines in proptest::collection::vec("(0x)?[0-9a-fA-F]{0,17} 0x[0-9a-f]{1,16} 0x(140204|200|101|.{0,6})", 0..10),
        noise in ".{0,80}",
    ) {
        let path = Path::new("resource");
        let _ = parse_resources(path, &noise);
        if let Ok(layout) = parse_resources(path, &lines.join("\n")) {
            for bar in layout.bars() {
                let upper = BarIndex::new(bar.index.as_u8() + 1);
                let wide = bar.kind == BarKind::Memory64;
                proptest::prop_assert!(!wide || upper.is_some_and(|upper| layout.bar(upper).is_none()));
            }
        }
    }
}
