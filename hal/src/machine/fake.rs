//! A machine of files with a kernel that behaves as Linux does, for tests.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use super::{Control, Machine, is_vfio, link_name, text};
use crate::sysfs::SysfsFunction;

pub(super) const ONE: &str = "0000:01:00.0";
pub(super) const TWO: &str = "0000:01:00.1";
pub(super) const THREE: &str = "0000:02:00.0";

/// Files that look like a machine, removed when dropped.
pub(super) struct FakeMachine {
    root: PathBuf,
    /// The driver that takes a function by itself.
    native: RefCell<BTreeMap<String, String>>,
    /// The modules that can be loaded.
    pub(super) loadable: RefCell<Vec<String>>,
    /// The drivers that take nothing.
    pub(super) refusing: RefCell<Vec<String>>,
    /// The ends of the paths of files that cannot be written, each from so many writes on.
    pub(super) broken: RefCell<Vec<(String, u32)>>,
    pub(super) may_write: Cell<bool>,
    pub(super) written: RefCell<Vec<String>>,
    pub(super) owners: RefCell<Vec<(String, u32)>>,
}

impl FakeMachine {
    /// A machine with an IOMMU, `vfio-pci` and no function.
    pub(super) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // ORDERING: Relaxed, the number only has to differ.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("vdk-machine-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let machine = Self {
            root,
            native: RefCell::default(),
            loadable: RefCell::default(),
            refusing: RefCell::default(),
            broken: RefCell::default(),
            may_write: Cell::new(true),
            written: RefCell::default(),
            owners: RefCell::default(),
        };
        machine.folder("/sys/bus/pci/devices");
        machine.folder("/dev/vfio/devices");
        machine.driver("vfio-pci");
        machine.file("/proc/sys/kernel/random/boot_id", "boot-1\n");
        machine
    }

    pub(super) fn machine(&self) -> Machine {
        Machine::below(&self.root)
    }

    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub(super) fn folder(&self, path: &str) {
        fs::create_dir_all(self.at(path)).unwrap();
    }

    pub(super) fn file(&self, path: &str, content: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub(super) fn link(&self, path: &str, target: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(self.at(target), path).unwrap();
    }

    pub(super) fn remove(&self, path: &str) {
        fs::remove_file(self.at(path)).unwrap();
    }

    pub(super) fn driver(&self, name: &str) {
        self.folder(&format!("/sys/bus/pci/drivers/{name}"));
    }

    /// A function with a class such as `0x010802`, taken by `driver` unless that is empty.
    pub(super) fn function(&self, address: &str, class: &str, driver: &str) {
        let folder = format!("/sys/devices/pci0000:00/{address}");
        let header = [0x86, 0x80, 0x25, 0x0b, 0, 0, 0x10, 0];
        let mut config = vec![0; 256];
        config[..8].copy_from_slice(&header);
        config[0x3d] = 1;
        for (name, content) in [
            ("vendor", "0x8086\n"),
            ("device", "0x0b25\n"),
            ("class", class),
            ("revision", "0x04\n"),
            ("driver_override", "(null)\n"),
            ("power_state", "D0\n"),
            ("reset_method", "flr bus\n"),
        ] {
            self.file(&format!("{folder}/{name}"), content);
        }
        fs::write(self.at(&format!("{folder}/config")), config).unwrap();
        self.link(&format!("/sys/bus/pci/devices/{address}"), &folder);
        if !driver.is_empty() {
            self.driver(driver);
            self.native.borrow_mut().insert(address.to_owned(), driver.to_owned());
            self.take(address, driver);
        }
    }

    pub(super) fn group(&self, number: &str, members: &[&str]) {
        self.folder(&format!("/sys/kernel/iommu_groups/{number}/devices"));
        for member in members {
            let function = format!("/sys/devices/pci0000:00/{member}");
            self.link(&format!("/sys/kernel/iommu_groups/{number}/devices/{member}"), &function);
            self.link(&format!("{function}/iommu_group"), &format!("/sys/kernel/iommu_groups/{number}"));
        }
    }

    /// A block device of a function; `path` is below the function's folder.
    pub(super) fn block(&self, address: &str, path: &str, number: &str) {
        let name = path.rsplit('/').next().unwrap();
        let folder = format!("/sys/devices/pci0000:00/{address}/{path}");
        self.file(&format!("{folder}/dev"), number);
        self.link(&format!("/sys/class/block/{name}"), &folder);
        self.file(&format!("/dev/{name}"), "");
    }

    pub(super) fn interface(&self, address: &str, name: &str, flags: &str) {
        let folder = format!("/sys/devices/pci0000:00/{address}/net/{name}");
        self.file(&format!("{folder}/flags"), flags);
        self.link(&format!("/sys/class/net/{name}"), &folder);
    }

    pub(super) fn read(&self, address: &str) -> SysfsFunction {
        SysfsFunction::read(&self.machine().devices(), address.parse().unwrap()).unwrap()
    }

    /// The driver of a function and what it is reserved for.
    pub(super) fn state(&self, address: &str) -> (Option<String>, String) {
        let function = self.function_folder(address);
        (link_name(&function.join("driver")), text(&function.join("driver_override")).unwrap_or_default())
    }

    fn function_folder(&self, address: &str) -> PathBuf {
        self.at(&format!("/sys/devices/pci0000:00/{address}"))
    }

    fn take(&self, address: &str, driver: &str) {
        let link = self.function_folder(address).join("driver");
        symlink(self.at(&format!("/sys/bus/pci/drivers/{driver}")), link).unwrap();
        if is_vfio(driver)
            && let Some(group) = link_name(&self.function_folder(address).join("iommu_group"))
        {
            self.file(&format!("/dev/vfio/{group}"), "");
            self.folder(&format!("/sys/devices/pci0000:00/{address}/vfio-dev/vfio{group}"));
            self.file(&format!("/dev/vfio/devices/vfio{group}"), "");
        }
    }

    /// Whether the kernel would let a driver take a function.
    fn matches(&self, address: &str, driver: &str) -> bool {
        let (_, reserved) = self.state(address);
        let native = self.native.borrow().get(address).cloned().unwrap_or_default();
        let wanted = if reserved == "(null)" { native } else { reserved };
        wanted == driver && !self.refusing.borrow().iter().any(|name| name == driver)
    }

    fn bind(&self, address: &str, driver: &str) -> io::Result<()> {
        if link_name(&self.function_folder(address).join("driver")).is_some()
            || !self.matches(address, driver)
        {
            return Err(Errno::NODEV.into());
        }
        self.take(address, driver);
        Ok(())
    }

    fn unbind(&self, address: &str, driver: &str) -> io::Result<()> {
        let link = self.function_folder(address).join("driver");
        if link_name(&link).as_deref() != Some(driver) {
            return Err(Errno::NODEV.into());
        }
        let _ = fs::remove_dir_all(self.function_folder(address).join("vfio-dev"));
        fs::remove_file(link)
    }
}

impl Control for FakeMachine {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        let shown = path.strip_prefix(&self.root).unwrap().to_string_lossy().into_owned();
        let text = text.trim();
        for (end, after) in self.broken.borrow_mut().iter_mut() {
            if shown.ends_with(end.as_str()) {
                if *after == 0 {
                    return Err(Errno::IO.into());
                }
                *after -= 1;
            }
        }
        self.written.borrow_mut().push(format!("{text} > /{shown}"));
        let mut parts = shown.rsplit('/');
        match (parts.next().unwrap(), parts.next().unwrap()) {
            ("driver_override", _) => fs::write(path, if text.is_empty() { "(null)" } else { text }),
            ("drivers_probe", _) => {
                let drivers = super::names(&self.at("/sys/bus/pci/drivers"));
                if let Some(driver) = drivers.iter().find(|driver| self.matches(text, driver)) {
                    let _ = self.bind(text, driver);
                }
                Ok(())
            }
            ("bind", driver) => self.bind(text, driver),
            ("unbind", driver) => self.unbind(text, driver),
            _ => Err(Errno::NOENT.into()),
        }
    }

    fn load_module(&self, name: &str) -> Result<(), String> {
        if !self.loadable.borrow().iter().any(|module| module == name) {
            return Err(format!("modprobe {name} failed: no such module"));
        }
        self.driver(name);
        Ok(())
    }

    fn change_owner(&self, path: &Path, user: u32) -> io::Result<()> {
        let shown = path.strip_prefix(&self.root).unwrap().to_string_lossy().into_owned();
        if self.broken.borrow().iter().any(|(end, _)| shown.ends_with(end.as_str())) {
            return Err(Errno::PERM.into());
        }
        self.owners.borrow_mut().push((format!("/{shown}"), user));
        Ok(())
    }

    fn may_write(&self, _path: &Path) -> bool {
        self.may_write.get()
    }
}

impl Drop for FakeMachine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}
